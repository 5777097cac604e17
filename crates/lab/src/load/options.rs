//! The options of a load run.

use std::net::SocketAddr;
use std::time::Duration;

use super::history::Record;
use super::keys::{ZIPF_KEYS_MAX, ZIPF_MAX};
use super::mix::Mix;

/// Maximum number of connections of one run.
pub const CLIENTS_MAX: usize = 4096;
/// Maximum number of commands in flight on one connection.
pub const PIPELINE_MAX: usize = 10_000;
/// Maximum size of a value in bytes: the limit of one update.
pub const VALUE_BYTES_MAX: usize = pmnet_wire::MESSAGE_BYTES_MAX;
/// A run with a minimum number of acknowledged operations lasts at most this many times its duration.
pub const PATIENCE: u32 = 10;

/// The kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A pmnet front or a plain Redis: RESP over TCP.
    Resp,
    /// The head device of a chain: sessions of pmnet over UDP.
    Native,
}

/// All options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The kind of server at `address`.
    pub endpoint: Endpoint,
    /// The address to connect or send to.
    pub address: SocketAddr,
    /// Number of the shard, for [`Endpoint::Native`].
    pub shard: u32,
    /// Number of connections or sessions, 1 to [`CLIENTS_MAX`].
    pub clients: usize,
    /// Number of commands in flight on each connection, 1 to [`PIPELINE_MAX`]. In closed loop the connection sends this
    /// many commands as one batch, and sends the next batch when all replies have arrived, as redis-benchmark does.
    pub pipeline: usize,
    /// Operations per second of all clients together (open loop); `None`: closed loop.
    pub rate: Option<f64>,
    /// Time for which operations are issued, after the warm-up.
    pub duration: Duration,
    /// Minimum number of acknowledged operations. If fewer are acknowledged, the run continues beyond its duration, up
    /// to [`PATIENCE`] times as long. A busy machine completes fewer operations in the same time, and a check of very
    /// few operations proves nothing.
    pub acknowledged_min: u64,
    /// Maximum number of operations, warm-up included; `None`: only the duration limits the run.
    pub operations: Option<u64>,
    /// Time at the beginning in which operations are issued but not measured.
    pub warmup: Duration,
    /// Time after which an operation without a reply has an unknown outcome, and its connection is
    /// given up.
    pub deadline: Duration,
    /// For [`Endpoint::Resp`]: number of replicas for which a `WAIT` after each write waits. The operation ends with
    /// the reply to the `WAIT`. 0: no `WAIT`.
    pub replicas: u8,
    /// Time for which the thread polls without blocking after each activity; 0: the thread always blocks.
    pub spin: Duration,
    /// Seed of the random choice of keys and operations.
    pub seed: u64,
    /// The operations to issue.
    pub workload: Workload,
}

/// The operations to issue.
#[derive(Clone, Debug)]
pub enum Workload {
    /// Independent operations on random keys.
    Mix {
        /// The operations and their weights.
        mix: Mix,
        /// Number of keys.
        keys: u64,
        /// Exponent of a Zipf distribution of the keys; `None`: all keys are equally likely.
        zipf: Option<f64>,
        /// Size of a value in bytes.
        value_bytes: usize,
        /// Prefix of every key.
        prefix: String,
    },
    /// Operations whose outcome can be checked afterwards (see [`crate::check`]).
    Checked(CheckedOptions),
}

/// The checked workload: each logical client has keys of its own, and writes increasing numbers to them.
#[derive(Clone, Debug)]
pub struct CheckedOptions {
    /// Prefix of every key. Each run needs another prefix.
    pub prefix: String,
    /// Number of keys that a client writes before it overwrites the first of them.
    pub ring: u64,
    /// Lists are used (RPUSH). Some stores have no lists.
    pub lists: bool,
    /// Length in bytes to which SET values are padded, for fragmentation; 0: no padding.
    pub value_bytes: usize,
}

/// The progress of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Fraction of the run's time that has passed, 0 to 1.
    pub fraction: f64,
    /// Number of acknowledged operations so far, warm-up included.
    pub acknowledged: u64,
    /// Number of refused operations so far.
    pub failed: u64,
    /// Number of operations of unknown outcome so far.
    pub unknown: u64,
    /// Acknowledged operations per second since the last report.
    pub rate: f64,
}

/// A function that receives each operation that has ended. An error of the function ends the run.
pub type RecordHook<'a> = &'a mut dyn FnMut(&Record) -> anyhow::Result<()>;

/// The functions that receive a run's events.
#[derive(Default)]
pub struct Hooks<'a> {
    /// Called with every operation that has ended.
    pub record: Option<RecordHook<'a>>,
    /// Called about ten times a second.
    pub progress: Option<&'a mut dyn FnMut(&Progress)>,
}

impl Options {
    /// Returns the options of a closed-loop RESP run of one second with SETs of 100 bytes on 10,000 keys.
    #[must_use]
    pub fn new(address: SocketAddr) -> Options {
        Options {
            endpoint: Endpoint::Resp,
            address,
            shard: 0,
            clients: 1,
            pipeline: 1,
            rate: None,
            duration: Duration::from_secs(1),
            acknowledged_min: 0,
            operations: None,
            warmup: Duration::ZERO,
            deadline: Duration::from_secs(5),
            replicas: 0,
            spin: Duration::ZERO,
            seed: 1,
            workload: Workload::Mix {
                mix: Mix::only(super::Op::Set),
                keys: 10_000,
                zipf: None,
                value_bytes: 100,
                prefix: "load:".into(),
            },
        }
    }

    /// Checks that all options are within their bounds.
    ///
    /// # Errors
    /// Fails if a value is out of its range. The error names the value and the range.
    pub fn check(&self) -> Result<(), String> {
        let range = |name: &str, value: usize, max: usize| {
            if (1..=max).contains(&value) {
                Ok(())
            } else {
                Err(format!("{name} is {value}; it can be 1 to {max}"))
            }
        };
        range("--clients", self.clients, CLIENTS_MAX)?;
        range("--pipeline", self.pipeline, PIPELINE_MAX)?;
        if let Some(rate) = self.rate
            && !(rate.is_finite() && (0.001..=1e9).contains(&rate))
        {
            return Err(format!("--rate is {rate}; it can be 0.001 to 1e9 a second"));
        }
        if self.replicas > 0 && self.endpoint != Endpoint::Resp {
            return Err("only a Redis has replicas to wait for".into());
        }
        if self.deadline.is_zero() {
            return Err("--deadline-ms must be more than 0".into());
        }
        match &self.workload {
            Workload::Mix {
                keys,
                value_bytes,
                zipf,
                ..
            } => {
                if *keys == 0 {
                    return Err("--keys must be more than 0".into());
                }
                if let Some(exponent) = zipf {
                    if !(0.0..=ZIPF_MAX).contains(exponent) {
                        return Err(format!("--zipf is {exponent}; it can be 0 to {ZIPF_MAX}"));
                    }
                    if *keys > ZIPF_KEYS_MAX {
                        return Err(format!(
                            "--keys is {keys}; with --zipf it can be up to {ZIPF_KEYS_MAX}"
                        ));
                    }
                }
                if *value_bytes > VALUE_BYTES_MAX {
                    return Err(format!(
                        "--value-bytes is {value_bytes}; it can be up to {VALUE_BYTES_MAX}"
                    ));
                }
            }
            Workload::Checked(checked) => {
                if checked.ring == 0 {
                    return Err("--ring must be more than 0".into());
                }
            }
        }
        Ok(())
    }
}
