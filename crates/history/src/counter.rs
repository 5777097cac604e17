//! A counter: INCR and GET.
//!
//! All increments of unknown outcome are alike, and none of them must have taken effect at a given time. So the search
//! may take them in the order of their calls. For n such increments, the search tries n + 1 sets, not 2^n.

use crate::operation::{Action, Operation};
use crate::search::{Call, Sequential};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// An increment that returned this value.
    Incr(i64),
    /// An increment of unknown outcome, with its number among the increments of unknown outcome.
    Unknown(usize),
    Get(i64),
}

pub(crate) struct Counter;

impl Sequential for Counter {
    /// The counter's value, and the number of increments of unknown outcome that it includes.
    type State = (i64, usize);
    type Step = Step;

    fn initial() -> Self::State {
        (0, 0)
    }

    fn apply(step: &Step, state: &Self::State) -> Option<Self::State> {
        let (value, unknown) = *state;
        match *step {
            Step::Incr(reply) => (reply == value + 1).then_some((reply, unknown)),
            Step::Unknown(turn) => (turn == unknown).then_some((value + 1, unknown + 1)),
            Step::Get(reply) => (reply == value).then_some((value, unknown)),
        }
    }
}

/// Returns the operations on one key as steps of the model.
pub(crate) fn calls(operations: &[Operation]) -> Vec<Call<Step>> {
    let mut unknown: Vec<(u64, usize)> = operations
        .iter()
        .enumerate()
        .filter(|(_, operation)| {
            operation.returned.is_none() && matches!(operation.action, Action::Incr(_))
        })
        .map(|(index, operation)| (operation.invoked, index))
        .collect();
    unknown.sort_unstable();
    let mut calls = Vec::with_capacity(operations.len());
    for (index, operation) in operations.iter().enumerate() {
        let step = match (&operation.action, operation.returned) {
            (Action::Incr(reply), Some(_)) => Step::Incr(*reply),
            (Action::Incr(_), None) => match unknown.binary_search(&(operation.invoked, index)) {
                Ok(turn) => Step::Unknown(turn),
                Err(_) => continue,
            },
            (Action::Get(None), Some(_)) => Step::Get(0),
            // The value can never be this text, because it is not a positive number in the usual form.
            (Action::Get(Some(text)), Some(_)) => Step::Get(
                text.parse()
                    .ok()
                    .filter(|number: &i64| *number > 0 && number.to_string() == *text)
                    .unwrap_or(-1),
            ),
            _ => continue,
        };
        calls.push(Call {
            step,
            invoked: operation.invoked,
            returned: operation.returned,
        });
    }
    calls
}
