//! Rings that the kernel and this process share: one side produces, the other consumes.
//!
//! Invariants: both counters are 32 bits wide and wrap around. The entry of a counter is its value modulo the size, a
//! power of two. Each counter has one writer: the producer stores its counter with Release after it has written
//! entries, the consumer after it has read them. The other side's counter is cached, and loaded again with Acquire only
//! when the cached value is not enough. This module must not interpret a frame.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use memmap2::MmapRaw;
use rustix::net::xdp::XdpRingOffset;

use super::error::AfXdpError;

/// `XDP_RING_NEED_WAKEUP` (linux/if_xdp.h).
const NEED_WAKEUP: u32 = 1;

/// An entry of the RX and TX rings: `struct xdp_desc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Descriptor {
    /// Offset in the memory of the frames.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u32,
    /// Flags; 0 for a whole frame.
    pub options: u32,
}

/// Types that may be an entry of a ring.
///
/// # Safety
/// Plain numbers without padding: any bytes that the kernel writes are a value.
pub unsafe trait Place: Copy {}
// SAFETY: a number.
unsafe impl Place for u64 {}
// SAFETY: numbers without padding: 8 + 4 + 4 bytes, aligned to 8.
unsafe impl Place for Descriptor {}

#[derive(Debug)]
struct Shared<T> {
    mapping: MmapRaw,
    producer: usize,
    consumer: usize,
    flags: Option<usize>,
    places: usize,
    size: u32,
    kind: PhantomData<T>,
}

impl<T: Place> Shared<T> {
    /// Checks the offsets, because they come from the kernel, and all input is checked.
    fn new(mapping: MmapRaw, at: &XdpRingOffset, size: u32) -> Result<Shared<T>, AfXdpError> {
        let outside = || AfXdpError::Config(format!("the kernel's rings are laid out as {at:?}"));
        let inside = |offset: u64, bytes: usize, align: usize| {
            let start = usize::try_from(offset).ok()?;
            let end = start.checked_add(bytes)?;
            (end <= mapping.len() && start.is_multiple_of(align)).then_some(start)
        };
        let word = |offset| inside(offset, size_of::<AtomicU32>(), align_of::<AtomicU32>());
        let all = usize::try_from(size).ok();
        let all = all.and_then(|size| size.checked_mul(size_of::<T>()));
        if !size.is_power_of_two() {
            return Err(outside());
        }
        Ok(Shared {
            producer: word(at.producer).ok_or_else(outside)?,
            consumer: word(at.consumer).ok_or_else(outside)?,
            flags: match at.flags {
                Some(offset) => Some(word(offset).ok_or_else(outside)?),
                None => None,
            },
            places: all
                .and_then(|all| inside(at.desc, all, align_of::<T>()))
                .ok_or_else(outside)?,
            size,
            mapping,
            kind: PhantomData,
        })
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `new` checked that the offset is aligned and inside the mapping, which begins at a page and lives as
        // long as `self`; both sides use the word only as an atomic.
        unsafe { &*self.mapping.as_ptr().add(at).cast::<AtomicU32>() }
    }

    /// Returns the entry of this counter value.
    fn place(&self, counter: u32) -> *mut T {
        let index = usize::try_from(counter & (self.size - 1)).expect("32 bits fit");
        // SAFETY: `new` checked that `size` aligned entries from this offset on are inside the mapping; the index is
        // smaller.
        unsafe {
            let first = self.mapping.as_mut_ptr().add(self.places).cast::<T>();
            first.add(index)
        }
    }

    fn used(&self, producer: u32, consumer: u32) -> Result<u32, AfXdpError> {
        let used = producer.wrapping_sub(consumer);
        if used > self.size {
            return Err(AfXdpError::Ring {
                size: self.size,
                used,
            });
        }
        Ok(used)
    }
}

/// A ring that this process fills: first [`reserve`](Producer::reserve), then [`put`](Producer::put) for each entry,
/// then [`submit`](Producer::submit).
#[derive(Debug)]
pub struct Producer<T> {
    shared: Shared<T>,
    /// Our counter, as last stored for the other side.
    submitted: u32,
    /// Counter of the next entry to write.
    next: u32,
    /// Counter of the first entry that is not reserved.
    limit: u32,
    /// The other side's counter, as last loaded.
    consumed: u32,
}

impl<T: Place> Producer<T> {
    /// Returns a ring in a mapping.
    pub fn new(mapping: MmapRaw, at: &XdpRingOffset, size: u32) -> Result<Self, AfXdpError> {
        let shared = Shared::new(mapping, at, size)?;
        let submitted = shared.word(shared.producer).load(Relaxed);
        let consumed = shared.word(shared.consumer).load(Acquire);
        shared.used(submitted, consumed)?;
        Ok(Producer {
            shared,
            submitted,
            next: submitted,
            limit: submitted,
            consumed,
        })
    }

    /// Reserves entries until `wanted` entries without a value are reserved, or no more are free. Returns the number of
    /// reserved entries.
    pub fn reserve(&mut self, wanted: u32) -> Result<u32, AfXdpError> {
        let mut used = self.next.wrapping_sub(self.consumed);
        if self.shared.size - used < wanted {
            let consumed = self.shared.word(self.shared.consumer).load(Acquire);
            // The other side cannot have consumed more than was submitted.
            self.shared.used(self.submitted, consumed)?;
            used = self.shared.used(self.next, consumed)?;
            self.consumed = consumed;
        }
        let granted = wanted.min(self.shared.size - used);
        self.limit = self.next.wrapping_add(granted);
        Ok(granted)
    }

    /// Writes the next entry. The other side does not see the entry before [`submit`](Producer::submit).
    ///
    /// # Panics
    /// If no entry is reserved.
    pub fn put(&mut self, value: T) {
        assert!(self.next != self.limit, "a place is reserved first");
        // SAFETY: the entry is inside the mapping. The consumer's counter has passed the entry, and the consumer reads
        // no entries beyond our counter, so only this process uses the entry now.
        unsafe { self.shared.place(self.next).write(value) };
        self.next = self.next.wrapping_add(1);
    }

    /// Passes all entries that got a value to the other side. Returns the number of these entries.
    pub fn submit(&mut self) -> u32 {
        let count = self.next.wrapping_sub(self.submitted);
        self.submitted = self.next;
        self.limit = self.next;
        let producer = self.shared.word(self.shared.producer);
        producer.store(self.submitted, Release);
        count
    }

    /// Returns whether the kernel needs a wake-up for the submitted entries. Kernels before 5.4 always need one.
    pub fn needs_wakeup(&self) -> bool {
        self.shared.flags.is_none_or(|flags| {
            let flags = self.shared.word(flags).load(Relaxed);
            flags & NEED_WAKEUP != 0
        })
    }
}

/// A ring that the kernel fills: first [`peek`](Consumer::peek), then [`get`](Consumer::get) for each entry, then
/// [`release`](Consumer::release).
#[derive(Debug)]
pub struct Consumer<T> {
    shared: Shared<T>,
    /// Our counter, as last stored for the other side.
    released: u32,
    /// Counter of the next entry to read.
    next: u32,
    /// The other side's counter, as last loaded.
    produced: u32,
}

impl<T: Place> Consumer<T> {
    /// Returns a ring in a mapping.
    pub fn new(mapping: MmapRaw, at: &XdpRingOffset, size: u32) -> Result<Self, AfXdpError> {
        let shared = Shared::new(mapping, at, size)?;
        let released = shared.word(shared.consumer).load(Relaxed);
        let produced = shared.word(shared.producer).load(Acquire);
        shared.used(produced, released)?;
        Ok(Consumer {
            shared,
            released,
            next: released,
            produced,
        })
    }

    /// Returns the number of entries that can be read, up to `wanted`.
    pub fn peek(&mut self, wanted: u32) -> Result<u32, AfXdpError> {
        let mut there = self.produced.wrapping_sub(self.next);
        if there < wanted {
            let produced = self.shared.word(self.shared.producer).load(Acquire);
            // The other side cannot produce into entries that were not released, and its counter cannot go back.
            self.shared.used(produced, self.released)?;
            there = self.shared.used(produced, self.next)?;
            self.produced = produced;
        }
        Ok(wanted.min(there))
    }

    /// Reads the next entry, which is not released yet.
    ///
    /// # Panics
    /// If [`peek`](Consumer::peek) has not announced an entry.
    pub fn get(&mut self) -> T {
        assert!(self.next != self.produced, "there is one");
        // SAFETY: the entry is inside the mapping. The producer's counter has passed the entry, and the producer does
        // not write the entry again before our counter has passed it.
        let value = unsafe { self.shared.place(self.next).read() };
        self.next = self.next.wrapping_add(1);
        value
    }

    /// Gives the entries that were read back to the producer.
    pub fn release(&mut self) {
        if self.released != self.next {
            self.released = self.next;
            let consumer = self.shared.word(self.shared.consumer);
            consumer.store(self.released, Release);
        }
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
