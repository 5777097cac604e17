//! The state of a process as JSON. `docs/operate/monitoring.md` has the schema.

use serde_json::{Map, Value as Json, json};

use crate::board::Shot;
use crate::metric::{Sample, Value};
use crate::source::{About, Looked};

/// Version of the schema. The version changes when a member is removed or its meaning changes. A new member does not
/// change the version.
pub const SCHEMA: u32 = 1;

/// Returns the state of a process as JSON.
pub(crate) fn write(about: &About, uptime_seconds: u64, loops: &[Looked]) -> String {
    let ready = !loops.is_empty() && loops.iter().all(|one| one.look.reasons.is_empty());
    let state = json!({
        "schema": SCHEMA,
        "role": about.role,
        "version": about.version,
        "commit": about.commit,
        "pid": std::process::id(),
        "uptime_seconds": uptime_seconds,
        "alive": loops.iter().all(|one| one.dead.is_none()),
        "ready": ready,
        "loops": loops.iter().map(one).collect::<Vec<Json>>(),
    });
    state.to_string() + "\n"
}

fn one(one: &Looked) -> Json {
    let labels: Map<String, Json> = one
        .labels
        .iter()
        .map(|(key, value)| ((*key).to_owned(), value.clone().into()))
        .collect();
    let mut metrics = Map::new();
    for sample in &one.look.samples {
        enter(&mut metrics, sample);
    }
    json!({
        "labels": labels,
        "alive": one.dead.is_none(),
        "ready": one.look.reasons.is_empty(),
        "reasons": one.look.reasons,
        "advice": one.look.advice.iter().map(|one| json!({ "alert": one.alert, "text": one.text })).collect::<Vec<Json>>(),
        "facts": one.look.facts,
        "metrics": metrics,
    })
}

/// Returns the upper bound and the count of each bucket that is not empty. A bound of null means that there is no
/// bound.
fn buckets(shot: &Shot) -> Vec<(Option<f64>, u64)> {
    let filled = shot.buckets.iter().filter(|(_, count)| *count > 0);
    filled
        .map(|&(bound, count)| ((bound != f64::MAX).then_some(bound), count))
        .collect()
}

/// Adds a sample under its name. If the sample has a label, adds the sample under the value of the label.
fn enter(metrics: &mut Map<String, Json>, sample: &Sample) {
    let metric = &sample.metric;
    let value = match &sample.value {
        Value::Count(count) => json!(count),
        Value::Number(number) => json!(number),
        Value::Histogram(shot) => json!({
            "count": shot.count(),
            "sum": shot.sum,
            "p50": shot.quantile(0.5),
            "p99": shot.quantile(0.99),
            "buckets": buckets(shot),
        }),
    };
    let name = metric.full_name();
    let own = metric.label.map(|(_, value)| value.to_owned());
    let part = own.or_else(|| sample.labels.first().map(|(_, value)| value.clone()));
    match part {
        None => {
            metrics.insert(name, value);
        }
        Some(part) => {
            let parts = metrics
                .entry(name)
                .or_insert_with(|| Json::Object(Map::new()));
            if let Json::Object(parts) = parts {
                parts.insert(part, value);
            }
        }
    }
}
