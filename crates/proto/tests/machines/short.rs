//! A store that is short of space: the server tells the devices, the head tells the clients, and during the shortage no
//! update is acknowledged early (`docs/spec/protocol.md` §4).

use crate::support::device::{
    Bench, client, config, from_client, from_hop, hop, refused, server, update,
};
use crate::support::{SESSION, TOKEN, client as clients, kinds, ms, only, peer, server as servers};
use pmnet_proto::Time;
use pmnet_proto::client::{Closed, Outcome};
use pmnet_proto::device::{Acknowledger, DeviceConfig};
use pmnet_wire::record::{DurableRow, write_durable};
use pmnet_wire::{Flags, Header, Kind, raw};

/// APPLIED up to `order`.
fn applied(bench: &mut Bench, order: u64, flags: Flags) {
    let header = Header {
        order,
        flags,
        request: raw(1_000),
        ..from_hop(Kind::Applied, 0)
    };
    assert_eq!(bench.answer(server(), &header, &[]), []);
}

#[test]
fn a_head_admits_no_update_but_lets_sessions_begin_and_end() {
    let mut bench = Bench::head(1);
    assert!(bench.device.admits());
    applied(&mut bench, 1, Flags::SHORT);
    assert!(!bench.device.admits(), "nor does what is in the kernel");
    let sent = refused(&mut bench, &update(1));
    assert_eq!((sent.header.kind, sent.header.seq), (Kind::NotLogged, 1));
    assert!(sent.header.flags.has(Flags::SHORT) && sent.header.request.raw() > 0);
    let open = Header {
        session: 0,
        tag: TOKEN + 2,
        ..from_client(Kind::Open, 0)
    };
    bench.admit(&open, &(TOKEN + 2).to_be_bytes());
    bench.device.persisted(2);
    let reply = only(bench.finish());
    assert_eq!(reply.header.kind, Kind::OpenReply);
    assert!(reply.header.flags.has(Flags::SHORT), "it need not find out");
    bench.admit(&from_client(Kind::End, 1), b"");
    applied(&mut bench, 1, Flags::default());
    assert!(bench.device.admits());
}

/// Regression: an update that a NIC had acknowledged waited in its slot until the store had room, and all bypasses
/// after it waited, too.
#[test]
fn what_a_nic_has_acknowledged_is_admitted_all_the_same() {
    let config = DeviceConfig {
        acknowledger: Acknowledger::Nic,
        ..config(1, server())
    };
    let mut bench = Bench::head_with(1, config);
    applied(&mut bench, 1, Flags::SHORT);
    bench.admit(&update(1), b"payload");
}

#[test]
fn who_was_told_hears_of_the_end_with_the_next_answer() {
    let mut bench = Bench::head(1);
    bench.admit(&update(1), b"payload");
    bench.device.persisted(2);
    let ack = only(bench.finish());
    assert!(ack.header.kind == Kind::Ack && !ack.header.flags.has(Flags::SHORT));
    applied(&mut bench, 2, Flags::SHORT);
    refused(&mut bench, &update(2));
    let response = Header {
        seq: 1,
        order: 2,
        request: raw(1),
        session: SESSION,
        ..from_hop(Kind::Response, 0)
    };
    for (flags, more) in [
        (Flags::SHORT, true),
        (Flags::default(), true),
        (Flags::default(), false),
    ] {
        applied(&mut bench, 2, flags);
        let mut sent = bench.answer(server(), &response, b"+OK\r\n");
        sent.extend(bench.finish());
        let acks: Vec<_> = sent
            .iter()
            .filter(|sent| sent.header.kind == Kind::Ack)
            .collect();
        assert_eq!(acks.len(), usize::from(more), "{:?}", kinds(&sent));
        for ack in acks {
            assert_eq!((ack.to, ack.header.flags), (client(), flags));
        }
    }
    bench.admit(&update(2), b"payload");
}

#[test]
fn the_word_goes_from_hop_to_hop_until_it_is_over_and_once_more() {
    let mut tail = Bench::serving(2, 2);
    tail.answer(peer(1), &from_hop(Kind::Ping, 1), &[]);
    tail.finish();
    for (at, flags) in (0..4).zip([
        Flags::SHORT,
        Flags::SHORT,
        Flags::default(),
        Flags::default(),
    ]) {
        applied(&mut tail, 0, flags);
        assert_eq!(tail.device.admits(), flags != Flags::SHORT);
        let sent = tail.finish();
        match at {
            3 => assert_eq!(sent, []),
            _ => assert_eq!(only(sent).header.flags, flags),
        }
    }
    let mut head = Bench::head(2);
    let rows = [DurableRow {
        device: 2,
        incarnation: 1,
        order: 1,
    }];
    for short in [Flags::SHORT, Flags::default()] {
        let durable = Header {
            order: 1,
            request: raw(1_000),
            flags: short,
            ..from_hop(Kind::Durable, 2)
        };
        head.answer(hop(2, 2), &durable, &write_durable(&rows));
        assert_eq!(head.device.admits(), short != Flags::SHORT);
    }
}

/// The word of the hop after it, and that of the server, do not end what a device knows about its own log.
#[test]
fn a_device_whose_log_is_endangered_is_short_until_it_ends() {
    let mut tail = Bench::serving(2, 2);
    tail.answer(peer(1), &from_hop(Kind::Ping, 1), &[]);
    tail.finish();
    tail.device.endanger();
    assert_eq!(only(tail.finish()).header.flags, Flags::SHORT);
    applied(&mut tail, 0, Flags::default());
    assert_eq!(only(tail.finish()).header.flags, Flags::SHORT);
    let mut head = Bench::head(2);
    head.admit(&update(1), b"payload");
    head.device.persisted(2);
    head.device.endanger();
    assert!(!head.device.admits());
    let refusal = refused(&mut head, &update(2));
    assert!(refusal.header.flags.has(Flags::SHORT));
    let durable = Header {
        order: 1,
        request: raw(1_000),
        ..from_hop(Kind::Durable, 2)
    };
    let rows = [DurableRow {
        device: 2,
        incarnation: 1,
        order: 1,
    }];
    head.answer(hop(2, 2), &durable, &write_durable(&rows));
    assert!(!head.device.admits());
}

#[test]
fn a_server_says_it_with_each_work_and_after_the_end_often_enough() {
    let mut bench = servers::Bench::new();
    bench.work();
    assert_eq!(bench.finish(), []);
    for _ in 0..3 {
        bench.server.set_room(true, false);
        let word = only(bench.finish()).header;
        assert_eq!((word.kind, word.flags), (Kind::Applied, Flags::SHORT));
    }
    let mut told = 0;
    for _ in 0..20 {
        bench.server.set_room(false, false);
        for sent in bench.finish() {
            assert_eq!(
                (sent.header.kind, sent.header.flags),
                (Kind::Applied, Flags::default())
            );
            told += 1;
        }
    }
    assert!((4..=8).contains(&told), "{told}");
}

#[test]
fn a_client_asks_for_no_promise_while_the_store_is_short() {
    let mut bench = clients::Bench::open();
    let first = bench.update();
    assert_eq!(kinds(&bench.flush()), [Kind::Update]);
    let refused = Header {
        seq: 1,
        flags: Flags::SHORT,
        ..bench.reply(Kind::NotLogged)
    };
    bench.receive(&refused, &[]);
    let (second, third) = (bench.update(), bench.update());
    let fallback = only(bench.flush());
    assert!(
        fallback.is(Kind::Bypass, Flags::FALLBACK),
        "what has its seq falls back"
    );
    bench.confirm_fallback(1);
    // The calls are sent one after the other, in their order, and the store answers.
    for (request, call, reply) in [(1, second, "-OOM full\r\n"), (2, third, "+OK\r\n")] {
        let asked = only(bench.flush());
        assert_eq!(
            (asked.header.kind, asked.header.request),
            (Kind::Bypass, raw(request))
        );
        assert_eq!(
            (asked.header.seq, asked.header.flags),
            (1, Flags::default())
        );
        bench.response(request, Flags::default(), reply.as_bytes());
        let done = bench.outcomes();
        let answer = (call, Outcome::Reply(reply.as_bytes().to_vec().into()));
        assert_eq!(done.last(), Some(&answer));
        if request == 1 {
            assert_eq!(done[0], (first, Outcome::Committed { copies: 0 }));
        }
    }
    bench.ack(1);
    bench.update();
    assert_eq!(
        kinds(&bench.flush()),
        [Kind::Update],
        "until an ACK says that there is room"
    );
}

/// After a bypass of unknown outcome a fence is sent before the next call, of any kind.
#[test]
fn an_update_that_goes_as_a_bypass_waits_for_the_fence_too() {
    let mut bench = clients::Bench::open();
    let short = Header {
        flags: Flags::SHORT,
        ..bench.reply(Kind::OpenReply)
    };
    bench.receive(&short, &[]);
    bench.update();
    let asked = only(bench.flush());
    assert_eq!(
        (asked.header.kind, asked.header.request),
        (Kind::Bypass, raw(1))
    );
    let _resent = bench.after(3_600_000_000_000);
    assert!(
        bench
            .outcomes()
            .iter()
            .any(|(_, outcome)| *outcome == Outcome::Unknown)
    );
    let sent = bench.update();
    let fence = only(bench.flush());
    assert_eq!(
        (fence.header.kind, fence.header.request),
        (Kind::Bypass, raw(2))
    );
    bench.response(2, Flags::default(), b"+OK\r\n");
    let asked = only(bench.flush());
    assert_eq!(
        (asked.header.kind, asked.header.request),
        (Kind::Bypass, raw(3))
    );
    bench.response(3, Flags::default(), b"+OK\r\n");
    assert_eq!(bench.outcomes(), [(sent, Outcome::Reply("+OK\r\n".into()))]);
    assert!(bench.now > Time(ms(1).0));
}

#[test]
fn while_the_store_is_full_no_session_begins_and_the_client_is_told() {
    let full = Flags::SHORT.with(Flags::FULL);
    // The report goes from the server to the tail, and from the tail to the head.
    let mut server = servers::Bench::new();
    server.work();
    server.finish();
    server.server.set_room(true, true);
    assert_eq!(only(server.finish()).header.flags, full);
    let mut tail = Bench::serving(2, 2);
    tail.answer(peer(1), &from_hop(Kind::Ping, 1), &[]);
    tail.finish();
    applied(&mut tail, 0, full);
    assert_eq!(only(tail.finish()).header.flags, full);
    // The head refuses an OPEN and states the reason. Open sessions continue.
    let mut head = Bench::head(1);
    applied(&mut head, 1, full);
    let open = Header {
        session: 0,
        tag: TOKEN + 2,
        ..from_client(Kind::Open, 0)
    };
    let sent = only(head.answer(client(), &open, &(TOKEN + 2).to_be_bytes()));
    assert_eq!(
        (sent.header.kind, sent.header.session),
        (Kind::NotLogged, 0)
    );
    assert!(sent.header.flags.has(full));
    head.admit(&from_client(Kind::End, 1), b"");
    applied(&mut head, 1, Flags::SHORT);
    head.admit(&open, &(TOKEN + 2).to_be_bytes());
    // The client's calls end at once, with an error text.
    let (mut bench, _) = clients::Bench::opening(clients::config());
    let call = bench.update();
    let refused = Header {
        session: 0,
        flags: full,
        ..bench.reply(Kind::NotLogged)
    };
    bench.receive(&refused, &[]);
    let (outcomes, reason) = bench.closed();
    assert_eq!(reason, Closed::StoreFull);
    let told = |outcome: &Outcome| matches!(outcome, Outcome::Failed(text) if text.contains("the store is full"));
    assert!(
        outcomes.len() == 1 && outcomes[0].0 == call && told(&outcomes[0].1),
        "{outcomes:?}"
    );
}
