//! The checkers: the conditions that every history must satisfy (`docs/spec/protocol.md` §10).
//!
//! The store keeps lists, and every append has a unique id, so the final list of a key is the order in which its
//! appends took effect. A history is linearizable exactly if this order agrees with real time. The position of an
//! append in the order is its position in the list. A read that saw n ids lies between the n-th append and the next
//! append (list-append, as in Elle).

use crate::store::Story;
use pmnet_proto::Time;
use std::collections::{BTreeMap, BTreeSet};

/// One call, as its client observed it.
#[derive(Clone, Debug)]
pub struct Observed {
    /// Number of the client, and number of the session within the client.
    pub session: (usize, u32),
    /// The key of the call.
    pub key: u8,
    /// The appended id; `None` for a read.
    pub id: Option<u64>,
    /// The id that the call delivers to subscribers, if it delivers one.
    pub published: Option<u64>,
    /// Whether the call appends only if the list has an even length.
    pub conditional: bool,
    /// Time of the call.
    pub invoked: Time,
    /// Time of the outcome. `None`: the outcome is unknown, or the client died before it.
    pub returned: Option<Time>,
    /// The outcome of the call.
    pub result: Result,
}

impl Observed {
    /// Returns whether the call was refused because of the list's contents. Such a call counts as a read.
    fn refused(&self) -> bool {
        let seen = match &self.result {
            Result::Read(list) => list.last().copied(),
            _ => return false,
        };
        self.conditional && seen != self.id
    }
}

/// Outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Result {
    /// The call was acknowledged.
    Done,
    /// The reply is the list. In the reply to an append, the last id is the call's own.
    Read(Vec<u64>),
    /// The reply is only the id of the newest append (a HIT).
    Newest(u64),
    /// The reply is none that the store can have written.
    Garbled,
    /// The call certainly had no effect.
    Failed,
    /// The call took effect at most once.
    Unknown,
}

/// Everything that the checkers need about a finished world.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The calls of all clients. Calls of one session are in the order in which they were submitted.
    pub calls: Vec<Observed>,
    /// The effects and refusals of the store.
    pub story: Story,
    /// The sessions (by their numbers in packets) under which an id was sent.
    pub sent_in: BTreeMap<u64, BTreeSet<u64>>,
    /// Updates that a declared loss may have removed.
    pub excused: BTreeSet<u64>,
}

/// Returns a description of each violation in the history.
#[must_use]
pub fn check(history: &History) -> Vec<String> {
    let mut violations = Vec::new();
    let mut positions: BTreeMap<u64, (u8, usize)> = BTreeMap::new();
    for (&key, list) in &history.story.lists {
        for (at, &id) in list.iter().enumerate() {
            if positions.insert(id, (key, at)).is_some() {
                violations.push(format!("applied twice: id {id} in key {key}"));
            }
        }
    }
    let known: BTreeSet<u64> = history
        .calls
        .iter()
        .filter_map(|observed| observed.id)
        .collect();
    for id in positions.keys().filter(|id| !known.contains(id)) {
        violations.push(format!("applied id {id}, which nobody sent"));
    }
    for observed in &history.calls {
        outcome(observed, &positions, &history.excused, &mut violations);
        delivery(observed, &history.story, &mut violations);
    }
    if history.story.malformed > 0 {
        let count = history.story.malformed;
        violations.push(format!("{count} effects were not what a client made"));
    }
    session_order(history, &positions, &mut violations);
    real_time(history, &positions, &mut violations);
    ended_sessions(history, &mut violations);
    violations
}

type Positions = BTreeMap<u64, (u8, usize)>;

/// Checks invariants 1 and 2 for one call.
fn outcome(
    observed: &Observed,
    positions: &Positions,
    excused: &BTreeSet<u64>,
    violations: &mut Vec<String>,
) {
    if observed.result == Result::Garbled {
        let session = observed.session;
        violations.push(format!(
            "a call of session {session:?} got a reply that nobody wrote"
        ));
    }
    let Some(id) = observed.id else { return };
    match (&observed.result, positions.get(&id)) {
        (Result::Done, None) if excused.contains(&id) => {}
        (Result::Read(list), None) if observed.refused() && list.len() % 2 == 1 => {}
        (Result::Done | Result::Read(_), None) => {
            let session = observed.session;
            violations.push(format!(
                "acknowledged and lost: id {id} of session {session:?}"
            ));
        }
        (Result::Failed, Some(_)) => violations.push(format!("failed and applied: id {id}")),
        (Result::Read(list), Some((_, at))) if list.len() != at + 1 || list.last() != Some(&id) => {
            let length = list.len();
            violations.push(format!(
                "id {id} was told length {length} but stands at {at}"
            ));
        }
        (_, Some((key, _))) if *key != observed.key => {
            violations.push(format!("id {id} of key {} in key {key}", observed.key));
        }
        _ => {}
    }
}

/// Checks invariants 1 and 2 for a call that delivers a message and changes no data. The invariants hold for each Redis
/// separately. A replica that is behind when it is promoted does not know the last deliveries of the old master, so it
/// may refuse a call that the old master has delivered.
fn delivery(observed: &Observed, story: &Story, violations: &mut Vec<String>) {
    let Some(id) = observed.published else { return };
    let times = story.delivered.get(&id).copied().unwrap_or(0);
    if times > 1 {
        violations.push(format!("took effect {times} times: delivery of id {id}"));
    }
    match observed.result {
        Result::Done | Result::Read(_) if times == 0 => {
            violations.push(format!("answered and never delivered: id {id}"));
        }
        Result::Failed if times > 0 && !story.refused.contains(&id) => {
            violations.push(format!("failed and delivered: id {id}"));
        }
        _ => {}
    }
}

/// Invariant 3: in each list, the ids of one session are in the order in which the session sent them.
fn session_order(history: &History, positions: &Positions, violations: &mut Vec<String>) {
    let mut last: BTreeMap<((usize, u32), u8), (usize, u64)> = BTreeMap::new();
    let mut lost: BTreeMap<(usize, u32), u64> = BTreeMap::new();
    for observed in &history.calls {
        let Some(id) = observed.id else { continue };
        let Some(&(key, at)) = positions.get(&id) else {
            // An id may be missing only after a declared loss. Then later updates of its session are missing, too.
            if observed.result == Result::Done {
                lost.insert(observed.session, id);
            }
            continue;
        };
        if let Some(other) = lost.get(&observed.session) {
            violations.push(format!(
                "session order broken: id {other} was acknowledged and lost, id {id} was sent after it and applied"
            ));
        }
        if let Some((before, other)) = last.insert((observed.session, key), (at, id))
            && before > at
        {
            violations.push(format!(
                "session order broken: id {other} was sent before {id} and applied after it"
            ));
        }
    }
}

/// One operation on a key: its rank among all operations on this key, the times of call and return, and a description.
/// An append at position p has rank 2p + 2, and a read of n ids has rank 2n + 1. Operations with equal ranks may have
/// any order.
type Ranked = (usize, Time, Option<Time>, String);

/// Invariant 4: if one call returned before another call began, the first call takes effect first.
fn real_time(history: &History, positions: &Positions, violations: &mut Vec<String>) {
    let mut by_key: BTreeMap<u8, Vec<Ranked>> = BTreeMap::new();
    for observed in &history.calls {
        if let Result::Read(seen) = &observed.result {
            let list = history
                .story
                .lists
                .get(&observed.key)
                .map_or(&[][..], Vec::as_slice);
            if !list.starts_with(seen) {
                violations.push(format!(
                    "a read of key {} saw {seen:?}, which is no prefix of it",
                    observed.key
                ));
                continue;
            }
        }
        let (rank, words) = match (&observed.id, &observed.result) {
            (Some(id), _) if !observed.refused() => match positions.get(id) {
                Some((_, at)) => (2 * at + 2, format!("append {id}")),
                None => continue,
            },
            (_, Result::Read(seen)) => (2 * seen.len() + 1, format!("read of {} ids", seen.len())),
            (_, Result::Newest(id)) => match positions.get(id) {
                Some((key, at)) if *key == observed.key => {
                    (2 * at + 3, format!("read of id {id} as the newest"))
                }
                _ if history.excused.contains(id) => continue,
                _ => {
                    violations.push(format!(
                        "a read of key {} saw id {id}, which never stood there",
                        observed.key
                    ));
                    continue;
                }
            },
            _ => continue,
        };
        // A declared loss may have removed this update. A copy of the update can still arrive much later, although a
        // HIT from the lost log has already shown the update.
        let about = match observed.result {
            Result::Newest(id) => Some(id),
            _ => observed.id,
        };
        let excused = about.is_some_and(|id| history.excused.contains(&id));
        let returned = observed.returned.filter(|_| !excused);
        let ranked = (rank, observed.invoked, returned, words);
        by_key.entry(observed.key).or_default().push(ranked);
    }
    for (key, operations) in by_key {
        let mut returns: Vec<_> = operations
            .iter()
            .filter_map(|op| Some((op.2?, op.0, &op.3)))
            .collect();
        returns.sort();
        let mut calls: Vec<_> = operations.iter().map(|op| (op.1, op.0, &op.3)).collect();
        calls.sort();
        let mut returned = returns.into_iter().peekable();
        let mut highest: Option<(usize, &String)> = None;
        for (invoked, rank, words) in calls {
            while let Some((_, before, its_words)) = returned.next_if(|(at, _, _)| *at < invoked) {
                if highest.is_none_or(|(h, _)| before > h) {
                    highest = Some((before, its_words));
                }
            }
            if let Some((before, its_words)) = highest
                && before > rank
            {
                violations.push(format!(
                    "not linearizable: key {key}: {its_words} had returned before {words} was \
                     called, but takes effect after it"
                ));
            }
        }
    }
}

/// Invariant 5: a session has no effects after the store has removed it.
fn ended_sessions(history: &History, violations: &mut Vec<String>) {
    for (id, applied) in &history.story.applied_in {
        let ended = history.sent_in.get(id).into_iter().flatten();
        for (session, step) in ended.filter_map(|s| Some((s, history.story.ended_in.get(s)?))) {
            if step < applied {
                violations.push(format!(
                    "id {id} was applied after its session {session} ended"
                ));
            }
        }
    }
}
