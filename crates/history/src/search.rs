//! The search of `todc-utils`, with two additions: a bound, and operations that never return.
//!
//! *Operations that never return* get a return after the returns of all other operations. Before these returns there is
//! one more operation, the end. After the end, each operation that never returned may count as having no effect. Before
//! the end, the search tries such an operation only if it changes the state. An operation that does not change the
//! state can as well come last. Leaving these cases out changes no verdict, and saves most of the search.
//!
//! *The bound* limits the number of bytes of remembered configurations. When the bound is reached, the search refuses
//! every further step. The library then ends quickly, with an answer that is ignored.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::marker::PhantomData;

use todc_utils::linearizability::history::{Action, History};
use todc_utils::{Specification, WGLChecker};

/// Approximate number of bytes of a remembered configuration besides its bitmap.
const CONFIGURATION_BYTES: u64 = 96;

/// A sequential specification of an object.
pub(crate) trait Sequential {
    /// The state of the object.
    type State: Clone + Eq + Hash + Debug;
    /// An operation with its reply.
    type Step: Clone + Debug;

    /// Returns the state before the first operation.
    fn initial() -> Self::State;

    /// Returns the state after a step; `None` if the step's reply is impossible in this state.
    fn apply(step: &Self::Step, state: &Self::State) -> Option<Self::State>;
}

/// A step with its times.
#[derive(Clone, Debug)]
pub(crate) struct Call<T> {
    pub step: T,
    pub invoked: u64,
    /// Time of the return. `None`: the step takes effect at any time after its call, or never.
    pub returned: Option<u64>,
}

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Linearizable,
    NotLinearizable,
    /// The bound was reached.
    Undecided,
}

/// Searches for an order of `calls` that explains their replies. Remembers at most `bytes_max` bytes.
pub(crate) fn decide<S: Sequential>(calls: &[Call<S::Step>], bytes_max: u64) -> Decision {
    if calls.is_empty() {
        return Decision::Linearizable;
    }
    let actions = actions(calls);
    let bitmap = u64::try_from(actions.len()).unwrap_or(u64::MAX);
    LEFT.set(bytes_max);
    STEP.set(bitmap.saturating_add(CONFIGURATION_BYTES));
    let found = WGLChecker::<Bounded<S>>::is_linearizable(History::from_actions(actions));
    match (found, LEFT.get()) {
        (true, _) => Decision::Linearizable,
        (false, 0) => Decision::Undecided,
        (false, _) => Decision::NotLinearizable,
    }
}

/// Returns calls and returns in the order of time. At equal times calls come before returns: an operation that begins
/// when another operation ends counts as concurrent with it.
fn actions<T: Clone>(calls: &[Call<T>]) -> Vec<(usize, Action<Event<T>>)> {
    let mut order = BTreeMap::new();
    let (mut last, mut never) = (Vec::new(), Vec::new());
    for (index, call) in calls.iter().enumerate() {
        let event = if call.returned.is_some() {
            Event::Known(call.step.clone())
        } else {
            Event::Unknown(call.step.clone())
        };
        order.insert(
            (call.invoked, false, index),
            (index, Action::Call(event.clone())),
        );
        match call.returned {
            Some(at) => {
                order.insert((at, true, index), (index, Action::Response(event)));
            }
            None => never.push((index, Action::Response(event))),
        }
    }
    if !never.is_empty() {
        last.push((calls.len(), Action::Call(Event::End)));
        last.push((calls.len(), Action::Response(Event::End)));
    }
    order.into_values().chain(last).chain(never).collect()
}

thread_local! {
    /// Number of bytes that the search of this thread may still remember.
    static LEFT: Cell<u64> = const { Cell::new(0) };
    /// Number of bytes of one configuration.
    static STEP: Cell<u64> = const { Cell::new(0) };
}

#[derive(Clone, Debug)]
enum Event<T> {
    Known(T),
    Unknown(T),
    End,
}

/// An object to which the bound and the end were added.
struct Bounded<S>(PhantomData<S>);

impl<S: Sequential> Specification for Bounded<S> {
    /// State of the object; `None`: after the end.
    type State = Option<S::State>;
    type Operation = Event<S::Step>;

    fn init() -> Self::State {
        Some(S::initial())
    }

    fn apply(event: &Self::Operation, state: &Self::State) -> (bool, Self::State) {
        let next = match (event, state) {
            // Operations after the end have no effect.
            (_, None) | (Event::End, Some(_)) => Some(None),
            (Event::Known(step), Some(state)) => S::apply(step, state).map(Some),
            (Event::Unknown(step), Some(state)) => {
                S::apply(step, state).filter(|next| next != state).map(Some)
            }
        };
        // Refused steps need no bound of their own: between two accepted steps there are at most as many as there are
        // calls.
        let left = LEFT.get();
        if next.is_some() {
            LEFT.set(left.saturating_sub(STEP.get()));
        }
        match next {
            Some(next) if left > 0 => (true, next),
            _ => (false, state.clone()),
        }
    }
}
