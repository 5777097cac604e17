//! A device with leases: which answers to clients it sends only while it has a lease (`docs/spec/protocol.md` §14).

use super::support::device::{Bench, ask, client, config, from_client, hop, update};
use super::support::{EPOCH, TOKEN, kinds, ms, only, peer};
use pmnet_proto::device::Verdict;
use pmnet_proto::lease::deadline;
use pmnet_proto::time::{MILLISECOND, Nanos, SECOND};
use pmnet_proto::{Outbox, Time};
use pmnet_wire::packet::write_hashes;
use pmnet_wire::{Header, Kind};

const LENGTH: Nanos = 3 * SECOND;

/// A head that uses leases and has none yet, with an open session.
fn head(chain: u32) -> Bench {
    let mut config = config(1, hop(chain, 2));
    config.leased = true;
    let mut bench = Bench::serving_with(chain, config);
    bench.device.renewed(EPOCH, bench.now, LENGTH);
    bench.open(chain);
    bench
}

#[test]
fn an_acknowledgement_leaves_until_the_deadline_and_not_at_it() {
    for (late, expected) in [(false, vec![Kind::Ack]), (true, vec![])] {
        let mut bench = head(1);
        let over = deadline(ms(1), LENGTH);
        assert_eq!(bench.device.deadline(), Some(over));
        bench.admit(&update(1), b"payload");
        bench.device.persisted(2);
        bench.now = Time(over.0 - u64::from(!late));
        assert_eq!(bench.device.may_answer(bench.now), !late);
        assert_eq!(kinds(&bench.finish()), expected);
        assert_eq!(bench.device.counters().silenced, u64::from(late));
    }
}

#[test]
fn what_was_not_said_is_said_when_it_is_asked_again_with_a_lease() {
    let mut bench = head(1);
    bench.now = bench.now + LENGTH;
    bench.admit(&update(1), b"payload");
    bench.device.persisted(2);
    assert_eq!(kinds(&bench.finish()), []);
    bench.device.renewed(EPOCH, bench.now, LENGTH);
    assert_eq!(bench.give(client(), &update(1), b"payload"), Verdict::Done);
    let ack = only(bench.finish());
    assert_eq!((ack.header.kind, ack.header.seq), (Kind::Ack, 1));
}

#[test]
fn a_read_is_told_nothing_without_a_lease() {
    let mut bench = head(1);
    let read = |bench: &mut Bench| {
        let verdict = bench.give(client(), &ask(), &write_hashes(&[7]));
        assert_eq!(verdict, Verdict::Done, "no update: no HIT");
    };
    read(&mut bench);
    assert_eq!(kinds(&bench.finish()), [Kind::Miss]);
    bench.now = bench.now + LENGTH;
    read(&mut bench);
    assert_eq!(kinds(&bench.finish()), []);
}

#[test]
fn a_hit_that_the_node_has_written_is_taken_back_and_nothing_else_is() {
    let mut bench = head(1);
    bench.now = bench.now + LENGTH;
    let mut out = Outbox::new();
    let to = client();
    for kind in [
        Kind::Hit,
        Kind::Nack,
        Kind::OpenReply,
        Kind::Response,
        Kind::Append,
        Kind::Pong,
        Kind::Miss,
        Kind::Ack,
        Kind::NotLogged,
    ] {
        out.send(to, &Header::new(kind), b"payload");
    }
    out.pass(peer(9), &Header::new(Kind::Ack).emit(), 3);
    bench.device.finish(bench.now, bench.room, &mut out);
    let left: Vec<_> = out
        .iter()
        .map(|(_, bytes)| Header::kind_of(bytes).expect("one of ours"))
        .collect();
    let expected = [
        Kind::Nack,
        Kind::Response,
        Kind::Append,
        Kind::Pong,
        Kind::NotLogged,
        Kind::Ack,
    ];
    assert_eq!(left, expected, "the last one is foreign");
    assert_eq!(bench.device.counters().silenced, 4);
    // A node sends the packets in one call, so each packet must begin where the previous packet ends.
    let mut end = 0;
    for place in out.places() {
        assert_eq!(place.range.start, end);
        end = place.range.end;
    }
}

#[test]
fn a_device_that_stopped_serving_in_the_burst_says_nothing_either() {
    let mut config = config(1, hop(1, 2));
    config.leased = true;
    let state = pmnet_proto::device::LogState {
        log_uuid: 1,
        incarnation: 1,
        served: 1,
        epoch: 0,
        last: 0,
        applied: 0,
    };
    let mut bench = Bench::starting(config, state, Vec::new());
    let mut out = Outbox::new();
    out.send(client(), &Header::new(Kind::Hit), b"payload");
    bench.device.finish(bench.now, bench.room, &mut out);
    assert!(out.is_empty());
}

#[test]
fn entries_and_durable_go_on_without_a_lease() {
    let mut bench = head(2);
    bench.now = bench.now + LENGTH;
    bench.admit(&update(1), b"payload");
    bench.device.persisted(2);
    let sent = bench.forwards();
    assert_eq!(sent.last().map(|sent| sent.header.order), Some(2));
    bench.durable(2, 2);
    assert_eq!(bench.device.cursors().2, 2, "committed, and not told");
    assert_eq!(kinds(&bench.finish()), []);
}

#[test]
fn the_deadline_never_goes_back_and_counts_from_before_the_question() {
    let mut bench = head(1);
    bench.device.renewed(EPOCH, ms(500), LENGTH);
    let over = deadline(ms(500), LENGTH);
    bench.device.renewed(EPOCH, ms(2), LENGTH);
    assert_eq!(bench.device.deadline(), Some(over), "a late answer");
    bench.device.renewed(EPOCH + 1, ms(900), LENGTH);
    bench.device.renewed(EPOCH - 1, ms(900), LENGTH);
    assert_eq!(bench.device.deadline(), Some(over), "another epoch's");
    bench.device.renewed(EPOCH, ms(501), 10 * MILLISECOND);
    assert_eq!(bench.device.deadline(), Some(over), "a shorter one");
}

#[test]
fn the_agent_asks_for_what_serves_and_answers_by_leases() {
    let unleased = Bench::head(1);
    assert_eq!(unleased.device.needs_lease(), None);
    assert!(unleased.device.may_answer(Time(u64::MAX)));
    let mut bench = head(1);
    assert_eq!(bench.device.needs_lease(), Some(EPOCH));
    // Another device reports a later epoch: this device first asks the server.
    let later = Header {
        epoch: EPOCH + 1,
        ..super::support::device::from_hop(Kind::Durable, 2)
    };
    assert_eq!(
        bench.give(super::support::device::server(), &later, &[]),
        Verdict::Done
    );
    assert!(!bench.device.is_serving());
    assert_eq!(bench.device.needs_lease(), None);
}

#[test]
fn a_device_that_never_had_a_lease_says_nothing() {
    let mut config = config(1, hop(1, 2));
    config.leased = true;
    let mut bench = Bench::serving_with(1, config);
    assert_eq!(bench.device.deadline(), None);
    assert!(!bench.device.may_answer(Time(0)));
    let open = Header {
        session: 0,
        ..from_client(Kind::Open, 0)
    };
    bench.admit(&open, &TOKEN.to_be_bytes());
    bench.device.persisted(1);
    assert_eq!(kinds(&bench.finish()), []);
}
