//! Histories with known verdicts, and the texts about those that are not linearizable.

mod common;

use common::{get, incr, lock, never, release, set};
use pmnet_history::{
    Limits, Model, Op, Operation, Outcome, Record, Verdict, check, describe, operations,
};

fn is_linearizable(history: &[Operation]) -> bool {
    let report = check(history, &Limits::default());
    assert_eq!(report.undecided(), 0, "{report}");
    report.is_linearizable()
}

/// Returns the window of the only key that is not linearizable. Each operation is one line without times.
fn window(history: &[Operation]) -> Vec<String> {
    let report = check(history, &Limits::default());
    assert_eq!(report.not_linearizable(), 1, "{report}");
    let bad = report.keys.iter().find_map(|key| match &key.verdict {
        Verdict::NotLinearizable { window, offender } => {
            assert!(
                window.contains(offender),
                "{offender:?} is not in {window:?}"
            );
            Some(window)
        }
        _ => None,
    });
    bad.unwrap()
        .iter()
        .map(|operation| {
            let text = describe(operation, 0);
            text.split_once(": ").unwrap().1.to_owned()
        })
        .collect()
}

#[test]
fn nothing_at_all() {
    let report = check(&[], &Limits::default());
    assert!(report.is_linearizable());
    assert_eq!(report.operations(), 0);
}

#[test]
fn good_registers() {
    // Operations that follow one another are linearizable.
    assert!(is_linearizable(&[
        get(1, 0, 1, None),
        set(1, 2, 3, "a"),
        get(1, 4, 5, Some("a")),
    ]));
    // Reads during a write may see the old value, and then the new value.
    assert!(is_linearizable(&[
        set(1, 0, 10, "a"),
        set(1, 11, 30, "b"),
        get(2, 12, 14, Some("a")),
        get(3, 15, 16, Some("b")),
    ]));
    // Concurrent writes may take effect in either order.
    for last in ["a", "b"] {
        assert!(is_linearizable(&[
            set(1, 0, 10, "a"),
            set(2, 0, 10, "b"),
            get(3, 11, 12, Some(last)),
        ]));
    }
    // A read may see a write of unknown outcome late, or never.
    for seen in ["a", "b"] {
        assert!(is_linearizable(&[
            set(1, 0, 1, "a"),
            never(set(2, 2, 3, "b")),
            get(3, 4, 5, Some("a")),
            get(3, 100, 101, Some(seen)),
        ]));
    }
    // Operations on other keys have no influence.
    let mut other = get(9, 2, 3, None);
    other.key = "another".into();
    assert!(is_linearizable(&[set(1, 0, 1, "a"), other]));
}

#[test]
fn a_lost_write() {
    let history = [
        set(1, 0, 1, "a"),
        get(7, 2, 3, Some("a")),
        set(2, 10, 11, "b"),
        set(9, 0, 400, "x"),
        get(3, 20, 21, Some("a")),
        get(3, 30, 31, Some("a")),
    ];
    assert_eq!(
        window(&history),
        ["SET k a → OK", "SET k b → OK", "GET k → a"]
    );
    assert_eq!(
        window(&[set(1, 0, 1, "a"), get(2, 2, 3, None)]),
        ["SET k a → OK", "GET k → nil"]
    );
}

#[test]
fn a_stale_read_while_a_write_is_under_way() {
    // The second read began after the first read had seen the new value.
    let history = [
        set(1, 0, 1, "a"),
        set(1, 10, 50, "b"),
        get(2, 12, 20, Some("b")),
        get(3, 21, 30, Some("a")),
    ];
    assert_eq!(
        window(&history),
        [
            "SET k a → OK",
            "SET k b → outcome unknown",
            "GET k → b",
            "GET k → a"
        ]
    );
}

#[test]
fn reads_that_are_not_monotonic() {
    // The order of two writes is unknown, but the reads of one client go back in time.
    let history = [
        set(1, 0, 40, "a"),
        set(2, 0, 40, "b"),
        get(3, 41, 42, Some("a")),
        get(3, 43, 44, Some("b")),
    ];
    assert_eq!(window(&history).len(), 4);
    let unknown = [
        never(set(1, 0, 40, "a")),
        never(set(2, 0, 40, "b")),
        get(3, 41, 42, Some("a")),
        get(3, 43, 44, Some("b")),
        get(3, 45, 46, Some("a")),
    ];
    assert!(is_linearizable(&unknown[..4]));
    assert!(!is_linearizable(&unknown));
}

#[test]
fn reads_of_what_nobody_wrote_or_not_yet() {
    assert_eq!(window(&[get(1, 0, 1, Some("a"))]), ["GET k → a"]);
    assert!(!is_linearizable(&[
        get(1, 0, 1, Some("a")),
        set(2, 2, 3, "a")
    ]));
    assert!(!is_linearizable(&[
        get(1, 0, 1, Some("a")),
        never(set(2, 2, 3, "a"))
    ]));
}

#[test]
fn values_that_are_written_twice() {
    let history = [
        set(1, 0, 1, "a"),
        set(1, 2, 3, "b"),
        never(set(2, 4, 5, "a")),
        get(3, 10, 11, Some("b")),
        get(3, 12, 13, Some("a")),
        get(3, 14, 15, Some("b")),
    ];
    assert!(is_linearizable(&history[..5]));
    assert!(!is_linearizable(&history));
}

#[test]
fn counters() {
    assert!(is_linearizable(&[
        get(1, 0, 1, None),
        incr(1, 2, 10, 2),
        incr(2, 2, 10, 1),
        get(3, 5, 6, Some("1")),
        get(3, 11, 12, Some("2")),
    ]));
    // Increments of unknown outcome fill gaps, but at most as many gaps as there are such increments.
    let gap = [
        never(incr(1, 0, 1, 0)),
        never(incr(2, 0, 1, 0)),
        incr(3, 10, 11, 1),
        incr(3, 12, 13, 3),
        incr(3, 14, 15, 5),
        incr(3, 16, 17, 7),
    ];
    assert!(is_linearizable(&gap[..5]));
    assert!(!is_linearizable(&gap));
    // Increments of unknown outcome do not fill gaps that a reply has shown before their calls.
    assert!(!is_linearizable(&[
        incr(3, 0, 1, 2),
        never(incr(1, 2, 3, 0))
    ]));
}

#[test]
fn a_counter_that_counted_twice() {
    let history = [
        incr(1, 0, 1, 1),
        incr(1, 2, 3, 2),
        incr(2, 4, 5, 4),
        incr(2, 6, 7, 5),
        get(3, 8, 9, Some("5")),
    ];
    assert_eq!(
        window(&history),
        ["INCR k → 2", "INCR k → 4"],
        "from 2 to 4 in one step"
    );
    // Two increments returned the same value.
    assert_eq!(
        window(&[incr(1, 0, 9, 1), incr(2, 0, 9, 1)]),
        ["INCR k → 1", "INCR k → 1"]
    );
}

#[test]
fn locks() {
    let good = [
        lock(1, 0, 1, "a", true),
        lock(2, 2, 3, "b", false),
        release(2, 4, 5, "b", false),
        release(1, 6, 10, "a", true),
        lock(2, 7, 11, "c", true),
        get(3, 12, 13, Some("c")),
        never(release(2, 14, 15, "c", false)),
        lock(3, 16, 17, "d", false),
        lock(3, 18, 19, "e", true),
    ];
    assert!(is_linearizable(&good));
    assert_eq!(
        check(&good, &Limits::default()).keys[0].model,
        Some(Model::Lock)
    );
}

#[test]
fn two_owners_of_a_lock() {
    let history = [
        lock(1, 0, 1, "z", true),
        release(1, 2, 3, "z", true),
        lock(1, 4, 5, "a", true),
        lock(3, 5, 6, "c", false),
        lock(2, 6, 7, "b", true),
        release(1, 8, 9, "a", true),
    ];
    assert_eq!(
        window(&history),
        ["SET k a NX → OK", "SET k b NX → OK"],
        "the release came after the second lock"
    );
    // An attempt was refused although the lock was free.
    assert!(!is_linearizable(&[
        lock(1, 0, 1, "a", true),
        release(1, 2, 3, "a", true),
        lock(2, 4, 5, "b", false),
    ]));
    // The lock was released twice.
    assert!(!is_linearizable(&[
        lock(1, 0, 1, "a", true),
        release(1, 2, 3, "a", true),
        release(1, 4, 5, "a", true),
    ]));
}

#[test]
fn what_cannot_be_decided_does_not_pass() {
    let mut history: Vec<_> = (0..30)
        .map(|index| lock(index, 0, 1_000, &format!("t{index}"), true))
        .collect();
    history.extend((0..29).map(|index| release(index, 0, 1_000, &format!("t{index}"), true)));
    history.push(release(99, 0, 1_000, "nobody", true));
    let report = check(&history, &Limits { bytes_max: 1 << 16 });
    assert_eq!(report.undecided(), 1);
    assert!(!report.is_linearizable());
    assert!(report.to_string().contains("undecided, the search"));

    let mixed = check(&[set(1, 0, 1, "1"), incr(1, 2, 3, 2)], &Limits::default());
    assert_eq!((mixed.undecided(), mixed.keys[0].model), (1, None));
}

#[test]
fn records_become_operations() {
    let record = |op, value: &str, reply: Option<&str>, outcome| Record {
        client: 1,
        op,
        key: "k".into(),
        value: value.into(),
        reply: reply.map(Into::into),
        invoke_ns: 1,
        return_ns: 2,
        outcome,
    };
    let records = [
        record(Op::Set, "a", Some("OK"), Outcome::Ok),
        record(Op::Set, "b", Some("ERR no"), Outcome::Failed),
        record(Op::Set, "c", Some("ERR who knows"), Outcome::Unknown),
        record(Op::Get, "", None, Outcome::Ok),
        record(Op::Setnx, "t", None, Outcome::Ok),
        record(Op::Release, "t", Some("0"), Outcome::Ok),
    ];
    let found = operations(&records).unwrap();
    assert_eq!(
        found,
        [
            set(1, 1, 2, "a"),
            never(set(1, 1, 2, "c")),
            get(1, 1, 2, None),
            lock(1, 1, 2, "t", false),
            release(1, 1, 2, "t", false),
        ]
    );
    for bad in [
        record(Op::Lpush, "a", Some("1"), Outcome::Ok),
        record(Op::Incr, "", Some("x"), Outcome::Ok),
        record(Op::Set, "a", Some("QUEUED"), Outcome::Ok),
        record(Op::Release, "t", Some("2"), Outcome::Ok),
        Record {
            return_ns: 0,
            ..record(Op::Get, "", None, Outcome::Ok)
        },
    ] {
        let error = operations(&[bad]).unwrap_err();
        assert!(error.to_string().contains("\"k\""), "{error}");
    }
}
