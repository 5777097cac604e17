//! The fixed header before the payload of every pmnet packet (`docs/spec/wire.md` §1–§3).
//!
//! ```text
//!  0        2    3    4     5      6          8       12      16       20
//!  +--------+----+----+-----+------+----------+-------+-------+--------+------------+
//!  | magic  |ver |kind|flags|copies|header_len| shard | epoch | device |incarnation |
//!  +--------+----+----+-----+------+----------+-------+-------+--------+------------+
//!  24        32        40        48          56
//!  +---------+---------+---------+-----------+-----------+
//!  | session |   seq   |  order  |  request  |  key_hash |
//!  +---------+---------+---------+-----------+-----------+
//!  64         66         68           72           76          80
//!  +----------+----------+------------+------------+-----------+--------+
//!  |frag_index|frag_count|payload_len |payload_crc |header_crc |  tag   | 88
//!  +----------+----------+------------+------------+-----------+--------+
//! ```
//! All fields are in network byte order and naturally aligned. `header_crc` covers bytes 0..76 and 80..88.

use crate::packet::Field;
use core::fmt;

/// Length of the header in bytes.
pub const HEADER_LEN: usize = 88;
/// First two bytes of every packet: "PM".
pub const MAGIC: u16 = 0x504D;
/// Version of this wire format.
pub const VERSION: u8 = 1;

const _: () = assert!(HEADER_LEN.is_multiple_of(8));

/// Every field of the header, in its order, under the names of the specification (`docs/spec/wire.md` §1).
pub const FIELDS: &[Field] = &[
    Field::new("magic", 0, 2),
    Field::new("version", 2, 1),
    Field::new("kind", 3, 1),
    Field::new("flags", 4, 1),
    Field::new("copies", 5, 1),
    Field::new("header_len", 6, 2),
    Field::new("shard", 8, 4),
    Field::new("epoch", 12, 4),
    Field::new("device", 16, 4),
    Field::new("incarnation", 20, 4),
    Field::new("session", 24, 8),
    Field::new("seq", 32, 8),
    Field::new("order", 40, 8),
    Field::new("request", 48, 8),
    Field::new("key_hash", 56, 8),
    Field::new("fragment_index", 64, 2),
    Field::new("fragment_count", 66, 2),
    Field::new("payload_len", 68, 4),
    Field::new("payload_crc", 72, 4),
    Field::new("header_crc", 76, 4),
    Field::new("tag", 80, 8),
];

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $value:literal),* $(,)?) => {
        /// Kind of a packet (`docs/spec/wire.md` §2).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Kind { $($(#[$doc])* $name = $value),* }
        impl Kind {
            /// Every kind, in the order of its number.
            pub const ALL: &'static [Kind] = &[$(Kind::$name),*];
            /// Returns the kind with this number, if there is one.
            #[must_use]
            pub const fn from_u8(value: u8) -> Option<Kind> {
                match value { $($value => Some(Kind::$name),)* _ => None }
            }
            /// Returns the number of the kind on the wire.
            #[must_use]
            pub const fn number(self) -> u8 {
                match self { $(Kind::$name => $value),* }
            }
        }
    };
}

kinds! {
    /// A client asks for a session; `tag` is the session's new token.
    Open = 1,
    /// The OPEN is committed; `session` is its order.
    OpenReply = 2,
    /// A nilext update (or fragment) of a session.
    Update = 3,
    /// An update with its order, between hops.
    Append = 4,
    /// `copies` devices hold all updates of `session` up to `seq`.
    Ack = 5,
    /// The session must continue with `seq`, or does not exist.
    Nack = 6,
    /// The update was not logged; fall back to the server.
    NotLogged = 7,
    /// All orders up to `order` are durable in a device; sent towards the head.
    Durable = 8,
    /// The store has applied all orders up to `order`; sent towards the head.
    Applied = 9,
    /// A request for the server, which waits until the store has applied its barrier `order`.
    Bypass = 10,
    /// The server's answer to a bypass.
    Response = 11,
    /// The answer to a READ: the newest update of the key, from the head's log.
    Hit = 12,
    /// Asks the previous hop to send the orders `order ..= request` again.
    Retrans = 13,
    /// A device that starts or recovers asks the server for epoch, A and session table.
    Recover = 14,
    /// The answer to RECOVER.
    RecoverReply = 15,
    /// Tells a sender that its epoch is lower than `epoch`, the epoch of this packet's sender.
    StaleEpoch = 16,
    /// Asks whether the receiver is reachable.
    Ping = 17,
    /// The answer to PING.
    Pong = 18,
    /// The session ends; `seq` is the last seq of the session plus 1.
    End = 19,
    /// Asks up to which order the store must have applied the log before a client may read these keys from it.
    Read = 20,
    /// The answer to a READ if no update can be shown: the store must have applied all orders up to `order`, in this
    /// epoch.
    Miss = 21,
}

/// Flag bits (`docs/spec/wire.md` §3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// Bypass: the request changes no state, so it may be executed again.
    pub const READ_ONLY: Flags = Flags(1);
    /// Read: a HIT may contain an update that the store has already applied and whose entry the log still holds
    /// (reads.md §2).
    pub const KEPT: Flags = Flags(1);
    /// Read: its client may read from a replica of the store (reads.md §11).
    pub const REPLICAS: Flags = Flags(1 << 1);
    /// Miss: the order that a replica must have applied has not been admitted yet (reads.md §11).
    pub const BEHIND: Flags = Flags(1 << 1);
    /// Open: the client looks for the head. A device that never had an entry drops the OPEN, because the chain may
    /// still be incomplete.
    pub const SEARCHES: Flags = Flags(1);
    /// Applied, Durable, Ack, OpenReply, NotLogged: the store is short of space, so the head admits no updates
    /// (protocol.md §4).
    pub const SHORT: Flags = Flags(1);
    /// Applied, Durable, `NotLogged`: the existing sessions need the space of the store, so the head admits no new
    /// session (protocol.md §4).
    pub const FULL: Flags = Flags(1 << 1);
    /// Bypass: an update that falls back to the server, with its own (session, seq) (protocol.md §4).
    pub const FALLBACK: Flags = Flags(1 << 1);
    /// Bypass: asks for the fragments of a long reply from `fragment_index` on.
    pub const CONTINUE: Flags = Flags(1 << 2);
    /// Response: the packet is not the answer yet; `order` is the number of the bypass's fragments that have arrived
    /// without a gap. Recover-reply, with [`Flags::REFUSED`]: the refusal is temporary, so the device asks again.
    pub const PROGRESS: Flags = Flags(1 << 3);
    /// Nack: the receiver does not know the session; the client must open a new one.
    pub const UNKNOWN_SESSION: Flags = Flags(1 << 4);
    /// Recover-reply: the device must not serve; the payload says why.
    pub const REFUSED: Flags = Flags(1 << 5);
    /// Reserved for acks and nacks of an epoch that lost entries. No version sends it yet: a client learns of a loss
    /// from a NACK at or below its acknowledged seq (protocol.md §3).
    pub const DATA_LOSS: Flags = Flags(1 << 6);
    /// Recover-reply: the head may answer READs, because the server states A in each answer and refuses old stamps
    /// (reads.md §4).
    pub const READS: Flags = Flags(1 << 7);

    /// Returns the union of both sets of bits.
    #[must_use]
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
    /// Returns whether all bits of `other` are set.
    #[must_use]
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Reason why bytes are not an acceptable pmnet packet. A device passes a `Foreign` packet on unchanged, and drops all
/// others, which it counts by reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum Reject {
    /// Not a pmnet packet: the magic or the version differs.
    #[error("not a pmnet packet of this version")]
    Foreign,
    /// The datagram is shorter than the header.
    #[error("truncated header")]
    Truncated,
    /// Unknown kind.
    #[error("unknown kind")]
    Kind,
    /// `header_len` differs from the length in this version.
    #[error("wrong header length")]
    HeaderLength,
    /// `payload_len` differs from the number of bytes after the header.
    #[error("payload length does not match the datagram")]
    PayloadLength,
    /// The packet is longer than allowed.
    #[error("oversized packet")]
    Oversized,
    /// The header is damaged.
    #[error("header checksum mismatch")]
    HeaderChecksum,
    /// The payload is damaged.
    #[error("payload checksum mismatch")]
    PayloadChecksum,
    /// Fragment index and count contradict each other.
    #[error("bad fragment index or count")]
    Fragment,
}

impl Reject {
    /// Every reason, in the order in which counters list them.
    pub const ALL: &'static [Reject] = &[
        Reject::Foreign,
        Reject::Truncated,
        Reject::Kind,
        Reject::HeaderLength,
        Reject::PayloadLength,
        Reject::Oversized,
        Reject::HeaderChecksum,
        Reject::PayloadChecksum,
        Reject::Fragment,
    ];

    /// Returns a short stable name, as used in the vectors and the metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Reject::Foreign => "foreign",
            Reject::Truncated => "truncated",
            Reject::Kind => "kind",
            Reject::HeaderLength => "header_length",
            Reject::PayloadLength => "payload_length",
            Reject::Oversized => "oversized",
            Reject::HeaderChecksum => "header_checksum",
            Reject::PayloadChecksum => "payload_checksum",
            Reject::Fragment => "fragment",
        }
    }
}

/// A field of the header whose meaning depends on the kind of packet. Only the views of [`crate::packet`] name it and
/// interpret its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place<T>(pub(crate) T);

/// Returns a field with this value, for vectors and tests that make packets without a view.
#[must_use]
pub const fn raw<T>(value: T) -> Place<T> {
    Place(value)
}

impl<T: Copy> Place<T> {
    /// Returns the value on the wire.
    #[must_use]
    pub const fn raw(self) -> T {
        self.0
    }
}

/// The decoded fields of a header. The views of [`crate::packet`] define the meaning of the fields in each kind.
/// [`Header::for_payload`] sets `payload_len` and `payload_crc`; [`Header::emit`] computes the header checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Kind of the packet.
    pub kind: Kind,
    /// Flag bits.
    pub flags: Flags,
    /// Byte 5: a number of devices or rows, the kind of an entry, or the time until a caller's deadline.
    pub copies: Place<u8>,
    /// Shard (ordered log) that the packet belongs to.
    pub shard: u32,
    /// Epoch of the sender.
    pub epoch: u32,
    /// Device that sent or stamped the packet; 0 for clients and the server.
    pub device: u32,
    /// Incarnation of that device.
    pub incarnation: u32,
    /// Session, the order of its OPEN entry.
    pub session: u64,
    /// Sequence number within the session.
    pub seq: u64,
    /// Position in the shard's log, or a barrier.
    pub order: u64,
    /// Bytes 48 to 55: the id of a bypass, free entries, a nonce, or the end of a range.
    pub request: Place<u64>,
    /// Bytes 56 to 63: the hash of a key, the applied seq of a session, or the checksum of a reply.
    pub key_hash: Place<u64>,
    /// Index of this fragment in its message, from 0.
    pub fragment_index: u16,
    /// Number of fragments of the message, at least 1.
    pub fragment_count: u16,
    /// Number of bytes after the header.
    pub payload_len: u32,
    /// CRC32C of the payload. The author of the payload computes it once, and other processes reuse it.
    pub payload_crc: u32,
    /// Token of the session or, between hops, of the shard; with keys, a MAC.
    pub tag: u64,
}

impl Header {
    /// Returns a header of this kind with one fragment; every other field is zero.
    #[must_use]
    pub const fn new(kind: Kind) -> Header {
        Header {
            kind,
            flags: Flags(0),
            copies: Place(0),
            shard: 0,
            epoch: 0,
            device: 0,
            incarnation: 0,
            session: 0,
            seq: 0,
            order: 0,
            request: Place(0),
            key_hash: Place(0),
            fragment_index: 0,
            fragment_count: 1,
            payload_len: 0,
            payload_crc: 0,
            tag: 0,
        }
    }

    /// Returns the header with length and CRC of this payload.
    ///
    /// # Panics
    /// If the payload is longer than [`crate::FRAGMENT_BYTES`]: the caller split it wrongly.
    #[must_use]
    pub fn for_payload(mut self, payload: &[u8]) -> Header {
        assert!(
            payload.len() <= crate::FRAGMENT_BYTES,
            "payload must be split into fragments"
        );
        self.payload_len = u32::try_from(payload.len()).expect("bounded above");
        self.payload_crc = crate::crc(payload);
        self
    }

    /// Returns the kind of a packet that [`Header::emit`] wrote, without checks.
    #[must_use]
    pub fn kind_of(packet: &[u8]) -> Option<Kind> {
        Kind::from_u8(*packet.get(3)?)
    }

    /// Returns the 88 bytes of this header with a fresh header checksum. `payload_len` and `payload_crc` are written
    /// unchanged.
    #[must_use]
    pub fn emit(&self) -> [u8; HEADER_LEN] {
        let mut b = self.covered();
        b[80..88].copy_from_slice(&self.tag.to_be_bytes());
        let crc = header_crc(&b);
        b[76..80].copy_from_slice(&crc.to_be_bytes());
        b
    }

    /// Returns the bytes of this header that a MAC covers: checksum and tag are 0 (`docs/spec/keys.md` §1).
    pub(crate) fn covered(&self) -> [u8; HEADER_LEN] {
        let mut b = [0u8; HEADER_LEN];
        b[0..2].copy_from_slice(&MAGIC.to_be_bytes());
        b[2] = VERSION;
        b[3] = self.kind.number();
        b[4] = self.flags.0;
        b[5] = self.copies.0;
        b[6..8].copy_from_slice(&HEADER_LEN_U16.to_be_bytes());
        b[8..12].copy_from_slice(&self.shard.to_be_bytes());
        b[12..16].copy_from_slice(&self.epoch.to_be_bytes());
        b[16..20].copy_from_slice(&self.device.to_be_bytes());
        b[20..24].copy_from_slice(&self.incarnation.to_be_bytes());
        b[24..32].copy_from_slice(&self.session.to_be_bytes());
        b[32..40].copy_from_slice(&self.seq.to_be_bytes());
        b[40..48].copy_from_slice(&self.order.to_be_bytes());
        b[48..56].copy_from_slice(&self.request.0.to_be_bytes());
        b[56..64].copy_from_slice(&self.key_hash.0.to_be_bytes());
        b[64..66].copy_from_slice(&self.fragment_index.to_be_bytes());
        b[66..68].copy_from_slice(&self.fragment_count.to_be_bytes());
        b[68..72].copy_from_slice(&self.payload_len.to_be_bytes());
        b[72..76].copy_from_slice(&self.payload_crc.to_be_bytes());
        b
    }

    /// Appends header and payload to `out`, filling in length and checksums.
    pub fn write(&self, payload: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&self.for_payload(payload).emit());
        out.extend_from_slice(payload);
    }
}

const HEADER_LEN_U16: u16 = 88;
const _: () = assert!(HEADER_LEN == 88);

fn header_crc(bytes: &[u8; HEADER_LEN]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..76]), &bytes[80..])
}

fn u16_at(b: &[u8; HEADER_LEN], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}
fn u32_at(b: &[u8; HEADER_LEN], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}
fn u64_at(b: &[u8; HEADER_LEN], at: usize) -> u64 {
    (u64::from(u32_at(b, at)) << 32) | u64::from(u32_at(b, at + 4))
}

/// A checked view of one datagram: header decoded, payload borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The decoded header.
    pub header: Header,
    /// The payload, whose length and CRC32C match the header.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Parses the packet at the beginning of longer memory, as [`Packet::parse`] does. The packet's length is the
    /// length that its header states.
    ///
    /// # Errors
    /// The reasons of [`Packet::parse`]. A packet that would be longer than the memory is refused because of its
    /// length.
    pub fn parse_first(bytes: &'a [u8]) -> Result<Packet<'a>, Reject> {
        let Some(head) = bytes.first_chunk::<HEADER_LEN>() else {
            return Packet::parse(bytes);
        };
        let length = usize::try_from(u32_at(head, 68)).unwrap_or(usize::MAX);
        let length = HEADER_LEN.saturating_add(length);
        Packet::parse(&bytes[..length.min(bytes.len())])
    }

    /// Parses and checks one datagram.
    ///
    /// # Errors
    /// The first [`Reject`] reason that applies; see `docs/spec/wire.md` §4 for the order of checks.
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, Reject> {
        let Some((head, payload)) = bytes.split_first_chunk::<HEADER_LEN>() else {
            let ours = bytes.len() >= 3 && bytes[..2] == MAGIC.to_be_bytes() && bytes[2] == VERSION;
            return Err(if ours {
                Reject::Truncated
            } else {
                Reject::Foreign
            });
        };
        if u16_at(head, 0) != MAGIC || head[2] != VERSION {
            return Err(Reject::Foreign);
        }
        if u16_at(head, 6) != HEADER_LEN_U16 {
            return Err(Reject::HeaderLength);
        }
        if payload.len() > crate::FRAGMENT_BYTES {
            return Err(Reject::Oversized);
        }
        if header_crc(head) != u32_at(head, 76) {
            return Err(Reject::HeaderChecksum);
        }
        let kind = Kind::from_u8(head[3]).ok_or(Reject::Kind)?;
        let header = Header {
            kind,
            flags: Flags(head[4]),
            copies: Place(head[5]),
            shard: u32_at(head, 8),
            epoch: u32_at(head, 12),
            device: u32_at(head, 16),
            incarnation: u32_at(head, 20),
            session: u64_at(head, 24),
            seq: u64_at(head, 32),
            order: u64_at(head, 40),
            request: Place(u64_at(head, 48)),
            key_hash: Place(u64_at(head, 56)),
            fragment_index: u16_at(head, 64),
            fragment_count: u16_at(head, 66),
            payload_len: u32_at(head, 68),
            payload_crc: u32_at(head, 72),
            tag: u64_at(head, 80),
        };
        if usize::try_from(header.payload_len) != Ok(payload.len()) {
            return Err(Reject::PayloadLength);
        }
        // Every message has at least one fragment, so a count of 0 is refused, too.
        if header.fragment_count > crate::FRAGMENTS_MAX
            || header.fragment_index >= header.fragment_count
        {
            return Err(Reject::Fragment);
        }
        if crate::crc(payload) != header.payload_crc {
            return Err(Reject::PayloadChecksum);
        }
        Ok(Packet { header, payload })
    }

    /// Appends the packet to `out`, with exactly the bytes that were parsed.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.header.emit());
        out.extend_from_slice(self.payload);
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} shard {} epoch {} device {}.{} session {} seq {} order {} request {} fragment {}/{} {} B",
            self.kind,
            self.shard,
            self.epoch,
            self.device,
            self.incarnation,
            self.session,
            self.seq,
            self.order,
            self.request.0,
            self.fragment_index,
            self.fragment_count,
            self.payload_len
        )
    }
}
