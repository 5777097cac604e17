//! Vectors of packets: at least one of every kind as the protocol sends it, packets at the limits of what is accepted,
//! and at least one refused datagram for every reason (`docs/spec/wire.md` §2–§4).

use super::vector::{Vector, hex, packet_fields};
use pmnet_wire::packet::write_hashes;
use pmnet_wire::record::{DurableRow, Member, RecoverReply, SessionRow, write_durable, write_path};
use pmnet_wire::{
    FRAGMENT_BYTES, FRAGMENTS_MAX, Flags, HEADER_LEN, Header, Kind, Packet, Reject, command, raw,
};

pub const SHARD: u32 = 7;
pub const EPOCH: u32 = 3;
pub const HEAD: u32 = 11;
const INCARNATION: u32 = 5;
pub const TOKEN: u64 = 0x0123_4567_89ab_cdef;
pub const SHARD_TOKEN: u64 = 0xfedc_ba98_7654_3210;
const SESSION: u64 = 1_000;
/// Bytes of the header, of which each vector of a damaged header changes one: field and offset (`docs/spec/wire.md`
/// §1).
const FIELDS: [(&str, usize); 20] = [
    ("kind", 3),
    ("flags", 4),
    ("copies", 5),
    ("shard", 8),
    ("epoch", 12),
    ("device", 16),
    ("incarnation", 20),
    ("session", 24),
    ("seq", 32),
    ("order", 40),
    ("request", 48),
    ("key_hash", 56),
    ("fragment_index", 64),
    ("fragment_count", 66),
    ("payload_len", 68),
    ("payload_crc", 72),
    ("header_crc", 76),
    ("tag", 80),
    ("last_byte_of_seq", 39),
    ("last_byte_of_tag", 87),
];

/// Returns every packet vector.
pub fn all() -> Vec<Vector> {
    let mut vectors = Vec::new();
    for (name, header, payload) in kinds().into_iter().chain(edges()) {
        vectors.push(accepted(name, &datagram(&header, &payload)));
    }
    for (name, bytes, reason) in refused() {
        vectors.push(rejected(name, &bytes, reason));
    }
    for (field, offset) in FIELDS {
        let mut bytes = sample();
        bytes[offset] ^= 0x10;
        let name = format!("reject_header_checksum_flip_in_{field}");
        vectors.push(rejected(name, &bytes, Reject::HeaderChecksum));
    }
    vectors
}

fn accepted(name: impl Into<String>, bytes: &[u8]) -> Vector {
    let packet = Packet::parse(bytes).expect("an accepted vector parses");
    let fields = Some(packet_fields(&packet));
    Vector {
        name: name.into(),
        payload: None,
        hex: hex(bytes),
        fields,
        reject: None,
    }
}

fn rejected(name: impl Into<String>, bytes: &[u8], reason: Reject) -> Vector {
    let reject = Some(reason.name());
    Vector {
        name: name.into(),
        payload: None,
        hex: hex(bytes),
        fields: None,
        reject,
    }
}

fn datagram(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    header.write(payload, &mut bytes);
    bytes
}

/// Returns a header as a client sends it: without a device, with the highest epoch that the client knows.
fn client(kind: Kind) -> Header {
    Header {
        shard: SHARD,
        epoch: EPOCH,
        session: SESSION,
        tag: TOKEN,
        ..Header::new(kind)
    }
}

/// Returns a header as the head sends it to a client.
fn head(kind: Kind) -> Header {
    Header {
        device: HEAD,
        incarnation: INCARNATION,
        ..client(kind)
    }
}

/// Returns a header as a device sends it to a device or to the server.
fn hop(kind: Kind) -> Header {
    Header {
        shard: SHARD,
        epoch: EPOCH,
        device: HEAD,
        incarnation: INCARNATION,
        tag: SHARD_TOKEN,
        ..Header::new(kind)
    }
}

/// Returns a header as the server sends it to the tail.
fn server(kind: Kind) -> Header {
    Header {
        shard: SHARD,
        epoch: EPOCH,
        tag: SHARD_TOKEN,
        ..Header::new(kind)
    }
}

fn member(device: u32) -> Member {
    Member {
        device,
        incarnation: INCARNATION,
        log_uuid: 0x0011_2233_4455_6677_8899_aabb_ccdd_ee00 + u128::from(device),
        tail: 2_005,
        applied: 1_990,
        flags: Member::SHRINK,
        word_epoch: 7,
        served: INCARNATION,
        size: pmnet_wire::FragmentSize::MAX,
    }
}

pub type Named = (&'static str, Header, Vec<u8>);

/// Returns at least one packet of every kind.
pub fn kinds() -> Vec<Named> {
    let set = command::single(&[&b"SET"[..], b"key", b"value"]);
    let get = command::single(&[&b"GET"[..], b"key"]);
    let key_hash = command::key_hash(b"key");
    let open = Header {
        shard: SHARD,
        tag: TOKEN,
        ..Header::new(Kind::Open)
    };
    let entry = |kind: Kind, session, seq, order| Header {
        copies: raw(kind.number()),
        session,
        seq,
        order,
        ..hop(Kind::Append)
    };
    let bypass = Header {
        seq: 41,
        request: raw(9),
        key_hash: raw(key_hash),
        ..client(Kind::Bypass)
    };
    let stamped = Header {
        order: 2_005,
        ..hop(Kind::Bypass)
    };
    let response = Header {
        seq: 41,
        request: raw(9),
        ..client(Kind::Response)
    };
    let recover = Header {
        shard: SHARD,
        epoch: EPOCH,
        device: HEAD,
        incarnation: INCARNATION,
        order: 2_005,
        request: raw(0x5eed),
        ..Header::new(Kind::Recover)
    };
    let reply = Header {
        order: 2_001,
        ..recover
    };
    let table = RecoverReply {
        shard_token: SHARD_TOKEN,
        members: vec![member(HEAD), member(12)],
        sessions: vec![SessionRow {
            session: SESSION,
            last_seq: 41,
            token: TOKEN,
            front: None,
        }],
    };
    let rows = [(12, 2_004), (13, 2_001)].map(|(device, order)| DurableRow {
        device,
        incarnation: INCARNATION,
        order,
    });
    vec![
        ("open", open, TOKEN.to_be_bytes().to_vec()),
        (
            "open_of_a_program",
            Header { order: 2, ..open },
            TOKEN.to_be_bytes().to_vec(),
        ),
        (
            "open_reply",
            Header {
                copies: raw(3),
                request: raw(65_000),
                ..head(Kind::OpenReply)
            },
            vec![],
        ),
        (
            "open_reply_smaller_fragments",
            Header {
                copies: raw(3),
                request: raw(65_000),
                seq: 1_280,
                ..head(Kind::OpenReply)
            },
            vec![],
        ),
        (
            "update",
            Header {
                seq: 42,
                key_hash: raw(key_hash),
                ..client(Kind::Update)
            },
            set.clone(),
        ),
        (
            "update_fragment_last",
            Header {
                seq: 44,
                fragment_index: 2,
                fragment_count: 3,
                ..client(Kind::Update)
            },
            b"the end".to_vec(),
        ),
        (
            "append_open",
            entry(Kind::Open, 2_006, 0, 2_006),
            TOKEN.to_be_bytes().to_vec(),
        ),
        (
            "append_update",
            Header {
                key_hash: raw(key_hash),
                ..entry(Kind::Update, SESSION, 42, 2_007)
            },
            set.clone(),
        ),
        ("append_end", entry(Kind::End, SESSION, 43, 2_008), vec![]),
        (
            "ack",
            Header {
                copies: raw(3),
                seq: 42,
                order: 2_007,
                request: raw(64_998),
                key_hash: raw(40),
                ..head(Kind::Ack)
            },
            vec![],
        ),
        (
            "nack",
            Header {
                seq: 43,
                ..head(Kind::Nack)
            },
            vec![],
        ),
        (
            "nack_of_a_bypass",
            Header {
                seq: 43,
                request: raw(9),
                ..head(Kind::Nack)
            },
            vec![],
        ),
        (
            "nack_unknown_session",
            Header {
                flags: Flags::UNKNOWN_SESSION,
                ..head(Kind::Nack)
            },
            vec![],
        ),
        (
            "not_logged",
            Header {
                seq: 43,
                ..head(Kind::NotLogged)
            },
            vec![],
        ),
        (
            "not_logged_open",
            Header {
                session: 0,
                ..head(Kind::NotLogged)
            },
            vec![],
        ),
        (
            "not_logged_open_of_other_payloads",
            Header {
                session: 0,
                copies: raw(2),
                request: raw(1),
                ..head(Kind::NotLogged)
            },
            vec![],
        ),
        (
            "durable",
            Header {
                order: 2_004,
                copies: raw(2),
                request: raw(1_024),
                device: 12,
                ..hop(Kind::Durable)
            },
            write_durable(&rows),
        ),
        (
            "applied_by_the_server",
            Header {
                order: 2_001,
                request: raw(4_000),
                ..server(Kind::Applied)
            },
            vec![],
        ),
        (
            "applied_passed_on",
            Header {
                order: 2_001,
                ..hop(Kind::Applied)
            },
            vec![],
        ),
        ("bypass", bypass, get.clone()),
        (
            "bypass_read_only",
            Header {
                flags: Flags::READ_ONLY,
                ..bypass
            },
            get.clone(),
        ),
        (
            "bypass_stamped",
            Header {
                session: SESSION,
                seq: 41,
                request: raw(9),
                ..stamped
            },
            get,
        ),
        (
            "bypass_fallback",
            Header {
                flags: Flags::FALLBACK,
                seq: 45,
                request: raw(43),
                ..client(Kind::Bypass)
            },
            command::single(&[&b"SET"[..], b"k", b"v"]),
        ),
        (
            "bypass_fallback_empty",
            Header {
                flags: Flags::FALLBACK,
                seq: 45,
                request: raw(45),
                ..client(Kind::Bypass)
            },
            vec![],
        ),
        (
            "bypass_continue",
            Header {
                flags: Flags::CONTINUE,
                fragment_index: 32,
                fragment_count: 80,
                ..bypass
            },
            vec![],
        ),
        ("response", response, b"$5\r\nvalue\r\n".to_vec()),
        (
            "response_fragment",
            Header {
                key_hash: raw(0xdead_beef),
                fragment_index: 1,
                fragment_count: 2,
                ..response
            },
            b"second half\r\n".to_vec(),
        ),
        (
            "response_progress",
            Header {
                flags: Flags::PROGRESS,
                order: 8,
                ..response
            },
            vec![],
        ),
        (
            "response_fallback",
            Header {
                flags: Flags::FALLBACK,
                seq: 45,
                request: raw(43),
                ..client(Kind::Response)
            },
            vec![],
        ),
        (
            "read",
            Header {
                request: raw(9),
                ..client(Kind::Read)
            },
            write_hashes(&[key_hash, command::key_hash(b"other")]),
        ),
        (
            "hit",
            Header {
                request: raw(9),
                order: 2_005,
                ..head(Kind::Hit)
            },
            set.clone(),
        ),
        (
            "miss",
            Header {
                request: raw(10),
                order: 2_007,
                seq: 31,
                ..head(Kind::Miss)
            },
            vec![],
        ),
        (
            "retrans",
            Header {
                order: 2_002,
                request: raw(2_004),
                ..hop(Kind::Retrans)
            },
            vec![],
        ),
        ("recover", recover, write_path(&[member(HEAD)])),
        (
            "recover_relayed_second_part",
            Header {
                fragment_index: 1,
                fragment_count: 2,
                ..recover
            },
            write_path(&[member(HEAD), member(12)]),
        ),
        (
            "recover_reply",
            Header {
                kind: Kind::RecoverReply,
                ..reply
            },
            table.write(),
        ),
        (
            "recover_reply_refused",
            Header {
                kind: Kind::RecoverReply,
                flags: Flags::REFUSED,
                order: 0,
                ..reply
            },
            b"why, and what to do".to_vec(),
        ),
        (
            "recover_reply_hold",
            Header {
                kind: Kind::RecoverReply,
                flags: Flags::REFUSED.with(Flags::PROGRESS),
                order: 0,
                ..reply
            },
            b"what it waits for".to_vec(),
        ),
        (
            "recover_reply_erase",
            Header {
                kind: Kind::RecoverReply,
                flags: Flags::REFUSED.with(Flags::PROGRESS).with(Flags::CONTINUE),
                order: 0,
                ..reply
            },
            b"it is no member".to_vec(),
        ),
        ("stale_epoch", hop(Kind::StaleEpoch), vec![]),
        ("ping_of_a_client", client(Kind::Ping), vec![]),
        ("ping_of_a_hop", hop(Kind::Ping), vec![]),
        ("pong", head(Kind::Pong), vec![]),
        (
            "pong_smaller_fragments",
            Header {
                seq: 1_280,
                ..head(Kind::Pong)
            },
            vec![],
        ),
        (
            "end",
            Header {
                seq: 46,
                ..client(Kind::End)
            },
            vec![],
        ),
    ]
}

/// Returns packets that are accepted, but have a value at its limit.
fn edges() -> Vec<Named> {
    let update = Header {
        seq: 42,
        ..client(Kind::Update)
    };
    let extreme = Header {
        flags: Flags(0xff),
        copies: raw(0xff),
        shard: u32::MAX,
        epoch: u32::MAX,
        device: u32::MAX,
        incarnation: u32::MAX,
        session: u64::MAX,
        seq: u64::MAX,
        order: u64::MAX,
        request: raw(u64::MAX),
        key_hash: raw(u64::MAX),
        tag: u64::MAX,
        ..Header::new(Kind::Update)
    };
    let full: Vec<u8> = (0u8..=255).cycle().take(FRAGMENT_BYTES).collect();
    vec![
        ("edge_empty_payload", update, vec![]),
        ("edge_one_byte", update, vec![0x2a]),
        ("edge_full_fragment", update, full),
        (
            "edge_last_fragment_of_the_longest_message",
            Header {
                fragment_index: FRAGMENTS_MAX - 1,
                fragment_count: FRAGMENTS_MAX,
                ..update
            },
            vec![1],
        ),
        ("edge_all_ones", extreme, vec![0xff; 16]),
        ("edge_all_zero", Header::new(Kind::Open), vec![]),
    ]
}

/// Returns the packet of which most refused packets are changed copies.
fn sample() -> Vec<u8> {
    let update = Header {
        seq: 42,
        ..client(Kind::Update)
    };
    datagram(&update, &command::single(&[&b"SET"[..], b"key", b"value"]))
}

/// Returns the sample with a change and a right header checksum, as a faulty or hostile sender would send it.
fn resealed(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = sample();
    change(&mut bytes);
    right_header_crc(&mut bytes);
    bytes
}

/// Writes the right checksum into a header.
pub fn right_header_crc(datagram: &mut [u8]) {
    let covered = [&datagram[..76], &datagram[80..HEADER_LEN]].concat();
    datagram[76..80].copy_from_slice(&pmnet_wire::crc(&covered).to_be_bytes());
}

fn refused() -> Vec<(&'static str, Vec<u8>, Reject)> {
    let mut long = Vec::new();
    let payload = vec![0x55; FRAGMENT_BYTES + 1];
    let claimed = Header {
        payload_len: u32::try_from(payload.len()).expect("short"),
        payload_crc: pmnet_wire::crc(&payload),
        ..Header::new(Kind::Update)
    };
    long.extend_from_slice(&claimed.emit());
    long.extend_from_slice(&payload);
    let flipped = |at_end: bool| {
        let mut bytes = sample();
        let at = if at_end { bytes.len() - 1 } else { HEADER_LEN };
        bytes[at] ^= 1;
        bytes
    };
    let set_fragment = |index: u16, count: u16| {
        resealed(|b| {
            b[64..66].copy_from_slice(&index.to_be_bytes());
            b[66..68].copy_from_slice(&count.to_be_bytes());
        })
    };
    let mut longer = sample();
    longer.push(0);
    let mut shorter = sample();
    shorter.pop();
    vec![
        ("reject_foreign_empty_datagram", vec![], Reject::Foreign),
        ("reject_foreign_one_byte", b"P".to_vec(), Reject::Foreign),
        ("reject_foreign_magic_only", b"PM".to_vec(), Reject::Foreign),
        (
            "reject_foreign_text",
            b"hello, is this the DNS?".to_vec(),
            Reject::Foreign,
        ),
        (
            "reject_foreign_short_future_version",
            vec![0x50, 0x4d, 2],
            Reject::Foreign,
        ),
        (
            "reject_foreign_future_version",
            resealed(|b| b[2] = 2),
            Reject::Foreign,
        ),
        (
            "reject_foreign_version_zero",
            resealed(|b| b[2] = 0),
            Reject::Foreign,
        ),
        (
            "reject_foreign_other_magic",
            resealed(|b| b[0] = b'Q'),
            Reject::Foreign,
        ),
        (
            "reject_foreign_flip_in_magic",
            resealed(|b| b[1] ^= 0x10),
            Reject::Foreign,
        ),
        (
            "reject_truncated_three_bytes",
            sample()[..3].to_vec(),
            Reject::Truncated,
        ),
        (
            "reject_truncated_by_one",
            sample()[..HEADER_LEN - 1].to_vec(),
            Reject::Truncated,
        ),
        (
            "reject_header_length_longer",
            resealed(|b| b[7] = 96),
            Reject::HeaderLength,
        ),
        (
            "reject_header_length_zero",
            resealed(|b| b[7] = 0),
            Reject::HeaderLength,
        ),
        ("reject_oversized_by_one", long, Reject::Oversized),
        ("reject_kind_zero", resealed(|b| b[3] = 0), Reject::Kind),
        ("reject_kind_next", resealed(|b| b[3] = 22), Reject::Kind),
        ("reject_kind_last", resealed(|b| b[3] = 255), Reject::Kind),
        (
            "reject_payload_length_one_byte_missing",
            shorter,
            Reject::PayloadLength,
        ),
        (
            "reject_payload_length_one_byte_more",
            longer,
            Reject::PayloadLength,
        ),
        (
            "reject_payload_length_claims_4_gib",
            resealed(|b| b[68..72].copy_from_slice(&[0xff; 4])),
            Reject::PayloadLength,
        ),
        (
            "reject_fragment_of_none",
            set_fragment(0, 0),
            Reject::Fragment,
        ),
        (
            "reject_fragment_behind_the_last",
            set_fragment(3, 3),
            Reject::Fragment,
        ),
        (
            "reject_fragment_too_many",
            set_fragment(0, FRAGMENTS_MAX + 1),
            Reject::Fragment,
        ),
        (
            "reject_payload_checksum_first_bit",
            flipped(false),
            Reject::PayloadChecksum,
        ),
        (
            "reject_payload_checksum_last_bit",
            flipped(true),
            Reject::PayloadChecksum,
        ),
        (
            "reject_payload_checksum_field",
            resealed(|b| b[72] ^= 1),
            Reject::PayloadChecksum,
        ),
    ]
}
