//! A device that is to join a chain with data: when it erases its log, when it must not erase it, and how it reports
//! its state. Also, the device before the joiner (`docs/spec/protocol.md` §5, "Joining").

use crate::support::device::{Bench, config, entry, member, server, table};
use crate::support::{EPOCH, SHARD_TOKEN, Sent, datagram, only};
use pmnet_proto::device::{DeviceConfig, LogState, Served, Verdict};
use pmnet_wire::record::{Member, RecoverReply, read_path};
use pmnet_wire::{Flags, Header, Kind, raw};

/// A log of a chain that the device left: epoch 2, orders 1 to 3.
const USED: LogState = LogState {
    log_uuid: 1,
    incarnation: 6,
    served: 4,
    epoch: 2,
    last: 3,
    applied: 1,
};
/// A new log.
const NEW: LogState = LogState {
    log_uuid: 1,
    incarnation: 1,
    served: 0,
    epoch: 0,
    last: 0,
    applied: 0,
};
const ERASE: Flags = Flags::REFUSED.with(Flags::PROGRESS).with(Flags::CONTINUE);

fn started(log: LogState, flags: u32) -> (Bench, Sent) {
    let frames = (1..=log.last)
        .map(|order| {
            let (header, payload) = entry(order);
            datagram(&Header { epoch: 2, ..header }, &payload)
        })
        .collect();
    let config = DeviceConfig {
        flags,
        ..config(1, server())
    };
    let mut bench = Bench::starting(config, log, frames);
    let recover = only(bench.tick());
    (bench, recover)
}

/// The server's answer to this RECOVER.
fn answer(recover: &Sent, flags: Flags) -> Header {
    Header {
        kind: Kind::RecoverReply,
        epoch: EPOCH,
        order: 0,
        tag: 0,
        flags,
        ..recover.header
    }
}

fn said(recover: &Sent) -> Member {
    read_path(&recover.payload).expect("a path")[0]
}

#[test]
fn a_used_log_is_erased_when_the_server_says_that_it_is_no_member() {
    let (mut bench, recover) = started(USED, Member::JOIN);
    let first = said(&recover);
    assert_eq!((first.tail, first.applied, first.word_epoch), (3, 1, 0));
    let verdict = bench.give(server(), &answer(&recover, ERASE), b"no member");
    assert_eq!(verdict, Verdict::Erase);
    assert_eq!(bench.device.waits_for(), Some("no member"));
    // Before its log is erased, the device does not report that it is ready to join.
    assert_eq!(bench.device.cursors(), (3, 3, 1, 1));
    assert_eq!(bench.device.ready_to_join(), None);
    bench.device.erased(bench.now);
    assert_eq!(bench.device.ready_to_join(), Some(EPOCH));
    let again = only(bench.tick());
    assert_ne!(
        again.header.request, recover.header.request,
        "a question of its own"
    );
    let joins = Member {
        incarnation: 6,
        served: 6,
        flags: Member::JOIN,
        word_epoch: EPOCH,
        ..member(1)
    };
    assert_eq!(said(&again), joins, "empty, marked, in the server's epoch");
}

/// A member is restarted with `--join`, or the reply does not answer a RECOVER of the device's current incarnation.
#[test]
fn nothing_else_erases_a_log() {
    let stays = |bench: &Bench| assert_eq!(bench.device.cursors(), (3, 3, 1, 1));
    for flags in [0, Member::SHRINK] {
        let (mut bench, recover) = started(USED, flags);
        let verdict = bench.give(server(), &answer(&recover, ERASE), b"no member");
        assert_eq!(verdict, Verdict::Done, "nobody told it to join");
        assert_eq!(bench.device.ready_to_join(), None);
        stays(&bench);
    }
    for other in [Flags::REFUSED, Flags::REFUSED.with(Flags::PROGRESS)] {
        let (mut bench, recover) = started(USED, Member::JOIN);
        let verdict = bench.give(server(), &answer(&recover, other), b"another log");
        assert_eq!(verdict, Verdict::Done, "it only learns the epoch");
        assert_eq!(said(&only(bench.tick())).tail, 3);
    }
    let (mut bench, recover) = started(USED, Member::JOIN);
    let sent = answer(&recover, ERASE);
    let foreign = [
        Header {
            request: raw(sent.request.raw() ^ 1),
            ..sent
        },
        Header {
            incarnation: 5,
            ..sent
        },
        Header { device: 2, ..sent },
    ];
    for header in foreign {
        assert_eq!(bench.give(server(), &header, b"no member"), Verdict::Done);
        stays(&bench);
    }
}

/// The log has served in an epoch that this chain has not reached. So the log's device cannot have left this chain.
#[test]
fn a_log_of_another_chain_is_not_erased() {
    for epoch in [EPOCH, EPOCH + 1] {
        let (mut bench, recover) = started(LogState { epoch, ..USED }, Member::JOIN);
        let verdict = bench.give(server(), &answer(&recover, ERASE), b"no member");
        let Verdict::Stop(text) = verdict else {
            panic!("{verdict:?}")
        };
        assert!(text.contains("Nothing was erased"), "{text}");
    }
    // An empty log may be erased: its device may have been a spare of any chain.
    let (mut bench, recover) = started(LogState { epoch: 1, ..NEW }, Member::JOIN);
    let verdict = bench.give(server(), &answer(&recover, ERASE), b"no member");
    assert_eq!(verdict, Verdict::Erase, "it is marked");
}

#[test]
fn it_serves_behind_what_is_applied_and_takes_the_rest_in_order() {
    let (mut bench, recover) = started(NEW, Member::JOIN);
    bench.give(server(), &answer(&recover, ERASE), b"no member");
    bench.device.erased(bench.now);
    let recover = only(bench.tick());
    let before = Member {
        tail: 9,
        ..member(2)
    };
    let own = Member {
        tail: 9,
        flags: Member::JOIN | Member::JOINED,
        ..member(1)
    };
    let chain = RecoverReply {
        shard_token: SHARD_TOKEN,
        members: vec![before, own],
        sessions: Vec::new(),
    };
    let reply = Header {
        order: 7,
        ..answer(&recover, Flags::default())
    };
    let verdict = bench.give(server(), &reply, &chain.write());
    assert_eq!(
        bench.resume(&verdict),
        Served::Serving,
        "the mark was registered before"
    );
    assert_eq!(bench.device.cursors(), (7, 7, 7, 7));
    assert!(!bench.device.is_head());
    assert_eq!(bench.device.copies(), 2);
}

/// A joined device reports whether it holds all entries that a head must hold. While it lacks some of them, a
/// controller must not leave out the other devices.
#[test]
fn who_joined_says_whether_it_holds_everything_that_it_must() {
    for (flags, must_hold, whole) in [
        (Member::JOINED, 9, false),
        (Member::JOINED, 8, false),
        (Member::JOINED, 7, true),
        (0, 9, true),
    ] {
        let (mut bench, recover) = started(NEW, 0);
        assert!(!bench.device.holds_everything(), "it does not serve");
        let own = Member {
            tail: must_hold,
            flags,
            ..member(1)
        };
        let chain = RecoverReply {
            shard_token: SHARD_TOKEN,
            members: vec![member(2), own],
            sessions: Vec::new(),
        };
        let reply = Header {
            order: 7,
            ..answer(&recover, Flags::default())
        };
        let verdict = bench.give(server(), &reply, &chain.write());
        assert_eq!(bench.resume(&verdict), Served::Serving);
        assert_eq!(bench.device.ready_to_join(), None, "it is a member");
        assert_eq!(
            bench.device.holds_everything(),
            whole,
            "{flags} {must_hold}"
        );
    }
}

/// The pipeline in the kernel may still append, so the device cannot state the end of its log.
#[test]
fn a_log_that_goes_on_says_so_until_it_serves() {
    let (mut bench, _) = started(USED, 0);
    bench.device.log_goes_on();
    let recover = only(bench.tick_after(pmnet_proto::time::SECOND));
    assert_ne!(said(&recover).flags & Member::SERVING, 0);
    let reply = Header {
        order: 3,
        ..answer(&recover, Flags::default())
    };
    let verdict = bench.give(server(), &reply, &table(1, &[]));
    assert_eq!(bench.resume(&verdict), Served::Serving);
    // Later the device stops serving, and the fast path no longer appends.
    let later = Header {
        epoch: EPOCH + 1,
        ..crate::support::device::from_hop(Kind::Applied, 0)
    };
    bench.give(server(), &later, b"");
    let recover = only(bench.tick());
    assert_eq!(said(&recover).flags & Member::SERVING, 0);
}
