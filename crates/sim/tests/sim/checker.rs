//! Tests of the checkers: each test has a history with one error, and the text that the checker must report.

use pmnet_proto::Time;
use pmnet_sim::check::{History, Observed, Result, check};
use std::collections::{BTreeMap, BTreeSet};

const KEY: u8 = 1;

/// A call of one session. If there is an `id`, the call appends it. `times`: times of call and return.
fn call(session: (usize, u32), id: Option<u64>, times: (u64, u64), result: Result) -> Observed {
    let answered = matches!(result, Result::Done | Result::Read(_));
    Observed {
        session,
        key: KEY,
        id,
        published: None,
        conditional: false,
        invoked: Time(times.0),
        returned: answered.then_some(Time(times.1)),
        result,
    }
}

fn append(session: (usize, u32), id: u64, times: (u64, u64)) -> Observed {
    call(session, Some(id), times, Result::Done)
}

fn read(session: (usize, u32), seen: &[u64], times: (u64, u64)) -> Observed {
    call(session, None, times, Result::Read(seen.to_vec()))
}

/// A call that delivers a message and changes no data.
fn delivery(id: u64, result: Result) -> Observed {
    Observed {
        published: Some(id),
        ..call(A, None, (92, 98), result)
    }
}

const A: (usize, u32) = (1, 1);
const B: (usize, u32) = (2, 1);

/// A history of two clients without an error: client A appends 1 and 2, client B appends 3 while 2 is under way, and
/// then a client reads the list.
fn good() -> History {
    let mut history = History {
        calls: vec![
            append(A, 1, (10, 20)),
            append(A, 2, (30, 60)),
            append(B, 3, (40, 50)),
            read(B, &[1, 3], (52, 55)),
            call(B, Some(4), (70, 80), Result::Read(vec![1, 3, 2, 4])),
            call(A, Some(5), (81, 90), Result::Failed),
            call(A, Some(6), (91, 99), Result::Unknown),
            delivery(7, Result::Read(vec![1, 3, 2, 4])),
            delivery(8, Result::Failed),
        ],
        ..History::default()
    };
    history.story.lists = BTreeMap::from([(KEY, vec![1, 3, 2, 4])]);
    history.story.applied_in = (1..=4).map(|id| (id, id)).collect();
    history.story.delivered = BTreeMap::from([(7, 1)]);
    history.story.ended_in = BTreeMap::from([(100, 9)]);
    history.sent_in = (1..=4).map(|id| (id, BTreeSet::from([100]))).collect();
    history
}

fn list(history: &mut History) -> &mut Vec<u64> {
    history
        .story
        .lists
        .get_mut(&KEY)
        .expect("the list is there")
}

#[test]
fn a_good_history_is_good() {
    assert_eq!(check(&good()), Vec::<String>::new());
    // An update with an unknown outcome may have taken effect at any time after its call.
    let mut history = good();
    list(&mut history).push(6);
    assert_eq!(check(&history), Vec::<String>::new());
}

#[test]
fn every_violation_is_found() {
    type Spoil = fn(&mut History);
    let table: Vec<(&str, Spoil)> = vec![
        ("acknowledged and lost: id 2", |h| {
            list(h).retain(|&id| id != 2)
        }),
        ("took effect 2 times: delivery of id 7", |h| {
            h.story.delivered.insert(7, 2);
        }),
        ("answered and never delivered: id 7", |h| {
            h.story.delivered.clear();
        }),
        ("failed and delivered: id 8", |h| {
            h.story.delivered.insert(8, 1);
        }),
        ("acknowledged and lost: id 4", |h| {
            list(h).retain(|&id| id != 4)
        }),
        ("applied twice: id 3", |h| list(h).push(3)),
        ("applied id 77, which nobody sent", |h| list(h).push(77)),
        ("failed and applied: id 5", |h| list(h).push(5)),
        ("id 1 of key 1 in key 2", |h| {
            list(h).remove(0);
            h.story.lists.insert(2, vec![1]);
        }),
        ("session order broken: id 1 was sent before 2", |h| {
            *list(h) = vec![2, 3, 1, 4]
        }),
        ("not linearizable: key 1: append 1 had returned", |h| {
            *list(h) = vec![3, 1, 2, 4]
        }),
        (
            "not linearizable: key 1: append 3 had returned before read of 1 ids",
            |h| {
                h.calls[3].result = Result::Read(vec![1]);
            },
        ),
        ("which is no prefix", |h| {
            h.calls[3].result = Result::Read(vec![3])
        }),
        ("was told length 3 but stands at 3", |h| {
            h.calls[4].result = Result::Read(vec![1, 3, 2])
        }),
        ("got a reply that nobody wrote", |h| {
            h.calls[3].result = Result::Garbled
        }),
        ("id 2 was applied after its session 100 ended", |h| {
            h.story.ended_in.insert(100, 1);
        }),
        ("1 effects were not what a client made", |h| {
            h.story.malformed = 1
        }),
    ];
    for (words, spoil) in table {
        let mut history = good();
        spoil(&mut history);
        let found = check(&history);
        assert!(
            found.iter().any(|violation| violation.contains(words)),
            "{words}: {found:#?}"
        );
    }
}
