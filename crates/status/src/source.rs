//! The loops of a process that the status port shows.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde_json::{Map, Value as Json};

use crate::metric::{Kind, Metric, Sample, Value};
use crate::pulse::{Alive, SILENCE_MAX};

/// Facts about a process.
#[derive(Clone, Debug)]
pub struct About {
    /// Role of the process: device, server, redis, memcached or controller.
    pub role: &'static str,
    /// Version of the program.
    pub version: &'static str,
    /// Commit from which the program was built, or `unknown`.
    pub commit: &'static str,
}

/// The state of one loop at one moment.
#[derive(Debug, Default)]
pub struct Look {
    /// Metrics of the loop.
    pub samples: Vec<Sample>,
    /// Reasons why the loop is not ready, as sentences. If empty, the loop is ready.
    pub reasons: Vec<String>,
    /// Further facts about the loop, for users and for JSON.
    pub facts: Map<String, Json>,
    /// Problems of the loop.
    pub advice: Vec<Advice>,
}

/// A problem of a loop, with the alert whose section in the handbook has advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advice {
    /// Name of the alert. The alert's section in the handbook has advice.
    pub alert: &'static str,
    /// A sentence about the problem.
    pub text: &'static str,
}

/// The advice for a loop that is stuck.
const STUCK: Advice = Advice {
    alert: "PmnetStuck",
    text: "The loop is in one turn for more than a second.",
};

/// A loop as the status port sees it. Only the port's thread calls these functions.
pub trait Source: Debug + Send + Sync {
    /// Returns the labels that all metrics of the loop have.
    fn labels(&self) -> Vec<(&'static str, String)>;

    /// Returns the loop's pulse: a number that changes in each turn, and is odd while the loop waits for work.
    fn pulse(&self) -> u64;

    /// Called several times a second, for values that depend on more than one moment.
    fn tick(&self, now: Instant) {
        let _nothing = now;
    }

    /// Returns the present state of the loop.
    fn look(&self, now: Instant) -> Look;
}

/// The loops of a process that the status port shows. All clones share one list.
#[derive(Clone, Debug, Default)]
pub struct Shown(Arc<Mutex<Vec<Seen>>>);

/// A loop, with the state by which its life is checked.
type Seen = (Arc<dyn Source>, Alive);

impl Shown {
    /// Adds a loop. If an earlier loop has the same labels, it has ended, and is no longer shown.
    pub fn add(&self, source: Arc<dyn Source>) {
        let labels = source.labels();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(other, _)| other.labels() != labels);
        all.push((source, Alive::new(Instant::now())));
    }

    /// Reads the pulses of all loops, and calls [`Source::tick`] for each.
    pub(crate) fn tick(&self, now: Instant) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (source, alive) in &mut *all {
            alive.look(source.pulse(), now);
            source.tick(now);
        }
    }

    /// Returns the present state of all loops.
    pub(crate) fn look(&self, now: Instant) -> Vec<Looked> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let looked = all.iter_mut().map(|(source, alive)| {
            let dead = dead(&**source, alive, now);
            source.tick(now);
            let mut look = source.look(now);
            if dead.is_some() {
                look.advice.insert(0, STUCK);
            }
            look.samples
                .push(Sample::new(ALIVE, Value::Count(u64::from(dead.is_none()))));
            look.samples.push(Sample::new(
                READY,
                Value::Count(u64::from(look.reasons.is_empty())),
            ));
            Looked {
                labels: source.labels(),
                dead,
                look,
            }
        });
        looked.collect()
    }

    /// Returns a reason for each loop that is stuck. If all loops are alive, the result is empty.
    #[must_use]
    pub fn dead(&self, now: Instant) -> Vec<String> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let dead = all.iter_mut().filter_map(|(source, alive)| {
            let why = dead(&**source, alive, now)?;
            Some(format!("{}: {why}", named(&source.labels())))
        });
        dead.collect()
    }
}

/// Returns the reason why a loop is stuck; `None`: the loop is alive.
fn dead(source: &dyn Source, alive: &mut Alive, now: Instant) -> Option<String> {
    let stuck = alive.look(source.pulse(), now);
    (stuck >= SILENCE_MAX).then(|| {
        format!(
            "the loop has been in the same turn for {:.1} s",
            stuck.as_secs_f64()
        )
    })
}

/// A gauge: whether the loop is alive.
pub(crate) const ALIVE: Metric = Metric::new(
    Kind::Gauge,
    "pmnet_alive",
    "1 if the loop makes progress or waits for something to do (/livez), 0 if it hangs.",
);

/// A gauge: whether the loop is ready.
pub(crate) const READY: Metric = Metric::new(
    Kind::Gauge,
    "pmnet_ready",
    "1 if the loop is ready (/readyz), 0 if not.",
);

/// A gauge with the build of the program in its labels.
pub(crate) const BUILD: Metric = Metric::new(
    Kind::Gauge,
    "pmnet_build_info",
    "Always 1. The labels say what is running: role, version, commit.",
);

impl Shown {
    /// Metrics that every process has.
    pub const METRICS: [Metric; 3] = [BUILD, ALIVE, READY];
}

/// The state of one loop at the time of a request.
#[derive(Debug)]
pub(crate) struct Looked {
    pub labels: Vec<(&'static str, String)>,
    /// The reason why the loop is stuck; `None`: it is alive.
    pub dead: Option<String>,
    pub look: Look,
}

impl Looked {
    /// Returns the reasons why the loop is not ready, each with the loop's name.
    pub fn reasons(&self) -> impl Iterator<Item = String> {
        let name = named(&self.labels);
        self.look
            .reasons
            .iter()
            .map(move |reason| format!("{name}: {reason}"))
    }
}

/// Returns the name of a loop as text for users.
fn named(labels: &[(&'static str, String)]) -> String {
    let parts: Vec<String> = labels
        .iter()
        .map(|(key, value)| format!("{key} {value}"))
        .collect();
    parts.join(", ")
}
