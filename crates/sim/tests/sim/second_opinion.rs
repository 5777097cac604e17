//! Checks the histories of simulated worlds with the checker for real runs. This checker uses the search of Wing, Gong
//! and Lowe, and does not know lists (`docs/internals/histories.md`).
//!
//! A list becomes a register: an append writes its id, a read returns the last id. Operations that never took effect
//! according to the store are left out. Operations that a declared loss may have removed have an unknown outcome. If
//! very many appends are under way at once, the search reaches its bound, and the key counts as undecided. Most keys
//! must be decided.

use pmnet_history::{Action, Limits, Operation, Report, Verdict, check};
use pmnet_sim::check::{History, Result};
use pmnet_sim::{Plan, Without, World};
use std::collections::BTreeSet;

/// Bounds of the search of one key.
const LIMITS: Limits = Limits {
    bytes_max: 16 << 20,
};

fn operations(history: &History) -> Vec<Operation> {
    let lists = &history.story.lists;
    let applied: BTreeSet<u64> = lists.values().flatten().copied().collect();
    let last = |list: &[u64]| Action::Get(list.last().map(u64::to_string));
    let mut operations = Vec::new();
    let mut end = 0;
    for call in &history.calls {
        end = end.max(call.returned.unwrap_or(call.invoked).0 + 1);
        let wrote = call.id.filter(|id| applied.contains(id));
        let action = match (&call.result, wrote) {
            (_, Some(id)) => Action::Set(id.to_string()),
            (Result::Read(list), None) => last(list),
            _ => continue,
        };
        let excused = call.id.is_some_and(|id| history.excused.contains(&id));
        operations.push(Operation {
            client: u64::try_from(call.session.0).expect("few clients"),
            key: call.key.to_string(),
            action,
            invoked: call.invoked.0,
            returned: call.returned.filter(|_| !excused).map(|at| at.0),
        });
    }
    // A last read of each list, after the end of all calls.
    for (key, list) in lists {
        operations.push(Operation {
            client: 0,
            key: key.to_string(),
            action: last(list),
            invoked: end,
            returned: Some(end + 1),
        });
    }
    operations
}

fn opinion(seed: u64, plan: &Plan) -> (Vec<String>, Report) {
    let (report, history) = World::new(seed, plan, false).run_with_history();
    let opinion = check(&operations(&history), &LIMITS);
    (report.violations, opinion)
}

#[test]
fn worlds_that_are_right_are_linearizable_to_the_other_checker_too() {
    let (mut seen, mut decided, mut undecided) = (0, 0, 0);
    for seed in 0..300 {
        let (violations, opinion) = opinion(seed, &Plan::default());
        assert_eq!(violations, Vec::<String>::new(), "seed {seed}");
        assert_eq!(opinion.not_linearizable(), 0, "seed {seed}: {opinion:?}");
        for key in &opinion.keys {
            match key.verdict {
                Verdict::Linearizable => (decided, seen) = (decided + 1, seen + key.operations),
                _ => undecided += 1,
            }
        }
    }
    println!("{decided} keys with {seen} operations are linearizable, {undecided} are undecided");
    assert!(decided > 20 * undecided && seen > 5_000);
}

/// The simulator's checker must also find each violation that this checker finds.
#[test]
fn worlds_that_are_wrong_are_wrong_to_both() {
    let without: Without = "barrier".parse().unwrap();
    let plan = Plan {
        without: Some(without),
        ..Plan::default()
    };
    let mut found = 0;
    for seed in 0..300 {
        let (violations, opinion) = opinion(seed, &plan);
        if opinion.not_linearizable() > 0 {
            assert!(!violations.is_empty(), "seed {seed}: {opinion:?}");
            found += 1;
        }
    }
    assert!(found > 0);
}
