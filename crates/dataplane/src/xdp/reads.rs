//! The pipeline's state for READs: fields of `pm_shards`, `pm_buckets` and `pm_closed`.
//!
//! Invariants: fields that the pipeline also writes (the newest update of a bucket, the floor), and the initial state
//! of the index, are written only while the pipeline is held. The other fields only limit the READs that the pipeline
//! answers. User space writes them in this order: first the bounds of shown updates, and the version; then the buckets
//! that are open again; then the permission to answer. The pipeline reads them in the opposite order. So the pipeline
//! never sees an open bucket together with an old bound or an old version.
//!
//! Spec: `docs/spec/reads.md` §9, `docs/spec/pipeline.md` §3. This module must not decide what is shown.

#![allow(unsafe_code)]

use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use aya::maps::MapData;
use memmap2::MmapRaw;
use pmnet_proto::device::{self, ReadState};

use super::error::KernelError;
use super::kernel::Kernel;
use super::maps::map_array;
use super::names::{BUCKETS, CLOSED};
use super::shared::{Bucket, Closed, HIDDEN};

/// The index for READs, and for each bucket the state that only user space knows.
pub(super) struct Buckets {
    buckets: MmapRaw,
    closed: MmapRaw,
    /// Number of buckets that the pipeline uses. 0: the maps were made for another number, so user space answers all
    /// READs.
    count: usize,
}

impl Buckets {
    /// Maps the index. `count`: number of buckets with which the pipeline was loaded.
    pub(super) fn new(
        buckets: &MapData,
        closed: &MapData,
        count: u32,
    ) -> Result<Buckets, KernelError> {
        // Pinned maps keep the size with which they were made.
        let made = |map: &MapData, name| -> Result<usize, KernelError> {
            let info = map.info().map_err(|error| KernelError::map(name, error))?;
            Ok(usize::try_from(info.max_entries()).unwrap_or(0))
        };
        let sizes = (made(buckets, BUCKETS)?, made(closed, CLOSED)?);
        let count = usize::try_from(count).unwrap_or(0);
        Ok(Buckets {
            buckets: map_array(buckets, sizes.0 * size_of::<Bucket>())?,
            closed: map_array(closed, sizes.1 * size_of::<Closed>())?,
            count: if sizes == (count, count) { count } else { 0 },
        })
    }

    fn buckets(&self) -> &[Bucket] {
        assert!(self.count * size_of::<Bucket>() <= self.buckets.len());
        // SAFETY: inside the mapping by the assertion. A page is aligned as a bucket is, whose size is a multiple of
        // its alignment; all fields are atomic.
        unsafe { std::slice::from_raw_parts(self.buckets.as_ptr().cast::<Bucket>(), self.count) }
    }

    fn closed(&self) -> &[Closed] {
        assert!(self.count * size_of::<Closed>() <= self.closed.len());
        // SAFETY: the slice is inside the mapping and aligned, as in `buckets`, and all fields are atomic.
        unsafe { std::slice::from_raw_parts(self.closed.as_ptr().cast::<Closed>(), self.count) }
    }

    /// Resets all buckets to their initial state. This call is allowed only while the pipeline is held.
    fn clear(&self) {
        for bucket in self.buckets() {
            bucket.newest.store(0, Relaxed);
        }
        for closed in self.closed() {
            closed.passed.store(0, Relaxed);
            closed.shown_above.store(0, Relaxed);
            closed.closed.store(0, Relaxed);
        }
    }
}

impl Kernel {
    /// Makes the pipeline pass READs to the process ([`pmnet_device::FastPath::hand_reads_up`]).
    pub(super) fn stop_answering(&self) {
        self.shard().reads_up.store(1, Relaxed);
        // The pipeline reads this word under its lock. If the pipeline has not seen the new value for a READ, then this
        // process now sees every update that the pipeline had appended before it answered this READ.
        fence(SeqCst);
    }

    /// Writes the whole state, and the state of these buckets. The pipeline must be held.
    pub(super) fn begin_reads(&self, state: &ReadState, changed: &[(usize, device::Bucket)]) {
        let shard = self.shard();
        let answers = state.buckets > 0 && state.buckets == self.buckets.count;
        shard.reads.store(u32::from(answers), Relaxed);
        shard.read_secret.store(state.secret, Relaxed);
        shard.read_floor.store(state.floor, Relaxed);
        if answers {
            if state.anew {
                self.buckets.clear();
            }
            let buckets = self.buckets.buckets();
            for &(at, bucket) in changed {
                let hidden = if bucket.hash == 0 { HIDDEN } else { 0 };
                buckets[at].newest.store(bucket.order | hidden, Relaxed);
            }
        }
        self.tell_reads_beside(state, changed);
    }

    /// Writes the fields that user space alone writes. This call is allowed at any time.
    pub(super) fn tell_reads_beside(&self, state: &ReadState, changed: &[(usize, device::Bucket)]) {
        let shard = self.shard();
        let closed = if state.buckets == self.buckets.count {
            self.buckets.closed()
        } else {
            &[]
        };
        shard.told_floor.store(state.floor, Relaxed);
        shard.shown_above.store(state.shown_above, Relaxed);
        shard.read_version.store(state.version, Relaxed);
        for &(at, bucket) in changed {
            if let Some(shared) = closed.get(at) {
                shared.passed.store(bucket.passed, Relaxed);
                shared.shown_above.store(bucket.shown_above, Relaxed);
                shared.closed.store(bucket.closed, Release);
            }
        }
        shard
            .reads_closed
            .store(u32::from(state.closed > 0), Release);
        shard.reads_up.store(0, Release);
    }
}
