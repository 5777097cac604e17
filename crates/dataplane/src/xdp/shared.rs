//! What the in-kernel pipeline and user space share, field by field (`docs/spec/pipeline.md` §3).
//!
//! Each field has one writer at a time, named here. Fields are read and written as whole words, so
//! neither side ever sees half of one. `build.rs` turns these lists into the C header.

// The build script and a test include this file as well, each for a part of it.
#![allow(dead_code)]

use std::sync::atomic::{AtomicU32, AtomicU64};

/// Width of a slot of [`Counters::took`] in nanoseconds.
pub const TOOK_NS: usize = 32;
/// Slots of [`Counters::took`].
pub const TOOK_SLOTS: usize = 64;

/// Index of the interface in [`Hops::next`] and its like. 0 there: the way is not known.
pub const WAY_INTERFACE: usize = 3;

/// A name in C, and every field with its type and offset.
type Fields = (&'static str, &'static [(&'static str, &'static str, usize)]);

/// To be raised when the same fields come to mean something else, or other rules (who takes which lock).
const RULES: u64 = 2;

/// A number of all names, types and places below, and of [`RULES`]: versions that differ in one have another.
pub const LAYOUT: u64 = {
    let mut hash = hash_bytes(0xcbf2_9ce4_8422_2325, &RULES.to_be_bytes());
    hash = hash_fields(hash, Shard::C);
    hash = hash_fields(hash, Hops::C);
    hash = hash_fields(hash, Session::C);
    hash_fields(hash, Counters::C)
};

const fn hash_fields(mut hash: u64, (_, fields): Fields) -> u64 {
    let mut at = 0;
    while at < fields.len() {
        let (name, kind, offset) = fields[at];
        hash = hash_bytes(hash, name.as_bytes());
        hash = hash_bytes(hash, kind.as_bytes());
        hash = hash_bytes(hash, &offset.to_be_bytes());
        at += 1;
    }
    hash
}

/// FNV-1a.
const fn hash_bytes(mut hash: u64, bytes: &[u8]) -> u64 {
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        at += 1;
    }
    hash
}

macro_rules! shared {
    ($($(#[$doc:meta])* struct $name:ident as $c:literal { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* })*) => {
        $($(#[$doc])*
        #[derive(Debug)]
        #[repr(C, align(64))]
        pub struct $name { $($(#[$field_doc])* pub $field: $kind),* }

        impl $name {
            /// Name in C, and every field with its type and offset.
            pub const C: Fields = ($c, &[
                $((stringify!($field), stringify!($kind), std::mem::offset_of!($name, $field))),*
            ]);
        })*
    };
}

shared! {
    /// State of the shard: one element of the map `shards`.
    struct Shard as "pm_shard" {
        /// 1: the pipeline admits; 0: user space does. Changed by the programs `hold` and
        /// `release`, under the lock.
        admits: AtomicU32,
        /// Counts the holds: whoever looked at sessions before one looks again.
        generation: AtomicU32,
        /// Bytes 8 to 15 of every header of this epoch: shard and epoch. User space, held.
        shard_epoch: AtomicU64,
        /// Bytes 16 to 23 of what this device writes: device and incarnation. User space, held.
        device_incarnation: AtomicU64,
        /// Token between hops, as in a header. User space, held.
        token: AtomicU64,
        /// Epoch, as in an entry. User space, held.
        epoch: AtomicU32,
        /// Incarnation, as in an entry. User space, held.
        incarnation: AtomicU32,
        /// Orders up to here are applied: goes into every entry. User space.
        applied: AtomicU64,
        /// 1: user space sleeps until it is woken. Set by the program `wake_me`, taken by whoever
        /// appends; both under the lock.
        sleeps: AtomicU32,
        /// 1: the chain is this device alone, whose word is an acknowledgement. User space, held.
        alone: AtomicU32,
        /// Devices of the chain. User space, held.
        copies: AtomicU32,
        /// Nothing; keeps what the pipeline writes in lines of its own.
        padding: AtomicU32,
        /// Highest order. The pipeline; user space while it holds.
        last: AtomicU64,
        /// Offset behind the newest frame. As `last`.
        head: AtomicU64,
        /// Highest `applied` that an entry states. As `last`.
        stated: AtomicU64,
        /// Highest `applied` that two witnesses state: space up to there is free. As `last`.
        released: AtomicU64,
        /// An order, as in a header, and what it contributes to a header's checksum. The pipeline; as the
        /// next two.
        order_known: AtomicU64,
        /// The same of a number of free entries.
        room_known: AtomicU64,
        /// Contribution of the order.
        order_places: AtomicU32,
        /// Contribution of the number of free entries.
        room_places: AtomicU32,
        /// The lock: 1 while a CPU is inside. User space never takes it but by `hold` and `release`.
        taken: AtomicU32,
        /// [`LAYOUT`] of whoever made these maps. User space.
        layout: AtomicU64,
        /// How far they are in their life: the words of `Stage` (stage.rs). User space, with the lock of their folder.
        stage: AtomicU32,
    }

    /// The hops before and behind this device, in a chain: the one element of the map `chain`.
    struct Hops as "pm_hops" {
        /// 1: this device is not the head, and takes entries from the hop before. User space, held; as
        /// all up to `window`.
        follows: AtomicU32,
        /// Devices behind this one.
        behind: AtomicU32,
        /// IPv4 address of the next device, as in packets; 0: the pipeline sends it nothing.
        next_address: AtomicU32,
        /// Its UDP port, in network byte order.
        next_port: AtomicU32,
        /// IPv4 address of the device before, as in packets; 0: it is not known.
        before_address: AtomicU32,
        /// Its UDP port, in network byte order.
        before_port: AtomicU32,
        /// Entries that this device can take at once.
        receive_window: AtomicU64,
        /// Entries on their way to the next hop, at most.
        window: AtomicU64,
        /// Device and incarnation of each device behind, nearest first, as in a header.
        names: [AtomicU64; 7],
        /// How frames reach the next device: their first 12 bytes, and the interface; 0: not known
        /// yet. The pipeline; user space while it holds; as all that follow.
        next: [AtomicU32; 4],
        /// The same of the device before.
        before: [AtomicU32; 4],
        /// What each device behind holds.
        orders: [AtomicU64; 7],
        /// What the next hop says that it can take.
        credit: AtomicU64,
        /// Highest order sent to the next hop.
        sent: AtomicU64,
        /// Highest committed order, at the head.
        committed: AtomicU64,
        /// Orders up to here may be committed without an acknowledgement from the pipeline.
        skipped: AtomicU64,
        /// Own order in the last DURABLE that the pipeline sent.
        told: AtomicU64,
    }

    /// A session that the pipeline serves: one element of the map `sessions`.
    struct Session as "pm_session" {
        /// Its id; 0: the row is free. User space, held.
        id: AtomicU64,
        /// Its token, as in a header. User space, held.
        token: AtomicU64,
        /// Last admitted seq. The pipeline; user space while it holds.
        last: AtomicU64,
        /// The pipeline admits up to this seq: ended sessions and quotas. User space, held.
        until: AtomicU64,
        /// Highest applied seq. User space.
        applied: AtomicU64,
        /// Checksum of an update of this session whose seq, key, length and payload checksum are 0
        /// and which has one fragment. User space, held; as the next two.
        update_crc: AtomicU32,
        /// The same of its entry, order 0.
        append_crc: AtomicU32,
        /// The same of an acknowledgement, seq, order, room and applied 0.
        ack_crc: AtomicU32,
        /// UDP port of the client, in network byte order. User space.
        port: AtomicU32,
        /// 1: a duplicate was answered. Set by the pipeline, cleared by user space.
        heard: AtomicU32,
        /// Nothing.
        padding: AtomicU32,
        /// Its IPv6 address, or `::ffff:` and its IPv4 address, as they stand in packets.
        /// User space.
        address_high: AtomicU64,
        /// Second half of the address. User space.
        address_low: AtomicU64,
        /// A seq, as in a header. The pipeline; as all that follow.
        seq_known: AtomicU64,
        /// An applied seq, as in a header.
        applied_known: AtomicU64,
        /// What that seq contributes to a header's checksum.
        seq_places: AtomicU32,
        /// What that applied seq contributes.
        applied_places: AtomicU32,
        /// Last committed seq, in a chain. The pipeline; user space while it holds.
        committed: AtomicU64,
        /// How frames reach the client, in a chain: as [`Hops::next`]. The pipeline.
        client: [AtomicU32; 4],
    }

    /// Counted events of the pipeline on one CPU: one element of the map `counters`.
    struct Counters as "pm_counters" {
        /// Updates appended.
        appended: AtomicU64,
        /// Duplicates acknowledged again.
        duplicates: AtomicU64,
        /// Packets of this shard handed to user space, whatever the reason.
        handed_up: AtomicU64,
        /// Of these: updates while user space holds the shard.
        held: AtomicU64,
        /// Of these: updates of sessions that the pipeline does not serve.
        sessions_unknown: AtomicU64,
        /// Of these: updates whose checksums or fixed fields are not as they should be.
        odd: AtomicU64,
        /// Of these: another CPU had the lock for too long.
        busy: AtomicU64,
        /// Of these: updates that came too early.
        gaps: AtomicU64,
        /// Of these: updates without room in the log.
        full: AtomicU64,
        /// Words of the next device about what the chain holds.
        confirmed: AtomicU64,
        /// Packets for the shard, whatever became of them. One in 64 is timed.
        packets: AtomicU64,
        /// Of those that were timed and that the pipeline did itself: how many took less than 32 ns,
        /// 64 ns, and so on; the last: longer than all before.
        took: [AtomicU64; 64],
    }
}
