//! Metrics as text, in the formats of OpenMetrics and Prometheus.

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::metric::{Kind, Metric, Sample, Value};
use crate::source::{About, BUILD, Looked};

/// The formats in which a client can request metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus's text format 0.0.4.
    Prometheus,
}

impl Form {
    /// Returns the format that a client prefers according to its header `Accept` (RFC 9110, 12.5.1).
    pub fn accepted(accept: &str) -> Form {
        let open = liking(accept, "application/openmetrics-text");
        if open > 0.0 && open >= liking(accept, "text/plain") {
            Form::OpenMetrics
        } else {
            Form::Prometheus
        }
    }

    pub const fn content_type(self) -> &'static str {
        match self {
            Form::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Form::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Returns the weight of a media type in a header `Accept`. 0: the header does not name the type, or refuses it.
fn liking(accept: &str, wanted: &str) -> f32 {
    let ranges = accept.split(',').map(|range| {
        let mut words = range.split(';').map(str::trim);
        let is_it = words
            .next()
            .is_some_and(|name| name.eq_ignore_ascii_case(wanted));
        let weight = words.find_map(|word| word.strip_prefix("q="));
        let weight = weight.map_or(1.0, |weight| weight.parse().unwrap_or(0.0));
        if is_it { weight } else { 0.0 }
    });
    ranges.fold(0.0, f32::max)
}

type Labels = Vec<(&'static str, String)>;

/// A metric, with its values for all loops.
#[derive(Debug)]
struct Family {
    metric: Metric,
    values: Vec<(Labels, Value)>,
}

/// All metrics of a process.
#[derive(Debug)]
struct All(Vec<Family>);

impl All {
    fn add(&mut self, metric: &Metric, labels: Labels, value: Value) {
        let known = self
            .0
            .iter_mut()
            .find(|family| family.metric.name == metric.name);
        let family = match known {
            Some(family) => family,
            None => {
                self.0.push(Family {
                    metric: *metric,
                    values: Vec::new(),
                });
                self.0.last_mut().expect("pushed just now")
            }
        };
        family.values.push((labels, value));
    }

    fn of(about: &About, loops: Vec<Looked>) -> All {
        let mut all = All(Vec::new());
        let build = [
            ("role", about.role),
            ("version", about.version),
            ("commit", about.commit),
        ];
        all.add(
            &BUILD,
            build.map(|(key, value)| (key, value.to_owned())).to_vec(),
            Value::Count(1),
        );
        for one in loops {
            for Sample {
                metric,
                labels,
                value,
            } in one.look.samples
            {
                let own = metric.label.map(|(key, value)| (key, value.to_owned()));
                let labels = one
                    .labels
                    .iter()
                    .cloned()
                    .chain(own)
                    .chain(labels)
                    .collect();
                all.add(&metric, labels, value);
            }
        }
        all
    }
}

impl prometheus_client::collector::Collector for All {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for Family { metric, values } in &self.0 {
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            let mut family = encoder.encode_descriptor(metric.name, metric.help, None, kind)?;
            for (labels, value) in values {
                let mut one = family.encode_family(labels)?;
                match (metric.kind, value) {
                    (Kind::Counter, Value::Count(count)) => {
                        one.encode_counter::<NoLabelSet, u64, f64>(count, None)?
                    }
                    #[allow(clippy::cast_precision_loss)]
                    (_, Value::Count(count)) => one.encode_gauge(&(*count as f64))?,
                    (_, Value::Number(number)) => one.encode_gauge(number)?,
                    (_, Value::Histogram(shot)) => {
                        one.encode_histogram::<NoLabelSet>(
                            shot.sum,
                            shot.count(),
                            &shot.buckets,
                            None,
                        )?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns the metrics of these loops in this format.
pub(crate) fn write(about: &About, loops: Vec<Looked>, form: Form) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(All::of(about, loops)));
    let mut text = String::new();
    encode(&mut text, &registry).expect("a string takes any text");
    match form {
        Form::OpenMetrics => text,
        Form::Prometheus => as_prometheus(&text),
    }
}

/// Converts a text in the format of OpenMetrics to the older format of Prometheus. In the older format, the name of a
/// counter ends with `_total` in all lines, and there is no end mark.
fn as_prometheus(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 32);
    let mut help = "";
    for line in text.lines().filter(|line| *line != "# EOF") {
        if line.starts_with("# HELP ") {
            // The help line must be written after the kind is known. The kind is in the next line.
            help = line;
            continue;
        }
        let Some(rest) = line.strip_prefix("# TYPE ") else {
            out.push_str(line);
            out.push('\n');
            continue;
        };
        let suffix = if rest.ends_with(" counter") {
            "_total"
        } else {
            ""
        };
        for described in [help, line] {
            let mut words = described.splitn(4, ' ');
            let mut next = || words.next().unwrap_or_default();
            let (hash, what, name, rest) = (next(), next(), next(), next());
            out.push_str(&format!("{hash} {what} {name}{suffix} {rest}\n"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::Histogram;
    use crate::source::Look;

    fn loops() -> Vec<Looked> {
        let histogram = Histogram::default();
        histogram.record(1_000, 2);
        histogram.record(u64::MAX, 1);
        let counter = |part| Metric {
            label: Some(("reason", part)),
            ..Metric::new(
                Kind::Counter,
                "pmnet_x_dropped",
                "Packets dropped, by reason.",
            )
        };
        let one = |shard: &str| Looked {
            labels: vec![("shard", shard.to_owned())],
            dead: None,
            look: Look {
                samples: vec![
                    Sample::new(counter("late"), Value::Count(7)),
                    Sample::new(
                        Metric::new(Kind::Gauge, "pmnet_x_lag_seconds", "Lag."),
                        Value::Number(0.25),
                    ),
                    Sample::new(counter("odd"), Value::Count(u64::MAX)),
                    Sample::new(
                        Metric::new(Kind::Histogram, "pmnet_x_took_seconds", "Time."),
                        Value::Histogram(histogram.read(1e9, 10, 11)),
                    ),
                ],
                ..Look::default()
            },
        };
        vec![one("0"), one("1")]
    }

    const ABOUT: About = About {
        role: "x",
        version: "1",
        commit: "abc",
    };

    const PROMETHEUS: &str = "\
# HELP pmnet_build_info Always 1. The labels say what is running: role, version, commit.
# TYPE pmnet_build_info gauge
pmnet_build_info{role=\"x\",version=\"1\",commit=\"abc\"} 1.0
# HELP pmnet_x_dropped_total Packets dropped, by reason.
# TYPE pmnet_x_dropped_total counter
pmnet_x_dropped_total{shard=\"0\",reason=\"late\"} 7
pmnet_x_dropped_total{shard=\"0\",reason=\"odd\"} 18446744073709551615
pmnet_x_dropped_total{shard=\"1\",reason=\"late\"} 7
pmnet_x_dropped_total{shard=\"1\",reason=\"odd\"} 18446744073709551615
# HELP pmnet_x_lag_seconds Lag.
# TYPE pmnet_x_lag_seconds gauge
pmnet_x_lag_seconds{shard=\"0\"} 0.25
pmnet_x_lag_seconds{shard=\"1\"} 0.25
";

    /// All values of a metric must stand together, even those of different loops.
    #[test]
    fn the_text_of_prometheus_is_this() {
        let text = write(&ABOUT, loops(), Form::Prometheus);
        let (before, after) = text.split_once("# HELP pmnet_x_took_seconds").unwrap();
        assert_eq!(before, PROMETHEUS);
        assert!(
            after.contains("pmnet_x_took_seconds_bucket{le=\"+Inf\",shard=\"1\"} 3\n"),
            "{after}"
        );
        assert!(
            after.contains("pmnet_x_took_seconds_count{shard=\"0\"} 3\n"),
            "{after}"
        );
        assert!(!text.contains("EOF"));
    }

    #[test]
    fn the_text_of_openmetrics_names_a_counter_without_its_ending() {
        let text = write(&ABOUT, loops(), Form::OpenMetrics);
        assert!(
            text.contains("# TYPE pmnet_x_dropped counter\npmnet_x_dropped_total{"),
            "{text}"
        );
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn who_asks_for_openmetrics_gets_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(Form::accepted(prometheus), Form::OpenMetrics);
        // The headers of Prometheus 3: with its default settings, and with the text format first in scrape_protocols.
        let third = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                     application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
                     text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        assert_eq!(Form::accepted(third), Form::OpenMetrics);
        let text = "text/plain;version=0.0.4;q=0.6, application/openmetrics-text; version=1.0.0; q=0.5,*/*;q=0.2";
        assert_eq!(Form::accepted(text), Form::Prometheus);
        for other in [
            "*/*",
            "",
            "text/plain, application/openmetrics-text;q=0",
            ",;q=",
            "q=x;;",
        ] {
            assert_eq!(Form::accepted(other), Form::Prometheus, "{other}");
        }
    }
}
