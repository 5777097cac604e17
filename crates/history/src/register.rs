//! A register: SET and GET.
//!
//! If every SET writes a different value, as in a good test, the checker can resolve most unknown outcomes. If the
//! value of a SET was read, the SET took effect before this read returned. If the value of a SET was never read, the
//! SET may be left out, because no reply depends on it. So long histories with many unknown outcomes are easy to check.

use std::collections::BTreeMap;

use crate::operation::{Action, Operation};
use crate::search::{Call, Sequential};

/// Number of the register's value; 0: the key does not exist.
type Value = usize;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Set(Value),
    Get(Value),
}

pub(crate) struct Register;

impl Sequential for Register {
    type State = Value;
    type Step = Step;

    fn initial() -> Value {
        0
    }

    fn apply(step: &Step, state: &Value) -> Option<Value> {
        match step {
            Step::Set(value) => Some(*value),
            Step::Get(value) => (value == state).then_some(*state),
        }
    }
}

/// Whether each value is written at most once.
pub(crate) fn is_unique(operations: &[Operation]) -> bool {
    let mut seen = std::collections::BTreeSet::new();
    operations.iter().all(|operation| match &operation.action {
        Action::Set(value) => seen.insert(value),
        _ => true,
    })
}

/// Returns the operations on one key as steps of the model.
pub(crate) fn calls(operations: &[Operation]) -> Vec<Call<Step>> {
    let unique = is_unique(operations);
    // For each value, the time at which the first read of this value returned.
    let mut read: BTreeMap<&str, u64> = BTreeMap::new();
    for operation in operations {
        if let (Action::Get(Some(value)), Some(at)) = (&operation.action, operation.returned) {
            let first = read.entry(value).or_insert(at);
            *first = at.min(*first);
        }
    }
    let mut numbers: BTreeMap<&str, Value> = BTreeMap::new();
    let mut number = |value| {
        let next = numbers.len() + 1;
        *numbers.entry(value).or_insert(next)
    };
    let mut calls = Vec::with_capacity(operations.len());
    for operation in operations {
        let mut returned = operation.returned;
        let step = match (&operation.action, returned) {
            (Action::Set(value), known) => {
                if known.is_none() && unique {
                    let Some(at) = read.get(value.as_str()) else {
                        continue;
                    };
                    returned = Some((*at).max(operation.invoked));
                }
                Step::Set(number(value))
            }
            (Action::Get(Some(value)), Some(_)) => Step::Get(number(value)),
            (Action::Get(None), Some(_)) => Step::Get(0),
            _ => continue,
        };
        calls.push(Call {
            step,
            invoked: operation.invoked,
            returned,
        });
    }
    calls
}
