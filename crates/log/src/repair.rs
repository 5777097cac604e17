//! Turns a [`Scan`] into a [`Log`], which is the only destructive step of recovery (`docs/spec/recovery.md` §5).
//!
//! Five steps, each durable before the next step begins. So after a crash at any point, a new recovery keeps the same
//! entries:
//!
//! 1. persist both superblock copies as they are, and all kept entries that were not proven durable (a killed process
//!    leaves stores that are visible and not yet durable);
//! 2. superblock: applied and durable as decided, so that no proof depends on an entry that step 3 erases;
//! 3. zero every slot that is not kept and persist the whole metadata ring;
//! 4. superblock: incarnation + 1;
//! 5. return the log.

use std::ops::Range;

use crate::buffers::Buffers;
use crate::decide::{DAMAGED_ORDERS_LISTED_MAX, Decision};
use crate::entry::{Entry, aligned, lines, raw_slot};
use crate::error::LogError;
use crate::frames::{FrameRing, Frames};
use crate::layout::{BLOCK_BYTES, ENTRY_BYTES, Parameters, to_usize};
use crate::log::Log;
use crate::media::{Media, persist_now};
use crate::scan::Scan;

impl<M: Media> Scan<M> {
    /// Carries out the decision of [`Scan::decide`]; blocks until everything is durable. The returned log has the next
    /// incarnation, and no entry beyond the durable tail.
    ///
    /// # Errors
    /// [`LogError::Damaged`] and [`LogError::Superblock`] when the decision says so, with the image
    /// unchanged; [`LogError::Exhausted`]; [`LogError::Media`], after which repair can be run again.
    ///
    /// # Panics
    /// If `decision` does not come from this scan.
    pub fn repair(self, decision: Decision) -> Result<Log<M>, LogError> {
        self.repair_with(decision, None)
    }

    /// Repairs like [`Scan::repair`] a log of packet buffers in the region of a store (`docs/spec/packet-store.md`
    /// §11). Buffers without a kept entry are away until the store lends them to the log. `own`: number of buffers that
    /// the store will lend to the log permanently.
    ///
    /// # Errors
    /// The errors of [`Scan::repair`].
    ///
    /// # Panics
    /// If `decision` does not come from this scan, or the frame space is a ring.
    pub fn repair_sharing(self, decision: Decision, own: u64) -> Result<Log<M>, LogError> {
        self.repair_with(decision, Some(own))
    }

    fn repair_with(self, decision: Decision, own: Option<u64>) -> Result<Log<M>, LogError> {
        assert!(
            decision == self.decide(),
            "the decision must be the one of this scan"
        );
        let (applied, proven, tail) = match decision {
            Decision::Keep {
                applied,
                proven,
                tail,
                ..
            } => (applied, proven, tail),
            Decision::Damaged { orders, total } => return Err(LogError::Damaged { orders, total }),
            Decision::SuperblockBehind { order } => {
                return Err(LogError::Superblock {
                    why: format!(
                        "the entry of order {order} is of a later epoch or incarnation than both copies"
                    ),
                });
            }
        };
        let incarnation =
            self.superblock
                .incarnation
                .checked_add(1)
                .ok_or(LogError::Exhausted {
                    what: "incarnation",
                })?;
        let frames = self.placement(applied, tail, own)?;

        let unproven = self.unproven_ranges(proven, tail, &frames);
        let Scan {
            mut media,
            mut superblock,
            ..
        } = self;
        let parameters = superblock.parameters;
        persist_now(&mut media, &unproven)?;
        superblock.applied = applied;
        superblock.durable = tail;
        superblock.commit(&mut media)?;
        erase_all_but(&mut media, &parameters, applied, tail)?;
        superblock.incarnation = incarnation;
        superblock.commit(&mut media)?;
        Ok(Log::recovered(media, superblock, frames))
    }

    /// Checks that the kept frames lie where the allocator places them, and returns the allocator in that state. Frames
    /// in other places would overlap or leave gaps, which only damage can cause.
    fn placement(&self, applied: u64, tail: u64, own: Option<u64>) -> Result<Frames, LogError> {
        let parameters = &self.superblock.parameters;
        match Buffers::new(parameters) {
            None => {
                assert!(own.is_none(), "a ring has no buffers to share");
                self.ring(applied, tail).map(Frames::Ring)
            }
            Some(mut buffers) => {
                for order in applied + 1..=tail {
                    if !buffers.keep(self.kept(order).frame_offset()) {
                        return Err(damaged(order, tail));
                    }
                }
                Ok(Frames::Buffers(match own {
                    None => buffers.kept(),
                    Some(own) => buffers.kept_beside_a_store(own, parameters.entries),
                }))
            }
        }
    }

    fn ring(&self, applied: u64, tail: u64) -> Result<FrameRing, LogError> {
        let size = to_usize(self.superblock.parameters.frame_bytes);
        let mut ring = FrameRing::new(size, 0);
        let mut oldest = None;
        for order in applied + 1..=tail {
            let entry = self.kept(order);
            let expected = match oldest {
                // The first frame may be in any place. Its place determines the places of all later frames.
                None => {
                    ring = FrameRing::new(size, entry.frame_offset());
                    oldest = Some(entry.frame_offset());
                    ring.first(aligned(entry.frame_bytes()))
                }
                oldest => ring.allocate(oldest, aligned(entry.frame_bytes())),
            };
            if expected != Some(entry.frame_offset()) {
                return Err(damaged(order, tail));
            }
        }
        Ok(ring)
    }

    fn unproven_ranges(&self, proven: u64, tail: u64, frames: &Frames) -> Vec<Range<usize>> {
        let parameters = &self.superblock.parameters;
        let mut ranges = Vec::with_capacity(5);
        ranges.push(0..2 * BLOCK_BYTES);
        if tail > proven {
            ranges.extend(parameters.metadata_ranges(proven + 1, tail));
            let base = parameters.frames_offset();
            match frames {
                Frames::Ring(ring) => {
                    let first = self.kept(proven + 1).frame_offset();
                    ranges.extend(ring.image_ranges(base, first));
                }
                Frames::Buffers(_) => ranges.extend((proven + 1..=tail).map(|order| {
                    let entry = self.kept(order);
                    let start = base + entry.frame_offset();
                    lines(&(start..start + entry.frame_bytes()))
                })),
            }
        }
        ranges
    }

    fn kept(&self, order: u64) -> Entry {
        self.entry(order)
            .expect("the decision keeps whole entries only")
    }
}

/// Returns the error for an order whose frame has an impossible place, and for all orders after it.
fn damaged(order: u64, tail: u64) -> LogError {
    LogError::Damaged {
        orders: (order..=tail).take(DAMAGED_ORDERS_LISTED_MAX).collect(),
        total: tail - order + 1,
    }
}

/// Zeroes every slot except those of `applied + 1 ..= tail`, and makes the whole metadata ring durable. This includes
/// slots that are already zero, because their zeros may not be durable yet.
fn erase_all_but<M: Media>(
    media: &mut M,
    parameters: &Parameters,
    applied: u64,
    tail: u64,
) -> Result<(), LogError> {
    let kept = tail - applied;
    for index in kept..parameters.entries {
        // The orders `applied + 1 + kept ..= applied + entries` name each slot that is not kept exactly once.
        let slot = parameters.slot(applied + 1 + index);
        if raw_slot(media.bytes(), parameters, slot) != [0; ENTRY_BYTES] {
            media.store(parameters.slot_offset(slot), &[0; ENTRY_BYTES]);
        }
    }
    persist_now(
        media,
        std::slice::from_ref(&(parameters.metadata_offset()..parameters.frames_offset())),
    )?;
    Ok(())
}
