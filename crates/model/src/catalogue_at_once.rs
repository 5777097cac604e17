//! Variants of the configurations of reads, in which clients ask the head and the store at the same time
//! (docs/spec/reads.md §3).

use crate::configuration::{Configuration, Goal};
use crate::{catalogue_marks, catalogue_reads};

const GOALS: &[Goal] = &[Goal::AllDone, Goal::AtOnce];

/// The small configurations. For each: its name, and the name of the configuration of reads on which it is based.
const QUICK: [(&str, &str); 16] = [
    ("at-once", "reads"),
    ("at-once-own", "reads-own"),
    ("at-once-collision", "reads-collision"),
    ("at-once-unknown", "reads-unknown"),
    ("at-once-restart", "reads-restart"),
    ("at-once-set", "reads-set"),
    ("at-once-sets", "reads-sets"),
    ("at-once-given-up", "reads-given-up"),
    ("at-once-script", "reads-script"),
    ("at-once-both", "reads-both"),
    ("at-once-head-lost", "reads-head-lost"),
    ("at-once-moved", "reads-moved"),
    ("at-once-replica", "reads-replica"),
    ("at-once-recover", "reads-recover"),
    ("at-once-marks", "marks"),
    ("at-once-marks-script", "marks-script"),
];

/// The larger configurations. For each: its name, and the name of the configuration of reads on which it is based.
const FULL: [(&str, &str); 6] = [
    ("at-once-stamps", "reads-stamps"),
    ("at-once-fallback", "reads-fallback"),
    ("at-once-script-large", "reads-script-large"),
    ("at-once-merged", "reads-merged"),
    ("at-once-join", "reads-join"),
    ("at-once-marks-restart", "marks-restart"),
];

/// Returns the small configurations.
pub(crate) fn quick() -> Vec<Configuration> {
    QUICK.map(|(name, like)| at_once(name, like, true)).to_vec()
}

/// Returns the larger configurations.
pub(crate) fn full() -> Vec<Configuration> {
    FULL.map(|(name, like)| at_once(name, like, false)).to_vec()
}

fn at_once(name: &'static str, like: &str, quick: bool) -> Configuration {
    let mut others = catalogue_reads::quick();
    others.extend(catalogue_reads::full());
    others.extend(catalogue_marks::quick());
    let like = others.into_iter().find(|other| other.name == like);
    Configuration {
        name,
        at_once: true,
        goals: GOALS,
        quick,
        ..like.expect("it is in one of the catalogues: tested")
    }
}
