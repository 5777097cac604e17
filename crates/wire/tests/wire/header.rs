//! The header: its layout as the specification draws it, round trips, and damage.

use pmnet_wire::{
    DATAGRAM_BYTES_MAX, FRAGMENT_BYTES, FRAGMENTS_MAX, Flags, HEADER_LEN, Header, Kind,
    MESSAGE_BYTES_MAX, Packet, Reject, raw,
};
use proptest::prelude::*;

prop_compose! {
    fn header()(
        kind in 1u8..=19,
        flags: u8,
        copies: u8,
        words: [u32; 4],
        longs: [u64; 6],
        count in 1..=FRAGMENTS_MAX,
        index: prop::sample::Index,
    ) -> Header {
        Header {
            flags: Flags(flags),
            copies: raw(copies),
            shard: words[0],
            epoch: words[1],
            device: words[2],
            incarnation: words[3],
            session: longs[0],
            seq: longs[1],
            order: longs[2],
            request: raw(longs[3]),
            key_hash: raw(longs[4]),
            tag: longs[5],
            fragment_index: u16::try_from(index.index(usize::from(count))).expect("below count"),
            fragment_count: count,
            ..Header::new(Kind::from_u8(kind).expect("kinds are 1 to 19"))
        }
    }
}

fn payload(most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..=most)
}

fn datagram(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    header.write(payload, &mut bytes);
    bytes
}

proptest! {
    #[test]
    fn what_is_written_is_parsed(header in header(), payload in payload(FRAGMENT_BYTES)) {
        let bytes = datagram(&header, &payload);
        let packet = Packet::parse(&bytes).expect("written by us");
        prop_assert_eq!(packet.header, header.for_payload(&payload));
        prop_assert_eq!(packet.payload, &payload[..]);
        let mut again = Vec::new();
        packet.emit(&mut again);
        prop_assert_eq!(again, bytes);
    }

    #[test]
    fn any_bytes_are_judged_without_a_panic(bytes in payload(3 * HEADER_LEN)) {
        // Even if random bytes begin like a packet, their checksum is wrong.
        prop_assert!(Packet::parse(&bytes).is_err());
    }

    #[test]
    fn any_bytes_behind_our_magic_are_judged_without_a_panic(
        mut bytes in payload(3 * HEADER_LEN),
    ) {
        for (at, byte) in [0x50, 0x4d, 1].into_iter().enumerate().take(bytes.len()) {
            bytes[at] = byte;
        }
        if let Some(low) = bytes.get_mut(7) {
            *low = 88;
            bytes[6] = 0;
        }
        prop_assert!(Packet::parse(&bytes).is_err());
    }

    #[test]
    fn every_single_bit_flip_is_noticed(header in header(), payload in payload(40)) {
        let mut bytes = datagram(&header, &payload);
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Packet::parse(&bytes).is_err(), "bit {} flipped unnoticed", bit);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn every_other_length_is_noticed(header in header(), payload in payload(40), more in 1usize..40) {
        let mut bytes = datagram(&header, &payload);
        for length in 0..bytes.len() {
            prop_assert!(Packet::parse(&bytes[..length]).is_err(), "cut to {}", length);
        }
        bytes.resize(bytes.len() + more, 0);
        prop_assert_eq!(Packet::parse(&bytes), Err(Reject::PayloadLength));
    }
}

/// Offset and size of every field, copied by hand from `docs/spec/wire.md` §1.
#[test]
fn fields_stand_where_the_specification_says() {
    let header = Header {
        flags: Flags(0xa1),
        copies: raw(0xa2),
        shard: 0xb0b1_b2b3,
        epoch: 0xb4b5_b6b7,
        device: 0xb8b9_babb,
        incarnation: 0xbcbd_bebf,
        session: 0xc0c1_c2c3_c4c5_c6c7,
        seq: 0xc8c9_cacb_cccd_cecf,
        order: 0xd0d1_d2d3_d4d5_d6d7,
        request: raw(0xd8d9_dadb_dcdd_dedf),
        key_hash: raw(0xe0e1_e2e3_e4e5_e6e7),
        fragment_index: 0x0102,
        fragment_count: 0x0203,
        tag: 0xf0f1_f2f3_f4f5_f6f7,
        ..Header::new(Kind::Response)
    };
    let bytes = datagram(&header, b"123456789");
    let table: [(&str, usize, &[u8]); 20] = [
        ("magic", 0, b"PM"),
        ("version", 2, &[1]),
        ("kind", 3, &[11]),
        ("flags", 4, &[0xa1]),
        ("copies", 5, &[0xa2]),
        ("header_len", 6, &[0, 88]),
        ("shard", 8, &[0xb0, 0xb1, 0xb2, 0xb3]),
        ("epoch", 12, &[0xb4, 0xb5, 0xb6, 0xb7]),
        ("device", 16, &[0xb8, 0xb9, 0xba, 0xbb]),
        ("incarnation", 20, &[0xbc, 0xbd, 0xbe, 0xbf]),
        (
            "session",
            24,
            &[0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7],
        ),
        ("seq", 32, &[0xc8, 0xc9, 0xca, 0xcb, 0xcc, 0xcd, 0xce, 0xcf]),
        (
            "order",
            40,
            &[0xd0, 0xd1, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7],
        ),
        (
            "request",
            48,
            &[0xd8, 0xd9, 0xda, 0xdb, 0xdc, 0xdd, 0xde, 0xdf],
        ),
        (
            "key_hash",
            56,
            &[0xe0, 0xe1, 0xe2, 0xe3, 0xe4, 0xe5, 0xe6, 0xe7],
        ),
        ("fragment_index", 64, &[1, 2]),
        ("fragment_count", 66, &[2, 3]),
        ("payload_len", 68, &[0, 0, 0, 9]),
        // The check value of CRC-32C, from its definition.
        ("payload_crc", 72, &[0xe3, 0x06, 0x92, 0x83]),
        ("tag", 80, &[0xf0, 0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7]),
    ];
    let mut at = 0;
    for (name, offset, expected) in table {
        if offset == 80 {
            at += 4; // header_crc
        }
        assert_eq!(offset, at, "{name} begins where the field before ends");
        assert_eq!(&bytes[offset..offset + expected.len()], expected, "{name}");
        at += expected.len();
    }
    assert_eq!(at, HEADER_LEN);
    let covered = [&bytes[..76], &bytes[80..88]].concat();
    assert_eq!(
        bytes[76..80],
        pmnet_wire::crc(&covered).to_be_bytes(),
        "header_crc"
    );
}

#[test]
fn sizes_and_flags_are_those_of_the_specification() {
    assert_eq!((FRAGMENT_BYTES, DATAGRAM_BYTES_MAX), (1344, 1432));
    assert_eq!((MESSAGE_BYTES_MAX, FRAGMENTS_MAX), (16_777_216, 15_000));
    let flags = [
        Flags::READ_ONLY,
        Flags::FALLBACK,
        Flags::CONTINUE,
        Flags::PROGRESS,
        Flags::UNKNOWN_SESSION,
        Flags::REFUSED,
        Flags::DATA_LOSS,
    ];
    assert_eq!(flags.map(|flag| flag.0), [1, 2, 4, 8, 16, 32, 64]);
    let two = Flags::FALLBACK.with(Flags::PROGRESS);
    assert_eq!((two.0, two.with(Flags::PROGRESS)), (10, two));
    assert!(two.has(Flags::FALLBACK) && two.has(two) && two.has(Flags::default()));
    assert!(!two.has(Flags::READ_ONLY) && !Flags::FALLBACK.has(two));
}

#[test]
fn what_is_no_packet_is_refused_for_its_first_reason() {
    for (start, why) in [
        (&b"PM\x01"[..], Reject::Truncated),
        (b"PM\x01\x03\x00", Reject::Truncated),
        (b"PM\x02", Reject::Foreign),
        (b"PX\x01", Reject::Foreign),
        (b"PM", Reject::Foreign),
        (b"", Reject::Foreign),
    ] {
        assert_eq!(Packet::parse(start), Err(why), "{}", start.escape_ascii());
    }
    let whole = datagram(&Header::new(Kind::Ping), b"");
    for (at, byte, why) in [
        (1, b'X', Reject::Foreign),
        (2, 2, Reject::Foreign),
        (7, 89, Reject::HeaderLength),
        (80, 1, Reject::HeaderChecksum),
    ] {
        let mut bytes = whole.clone();
        bytes[at] = byte;
        assert_eq!(Packet::parse(&bytes), Err(why), "byte {at}");
    }
    let mut long = datagram(&Header::new(Kind::Update), &[7; FRAGMENT_BYTES]);
    assert!(Packet::parse(&long).is_ok());
    long.push(0);
    assert_eq!(Packet::parse(&long), Err(Reject::Oversized));
}

#[test]
fn a_fragment_is_one_of_those_that_there_are() {
    for (index, count, good) in [
        (0, 1, true),
        (1, 1, false),
        (0, 0, false),
        (1, 2, true),
        (3, 2, false),
        (FRAGMENTS_MAX - 1, FRAGMENTS_MAX, true),
        (0, FRAGMENTS_MAX + 1, false),
        (0, u16::MAX, false),
    ] {
        let header = Header {
            fragment_index: index,
            fragment_count: count,
            ..Header::new(Kind::Update)
        };
        let bytes = datagram(&header, b"x");
        let expected = if good { None } else { Some(Reject::Fragment) };
        assert_eq!(Packet::parse(&bytes).err(), expected, "{index} of {count}");
    }
}

#[test]
fn a_header_says_what_it_is() {
    let header = Header {
        shard: 1,
        epoch: 2,
        device: 3,
        incarnation: 4,
        session: 5,
        seq: 6,
        order: 7,
        request: raw(8),
        fragment_index: 9,
        fragment_count: 10,
        payload_len: 11,
        ..Header::new(Kind::Append)
    };
    assert_eq!(
        header.to_string(),
        "Append shard 1 epoch 2 device 3.4 session 5 seq 6 order 7 request 8 fragment 9/10 11 B"
    );
}

#[test]
fn kinds_and_their_numbers_belong_together() {
    assert_eq!(Kind::ALL.len(), 21);
    for (at, kind) in Kind::ALL.iter().enumerate() {
        assert_eq!(usize::from(kind.number()), at + 1, "{kind:?}");
        assert_eq!(Kind::from_u8(kind.number()), Some(*kind));
    }
    assert_eq!((Kind::from_u8(0), Kind::from_u8(22)), (None, None));
}

#[test]
#[should_panic(expected = "split into fragments")]
fn an_oversized_payload_is_a_mistake_of_its_writer() {
    let _ = Header::new(Kind::Update).for_payload(&[0; FRAGMENT_BYTES + 1]);
}

#[test]
fn the_first_packet_of_longer_memory() {
    let header = Header::new(Kind::Update);
    let mut packet = Vec::new();
    header.write(b"payload", &mut packet);
    let mut memory = packet.clone();
    memory.resize(2048, 0x55);
    let found = Packet::parse_first(&memory).unwrap();
    assert_eq!(found, Packet::parse(&packet).unwrap());
    assert_eq!(Packet::parse_first(&packet), Packet::parse(&packet));
    // The end of the packet is missing.
    for length in HEADER_LEN..packet.len() {
        assert_eq!(
            Packet::parse_first(&packet[..length]),
            Err(Reject::PayloadLength)
        );
    }
    assert_eq!(Packet::parse_first(&packet[..50]), Err(Reject::Truncated));
    assert_eq!(Packet::parse_first(&[0; 2048]), Err(Reject::Foreign));
    assert_eq!(Packet::parse_first(&[]), Err(Reject::Foreign));
    // The length is above the bound.
    memory[68..72].fill(0xff);
    assert_eq!(Packet::parse_first(&memory), Err(Reject::Oversized));
}
