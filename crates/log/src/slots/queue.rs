//! The ring while it runs: its slots are posted, complete, handed on, kept.

use std::ops::Range;

use crate::layout::Identity;
use crate::media::Media;
use crate::slots::image::{NUMBER_MAX, SlotParameters, SlotsError, store_cursor};

/// The next slot to be posted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Posting {
    /// The message's number: the id of the work request.
    pub number: u64,
    /// Where in the image the NIC shall put it.
    pub place: Range<usize>,
}

/// Contents of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A message of N bytes is in the slot.
    Message(u32),
    /// An error: the slot holds no message, whatever its bytes are.
    Error,
}

/// The oldest slot that is not handed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Oldest<'a> {
    /// A message.
    Message {
        /// Its number.
        number: u64,
        /// The connection that it came from, as [`SlotQueue::complete`] was told.
        from: u32,
        /// Its bytes.
        bytes: &'a [u8],
    },
    /// A hole: it has no place in the order.
    Hole {
        /// Its number.
        number: u64,
    },
}

/// An impossible completion: the NIC does not behave as slots need, or the caller made a mistake. The queue has not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Odd {
    /// No such number is posted.
    #[error("message {0} is complete, and no slot was posted for it")]
    NotPosted(u64),
    /// It was complete already.
    #[error("message {0} is complete for the second time")]
    Twice(u64),
    /// It is longer than its slot.
    #[error("message {0} is longer than its slot")]
    TooLong(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Complete { from: u32, outcome: Outcome },
}

/// Slots of which some are posted. One persist is in flight at most.
#[derive(Debug)]
pub struct SlotQueue<M> {
    media: M,
    identity: Identity,
    parameters: SlotParameters,
    /// By slot; means something from `processed` to `posted`.
    states: Vec<State>,
    /// The cursor on the medium, for sure.
    kept: u64,
    /// The one that is being persisted.
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

    /// The next slot that may be posted. It counts as posted from now on. `None`: all slots whose messages are entered, as the medium says, are
    /// posted. The caller posts slots in this order, all of them to one shared receive queue.
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

    /// The NIC is done with a slot. Completions come in any order. `from`: the number of the connection, a new one each time that a
    /// client connects.
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

    /// The oldest slot that is not handed on, if the NIC is done with it. No message after an open slot is returned.
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

    /// The oldest message was handed on.
    ///
    /// # Panics
    /// If the NIC is not done with it.
    pub fn advance(&mut self) {
        let done = matches!(self.state(self.processed), Some(State::Complete { .. }));
        assert!(done, "only what is complete is handed on");
        self.processed += 1;
    }

    fn state(&self, number: u64) -> Option<State> {
        (number < self.posted).then(|| self.states[self.parameters.slot(number)])
    }

    /// The number of the oldest slot, if it is open and a later one is not: a client is in the middle of a message. If that lasts,
    /// it must be cut off.
    #[must_use]
    pub fn blocked(&self) -> Option<u64> {
        let open = self.state(self.processed) == Some(State::Open);
        let later = || self.later().next().is_some();
        (open && later()).then_some(self.processed)
    }

    /// The number of the newest complete message after the oldest slot. The NIC has taken all slots before it.
    #[must_use]
    pub fn newest(&self) -> Option<u64> {
        (self.processed + 1..self.posted)
            .rev()
            .find(|&number| self.sender(number).is_some())
    }

    /// Whether this connection cannot be the one that has the oldest slot: it has finished a message in a later one, and it takes a
    /// slot only when it has finished the one before.
    #[must_use]
    pub fn is_cleared(&self, connection: u32) -> bool {
        self.later().any(|from| from == connection)
    }

    /// The connections of complete messages after the oldest slot.
    fn later(&self) -> impl Iterator<Item = u32> {
        (self.processed..self.posted)
            .skip(1)
            .filter_map(|number| self.sender(number))
    }

    /// The connection of a complete message.
    fn sender(&self, number: u64) -> Option<u32> {
        match self.state(number)? {
            State::Complete {
                from,
                outcome: Outcome::Message(_),
            } => Some(from),
            _ => None,
        }
    }

    /// Begins to store that each message below `entered` is durable in the log, or has no effect. False: that is stored
    /// already, or another such store is in flight.
    ///
    /// # Errors
    /// [`SlotsError::Media`]: nothing more may be posted.
    ///
    /// # Panics
    /// If something below `entered` was not handed on.
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

    /// True when no store is in flight; with `wait` it blocks until then. The slots below the cursor may then be posted again.
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

    /// Messages that the NIC can still take: the clients' credit.
    #[must_use]
    pub fn credit(&self) -> u64 {
        let open = |number: &u64| self.state(*number) == Some(State::Open);
        let open = (self.processed..self.posted).filter(open).count();
        u64::try_from(open).expect("usize is at most 64 bits")
    }

    /// The number of the oldest message that was not handed on.
    #[must_use]
    pub fn processed(&self) -> u64 {
        self.processed
    }

    /// The cursor on the medium: what is below it is entered.
    #[must_use]
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// The medium. In the simulator the NIC stores through it.
    pub fn media_mut(&mut self) -> &mut M {
        &mut self.media
    }

    /// Gives the medium back. The NIC must be done with it.
    #[must_use]
    pub fn into_media(self) -> M {
        self.media
    }
}
