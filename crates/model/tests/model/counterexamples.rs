//! Without a rule, the configuration that belongs to it has a counterexample. With all rules the configuration holds
//! (quick.rs).

use std::collections::BTreeSet;

use pmnet_model::check::check;
use pmnet_model::{Rule, Rules, catalogue};

#[test]
fn every_rule_is_needed() {
    for rule in Rule::all() {
        let configuration = catalogue::named(rule.configuration()).unwrap();
        assert!(
            configuration.quick,
            "{rule:?}: tests/quick.rs must search its configuration"
        );
        let outcome = check(&configuration, Rules::without(rule), 1);
        let found = outcome
            .counterexample
            .unwrap_or_else(|| panic!("none without {rule:?}"));
        assert!(!found.steps.is_empty(), "{rule:?}");
    }
}

#[test]
fn every_rule_and_every_line_has_a_switch() {
    let sources: Vec<_> = Rule::all().map(Rule::source).collect();
    for number in 1..=8 {
        let name = format!("rule {number}");
        assert!(
            sources
                .iter()
                .any(|source| source.split(", ").any(|one| one == name)),
            "{name}"
        );
    }
    for number in 1..=16 {
        let name = format!("line {number}");
        assert!(
            sources
                .iter()
                .any(|source| source.split(", ").any(|one| one == name)),
            "{name}"
        );
    }
}

#[test]
fn names_are_unique() {
    let names: BTreeSet<_> = Rule::all().map(Rule::name).collect();
    assert_eq!(names.len(), Rule::all().count());
    assert!(Rule::all().all(|rule| Rule::named(rule.name()) == Some(rule)));
}
