//! Crash enumeration. Scripts of operations crash at every moment, and the log is recovered from all images that the
//! fault model allows at this moment, or from a sample if there are too many. A part of the recoveries crashes again,
//! at every moment (`docs/spec/recovery.md` §6).
//!
//! The quick form tries a part of the images at every moment of every script. This command runs the full form: `cargo
//! test --release -p pmnet-log --test enumerate -- --ignored --nocapture`

mod drive;
mod explore;
mod faults;
mod images;
mod medium;
mod promise;
mod script;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use drive::{LOGS, Op};
use explore::{Counts, explore};
use images::Effort;
use pmnet_log::Parameters;

const QUICK: Effort = Effort {
    combinations: 40,
    samples: 6,
    torn: 6,
    torn_lines: 2,
    kills: 1,
    again: [8, 200, 1000, 2000],
    poison_one_of: 199,
    nested: [16, 1, 1, 1],
};

const FULL: Effort = Effort {
    combinations: 700,
    samples: 40,
    torn: 256,
    torn_lines: 8,
    kills: 3,
    again: [1, 24, 64, 400],
    poison_one_of: 1,
    nested: [64, 3, 4, 2],
};

/// Runs all scripts on all cores; returns the sum of the visited states.
fn run(parameters: Parameters, effort: &Effort, random_scripts: u64, report: bool) -> Counts {
    let mut scripts: Vec<(String, Vec<Op>)> = script::SCRIPTS
        .iter()
        .map(|(name, ops)| ((*name).to_string(), ops.to_vec()))
        .collect();
    scripts
        .extend((0..random_scripts).map(|seed| (format!("by seed {seed}"), script::random(seed))));
    let next = AtomicUsize::new(0);
    let sum = Mutex::new(Counts::default());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((name, ops)) = scripts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let counts = explore(name, ops, parameters, effort);
                    if report {
                        println!("{}", line(name, &counts));
                    }
                    sum.lock().unwrap().add(&counts);
                }
            });
        }
    });
    let sum = *sum.lock().unwrap();
    assert_eq!(
        usize::try_from(sum.scripts).unwrap(),
        scripts.len(),
        "every script was run to its end"
    );
    println!("{}", line("all scripts", &sum));
    sum
}

fn line(name: &str, counts: &Counts) -> String {
    let Counts {
        scripts,
        operations,
        points,
        persist_points,
        images: [first, second, third],
        torn,
        sampled_points,
        kills,
        crashed_again,
        recoveries,
        poisoned,
        poisoned_refused,
        set_back,
        set_back_refused,
    } = counts;
    format!(
        "{name}: scripts {scripts}, operations {operations}, moments {points} (persists begun or complete \
         {persist_points}, all visited), images {first}, kills {kills}, recoveries crashed again at every moment \
         {crashed_again}, images of recoveries {second}, of recoveries from those {third}, torn {torn}, recoveries \
         {recoveries}, moments with samples {sampled_points}, poisoned {poisoned} (refused {poisoned_refused}), \
         superblocks set back {set_back} (refused {set_back_refused})"
    )
}

#[test]
fn crash_at_every_moment_of_every_script() {
    for parameters in LOGS {
        let sum = run(parameters, &QUICK, 12, false);
        assert!(sum.images[0] > 10_000 && sum.images[1] > 10_000 && sum.crashed_again > 100);
        assert!(sum.poisoned > 1000 && sum.poisoned_refused > 50 && sum.set_back_refused > 10);
    }
}

#[test]
#[ignore = "minutes; see the head of this file"]
fn full_crash_enumeration() {
    for parameters in LOGS {
        let sum = run(parameters, &FULL, 40, true);
        assert!(sum.images[0] > 100_000 && sum.images[1] > 1_000_000 && sum.images[2] > 100_000);
        assert!(sum.poisoned_refused > 10_000 && sum.set_back_refused > 1000);
    }
}
