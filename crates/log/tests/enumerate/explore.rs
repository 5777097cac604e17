//! Visits every moment of a recording. At each moment it tries all images that a crash can leave, or a sample of them,
//! and recovers from each. For a part of these recoveries, it visits every moment of the recovery in the same way.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use pmnet_log::Parameters;

use crate::drive::{Driver, Op, Recording};
use crate::faults;
use crate::images::{Effort, Kind, Lines, images};
use crate::medium::{Event, State};
use crate::promise::Promise;
use crate::support::Random;

/// Numbers of all that an exploration has visited.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub scripts: u64,
    pub operations: u64,
    /// Moments at which a crash was tried: after every store, at the start and the end of every persist, and after
    /// every operation.
    pub points: u64,
    /// Number of those moments that are the start or the end of a persist.
    pub persist_points: u64,
    /// Numbers of images at the moments of scripts, at the moments of recoveries, and at the moments of recoveries from
    /// crashed recoveries.
    pub images: [u64; 3],
    /// Number of the images in which one line has words of different ages.
    pub torn: u64,
    /// Number of moments of scripts at which there were too many images to try all.
    pub sampled_points: u64,
    /// Number of deaths of the process without a loss of power.
    pub kills: u64,
    /// Number of recoveries that were repeated with a crash at each of their moments.
    pub crashed_again: u64,
    /// Number of recoveries, from images and after deaths of the process.
    pub recoveries: u64,
    /// Number of images with a line that reads as garbage (`poisoned`), and number of those that were refused.
    pub poisoned: u64,
    pub poisoned_refused: u64,
    /// Number of images with old superblocks (`set_back`), and number of those that were refused.
    pub set_back: u64,
    pub set_back_refused: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        let pairs = [
            (&mut self.scripts, other.scripts),
            (&mut self.operations, other.operations),
            (&mut self.points, other.points),
            (&mut self.persist_points, other.persist_points),
            (&mut self.torn, other.torn),
            (&mut self.sampled_points, other.sampled_points),
            (&mut self.kills, other.kills),
            (&mut self.crashed_again, other.crashed_again),
            (&mut self.recoveries, other.recoveries),
            (&mut self.poisoned, other.poisoned),
            (&mut self.poisoned_refused, other.poisoned_refused),
            (&mut self.set_back, other.set_back),
            (&mut self.set_back_refused, other.set_back_refused),
        ];
        for (mine, theirs) in pairs {
            *mine += theirs;
        }
        for (mine, theirs) in self.images.iter_mut().zip(other.images) {
            *mine += theirs;
        }
    }
}

/// Hasher for keys that are already hashes.
#[derive(Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

/// One script's exploration.
pub struct Explorer {
    effort: Effort,
    parameters: Parameters,
    pub counts: Counts,
    /// For each recovery that was run, by the key of its image and promise: whether it was crashed again.
    seen: HashMap<u64, bool, BuildHasherDefault<AsIs>>,
}

/// Runs a script, and visits all its moments.
pub fn explore(name: &str, ops: &[Op], parameters: Parameters, effort: &Effort) -> Counts {
    let blank = State::clean(vec![0; parameters.image_bytes()]);
    let mut driver = Driver::new(blank, parameters, Promise::none());
    for (at, op) in ops.iter().enumerate() {
        if let Err(why) = driver.step(*op) {
            panic!("script {name}, operation {at} {op:?}, no crash yet: {why}");
        }
    }
    let recording = driver.finish();
    let mut explorer = Explorer {
        effort: *effort,
        parameters,
        counts: Counts {
            scripts: 1,
            operations: u64::try_from(ops.len()).unwrap(),
            ..Counts::default()
        },
        seen: HashMap::default(),
    };
    if let Err(why) = explorer.recording(&recording, &Promise::none(), 0) {
        panic!("script {name}: {why}");
    }
    explorer.counts
}

impl Explorer {
    /// Visits every moment of a recording. `level` 0 is a script, 1 is the recovery from an image of a script, 2 is the
    /// recovery from an image of level 1.
    fn recording(
        &mut self,
        recording: &Recording,
        promise: &Promise,
        level: usize,
    ) -> Result<(), String> {
        let mut promise = Arc::new(promise.clone());
        let mut state = recording.initial.clone();
        let (mut begun, mut complete) = (0, 0);
        let mut history = faults::History::new(&state);
        for (at, event) in recording.events.iter().enumerate() {
            let touched = state.apply(event);
            match event {
                Event::Promise(next) => promise = Arc::clone(next),
                Event::PersistStart(_) => begun += 1,
                Event::PersistDone => complete += 1,
                Event::Store(..) | Event::Crash(_) => {}
            }
            history.note(&state);
            self.point(&state, &promise, level, &touched)
                .and_then(|()| match event {
                    Event::PersistDone | Event::Promise(_) if level == 0 => {
                        faults::visit(&state, &promise, &history, &self.effort, &mut self.counts)
                    }
                    _ => Ok(()),
                })
                .map_err(|why| format!("level {level}, event {at} {}: {why}", short(event)))?;
            if level == 0 {
                self.counts.points += 1;
            }
        }
        if level == 0 {
            self.counts.persist_points += begun + complete;
            if begun != recording.persists {
                return Err(format!(
                    "{begun} of {} persists visited",
                    recording.persists
                ));
            }
        }
        Ok(())
    }

    /// Tries every kind of crash at one moment.
    fn point(
        &mut self,
        state: &State,
        promise: &Promise,
        level: usize,
        touched: &[usize],
    ) -> Result<(), String> {
        let salt = promise.key().rotate_left(17);
        let seed = state.full_hash() ^ salt;
        let effort = self.effort.at(level);
        let mut found: Vec<(u64, Kind, Lines)> = Vec::new();
        let exhaustive = images(state, touched, &effort, seed, &mut |kind, lines| {
            let key = state.image_hash(lines) ^ salt;
            let again = self.effort.again(level, kind, key);
            if self.seen.get(&key).is_none_or(|done| again && !done) {
                self.seen.insert(key, again);
                found.push((key, kind, lines.to_vec()));
            }
        });
        self.counts.sampled_points += u64::from(level == 0 && !exhaustive);
        for (key, kind, lines) in found {
            self.counts.images[level.min(2)] += 1;
            self.counts.torn += u64::from(kind == Kind::Torn);
            let image = state.image(&lines);
            let again = self.effort.again(level, kind, key);
            self.recover(State::clean(image), promise, level, again)
                .map_err(|why| format!("{kind:?} image: {why}"))?;
        }
        let kills = if level < 2 { effort.kills } else { 0 };
        for index in 0..kills {
            let mut random = Random(seed ^ u64::from(index));
            let left = state.killed(|count| match index {
                0 => count,
                _ => random.index(count + 1),
            });
            let key = left.full_hash().rotate_left(1) ^ salt;
            if left.dirty_lines().is_empty() || self.seen.insert(key, true).is_some() {
                continue;
            }
            self.counts.kills += 1;
            let again = level == 0 && self.effort.again(level, Kind::Whole, key);
            self.recover(left, promise, level, again)
                .map_err(|why| format!("kill {index}: {why}"))?;
        }
        Ok(())
    }

    /// Recovers from a state that a crash left. With `again`, also continues with further operations, and crashes at
    /// every moment of all this.
    fn recover(
        &mut self,
        left: State,
        promise: &Promise,
        level: usize,
        again: bool,
    ) -> Result<(), String> {
        self.counts.recoveries += 1;
        if !again && left.dirty_lines().is_empty() {
            return recover_plainly(left.visible(), promise);
        }
        let mut driver = Driver::new(left, self.parameters, promise.clone());
        if !driver.recover()? {
            return Ok(());
        }
        let state = driver.state();
        driver
            .promise
            .settled(driver.log().expect("just recovered"), &state)?;
        if again {
            for op in [Op::Append(1, 24), Op::Persist] {
                driver.step(op)?;
            }
            self.counts.crashed_again += 1;
            self.recording(&driver.finish(), promise, level + 1)?;
        }
        Ok(())
    }
}

fn recover_plainly(image: Vec<u8>, promise: &Promise) -> Result<(), String> {
    match faults::recovered(image, promise)? {
        Some(error) if !promise.may_refuse(&error) => {
            Err(format!("refused ({error}), {:?}", promise.facts))
        }
        _ => Ok(()),
    }
}

fn short(event: &Event) -> String {
    match event {
        Event::Store(offset, bytes) => format!("store of {} bytes at {offset}", bytes.len()),
        Event::Promise(_) => "return of an operation".into(),
        Event::Crash(_) => "crash in the script".into(),
        other => format!("{other:?}"),
    }
}
