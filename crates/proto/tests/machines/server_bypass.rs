//! Bypasses at the server: executed after their barrier, at most once, and answered as often as the client sends them
//! (`docs/spec/protocol.md` §2 rule 8, §4 "Fallback").

use crate::support::server::{Bench, config};
use crate::support::{EPOCH, SESSION, SHARD, Sent, kinds, only};
use bytes::Bytes;
use pmnet_proto::server::{ServerConfig, Work};
use pmnet_proto::time::MILLISECOND;
use pmnet_wire::packet::TimeLeft;
use pmnet_wire::{FRAGMENT_BYTES, Flags, Header, Kind, REPLY_BYTES_MAX, raw};

/// A bypass that changes state, of a session whose last seq is `seq`.
fn bypass(barrier: u64, seq: u64, request: u64) -> Header {
    Header {
        shard: SHARD,
        epoch: EPOCH,
        device: 1,
        incarnation: 1,
        session: SESSION,
        order: barrier,
        seq,
        request: raw(request),
        ..Header::new(Kind::Bypass)
    }
}

fn read(barrier: u64, seq: u64, request: u64) -> Header {
    Header {
        flags: Flags::READ_ONLY,
        ..bypass(barrier, seq, request)
    }
}

fn fallback(barrier: u64, first: u64, last: u64) -> Header {
    Header {
        flags: Flags::FALLBACK,
        ..bypass(barrier, last, first)
    }
}

/// Gives the packet to the server, stamped by the head.
#[track_caller]
fn give(bench: &mut Bench, header: &Header, payload: &[u8]) -> Vec<Sent> {
    bench.give(
        &Header {
            tag: bench.token,
            ..*header
        },
        payload,
    )
}

/// Gives the packet to the server, and returns its answers after all work is done.
#[track_caller]
fn ask(bench: &mut Bench, header: &Header, payload: &[u8]) -> Vec<Sent> {
    let mut sent = give(bench, header, payload);
    sent.extend(bench.work());
    sent.retain(|s| s.header.kind != Kind::Applied);
    sent
}

#[test]
fn a_bypass_waits_for_its_barrier() {
    let mut bench = Bench::new();
    assert_eq!(ask(&mut bench, &read(3, 2, 1), b"GET"), []);
    bench.update(2, 1);
    bench.work();
    assert!(bench.store.executed.is_empty(), "order 3 is missing");
    bench.update(3, 2);
    let sent = bench.work();
    let reply = only(
        sent.into_iter()
            .filter(|s| s.header.kind == Kind::Response)
            .collect(),
    );
    assert_eq!(
        (reply.header.session, reply.header.request.raw()),
        (SESSION, 1)
    );
    assert_eq!(reply.payload, b":2\r\n", "it saw both updates");
}

/// Redis answers WAITAOF only once a second, and ten updates arrive in each second. Regression: a command that a client
/// repeated waited for the barrier of its newest copy, and so was never executed.
#[test]
fn who_asks_again_while_updates_come_does_not_wait_for_those() {
    let mut bench = Bench::new();
    bench.update(2, 1);
    assert_eq!(give(&mut bench, &read(2, 1, 1), b"GET"), []);
    assert_eq!(give(&mut bench, &read(3, 1, 1), b"GET"), []);
    let sent = bench.work();
    let replies = sent.iter().filter(|s| s.header.kind == Kind::Response);
    assert_eq!(replies.count(), 1, "order 3 was never given to it");
    // The copies of a packet may arrive in any order.
    assert_eq!(give(&mut bench, &bypass(9, 2, 2), b"INCR"), []);
    assert_eq!(give(&mut bench, &bypass(3, 2, 2), b"INCR"), []);
    bench.update(3, 2);
    let sent = bench.work();
    let replies = sent.iter().filter(|s| s.header.kind == Kind::Response);
    assert_eq!(replies.count(), 1);
}

#[test]
fn a_bypass_that_changes_state_is_executed_once() {
    let mut bench = Bench::new();
    let first = only(ask(&mut bench, &bypass(1, 0, 1), b"INCR"));
    for _ in 0..3 {
        assert_eq!(only(ask(&mut bench, &bypass(1, 0, 1), b"INCR")), first);
    }
    assert_eq!(bench.server.counters().answered_again, 3);
    // The server dies after the store has executed the request. After the restart the reply is the same.
    let mut bench = bench.restarted();
    assert_eq!(only(ask(&mut bench, &bypass(1, 0, 1), b"INCR")), first);
    assert_eq!(bench.store.executed.len(), 1);
    only(ask(&mut bench, &bypass(1, 0, 2), b"INCR"));
    assert_eq!(
        ask(&mut bench, &bypass(1, 0, 1), b"INCR"),
        [],
        "lower: dropped"
    );
    let mut bench = bench.restarted();
    assert_eq!(ask(&mut bench, &bypass(1, 0, 1), b"INCR"), []);
    assert_eq!(bench.store.executed.len(), 2);
}

#[test]
fn a_read_may_be_executed_again() {
    let mut bench = Bench::new();
    only(ask(&mut bench, &read(1, 0, 1), b"GET"));
    only(ask(&mut bench, &read(1, 0, 1), b"GET"));
    assert_eq!(
        (bench.store.executed.len(), bench.store.count("reply/")),
        (2, 0)
    );
}

#[test]
fn a_retry_replaces_the_copy_that_waits() {
    let mut bench = Bench::new();
    ask(&mut bench, &bypass(9, 0, 1), b"INCR");
    // A head of a later epoch stamps a barrier that can be reached.
    assert_eq!(
        kinds(&ask(&mut bench, &bypass(1, 0, 1), b"INCR")),
        [Kind::Response]
    );
    // The next request of the session replaces the previous request, for which no caller waits any more.
    ask(&mut bench, &bypass(9, 0, 2), b"OLD");
    only(ask(&mut bench, &bypass(1, 0, 3), b"NEW"));
    assert_eq!(
        ask(&mut bench, &bypass(1, 0, 2), b"OLD"),
        [],
        "and is not replaced by it"
    );
    assert_eq!(bench.store.executed, [&b"INCR"[..], b"NEW"]);
}

#[test]
fn a_bypass_that_its_session_has_overtaken_is_dropped() {
    let mut bench = Bench::new();
    // Request 1 was sent after seq 0, and its caller gave up; then seq 1 was applied. If request 1 were executed now,
    // it would take effect after a later update of its session.
    bench.update(2, 1);
    bench.work();
    assert_eq!(ask(&mut bench, &bypass(1, 0, 1), b"INCR"), []);
    assert_eq!(
        (bench.store.executed.len(), bench.server.counters().dropped),
        (0, 1)
    );
    // Also if the update is still in the queue when the request arrives, the request is not executed.
    give(&mut bench, &bypass(3, 1, 2), b"INCR");
    bench.update(3, 2);
    bench.work();
    assert!(bench.store.executed.is_empty());
    only(ask(&mut bench, &bypass(3, 2, 3), b"INCR"));
}

/// The head that stamped the bypass was lost before an earlier update of the session was durable.
#[test]
fn a_bypass_whose_own_updates_were_lost_is_sent_back() {
    let mut bench = Bench::new();
    let nack = only(ask(&mut bench, &bypass(1, 2, 5), b"INCR"));
    assert_eq!(
        (nack.header.kind, nack.header.flags),
        (Kind::Nack, Flags(0))
    );
    assert_eq!((nack.header.seq, nack.header.request.raw()), (1, 5));
    assert!(bench.store.executed.is_empty());
    bench.update(2, 1);
    bench.update(3, 2);
    bench.work();
    assert_eq!(
        kinds(&ask(&mut bench, &bypass(3, 2, 5), b"INCR")),
        [Kind::Response]
    );
}

#[test]
fn a_session_that_is_gone_is_told_so() {
    let mut bench = Bench::new();
    let header = Header {
        session: 99,
        ..bypass(1, 0, 4)
    };
    for header in [
        header,
        Header {
            flags: Flags::FALLBACK,
            ..header
        },
    ] {
        let nack = only(ask(&mut bench, &header, b"SET"));
        assert!(nack.is(Kind::Nack, Flags::UNKNOWN_SESSION));
        assert_eq!((nack.header.session, nack.header.request.raw()), (99, 4));
    }
}

#[test]
fn a_fallback_is_applied_once_in_its_place() {
    let mut bench = Bench::new();
    bench.update(2, 1);
    let sent = ask(&mut bench, &fallback(2, 2, 2), b"u2");
    let done = only(sent);
    assert!(done.is(Kind::Response, Flags::FALLBACK));
    assert_eq!(done.header.seq, 2);
    assert_eq!(bench.store.effects, [b"u1", b"u2"]);
    assert_eq!(bench.store.watermark(), 2, "it has no order");
    assert_eq!(
        only(ask(&mut bench, &fallback(2, 2, 2), b"u2")),
        done,
        "asked again"
    );
    // A delayed copy of the update that the head had refused is admitted now: it has no effect.
    bench.update(3, 2);
    bench.update(4, 3);
    bench.work();
    assert_eq!(bench.store.effects, [b"u1", b"u2", b"u3"]);
    let mut bench = bench.restarted();
    assert_eq!(
        kinds(&ask(&mut bench, &fallback(2, 2, 2), b"u2")),
        [Kind::Response]
    );
    assert_eq!(bench.store.effects.len(), 3);
}

#[test]
fn a_fallback_out_of_its_place_is_refused_with_the_expected_seq() {
    let mut bench = Bench::new();
    bench.update(2, 1);
    bench.work();
    for (what, first, last, payload) in [
        ("behind a gap", 3, 3, &b"u3"[..]),
        ("confirms what is not applied", 2, 2, b""),
        ("ends before it begins", 3, 2, b"x"),
        ("is longer than any update", 2, u64::MAX, b"x"),
    ] {
        let nack = only(ask(&mut bench, &fallback(2, first, last), payload));
        assert_eq!(
            (nack.header.kind, nack.header.seq),
            (Kind::Nack, 2),
            "{what}"
        );
    }
    // A fallback without a payload asks only whether the update is applied.
    let confirmed = only(ask(&mut bench, &fallback(2, 1, 1), b""));
    assert!(confirmed.is(Kind::Response, Flags::FALLBACK));
    assert_eq!(bench.store.effects.len(), 1);
}

#[test]
fn a_fallback_takes_its_torso_with_it() {
    let mut bench = Bench::new();
    let part = Header {
        order: 2,
        seq: 1,
        copies: raw(Kind::Update.number()),
        fragment_count: 3,
        ..bench.header(Kind::Append)
    };
    bench.give(&part, b"staged");
    bench.work();
    assert_eq!(bench.store.count("stage/"), 1);
    let whole = [b'w'; FRAGMENT_BYTES + 1];
    let header = Header {
        fragment_count: 2,
        ..fallback(2, 1, 3)
    };
    give(
        &mut bench,
        &Header {
            fragment_index: 1,
            ..header
        },
        &whole[..1],
    );
    let sent = ask(&mut bench, &header, &whole[..FRAGMENT_BYTES]);
    let done = only(
        sent.into_iter()
            .filter(|s| !s.header.flags.has(Flags::PROGRESS))
            .collect(),
    );
    assert_eq!((done.header.flags, done.header.seq), (Flags::FALLBACK, 3));
    assert_eq!(
        (bench.store.count("stage/"), &bench.store.effects[..]),
        (0, &[whole.to_vec()][..])
    );
    bench.update(3, 4);
    bench.work();
    assert_eq!(
        bench.store.effects[1], b"u4",
        "the session goes on behind it"
    );
}

#[test]
fn progress_is_told_while_a_long_bypass_arrives() {
    let mut bench = Bench::new();
    let part = |index: u16| Header {
        fragment_index: index,
        fragment_count: 20,
        ..bypass(1, 0, 1)
    };
    let mut told = Vec::new();
    for index in [0, 1, 2, 3, 4, 5, 6, 7, 9, 9, 8] {
        let sent = give(&mut bench, &part(index), b"x");
        for s in sent {
            assert!(s.is(Kind::Response, Flags::PROGRESS));
            told.push((index, s.header.order));
        }
    }
    assert_eq!(
        told[..],
        [(7, 8), (9, 8), (9, 8)],
        "every eighth, and duplicates"
    );
    for index in 10..20 {
        give(&mut bench, &part(index), b"x");
    }
    assert_eq!(kinds(&bench.work()), [Kind::Response]);
    assert_eq!(bench.store.executed, [vec![b'x'; 20]]);
}

#[test]
fn a_long_reply_is_kept_and_fetched() {
    let long = Bytes::from(vec![b'r'; 70 * FRAGMENT_BYTES - 5]);
    for flags in [Flags(0), Flags::READ_ONLY] {
        let mut bench = Bench::new();
        bench.store.reply = Some(long.clone());
        let header = Header {
            flags,
            ..bypass(1, 0, 1)
        };
        let mut got = ask(&mut bench, &header, b"GET");
        assert_eq!(got.len(), 32);
        for first in [32, 64] {
            let more = Header {
                flags: flags.with(Flags::CONTINUE),
                fragment_index: first,
                fragment_count: 70,
                ..header
            };
            got.extend(ask(&mut bench, &more, b""));
        }
        let crc = u64::from(pmnet_wire::crc(&long));
        for (index, s) in (0..).zip(&got) {
            let shape = (
                s.header.fragment_index,
                s.header.fragment_count,
                s.header.key_hash.raw(),
            );
            assert_eq!(shape, (index, 70, crc));
        }
        let whole: Vec<u8> = got.iter().flat_map(|s| s.payload.iter().copied()).collect();
        assert_eq!((whole == long, bench.store.executed.len()), (true, 1));
        let beyond = |fragment_count| Header {
            flags: Flags::CONTINUE,
            fragment_index: 69,
            fragment_count,
            ..header
        };
        assert_eq!(ask(&mut bench, &beyond(70), b""), got[69..]);
        // The client states that the reply has 83 parts, so its parts have another size. The server sends the reply
        // from the first part.
        assert_eq!(ask(&mut bench, &beyond(83), b""), got[..32]);
    }
}

#[test]
fn a_reply_that_no_packet_count_can_carry_is_an_error() {
    let mut bench = Bench::new();
    let bytes = REPLY_BYTES_MAX + 1;
    bench.store.reply = Some(vec![0; bytes].into());
    let reply = only(ask(&mut bench, &bypass(1, 0, 1), b"GET"));
    assert!(
        reply.payload.starts_with(b"-ERR"),
        "{:?}",
        String::from_utf8_lossy(&reply.payload)
    );
}

fn is_said(bench: &mut Bench, id: &str) -> bool {
    std::iter::from_fn(|| bench.server.poll_notice()).any(|notice| notice.starts_with(id))
}

#[test]
fn the_waiting_room_is_bounded() {
    let mut bench = Bench::with(ServerConfig {
        waiting_max: 2,
        ..config()
    });
    for id in 2..=4 {
        bench.append(id, Kind::Open, id, 0, &id.to_be_bytes());
    }
    bench.work();
    for id in 2..=4 {
        give(
            &mut bench,
            &Header {
                session: id,
                ..bypass(9, 0, 1)
            },
            b"GET",
        );
    }
    assert_eq!(bench.server.counters().no_room, 1);
    let mut bench = Bench::with(ServerConfig {
        waiting_bytes_max: 5,
        ..config()
    });
    give(&mut bench, &bypass(9, 0, 1), b"too much");
    assert_eq!(bench.server.counters().no_room, 1);
    assert!(is_said(&mut bench, "PM2608 "));
}

#[test]
fn executions_and_batches_take_turns() {
    let mut bench = Bench::new();
    bench.update(2, 1);
    give(&mut bench, &read(2, 1, 1), b"GET");
    bench.append(3, Kind::Open, 3, 0, &3u64.to_be_bytes());
    let sent = bench.work();
    assert!(kinds(&sent).contains(&Kind::Response));
    assert_eq!(bench.store.watermark(), 3);
}

/// A server with sessions 2 to 9, of these fronts (0: no front).
fn of_fronts(config: ServerConfig, fronts: [u64; 8]) -> Bench {
    let mut bench = Bench::with(config);
    for (session, front) in (2u64..).zip(fronts) {
        let mut said = session.to_be_bytes().to_vec();
        if front != 0 {
            said.extend_from_slice(&front.to_be_bytes());
        }
        bench.append(session, Kind::Open, session, 0, &said);
    }
    bench.work();
    bench
}

/// A server with room for four incomplete bypasses. Each takes 4,200 bytes: the list of its 100 parts, and one part.
fn small_room(fronts: [u64; 8]) -> Bench {
    let small = ServerConfig {
        waiting_bytes_max: 2 * 4 * 4_200,
        ..config()
    };
    of_fronts(small, fronts)
}

/// Part `index` of a bypass of 100 parts.
fn begun(session: u64, index: u16) -> Header {
    Header {
        session,
        fragment_index: index,
        fragment_count: 100,
        ..bypass(1, 0, 1)
    }
}

fn lost(bench: &Bench) -> (u64, u64) {
    let counters = bench.server.counters();
    (counters.no_room, counters.abandoned)
}

/// Regression: incomplete bypasses whose clients had gone filled the waiting room until 256 further packets had come.
#[test]
fn what_was_begun_and_left_gives_its_place_to_others() {
    let mut bench = small_room([0; 8]);
    for session in 2..=5 {
        give(&mut bench, &begun(session, 0), &[7; 1000]);
    }
    // A request of one packet still finds a place.
    let whole = Header {
        session: 9,
        ..bypass(1, 0, 1)
    };
    let sent = ask(&mut bench, &whole, &[8; 1000]);
    assert!(kinds(&sent).contains(&Kind::Response));
    // Until the other bypasses count as abandoned, a further long request is refused, and so are further parts of these
    // bypasses.
    give(&mut bench, &begun(6, 0), &[7; 1000]);
    assert_eq!(lost(&bench), (1, 0));
    bench.now = bench.now + 1900 * MILLISECOND;
    give(&mut bench, &begun(2, 1), &[7; 1000]);
    assert_eq!(lost(&bench), (2, 0));
    bench.now = bench.now + 100 * MILLISECOND;
    give(&mut bench, &begun(6, 0), &[7; 1000]);
    assert_eq!(lost(&bench), (2, 4), "however few packets come");
}

/// Regression: sessions of one front sent one fragment of their incomplete bypasses from time to time, so there was no
/// room for the bypasses of all other fronts.
#[test]
fn a_front_has_its_share_of_the_waiting_room() {
    let mut bench = small_room([11, 11, 11, 11, 11, 22, 22, 33]);
    for session in 2..=5 {
        give(&mut bench, &begun(session, 0), &[7; 1000]);
    }
    // A bypass of the same front gets no place from the front's other bypasses.
    give(&mut bench, &begun(6, 0), &[7; 1000]);
    assert_eq!(lost(&bench), (1, 0));
    // The second front gets half of the places, and then the third front gets a third.
    for (session, lost_by_it) in [(7, 2), (8, 2), (9, 3)] {
        bench.now = bench.now + 60 * MILLISECOND;
        give(&mut bench, &begun(session, 0), &[7; 1000]);
        assert_eq!(lost(&bench), (1, lost_by_it), "session {session}");
    }
    bench.now = bench.now + 60 * MILLISECOND;
    for session in [2, 3] {
        give(&mut bench, &begun(session, 0), &[7; 1000]);
    }
    assert_eq!(lost(&bench), (3, 3), "which are not taken from them");
}

/// Regression: the server kept a reply of 16 MiB for each session of a front, in memory and in the records, until the
/// records could not be loaded any more.
#[test]
fn long_replies_that_are_kept_have_a_bound_and_each_front_its_own() {
    let bounded = || ServerConfig {
        kept_bytes_max: 10_000,
        ..config()
    };
    let with_fronts = |fronts| {
        let mut bench = of_fronts(bounded(), fronts);
        bench.store.reply = Some(Bytes::from(vec![b'x'; 4000]));
        bench
    };
    let mut bench = with_fronts([11, 11, 11, 22, 22, 22, 22, 22]);
    let of = |session| Header {
        session,
        ..bypass(1, 0, 1)
    };
    let kept = |bench: &Bench, session: u64| {
        let key = [&b"reply/"[..], &session.to_be_bytes()].concat();
        bench.store.records[&key].len() > 4000
    };
    // The first reply belongs to the other front. It is kept although many replies follow.
    for session in [2, 5, 6, 7, 8] {
        let sent = ask(&mut bench, &of(session), b"EVAL");
        assert!(sent.iter().any(|sent| sent.header.kind == Kind::Response));
    }
    assert_eq!(
        [2, 5, 6, 7, 8].map(|id| kept(&bench, id)),
        [true, false, false, false, true]
    );
    assert_eq!(bench.server.kept_bytes(), 8000);
    assert_eq!(bench.server.counters().replies_let_go, 3);
    assert!(is_said(&mut bench, "PM2609 "));
    // A request whose reply was dropped is still executed only once, also after a restart.
    let mut bench = with_fronts([0; 8]);
    for session in [5, 6, 7] {
        ask(&mut bench, &of(session), b"EVAL");
    }
    assert_eq!([5, 6, 7].map(|id| kept(&bench, id)), [false, true, true]);
    for _ in 0..2 {
        let again = ask(&mut bench, &of(5), b"EVAL");
        assert!(again[0].payload.starts_with(b"-ERR pmnet: applied"));
        assert_eq!(bench.store.executed.len(), 3);
        bench = bench.restarted();
    }
}

/// A bypass whose caller's deadline is `millis` milliseconds away.
fn hurried(header: Header, millis: u64) -> Header {
    Header {
        copies: raw(TimeLeft::of_nanos(millis * 1_000_000).byte()),
        ..header
    }
}

/// Regression: a request that hangs the store, or kills it, was executed again and again, even after its client had
/// gone.
#[test]
fn what_the_store_could_not_execute_is_executed_again_for_a_client_that_asks_only() {
    for header in [bypass(1, 0, 1), read(1, 0, 1)] {
        let mut bench = Bench::new();
        give(&mut bench, &header, b"while true do end");
        assert!(matches!(bench.pending(), Work::Execute(_)));
        bench.server.failed();
        bench.work();
        assert!(bench.store.executed.is_empty(), "nobody has asked again");
        let reply = only(ask(&mut bench, &header, b"while true do end"));
        assert_eq!(reply.payload, b":0\r\n");
        assert_eq!(bench.store.executed.len(), 1);
    }
}

#[test]
fn a_bypass_is_not_executed_after_its_deadline() {
    for header in [bypass(2, 0, 1), read(2, 0, 1)] {
        let mut bench = Bench::new();
        give(&mut bench, &hurried(header, 100), b"INCR");
        assert_eq!(bench.work(), [], "its barrier is not reached");
        bench.now = bench.now + 113 * MILLISECOND;
        bench.append(2, Kind::Open, 2, 0, &2u64.to_be_bytes());
        bench.work();
        assert!(bench.store.executed.is_empty());
        assert_eq!(bench.server.counters().expired, 1);
    }
}

/// A late bypass is not executed, even if the node asks for work first.
#[test]
fn a_late_bypass_is_never_work() {
    let mut bench = Bench::new();
    give(&mut bench, &hurried(bypass(1, 0, 1), 100), b"INCR");
    bench.now = bench.now + 113 * MILLISECOND;
    assert_eq!(bench.server.next_work(bench.now), Ok(None));
    assert_eq!(bench.answers(), []);
    assert_eq!(bench.server.counters().expired, 1);
}

#[test]
fn a_bypass_is_executed_before_its_deadline_and_at_any_time_without_one() {
    for (header, wait) in [
        (hurried(bypass(2, 0, 1), 100), 99),
        (bypass(2, 0, 1), 1_000_000),
    ] {
        let mut bench = Bench::new();
        give(&mut bench, &header, b"INCR");
        bench.now = bench.now + wait * MILLISECOND;
        bench.append(2, Kind::Open, 2, 0, &2u64.to_be_bytes());
        bench.work();
        assert_eq!(bench.store.executed.len(), 1);
    }
}

/// Copies of one bypass have one deadline. The earliest deadline that follows from a copy is the most accurate, because
/// the other copies were longer in the network.
#[test]
fn an_old_copy_does_not_put_off_a_deadline() {
    let mut bench = Bench::new();
    give(&mut bench, &hurried(bypass(2, 0, 1), 50), b"INCR");
    give(&mut bench, &hurried(bypass(2, 0, 1), 500), b"INCR");
    bench.now = bench.now + 60 * MILLISECOND;
    bench.append(2, Kind::Open, 2, 0, &2u64.to_be_bytes());
    bench.work();
    assert!(bench.store.executed.is_empty());
    // The next call of the session has its own deadline.
    only(ask(&mut bench, &hurried(bypass(2, 0, 2), 500), b"INCR"));
}

#[test]
fn what_is_late_makes_room_for_others() {
    let mut bench = Bench::with(ServerConfig {
        waiting_max: 1,
        ..config()
    });
    bench.append(2, Kind::Open, 2, 0, &2u64.to_be_bytes());
    bench.work();
    give(&mut bench, &hurried(bypass(9, 0, 1), 100), b"INCR");
    for _ in 0..300 {
        // The server looks for late requests after a number of packets, not after a time.
        give(&mut bench, &hurried(bypass(9, 0, 1), 100), b"INCR");
    }
    let other = Header {
        session: 2,
        ..bypass(2, 0, 1)
    };
    assert_eq!(ask(&mut bench, &other, b"INCR"), [], "no room");
    bench.now = bench.now + 113 * MILLISECOND;
    for _ in 0..300 {
        give(&mut bench, &other, b"INCR");
    }
    bench.work();
    assert_eq!(bench.store.executed.len(), 1);
}

/// Regression: a store was replaced by an older copy of itself, and the server went on with it, if only bypasses had
/// been executed since the copy.
#[test]
fn a_store_that_lost_what_it_confirmed_of_a_session_stops_the_shard() {
    let before = |bench: &mut Bench| {
        ask(bench, &bypass(1, 0, 1), b"INCR");
        bench.store.records.clone()
    };
    // The store loses, in turn, a confirmed request, a confirmed fallback, and the whole session.
    type After = fn(&mut Bench);
    let after: [(&str, After); 3] = [
        ("now it has update 0, request 1.", |bench| {
            ask(bench, &bypass(1, 0, 2), b"INCR");
        }),
        ("now it has update 0, request 1.", |bench| {
            ask(bench, &fallback(1, 1, 1), b"u1");
        }),
        ("now it is gone.", |_| {}),
    ];
    for (says, after) in after {
        let mut bench = Bench::new();
        let mut copy = before(&mut bench);
        after(&mut bench);
        if says.contains("gone") {
            copy.retain(|key, _| !key.starts_with(b"session/") && !key.starts_with(b"reply/"));
        }
        bench.store.records = copy;
        bench.server.failed();
        let stop = bench.try_work().expect_err("it must stop");
        for part in ["went back in the store", says, "Restore the store"] {
            assert!(stop.0.contains(part), "{part:?} is not in {stop}");
        }
    }
}

/// The store has everything that it has confirmed, and also requests whose answers were lost. A session may have ended
/// meanwhile.
#[test]
fn a_store_that_has_more_than_it_confirmed_is_served_on() {
    let mut bench = Bench::new();
    ask(&mut bench, &bypass(1, 0, 1), b"INCR");
    // The request was executed, and the answer was lost.
    give(&mut bench, &bypass(1, 0, 2), b"INCR");
    let Work::Execute(work) = bench.pending() else {
        panic!("an execution")
    };
    let (key, prefix) = work[0].record.clone().expect("it changes state");
    let value = [&prefix[..], b":9\r\n"].concat();
    bench.store.records.insert(key, value.into());
    bench.server.failed();
    bench.work();
    // An END whose outcome was unknown was applied.
    bench.append(2, Kind::End, SESSION, 1, b"");
    let Work::Apply(effects) = bench.pending() else {
        panic!("a batch")
    };
    bench.store.apply(&effects);
    bench.server.failed();
    bench.work();
    assert_eq!(bench.server.watermark(), 2);
    assert_eq!(bench.store.count("session/"), 0);
}
