//! The kinds of packets, and the result that the pipeline must have for each. To add a kind, add a
//! name, a sentence and an expected result in this module, and its bytes in [`super::stand`].

use clap::ValueEnum;
use pmnet_dataplane::xdp::{XDP_PASS, XDP_TX};
use serde::Serialize;

use crate::xdp::Counted;

/// A kind of packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Packet {
    /// An update with the next seq of its session. The pipeline appends and acknowledges the
    /// update.
    Update,
    /// An update with the next seq of its session, over IPv6.
    Update6,
    /// An update that is already in the log. The pipeline acknowledges the update again.
    Duplicate,
    /// An update of a session that this device does not know.
    Unknown,
    /// An update whose payload does not match its checksum.
    Damaged,
    /// A READ of a key with an update in the log. The pipeline answers with this update.
    ReadHit,
    /// A READ of a key without an update in the log. The answer is the order up to which the store
    /// must have applied the log.
    ReadMiss,
    /// A UDP datagram to a port of this machine that is not the device's.
    OtherPort,
    /// A TCP segment to this machine.
    Tcp,
    /// An ARP request.
    Arp,
}

impl Packet {
    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Packet::Update => "update",
            Packet::Update6 => "update6",
            Packet::Duplicate => "duplicate",
            Packet::Unknown => "unknown",
            Packet::Damaged => "damaged",
            Packet::ReadHit => "read-hit",
            Packet::ReadMiss => "read-miss",
            Packet::OtherPort => "other-port",
            Packet::Tcp => "tcp",
            Packet::Arp => "arp",
        }
    }

    /// Returns a description of the packet and its result.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Packet::Update => "an update in order, appended to the log and acknowledged",
            Packet::Update6 => "the same over IPv6",
            Packet::Duplicate => "an update that is in the log already, acknowledged again",
            Packet::Unknown => "an update of a session that the pipeline does not serve, handed up",
            Packet::Damaged => "an update whose payload does not fit its checksum, handed up",
            Packet::ReadHit => "a READ, answered with the update that the log has of its key (HIT)",
            Packet::ReadMiss => {
                "a READ of a key without an update, answered with what the store must have (MISS)"
            }
            Packet::OtherPort => "UDP to another port, passed on",
            Packet::Tcp => "TCP, passed on",
            Packet::Arp => "ARP, passed on",
        }
    }

    /// Returns whether the packet advances the seq of its session, and can therefore be used only
    /// once.
    #[must_use]
    pub const fn appends(self) -> bool {
        matches!(self, Packet::Update | Packet::Update6)
    }

    /// Returns whether the packet is an update, of a known or an unknown session.
    #[must_use]
    pub const fn is_update(self) -> bool {
        !self.is_read() && !matches!(self, Packet::OtherPort | Packet::Tcp | Packet::Arp)
    }

    /// Returns whether the packet is a READ.
    #[must_use]
    pub const fn is_read(self) -> bool {
        matches!(self, Packet::ReadHit | Packet::ReadMiss)
    }

    /// Returns the XDP verdict that the pipeline must return for such a packet.
    #[must_use]
    pub const fn verdict(self) -> u32 {
        match self {
            Packet::Update
            | Packet::Update6
            | Packet::Duplicate
            | Packet::ReadHit
            | Packet::ReadMiss => XDP_TX,
            _ => XDP_PASS,
        }
    }

    /// Returns the expected counters of the pipeline after `count` packets of this kind and no
    /// other packets.
    #[must_use]
    pub fn counted(self, count: u64) -> Counted {
        let nothing = Counted::default();
        match self {
            Packet::Update | Packet::Update6 => Counted {
                appended: count,
                ..nothing
            },
            Packet::Duplicate => Counted {
                duplicates: count,
                ..nothing
            },
            Packet::Unknown => Counted {
                handed_up: count,
                sessions_unknown: count,
                ..nothing
            },
            Packet::Damaged => Counted {
                handed_up: count,
                odd: count,
                ..nothing
            },
            Packet::ReadHit => Counted {
                read_hits: count,
                ..nothing
            },
            Packet::ReadMiss => Counted {
                read_misses: count,
                ..nothing
            },
            Packet::OtherPort | Packet::Tcp | Packet::Arp => nothing,
        }
    }
}
