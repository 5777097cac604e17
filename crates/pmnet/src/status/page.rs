//! Writes the page `docs/reference/metrics.md` from the definitions of all metrics.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use pmnet_status::{Kind, Metric, Shown};

use super::{controller, device, front, kernel, memcached, router, server, verbs};

const HEAD: &str = "\
# Metrics

Each role serves these at `/metrics` of its [status port](../operate/monitoring.md#the-status-port). The program generates this page, and a test keeps them equal.

- Names and labels are stable: a later release may add some; if it renames one, the [changelog](../../CHANGELOG.md) says so.
- Counters begin at 0 when the loop of a shard begins. A device begins its loop anew when its next hop changes.
- Times are in seconds, sizes in bytes. Buckets of histograms are powers of two.
- All values of one loop are from one turn of that loop, or from two successive turns. A metric that does not apply (no lease, no kernel device) has no line.
";

/// A section of the page: title, text, metrics.
type Section = (&'static str, &'static str, Vec<Metric>);

fn sections() -> Vec<Section> {
    let of = |numbers: &[Metric], more: &[Metric]| [numbers, more].concat();
    vec![
        (
            "Every role",
            "`pmnet_alive` and `pmnet_ready` have the labels of the loop. In `pmnet run` each loop also has the label `section`: the loop's section of the file.",
            Shown::METRICS.to_vec(),
        ),
        (
            "pmnet device",
            "Labels of the loop: `shard`, `device` (its id). A device with `--store` has the metrics of a server, too.",
            of(device::DeviceNumbers::METRICS, &device::MORE),
        ),
        (
            "pmnet device in the kernel",
            "With `--mode nic`, `router` or `switch`, in addition to the metrics of a device. They are read from the kernel at each request.",
            of(kernel::KernelNumbers::METRICS, &kernel::MORE),
        ),
        (
            "pmnet device --mode verbs",
            "In addition to the metrics of a device.",
            verbs::VerbsNumbers::METRICS.to_vec(),
        ),
        (
            "pmnet server",
            "Label of the loop: `shard`.",
            of(server::ServerNumbers::METRICS, &server::MORE),
        ),
        (
            "pmnet redis",
            "Label of the loop: `shard`; with `--shards` also `entry`, the shard's position in the file.",
            of(front::FrontNumbers::METRICS, &front::MORE),
        ),
        (
            "pmnet redis --shards: the router",
            "Label of the loop: `loop`, which is `router`. The router passes each command to the front of its shard.",
            of(router::RouterNumbers::METRICS, &router::MORE),
        ),
        (
            "pmnet memcached",
            "Label of the loop: `shard`.",
            of(memcached::MemcachedNumbers::METRICS, &memcached::MORE),
        ),
        (
            "pmnet controller",
            "Labels of the loop: `fleet`, `shard`.",
            of(controller::ControllerNumbers::METRICS, &controller::MORE),
        ),
    ]
}

/// Returns the page as Markdown.
#[must_use]
pub fn page() -> String {
    let mut text = HEAD.to_owned();
    for (title, about, metrics) in sections() {
        let _ = write!(
            text,
            "\n## {title}\n\n{about}\n\n| metric | kind | meaning |\n|---|---|---|\n"
        );
        let mut seen = BTreeSet::new();
        for metric in &metrics {
            if seen.insert(metric.name) {
                row(&mut text, metric, &metrics);
            }
        }
    }
    text
}

fn row(text: &mut String, metric: &Metric, all: &[Metric]) {
    let kind = match metric.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    let mut help = metric.help.to_owned();
    if let Some((label, _)) = metric.label {
        let parts = all.iter().filter(|one| one.name == metric.name);
        let parts: Vec<String> = parts
            .filter_map(|one| Some(format!("`{}`: {}", one.label?.1, one.part.trim())))
            .collect();
        help = format!("{help} Label `{label}`:<br>{}", parts.join("<br>"));
    }
    let _ = writeln!(text, "| `{}` | {kind} | {help} |", metric.full_name());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names must follow the rules of Prometheus and of its checker, and texts must be readable on
    /// the page.
    #[test]
    fn definitions_are_well_formed() {
        let mut names = BTreeSet::new();
        for (title, _, metrics) in sections() {
            for metric in metrics {
                let name = metric.name;
                assert!(name.starts_with("pmnet_"), "{name}");
                let plain =
                    |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
                assert!(name.bytes().all(plain), "{name}");
                for end in ["_total", "_count", "_sum", "_bucket", "_info_info"] {
                    assert!(!name.ends_with(end), "{name}");
                }
                let part = metric.label.map(|(_, part)| part);
                assert!(
                    names.insert((title, name, part)),
                    "{name} {part:?} is defined twice"
                );
                assert!(
                    metric.help.ends_with('.') && !metric.help.contains(['\n', '"', '|', '\\']),
                    "{name}: {}",
                    metric.help
                );
                assert_eq!(
                    metric.label.is_some(),
                    metric.part.trim().ends_with('.'),
                    "{name} {part:?}: {}",
                    metric.part
                );
            }
        }
        assert!(names.len() > 150, "{}", names.len());
    }
}
