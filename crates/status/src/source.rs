//! The loops of a process, which are shown.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde_json::{Map, Value as Json};

use crate::metric::{Kind, Metric, Sample, Value};
use crate::pulse::{Alive, SILENCE_MAX};

/// A process.
#[derive(Clone, Debug)]
pub struct About {
    /// Its role: device, server, redis, memcached, controller.
    pub role: &'static str,
    /// Version of the program.
    pub version: &'static str,
    /// Commit that it was built from, or `unknown`.
    pub commit: &'static str,
}

/// State of one loop at one moment.
#[derive(Debug, Default)]
pub struct Look {
    /// Its metrics.
    pub samples: Vec<Sample>,
    /// Reasons why it is not ready, as sentences; none: it is.
    pub reasons: Vec<String>,
    /// More about it, for people and for JSON.
    pub facts: Map<String, Json>,
    /// What is wrong with it.
    pub advice: Vec<Advice>,
}

/// A thing that is wrong with a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The alert whose section in the handbook says what to do.
    pub alert: &'static str,
    /// The sentence for now.
    pub text: &'static str,
}

/// Of a loop that does not live.
const STUCK: Advice = Advice {
    alert: "PmnetStuck",
    text: "The loop is in one turn for more than a second.",
};

/// A loop, as it shows itself. It is asked by the thread of the status port only.
pub trait Source: Debug + Send + Sync {
    /// Labels of all its metrics.
    fn labels(&self) -> Vec<(&'static str, String)>;

    /// Its pulse: odd while it waits for something to do, and another one in each turn.
    fn pulse(&self) -> u64;

    /// Called several times a second, for values that follow from several looks.
    fn tick(&self, now: Instant) {
        let _nothing = now;
    }

    /// Looks at it.
    fn look(&self, now: Instant) -> Look;
}

/// The loops of a process that are shown. A clone is the same list.
#[derive(Clone, Debug, Default)]
pub struct Shown(Arc<Mutex<Vec<Seen>>>);

/// A loop, and whether it lives.
type Seen = (Arc<dyn Source>, Alive);

impl Shown {
    /// Shows one more. One with the same labels, which has ended, is shown no more.
    pub fn add(&self, source: Arc<dyn Source>) {
        let labels = source.labels();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(other, _)| other.labels() != labels);
        all.push((source, Alive::new(Instant::now())));
    }

    /// Looks at the pulses, and lets sources note how far they are.
    pub(crate) fn tick(&self, now: Instant) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (source, alive) in &mut *all {
            alive.look(source.pulse(), now);
            source.tick(now);
        }
    }

    /// Looks at all of them.
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

    /// Returns why each loop that does not live does not; none: all live.
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

/// Returns why a loop does not live; `None`: it does.
fn dead(source: &dyn Source, alive: &mut Alive, now: Instant) -> Option<String> {
    let stuck = alive.look(source.pulse(), now);
    (stuck >= SILENCE_MAX).then(|| {
        format!(
            "the loop has been in the same turn for {:.1} s",
            stuck.as_secs_f64()
        )
    })
}

/// Whether the loop lives.
pub(crate) const ALIVE: Metric = Metric::new(
    Kind::Gauge,
    "pmnet_alive",
    "Whether the loop turns, or waits for something to do (/livez).",
);

/// Whether it is ready.
pub(crate) const READY: Metric = Metric::new(
    Kind::Gauge,
    "pmnet_ready",
    "Whether the loop is ready (/readyz).",
);

/// The program.
pub(crate) const BUILD: Metric = Metric::new(
    Kind::Gauge,
    "pmnet_build_info",
    "Always 1. The labels say what is running: role, version, commit.",
);

impl Shown {
    /// Metrics that every process has.
    pub const METRICS: [Metric; 3] = [BUILD, ALIVE, READY];
}

/// One loop that was looked at.
#[derive(Debug)]
pub(crate) struct Looked {
    pub labels: Vec<(&'static str, String)>,
    /// Why it does not live.
    pub dead: Option<String>,
    pub look: Look,
}

impl Looked {
    /// Reasons why it is not ready, each with its name.
    pub fn reasons(&self) -> impl Iterator<Item = String> {
        let name = named(&self.labels);
        self.look
            .reasons
            .iter()
            .map(move |reason| format!("{name}: {reason}"))
    }
}

/// Returns the name of a loop, for a person.
fn named(labels: &[(&'static str, String)]) -> String {
    let parts: Vec<String> = labels
        .iter()
        .map(|(key, value)| format!("{key} {value}"))
        .collect();
    parts.join(", ")
}
