//! Images that only a program which can compute the checksums could make.

use super::*;
use crate::geometry::LINE_BYTES;
use crate::medium::tests::Plain;
use crate::superblock::format;

const GEOMETRY: Geometry = Geometry {
    lines: 128,
    frames: 32,
    frame_bytes: 2048,
    log_entries: 0,
};
const IDENTITY: Identity = Identity { uuid: 7, shard: 0 };

fn line(start: u16, key_len: u32, value_len: u32, len: u16) -> Line {
    Line {
        born: 1,
        order: 0,
        received_us: 0,
        kind: 0,
        expires_at_ms: 0,
        key_len,
        value_len,
        form: Form::Plain,
        frame: 0,
        start,
        len,
        key_at: 0,
        gap: 0,
        prefix: Prefix::NONE,
        payload_crc: 0,
    }
}

/// Returns an image with these lines. Its commit record counts all of them.
fn image(payload: &[u8], lines: &[Line]) -> Plain {
    let mut medium = Plain(vec![0; GEOMETRY.image_bytes()]);
    format(&mut medium, &IDENTITY, &GEOMETRY).unwrap();
    medium.store(GEOMETRY.frame_offset(0), payload);
    let mut commit = Commit {
        commit: 1,
        ..Commit::default()
    };
    for (slot, line) in (0..).zip(lines) {
        let place = line.payload(&GEOMETRY);
        let bytes = medium.part(place).to_vec();
        let line = Line {
            payload_crc: crc32c::crc32c(&bytes),
            ..*line
        };
        let key = match line.form {
            Form::Piece => &[],
            _ => &bytes[line.key_part()],
        };
        let raw: [u8; LINE_BYTES] = line.encode(IDENTITY.seed(), slot, key);
        medium.store(GEOMETRY.line(slot).start, &raw);
        if line.form != Form::Piece {
            commit.records += 1;
            commit.sum = commit.sum.wrapping_add(line::share(&raw, slot));
        }
    }
    commit.store(&mut medium, IDENTITY.seed());
    medium
}

#[test]
fn bytes_that_two_records_claim_are_reported() {
    let apart = [line(0, 2, 2, 4), line(4, 2, 2, 4)];
    let scan = Scan::open(image(b"aabbccdd", &apart), None).unwrap();
    assert_eq!((scan.loss(), scan.verify()), (None, vec![]));
    let twice = [line(0, 2, 2, 4), line(2, 2, 2, 4)];
    let scan = Scan::open(image(b"aabbcc", &twice), None).unwrap();
    assert_eq!(scan.loss(), None);
    let found = scan.verify();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].key.as_slice(), found[0].line), (&b"bb"[..], 1));
}

#[test]
fn a_record_without_all_its_pieces_does_not_count() {
    let piece = |head, index| Line {
        form: Form::Piece,
        order: Line::piece_of(head, index),
        ..line(100, 0, 0, 100)
    };
    let head = line(0, 2, 3098, 1052);
    let last = Line {
        len: 0,
        ..piece(0, 1)
    };
    for pieces in [vec![], vec![piece(0, 0)], vec![piece(1, 0)], vec![last]] {
        let lines = [&[head][..], &pieces].concat();
        let scan = Scan::open(image(&[b'x'; 2048], &lines), None).unwrap();
        let loss = scan.loss().unwrap();
        assert_eq!((loss.counted, loss.whole), (1, 0), "{pieces:?}");
        let store = scan.repair_without_lost().unwrap();
        assert_eq!(store.stat().lines_used, 0);
    }
    let whole = Line {
        len: 2048,
        ..Line {
            start: 0,
            ..piece(0, 0)
        }
    };
    let scan = Scan::open(image(&[b'x'; 2048], &[head, whole]), None).unwrap();
    assert_eq!(scan.loss(), None);
    assert_eq!(scan.repair().unwrap().stat().lines_used, 2);
}

#[test]
fn of_two_whole_versions_the_newer_counts_and_a_third_is_no_concern() {
    let mut lines = [line(0, 2, 2, 4), line(0, 2, 3, 5), line(0, 2, 1, 3)];
    lines[1].born = 2;
    let medium = image(b"aabbb", &lines);
    // The commit record has the number 1 and counts three records.
    let scan = Scan::open(medium, None).unwrap();
    let loss = scan.loss().unwrap();
    assert_eq!((loss.counted, loss.whole), (3, 1));
}
