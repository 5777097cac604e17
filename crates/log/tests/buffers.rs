//! Packet buffers as frame space (`docs/spec/ordered-log.md` §11). Crashes are tested in `crash.rs` and `enumerate`,
//! which run every history with packet buffers, too.

mod support;

use pmnet_log::{
    Decision, FORMAT_VERSION, Full, Log, LogError, NewEntry, Parameters, Scan, parameters,
};
use support::{EXPECTED, Forgetful, recover};

const BUFFERS: Parameters = Parameters::buffers(64, 32 * 2048, 2048);
const LIVE_MAX: u64 = 24;
const NEW: NewEntry = NewEntry {
    session: 3,
    seq: 5,
    kind: 1,
    fragment_index: 0,
    fragment_count: 1,
};

fn log() -> Log<Forgetful> {
    recover(Forgetful::formatted(&BUFFERS, 1))
}

fn at(number: u32, offset: usize) -> usize {
    usize::try_from(number).unwrap() * 2048 + offset
}

/// Receives a packet into this buffer, and appends it without a copy.
fn came(log: &mut Log<Forgetful>, number: u32, offset: usize, packet: &[u8]) -> Result<u64, Full> {
    let start = at(number, offset);
    log.deposit(start, packet);
    let payload = &packet[8..];
    log.append_in_place(
        &NEW,
        b"HEADER..",
        &(start..start + packet.len()),
        crc32c::crc32c(payload),
    )
}

fn persist(log: &mut Log<Forgetful>) {
    log.persist_start().unwrap();
    log.persist_poll(true).unwrap();
}

#[test]
fn the_payload_stays_where_the_network_put_it() {
    let mut log = log();
    let number = log.lend_buffer().unwrap();
    let order = came(&mut log, number, 298, b"what camthe payload!").unwrap();
    let start = BUFFERS.frame_space().start + at(number, 298);
    assert_eq!(log.frame_range(order), Some(start..start + 20));
    assert_eq!(log.frame(order), Some(&b"HEADER..the payload!"[..]));
    persist(&mut log);
    let lines = start / 64 * 64..(start + 20).next_multiple_of(64);
    assert!(
        log.medium().last_ranges.contains(&lines),
        "its lines and no others"
    );
    let log = recover(log.into_media().crash());
    assert_eq!(log.frame_range(order), Some(start..start + 20));
    assert_eq!(log.frame(order), Some(&b"HEADER..the payload!"[..]));
}

#[test]
fn a_full_log_leaves_buffers_to_receive_into_and_gives_all_of_them_back() {
    let mut log = log();
    let mut lent = Vec::new();
    while let Some(number) = log.lend_buffer() {
        lent.push(number);
    }
    assert_eq!(lent.len(), 28, "a few stay for what is copied");
    for (count, number) in (1u64..).zip(&lent) {
        let appended = came(&mut log, *number, 0, &[7; 100]);
        assert_eq!(appended.is_ok(), count <= LIVE_MAX, "{count}");
        assert_eq!(appended.err(), (count > LIVE_MAX).then_some(Full::Frames));
    }
    assert_eq!((log.room().entries, log.room_in_place().entries), (0, 0));
    assert_eq!(log.occupancy(), 100);
    assert_eq!(log.append(&NEW, b"header", b"", 0), Err(Full::Frames));
    persist(&mut log);
    log.reclaim(log.durable());
    // Two witnesses must state the reclaim, and each persist writes one of them.
    persist(&mut log);
    assert_eq!(log.poll_released(), None);
    persist(&mut log);
    let mut released = Vec::new();
    while let Some(number) = log.poll_released() {
        released.push(number);
    }
    assert_eq!(released, lent[..24], "in the order of the log");
    for number in lent {
        log.give_back_buffer(number);
    }
    assert_eq!(log.room().entries, LIVE_MAX);
    assert_eq!(log.occupancy(), 0);
}

/// A device that joins a chain resets its log, and then receives again into the buffers that the log held.
#[test]
fn a_reset_gives_all_buffers_back() {
    let mut log = log();
    let lent: Vec<u32> = (0..3).map(|_| log.lend_buffer().unwrap()).collect();
    for number in &lent {
        came(&mut log, *number, 0, &[7; 100]).unwrap();
    }
    persist(&mut log);
    log.reset_to(100).unwrap();
    let released: Vec<u32> = std::iter::from_fn(|| log.poll_released()).collect();
    assert_eq!(released, lent);
    assert_eq!(log.room_in_place().entries, LIVE_MAX);
}

#[test]
fn what_is_too_long_for_a_buffer_is_refused() {
    let mut log = log();
    assert_eq!(log.room().frame_bytes, 1920);
    let payload = [1; 1920];
    let crc = |bytes| crc32c::crc32c(bytes);
    assert_eq!(
        log.append(&NEW, b"h", &payload, crc(&payload)),
        Err(Full::TooLarge)
    );
    let most = &payload[1..];
    assert_eq!(log.append(&NEW, b"h", most, crc(most)), Ok(1));
}

#[test]
#[should_panic(expected = "a lent buffer")]
fn a_packet_that_is_not_in_a_lent_buffer_is_a_fault_of_ours() {
    let mut log = log();
    let number = log.lend_buffer().unwrap();
    log.deposit(at(number, 2000), &[1; 100]);
}

/// Two whole entries that claim one buffer. No run of a log leaves such an image.
#[test]
fn a_buffer_that_two_entries_claim_is_damage() {
    let with = |first: &[u8], in_place: u32| {
        let mut log = log();
        if !first.is_empty() {
            log.append(&NEW, b"HEADER..", first, crc32c::crc32c(first))
                .unwrap();
        }
        let number = loop {
            let number = log.lend_buffer().unwrap();
            if number == in_place {
                break number;
            }
        };
        came(&mut log, number, 0, &[7; 100]).unwrap();
        persist(&mut log);
        log.into_media()
    };
    // Buffer 5 has the same frame in both logs: as order 1 in one log, as order 2 in the other.
    let (one, two) = (with(b"", 5), with(b"another", 5));
    let slot = |order: usize| 8192 + order * 64..8192 + order * 64 + 64;
    let mut both = two;
    for (place, byte) in slot(1).zip(&pmnet_log::Media::bytes(&one)[slot(1)]) {
        both.corrupt(place, |_| *byte);
    }
    let scan = Scan::open(both, Some(EXPECTED)).unwrap();
    let decision = scan.decide();
    assert!(matches!(decision, Decision::Keep { tail: 2, .. }));
    match scan.repair(decision) {
        Err(LogError::Damaged { orders, total: 1 }) => assert_eq!(orders, [2]),
        other => panic!("{:?}", other.map(|log| log.last())),
    }
}

#[test]
fn the_superblock_says_what_kind_of_frame_space_it_is() {
    let image = log().into_media();
    let bytes = pmnet_log::Media::bytes(&image);
    assert_eq!(bytes[8..12], FORMAT_VERSION.to_le_bytes());
    assert_eq!(bytes[96..100], 2048_u32.to_le_bytes());
    assert_eq!(parameters(bytes).unwrap(), BUFFERS);
    for wrong in [
        Parameters::buffers(64, 32 * 2048, 1024),
        Parameters::buffers(64, 32 * 2048, 0),
        Parameters::buffers(64, 15 * 2048, 2048),
        Parameters::buffers(64, 8192, 2048),
    ] {
        assert!(wrong.validate().is_err(), "{wrong:?}");
    }
}
