//! Crash enumeration (`docs/spec/packet-store.md` §9). Scripts of operations are crashed at every moment. The images
//! that the fault model allows at this moment are tried, all of them or a sample if there are too many. A part of the
//! recoveries is crashed again at every moment, and each is followed by further operations. The medium and its fault
//! model are those of the log's crash enumeration.
//!
//! The quick form tries a part of the images at every moment of every script. This command runs the full form: `cargo
//! test --release -p pmnet-packet-store --test enumerate -- --ignored --nocapture`

mod drive;
mod explore;
#[path = "../../../log/tests/enumerate/images.rs"]
#[allow(dead_code)] // Only the log's enumeration uses the whole module.
mod images;
#[path = "../../../log/tests/enumerate/medium.rs"]
#[allow(dead_code)] // Only the log's enumeration uses the whole module.
mod medium;
mod promise;
mod script;
#[path = "../support/mod.rs"]
mod support;

use drive::{Driver, STORES};
use explore::{Counts, explore};
use images::Effort;
use promise::Promise;
use support::{Content, made};

const QUICK: Effort = Effort {
    combinations: 40,
    samples: 6,
    torn: 6,
    torn_lines: 2,
    kills: 1,
    again: [24, 400, 2000, 4000],
    poison_one_of: 0,
    nested: [16, 2, 1, 1],
};

const FULL: Effort = Effort {
    combinations: 300,
    samples: 30,
    torn: 128,
    torn_lines: 4,
    kills: 1,
    again: [2, 24, 100, 800],
    poison_one_of: 0,
    nested: [64, 3, 4, 2],
};

fn run(effort: &Effort, random_scripts: u64) -> Counts {
    let mut sum = Counts::default();
    let empty = Promise {
        allowed: vec![Content::new()],
        number: 0,
    };
    for geometry in STORES {
        let image = made(&geometry);
        for (name, ops) in script::scripts() {
            sum = explore::<Driver>(name, &ops, image.clone(), &empty, effort, sum);
        }
        for seed in 0..random_scripts {
            let name = format!("by seed {seed}");
            sum = explore::<Driver>(
                &name,
                &script::random(seed),
                image.clone(),
                &empty,
                effort,
                sum,
            );
        }
    }
    println!("{sum:?}");
    sum
}

#[test]
fn crash_at_every_moment_of_every_script() {
    let sum = run(&QUICK, 3);
    assert!(sum.images[0] > 10_000 && sum.images[1] > 5000 && sum.crashed_again > 100);
}

#[test]
#[ignore = "minutes; see the head of this file"]
fn full_crash_enumeration() {
    let sum = run(&FULL, 20);
    assert!(sum.images[0] > 100_000 && sum.images[1] > 200_000 && sum.images[2] > 10_000);
}
