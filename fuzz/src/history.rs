//! Histories in the format of `pmnet-lab load --history`: JSON lines, with the ledger and the
//! verdict that are made from them.
//!
//! Invariants: reading never panics; a parsed record is written to a line that parses as the same
//! record; the ledger counts every operation that it takes, once; a history in which every
//! operation takes effect at one moment within its call is linearizable.

use std::collections::BTreeMap;

use pmnet_history::{Limits, check, describe, operations, read_records};
use pmnet_lab::check::Ledger;
use pmnet_lab::load::{Op, Outcome, Record};

use crate::input::Input;

/// Maximum number of operations of one history.
const OPERATIONS: usize = 64;
/// Maximum number of operations whose order is searched for.
const SEARCHED: usize = 12;
/// Limits of a search.
const LIMITS: Limits = Limits {
    bytes_max: 16 << 20,
};

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.byte() % 3 {
        0 => text(input.rest()),
        1 => ledger(&mut input),
        _ => true_history(&mut input),
    }
}

/// Parses lines with any contents.
fn text(bytes: &[u8]) {
    for line in String::from_utf8_lossy(bytes).lines().take(OPERATIONS) {
        if let Ok(record) = serde_json::from_str::<Record>(line) {
            same(&record);
            let _ = Ledger::new().add(&record);
        }
    }
    match read_records(bytes) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(mut records) => {
            records.truncate(SEARCHED);
            judge(&records);
        }
    }
}

/// Any verdict is allowed, but its text must be complete.
fn judge(records: &[pmnet_history::Record]) {
    match operations(records) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(operations) => {
            let report = check(&operations, &LIMITS);
            let counted: usize = report.keys.iter().map(|key| key.operations).sum();
            assert_eq!(counted, operations.len());
            for operation in &operations {
                assert!(!describe(operation, report.origin).is_empty());
            }
        }
    }
}

fn ledger(input: &mut Input<'_>) {
    let mut ledger = Ledger::new();
    let mut taken = 0;
    for _ in 0..OPERATIONS {
        if !input.more() {
            break;
        }
        let record = record(input);
        same(&record);
        taken += u64::from(ledger.add(&record).is_ok());
    }
    assert_eq!(ledger.acknowledged + ledger.failed + ledger.unknown, taken);
}

fn record(input: &mut Input<'_>) -> Record {
    let number = |input: &mut Input<'_>| match input.byte() {
        0..=199 => u64::from(input.byte() % 8).to_string(),
        200..=229 => input.long().to_string(),
        _ => String::from_utf8_lossy(input.bytes(8)).into_owned(),
    };
    Record {
        client: u64::from(input.byte() % 4),
        op: input.pick(&Op::ALL),
        key: format!("k{}", input.byte() % 3),
        value: number(input),
        reply: match input.byte() % 4 {
            0 => None,
            1 => Some("OK".into()),
            _ => Some(number(input)),
        },
        invoke_ns: input.long(),
        return_ns: input.long(),
        outcome: input.pick(&[Outcome::Ok, Outcome::Failed, Outcome::Unknown]),
    }
}

/// Checks that a record survives being written and read.
fn same(record: &Record) {
    let line = serde_json::to_string(record).expect("a record can be written");
    assert!(!line.contains('\n'), "one line");
    let again: Record = serde_json::from_str(&line).expect("and read");
    assert_eq!(again, *record);
}

/// Makes a history in which calls take effect one after the other, each between its call and its
/// return; some outcomes are unknown.
fn true_history(input: &mut Input<'_>) {
    let mut state: BTreeMap<String, u64> = BTreeMap::new();
    let mut records = Vec::new();
    for moment in 1..=SEARCHED {
        if !input.more() {
            break;
        }
        let moment = 1000 * u64::try_from(moment).expect("few");
        let counter = input.rarely(2);
        let key = if counter { "n" } else { "r" }.to_owned();
        let unknown = input.rarely(4);
        let (op, value, reply) = match (input.byte() % 2, counter) {
            (0, _) => (Op::Get, String::new(), state.get(&key).map(u64::to_string)),
            (_, true) => {
                let number = state.entry(key.clone()).or_default();
                *number += 1;
                (Op::Incr, String::new(), Some(number.to_string()))
            }
            (_, false) => {
                state.insert(key.clone(), moment);
                (Op::Set, moment.to_string(), Some("OK".to_owned()))
            }
        };
        let outcome = if unknown {
            Outcome::Unknown
        } else {
            Outcome::Ok
        };
        let record = Record {
            client: moment,
            op,
            key,
            value,
            reply: reply.filter(|_| !unknown),
            invoke_ns: moment.saturating_sub(u64::from(input.short() % 8000)),
            return_ns: moment + u64::from(input.short() % 8000),
            outcome,
        };
        records.push(serde_json::to_string(&record).expect("a record can be written"));
    }
    let text = records.join("\n");
    let records = read_records(text.as_bytes()).expect("they were just written");
    judge(&records);
    let operations = operations(&records).expect("registers and counters");
    let report = check(&operations, &LIMITS);
    assert!(report.is_linearizable(), "{text}\n{:?}", report.keys);
}
