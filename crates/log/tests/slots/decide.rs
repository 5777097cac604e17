//! The decision after a crash: which messages in slots count (`docs/spec/verbs.md` §5). This test has its own code for
//! the decision. In the product, the device's state machine makes it.

use std::collections::BTreeMap;

/// Contents of a slot, as far as the decision needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// No whole message: zeros, a torn message, or other bytes.
    Nothing,
    /// A whole update or END with the tag of its session.
    Message {
        /// Session of the message.
        session: u64,
        /// Seq of the message in this session.
        seq: u64,
    },
}

/// The decision on one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The slot holds no message. Later slots are examined nevertheless.
    Hole,
    /// The session of the message is not open.
    Closed,
    /// The message was already entered, or an earlier slot also holds it.
    Duplicate,
    /// An earlier message of its session is missing, so this message was never acknowledged.
    Gap,
    /// The message is entered: it is the next message of its session.
    Enter,
}

/// Decides on all slots, in the order of the ring from the cursor on. `last` has the last entered seq of each open
/// session. The function raises it for each message that counts.
pub fn decide(slots: &[Found], last: &mut BTreeMap<u64, u64>) -> Vec<Verdict> {
    let one = |found: &Found| {
        let Found::Message { session, seq } = *found else {
            return Verdict::Hole;
        };
        match last.get_mut(&session) {
            None => Verdict::Closed,
            Some(last) if seq <= *last => Verdict::Duplicate,
            Some(last) if seq - 1 > *last => Verdict::Gap,
            Some(last) => {
                *last = seq;
                Verdict::Enter
            }
        }
    };
    slots.iter().map(one).collect()
}

fn message(session: u64, seq: u64) -> Found {
    Found::Message { session, seq }
}

#[test]
fn one_line_each() {
    use Verdict::{Closed, Duplicate, Enter, Gap, Hole};
    let open = |last: u64| BTreeMap::from([(7, last)]);
    let cases: &[(u64, &[Found], &[Verdict])] = &[
        (0, &[], &[]),
        (0, &[message(7, 1), message(7, 2)], &[Enter, Enter]),
        // A hole does not affect later slots.
        (0, &[Found::Nothing, message(7, 1)], &[Hole, Enter]),
        // The message was sent again on a new connection.
        (0, &[message(7, 1), message(7, 1)], &[Enter, Duplicate]),
        // The second slot holds a message of an earlier lap.
        (5, &[message(7, 6), message(7, 3)], &[Enter, Duplicate]),
        (0, &[message(7, 2), message(7, 1)], &[Gap, Enter]),
        (0, &[message(8, 1), message(7, 1)], &[Closed, Enter]),
        (0, &[message(7, 0)], &[Duplicate]),
        (u64::MAX, &[message(7, u64::MAX)], &[Duplicate]),
    ];
    for (last, slots, expected) in cases {
        assert_eq!(decide(slots, &mut open(*last)), *expected, "{slots:?}");
    }
}

/// Tries all contents of four slots with messages of two sessions, three seqs each, for every last entered seq of one
/// session.
#[test]
fn whatever_is_found_counts_once_and_in_the_order_of_its_session() {
    let kinds: Vec<Found> = std::iter::once(Found::Nothing)
        .chain((1..=3).map(|seq| message(7, seq)))
        .chain((1..=2).map(|seq| message(8, seq)))
        .collect();
    for code in 0..kinds.len().pow(4) {
        let slots: Vec<Found> = (0..4)
            .map(|at| kinds[code / kinds.len().pow(at) % kinds.len()])
            .collect();
        for before in 0..3 {
            let mut last = BTreeMap::from([(7, before), (8, 0)]);
            let verdicts = decide(&slots, &mut last);
            for session in [7, 8] {
                let entered = slots.iter().zip(&verdicts).filter_map(|(found, verdict)| {
                    match (found, verdict) {
                        (Found::Message { session: of, seq }, Verdict::Enter) if *of == session => {
                            Some(*seq)
                        }
                        _ => None,
                    }
                });
                let start = if session == 7 { before } else { 0 };
                let expected = start + 1..=last[&session];
                assert_eq!(entered.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
            }
        }
    }
}
