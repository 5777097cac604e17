//! The keys that seal packets to send, and the keys that verify received packets (`docs/spec/keys.md` §3).
//!
//! Without keys the tag of a packet is a token. With keys the tag is a MAC. A machine first verifies the MAC, and then
//! replaces the MAC by the token that the packet would have without keys. So all later steps are equal in both modes.

use crate::rules::{Rule, Rules};
use core::num::NonZeroU64;
use pmnet_wire::packet::{Identity, Recover};
use pmnet_wire::record::{Member, read_path};
pub use pmnet_wire::{ClusterKey, DoorKeys, FrontKey, MacKey, RdmaKeys};
use pmnet_wire::{FrontId, Header, Kind, Life, Packet, SessionKeys};

/// Source of a packet's tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seal {
    /// The tag that the header already has: a token.
    Token,
    /// The tag is a MAC that is made with this key.
    Key(MacKey),
}

impl Seal {
    /// Returns the seal with this key; without a key, a token.
    #[must_use]
    pub fn of(key: Option<MacKey>) -> Seal {
        key.map_or(Seal::Token, Seal::Key)
    }
}

/// Keys of devices and server: the cluster key, and a second cluster key during a rollover (`docs/spec/keys.md` §7).
#[derive(Clone, Debug)]
pub struct ClusterKeys {
    /// The key from which devices and server derive the keys of packets that they send.
    pub present: ClusterKey,
    /// A second key that devices and server accept: the next key or the previous key.
    pub other: Option<ClusterKey>,
    /// Fronts whose keys are no longer valid. The device compares each OPEN with the whole list, so the list should be
    /// short.
    pub refused: Vec<FrontId>,
}

impl ClusterKeys {
    /// Returns keys with only this cluster key.
    #[must_use]
    pub const fn new(present: ClusterKey) -> ClusterKeys {
        ClusterKeys {
            present,
            other: None,
            refused: Vec::new(),
        }
    }

    /// Returns a fingerprint of the keys and of the list of refused fronts. It is not secret, and never 0.
    #[must_use]
    pub fn print(&self) -> NonZeroU64 {
        let other = self.other.as_ref().map_or(0, ClusterKey::fingerprint);
        let first = u64::from(self.present.fingerprint()) << 32 | u64::from(other);
        let mix = |print: u64, id: u64| {
            (print ^ id)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29)
        };
        let print = self.refused.iter().map(|id| id.get()).fold(first, mix);
        NonZeroU64::new(print).unwrap_or(NonZeroU64::MIN)
    }

    /// Returns the accepted keys; the first key is the one with which this device sends.
    pub fn accepted(&self) -> impl Iterator<Item = &ClusterKey> {
        std::iter::once(&self.present).chain(&self.other)
    }

    /// Whether the packet is sealed with the key that `derive` makes from one of the accepted keys.
    pub(crate) fn verify(
        &self,
        packet: &Packet<'_>,
        derive: impl Fn(&ClusterKey) -> MacKey,
    ) -> bool {
        self.accepted().any(|key| derive(key).verifies(packet))
    }

    /// Returns the reason why no session of this front is served.
    #[must_use]
    pub fn why_not(&self, id: FrontId) -> Unserved {
        if self.refused.contains(&id) {
            Unserved::Refused
        } else {
            Unserved::OfAnotherCluster
        }
    }

    /// Returns the keys of a session, if its front has a valid key of this cluster.
    pub(crate) fn session(&self, shard: u32, identity: Identity) -> Option<SessionKeys> {
        let front = self.front(identity.front?)?;
        Some(front.session(shard, identity.token))
    }

    /// Returns the key of a front, if it is derived from a key of this cluster and not refused.
    #[must_use]
    pub fn front(&self, id: FrontId) -> Option<FrontKey> {
        let id = (!self.refused.contains(&id)).then_some(id)?;
        self.accepted().find_map(|key| key.front(id))
    }

    /// Whether sessions of this front are served.
    #[must_use]
    pub fn serves(&self, id: FrontId) -> bool {
        self.front(id).is_some()
    }
}

/// Why no session of a front is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unserved {
    /// The front's key is on the list of refused keys.
    Refused,
    /// The front's key is not derived from a key of this cluster.
    OfAnotherCluster,
}

/// Keys of a device.
#[derive(Clone, Debug)]
pub struct DeviceKeys {
    /// The cluster's keys.
    pub cluster: ClusterKeys,
    /// Device id of the next hop; 0: the next hop is the server (`docs/spec/keys.md` §5).
    pub next: u32,
}

/// Keys of a hop (a device or the server) with its neighbour hops, in one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HopKeys {
    /// Key of packets that the hop itself sends.
    pub own: MacKey,
    /// Keys of packets that the previous device sends, one for each cluster key. The head has no such keys.
    pub before: [Option<MacKey>; 2],
    /// Keys of packets that the next hop sends, one for each cluster key.
    pub after: [Option<MacKey>; 2],
}

impl HopKeys {
    /// Returns the keys of the hop at this position of the chain. The server's position is after the last member.
    pub(crate) fn new(
        cluster: &ClusterKeys,
        life: Life,
        epoch: u32,
        members: &[Member],
        position: usize,
    ) -> HopKeys {
        let sender = |at: usize| members.get(at).map_or(0, |member| member.device);
        let both = |at: usize| {
            let key = |key: &ClusterKey| key.hop(life, epoch, sender(at));
            [Some(key(&cluster.present)), cluster.other.as_ref().map(key)]
        };
        HopKeys {
            own: cluster.present.hop(life, epoch, sender(position)),
            before: position.checked_sub(1).map_or([None; 2], both),
            after: both(position + 1),
        }
    }

    /// Whether the neighbour that may send this kind has sealed the packet, in this epoch.
    pub(crate) fn verify(&self, packet: &Packet<'_>) -> bool {
        let sender = if goes_to_the_server(packet.header.kind) {
            &self.before
        } else {
            &self.after
        };
        sender.iter().flatten().any(|key| key.verifies(packet))
    }
}

/// Whether a hop sends this kind to the next hop, and not to the hop before.
pub(crate) const fn goes_to_the_server(kind: Kind) -> bool {
    matches!(kind, Kind::Append | Kind::Bypass | Kind::Ping)
}

/// Maximum number of packets with another epoch than the receiver's that are verified in one burst. The verification of
/// one packet computes up to twenty derived keys and MACs.
const STRANGERS_MAX: u32 = 8;

/// Number of packets of another epoch that may still be verified in this burst. If a genuine packet is dropped because
/// of this limit, its sender sends it again.
#[derive(Debug)]
pub(crate) struct Strangers(u32);

impl Default for Strangers {
    fn default() -> Strangers {
        Strangers(STRANGERS_MAX)
    }
}

impl Strangers {
    /// Whether one more packet may be verified in this burst. If so, the packet is counted.
    pub(crate) const fn admit(&mut self) -> bool {
        let admits = self.0 > 0;
        self.0 = self.0.saturating_sub(1);
        admits
    }
}

/// Returns whether a hop has sealed a packet whose epoch is not the receiver's. The possible senders are the members of
/// the chain that the receiver knows, the device that the header names, and the server. `token`: shard token of the
/// life that the receiver knows. A packet of epoch 0 comes from a server without a chain record, which has no token.
pub(crate) fn verify_in_another_epoch(
    cluster: &ClusterKeys,
    token: u64,
    members: &[Member],
    packet: &Packet<'_>,
) -> bool {
    let header = &packet.header;
    let life = Life {
        shard: header.shard,
        token: if header.epoch == 0 { 0 } else { token },
    };
    let members = members.iter().map(|member| member.device);
    let mut senders = members.chain([header.device, 0]);
    senders.any(|sender| {
        let key = |key: &ClusterKey| key.hop(life, header.epoch, sender);
        cluster.verify(packet, key)
    })
}

/// Verifies that the last device on a RECOVER's path has sealed the RECOVER for the hop with this id.
pub(crate) fn verify_recover(cluster: &ClusterKeys, own: u32, packet: &Packet<'_>) -> Verified {
    let path = read_path(packet.payload);
    let Some(sender) = path.as_deref().and_then(<[Member]>::last) else {
        return Verified::No;
    };
    let key = |key: &ClusterKey| key.asking(packet.header.shard, sender.device);
    if !cluster.verify(packet, key) {
        Verified::No
    } else if Recover::read(&packet.header).meant == said(own) {
        Verified::Yes
    } else {
        Verified::ForAnother
    }
}

/// Result of verifying a seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verified {
    /// The seal was not verified, because the burst had too many packets of another epoch.
    Unknown,
    /// The seal is right.
    Yes,
    /// The seal is wrong: the packet was not sealed with this key, or was changed.
    No,
    /// The seal is right, but the packet is meant for another hop.
    ForAnother,
}

impl Verified {
    /// Returns [`Verified::Yes`] or [`Verified::No`], for a packet that can only be meant for this receiver.
    pub(crate) const fn of(right: bool) -> Verified {
        if right { Verified::Yes } else { Verified::No }
    }

    /// Returns the result under these rules: without [`Rule::Sealed`], a wrong seal counts as right.
    pub(crate) fn under(self, rules: Rules) -> Verified {
        match self {
            Verified::No | Verified::Unknown if !rules.hold(Rule::Sealed) => Verified::Yes,
            found => found,
        }
    }
}

/// Returns whether this key has sealed the packet, or rule [`Rule::Sealed`] is switched off.
pub(crate) fn sealed(key: &MacKey, packet: &Packet<'_>, rules: Rules) -> bool {
    Verified::of(key.verifies(packet)).under(rules) == Verified::Yes
}

/// Returns whether the packet seems to come from a process that uses keys although the receiver has none (`keyed` is
/// false), or the reverse (keys.md §4). The result is no proof, and only causes a warning.
pub(crate) fn is_of_the_other_mode(keyed: bool, packet: &Packet<'_>) -> bool {
    let by_keys = match packet.header.kind {
        Kind::Open => Identity::read(packet.payload).map(|said| said.front.is_some()),
        Kind::Recover => Some(packet.header.tag != 0),
        _ => None,
    };
    by_keys.is_some_and(|by_keys| by_keys != keyed)
}

/// Returns the number that a RECOVER states for this hop: its device id plus 1. 0 stands for no hop.
pub(crate) fn said(hop: u32) -> u64 {
    u64::from(hop) + 1
}

/// Returns whether a client has sent the packet, by kind and fields of its header.
pub(crate) fn is_of_a_client(header: &Header) -> bool {
    match header.kind {
        Kind::Open | Kind::Update | Kind::End | Kind::Read => true,
        Kind::Bypass => header.device == 0,
        Kind::Ping => header.session != 0,
        _ => false,
    }
}
