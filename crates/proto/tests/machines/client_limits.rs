//! Bounds and ends of sessions (`docs/spec/protocol.md` §3).

use crate::support::client::{Bench, config};
use crate::support::{EPOCH, kinds, only};
use bytes::Bytes;
use pmnet_proto::client::{CROWDED, Client, ClientConfig, Closed, LetGo, Outcome, Refused};
use pmnet_proto::time::{MILLISECOND, SECOND};
use pmnet_proto::{Outbox, Random, Time};
use pmnet_wire::packet::{NotLogged, Open};
use pmnet_wire::{Flags, Header, Kind, MESSAGE_BYTES_MAX, Payloads, raw};

const LONG: u64 = 600 * MILLISECOND;
/// Maximum number of bytes of an update besides a value of 16 MiB.
const OVERHEAD: usize = 8 + 16 * 1024;

#[test]
fn sixteen_mebibytes_are_accepted_and_a_byte_more_than_fits_is_not() {
    let mut bench = Bench::open();
    bench
        .try_update(MESSAGE_BYTES_MAX + OVERHEAD)
        .expect("16 MiB and what is around them");
    assert_eq!(
        bench.try_update(MESSAGE_BYTES_MAX + OVERHEAD + 1),
        Err(Refused::TooLarge)
    );
    let payload = Bytes::from(vec![0; MESSAGE_BYTES_MAX + OVERHEAD + 1]);
    let refused = bench
        .client
        .bypass(bench.session, payload, 0, true, Time(u64::MAX));
    assert_eq!(refused, Err(Refused::TooLarge));
    assert_eq!(bench.flush()[0].header.fragment_count, 12_496);
}

#[test]
fn a_full_queue_is_busy_and_recovers() {
    let mut bench = Bench::open_with(ClientConfig {
        queue_max: 3,
        ..config()
    });
    for _ in 0..3 {
        bench.update();
    }
    assert_eq!(bench.try_update(1), Err(Refused::Busy));
    bench.flush();
    assert_eq!(
        bench.try_update(1),
        Err(Refused::Busy),
        "under way counts too"
    );
    bench.ack(1);
    bench.update();
    assert_eq!(bench.try_update(1), Err(Refused::Busy));
}

#[test]
fn sessions_are_bounded_and_make_room_when_they_close() {
    let mut client = Client::new(
        ClientConfig {
            sessions_max: 2,
            ..config()
        },
        Random::new(1),
    );
    let first = client.open(Time(0)).expect("room");
    client.open(Time(0)).expect("room");
    assert_eq!(client.open(Time(0)), Err(Refused::Sessions));
    // If an END cannot be sent at all, it closes the session at its deadline.
    client.end(first, Time(SECOND));
    client.flush(Time(0), &mut Outbox::new());
    client.flush(Time(SECOND), &mut Outbox::new());
    assert_eq!(client.sessions(), 1);
    client.open(Time(SECOND)).expect("room again");
}

#[test]
fn a_session_ends_behind_everything_before_it() {
    let mut bench = Bench::open();
    let update = bench.update();
    bench.client.end(bench.session, bench.now + SECOND);
    assert_eq!(bench.try_update(1), Err(Refused::Closed));
    assert_eq!(
        kinds(&bench.flush()),
        [Kind::Update],
        "END waits for the update"
    );
    bench.ack(1);
    assert_eq!(
        bench.outcomes(),
        [(update, Outcome::Committed { copies: 1 })]
    );
    let end = only(bench.flush());
    assert_eq!((end.header.kind, end.header.seq), (Kind::End, 2));
    // An END has no fallback: it is sent again until the log has room.
    bench.not_logged(2);
    assert_eq!(bench.flush(), []);
    assert_eq!(only(bench.after(LONG)), end);
    bench.ack(2);
    assert_eq!(bench.closed(), (vec![], Closed::Ended));
    assert_eq!(bench.client.sessions(), 0);
    assert_eq!(bench.try_update(1), Err(Refused::Closed));
}

#[test]
fn an_end_gives_up_at_its_deadline() {
    let mut bench = Bench::open();
    bench.client.end(bench.session, bench.now + SECOND);
    bench.flush();
    bench.after(SECOND);
    assert_eq!(bench.closed(), (vec![], Closed::Ended));
    assert_eq!(bench.client.next_timeout(), None, "nothing is left to do");
}

/// An operator has declared the log lost, and the log had the session's OPEN, so no process knows which seqs are
/// missing. Acknowledged updates that are not known to be applied are reported as lost.
#[test]
fn a_session_that_a_later_epoch_does_not_know_may_have_lost_what_was_acknowledged() {
    for (applied, epoch, expected) in [
        (0, EPOCH + 1, Closed::DataLoss { from: 1, to: 2 }),
        (1, EPOCH + 1, Closed::DataLoss { from: 2, to: 2 }),
        (2, EPOCH + 1, Closed::Refused),
        // In the same epoch, the session expired after all its packets.
        (0, EPOCH, Closed::Refused),
    ] {
        let mut bench = Bench::open();
        bench.update();
        bench.update();
        bench.flush();
        let ack = Header {
            seq: 2,
            key_hash: raw(applied),
            ..bench.reply(Kind::Ack)
        };
        bench.receive(&ack, &[]);
        bench.update();
        bench.flush();
        let unknown = Header {
            flags: Flags::UNKNOWN_SESSION,
            epoch,
            ..bench.reply(Kind::Nack)
        };
        bench.receive(&unknown, &[]);
        assert_eq!(bench.closed().1, expected, "applied {applied}");
    }
}

#[test]
fn a_session_that_the_device_does_not_know_closes_with_all_its_calls() {
    let mut bench = Bench::open();
    let sent = bench.update();
    let bypass = bench.bypass(false);
    let waiting = bench.update();
    bench.flush();
    let header = Header {
        flags: Flags::UNKNOWN_SESSION,
        ..bench.reply(Kind::Nack)
    };
    bench.receive(&header, &[]);
    let (outcomes, reason) = bench.closed();
    assert_eq!(reason, Closed::Refused);
    assert_eq!(
        outcomes[..2],
        [(sent, Outcome::Unknown), (bypass, Outcome::Unknown)]
    );
    assert!(matches!(outcomes[2], (call, Outcome::Failed(_)) if call == waiting));
}

#[test]
fn an_idle_session_says_that_it_is_still_wanted() {
    let mut bench = Bench::open_with(ClientConfig {
        ping_every: 10 * SECOND,
        ..config()
    });
    assert_eq!(bench.after(9 * SECOND), []);
    assert_eq!(only(bench.after(SECOND)).header.kind, Kind::Ping);
    assert_eq!(bench.client.next_timeout(), Some(bench.now + 10 * SECOND));
    bench.receive(&bench.reply(Kind::Pong), &[]);
    assert_eq!(bench.after(9 * SECOND), []);
    bench.update();
    bench.flush();
    bench.ack(1);
    assert_eq!(kinds(&bench.after(9 * SECOND)), [], "any packet counts");
}

/// The head ended the session by itself. If the head knew all acknowledged seqs, nothing is lost, even in a later
/// epoch. If the head knew fewer seqs, the updates of the other seqs are lost.
#[test]
fn a_session_that_the_device_ended_by_itself_has_lost_nothing_that_it_knew() {
    for (epoch, end, expected) in [
        (EPOCH, 3, Closed::LetGo(LetGo::Crowded)),
        (EPOCH + 1, 3, Closed::LetGo(LetGo::Crowded)),
        (EPOCH + 1, 2, Closed::DataLoss { from: 1, to: 2 }),
    ] {
        let mut bench = Bench::open();
        bench.update();
        bench.update();
        bench.flush();
        bench.ack(2);
        bench.update();
        bench.flush();
        let over = Header {
            flags: Flags::UNKNOWN_SESSION,
            epoch,
            seq: end,
            copies: raw(LetGo::Crowded.byte()),
            ..bench.reply(Kind::Nack)
        };
        bench.receive(&over, &[]);
        let (outcomes, reason) = bench.closed();
        assert_eq!(reason, expected, "epoch {epoch}, END {end}");
        assert!(outcomes.ends_with(&[(outcomes[outcomes.len() - 1].0, Outcome::Unknown)]));
    }
}

/// The head has its maximum number of sessions. The failure text of a call that waited for a session states this.
#[test]
fn a_call_for_which_there_is_no_session_is_told_so() {
    let (mut bench, open) = Bench::opening(config());
    let call = bench.update();
    let full = Header {
        session: 0,
        copies: raw(1),
        tag: open.header.tag,
        ..bench.reply(Kind::NotLogged)
    };
    bench.receive(&full, &[]);
    assert_eq!(bench.client.counters().crowded, 1);
    bench.after(2 * SECOND);
    assert_eq!(bench.outcomes(), [(call, Outcome::Failed(CROWDED))]);
}

/// A shard whose server takes other payloads begins no session, and calls end at once with the reason.
#[test]
fn a_client_is_told_that_the_server_takes_other_payloads() {
    let sends = ClientConfig {
        payloads: Payloads::COMMANDS,
        ..config()
    };
    for (taken, words) in [
        (2, "a program of its own"),
        (1, "a store of commands"),
        (8, "another kind"),
    ] {
        let (mut bench, open) = Bench::opening(sends.clone());
        assert_eq!(Open::read(&open.header).payloads, 1);
        let call = bench.update();
        let refused = Header {
            session: 0,
            copies: raw(NotLogged::OTHER_PAYLOADS),
            request: raw(taken),
            tag: open.header.tag,
            ..bench.reply(Kind::NotLogged)
        };
        bench.receive(&refused, &[]);
        let (outcomes, reason) = bench.closed();
        assert_eq!(reason, Closed::OtherPayloads(Payloads::from_wire(taken)));
        let told =
            |outcome: &Outcome| matches!(outcome, Outcome::Failed(text) if text.contains(words));
        assert!(
            outcomes.len() == 1 && outcomes[0].0 == call && told(&outcomes[0].1),
            "{outcomes:?}"
        );
    }
    // An old refusal does not end a session that has begun.
    let (mut bench, open) = Bench::opening(sends);
    bench.receive(&bench.reply(Kind::OpenReply), &[]);
    let late = Header {
        session: 0,
        copies: raw(NotLogged::OTHER_PAYLOADS),
        tag: open.header.tag,
        ..bench.reply(Kind::NotLogged)
    };
    bench.receive(&late, &[]);
    assert!(bench.client.poll_event().is_none());
}

/// A client with a name states the name in OPEN and PING.
#[test]
fn a_client_with_a_name_says_it_where_its_sessions_begin_and_go_on() {
    let named = ClientConfig {
        name: (77, 5),
        ping_every: 10 * SECOND,
        ..config()
    };
    let (mut bench, open) = Bench::opening(named);
    let says = |header: &Header| (header.kind, header.request.raw(), header.key_hash.raw());
    assert_eq!(says(&open.header), (Kind::Open, 77, 5));
    bench.receive(&bench.reply(Kind::OpenReply), &[]);
    assert_eq!(
        says(&only(bench.after(10 * SECOND)).header),
        (Kind::Ping, 77, 5)
    );
}
