//! The clients' calls, their outcomes, and the comparison with the store.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use pmnet_proto::client::{CallId, Client, Event, Outcome, Refused, SessionHandle};
use pmnet_proto::time::{MILLISECOND, SECOND};
use pmnet_wire::FRAGMENT_BYTES;

use super::world::World;
use crate::input::Input;

struct Call {
    session: SessionHandle,
    /// The number that the call writes; `None`: a read.
    number: Option<u64>,
    /// Number of changes that had been acknowledged before the call.
    floor: usize,
}

/// The calls of all sessions.
#[derive(Default)]
pub(super) struct Calls {
    open: BTreeMap<CallId, Call>,
    numbers: u64,
    /// The changes of each session, in order.
    made: BTreeMap<SessionHandle, Vec<u64>>,
    acknowledged: BTreeSet<u64>,
    failed: BTreeSet<u64>,
}

fn number(payload: &[u8]) -> u64 {
    let bytes = payload.first_chunk().expect("every change has a number");
    u64::from_be_bytes(*bytes)
}

impl Calls {
    fn payload(&mut self, length: usize) -> (u64, Bytes) {
        self.numbers += 1;
        let mut payload = self.numbers.to_be_bytes().to_vec();
        payload.resize(length.max(8), 0x5a);
        (self.numbers, payload.into())
    }

    fn submitted(&mut self, call: CallId, session: SessionHandle, number: Option<u64>) {
        if let Some(number) = number {
            self.made.entry(session).or_default().push(number);
        }
        let floor = self.acknowledged.len();
        let before = self.open.insert(
            call,
            Call {
                session,
                number,
                floor,
            },
        );
        assert!(before.is_none());
    }

    pub(super) fn take_events(&mut self, client: &mut Client, sessions: &mut Vec<SessionHandle>) {
        while let Some(event) = client.poll_event() {
            match event {
                Event::Done { call, outcome, .. } => {
                    let call = self.open.remove(&call).expect("a call ends once");
                    self.ended(&call, &outcome);
                }
                Event::Read { .. } | Event::Marked { .. } => {}
                Event::SessionClosed { session, reason } => {
                    let lost = matches!(reason, pmnet_proto::client::Closed::DataLoss { .. });
                    assert!(!lost, "no device was lost: {reason:?}");
                    sessions.retain(|known| *known != session);
                    assert!(self.open.values().all(|call| call.session != session));
                }
            }
        }
    }

    fn ended(&mut self, call: &Call, outcome: &Outcome) {
        match (outcome, call.number) {
            (Outcome::Committed { .. }, Some(number)) => {
                self.acknowledged.insert(number);
            }
            (Outcome::Reply(reply), changed) => {
                let text = std::str::from_utf8(reply).expect("a number");
                let seen: usize = text[1..].trim_end().parse().expect("a number");
                assert!(
                    seen >= call.floor,
                    "{seen} effects seen, {} acknowledged",
                    call.floor
                );
                self.acknowledged.extend(changed);
            }
            (Outcome::Failed(_), Some(number)) => {
                self.failed.insert(number);
            }
            (Outcome::Committed { .. }, None) => panic!("a read was committed"),
            (Outcome::Failed(_) | Outcome::Unknown, _) => {}
        }
    }

    /// Checks that no change took effect twice or failed, and that each session's changes are in
    /// order.
    pub(super) fn check(&self, effects: &[Bytes]) {
        let mut place = BTreeMap::new();
        for (at, payload) in effects.iter().enumerate() {
            let number = number(payload);
            assert!(payload[8..].iter().all(|byte| *byte == 0x5a));
            assert!(
                place.insert(number, at).is_none(),
                "change {number} took effect twice"
            );
            assert!(!self.failed.contains(&number), "change {number} had failed");
        }
        for made in self.made.values() {
            let places: Vec<usize> = made.iter().filter_map(|n| place.get(n).copied()).collect();
            assert!(
                places.is_sorted(),
                "a session's changes took effect out of order"
            );
        }
    }

    /// Checks that all calls were answered. A read from now on shows all acknowledged changes.
    pub(super) fn all_ended(&self, effects: &[Bytes]) {
        let left: Vec<_> = self.open.keys().collect();
        assert!(left.is_empty(), "calls without an end: {left:?}");
        let there: BTreeSet<u64> = effects.iter().map(|payload| number(payload)).collect();
        let lost: Vec<_> = self.acknowledged.difference(&there).collect();
        assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    }
}

impl World {
    pub(super) fn open_or_end(&mut self, input: &mut Input<'_>) {
        if self.sessions.len() < 3 {
            if let Ok(session) = self.client.open(self.now) {
                self.sessions.push(session);
            }
        } else if input.rarely(2) {
            let session = self.sessions[input.index(self.sessions.len())];
            self.client.end(session, self.now + SECOND);
        }
    }

    pub(super) fn update(&mut self, input: &mut Input<'_>) {
        let count = 1 + input.below(8);
        for _ in 0..count {
            self.call(input, true);
        }
    }

    pub(super) fn bypass(&mut self, input: &mut Input<'_>) {
        self.call(input, false);
    }

    fn call(&mut self, input: &mut Input<'_>, update: bool) {
        if self.sessions.is_empty() {
            return;
        }
        let session = self.sessions[input.index(self.sessions.len())];
        let deadline = self.now + input.pick(&[SECOND, 100 * MILLISECOND, 10 * SECOND]);
        let length = input.pick(&[8, 8, 8, 300, FRAGMENT_BYTES + 1, 5 * FRAGMENT_BYTES]);
        let (number, payload) = self.calls.payload(length);
        let read_only = !update && input.rarely(2);
        let result = if update {
            self.client.update(session, payload, 0, deadline)
        } else {
            self.client.bypass(session, payload, 0, read_only, deadline)
        };
        match result {
            Ok(call) => self
                .calls
                .submitted(call, session, (!read_only).then_some(number)),
            Err(refused) => assert!(matches!(refused, Refused::Busy | Refused::Closed)),
        }
    }
}
