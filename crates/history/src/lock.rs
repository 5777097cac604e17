//! A lock. A lock is taken with SET NX under a token, released by a client that knows the token, and read with GET.

use std::collections::BTreeMap;

use crate::operation::{Action, Operation};
use crate::search::{Call, Sequential};

/// Number of the token that holds the lock; 0: the lock is free.
type Token = usize;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// An attempt to take the lock: its token, and whether the attempt took the lock; `None`: unknown.
    Lock(Token, Option<bool>),
    /// A release: its token, and whether the release freed the lock; `None`: unknown.
    Release(Token, Option<bool>),
    Get(Token),
}

pub(crate) struct Lock;

impl Sequential for Lock {
    type State = Token;
    type Step = Step;

    fn initial() -> Token {
        0
    }

    fn apply(step: &Step, state: &Token) -> Option<Token> {
        let fits = |told: Option<bool>, happens: bool| told.is_none_or(|told| told == happens);
        match *step {
            Step::Lock(token, told) => {
                let free = *state == 0;
                fits(told, free).then_some(if free { token } else { *state })
            }
            Step::Release(token, told) => {
                let held = *state == token;
                fits(told, held).then_some(if held { 0 } else { *state })
            }
            Step::Get(token) => (token == *state).then_some(*state),
        }
    }
}

/// Returns the operations on one key as steps of the model.
pub(crate) fn calls(operations: &[Operation]) -> Vec<Call<Step>> {
    let mut numbers: BTreeMap<&str, Token> = BTreeMap::new();
    let mut number = |token| {
        let next = numbers.len() + 1;
        *numbers.entry(token).or_insert(next)
    };
    let mut calls = Vec::with_capacity(operations.len());
    for operation in operations {
        let known = operation.returned.is_some();
        let step = match &operation.action {
            Action::Lock { token, taken } => Step::Lock(number(token), known.then_some(*taken)),
            Action::Release { token, released } => {
                Step::Release(number(token), known.then_some(*released))
            }
            Action::Get(_) if !known => continue,
            Action::Get(None) => Step::Get(0),
            Action::Get(Some(token)) => Step::Get(number(token)),
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
