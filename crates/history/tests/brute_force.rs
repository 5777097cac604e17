//! Compares the checker with a search through every order, on small histories of all kinds. Also checks long histories
//! that are made so that they are linearizable.

mod common;

use std::collections::BTreeMap;

use common::{never, operation};
use pmnet_history::{Action, Limits, Operation, Verdict, check};
use proptest::prelude::*;

/// The state in each of the models: the value of the key.
type State = Option<String>;

/// Returns the state after an operation; `None` if the operation's reply is impossible in this state.
fn apply(operation: &Operation, state: &State) -> Option<State> {
    let known = operation.returned.is_some();
    let text = state.clone();
    match &operation.action {
        Action::Set(value) => Some(Some(value.clone())),
        Action::Get(reply) => (!known || *reply == text).then_some(text),
        Action::Incr(reply) => {
            let value = text.map_or(0, |text| text.parse::<i64>().unwrap()) + 1;
            (!known || *reply == value).then(|| Some(value.to_string()))
        }
        Action::Lock { token, taken } => {
            let free = text.is_none();
            (!known || *taken == free).then(|| if free { Some(token.clone()) } else { text })
        }
        Action::Release { token, released } => {
            let held = text.as_ref() == Some(token);
            (!known || *released == held).then_some(if held { None } else { text })
        }
    }
}

/// Tries every order of the operations. An operation without a return may be left out.
fn brute_force(left: &[Operation], state: &State) -> bool {
    if left.iter().all(|operation| operation.returned.is_none()) {
        return true;
    }
    let first_return = left.iter().filter_map(|operation| operation.returned).min();
    (0..left.len()).any(|index| {
        let mut rest = left.to_vec();
        let next = rest.remove(index);
        // No other operation may have returned before this operation was called.
        first_return.is_none_or(|at| at >= next.invoked)
            && apply(&next, state).is_some_and(|state| brute_force(&rest, &state))
    })
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Register,
    RegisterWithRepeats,
    Counter,
    Lock,
}

fn small(kind: Kind) -> impl Strategy<Value = Vec<Operation>> {
    let one = (
        0..10_u64,
        0..8_u64,
        0..4_usize,
        0..4_i64,
        any::<bool>(),
        0..5_u8,
    );
    proptest::collection::vec(one, 1..7).prop_map(move |all| {
        let make = |(index, one): (usize, (u64, u64, usize, i64, bool, u8))| {
            let (invoked, length, choice, number, flag, lost) = one;
            let text = number.to_string();
            let value = if matches!(kind, Kind::RegisterWithRepeats) {
                number.to_string()
            } else {
                index.to_string()
            };
            let seen = (number > 0).then(|| text.clone());
            let action = match (kind, choice) {
                (Kind::Register | Kind::RegisterWithRepeats, 0 | 1) => Action::Set(value),
                (Kind::Counter, 0..=2) => Action::Incr(number + 1),
                (Kind::Lock, 0 | 1) => Action::Lock {
                    token: value,
                    taken: flag,
                },
                (Kind::Lock, 2) => Action::Release {
                    token: text,
                    released: flag,
                },
                _ => Action::Get(seen),
            };
            let one = operation(0, invoked, invoked + length, action);
            if lost == 0 { never(one) } else { one }
        };
        all.into_iter().enumerate().map(make).collect()
    })
}

fn agree(history: &[Operation]) -> Result<(), TestCaseError> {
    let report = check(history, &Limits::default());
    let expected = brute_force(history, &None);
    prop_assert_eq!(
        report.is_linearizable(),
        expected,
        "{}\n{:?}",
        report,
        history
    );
    if let Verdict::NotLinearizable { window, offender } = &report.keys[0].verdict {
        prop_assert!(window.contains(offender), "{:?}", window);
        // The window alone must be a proof, except for counters, whose windows show only neighbours.
        let counts = history
            .iter()
            .any(|operation| matches!(operation.action, Action::Incr(_)));
        prop_assert!(counts || !brute_force(window, &None), "{:?}", window);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn registers(history in small(Kind::Register)) {
        agree(&history)?;
    }

    #[test]
    fn registers_with_repeated_values(history in small(Kind::RegisterWithRepeats)) {
        agree(&history)?;
    }

    #[test]
    fn counters(history in small(Kind::Counter)) {
        agree(&history)?;
    }

    #[test]
    fn locks(history in small(Kind::Lock)) {
        agree(&history)?;
    }
}

/// Makes a history of `count` operations by `clients` on `keys`. Each operation takes effect at a moment between its
/// call and its return. One in `lost` operations has no reply. Every second of these operations has no effect.
fn made(count: usize, clients: u64, keys: usize, lost: usize, seed: u64) -> Vec<Operation> {
    let mut random = fastrand::Rng::with_seed(seed);
    // Each entry: the moment of an effect, and the operation.
    let mut plan = Vec::new();
    let mut clock = vec![0_u64; usize::try_from(clients).unwrap()];
    for number in 0..count {
        let client = random.usize(0..clock.len());
        let invoked = clock[client] + random.u64(1..50);
        let effect = invoked + random.u64(0..200);
        let returned = effect + random.u64(0..200);
        clock[client] = returned;
        plan.push((effect, client, invoked, returned, number));
    }
    plan.sort_unstable();
    let mut states: BTreeMap<String, State> = BTreeMap::new();
    let mut history = Vec::new();
    for (_, client, invoked, returned, number) in plan {
        let slot = random.usize(0..keys);
        let key = format!("{}:{slot}", ["r", "c", "l"][slot % 3]);
        let state = states.entry(key.clone()).or_default();
        let value = state.clone().unwrap_or_default();
        let action = match (slot % 3, random.bool()) {
            (0, true) => Action::Set(number.to_string()),
            (1, true) => Action::Incr(value.parse::<i64>().unwrap_or(0) + 1),
            (2, true) if state.is_none() => Action::Lock {
                token: number.to_string(),
                taken: true,
            },
            (2, true) => Action::Release {
                token: value,
                released: true,
            },
            (2, false) if state.is_some() => Action::Lock {
                token: number.to_string(),
                taken: false,
            },
            _ => Action::Get(state.clone()),
        };
        let client = u64::try_from(client).unwrap();
        let mut one = operation(client, invoked, returned, action);
        one.key = key;
        let unknown = random.usize(0..lost) == 0;
        if !unknown || random.bool() {
            *state = apply(&one, state).expect("it was made to fit");
        }
        history.push(if unknown { never(one) } else { one });
    }
    history
}

#[test]
fn long_histories_that_are_linearizable() {
    for seed in 0..20 {
        let history = made(2_000, 8, 12, 50, seed);
        let report = check(&history, &Limits::default());
        assert!(report.is_linearizable(), "seed {seed}: {report}");
    }
}

/// Checks ten thousand operations. With `wrong`, one reply in the middle is wrong.
fn ten_thousand(keys: usize, seed: u64, wrong: bool) {
    let mut history = made(10_000, 8, keys, 200, seed);
    if wrong {
        let bad = history
            .iter_mut()
            .skip(5_000)
            .find(|operation| {
                operation.returned.is_some() && matches!(operation.action, Action::Get(Some(_)))
            })
            .unwrap();
        bad.action = Action::Get(Some("never written".into()));
    }
    let report = check(&history, &Limits::default());
    assert_eq!(report.operations(), 10_000);
    assert_eq!(report.undecided(), 0, "{report}");
    assert_eq!(report.not_linearizable(), usize::from(wrong), "{report}");
}

#[test]
fn ten_thousand_operations_on_thirty_keys() {
    ten_thousand(30, 1, false);
}

#[test]
fn ten_thousand_operations_on_thirty_keys_with_a_wrong_reply() {
    ten_thousand(30, 1, true);
}

#[test]
fn ten_thousand_operations_on_three_keys() {
    ten_thousand(3, 2, false);
}

#[test]
fn ten_thousand_operations_on_three_keys_with_a_wrong_reply() {
    ten_thousand(3, 2, true);
}

#[test]
fn one_wrong_reply_in_a_long_history_is_found() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut found = 0;
    for seed in 0..30 {
        let mut history = made(1_500, 8, 9, 100, seed);
        let index = random.usize(700..1_500);
        let operation = &mut history[index];
        let (key, known) = (operation.key.clone(), operation.returned.is_some());
        match &mut operation.action {
            Action::Incr(reply) if known => *reply += 40,
            Action::Lock { taken, .. } if known => *taken = !*taken,
            Action::Release { released, .. } if known => *released = !*released,
            Action::Get(value) if known && value.is_some() => *value = None,
            _ => continue,
        }
        let report = check(&history, &Limits::default());
        // In rare cases the changed history is linearizable nevertheless. The report must not name another key.
        for key_report in &report.keys {
            if key_report.key != key {
                assert_eq!(key_report.verdict, Verdict::Linearizable);
            } else if matches!(key_report.verdict, Verdict::NotLinearizable { .. }) {
                found += 1;
            }
        }
    }
    assert!(found >= 10, "{found}");
}
