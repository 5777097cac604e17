//! Visits every moment of a recording. At each moment it tries the images that a crash can leave, or a sample of them.
//! For a part of these images it also visits every moment of the recovery.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::images::{Effort, Kind, Lines, images};
use crate::medium::{Event, State};
use crate::promise::Promise;

/// A driver that runs a script on a recording medium.
pub trait World: Sized {
    type Op: std::fmt::Debug;
    /// Returns a driver over a medium in this state. The store or region that is opened in this state must keep the
    /// promise.
    fn new(left: State, promise: &Promise) -> Self;
    /// Opens the store or region in an image.
    fn open(&mut self, image: Vec<u8>) -> Result<(), String>;
    fn step(&mut self, op: &Self::Op) -> Result<(), String>;
    fn finish(self) -> Recording;
    /// Returns the operations that follow a recovery which is crashed again.
    fn after_recovery() -> Vec<Self::Op>;
    /// Opens the store or region in an image, without recording.
    fn recover(image: Vec<u8>, promise: &Promise) -> Result<(), String>;
}

/// The states and promises that a driver has recorded in a run.
pub struct Recording {
    pub initial: State,
    pub events: Vec<Event>,
    pub persists: u64,
}

/// Numbers of visited states.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub scripts: u64,
    pub moments: u64,
    pub persists: u64,
    pub images: [u64; 3],
    pub kills: u64,
    pub crashed_again: u64,
}

struct Explorer<W> {
    effort: Effort,
    counts: Counts,
    /// The images that were tried, by a hash of the image and its promise. The value says whether the recovery from the
    /// image was crashed again, too.
    seen: FxHashMap<u64, bool>,
    world: std::marker::PhantomData<W>,
}

/// Runs a script in an image that keeps this promise, and visits all moments of the run.
pub fn explore<W: World>(
    name: &str,
    ops: &[W::Op],
    image: Vec<u8>,
    promise: &Promise,
    effort: &Effort,
    counts: Counts,
) -> Counts {
    let mut driver = W::new(State::clean(image.clone()), promise);
    driver.open(image).unwrap();
    for (at, op) in ops.iter().enumerate() {
        if let Err(why) = driver.step(op) {
            panic!("script {name}, operation {at} {op:?}, no crash yet: {why}");
        }
    }
    let mut explorer = Explorer::<W> {
        effort: *effort,
        counts,
        seen: FxHashMap::default(),
        world: std::marker::PhantomData,
    };
    if let Err(why) = explorer.recording(&driver.finish(), promise, 0) {
        panic!("script {name}: {why}");
    }
    explorer.counts.scripts += 1;
    explorer.counts
}

impl<W: World> Explorer<W> {
    /// Visits every moment of a recording. `level`: 0 for a script, 1 for the recovery from an image of a script, 2 for
    /// the recovery from an image of level 1.
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

    /// Tries every kind of crash at one moment.
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

    /// Recovers from an image. With `again`, continues with further operations, and tries a crash at every moment of
    /// the recovery.
    fn recover(
        &mut self,
        left: State,
        promise: &Promise,
        level: usize,
        again: bool,
    ) -> Result<(), String> {
        let image = left.visible();
        if !again {
            return W::recover(image, promise);
        }
        let mut driver = W::new(left, promise);
        driver.open(image)?;
        for op in W::after_recovery() {
            driver.step(&op)?;
        }
        self.counts.crashed_again += 1;
        self.recording(&driver.finish(), promise, level + 1)
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
