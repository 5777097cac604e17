//! A slow store: packets that arrive while it works, and a node that asks for work before it lets the server answer
//! (`docs/spec/protocol.md` §2 rules 6 to 8, §4 "Fallback").

use crate::support::server::Bench;
use crate::support::{SESSION, kinds, only, seqs};
use pmnet_proto::server::Work;
use pmnet_wire::record::Member;
use pmnet_wire::{Flags, Header, Kind, raw};

/// A bypass that changes state, of a session whose last seq is `seq`; its barrier is reached.
fn bypass(bench: &Bench, seq: u64, request: u64) -> Header {
    Header {
        order: bench.server.watermark(),
        seq,
        request: raw(request),
        ..bench.header(Kind::Bypass)
    }
}

/// Update `seq` as a fallback.
fn fallback(bench: &Bench, seq: u64) -> Header {
    Header {
        flags: Flags::FALLBACK,
        ..bypass(bench, seq, seq)
    }
}

/// The server's memory changes only when the store has done a work. If the server gave out a second work before, it
/// would have the same entries, and the store would apply them twice.
#[test]
fn one_work_is_under_way_at_a_time() {
    type Prepare = fn(&mut Bench);
    let cases: [(&str, Prepare, &[&str]); 5] = [
        (
            "a load",
            |bench| {
                bench.server.failed();
            },
            &[],
        ),
        (
            "a batch",
            |bench| {
                bench.update(2, 1);
            },
            &["u1"],
        ),
        (
            "a fallback",
            |bench| {
                bench.give(&fallback(bench, 1), b"u1");
            },
            &["u1"],
        ),
        (
            "an execution",
            |bench| {
                bench.give(&bypass(bench, 0, 1), b"INCR");
            },
            &["INCR"],
        ),
        (
            "a change of the chain",
            |bench| {
                let known = bench.server.chain().expect("a chain").members[0];
                let again = Member {
                    incarnation: 2,
                    flags: 0,
                    ..known
                };
                let sent = bench.ask(9, &[again]);
                assert_eq!(sent, []);
            },
            &[],
        ),
    ];
    for (what, prepare, effects) in cases {
        let mut bench = Bench::new();
        prepare(&mut bench);
        let work = bench.pending();
        for _ in 0..2 {
            assert_eq!(
                bench.server.next_work(bench.now),
                Ok(None),
                "{what} is under way"
            );
        }
        bench.done(&work);
        bench.work();
        let had = bench.store.effects.iter().chain(&bench.store.executed);
        let had: Vec<_> = had.map(|bytes| String::from_utf8_lossy(bytes)).collect();
        assert_eq!(had, effects, "{what} is done once");
    }
}

/// Devices forget applied entries. So the server must not report an entry as applied that it holds only in memory: a
/// crash would lose the entry.
#[test]
fn what_is_received_and_not_in_the_store_is_not_called_applied() {
    let mut bench = Bench::new();
    bench.update(2, 1);
    bench.update(3, 2);
    let ping = bench.header(Kind::Ping);
    bench.give(&ping, b"");
    let word = |bench: &mut Bench| {
        let applied = only(bench.finish());
        assert_eq!(applied.header.kind, Kind::Applied);
        applied.header.order
    };
    assert_eq!(word(&mut bench), 1, "they are in the queue");
    let work = bench.pending();
    bench.give(&ping, b"");
    assert_eq!(word(&mut bench), 1, "the store is at work on them");
    assert_eq!(bench.done(&work), []);
    assert_eq!(word(&mut bench), 3);
}

/// The session sends a second fallback while the store applies the first. When the store has the first update, the
/// server must not confirm the second.
#[test]
fn the_end_of_one_fallback_confirms_no_other_one() {
    let mut bench = Bench::new();
    bench.give(&fallback(&bench, 1), b"u1");
    let work = bench.pending();
    bench.give(&fallback(&bench, 2), b"u2");
    assert_eq!(
        bench.answers(),
        [],
        "nor is it refused as long as the one before it is under way"
    );
    assert_eq!(bench.done(&work), [], "nobody waits for seq 1 any more");
    assert_eq!(bench.store.effects, [b"u1"]);
    let mut sent = bench.work();
    sent.retain(|s| s.is(Kind::Response, Flags::FALLBACK));
    assert_eq!(seqs(&sent), [2]);
    assert_eq!(bench.store.effects, [b"u1", b"u2"]);
    // If the first fallback comes again, the server confirms it without applying it again.
    bench.give(&fallback(&bench, 1), b"u1");
    assert_eq!(seqs(&bench.answers()), [1]);
    assert_eq!(bench.store.effects.len(), 2);
}

/// A bypass after a fallback in progress is neither refused nor executed before the fallback.
#[test]
fn a_bypass_behind_a_fallback_under_way_is_answered_after_it() {
    let mut bench = Bench::new();
    bench.give(&fallback(&bench, 1), b"u1");
    let work = bench.pending();
    bench.give(&bypass(&bench, 1, 1), b"GET");
    assert_eq!(bench.answers(), []);
    assert_eq!(bench.server.next_work(bench.now), Ok(None));
    bench.done(&work);
    let sent = bench.work();
    let reply = sent.iter().find(|s| s.is(Kind::Response, Flags(0)));
    assert_eq!(
        reply.expect("a reply").payload,
        b":1\r\n",
        "it saw the update"
    );
}

/// The client gives up its first request, and sends a second request while the store still executes the first.
#[test]
fn a_reply_goes_to_the_request_that_it_answers() {
    for read_only in [Flags(0), Flags::READ_ONLY] {
        let mut bench = Bench::new();
        let ask = |bench: &mut Bench, request| {
            let header = Header {
                flags: read_only,
                ..bypass(bench, 0, request)
            };
            bench.give(&header, format!("r{request}").as_bytes());
        };
        ask(&mut bench, 1);
        let work = bench.pending();
        ask(&mut bench, 2);
        assert_eq!(bench.answers(), []);
        assert_eq!(bench.done(&work), [], "nobody waits for it any more");
        let mut sent = bench.work();
        sent.retain(|s| s.header.kind == Kind::Response);
        let reply = only(sent);
        assert_eq!(
            (reply.header.request.raw(), &reply.payload[..]),
            (2, &b":1\r\n"[..])
        );
        assert_eq!(bench.store.executed, [b"r1", b"r2"]);
    }
}

/// The server does not know whether the store executed the request: it loads the records, which show that the store did
/// not execute the request, and the client sends the request again.
#[test]
fn a_failed_execution_is_asked_for_again() {
    let mut bench = Bench::new();
    bench.give(&bypass(&bench, 0, 1), b"INCR");
    assert!(matches!(bench.pending(), Work::Execute(_)));
    bench.server.failed();
    bench.give(&bypass(&bench, 0, 1), b"INCR");
    let sent = bench.work();
    assert!(kinds(&sent).contains(&Kind::Response), "{sent:?}");
    assert_eq!(bench.store.executed, [b"INCR"]);
}

/// Regression: a read took longer than the timeout of the store's adaptor, and the server repeated it until the server
/// was stopped. Meanwhile the server processed no entries, and not even the END of the read's session.
#[test]
fn a_read_that_fails_lets_the_others_go_first() {
    let mut bench = Bench::new();
    let slow = Header {
        flags: Flags::READ_ONLY,
        ..bypass(&bench, 0, 1)
    };
    bench.give(&slow, b"SLOW");
    assert!(matches!(bench.pending(), Work::Execute(_)));
    bench.update(2, 1);
    bench.server.failed();
    bench.update(3, 2);
    let again = Header {
        seq: 2,
        order: 3,
        ..slow
    };
    bench.give(&again, b"SLOW");
    assert_eq!(bench.pending(), Work::Load);
    bench.done(&Work::Load);
    assert!(matches!(bench.pending(), Work::Apply(_)), "entries first");
    bench.server.failed();
    bench.work();
    assert_eq!(bench.store.effects, [b"u1", b"u2"]);
    assert_eq!(bench.store.executed, [b"SLOW"], "asked for once more");
    // If the client does not send the read again, the read is not executed again.
    let next = Header {
        request: raw(2),
        ..again
    };
    bench.give(&next, b"SLOW");
    assert!(matches!(bench.pending(), Work::Execute(_)));
    bench.server.failed();
    bench.work();
    assert_eq!(bench.store.executed, [b"SLOW"]);
}

/// There is always a bypass that waits. If the entries had to wait until no bypass waits, they would wait for ever, and
/// fill the devices' logs.
#[test]
fn between_two_executions_the_entries_have_their_turn() {
    for fails in [false, true] {
        let mut bench = Bench::new();
        bench.give(&bypass(&bench, 0, 1), b"INCR");
        bench.append(2, Kind::Open, 2, 0, &2u64.to_be_bytes());
        for turn in 1..=3 {
            let execution = bench.pending();
            assert!(
                matches!(execution, Work::Execute(_)),
                "turn {turn}, fails: {fails}: {execution:?}"
            );
            if fails {
                bench.server.failed();
                let load = bench.pending();
                assert_eq!(load, Work::Load);
                bench.done(&load);
                bench.give(&bypass(&bench, 0, 1), b"INCR");
            } else {
                bench.done(&execution);
                bench.give(&bypass(&bench, 0, turn + 1), b"INCR");
            }
            let batch = bench.pending();
            assert!(
                matches!(batch, Work::Apply(_)),
                "turn {turn}, fails: {fails}: {batch:?}"
            );
            bench.done(&batch);
            assert_eq!(bench.server.watermark(), turn + 1, "fails: {fails}");
            bench.append(turn + 2, Kind::Update, 2, turn, b"u");
        }
    }
}

/// One request is such that the store cannot answer it. It delays other requests only briefly, because the server lets
/// the store execute this request alone, and the others between its attempts.
#[test]
fn requests_beside_one_that_fails_are_answered() {
    let mut bench = Bench::new();
    for session in 2..=4u64 {
        bench.append(session, Kind::Open, session, 0, &session.to_be_bytes());
    }
    bench.work();
    let read = |bench: &Bench, session: u64| Header {
        flags: Flags::READ_ONLY,
        session,
        ..bypass(bench, 0, 1)
    };
    let mut answered = Vec::new();
    for _round in 0..12 {
        // A session without an answer sends its request again.
        for session in 2..=4u64 {
            if !answered.contains(&session) {
                let payload: &[u8] = if session == 2 { b"BAD" } else { b"GET" };
                bench.give(&read(&bench, session), payload);
            }
        }
        let Work::Execute(executions) = bench.pending() else {
            panic!("an execution");
        };
        if let Some(bad) = executions.iter().position(|e| &e.payload[..] == b"BAD") {
            // Like a node, the test first reports the replies from before the failure, and then the failure.
            let replies = vec![b"+1".to_vec().into(); bad];
            answered.extend(
                bench
                    .executed(replies)
                    .iter()
                    .map(|sent| sent.header.session),
            );
            bench.server.failed();
            let load = bench.pending();
            assert_eq!(load, Work::Load);
            bench.done(&load);
        } else {
            let sent = bench.done(&Work::Execute(executions));
            answered.extend(sent.iter().map(|sent| sent.header.session));
        }
    }
    answered.sort_unstable();
    assert_eq!(answered, [3, 4]);
}

/// The store applied the batch, and its answer was lost. Entries that are applied according to the records are not
/// processed again. A repeated OPEN would reset the last seq of its session.
#[test]
fn what_the_store_has_after_all_is_not_applied_again() {
    let mut bench = Bench::new();
    bench.append(2, Kind::Open, 2, 0, &2u64.to_be_bytes());
    bench.append(3, Kind::Update, 2, 1, b"u1");
    let Work::Apply(effects) = bench.pending() else {
        panic!("a batch")
    };
    bench.store.apply(&effects);
    bench.server.failed();
    // Entries that arrive during the load are not lost: they wait until it has ended.
    bench.append(4, Kind::Update, 2, 2, b"u2");
    assert_eq!(bench.pending(), Work::Load);
    bench.done(&Work::Load);
    assert_eq!((bench.server.watermark(), bench.server.queued()), (3, 1));
    bench.work();
    assert_eq!(bench.store.effects, [b"u1", b"u2"]);
    assert_eq!(bench.server.counters().repeated, 0);
}

/// A node may ask for work before it lets the server send its own answers. A request that needs only an answer must not
/// become work then.
#[test]
fn what_needs_an_answer_only_is_never_work() {
    // The session's update is missing, or is newer than the request.
    for seq in [2, 0] {
        let mut bench = Bench::new();
        bench.update(2, 1);
        bench.work();
        bench.give(&bypass(&bench, seq, 1), b"INCR");
        assert_eq!(bench.server.next_work(bench.now), Ok(None), "seq {seq}");
    }
    // The request was already executed, by this process or by an earlier process. The client only wants its reply.
    for restarts in [false, true] {
        let mut bench = Bench::new();
        bench.give(&bypass(&bench, 0, 1), b"INCR");
        bench.work();
        if restarts {
            bench = bench.restarted();
        }
        bench.give(&bypass(&bench, 0, 1), b"INCR");
        assert_eq!(
            bench.server.next_work(bench.now),
            Ok(None),
            "restarts: {restarts}"
        );
        assert_eq!(only(bench.answers()).payload, b":0\r\n");
    }
    // A bypass of an unknown session is not work either.
    let mut bench = Bench::new();
    let stranger = Header {
        session: SESSION + 1,
        ..bypass(&bench, 0, 1)
    };
    bench.give(&stranger, b"INCR");
    assert_eq!(bench.server.next_work(bench.now), Ok(None));
    assert!(only(bench.answers()).is(Kind::Nack, Flags::UNKNOWN_SESSION));
}
