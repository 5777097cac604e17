//! Worlds that must have no violation, and seeds that must give the same run every time.

use pmnet_sim::cells::Cell;
use pmnet_sim::{Plan, Summary, World, campaign, run, run_with_trace};

/// Events that must have happened in a few hundred worlds; otherwise the worlds test less than intended.
const COVERED: &[&str] = &[
    "agents cut off",
    "client fallbacks",
    "clients died",
    "clocks jumped",
    "clocks stood still",
    "devices died",
    "devices died while recovering",
    "devices died while starting",
    "detours",
    "devices broken that have leases",
    "devices cut off that have leases",
    "devices lost for good",
    "duplicates",
    "expired_sessions",
    "lease store full",
    "lease store gone",
    "leases given anew",
    "leases refused by a store that is full",
    "leases refused to who was declared stopped",
    "losses declared",
    "members declared stopped",
    "members declared stopped that live on",
    "members left out by a controller",
    "messages of the lease store that were late",
    "nacks",
    "not_logged",
    "old media that came back",
    "one-way partitions",
    "packets cut off",
    "packets damaged",
    "packets delayed for long",
    "packets duplicated",
    "packets injected",
    "packets lost",
    "power cuts",
    "retransmissions",
    "server answered again",
    "server fallbacks",
    "server outages",
    "server expired",
    "server repeated",
    "server retransmissions",
    "servers died",
    "servers refused from which another one took over",
    "servers that took over from one that lives on",
    "silenced",
    "stale_epoch",
    "store storms",
    "store: BUSY, LOADING, NOSCRIPT or MASTERDOWN",
    "store: NOPERM for the command",
    "store: NOPERM for the records",
    "store: OOM, READONLY, MISCONF or NOREPLICAS",
    "store: code that never ends",
    "store: connection lost after",
    "store: connection lost before",
    "store: connection lost between effect and reply",
    "store: died within a script",
    "store: given up, and executed later",
    "store: late and executed",
    "store: late and fenced",
    "store: not in the replica in time",
    "store: script failed behind its effect",
    "stores failed over",
    "stores failed over to a replica that lags",
    "stores that lack something refused",
    "wrong images refused",
    "wrong_token",
    "zombies fenced",
];

/// Reasons for which packets were dropped in worlds with keys, and events of the keys.
const KEYED: &[&str] = &[
    "client forged",
    "devices that began again in a rollover",
    "forged",
    "fronts refused",
    "fronts with a new key",
    "misled",
    "mistakes in a rollover",
    "packets that a thief has sealed",
    "processes told of other keys",
    "rollovers",
    "server forged",
    "servers that began again in a rollover",
    "unknown_key",
];

#[test]
fn a_thousand_worlds_are_clean_and_see_everything() {
    let empty = |summary: &Summary| -> Vec<String> {
        Cell::all()
            .filter(|cell| cell.of(&summary.cells) == 0)
            .map(|cell| cell.to_string())
            .collect()
    };
    // Some cells are seldom hit, so more seeds are run until each cell was hit.
    let goes_on = |so_far: &Summary| so_far.seeds < 1000 || !empty(so_far).is_empty();
    let summary = campaign(&Plan::default(), 0, 5000, 2, goes_on);
    assert_eq!(summary.violations, Vec::new());
    assert!(summary.seeds >= 1000, "{} seeds", summary.seeds);
    assert_eq!(summary.failing, 0);
    let [made, acknowledged, failed, unknown] = summary.calls;
    assert_eq!(made, acknowledged + failed + unknown);
    assert!(
        acknowledged > 10_000,
        "{acknowledged} calls were acknowledged"
    );
    let missed: Vec<_> = COVERED
        .iter()
        .filter(|name| !summary.happened.contains_key(*name))
        .collect();
    assert!(
        missed.is_empty(),
        "never happened: {missed:?} of {:#?}",
        summary.happened
    );
    let empty = empty(&summary);
    assert!(empty.is_empty(), "cells that nothing hit: {empty:?}");
}

/// The store sometimes reports that it is short of space. Updates are then sent as bypasses, and every invariant must
/// still hold.
#[test]
fn worlds_with_a_store_that_is_short_of_room_now_and_then() {
    let plan = Plan {
        packet_store: true,
        short_store: true,
        ..Plan::default()
    };
    let summary = campaign(&plan, 0, 150, 2, |_| true);
    assert_eq!(summary.violations, Vec::new());
    let short = summary.happened["store: short of room"];
    assert!(short > 1_000, "{short}");
}

/// An adversary without a key sees, keeps, changes, redirects and repeats packets. None of this may have an effect,
/// even while keys change.
#[test]
fn worlds_with_keys() {
    let plan = Plan {
        keyed: true,
        ..Plan::default()
    };
    let summary = campaign(&plan, 0, 200, 2, |_| true);
    assert_eq!(summary.violations, Vec::new());
    let injected = summary.happened["packets injected"];
    assert!(injected > 10_000, "{injected}");
    let missed: Vec<_> = KEYED
        .iter()
        .filter(|name| !summary.happened.contains_key(*name))
        .collect();
    assert!(
        missed.is_empty(),
        "never: {missed:?} of {:#?}",
        summary.happened
    );
}

#[test]
fn two_hundred_chains_form() {
    for seed in 0..200 {
        let report = World::forming(seed, false).run();
        assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn a_campaign_stops_when_it_is_told_to() {
    let summary = campaign(&Plan::default(), 0, 1_000_000, 1, |so_far| so_far.seeds < 3);
    assert_eq!(summary.seeds, 3);
}

#[test]
fn the_same_seed_gives_the_same_story() {
    for seed in 0..20 {
        let (first, second) = (
            run(seed, &Plan::default()),
            run_with_trace(seed, &Plan::default()),
        );
        assert_eq!(first.trace_hash, second.0.trace_hash, "seed {seed}");
        assert_eq!(first.events, second.0.events, "seed {seed}");
        assert_eq!(first.happened, second.0.happened, "seed {seed}");
        assert!(second.1.len() > 10, "seed {seed} has a story");
    }
    let hash = |seed| run(seed, &Plan::default()).trace_hash;
    assert_ne!(hash(1), hash(2));
}
