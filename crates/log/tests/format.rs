//! The format byte by byte, as ordered-log.md §5 and §6 describe it, computed by this test's own code. Further tests
//! violate each check of recovery.md §2 and §3, one at a time, with all other fields right.

mod support;

use pmnet_log::{
    BLOCK_BYTES, CopyState, Finding, InvalidSlot, LogError, Media, NewEntry, Parameters, Scan,
};
use support::{EXPECTED, Forgetful, IDENTITY, recover};

/// Parameters of a log into which long frames fit.
const WIDE: Parameters = Parameters::ring(64, 128 * 1024);
const METADATA: usize = 2 * BLOCK_BYTES;
const FRAMES: usize = METADATA + 64 * 64;
const NEW: NewEntry = NewEntry {
    session: 1,
    seq: 1,
    kind: 1,
    fragment_index: 0,
    fragment_count: 1,
};
const HEADER: [u8; 88] = [7; 88];
const PAYLOAD: &[u8] = b"a payload of its own";

/// Returns a log with the entry of order 70, written in lap 1 after a reset, in epoch 3, in the second incarnation.
fn written() -> Forgetful {
    let mut log = recover(Forgetful::formatted(&WIDE, 1));
    log.mark_served().unwrap();
    let mut log = recover(log.into_media().kill());
    log.set_epoch(3).unwrap();
    log.reset_to(69).unwrap();
    let new = NewEntry {
        session: 0x1111_2222_3333_4444,
        seq: 0x5555_6666_7777_8888,
        kind: 9,
        fragment_index: 1,
        fragment_count: 3,
    };
    let crc = crc32c::crc32c(PAYLOAD);
    assert_eq!(log.append(&new, &HEADER, PAYLOAD, crc), Ok(70));
    log.persist_start().unwrap();
    log.persist_poll(true).unwrap();
    log.into_media().kill()
}

/// Returns an entry as the specification describes it, for the frame at the start of the ring. `change` may change
/// fields before the checksum is computed.
fn entry(frame: &[u8], order: u64, change: impl FnOnce(&mut [u8; 64])) -> [u8; 64] {
    let mut raw = [0; 64];
    raw[0..8].copy_from_slice(&order.to_le_bytes());
    raw[8..16].copy_from_slice(&0x1111_2222_3333_4444u64.to_le_bytes());
    raw[16..24].copy_from_slice(&0x5555_6666_7777_8888u64.to_le_bytes());
    raw[24..28].copy_from_slice(&1u32.to_le_bytes());
    raw[28..32].copy_from_slice(&1u32.to_le_bytes());
    raw[32..36].copy_from_slice(&0u32.to_le_bytes());
    let len = u32::try_from(HEADER.len() + PAYLOAD.len()).unwrap();
    raw[36..40].copy_from_slice(&len.to_le_bytes());
    raw[40..44].copy_from_slice(&crc32c::crc32c(PAYLOAD).to_le_bytes());
    raw[44..48].copy_from_slice(&3u32.to_le_bytes());
    raw[48..52].copy_from_slice(&2u32.to_le_bytes());
    raw[52..54].copy_from_slice(&1u16.to_le_bytes());
    raw[54..56].copy_from_slice(&3u16.to_le_bytes());
    raw[56..58].copy_from_slice(&88u16.to_le_bytes());
    raw[58] = 9;
    change(&mut raw);
    let order = u64::from_le_bytes(raw[0..8].try_into().unwrap());
    let header_len = usize::from(u16::from_le_bytes(raw[56..58].try_into().unwrap()));
    let crc = [
        &IDENTITY.log_uuid.to_le_bytes()[..],
        &1u32.to_le_bytes(),
        &raw[..60],
        &(order % 64).to_le_bytes(),
        &(order / 64).to_le_bytes(),
        &frame[..header_len],
    ]
    .iter()
    .fold(0, |crc, part| crc32c::crc32c_append(crc, part));
    raw[60..].copy_from_slice(&crc.to_le_bytes());
    raw
}

fn put(medium: &mut Forgetful, at: usize, bytes: &[u8]) {
    for (index, byte) in bytes.iter().enumerate() {
        medium.corrupt(at + index, |_| *byte);
    }
}

fn slot_at(order: u64) -> usize {
    METADATA + usize::try_from(order % 64).unwrap() * 64
}

#[test]
fn an_entry_is_exactly_the_bytes_of_the_specification() {
    let medium = written();
    let frame = [&HEADER[..], PAYLOAD].concat();
    assert_eq!(medium.bytes()[FRAMES..FRAMES + frame.len()], frame[..]);
    let raw = &medium.bytes()[slot_at(70)..][..64];
    assert_eq!(raw, entry(&frame, 70, |_| ()));
}

/// Returns whether the scan finds an entry in a slot, or why it refuses the slot.
fn seen(medium: Forgetful, slot: u64) -> Result<bool, InvalidSlot> {
    let scan = Scan::open(medium, Some(EXPECTED)).unwrap();
    let why = scan
        .report()
        .findings
        .iter()
        .find_map(|finding| match finding {
            Finding::Slot { slot: found, why } if *found == slot => Some(*why),
            _ => None,
        });
    why.map_or(Ok(scan.report().slots_valid > 0), Err)
}

/// The entry has one impossible field. All other fields and the checksum are right.
#[test]
fn each_impossible_field_of_an_entry_is_refused_alone() {
    type Change = fn(&mut [u8; 64]);
    let fields: &[(&str, u64, u64, Change)] = &[
        ("order 0", 0, 0, |_| ()),
        ("the last number", u64::MAX, 63, |_| ()),
        ("another slot's order", 70, 7, |_| ()),
        ("the slot of a lap before", 70, 5, |_| ()),
        ("durable lag 0", 70, 6, |raw| raw[24] = 0),
        ("durable lag above applied lag", 70, 6, |raw| raw[24] = 2),
        ("applied lag above the entries", 70, 6, |raw| raw[28] = 65),
        ("applied lag above the order", 5, 5, |raw| raw[28] = 6),
        ("byte 59", 70, 6, |raw| raw[59] = 1),
        ("a frame at the end of the ring", 70, 6, |raw| {
            raw[32..36].copy_from_slice(&2048u32.to_le_bytes());
        }),
        ("a frame beyond the ring", 70, 6, |raw| {
            raw[32..36].fill(0xff)
        }),
        ("a frame across the end", 70, 6, |raw| {
            raw[32..36].copy_from_slice(&2047u32.to_le_bytes());
        }),
        ("an empty header", 70, 6, |raw| raw[56] = 0),
        ("a header of 513 bytes", 70, 6, |raw| {
            raw[56..58].copy_from_slice(&513u16.to_le_bytes());
            raw[36..40].copy_from_slice(&600u32.to_le_bytes());
            raw[40..44].copy_from_slice(&crc32c::crc32c(&[0; 87]).to_le_bytes());
        }),
        ("a header longer than the frame", 70, 6, |raw| raw[36] = 87),
        ("a frame of 65536 bytes", 70, 6, |raw| {
            raw[36..40].copy_from_slice(&65_536u32.to_le_bytes());
            raw[56..58].copy_from_slice(&88u16.to_le_bytes());
            let rest = [PAYLOAD, &[0; 65_536 - 88 - 20]].concat();
            raw[40..44].copy_from_slice(&crc32c::crc32c(&rest).to_le_bytes());
        }),
    ];
    for (what, order, slot, change) in fields {
        let mut medium = written();
        put(&mut medium, slot_at(70), &[0; 64]);
        let frame = medium.bytes()[FRAMES..FRAMES + 1024].to_vec();
        let raw = entry(&frame, *order, change);
        put(&mut medium, slot_at(*slot), &raw);
        assert_eq!(seen(medium, *slot), Err(InvalidSlot::Fields), "{what}");
    }
    // Valid entries at the limits.
    let limits: &[(&str, u64, Change)] = &[
        ("as written", 70, |_| ()),
        ("lags as large as the ring", 70, |raw| {
            (raw[24], raw[28]) = (64, 64);
        }),
        ("the first order", 1, |_| ()),
        ("a header of 512 bytes", 70, |raw| {
            raw[56..58].copy_from_slice(&512u16.to_le_bytes());
            raw[36..40].copy_from_slice(&512u32.to_le_bytes());
            raw[40..44].fill(0);
        }),
        ("a frame of 65535 bytes", 70, |raw| {
            raw[36..40].copy_from_slice(&65_535u32.to_le_bytes());
            let rest = [PAYLOAD, &[0; 65_535 - 88 - 20]].concat();
            raw[40..44].copy_from_slice(&crc32c::crc32c(&rest).to_le_bytes());
        }),
    ];
    for (what, order, change) in limits {
        let mut medium = written();
        put(&mut medium, slot_at(70), &[0; 64]);
        let frame = medium.bytes()[FRAMES..FRAMES + 1024].to_vec();
        put(&mut medium, slot_at(*order), &entry(&frame, *order, change));
        assert_eq!(seen(medium, order % 64), Ok(true), "{what}");
    }
}

#[test]
fn each_part_of_an_entry_that_changed_is_noticed() {
    for at in 0..64 {
        let mut medium = written();
        medium.corrupt(slot_at(70) + at, |byte| byte ^ 0x20);
        assert!(seen(medium, 6).is_err(), "byte {at} of the entry");
    }
    for at in 0..HEADER.len() {
        let mut medium = written();
        medium.corrupt(FRAMES + at, |byte| byte ^ 0x20);
        assert_eq!(seen(medium, 6), Err(InvalidSlot::Checksum), "header {at}");
    }
    for at in 0..PAYLOAD.len() {
        let mut medium = written();
        medium.corrupt(FRAMES + HEADER.len() + at, |byte| byte ^ 0x20);
        assert_eq!(seen(medium, 6), Err(InvalidSlot::Payload), "payload {at}");
    }
}

/// Computes the checksum of a changed superblock anew.
fn sign(medium: &mut Forgetful, copy: usize) {
    let mut block = medium.bytes()[copy * BLOCK_BYTES..][..BLOCK_BYTES].to_vec();
    block[12..16].fill(0);
    let crc = crc32c::crc32c(&block);
    put(medium, copy * BLOCK_BYTES + 12, &crc.to_le_bytes());
}

fn counter(medium: &Forgetful, copy: usize) -> u64 {
    let at = copy * BLOCK_BYTES + 16;
    u64::from_le_bytes(medium.bytes()[at..at + 8].try_into().unwrap())
}

/// Both copies have right checksums, but one field of the newer copy contradicts the older copy.
#[test]
fn each_contradiction_between_the_superblocks_is_refused_alone() {
    type Change = fn(&mut Forgetful, usize);
    let fields: &[(&str, Change)] = &[
        ("counter", |medium, at| {
            medium.corrupt(at + 16, |byte| byte + 2)
        }),
        ("uuid", |medium, at| {
            medium.corrupt(at + 30, |byte| byte ^ 1)
        }),
        ("device", |medium, at| {
            medium.corrupt(at + 40, |byte| byte ^ 8)
        }),
        ("shard", |medium, at| {
            medium.corrupt(at + 44, |byte| byte ^ 8)
        }),
        ("entries", |medium, at| {
            put(medium, at + 48, &128u64.to_le_bytes())
        }),
        ("frame bytes", |medium, at| {
            put(medium, at + 56, &4096u64.to_le_bytes())
        }),
        ("epoch", |medium, at| {
            put(medium, at + 64, &2u32.to_le_bytes())
        }),
        ("incarnation", |medium, at| {
            put(medium, at + 68, &1u32.to_le_bytes());
        }),
        ("served", |medium, at| {
            put(medium, at + 76, &0u32.to_le_bytes());
        }),
        ("era", |medium, at| {
            put(medium, at + 72, &0u32.to_le_bytes())
        }),
    ];
    for (what, change) in fields {
        let mut medium = written();
        let newest = usize::from(counter(&medium, 1) > counter(&medium, 0));
        change(&mut medium, newest * BLOCK_BYTES);
        sign(&mut medium, newest);
        let opened = Scan::open(medium, None).map(|scan| scan.report().clone());
        assert!(
            matches!(opened, Err(LogError::Superblock { .. })),
            "{what}: {opened:?}"
        );
    }
    let mut medium = written();
    let newest = usize::from(counter(&medium, 1) > counter(&medium, 0));
    sign(&mut medium, newest);
    assert!(Scan::open(medium, Some(EXPECTED)).is_ok(), "unchanged");
}

/// A copy with an impossible value and a right checksum counts as broken, and the other copy is used.
#[test]
fn each_impossible_field_of_a_superblock_is_refused_alone() {
    let fields: &[(&str, usize, &[u8])] = &[
        ("entries", 48, &63u64.to_le_bytes()),
        ("frame bytes", 56, &4095u64.to_le_bytes()),
        ("served above incarnation", 76, &[99]),
        ("applied above durable", 80, &70u64.to_le_bytes()),
        ("durable a ring above applied", 88, &134u64.to_le_bytes()),
        ("behind the fields", 96, &[1]),
        ("the last byte", 4095, &[1]),
    ];
    for (what, at, bytes) in fields {
        for copy in 0..2 {
            let mut medium = written();
            put(&mut medium, copy * BLOCK_BYTES + at, bytes);
            sign(&mut medium, copy);
            let scan = Scan::open(medium, Some(EXPECTED)).unwrap();
            let found = Finding::Superblock {
                copy: u8::try_from(copy).unwrap(),
                state: CopyState::Broken,
            };
            assert_eq!(scan.report().findings, [found], "{what}");
        }
    }
    for copy in 0..2 {
        let mut medium = written();
        let far = u64::MAX - 64;
        put(&mut medium, copy * BLOCK_BYTES + 80, &far.to_le_bytes());
        put(&mut medium, copy * BLOCK_BYTES + 88, &far.to_le_bytes());
        sign(&mut medium, copy);
        let scan = Scan::open(medium, Some(EXPECTED)).unwrap();
        assert_eq!(
            scan.report().findings_total,
            1,
            "an order at the end of numbers"
        );
    }
}

/// The copy with the higher counter counts, whether it is copy 0 or copy 1.
#[test]
fn the_newer_superblock_is_the_one_that_counts() {
    for writes in 0..3u32 {
        let mut log = recover(Forgetful::formatted(&WIDE, 1));
        for _ in 0..8 * 4 {
            log.append(&NEW, &HEADER, b"", 0).unwrap();
        }
        log.persist_start().unwrap();
        log.persist_poll(true).unwrap();
        for write in 0..=writes {
            // Each step reclaims a quarter of the ring, so each persist writes only a superblock.
            log.reclaim(16 + u64::from(write));
            let _one_is_not_enough = log.append(&NEW, &HEADER, b"", 0);
            log.persist_start().unwrap();
            log.persist_poll(true).unwrap();
        }
        let medium = log.into_media().kill();
        let newest = usize::from(counter(&medium, 1) > counter(&medium, 0));
        let at = newest * BLOCK_BYTES + 80;
        let stated = u64::from_le_bytes(medium.bytes()[at..at + 8].try_into().unwrap());
        assert!(stated > 0);
        let scan = Scan::open(medium, Some(EXPECTED)).unwrap();
        assert_eq!(scan.report().applied_hint, stated);
    }
}

/// Entries and frames of another log with the same parameters, and of this log in another era, are ignored.
#[test]
fn entries_belong_to_one_log_and_one_era() {
    let from = written();
    let mut other = IDENTITY;
    other.log_uuid ^= 1 << 64;
    let mut medium = Forgetful::new(WIDE.image_bytes(), 2);
    pmnet_log::format(&mut medium, &other, &WIDE).unwrap();
    let mut log = {
        let scan = Scan::open(medium, None).unwrap();
        let decision = scan.decide();
        scan.repair(decision).unwrap()
    };
    log.set_epoch(3).unwrap();
    log.reset_to(69).unwrap();
    let mut medium = log.into_media().kill();
    put(&mut medium, METADATA, &from.bytes()[METADATA..FRAMES + 256]);
    let scan = Scan::open(medium, Some(EXPECTED)).unwrap();
    assert_eq!(
        (scan.report().slots_valid, scan.report().slots_invalid),
        (0, 1)
    );

    let mut log = recover(from.clone());
    log.reset_to(69).unwrap();
    let mut medium = log.into_media().kill();
    put(&mut medium, METADATA, &from.bytes()[METADATA..FRAMES + 256]);
    let scan = Scan::open(medium, Some(EXPECTED)).unwrap();
    assert_eq!(
        (scan.report().slots_valid, scan.report().slots_invalid),
        (0, 1)
    );
}

/// Two whole entries claim the same bytes. No log writes such entries, so this is damage.
#[test]
fn kept_frames_follow_each_other_as_they_are_placed() {
    let mut medium = written();
    let frame = [&HEADER[..], PAYLOAD].concat();
    let both_live = |raw: &mut [u8; 64]| raw[28] = 2;
    put(&mut medium, slot_at(71), &entry(&frame, 71, both_live));
    let scan = Scan::open(medium, Some(EXPECTED)).unwrap();
    assert_eq!(scan.report().slots_valid, 2);
    let decision = scan.decide();
    let error = scan.repair(decision).map(|_| ()).unwrap_err();
    assert!(
        matches!(&error, LogError::Damaged { orders, total: 1 } if *orders == [71]),
        "{error}"
    );
}
