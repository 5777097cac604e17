//! Reads slots without changing them, after a crash or a stop.
//!
//! Invariant: this module stores nothing. Only [`SlotScan::begin`] turns a [`SlotScan`] into a [`SlotQueue`], after all
//! messages that count are durable in the log.

use crate::layout::Identity;
use crate::media::{Media, persist_now};
use crate::slots::image::{self, Head, SlotParameters, SlotsError, store_cursor};
use crate::slots::queue::SlotQueue;

/// The slots of an image that was read. No slot is posted.
#[derive(Debug)]
pub struct SlotScan<M> {
    media: M,
    identity: Identity,
    parameters: SlotParameters,
    cursor: u64,
}

impl<M: Media> SlotScan<M> {
    /// Reads heads and cursors. `expected`: the log to which the slots must belong.
    ///
    /// # Errors
    /// A [`SlotsError`]; nothing is changed.
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

    /// Returns the identity of the log to which the slots belong.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns number and size of the slots.
    #[must_use]
    pub fn parameters(&self) -> SlotParameters {
        self.parameters
    }

    /// Returns the medium.
    #[must_use]
    pub fn media(&self) -> &M {
        &self.media
    }

    /// Returns the number of the oldest message that may be missing in the log.
    #[must_use]
    pub fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Returns all slots, each once, beginning with the slot of the cursor. This is the order in which the messages
    /// that are not entered were received. A slot may also hold a message of an earlier lap, or only parts of a
    /// message.
    pub fn slots(&self) -> impl Iterator<Item = &[u8]> {
        let slots = u64::from(self.parameters.slots);
        (self.cursor..self.cursor + slots)
            .map(|number| self.media.part(self.parameters.place(number)))
    }

    /// Starts the queue. The caller has made all messages that count durable in the log, so the contents of the slots
    /// are no longer needed. The cursor on the medium moves past all slots, and then all slots can be posted.
    ///
    /// # Errors
    /// [`SlotsError::Media`], or [`SlotsError::Damaged`] if the cursor is at its end; the slots are unchanged.
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

    /// Returns the medium.
    #[must_use]
    pub fn into_media(self) -> M {
        self.media
    }
}
