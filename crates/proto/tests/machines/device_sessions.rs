//! Where a session begins and ends at the head (`docs/spec/protocol.md` §4).

use crate::support::device::{Bench, ROOM, client, config, from_client, server, update};
use crate::support::{SESSION, TOKEN, only};
use pmnet_proto::device::{DeviceConfig, Verdict};
use pmnet_proto::time::SECOND;
use pmnet_wire::{Flags, Header, Kind, raw};

/// The same OPEN again is the same session as long as nobody used it. One that comes later still, from
/// a client that begins anew with seq 1, must not find a session that is further.
#[test]
fn an_open_that_comes_again_after_its_session_was_used_makes_another_one() {
    let mut bench = Bench::head(1);
    let open = Header {
        session: 0,
        ..from_client(Kind::Open, 0)
    };
    let token = TOKEN.to_be_bytes();
    let again = only(bench.answer(client(), &open, &token));
    assert_eq!(
        (again.header.kind, again.header.session),
        (Kind::OpenReply, SESSION),
        "unused: the same"
    );
    bench.admit(&update(1), b"payload");
    let entry = bench.admit(&open, &token);
    assert_eq!((entry.session, entry.order), (3, 3));
    let first = Header {
        session: 3,
        ..update(1)
    };
    bench.admit(&first, b"payload");
    bench.admit(&update(2), b"the first one goes on");
}

/// Who looks for the head may meet the only device of a new chain that is there yet. The first session would fix the chain
/// at that length.
#[test]
fn a_chain_without_an_entry_takes_no_open_of_who_looks_for_the_head() {
    let token = TOKEN.to_be_bytes();
    let known = Header {
        session: 0,
        ..from_client(Kind::Open, 0)
    };
    let searches = Header {
        flags: Flags::SEARCHES,
        ..known
    };
    let mut bench = Bench::serving(1, 1);
    assert_eq!(bench.give(client(), &searches, &token), Verdict::Done);
    assert_eq!(bench.take(), []);
    let entry = bench.admit(&known, &token);
    assert_eq!((entry.order, entry.flags), (1, Flags::default()));
    let another = Header {
        tag: TOKEN + 2,
        ..searches
    };
    let entry = bench.admit(&another, &(TOKEN + 2).to_be_bytes());
    assert_eq!((entry.order, entry.flags), (2, Flags::default()));
}

/// The rest of a new chain may be on its way. The first entry would leave it out, and be of no use to this client.
#[test]
fn a_chain_without_an_entry_takes_no_open_of_who_wants_more_copies() {
    let token = TOKEN.to_be_bytes();
    let open = |copies| Header {
        session: 0,
        copies: raw(copies),
        ..from_client(Kind::Open, 0)
    };
    let mut bench = Bench::serving(1, 1);
    let reply = only(bench.answer(client(), &open(2), &token)).header;
    assert_eq!(
        (reply.kind, reply.session, reply.copies, reply.tag),
        (Kind::OpenReply, 0, raw(1), TOKEN)
    );
    let entry = bench.admit(&open(1), &token);
    assert_eq!(entry.order, 1);
    // Then nobody is left out by one more.
    let another = Header {
        tag: TOKEN + 2,
        ..open(2)
    };
    let entry = bench.admit(&another, &(TOKEN + 2).to_be_bytes());
    assert_eq!(entry.order, 2);
    let mut whole = Bench::serving(2, 1);
    assert_eq!(whole.admit(&open(2), &token).order, 1);
}

/// A head that has just found its session silent, and has not ended it yet.
fn bench_found_silent() -> Bench {
    let config = DeviceConfig {
        session_idle: SECOND,
        ..config(1, server())
    };
    let mut bench = Bench::head_with(1, config);
    bench.now = bench.now + 2 * SECOND;
    bench.tick();
    bench
}

/// An update came, from a pipeline that was held too late to stop it, between the head's decision to end the silent
/// session and its doing so.
#[test]
fn a_session_that_speaks_at_the_last_moment_is_not_ended() {
    let mut bench = bench_found_silent();
    assert!(bench.device.has_own_entries());
    bench.admit(&update(1), b"payload");
    assert_eq!(bench.device.poll_own_entry(bench.now, ROOM), None);
    bench.admit(&update(2), b"the session goes on");
}

/// The client's own END came between the head's decision to end the silent session and its doing so.
#[test]
fn a_session_is_ended_once() {
    let mut bench = bench_found_silent();
    bench.admit(&from_client(Kind::End, 1), b"");
    // There was no room until it had been silent for as long again.
    bench.now = bench.now + 2 * SECOND;
    assert_eq!(bench.device.poll_own_entry(bench.now, ROOM), None);
    assert_eq!(bench.device.counters().expired_sessions, 0);
    assert_eq!(bench.device.cursors().0, 2, "the OPEN and one END");
}
