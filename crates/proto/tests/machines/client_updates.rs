//! Updates of a client: window, acknowledgements, NACKs, fallback, deadlines
//! (`docs/spec/protocol.md` §3).

use crate::support::client::{Bench, config, head};
use crate::support::{EPOCH, SESSION, kinds, only, peer, seqs};
use pmnet_proto::client::{ClientConfig, Closed, Outcome};
use pmnet_proto::time::{MILLISECOND, SECOND};
use pmnet_wire::{FRAGMENT_BYTES, Flags, Header, Kind, raw};

const COMMITTED: Outcome = Outcome::Committed { copies: 1 };
/// A time that is longer than any retransmission timeout.
const LONG: u64 = 600 * MILLISECOND;

#[test]
fn calls_wait_for_the_open_reply() {
    let (mut bench, open) = Bench::opening(config());
    assert_eq!((open.to, open.header.kind), (head(), Kind::Open));
    assert_eq!(open.payload, open.header.tag.to_be_bytes());
    let call = bench.update();
    assert_eq!(bench.flush(), []);
    let again = only(bench.after(LONG));
    assert_eq!(again, open, "asked again, with the same token");
    bench.receive(&bench.reply(Kind::OpenReply), &[]);
    let update = only(bench.flush());
    assert_eq!((update.header.session, update.header.seq), (SESSION, 1));
    bench.ack(1);
    assert_eq!(bench.outcomes(), [(call, COMMITTED)]);
}

#[test]
fn an_open_that_was_not_logged_is_asked_again_after_a_pause() {
    let (mut bench, open) = Bench::opening(config());
    bench.receive(
        &Header {
            session: 0,
            ..bench.reply(Kind::NotLogged)
        },
        &[],
    );
    assert_eq!(bench.flush(), []);
    assert_eq!(only(bench.after(LONG)), open);
}

#[test]
fn the_window_bounds_what_is_under_way() {
    let mut bench = Bench::open();
    for _ in 0..100 {
        bench.update();
    }
    assert_eq!(seqs(&bench.flush()), (1..=32).collect::<Vec<_>>());
    bench.ack(32);
    assert_eq!(bench.flush().len(), 64, "it doubles while nothing is lost");
    // The number of entries that the log can still take also bounds the window.
    bench.receive(
        &Header {
            seq: 94,
            request: raw(3),
            ..bench.reply(Kind::Ack)
        },
        &[],
    );
    assert_eq!(seqs(&bench.flush()), [97]);
    // Without credit the client still sends one packet, so that it learns when the head has room again.
    let mut bench = Bench::open();
    bench.receive(
        &Header {
            seq: 0,
            request: raw(0),
            ..bench.reply(Kind::Ack)
        },
        &[],
    );
    bench.update();
    bench.update();
    assert_eq!(seqs(&bench.flush()), [1]);
}

#[test]
fn a_timeout_halves_the_window_and_resends_from_the_first_unacknowledged() {
    let mut bench = Bench::open();
    for _ in 0..40 {
        bench.update();
    }
    bench.flush();
    bench.ack(2);
    bench.flush();
    assert_eq!(seqs(&bench.after(LONG)), (3..=19).collect::<Vec<_>>());
    assert_eq!(bench.client.counters().resent, 34);
}

#[test]
fn acknowledgements_are_cumulative_and_count_once() {
    let mut bench = Bench::open();
    let calls: Vec<_> = (0..5).map(|_| bench.update()).collect();
    bench.flush();
    bench.ack(3);
    bench.ack(3);
    bench.ack(1);
    let done: Vec<_> = calls[..3].iter().map(|&call| (call, COMMITTED)).collect();
    assert_eq!(bench.outcomes(), done);
    bench.ack(6);
    assert_eq!(
        bench.client.counters().unexpected,
        1,
        "seq 6 was never given out"
    );
    assert_eq!(bench.outcomes(), []);
    bench.ack(5);
    assert_eq!(bench.outcomes().len(), 2);
}

#[test]
fn an_update_commits_with_its_last_fragment() {
    let mut bench = Bench::open();
    let call = bench.try_update(2 * FRAGMENT_BYTES + 1).expect("accepted");
    let next = bench.update();
    let sent = bench.flush();
    let shape = |s: &crate::support::Sent| {
        (
            s.header.seq,
            s.header.fragment_index,
            s.header.fragment_count,
            s.payload.len(),
        )
    };
    let shapes: Vec<_> = sent.iter().map(shape).collect();
    let full = FRAGMENT_BYTES;
    assert_eq!(
        shapes,
        [
            (1, 0, 3, full),
            (2, 1, 3, full),
            (3, 2, 3, 1),
            (4, 0, 1, 10)
        ]
    );
    bench.ack(2);
    assert_eq!(bench.outcomes(), []);
    bench.ack(4);
    assert_eq!(bench.outcomes(), [(call, COMMITTED), (next, COMMITTED)]);
}

#[test]
fn a_nack_resends_from_the_expected_seq() {
    let mut bench = Bench::open();
    for _ in 0..6 {
        bench.update();
    }
    bench.flush();
    bench.nack(3);
    assert_eq!(seqs(&bench.flush()), [3, 4, 5, 6]);
    bench.nack(3);
    assert_eq!(
        bench.flush(),
        [],
        "the same gap again, within half a round trip"
    );
    for nonsense in [0, 8] {
        bench.nack(nonsense);
        assert_eq!(bench.flush(), [], "expected {nonsense}");
    }
    assert_eq!(bench.client.counters().unexpected, 2);
    bench.ack(4);
    bench.nack(2);
    assert_eq!(
        bench.flush(),
        [],
        "an old packet: what is acknowledged is not sent again"
    );
}

#[test]
fn after_its_deadline_an_update_is_unknown_once_and_still_resent() {
    let mut bench = Bench::open();
    let call = bench.update();
    bench.flush();
    bench.after(SECOND);
    assert_eq!(bench.outcomes(), [(call, Outcome::Unknown)]);
    assert_eq!(
        seqs(&bench.after(LONG)),
        [1],
        "or its seq would block the session for ever"
    );
    let next = bench.update();
    assert_eq!(seqs(&bench.flush()), [2]);
    bench.ack(2);
    assert_eq!(bench.outcomes(), [(next, COMMITTED)], "one outcome a call");
}

#[test]
fn a_call_that_was_never_sent_fails_at_its_deadline() {
    let (mut bench, _) = Bench::opening(config());
    let call = bench.update();
    bench.after(SECOND);
    let outcomes = bench.outcomes();
    assert!(
        matches!(&outcomes[..], [(c, Outcome::Failed(_))] if *c == call),
        "{outcomes:?}"
    );
    bench.receive(&bench.reply(Kind::OpenReply), &[]);
    assert_eq!(bench.flush(), [], "and has no effect any more");
}

#[test]
fn a_full_log_makes_an_update_fall_back() {
    let mut bench = Bench::open();
    let first = bench.update();
    let large = bench.try_update(2 * FRAGMENT_BYTES).expect("accepted");
    let last = bench.update();
    assert_eq!(seqs(&bench.flush()), [1, 2, 3, 4]);
    bench.ack(1);
    // The second fragment did not fit into the log: the whole update goes to the server.
    bench.not_logged(3);
    let sent = bench.flush();
    assert_eq!(kinds(&sent), [Kind::Bypass; 2]);
    for (index, packet) in (0..).zip(&sent) {
        assert!(packet.is(Kind::Bypass, Flags::FALLBACK));
        assert_eq!(
            (packet.header.request.raw(), packet.header.seq),
            (2, 3),
            "its first and last seq"
        );
        assert_eq!(
            (packet.header.fragment_index, packet.header.fragment_count),
            (index, 2)
        );
    }
    bench.not_logged(4);
    bench.update();
    assert_eq!(bench.flush(), [], "nothing new before the server's word");
    let again = bench.after(LONG);
    assert!(!again.is_empty() && again.iter().all(|s| s.is(Kind::Bypass, Flags::FALLBACK)));
    bench.confirm_fallback(2);
    assert_eq!(
        bench.outcomes(),
        [(first, COMMITTED)],
        "not the word for this one"
    );
    bench.confirm_fallback(3);
    assert_eq!(
        bench.outcomes(),
        [(large, Outcome::Committed { copies: 0 })]
    );
    bench.nack(4);
    assert_eq!(
        seqs(&bench.flush()),
        [4, 5],
        "the session goes on behind it"
    );
    bench.ack(5);
    assert_eq!(bench.outcomes()[0], (last, COMMITTED));
}

#[test]
fn a_head_that_missed_the_fallback_hears_of_it_again() {
    let mut bench = Bench::open();
    bench.update();
    bench.flush();
    bench.not_logged(1);
    bench.flush();
    bench.confirm_fallback(1);
    bench.update();
    bench.flush();
    bench.nack(1);
    let empty = only(bench.flush());
    assert!(empty.is(Kind::Bypass, Flags::FALLBACK) && empty.payload.is_empty());
    assert_eq!((empty.header.request.raw(), empty.header.seq), (1, 1));
    bench.confirm_fallback(1);
    bench.nack(2);
    assert_eq!(seqs(&bench.flush()), [2]);
}

#[test]
fn a_nack_below_a_fallback_takes_it_back() {
    // An earlier update was lost, and a fallback of the later update alone would wait for it for ever.
    let mut bench = Bench::open();
    bench.update();
    bench.update();
    bench.flush();
    bench.not_logged(2);
    bench.flush();
    bench.nack(1);
    let sent = bench.flush();
    assert_eq!(
        (kinds(&sent), seqs(&sent)),
        (vec![Kind::Update; 2], vec![1, 2])
    );
}

#[test]
fn an_acknowledgement_ends_a_fallback_too() {
    let mut bench = Bench::open();
    let call = bench.update();
    bench.flush();
    bench.not_logged(1);
    bench.flush();
    // The network had duplicated the packet, and the head has admitted the copy.
    bench.ack(1);
    assert_eq!(bench.outcomes(), [(call, COMMITTED)]);
    bench.update();
    assert_eq!(seqs(&bench.flush()), [2]);
}

#[test]
fn what_does_not_belong_to_the_session_is_ignored() {
    let mut bench = Bench::open();
    bench.update();
    bench.flush();
    let ack = Header {
        seq: 1,
        ..bench.reply(Kind::Ack)
    };
    let mut wrong = 0;
    for (what, header) in [
        (
            "token",
            Header {
                tag: ack.tag ^ 1,
                ..ack
            },
        ),
        (
            "shard",
            Header {
                shard: ack.shard + 1,
                ..ack
            },
        ),
        (
            "session",
            Header {
                session: SESSION + 1,
                ..ack
            },
        ),
        (
            "kind",
            Header {
                kind: Kind::Update,
                ..ack
            },
        ),
    ] {
        bench.receive(&header, &[]);
        wrong += 1;
        assert_eq!(bench.client.counters().unexpected, wrong, "wrong {what}");
    }
    let datagram = crate::support::datagram(&ack, &[]);
    bench.client.receive(bench.now, peer(9), &datagram);
    assert_eq!(bench.client.counters().unexpected, 5, "from somebody else");
    bench.client.receive(bench.now, head(), &datagram[..80]);
    assert_eq!(bench.client.counters().rejected, 1);
    assert_eq!(bench.outcomes(), []);
}

#[test]
fn a_lower_epoch_is_ignored_and_a_higher_one_is_passed_on() {
    let mut bench = Bench::open();
    bench.update();
    assert_eq!(only(bench.flush()).header.epoch, EPOCH);
    bench.receive(
        &Header {
            seq: 1,
            epoch: EPOCH + 1,
            ..bench.reply(Kind::Ack)
        },
        &[],
    );
    let call = bench.update();
    // Each epoch may have another size of fragments, so the client asks for the size.
    let sent = bench.flush();
    assert_eq!(kinds(&sent), [Kind::Ping, Kind::Update]);
    assert!(sent.iter().all(|s| s.header.epoch == EPOCH + 1));
    bench.outcomes();
    bench.ack(2);
    assert_eq!(
        (bench.outcomes(), bench.client.counters().stale_epoch),
        (vec![], 1)
    );
    bench.receive(
        &Header {
            seq: 2,
            epoch: EPOCH + 1,
            ..bench.reply(Kind::Ack)
        },
        &[],
    );
    assert_eq!(bench.outcomes(), [(call, COMMITTED)]);
}

#[test]
fn a_chain_that_forgot_what_it_acknowledged_is_reported() {
    let mut bench = Bench::open();
    for _ in 0..3 {
        bench.update();
    }
    bench.flush();
    bench.ack(2);
    bench.outcomes();
    bench.nack(1);
    assert_eq!(
        bench.outcomes(),
        [],
        "in the same epoch that is an old packet"
    );
    bench.receive(
        &Header {
            seq: 1,
            epoch: EPOCH + 1,
            ..bench.reply(Kind::Nack)
        },
        &[],
    );
    let (outcomes, reason) = bench.closed();
    assert_eq!(reason, Closed::DataLoss { from: 1, to: 2 });
    assert!(
        matches!(outcomes[..], [(_, Outcome::Unknown)]),
        "{outcomes:?}"
    );
}

#[test]
fn too_few_copies_close_the_session() {
    // A chain whose log is still empty grants no session.
    for session in [SESSION, 0] {
        let mut bench = Bench::opening(ClientConfig {
            copies_min: 2,
            ..config()
        })
        .0;
        bench.update();
        let reply = Header {
            session,
            ..bench.reply(Kind::OpenReply)
        };
        bench.receive(&reply, &[]);
        let (outcomes, reason) = bench.closed();
        assert_eq!(reason, Closed::TooFewCopies { have: 1 });
        assert!(
            matches!(outcomes[..], [(_, Outcome::Failed(_))]),
            "{outcomes:?}"
        );
    }
}

/// A client leaves no gap in a NIC's slots. So if a device misses an update that its NIC has acknowledged, it has lost
/// the update to another host's packet (docs/spec/verbs.md §9).
#[test]
fn an_update_that_a_nic_acknowledged_and_the_device_misses_is_reported() {
    let mut bench = Bench::open();
    for _ in 0..3 {
        bench.update();
    }
    bench.flush();
    bench.ack(1);
    bench.client.taken_by_nic(bench.now, SESSION, 2, EPOCH);
    assert_eq!(bench.outcomes().len(), 2);
    bench.nack(2);
    let (outcomes, reason) = bench.closed();
    assert_eq!(reason, Closed::DataLoss { from: 2, to: 2 });
    assert!(
        matches!(outcomes[..], [(_, Outcome::Unknown)]),
        "{outcomes:?}"
    );
}
