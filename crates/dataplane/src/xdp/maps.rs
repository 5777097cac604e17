//! The pinned maps: this module makes, finds and maps them, and checks their layout.
//!
//! Invariants: a mapping of `pm_shards` or `pm_chain` begins with [`Shard`] or [`Hops`] of this version. All fields of
//! these structures are atomic, because the pipeline and other processes use them at the same time.
//!
//! Spec: `docs/spec/pipeline.md` §3. This module must not change the contents of a map.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering::Relaxed;

use aya::Ebpf;
use aya::maps::{Map, MapData};
use memmap2::{MmapOptions, MmapRaw};

use super::error::KernelError;
use super::names::{
    BUCKETS, CHAIN, CLOSED, COUNTS, HOP_KEYS, IMAGE, SESSION_KEYS, SESSIONS, SHARDS,
};
use super::pins::Pins;
use super::shared::{Bucket, Closed, Counters, HopKeys, Hops, LAYOUT, Session, SessionKeys, Shard};

/// Number of bytes after the image. The verifier bounds only the start of a frame. These bytes are space for the end of
/// the frame.
const PAD_BYTES: usize = 8192;
const PAGE_BYTES: usize = 4096;
/// `BPF_MAP_TYPE_ARRAY` and `BPF_F_MMAPABLE` (linux/bpf.h).
const TYPE_ARRAY: u32 = 2;
const FLAG_MMAPABLE: u32 = 1 << 10;

/// Takes a map out of a loaded object.
pub(super) fn take_map(ebpf: &mut Ebpf, name: &str) -> Map {
    ebpf.take_map(name).expect("the object has this map")
}

/// Takes an array map out of a loaded object.
pub(super) fn take_array(ebpf: &mut Ebpf, name: &str) -> MapData {
    match take_map(ebpf, name) {
        Map::Array(data) => data,
        _ => unreachable!("{name} is an array"),
    }
}

/// Maps the first `bytes` bytes of an array's elements into this process.
pub(super) fn map_array(map: &MapData, bytes: usize) -> Result<MmapRaw, KernelError> {
    MmapOptions::new()
        .len(bytes.next_multiple_of(PAGE_BYTES))
        .map_raw(map.fd().as_fd().as_raw_fd())
        .map_err(|error| KernelError::io("mapping", error))
}

/// Maps a pinned map of one page.
pub(super) fn map_pinned_page(pins: &Pins, name: &str) -> Result<MmapRaw, KernelError> {
    let map = MapData::from_pin(pins.path(name)).map_err(|error| KernelError::map(name, error))?;
    map_array(&map, PAGE_BYTES)
}

/// Returns the content of a mapping of `pm_shards`.
pub(super) fn shard_in(map: &MmapRaw) -> &Shard {
    // SAFETY: the mapping is a page that begins with a `Shard`, so the `Shard` is aligned. The mapping lives as long as
    // the reference, and all fields are atomic.
    unsafe { &*map.as_ptr().cast::<Shard>() }
}

/// Returns the content of a mapping of `pm_chain`.
pub(super) fn hops_in(map: &MmapRaw) -> &Hops {
    // SAFETY: the mapping is a page that begins with a `Hops`, so the `Hops` is aligned. The mapping lives as long as
    // the reference, and all fields are atomic.
    unsafe { &*map.as_ptr().cast::<Hops>() }
}

/// Returns the content of a mapping of `pm_hop_keys`.
pub(super) fn hop_keys_in(map: &MmapRaw) -> &HopKeys {
    // SAFETY: the mapping is a page that begins with a `HopKeys`, so the `HopKeys` is aligned. The mapping lives as
    // long as the reference, and all fields are atomic.
    unsafe { &*map.as_ptr().cast::<HopKeys>() }
}

/// Returns the number of elements of a pinned map. `None`: there is no such map.
pub(super) fn pinned_entries(pins: &Pins, name: &str) -> Result<Option<u32>, KernelError> {
    let path = pins.path(name);
    if !path.exists() {
        return Ok(None);
    }
    let map = MapData::from_pin(path).map_err(|error| KernelError::map(name, error))?;
    let info = map.info().map_err(|error| KernelError::map(name, error))?;
    Ok(Some(info.max_entries()))
}

/// Maps the image, and also returns its size in bytes. If the image is not pinned yet, makes it with space for `bytes`
/// bytes, because the object file does not state its size.
pub(super) fn map_image(
    pins: &Pins,
    bytes: Option<usize>,
) -> Result<(MmapRaw, usize), KernelError> {
    let path = pins.path(IMAGE);
    let map = match bytes {
        Some(bytes) if !path.exists() => {
            let size = u32::try_from(bytes + PAD_BYTES).map_err(|_| {
                KernelError::Parameters(format!("a log of {bytes} bytes does not fit a map"))
            })?;
            let definition = aya_obj::Map::new_from_params(TYPE_ARRAY, 4, size, 1, FLAG_MMAPABLE);
            let map = MapData::create(definition, IMAGE, None)
                .map_err(|error| KernelError::map(IMAGE, error))?;
            map.pin(&path)
                .map_err(|error| KernelError::pin(IMAGE, error))?;
            map
        }
        _ => MapData::from_pin(&path).map_err(|error| KernelError::map(IMAGE, error))?,
    };
    let size = map
        .info()
        .map_err(|error| KernelError::map(IMAGE, error))?
        .value_size();
    let size = usize::try_from(size).unwrap_or(0);
    Ok((map_array(&map, size)?, size.saturating_sub(PAD_BYTES)))
}

/// Checks that the pinned maps have the layout of this version.
///
/// # Errors
/// [`KernelError::OtherVersion`]; [`KernelError::Map`].
pub(super) fn check_layout(pins: &Pins) -> Result<(), KernelError> {
    for (name, bytes) in [
        (SHARDS, size_of::<Shard>()),
        (CHAIN, size_of::<Hops>()),
        (SESSIONS, size_of::<Session>()),
        (BUCKETS, size_of::<Bucket>()),
        (CLOSED, size_of::<Closed>()),
        (COUNTS, size_of::<Counters>()),
        (HOP_KEYS, size_of::<HopKeys>()),
        (SESSION_KEYS, size_of::<SessionKeys>()),
    ] {
        let path = pins.path(name);
        if !path.exists() {
            // An older version has made the image and the shard, but not this map.
            let is_of_keys = [HOP_KEYS, SESSION_KEYS].contains(&name);
            if pins.in_use() && pins.path(SHARDS).exists() && !is_of_keys {
                return Err(KernelError::OtherVersion(pins.folder().to_owned()));
            }
            continue;
        }
        let map = MapData::from_pin(&path).map_err(|error| KernelError::map(name, error))?;
        let info = map.info().map_err(|error| KernelError::map(name, error))?;
        if usize::try_from(info.value_size()).ok() != Some(bytes) {
            return Err(KernelError::OtherVersion(pins.folder().to_owned()));
        }
    }
    if pins.path(SHARDS).exists() {
        let shard = map_pinned_page(pins, SHARDS)?;
        let shard = shard_in(&shard);
        let layout = shard.layout.load(Relaxed);
        // 0: the process that made the maps died before it wrote the number. Such maps were never used.
        if layout != LAYOUT && !(layout == 0 && is_unused(shard)) {
            return Err(KernelError::OtherVersion(pins.folder().to_owned()));
        }
    }
    Ok(())
}

/// Returns whether the pipeline has never admitted an update under these maps, and was never allowed to.
pub(super) fn is_unused(shard: &Shard) -> bool {
    shard.last.load(Relaxed) == 0 && shard.generation.load(Relaxed) == 0
}
