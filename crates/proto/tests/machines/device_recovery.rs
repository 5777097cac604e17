//! A device that comes back: its questions, the answers that it accepts, and the answers that stop it
//! (`docs/spec/protocol.md` §4, §5).

use crate::support::device::{
    Bench, client, config, entry, from_client, from_hop, member, server, table,
};
use crate::support::{EPOCH, SESSION, SHARD_TOKEN, Sent, TOKEN, datagram, kinds, only, peer};
use pmnet_proto::Outbox;
use pmnet_proto::device::{DeviceConfig, LogState, Served, Verdict};
use pmnet_proto::time::{MILLISECOND, SECOND};
use pmnet_wire::record::{Member, RecoverReply, SessionRow, read_path, write_path};
use pmnet_wire::{Flags, FragmentSize, Header, Kind, raw};

const LOG: LogState = LogState {
    log_uuid: 1,
    incarnation: 6,
    served: 4,
    epoch: 2,
    last: 3,
    applied: 1,
};

/// Device 1 with orders 1 to 3 in its log, the first of which is applied, and its RECOVER.
fn restarted() -> (Bench, Sent) {
    let frames = (1..=3)
        .map(|order| {
            let (header, payload) = entry(order);
            datagram(&Header { epoch: 2, ..header }, &payload)
        })
        .collect();
    let config = DeviceConfig {
        flags: Member::SHRINK,
        ..config(1, server())
    };
    let mut bench = Bench::starting(config, LOG, frames);
    let recover = only(bench.tick());
    (bench, recover)
}

/// The server's reply: A is 2, and the session's last applied seq is 1.
fn reply(recover: &Sent) -> Header {
    Header {
        kind: Kind::RecoverReply,
        epoch: EPOCH,
        order: 2,
        tag: 0,
        ..recover.header
    }
}

fn sessions() -> Vec<u8> {
    table(
        1,
        &[SessionRow {
            session: SESSION,
            last_seq: 1,
            token: TOKEN,
            front: None,
        }],
    )
}

fn only_member(recover: &Sent) -> Member {
    let path = read_path(&recover.payload).expect("a path");
    assert_eq!(path.len(), 1);
    path[0]
}

/// A controller's order names its epoch (`docs/spec/protocol.md` §14). In another epoch the order has no effect, even
/// if the device is refused several times.
#[test]
fn a_word_that_names_its_epoch_is_about_no_other() {
    let mut config = config(1, server());
    config.flags = Member::SHRINK;
    config.word_epoch = Some(7);
    let mut bench = Bench::starting(config, LOG, Vec::new());
    let recover = only(bench.tick());
    assert_eq!(only_member(&recover).word_epoch, 7);
    let refusal = Header {
        flags: Flags::REFUSED.with(Flags::PROGRESS),
        epoch: 9,
        device: 1,
        incarnation: LOG.incarnation,
        request: recover.header.request,
        ..from_hop(Kind::RecoverReply, 0)
    };
    assert_eq!(bench.answer(server(), &refusal, b"not yet"), []);
    assert_eq!(bench.device.waits_for(), Some("not yet"));
    let again = only(bench.tick_after(SECOND));
    assert_eq!(only_member(&again).word_epoch, 7);
}

/// An operator's order ends one epoch. A second copy of the RECOVER with the order may arrive much later, and must not
/// end a later epoch.
#[test]
fn the_operators_word_names_the_epoch_that_it_ends() {
    let (mut bench, recover) = restarted();
    assert_eq!(only_member(&recover).word_epoch, 0);
    let refusal = Header {
        flags: Flags::REFUSED.with(Flags::PROGRESS),
        epoch: 9,
        device: 1,
        incarnation: 6,
        request: recover.header.request,
        ..from_hop(Kind::RecoverReply, 0)
    };
    assert_eq!(bench.answer(server(), &refusal, b"not yet"), []);
    assert_eq!(bench.device.waits_for(), None, "nobody has to do anything");
    let again = only(bench.tick());
    assert_ne!(again.header.request, recover.header.request);
    assert_eq!(only_member(&again).word_epoch, 9);
    let refusal = Header {
        request: again.header.request,
        ..refusal
    };
    assert_eq!(bench.answer(server(), &refusal, b"say more"), []);
    assert_eq!(bench.device.waits_for(), Some("say more"));
}

#[test]
fn it_says_who_it_is_and_asks_again() {
    let (mut bench, recover) = restarted();
    assert_eq!((recover.to, recover.header.kind), (server(), Kind::Recover));
    assert_eq!((recover.header.device, recover.header.incarnation), (1, 6));
    let me = Member {
        incarnation: 6,
        tail: 3,
        applied: 1,
        flags: Member::SHRINK,
        served: 4,
        ..member(1)
    };
    assert_eq!(only_member(&recover), me);
    assert_ne!(recover.header.request.raw(), 0, "a nonce");
    assert_eq!(bench.tick(), []);
    // Every second RECOVER has the length that an earlier version of pmnet accepts. That version knows only one size of
    // fragments.
    let padded = |payload: usize, sent: Sent| {
        assert_eq!(sent.payload.len(), payload);
        assert_eq!(only_member(&sent), me);
        assert_eq!(sent.header.request, recover.header.request);
    };
    padded(1144, recover.clone());
    padded(1344, only(bench.tick_after(300 * MILLISECOND)));
    padded(1144, only(bench.tick_after(300 * MILLISECOND)));
}

/// Found by the simulator (seed 34961): a device had sent the longest RECOVER when the MTU of its path shrank. It
/// repeated this RECOVER, which no longer arrived, until a reply came.
#[test]
fn a_question_becomes_shorter_when_the_path_does() {
    let (mut bench, recover) = restarted();
    let long = only(bench.tick_after(300 * MILLISECOND));
    assert_eq!(long.payload.len(), 1344);
    let mut out = Outbox::new();
    let size = FragmentSize::from_wire(1280);
    bench.device.set_path(bench.now, size, &mut out);
    for _ in 0..4 {
        let question = only(bench.tick_after(300 * MILLISECOND));
        assert!(question.payload.len() <= 1280, "{}", question.payload.len());
    }
    // The questions for further parts become shorter, too.
    let first = Header {
        fragment_count: 4,
        ..reply(&recover)
    };
    let questions = bench.answer(server(), &first, &table(1, &[]));
    assert_eq!(questions.len(), 3);
    for question in questions {
        assert!(question.payload.len() <= 1280, "{}", question.payload.len());
    }
}

#[test]
fn it_serves_what_the_log_holds_above_what_is_applied() {
    let (mut bench, recover) = restarted();
    let verdict = bench.give(server(), &reply(&recover), &sessions());
    bench.resume(&verdict);
    assert_eq!(bench.device.epoch(), EPOCH);
    assert_eq!(bench.device.cursors(), (3, 3, 3, 2));
    let sent = bench.forwards();
    assert_eq!(sent.iter().map(|s| s.header.order).collect::<Vec<_>>(), [3]);
    assert_eq!(
        (sent[0].header.epoch, sent[0].header.tag),
        (EPOCH, SHARD_TOKEN),
        "in this epoch"
    );
    // The session continues from the end of the log: seq 2 is order 3.
    assert_eq!(
        bench.answer(client(), &from_client(Kind::Update, 2), b"payload"),
        []
    );
    assert_eq!(only(bench.finish()).header.seq, 2);
    assert_eq!(
        bench.admit(&from_client(Kind::Update, 3), b"payload").order,
        4
    );
}

#[test]
fn replies_that_are_not_its_own_are_dropped() {
    let (mut bench, recover) = restarted();
    let right = reply(&recover);
    for (what, header) in [
        (
            "nonce",
            Header {
                request: raw(right.request.raw() + 1),
                ..right
            },
        ),
        ("device", Header { device: 2, ..right }),
        (
            "incarnation",
            Header {
                incarnation: 5,
                ..right
            },
        ),
    ] {
        assert_eq!(bench.answer(server(), &header, &sessions()), [], "{what}");
    }
    assert_eq!(
        bench.answer(client(), &right, &sessions()),
        [],
        "from somebody else"
    );
    assert_eq!(bench.answer(server(), &right, b"no table"), []);
    assert_eq!(bench.device.counters().unexpected, 5);
    assert!(!bench.device.is_serving());
    assert!(matches!(
        bench.give(server(), &right, &sessions()),
        Verdict::Resume(_)
    ));
}

#[test]
fn states_that_cannot_be_stop_it() {
    for (what, change) in [
        (
            "rolled back",
            Header {
                epoch: 1,
                ..Header::new(Kind::RecoverReply)
            },
        ),
        (
            "lost data",
            Header {
                order: 0,
                epoch: EPOCH,
                ..Header::new(Kind::RecoverReply)
            },
        ),
    ] {
        let (mut bench, recover) = restarted();
        let header = Header {
            epoch: change.epoch,
            order: change.order,
            ..reply(&recover)
        };
        match bench.give(server(), &header, &sessions()) {
            Verdict::Stop(text) => assert!(text.contains(what), "{text}"),
            verdict => panic!("{what}: {verdict:?}"),
        }
        assert_eq!(bench.tick_after(1_000 * MILLISECOND), []);
    }
}

#[test]
fn a_refusal_stops_it_and_a_hold_does_not() {
    let (mut bench, recover) = restarted();
    let hold = Flags::REFUSED.with(Flags::PROGRESS);
    let header = Header {
        flags: hold,
        ..reply(&recover)
    };
    // The first answer is a refusal. The device takes only the epoch from it.
    assert_eq!(bench.answer(server(), &header, b"say --shrink-chain"), []);
    let recover = only(bench.tick());
    let header = Header {
        flags: hold,
        ..reply(&recover)
    };
    assert_eq!(bench.answer(server(), &header, b"say --shrink-chain"), []);
    assert_eq!(bench.device.waits_for(), Some("say --shrink-chain"));
    assert_eq!(kinds(&bench.tick_after(300 * MILLISECOND)), [Kind::Recover]);
    let header = Header {
        flags: Flags::REFUSED,
        ..reply(&recover)
    };
    let verdict = bench.give(server(), &header, b"another log");
    assert_eq!(verdict, Verdict::Stop("another log".to_owned()));
    assert_eq!(bench.device.next_timeout(), None);
}

#[test]
fn a_long_session_table_comes_in_parts() {
    let (mut bench, recover) = restarted();
    let part = |index: u16, count: u16| Header {
        fragment_index: index,
        fragment_count: count,
        ..reply(&recover)
    };
    let row = |n: u64| SessionRow {
        session: n,
        last_seq: 1,
        token: n + 1_000,
        front: None,
    };
    let rows = |n: u64| table(1, &[row(n * 10), row(n * 10 + 1)]);
    let asked = bench.answer(server(), &part(0, 4), &rows(0));
    let indices: Vec<u16> = asked.iter().map(|s| s.header.fragment_index).collect();
    assert_eq!(
        (indices, kinds(&asked)),
        (vec![1, 2, 3], vec![Kind::Recover; 3])
    );
    assert_eq!(bench.answer(server(), &part(2, 4), &rows(2)), []);
    assert_eq!(bench.answer(server(), &part(2, 4), &rows(2)), [], "twice");
    assert_eq!(bench.answer(server(), &part(1, 4), &rows(1)), []);
    let again = only(bench.tick_after(300 * MILLISECOND));
    assert_eq!(again.header.fragment_index, 3, "the one that is missing");
    let verdict = bench.give(server(), &part(3, 4), &rows(3));
    bench.resume(&verdict);
    assert_eq!(bench.device.sessions(), 8);
}

#[test]
fn parts_of_two_states_are_not_mixed() {
    let (mut bench, recover) = restarted();
    let first = Header {
        fragment_count: 2,
        ..reply(&recover)
    };
    bench.answer(server(), &first, &table(1, &[]));
    let second = Header {
        fragment_index: 1,
        order: 3,
        ..first
    };
    assert_eq!(bench.answer(server(), &second, &table(1, &[])), []);
    assert!(!bench.device.is_serving());
    let anew = only(bench.tick());
    assert_eq!(
        (anew.header.kind, anew.header.fragment_count),
        (Kind::Recover, 1)
    );
    assert_ne!(
        anew.header.request, recover.header.request,
        "under a new nonce"
    );
}

/// The server restarts while the device still lacks a part of the session table, and the new table is shorter
/// (simulator, seed 99218).
#[test]
fn a_table_that_became_shorter_is_asked_for_anew() {
    let (mut bench, recover) = restarted();
    let first = Header {
        fragment_count: 2,
        ..reply(&recover)
    };
    only(bench.answer(server(), &first, &table(1, &[])));
    assert_eq!(
        only(bench.tick_after(300 * MILLISECOND))
            .header
            .fragment_index,
        1
    );
    let shorter = Header {
        epoch: EPOCH + 1,
        ..reply(&recover)
    };
    assert_eq!(bench.answer(server(), &shorter, &table(1, &[])), []);
    let anew = only(bench.tick());
    assert_eq!(
        (anew.header.kind, anew.header.fragment_count),
        (Kind::Recover, 1)
    );
    let verdict = bench.give(server(), &reply(&anew), &table(1, &[]));
    bench.resume(&verdict);
    assert!(bench.device.is_serving());
}

#[test]
fn it_takes_others_to_the_server_and_their_replies_back() {
    let mut bench = Bench::serving(1, 1);
    let path = write_path(&[member(9)]);
    let recover = Header {
        request: raw(77),
        tag: 0,
        ..from_hop(Kind::Recover, 9)
    };
    let sent = only(bench.answer(peer(9), &recover, &path));
    assert_eq!((sent.to, sent.header.request.raw()), (server(), 77));
    let devices: Vec<u32> = read_path(&sent.payload)
        .expect("a path")
        .iter()
        .map(|m| m.device)
        .collect();
    assert_eq!(devices, [9, 1], "it adds itself");
    let answer = Header {
        kind: Kind::RecoverReply,
        ..recover
    };
    let back = only(bench.answer(server(), &answer, &table(1, &[])));
    assert_eq!((back.to, back.header.request.raw()), (peer(9), 77));
    assert!(bench.device.is_serving());
    only(bench.answer(peer(9), &recover, &path));
    let later = Header {
        epoch: EPOCH + 1,
        ..answer
    };
    let back = only(bench.answer(server(), &later, &table(2, &[])));
    assert_eq!(back.to, peer(9));
    assert!(
        !bench.device.is_serving(),
        "a later epoch: it asks for itself too"
    );
}

#[test]
fn a_path_in_a_circle_or_too_long_goes_nowhere() {
    let mut bench = Bench::serving(1, 1);
    let recover = from_hop(Kind::Recover, 9);
    let long: Vec<Member> = (2..10).map(member).collect();
    for (from, payload) in [
        (peer(9), write_path(&[member(9), member(1)])),
        (peer(9), write_path(&long)),
        (server(), write_path(&[member(9)])),
        (peer(9), b"no path".to_vec()),
    ] {
        let said = bench.answer(from, &recover, &payload);
        let passed_on = said.iter().filter(|sent| sent.to == server());
        assert_eq!(passed_on.count(), 0, "{said:?}");
    }
    assert_eq!(bench.device.counters().unexpected, 4);
}

#[test]
fn a_head_that_gets_a_new_head_admits_nothing_until_it_knows_its_place() {
    let mut bench = Bench::serving(1, 1);
    let recover = Header {
        request: raw(77),
        ..from_hop(Kind::Recover, 9)
    };
    bench.answer(peer(9), &recover, &write_path(&[member(9)]));
    let open = Header {
        session: 0,
        ..from_client(Kind::Open, 0)
    };
    assert_eq!(bench.answer(client(), &open, &TOKEN.to_be_bytes()), []);
    assert_eq!(
        bench.device.cursors().0,
        0,
        "the empty log that it reported stays empty"
    );
    assert_eq!(bench.device.waits_for(), None, "the server decides");
    // Found (simulator, seed 88451): after this reply the device waited for ever, and did not report why.
    let refusal = Header {
        flags: Flags::REFUSED,
        device: 9,
        request: raw(77),
        ..from_hop(Kind::RecoverReply, 0)
    };
    assert_eq!(
        kinds(&bench.answer(server(), &refusal, b"not you")),
        [Kind::RecoverReply]
    );
    let text = bench.device.waits_for().expect("it says what it waits for");
    assert!(
        text.contains("device 9") && text.contains("start this one again"),
        "{text}"
    );
    assert_eq!(bench.answer(client(), &open, &TOKEN.to_be_bytes()), []);
}

#[test]
fn its_place_in_the_chain_is_what_the_server_says() {
    let (mut bench, recover) = restarted();
    let chain = RecoverReply {
        shard_token: SHARD_TOKEN,
        members: vec![member(4), member(1)],
        sessions: vec![],
    };
    let verdict = bench.give(server(), &reply(&recover), &chain.write());
    bench.resume(&verdict);
    assert!(bench.device.is_serving() && !bench.device.is_head());
    assert_eq!(
        (
            bench.device.copies(),
            bench.device.chain().collect::<Vec<_>>()
        ),
        (2, vec![4, 1])
    );
}

/// The server recognises an old copy of a log by the incarnation in which the log last served. So the server must
/// register a new incarnation before the device serves in it. Regression: an old copy was started repeatedly while no
/// server answered. So its incarnation became higher than the right log's, and the server accepted the copy.
#[test]
fn it_serves_once_the_server_knows_that_its_log_is_marked() {
    let (mut bench, recover) = restarted();
    let unmarked = |recover: &Sent, served| {
        let reply = RecoverReply {
            shard_token: SHARD_TOKEN,
            members: vec![Member {
                incarnation: 6,
                served,
                ..member(1)
            }],
            sessions: Vec::new(),
        };
        (self::reply(recover), reply.write())
    };
    let (header, payload) = unmarked(&recover, 4);
    let verdict = bench.give(server(), &header, &payload);
    assert_eq!(bench.resume(&verdict), Served::AskAgain);
    assert!(!bench.device.is_serving());
    let again = only(bench.tick());
    assert_eq!(only_member(&again).served, 6);
    let (header, payload) = unmarked(&again, 6);
    let verdict = bench.give(server(), &header, &payload);
    assert_eq!(bench.resume(&verdict), Served::Serving);
    assert!(bench.device.is_serving());
}

/// Found by fuzzing: the device took itself for the head of a chain that does not name it.
#[test]
fn a_reply_that_does_not_name_it_is_dropped() {
    let (mut bench, recover) = restarted();
    for members in [vec![], vec![member(2)]] {
        let payload = RecoverReply {
            shard_token: SHARD_TOKEN,
            members,
            sessions: Vec::new(),
        };
        let verdict = bench.give(server(), &reply(&recover), &payload.write());
        assert_eq!(verdict, Verdict::Done);
    }
    assert_eq!(bench.device.counters().unexpected, 2);
    assert!(!bench.device.is_serving());
}
