//! Which DURABLEs and APPLIEDs count, by their sender and its incarnation (`docs/spec/protocol.md` §2 rules 1, 5, 7). A
//! stopped device does nothing.

use crate::support::device::{
    Bench, client, entry, from_client, from_hop, hop, member, server, table, update,
};
use crate::support::{SHARD, TOKEN, kinds, only, peer, seqs};
use pmnet_proto::device::Verdict;
use pmnet_proto::time::SECOND;
use pmnet_wire::record::{DurableRow, write_durable, write_path};
use pmnet_wire::{Flags, Header, Kind, raw};

/// The head of a chain of two with orders 1 to 3 durable in its own log, and order 1 in the follower's.
fn ahead_of_its_follower() -> Bench {
    let mut bench = Bench::head(2);
    bench.admit(&update(1), b"payload");
    bench.admit(&update(2), b"payload");
    bench.device.persisted(3);
    assert_eq!(bench.device.cursors(), (3, 3, 1, 0));
    assert_eq!(bench.finish(), []);
    bench
}

/// Gives a DURABLE of device 2 up to `order`, sent in this incarnation.
fn says(bench: &mut Bench, incarnation: u32, order: u64) -> Verdict {
    let header = Header {
        order,
        request: raw(1_000),
        incarnation,
        ..from_hop(Kind::Durable, 2)
    };
    let row = DurableRow {
        device: 2,
        incarnation,
        order,
    };
    bench.give(hop(2, 2), &header, &write_durable(&[row]))
}

/// A follower may have lost the end of its log in a restart, with entries that it held before.
#[test]
fn a_word_of_an_earlier_life_commits_nothing() {
    let mut bench = ahead_of_its_follower();
    assert_eq!(says(&mut bench, 2, 1), Verdict::Done);
    // This DURABLE was sent before the restart, and arrives late.
    assert_eq!(says(&mut bench, 1, 3), Verdict::Done);
    assert_eq!(bench.device.cursors().2, 1);
    assert_eq!(bench.finish(), [], "and nobody is acknowledged");
    assert_eq!(says(&mut bench, 2, 3), Verdict::Done);
    assert_eq!(seqs(&bench.finish()), [2]);
}

#[test]
fn a_word_of_a_later_life_counts_from_its_first_packet_on() {
    let mut bench = ahead_of_its_follower();
    assert_eq!(says(&mut bench, 2, 2), Verdict::Done);
    assert_eq!(bench.device.cursors().2, 2);
    assert_eq!(seqs(&bench.finish()), [1]);
    // The new incarnation holds less than the earlier incarnation. Only entries that it still holds count as copies.
    let mut bench = ahead_of_its_follower();
    assert_eq!(says(&mut bench, 1, 2), Verdict::Done);
    assert_eq!(says(&mut bench, 2, 1), Verdict::Done);
    assert_eq!(says(&mut bench, 2, 3), Verdict::Done);
    assert_eq!(bench.device.cursors().2, 3);
}

/// The next device passes on the orders of the devices after it. These orders, too, may arrive late.
#[test]
fn a_word_of_an_earlier_life_that_another_device_passes_on_commits_nothing() {
    let mut bench = Bench::head(3);
    bench.admit(&update(1), b"payload");
    bench.device.persisted(2);
    let last_says = |bench: &mut Bench, incarnation, order| {
        let row = |device, incarnation, order| DurableRow {
            device,
            incarnation,
            order,
        };
        let header = Header {
            order: 2,
            request: raw(1_000),
            ..from_hop(Kind::Durable, 2)
        };
        let rows = write_durable(&[row(2, 1, 2), row(3, incarnation, order)]);
        assert_eq!(bench.give(hop(3, 2), &header, &rows), Verdict::Done);
    };
    last_says(&mut bench, 2, 1);
    last_says(&mut bench, 1, 2);
    assert_eq!(bench.device.cursors().2, 1);
    assert_eq!(bench.finish(), [], "and nobody is acknowledged");
    last_says(&mut bench, 2, 2);
    assert_eq!(seqs(&bench.finish()), [1]);
}

/// A follower has all its entries from the hop before it. If a follower holds more, the two logs have different
/// histories.
#[test]
fn a_follower_that_holds_more_than_this_device_stops_the_shard() {
    let mut bench = ahead_of_its_follower();
    match says(&mut bench, 1, 4) {
        Verdict::Stop(text) => assert!(text.contains("two histories"), "{text}"),
        verdict => panic!("{verdict:?}"),
    }
    assert!(!bench.device.is_serving());
    assert_eq!(bench.device.cursors().2, 1, "nothing was committed by it");
    assert_eq!(bench.finish(), []);
}

/// The server gets every entry from the tail. So an applied entry is in every device of the chain, even if all DURABLEs
/// were lost.
#[test]
fn what_is_applied_is_committed_and_acknowledged_without_any_durable() {
    let mut bench = ahead_of_its_follower();
    let applied = Header {
        order: 2,
        request: raw(100),
        ..from_hop(Kind::Applied, 2)
    };
    assert_eq!(bench.answer(hop(2, 2), &applied, &[]), []);
    assert_eq!(bench.device.cursors(), (3, 3, 2, 2));
    let ack = only(bench.finish());
    assert_eq!((ack.to, ack.header.kind), (client(), Kind::Ack));
    assert_eq!((ack.header.seq, ack.header.order), (1, 2));
}

/// The server has applied an order that this log does not hold yet. A different entry may still arrive for this order,
/// from another history. So the device must forward the entry, for the server to compare, and the previous hop must not
/// free its copy.
#[test]
fn a_follower_counts_nothing_as_applied_that_is_not_in_its_log_yet() {
    // The device is first the tail, then the device in the middle.
    for (chain, committed) in [(2, 4), (3, 2)] {
        let mut bench = Bench::serving(chain, 2);
        let take_in = |bench: &mut Bench, orders: std::ops::RangeInclusive<u64>| {
            let last = *orders.end();
            for order in orders {
                let (header, payload) = entry(order);
                bench.admit(&header, &payload);
            }
            bench.device.persisted(last);
            bench.finish();
            let sent = bench.forwards();
            sent.iter().map(|s| s.header.order).collect::<Vec<_>>()
        };
        assert_eq!(take_in(&mut bench, 1..=2), [1, 2]);
        let next = hop(chain, 3);
        let applied = Header {
            order: 4,
            request: raw(100),
            ..from_hop(Kind::Applied, 3)
        };
        assert_eq!(bench.answer(next, &applied, &[]), []);
        let up = only(bench.finish());
        assert_eq!(
            (up.to, up.header.kind, up.header.order),
            (peer(1), Kind::Applied, 2),
            "chain of {chain}: no more than it holds"
        );
        assert_eq!(bench.device.cursors(), (2, 2, 2, 2), "chain of {chain}");
        assert_eq!(
            take_in(&mut bench, 3..=4),
            [3, 4],
            "chain of {chain}: sent on all the same"
        );
        assert_eq!(
            bench.device.cursors(),
            (4, 4, committed, 2),
            "chain of {chain}"
        );
    }
}

/// A client may guess the id of a session that is being opened, or send an update with seq 0. It gets no
/// acknowledgement before the session's OPEN is durable in every device.
#[test]
fn a_session_whose_open_is_not_committed_is_acknowledged_to_nobody() {
    for seq in [0, 1] {
        let mut bench = Bench::serving(2, 1);
        let open = Header {
            session: 0,
            ..from_client(Kind::Open, 0)
        };
        bench.admit(&open, &TOKEN.to_be_bytes());
        bench.device.persisted(1);
        if seq == 1 {
            bench.admit(&update(1), b"payload");
        }
        assert_eq!(bench.answer(client(), &update(seq), b"payload"), []);
        assert_eq!(bench.device.counters().duplicates, 1);
        assert_eq!(bench.finish(), [], "the follower does not hold the OPEN");
        bench.durable(2, 1);
        assert_eq!(kinds(&bench.finish()), [Kind::OpenReply]);
    }
}

/// Two updates have the same order, session and seq, but other bytes.
#[test]
fn two_histories_that_differ_in_a_payload_stop_the_shard() {
    let mut bench = Bench::serving(2, 2);
    for order in 1..=2 {
        let (header, payload) = entry(order);
        bench.admit(&header, &payload);
    }
    let (header, payload) = entry(2);
    assert_eq!(
        bench.answer(peer(1), &header, &payload),
        [],
        "a mere duplicate"
    );
    match bench.give(peer(1), &header.for_payload(b"other"), b"other") {
        Verdict::Stop(text) => assert!(text.contains("two histories"), "{text}"),
        verdict => panic!("{verdict:?}"),
    }
}

/// A device has stopped, because its log must be inspected. It passes no questions of other devices on to the server,
/// so that no chain forms with this device in it.
#[test]
fn a_device_that_stopped_takes_nobody_to_the_server_and_no_reply_back() {
    let mut bench = Bench::serving(1, 1);
    let header = |kind| Header {
        shard: SHARD,
        device: 9,
        incarnation: 1,
        request: raw(77),
        ..Header::new(kind)
    };
    let path = write_path(&[member(9)]);
    let passed = only(bench.answer(peer(9), &header(Kind::Recover), &path));
    assert_eq!(passed.to, server());
    // The device asks the server because of a contradiction, and is refused.
    bench.now = bench.now + 2 * SECOND;
    let doubt = Header {
        tag: 0,
        epoch: 0,
        ..from_hop(Kind::StaleEpoch, 0)
    };
    let question = only(bench.answer(server(), &doubt, &[]));
    let refusal = Header {
        kind: Kind::RecoverReply,
        flags: Flags::REFUSED,
        ..question.header
    };
    assert_eq!(
        bench.give(server(), &refusal, b"another log"),
        Verdict::Stop("another log".to_owned())
    );
    assert_eq!(bench.answer(peer(9), &header(Kind::Recover), &path), []);
    let reply = header(Kind::RecoverReply);
    assert_eq!(bench.answer(server(), &reply, &table(1, &[])), []);
    assert_eq!(bench.answer(server(), &refusal, b"another log"), []);
    assert_eq!((bench.finish(), bench.tick_after(SECOND)), (vec![], vec![]));
}
