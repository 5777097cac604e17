//! What is to be measured.

use pmnet_dataplane::xdp::DEVICES_MAX;
use pmnet_log::Parameters;
use serde::Serialize;

use super::packet::Packet;
#[cfg(doc)]
use super::stand::SESSIONS_MAX;

/// Packets of one run, at most.
pub const BATCH_MAX: u32 = 10_000;
/// Most bytes of a log that one update takes: header and payload, rounded up.
pub const TAKEN_MAX: u64 = 1_536;
/// Devices beside the measured one, at most.
#[allow(clippy::cast_possible_truncation)]
pub const BESIDE_MAX: u16 = DEVICES_MAX as u16 - 1;
/// A log has room for this many runs: space is free again when two later updates say so.
pub const BATCHES_IN_LOG: u64 = 3;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Kinds of packets, each once.
    pub packets: Vec<Packet>,
    /// Payloads of appended updates over IPv4, in bytes, each once.
    pub payloads: Vec<usize>,
    /// Numbers of sessions, 1 to [`SESSIONS_MAX`], each once; packets take turns.
    pub sessions: Vec<usize>,
    /// Packets of one run, 1 to [`BATCH_MAX`].
    pub batch: u32,
    /// Runs of each row.
    pub rounds: usize,
    /// Size of the log: powers of two, with room for [`BATCHES_IN_LOG`] runs.
    pub log: Parameters,
    /// Devices beside it at the interface, all of which the packets are compared with first; 0 to [`BESIDE_MAX`].
    pub beside: u16,
    /// The device answers by a lease.
    pub leased: bool,
    /// What packets carry, each once. Several are measured in turns.
    pub tags: Vec<Tags>,
}

/// What a packet carries to show who has sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tags {
    /// A token.
    Token,
    /// A MAC: the shard has keys.
    Mac,
}

impl Tags {
    /// As in the table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Tags::Token => "token",
            Tags::Mac => "MAC",
        }
    }
}
