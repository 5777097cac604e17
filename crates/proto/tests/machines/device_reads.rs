//! READs at the head: which updates it shows, and how fresh a store must be (`docs/spec/reads.md` §1, §2, §4, §5).

use super::support::device::{
    Bench, ask, client, config, from_client, from_hop, hop, server, update,
};
use super::support::{EPOCH, SESSION, TOKEN, only};
use pmnet_proto::device::Verdict;
use pmnet_wire::packet::{Miss as MissFields, write_hashes};
use pmnet_wire::{Flags, Header, Kind, raw};

const KEY: u64 = 7;
const OTHER: u64 = 8;
/// The token of a mark.
const MARK: u64 = TOKEN | 1;
/// The order of the first update: the session's OPEN has order 1.
const FIRST: u64 = 2;

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Hit(u64),
    Miss(u64),
    None,
}
use Answer::{Hit, Miss};

#[track_caller]
fn read(bench: &mut Bench, hashes: &[u64]) -> Answer {
    asked(bench, hashes, &ask())
}

/// Sends a READ that allows applied updates to be shown.
#[track_caller]
fn read_kept(bench: &mut Bench, hash: u64) -> Answer {
    let ask = Header {
        flags: Flags::KEPT,
        ..ask()
    };
    asked(bench, &[hash], &ask)
}

#[track_caller]
fn asked(bench: &mut Bench, hashes: &[u64], ask: &Header) -> Answer {
    match bench.give(client(), ask, &write_hashes(hashes)) {
        Verdict::Hit(to, header, ..) => {
            assert_eq!((to, header.kind, header.tag), (client(), Kind::Hit, TOKEN));
            assert_eq!((header.session, header.request.raw()), (SESSION, 5));
            Hit(header.order)
        }
        Verdict::Done => match &bench.take()[..] {
            [] => Answer::None,
            [sent] if sent.header.kind == Kind::Miss => {
                assert_eq!(
                    (sent.to, sent.header.tag, sent.header.epoch),
                    (client(), TOKEN, EPOCH)
                );
                Miss(sent.header.order)
            }
            other => panic!("neither: {other:?}"),
        },
        other => panic!("neither: {other:?}"),
    }
}

pub(super) fn changing(seq: u64, hash: u64) -> Header {
    Header {
        key_hash: raw(hash),
        ..update(seq)
    }
}

/// Admits an update of this key, and makes it durable. Returns its order.
pub(super) fn commit(bench: &mut Bench, seq: u64, hash: u64) -> u64 {
    let order = bench.admit(&changing(seq, hash), b"payload").order;
    bench.device.persisted(order);
    order
}

pub(super) fn bypass(seq: u64, id: u64, hash: u64) -> Header {
    Header {
        request: raw(id),
        key_hash: raw(hash),
        ..from_client(Kind::Bypass, seq)
    }
}

/// The server's answer to request `id`, made when A was `applied`.
pub(super) fn answered(id: u64, applied: u64) -> Header {
    Header {
        session: SESSION,
        request: raw(id),
        order: applied,
        ..from_hop(Kind::Response, 0)
    }
}

/// Opens a mark, whose OPEN is not durable yet.
pub(super) fn open_mark(bench: &mut Bench) -> u64 {
    let open = Header {
        session: 0,
        tag: MARK,
        ..from_client(Kind::Open, 0)
    };
    bench.admit(&open, &MARK.to_be_bytes()).order
}

/// Ends a mark, with a durable END.
pub(super) fn end_mark(bench: &mut Bench, mark: u64) -> u64 {
    let end = Header {
        session: mark,
        tag: MARK,
        ..from_client(Kind::End, 1)
    };
    let order = bench.admit(&end, b"").order;
    bench.device.persisted(order);
    order
}

pub(super) fn apply(bench: &mut Bench, upto: u64) {
    let applied = Header {
        order: upto,
        ..from_hop(Kind::Applied, 0)
    };
    bench.answer(server(), &applied, b"");
}

#[test]
fn an_update_is_shown_from_its_commit_until_it_is_applied() {
    let mut bench = Bench::head(1);
    assert_eq!(read(&mut bench, &[KEY]), Miss(0));
    let order = bench.admit(&changing(1, KEY), b"payload").order;
    assert_eq!(order, FIRST);
    assert_eq!(
        read(&mut bench, &[KEY]),
        Miss(1),
        "not durable yet, and so nobody's yet"
    );
    bench.device.persisted(order);
    assert_eq!(read(&mut bench, &[KEY]), Hit(order));
    assert_eq!(read(&mut bench, &[OTHER]), Miss(0));
    assert_eq!(
        read(&mut bench, &[KEY, OTHER]),
        Miss(order),
        "several keys are never shown"
    );
    assert_eq!(read(&mut bench, &[]), Miss(order), "all keys");
    apply(&mut bench, order);
    assert_eq!(read(&mut bench, &[KEY]), Miss(order));
}

#[test]
fn what_is_applied_is_shown_to_whoever_asks_for_it() {
    let mut bench = Bench::head(1);
    let order = commit(&mut bench, 1, KEY);
    let other = commit(&mut bench, 2, OTHER);
    apply(&mut bench, other);
    assert_eq!(read(&mut bench, &[KEY]), Miss(order));
    assert_eq!(read_kept(&mut bench, KEY), Hit(order));
    // After a request without an order, older updates of the request's keys are not shown. Updates of other keys still
    // are.
    bench.answer(client(), &bypass(2, 1, KEY), b"INCR");
    assert_eq!(read_kept(&mut bench, KEY), Miss(order));
    bench.answer(server(), &answered(1, other), b":1");
    assert_eq!(read_kept(&mut bench, KEY), Miss(order));
    assert_eq!(read_kept(&mut bench, OTHER), Hit(other));
    // The answer to a read also states A at its execution, but a read stops no update from being shown.
    let reading = Header {
        flags: Flags::READ_ONLY,
        ..bypass(2, 2, OTHER)
    };
    bench.answer(client(), &reading, b"GET");
    bench.answer(server(), &answered(2, other), b"$1");
    assert_eq!(read_kept(&mut bench, OTHER), Hit(other));
    // After a request of unknown keys, older updates of all keys are not shown.
    bench.answer(client(), &bypass(2, 3, 0), b"EVAL");
    bench.answer(server(), &answered(3, other), b":1");
    assert_eq!(read_kept(&mut bench, OTHER), Miss(other));
    let newer = commit(&mut bench, 3, OTHER);
    assert_eq!(read_kept(&mut bench, OTHER), Hit(newer));
}

#[test]
fn what_the_log_has_no_more_must_be_applied() {
    let mut bench = Bench::head(1);
    let order = commit(&mut bench, 1, KEY);
    let Verdict::Hit(_, hit, ..) = bench.give(client(), &ask(), &write_hashes(&[KEY])) else {
        panic!("it is shown");
    };
    let miss = bench.device.miss_instead(&hit);
    assert_eq!((miss.kind, miss.order), (Kind::Miss, order));
    assert_eq!(
        (miss.session, miss.request, miss.tag),
        (SESSION, raw(5), TOKEN)
    );
    let counters = bench.device.counters();
    assert_eq!((counters.read_hits, counters.read_misses), (0, 1));
}

#[test]
fn a_key_that_shares_a_bucket_waits_for_the_other() {
    let settings = pmnet_proto::device::DeviceConfig {
        read_buckets: 1,
        ..config(1, hop(1, 2))
    };
    let mut bench = Bench::head_with(1, settings);
    let first = commit(&mut bench, 1, KEY);
    let second = commit(&mut bench, 2, OTHER);
    assert_eq!(read(&mut bench, &[OTHER]), Hit(second));
    assert_eq!(
        (read(&mut bench, &[KEY]), first < second),
        (Miss(second), true)
    );
}

#[test]
fn an_update_of_unknown_keys_may_be_of_any() {
    let mut bench = Bench::head(1);
    commit(&mut bench, 1, KEY);
    let unknown = commit(&mut bench, 2, 0);
    assert_eq!(read(&mut bench, &[KEY]), Miss(unknown));
    assert_eq!(read(&mut bench, &[OTHER]), Miss(unknown));
    let newer = commit(&mut bench, 3, KEY);
    assert_eq!(read(&mut bench, &[KEY]), Hit(newer));
}

#[test]
fn a_part_of_an_update_is_not_shown() {
    let mut bench = Bench::head(1);
    let part = Header {
        fragment_count: 2,
        ..changing(1, KEY)
    };
    let order = bench.admit(&part, b"payload").order;
    bench.device.persisted(order);
    assert_eq!(read(&mut bench, &[KEY]), Miss(order));
}

#[test]
fn what_has_no_order_yet_closes_its_bucket_until_it_is_answered() {
    let mut bench = Bench::head(1);
    let old = commit(&mut bench, 1, KEY);
    let other = commit(&mut bench, 2, OTHER);
    bench.answer(client(), &bypass(2, 1, KEY), b"INCR");
    assert_eq!(read(&mut bench, &[KEY]), Miss(old));
    assert_eq!(read(&mut bench, &[OTHER]), Hit(other));
    let progress = Header {
        flags: Flags::PROGRESS,
        ..answered(1, 0)
    };
    bench.answer(server(), &progress, b"");
    assert_eq!(read(&mut bench, &[KEY]), Miss(old), "that is no answer");
    bench.answer(server(), &answered(1, old), b":1");
    assert_eq!(
        read(&mut bench, &[KEY]),
        Miss(old),
        "it was executed behind that one"
    );
    assert_eq!(
        read(&mut bench, &[OTHER]),
        Hit(other),
        "and before this one"
    );
    // A late copy of an answered request is not executed again, so it closes nothing.
    bench.answer(client(), &bypass(2, 1, OTHER), b"INCR");
    assert_eq!(read(&mut bench, &[OTHER]), Hit(other));
    bench.answer(
        client(),
        &Header {
            flags: Flags::READ_ONLY,
            ..bypass(2, 2, OTHER)
        },
        b"GET",
    );
    assert_eq!(
        read(&mut bench, &[OTHER]),
        Hit(other),
        "a read changes nothing"
    );
}

#[test]
fn what_may_change_any_key_closes_all_and_all_must_be_applied() {
    for hash in [0, KEY] {
        let mut bench = Bench::head(1);
        let last = commit(&mut bench, 1, OTHER);
        bench.answer(client(), &bypass(1, 1, hash), b"EVAL");
        // The session has a second request with another key. Together its requests count as requests that may change
        // any key.
        bench.answer(client(), &bypass(1, 2, KEY + 10), b"EVAL");
        assert_eq!(read(&mut bench, &[OTHER]), Miss(last));
        assert_eq!(read(&mut bench, &[KEY + 20]), Miss(last));
        bench.answer(server(), &answered(1, 0), b":1");
        assert_eq!(read(&mut bench, &[OTHER]), Miss(last), "one is left");
        bench.answer(server(), &answered(2, 0), b":1");
        assert_eq!(read(&mut bench, &[OTHER]), Hit(last));
        assert_eq!(read(&mut bench, &[KEY + 20]), Miss(0));
    }
}

/// A bypass is unanswered when its caller gives up. It is executed before the next entry of its session is admitted, or
/// never. So the order of this entry stands for the bypass.
#[test]
fn what_was_given_up_takes_the_place_of_its_sessions_next_entry() {
    for (hash, others) in [(KEY, 0), (0, 3)] {
        let mut bench = Bench::head(1);
        commit(&mut bench, 1, KEY);
        bench.answer(client(), &bypass(1, 1, hash), b"INCR");
        let next = commit(&mut bench, 2, OTHER);
        assert_eq!(next, 3);
        assert_eq!(read(&mut bench, &[KEY]), Miss(next));
        assert_eq!(read(&mut bench, &[KEY + 1000]), Miss(others));
        // If the keys of the bypass are unknown, they may include the key of the session's next entry.
        let its_own = if hash == 0 { Miss(next) } else { Hit(next) };
        assert_eq!(read(&mut bench, &[OTHER]), its_own);
    }
}

#[test]
fn a_fallback_closes_and_its_late_copy_is_not_shown() {
    let mut bench = Bench::head(1);
    let fallback = Header {
        flags: Flags::FALLBACK,
        ..bypass(1, 1, KEY)
    };
    bench.answer(client(), &fallback, b"SET");
    assert_eq!(read(&mut bench, &[KEY]), Miss(0));
    let copy = commit(&mut bench, 1, KEY);
    assert_eq!(read(&mut bench, &[KEY]), Miss(copy));
    let confirm = Header {
        seq: 1,
        flags: Flags::FALLBACK,
        ..answered(1, 1)
    };
    bench.answer(server(), &confirm, &[]);
    assert_eq!(
        read(&mut bench, &[KEY]),
        Miss(copy),
        "nobody knows which of the two it was"
    );
    let next = commit(&mut bench, 2, KEY);
    assert_eq!(read(&mut bench, &[KEY]), Hit(next));
}

#[test]
fn a_mark_closes_all_until_its_end_is_applied() {
    let mut bench = Bench::head(1);
    let old = commit(&mut bench, 1, KEY);
    let mark = open_mark(&mut bench);
    assert_eq!(read(&mut bench, &[KEY]), Miss(old));
    bench.device.persisted(mark);
    assert_eq!(
        read(&mut bench, &[OTHER]),
        Miss(mark),
        "everything committed"
    );
    let end = end_mark(&mut bench, mark);
    let newer = commit(&mut bench, 2, KEY);
    assert_eq!(
        read(&mut bench, &[KEY]),
        Miss(newer),
        "it is not applied yet"
    );
    apply(&mut bench, end);
    assert_eq!(read(&mut bench, &[KEY]), Hit(newer));
    assert_eq!(read(&mut bench, &[OTHER]), Miss(end));
    // Operations that were passed through may have taken effect after every entry that precedes the END in the log.
    apply(&mut bench, newer);
    assert_eq!(read_kept(&mut bench, KEY), Hit(newer));
}

#[test]
fn what_is_older_than_a_marks_end_is_not_shown_any_more() {
    let mut bench = Bench::head(1);
    let old = commit(&mut bench, 1, KEY);
    let mark = open_mark(&mut bench);
    let end = end_mark(&mut bench, mark);
    apply(&mut bench, old);
    assert_eq!(read_kept(&mut bench, KEY), Miss(end), "it is open");
    apply(&mut bench, end);
    assert_eq!(read_kept(&mut bench, KEY), Miss(end));
}

#[test]
fn who_may_not_ask_or_asks_nonsense_gets_no_answer() {
    let mut bench = Bench::head(1);
    let hashes = write_hashes(&[KEY]);
    for (header, kind) in [
        (
            Header {
                session: 99,
                ..ask()
            },
            Kind::Nack,
        ),
        (
            Header {
                tag: TOKEN + 2,
                ..ask()
            },
            Kind::Nack,
        ),
    ] {
        assert_eq!(
            only(bench.answer(client(), &header, &hashes)).header.kind,
            kind
        );
    }
    for payload in [&[1u8; 7][..], &[0; 8], &[1; 72]] {
        assert_eq!(bench.answer(client(), &ask(), payload), []);
    }
    assert_eq!(bench.answer(server(), &ask(), &hashes), []);
    let mut follower = Bench::serving(2, 2);
    assert_eq!(follower.answer(client(), &ask(), &hashes), []);
    let counters = bench.device.counters();
    assert_eq!(
        (
            counters.unexpected,
            counters.wrong_token,
            counters.not_ready
        ),
        (3, 1, 1)
    );
    let settings = pmnet_proto::device::DeviceConfig {
        read_buckets: 0,
        ..config(1, hop(1, 2))
    };
    let mut without = Bench::head_with(1, settings);
    assert_eq!(read(&mut without, &[KEY]), Answer::None);
}

#[test]
fn the_version_is_another_one_when_something_is_not_outstanding_any_more() {
    let mut bench = Bench::head(1);
    let mut versions = Vec::new();
    // Returns whether the version has changed, and checks that no earlier version comes back.
    let mut changed = |bench: &mut Bench| {
        let sent = bench.answer(client(), &ask(), &write_hashes(&[OTHER]));
        let miss = only(sent).header;
        assert_eq!(miss.kind, Kind::Miss);
        let version = MissFields::read(&miss).version;
        let newest = versions.last().copied();
        if newest != Some(version) {
            assert!(!versions.contains(&version), "{version} again");
            versions.push(version);
        }
        newest != Some(version)
    };
    changed(&mut bench);
    let order = commit(&mut bench, 1, KEY);
    apply(&mut bench, order);
    assert!(!changed(&mut bench), "an update has an order");
    for (id, hash) in [(1, KEY), (2, 0)] {
        bench.answer(client(), &bypass(1, id, hash), b"");
        assert!(!changed(&mut bench), "it is outstanding");
        bench.answer(server(), &answered(id, order), b"");
        assert!(changed(&mut bench), "it is answered");
        bench.answer(server(), &answered(id, order), b"");
        assert!(!changed(&mut bench), "a copy of the answer");
    }
    bench.answer(client(), &bypass(1, 3, 0), b"");
    commit(&mut bench, 2, KEY);
    assert!(changed(&mut bench), "it has been given up");
}
