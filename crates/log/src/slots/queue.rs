//! The ring of slots of a running queue. Each slot is posted, completed by the NIC, delivered to the device, and posted
//! again when the cursor on the medium has passed it.

use std::ops::Range;

use crate::layout::Identity;
use crate::media::Media;
use crate::slots::image::{NUMBER_MAX, SlotParameters, SlotsError, store_cursor};

/// The next slot to be posted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Posting {
    /// Number of the message, which is the id of the work request.
    pub number: u64,
    /// Range of the image into which the NIC is to receive the message.
    pub place: Range<usize>,
}

/// The result of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A message of N bytes is in the slot.
    Message(u32),
    /// The receive failed. The slot holds no message, even if its bytes look like one.
    Error,
}

/// The oldest slot that was not delivered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Oldest<'a> {
    /// The slot holds a message.
    Message {
        /// Number of the message.
        number: u64,
        /// Number of the connection on which the message came, as given to [`SlotQueue::complete`].
        from: u32,
        /// Bytes of the message.
        bytes: &'a [u8],
    },
    /// A hole: the slot holds no message.
    Hole {
        /// Number of the slot.
        number: u64,
    },
}

/// An impossible completion: the NIC does not behave as slots need, or the caller made a mistake. The queue is
/// unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Odd {
    /// No slot with this number is posted.
    #[error("message {0} is complete, and no slot was posted for it")]
    NotPosted(u64),
    /// The slot was already complete.
    #[error("message {0} is complete for the second time")]
    Twice(u64),
    /// The message is longer than its slot.
    #[error("message {0} is longer than its slot")]
    TooLong(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Complete { from: u32, outcome: Outcome },
}

/// A ring of slots, some of which are posted. At most one persist is in flight.
#[derive(Debug)]
pub struct SlotQueue<M> {
    media: M,
    identity: Identity,
    parameters: SlotParameters,
    /// State of each slot. Only the states of slots from `processed` to `posted` count.
    states: Vec<State>,
    /// The cursor that is durable on the medium.
    kept: u64,
    /// The cursor that is being persisted.
    keeping: Option<u64>,
    processed: u64,
    posted: u64,
}

impl<M: Media> SlotQueue<M> {
    pub(super) fn new(
        media: M,
        identity: Identity,
        parameters: SlotParameters,
        cursor: u64,
    ) -> SlotQueue<M> {
        let slots = usize::try_from(parameters.slots).expect("u32 fits usize");
        SlotQueue {
            media,
            identity,
            parameters,
            states: vec![State::Open; slots],
            kept: cursor,
            keeping: None,
            processed: cursor,
            posted: cursor,
        }
    }

    /// Returns the next slot to post, which counts as posted from now on. `None`: no slot is free. A slot is free again
    /// when the durable cursor has passed its message. The caller posts slots in this order, all of them to one shared
    /// receive queue.
    pub fn post(&mut self) -> Option<Posting> {
        let number = self.posted;
        if number == self.kept + u64::from(self.parameters.slots) || number > NUMBER_MAX {
            return None;
        }
        self.posted += 1;
        self.states[self.parameters.slot(number)] = State::Open;
        Some(Posting {
            number,
            place: self.parameters.place(number),
        })
    }

    /// Notes that the NIC has completed a slot. Completions may come in any order. `from`: number of the connection; no
    /// two connections have the same number.
    ///
    /// # Errors
    /// [`Odd`].
    pub fn complete(&mut self, number: u64, from: u32, outcome: Outcome) -> Result<(), Odd> {
        if !(self.processed..self.posted).contains(&number) {
            return Err(if number < self.processed {
                Odd::Twice(number)
            } else {
                Odd::NotPosted(number)
            });
        }
        let state = &mut self.states[self.parameters.slot(number)];
        if *state != State::Open {
            return Err(Odd::Twice(number));
        }
        if matches!(outcome, Outcome::Message(bytes) if bytes > self.parameters.slot_bytes) {
            return Err(Odd::TooLong(number));
        }
        *state = State::Complete { from, outcome };
        Ok(())
    }

    /// Returns the oldest slot that was not delivered, if it is complete. While the oldest slot is open, no later
    /// message is returned.
    #[must_use]
    pub fn oldest(&self) -> Option<Oldest<'_>> {
        let number = self.processed;
        match self.state(number)? {
            State::Open => None,
            State::Complete {
                outcome: Outcome::Error,
                ..
            } => Some(Oldest::Hole { number }),
            State::Complete {
                from,
                outcome: Outcome::Message(bytes),
            } => {
                let start = self.parameters.place(number).start;
                let length = usize::try_from(bytes).expect("u32 fits usize");
                Some(Oldest::Message {
                    number,
                    from,
                    bytes: self.media.part(start..start + length),
                })
            }
        }
    }

    /// Notes that the oldest message was delivered.
    ///
    /// # Panics
    /// If the slot is not complete.
    pub fn advance(&mut self) {
        let done = matches!(self.state(self.processed), Some(State::Complete { .. }));
        assert!(done, "only what is complete is handed on");
        self.processed += 1;
    }

    fn state(&self, number: u64) -> Option<State> {
        (number < self.posted).then(|| self.states[self.parameters.slot(number)])
    }

    /// Returns the number of the oldest slot, if this slot is open and a later slot is complete. Then a client has sent
    /// only a part of a message. If this lasts, the caller must disconnect the client.
    #[must_use]
    pub fn blocked(&self) -> Option<u64> {
        let open = self.state(self.processed) == Some(State::Open);
        let later = || self.later().next().is_some();
        (open && later()).then_some(self.processed)
    }

    /// Returns the number of the newest complete message after the oldest slot. The NIC has taken all slots before it.
    #[must_use]
    pub fn newest(&self) -> Option<u64> {
        (self.processed + 1..self.posted)
            .rev()
            .find(|&number| self.sender(number).is_some())
    }

    /// Returns whether this connection certainly does not have the oldest slot: it has completed a message in a later
    /// slot, and a connection takes a slot only when its previous message is complete.
    #[must_use]
    pub fn is_cleared(&self, connection: u32) -> bool {
        self.later().any(|from| from == connection)
    }

    /// Returns the connections of complete messages after the oldest slot.
    fn later(&self) -> impl Iterator<Item = u32> {
        (self.processed..self.posted)
            .skip(1)
            .filter_map(|number| self.sender(number))
    }

    /// Returns the connection of a complete message.
    fn sender(&self, number: u64) -> Option<u32> {
        match self.state(number)? {
            State::Complete {
                from,
                outcome: Outcome::Message(_),
            } => Some(from),
            _ => None,
        }
    }

    /// Begins to write the cursor `entered` to the medium: each message below it is durable in the log, or has no
    /// effect. Returns false if the medium already has this cursor, or if another cursor is being written.
    ///
    /// # Errors
    /// [`SlotsError::Media`]: nothing more may be posted.
    ///
    /// # Panics
    /// A message below `entered` was not delivered.
    pub fn keep_start(&mut self, entered: u64) -> Result<bool, SlotsError> {
        assert!(
            entered <= self.processed,
            "only what was handed on can be entered"
        );
        if entered <= self.kept || self.keeping.is_some() {
            return Ok(false);
        }
        let lines = store_cursor(&mut self.media, self.identity.log_uuid, entered);
        self.media.persist_start(&lines)?;
        self.keeping = Some(entered);
        Ok(true)
    }

    /// Returns whether no cursor is being written. With `wait` the call blocks until the write is complete. Afterwards
    /// the slots below the cursor may be posted again.
    ///
    /// # Errors
    /// [`SlotsError::Media`]: nothing more may be posted.
    pub fn keep_poll(&mut self, wait: bool) -> Result<bool, SlotsError> {
        let Some(entered) = self.keeping else {
            return Ok(true);
        };
        if self.media.persist_poll(wait)? {
            self.kept = entered;
            self.keeping = None;
        }
        Ok(self.keeping.is_none())
    }

    /// Returns the number of messages that the NIC can still take: the clients' credit.
    #[must_use]
    pub fn credit(&self) -> u64 {
        let open = |number: &u64| self.state(*number) == Some(State::Open);
        let open = (self.processed..self.posted).filter(open).count();
        u64::try_from(open).expect("usize is at most 64 bits")
    }

    /// Returns the number of the oldest message that was not delivered.
    #[must_use]
    pub fn processed(&self) -> u64 {
        self.processed
    }

    /// Returns the cursor on the medium: all messages below it are entered.
    #[must_use]
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// Returns the medium. In the simulator the NIC uses this medium to store messages.
    pub fn media_mut(&mut self) -> &mut M {
        &mut self.media
    }

    /// Returns the medium. The NIC must not use the medium any more.
    #[must_use]
    pub fn into_media(self) -> M {
        self.media
    }
}
