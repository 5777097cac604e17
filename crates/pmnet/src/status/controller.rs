//! The status port's view of a controller.

use std::sync::Mutex;
use std::time::Instant;

use pmnet_client::Pulse;
use pmnet_status::{Board, Kind, Look, Metric, Sample, Source, Value, numbers};
use serde_json::json;

use super::lock;

numbers! {
    /// Counters of a controller.
    pub(crate) struct ControllerNumbers {
        Counter "pmnet_controller_steps" ["step"] "Steps that were done in etcd, by step." {
            /// The controller wrote the chain that the devices serve.
            adopt,
            /// The controller declared a device stopped.
            stop,
            /// The controller wrote a changed chain: the devices get new next hops.
            wire,
            /// The controller noted that a device is left out.
            left_out,
        }
        Counter "pmnet_controller_looks" ["answer"] "Reads of the shard's keys in etcd, by result." {
            /// Etcd answered.
            answered,
            /// Etcd did not answer.
            failed,
        }
        Gauge "pmnet_controller_waits" [""] "1 if a step waits for an operator or for etcd, 0 if not." { waits }
    }
}

const HEARD: Metric = Metric::new(
    Kind::Gauge,
    "pmnet_controller_heard_seconds_ago",
    "Time since the last answer of etcd. Absent before the first answer.",
);

/// Metrics of a controller that are not in [`ControllerNumbers`].
pub(super) const MORE: [Metric; 1] = [HEARD];

/// The counters and the state that a controller publishes.
#[derive(Debug)]
pub(crate) struct ControllerBoard {
    fleet: String,
    shard: u32,
    numbers: Board<{ ControllerNumbers::METRICS.len() }>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    heard: Option<Instant>,
    waits: Option<String>,
}

impl ControllerBoard {
    pub(crate) fn new(fleet: String, shard: u32) -> ControllerBoard {
        ControllerBoard {
            fleet,
            shard,
            numbers: Board::default(),
            state: Mutex::default(),
        }
    }

    /// Publishes a turn. `waits`: the reason why the controller waits for an operator or for etcd.
    pub(crate) fn turn(&self, numbers: ControllerNumbers, answered: bool, waits: Option<&str>) {
        self.numbers.publish(numbers.words());
        let mut state = lock(&self.state);
        if answered {
            state.heard = Some(Instant::now());
        }
        state.waits = waits.map(str::to_owned);
    }
}

impl Source for ControllerBoard {
    fn labels(&self) -> Vec<(&'static str, String)> {
        vec![
            ("fleet", self.fleet.clone()),
            ("shard", self.shard.to_string()),
        ]
    }

    /// Returns the pulse of a loop that rests. A controller spends most of its time in calls to etcd, and each of these
    /// calls has a deadline of its own.
    fn pulse(&self) -> u64 {
        Pulse::default().word()
    }

    fn look(&self, now: Instant) -> Look {
        let state = lock(&self.state);
        let mut look = Look {
            samples: ControllerNumbers::of(self.numbers.read()).samples(),
            ..Look::default()
        };
        match state.heard {
            Some(heard) => {
                let ago = now.saturating_duration_since(heard).as_secs_f64();
                look.samples.push(Sample::new(HEARD, Value::Number(ago)));
                if ago > HEARD_MAX_SECONDS {
                    look.reasons
                        .push(format!("etcd has not answered for {ago:.0} s"));
                }
            }
            None => look.reasons.push("etcd has not answered yet".into()),
        }
        look.facts.insert("waits".into(), json!(state.waits));
        look
    }
}

/// Time without an answer of etcd, in seconds, after which the controller is not ready.
const HEARD_MAX_SECONDS: f64 = 10.0;
