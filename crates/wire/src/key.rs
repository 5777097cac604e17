//! Keys, and the MAC that they put into a packet's `tag` (`docs/spec/keys.md` §1, §2).
//!
//! Invariants: a key either derives others or makes MACs, which the types keep apart. Nothing here allocates, and nothing shows
//! the bytes of a key but [`ClusterKey::bytes`] and [`FrontKey::bytes`], for files of keys.

use crate::{Header, Packet};
use core::fmt;
use core::hash::Hasher;
use core::num::NonZeroU64;
use siphasher::sip::SipHasher24;

/// Bytes of a key.
pub const KEY_BYTES: usize = 16;

/// The purpose of a derived key: 8 bytes, so that no two inputs of a derivation are alike.
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

#[derive(Clone, Copy, PartialEq, Eq)]
struct Key([u8; KEY_BYTES]);

impl Key {
    fn hasher(&self) -> SipHasher24 {
        let [a, b, c, d, e, f, g, h, rest @ ..] = self.0;
        let first = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        SipHasher24::new_with_keys(first, u64::from_le_bytes(rest))
    }

    /// One half of a derived key.
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

/// No key is shown by accident.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// The key that devices and server share; all others follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterKey(Key);

/// The id of a front: no secret, and never 0. The upper half is the fingerprint of the cluster key from which the front's key is derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrontId(NonZeroU64);

/// The key of a front, or of a program, with its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontKey {
    id: FrontId,
    key: Key,
}

/// A shard from its first chain until its store is emptied or replaced. Epochs of another life begin at 1 again, so a packet of one life must not
/// verify in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Number of the shard.
    pub shard: u32,
    /// Shard token, which the server draws with the first chain, and which is no secret; 0: a server without a record of a chain.
    pub token: u64,
}

/// The two keys of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionKeys {
    /// For packets from the client.
    pub to_head: MacKey,
    /// For packets from the head.
    pub to_client: MacKey,
}

/// The two keys of one conversation at a TCP door (`docs/spec/keys.md` §9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoorKeys {
    /// For the question.
    pub to_door: MacKey,
    /// For the answer.
    pub to_caller: MacKey,
}

/// A key that makes MACs and verifies them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacKey(Key);

impl FrontId {
    /// The id with this number; 0 is none.
    #[must_use]
    pub const fn new(number: u64) -> Option<FrontId> {
        match NonZeroU64::new(number) {
            Some(number) => Some(FrontId(number)),
            None => None,
        }
    }

    /// Its number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl ClusterKey {
    /// The key with these bytes: 16 random ones.
    #[must_use]
    pub const fn new(bytes: [u8; KEY_BYTES]) -> ClusterKey {
        ClusterKey(Key(bytes))
    }

    /// Its bytes, for a file that only its owner can read.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0.0
    }

    /// Returns the number that distinguishes it from another cluster key: the upper half of the ids of its fronts.
    #[must_use]
    pub fn fingerprint(&self) -> u32 {
        upper(self.0.half(PRINT, 0, [0; 3]))
    }

    /// The id of the front with this name.
    #[must_use]
    pub fn front_id(&self, name: &[u8]) -> FrontId {
        let mut hasher = self.0.hasher();
        hasher.write(NAME);
        hasher.write(name);
        let of_name = u64::from(lower(hasher.finish()).max(1));
        let number = u64::from(self.fingerprint()) << 32 | of_name;
        FrontId(NonZeroU64::new(number).expect("its lower half is not 0"))
    }

    /// The key of the front with this id. `None`: the id is of another cluster key.
    #[must_use]
    pub fn front(&self, id: FrontId) -> Option<FrontKey> {
        (upper(id.get()) == self.fingerprint()).then(|| FrontKey {
            id,
            key: self.0.derive(FRONT, [id.get(), 0, 0]),
        })
    }

    /// The key of packets from this sender, a device or 0 for the server, to the hops beside it in this epoch of the life.
    #[must_use]
    pub fn hop(&self, life: Life, epoch: u32, sender: u32) -> MacKey {
        let place = u64::from(life.shard) << 32 | u64::from(epoch);
        MacKey(self.0.derive(HOP, [place, sender.into(), life.token]))
    }

    /// The key of RECOVER and recover-replies that this sender sends, whatever the epoch.
    #[must_use]
    pub fn asking(&self, shard: u32, sender: u32) -> MacKey {
        let about = [shard.into(), sender.into(), 0];
        MacKey(self.0.derive(ASKING, about))
    }

    /// The keys of the conversation in which the caller and the door have drawn these nonces.
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
    /// The key with this id and these bytes, out of a file.
    #[must_use]
    pub const fn new(id: FrontId, bytes: [u8; KEY_BYTES]) -> FrontKey {
        FrontKey {
            id,
            key: Key(bytes),
        }
    }

    /// Its id.
    #[must_use]
    pub const fn id(&self) -> FrontId {
        self.id
    }

    /// Its bytes, for a file that only its owner can read.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.key.0
    }

    /// The keys of its session with this token, which no other session of it may have.
    #[must_use]
    pub fn session(&self, shard: u32, token: u64) -> SessionKeys {
        let about = [shard.into(), token, 0];
        SessionKeys {
            to_head: MacKey(self.key.derive(TO_HEAD, about)),
            to_client: MacKey(self.key.derive(TO_CLIENT, about)),
        }
    }
}

impl MacKey {
    /// Its bytes, for the tables of a pipeline that verifies by itself.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0.0
    }

    /// The MAC of a packet. `header` has length and checksum of the payload ([`Header::for_payload`]); its tag does not count.
    #[must_use]
    pub fn mac(&self, header: &Header, payload: &[u8]) -> u64 {
        let mut hasher = self.0.hasher();
        hasher.write(&header.covered());
        hasher.write(payload);
        hasher.finish()
    }

    /// The MAC of a text, under a key that makes MACs of nothing else.
    #[must_use]
    pub fn text(&self, text: &[u8]) -> u64 {
        let mut hasher = self.0.hasher();
        hasher.write(text);
        hasher.finish()
    }

    /// The header with the MAC as its tag.
    #[must_use]
    pub fn seal(&self, header: &Header, payload: &[u8]) -> Header {
        Header {
            tag: self.mac(header, payload),
            ..*header
        }
    }

    /// Whether the packet was sealed with this key, and is unchanged.
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
