//! Keys, and the MAC that is a packet's `tag` if there are keys (`docs/spec/keys.md` §1, §2).
//!
//! Invariants: a key either derives other keys or makes MACs, and the two kinds of keys have different types. This
//! module does not allocate. Only [`ClusterKey::bytes`] and [`FrontKey::bytes`] return the bytes of a key, for key
//! files.

use crate::{Header, Packet};
use core::fmt;
use core::hash::Hasher;
use core::num::NonZeroU64;
use siphasher::sip::SipHasher24;

/// Bytes of a key.
pub const KEY_BYTES: usize = 16;

/// Purpose of a derived key: 8 bytes, so that no two derivations have the same input.
type Label = &'static [u8; 8];

const FRONT: Label = b"pm front";
const TO_HEAD: Label = b"pm-to-hd";
const TO_CLIENT: Label = b"pm-to-cl";
const HOP: Label = b"pm hop  ";
const ASKING: Label = b"pm ask  ";
const PRINT: Label = b"pm print";
const NAME: Label = b"pm name ";
const DOOR: Label = b"pm door ";
const TO_DOOR: Label = b"pm-to-dr";
const TO_CALLER: Label = b"pm-to-ca";
const RDMA: Label = b"pm rdma ";
const RDMA_TO_DEVICE: Label = b"pm-rd-dv";
const RDMA_TO_CLIENT: Label = b"pm-rd-cl";

#[derive(Clone, Copy, PartialEq, Eq)]
struct Key([u8; KEY_BYTES]);

impl Key {
    fn hasher(&self) -> SipHasher24 {
        let [a, b, c, d, e, f, g, h, rest @ ..] = self.0;
        let first = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        SipHasher24::new_with_keys(first, u64::from_le_bytes(rest))
    }

    /// Returns one half (8 bytes) of a derived key. `number` says which half.
    fn half(&self, label: Label, number: u64, about: [u64; 3]) -> u64 {
        let mut hasher = self.hasher();
        hasher.write(label);
        hasher.write(&number.to_be_bytes());
        for part in about {
            hasher.write(&part.to_be_bytes());
        }
        hasher.finish()
    }

    fn derive(&self, label: Label, about: [u64; 3]) -> Key {
        let mut derived = [0; KEY_BYTES];
        for (number, half) in (0..).zip(derived.chunks_exact_mut(8)) {
            half.copy_from_slice(&self.half(label, number, about).to_le_bytes());
        }
        Key(derived)
    }
}

/// Debug output never shows a key.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// The key that devices and server share; all other keys are derived from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterKey(Key);

/// The public id of a front, never 0. Its upper half is the fingerprint of the cluster key from which the front's key
/// is derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrontId(NonZeroU64);

/// The key of a front, or of a program, with its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontKey {
    id: FrontId,
    key: Key,
}

/// The life of a shard: from its first chain until its store is emptied or replaced. Epochs begin at 1 in each life, so
/// a packet of one life must not verify in another life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Number of the shard.
    pub shard: u32,
    /// Shard token, which the server draws when it makes the first chain. The token is not secret. 0: the server has no
    /// chain record.
    pub token: u64,
}

/// The two keys of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionKeys {
    /// Key of packets from the client.
    pub to_head: MacKey,
    /// Key of packets from the head.
    pub to_client: MacKey,
}

/// The two keys of one conversation at a TCP door (`docs/spec/keys.md` §9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoorKeys {
    /// Key of the question, which is sent to the door.
    pub to_door: MacKey,
    /// Key of the answer, which is sent to the caller.
    pub to_caller: MacKey,
}

/// The two keys of the messages over TCP that set up one RDMA connection (`docs/spec/verbs.md` §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaKeys {
    /// Key of the client's messages.
    pub to_device: MacKey,
    /// Key of the device's messages.
    pub to_client: MacKey,
}

/// A key that makes MACs and verifies them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacKey(Key);

impl FrontId {
    /// Returns the id with this number; `None` for 0.
    #[must_use]
    pub const fn new(number: u64) -> Option<FrontId> {
        match NonZeroU64::new(number) {
            Some(number) => Some(FrontId(number)),
            None => None,
        }
    }

    /// Returns the number of the id.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl ClusterKey {
    /// Returns the key with these 16 random bytes.
    #[must_use]
    pub const fn new(bytes: [u8; KEY_BYTES]) -> ClusterKey {
        ClusterKey(Key(bytes))
    }

    /// Returns the bytes of the key, for a file that only its owner can read.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0.0
    }

    /// Returns the fingerprint of the cluster key, which is the upper half of the ids of its fronts.
    #[must_use]
    pub fn fingerprint(&self) -> u32 {
        upper(self.0.half(PRINT, 0, [0; 3]))
    }

    /// Returns the id of the front with this name.
    #[must_use]
    pub fn front_id(&self, name: &[u8]) -> FrontId {
        let mut hasher = self.0.hasher();
        hasher.write(NAME);
        hasher.write(name);
        let of_name = u64::from(lower(hasher.finish()).max(1));
        let number = u64::from(self.fingerprint()) << 32 | of_name;
        FrontId(NonZeroU64::new(number).expect("its lower half is not 0"))
    }

    /// Returns the key of the front with this id, or `None` if the id belongs to another cluster key.
    #[must_use]
    pub fn front(&self, id: FrontId) -> Option<FrontKey> {
        (upper(id.get()) == self.fingerprint()).then(|| FrontKey {
            id,
            key: self.0.derive(FRONT, [id.get(), 0, 0]),
        })
    }

    /// Returns the key of packets that this sender (a device, or 0 for the server) sends to its neighbour hops in this
    /// epoch of the life.
    #[must_use]
    pub fn hop(&self, life: Life, epoch: u32, sender: u32) -> MacKey {
        let place = u64::from(life.shard) << 32 | u64::from(epoch);
        MacKey(self.0.derive(HOP, [place, sender.into(), life.token]))
    }

    /// Returns the key of RECOVER and recover-replies that this sender sends, in any epoch.
    #[must_use]
    pub fn asking(&self, shard: u32, sender: u32) -> MacKey {
        let about = [shard.into(), sender.into(), 0];
        MacKey(self.0.derive(ASKING, about))
    }

    /// Returns the keys of the conversation for which caller and door have drawn these nonces.
    #[must_use]
    pub fn door(&self, caller: [u64; 2], door: [u64; 2]) -> DoorKeys {
        let of_caller = self.0.derive(DOOR, [caller[0], caller[1], 0]);
        let about = [door[0], door[1], 0];
        DoorKeys {
            to_door: MacKey(of_caller.derive(TO_DOOR, about)),
            to_caller: MacKey(of_caller.derive(TO_CALLER, about)),
        }
    }
}

impl FrontKey {
    /// Returns the key with this id and these bytes from a file.
    #[must_use]
    pub const fn new(id: FrontId, bytes: [u8; KEY_BYTES]) -> FrontKey {
        FrontKey {
            id,
            key: Key(bytes),
        }
    }

    /// Returns the id of the key.
    #[must_use]
    pub const fn id(&self) -> FrontId {
        self.id
    }

    /// Returns the bytes of the key, for a file that only its owner can read.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.key.0
    }

    /// Returns the keys of the front's session with this token. No two sessions of a front may have the same token.
    #[must_use]
    pub fn session(&self, shard: u32, token: u64) -> SessionKeys {
        let about = [shard.into(), token, 0];
        SessionKeys {
            to_head: MacKey(self.key.derive(TO_HEAD, about)),
            to_client: MacKey(self.key.derive(TO_CLIENT, about)),
        }
    }

    /// Returns the keys of the RDMA connection for which client and device have drawn these nonces.
    #[must_use]
    pub fn rdma(&self, client: [u64; 2], device: [u64; 2]) -> RdmaKeys {
        let of_client = self.key.derive(RDMA, [client[0], client[1], 0]);
        let about = [device[0], device[1], 0];
        RdmaKeys {
            to_device: MacKey(of_client.derive(RDMA_TO_DEVICE, about)),
            to_client: MacKey(of_client.derive(RDMA_TO_CLIENT, about)),
        }
    }
}

impl MacKey {
    /// Returns the bytes of the key, for the tables of a pipeline that verifies packets itself.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0.0
    }

    /// Returns the MAC of a packet. `header` has length and checksum of the payload ([`Header::for_payload`]); its tag
    /// is ignored.
    #[must_use]
    pub fn mac(&self, header: &Header, payload: &[u8]) -> u64 {
        let mut hasher = self.0.hasher();
        hasher.write(&header.covered());
        hasher.write(payload);
        hasher.finish()
    }

    /// Returns the MAC of a text. The key must not be used for packets.
    #[must_use]
    pub fn text(&self, text: &[u8]) -> u64 {
        let mut hasher = self.0.hasher();
        hasher.write(text);
        hasher.finish()
    }

    /// Returns the header with the MAC as its tag.
    #[must_use]
    pub fn seal(&self, header: &Header, payload: &[u8]) -> Header {
        Header {
            tag: self.mac(header, payload),
            ..*header
        }
    }

    /// Returns whether the packet was sealed with this key, and is unchanged.
    #[must_use]
    pub fn verifies(&self, packet: &Packet<'_>) -> bool {
        self.mac(&packet.header, packet.payload) ^ packet.header.tag == 0
    }
}

const fn upper(number: u64) -> u32 {
    let [a, b, c, d, ..] = number.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

const fn lower(number: u64) -> u32 {
    let [.., a, b, c, d] = number.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests;
