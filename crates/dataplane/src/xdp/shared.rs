//! Memory that the in-kernel pipeline and user space share, field by field.
//!
//! Invariants: each field has one writer at a time, named here; "held" means that user space writes it only while it holds
//! the pipeline. Fields are read and written as whole words, so neither side ever sees half of one. `build.rs` turns these
//! lists into C structures. Spec: `docs/spec/pipeline.md` §3. May not: contain code that changes a field.

// The build script and a test include this file too, and use a part of it.
#![allow(dead_code)]

use std::sync::atomic::{AtomicU32, AtomicU64};

/// Width of a slot of [`Counters::took`] in nanoseconds.
pub const TOOK_NS: usize = 32;
/// Slots of [`Counters::took`].
pub const TOOK_SLOTS: usize = 64;

/// Devices at one interface, at most (known gap G67).
pub const DEVICES_MAX: usize = 16;

/// Index of the interface in [`Hops::next`] and its like. 0 there: the way is not known.
pub const WAY_INTERFACE: usize = 3;

/// A bit beside an order, which is never so great.
pub const HIDDEN: u64 = 1 << 63;

/// [`Shard::answers_until`] of a device that needs no lease.
pub const FOR_EVER: u64 = u64::MAX;

/// A name in C, the alignment in bytes, and every field with its type and offset.
type Fields = (
    &'static str,
    usize,
    &'static [(&'static str, &'static str, usize)],
);

/// Bump when a field's meaning or a locking rule changes but the layout does not.
const RULES: u64 = 3;

/// A hash of all names, types and offsets below, and of [`RULES`]. Versions that differ in any of them differ here.
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
        /// 1: the pipeline admits; 0: user space does. Changed by the programs `hold` and
        /// `release`, under the lock.
        admits: AtomicU32,
        /// Counts holds and releases. A session that was looked up in an earlier generation must not be used.
        generation: AtomicU32,
        /// Shard and epoch, as in bytes 8 to 15 of every header of this epoch. User space, held.
        shard_epoch: AtomicU64,
        /// Device and incarnation, as in bytes 16 to 23 of what this device writes. User space, held.
        device_incarnation: AtomicU64,
        /// Token between hops, as in a header. User space, held.
        token: AtomicU64,
        /// Epoch, as in an entry. User space, held.
        epoch: AtomicU32,
        /// Incarnation, as in an entry. User space, held.
        incarnation: AtomicU32,
        /// Orders up to here are applied. Every entry states it. User space.
        applied: AtomicU64,
        /// 1: user space sleeps until it is woken. Set by the program `wake_me`, cleared by whoever
        /// appends and then wakes it; both under the lock.
        sleeps: AtomicU32,
        /// 1: the chain is this device alone, and acknowledges what it has. User space, held.
        alone: AtomicU32,
        /// Devices of the chain. User space, held.
        copies: AtomicU32,
        /// Always 0. Keeps the fields that the pipeline writes in cache lines of their own, and is read as a zero that the
        /// verifier does not know (`unknown_zero` in `bpf/maps.h`).
        padding: AtomicU32,
        /// Highest order. The pipeline; user space while it holds.
        last: AtomicU64,
        /// Offset after the newest frame. Writers as for `last`.
        head: AtomicU64,
        /// Highest `applied` that an entry states. Writers as for `last`.
        stated: AtomicU64,
        /// Highest `applied` that two witnesses state: space up to there is free. Writers as for `last`.
        released: AtomicU64,
        /// An order, as in a header, whose contribution to a header's checksum is in `order_places`. The
        /// pipeline, as the next three.
        order_known: AtomicU64,
        /// A number of free entries, likewise; see `room_places`.
        room_known: AtomicU64,
        /// Contribution of `order_known`.
        order_places: AtomicU32,
        /// Contribution of `room_known`.
        room_places: AtomicU32,
        /// The lock: 1 while a CPU is inside. User space takes it only by the programs that it runs.
        taken: AtomicU32,
        /// Longest payload of an update that is shown to a reader: the shard's size of fragments. User space, held.
        longest: AtomicU32,
        /// [`LAYOUT`] of the version that made these maps. User space.
        layout: AtomicU64,
        /// How far the maps are in their life (`stage.rs`). User space, under the lock of their folder.
        stage: AtomicU32,
        /// 1: the pipeline keeps the index and answers READs. User space, held.
        reads: AtomicU32,
        /// Mixed into the hashes of keys. User space, held.
        read_secret: AtomicU64,
        /// At or below this order the buckets may not know everything: the newest update without a hash. The pipeline;
        /// user space while it holds.
        read_floor: AtomicU64,
        /// The same floor, as user space knows it. User space.
        told_floor: AtomicU64,
        /// Writes at or below this order are not shown. User space.
        shown_above: AtomicU64,
        /// Time until which the pipeline answers clients, by `CLOCK_BOOTTIME`: the deadline of the device's lease, or [`FOR_EVER`]. 0: it
        /// has had no lease. User space.
        answers_until: AtomicU64,
        /// Not 0: something is outstanding that may change any key. User space.
        reads_closed: AtomicU32,
        /// 1: user space takes in something that may close buckets, and answers READs itself. User space.
        reads_up: AtomicU32,
        /// First order of this lap of the frame ring. Writers as for `last`.
        lap: AtomicU64,
        /// First order of the lap before. Writers as for `last`.
        lap_before: AtomicU64,
        /// Word about the index in a MISS. User space.
        read_version: AtomicU64,
        /// Which keys it verifies with (`ClusterKeys::print`); 0: none. User space, held.
        keys: AtomicU64,
        /// A bit for each front of which nothing is admitted, because it is over its share of the log. User space, held.
        over: AtomicU64,
    }

    /// A bucket of the index of READs: one element of `pm_buckets`.
    struct Bucket as "pm_bucket" aligned 8 {
        /// Order of the newest update that fell into it, whatever its key; with [`HIDDEN`] if that is not to be shown. The
        /// pipeline; user space while it holds.
        newest: AtomicU64,
    }

    /// Word of user space about a bucket: one element of `pm_closed`.
    struct Closed as "pm_closed" aligned 8 {
        /// Writes below this order are not shown, and readers wait for it. User space.
        passed: AtomicU64,
        /// Writes at or below this order are not shown. User space.
        shown_above: AtomicU64,
        /// Not 0: something is outstanding that may change a key of it. User space.
        closed: AtomicU32,
        /// Unused.
        padding: AtomicU32,
    }

    /// The neighbours of this device in a chain: the one element of `pm_chain`.
    struct Hops as "pm_hops" aligned 64 {
        /// 1: this device is not the head, and takes entries from the previous hop. User space, held, as
        /// all fields up to `names`.
        follows: AtomicU32,
        /// Number of devices behind this one.
        behind: AtomicU32,
        /// UDP port of the next hop, in network byte order; 0: the pipeline sends it nothing.
        next_port: AtomicU32,
        /// UDP port of the previous hop, in network byte order; 0: not known.
        before_port: AtomicU32,
        /// Address of the next hop, as [`Session::address_high`] and the field after that.
        next_high: AtomicU64,
        /// Second half of the address.
        next_low: AtomicU64,
        /// Address of the previous hop.
        before_high: AtomicU64,
        /// Second half of the address.
        before_low: AtomicU64,
        /// Entries that this device can receive at once.
        receive_window: AtomicU64,
        /// Entries in flight towards the next hop, at most.
        window: AtomicU64,
        /// Device and incarnation of each device after this one, nearest first, as in a header.
        names: [AtomicU64; 7],
        /// How frames reach the next hop: their first 12 bytes, and the interface (0: not known).
        /// Writers of this and all later fields: the pipeline, and user space while it holds.
        next: [AtomicU32; 4],
        /// How frames reach the previous hop.
        before: [AtomicU32; 4],
        /// The order up to which each device after this one holds the log.
        orders: [AtomicU64; 7],
        /// Entries that the next hop can take, as it said.
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

    /// A session that the pipeline serves: one element of `pm_sessions`.
    struct Session as "pm_session" aligned 64 {
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
        /// Header checksum of an update of this session with one fragment, and 0 as seq, key hash,
        /// length and payload checksum. User space, held, as the next two.
        update_crc: AtomicU32,
        /// The same for its entry, with order 0.
        append_crc: AtomicU32,
        /// The same for an acknowledgement, with 0 as seq, order, room and applied.
        ack_crc: AtomicU32,
        /// UDP port of the client, in network byte order. User space.
        port: AtomicU32,
        /// 1: a duplicate was acknowledged. Set by the pipeline, cleared by user space.
        heard: AtomicU32,
        /// Bit of its front in [`Shard::over`]. User space, held.
        share: AtomicU32,
        /// Its IPv6 address, or `::ffff:` and its IPv4 address, as they stand in packets.
        /// User space.
        address_high: AtomicU64,
        /// Second half of the address. User space.
        address_low: AtomicU64,
        /// A seq, as in a header; see `seq_places`. The pipeline, as the next three.
        seq_known: AtomicU64,
        /// An applied seq, as in a header; see `applied_places`.
        applied_known: AtomicU64,
        /// Contribution of `seq_known` to a header's checksum.
        seq_places: AtomicU32,
        /// Contribution of `applied_known`.
        applied_places: AtomicU32,
        /// Last committed seq, in a chain. The pipeline; user space while it holds.
        committed: AtomicU64,
        /// How frames reach the client, in a chain: as [`Hops::next`]. The pipeline.
        client: [AtomicU32; 4],
    }

    /// Keys between hops in the present epoch (`docs/spec/keys.md` §3): the one element of `pm_hop_keys`, which only a shard with keys has.
    /// A key is two words, as SipHash takes them; zeros: none. User space, held.
    struct HopKeys as "pm_hop_keys" aligned 64 {
        /// Of what this device sends.
        own: [AtomicU64; 2],
        /// Of what the device before it sends, under each of the two cluster keys.
        before: [AtomicU64; 4],
        /// Of what the next hop sends.
        next: [AtomicU64; 4],
    }

    /// Keys of a session: one element of `pm_session_keys`, in the row that the session has in `pm_sessions`. User space, held.
    struct SessionKeys as "pm_session_keys" aligned 32 {
        /// Of what its client sends.
        to_head: [AtomicU64; 2],
        /// Of what the head sends.
        to_client: [AtomicU64; 2],
    }

    /// Counted events of the pipeline on one CPU: one element of `pm_counts`.
    struct Counters as "pm_counters" aligned 64 {
        /// Updates appended.
        appended: AtomicU64,
        /// Duplicates acknowledged again.
        duplicates: AtomicU64,
        /// Packets of this shard handed to user space, whatever the reason.
        handed_up: AtomicU64,
        /// Among those handed up: updates while user space holds the shard.
        held: AtomicU64,
        /// Among those handed up: updates of sessions that the pipeline does not serve.
        sessions_unknown: AtomicU64,
        /// Among those handed up: updates with wrong checksums or fixed fields.
        odd: AtomicU64,
        /// With keys: packets that were dropped, because the right sender has not sealed them, or they were changed.
        forged: AtomicU64,
        /// Among those handed up: another CPU had the lock for too long.
        busy: AtomicU64,
        /// Among those handed up: updates that came too early.
        gaps: AtomicU64,
        /// Among those handed up: updates for which the log had no room.
        full: AtomicU64,
        /// Among those handed up: updates of fronts that are over their share of the log.
        over_share: AtomicU64,
        /// DURABLEs from the next hop that were taken in.
        confirmed: AtomicU64,
        /// READs answered with an update.
        read_hits: AtomicU64,
        /// READs answered with what the store must have applied.
        read_misses: AtomicU64,
        /// Among those handed up: READs that only the process could answer at that moment.
        reads_up: AtomicU64,
        /// Answers that were not given, because there was no lease.
        silenced: AtomicU64,
        /// Packets for the shard, whatever became of them. One in 64 is timed.
        packets: AtomicU64,
        /// Times of timed packets that the pipeline handled itself: how many took less than 32 ns, 64 ns and
        /// so on. The last slot: all that took longer.
        took: [AtomicU64; 64],
    }
}
