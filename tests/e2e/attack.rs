//! An adversary in each link of a chain with keys. `make attack` runs longer attacks.

use pmnet_lab::attack::{Cache, Mode, Plan, run};
use pmnet_lab::testbed::refusal;

use crate::common;

/// Returns whether this machine can run the attack. If not, prints the reason.
fn is_possible() -> bool {
    let refused = refusal();
    if let Some(reason) = &refused {
        common::skip(reason);
    }
    refused.is_none()
}

fn plan(mode: Mode, cache: Cache) -> Plan {
    Plan {
        mode,
        cache,
        devices: 2,
        packets: 60_000,
        rate: 10_000,
        insecure: false,
        out: common::folder().to_owned(),
    }
}

fn withstands(mode: Mode, cache: Cache) {
    if !is_possible() {
        return;
    }
    let report = run(&plan(mode, cache), common::binaries(), &mut |_, _| ()).unwrap();
    println!("{report}");
    assert!(report.is_clean(), "{report}");
    assert!(report.sent() >= 60_000, "{report}");
    // The head answers only a few of the reads, because most of the time a push of the load is outstanding
    // (`docs/spec/reads.md` §4).
    assert!(report.reads.answered > 20, "{report}");
    assert!(cache != Cache::Log || report.reads.hits > 0, "{report}");
    for role in &report.roles {
        // Each role must have received packets of each trick, and must have counted the packets that it dropped.
        assert!(role.sent.len() >= 5, "{report}");
        assert!(role.dropped.values().sum::<u64>() > 1_000, "{report}");
        assert_eq!(role.uncounted(), 0, "{report}");
    }
}

#[test]
fn a_chain_of_processes_withstands_it() {
    withstands(Mode::Relay, Cache::Pending);
}

#[test]
fn a_chain_of_processes_whose_log_answers_reads_withstands_it() {
    withstands(Mode::Relay, Cache::Log);
}

#[test]
fn a_chain_past_the_kernel_withstands_it() {
    withstands(Mode::AfXdp, Cache::Log);
}

#[test]
fn a_chain_in_the_kernel_withstands_it() {
    withstands(Mode::Kernel, Cache::Log);
}

/// Without keys, the attack must have effects. Otherwise the test with keys would prove nothing.
#[test]
fn a_chain_without_keys_does_not() {
    if !is_possible() {
        return;
    }
    let plan = Plan {
        insecure: true,
        ..plan(Mode::Relay, Cache::Pending)
    };
    let harmed = match run(&plan, common::binaries(), &mut |_, _| ()) {
        Ok(report) => !report.is_clean(),
        // If the chain does not serve again, the attack had an effect.
        Err(_) => true,
    };
    assert!(harmed, "nothing happened to a chain without keys");
}
