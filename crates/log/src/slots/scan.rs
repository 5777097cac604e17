//! Reading slots without changing them, after a crash or a stop.
//!
//! Invariant: nothing here stores. The only step from a [`SlotScan`] to a [`SlotQueue`] is [`SlotScan::begin`], when all messages that
//! count are durable in the log.

use crate::layout::Identity;
use crate::media::{Media, persist_now};
use crate::slots::image::{self, Head, SlotParameters, SlotsError, store_cursor};
use crate::slots::queue::SlotQueue;

/// Slots that were read, and of which none is posted.
#[derive(Debug)]
pub struct SlotScan<M> {
    media: M,
    identity: Identity,
    parameters: SlotParameters,
    cursor: u64,
}

impl<M: Media> SlotScan<M> {
    /// Reads heads and cursors. `expected`: the log that the slots must belong to.
    ///
    /// # Errors
    /// Any of [`SlotsError`]; nothing is changed.
    pub fn open(media: M, expected: Option<Identity>) -> Result<SlotScan<M>, SlotsError> {
        let head = image::read(media.bytes())?;
        let cursor = image::cursor(media.bytes(), &head)?;
        let Head {
            identity,
            parameters,
        } = head;
        if expected.is_some_and(|expected| expected != identity) {
            return Err(SlotsError::OtherLog(identity));
        }
        Ok(SlotScan {
            media,
            identity,
            parameters,
            cursor,
        })
    }

    /// The log that the slots belong to.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Number and size of the slots.
    #[must_use]
    pub fn parameters(&self) -> SlotParameters {
        self.parameters
    }

    /// The medium.
    #[must_use]
    pub fn media(&self) -> &M {
        &self.media
    }

    /// The number of the oldest message that may not be in the log.
    #[must_use]
    pub fn cursor(&self) -> u64 {
        self.cursor
    }

    /// All slots, in the order in which messages were received into those that are not entered; each once. Some have been posted
    /// and hold what they had in an earlier lap, or parts of a message.
    pub fn slots(&self) -> impl Iterator<Item = &[u8]> {
        let slots = u64::from(self.parameters.slots);
        (self.cursor..self.cursor + slots)
            .map(|number| self.media.part(self.parameters.place(number)))
    }

    /// All messages that count are durable in the log: no slot is needed any more. The cursor moves past all slots, durably, and
    /// they can be posted.
    ///
    /// # Errors
    /// [`SlotsError::Media`], or [`SlotsError::Damaged`] if the cursor is at its end; the slots are as they were.
    pub fn begin(self) -> Result<SlotQueue<M>, SlotsError> {
        let SlotScan {
            mut media,
            identity,
            parameters,
            cursor,
        } = self;
        let next = cursor + u64::from(parameters.slots);
        if next > image::NUMBER_MAX {
            return Err(SlotsError::Damaged("the cursor is at its end"));
        }
        let lines = store_cursor(&mut media, identity.log_uuid, next);
        persist_now(&mut media, &lines)?;
        Ok(SlotQueue::new(media, identity, parameters, next))
    }

    /// Gives the medium back.
    #[must_use]
    pub fn into_media(self) -> M {
        self.media
    }
}
