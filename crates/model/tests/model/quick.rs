//! Every quick configuration is searched exhaustively: all invariants hold, all goals are reached.

use pmnet_model::check::check;
use pmnet_model::{Rules, catalogue};

#[test]
fn quick_configurations_hold() {
    for configuration in catalogue::all()
        .iter()
        .filter(|configuration| configuration.quick)
    {
        let outcome = check(configuration, Rules::all(), 2);
        assert!(outcome.clean(), "{outcome:#?}");
        assert!(outcome.unique > 100, "an empty search: {outcome:?}");
    }
}

#[test]
fn one_and_two_threads_find_the_same_states() {
    let configuration = catalogue::named("head-lost").unwrap();
    let [one, two] = [1, 2].map(|threads| check(&configuration, Rules::all(), threads));
    assert_eq!((one.states, one.unique), (two.states, two.unique));
}

#[test]
fn forgetting_dead_packets_changes_no_verdict() {
    for name in [
        "one-device",
        "head-lost",
        "tail-lost",
        "join",
        "fallback",
        "reads-set",
        "reads-given-up",
        "reads-end",
        "marks",
        "own-write",
        "late-bypass",
    ] {
        let mut configuration = catalogue::named(name).unwrap();
        configuration.forgetful = false;
        let outcome = check(&configuration, Rules::all(), 2);
        assert!(outcome.clean(), "{outcome:#?}");
    }
}

#[test]
fn names_are_unique() {
    let names: std::collections::BTreeSet<_> = catalogue::all()
        .iter()
        .map(|configuration| configuration.name)
        .collect();
    assert_eq!(names.len(), catalogue::all().len());
}
