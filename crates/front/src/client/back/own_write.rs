//! A GET of a key that the same pipeline has just SET is answered with the value of the SET. No other process is asked.
//!
//! Such a GET follows directly after a plain `SET key value` of its key. The SET and the GET come from the same
//! connection, are for the same database and are **submitted in the same turn**. The GET waits for that SET alone. When
//! the SET is committed, as an update or by fallback, the reply to the GET is the value. If the SET gets an error, so
//! does the GET.
//!
//! Why this is correct: submitted calls are sent by [`Upstream::flush`](crate::upstream::Upstream::flush), which is not
//! called while a connection takes commands. So the GET began before the head could give the SET an order, and the GET
//! is answered after the SET has its order. So the SET gets its order while the GET is under way, and at that moment
//! the key has the SET's value. The argument also holds if the SET takes its effect by fallback. A GET of a later turn
//! asks the store: at its call the SET may already have an order, and another client may have written the key since.
//!
//! Between the SET and the GET there may be only other GETs that are answered from a SET of this turn. Any other
//! command of the connection takes effect after the SET, and this GET must take effect after that command. An update of
//! another key is not an exception: between the orders of the two updates, another client may have written this key.
//!
//! Invariants: at most one write is remembered, and only until the end of its turn. The value that a GET returns shares
//! the memory of the SET's payload, and counts as in flight once for each GET that waits for the value.

use bytes::Bytes;
use pmnet_resp::{Arguments, reply};

use super::calls::{Purpose, outcome_reply};
use crate::client::Shared;
use crate::client::replies::{Replies, Slot};
use crate::table::Facts;
use crate::upstream::{CallId, Outcome};

/// Bytes of the end of a line.
const LINE_END: usize = 2;

/// The plain SET that was submitted last in this turn, if no other command followed it.
#[derive(Debug, Default)]
pub(in crate::client) struct OwnWrites(Option<OwnWrite>);

#[derive(Debug)]
struct OwnWrite {
    call: CallId,
    key: Bytes,
    /// The value as the reply to a GET.
    reply: Bytes,
}

impl OwnWrites {
    /// Notes the submitted update with this call; `None`: the update was refused for good.
    pub(in crate::client) fn note(
        &mut self,
        call: Option<CallId>,
        arguments: &Arguments<'_>,
        payload: &Bytes,
    ) {
        self.0 = call
            .filter(|_| arguments.len() == 3 && arguments.is(0, "SET"))
            .and_then(|call| OwnWrite::of(call, arguments, payload));
    }

    /// Notes that another command followed the SET: no later GET may use its value.
    pub(in crate::client) fn forget(&mut self) {
        self.0 = None;
    }

    fn of(&self, facts: &Facts, arguments: &Arguments<'_>) -> Option<&OwnWrite> {
        let is_get = facts.name == "GET" && arguments.len() == 2;
        let write = self.0.as_ref().filter(|_| is_get)?;
        (write.key == arguments.get(1)).then_some(write)
    }
}

impl OwnWrite {
    /// Reads a `SET key value`. The SET's payload ends with the value in the form that a reply has.
    fn of(call: CallId, arguments: &Arguments<'_>, payload: &Bytes) -> Option<OwnWrite> {
        let [key, value] = [arguments.get(1), arguments.get(2)];
        let text = payload.len().checked_sub(value.len() + LINE_END)?;
        let from = payload[..text].iter().rposition(|&byte| byte == b'$')?;
        let key_end = from.checked_sub(LINE_END)?;
        let key_from = key_end.checked_sub(key.len())?;
        Some(OwnWrite {
            call,
            key: payload.slice(key_from..key_end),
            reply: payload.slice(from..),
        })
    }
}

/// If the command is a GET of a key that was SET in this turn, places its reply after that SET. If there is no such
/// SET, returns false. The client must have no commands that wait to be sent.
pub(in crate::client) fn place_after_own_write(
    facts: &Facts,
    arguments: &Arguments<'_>,
    replies: &mut Replies,
    shared: &mut Shared,
) -> bool {
    let Some(write) = shared.own_writes.of(facts, arguments) else {
        return false;
    };
    let readers = replies.slots.iter_mut().rev().find_map(|slot| match slot {
        Slot::Call {
            call,
            purpose: Purpose::Update { readers },
            ..
        } if *call == write.call => Some(readers),
        _ => None,
    });
    let Some(readers) = readers else {
        return false;
    };
    *readers += 1;
    replies.await_update(write.call, write.reply.clone());
    shared.counters.own_writes += 1;
    true
}

/// Answers the `readers` that wait for the update of slot `index`. The outcome of this update is known.
pub(in crate::client) fn answer_readers(
    replies: &mut Replies,
    index: usize,
    update: CallId,
    readers: usize,
    outcome: &Outcome,
) {
    let mine = |slot: &Slot| matches!(slot, Slot::OwnWrite { call, .. } if *call == update);
    let mut at = index;
    for _ in 0..readers {
        let next = replies.slots.iter().skip(at + 1).position(mine);
        let Some(next) = next.map(|distance| at + 1 + distance) else {
            return;
        };
        if let Some(value) = replies.take_own_write(next) {
            replies.fill(next, own_write_reply(value, outcome));
        }
        at = next;
    }
}

/// Returns the reply to a GET that waited for a SET of `value`.
fn own_write_reply(value: Bytes, outcome: &Outcome) -> Bytes {
    match outcome {
        Outcome::Committed { .. } => value,
        // The SET was sent as a bypass, because the store is short of memory.
        Outcome::Reply(done) if *done == reply::OK => value,
        Outcome::Unknown => reply::error(
            "ERR pmnet: outcome unknown of the SET whose value this is (deadline passed); the SET may or may not take \
             effect once",
        ),
        other => outcome_reply(other.clone()).unwrap_or_else(|error| error),
    }
}
