//! The keys that seal packets to send, and the keys that verify received ones (`docs/spec/keys.md` §3).
//!
//! Without keys the tag of a packet is a token. With keys it is a MAC. A machine verifies the MAC before it looks at anything else, and then
//! replaces it by the token that the packet would have without keys. So all later steps are the same in both modes.

use crate::rules::{Rule, Rules};
use core::num::NonZeroU64;
use pmnet_wire::packet::{Identity, Recover};
use pmnet_wire::record::{Member, read_path};
pub use pmnet_wire::{ClusterKey, DoorKeys, FrontKey, MacKey};
use pmnet_wire::{FrontId, Header, Kind, Life, Packet, SessionKeys};

/// Source of a packet's tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seal {
    /// The token that is in its header.
    Token,
    /// The MAC under this key.
    Key(MacKey),
}

impl Seal {
    /// The seal with this key; without one a token.
    #[must_use]
    pub fn of(key: Option<MacKey>) -> Seal {
        key.map_or(Seal::Token, Seal::Key)
    }
}

/// Keys of devices and server: the cluster key, and a second one during a rollover (`docs/spec/keys.md` §7).
#[derive(Clone, Debug)]
pub struct ClusterKeys {
    /// The key under which they send.
    pub present: ClusterKey,
    /// Another one that they accept: the next one, or the one before.
    pub other: Option<ClusterKey>,
    /// Fronts whose keys are no longer valid. Each OPEN is compared with the whole list.
    pub refused: Vec<FrontId>,
}

impl ClusterKeys {
    /// This key, and no other.
    #[must_use]
    pub const fn new(present: ClusterKey) -> ClusterKeys {
        ClusterKeys {
            present,
            other: None,
            refused: Vec::new(),
        }
    }

    /// Returns a number that is another one whenever one of the keys, or the list of refused fronts, is another. It is no secret, and never 0.
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

    /// The keys that they accept, that under which they send first.
    pub fn accepted(&self) -> impl Iterator<Item = &ClusterKey> {
        std::iter::once(&self.present).chain(&self.other)
    }

    /// Whether a hop has sealed the packet, under a key that is derived so.
    pub(crate) fn verify(
        &self,
        packet: &Packet<'_>,
        derive: impl Fn(&ClusterKey) -> MacKey,
    ) -> bool {
        self.accepted().any(|key| derive(key).verifies(packet))
    }

    /// Why no session of this front is served.
    pub(crate) fn why_not(&self, id: FrontId) -> Unserved {
        if self.refused.contains(&id) {
            Unserved::Refused
        } else {
            Unserved::OfAnotherCluster
        }
    }

    /// The keys of a session, if its front has a key of this cluster that is valid.
    pub(crate) fn session(&self, shard: u32, identity: Identity) -> Option<SessionKeys> {
        let front = self.front(identity.front?)?;
        Some(front.session(shard, identity.token))
    }

    /// The key of a front, if it follows from one of this cluster, and is not refused.
    fn front(&self, id: FrontId) -> Option<FrontKey> {
        let id = (!self.refused.contains(&id)).then_some(id)?;
        self.accepted().find_map(|key| key.front(id))
    }

    /// Whether sessions of this front are served.
    pub(crate) fn serves(&self, id: FrontId) -> bool {
        self.front(id).is_some()
    }
}

/// Why no session of a front is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unserved {
    /// Its key is on the list of refused ones.
    Refused,
    /// Its key follows from none of the keys of the cluster.
    OfAnotherCluster,
}

/// Keys of a device.
#[derive(Clone, Debug)]
pub struct DeviceKeys {
    /// Those of the cluster.
    pub cluster: ClusterKeys,
    /// Id of the next hop; 0: it is the server (`docs/spec/keys.md` §5).
    pub next: u32,
}

/// Keys of a hop, a device or the server, with the hops beside it, in one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HopKeys {
    /// Of packets that the hop itself sends.
    pub own: MacKey,
    /// Of the device before it, under each cluster key; the head has none.
    pub before: [Option<MacKey>; 2],
    /// Of the next hop.
    pub after: [Option<MacKey>; 2],
}

impl HopKeys {
    /// The keys of the hop at this position of the chain; after the last member comes the server.
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

    /// Whether the neighbour that may send this kind has sealed it, in this epoch.
    pub(crate) fn verify(&self, packet: &Packet<'_>) -> bool {
        let sender = if goes_to_the_server(packet.header.kind) {
            &self.before
        } else {
            &self.after
        };
        sender.iter().flatten().any(|key| key.verifies(packet))
    }
}

/// Whether a hop sends it to the next one, and not to the one before.
pub(crate) const fn goes_to_the_server(kind: Kind) -> bool {
    matches!(kind, Kind::Append | Kind::Bypass | Kind::Ping)
}

/// Packets of hops with another epoch than the receiver's that are verified in one burst: each takes up to twenty derivations and MACs.
const STRANGERS_MAX: u32 = 8;

/// How many packets of another epoch may still be verified in this burst. Of a genuine one that is dropped the sender sends a copy.
#[derive(Debug)]
pub(crate) struct Strangers(u32);

impl Default for Strangers {
    fn default() -> Strangers {
        Strangers(STRANGERS_MAX)
    }
}

impl Strangers {
    /// Whether one more may be verified.
    pub(crate) const fn admit(&mut self) -> bool {
        let admits = self.0 > 0;
        self.0 = self.0.saturating_sub(1);
        admits
    }
}

/// Returns whether a hop has sealed a packet whose epoch is not the receiver's. Tried are the members of the chain that the receiver knows, the device that the
/// header names, and the server. `token`: the shard token of the receiver's life. Epoch 0 is that of a server without a record, which has none.
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

/// Whether a RECOVER was sealed by the last device of its path, for the hop with this id.
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
    /// It was not verified: there were too many of another epoch in this burst.
    Unknown,
    /// It is right.
    Yes,
    /// It is wrong: the packet was not sealed with this key, or was changed.
    No,
    /// It is right, but meant for another hop.
    ForAnother,
}

impl Verified {
    /// Result for a packet that can be meant for this receiver only.
    pub(crate) const fn of(right: bool) -> Verified {
        if right { Verified::Yes } else { Verified::No }
    }

    /// The result under the rules that hold: without [`Rule::Sealed`] a wrong seal counts as right.
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

/// Returns whether a process of the other mode has sent it, as far as that can be told: with keys if the receiver has none, and the other way about
/// (keys.md §4). It proves nothing, and nothing but a warning follows.
pub(crate) fn is_of_the_other_mode(keyed: bool, packet: &Packet<'_>) -> bool {
    let by_keys = match packet.header.kind {
        Kind::Open => Identity::read(packet.payload).map(|said| said.front.is_some()),
        Kind::Recover => Some(packet.header.tag != 0),
        _ => None,
    };
    by_keys.is_some_and(|by_keys| by_keys != keyed)
}

/// Returns the number by which RECOVER names this hop; 0 names none.
pub(crate) fn said(hop: u32) -> u64 {
    u64::from(hop) + 1
}

/// Returns whether only clients send such a packet.
pub(crate) fn is_of_a_client(header: &Header) -> bool {
    match header.kind {
        Kind::Open | Kind::Update | Kind::End | Kind::Read => true,
        Kind::Bypass => header.device == 0,
        Kind::Ping => header.session != 0,
        _ => false,
    }
}
