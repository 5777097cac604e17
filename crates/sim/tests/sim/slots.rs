//! Worlds with a NIC that acknowledges messages by itself: worlds that must have no violation, and broken rules that
//! must be found.

use pmnet_sim::slots::{Broken, Seen, run};

fn clean(seeds: u64) {
    let mut all = Seen::default();
    for seed in 0..seeds {
        all.add(run(seed, None));
    }
    assert_eq!(all.violations, [""; 0]);
    let Seen {
        acknowledged,
        overtaken,
        not_ready,
        holes,
        waits,
        cuts,
        crashes,
        cut_off,
        recovered,
        resent,
        forged,
        keyed,
        ..
    } = all;
    println!(
        "acknowledged {acknowledged}, completions that overtook an earlier slot {overtaken}, RNRs {not_ready}, holes {holes}, turns with a full log {waits}, \
         connections cut {cuts}, cut off at the deadline {cut_off}, losses of power or of the process {crashes}, found in slots {recovered}, sent again {resent}; acknowledged with keys {keyed}"
    );
    // A client that is dead at the end may not have finished its updates.
    assert!(acknowledged > seeds * 175 && overtaken > 100 && not_ready > 100);
    assert!(keyed > seeds * 50 && forged == 0);
    assert!(
        holes > 100
            && waits > 100
            && cuts > 100
            && crashes > 100
            && cut_off > 20
            && recovered > 100
            && resent > 100
    );
}

#[test]
fn nothing_is_lost_doubled_or_out_of_order() {
    clean(150);
}

#[test]
#[ignore = "a minute: cargo test --release -p pmnet-sim --test sim -- --ignored slots::"]
fn the_same_for_many_seeds() {
    clean(10_000);
}

#[test]
fn without_a_rule_there_is_a_violation() {
    let noticed =
        |broken: Broken| (0..300).any(|seed| !run(seed, Some(broken)).violations.is_empty());
    let missed: Vec<Broken> = Broken::ALL
        .into_iter()
        .filter(|broken| !noticed(*broken))
        .collect();
    assert_eq!(missed, []);
}
