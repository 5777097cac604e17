//! Messages are cut into fragments that every hop carries (`docs/spec/protocol.md` §7). The server records the size of
//! the fragments, the head announces this size, and every sender uses it.

use crate::support::client::{self, Bench as ClientBench};
use crate::support::device::{self, Bench as DeviceBench, from_client, server};
use crate::support::server::Bench as ServerBench;
use crate::support::{EPOCH, SESSION, Sent, kinds, only, take};
use bytes::Bytes;
use pmnet_proto::client::Outcome;
use pmnet_proto::time::{MILLISECOND, SECOND};
use pmnet_wire::packet::{Bypass, Pong, ReadKeys, Update};
use pmnet_wire::record::{Member, read_path, shard_size};
use pmnet_wire::{Flags, FragmentSize, Header, Kind, raw};

fn size(bytes: u64) -> FragmentSize {
    FragmentSize::from_wire(bytes)
}

/// A client whose head announced this size when the session was opened.
fn told(bytes: u64) -> ClientBench {
    let (mut bench, _) = ClientBench::opening(client::config());
    let reply = Header {
        seq: size(bytes).on_wire(),
        ..bench.reply(Kind::OpenReply)
    };
    bench.receive(&reply, &[]);
    bench
}

fn lengths(sent: &[Sent]) -> Vec<usize> {
    sent.iter().map(|sent| sent.payload.len()).collect()
}

#[test]
fn a_client_cuts_updates_as_the_head_says() {
    let mut bench = told(1280);
    bench.try_update(2 * 1280 + 1).expect("accepted");
    let sent = bench.flush();
    assert_eq!(lengths(&sent), [1280, 1280, 1]);
    let last = Update::read(&sent[2].header).fragment;
    assert_eq!((last.index, last.count), (2, 3));
    // The client's own path carries even less. The new size applies to new updates: an update that has its seqs keeps
    // its fragments.
    bench.client.set_path(size(1144));
    bench.try_update(1281).expect("accepted");
    assert_eq!(lengths(&bench.flush()), [1144, 137]);
    bench.nack(1);
    assert_eq!(lengths(&bench.flush()), [1280, 1280, 1, 1144, 137]);
    // A head of an earlier version announces no size.
    let mut bench = told(0);
    bench.try_update(1345).expect("accepted");
    assert_eq!(lengths(&bench.flush()), [1344, 1]);
}

#[test]
fn a_person_may_say_that_paths_carry_less() {
    let config = pmnet_proto::client::ClientConfig {
        size_max: size(1200),
        ..client::config()
    };
    let mut bench = ClientBench::open_with(config);
    bench.client.set_path(FragmentSize::MAX);
    bench.try_update(1201).expect("accepted");
    assert_eq!(lengths(&bench.flush()), [1200, 1]);
}

#[test]
fn a_client_asks_again_in_each_epoch() {
    let mut bench = told(1344);
    bench.update();
    assert_eq!(kinds(&bench.flush()), [Kind::Update]);
    let later = |bench: &ClientBench, kind| Header {
        epoch: EPOCH + 1,
        ..bench.reply(kind)
    };
    let ack = Header {
        seq: 1,
        ..later(&bench, Kind::Ack)
    };
    bench.receive(&ack, &[]);
    assert_eq!(kinds(&bench.flush()), [Kind::Ping]);
    let due = bench
        .client
        .next_timeout()
        .expect("it waits for the answer");
    assert!(due <= bench.now + 250 * MILLISECOND);
    assert_eq!(kinds(&bench.after(250 * MILLISECOND)), [Kind::Ping]);
    let pong = Header {
        seq: 1144,
        ..later(&bench, Kind::Pong)
    };
    bench.receive(&pong, &[]);
    assert_eq!(bench.client.fragment_size(), FragmentSize::MIN);
    bench.try_update(1145).expect("accepted");
    assert_eq!(lengths(&bench.flush()), [1144, 1]);
}

#[test]
fn a_client_says_which_answers_it_can_receive() {
    let mut bench = told(1280);
    bench.bypass(true);
    let sent = only(bench.flush());
    assert_eq!(FragmentSize::of_flags(sent.header.flags), size(1280));
    assert!(Bypass::read(&sent.header).read_only);
    let read = |bench: &mut ClientBench| {
        let deadline = bench.now + SECOND;
        let asked = bench.client.read(bench.now, &[9], false, deadline);
        asked.expect("accepted");
        let sent = bench.flush();
        let read = sent.into_iter().find(|sent| sent.header.kind == Kind::Read);
        ReadKeys::read(&read.expect("asked").header).size
    };
    // The head announces the size to the session for READs, too.
    let deadline = bench.now + SECOND;
    let asked = bench.client.read(bench.now, &[9], false, deadline);
    asked.expect("accepted");
    let open = only(bench.flush());
    let reply = Header {
        session: 77,
        tag: open.header.tag,
        seq: 1280,
        ..bench.reply(Kind::OpenReply)
    };
    bench.receive(&reply, &[]);
    assert_eq!(read(&mut bench), 0, "what the head knows is not said");
    bench.client.set_path(size(1144));
    assert_eq!(read(&mut bench), 1144);
}

/// A reply of 2000 bytes has two parts in either size of fragments: 1344 and 656 bytes, or 1144 and 856 bytes.
#[test]
fn parts_of_two_sizes_are_not_put_together() {
    let whole: Vec<u8> = (0u8..=249).cycle().take(2000).collect();
    let crc = u64::from(pmnet_wire::crc(&whole));
    let part = |bench: &mut ClientBench, bytes: usize, index: u16| {
        let header = Header {
            request: raw(1),
            key_hash: raw(crc),
            fragment_index: index,
            fragment_count: 2,
            ..bench.reply(Kind::Response)
        };
        let start = usize::from(index) * bytes;
        bench.receive(&header, &whole[start..(start + bytes).min(2000)]);
    };
    for order in [[0, 1], [1, 0]] {
        let mut bench = told(1344);
        let call = bench.bypass(true);
        bench.flush();
        part(&mut bench, 1344, order[0]);
        part(&mut bench, 1144, order[1]);
        assert_eq!(bench.outcomes(), []);
        part(&mut bench, 1144, order[0]);
        part(&mut bench, 1144, order[1]);
        let reply = Outcome::Reply(Bytes::from(whole.clone()));
        assert_eq!(bench.outcomes(), [(call, reply)], "{order:?}");
    }
}

/// Large packets are lost, and no error reports it. The head has not received the oldest packet, which was sent
/// repeatedly, but it answers small packets.
#[test]
fn a_client_notices_that_large_packets_are_lost() {
    let mut bench = told(1344);
    bench.try_update(3000).expect("accepted");
    bench.flush();
    let pong = |bench: &mut ClientBench, expected: u64| {
        let pong = Header {
            order: expected,
            ..bench.reply(Kind::Pong)
        };
        bench.receive(&pong, &[]);
        bench.flush()
    };
    for _ in 0..5 {
        let sent = bench.after(SECOND / 2);
        assert_eq!(kinds(&sent)[..2], [Kind::Update, Kind::Update]);
        assert_eq!(sent.last().unwrap().header.kind, Kind::Ping);
        assert_eq!(pong(&mut bench, 1), [], "it may be a loss like any other");
    }
    bench.after(SECOND / 2);
    // The head has the packet, but other devices of the chain do not.
    assert_eq!(pong(&mut bench, 2), []);
    assert!(!bench.client.take_large_lost());
    let sent = pong(&mut bench, 1);
    assert_eq!(lengths(&sent), [1144, 1144, 712]);
    assert!(sent.iter().all(|s| s.is(Kind::Bypass, Flags::FALLBACK)));
    assert!(bench.client.take_large_lost() && !bench.client.take_large_lost());
    assert_eq!(bench.client.fragment_size(), FragmentSize::MIN);
}

#[test]
fn small_packets_that_are_lost_are_no_sign() {
    let mut bench = told(1344);
    bench.try_update(1144).expect("accepted");
    bench.flush();
    for _ in 0..9 {
        assert_eq!(kinds(&bench.after(SECOND / 2)), [Kind::Update]);
    }
    let pong = Header {
        order: 1,
        ..bench.reply(Kind::Pong)
    };
    bench.receive(&pong, &[]);
    assert!(!bench.client.take_large_lost());
}

/// The server must not combine fragments of both sizes. A message of 2000 bytes has two parts in either size: of at
/// most 1344 bytes, or of at most 1144.
#[test]
fn a_bypass_that_nobody_answers_goes_in_small_packets() {
    for (bytes, parts) in [
        (2000, vec![667, 667, 666]),
        (1200, vec![600, 600]),
        (9, vec![9]),
    ] {
        let mut bench = told(1344);
        let payload = Bytes::from(vec![b'b'; bytes]);
        let deadline = bench.now + 60 * SECOND;
        let asked = bench
            .client
            .bypass(bench.session, payload, 9, true, deadline);
        asked.expect("accepted");
        bench.flush();
        for _ in 0..5 {
            let sent = bench.after(SECOND);
            assert_eq!(
                FragmentSize::of_flags(sent[0].header.flags),
                FragmentSize::MAX
            );
        }
        let sent = bench.after(SECOND);
        assert_eq!(lengths(&sent), parts);
        assert_eq!(
            FragmentSize::of_flags(sent[0].header.flags),
            FragmentSize::MIN
        );
    }
}

#[test]
fn the_server_keeps_the_size_of_the_narrowest_hop() {
    let mut bench = ServerBench::blank(crate::support::server::config());
    bench.server.asked_by(size(1328));
    let path = [
        Member {
            size: size(1280),
            ..crate::support::server::member(1)
        },
        crate::support::server::member(2),
    ];
    bench.recover(1, &path);
    let chain = bench.server.chain().expect("made").clone();
    assert_eq!(shard_size(&chain.members), size(1280));
    assert_eq!(
        chain.members[1].size,
        size(1328),
        "its own path to the tail"
    );
    // The size is in the record.
    let bench = bench.restarted();
    assert_eq!(bench.server.chain(), Some(&chain));
}

#[test]
fn a_path_that_shrinks_begins_an_epoch() {
    let mut bench = ServerBench::new();
    let member = bench.server.chain().expect("made").members[0];
    let serving = Member {
        flags: Member::SERVING,
        size: size(1280),
        ..member
    };
    bench.recover(90, &[serving]);
    let chain = bench.server.chain().expect("made").clone();
    assert_eq!(
        (chain.epoch, chain.members[0].size),
        (EPOCH + 1, size(1280))
    );
    let said = bench.server.poll_notice();
    let said = std::iter::successors(said, |_| bench.server.poll_notice()).last();
    assert!(said.unwrap().contains("1280 bytes"));
    // A repeated report changes nothing. A larger size is recorded, and every device that recovers is told the new
    // size.
    bench.recover(91, &[serving]);
    assert_eq!(bench.server.chain(), Some(&chain));
    let larger = Member {
        size: size(1328),
        ..serving
    };
    bench.recover(92, &[larger]);
    let noted = bench.server.chain().expect("made").clone();
    assert_eq!(
        (noted.epoch, noted.members[0].size),
        (EPOCH + 1, size(1328))
    );
    // Now the server's own path carries less.
    bench.server.set_path(size(1144));
    bench.work();
    let chain = bench.server.chain().expect("made").clone();
    assert_eq!(
        (chain.epoch, chain.members[0].size),
        (EPOCH + 2, size(1144))
    );
    bench.server.set_path(size(1144));
    bench.work();
    assert_eq!(bench.server.chain(), Some(&chain));
}

#[test]
fn replies_are_cut_as_their_clients_can_receive_them() {
    for (asked, path, parts) in [
        (1344, 1344, &[1344, 656][..]),
        (1280, 1344, &[1280, 720]),
        (1344, 1144, &[1144, 856]),
    ] {
        let mut bench = ServerBench::new();
        bench.store.reply = Some(Bytes::from(vec![b'r'; 2000]));
        let header = Header {
            flags: size(asked).flags(),
            seq: 0,
            order: 1,
            request: raw(1),
            ..bench.header(Kind::Bypass)
        };
        bench.server.asked_by(size(path));
        bench.give(&header, b"GET");
        let sent: Vec<Sent> = bench.work();
        let sent: Vec<Sent> = sent
            .into_iter()
            .filter(|sent| sent.header.kind == Kind::Response)
            .collect();
        assert_eq!(lengths(&sent), parts, "{asked} {path}");
        assert_eq!(sent[0].header.session, SESSION);
    }
}

#[test]
fn a_device_says_what_its_paths_carry_and_asks_when_they_shrink() {
    let mut bench = DeviceBench::head(1);
    let epoch = bench.device.epoch();
    let mut out = pmnet_proto::Outbox::new();
    bench
        .device
        .set_path(bench.now, FragmentSize::MAX, &mut out);
    assert_eq!(take(&mut out), []);
    bench.device.set_path(bench.now, size(1280), &mut out);
    let asked = only(take(&mut out));
    assert_eq!((asked.to, asked.header.kind), (server(), Kind::Recover));
    let said = read_path(&asked.payload).expect("a path");
    assert_eq!((said[0].size, said[0].flags), (size(1280), Member::SERVING));
    assert!(bench.device.is_serving(), "it goes on meanwhile");
    // The head tells clients the size at once.
    let ping = from_client(Kind::Ping, 0);
    let pong = only(bench.answer(device::client(), &ping, &[]));
    let said = Pong::read(&pong.header);
    assert_eq!((said.size, said.expected), (1280, 1));
    assert_eq!(bench.device.epoch(), epoch);
    // The device asks the server no more often than about any other doubt.
    bench.device.set_path(bench.now, size(1280), &mut out);
    assert_eq!(take(&mut out), []);
    bench
        .device
        .set_path(bench.now + SECOND, size(1280), &mut out);
    assert_eq!(kinds(&take(&mut out)), [Kind::Recover]);
}

/// The device's path to the server loses large packets, and no error reports it.
#[test]
fn a_device_notices_that_large_entries_are_lost() {
    for (bytes, received, room, lost) in [
        (1300, 1, 100, true),
        // Small packets are lost, too, so the server does not answer.
        (1144, 1, 100, false),
        // The server has the entry, and its store is slow.
        (1300, 2, 100, false),
        // The server has no room.
        (1300, 1, 0, false),
    ] {
        let mut bench = DeviceBench::head(1);
        bench.admit(&device::update(1), &vec![b'u'; bytes]);
        bench.device.persisted(2);
        let applied = |bench: &mut DeviceBench, applied: u64, received: u64, room: u64| {
            let word = Header {
                order: applied,
                seq: received,
                request: raw(room),
                ..device::from_hop(Kind::Applied, 0)
            };
            bench.answer(server(), &word, &[]);
        };
        applied(&mut bench, 1, 1, 100);
        bench.finish();
        bench.forwards();
        for _ in 0..8 {
            assert!(!bench.device.loses_large());
            bench.tick_after(SECOND);
            bench.forwards();
            applied(&mut bench, 1, received, room);
        }
        assert_eq!(
            bench.device.loses_large(),
            lost,
            "{bytes} {received} {room}"
        );
    }
}
