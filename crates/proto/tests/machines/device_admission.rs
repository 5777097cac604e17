//! The head: which senders may write, and which updates are admitted (`docs/spec/protocol.md` §2 rules 1 and 2, §4).

use crate::support::device::{
    Bench, ROOM, client, config, from_client, from_hop, refused, server, update,
};
use crate::support::{SESSION, SHARD, Sent, TOKEN, ms, only, peer};
use pmnet_proto::device::{DeviceConfig, Room};
use pmnet_proto::time::SECOND;
use pmnet_wire::{Flags, Header, Kind};

#[test]
fn a_gap_is_told_once_a_burst() {
    let mut bench = Bench::head(1);
    let nack = refused(&mut bench, &update(3));
    assert_eq!((nack.header.kind, nack.header.seq), (Kind::Nack, 1));
    assert_eq!(bench.answer(client(), &update(4), b""), []);
    bench.finish();
    assert_eq!(refused(&mut bench, &update(2)).header.seq, 1);
}

#[test]
fn no_room_is_not_logged() {
    let quota = DeviceConfig {
        session_entries_max: 2,
        ..config(1, server())
    };
    let full = Room { entries: 0, ..ROOM };
    let narrow = Room {
        frame_bytes: 94,
        ..ROOM
    };
    for (what, config, room, admitted) in [
        ("no entry", config(1, server()), full, 0),
        ("no place for the frame", config(1, server()), narrow, 0),
        ("the session has its share", quota, ROOM, 1),
    ] {
        let mut bench = Bench::head_with(1, config);
        for seq in 1..=admitted {
            bench.admit(&update(seq), b"payload");
        }
        bench.room = room;
        let sent = refused(&mut bench, &update(admitted + 1));
        assert_eq!(
            (sent.header.kind, sent.header.seq),
            (Kind::NotLogged, admitted + 1),
            "{what}"
        );
        assert_eq!(sent.header.session, SESSION, "{what}");
        bench.room = ROOM;
        bench.device.persisted(admitted + 1);
        let applied = Header {
            order: admitted + 1,
            ..from_hop(Kind::Applied, 0)
        };
        bench.answer(server(), &applied, &[]);
        bench.admit(&update(admitted + 1), b"payload");
    }
}

#[test]
fn nothing_is_admitted_behind_an_end() {
    let mut bench = Bench::head(1);
    bench.admit(&from_client(Kind::End, 1), b"");
    bench.answer(client(), &update(2), b"payload");
    bench.finish();
    bench.device.persisted(2);
    let ack = only(bench.finish());
    assert_eq!(
        (ack.header.kind, ack.header.seq),
        (Kind::Ack, 1),
        "the END, and no more"
    );
    bench.answer(client(), &from_client(Kind::End, 1), b"");
    assert_eq!(only(bench.finish()), ack, "asked again");
    let applied = Header {
        order: 2,
        ..from_hop(Kind::Applied, 0)
    };
    bench.answer(server(), &applied, &[]);
    bench.finish();
    assert_eq!(bench.device.sessions(), 0);
    let nack = refused(&mut bench, &update(2));
    assert!(nack.is(Kind::Nack, Flags::UNKNOWN_SESSION));
    assert_eq!(bench.frames.len(), 2);
}

#[test]
fn strangers_are_refused() {
    let mut bench = Bench::head(1);
    let unknown = Header {
        session: 77,
        ..update(1)
    };
    for kind in [Kind::Update, Kind::End, Kind::Bypass, Kind::Ping] {
        let nack = refused(&mut bench, &Header { kind, ..unknown });
        assert!(nack.is(Kind::Nack, Flags::UNKNOWN_SESSION), "{kind:?}");
        assert_eq!(nack.header.session, 77);
    }
    for (what, header) in [
        ("wrong token", update(1)),
        ("wrong token in a bypass", from_client(Kind::Bypass, 0)),
    ] {
        let wrong = Header {
            tag: TOKEN + 1,
            ..header
        };
        let nack = refused(&mut bench, &wrong);
        assert!(nack.is(Kind::Nack, Flags::UNKNOWN_SESSION), "{what}");
        assert_eq!(nack.header.tag, TOKEN + 1, "nothing is given away: {what}");
    }
    let silent = [
        (
            "wrong shard",
            Header {
                shard: SHARD + 1,
                ..update(1)
            },
        ),
        (
            "a hop's packet without its token",
            Header {
                tag: TOKEN,
                ..from_hop(Kind::Applied, 0)
            },
        ),
        ("an append to the head", from_hop(Kind::Append, 2)),
        (
            "an answer that nobody asked for",
            from_hop(Kind::RecoverReply, 0),
        ),
    ];
    for (what, header) in silent {
        assert_eq!(bench.answer(client(), &header, b"payload"), [], "{what}");
    }
    assert_eq!(
        bench.answer(server(), &update(1), b"payload"),
        [],
        "clients are not behind us"
    );
    let counted = bench.device.counters();
    assert_eq!(
        (counted.wrong_token, counted.wrong_shard, counted.unexpected),
        (3, 1, 2)
    );
    assert_eq!((bench.frames.len(), bench.finish()), (1, vec![]));
}

#[test]
fn an_open_makes_one_session_however_often_it_comes() {
    let mut bench = Bench::head(1);
    let other = Header {
        session: 0,
        tag: 0xabcd,
        ..from_client(Kind::Open, 0)
    };
    let token = 0xabcd_u64.to_be_bytes();
    let entry = bench.admit(&other, &token);
    assert_eq!(
        (entry.copies.raw(), entry.session, entry.order, entry.seq),
        (1, 2, 2, 0)
    );
    assert_eq!(
        bench.answer(client(), &other, &token),
        [],
        "not committed yet"
    );
    bench.device.persisted(2);
    let reply = only(bench.finish());
    assert_eq!(
        (reply.header.kind, reply.header.session),
        (Kind::OpenReply, 2)
    );
    assert_eq!(reply.header.tag, 0xabcd);
    assert_eq!(
        only(bench.answer(peer(201), &other, &token)).to,
        peer(201),
        "moved"
    );
    // A packet is an OPEN only if its payload is its token.
    for (tag, payload) in [(0xabce, &token[..]), (0, &[0; 8]), (0xabcd, &[]), (5, &[5])] {
        let header = Header { tag, ..other };
        assert_eq!(bench.answer(client(), &header, payload), []);
    }
    assert_eq!(bench.frames.len(), 2);
}

#[test]
fn new_sessions_stop_before_the_log_is_full() {
    let open = |n: u64| Header {
        session: 0,
        tag: n,
        ..from_client(Kind::Open, 0)
    };
    let mut bench = Bench::head(1);
    bench.room = Room {
        entries: 204,
        entries_max: 1_024,
        ..ROOM
    };
    let sent = only(bench.answer(client(), &open(9), &9u64.to_be_bytes()));
    assert_eq!(
        (sent.header.kind, sent.header.session, sent.header.tag),
        (Kind::NotLogged, 0, 9)
    );
    bench.admit(&update(1), b"the others go on");
    bench.room.entries = 205;
    bench.admit(&open(9), &9u64.to_be_bytes());
    let config = DeviceConfig {
        sessions_max: 1,
        ..config(1, server())
    };
    let mut bench = Bench::head_with(1, config);
    let sent = only(bench.answer(client(), &open(9), &9u64.to_be_bytes()));
    assert_eq!(sent.header.kind, Kind::NotLogged);
}

#[test]
fn a_silent_session_is_ended_by_the_head() {
    let config = DeviceConfig {
        session_idle: 8 * SECOND,
        ..config(1, server())
    };
    let mut bench = Bench::head_with(1, config);
    bench.admit(&update(1), b"payload");
    bench.device.persisted(2);
    bench.now = ms(6_000);
    bench.tick();
    let ping = from_client(Kind::Ping, 0);
    assert_eq!(
        only(bench.answer(client(), &ping, &[])).header.kind,
        Kind::Pong
    );
    bench.now = ms(13_000);
    bench.tick();
    assert_eq!(
        bench.device.poll_own_entry(bench.now, ROOM),
        None,
        "heard of 7 seconds ago"
    );
    bench.now = ms(16_000);
    bench.tick();
    assert_eq!(
        bench
            .device
            .poll_own_entry(bench.now, Room { entries: 0, ..ROOM }),
        None
    );
    let end = bench
        .device
        .poll_own_entry(bench.now, ROOM)
        .expect("an END");
    assert_eq!(
        (end.copies.raw(), end.session, end.seq, end.order),
        (19, SESSION, 2, 3)
    );
    assert_eq!(bench.device.poll_own_entry(bench.now, ROOM), None, "one");
    assert_eq!(bench.device.counters().expired_sessions, 1);
}

/// The head ends the session with an END. The client does not know this, and uses the END's seq for an update.
#[test]
fn an_update_is_never_acknowledged_by_an_end_in_its_place() {
    let config = DeviceConfig {
        session_idle: SECOND,
        ..config(1, server())
    };
    let mut bench = Bench::head_with(1, config);
    bench.admit(&update(1), b"payload");
    bench.device.persisted(2);
    bench.finish();
    bench.now = ms(5_000);
    bench.tick();
    let end = bench
        .device
        .poll_own_entry(bench.now, ROOM)
        .expect("an END");
    assert_eq!(end.seq, 2);
    bench.answer(client(), &update(2), b"payload");
    bench.finish();
    bench.device.persisted(3);
    bench.answer(client(), &update(2), b"payload");
    let sent = bench.finish();
    assert!(
        sent.iter()
            .all(|s| s.header.kind != Kind::Ack || s.header.seq < 2),
        "{sent:#?}"
    );
    let over = |s: &Sent| s.is(Kind::Nack, Flags::UNKNOWN_SESSION);
    assert!(
        sent.iter().any(over),
        "the client is told that the session is over: {sent:#?}"
    );
}
