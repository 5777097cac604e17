//! Compares views with bytes: each field has its own bytes, at the place that the layout states.

use super::*;
use crate::HEADER_LEN;

/// Whether a view's field may lie at these bytes of the header: byte 5, or the bytes from session to fragment.
fn may_stand(field: &Field) -> bool {
    (field.offset, field.bytes) == (5, 1)
        || (field.offset >= 24 && field.offset + field.bytes <= 68)
}

#[test]
fn the_fields_of_a_view_do_not_overlap() {
    for view in LAYOUTS {
        let mut used = [false; HEADER_LEN];
        for field in view.fields {
            assert!(may_stand(field), "{}.{}", view.name, field.name);
            for place in &mut used[field.offset..field.offset + field.bytes] {
                assert!(!*place, "{}.{} stands on another", view.name, field.name);
                *place = true;
            }
        }
    }
}

#[test]
fn every_kind_has_a_view() {
    for kind in Kind::ALL {
        assert!(LAYOUTS.iter().any(|view| view.kind == *kind), "{kind:?}");
    }
}

const STAMP: Stamp = Stamp {
    shard: 0x1112_1314,
    epoch: 0x2122_2324,
    device: 0x3132_3334,
    incarnation: 0x4142_4344,
    tag: 0x5152_5354_5556_5758,
};

/// Returns a header in which all bytes that a view may name differ from each other.
fn colorful(kind: Kind) -> Header {
    let mut header = STAMP.header(kind);
    header.copies.0 = 0xa1;
    header.session = 0xb1b2_b3b4_b5b6_b7b8;
    header.seq = 0xc1c2_c3c4_c5c6_c7c8;
    header.order = 0xd1d2_d3d4_d5d6_d7d8;
    header.request.0 = 0xe1e2_e3e4_e5e6_e7e8;
    header.key_hash.0 = 0xf1f2_f3f4_f5f6_f7f8;
    (header.fragment_index, header.fragment_count) = (0x0102, 0x0304);
    header
}

macro_rules! each_view {
    ($($view:ident),* $(,)?) => {
        [$({
            let whole = colorful($view::LAYOUT.kind);
            let view = $view::read(&whole);
            let again = view.header(&STAMP);
            assert_eq!($view::read(&again), view);
            ($view::LAYOUT, whole.emit(), again.emit(), view.to_string())
        }),*]
    };
}

#[test]
fn a_view_reads_and_writes_its_fields_and_no_others() {
    let views = each_view!(
        Open,
        OpenReply,
        Update,
        Append,
        Ack,
        Nack,
        NotLogged,
        Durable,
        Applied,
        Bypass,
        Fallback,
        Response,
        Progress,
        Hit,
        ReadKeys,
        Miss,
        Retrans,
        Recover,
        RecoverReply,
        StaleEpoch,
        Ping,
        Pong,
        End,
    );
    assert_eq!(views.len(), LAYOUTS.len());
    for (layout, whole, again, text) in views {
        let mut expected = STAMP.header(layout.kind).emit();
        for field in layout.fields {
            let range = field.offset..field.offset + field.bytes;
            expected[range.clone()].copy_from_slice(&whole[range]);
            assert!(text.contains(&format!(" {} ", field.name)), "{text}");
        }
        assert!(text.starts_with(layout.name));
        // Other tests check flags and the header's checksum.
        for (at, (expected, written)) in expected.iter().zip(&again).enumerate() {
            assert!(
                expected == written || at == 4 || (76..80).contains(&at),
                "{}: byte {at} is {written:#x}, not {expected:#x}",
                layout.name
            );
        }
    }
}

#[test]
fn a_stamp_is_what_a_header_says_of_its_sender() {
    let header = STAMP.header(Kind::Ping);
    assert_eq!((header.kind, Stamp::of(&header)), (Kind::Ping, STAMP));
    let other = STAMP.tagged(7);
    assert_eq!((other.tag, other.tagged(STAMP.tag)), (7, STAMP));
    assert_eq!(Fragment { index: 1, count: 2 }.to_string(), "1/2");
}

#[test]
fn flags_are_bits_of_their_own() {
    let nack = Nack {
        session: 1,
        expected: 0,
        refused: 0,
        why: 0,
        unknown_session: true,
    };
    assert_eq!(nack.header(&STAMP).flags, crate::Flags::UNKNOWN_SESSION);
    let progress = Progress {
        session: 1,
        seq: 2,
        received: 3,
        request: 4,
        fallback: true,
    };
    let header = progress.header(&STAMP);
    assert_eq!(
        header.flags,
        crate::Flags::PROGRESS.with(crate::Flags::FALLBACK)
    );
    assert_eq!(Progress::read(&header), progress);
    assert_eq!(
        nack.to_string(),
        "Nack session 1 expected 0 refused 0 why 0 unknown_session"
    );
}

#[test]
fn fields_of_the_header_are_where_they_are_written() {
    let mut end = 0;
    for field in crate::header::FIELDS {
        assert_eq!(field.offset, end, "{}", field.name);
        end += field.bytes;
    }
    assert_eq!(end, HEADER_LEN);
    let mut header = colorful(Kind::Update);
    header.flags = Flags(0x91);
    (header.payload_len, header.payload_crc) = (0x0607_0809, 0x0a0b_0c0d);
    let bytes = header.emit();
    let number = |name: &str| {
        let mut all = crate::header::FIELDS.iter();
        let field = all.find(|field| field.name == name).expect(name);
        let bytes = &bytes[field.offset..field.offset + field.bytes];
        bytes
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte))
    };
    for (name, value) in [
        ("magic", crate::MAGIC.into()),
        ("version", crate::header::VERSION.into()),
        ("kind", Kind::Update.number().into()),
        ("flags", 0x91),
        ("copies", header.copies.0.into()),
        ("header_len", HEADER_LEN as u64),
        ("shard", header.shard.into()),
        ("epoch", header.epoch.into()),
        ("device", header.device.into()),
        ("incarnation", header.incarnation.into()),
        ("session", header.session),
        ("seq", header.seq),
        ("order", header.order),
        ("request", header.request.0),
        ("key_hash", header.key_hash.0),
        ("fragment_index", header.fragment_index.into()),
        ("fragment_count", header.fragment_count.into()),
        ("payload_len", header.payload_len.into()),
        ("payload_crc", header.payload_crc.into()),
        ("tag", header.tag),
    ] {
        assert_eq!(number(name), value, "{name}");
    }
}
