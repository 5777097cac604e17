//! The status port's view of a device in the kernel. The counters are in pinned maps, which are read for each
//! request.

use pmnet_dataplane::xdp::Status;
use pmnet_status::{Kind, Look, Metric, Sample, Shot, Value, numbers};
use serde_json::json;

numbers! {
    /// Counters of a pipeline in the kernel. The counters begin when its maps are made, and continue even if no process
    /// of the device runs.
    pub(crate) struct KernelNumbers {
        Counter "pmnet_kernel_packets" ["event"] "Packets of the shard in the kernel's pipeline, by event, since the device was put into the kernel." {
            /// Packets that came.
            packets,
            /// Updates that were appended to the log.
            appended,
            /// Repeated updates. They were answered again.
            duplicates,
            /// Confirmations of the chain, after which the kernel acknowledged.
            confirmed,
            /// Packets that were passed to the process.
            handed_up,
            /// Packets that were passed to the process because it held the pipeline.
            held,
            /// Packets that were passed to the process because the pipeline does not know their session.
            sessions_unknown,
            /// Packets that were passed to the process because they were malformed or unusual.
            odd,
            /// With keys: packets with a wrong MAC, which were dropped. Their sender did not have the key, or they were
            /// changed.
            forged,
            /// Packets that were passed to the process because another processor was using the log.
            busy,
            /// Updates that were passed to the process because they were not the next of their session.
            gaps,
            /// Updates that were passed to the process because the log was full.
            full,
            /// Updates that were passed to the process because their front was over its share of the log.
            over_share,
            /// READs that were answered with an update from the log.
            read_hits,
            /// READs that were answered with the order that the store must have applied.
            read_misses,
            /// READs that were passed to the process.
            reads_up,
            /// Answers that were not sent, because the lease had ended.
            silenced,
        }
    }
}

const ADMITS: Metric = Metric::new(
    Kind::Gauge,
    "pmnet_kernel_admits",
    "1 if the kernel logs and acknowledges by itself, 0 if the device's process does.",
);
const TOOK: Metric = Metric::new(
    Kind::Histogram,
    "pmnet_kernel_took_seconds",
    "Time from the moment when the kernel knows that a packet is for the shard until its answer leaves. Measured for one in 64 of the packets that the kernel answered or sent on. The sum is computed from the bounds of narrower buckets.",
);

/// Metrics of a pipeline that are not in [`KernelNumbers`].
pub(super) const MORE: [Metric; 2] = [ADMITS, TOOK];

/// Nanoseconds that one slot of the kernel's histogram covers.
const SLOT_NS: f64 = 32.0;

/// Adds the counters in the pinned maps.
pub(super) fn look(name: &str, look: &mut Look) {
    match Status::read(name) {
        Ok(status) => {
            look.samples.extend(samples(&status));
            look.facts.insert(
                "kernel".into(),
                json!({ "name": name, "interfaces": status.interfaces, "admits": status.admits }),
            );
        }
        Err(error) => {
            look.facts.insert(
                "kernel".into(),
                json!({ "name": name, "error": error.to_string() }),
            );
        }
    }
}

fn samples(status: &Status) -> Vec<Sample> {
    let counted = |part: &str| {
        status
            .counters
            .iter()
            .find(|(name, _)| *name == part)
            .map(|(_, count)| *count)
    };
    let numbers = KernelNumbers::METRICS.iter().filter_map(|metric| {
        let (_, part) = metric.label?;
        Some(Sample::new(*metric, Value::Count(counted(part)?)))
    });
    let more = [
        Sample::new(ADMITS, Value::Count(u64::from(status.admits))),
        Sample::new(TOOK, Value::Histogram(took(&status.took))),
    ];
    numbers.chain(more).collect()
}

/// Converts slots of equal width to buckets with powers of two as bounds.
#[allow(clippy::cast_precision_loss)]
fn took(slots: &[u64]) -> Shot {
    let seconds = |slots: usize| slots as f64 * SLOT_NS / 1e9;
    let mut buckets: Vec<(f64, u64)> = Vec::new();
    let mut sum = 0.0;
    for (slot, count) in (1..).zip(slots) {
        // The last slot counts all packets that took longer than the other slots cover.
        let bound = if slot == slots.len() {
            f64::MAX
        } else {
            seconds(slot.next_power_of_two())
        };
        match buckets.last_mut() {
            Some((last, all)) if *last == bound => *all += count,
            _ => buckets.push((bound, *count)),
        }
        sum += *count as f64 * seconds(slot);
    }
    Shot { buckets, sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every counter of the pipeline must have a metric. Otherwise the counter would not be shown.
    #[test]
    fn every_counter_of_the_pipeline_has_a_metric() {
        let parts: Vec<&str> = KernelNumbers::METRICS
            .iter()
            .filter_map(|metric| Some(metric.label?.1))
            .collect();
        let mut names: Vec<&str> = Status::counter_names().collect();
        assert_eq!(parts.len(), names.len());
        names.retain(|name| !parts.contains(name));
        assert_eq!(names, [""; 0]);
    }

    #[test]
    fn slots_become_buckets() {
        let shot = took(&[1, 2, 3, 4, 5, 6, 7, 8, 100]);
        let ns: Vec<(f64, u64)> = shot
            .buckets
            .iter()
            .map(|(bound, count)| ((bound * 1e9).round(), *count))
            .collect();
        assert_eq!(
            ns[..4],
            [(32.0, 1), (64.0, 2), (128.0, 3 + 4), (256.0, 5 + 6 + 7 + 8)]
        );
        assert_eq!(shot.buckets[4], (f64::MAX, 100));
        assert_eq!(shot.count(), 136);
    }
}
