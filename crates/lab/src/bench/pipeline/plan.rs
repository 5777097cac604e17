//! The measurements of a run.

use pmnet_dataplane::xdp::DEVICES_MAX;
use pmnet_log::Parameters;
use serde::Serialize;

use super::packet::Packet;
#[cfg(doc)]
use super::stand::SESSIONS_MAX;

/// Maximum number of packets of one run.
pub const BATCH_MAX: u32 = 10_000;
/// Maximum number of bytes of a log that one update takes: header and payload, rounded up.
pub const TAKEN_MAX: u64 = 1_536;
/// Maximum number of devices beside the measured one.
#[allow(clippy::cast_possible_truncation)]
pub const BESIDE_MAX: u16 = DEVICES_MAX as u16 - 1;
/// Number of runs for which a log has space. Space is free again when two later updates say so.
pub const BATCHES_IN_LOG: u64 = 3;

/// The combinations and sizes of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The kinds of packets, each once.
    pub packets: Vec<Packet>,
    /// The payloads in bytes of appended updates over IPv4, each once.
    pub payloads: Vec<usize>,
    /// The numbers of sessions, 1 to [`SESSIONS_MAX`], each once; the packets of sessions take
    /// turns.
    pub sessions: Vec<usize>,
    /// Number of packets of one run, 1 to [`BATCH_MAX`].
    pub batch: u32,
    /// Number of runs of each row.
    pub rounds: usize,
    /// Size of the log: powers of two, with space for [`BATCHES_IN_LOG`] runs.
    pub log: Parameters,
    /// Number of other devices at the interface with which packets are compared first; 0 to
    /// [`BESIDE_MAX`].
    pub beside: u16,
    /// Whether the device answers under a lease.
    pub leased: bool,
    /// The kinds of tags, each once. Several kinds are measured in turn.
    pub tags: Vec<Tags>,
}

/// The tag that authenticates the sender of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tags {
    /// A token: the shard has no keys.
    Token,
    /// A MAC: the shard has keys.
    Mac,
}

impl Tags {
    /// Returns the name in the table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Tags::Token => "token",
            Tags::Mac => "MAC",
        }
    }
}
