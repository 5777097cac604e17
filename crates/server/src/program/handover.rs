//! Connects the server's loop with the calling program. For the loop this module is a store; the program carries out
//! the store's steps.
//!
//! The loop offers one work, and waits. The program takes the work, carries it out, and answers. So there is never more
//! than one work.

use super::rows::Rows;
use super::{Item, Kind};
use crate::store::{Batch, RecordChange, RecordKey, Request, Source, Store, StoreError};
use bytes::Bytes;
use pmnet_wire::command::PREAMBLE_LEN;
use pmnet_wire::{Payloads, program};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Interval of the warnings that a program has not confirmed its batch.
const SILENCE: Duration = Duration::from_secs(5);

/// Answer to a payload that does not come from a program's client. A barrier and a fence also get this answer; the
/// sender of a fence ignores it. The front of a Redis must not take this answer for the answer of a store.
const FOREIGN: &[u8] =
    b"-ERR pmnet: a program of its own serves here, and this request is not for one\r\n";

/// A bypass in the work: the record that gets its reply, and whether the program makes the reply.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) record: Option<(RecordKey, Bytes)>,
    /// The answer, if the server can give it without the program.
    pub(super) answer: Option<&'static [u8]>,
}

/// The next work of the program.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) items: Vec<Item>,
    /// One slot for each bypass, in order. A bypass that the server itself answers also has a slot, but is not in
    /// `items`.
    pub(super) slots: Vec<Slot>,
    /// Changes of records, except those for replies.
    pub(super) records: Vec<RecordChange>,
}

/// The program's answer to a work.
#[derive(Debug)]
pub(super) enum Answer {
    /// The work and these rows are durable. `replies` has one reply for each slot.
    Done {
        rows: Vec<RecordChange>,
        replies: Vec<Bytes>,
    },
    /// The program has done no part of the work.
    Undone,
}

#[derive(Debug)]
enum Turn {
    Idle,
    Offered(Work),
    Taken,
    Answered(Answer),
}

#[derive(Debug)]
struct State {
    turn: Turn,
    rows: Rows,
    /// The reason why the loop has ended.
    ended: Option<String>,
    /// The program has closed the server.
    leaves: bool,
}

/// The state that the loop and the program share.
#[derive(Debug)]
pub(super) struct Handover {
    state: Mutex<State>,
    /// Wakes the loop when the program has answered, or has closed the server.
    answered: Condvar,
    /// A descriptor that is readable while a work waits for the program.
    ready: OwnedFd,
}

impl Handover {
    pub(super) fn new(rows: Rows) -> io::Result<Handover> {
        let state = State {
            turn: Turn::Idle,
            rows,
            ended: None,
            leaves: false,
        };
        Ok(Handover {
            state: Mutex::new(state),
            answered: Condvar::new(),
            ready: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No thread panics while it holds the lock, so the state is consistent even if the lock is poisoned.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_program(&self) {
        // The write fails only if the counter is at its maximum. With this value the descriptor is readable too.
        let _ = rustix::io::write(&self.ready, &1u64.to_ne_bytes());
    }

    /// Returns the descriptor that is readable while a work waits for the program.
    pub(super) fn ready(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    /// Takes the offered work; `None` if there is none.
    pub(super) fn take(&self) -> Result<Option<Work>, String> {
        let mut state = self.lock();
        if let Some(why) = &state.ended {
            return Err(why.clone());
        }
        match std::mem::replace(&mut state.turn, Turn::Taken) {
            Turn::Offered(work) => {
                // The descriptor is reset here, because no other work can be offered before the answer.
                let _ = rustix::io::read(&self.ready, &mut [0u8; 8][..]);
                Ok(Some(work))
            }
            other => {
                state.turn = other;
                Ok(None)
            }
        }
    }

    /// Answers the work that was taken.
    pub(super) fn answer(&self, answer: Answer) -> Result<(), String> {
        let mut state = self.lock();
        if let Some(why) = &state.ended {
            return Err(why.clone());
        }
        state.turn = Turn::Answered(answer);
        self.answered.notify_one();
        Ok(())
    }

    /// Calls `look` with the rows that the program has stored.
    pub(super) fn with_rows<T>(&self, look: impl FnOnce(&Rows) -> T) -> T {
        look(&self.lock().rows)
    }

    /// Notes that the program closes the server. The loop then no longer waits for an answer.
    pub(super) fn leave(&self) {
        self.lock().leaves = true;
        self.answered.notify_one();
    }

    /// Notes that the loop has ended.
    pub(super) fn end(&self, why: String) {
        self.lock().ended.get_or_insert(why);
        self.wake_program();
    }

    /// Offers this work to the program, and waits for the answer. Returns the replies.
    fn offer(&self, work: Work) -> Result<Vec<Bytes>, StoreError> {
        let since = Instant::now();
        let mut told = SILENCE;
        let mut state = self.lock();
        state.turn = Turn::Offered(work);
        self.wake_program();
        loop {
            if state.leaves {
                return Err(StoreError::Fatal("the program has closed it".into()));
            }
            match std::mem::replace(&mut state.turn, Turn::Idle) {
                Turn::Answered(Answer::Done { rows, replies }) => {
                    state.rows.stored(rows);
                    return Ok(replies);
                }
                Turn::Answered(Answer::Undone) => {
                    let text = "PM2802 the program could not do a batch, and is given it again";
                    return Err(StoreError::Retry(text.into()));
                }
                other => state.turn = other,
            }
            let waited = self.answered.wait_timeout(state, SILENCE);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if since.elapsed() >= told {
                told += SILENCE;
                tracing::warn!(
                    seconds = since.elapsed().as_secs(),
                    "PM2801 the program has not confirmed its batch: meanwhile no device and no client is answered. Does it still call for batches?"
                );
            }
        }
    }
}

/// The store that the loop uses.
pub(super) struct Pulled {
    handover: Arc<Handover>,
    /// Time of the last log message about updates that do not come from a program's client.
    told: Option<Instant>,
}

impl Pulled {
    pub(super) const fn new(handover: Arc<Handover>) -> Pulled {
        Pulled {
            handover,
            told: None,
        }
    }

    fn tell_of_foreign(&mut self, count: usize) {
        let is_new = self.told.is_none_or(|told| told.elapsed() >= SILENCE);
        if count > 0 && is_new {
            self.told = Some(Instant::now());
            tracing::warn!(
                count,
                "PM2803 updates were skipped that no program's client sent: their clients were told that they are durable. Does a front of a Redis write to \
                 this shard?"
            );
        }
    }
}

fn item(kind: Kind, source: Source, payload: &Bytes) -> Option<Item> {
    program::body(payload)?;
    Some(Item {
        kind,
        source,
        payload: payload.slice(PREAMBLE_LEN..),
    })
}

impl Store for Pulled {
    fn load(&mut self) -> Result<Vec<(RecordKey, Bytes)>, StoreError> {
        Ok(self.handover.with_rows(Rows::records))
    }

    fn apply(&mut self, batch: &Batch) -> Result<u64, StoreError> {
        assert_eq!(
            batch.effects.len(),
            batch.sources.len(),
            "the machine says of each effect whose it is"
        );
        let effects = batch.effects.iter().zip(&batch.sources);
        let items: Vec<Item> = effects
            .filter_map(|(payload, source)| item(Kind::Update, *source, payload))
            .collect();
        let foreign = batch.effects.len() - items.len();
        if !items.is_empty() || !batch.records.is_empty() {
            self.handover.offer(Work {
                items,
                slots: Vec::new(),
                records: batch.records.clone(),
            })?;
        }
        self.tell_of_foreign(foreign);
        Ok(u64::try_from(foreign).unwrap_or(u64::MAX))
    }

    fn execute(
        &mut self,
        requests: &[Request],
        replies: &mut Vec<Bytes>,
    ) -> Result<(), StoreError> {
        let mut work = Work::default();
        for request in requests {
            let kind = match request.record {
                Some(_) => Kind::Bypass,
                None => Kind::Read,
            };
            let item = item(kind, request.source, &request.payload);
            work.slots.push(Slot {
                record: request.record.clone(),
                answer: item.is_none().then_some(FOREIGN),
            });
            work.items.extend(item);
        }
        let nothing = |slot: &Slot| slot.record.is_none() && slot.answer.is_some();
        if work.slots.iter().all(nothing) {
            let answers = work.slots.iter().filter_map(|slot| slot.answer);
            replies.extend(answers.map(Bytes::from_static));
            return Ok(());
        }
        replies.extend(self.handover.offer(work)?);
        Ok(())
    }

    fn payloads(&self) -> Payloads {
        Payloads::PROGRAM
    }

    fn durability(&self) -> String {
        "a program of its own: what it has confirmed is as durable as it makes it".into()
    }
}
