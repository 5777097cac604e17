//! Creates and opens a region with a log and a store.

use pmnet_log::{BUFFERS_MIN, Expected, Held, Identity as LogIdentity, LogError, Media};

use super::{Seat, Shared};
use crate::error::OpenError;
use crate::geometry::{FRAMES_MAX, FRAMES_MIN, Geometry, to_u64};
use crate::scan::Scan;
use crate::superblock::{self, Identity};

/// Minimum number of frames that the store must have besides the log's frames.
const STORE_FRAMES_MIN: u32 = 16;

/// Reason why a region cannot be created or opened. The image is unchanged, unless a medium failed. One exception: the
/// store may have been repaired (which changes no record) before the log was found damaged.
#[derive(Debug, thiserror::Error)]
pub enum SharedError {
    /// The error is in the store.
    #[error("the store: {0}")]
    Store(#[from] OpenError),
    /// The error is in the log.
    #[error("the log: {0}")]
    Log(#[from] LogError),
    /// Store and log contradict each other, or they contradict the arguments.
    #[error("{0}")]
    Unfit(String),
}

/// Creates an empty store and an empty log in a blank image, durably. The next step is [`Shared::open`].
///
/// # Errors
/// [`SharedError`].
pub fn format_shared<M: Media>(
    mut medium: M,
    identity: &Identity,
    log: &LogIdentity,
    geometry: &Geometry,
) -> Result<(), SharedError> {
    geometry.validate()?;
    let parameters = geometry
        .log()
        .ok_or_else(|| SharedError::Unfit("the log has no entries".into()))?;
    parameters.validate().map_err(LogError::from)?;
    // The superblock of the store is written first: without this superblock, the image counts as empty.
    superblock::format(&mut medium, identity, geometry)?;
    let mut seat = Seat::new(Box::new(medium), geometry.table().end);
    pmnet_log::format(&mut seat, log, &parameters)?;
    Ok(())
}

impl<M: Media> Shared<M> {
    /// Scans and repairs the store, and then the log, and finds out the owner of each frame. The log gets `log_frames`
    /// frames besides the frames with records. The log reclaims the orders that the store has applied. The other orders
    /// in the log must be applied again ([`Shared::change`]).
    ///
    /// # Errors
    /// [`SharedError`].
    pub fn open(
        medium: M,
        shard: u32,
        device: u32,
        log_frames: u32,
    ) -> Result<Shared<M>, SharedError> {
        let scan = Scan::open(Seat::new(Box::new(medium), 0), Some(shard))?;
        let geometry = *scan.geometry();
        let parameters = geometry.log().ok_or(OpenError::Region(
            "there is no log in it: it is a store of its own, for pmnet server",
        ))?;
        let most = geometry.frames.saturating_sub(STORE_FRAMES_MIN);
        if !(BUFFERS_MIN..=u64::from(most)).contains(&u64::from(log_frames)) {
            return Err(SharedError::Unfit(format!(
                "{log_frames} frames for the log: of {} it can have {BUFFERS_MIN} to {most}",
                geometry.frames
            )));
        }
        // Neither of the two repairs stores into a frame.
        let mut store = scan.repair_in_region()?;
        let seat = Seat::new(store.media_mut().take(), geometry.table().end);
        let expected = Expected {
            device,
            shard,
            parameters: Some(parameters),
        };
        let scan = pmnet_log::Scan::open(seat, Some(expected))?;
        let decision = scan.decide();
        let log = scan.repair_sharing(decision, u64::from(log_frames))?;
        let order = store.last_commit().order;
        if !(log.applied()..=log.last()).contains(&order) {
            return Err(SharedError::Unfit(format!(
                "the store has the orders up to {order}, and the log says that it has those up to {}, and holds those up to \
                 {}: one of them is older than the other; take the copy of a backup",
                log.applied(),
                log.last()
            )));
        }
        let mut shared = Shared {
            log: Held::new(log),
            store,
            log_frames,
            own: 0,
        };
        shared.divide()?;
        shared.log.reclaim(order);
        Ok(shared)
    }

    /// Finds out the owner of each frame from the contents of log and store.
    fn divide(&mut self) -> Result<(), SharedError> {
        for order in self.log.applied() + 1..=self.log.last() {
            let (frame, ..) = self.payload_of(order).expect("the log keeps this order");
            self.store.frames.share(frame);
            self.own += 1;
        }
        self.store.frames.kept();
        let wanted = self.log_frames + self.store.frames.logged();
        while self.own < wanted {
            let Some(frame) = self.store.frames.lend_cold() else {
                return Err(SharedError::Unfit(format!(
                    "records are in all but {} of {} frames, so the log cannot have {}",
                    self.own - self.store.frames.logged(),
                    self.store.geometry.frames,
                    self.log_frames
                )));
            };
            self.log.take_in_buffer(frame);
            self.own += 1;
        }
        Ok(())
    }
}

impl Geometry {
    /// Returns the geometry of a region with `frames` frames, for a store and a log with `log_entries` entries. The
    /// region has one line for every 256 bytes of frames, and two lines for each entry of the log, so that the log's
    /// updates find lines.
    ///
    /// # Errors
    /// [`OpenError::Geometry`] if no region can have this size.
    pub fn shared(frames: u32, frame_bytes: u32, log_entries: u32) -> Result<Geometry, OpenError> {
        let wrong = || OpenError::Geometry {
            why: format!("{frames} frames of {frame_bytes} bytes beside {log_entries} entries"),
        };
        let bytes = u64::from(frames) * u64::from(frame_bytes);
        let lines = (bytes / 256 + 2 * u64::from(log_entries))
            .next_multiple_of(to_u64(crate::geometry::LINE_BYTES));
        let geometry = Geometry {
            lines: u32::try_from(lines).map_err(|_| wrong())?,
            frames,
            frame_bytes,
            log_entries,
        };
        geometry.validate()?;
        Ok(geometry)
    }

    /// Returns the largest geometry of a shared region that fits into `bytes`.
    ///
    /// # Errors
    /// [`OpenError::Geometry`] if no region fits.
    pub fn shared_for_size(
        bytes: u64,
        frame_bytes: u32,
        log_entries: u32,
    ) -> Result<Geometry, OpenError> {
        largest(bytes, frame_bytes, |frames| {
            Geometry::shared(frames, frame_bytes, log_entries)
        })
    }
}

/// Returns the geometry with the most frames among those whose image fits into `bytes`.
pub(crate) fn largest(
    bytes: u64,
    frame_bytes: u32,
    of: impl Fn(u32) -> Result<Geometry, OpenError>,
) -> Result<Geometry, OpenError> {
    let fits = |pairs: u32| {
        let found = of(2 * pairs);
        found.is_ok_and(|geometry| to_u64(geometry.image_bytes()) <= bytes)
    };
    let most = bytes / u64::from(frame_bytes.max(1)) / 2;
    let (mut low, mut high) = (
        0,
        u32::try_from(most)
            .unwrap_or(FRAMES_MAX)
            .min(FRAMES_MAX / 2),
    );
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        // The search treats a number of frames below the minimum as too low.
        let too_few = 2 * middle < FRAMES_MIN;
        if too_few || fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    let found = of(2 * low)?;
    let takes = to_u64(found.image_bytes());
    if takes > bytes || takes < bytes / 2 {
        let why = format!("{bytes} bytes are too few or too many for tables, log and frames");
        return Err(OpenError::Geometry { why });
    }
    Ok(found)
}
