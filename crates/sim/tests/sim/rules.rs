//! Tests of the tests: if a rule is switched off, a violation is found.

use pmnet_sim::cells::Cell;
use pmnet_sim::{Plan, Without, campaign};

/// Rules whose absence shows within a few seeds; `pmnet-sim --without all` goes through all of them.
const QUICK: &[&str] = &[
    "session-order",
    "no-gaps",
    "atomic-apply",
    "last-seq",
    "request-id",
    "nilext",
    "record-first",
    "fenced",
    "own-records",
    "store-named",
    "forget-failed",
    "deadline",
    "reclaim-everywhere",
    "stands-still",
    "server-first",
    "own-reply",
    "last-member",
    "word-epoch",
    "lease",
    "lease-covers-reads",
    "beside",
    "stopped-for-good",
];

#[test]
fn a_rule_that_is_switched_off_is_missed() {
    for name in QUICK {
        let without: Without = name.parse().unwrap();
        let plan = Plan {
            without: Some(without),
            ..Plan::default()
        };
        let summary = campaign(&plan, 0, 150, 2, |so_far| so_far.failing == 0);
        assert!(summary.failing > 0, "nobody noticed: {}", without.says);
    }
}

#[test]
fn rules_and_cells_have_names() {
    for without in Without::ALL {
        let again: Without = without.name.parse().unwrap();
        assert_eq!(again.place, without.place);
        assert!(without.says.contains('§'), "{}", without.name);
    }
    assert!("gravity".parse::<Without>().is_err());
    assert_eq!(Cell::all().count(), 80);
    for cell in Cell::all() {
        assert_eq!(cell.to_string().parse(), Ok(cell));
    }
    let error = "log-full/meteor".parse::<Cell>().unwrap_err();
    assert!(error.contains("server-crash"), "{error}");
}
