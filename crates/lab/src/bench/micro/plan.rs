//! The measurements of a run, and their durations.

use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use super::carrier::ClientIo;
use super::system::{Medium, System};

/// Smallest payload in bytes: a `SET` of a short key needs this length.
pub const PAYLOAD_BYTES_MIN: usize = 44;
/// Largest payload in bytes: four fragments.
pub const PAYLOAD_BYTES_MAX: usize = 4 * pmnet_wire::FRAGMENT_BYTES;
/// Maximum number of clients.
pub const SESSIONS_MAX: usize = 64;

/// How the ideal handler waits for the next update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Handler {
    /// The handler never sleeps, so its round trip has no wake-up. A device can hardly be faster than this handler.
    Spins,
    /// The handler sleeps in the kernel until a packet arrives, as servers do.
    Sleeps,
}

/// The combinations and durations of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The systems, each once.
    pub systems: Vec<System>,
    /// The sizes of payloads in bytes, [`PAYLOAD_BYTES_MIN`] to [`PAYLOAD_BYTES_MAX`].
    pub payloads: Vec<usize>,
    /// The numbers of clients, 1 to [`SESSIONS_MAX`].
    pub clients: Vec<usize>,
    /// How the clients send and receive, without duplicates.
    pub client_io: Vec<ClientIo>,
    /// Duration of the measurement in one run.
    pub duration: Duration,
    /// Duration of the warm-up.
    pub warmup: Duration,
    /// Number of runs of each combination.
    pub rounds: usize,
    /// How the ideal handler waits.
    pub handler: Handler,
    /// The medium of a device's log.
    pub medium: Medium,
}

impl Plan {
    /// Returns the number of runs of the plan.
    #[must_use]
    pub fn steps(&self) -> u64 {
        let groups = self.payloads.len() * self.clients.len() * self.client_io.len();
        let runs = self.systems.len() * groups * self.rounds;
        u64::try_from(runs).unwrap_or(u64::MAX)
    }

    /// Returns the title of the result.
    #[must_use]
    pub fn title(&self) -> String {
        let systems: Vec<_> = self
            .systems
            .iter()
            .map(|system| system.title(self.medium))
            .collect();
        format!(
            "Round trip of an update, closed loop, {}, ideal handler that {}, veth on one machine with {} cores: {}",
            self.client_io
                .iter()
                .map(|io| io.title())
                .collect::<Vec<_>>()
                .join(" and "),
            match self.handler {
                Handler::Spins => "spins",
                Handler::Sleeps => "sleeps",
            },
            cores(),
            systems.join("; ")
        )
    }

    /// Returns notes that readers of the figures need.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self
            .systems
            .iter()
            .map(|system| format!("{}: {}", system.name(), system.meaning()))
            .collect();
        for io in &self.client_io {
            notes.push(format!("{}: {}", io.title(), io.meaning()));
        }
        notes.push(format!(
            "payload: bytes of the update behind its header of {} bytes; beyond {} bytes it is \
             several packets, and its round trip ends with the last one",
            pmnet_wire::HEADER_LEN,
            pmnet_wire::FRAGMENT_BYTES
        ));
        notes.push(
            "one thread sends for all clients and never sleeps: with one client the round trip is \
             the path's, with several it contains waiting for that thread"
                .into(),
        );
        notes.push(format!(
            "medians over {} rounds of {:.1} s; a resend is part of the round trip that it was for",
            self.rounds,
            self.duration.as_secs_f64()
        ));
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        if let Some(load) = load.split_whitespace().next() {
            notes.push(format!(
                "load average at the end: {load} (this measurement by itself makes about 2)"
            ));
        }
        if self.systems.iter().any(|system| system.has_device()) && cores() < 4 {
            notes.push(format!(
                "client, device and server share {} cores: where a device is a process, waiting \
                 for a core is part of its figures",
                cores()
            ));
        }
        notes
    }
}

/// Returns the number of cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
