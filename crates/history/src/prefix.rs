//! A short proof that the history of a key is not linearizable.
//!
//! Certain parts of a linearizable history are linearizable, too. One such part is the beginning of the history.
//! Another is the history without some operations that changed nothing. For a register on which each value is written
//! once, another is the history without all operations on some value. For a lock, if no attempt was refused, another is
//! the history without all operations on some token. So if such a part is not linearizable, this part alone proves that
//! the history is not.

use std::collections::{BTreeMap, BTreeSet};

use crate::check::{Limits, Model, Verdict};
use crate::operation::{Action, Operation};
use crate::register;
use crate::search::Decision;

/// Maximum number of searches that are spent on making one proof shorter.
const SEARCHES_MAX: usize = 2_000;
/// Number of neighbours by value that are shown for a counter on each side.
const NEIGHBOURS: i64 = 2;
/// Maximum number of increments of unknown outcome that are shown for a counter.
const UNKNOWN_MAX: usize = 6;

/// Explains operations on one key that are known not to be linearizable.
pub(crate) fn explain(model: Model, operations: &[Operation], limits: &Limits) -> Verdict {
    let end = first_bad_return(model, operations, limits);
    let mut window = beginning(operations, end);
    let mut searches = 0;
    let mut is_bad = |part: &[Operation]| {
        searches += 1;
        searches <= SEARCHES_MAX && model.decide(part, limits) == Decision::NotLinearizable
    };
    // The operations that returned last must stay, because only their replies show that they changed nothing.
    let reads = |operations: &[Operation]| single_reads(operations, end);
    window = without(window, reads, &mut is_bad);
    if match model {
        Model::Register => register::is_unique(operations),
        Model::Lock => !window.iter().any(is_refused_lock),
        Model::Counter => false,
    } {
        window = without(window, by_value, &mut is_bad);
    }
    let offender = offender(model, &window, end, limits);
    if model == Model::Counter {
        window = neighbours(window, &offender);
    }
    // Reads of unknown outcome explain nothing.
    window.retain(|operation| {
        operation.returned.is_some() || !matches!(operation.action, Action::Get(_))
    });
    window.sort_by_key(|operation| (operation.invoked, operation.returned));
    Verdict::NotLinearizable { offender, window }
}

/// Returns the time of the first return after which the history so far is no longer linearizable.
fn first_bad_return(model: Model, operations: &[Operation], limits: &Limits) -> u64 {
    let mut returns: Vec<u64> = operations
        .iter()
        .filter_map(|operation| operation.returned)
        .collect();
    returns.sort_unstable();
    // After the last return the history is not linearizable. A history without any return is linearizable, so there is
    // at least one return.
    let bad = returns.partition_point(|at| {
        model.decide(&beginning(operations, *at), limits) != Decision::NotLinearizable
    });
    returns[bad.min(returns.len() - 1)]
}

/// Returns the operation that returned at `end`. Before `end` the history so far was linearizable, so the proof needs
/// this operation. If several operations returned at `end`, returns the operation without which the history would be
/// linearizable.
fn offender(model: Model, window: &[Operation], end: u64, limits: &Limits) -> Operation {
    let mut candidates: Vec<&Operation> = window
        .iter()
        .filter(|operation| operation.returned == Some(end))
        .collect();
    if candidates.len() > 1 {
        candidates.sort_by_cached_key(|candidate| {
            let without: Vec<Operation> = window
                .iter()
                .map(|operation| Operation {
                    returned: operation.returned.filter(|_| operation != *candidate),
                    ..operation.clone()
                })
                .collect();
            model.decide(&without, limits) == Decision::NotLinearizable
        });
    }
    candidates
        .first()
        .map(|operation| Operation::clone(operation))
        .expect("a beginning is bad only with its last return")
}

/// Returns the part of the history that had happened at `end`.
fn beginning(operations: &[Operation], end: u64) -> Vec<Operation> {
    operations
        .iter()
        .filter(|operation| operation.invoked <= end)
        .map(|operation| Operation {
            returned: operation.returned.filter(|at| *at <= end),
            ..operation.clone()
        })
        .collect()
}

/// Leaves out as many of the groups as possible. The function first tries to leave out many groups together, and at
/// last single groups.
fn without(
    operations: Vec<Operation>,
    groups: impl Fn(&[Operation]) -> Vec<Vec<usize>>,
    is_bad: &mut impl FnMut(&[Operation]) -> bool,
) -> Vec<Operation> {
    let groups = groups(&operations);
    let mut gone = BTreeSet::new();
    let mut size = groups.len();
    while size > 0 {
        for chunk in groups.chunks(size) {
            let more: BTreeSet<usize> = chunk.iter().flatten().copied().collect();
            if more.is_subset(&gone) {
                continue;
            }
            let all = gone.union(&more).copied().collect();
            if is_bad(&left(&operations, &all)) {
                gone = all;
            }
        }
        size /= 2;
    }
    left(&operations, &gone)
}

fn left(operations: &[Operation], gone: &BTreeSet<usize>) -> Vec<Operation> {
    operations
        .iter()
        .enumerate()
        .filter(|(index, _)| !gone.contains(index))
        .map(|(_, operation)| operation.clone())
        .collect()
}

fn single_reads(operations: &[Operation], end: u64) -> Vec<Vec<usize>> {
    operations
        .iter()
        .enumerate()
        .filter(|(_, operation)| operation.is_read_only() && operation.returned < Some(end))
        .map(|(index, _)| vec![index])
        .collect()
}

fn by_value(operations: &[Operation]) -> Vec<Vec<usize>> {
    let mut groups: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, operation) in operations.iter().enumerate() {
        if let Action::Set(value)
        | Action::Get(Some(value))
        | Action::Lock { token: value, .. }
        | Action::Release { token: value, .. } = &operation.action
        {
            groups.entry(value).or_default().push(index);
        }
    }
    groups.into_values().collect()
}

fn is_refused_lock(operation: &Operation) -> bool {
    operation.returned.is_some() && matches!(operation.action, Action::Lock { taken: false, .. })
}

/// For a counter, no operation may be left out of a proof. So only the offending operation's neighbours by value are
/// shown, and some operations of unknown outcome.
fn neighbours(operations: Vec<Operation>, offender: &Operation) -> Vec<Operation> {
    let Some(place) = value(offender) else {
        return operations;
    };
    let mut unknown = 0;
    operations
        .into_iter()
        // Of the operations of unknown outcome, those with the latest calls are shown.
        .rev()
        .filter(|operation| match value(operation) {
            Some(value) => value.abs_diff(place) <= NEIGHBOURS.unsigned_abs(),
            None => {
                unknown += 1;
                unknown <= UNKNOWN_MAX
            }
        })
        .collect()
}

/// Returns the value in the reply to an operation on a counter.
fn value(operation: &Operation) -> Option<i64> {
    operation.returned?;
    match &operation.action {
        Action::Incr(reply) => Some(*reply),
        Action::Get(None) => Some(0),
        Action::Get(Some(text)) => text.parse().ok(),
        _ => None,
    }
}
