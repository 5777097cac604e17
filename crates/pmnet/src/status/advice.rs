//! Finds problems of a loop. For each problem there is an alert in `docs/operate/alerts.md`, which says what to do. The
//! page of the status port, `pmnet status --at` and `pmnet top` all show the result.

use pmnet_status::{Advice, Look, Value};

/// Time without an answer of the devices, in seconds, after which there is advice.
const SILENT_SECONDS: f64 = 1.0;
/// Lag of a store, in seconds, above which there is advice.
const BEHIND_SECONDS: f64 = 10.0;
/// Time without an answer of etcd, in seconds, after which there is advice.
const ETCD_SECONDS: f64 = 10.0;
/// Percentage of a log's entries in use above which there is advice.
const USED_PERCENT: f64 = 80.0;

/// Adds the advice of each rule that applies to the loop.
pub(super) fn advise(look: &mut Look) {
    let found = RULES.iter().filter(|(_, applies, _)| applies(look));
    let found: Vec<Advice> = found
        .map(|&(alert, _, text)| Advice { alert, text })
        .collect();
    look.advice.extend(found);
}

type Rule = (&'static str, fn(&Look) -> bool, &'static str);

/// The rules. Each has an alert, a condition and a sentence.
const RULES: [Rule; 8] = [
    (
        "PmnetNoHead",
        |look| is(look, "pmnet_device_serving", |serving| serving == 0.0),
        "This device does not serve: nothing is acknowledged through it.",
    ),
    (
        "PmnetLeaseLost",
        |look| is(look, "pmnet_device_lease_seconds_left", |left| left <= 0.0),
        "This device has no lease: it answers nobody.",
    ),
    (
        "PmnetTooFewCopies",
        |look| {
            let wanted = number(look, "pmnet_device_copies_wanted").unwrap_or(0.0);
            is(look, "pmnet_device_serving", |serving| serving > 0.0)
                && is(look, "pmnet_device_copies", |copies| copies < wanted)
        },
        "A device of the chain is missing.",
    ),
    (
        "PmnetDevicesSilent",
        |look| {
            let is_silent = |seconds| seconds > SILENT_SECONDS;
            is(look, "pmnet_front_unanswered_seconds", is_silent)
                || is(look, "pmnet_memcached_unanswered_seconds", is_silent)
        },
        "A device of the chain is lost, or cannot be reached. Writes wait.",
    ),
    (
        "PmnetStorePaused",
        |look| {
            let pauses = look.facts.get("store_pauses");
            pauses.is_some_and(|why| !why.is_null())
        },
        "The store is left alone after a failure. Writes are acknowledged until the log is full.",
    ),
    (
        "PmnetStoreBehind",
        |look| {
            is(look, "pmnet_device_oldest_unapplied_seconds", |seconds| {
                seconds > BEHIND_SECONDS
            })
        },
        "The store is far behind. Nothing is lost; the log fills up.",
    ),
    (
        "PmnetLogFilling",
        |look| {
            let capacity = number(look, "pmnet_device_log_entries_capacity").unwrap_or(0.0);
            is(look, "pmnet_device_log_entries_used", |used| {
                is_filling(used, capacity)
            })
        },
        "More than 80 % of the log is in use.",
    ),
    (
        "PmnetEtcdSilent",
        |look| {
            is(look, "pmnet_controller_heard_seconds_ago", |seconds| {
                seconds > ETCD_SECONDS
            })
        },
        "Etcd does not answer: no chain is changed.",
    ),
];

/// Returns whether more than 80 % of a log's entries are in use. A device with such a log is not ready.
pub(super) fn is_filling(used: f64, capacity: f64) -> bool {
    capacity > 0.0 && 100.0 * used > USED_PERCENT * capacity
}

/// Returns whether a metric has a value that fulfils the condition.
fn is(look: &Look, name: &str, condition: impl Fn(f64) -> bool) -> bool {
    number(look, name).is_some_and(condition)
}

fn number(look: &Look, name: &str) -> Option<f64> {
    let sample = look
        .samples
        .iter()
        .find(|sample| sample.metric.name == name)?;
    match &sample.value {
        // The counts that rules compare are small enough for an exact conversion.
        #[allow(clippy::cast_precision_loss)]
        Value::Count(count) => Some(*count as f64),
        Value::Number(number) => Some(*number),
        Value::Histogram(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use pmnet_status::{Kind, Metric, Sample};
    use serde_json::{Value as Json, json};

    use super::*;

    fn alerts(samples: &[(&'static str, f64)], pauses: Option<Json>) -> Vec<&'static str> {
        let mut look = Look::default();
        let samples = samples.iter().map(|&(name, number)| {
            Sample::new(
                Metric::new(Kind::Gauge, name, "A number."),
                Value::Number(number),
            )
        });
        look.samples.extend(samples);
        let pauses = pauses.map(|pauses| ("store_pauses".to_owned(), pauses));
        look.facts.extend(pauses);
        advise(&mut look);
        look.advice.iter().map(|advice| advice.alert).collect()
    }

    #[test]
    fn each_rule_applies_beyond_its_bound_only() {
        let well = [
            ("pmnet_device_serving", 1.0),
            ("pmnet_device_lease_seconds_left", 0.1),
            ("pmnet_device_copies", 2.0),
            ("pmnet_device_copies_wanted", 2.0),
            ("pmnet_front_unanswered_seconds", 1.0),
            ("pmnet_memcached_unanswered_seconds", 1.0),
            ("pmnet_device_oldest_unapplied_seconds", 10.0),
            ("pmnet_device_log_entries_used", 80.0),
            ("pmnet_device_log_entries_capacity", 100.0),
            ("pmnet_controller_heard_seconds_ago", 10.0),
        ];
        assert_eq!(alerts(&well, None), [""; 0]);
        assert_eq!(alerts(&well, Some(Json::Null)), [""; 0]);
        assert_eq!(alerts(&[], None), [""; 0]);
        for (name, number, alert) in [
            ("pmnet_device_serving", 0.0, "PmnetNoHead"),
            ("pmnet_device_lease_seconds_left", 0.0, "PmnetLeaseLost"),
            ("pmnet_device_copies", 1.0, "PmnetTooFewCopies"),
            ("pmnet_front_unanswered_seconds", 1.1, "PmnetDevicesSilent"),
            (
                "pmnet_memcached_unanswered_seconds",
                1.1,
                "PmnetDevicesSilent",
            ),
            (
                "pmnet_device_oldest_unapplied_seconds",
                10.1,
                "PmnetStoreBehind",
            ),
            ("pmnet_device_log_entries_used", 81.0, "PmnetLogFilling"),
            (
                "pmnet_controller_heard_seconds_ago",
                10.1,
                "PmnetEtcdSilent",
            ),
        ] {
            let ill = well.map(|(one, before)| (one, if one == name { number } else { before }));
            assert_eq!(alerts(&ill, None), [alert], "{name}");
        }
        let pauses = Some(json!({ "PM2204": "x" }));
        assert_eq!(alerts(&well, pauses), ["PmnetStorePaused"]);
    }
}
