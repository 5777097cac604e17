//! Reads state and counters of the devices in this computer's kernel from the pinned maps.
//!
//! This module must not change anything, or need a process of the device.

#![allow(unsafe_code)]

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use aya::Pod;
use aya::maps::{Map, MapData, PerCpuArray};
use pmnet_proto::Time;

use super::error::KernelError;
use super::kernel::Kernel;
use super::maps::{check_layout, hops_in, map_pinned_page, shard_in};
use super::names::{CHAIN, COUNTS, SHARDS};
use super::pins::Pins;
use super::shared::{Counters, FOR_EVER, TOOK_NS, TOOK_SLOTS};
use super::stage::check_whole;

/// State and counters of one device in the kernel.
#[derive(Clone, Debug)]
pub struct Status {
    /// The device's name.
    pub name: String,
    /// Interfaces to which its program is attached.
    pub interfaces: Vec<String>,
    /// Whether the pipeline admits updates. If false, the device's process admits updates, if the process lives.
    pub admits: bool,
    /// Number of the device's shard.
    pub shard: u32,
    /// The device's id.
    pub device: u32,
    /// The device's incarnation.
    pub incarnation: u32,
    /// The device's epoch.
    pub epoch: u32,
    /// Time until which the pipeline answers clients, by `CLOCK_BOOTTIME`: the end of the device's lease. `None`: the
    /// device needs no lease.
    pub answers_until: Option<Time>,
    /// Number of devices of the chain; 0: the device has never served, and shard, id, incarnation and epoch are also 0.
    pub copies: u32,
    /// Number of devices that follow this device in the chain.
    pub behind: u32,
    /// Whether the device has a previous device in the chain.
    pub follows: bool,
    /// Entries that the log can hold.
    pub entries: u64,
    /// Highest order.
    pub last: u64,
    /// Highest order that the server has applied.
    pub applied: u64,
    /// Highest order whose space in the log is free.
    pub released: u64,
    /// Highest order that the pipeline sent to the next device; `None`: there is no next device.
    pub sent: Option<u64>,
    /// Highest order that each following device holds, nearest first.
    pub held: Vec<u64>,
    /// Counted events since the maps were made, summed over all CPUs.
    pub counters: Vec<(&'static str, u64)>,
    /// Numbers of timed packets, by their time: less than 32 ns, less than 64 ns and so on.
    pub took: Vec<u64>,
}

impl Status {
    /// Returns the names of the devices in this kernel.
    #[must_use]
    pub fn names() -> Vec<String> {
        let mut names: Vec<String> = Pins::existing("")
            .entries()
            .into_iter()
            .filter(|name| Pins::existing(name).in_use())
            .collect();
        names.sort();
        names
    }

    /// Returns the names of all counters.
    pub fn counter_names() -> impl Iterator<Item = &'static str> {
        COUNTED.iter().map(|(name, _)| *name)
    }

    /// Reads the status of the device with this name.
    ///
    /// # Errors
    /// [`KernelError`]: there is no device with this name, or its maps cannot be read.
    pub fn read(name: &str) -> Result<Status, KernelError> {
        let pins = Pins::existing(name);
        check_layout(&pins)?;
        check_whole(&pins)?;
        let entries = Kernel::parameters(&pins)?.entries;
        let (shard, chain) = (
            map_pinned_page(&pins, SHARDS)?,
            map_pinned_page(&pins, CHAIN)?,
        );
        let (shard, chain) = (shard_in(&shard), hops_in(&chain));
        let counters = counters(&pins)?;
        let halves = |word: &AtomicU64| {
            let bytes = word.load(Relaxed).to_ne_bytes();
            let half =
                |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 of 8 bytes"));
            (half(0), half(4))
        };
        let (shard_id, epoch) = halves(&shard.shard_epoch);
        let (device, incarnation) = halves(&shard.device_incarnation);
        let behind = chain.behind.load(Relaxed);
        let count = usize::try_from(behind).unwrap_or(0);
        let held = chain.orders.iter().take(count);
        Ok(Status {
            name: name.to_owned(),
            interfaces: pins.interfaces(),
            admits: shard.admits.load(Relaxed) == 1,
            shard: shard_id,
            device,
            incarnation,
            epoch,
            answers_until: Some(shard.answers_until.load(Relaxed))
                .filter(|&word| word != FOR_EVER)
                .map(Time),
            copies: shard.copies.load(Relaxed),
            behind,
            follows: chain.follows.load(Relaxed) == 1,
            entries,
            released: shard.released.load(Relaxed),
            applied: shard.applied.load(Relaxed),
            sent: (behind > 0).then(|| chain.sent.load(Relaxed)),
            held: held.map(|order| order.load(Relaxed)).collect(),
            last: shard.last.load(Acquire),
            counters: COUNTED
                .iter()
                .map(|&(name, at)| (name, counters[at]))
                .collect(),
            took: counters[TOOK_AT..TOOK_AT + TOOK_SLOTS].to_vec(),
        })
    }

    /// Returns a quantile of the times of timed packets, in nanoseconds, rounded up to the end of a slot. `share`: the
    /// quantile, from 0 to 1. `None`: no packet was timed, or the quantile is beyond the last slot.
    #[must_use]
    pub fn took_ns(&self, share: f64) -> Option<usize> {
        let total: u64 = self.took.iter().sum();
        let mut seen = 0;
        for (slot, count) in self.took.iter().enumerate().take(TOOK_SLOTS - 1) {
            seen += count;
            #[allow(clippy::cast_precision_loss)]
            if total > 0 && seen as f64 >= share * total as f64 {
                return Some((slot + 1) * TOOK_NS);
            }
        }
        None
    }
}

const WORDS: usize = size_of::<Counters>() / size_of::<u64>();
const TOOK_AT: usize = std::mem::offset_of!(Counters, took) / size_of::<u64>();

/// Every counter: its name, and the index of its word in [`Counters`].
const COUNTED: [(&str, usize); 17] = [
    ("packets", std::mem::offset_of!(Counters, packets) / 8),
    ("appended", std::mem::offset_of!(Counters, appended) / 8),
    ("duplicates", std::mem::offset_of!(Counters, duplicates) / 8),
    ("confirmed", std::mem::offset_of!(Counters, confirmed) / 8),
    ("handed_up", std::mem::offset_of!(Counters, handed_up) / 8),
    ("held", std::mem::offset_of!(Counters, held) / 8),
    (
        "sessions_unknown",
        std::mem::offset_of!(Counters, sessions_unknown) / 8,
    ),
    ("odd", std::mem::offset_of!(Counters, odd) / 8),
    ("forged", std::mem::offset_of!(Counters, forged) / 8),
    ("busy", std::mem::offset_of!(Counters, busy) / 8),
    ("gaps", std::mem::offset_of!(Counters, gaps) / 8),
    ("full", std::mem::offset_of!(Counters, full) / 8),
    ("over_share", std::mem::offset_of!(Counters, over_share) / 8),
    ("read_hits", std::mem::offset_of!(Counters, read_hits) / 8),
    (
        "read_misses",
        std::mem::offset_of!(Counters, read_misses) / 8,
    ),
    ("reads_up", std::mem::offset_of!(Counters, reads_up) / 8),
    ("silenced", std::mem::offset_of!(Counters, silenced) / 8),
];

/// The counters of a CPU as an array of words.
#[derive(Clone, Copy)]
struct Row([u64; WORDS]);

// SAFETY: an array of integers: any bytes are a value, and it has no padding.
unsafe impl Pod for Row {}

fn counters(pins: &Pins) -> Result<[u64; WORDS], KernelError> {
    let failed = |error| KernelError::map(COUNTS, error);
    let map = MapData::from_pin(pins.path(COUNTS)).map_err(failed)?;
    let map = PerCpuArray::<_, Row>::try_from(Map::PerCpuArray(map)).map_err(failed)?;
    let mut sums = [0; WORDS];
    for row in map.get(&0, 0).map_err(failed)?.iter() {
        for (sum, word) in sums.iter_mut().zip(row.0) {
            *sum += word;
        }
    }
    Ok(sums)
}
