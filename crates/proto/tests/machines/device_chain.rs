//! Followers: they take entries in order, without gaps, and report to the previous hop (`docs/spec/protocol.md` §2
//! rules 3, 4, 7).

use crate::support::device::{Bench, ROOM, client, entry, from_client, from_hop, hop, server};
use crate::support::{EPOCH, SESSION, TOKEN, kinds, only, peer};
use pmnet_proto::device::{Room, Verdict};
use pmnet_proto::time::{MILLISECOND, SECOND};
use pmnet_wire::record::{DurableRow, read_durable};
use pmnet_wire::{Flags, Header, Kind, raw};

/// Gives the follower the entries with these orders.
fn append(bench: &mut Bench, orders: std::ops::RangeInclusive<u64>) {
    for order in orders {
        let (header, payload) = entry(order);
        assert_eq!(bench.admit(&header, &payload), header, "taken as it came");
    }
}

fn head() -> pmnet_proto::Peer {
    peer(1)
}

#[test]
fn a_follower_tells_how_far_everybody_from_here_on_is_durable() {
    let mut bench = Bench::serving(3, 2);
    append(&mut bench, 1..=3);
    assert_eq!(only(bench.finish()).header.order, 0, "nothing yet");
    bench.device.persisted(2);
    bench.room = Room { entries: 5, ..ROOM };
    let durable = only(bench.finish());
    assert_eq!(
        (durable.to, durable.header.kind, durable.header.order),
        (head(), Kind::Durable, 2)
    );
    assert_eq!(durable.header.request, raw(5), "room that it has");
    let row = |device, order| DurableRow {
        device,
        incarnation: 1,
        order,
    };
    assert_eq!(
        read_durable(&durable.payload),
        Some(vec![row(2, 2), row(3, 0)])
    );
    bench.durable(3, 1);
    bench.room = Room {
        entries: 9_999,
        entries_max: 10_000,
        ..ROOM
    };
    let durable = only(bench.finish());
    assert_eq!(
        read_durable(&durable.payload),
        Some(vec![row(2, 2), row(3, 1)])
    );
    assert_eq!(
        durable.header.request,
        raw(1_024),
        "no more than its window"
    );
    assert_eq!(bench.device.cursors(), (3, 2, 1, 0));
}

#[test]
fn a_follower_forwards_what_is_durable_as_it_came() {
    let mut bench = Bench::serving(2, 2);
    append(&mut bench, 1..=2);
    assert_eq!(bench.forwards(), []);
    bench.device.persisted(2);
    let sent = bench.forwards();
    for (order, packet) in (1..).zip(&sent) {
        let (header, payload) = entry(order);
        assert_eq!((packet.to, &packet.payload), (server(), &payload));
        assert_eq!(packet.header, header.for_payload(&payload));
    }
    assert_eq!(sent.len(), 2);
}

#[test]
fn a_gap_is_asked_for_at_the_hop_before() {
    let mut bench = Bench::serving(2, 2);
    append(&mut bench, 1..=2);
    let give = |bench: &mut Bench, order| {
        let (header, payload) = entry(order);
        bench.answer(head(), &header, &payload)
    };
    let ask = only(give(&mut bench, 5));
    assert_eq!((ask.to, ask.header.kind), (head(), Kind::Retrans));
    assert_eq!(
        (ask.header.order, ask.header.request.raw()),
        (3, 4),
        "first and last that is missing"
    );
    assert_eq!(give(&mut bench, 6), [], "asked for already");
    bench.now = bench.now + MILLISECOND;
    assert_eq!(only(give(&mut bench, 6)).header.request, raw(5));
    append(&mut bench, 3..=6);
}

#[test]
fn a_duplicate_is_answered_with_the_cumulative_word() {
    let mut bench = Bench::serving(2, 2);
    append(&mut bench, 1..=2);
    bench.device.persisted(2);
    bench.finish();
    let (header, payload) = entry(1);
    assert_eq!(bench.answer(head(), &header, &payload), []);
    assert_eq!(kinds(&bench.finish()), [Kind::Durable, Kind::Applied]);
    let ping = from_hop(Kind::Ping, 1);
    bench.answer(head(), &ping, &[]);
    assert_eq!(kinds(&bench.finish()), [Kind::Durable, Kind::Applied]);
    assert_eq!(bench.finish(), []);
}

#[test]
fn two_histories_stop_the_shard() {
    let (header, payload) = entry(2);
    for (what, other) in [
        ("another seq", Header { seq: 7, ..header }),
        (
            "another session",
            Header {
                session: 7,
                ..header
            },
        ),
    ] {
        let mut bench = Bench::serving(2, 2);
        append(&mut bench, 1..=2);
        match bench.give(head(), &other, &payload) {
            Verdict::Stop(text) => assert!(text.contains("two histories"), "{text}"),
            verdict => panic!("{what}: {verdict:?}"),
        }
        let (next, payload) = entry(3);
        assert_eq!(
            bench.answer(head(), &next, &payload),
            [],
            "and it stays stopped"
        );
        assert_eq!(bench.finish(), []);
        assert_eq!(bench.device.next_timeout(), None);
    }
}

#[test]
fn a_follower_without_room_takes_it_later() {
    let mut bench = Bench::serving(2, 2);
    append(&mut bench, 1..=1);
    bench.room = Room { entries: 0, ..ROOM };
    let (header, payload) = entry(2);
    assert_eq!(bench.answer(head(), &header, &payload), []);
    let durable = only(bench.finish());
    assert_eq!(
        (durable.header.kind, durable.header.request.raw()),
        (Kind::Durable, 0),
        "no credit"
    );
    bench.room = ROOM;
    append(&mut bench, 2..=2);
}

#[test]
fn a_follower_is_no_head() {
    let mut bench = Bench::serving(2, 2);
    append(&mut bench, 1..=1);
    for (kind, seq) in [
        (Kind::Update, 1),
        (Kind::End, 1),
        (Kind::Bypass, 0),
        (Kind::Ping, 0),
    ] {
        assert_eq!(
            bench.answer(client(), &from_client(kind, seq), b""),
            [],
            "{kind:?}"
        );
    }
    let open = Header {
        session: 0,
        ..from_client(Kind::Open, 0)
    };
    assert_eq!(bench.answer(client(), &open, &TOKEN.to_be_bytes()), []);
    bench.device.persisted(1);
    assert_eq!(
        kinds(&bench.finish()),
        [Kind::Durable],
        "no open-reply from here"
    );
}

#[test]
fn packets_come_from_the_right_side() {
    let mut bench = Bench::serving(3, 2);
    append(&mut bench, 1..=1);
    let (next, payload) = entry(2);
    for (from, header, payload) in [
        (hop(3, 3), next, &payload[..]),
        (hop(3, 3), from_hop(Kind::Ping, 3), &[]),
        (
            head(),
            Header {
                order: 1,
                ..from_hop(Kind::Applied, 1)
            },
            &[],
        ),
        (head(), from_hop(Kind::Retrans, 1), &[]),
        (head(), from_hop(Kind::Response, 1), &[]),
    ] {
        assert_eq!(bench.answer(from, &header, payload), [], "{header}");
    }
    assert_eq!(bench.device.counters().unexpected, 5);
    assert_eq!(bench.device.cursors(), (1, 0, 0, 0));
}

#[test]
fn entries_that_are_none_are_dropped() {
    let mut bench = Bench::serving(2, 2);
    let (open, token) = entry(1);
    for (header, payload) in [
        (
            Header {
                copies: raw(0),
                ..open
            },
            &token[..],
        ),
        (
            Header {
                copies: raw(10),
                ..open
            },
            &token[..],
        ),
        (open, &token[..7]),
    ] {
        assert_eq!(bench.answer(head(), &header, payload), [], "{header}");
    }
    assert_eq!(bench.device.counters().unexpected, 3);
    append(&mut bench, 1..=1);
}

#[test]
fn applied_travels_to_the_head_and_frees_the_log() {
    let mut bench = Bench::serving(2, 2);
    append(&mut bench, 1..=3);
    bench.device.persisted(3);
    bench.finish();
    bench.forwards();
    let applied = Header {
        order: 2,
        request: raw(50),
        ..from_hop(Kind::Applied, 0)
    };
    assert_eq!(bench.answer(server(), &applied, &[]), []);
    assert_eq!(bench.device.cursors(), (3, 3, 3, 2));
    let up = only(bench.finish());
    assert_eq!(
        (up.to, up.header.kind, up.header.order),
        (head(), Kind::Applied, 2)
    );
    bench.answer(server(), &applied, &[]);
    assert_eq!(bench.finish(), [], "nothing new, nothing said");
}

#[test]
fn bypasses_and_answers_pass_unchanged() {
    let mut bench = Bench::serving(3, 2);
    let bypass = Header {
        session: SESSION,
        request: raw(3),
        order: 9,
        flags: Flags::READ_ONLY,
        ..from_hop(Kind::Bypass, 1)
    };
    let response = Header {
        session: SESSION,
        request: raw(3),
        ..from_hop(Kind::Response, 0)
    };
    assert_eq!(
        bench.answer(hop(3, 3), &response, b"x"),
        [],
        "nobody before us is known yet"
    );
    assert_eq!(bench.device.counters().no_route, 1);
    let sent = only(bench.answer(head(), &bypass, b"GET"));
    assert_eq!(
        (sent.to, sent.header),
        (hop(3, 3), bypass.for_payload(b"GET"))
    );
    for kind in [Kind::Response, Kind::Nack] {
        let header = Header { kind, ..response };
        let sent = only(bench.answer(hop(3, 3), &header, b"x"));
        assert_eq!((sent.to, sent.header), (head(), header.for_payload(b"x")));
    }
}

#[test]
fn silence_of_the_next_hop_is_broken_by_sending_again_or_asking() {
    let mut bench = Bench::serving(2, 2);
    append(&mut bench, 1..=2);
    bench.device.persisted(2);
    assert_eq!(bench.forwards().len(), 2);
    let due = bench.device.next_timeout().expect("it waits for a word");
    bench.now = due;
    bench.tick();
    assert_eq!(bench.forwards().len(), 2, "sent again");
    let applied = Header {
        order: 2,
        request: raw(50),
        ..from_hop(Kind::Applied, 0)
    };
    bench.answer(server(), &applied, &[]);
    bench.tick();
    assert_eq!(
        bench.device.next_timeout(),
        Some(bench.now + SECOND),
        "nothing outstanding: only the next hop's epoch is of interest"
    );

    // The next device holds all entries; only the server's APPLIED is missing.
    let mut bench = Bench::serving(3, 2);
    append(&mut bench, 1..=1);
    bench.device.persisted(1);
    bench.forwards();
    bench.durable(3, 1);
    bench.now = bench.device.next_timeout().expect("it waits for a word");
    let ping = only(bench.tick());
    assert_eq!(
        (ping.to, ping.header.kind, ping.header.epoch),
        (hop(3, 3), Kind::Ping, EPOCH)
    );
}

/// If a device joins an idle chain, or the store is another store, a new epoch begins. While no client writes, no entry
/// tells the earlier devices of the new epoch.
#[test]
fn a_device_that_nobody_uses_hears_of_a_later_epoch_from_its_next_hop() {
    for (chain, id) in [(1, 1), (3, 1), (3, 2), (3, 3)] {
        let mut bench = Bench::serving(chain, id);
        let next = hop(chain, id + 1);
        bench.finish();
        assert_eq!(bench.tick_after(SECOND - 1), []);
        let ping = only(bench.tick_after(1));
        assert_eq!(
            (ping.to, ping.header.kind, ping.header.epoch),
            (next, Kind::Ping, EPOCH)
        );
        assert_eq!(ping.payload, b"", "small");
        let later = Header {
            epoch: EPOCH + 1,
            ..from_hop(Kind::StaleEpoch, id + 1)
        };
        assert_eq!(bench.answer(next, &later, &[]), []);
        assert!(!bench.device.is_serving());
        assert_eq!(only(bench.tick()).header.kind, Kind::Recover);
    }
}

#[test]
fn an_idle_device_asks_its_next_hop_once_a_second_and_four_times_as_often_without_an_answer() {
    let mut bench = Bench::serving(3, 2);
    bench.finish();
    let quarter = SECOND / 4;
    let pings = |bench: &mut Bench| {
        let turns = (0..20).map(|_| bench.tick_after(quarter).len());
        turns.sum::<usize>()
    };
    let begun = bench.device.next_hop_heard();
    assert_eq!(pings(&mut bench), 17, "nobody answers");
    assert_eq!(
        bench.device.next_hop_heard(),
        begun,
        "a question is no word"
    );
    // Responses that pass the next hop also show that the next hop runs. A packet of another epoch, or from the
    // previous hop, does not.
    let from_next = from_hop(Kind::Response, 0);
    for _ in 0..20 {
        bench.answer(hop(3, 3), &from_next, b"x");
        assert_eq!(bench.device.next_hop_heard(), Some(bench.now));
        assert_eq!(bench.tick_after(quarter), []);
    }
    let (mut others, heard) = (0, bench.device.next_hop_heard());
    for _ in 0..20 {
        let stale = Header {
            epoch: EPOCH - 1,
            ..from_hop(Kind::Response, 3)
        };
        bench.give(hop(3, 3), &stale, b"x");
        bench.give(head(), &from_hop(Kind::Ping, 1), &[]);
        bench.take();
        others += bench.tick_after(quarter).len();
    }
    assert_eq!(others, 18);
    assert_eq!(bench.device.next_hop_heard(), heard);
}
