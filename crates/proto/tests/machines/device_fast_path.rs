//! The device with a fast path beside it (`docs/spec/pipeline.md`): which entries the machine follows, and which
//! sessions it tells the fast path. Also, a server that reads the log by itself.

use crate::support::device::{
    Bench, client, config, from_client, from_hop, hop, member, server, update,
};
use crate::support::{SESSION, SHARD_TOKEN, TOKEN, peer};
use pmnet_proto::device::{DeviceConfig, HopWork};
use pmnet_proto::time::SECOND;
use pmnet_wire::record::{DurableRow, write_durable, write_path};
use pmnet_wire::{Flags, Header, Kind, raw};

/// The frame of an update that a fast path admits at this order.
fn frame(order: u64, seq: u64) -> Vec<u8> {
    let header = Header {
        copies: raw(Kind::Update.number()),
        session: SESSION,
        seq,
        order,
        tag: SHARD_TOKEN,
        ..from_hop(Kind::Append, 1)
    };
    let mut out = Vec::new();
    header.write(b"payload", &mut out);
    out
}

fn with_fast_path(chain: u32) -> Bench {
    let mut bench = Bench::head(chain);
    bench.device.note_changes();
    bench
}

#[test]
fn what_the_fast_path_acknowledged_is_committed_and_not_acknowledged_again() {
    let mut bench = with_fast_path(1);
    for (order, seq) in [(2, 1), (3, 2)] {
        bench.device.follow(bench.now, &frame(order, seq)).unwrap();
    }
    bench.device.followed_alone(3);
    assert_eq!(bench.device.cursors(), (3, 3, 3, 0));
    assert_eq!(bench.finish(), []);
    // The machine's state is that of a device that admitted these updates itself: it admits the next update, and
    // acknowledges a duplicate.
    let answer = bench.answer(client(), &update(2), b"payload");
    assert_eq!(answer, []);
    assert_eq!(bench.finish()[0].header.seq, 2, "acknowledged again");
    assert_eq!(bench.admit(&update(3), b"payload").order, 4);
}

#[test]
fn in_a_chain_what_was_followed_waits_for_the_others() {
    let mut bench = with_fast_path(2);
    bench.device.follow(bench.now, &frame(2, 1)).unwrap();
    let (before, work) = (hop_work(1, 1), hop_work(1, 2));
    bench.device.followed(bench.now, 2, &before, &work);
    assert_eq!(bench.finish(), []);
    bench.durable(2, 2);
    let acks = bench.finish();
    assert_eq!(
        (acks[0].header.kind, acks[0].header.copies.raw()),
        (Kind::Ack, 2)
    );
}

/// The progress of a fast path that has sent orders up to `sent`, and whose next device holds orders up to `held`.
fn hop_work(held: u64, sent: u64) -> HopWork {
    let mut work = HopWork {
        credit: 1_000,
        sent,
        committed: held,
        ..HopWork::default()
    };
    work.orders[0] = held;
    work
}

/// Returns the head of a chain of two devices. The head's fast path has admitted orders 2 to 4 and has sent
/// them to the next device. The head's protocol machine has already read these three entries (`follow`).
fn followed_to_four() -> Bench {
    let mut bench = with_fast_path(2);
    assert_eq!(bench.forwards().len(), 0, "the OPEN is confirmed");
    for (order, seq) in [(2, 1), (3, 2), (4, 3)] {
        bench.device.follow(bench.now, &frame(order, seq)).unwrap();
        bench.frames.push(frame(order, seq));
    }
    let (before, work) = (hop_work(1, 1), hop_work(1, 4));
    bench.device.followed(bench.now, 4, &before, &work);
    bench.device.changed_sessions(|_, _| {});
    bench.device.chain_state();
    bench
}

#[test]
fn what_the_fast_path_sent_on_is_not_sent_again() {
    let mut bench = followed_to_four();
    assert_eq!(bench.forwards().len(), 0);
    let ask = Header {
        order: 3,
        request: raw(4),
        ..from_hop(Kind::Retrans, 2)
    };
    bench.answer(hop(2, 2), &ask, b"");
    // The machine is sending again from an earlier order. An entry that the fast path sends meanwhile does not change
    // where the machine continues.
    bench.device.follow(bench.now, &frame(5, 4)).unwrap();
    bench.frames.push(frame(5, 4));
    let (before, work) = (hop_work(1, 4), hop_work(1, 5));
    bench.device.followed(bench.now, 5, &before, &work);
    let sent: Vec<u64> = bench.forwards().iter().map(|f| f.header.order).collect();
    assert_eq!(sent, [3, 4, 5]);
}

#[test]
fn in_a_chain_the_fast_path_acknowledges_one_by_one_and_the_machine_what_it_skipped() {
    let mut bench = followed_to_four();
    let (before, one) = (hop_work(1, 4), hop_work(2, 4));
    bench.device.followed(bench.now, 4, &before, &one);
    assert_eq!(bench.device.cursors().2, 2);
    assert_eq!(bench.finish(), [], "the fast path told the client");
    assert!(!bench.device.fast_path_lags(&one, None));
    let mut told = 0;
    bench.device.changed_sessions(|_, _| told += 1);
    assert_eq!(told, 0, "it knows");
    // Two orders were confirmed at once, and the fast path has acknowledged neither of them certainly. So the machine
    // acknowledges both.
    let both = HopWork {
        skipped: 4,
        ..hop_work(4, 4)
    };
    bench.device.followed(bench.now, 4, &one, &both);
    let acks = bench.finish();
    assert_eq!((acks.len(), acks[0].header.seq), (1, 3));
    assert!(bench.device.fast_path_lags(&both, None));
    bench.device.changed_sessions(|_, state| {
        assert_eq!(state.unwrap().committed, 3);
        told += 1;
    });
    assert_eq!(told, 1, "it hears what the machine acknowledged");
    bench.device.chain_state();
    assert!(!bench.device.fast_path_lags(&both, None));
}

/// The next device held all entries, and has lost some of them in a restart. The fast path still reports what the
/// earlier incarnation held.
#[test]
fn what_a_device_held_before_it_came_back_does_not_count() {
    let mut bench = followed_to_four();
    let back = [DurableRow {
        device: 2,
        incarnation: 2,
        order: 1,
    }];
    let header = Header {
        order: 1,
        request: raw(1_000),
        incarnation: 2,
        ..from_hop(Kind::Durable, 2)
    };
    bench.answer(hop(2, 2), &header, &write_durable(&back));
    let (before, work) = (hop_work(1, 4), hop_work(4, 4));
    bench.device.followed(bench.now, 4, &before, &work);
    assert_eq!(
        bench.device.cursors().2,
        1,
        "no other device holds the rest"
    );
    assert_eq!(bench.finish(), []);
    // When the fast path knows the new incarnation, its report counts again.
    let state = bench.device.chain_state();
    assert_eq!((state.behind[0].incarnation, state.behind[0].order), (2, 1));
    bench.device.followed(bench.now, 4, &before, &work);
    assert_eq!(bench.device.cursors().2, 4);
}

#[test]
fn a_head_that_gets_a_new_head_lets_its_fast_path_admit_nothing() {
    let mut bench = Bench::serving(1, 1);
    bench.device.note_changes();
    assert!(bench.device.admits());
    let recover = Header {
        request: raw(77),
        ..from_hop(Kind::Recover, 9)
    };
    bench.answer(peer(9), &recover, &write_path(&[member(9)]));
    assert!(
        !bench.device.admits(),
        "the empty log that it reported stays empty"
    );
}

#[test]
fn what_is_confirmed_to_the_machine_the_fast_path_must_hear() {
    let mut bench = followed_to_four();
    let work = hop_work(1, 4);
    assert!(!bench.device.fast_path_lags(&work, None));
    bench.durable(2, 3);
    assert!(bench.device.fast_path_lags(&work, None));
    let state = bench.device.chain_state();
    assert_eq!(
        (
            state.position,
            state.committed,
            state.sent,
            state.behind[0].order
        ),
        (0, 3, 4, 3)
    );
}

#[test]
#[should_panic(expected = "one device acknowledges for one device")]
fn a_fast_path_never_acknowledges_for_a_chain() {
    let mut bench = with_fast_path(2);
    bench.device.follow(bench.now, &frame(2, 1)).unwrap();
    bench.device.followed_alone(2);
}

#[test]
fn what_the_fast_path_could_not_have_admitted_is_refused() {
    for (what, frame) in [
        ("a gap in the session", frame(2, 2)),
        ("a duplicate", frame(2, 0)),
        ("a gap in the log", frame(3, 1)),
        ("damage", {
            let mut bytes = frame(2, 1);
            bytes[90] ^= 1;
            bytes
        }),
        ("an OPEN", {
            let mut out = Vec::new();
            let header = Header {
                copies: raw(Kind::Open.number()),
                session: SESSION,
                seq: 1,
                order: 2,
                ..from_hop(Kind::Append, 1)
            };
            header.write(b"", &mut out);
            out
        }),
        ("an unknown session", {
            let mut out = Vec::new();
            let header = Header {
                copies: raw(Kind::Update.number()),
                session: SESSION + 1,
                seq: 1,
                order: 2,
                ..from_hop(Kind::Append, 1)
            };
            header.write(b"", &mut out);
            out
        }),
    ] {
        let mut bench = with_fast_path(1);
        assert!(bench.device.follow(bench.now, &frame).is_err(), "{what}");
        assert_eq!(bench.device.cursors().0, 1, "{what}");
    }
}

#[test]
fn the_fast_path_is_told_of_every_session_that_changed() {
    let told = |bench: &mut Bench| {
        let mut all = Vec::new();
        bench
            .device
            .changed_sessions(|id, state| all.push((id, state)));
        all
    };
    let mut bench = Bench::serving(1, 1);
    bench.device.note_changes();
    let open = Header {
        session: 0,
        ..from_client(Kind::Open, 0)
    };
    bench.admit(&open, &TOKEN.to_be_bytes());
    let opened = told(&mut bench);
    let state = opened[0].1.unwrap();
    assert_eq!(
        (opened.len(), opened[0].0, state.token),
        (1, SESSION, TOKEN)
    );
    assert_eq!((state.last, state.until), (0, u64::MAX));
    assert_eq!(state.address, Some(client()));
    assert_eq!(told(&mut bench), [], "once");
    // The client sends from another address.
    let ping = from_client(Kind::Ping, 0);
    bench.answer(peer(201), &ping, b"");
    assert_eq!(told(&mut bench)[0].1.unwrap().address, Some(peer(201)));
    // The session ends, so the fast path may admit no more of its updates.
    bench.admit(&from_client(Kind::End, 1), b"");
    assert_eq!(told(&mut bench)[0].1.unwrap().until, 0);
    // The END is applied: the session is over.
    bench.device.persisted(2);
    bench.answer(
        server(),
        &Header {
            order: 2,
            ..from_hop(Kind::Applied, 0)
        },
        b"",
    );
    assert!(told(&mut bench).contains(&(SESSION, None)));
}

#[test]
fn the_fast_path_admits_no_more_than_a_sessions_share() {
    let mut bench = Bench::head_with(
        1,
        DeviceConfig {
            session_entries_max: 3,
            ..config(1, hop(1, 2))
        },
    );
    bench.device.note_changes();
    bench.admit(&update(1), b"payload");
    let mut until = 0;
    bench
        .device
        .changed_sessions(|_, state| until = state.unwrap().until);
    assert_eq!(until, 2, "the OPEN and one update are in the log: one more");
}

#[test]
fn only_what_may_admit_holds_the_fast_path() {
    let bench = Bench::head(1);
    let may = |kind| bench.device.may_admit(&Header::new(kind));
    for kind in [
        Kind::Open,
        Kind::Update,
        Kind::End,
        Kind::Append,
        Kind::RecoverReply,
    ] {
        assert!(may(kind), "{kind:?}");
    }
    for kind in [
        Kind::Bypass,
        Kind::Ping,
        Kind::Applied,
        Kind::Durable,
        Kind::Retrans,
        Kind::Response,
    ] {
        assert!(!may(kind), "{kind:?}");
    }
    let confirmation = Header {
        flags: Flags::FALLBACK,
        ..Header::new(Kind::Response)
    };
    assert!(
        bench.device.may_admit(&confirmation),
        "it moves the session"
    );
}

#[test]
fn a_session_that_the_fast_path_heard_of_is_not_idle() {
    for heard in [false, true] {
        let mut bench = Bench::head_with(
            1,
            DeviceConfig {
                session_idle: SECOND,
                ..config(1, hop(1, 2))
            },
        );
        bench.now = bench.now + 3 * SECOND;
        bench.device.refresh(bench.now, |id| {
            assert_eq!(id, SESSION);
            heard
        });
        bench.tick();
        assert_eq!(bench.device.own_entries() > 0, !heard);
    }
}

#[test]
fn a_server_that_reads_the_log_is_sent_the_last_entry_and_what_it_asks_for() {
    let mut bench = Bench::head_with(
        1,
        DeviceConfig {
            server_reads_log: true,
            ..config(1, hop(1, 2))
        },
    );
    let orders = |bench: &mut Bench| -> Vec<u64> {
        bench
            .forwards()
            .iter()
            .map(|sent| sent.header.order)
            .collect()
    };
    orders(&mut bench);
    for seq in 1..=5 {
        bench.admit(&update(seq), b"payload");
    }
    bench.device.persisted(6);
    assert_eq!(orders(&mut bench), [6]);
    let ask = Header {
        order: 3,
        request: raw(5),
        ..from_hop(Kind::Retrans, 0)
    };
    bench.answer(server(), &ask, b"");
    assert_eq!(orders(&mut bench), [3, 4, 5, 6], "one by one");
    bench.admit(&update(6), b"payload");
    bench.admit(&update(7), b"payload");
    bench.device.persisted(8);
    assert_eq!(orders(&mut bench), [8], "and then the last ones again");
}
