//! Makes a log durable and frees its space, by persists, superblocks and the clean shutdown. A *witness* is a durable
//! entry or superblock that states how far the log is reclaimed.

use super::{Flight, Log, raw_slot};
use crate::entry::{ChecksumKey, Entry, lines};
use crate::error::LogError;
use crate::frames::Frames;
use crate::layout::to_u64;
use crate::media::{Media, MediaError};
use crate::superblock::Superblock;

/// If reclaimed space is at least 1/4 of a ring, and entries have not yet released it, a superblock is written to
/// release it.
const RELEASE_FRACTION: u64 = 4;

impl<M: Media> Log<M> {
    /// Reclaims the orders up to `upto`. A lower `upto` than before has no effect, and an `upto` above `durable()`
    /// counts as `durable()`. The reclaim becomes durable with a later persist.
    pub fn reclaim(&mut self, upto: u64) {
        self.applied = self.applied.max(upto.min(self.durable));
        if self.applied == self.released || self.release_wanted {
            return;
        }
        let parameters = *self.parameters();
        let bytes = match &self.frames {
            Frames::Ring(ring) => self.oldest_frame_seen(self.released).map_or(0, |oldest| {
                let end = self.oldest_frame_seen(self.applied).unwrap_or(ring.head());
                to_u64(ring.distance(oldest, end))
            }),
            Frames::Buffers(_) => 0,
        };
        self.release_wanted = self.applied - self.released >= self.entries_max() / RELEASE_FRACTION
            || bytes >= parameters.frame_bytes / RELEASE_FRACTION;
    }

    /// Returns whether the next persist writes a superblock that frees space. If so, the fast path must not append from
    /// the start of this persist until it has been told the result.
    #[must_use]
    pub fn gives_back(&self) -> bool {
        self.release_wanted && self.applied > self.released
    }

    /// Starts one persist that makes everything appended so far durable. Returns false if a persist is in flight, or if
    /// there is nothing to do. The owner must call this once per turn, even if nothing could be appended, because in a
    /// full log only this call makes reclaimed space usable again.
    ///
    /// # Errors
    /// [`LogError::Media`]. The log must not be used any more: scan it again.
    pub fn persist_start(&mut self) -> Result<bool, LogError> {
        self.refuse_failed()?;
        if self.flight.is_some() {
            return Ok(false);
        }
        let release = self.gives_back();
        self.release_wanted = false;
        if self.last == self.durable && !release {
            return Ok(false);
        }
        let mut ranges = std::mem::take(&mut self.ranges);
        ranges.clear();
        let mut flight = Flight {
            upto: self.last,
            witnesses: [None; 3],
        };
        if self.last > self.durable {
            let parameters = self.parameters();
            let unpersisted = self.durable + 1..=self.last;
            ranges.extend(parameters.metadata_ranges(*unpersisted.start(), self.last));
            match &self.frames {
                Frames::Ring(ring) => {
                    let first = self.entry_at(*unpersisted.start()).frame_offset();
                    ranges.extend(ring.image_ranges(parameters.frames_offset(), first));
                }
                Frames::Buffers(_) => ranges
                    .extend(unpersisted.map(|order| lines(&self.range_of(&self.entry_at(order))))),
            }
            let before = self.last - 1;
            flight.witnesses[0] = (before > self.durable).then(|| self.entry_at(before).applied);
            flight.witnesses[1] = Some(self.entry_at(self.last).applied);
        }
        if release {
            self.superblock.applied = self.applied;
            self.superblock.durable = self.durable;
            ranges.push(self.superblock.store_next(&mut self.media));
            flight.witnesses[2] = Some(self.applied);
        }
        let started = self.media.persist_start(&ranges);
        self.ranges = ranges;
        self.checked(started)?;
        self.flight = Some(flight);
        Ok(true)
    }

    /// Notes a completed persist. With `wait` the call blocks until the persist in flight is complete (bounded by the
    /// medium's deadline). Returns true if `durable()` has moved since the last call that returned true.
    ///
    /// # Errors
    /// [`LogError::Media`]. The log must not be used any more: scan it again.
    pub fn persist_poll(&mut self, wait: bool) -> Result<bool, LogError> {
        self.refuse_failed()?;
        self.complete(wait)?;
        let moved = self.durable > self.reported;
        self.reported = self.durable;
        Ok(moved)
    }

    /// Raises the epoch, and makes it durable in both superblocks before it returns. If `epoch` is the current one,
    /// nothing changes.
    ///
    /// # Errors
    /// [`LogError::EpochWentBack`], [`LogError::Media`].
    pub fn set_epoch(&mut self, epoch: u32) -> Result<(), LogError> {
        let have = self.superblock.epoch;
        if epoch < have {
            return Err(LogError::EpochWentBack { have, asked: epoch });
        }
        if epoch == have {
            return self.refuse_failed();
        }
        self.commit_superblock(|superblock| superblock.epoch = epoch)
    }

    /// Returns the last incarnation that was marked to serve ([`Log::mark_served`]); 0: none was.
    #[must_use]
    pub fn served(&self) -> u32 {
        self.superblock.served
    }

    /// Notes durably, in both superblocks, that the device is about to serve in its current incarnation. An older copy
    /// of the image keeps its lower mark, even if it is started more often.
    ///
    /// # Errors
    /// [`LogError::Media`].
    pub fn mark_served(&mut self) -> Result<(), LogError> {
        if self.superblock.served == self.superblock.incarnation {
            return self.refuse_failed();
        }
        self.commit_superblock(|superblock| superblock.served = superblock.incarnation)
    }

    /// Discards every entry, durable or not, and continues after `order`: `last()`, `durable()` and `applied()` are
    /// `order`. The call is used if the server has applied more than the log holds, and for a device that joins a
    /// chain. The reset is one atomic step, and is durable when the call returns. Because the era in every checksum
    /// changes, no earlier entry counts as valid.
    ///
    /// # Errors
    /// [`LogError::Exhausted`], [`LogError::Media`].
    pub fn reset_to(&mut self, order: u64) -> Result<(), LogError> {
        let era = self
            .superblock
            .era
            .checked_add(1)
            .ok_or(LogError::Exhausted { what: "reset" })?;
        if order >= u64::MAX - self.parameters().entries {
            return Err(LogError::Exhausted { what: "order" });
        }
        self.complete(true)?;
        self.release(self.last);
        (self.last, self.durable, self.applied, self.reported) = (order, order, order, order);
        self.released = order;
        self.laps = [order + 1; 2];
        self.commit_superblock(|superblock| superblock.era = era)?;
        self.key = ChecksumKey::new(&self.superblock.identity, era, &self.superblock.parameters);
        Ok(())
    }

    /// Shuts the log down cleanly: makes all appended entries durable, and writes the exact cursors into the
    /// superblocks.
    ///
    /// # Errors
    /// [`LogError::Media`]; the log is in the state of a crash.
    pub fn close(mut self) -> Result<(), LogError> {
        self.refuse_failed()?;
        self.complete(true)?;
        if self.persist_start()? {
            self.complete(true)?;
        }
        self.commit_superblock(|_| ())
    }

    pub(super) fn commit_superblock(
        &mut self,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<(), LogError> {
        self.refuse_failed()?;
        self.complete(true)?;
        change(&mut self.superblock);
        self.superblock.applied = self.applied;
        self.superblock.durable = self.durable;
        let done = self.superblock.commit(&mut self.media);
        self.failed |= done.is_err();
        done?;
        self.stated = self.applied;
        self.release(self.applied);
        self.release_wanted = false;
        Ok(())
    }

    pub(super) fn complete(&mut self, wait: bool) -> Result<(), LogError> {
        let Some(flight) = self.flight else {
            return Ok(());
        };
        let done = self.media.persist_poll(wait);
        if self.checked(done)? {
            self.flight = None;
            self.durable = flight.upto;
            for applied in flight.witnesses.into_iter().flatten() {
                self.witnessed(applied);
            }
            // If the superblock that was written to release space is the only witness, the space is not released yet.
            // So the next persist writes the other copy of the superblock.
            self.release_wanted |= flight.witnesses[2].is_some() && self.released < self.stated;
            assert!(
                self.released <= self.stated
                    && self.stated <= self.applied
                    && self.applied <= self.durable
                    && self.durable <= self.last,
                "the cursors of the log are in order"
            );
        }
        Ok(())
    }

    /// Notes one more durable witness, an entry or a superblock copy, which states `applied`. Space that two witnesses
    /// state is released (`docs/spec/ordered-log.md` §8).
    pub(super) fn witnessed(&mut self, applied: u64) {
        let second = applied.min(self.stated);
        self.release(second);
        self.stated = self.stated.max(applied);
    }

    /// Frees the space of the orders up to `upto` for new entries.
    pub(super) fn release(&mut self, upto: u64) {
        let first = self.released + 1;
        if upto < first {
            return;
        }
        if let Frames::Buffers(buffers) = &mut self.frames {
            for order in first..=upto {
                let parameters = &self.superblock.parameters;
                let slot = parameters.slot(order);
                // The slot still holds this entry, because a slot is not used again before its order is released.
                let entry = Entry::decode(&raw_slot(&self.media, parameters, slot));
                buffers.release(entry.frame_offset());
            }
        }
        self.released = upto;
    }

    pub(super) fn checked<T>(&mut self, result: Result<T, MediaError>) -> Result<T, LogError> {
        self.failed |= result.is_err();
        Ok(result?)
    }

    pub(super) fn refuse_failed(&self) -> Result<(), LogError> {
        if self.failed {
            Err(LogError::Media(MediaError::Failed))
        } else {
            Ok(())
        }
    }
}
