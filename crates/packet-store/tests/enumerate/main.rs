//! Crash enumeration: scripts of operations, and a crash at every moment of each of them, with every image that the fault
//! model allows there; then again at every moment of each recovery and of a transaction after it
//! (`docs/spec/packet-store.md` §9). The medium and its fault model are those of the log's enumeration.
//!
//! The quick form tries a part of the images, at every moment of every script. The full one:
//! `cargo test --release -p pmnet-packet-store --test enumerate -- --ignored --nocapture`

mod drive;
#[path = "../../../log/tests/enumerate/images.rs"]
#[allow(dead_code)] // The log's enumeration uses all of it.
mod images;
#[path = "../../../log/tests/enumerate/medium.rs"]
#[allow(dead_code)] // As above.
mod medium;
mod promise;
mod script;
#[path = "../support/mod.rs"]
mod support;

use rustc_hash::FxHashMap;
use std::sync::Arc;

use drive::{Driver, Op, Recording, STORES};
use images::{Effort, Kind, Lines, images};
use medium::{Event, Recorder, State};
use pmnet_packet_store::{Geometry, Scan};
use promise::Promise;
use support::{Content, IDENTITY, content, made};

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

/// What was visited.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    scripts: u64,
    moments: u64,
    persists: u64,
    images: [u64; 3],
    kills: u64,
    crashed_again: u64,
}

struct Explorer {
    effort: Effort,
    counts: Counts,
    /// Image and promise → whether the recovery from it was crashed again too.
    seen: FxHashMap<u64, bool>,
}

fn explore(name: &str, ops: &[Op], geometry: Geometry, effort: &Effort, counts: Counts) -> Counts {
    let image = made(&geometry);
    let mut driver = Driver::new(State::clean(image.clone()), vec![Content::new()], 1);
    driver.open(image).unwrap();
    for (at, op) in ops.iter().enumerate() {
        if let Err(why) = driver.step(op) {
            panic!("script {name}, operation {at} {op:?}, no crash yet: {why}");
        }
    }
    let mut explorer = Explorer {
        effort: *effort,
        counts,
        seen: FxHashMap::default(),
    };
    let empty = Promise {
        allowed: vec![Content::new()],
        number: 0,
    };
    if let Err(why) = explorer.recording(&driver.finish(), &empty, 0) {
        panic!("script {name}: {why}");
    }
    explorer.counts.scripts += 1;
    explorer.counts
}

impl Explorer {
    /// Visits every moment of a recording. `level` 0 is a script, 1 the recovery from an image of it, 2 the recovery from an
    /// image of that.
    fn recording(
        &mut self,
        recording: &Recording,
        promise: &Promise,
        level: usize,
    ) -> Result<(), String> {
        let mut promise = Arc::new(promise.clone());
        let mut state = recording.initial.clone();
        let mut persists = 0;
        for (at, event) in recording.events.iter().enumerate() {
            let touched = state.apply(event);
            match event {
                Event::Promise(next) => promise = Arc::clone(next),
                Event::PersistStart(_) => persists += 1,
                _ => {}
            }
            self.moment(&state, &promise, level, &touched)
                .map_err(|why| format!("level {level}, event {at} {}: {why}", short(event)))?;
        }
        if level == 0 {
            self.counts.moments += u64::try_from(recording.events.len()).unwrap();
            self.counts.persists += persists;
        }
        match persists == recording.persists {
            true => Ok(()),
            false => Err(format!(
                "{persists} of {} persists visited",
                recording.persists
            )),
        }
    }

    /// Every way to crash at one moment.
    fn moment(
        &mut self,
        state: &State,
        promise: &Promise,
        level: usize,
        touched: &[usize],
    ) -> Result<(), String> {
        let salt = promise.key().rotate_left(17);
        let seed = state.full_hash() ^ salt;
        let effort = self.effort.at(level);
        let mut found: Vec<(bool, Kind, Lines)> = Vec::new();
        images(state, touched, &effort, seed, &mut |kind, lines| {
            let key = state.image_hash(lines) ^ salt;
            let again = self.effort.again(level, kind, key);
            if self.seen.get(&key).is_none_or(|done| again && !done) {
                self.seen.insert(key, again);
                found.push((again, kind, lines.to_vec()));
            }
        });
        for (again, kind, lines) in found {
            self.counts.images[level.min(2)] += 1;
            self.recover(State::clean(state.image(&lines)), promise, level, again)
                .map_err(|why| format!("{kind:?} image: {why}"))?;
        }
        let left = state.killed(|count| count);
        let key = left.full_hash().rotate_left(1) ^ salt;
        if level < 2 && !left.dirty_lines().is_empty() && self.seen.insert(key, true).is_none() {
            self.counts.kills += 1;
            let again = level == 0 && self.effort.again(level, Kind::Whole, key);
            self.recover(left, promise, level, again)
                .map_err(|why| format!("kill: {why}"))?;
        }
        Ok(())
    }

    /// Recovers; with `again` goes on a little, and crashes at every moment of it too.
    fn recover(
        &mut self,
        left: State,
        promise: &Promise,
        level: usize,
        again: bool,
    ) -> Result<(), String> {
        let image = left.visible();
        if !again {
            return recover_plainly(image, promise);
        }
        let mut driver = Driver::new(left, promise.allowed.clone(), promise.number << 8);
        driver.open(image)?;
        for op in script::after_recovery() {
            driver.step(&op)?;
        }
        self.counts.crashed_again += 1;
        self.recording(&driver.finish(), promise, level + 1)
    }
}

fn recover_plainly(image: Vec<u8>, promise: &Promise) -> Result<(), String> {
    let scan = Scan::open(Recorder::new(image, None), Some(IDENTITY.shard))
        .map_err(|error| error.to_string())?;
    let damaged = scan.verify();
    if !damaged.is_empty() {
        return Err(format!("damaged: {}", damaged[0]));
    }
    let store = scan.repair().map_err(|error| error.to_string())?;
    match promise.allowed.contains(&content(&store)) {
        true => Ok(()),
        false => Err("another content than any that may be there".into()),
    }
}

fn short(event: &Event) -> String {
    match event {
        Event::Store(offset, bytes) => format!("store of {} bytes at {offset}", bytes.len()),
        Event::PersistStart(ranges) => format!("persist of {} ranges", ranges.len()),
        Event::Promise(_) => "promise".into(),
        Event::Crash(_) => "crash in the script".into(),
        Event::PersistDone => "persist complete".into(),
    }
}

fn run(effort: &Effort, random_scripts: u64) -> Counts {
    let mut sum = Counts::default();
    for geometry in STORES {
        for (name, ops) in script::scripts() {
            sum = explore(name, &ops, geometry, effort, sum);
        }
        for seed in 0..random_scripts {
            let name = format!("by seed {seed}");
            sum = explore(&name, &script::random(seed), geometry, effort, sum);
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
