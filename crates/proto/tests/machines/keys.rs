//! The three machines with keys (`docs/spec/keys.md`): each machine verifies a packet before it uses any other part of
//! the packet, and seals every packet that it sends.

use super::support::client::head as head_address;
use super::support::device::{Bench, client, config, from_client, from_hop, hop, member, update};
use super::support::server::{self, tail};
use super::support::{self, EPOCH, SESSION, SHARD, SHARD_TOKEN, Sent, TOKEN, kinds, only};
use bytes::Bytes;
use pmnet_proto::Random;
use pmnet_proto::client::{CallId, ClientConfig, Closed, Event, Outcome, Refused};
use pmnet_proto::device::{DeviceConfig, LogState, Verdict};
use pmnet_proto::keys::{ClusterKeys, DeviceKeys, Unserved};
use pmnet_proto::server::{Server, ServerConfig};
use pmnet_proto::time::{MILLISECOND, SECOND};
use pmnet_wire::packet::Identity;
use pmnet_wire::record::{DurableRow, RecoverReply, SessionRow, write_durable, write_path};
use pmnet_wire::{
    ClusterKey, Flags, FrontKey, Header, Kind, Life, MacKey, Packet, SessionKeys, raw,
};

const CLUSTER: ClusterKey = ClusterKey::new(*b"a key of cluster");
const LIFE: Life = Life {
    shard: SHARD,
    token: SHARD_TOKEN,
};

pub fn front_named(name: &str) -> FrontKey {
    let id = CLUSTER.front_id(name.as_bytes());
    CLUSTER.front(id).expect("an id of this cluster")
}

fn front() -> FrontKey {
    front_named("web")
}

fn session() -> SessionKeys {
    front().session(SHARD, TOKEN)
}

fn identity() -> Vec<u8> {
    let front = Some(front().id());
    let said = Identity {
        token: TOKEN,
        front,
    };
    said.write().to_vec()
}

/// The life of the shard: number and token, as the server's recover-reply states them.
fn life_of(reply: &Sent) -> Life {
    let said = RecoverReply::read(&reply.payload).expect("a recover-reply");
    Life {
        shard: SHARD,
        token: said.shard_token,
    }
}

pub fn hop_key(sender: u32) -> MacKey {
    CLUSTER.hop(LIFE, EPOCH, sender)
}

pub fn sealed(key: MacKey, header: &Header, payload: &[u8]) -> Header {
    key.seal(&header.for_payload(payload), payload)
}

#[track_caller]
fn is_sealed(sent: &Sent, key: MacKey) {
    let mut bytes = sent.header.emit().to_vec();
    bytes.extend_from_slice(&sent.payload);
    let packet = Packet::parse(&bytes).expect("as it was sent");
    assert!(key.verifies(&packet), "{}", sent.header);
}

pub fn keyed(chain: u32, id: u32) -> DeviceConfig {
    let next = if id == chain { 0 } else { id + 1 };
    DeviceConfig {
        keys: Some(DeviceKeys {
            cluster: ClusterKeys::new(CLUSTER),
            next,
        }),
        ..config(id, hop(chain, id + 1))
    }
}

/// Device `id` of the chain 1 … `chain`, serving, with the sessions of `rows`.
fn serving(chain: u32, id: u32, rows: &[SessionRow]) -> Bench {
    serving_with(chain, keyed(chain, id), rows)
}

pub fn serving_with(chain: u32, config: DeviceConfig, rows: &[SessionRow]) -> Bench {
    let id = config.id;
    let keys = config.keys.as_ref().expect("with keys");
    let present = keys.cluster.present;
    let state = LogState {
        log_uuid: id.into(),
        incarnation: 1,
        served: 1,
        epoch: 0,
        last: 0,
        applied: 0,
    };
    let (next, sender) = (config.next, if id == chain { 0 } else { id + 1 });
    let mut bench = Bench::starting(config, state, Vec::new());
    let recover = only(bench.tick());
    is_sealed(&recover, present.asking(SHARD, id));
    assert_eq!(
        recover.header.seq,
        u64::from(sender) + 1,
        "for its next hop"
    );
    let table = RecoverReply {
        shard_token: SHARD_TOKEN,
        members: (1..=chain).map(member).collect(),
        sessions: rows.to_vec(),
    }
    .write();
    let reply = Header {
        kind: Kind::RecoverReply,
        flags: Flags::READS,
        epoch: EPOCH,
        order: 0,
        seq: 0,
        ..recover.header
    };
    let by_another = sealed(CLUSTER.asking(SHARD, 7), &reply, &table);
    assert_eq!(bench.give(next, &by_another, &table), Verdict::Done);
    assert_eq!(bench.device.counters().forged, 1);
    let reply = sealed(CLUSTER.asking(SHARD, sender), &reply, &table);
    let verdict = bench.give(next, &reply, &table);
    bench.resume(&verdict);
    assert!(bench.device.is_serving());
    bench
}

/// A head alone, with the bench's session open.
fn head() -> Bench {
    let mut bench = serving(1, 1, &[]);
    let open = Header {
        session: 0,
        tag: 0,
        ..from_client(Kind::Open, 0)
    };
    let open = sealed(session().to_head, &open, &identity());
    let entry = bench.admit(&open, &identity());
    assert_eq!((entry.order, entry.session), (1, SESSION));
    bench.device.persisted(1);
    let reply = only(bench.finish());
    is_sealed(&reply, session().to_client);
    let said = (reply.header.kind, reply.header.session, reply.header.order);
    assert_eq!(said, (Kind::OpenReply, SESSION, TOKEN), "of which OPEN");
    bench
}

#[test]
fn a_head_verifies_the_client_and_seals_its_entry_and_its_answer() {
    let mut bench = head();
    let first = sealed(session().to_head, &update(1), b"payload");
    let entry = bench.admit(&first, b"payload");
    let stored = Sent {
        to: client(),
        header: entry,
        payload: b"payload".to_vec(),
    };
    is_sealed(&stored, hop_key(1));
    bench.device.persisted(2);
    let ack = only(bench.finish());
    assert_eq!(ack.header.kind, Kind::Ack);
    is_sealed(&ack, session().to_client);
    let sent = bench.forwards();
    assert_eq!(kinds(&sent), [Kind::Append; 2]);
    for sent in sent {
        is_sealed(&sent, hop_key(1));
    }
}

#[test]
fn what_nobody_sealed_has_no_effect_and_no_answer() {
    let mut bench = head();
    let right = sealed(session().to_head, &update(1), b"payload");
    let forgeries = [
        // The packet has the token as its tag, as it would without keys.
        (update(1).for_payload(b"payload"), &b"payload"[..]),
        (right, b"Payload"),
        (Header { seq: 2, ..right }, b"payload"),
        (Header { epoch: 3, ..right }, b"payload"),
        (
            Header {
                kind: Kind::End,
                ..right
            },
            b"payload",
        ),
        // One packet is sealed with the key of the other direction, the other with the key of another front.
        (
            sealed(session().to_client, &update(1), b"payload"),
            b"payload",
        ),
        (
            sealed(
                front_named("other").session(SHARD, TOKEN).to_head,
                &update(1),
                b"payload",
            ),
            b"payload",
        ),
    ];
    for (number, (header, payload)) in (1..).zip(forgeries) {
        assert_eq!(bench.answer(client(), &header, payload), []);
        assert_eq!(bench.device.counters().forged, 1 + number, "{header}");
    }
    assert_eq!(bench.device.admitted(SESSION), Some(0));
    bench.admit(&right, b"payload");
}

#[test]
fn an_open_names_its_front_and_is_sealed_by_it() {
    let mut bench = serving(1, 1, &[]);
    let open = Header {
        session: 0,
        tag: 0,
        ..from_client(Kind::Open, 0)
    };
    // One OPEN comes from a client without keys, the other from a cluster with another key.
    let token = TOKEN.to_be_bytes();
    let unkeyed = Header { tag: TOKEN, ..open };
    assert_eq!(bench.answer(client(), &unkeyed, &token), []);
    let elsewhere = ClusterKey::new([9; 16]);
    let front = elsewhere.front(elsewhere.front_id(b"web")).unwrap();
    let said = Identity {
        token: TOKEN,
        front: Some(front.id()),
    };
    let theirs = sealed(front.session(SHARD, TOKEN).to_head, &open, &said.write());
    assert_eq!(bench.answer(client(), &theirs, &said.write()), []);
    assert_eq!(bench.device.counters().unknown_key, 2);
    assert_eq!(bench.device.sessions(), 0);
}

/// The head cannot verify packets of a session that it does not know. PING is the exception, because it carries token
/// and front.
#[test]
fn only_a_ping_is_told_that_a_session_is_over() {
    let mut bench = head();
    let gone = SESSION + 40;
    let late = Header {
        session: gone,
        ..update(1)
    };
    let late = sealed(session().to_head, &late, b"payload");
    assert_eq!(bench.answer(client(), &late, b"payload"), []);
    assert_eq!(bench.device.counters().unknown_key, 1);
    let ping = Header {
        session: gone,
        ..from_client(Kind::Ping, 0)
    };
    let ping = sealed(session().to_head, &ping, &identity());
    let nack = only(bench.answer(client(), &ping, &identity()));
    assert!(nack.is(Kind::Nack, Flags::UNKNOWN_SESSION));
    is_sealed(&nack, session().to_client);
}

/// A client that holds one front's key, and has seen the token of another front, cannot act as the other front.
#[test]
fn a_token_of_another_front_is_another_session() {
    let mut bench = serving(1, 1, &[]);
    let open = |front: &FrontKey| {
        let said = Identity {
            token: TOKEN,
            front: Some(front.id()),
        };
        let open = Header {
            session: 0,
            tag: 0,
            ..from_client(Kind::Open, 0)
        };
        let key = front.session(SHARD, TOKEN).to_head;
        (sealed(key, &open, &said.write()), said.write().to_vec())
    };
    let (mine, payload) = open(&front());
    assert_eq!(bench.admit(&mine, &payload).session, SESSION);
    let (theirs, said) = open(&front_named("other"));
    assert_eq!(bench.admit(&theirs, &said).session, SESSION + 1);
    let ping = from_client(Kind::Ping, 0);
    let key = front_named("other").session(SHARD, TOKEN);
    let ping = sealed(key.to_head, &ping, &said);
    let nack = only(bench.answer(client(), &ping, &said));
    assert!(nack.is(Kind::Nack, Flags::UNKNOWN_SESSION));
    is_sealed(&nack, key.to_client);
}

#[test]
fn a_new_head_has_the_keys_of_a_session_from_token_and_front() {
    let row = SessionRow {
        session: SESSION,
        last_seq: 4,
        token: TOKEN,
        front: Some(front().id()),
    };
    let mut bench = serving(1, 1, &[row]);
    let next = sealed(session().to_head, &update(5), b"payload");
    assert_eq!(bench.admit(&next, b"payload").seq, 5);
}

/// The third device refuses an entry that the first has sealed: otherwise the third device could hold an entry that the
/// second device lacks.
#[test]
fn a_hop_takes_an_entry_of_its_neighbour_only_and_seals_it_anew() {
    let mut bench = serving(3, 3, &[]);
    let entry = Header {
        copies: raw(1),
        session: SESSION,
        order: 1,
        tag: 0,
        ..from_hop(Kind::Append, 1)
    };
    let payload = identity();
    let by_the_head = sealed(hop_key(1), &entry, &payload);
    assert_eq!(bench.answer(hop(3, 2), &by_the_head, &payload), []);
    let of_another_epoch = CLUSTER.hop(LIFE, EPOCH - 1, 2);
    let restamped = sealed(of_another_epoch, &entry, &payload);
    assert_eq!(bench.answer(hop(3, 2), &restamped, &payload), []);
    assert_eq!(bench.device.counters().forged, 3);
    let by_its_neighbour = sealed(hop_key(2), &entry, &payload);
    let stored = bench.admit(&by_its_neighbour, &payload);
    let stored = Sent {
        to: client(),
        header: stored,
        payload,
    };
    is_sealed(&stored, hop_key(3));
    bench.device.persisted(1);
    let durable = only(bench.finish());
    assert_eq!(durable.header.kind, Kind::Durable);
    is_sealed(&durable, hop_key(3));
}

#[test]
fn a_durable_counts_if_the_next_device_has_sealed_it() {
    let mut bench = serving(2, 1, &[]);
    let rows = write_durable(&[DurableRow {
        device: 2,
        incarnation: 1,
        order: 0,
    }]);
    let durable = Header {
        request: raw(1_000),
        tag: 0,
        ..from_hop(Kind::Durable, 2)
    };
    for (key, forged) in [(hop_key(1), 2), (hop_key(0), 3), (hop_key(2), 3)] {
        let durable = sealed(key, &durable, &rows);
        assert_eq!(bench.answer(hop(2, 2), &durable, &rows), []);
        assert_eq!(bench.device.counters().forged, forged);
    }
}

/// An adversary leads a RECOVER past the hop for which its sender meant it.
#[test]
fn a_recover_is_for_the_hop_that_it_names() {
    let mut bench = serving(2, 2, &[]);
    let path = write_path(&[member(1)]);
    let recover = Header {
        tag: 0,
        request: raw(77),
        seq: 1,
        ..from_hop(Kind::Recover, 1)
    };
    let to_the_server = sealed(CLUSTER.asking(SHARD, 1), &recover, &path);
    assert_eq!(bench.answer(hop(2, 1), &to_the_server, &path), []);
    assert_eq!(bench.device.counters().misled, 1);
    let to_this_one = Header { seq: 3, ..recover };
    let to_this_one = sealed(CLUSTER.asking(SHARD, 1), &to_this_one, &path);
    let passed = only(bench.answer(hop(2, 1), &to_this_one, &path));
    is_sealed(&passed, CLUSTER.asking(SHARD, 2));
    assert_eq!(passed.header.seq, 1, "for the server");
}

/// A device that has just started does not know the epoch and the sessions, so it can verify only RECOVERs and their
/// replies.
#[test]
fn until_it_serves_a_device_takes_recover_and_its_reply_only() {
    let state = LogState {
        log_uuid: 2,
        incarnation: 1,
        served: 1,
        epoch: EPOCH,
        last: 0,
        applied: 0,
    };
    let mut bench = Bench::starting(keyed(2, 2), state, Vec::new());
    is_sealed(&only(bench.tick()), CLUSTER.asking(SHARD, 2));
    let open = Header {
        session: 0,
        tag: 0,
        ..from_client(Kind::Open, 0)
    };
    let open = sealed(session().to_head, &open, &identity());
    let (entry, payload) = support::device::entry(2);
    let entry = sealed(hop_key(1), &entry, &payload);
    let ping = sealed(hop_key(1), &from_hop(Kind::Ping, 1), &[]);
    assert_eq!(bench.answer(client(), &open, &identity()), []);
    assert_eq!(bench.answer(hop(2, 1), &entry, &payload), []);
    assert_eq!(bench.answer(hop(2, 1), &ping, &[]), []);
    assert_eq!(bench.device.counters().not_ready, 3);
    let path = write_path(&[member(1)]);
    let recover = Header {
        tag: 0,
        request: raw(77),
        seq: 3,
        ..from_hop(Kind::Recover, 1)
    };
    let recover = sealed(CLUSTER.asking(SHARD, 1), &recover, &path);
    let passed = only(bench.answer(hop(2, 1), &recover, &path));
    is_sealed(&passed, CLUSTER.asking(SHARD, 2));
}

/// Entries that were stored before the device had these keys are sealed with its keys when they are sent.
#[test]
fn entries_of_before_are_sealed_anew() {
    let state = LogState {
        log_uuid: 1,
        incarnation: 1,
        served: 1,
        epoch: EPOCH,
        last: 1,
        applied: 0,
    };
    let (entry, payload) = support::device::entry(1);
    let frame = support::datagram(&entry, &payload);
    let mut bench = Bench::starting(keyed(1, 1), state, vec![frame]);
    let recover = only(bench.tick());
    let table = support::device::table(1, &[]);
    let reply = Header {
        kind: Kind::RecoverReply,
        epoch: EPOCH,
        order: 0,
        seq: 0,
        ..recover.header
    };
    let reply = sealed(CLUSTER.asking(SHARD, 0), &reply, &table);
    let verdict = bench.give(support::device::server(), &reply, &table);
    bench.resume(&verdict);
    is_sealed(&only(bench.forwards()), hop_key(1));
}

/// The pipeline in the kernel of the last device appends entries without a MAC. The process of the last device makes
/// the MAC when it sends the entries.
#[test]
fn an_entry_without_a_mac_is_sealed_when_it_is_sent() {
    let mut bench = head();
    let first = sealed(session().to_head, &update(1), b"payload");
    let entry = bench.admit(&first, b"payload");
    let as_it_appends = Header { tag: 0, ..entry };
    let frame = support::datagram(&as_it_appends, b"payload");
    *bench.frames.last_mut().expect("just appended") = frame;
    bench.device.persisted(2);
    let sent = bench.forwards();
    assert_eq!(kinds(&sent), [Kind::Append; 2]);
    for sent in sent {
        is_sealed(&sent, hop_key(1));
    }
}

/// A packet of another epoch is verified with the key of that epoch. Its sender may be a hop that was left out, or a
/// hop that knows a later chain.
#[test]
fn what_a_hop_has_sealed_in_another_epoch_is_genuine() {
    let mut bench = serving(2, 2, &[]);
    let in_epoch = |epoch, sender, by| {
        let ping = Header {
            epoch,
            tag: 0,
            ..from_hop(Kind::Ping, sender)
        };
        sealed(CLUSTER.hop(LIFE, epoch, by), &ping, &[])
    };
    let earlier = only(bench.answer(hop(2, 1), &in_epoch(EPOCH - 1, 7, 7), &[]));
    assert_eq!(earlier.header.kind, Kind::StaleEpoch);
    is_sealed(&earlier, hop_key(2));
    let forged = bench.device.counters().forged;
    assert_eq!(bench.answer(hop(2, 1), &in_epoch(EPOCH - 1, 7, 8), &[]), []);
    assert_eq!(
        bench.device.counters().forged,
        forged + 1,
        "of nobody known"
    );
    bench.give(hop(2, 1), &in_epoch(EPOCH + 1, 1, 1), &[]);
    let asks = only(bench.tick());
    assert_eq!(asks.header.kind, Kind::Recover, "of a later epoch");
}

/// The packets by which an idle device learns of a later epoch have a MAC in both directions.
#[test]
fn an_idle_device_asks_under_its_own_key_and_believes_its_next_hop_only() {
    let mut bench = serving(3, 1, &[]);
    bench.finish();
    let ping = only(bench.tick_after(SECOND));
    assert_eq!((ping.to, ping.header.kind), (hop(3, 2), Kind::Ping));
    is_sealed(&ping, hop_key(1));
    let stale = |by| {
        let stale = Header {
            epoch: EPOCH + 1,
            tag: 0,
            ..from_hop(Kind::StaleEpoch, 2)
        };
        sealed(CLUSTER.hop(LIFE, EPOCH + 1, by), &stale, &[])
    };
    assert_eq!(bench.answer(hop(3, 2), &stale(7), &[]), []);
    assert!(bench.device.is_serving(), "of nobody known");
    assert_eq!(bench.answer(hop(3, 2), &stale(2), &[]), []);
    assert!(!bench.device.is_serving());
}

#[test]
fn names_of_clients_count_within_a_front() {
    let mut bench = head();
    let named = |front: &FrontKey, token: u64, start: u64| {
        let said = Identity {
            token,
            front: Some(front.id()),
        };
        let open = Header {
            session: 0,
            tag: 0,
            request: raw(5),
            key_hash: raw(start),
            ..from_client(Kind::Open, 0)
        };
        let payload = said.write().to_vec();
        let key = front.session(SHARD, token).to_head;
        (sealed(key, &open, &payload), payload)
    };
    let (first, payload) = named(&front(), 20, 1);
    bench.admit(&first, &payload);
    let (other, payload) = named(&front_named("other"), 22, 2);
    bench.admit(&other, &payload);
    bench.tick_after(SECOND);
    assert!(bench.device.poll_own_entry(bench.now, bench.room).is_none());
    let (again, payload) = named(&front(), 24, 2);
    bench.admit(&again, &payload);
    bench.tick_after(SECOND);
    let end = bench.device.poll_own_entry(bench.now, bench.room);
    assert_eq!(end.map(|end| end.session), Some(2), "the first one's");
}

fn with_keys() -> ClientConfig {
    ClientConfig {
        keys: Some(front()),
        ..support::client::config()
    }
}

/// A client with keys, the content of its OPEN, and its session's keys.
fn opening() -> (support::client::Bench, Identity, SessionKeys) {
    let (bench, open) = support::client::Bench::opening(with_keys());
    let said = Identity::read(&open.payload).expect("an OPEN says whose it is");
    assert_eq!(said.front, Some(front().id()));
    let keys = front().session(SHARD, said.token);
    is_sealed(&open, keys.to_head);
    (bench, said, keys)
}

fn opened() -> (support::client::Bench, Identity, SessionKeys) {
    let (mut bench, said, keys) = opening();
    let reply = Header {
        order: said.token,
        ..bench.reply(Kind::OpenReply)
    };
    // The replies are not sealed, or sealed for an earlier session of this front.
    bench.receive(&reply, &[]);
    let earlier = front().session(SHARD, said.token + 2).to_client;
    bench.receive(&sealed(earlier, &reply, &[]), &[]);
    assert_eq!(bench.client.counters().forged, 2);
    bench.receive(&sealed(keys.to_client, &reply, &[]), &[]);
    (bench, said, keys)
}

#[test]
fn a_client_takes_what_the_head_has_sealed() {
    let (mut bench, _, keys) = opened();
    bench.update();
    let sent = only(bench.flush());
    assert_eq!(sent.header.kind, Kind::Update);
    is_sealed(&sent, keys.to_head);
    let ack = Header {
        seq: 1,
        ..bench.reply(Kind::Ack)
    };
    bench.receive(&sealed(keys.to_head, &ack, &[]), &[]);
    bench.receive(
        &Header {
            seq: 2,
            ..sealed(keys.to_client, &ack, &[])
        },
        &[],
    );
    assert_eq!(bench.client.counters().forged, 4);
    let acknowledged = |bench: &support::client::Bench| {
        let binding = bench.client.binding(SESSION).expect("it is open");
        binding.acknowledged
    };
    assert_eq!(acknowledged(&bench), 0);
    bench.receive(&sealed(keys.to_client, &ack, &[]), &[]);
    assert_eq!(acknowledged(&bench), 1);
}

#[test]
fn a_client_asks_by_a_ping_with_the_first_retransmission() {
    let (mut bench, said, keys) = opened();
    bench.update();
    bench.flush();
    let again = bench.after(SECOND);
    assert_eq!(kinds(&again), [Kind::Update, Kind::Ping]);
    assert_eq!(Identity::read(&again[1].payload), Some(said));
    is_sealed(&again[1], keys.to_head);
    assert_eq!(again[1].to, head_address());
    let over = Header {
        flags: Flags::UNKNOWN_SESSION,
        request: raw(0),
        ..bench.reply(Kind::Nack)
    };
    bench.receive(&sealed(keys.to_client, &over, &[]), &[]);
    assert_eq!(bench.client.sessions(), 0);
}

#[test]
fn an_open_that_finds_no_room_is_answered_under_its_own_keys() {
    let (mut bench, said, keys) = opening();
    let refused = Header {
        session: 0,
        order: said.token,
        request: raw(0),
        copies: raw(1),
        ..bench.reply(Kind::NotLogged)
    };
    bench.receive(&refused, &[]);
    assert_eq!(bench.client.counters().crowded, 0);
    bench.now = bench.now + MILLISECOND;
    bench.receive(&sealed(keys.to_client, &refused, &[]), &[]);
    assert_eq!(bench.client.counters().crowded, 1);
}

#[test]
fn a_server_takes_entries_of_the_tail_only() {
    let config = ServerConfig {
        keys: Some(ClusterKeys::new(CLUSTER)),
        ..server::config()
    };
    let mut bench = server::Bench::blank(config);
    let path = write_path(&[member(1), member(2)]);
    let recover = Header {
        shard: SHARD,
        device: 1,
        incarnation: 1,
        request: raw(5),
        seq: 1,
        ..Header::new(Kind::Recover)
    };
    // Three RECOVERs: one without a seal, one that was led past the second device, and the genuine one.
    let asking = CLUSTER.asking(SHARD, 2);
    let plain = recover.for_payload(&path);
    assert_eq!(bench.try_give(&plain, &path), Ok(vec![]));
    let misled = sealed(asking, &Header { seq: 3, ..recover }, &path);
    assert_eq!(bench.try_give(&misled, &path), Ok(vec![]));
    let counters = *bench.server.counters();
    assert_eq!((counters.forged, counters.misled), (1, 1));
    let right = sealed(asking, &recover, &path);
    assert_eq!(bench.try_give(&right, &path), Ok(vec![]));
    let reply = only(bench.work());
    is_sealed(&reply, CLUSTER.asking(SHARD, 0));
    let life = life_of(&reply);
    assert_eq!(bench.server.chain().map(|chain| chain.epoch), Some(1));

    let append = Header {
        shard: SHARD,
        epoch: 1,
        device: 1,
        incarnation: 1,
        session: 1,
        order: 1,
        copies: raw(1),
        ..Header::new(Kind::Append)
    };
    let key = |sender| CLUSTER.hop(life, 1, sender);
    let early = sealed(key(1), &append, &identity());
    assert_eq!(bench.try_give(&early, &identity()), Ok(vec![]));
    assert_eq!(
        (bench.server.counters().forged, bench.server.received()),
        (2, 0)
    );
    let entry = sealed(key(2), &append, &identity());
    bench.try_give(&entry, &identity()).expect("the next entry");
    assert_eq!(bench.server.received(), 1);
    let applied = only(bench.work());
    assert_eq!((applied.header.kind, applied.to), (Kind::Applied, tail()));
    is_sealed(&applied, key(0));

    // The front is in the record, and in the next recover-reply.
    let record = bench
        .store
        .records
        .iter()
        .find(|(key, _)| key.starts_with(b"session/"));
    assert_eq!(record.map(|(_, value)| value.len()), Some(24));
    let again = sealed(
        asking,
        &Header {
            request: raw(6),
            ..recover
        },
        &path,
    );
    // Before the first reply, the server must read its records.
    let mut replies = Vec::new();
    for _ in 0..2 {
        replies.extend(bench.try_give(&again, &path).expect("asked once more"));
        replies.extend(bench.work());
    }
    let reply = replies
        .iter()
        .find(|sent| sent.header.kind == Kind::RecoverReply)
        .expect("an answer");
    let table = RecoverReply::read(&reply.payload).expect("a table");
    assert_eq!(table.sessions[0].front, Some(front().id()));
    assert_eq!(table.sessions[0].token, TOKEN);
}

#[test]
fn a_nic_takes_messages_of_a_session_whose_keys_the_device_has() {
    let mut bench = head();
    let whose = |name: &str| Identity {
        token: TOKEN,
        front: Some(front_named(name).id()),
    };
    let unkeyed = Identity {
        front: None,
        ..whose("web")
    };
    assert!(!bench.device.bind(SESSION, unkeyed));
    assert!(!bench.device.bind(SESSION, whose("other")));
    assert!(bench.device.bind(SESSION, whose("web")));
    let mut without = Bench::head(1);
    assert!(!without.device.bind(SESSION, whose("web")));
    assert!(without.device.bind(SESSION, unkeyed));
    let mut refused = head();
    refused.device.rekey(ClusterKeys {
        refused: vec![front().id()],
        ..ClusterKeys::new(CLUSTER)
    });
    assert!(refused.device.lacks_keys(SESSION));
    assert!(!refused.device.bind(SESSION, whose("web")));
}

/// A NIC has acknowledged a message, and then the key of its front is removed. The message is still verified and
/// logged. The device forgets the session's keys when the connection is gone (docs/spec/verbs.md §3, 3).
#[test]
fn a_session_keeps_its_keys_until_its_slots_are_processed() {
    let mut bench = head();
    let whose = Identity {
        token: TOKEN,
        front: Some(front().id()),
    };
    assert!(bench.device.bind(SESSION, whose));
    assert!(bench.device.bind(SESSION, whose), "its next connection");
    let next = next_cluster();
    bench.device.rekey(ClusterKeys::new(next.present));
    for seq in [1, 2] {
        let message = sealed(session().to_head, &update(seq), b"payload");
        bench.admit(&message, b"payload");
        assert!(!bench.device.lacks_keys(SESSION));
        bench.device.unbind(bench.now, SESSION);
    }
    assert!(bench.device.lacks_keys(SESSION));
    assert!(!bench.device.bind(SESSION, whose));
    let third = sealed(session().to_head, &update(3), b"payload");
    assert_eq!(bench.give(client(), &third, b"payload"), Verdict::Done);
    assert_eq!(bench.device.counters().unknown_key, 1);
}

/// All processes get the next cluster key as their second key, then seal with it, then forget the old key.
#[test]
fn two_cluster_keys_are_accepted_and_one_is_sent_under() {
    let next = ClusterKey::new(*b"the next of them");
    let mut config = keyed(2, 2);
    let keys = config.keys.as_mut().expect("with keys");
    keys.cluster.present = next;
    keys.cluster.other = Some(CLUSTER);
    let mut bench = serving_with(2, config, &[]);
    let entry = |order: u64| Header {
        copies: raw(1),
        session: order,
        order,
        tag: 0,
        ..from_hop(Kind::Append, 1)
    };
    let payload = identity();
    for (order, cluster) in [(1, CLUSTER), (2, next)] {
        let by_the_head = sealed(cluster.hop(LIFE, EPOCH, 1), &entry(order), &payload);
        let stored = bench.admit(&by_the_head, &payload);
        let stored = Sent {
            to: client(),
            header: stored,
            payload: payload.clone(),
        };
        is_sealed(&stored, next.hop(LIFE, EPOCH, 2));
    }
    let third = ClusterKey::new([9; 16]);
    let forged = sealed(third.hop(LIFE, EPOCH, 1), &entry(3), &payload);
    assert_eq!(bench.answer(hop(2, 1), &forged, &payload), []);
}

/// A front's key may be derived from either cluster key. The front is served until it is on the list of refused fronts.
#[test]
fn a_front_that_is_refused_opens_no_session() {
    let next = ClusterKey::new(*b"the next of them");
    for (refused, admitted) in [(vec![], true), (vec![front().id()], false)] {
        let mut config = keyed(1, 1);
        let keys = config.keys.as_mut().expect("with keys");
        keys.cluster = ClusterKeys {
            present: next,
            other: Some(CLUSTER),
            refused,
        };
        let mut bench = serving_with(1, config, &[]);
        let open = Header {
            session: 0,
            tag: 0,
            ..from_client(Kind::Open, 0)
        };
        let open = sealed(session().to_head, &open, &identity());
        let verdict = bench.give(client(), &open, &identity());
        assert_eq!(matches!(verdict, Verdict::Append(_)), admitted);
        assert_eq!(bench.device.counters().unknown_key, u64::from(!admitted));
    }
}

/// Without keys a device does not write the number of the next hop into a RECOVER that it passes on.
#[test]
fn without_keys_a_recover_is_passed_on_as_it_came() {
    let mut bench = Bench::serving(2, 2);
    let path = write_path(&[member(1)]);
    let recover = Header {
        tag: 0,
        request: raw(77),
        seq: 30,
        ..from_hop(Kind::Recover, 1)
    };
    let passed = only(bench.answer(hop(2, 1), &recover, &path));
    assert_eq!(passed.header.seq, 30);
}

fn next_cluster() -> ClusterKeys {
    ClusterKeys {
        other: Some(CLUSTER),
        ..ClusterKeys::new(ClusterKey::new(*b"the next of them"))
    }
}

/// A device gets other keys while it serves (keys.md §7): it seals entries again that it stored before, and the open
/// session continues.
#[test]
fn what_was_stored_before_other_keys_came_is_sealed_anew() {
    let mut bench = head();
    let next = next_cluster();
    bench.device.rekey(next.clone());
    let sealed_now = next.present.hop(LIFE, EPOCH, 1);
    is_sealed(&only(bench.forwards()), sealed_now);
    let first = sealed(session().to_head, &update(1), b"payload");
    let entry = bench.admit(&first, b"payload");
    let stored = Sent {
        to: client(),
        header: entry,
        payload: b"payload".to_vec(),
    };
    is_sealed(&stored, sealed_now);
    bench.device.persisted(2);
    is_sealed(&only(bench.finish()), session().to_client);
    is_sealed(&only(bench.forwards()), sealed_now);
    // The server still seals with the old key.
    let applied = |key: MacKey, order: u64| {
        let header = Header {
            order,
            tag: 0,
            ..from_hop(Kind::Applied, 0)
        };
        sealed(key, &header, &[])
    };
    let server = CLUSTER.hop(LIFE, EPOCH, 0);
    bench.give(hop(1, 2), &applied(server, 1), &[]);
    assert_eq!(bench.device.cursors().3, 1);
    // The last step: the old key is forgotten.
    bench.device.rekey(ClusterKeys {
        other: None,
        ..next.clone()
    });
    bench.give(hop(1, 2), &applied(server, 2), &[]);
    assert_eq!(bench.device.cursors().3, 1);
    let server = next.present.hop(LIFE, EPOCH, 0);
    bench.give(hop(1, 2), &applied(server, 2), &[]);
    assert_eq!(bench.device.cursors().3, 2);
}

/// A session that was opened with a forgotten key of the cluster is not served any more, so that a thief cannot use a
/// stolen key. The session's acknowledged updates are in the log: they are sent to the server, and are reclaimed when
/// the store has applied them.
#[test]
fn the_session_of_a_forgotten_key_is_served_no_more() {
    let mut bench = head();
    let next = next_cluster();
    bench.device.rekey(next.clone());
    let first = sealed(session().to_head, &update(1), b"payload");
    bench.admit(&first, b"payload");
    bench.device.persisted(2);
    assert_eq!(kinds(&bench.finish()), [Kind::Ack], "still served");
    bench.device.rekey(ClusterKeys::new(next.present));
    for (packets, seq) in [(1, 1), (2, 2)] {
        let packet = sealed(session().to_head, &update(seq), b"payload");
        assert_eq!(bench.answer(client(), &packet, b"payload"), []);
        assert_eq!(bench.device.counters().unknown_key, packets);
    }
    let why = Some((front().id(), Unserved::OfAnotherCluster, 2));
    assert_eq!(bench.device.unserved(), why);
    assert_eq!(kinds(&bench.forwards()), [Kind::Append; 2]);
    let server = next.present.hop(LIFE, EPOCH, 0);
    let applied = Header {
        order: 2,
        tag: 0,
        ..from_hop(Kind::Applied, 0)
    };
    bench.give(hop(1, 2), &sealed(server, &applied, &[]), &[]);
    assert_eq!(bench.device.cursors().3, 2);
    // No client can end the session, so it ends by its silence, as any other.
    bench.tick_after(config(1, hop(1, 2)).session_idle);
    let end = bench.device.poll_own_entry(bench.now, bench.room);
    assert_eq!(end.expect("an END").session, SESSION);
}

/// The token of a shard is no secret, because a hop's PING carries it. Regression: the head took a session with the
/// shard's token for a hop. After each bypass of the session with a later epoch, the head stopped serving and asked the
/// server. After a bypass with the current epoch, the next hop's answers went to the client.
#[test]
fn a_session_with_the_token_of_the_shard_is_no_hop() {
    let said = Identity {
        token: SHARD_TOKEN,
        front: Some(front().id()),
    };
    let row = SessionRow {
        session: SESSION,
        last_seq: 0,
        token: SHARD_TOKEN,
        front: said.front,
    };
    let key = front().session(SHARD, SHARD_TOKEN).to_head;
    for id in [1, 2] {
        let mut bench = serving(2, id, &[row]);
        if id == 2 {
            let present = Header {
                tag: 0,
                ..from_hop(Kind::Ping, 1)
            };
            bench.answer(hop(2, 1), &sealed(hop_key(1), &present, &[]), &[]);
            bench.finish();
        }
        for epoch in [EPOCH, EPOCH + 1, EPOCH - 1] {
            let bypass = Header {
                epoch,
                tag: 0,
                request: raw(1),
                ..from_client(Kind::Bypass, 0)
            };
            bench.answer(client(), &sealed(key, &bypass, b"payload"), b"payload");
            bench.tick();
            assert!(bench.device.is_serving(), "{id}, {epoch}");
            let to_client = |sent: &Sent| sent.to == client();
            assert!(!bench.finish().iter().any(to_client), "{id}, {epoch}");
        }
    }
}

/// To verify a packet of another epoch, many MACs are computed, so only some of these packets are verified in a burst.
/// If a genuine packet is dropped, its sender sends it again.
#[test]
fn of_a_flood_of_another_epoch_little_is_verified() {
    let mut bench = serving(2, 2, &[]);
    let of_epoch = |epoch| Header {
        epoch,
        tag: 0,
        ..from_hop(Kind::Ping, 1)
    };
    let forged = sealed(
        ClusterKey::new([9; 16]).hop(LIFE, EPOCH - 1, 1),
        &of_epoch(EPOCH - 1),
        &[],
    );
    for _ in 0..1000 {
        assert_eq!(bench.answer(hop(2, 1), &forged, &[]), []);
    }
    let counters = *bench.device.counters();
    assert_eq!((counters.forged - 1, counters.other_epoch), (8, 992));
    let genuine = CLUSTER.hop(LIFE, EPOCH - 1, 1);
    let genuine = sealed(genuine, &of_epoch(EPOCH - 1), &[]);
    assert_eq!(bench.answer(hop(2, 1), &genuine, &[]), [], "none is left");
    // Packets of the current epoch are processed meanwhile.
    let present = sealed(hop_key(1), &of_epoch(EPOCH), &[]);
    bench.answer(hop(2, 1), &present, &[]);
    assert_eq!(bench.finish().len(), 2, "DURABLE and APPLIED");
    let stale = only(bench.answer(hop(2, 1), &genuine, &[]));
    assert_eq!(stale.header.kind, Kind::StaleEpoch, "in the next burst");
}

#[test]
fn the_session_of_a_front_that_is_refused_now_is_served_no_more() {
    let mut bench = head();
    bench.device.rekey(ClusterKeys {
        refused: vec![front_named("other").id()],
        ..ClusterKeys::new(CLUSTER)
    });
    let first = sealed(session().to_head, &update(1), b"payload");
    bench.admit(&first, b"payload");
    bench.device.rekey(ClusterKeys {
        refused: vec![front().id()],
        ..ClusterKeys::new(CLUSTER)
    });
    let second = sealed(session().to_head, &update(2), b"payload");
    assert_eq!(bench.give(client(), &second, b"payload"), Verdict::Done);
    assert_eq!(bench.device.counters().unknown_key, 1);
}

/// Updates and requests of the refused front that are in progress get no answer. Without the front's keys an answer
/// would have only the token, and anyone on the network could read the token and a reply's data.
#[test]
fn a_front_that_is_refused_now_is_sent_nothing_more() {
    let mut bench = head();
    let first = sealed(session().to_head, &update(1), b"payload");
    bench.admit(&first, b"payload");
    bench.device.rekey(ClusterKeys {
        refused: vec![front().id()],
        ..ClusterKeys::new(CLUSTER)
    });
    bench.device.persisted(2);
    bench.forwards();
    let response = Header {
        session: SESSION,
        request: raw(1),
        tag: 0,
        ..from_hop(Kind::Response, 0)
    };
    let response = sealed(hop_key(0), &response, b"+reply\r\n");
    bench.give(hop(1, 2), &response, b"+reply\r\n");
    let sent = bench.finish();
    let to_client = sent.iter().filter(|sent| sent.to == client());
    assert_eq!(to_client.count(), 0, "{sent:?}");
    assert_eq!(bench.device.counters().no_route, 1, "the reply");
}

/// A client gets another key: the session with the old key takes no more calls, and ends when no call is under way. A
/// new session begins.
#[test]
fn a_client_with_another_key_leaves_its_session_when_nothing_is_under_way() {
    let (mut bench, said, keys) = opened();
    bench.update();
    bench.flush();
    let other = front_named("web-2");
    bench.client.rekey(bench.now, other);
    assert_eq!(bench.try_update(5), Err(Refused::Busy));
    // The session's PING states the id under which it was opened.
    for sent in bench.after(SECOND / 4) {
        is_sealed(&sent, keys.to_head);
        if sent.header.kind == Kind::Ping {
            assert_eq!(Identity::read(&sent.payload), Some(said));
        }
    }
    let ack = |seq| Header {
        seq,
        ..bench.reply(Kind::Ack)
    };
    let (first, second) = (ack(1), ack(2));
    bench.receive(&sealed(keys.to_client, &first, &[]), &[]);
    let sent = bench.flush();
    assert_eq!(kinds(&sent), [Kind::End]);
    is_sealed(&sent[0], keys.to_head);
    assert_eq!(bench.try_update(5), Err(Refused::Closed));
    bench.session = bench.client.open(bench.now).expect("another one");
    bench.try_update(5).expect("it takes calls at once");
    let open = only(bench.flush());
    let said = Identity::read(&open.payload).expect("an OPEN says whose it is");
    assert_eq!(said.front, Some(other.id()));
    is_sealed(&open, other.session(SHARD, said.token).to_head);
    bench.receive(&sealed(keys.to_client, &second, &[]), &[]);
    let closed = std::iter::from_fn(|| bench.client.poll_event());
    let closed = closed.filter(|event| matches!(event, Event::SessionClosed { .. }));
    let reasons: Vec<_> = closed.collect();
    assert!(
        matches!(
            reasons[..],
            [Event::SessionClosed {
                reason: Closed::Ended,
                ..
            }]
        ),
        "{reasons:?}"
    );
}

/// The last step of a rollover came too early: no head has the session's key any more, so no head answers the session.
/// (Simulator, seed 55 with keys: every new call was refused as `Busy`, for ever.)
#[test]
fn a_session_that_nobody_hears_under_its_key_is_left_when_its_calls_are_over() {
    for (update, again) in [(true, false), (false, false), (false, true)] {
        let (mut bench, _, keys) = opened();
        let call = match update {
            true => bench.update(),
            false => bench.bypass(false),
        };
        bench.flush();
        if again {
            // A fence with the old key, in the session of the call, must first settle the unknown outcome.
            bench.after(SECOND);
            assert_eq!(bench.outcomes(), [(call, Outcome::Unknown)]);
        }
        bench.client.rekey(bench.now, front_named("web-2"));
        for sent in bench.after(SECOND / 4) {
            is_sealed(&sent, keys.to_head);
        }
        let call = match again {
            true => bench.bypass(false),
            false => call,
        };
        assert_eq!(bench.client.sessions_of_other_keys(), 1);
        bench.flush();
        bench.after(SECOND);
        let (outcomes, reason) = bench.closed();
        let ended: Vec<CallId> = outcomes.iter().map(|(call, _)| *call).collect();
        assert_eq!((ended, reason), (vec![call], Closed::Ended));
        assert_eq!(bench.client.sessions_of_other_keys(), 0);
        assert_eq!(bench.try_update(5), Err(Refused::Closed));
        bench.session = bench.client.open(bench.now).expect("another one");
        bench.try_update(5).expect("it takes calls at once");
    }
}

/// Even calls without a pause do not keep the session open. After the first call that no device answers, the session
/// takes no more calls.
#[test]
fn a_session_that_nobody_hears_under_its_key_takes_no_more_calls() {
    let (mut bench, _, _) = opened();
    let first = bench.bypass(false);
    bench.flush();
    bench.after(SECOND);
    assert_eq!(bench.outcomes(), [(first, Outcome::Unknown)]);
    bench.client.rekey(bench.now, front_named("web-2"));
    // A fence with the old key, in the session of the call, must first settle the unknown outcome.
    let second = bench.bypass(false);
    bench.after(SECOND / 2);
    let third = bench.bypass(false);
    bench.after(SECOND / 2);
    let ended = |outcomes: Vec<(CallId, Outcome)>| -> Vec<CallId> {
        outcomes.iter().map(|(call, _)| *call).collect()
    };
    assert_eq!(ended(bench.outcomes()), [second]);
    assert_eq!(bench.try_update(5), Err(Refused::Busy));
    bench.after(SECOND / 2);
    let (outcomes, reason) = bench.closed();
    assert_eq!((ended(outcomes), reason), (vec![third], Closed::Ended));
}

/// An update gets no answer until its deadline, and only then does the client get another key. The client drops the
/// session at once.
#[test]
fn a_session_whose_calls_are_over_is_left_when_there_is_another_key() {
    let (mut bench, _, _) = opened();
    let call = bench.update();
    bench.flush();
    bench.after(SECOND);
    assert_eq!(bench.outcomes(), [(call, Outcome::Unknown)]);
    bench.client.rekey(bench.now, front_named("web-2"));
    assert_eq!(bench.flush(), []);
    assert_eq!(bench.closed(), (vec![], Closed::Ended));
}

/// A key file that was edited by hand has the right id and a wrong key, so no head can verify the OPEN. Then the
/// operator corrects the file.
#[test]
fn a_session_that_is_not_open_yet_goes_on_with_the_key_that_comes() {
    let wrong = FrontKey::new(front().id(), *b"not derived here");
    let config = ClientConfig {
        keys: Some(wrong),
        ..support::client::config()
    };
    let (mut bench, open) = support::client::Bench::opening(config);
    let said = Identity::read(&open.payload).expect("an OPEN says whose it is");
    is_sealed(&open, wrong.session(SHARD, said.token).to_head);
    bench.client.rekey(bench.now, front());
    let keys = front().session(SHARD, said.token);
    let again = only(bench.flush());
    assert_eq!(again.header.kind, Kind::Open);
    is_sealed(&again, keys.to_head);
    let reply = Header {
        order: said.token,
        ..bench.reply(Kind::OpenReply)
    };
    bench.receive(&sealed(keys.to_client, &reply, &[]), &[]);
    bench.update();
    let sent = only(bench.flush());
    assert_eq!(sent.header.kind, Kind::Update);
    is_sealed(&sent, keys.to_head);
}

/// A session for READs that is not open yet takes the new key, too. (Simulator, seed 409 with keys: there were then two
/// sessions for READs, and the earlier session was never ended.)
#[test]
fn a_session_for_reads_that_is_not_open_yet_goes_on_with_the_key_that_comes() {
    let (mut bench, _, _) = opened();
    bench.flush();
    bench
        .client
        .read(bench.now, &[9], false, bench.now + SECOND)
        .expect("asked");
    let open = only(bench.flush());
    assert_eq!(open.header.kind, Kind::Open);
    let said = Identity::read(&open.payload).expect("an OPEN says whose it is");
    let other = front_named("web-2");
    bench.client.rekey(bench.now, other);
    let sent = bench.flush();
    let opens: Vec<&Sent> = sent
        .iter()
        .filter(|sent| sent.header.kind == Kind::Open)
        .collect();
    assert_eq!(opens.len(), 1, "{sent:?}");
    is_sealed(opens[0], other.session(SHARD, said.token).to_head);
    assert_eq!(
        Identity::read(&opens[0].payload).map(|said| said.token),
        Some(said.token)
    );
}

#[test]
fn an_idle_session_ends_by_itself_when_there_is_another_key() {
    let (mut bench, _, keys) = opened();
    bench.flush();
    bench.client.rekey(bench.now, front());
    assert_eq!(bench.flush(), [], "it is the same key");
    bench.client.rekey(bench.now, front_named("web-2"));
    let end = only(bench.flush());
    assert_eq!(end.header.kind, Kind::End);
    is_sealed(&end, keys.to_head);
}

/// The server's part of a change of keys.
#[test]
fn a_server_with_other_keys_takes_entries_under_both_and_sends_under_the_new_one() {
    let config = ServerConfig {
        keys: Some(ClusterKeys::new(CLUSTER)),
        ..server::config()
    };
    let mut bench = server::Bench::blank(config);
    let path = write_path(&[member(1)]);
    let recover = Header {
        shard: SHARD,
        device: 1,
        incarnation: 1,
        request: raw(5),
        seq: 1,
        ..Header::new(Kind::Recover)
    };
    let asks = sealed(CLUSTER.asking(SHARD, 1), &recover, &path);
    bench.try_give(&asks, &path).expect("it is taken in");
    let life = life_of(&only(bench.work()));
    let next = next_cluster();
    bench.server.rekey(next.clone());
    let append = |order: u64, cluster: ClusterKey| {
        let header = Header {
            shard: SHARD,
            epoch: 1,
            device: 1,
            incarnation: 1,
            session: order,
            order,
            copies: raw(1),
            ..Header::new(Kind::Append)
        };
        sealed(cluster.hop(life, 1, 1), &header, &identity())
    };
    for (order, cluster) in [(1, CLUSTER), (2, next.present)] {
        let entry = append(order, cluster);
        bench.try_give(&entry, &identity()).expect("the next entry");
        assert_eq!(bench.server.received(), order);
        let applied = only(bench.work());
        is_sealed(&applied, next.present.hop(life, 1, 0));
    }
    bench.server.rekey(ClusterKeys {
        other: None,
        ..next
    });
    let late = append(3, CLUSTER);
    assert_eq!(bench.try_give(&late, &identity()), Ok(vec![]));
    assert_eq!(
        (bench.server.received(), bench.server.counters().forged),
        (2, 1)
    );
    // Of a flood of packets of another epoch, the server verifies only a few.
    let mut of_another = append(3, CLUSTER);
    of_another.epoch = 7;
    for _ in 0..100 {
        let none = bench.try_give(&of_another, &identity());
        assert_eq!(none, Ok(vec![]));
    }
    let counters = bench.server.counters();
    assert_eq!((counters.forged, counters.other_epoch), (9, 92));
}

/// A packet of a process that uses keys although the receiver has none, or the reverse, has no effect. If the receiver
/// recognises such a packet, it counts the packet.
#[test]
fn packets_of_the_other_mode_are_counted() {
    let open = |payload: &[u8]| {
        Header {
            session: 0,
            tag: TOKEN,
            ..from_client(Kind::Open, 0)
        }
        .for_payload(payload)
    };
    let without = Identity {
        token: TOKEN,
        front: None,
    };
    let mut keyed = serving(1, 1, &[]);
    let mut unkeyed = Bench::serving(1, 1);
    for (bench, payload) in [
        (&mut keyed, without.write().to_vec()),
        (&mut unkeyed, identity()),
    ] {
        let verdict = bench.give(client(), &open(&payload), &payload);
        assert_eq!(verdict, Verdict::Done);
        assert_eq!(bench.device.counters().other_mode, 1);
    }
}

#[test]
fn a_server_without_keys_stops_at_sessions_of_fronts_that_have_them() {
    let record = |front: &[u8]| {
        let key = [&b"session/"[..], &7_u64.to_be_bytes()].concat();
        let value = [&TOKEN.to_be_bytes(), &3_u64.to_be_bytes(), front].concat();
        vec![(key, Bytes::from(value))]
    };
    let of_front = front().id().get().to_be_bytes();
    let with_keys = ServerConfig {
        keys: Some(ClusterKeys::new(CLUSTER)),
        ..server::config()
    };
    for (config, front, stops) in [
        (server::config(), &of_front[..], true),
        (server::config(), &[][..], false),
        (with_keys, &of_front[..], false),
    ] {
        let mut machine = Server::new(config, Random::new(1));
        let loaded = machine.loaded(record(front), None);
        let text = loaded.map_or_else(|stop| stop.0, |()| String::new());
        assert_eq!(text.starts_with("PM2018 1 sessions"), stops, "{text}");
    }
}

/// The store was emptied, or belongs to another shard with the same number, so its epochs begin at 1 again. The head
/// rejects the packets of such a server.
#[test]
fn what_was_sealed_in_another_life_of_the_shard_is_forged() {
    let mut bench = head();
    let first = sealed(session().to_head, &update(1), b"payload");
    bench.admit(&first, b"payload");
    bench.device.persisted(2);
    let applied = Header {
        order: 2,
        tag: 0,
        ..from_hop(Kind::Applied, 0)
    };
    let earlier = Life { token: 77, ..LIFE };
    let before = bench.device.counters().forged;
    for (life, believed) in [(earlier, 0), (LIFE, 2)] {
        let word = sealed(CLUSTER.hop(life, EPOCH, 0), &applied, &[]);
        bench.give(hop(1, 2), &word, &[]);
        assert_eq!(bench.device.cursors().3, believed, "{life:?}");
    }
    assert_eq!(bench.device.counters().forged, before + 1);
}

/// A server without a chain record verifies a PING with the shard token that the PING states, and answers that it does
/// not know the epoch.
#[test]
fn a_server_that_has_lost_its_record_says_so_to_a_ping_only() {
    let config = ServerConfig {
        keys: Some(ClusterKeys::new(CLUSTER)),
        ..server::config()
    };
    let mut bench = server::Bench::blank(config);
    let header = |kind: Kind| Header {
        shard: SHARD,
        epoch: EPOCH,
        device: 1,
        incarnation: 1,
        request: raw(SHARD_TOKEN),
        ..Header::new(kind)
    };
    let key = CLUSTER.hop(LIFE, EPOCH, 1);
    let ping = sealed(key, &header(Kind::Ping), &[]);
    let stale = only(bench.try_give(&ping, &[]).expect("it is taken in"));
    assert_eq!(stale.header.kind, Kind::StaleEpoch);
    let none = Life { token: 0, ..LIFE };
    is_sealed(&stale, CLUSTER.hop(none, 0, 0));
    let of_another = header(Kind::Ping);
    let of_another = sealed(
        key,
        &Header {
            request: raw(1),
            ..of_another
        },
        &[],
    );
    assert_eq!(bench.try_give(&of_another, &[]), Ok(vec![]));
    let entry = Header {
        copies: raw(1),
        session: 1,
        order: 1,
        ..header(Kind::Append)
    };
    let entry = sealed(key, &entry, &identity());
    assert_eq!(bench.try_give(&entry, &identity()), Ok(vec![]));
    assert_eq!(bench.server.counters().forged, 2);
}
