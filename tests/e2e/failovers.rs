//! Failovers of all kinds under load, in a fleet. Devices, server, Redis, etcd, controllers and
//! fronts are killed, stopped or cut off, sometimes two of them together. No operator repairs
//! anything (`docs/internals/testing.md`).
//!
//! The longest time without an acknowledgement is reported, but has no limit. A run passes under
//! five conditions: no update is lost; none is applied twice; the history is linearizable; no
//! operation is refused; at the end the shard is as at the beginning.

mod plan;
mod report;
mod run;
mod state;
mod world;

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use pmnet_lab::harness::{Medium, Namespaces, find_program};

use self::plan::{Fault, How, Kind, Place, Plan, WORLD_RUNS, WorldPlan};
use self::report::Campaign;
use self::run::{RunReport, caught, run};
use self::world::World;
use crate::common;
use crate::support::seed;

/// Number of runs of the short form.
const FEW: u64 = 5;

/// Returns whether these tests can run on this machine. If not, prints the reason.
fn possible() -> bool {
    let missing = Namespaces::refusal().or_else(|| {
        let programs = ["redis-server", "etcd"];
        let absent = programs.iter().find(|name| find_program(name).is_none());
        absent.map(|name| format!("{name} is not installed"))
    });
    let Some(reason) = missing else {
        return true;
    };
    common::skip(&reason);
    false
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| {
        text.parse::<NonZeroU64>()
            .unwrap_or_else(|_| panic!("{name}={text}: a number above 0 is needed"))
            .get()
    })
}

/// Makes the runs of these seeds. After each run, writes the results so far to this file.
fn campaign(first: u64, count: u64, draw: fn(u64) -> Plan, file: Option<PathBuf>) -> Campaign {
    let mut all = Campaign::default();
    let mut seeds = (first..first.saturating_add(count)).peekable();
    while let Some(&begin) = seeds.peek() {
        // A run has a thread of its own. The thread moves into the world's network, and the world's
        // processes end with the thread.
        std::thread::scope(|scope| {
            let story = scope.spawn(|| {
                let plan = draw(begin).world;
                let name = format!("failovers-{begin}");
                let started = caught(|| World::start(plan, &name));
                let mut world = match started {
                    Ok(world) => world.expect("etcd is installed"),
                    Err(why) => {
                        // A failed start counts as a run, so that the loop ends.
                        let report =
                            RunReport::of_none(begin, draw(begin), format!("no world: {why}"));
                        println!("{report}");
                        all.add(report);
                        seeds.next();
                        return;
                    }
                };
                for turn in 0.. {
                    let next = seeds.next_if(|seed| seed / WORLD_RUNS == begin / WORLD_RUNS);
                    let Some(seed) = next else {
                        break;
                    };
                    let report = run(&mut world, draw(seed), seed, turn);
                    println!("{report}");
                    let passed = report.passed();
                    all.add(report);
                    if let Some(file) = &file {
                        let text = format!("{:#}\n", all.as_json());
                        std::fs::write(file, text).expect("the report can be written");
                    }
                    if !passed {
                        // After a failed run, the next run must start in a new world.
                        break;
                    }
                }
                all.ended += world.ended;
            });
            story
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    }
    println!("{all}");
    all
}

#[test]
fn a_few_failovers() {
    if !possible() {
        return;
    }
    let all = campaign(seed(), FEW, Plan::draw, None);
    assert!(all.passed(), "{all}");
}

/// The tail is stopped, and the middle device learns of this later than the head. So the head's
/// statement about the tail follows the old path to the tail, and has no effect. Regression test:
/// the head never repeated the statement, and from then on no update was acknowledged (seed 336 of
/// the campaign).
#[test]
fn a_device_that_is_wired_later_than_the_head_does_not_hold_the_chain_up() {
    if !possible() {
        return;
    }
    let millis = Duration::from_millis;
    let cut = |place, at, lasts| Fault {
        kind: Kind::Device(place, How::CutOff),
        at: millis(at),
        lasts: millis(lasts),
    };
    let plan = Plan {
        world: WorldPlan {
            devices: 3,
            spares: 0,
            medium: Medium::Dram,
            confirm: 1,
        },
        faults: vec![cut(Place::Tail, 0, 8_000), cut(Place::Middle, 1_900, 1_800)],
    };
    let story = std::thread::spawn(move || {
        let mut world = World::start(plan.world, "late-middle").unwrap().unwrap();
        run(&mut world, plan, seed(), 0)
    });
    let report = story
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    assert!(report.passed(), "{report}");
}

/// Makes the runs of `PMNET_RUNS` seeds, beginning with `PMNET_TEST_SEED`, and `PMNET_STORM`
/// storms. Writes the report as JSON to the file `PMNET_REPORT`.
#[test]
#[ignore = "as many as are asked for: make failovers"]
fn many_failovers() {
    assert!(possible(), "failovers cannot run here");
    let file = std::env::var_os("PMNET_REPORT").map(PathBuf::from);
    let storm = std::env::var_os("PMNET_STORM").is_some_and(|text| !text.is_empty());
    let draw = if storm { Plan::storm } else { Plan::draw };
    let all = campaign(seed(), number("PMNET_RUNS", 200), draw, file);
    assert!(all.passed(), "{all}");
}
