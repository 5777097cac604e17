//! Records between hops: round trips, and the refusal of every wrong length.

use pmnet_wire::record::{
    CHAIN_MAX, DurableRow, KEYED_ROW_BYTES, KEYED_ROWS_PER_PART, MEMBER_BYTES, Member,
    RecoverReply, SESSION_ROW_BYTES, SESSION_ROWS_MAX, SESSION_ROWS_PER_PART, SessionRow,
    read_durable, read_path, shard_size, write_durable, write_padded_path, write_path,
};
use pmnet_wire::{FRAGMENT_BYTES, FRAGMENT_BYTES_MIN, FragmentSize, FrontId};
use proptest::prelude::*;

prop_compose! {
    fn member()(
        device: u32, incarnation: u32, log_uuid: u128, tail: u64, applied: u64, flags: u32,
        word_epoch: u32, served: u32, size: u64,
    ) -> Member {
        let size = FragmentSize::from_wire(size % 1400);
        Member { device, incarnation, log_uuid, tail, applied, flags, word_epoch, served, size }
    }
}

prop_compose! {
    fn durable_row()(device: u32, incarnation: u32, order: u64) -> DurableRow {
        DurableRow { device, incarnation, order }
    }
}

prop_compose! {
    fn session_row()(session: u64, last_seq: u64, token: u64, front: u64, keyed: bool) -> SessionRow {
        let front = FrontId::new(front).filter(|_| keyed);
        SessionRow { session, last_seq, token, front }
    }
}

prop_compose! {
    fn reply()(
        shard_token: u64,
        members in prop::collection::vec(member(), 0..=CHAIN_MAX),
        sessions in prop::collection::vec(session_row(), 0..=KEYED_ROWS_PER_PART),
    ) -> RecoverReply {
        RecoverReply { shard_token, members, sessions }
    }
}

proptest! {
    #[test]
    fn durable_rows_come_back(rows in prop::collection::vec(durable_row(), 1..=CHAIN_MAX)) {
        let bytes = write_durable(&rows);
        for cut in (0..bytes.len()).filter(|cut| !cut.is_multiple_of(16)) {
            prop_assert_eq!(read_durable(&bytes[..cut]), None);
        }
        prop_assert_eq!(read_durable(&bytes), Some(rows));
    }

    #[test]
    fn a_path_comes_back(path in prop::collection::vec(member(), 1..=CHAIN_MAX)) {
        let bytes = write_path(&path);
        prop_assert_eq!(bytes.len(), FRAGMENT_BYTES_MIN);
        prop_assert_eq!(read_path(&bytes[..bytes.len() - 1]), None);
        prop_assert_eq!(read_path(&bytes), Some(path));
    }

    #[test]
    fn a_reply_comes_back(reply in reply()) {
        let bytes = reply.write();
        prop_assert!(bytes.len() <= FRAGMENT_BYTES_MIN, "a part fits one packet, on every path");
        for cut in 0..bytes.len() {
            prop_assert_eq!(RecoverReply::read(&bytes[..cut]), None);
        }
        prop_assert_eq!(RecoverReply::read(&[&bytes[..], &[0]].concat()), None);
        prop_assert_eq!(RecoverReply::read(&bytes), Some(reply));
    }

    #[test]
    fn any_bytes_are_judged_without_a_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..FRAGMENT_BYTES + 9),
        full: bool,
    ) {
        if full {
            bytes.resize(FRAGMENT_BYTES, 0);
        }
        let _ = (read_durable(&bytes), read_path(&bytes), RecoverReply::read(&bytes));
    }

    /// Counts far above the bounds are refused, with any bytes after them.
    #[test]
    fn counts_that_lie_are_refused(members in 9u32.., sessions: u32, rest in 0usize..1000) {
        let mut bytes = 7u64.to_be_bytes().to_vec();
        bytes.extend_from_slice(&members.to_be_bytes());
        bytes.extend_from_slice(&sessions.to_be_bytes());
        bytes.resize(16 + rest, 0);
        prop_assert_eq!(RecoverReply::read(&bytes), None);
        let mut path = members.to_be_bytes().to_vec();
        path.resize(FRAGMENT_BYTES, 0);
        prop_assert_eq!(read_path(&path), None);
    }
}

#[test]
fn a_full_part_fills_the_packet() {
    let used = 16 + CHAIN_MAX * MEMBER_BYTES + SESSION_ROWS_PER_PART * SESSION_ROW_BYTES;
    assert!(used <= FRAGMENT_BYTES_MIN && used + SESSION_ROW_BYTES > FRAGMENT_BYTES_MIN);
    let used = 16 + CHAIN_MAX * MEMBER_BYTES + KEYED_ROWS_PER_PART * KEYED_ROW_BYTES;
    assert!(used <= FRAGMENT_BYTES_MIN && used + KEYED_ROW_BYTES > FRAGMENT_BYTES_MIN);
    assert_eq!((SESSION_ROWS_PER_PART, SESSION_ROWS_MAX), (28, 36));
}

#[test]
fn flags_are_those_of_the_specification() {
    let said = [
        Member::SHRINK,
        Member::DECLARE_LOSS,
        Member::SERVING,
        Member::JOIN,
    ];
    assert_eq!(said, [1, 2, 4, 8]);
    assert_eq!(Member::JOINED, 16);
}

#[test]
fn what_has_more_or_fewer_rows_than_may_be_is_refused() {
    let row = DurableRow {
        device: 1,
        incarnation: 2,
        order: 3,
    };
    assert_eq!(read_durable(&write_durable(&[])), None);
    assert!(read_durable(&write_durable(&[row; CHAIN_MAX])).is_some());
    assert_eq!(read_durable(&write_durable(&[row; CHAIN_MAX + 1])), None);
    assert_eq!(read_path(&write_path(&[])), None);
    let session = SessionRow {
        session: 1,
        last_seq: 2,
        token: 3,
        front: None,
    };
    for (more, good) in [(0, true), (1, false)] {
        let reply = RecoverReply {
            shard_token: 7,
            members: Vec::new(),
            sessions: vec![session; SESSION_ROWS_MAX + more],
        };
        assert_eq!(RecoverReply::read(&reply.write()).is_some(), good);
    }
}

/// A sender of an earlier version pads every path to the longest packet.
#[test]
fn a_path_may_be_padded_to_any_length_that_a_packet_has() {
    let path = write_path(&[]);
    for bytes in [0, 456, 1143, 1345] {
        assert_eq!(read_path(&vec![0; bytes]), None);
    }
    assert_eq!(path.len(), 1144);
    for bytes in (FRAGMENT_BYTES_MIN..=FRAGMENT_BYTES).step_by(8) {
        let size = FragmentSize::from_wire(u64::try_from(bytes).unwrap());
        let path = write_padded_path(&[member_of(FragmentSize::MIN)], size);
        assert_eq!(path.len(), bytes);
        assert_eq!(read_path(&path).map(|path| path.len()), Some(1));
    }
}

#[test]
fn the_size_of_a_shard_is_that_of_its_narrowest_hop() {
    let sizes = [1344, 1280, 1144, 1328].map(FragmentSize::from_wire);
    let members = sizes.map(member_of);
    let least = |count: usize| shard_size(&members[..count]).bytes();
    assert_eq!([0, 1, 2, 3, 4].map(least), [1344, 1344, 1280, 1144, 1144]);
}

fn member_of(size: FragmentSize) -> Member {
    Member {
        device: 1,
        incarnation: 2,
        log_uuid: 3,
        tail: 4,
        applied: 5,
        flags: 6,
        word_epoch: 7,
        served: 8,
        size,
    }
}

/// The specification bounds the length of a path: the writer drops members beyond the bound.
#[test]
fn a_path_is_written_up_to_the_longest_chain() {
    let member = member_of(FragmentSize::MAX);
    let read = read_path(&write_path(&[member; CHAIN_MAX + 1])).expect("a path");
    assert_eq!(read.len(), CHAIN_MAX);
}
