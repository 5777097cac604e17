//! A store that shares a region with the log of a device: the path of the region and its creation
//! (`docs/spec/packet-store.md` §12).

use std::fmt;
use std::path::Path;

use pmnet_log::{BUFFERS_MIN, ENTRIES_MAX, ENTRIES_MIN, Identity as LogIdentity, Media};
use pmnet_media::{AnyMedia, Kind};
use pmnet_packet_store::{
    Geometry, Identity, OpenError as ImageError, Shared, SharedError, format_shared,
};

use super::holder::Beside;
use super::place::{Place, SIZE_DEFAULT, media_error};
use super::{Served, Told};
use crate::OpenError;
use crate::embedded::cursors;

/// A packet store beside the log of a device.
pub type RegionStore<M> = Served<Beside<M>>;

impl<M: Media + Send> Served<Beside<M>> {
    /// Returns the store of a region. The store also holds the log until a device takes it. `name`: the name of the
    /// store in messages.
    ///
    /// # Errors
    /// [`OpenError::Random`].
    pub fn new(mut shared: Shared<M>, name: String) -> Result<RegionStore<M>, OpenError> {
        shared.keep_ahead();
        Ok(Served {
            holder: Beside::new(shared, name),
            told: Told::default(),
            cursors: cursors()?,
            short: false,
            crowded: false,
            cleared: 0,
        })
    }

    /// Returns the region.
    pub fn region(&mut self) -> &mut Shared<M> {
        self.holder.shared()
    }

    /// Returns the region, and consumes this value.
    #[must_use]
    pub fn into_region(self) -> Shared<M> {
        self.holder.into_shared()
    }

    /// Returns two numbers since the start: of strings of updates that stayed where they had arrived, and of strings
    /// that were copied.
    #[must_use]
    pub const fn counts(&self) -> [u64; 2] {
        self.holder.counts()
    }
}

/// The place of a shared region, and the division of its space.
#[derive(Clone, Debug)]
pub struct RegionAddress {
    place: Place,
    device: u32,
    /// Size of the frames that only the log may use, in bytes.
    log_bytes: u64,
}

impl fmt::Display for RegionAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.fmt(f)
    }
}

impl RegionAddress {
    /// Reads `packet:PATH[?size=BYTES][&media=file|dram|pmem]`. `size` is the size of the file, with log, data and
    /// tables. Of these bytes, the log alone may use `log_bytes`.
    ///
    /// # Errors
    /// [`OpenError::Scheme`], [`OpenError::Packet`].
    pub fn parse(
        url: &str,
        device: u32,
        shard: u32,
        log_bytes: u64,
    ) -> Result<RegionAddress, OpenError> {
        let address = url
            .strip_prefix("packet:")
            .ok_or_else(|| OpenError::Scheme {
                url: url.to_owned(),
            })?;
        let place = Place::parse(address, shard)?;
        let region = RegionAddress {
            place,
            device,
            log_bytes,
        };
        if region.place.lines.is_some() {
            return Err(region.wrong(
                "lines= is for the store of a pmnet server; the number of lines of a region follows from its size".into(),
            ));
        }
        Ok(region)
    }

    /// Returns the medium of the region.
    ///
    /// # Errors
    /// [`OpenError::Packet`]: no medium suits the path.
    pub fn medium(&self) -> Result<Kind, OpenError> {
        self.place.suitable().map_err(|why| self.wrong(why))
    }

    /// Returns whether there is nothing at the path yet.
    #[must_use]
    pub fn is_new(&self) -> bool {
        !self.place.path.exists()
    }

    /// Returns the path of the region.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.place.path
    }

    fn wrong(&self, why: String) -> OpenError {
        OpenError::Packet {
            path: self.place.path.display().to_string(),
            why,
        }
    }

    /// Opens the region. If there is nothing at the path, creates the region. Returns whether the region's file was
    /// created.
    ///
    /// # Errors
    /// [`OpenError::Packet`]: the region is in use, holds something else, belongs to another device or shard, is
    /// damaged or too small, or cannot be created.
    pub fn open(&self) -> Result<(Shared<AnyMedia>, bool), OpenError> {
        self.try_open().map_err(|why| self.wrong(why))
    }

    fn try_open(&self) -> Result<(Shared<AnyMedia>, bool), String> {
        let path = &self.place.path;
        let kind = self.place.suitable()?;
        let open = || pmnet_media::open(path, kind);
        let (media, made) = match open() {
            Ok(media) => (media, false),
            Err(pmnet_media::OpenError::NotFound { .. }) => {
                let bytes = self.geometry(kind, SIZE_DEFAULT)?.image_bytes();
                let made = pmnet_media::create(path, kind, bytes);
                (made.map_err(|error| media_error(&error))?, true)
            }
            Err(error) => return Err(media_error(&error)),
        };
        match self.share(media, kind) {
            Ok(shared) => Ok((shared, made)),
            Err(SharedError::Store(ImageError::Blank | ImageError::Interrupted)) => {
                let mut media = open().map_err(|error| media_error(&error))?;
                self.make(&mut media, kind)?;
                let shared = self.share(media, kind);
                shared
                    .map(|shared| (shared, made))
                    .map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn share(&self, media: AnyMedia, kind: Kind) -> Result<Shared<AnyMedia>, SharedError> {
        Shared::open(media, self.place.shard, self.device, self.log_frames(kind))
    }

    fn make(&self, media: &mut AnyMedia, kind: Kind) -> Result<(), String> {
        let room = media.bytes().len();
        let geometry = self.geometry(kind, u64::try_from(room).unwrap_or(u64::MAX))?;
        if geometry.image_bytes() > room {
            let wanted = geometry.image_bytes();
            return Err(format!(
                "there are {room} bytes, and the region would have {wanted}: give a smaller size=BYTES"
            ));
        }
        let mut uuids = [[0; 16]; 2];
        for uuid in &mut uuids {
            getrandom::fill(uuid).map_err(|error| error.to_string())?;
        }
        let [store, log] = uuids.map(u128::from_be_bytes);
        let store = Identity {
            uuid: store,
            shard: self.place.shard,
        };
        let log = LogIdentity {
            log_uuid: log,
            device: self.device,
            shard: self.place.shard,
        };
        format_shared(media, &store, &log, &geometry).map_err(|error| error.to_string())
    }

    /// Returns the number of frames that only the log may use.
    #[must_use]
    pub fn log_frames(&self, kind: Kind) -> u32 {
        let frames = self.log_bytes.div_ceil(u64::from(frame_bytes(kind)));
        u32::try_from(frames.max(BUFFERS_MIN)).unwrap_or(u32::MAX)
    }

    /// Returns the geometry of a new region. If no size was given, the region gets `room` bytes.
    fn geometry(&self, kind: Kind, room: u64) -> Result<Geometry, String> {
        let bytes = frame_bytes(kind);
        let size = self.place.size.unwrap_or(room);
        let log_frames = u64::from(self.log_frames(kind));
        let entries = log_frames
            .next_power_of_two()
            .clamp(ENTRIES_MIN, ENTRIES_MAX);
        let entries = u32::try_from(entries).expect("at most 2^26");
        let fits = Geometry::shared_for_size(size, bytes, entries);
        let frames = fits.as_ref().map_or(0, |geometry| geometry.frames);
        let is_small = size / u64::from(bytes) < 4 * log_frames;
        if (fits.is_ok() || is_small) && log_frames * 2 > u64::from(frames) {
            return Err(format!(
                "in {size} bytes there is room for {frames} frames beside the tables, and the log would have {log_frames} of them: give a \
                 larger size=BYTES, or a smaller --log-size (at most half of the frames)"
            ));
        }
        fits.map_err(|error| error.to_string())
    }
}

/// Returns the size of a frame in bytes. In a file, a frame is one block, which is written in one step. On other media,
/// a frame has the size that a packet needs.
fn frame_bytes(kind: Kind) -> u32 {
    match kind {
        Kind::File => 4096,
        Kind::Dram | Kind::Pmem => 2048,
    }
}
