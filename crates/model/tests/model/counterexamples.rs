//! If a rule is switched off, the configuration that belongs to the rule has a counterexample. With all rules the
//! configuration holds (quick.rs).

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

/// Places in protocol.md, besides the rules of its §2, for which there is a rule that can be switched off.
const PLACES: [&str; 14] = [
    "rule 1, session ids",
    "rule 5, one ack",
    "rule 7, order",
    "rule 7, epochs",
    "rule 7, replies",
    "rule 8, own updates",
    "rule 8, one order",
    "§4, fallback",
    "§5, declared loss",
    "§5, epochs",
    "§5, joining",
    "§5, last member",
    "§8, checksums",
    "§8, nilext",
];

#[test]
fn every_rule_of_the_protocol_has_a_switch() {
    let sources: BTreeSet<_> = Rule::all().map(Rule::source).collect();
    for number in 1..=8 {
        let name = format!("rule {number}");
        assert!(
            sources.iter().any(|source| source.starts_with(&name)),
            "{name}"
        );
    }
    for place in PLACES {
        assert!(sources.contains(place), "{place}");
    }
}

#[test]
fn names_are_unique() {
    let names: BTreeSet<_> = Rule::all().map(Rule::name).collect();
    assert_eq!(names.len(), Rule::all().count());
    assert!(Rule::all().all(|rule| Rule::named(rule.name()) == Some(rule)));
}
