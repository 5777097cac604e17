//! Checks a history: splits it by key, and gives a verdict on each key by the model of the key.

use std::collections::BTreeMap;

use crate::operation::{Action, Operation};
use crate::search::{Decision, decide};
use crate::{counter, lock, prefix, register};

/// Bounds of a check.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of bytes of the configurations that the search for one key may remember. If the search needs more
    /// bytes, the key is undecided. The bound also limits the time of the search: a gigabyte takes several seconds.
    pub bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            bytes_max: 512 << 20,
        }
    }
}

/// The model of a key, which follows from the operations on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Model {
    /// SET and GET.
    Register,
    /// INCR and GET.
    Counter,
    /// SET NX, release and GET.
    Lock,
}

impl Model {
    /// Returns the name of the model.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Model::Register => "register",
            Model::Counter => "counter",
            Model::Lock => "lock",
        }
    }

    /// Returns the model of these operations, all on one key; `None` if they belong to several models.
    pub(crate) fn of(operations: &[Operation]) -> Option<Model> {
        let mut found = None;
        for operation in operations {
            let model = match operation.action {
                Action::Set(_) => Model::Register,
                Action::Incr(_) => Model::Counter,
                Action::Lock { .. } | Action::Release { .. } => Model::Lock,
                Action::Get(_) => continue,
            };
            if found.is_some_and(|found| found != model) {
                return None;
            }
            found = Some(model);
        }
        // The key was only read. Every read must have found no value.
        Some(found.unwrap_or(Model::Register))
    }

    pub(crate) fn decide(self, operations: &[Operation], limits: &Limits) -> Decision {
        let bytes_max = limits.bytes_max;
        match self {
            Model::Register => {
                decide::<register::Register>(&register::calls(operations), bytes_max)
            }
            Model::Counter => decide::<counter::Counter>(&counter::calls(operations), bytes_max),
            Model::Lock => decide::<lock::Lock>(&lock::calls(operations), bytes_max),
        }
    }
}

/// The verdict on one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// An order of the operations explains every reply.
    Linearizable,
    /// No order of the operations explains every reply.
    NotLinearizable {
        /// The first reply, by the time of its return, that no order explains.
        offender: Operation,
        /// Operations that contradict each other, by the time of their calls. The list includes the offending
        /// operation. The checker has left out as many operations as it could. For a counter, these are the offending
        /// operation and its neighbours by value.
        window: Vec<Operation>,
    },
    /// The key could not be decided, for this reason.
    Undecided(String),
}

/// The result for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyReport {
    /// The key.
    pub key: String,
    /// The model of the key; `None`: its operations belong to several models.
    pub model: Option<Model>,
    /// Number of operations on the key.
    pub operations: usize,
    /// Number of operations on the key whose outcome is unknown.
    pub unknown: usize,
    /// The verdict on the key.
    pub verdict: Verdict,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The results for all keys, ordered by key.
    pub keys: Vec<KeyReport>,
    /// Time of the first call of the history. Texts give times relative to this time.
    pub origin: u64,
}

impl Report {
    /// Whether every key is linearizable.
    #[must_use]
    pub fn is_linearizable(&self) -> bool {
        self.count(|verdict| *verdict == Verdict::Linearizable) == self.keys.len()
    }

    /// Returns the number of keys that are not linearizable.
    #[must_use]
    pub fn not_linearizable(&self) -> usize {
        self.count(|verdict| matches!(verdict, Verdict::NotLinearizable { .. }))
    }

    /// Returns the number of keys that could not be decided.
    #[must_use]
    pub fn undecided(&self) -> usize {
        self.count(|verdict| matches!(verdict, Verdict::Undecided(_)))
    }

    /// Returns the number of operations on all keys.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.keys.iter().map(|key| key.operations).sum()
    }

    /// Returns the number of operations on all keys whose outcome is unknown.
    #[must_use]
    pub fn unknown(&self) -> usize {
        self.keys.iter().map(|key| key.unknown).sum()
    }

    fn count(&self, which: impl Fn(&Verdict) -> bool) -> usize {
        self.keys.iter().filter(|key| which(&key.verdict)).count()
    }
}

/// Checks a history, each key separately. At the start of the history, no key is assumed to exist.
#[must_use]
pub fn check(history: &[Operation], limits: &Limits) -> Report {
    let mut keys: BTreeMap<&str, Vec<Operation>> = BTreeMap::new();
    for operation in history {
        let operations = keys.entry(&operation.key).or_default();
        operations.push(operation.clone());
    }
    let keys = keys
        .into_iter()
        .map(|(key, operations)| check_key(key, &operations, limits))
        .collect();
    let origin = history.iter().map(|operation| operation.invoked).min();
    Report {
        keys,
        origin: origin.unwrap_or(0),
    }
}

fn check_key(key: &str, operations: &[Operation], limits: &Limits) -> KeyReport {
    let model = Model::of(operations);
    let verdict = match model {
        None => Verdict::Undecided("its operations are of several models".to_owned()),
        Some(model) => match model.decide(operations, limits) {
            Decision::Linearizable => Verdict::Linearizable,
            Decision::Undecided => Verdict::Undecided(format!(
                "the search reached its bound of {} bytes",
                limits.bytes_max
            )),
            Decision::NotLinearizable => prefix::explain(model, operations, limits),
        },
    };
    KeyReport {
        key: key.to_owned(),
        model,
        operations: operations.len(),
        unknown: operations
            .iter()
            .filter(|operation| operation.returned.is_none())
            .count(),
        verdict,
    }
}
