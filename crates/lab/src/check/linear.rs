//! Checks without a database whether the histories in files are linearizable.

use std::path::Path;

use anyhow::Context;
use pmnet_history::{KeyReport, Limits, Operation, Report, Verdict, describe};
use serde_json::{Value, json};

/// Reads the operations in a history file. `pmnet-lab load --history` and the history tests write such files.
///
/// # Errors
/// Fails if the file cannot be read, or if it has an operation without a model.
pub fn read_history(path: &Path) -> anyhow::Result<Vec<Operation>> {
    let read = || -> anyhow::Result<Vec<Operation>> {
        let file = std::fs::File::open(path)?;
        let records = pmnet_history::read_records(std::io::BufReader::new(file))?;
        Ok(pmnet_history::operations(&records)?)
    };
    read().with_context(|| format!("cannot check {}", path.display()))
}

/// Checks whether the operations on each key are linearizable.
#[must_use]
pub fn check_history(operations: &[Operation], limits: &Limits) -> Report {
    pmnet_history::check(operations, limits)
}

/// Returns a report as JSON.
#[must_use]
pub fn report_json(report: &Report) -> Value {
    let keys: Vec<Value> = report
        .keys
        .iter()
        .map(|key| key_json(key, report.origin))
        .collect();
    json!({
        "linearizable": report.is_linearizable(),
        "operations": report.operations(),
        "unknown": report.unknown(),
        "not_linearizable": report.not_linearizable(),
        "undecided": report.undecided(),
        "keys": keys,
    })
}

fn key_json(key: &KeyReport, origin: u64) -> Value {
    let mut value = json!({
        "key": key.key,
        "model": key.model.map(pmnet_history::Model::name),
        "operations": key.operations,
        "unknown": key.unknown,
    });
    match &key.verdict {
        Verdict::Linearizable => value["verdict"] = json!("linearizable"),
        Verdict::Undecided(why) => {
            value["verdict"] = json!("undecided");
            value["why"] = json!(why);
        }
        Verdict::NotLinearizable { offender, window } => {
            value["verdict"] = json!("not linearizable");
            value["offender"] = json!(describe(offender, origin));
            let window: Vec<_> = window.iter().map(|one| describe(one, origin)).collect();
            value["window"] = json!(window);
        }
    }
    value
}

/// Returns one line for each key, with the error that was found.
#[must_use]
pub fn report_table(report: &Report) -> String {
    let width = report
        .keys
        .iter()
        .map(|key| key.key.chars().count())
        .max()
        .unwrap_or(0)
        .max(3);
    let mut text = format!(
        "{:<width$}  model     operations  unknown  verdict\n",
        "key"
    );
    for key in &report.keys {
        let verdict = match key.verdict {
            Verdict::Linearizable => "linearizable",
            Verdict::NotLinearizable { .. } => "NOT linearizable",
            Verdict::Undecided(_) => "UNDECIDED",
        };
        let model = key.model.map_or("several", pmnet_history::Model::name);
        text += &format!(
            "{:<width$}  {model:<8} {:>11} {:>8}  {verdict}\n",
            key.key, key.operations, key.unknown
        );
    }
    text + &report.to_string()
}
