//! The measurements of a run.

use pmnet_dataplane::xdp::DEVICES_MAX;
use pmnet_log::Parameters;
use serde::Serialize;

use super::packet::Packet;
#[cfg(doc)]
use super::stand::SESSIONS_MAX;

/// Maximum number of packets of one run.
pub const BATCH_MAX: u32 = 10_000;
/// Maximum number of bytes that one update takes in a log: header and payload, rounded up.
pub const TAKEN_MAX: u64 = 1_536;
/// Maximum number of other devices at the interface of the measured one.
#[allow(clippy::cast_possible_truncation)]
pub const BESIDE_MAX: u16 = DEVICES_MAX as u16 - 1;
/// Number of runs for whose updates a log has space. The space of a run becomes free only after
/// later updates confirm it.
pub const BATCHES_IN_LOG: u64 = 3;

/// The combinations and sizes of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The kinds of packets, each once.
    pub packets: Vec<Packet>,
    /// The payloads in bytes of appended updates over IPv4, each once.
    pub payloads: Vec<usize>,
    /// The numbers of sessions, 1 to [`SESSIONS_MAX`], each once. Successive packets belong to
    /// different sessions.
    pub sessions: Vec<usize>,
    /// Number of packets of one run, 1 to [`BATCH_MAX`].
    pub batch: u32,
    /// Number of runs of each row.
    pub rounds: usize,
    /// Sizes of the log, powers of two. The log has space for the updates of [`BATCHES_IN_LOG`]
    /// runs.
    pub log: Parameters,
    /// Number of other devices at the interface, 0 to [`BESIDE_MAX`]. The port of a packet is
    /// compared with theirs first.
    pub beside: u16,
    /// The device has a lease, and checks it for each answer.
    pub leased: bool,
    /// The kinds of tags, each once. Several kinds are measured in turn.
    pub tags: Vec<Tags>,
}

/// The kind of tag with which a packet authenticates its sender.
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
