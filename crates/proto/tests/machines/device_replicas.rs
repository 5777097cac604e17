//! READs of clients that may read from a replica of the store (`docs/spec/reads.md` §11).

use super::device_reads::{answered, apply, bypass, changing, commit, end_mark, open_mark};
use super::support::device::{Bench, ask, client, server};
use pmnet_wire::packet::{Miss, write_hashes};
use pmnet_wire::{Flags, Header, Kind};

const KEY: u64 = 7;
const OTHER: u64 = 8;
/// A key that no update writes.
const THIRD: u64 = 9;

/// The order that a replica must have applied (0: no replica may be read), and whether the head has already admitted
/// this order.
#[track_caller]
fn replicas(bench: &mut Bench, hashes: &[u64]) -> (u64, bool) {
    let ask = Header {
        flags: Flags::REPLICAS,
        ..ask()
    };
    let sent = bench.answer(client(), &ask, &write_hashes(hashes));
    assert_eq!(sent.len(), 1, "a MISS");
    assert_eq!(sent[0].header.kind, Kind::Miss);
    let miss = Miss::read(&sent[0].header);
    (miss.replicas, !miss.behind)
}

/// Returns a head that has admitted an entry since its recover-reply, and the order of this entry. If a replica has
/// this order, it has the effects of all requests that were executed before the recover-reply.
fn head() -> (Bench, u64) {
    let mut bench = Bench::head(1);
    let order = commit(&mut bench, 1, OTHER);
    (bench, order)
}

#[test]
fn only_who_asks_is_told() {
    let (mut bench, order) = head();
    let sent = bench.answer(client(), &ask(), &write_hashes(&[KEY]));
    assert_eq!(Miss::read(&sent[0].header).replicas, 0);
    assert_ne!(replicas(&mut bench, &[KEY]), (0, true));
    assert!(replicas(&mut bench, &[KEY]).0 <= order);
}

#[test]
fn a_replica_must_have_what_is_not_known_to_be_committed_yet() {
    let (mut bench, _) = head();
    let before = replicas(&mut bench, &[THIRD]);
    let order = bench.admit(&changing(2, KEY), b"payload").order;
    assert_eq!(replicas(&mut bench, &[KEY]), (order, true));
    assert_eq!(replicas(&mut bench, &[KEY, OTHER]), (order, true));
    assert_eq!(replicas(&mut bench, &[]), (order, true), "all keys");
    assert_eq!(replicas(&mut bench, &[THIRD]), before, "another key");
    let unknown = bench.admit(&changing(3, 0), b"payload").order;
    assert_eq!(replicas(&mut bench, &[KEY]), (unknown, true));
}

#[test]
fn what_was_answered_before_the_head_began_is_behind_the_next_entry() {
    let mut bench = Bench::head(1);
    let (need, admitted) = replicas(&mut bench, &[KEY]);
    let order = commit(&mut bench, 1, OTHER);
    assert!(admitted || need == order, "{need}, {order}");
    assert_eq!(replicas(&mut bench, &[KEY]), (need, true));
}

#[test]
fn what_has_no_order_closes_its_keys_until_the_next_entry_is_applied() {
    let (mut bench, other) = head();
    let before = replicas(&mut bench, &[THIRD]);
    bench.answer(client(), &bypass(1, 1, KEY), b"INCR");
    assert_eq!(replicas(&mut bench, &[KEY]), (0, true), "outstanding");
    assert_eq!(replicas(&mut bench, &[KEY, OTHER]), (0, true));
    assert_eq!(replicas(&mut bench, &[]), (0, true));
    assert_eq!(replicas(&mut bench, &[THIRD]), before, "another key");
    bench.answer(server(), &answered(1, other), b":1");
    assert_eq!(replicas(&mut bench, &[KEY]), (other + 1, false));
    assert_eq!(replicas(&mut bench, &[]), (other + 1, false));
    assert_eq!(replicas(&mut bench, &[THIRD]), before);
    let next = commit(&mut bench, 2, OTHER);
    assert_eq!(next, other + 1);
    assert_eq!(replicas(&mut bench, &[KEY]), (next, true));
    // A request of unknown keys affects all keys.
    bench.answer(client(), &bypass(2, 2, 0), b"EVAL");
    assert_eq!(replicas(&mut bench, &[KEY]), (0, true));
    bench.answer(server(), &answered(2, next), b":1");
    assert_eq!(replicas(&mut bench, &[THIRD]), (next + 1, false));
    // A read does not raise the order that a replica must have applied.
    let last = commit(&mut bench, 3, OTHER);
    let reading = Header {
        flags: Flags::READ_ONLY,
        ..bypass(3, 3, KEY)
    };
    bench.answer(client(), &reading, b"GET");
    bench.answer(server(), &answered(3, last), b"$1");
    assert_eq!(replicas(&mut bench, &[KEY]), (last, true));
}

#[test]
fn what_was_given_up_is_before_its_sessions_next_entry() {
    let (mut bench, _) = head();
    bench.answer(client(), &bypass(1, 1, KEY), b"INCR");
    let next = commit(&mut bench, 2, OTHER);
    assert_eq!(replicas(&mut bench, &[KEY]), (next, true));
}

#[test]
fn a_fallback_closes_its_keys_too() {
    let (mut bench, last) = head();
    let fallback = Header {
        flags: Flags::FALLBACK,
        ..bypass(2, 2, KEY)
    };
    bench.answer(client(), &fallback, b"SET");
    assert_eq!(replicas(&mut bench, &[KEY]), (0, true));
    let confirm = Header {
        seq: 2,
        flags: Flags::FALLBACK,
        ..answered(2, 1)
    };
    bench.answer(server(), &confirm, &[]);
    assert_eq!(replicas(&mut bench, &[KEY]), (last + 1, false));
}

#[test]
fn a_mark_closes_all_keys_until_its_end_is_applied() {
    let (mut bench, _) = head();
    let mark = open_mark(&mut bench);
    bench.device.persisted(mark);
    assert_eq!(replicas(&mut bench, &[KEY]), (0, true));
    let end = end_mark(&mut bench, mark);
    assert_eq!(replicas(&mut bench, &[KEY]), (0, true));
    apply(&mut bench, end);
    assert_eq!(replicas(&mut bench, &[KEY]), (end, true));
}
