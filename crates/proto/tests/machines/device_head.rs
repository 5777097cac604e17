//! The head: when it acknowledges, which entries it forwards, and which packets it passes on without giving them an
//! order (`docs/spec/protocol.md` §2 rules 3, 5, 7, 8; §4).

use crate::support::device::{
    Bench, ROOM, client, config, from_client, from_hop, hop, refused, server, update,
};
use crate::support::{EPOCH, SESSION, SHARD_TOKEN, Sent, TOKEN, kinds, only};
use pmnet_proto::device::{DeviceConfig, LogState, Verdict};
use pmnet_proto::time::MILLISECOND;
use pmnet_wire::record::{DurableRow, write_durable};
use pmnet_wire::{Flags, Header, Kind, raw};

#[test]
fn an_update_is_acknowledged_when_it_is_durable_and_not_before() {
    let mut bench = Bench::head(1);
    assert_eq!(bench.forwards().len(), 1, "the OPEN is durable");
    let entry = bench.admit(
        &Header {
            key_hash: raw(5),
            ..update(1)
        },
        b"payload",
    );
    assert_eq!(
        (entry.kind, entry.copies.raw(), entry.order),
        (Kind::Append, 3, 2)
    );
    assert_eq!(
        (entry.session, entry.seq, entry.key_hash.raw()),
        (SESSION, 1, 5)
    );
    assert_eq!(
        (entry.device, entry.incarnation, entry.epoch),
        (1, 1, EPOCH)
    );
    assert_eq!(
        entry.tag, SHARD_TOKEN,
        "the session's token stays in the head"
    );
    assert_eq!((bench.finish(), bench.forwards()), (vec![], vec![]));
    bench.admit(&update(2), b"");
    bench.admit(&update(3), b"");
    bench.device.persisted(3);
    let ack = only(bench.finish());
    assert_eq!(
        (ack.to, ack.header.kind, ack.header.seq),
        (client(), Kind::Ack, 2)
    );
    assert_eq!(
        (ack.header.copies.raw(), ack.header.order, ack.header.tag),
        (1, 3, TOKEN)
    );
    assert_eq!((ack.header.device, ack.header.incarnation), (1, 1));
    assert_eq!(ack.header.request, raw(ROOM.entries), "free entries");
    bench.device.persisted(4);
    assert_eq!(only(bench.finish()).header.seq, 3, "one ack for the burst");
}

#[test]
fn an_acknowledgement_needs_every_device_of_the_chain() {
    for first in ["own", "others"] {
        let mut bench = Bench::head(3);
        bench.admit(&update(1), b"payload");
        if first == "own" {
            bench.device.persisted(2);
            assert_eq!(bench.finish(), []);
            bench.durable(3, 2);
        } else {
            bench.durable(3, 2);
            assert_eq!(bench.finish(), []);
            bench.device.persisted(2);
        }
        assert_eq!(only(bench.finish()).header.copies, raw(3), "{first} first");
    }
}

#[test]
fn durable_of_a_part_or_of_others_is_not_enough() {
    let row = |device, order| DurableRow {
        device,
        incarnation: 1,
        order,
    };
    for (what, rows) in [
        ("the tail lacks it", vec![row(2, 2), row(3, 1)]),
        ("the middle lacks it", vec![row(2, 1), row(3, 2)]),
        ("the tail is missing", vec![row(2, 2)]),
        ("one too many", vec![row(2, 2), row(3, 2), row(4, 2)]),
        ("a device twice", vec![row(2, 2), row(2, 2)]),
        ("turned round", vec![row(3, 2), row(2, 2)]),
        ("its own word", vec![row(1, 2), row(3, 2)]),
    ] {
        let mut bench = Bench::head(3);
        bench.admit(&update(1), b"payload");
        bench.device.persisted(2);
        let header = from_hop(Kind::Durable, 2);
        assert_eq!(bench.answer(hop(3, 2), &header, &write_durable(&rows)), []);
        assert_eq!(bench.finish(), [], "{what}");
        assert_eq!(bench.device.cursors().2, 1, "{what}");
    }
}

/// Regression: a follower restarted and had lost the end of its log. The head still counted all entries that the
/// follower had reported before the restart, and did not send them again. So the chain stood still for ever.
#[test]
fn a_follower_that_comes_back_with_less_is_filled_again() {
    let mut bench = Bench::head(2);
    bench.admit(&update(1), b"payload");
    bench.admit(&update(2), b"payload");
    bench.device.persisted(3);
    assert_eq!(bench.forwards().len(), 2);
    bench.durable(2, 3);
    assert_eq!(bench.device.cursors(), (3, 3, 3, 0));
    let says = |incarnation, order| {
        let row = DurableRow {
            device: 2,
            incarnation,
            order,
        };
        let header = Header {
            order,
            request: raw(1_000),
            ..from_hop(Kind::Durable, 2)
        };
        (header, write_durable(&[row]))
    };
    let (header, rows) = says(2, 1);
    bench.answer(hop(2, 2), &header, &rows);
    let again: Vec<u64> = bench.forwards().iter().map(|s| s.header.order).collect();
    assert_eq!(again, [2, 3], "what it lacks");
    assert_eq!(bench.device.cursors().2, 3, "what is committed stays so");
    // A late DURABLE of the earlier incarnation changes nothing.
    let (header, rows) = says(1, 2);
    bench.answer(hop(2, 2), &header, &rows);
    assert_eq!(bench.forwards(), []);
}

#[test]
fn what_the_server_applied_is_committed_and_reclaimed() {
    let mut bench = Bench::head(1);
    bench.admit(&update(1), b"payload");
    bench.device.persisted(2);
    bench.finish();
    bench.forwards();
    let applied = Header {
        order: 2,
        request: raw(9),
        ..from_hop(Kind::Applied, 0)
    };
    assert_eq!(bench.answer(server(), &applied, &[]), []);
    assert_eq!(bench.device.cursors(), (2, 2, 2, 2));
    bench.admit(&update(2), b"payload");
    bench.device.persisted(3);
    let ack = only(bench.finish());
    assert_eq!(
        (ack.header.seq, ack.header.key_hash.raw()),
        (2, 1),
        "committed 2, applied 1"
    );
    // An older APPLIED changes nothing.
    let older = Header {
        order: 1,
        ..applied
    };
    bench.answer(server(), &older, &[]);
    assert_eq!(bench.device.cursors().3, 2);
}

/// Only the head gives orders. If the server has applied an order that this head never gave, another device serves with
/// a copy of the head's log. Then one of the two devices acknowledges updates that will be lost.
#[test]
fn orders_that_the_head_never_gave_stop_it() {
    let mut bench = Bench::head(1);
    bench.admit(&update(1), b"payload");
    let applied = |order| Header {
        order,
        request: raw(9),
        ..from_hop(Kind::Applied, 0)
    };
    bench.device.persisted(2);
    bench.answer(server(), &applied(2), &[]);
    match bench.give(server(), &applied(3), &[]) {
        Verdict::Stop(text) => assert!(text.contains("copy of this log"), "{text}"),
        other => panic!("{other:?}"),
    }
    assert!(!bench.device.is_serving());
}

#[test]
fn a_duplicate_is_acknowledged_again_and_not_appended_again() {
    let mut bench = Bench::head(1);
    bench.admit(&update(1), b"payload");
    assert_eq!(bench.answer(client(), &update(1), b"payload"), []);
    assert!(
        bench.finish().iter().all(|s| s.header.kind != Kind::Ack),
        "not durable yet"
    );
    bench.device.persisted(2);
    bench.finish();
    for _ in 0..3 {
        assert_eq!(bench.answer(client(), &update(1), b"payload"), []);
    }
    let ack = only(bench.finish());
    assert_eq!((ack.header.kind, ack.header.seq), (Kind::Ack, 1));
    assert_eq!(
        (bench.frames.len(), bench.device.counters().duplicates),
        (2, 4)
    );
}

#[test]
fn a_bypass_carries_the_barrier_and_waits_for_its_own_updates() {
    let mut bench = Bench::head(1);
    bench.admit(&update(1), b"payload");
    let bypass = Header {
        request: raw(6),
        ..from_client(Kind::Bypass, 1)
    };
    let sent = only(bench.answer(client(), &bypass, b"GET"));
    assert_eq!(
        (sent.to, sent.header.order),
        (server(), 2),
        "the last order, durable or not"
    );
    assert_eq!((sent.header.tag, sent.header.device), (SHARD_TOKEN, 1));
    assert_eq!((sent.header.seq, sent.header.request.raw()), (1, 6));
    let nack = refused(&mut bench, &Header { seq: 2, ..bypass });
    assert_eq!(
        (nack.header.kind, nack.header.seq, nack.header.request.raw()),
        (Kind::Nack, 2, 6)
    );
    let response = Header {
        session: SESSION,
        request: raw(6),
        ..from_hop(Kind::Response, 0)
    };
    let reply = only(bench.answer(server(), &response, b"reply"));
    assert_eq!(
        (reply.to, reply.header.tag, &reply.payload[..]),
        (client(), TOKEN, &b"reply"[..])
    );
}

#[test]
fn a_fallback_passes_and_its_confirmation_moves_the_session() {
    let mut bench = Bench::head(1);
    let fallback = Header {
        flags: Flags::FALLBACK,
        request: raw(1),
        ..from_client(Kind::Bypass, 3)
    };
    assert_eq!(only(bench.answer(client(), &fallback, b"SET")).to, server());
    let confirm = Header {
        session: SESSION,
        seq: 3,
        flags: Flags::FALLBACK,
        ..from_hop(Kind::Response, 0)
    };
    let progress = Header {
        flags: Flags::FALLBACK.with(Flags::PROGRESS),
        ..confirm
    };
    bench.answer(server(), &progress, &[]);
    assert_eq!(
        refused(&mut bench, &update(4)).header.seq,
        1,
        "half a fallback is none"
    );
    bench.finish();
    let passed = only(bench.answer(server(), &confirm, &[]));
    assert_eq!((passed.to, passed.header.seq), (client(), 3));
    assert_eq!(
        bench.answer(client(), &update(3), b""),
        [],
        "a duplicate now"
    );
    assert_eq!(
        only(bench.finish()).header.seq,
        3,
        "and acknowledged as one"
    );
    bench.admit(&update(4), b"payload");
    bench.answer(server(), &confirm, &[]);
    assert_eq!(
        bench.answer(client(), &update(4), b""),
        [],
        "an old confirmation takes nothing back"
    );
}

#[test]
fn a_packet_of_a_later_epoch_ends_service_until_the_server_has_spoken() {
    let hop_packet = Header {
        epoch: EPOCH + 1,
        ..from_hop(Kind::Applied, 0)
    };
    let mut bench = Bench::head(1);
    bench.admit(&update(1), b"payload");
    assert_eq!(bench.answer(server(), &hop_packet, b""), []);
    assert!(!bench.device.is_serving());
    assert_eq!((bench.finish(), bench.forwards()), (vec![], vec![]));
    assert_eq!(bench.answer(client(), &update(2), b""), []);
    assert_eq!(kinds(&bench.tick()), [Kind::Recover]);
}

/// Regression: after one client's packet with an invented epoch, the head stopped serving all clients until the server
/// answered.
#[test]
fn a_clients_word_of_a_later_epoch_makes_the_head_ask_and_go_on() {
    for kind in [Kind::Update, Kind::Bypass, Kind::Ping] {
        let mut bench = Bench::head(1);
        let invented = Header {
            epoch: u32::MAX,
            ..from_client(kind, 1)
        };
        let asked = only(bench.answer(client(), &invented, b""));
        assert_eq!((asked.to, asked.header.kind), (server(), Kind::Recover));
        assert_eq!(bench.answer(client(), &invented, b""), [], "not for each");
        bench.admit(&update(1), b"payload");
        bench.device.persisted(2);
        assert_eq!(only(bench.finish()).header.kind, Kind::Ack, "{kind:?}");
        // The server itself reports a later epoch, and the head stops serving.
        let reply = Header {
            epoch: EPOCH + 1,
            request: asked.header.request,
            ..from_hop(Kind::RecoverReply, 1)
        };
        bench.answer(server(), &reply, &[]);
        assert!(!bench.device.is_serving());
    }
}

#[test]
fn a_packet_of_an_earlier_epoch_is_answered_and_has_no_effect() {
    let mut bench = Bench::head(2);
    bench.admit(&update(1), b"payload");
    bench.device.persisted(2);
    let old = Header {
        epoch: EPOCH - 1,
        order: 2,
        ..from_hop(Kind::Applied, 2)
    };
    let answer = only(bench.answer(hop(2, 2), &old, &[]));
    assert_eq!(
        (answer.header.kind, answer.header.epoch),
        (Kind::StaleEpoch, EPOCH)
    );
    assert_eq!(bench.device.cursors(), (2, 2, 1, 0));
    let itself = Header {
        kind: Kind::StaleEpoch,
        ..old
    };
    assert_eq!(bench.answer(hop(2, 2), &itself, &[]), [], "no ping-pong");
}

#[test]
fn only_what_is_durable_is_forwarded_and_only_as_far_as_there_is_room() {
    let mut bench = Bench::head(1);
    for seq in 1..=40 {
        bench.admit(&update(seq), b"payload");
    }
    bench.device.persisted(10);
    let orders = |sent: Vec<Sent>| sent.iter().map(|s| s.header.order).collect::<Vec<_>>();
    assert_eq!(orders(bench.forwards()), (1..=10).collect::<Vec<_>>());
    bench.device.persisted(41);
    assert_eq!(
        orders(bench.forwards()),
        (11..=16).collect::<Vec<_>>(),
        "a small credit at first"
    );
    let applied = Header {
        order: 16,
        request: raw(5),
        ..from_hop(Kind::Applied, 0)
    };
    bench.answer(server(), &applied, &[]);
    assert_eq!(orders(bench.forwards()), (17..=21).collect::<Vec<_>>());
    // The server lacks order 19: the device sends it from the log, with the entries that follow.
    let retrans = Header {
        order: 19,
        request: raw(19),
        ..from_hop(Kind::Retrans, 0)
    };
    bench.answer(server(), &retrans, &[]);
    assert_eq!(orders(bench.forwards()), [19, 20, 21]);
    bench.answer(server(), &retrans, &[]);
    assert_eq!(orders(bench.forwards()), [], "asked for again at once");
    bench.now = bench.now + MILLISECOND;
    bench.answer(
        server(),
        &Header {
            order: 3,
            ..retrans
        },
        &[],
    );
    assert_eq!(
        orders(bench.forwards()),
        (17..=21).collect::<Vec<_>>(),
        "not what is applied"
    );
    // After silence the device sends all unconfirmed entries again.
    bench.tick_after(250 * MILLISECOND);
    assert_eq!(orders(bench.forwards()), (17..=21).collect::<Vec<_>>());
}

#[test]
fn a_few_entries_wait_for_company_unless_somebody_waits_for_them() {
    let lingering = || {
        let config = DeviceConfig {
            server_linger: 2 * MILLISECOND,
            ..config(1, server())
        };
        let mut bench = Bench::head_with(1, config);
        bench.forwards();
        bench.now = bench.now + 2 * MILLISECOND;
        assert_eq!(bench.forwards().len(), 1, "the OPEN");
        bench.admit(&update(1), b"payload");
        bench.device.persisted(2);
        assert_eq!(
            only(bench.finish()).header.kind,
            Kind::Ack,
            "not the client"
        );
        bench
    };
    let mut bench = lingering();
    assert_eq!(bench.forwards(), []);
    let until = bench.now + 2 * MILLISECOND;
    assert!(bench.device.next_timeout().is_some_and(|at| at <= until));
    bench.now = until;
    assert_eq!(bench.forwards().len(), 1);
    let mut bench = lingering();
    assert_eq!(bench.forwards(), []);
    bench.answer(client(), &from_client(Kind::Bypass, 1), b"GET");
    assert_eq!(bench.forwards().len(), 1, "a bypass waits for it");
}

#[test]
fn a_stopped_or_unready_device_says_nothing() {
    let state = LogState {
        log_uuid: 1,
        served: 1,
        incarnation: 1,
        epoch: EPOCH,
        last: 0,
        applied: 0,
    };
    let mut bench = Bench::starting(config(1, server()), state, Vec::new());
    for header in [
        update(1),
        from_client(Kind::Bypass, 0),
        from_client(Kind::Ping, 0),
    ] {
        assert_eq!(bench.give(client(), &header, b"payload"), Verdict::Done);
    }
    assert_eq!(
        (bench.finish(), bench.device.counters().not_ready),
        (vec![], 3)
    );
}
