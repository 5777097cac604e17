//! Every process is on a machine of its own (a network namespace). Clients contend for few keys,
//! processes are killed, and networks are cut or lose packets. The history of all clients must be
//! linearizable (`docs/spec/protocol.md` §10, `docs/internals/histories.md`).

use std::num::NonZeroU64;
use std::time::Duration;

use pmnet_lab::harness::histories::{Plan, RunReport, Step, Totals, run, runs};
use pmnet_lab::harness::{Fleet, FleetPlan, Machine, Medium, Namespaces, Role, find_program};
use pmnet_lab::resp::{Client, Reply};

use crate::common::{binaries, folder, skip};
use crate::support::seed;

/// Number of runs at the same time. A run mostly waits.
const JOBS: usize = 2;

/// Returns whether these tests can run on this machine. If not, prints the reason.
fn possible() -> bool {
    let missing = Namespaces::refusal().or_else(|| {
        find_program("redis-server")
            .is_none()
            .then(|| "redis-server is not installed".to_owned())
    });
    let Some(reason) = missing else {
        return true;
    };
    skip(&reason);
    false
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| {
        text.parse::<NonZeroU64>()
            .unwrap_or_else(|_| panic!("{name}={text}: a number above 0 is needed"))
            .get()
    })
}

fn run_and_tell(first: u64, count: u64, jobs: usize) -> Totals {
    let tell = |report: &RunReport| println!("{report}");
    let totals = runs(binaries(), folder(), first, count, jobs, tell);
    println!("{totals}");
    totals
}

#[test]
fn a_few_runs() {
    if !possible() {
        return;
    }
    let totals = run_and_tell(seed(), 6, JOBS);
    assert!(totals.passed(), "{totals}");
    assert!(totals.faults[0] > 0 && totals.faults[1] > 0, "{totals}");
}

#[test]
fn a_run_in_which_the_database_forgets_does_not_pass() {
    if !possible() {
        return;
    }
    let mut plan = Plan::draw(1);
    plan.fleet.trouble = None;
    plan.steps = vec![(Duration::from_millis(700), Step::Spoil)];
    let report = run(binaries(), folder(), 1, plan);
    println!("{report}");
    let verdict = report.verdict.as_ref().expect("the run is completed");
    assert!(verdict.not_linearizable() >= 2, "{report}");
    assert_eq!(verdict.undecided(), 0, "{report}");
    let kept = report.folder.as_ref().expect("what failed is kept");
    assert!(kept.join("history.jsonl").is_file(), "{report}");
    std::fs::remove_dir_all(kept).unwrap();
}

/// Makes `PMNET_RUNS` runs, `PMNET_JOBS` at a time. The first seed is `PMNET_TEST_SEED`.
#[test]
#[ignore = "as many as are asked for: see docs/internals/histories.md"]
fn many_runs() {
    assert!(possible(), "the histories cannot run here");
    let jobs = usize::try_from(number("PMNET_JOBS", 2)).unwrap_or(JOBS);
    let totals = run_and_tell(seed(), number("PMNET_RUNS", 200), jobs);
    assert!(totals.passed(), "{totals}");
}

#[test]
fn machines_are_removed_also_after_a_panic() {
    if !possible() {
        return;
    }
    let listed = || -> Vec<String> {
        let entries = std::fs::read_dir("/run/netns").unwrap();
        let name = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
        entries.flatten().map(name).collect()
    };
    let names = std::sync::Mutex::new(Vec::new());
    let end = std::panic::catch_unwind(|| {
        let machines = Namespaces::create(&["one".to_owned(), "two".to_owned()]).unwrap();
        *names.lock().unwrap() = machines.names();
        let there = listed();
        assert!(machines.names().iter().all(|name| there.contains(name)));
        std::panic::panic_any(42);
    });
    assert_eq!(end.unwrap_err().downcast_ref(), Some(&42));
    let names = names
        .into_inner()
        .unwrap_or_else(|poison| poison.into_inner());
    assert_eq!(names.len(), 3, "two machines and the hub");
    let there = listed();
    assert!(names.iter().all(|name| !there.contains(name)), "{there:?}");
}

#[test]
fn a_cut_is_in_one_direction_and_ends() {
    if !possible() {
        return;
    }
    let plan = FleetPlan {
        devices: 1,
        medium: Medium::Dram,
        trouble: None,
        front_args: vec!["--deadline-ms".into(), "300".into()],
    };
    let mut fleet = Fleet::start(binaries(), folder(), "cuts", &plan).expect("the fleet starts");
    let (front, head) = (Machine::Of(Role::Front), Machine::Of(Role::Device(0)));
    let server = Machine::Of(Role::Server);
    let mut client = Client::connect(fleet.endpoint(), crate::support::CALL_MAX).unwrap();
    let mut call = |command: &[&str]| client.call(command).unwrap();
    let ok = crate::support::ok();
    assert_eq!(call(&["SET", "k", "1"]), ok);
    assert_eq!(call(&["GET", "k"]), crate::support::bulk("1"));

    // The path between device and server is cut. Writes are still acknowledged, and reads are
    // answered from the device's log. A command that only the server can execute gets no answer.
    for (from, to) in [(head, server), (server, head)] {
        assert!(fleet.cut(from, to).unwrap());
        assert!(!fleet.cut(from, to).unwrap(), "cut already");
        // If a read took so long that it was also sent to the server, the client of the read must
        // wait for the server. Other clients need not wait.
        crate::support::eventually("a read out of the log", crate::support::CALL_MAX, || {
            let mut other = Client::connect(fleet.endpoint(), crate::support::CALL_MAX).unwrap();
            let set = other.call(&["SET", "k", "2"]).unwrap();
            set == ok && other.call(&["GET", "k"]).unwrap() == crate::support::bulk("2")
        });
        assert!(matches!(call(&["INCR", "n"]), Reply::Error(_)));
        fleet.heal(from, to).unwrap();
        // Until the outcome of this INCR is known, the session's reads go to the server.
        crate::support::eventually("service", crate::support::CALL_MAX, || {
            matches!(call(&["INCR", "n"]), Reply::Integer(_))
        });
    }
    // The path between front and device is cut in one direction: the outcome is unknown.
    for (from, to) in [(front, head), (head, front)] {
        fleet.cut(from, to).unwrap();
        let Reply::Error(text) = call(&["SET", "k", "3"]) else {
            panic!("acknowledged although {from} and {to} cannot speak");
        };
        assert!(text.contains("may or may not"), "{text}");
        fleet.heal(from, to).unwrap();
        crate::support::eventually("service", crate::support::CALL_MAX, || {
            call(&["SET", "k", "4"]) == ok
        });
    }
    assert!(fleet.link_down(head).unwrap());
    assert!(matches!(call(&["SET", "k", "5"]), Reply::Error(_)));
    fleet.repair().unwrap();
    crate::support::eventually("service", crate::support::CALL_MAX, || {
        call(&["GET", "k"]) != Reply::Nil && call(&["SET", "k", "6"]) == ok
    });
}
