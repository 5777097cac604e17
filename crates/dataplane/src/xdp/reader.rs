//! Reads the log in the kernel from another process: the server, which uses the log as its receive queue.
//!
//! Spec: `docs/spec/pipeline.md` §3. This module must not change anything.

use std::sync::atomic::Ordering::Acquire;
use std::time::{Duration, Instant};

use memmap2::MmapRaw;
use pmnet_log::{Media, Parameters};

use super::image::MapMedia;
use super::kernel::Kernel;
use super::maps::{map_pinned_page, shard_in};
use super::names::SHARDS;
use super::pins::Pins;
use super::stage::check_whole;

/// Time between two searches for a log that does not exist yet.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The log of a device, for reading. The device may start later than this reader, or be replaced by another device.
#[derive(Debug)]
pub struct LogReader {
    name: String,
    open: Option<Open>,
    looked: Option<Instant>,
}

#[derive(Debug)]
struct Open {
    image: MapMedia,
    parameters: Parameters,
    shard: MmapRaw,
}

impl LogReader {
    /// Returns the log of the device that is pinned under `name`.
    #[must_use]
    pub fn new(name: &str) -> LogReader {
        LogReader {
            name: name.to_owned(),
            open: None,
            looked: None,
        }
    }

    /// Returns the frame of an order: the bytes of an APPEND as the device would send it. `None`: the order is not in
    /// the log, or is reclaimed.
    pub fn frame(&mut self, order: u64) -> Option<&[u8]> {
        if self.open.as_ref().is_none_or(|open| open.last() < order) {
            let due = self.looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY);
            if due {
                self.looked = Some(Instant::now());
                self.open = Open::new(&self.name)
                    .inspect_err(|error| tracing::debug!("the device's log: {error}"))
                    .ok();
            }
        }
        let open = self.open.as_ref()?;
        if open.last() < order {
            return None;
        }
        pmnet_log::frame_at(open.image.bytes(), &open.parameters, order)
    }
}

impl Open {
    fn new(name: &str) -> Result<Open, super::KernelError> {
        let pins = Pins::existing(name);
        check_whole(&pins)?;
        Ok(Open {
            parameters: Kernel::parameters(&pins)?,
            image: Kernel::image(&pins)?,
            shard: map_pinned_page(&pins, SHARDS)?,
        })
    }

    fn last(&self) -> u64 {
        shard_in(&self.shard).last.load(Acquire)
    }
}
