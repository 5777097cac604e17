//! A log and a store in one region (`docs/spec/packet-store.md` §11). The tests enumerate crashes over every change of
//! a frame's owner, with the explorer and the fault model of the store's own enumeration, and run long random
//! histories.
//!
//! The quick form tries a part of the images at every moment of every script. This command runs the full form: `cargo
//! test --release -p pmnet-packet-store --test shared -- --ignored --nocapture`

mod drive;
mod entry;
#[path = "../enumerate/explore.rs"]
mod explore;
#[path = "../../../log/tests/enumerate/images.rs"]
#[allow(dead_code)] // Only the log's enumeration uses the whole module.
mod images;
#[path = "../../../log/tests/enumerate/medium.rs"]
#[allow(dead_code)] // Only the log's enumeration uses the whole module.
mod medium;
mod promise;
mod refused;
mod script;
#[path = "../support/mod.rs"]
mod support;

use drive::{Driver, REGIONS, made};
use explore::{Counts, World, explore};
use images::Effort;
use medium::State;
use pmnet_packet_store::Geometry;
use promise::Promise;

const QUICK: Effort = Effort {
    combinations: 30,
    samples: 4,
    torn: 4,
    torn_lines: 1,
    kills: 1,
    again: [40, 800, 4000, 8000],
    poison_one_of: 0,
    nested: [16, 2, 1, 1],
};

const FULL: Effort = Effort {
    combinations: 300,
    samples: 30,
    torn: 64,
    torn_lines: 4,
    kills: 1,
    again: [4, 60, 300, 2000],
    poison_one_of: 0,
    nested: [64, 3, 4, 2],
};

fn run(effort: &Effort, random_scripts: u64) -> Counts {
    let mut sum = Counts::default();
    for geometry in REGIONS {
        let image = made(&geometry);
        for (name, ops) in script::scripts() {
            sum = explore::<Driver>(name, &ops, image.clone(), &Promise::empty(), effort, sum);
        }
        for seed in 0..random_scripts {
            let name = format!("by seed {seed}");
            let ops = script::random(seed, 30);
            sum = explore::<Driver>(&name, &ops, image.clone(), &Promise::empty(), effort, sum);
        }
    }
    println!("{sum:?}");
    sum
}

#[test]
fn crash_at_every_moment_of_every_script() {
    let sum = run(&QUICK, 2);
    assert!(sum.images[0] > 10_000 && sum.images[1] > 2000 && sum.crashed_again > 50);
}

#[test]
#[ignore = "minutes; see the head of this file"]
fn full_crash_enumeration() {
    let sum = run(&FULL, 20);
    assert!(sum.images[0] > 100_000 && sum.images[1] > 100_000 && sum.images[2] > 5000);
}

/// Runs these operations in a new region, one after the other.
fn walk(seed: u64, geometry: &Geometry, ops: &[drive::Op]) -> Driver {
    let image = made(geometry);
    let mut driver = Driver::new(State::clean(image.clone()), &Promise::empty());
    driver.open(image).unwrap();
    for (at, op) in ops.iter().enumerate() {
        if let Err(why) = driver.step(op) {
            panic!("seed {seed}, operation {at} {op:?}: {why}");
        }
    }
    driver
}

/// Each history has hundreds of operations, so that log and store wrap around. Some of the operations are crashes, of
/// which one image each is tried.
#[test]
fn random_histories_keep_every_promise() {
    let mut refused = 0;
    for (seed, geometry) in (0..8).zip(REGIONS.iter().cycle()) {
        refused += walk(seed, geometry, &script::random(1000 + seed, 500)).refused;
    }
    assert!(refused > 50, "{refused}: the region was hardly ever full");
}

/// Runs the same histories in regions that are sometimes copied into larger regions, whatever their logs hold at this
/// moment.
#[test]
fn regions_that_grow_keep_every_promise() {
    let mut grown = 0;
    for (seed, geometry) in (0..6).zip(REGIONS.iter().cycle()) {
        let ops = script::random_with(2000 + seed, 400, true);
        grown += ops.iter().filter(|op| **op == drive::Op::Grow).count();
        walk(seed, geometry, &ops);
    }
    assert!(grown > 15, "{grown}");
}
