//! What a load run is asked to do.

use std::net::SocketAddr;
use std::time::Duration;

use super::history::Record;
use super::keys::{ZIPF_KEYS_MAX, ZIPF_MAX};
use super::mix::Mix;

/// Most connections of one run.
pub const CLIENTS_MAX: usize = 4096;
/// Most commands in flight on one connection.
pub const PIPELINE_MAX: usize = 10_000;
/// Largest value, in bytes: the limit of one update.
pub const VALUE_BYTES_MAX: usize = pmnet_wire::MESSAGE_BYTES_MAX;
/// A run that has to get something done takes at most this many times its duration.
pub const PATIENCE: u32 = 10;

/// What is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// RESP over TCP: a pmnet front or a plain Redis.
    Resp,
    /// The head device of a chain: pmnet sessions over UDP.
    Native,
}

/// Everything a run needs.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is at `address`.
    pub endpoint: Endpoint,
    /// Where to connect or send to.
    pub address: SocketAddr,
    /// Number of the shard of a [`Endpoint::Native`].
    pub shard: u32,
    /// Connections or sessions, 1 to [`CLIENTS_MAX`].
    pub clients: usize,
    /// Commands in flight on each, 1 to [`PIPELINE_MAX`]. In closed loop they are sent as one
    /// batch, and the next batch when all replies are there, as redis-benchmark does.
    pub pipeline: usize,
    /// Operations a second over all clients (open loop); `None`: closed loop.
    pub rate: Option<f64>,
    /// How long to issue operations, after the warm-up.
    pub duration: Duration,
    /// Go on after that until this many operations are acknowledged, at most [`PATIENCE`] times as long. A machine that is busy
    /// with other work gets less done in the same time, and a check of hardly anything says nothing.
    pub acknowledged_min: u64,
    /// Stop after this many operations (warm-up included), if that comes first.
    pub operations: Option<u64>,
    /// Issue, but do not measure, for this long first.
    pub warmup: Duration,
    /// An operation without a reply after this long is unknown, and its connection given up.
    pub deadline: Duration,
    /// `WAIT` for this many replicas follows each write of a [`Endpoint::Resp`], which ends when they have it; 0: none.
    pub replicas: u8,
    /// Poll without blocking for this long after each activity (0: always block).
    pub spin: Duration,
    /// Seed of keys and mix.
    pub seed: u64,
    /// What to issue.
    pub workload: Workload,
}

/// What to issue.
#[derive(Clone, Debug)]
pub enum Workload {
    /// Independent operations on random keys.
    Mix {
        /// Operations and weights.
        mix: Mix,
        /// Number of keys.
        keys: u64,
        /// Exponent of a Zipf distribution of the keys; `None`: each is as likely.
        zipf: Option<f64>,
        /// Value size in bytes.
        value_bytes: usize,
        /// Start of every key.
        prefix: String,
    },
    /// Operations whose outcome can be checked afterwards; see [`crate::check`].
    Checked(CheckedOptions),
}

/// The checked workload: each logical client owns its keys and writes increasing numbers.
#[derive(Clone, Debug)]
pub struct CheckedOptions {
    /// Start of every key; a run needs one of its own.
    pub prefix: String,
    /// Keys of one client that are written in turn, each once before the first is overwritten.
    pub ring: u64,
    /// With lists (RPUSH); a store that has none cannot take them.
    pub lists: bool,
    /// SET values are padded to this many bytes (fragmentation); 0: the number alone.
    pub value_bytes: usize,
}

/// What a run tells while it goes on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Part of the run's time that has passed, 0 to 1.
    pub fraction: f64,
    /// Operations acknowledged so far, warm-up included.
    pub acknowledged: u64,
    /// Refused so far.
    pub failed: u64,
    /// Unknown so far.
    pub unknown: u64,
    /// Operations a second acknowledged since the last report.
    pub rate: f64,
}

/// Takes one ended operation; an error ends the run.
pub type RecordHook<'a> = &'a mut dyn FnMut(&Record) -> anyhow::Result<()>;

/// Where a run reports to.
#[derive(Default)]
pub struct Hooks<'a> {
    /// Called with every operation that ended.
    pub record: Option<RecordHook<'a>>,
    /// Called about ten times a second.
    pub progress: Option<&'a mut dyn FnMut(&Progress)>,
}

impl Options {
    /// A closed-loop RESP run of one second with SET of 100 bytes on 10,000 keys.
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

    /// Checks the bounds.
    ///
    /// # Errors
    /// A sentence that says which value is out of which range.
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
