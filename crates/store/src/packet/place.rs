//! The path of a packet store, and the creation of a store at this path.

use std::fmt;
use std::path::{Path, PathBuf};

use pmnet_log::Media as _;
use pmnet_media::{AnyMedia, Kind};
use pmnet_packet_store::{Geometry, Identity, OpenError as ImageError, PacketStore, Scan, format};

use crate::OpenError;

/// Size of a new store in a file, if none is given, in bytes.
pub(super) const SIZE_DEFAULT: u64 = 1 << 30;
/// Size of a frame in bytes: a block device writes this much at once, and a packet buffer can have this size.
const FRAME_BYTES: u32 = 4096;
/// One in this many frames stays free in addition to the reserve. The fraction of the lines that stays free is equal.
/// The free frames and lines are for updates in the devices' logs, whose number the store does not know.
const AHEAD_FRACTION: u32 = 16;

/// Path and settings of a store.
#[derive(Clone, Debug)]
pub struct Place {
    pub(super) path: PathBuf,
    pub(super) shard: u32,
    /// Medium; `None`: the medium that suits the path.
    kind: Option<Kind>,
    /// Size in bytes; `None`: the whole device, or [`SIZE_DEFAULT`] for a file.
    pub(super) size: Option<u64>,
    pub(super) lines: Option<u32>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "packet:{}", self.path.display())
    }
}

impl Place {
    /// Reads the part of an address after `packet:`.
    ///
    /// # Errors
    /// [`OpenError::Packet`]: a part of the address is wrong.
    pub fn parse(address: &str, shard: u32) -> Result<Place, OpenError> {
        let (path, settings) = address.split_once('?').unwrap_or((address, ""));
        let wrong = |why: String| OpenError::Packet {
            path: path.to_owned(),
            why,
        };
        if path.is_empty() {
            return Err(wrong("the path is missing: packet:PATH".into()));
        }
        let mut place = Place {
            path: path.into(),
            shard,
            kind: None,
            size: None,
            lines: None,
        };
        let mut said = Vec::new();
        for setting in settings.split('&').filter(|setting| !setting.is_empty()) {
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            if said.contains(&name) {
                return Err(wrong(format!("{name} is said twice")));
            }
            said.push(name);
            match (name, value) {
                ("size", size) => {
                    place.size = Some(bytes(size).ok_or_else(|| {
                        wrong(format!(
                            "size={size}: a number of bytes, with K, M or G, is wanted"
                        ))
                    })?);
                }
                ("lines", lines) => {
                    let lines = lines.parse().map_err(|_| {
                        wrong(format!("lines={lines}: a number of lines is wanted"))
                    })?;
                    place.lines = Some(lines);
                }
                ("media", "file") => place.kind = Some(Kind::File),
                ("media", "dram") => place.kind = Some(Kind::Dram),
                ("media", "pmem") => place.kind = Some(Kind::Pmem),
                _ => {
                    return Err(wrong(format!(
                        "{setting}: an unknown setting; there are size=BYTES, lines=N and media=file, dram or pmem"
                    )));
                }
            }
        }
        Ok(place)
    }

    /// Opens the store, or creates it.
    ///
    /// # Errors
    /// [`OpenError::Packet`]: the store cannot be opened or created.
    pub fn open(&self) -> Result<PacketStore<AnyMedia>, OpenError> {
        self.try_open().map_err(|why| OpenError::Packet {
            path: self.path.display().to_string(),
            why,
        })
    }

    /// Returns the medium that the address names. If the address names no medium, returns the medium that suits the
    /// path.
    pub(super) fn suitable(&self) -> Result<Kind, String> {
        if self.path.is_dir() {
            return Err("this is a directory: name a file in it".into());
        }
        match self.kind {
            Some(kind) => Ok(kind),
            None => {
                let found = pmnet_media::look(&self.path);
                found
                    .map(|found| found.kind)
                    .map_err(|error| error.to_string())
            }
        }
    }

    fn try_open(&self) -> Result<PacketStore<AnyMedia>, String> {
        let mut map = self.open_or_make()?;
        let share = |all: u32| usize::try_from(all / AHEAD_FRACTION).unwrap_or(usize::MAX);
        let (frames, lines) = (map.geometry().frames, map.geometry().lines);
        map.keep_ahead(share(frames), share(lines));
        Ok(map)
    }

    fn open_or_make(&self) -> Result<PacketStore<AnyMedia>, String> {
        let told = |error: &dyn fmt::Display| error.to_string();
        let path: &Path = &self.path;
        let kind = self.suitable()?;
        let media = match pmnet_media::open(path, kind) {
            Ok(media) => media,
            Err(pmnet_media::OpenError::NotFound { .. }) => {
                let bytes = self.geometry(SIZE_DEFAULT)?.image_bytes();
                pmnet_media::create(path, kind, bytes).map_err(|error| media_error(&error))?
            }
            Err(error) => return Err(media_error(&error)),
        };
        match Scan::open(media, Some(self.shard)) {
            Ok(scan) => scan.repair().map_err(|error| told(&error)),
            Err(ImageError::Blank | ImageError::Interrupted) => self.make(kind),
            Err(error) => Err(told(&error)),
        }
    }

    /// Creates a store in a file or device that holds no store yet.
    fn make(&self, kind: Kind) -> Result<PacketStore<AnyMedia>, String> {
        let told = |error: &dyn fmt::Display| error.to_string();
        let mut media = pmnet_media::open(&self.path, kind).map_err(|error| media_error(&error))?;
        let room = media.bytes().len();
        let geometry = self.geometry(u64::try_from(room).unwrap_or(u64::MAX))?;
        if geometry.image_bytes() > room {
            let wanted = geometry.image_bytes();
            return Err(format!(
                "there are {room} bytes, and the store would have {wanted}: give a smaller size=BYTES"
            ));
        }
        let mut uuid = [0; 16];
        getrandom::fill(&mut uuid).map_err(|error| told(&error))?;
        let identity = Identity {
            uuid: u128::from_le_bytes(uuid),
            shard: self.shard,
        };
        format(&mut media, &identity, &geometry).map_err(|error| told(&error))?;
        let scan = Scan::open(media, Some(self.shard)).map_err(|error| told(&error))?;
        scan.repair().map_err(|error| told(&error))
    }

    /// Returns the geometry of a new store. If no size was given, the store gets `room` bytes.
    fn geometry(&self, room: u64) -> Result<Geometry, String> {
        let size = self.size.unwrap_or(room);
        let geometry = match self.lines {
            Some(lines) => Geometry::with_lines(size, FRAME_BYTES, lines),
            None => Geometry::for_size(size, FRAME_BYTES),
        };
        geometry.map_err(|error| error.to_string())
    }
}

/// Returns an error of the medium as a text about a store. The medium's own text speaks of a device, not of a store.
pub(super) fn media_error(error: &pmnet_media::OpenError) -> String {
    match error {
        pmnet_media::OpenError::Locked { .. } => {
            "in use by another process (a second pmnet server?): stop that one first".into()
        }
        pmnet_media::OpenError::NotFound { .. } => {
            "its folder does not exist: create it first".into()
        }
        pmnet_media::OpenError::NoSpace { bytes, .. } => {
            format!("no room for {bytes} bytes: free space there, or give a smaller size=")
        }
        other => other.to_string(),
    }
}

/// Parses a number of bytes: digits, with K, M or G for powers of 1024.
fn bytes(text: &str) -> Option<u64> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 1 << 10),
        b'm' | b'M' => (&text[..text.len() - 1], 1 << 20),
        b'g' | b'G' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}
