//! Reads a log without changing it (`docs/spec/recovery.md` §1–§3).
//!
//! Invariant: this module never stores into the image. Only [`Scan::repair`] turns a [`Scan`] into a
//! [`Log`](crate::Log).

use crate::decide::{Decision, Slot, Summary, decide};
use crate::entry::{ChecksumKey, Entry, InvalidSlot, Payloads, frame_space, raw_slot};
use crate::error::LogError;
use crate::layout::{Identity, Parameters, to_u64};
use crate::media::Media;
use crate::superblock::{self, CopyState, Superblock};

/// Maximum number of findings that a report lists; further findings are only counted.
pub const FINDINGS_MAX: usize = 64;

/// The log that the caller expects to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Device id.
    pub device: u32,
    /// Shard number.
    pub shard: u32,
    /// Parameters, if the configuration fixes them.
    pub parameters: Option<Parameters>,
}

/// A state of the image that a clean shutdown would not leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// A copy of the superblock cannot be used; the scan used the other copy.
    Superblock {
        /// Number of the copy, 0 or 1.
        copy: u8,
        /// State of the copy.
        state: CopyState,
    },
    /// A slot is not empty, and holds no valid entry. This is normal after a torn burst, and for a reclaimed entry
    /// whose frame was overwritten.
    Slot {
        /// Slot of the metadata ring.
        slot: u64,
        /// The first check that failed.
        why: InvalidSlot,
    },
}

/// The result of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Identity of the log.
    pub identity: Identity,
    /// Size of the log.
    pub parameters: Parameters,
    /// Durable epoch.
    pub epoch: u32,
    /// Durable incarnation; repair raises it.
    pub incarnation: u32,
    /// Applied order in the superblock; entries may prove a higher order.
    pub applied_hint: u64,
    /// Durable order in the superblock; entries may prove a higher order.
    pub durable_hint: u64,
    /// Number of slots that are all zero.
    pub slots_empty: u64,
    /// Number of slots that hold a valid entry, of any lap.
    pub slots_valid: u64,
    /// Number of slots that are not empty, and hold no valid entry.
    pub slots_invalid: u64,
    /// The first [`FINDINGS_MAX`] findings.
    pub findings: Vec<Finding>,
    /// Number of all findings.
    pub findings_total: u64,
}

impl Report {
    fn add(&mut self, finding: Finding) {
        self.findings_total += 1;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        }
    }
}

/// A log that was read and not yet repaired.
#[derive(Debug)]
pub struct Scan<M> {
    pub(crate) media: M,
    pub(crate) superblock: Superblock,
    summary: Summary,
    report: Report,
}

/// Refuses the log of another device or shard, and a log with other parameters.
pub(crate) fn check_expected(
    superblock: &Superblock,
    expected: Option<Expected>,
) -> Result<(), LogError> {
    let Some(Expected {
        device,
        shard,
        parameters,
    }) = expected
    else {
        return Ok(());
    };
    let found = superblock.identity;
    if (found.device, found.shard) != (device, shard) {
        return Err(LogError::OtherDevice {
            found,
            device,
            shard,
        });
    }
    let found = superblock.parameters;
    match parameters.filter(|expected| *expected != found) {
        Some(expected) => Err(LogError::OtherParameters { found, expected }),
        None => Ok(()),
    }
}

impl<M: Media> Scan<M> {
    /// Reads the whole image: superblocks, every entry, every frame that an entry points to.
    ///
    /// # Errors
    /// Any [`LogError`] that describes a fault of the image; nothing is changed.
    pub fn open(media: M, expected: Option<Expected>) -> Result<Scan<M>, LogError> {
        Scan::open_with(media, expected, Payloads::Checked)
    }

    /// Reads the image like [`Scan::open`], but checks payloads only if `payloads` says so. Only the simulator leaves
    /// payloads unchecked.
    ///
    /// # Errors
    /// The errors of [`Scan::open`].
    pub fn open_with(
        media: M,
        expected: Option<Expected>,
        payloads: Payloads,
    ) -> Result<Scan<M>, LogError> {
        let (superblock, copies) = superblock::read(media.bytes())?;
        let Superblock {
            identity,
            parameters,
            ..
        } = superblock;
        check_expected(&superblock, expected)?;
        let mut report = Report {
            identity,
            parameters,
            epoch: superblock.epoch,
            incarnation: superblock.incarnation,
            applied_hint: superblock.applied,
            durable_hint: superblock.durable,
            slots_empty: 0,
            slots_valid: 0,
            slots_invalid: 0,
            findings: Vec::new(),
            findings_total: 0,
        };
        for (copy, state) in (0u8..).zip(copies) {
            if state != CopyState::Valid {
                report.add(Finding::Superblock { copy, state });
            }
        }
        let slots = read_slots(media.bytes(), &superblock, payloads, &mut report);
        let summary = Summary {
            applied: superblock.applied,
            durable: superblock.durable,
            epoch: superblock.epoch,
            incarnation: superblock.incarnation,
            slots,
        };
        Ok(Scan {
            media,
            superblock,
            summary,
            report,
        })
    }

    /// Returns the result of the scan.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Returns the steps that repair would take (`docs/spec/recovery.md` §4).
    #[must_use]
    pub fn decide(&self) -> Decision {
        decide(&self.summary)
    }

    /// Returns the whole entry with this order if the ring still holds it, even if it is reclaimed.
    #[must_use]
    pub fn entry(&self, order: u64) -> Option<Entry> {
        let parameters = &self.report.parameters;
        let slot = parameters.slot(order);
        match self.summary.slots[usize::try_from(slot).ok()?] {
            Slot::Valid { order: found, .. } if found == order => Some(Entry::decode(&raw_slot(
                self.media.bytes(),
                parameters,
                slot,
            ))),
            _ => None,
        }
    }

    /// Returns the frame of [`Scan::entry`].
    #[must_use]
    pub fn frame(&self, order: u64) -> Option<&[u8]> {
        let entry = self.entry(order)?;
        frame_space(self.media.bytes(), &self.report.parameters)
            .get(entry.frame_offset()..)?
            .get(..entry.frame_bytes())
    }

    /// Returns the image as it was read.
    #[must_use]
    pub fn image(&self) -> &[u8] {
        self.media.bytes()
    }

    /// Returns the failures that an acknowledgement on this medium survives.
    #[must_use]
    pub fn survives(&self) -> &'static str {
        self.media.survives()
    }
}

fn read_slots(
    image: &[u8],
    superblock: &Superblock,
    payloads: Payloads,
    report: &mut Report,
) -> Vec<Slot> {
    let parameters = &superblock.parameters;
    let key = ChecksumKey::new(&superblock.identity, superblock.era, parameters);
    let frames = frame_space(image, parameters);
    let mut slots = Vec::new();
    for slot in 0..parameters.entries {
        let found = match Entry::check(
            &raw_slot(image, parameters, slot),
            slot,
            parameters,
            &key,
            frames,
            payloads,
        ) {
            Ok(None) => {
                report.slots_empty += 1;
                Slot::Empty
            }
            Ok(Some(entry)) => {
                report.slots_valid += 1;
                let Entry {
                    order,
                    durable,
                    applied,
                    epoch,
                    incarnation,
                    ..
                } = entry;
                Slot::Valid {
                    order,
                    durable,
                    applied,
                    epoch,
                    incarnation,
                }
            }
            Err(why) => {
                report.slots_invalid += 1;
                report.add(Finding::Slot { slot, why });
                Slot::Invalid(why)
            }
        };
        slots.push(found);
    }
    debug_assert_eq!(to_u64(slots.len()), parameters.entries);
    slots
}
