//! Memory that the in-kernel pipeline and user space share, field by field.
//!
//! Invariants: each field has one writer at a time, which the field's comment names. Fields are read and written as
//! whole words, so neither side ever sees half of a word. `build.rs` turns these lists into C structures. Spec:
//! `docs/spec/pipeline.md` §3. This module must not contain code that changes a field.

// The build script and a test also include this file, and use only a part of it.
#![allow(dead_code)]

use std::sync::atomic::{AtomicU32, AtomicU64};

/// Width of a slot of [`Counters::took`] in nanoseconds.
pub const TOOK_NS: usize = 32;
/// Number of slots of [`Counters::took`].
pub const TOOK_SLOTS: usize = 64;

/// Maximum number of devices at one interface (known gap G67).
pub const DEVICES_MAX: usize = 16;

/// Index of the word with the interface's number in [`Hops::next`] and similar fields. If this word is 0, the path is
/// unknown.
pub const WAY_INTERFACE: usize = 3;

/// A flag in the highest bit of a word with an order. Orders never have this bit.
pub const HIDDEN: u64 = 1 << 63;

/// The value of [`Shard::answers_until`] for a device that needs no lease.
pub const FOR_EVER: u64 = u64::MAX;

/// A structure for C: its name, its alignment in bytes, and every field with its type and offset.
type Fields = (
    &'static str,
    usize,
    &'static [(&'static str, &'static str, usize)],
);

/// A number that must be raised when the meaning of a field, or a rule of locking, changes without a change of the
/// layout.
const RULES: u64 = 3;

/// Hash of all names, types and offsets below, and of [`RULES`]. Versions that differ in any of them have different
/// hashes.
pub const LAYOUT: u64 = {
    let mut hash = hash_bytes(0xcbf2_9ce4_8422_2325, &RULES.to_be_bytes());
    hash = hash_fields(hash, Shard::C);
    hash = hash_fields(hash, Hops::C);
    hash = hash_fields(hash, Session::C);
    hash = hash_fields(hash, HopKeys::C);
    hash = hash_fields(hash, SessionKeys::C);
    hash = hash_fields(hash, Bucket::C);
    hash = hash_fields(hash, Closed::C);
    hash_fields(hash, Counters::C)
};

const fn hash_fields(mut hash: u64, (_, _, fields): Fields) -> u64 {
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

/// Computes the FNV-1a hash.
const fn hash_bytes(mut hash: u64, bytes: &[u8]) -> u64 {
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        at += 1;
    }
    hash
}

macro_rules! shared {
    ($($(#[$doc:meta])* struct $name:ident as $c:literal aligned $align:literal { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* })*) => {
        $($(#[$doc])*
        #[derive(Debug)]
        #[repr(C, align($align))]
        pub struct $name { $($(#[$field_doc])* pub $field: $kind),* }

        impl $name {
            /// Name in C, alignment, and every field with its type and offset.
            pub const C: Fields = ($c, $align, &[
                $((stringify!($field), stringify!($kind), std::mem::offset_of!($name, $field))),*
            ]);
        })*
    };
}

shared! {
    /// State of the shard: one element of the map `shards`.
    struct Shard as "pm_shard" aligned 64 {
        /// 1: the pipeline admits; 0: user space admits. Changed by the programs `hold` and `release`, under the lock.
        admits: AtomicU32,
        /// Number of holds and releases. A session that was looked up in an earlier generation must not be used.
        generation: AtomicU32,
        /// Shard and epoch in the form of bytes 8 to 15 of a header. Written by user space while it holds the pipeline.
        shard_epoch: AtomicU64,
        /// Device and incarnation in the form of bytes 16 to 23 of this device's headers. Written by user space while
        /// it holds the pipeline.
        device_incarnation: AtomicU64,
        /// Token between hops, in the byte order of a header. Written by user space while it holds the pipeline.
        token: AtomicU64,
        /// Epoch, in the byte order of an entry. Written by user space while it holds the pipeline.
        epoch: AtomicU32,
        /// Incarnation, in the byte order of an entry. Written by user space while it holds the pipeline.
        incarnation: AtomicU32,
        /// Highest applied order, which every new entry states. Written by user space.
        applied: AtomicU64,
        /// 1: user space sleeps until it is woken. The program `wake_me` sets the word. A CPU that appends clears the
        /// word, and then wakes user space. Both change the word under the lock.
        sleeps: AtomicU32,
        /// 1: the chain has only this device, which acknowledges the updates that it has appended. Written by user
        /// space while it holds the pipeline.
        alone: AtomicU32,
        /// Number of devices of the chain. Written by user space while it holds the pipeline.
        copies: AtomicU32,
        /// Always 0. Because of this word, the fields that the pipeline writes have their own cache lines. The word is
        /// also used as a zero that the verifier does not know (`unknown_zero` in `bpf/maps.h`).
        padding: AtomicU32,
        /// Highest order. Written by the pipeline, and by user space while it holds the pipeline.
        last: AtomicU64,
        /// Offset of the end of the newest frame in the frame ring. Written by the same sides as `last`.
        head: AtomicU64,
        /// Highest `applied` that an entry states. Written by the same sides as `last`.
        stated: AtomicU64,
        /// Highest `applied` that two witnesses state: the space of orders up to this order is free. Written by the
        /// same sides as `last`.
        released: AtomicU64,
        /// An order, in the byte order of a header, whose contribution to a header's checksum is in `order_places`.
        /// Written by the pipeline, like the next three fields.
        order_known: AtomicU64,
        /// A number of free entries, whose contribution is in `room_places`.
        room_known: AtomicU64,
        /// Contribution of `order_known` to a header's checksum.
        order_places: AtomicU32,
        /// Contribution of `room_known` to a header's checksum.
        room_places: AtomicU32,
        /// The lock: 1 while a CPU holds it. User space takes the lock only through the programs that it runs.
        taken: AtomicU32,
        /// Length of the longest payload that is shown to a reader, in bytes: the shard's size of fragments. Written by
        /// user space while it holds the pipeline.
        longest: AtomicU32,
        /// [`LAYOUT`] of the version that made these maps. Written by user space.
        layout: AtomicU64,
        /// The stage of the maps (`stage.rs`). Written by user space, under the lock of their folder.
        stage: AtomicU32,
        /// 1: the pipeline keeps the index and answers READs. Written by user space while it holds the pipeline.
        reads: AtomicU32,
        /// A secret that is mixed into the hashes of keys. Written by user space while it holds the pipeline.
        read_secret: AtomicU64,
        /// The floor: up to this order the buckets may lack updates. The pipeline raises it for an update without a
        /// hash. Written by the pipeline, and by user space while it holds the pipeline.
        read_floor: AtomicU64,
        /// The floor as user space knows it. Written by user space.
        told_floor: AtomicU64,
        /// Updates of any key up to this order are not shown. Written by user space.
        shown_above: AtomicU64,
        /// Time until which the pipeline answers clients, by `CLOCK_BOOTTIME`: the deadline of the device's lease, or
        /// [`FOR_EVER`]. 0: the device has had no lease. Written by user space.
        answers_until: AtomicU64,
        /// Not 0: a request is outstanding that may change any key. Written by user space.
        reads_closed: AtomicU32,
        /// 1: user space is handling a packet that may close buckets, and answers all READs itself. Written by user
        /// space.
        reads_up: AtomicU32,
        /// First order of this lap of the frame ring. Written by the same sides as `last`.
        lap: AtomicU64,
        /// First order of the previous lap. Written by the same sides as `last`.
        lap_before: AtomicU64,
        /// Version of the index, for a MISS. Written by user space.
        read_version: AtomicU64,
        /// Fingerprint of the keys with which the pipeline verifies (`ClusterKeys::print`); 0: no keys. Written by user
        /// space while it holds the pipeline.
        keys: AtomicU64,
        /// Bit N is set if the front of row N is over its share of the log, so that its updates are not admitted.
        /// Written by user space while it holds the pipeline.
        over: AtomicU64,
    }

    /// A bucket of the index of READs: one element of `pm_buckets`.
    struct Bucket as "pm_bucket" aligned 8 {
        /// Order of the newest update of any key in the bucket. The flag [`HIDDEN`] is set if this update must not be
        /// shown. Written by the pipeline, and by user space while it holds the pipeline.
        newest: AtomicU64,
    }

    /// The state of a bucket that only user space knows: one element of `pm_closed`.
    struct Closed as "pm_closed" aligned 8 {
        /// Updates below this order are not shown, and a reader must see this order. Written by user space.
        passed: AtomicU64,
        /// Updates up to this order are not shown. Written by user space.
        shown_above: AtomicU64,
        /// Not 0: a request is outstanding that may change a key of this bucket. Written by user space.
        closed: AtomicU32,
        /// Unused.
        padding: AtomicU32,
    }

    /// The neighbours of this device in a chain: the one element of `pm_chain`.
    struct Hops as "pm_hops" aligned 64 {
        /// 1: this device is not the head, and takes entries from the previous hop. Written by user space while it
        /// holds the pipeline, like all fields up to `names`.
        follows: AtomicU32,
        /// Number of devices that follow this device in the chain.
        behind: AtomicU32,
        /// UDP port of the next hop, in network byte order; 0: the pipeline does not send to the next hop.
        next_port: AtomicU32,
        /// UDP port of the previous hop, in network byte order; 0: not known.
        before_port: AtomicU32,
        /// First half of the next hop's address, in the form of [`Session::address_high`].
        next_high: AtomicU64,
        /// Second half of the next hop's address.
        next_low: AtomicU64,
        /// First half of the previous hop's address.
        before_high: AtomicU64,
        /// Second half of the previous hop's address.
        before_low: AtomicU64,
        /// Number of entries that this device can receive at once.
        receive_window: AtomicU64,
        /// Maximum number of entries in flight towards the next hop.
        window: AtomicU64,
        /// Device and incarnation of each device that follows this device, nearest first, in the form of a header.
        names: [AtomicU64; 7],
        /// The path to the next hop: the first 12 bytes of a frame to it, and the number of the interface (0: unknown).
        /// This field and all later fields are written by the pipeline, and by user space while it holds the shard.
        next: [AtomicU32; 4],
        /// The path to the previous hop, in the form of `next`.
        before: [AtomicU32; 4],
        /// For each following device, the order up to which it holds the log.
        orders: [AtomicU64; 7],
        /// Number of entries that the next hop can take, as it last stated.
        credit: AtomicU64,
        /// Highest order sent to the next hop.
        sent: AtomicU64,
        /// Highest committed order; only the head uses this field.
        committed: AtomicU64,
        /// The pipeline may not have acknowledged committed orders up to this order.
        skipped: AtomicU64,
        /// The order of this device that the pipeline's last DURABLE has stated.
        told: AtomicU64,
    }

    /// A session that the pipeline serves: one element of `pm_sessions`.
    struct Session as "pm_session" aligned 64 {
        /// Session id; 0: the row is free. Written by user space while it holds the pipeline.
        id: AtomicU64,
        /// The session's token, in the byte order of a header. Written by user space while it holds the pipeline.
        token: AtomicU64,
        /// Last admitted seq. Written by the pipeline, and by user space while it holds the pipeline.
        last: AtomicU64,
        /// Highest seq that the pipeline may admit. Ended sessions and quotas limit it. Written by user space while it
        /// holds the pipeline.
        until: AtomicU64,
        /// Highest applied seq. Written by user space.
        applied: AtomicU64,
        /// Checksum of the header of an update of this session that has one fragment, and zeros as seq, key hash,
        /// length and payload checksum. Written by user space while it holds the pipeline, like the next two fields.
        update_crc: AtomicU32,
        /// Checksum of the header of such an update's entry, with order 0.
        append_crc: AtomicU32,
        /// Checksum of the header of an acknowledgement, with zeros as seq, order, room and applied.
        ack_crc: AtomicU32,
        /// UDP port of the client, in network byte order. Written by user space.
        port: AtomicU32,
        /// 1: the pipeline has acknowledged a duplicate. Set by the pipeline, cleared by user space.
        heard: AtomicU32,
        /// Index of the front's bit in [`Shard::over`]. Written by user space while it holds the pipeline.
        share: AtomicU32,
        /// First half of the client's IPv6 address, in the form of a packet. An IPv4 address has `::ffff:` before it.
        /// Written by user space.
        address_high: AtomicU64,
        /// Second half of the client's address. Written by user space.
        address_low: AtomicU64,
        /// A seq, in the byte order of a header, whose contribution is in `seq_places`. Written by the pipeline, like
        /// the next three fields.
        seq_known: AtomicU64,
        /// An applied seq, in the byte order of a header, whose contribution is in `applied_places`.
        applied_known: AtomicU64,
        /// Contribution of `seq_known` to a header's checksum.
        seq_places: AtomicU32,
        /// Contribution of `applied_known` to a header's checksum.
        applied_places: AtomicU32,
        /// Last committed seq; only used in a chain of several devices. Written by the pipeline, and by user space
        /// while it holds the pipeline.
        committed: AtomicU64,
        /// The path to the client, in the form of [`Hops::next`]; only used in a chain of several devices. Written by
        /// the pipeline.
        client: [AtomicU32; 4],
    }

    /// Keys between hops in the current epoch (`docs/spec/keys.md` §3): the one element of `pm_hop_keys`, which only a
    /// shard with keys has. A key is two words in the form of SipHash; zeros: no key. Written by user space while it
    /// holds the pipeline.
    struct HopKeys as "pm_hop_keys" aligned 64 {
        /// The key that seals this device's packets.
        own: [AtomicU64; 2],
        /// The keys that seal packets of the previous device, one for each of the two cluster keys.
        before: [AtomicU64; 4],
        /// The keys that seal packets of the next hop, one for each of the two cluster keys.
        next: [AtomicU64; 4],
    }

    /// Keys of a session: one element of `pm_session_keys`, in the session's row of `pm_sessions`. Written by user
    /// space while it holds the pipeline.
    struct SessionKeys as "pm_session_keys" aligned 32 {
        /// The key that seals packets of the client.
        to_head: [AtomicU64; 2],
        /// The key that seals packets of the head to the client.
        to_client: [AtomicU64; 2],
    }

    /// Counted events of the pipeline on one CPU: one element of `pm_counts`.
    struct Counters as "pm_counters" aligned 64 {
        /// Updates appended.
        appended: AtomicU64,
        /// Duplicates acknowledged again.
        duplicates: AtomicU64,
        /// Packets of this shard that went to user space, for any reason.
        handed_up: AtomicU64,
        /// Packets that went to user space: updates while user space held the shard.
        held: AtomicU64,
        /// Packets that went to user space: updates of sessions that the pipeline does not serve.
        sessions_unknown: AtomicU64,
        /// Packets that went to user space: updates with wrong checksums or wrong fixed fields.
        odd: AtomicU64,
        /// With keys, packets that were dropped because the right sender has not sealed them, or because they were
        /// changed.
        forged: AtomicU64,
        /// Packets that went to user space because another CPU had the lock for too long.
        busy: AtomicU64,
        /// Updates that went to user space because they came too early.
        gaps: AtomicU64,
        /// Updates that went to user space because the log had no room.
        full: AtomicU64,
        /// Updates that went to user space because their front is over its share of the log.
        over_share: AtomicU64,
        /// DURABLEs of the next hop that the pipeline has processed.
        confirmed: AtomicU64,
        /// READs answered with an update.
        read_hits: AtomicU64,
        /// READs answered with the order that the store must have applied.
        read_misses: AtomicU64,
        /// READs that went to user space because only the process could answer them at that moment.
        reads_up: AtomicU64,
        /// Answers that were withheld because there was no lease.
        silenced: AtomicU64,
        /// All packets for the shard. The time of one packet in 64 is measured.
        packets: AtomicU64,
        /// Numbers of timed packets that the pipeline handled itself, by their time: less than 32 ns, less than 64 ns
        /// and so on. The last slot also counts all longer times.
        took: [AtomicU64; 64],
    }
}
