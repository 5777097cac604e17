//! The packet store on shared memory or a file.

use std::ops::Bound;
use std::path::Path;

use anyhow::Context;
use pmnet_media::{AnyMedia, Kind};
use pmnet_packet_store::{Geometry, Identity, Meta, PacketStore, Room, Scan, format};

use super::{Size, Store};
use crate::plan::Place;

/// Number of bytes that one step of packing moves, as in pmnet's server.
const PACKED_BYTES: usize = 256 << 10;
/// Size of a frame of the store, in bytes.
const FRAME_BYTES: u32 = 4096;
/// Size of a key in bytes.
const KEY_BYTES: u64 = 16;
/// Minimum space for records in bytes.
const ROOM_MIN: u64 = 8 << 20;

/// An open packet store.
pub struct Packet(PacketStore<AnyMedia>);

/// Returns the geometry of a store with space for one and a half times this amount of data.
fn geometry(size: Size) -> anyhow::Result<Geometry> {
    let value_bytes = u64::try_from(size.value_bytes)?;
    let records = size.keys * (KEY_BYTES + value_bytes).next_multiple_of(8);
    let room = (records + records / 2 + records / 8).max(ROOM_MIN);
    // If a record continues in the next frame, it needs one more line.
    let pieces = room / u64::from(FRAME_BYTES);
    let lines = (size.keys + size.keys / 4 + pieces + 4096).next_multiple_of(64);
    let lines = u32::try_from(lines).context("too many keys")?;
    let bytes = (1 << 20) + u64::from(lines) * 64 + room;
    Ok(Geometry::with_lines(bytes, FRAME_BYTES, lines)?)
}

/// If the place is [`Place::Flushed`], makes the medium flush each persist as persistent memory
/// needs it.
fn on_place(mut medium: AnyMedia, place: Place, path: &Path) -> anyhow::Result<AnyMedia> {
    if let (Place::Flushed, AnyMedia::Dram(dram)) = (place, &mut medium) {
        dram.rehearse_flushes(path)?;
    }
    Ok(medium)
}

/// Makes a store of this geometry at this path.
///
/// # Errors
/// The medium or the store fails.
pub fn make(path: &Path, place: Place, geometry: &Geometry) -> anyhow::Result<AnyMedia> {
    let medium = pmnet_media::create(path, kind(place), geometry.image_bytes())?;
    let mut medium = on_place(medium, place, path)?;
    let identity = Identity {
        uuid: u128::from(std::process::id()) << 64 | 1,
        shard: 0,
    };
    format(&mut medium, &identity, geometry)?;
    Ok(medium)
}

const fn kind(place: Place) -> Kind {
    match place {
        Place::Disk => Kind::File,
        Place::Tmpfs | Place::Flushed => Kind::Dram,
    }
}

pub(super) fn open(folder: &Path, place: Place, size: Size, new: bool) -> anyhow::Result<Packet> {
    let path = folder.join("store");
    let medium = match new {
        true => make(&path, place, &geometry(size)?)?,
        false => on_place(pmnet_media::open(&path, kind(place))?, place, &path)?,
    };
    Ok(Packet(Scan::open(medium, Some(0))?.repair()?))
}

impl Store for Packet {
    fn put(&mut self, group: &[(Vec<u8>, Vec<u8>)]) -> anyhow::Result<()> {
        let mut transaction = self.0.transaction();
        for (key, value) in group {
            transaction.put(key, value, Meta::default(), Room::Ordinary)?;
        }
        transaction.commit()?;
        if self.0.wants_packing() {
            self.0.pack_step(PACKED_BYTES)?;
        }
        Ok(())
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> anyhow::Result<bool> {
        value.clear();
        let mut scratch = Vec::new();
        let Some(record) = self.0.get(key)? else {
            return Ok(false);
        };
        value.extend_from_slice(record.value(&mut scratch));
        Ok(true)
    }

    fn scan(&mut self, from: &[u8], count: usize, value: &mut Vec<u8>) -> anyhow::Result<usize> {
        value.clear();
        let mut scratch = Vec::new();
        let mut found = 0;
        for record in self
            .0
            .range(Bound::Included(from), Bound::Unbounded)
            .take(count)
        {
            value.extend_from_slice(record?.value(&mut scratch));
            found += 1;
        }
        Ok(found)
    }
}
