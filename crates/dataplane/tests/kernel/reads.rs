//! READs in the pipeline, while the process gets packets that close keys. The test decides which event happens at which
//! moment (`docs/spec/reads.md` §9).

use pmnet_proto::Peer;
use pmnet_wire::packet::write_hashes;
use pmnet_wire::{Flags, Header, Kind, Packet, raw};

use crate::load::{TOKEN, of_client};
use crate::races::{Bench, Deed, address, client, hop, next, written};
use crate::rig::{Passed, run};
use crate::world::{SHARD, skipped};

const KEY: u64 = 1 << 40;
/// Hashes of other keys. With any secret, at least one of them is in another bucket than [`KEY`].
const OTHERS: std::ops::Range<u64> = 2..64;

/// Answer of the pipeline to a READ.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    Hit(u64, Vec<u8>),
    Miss(u64),
    Up,
}
use Said::{Hit, Miss, Up};

fn asked(session: u64, keys: &[u64]) -> Vec<u8> {
    asked_with(Flags::default(), session, keys)
}

fn asked_with(flags: Flags, session: u64, keys: &[u64]) -> Vec<u8> {
    let header = Header {
        flags,
        request: raw(77),
        ..of_client(Kind::Read, session)
    };
    written(header, &write_hashes(keys))
}

fn updated(session: u64, seq: u64, key: u64, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        seq,
        key_hash: raw(key),
        ..of_client(Kind::Update, session)
    };
    written(header, payload)
}

fn bypass(session: u64, seq: u64, id: u64, key: u64) -> Vec<u8> {
    let header = Header {
        seq,
        request: raw(id),
        key_hash: raw(key),
        ..of_client(Kind::Bypass, session)
    };
    written(header, b"changes something")
}

/// Returns the server's answer to a bypass, which was executed when `applied` was the last applied order.
fn answered(session: u64, id: u64, applied: u64) -> Vec<u8> {
    let header = Header {
        session,
        request: raw(id),
        order: applied,
        ..hop(Kind::Response, 0, 0)
    };
    written(header, b"")
}

struct Head {
    bench: Bench,
    session: u64,
}

impl Head {
    fn new(copies: usize) -> Head {
        let mut bench = Bench::new(0, copies);
        let session = bench.open();
        Head { bench, session }
    }

    fn give(&self, from: Peer, bytes: &[u8]) -> Passed {
        run(&self.bench.node.kernel, from, address(), bytes)
    }

    fn read(&self, keys: &[u64]) -> Said {
        self.said(&asked(self.session, keys))
    }

    /// Sends a READ that allows applied writes to be shown.
    fn read_kept(&self, key: u64) -> Said {
        self.said(&asked_with(Flags::KEPT, self.session, &[key]))
    }

    fn said(&self, asked: &[u8]) -> Said {
        match self.give(client(), asked) {
            Passed::Out(to, bytes) => {
                let packet = Packet::parse(&bytes).expect("an answer is whole");
                let header = packet.header;
                assert_eq!((to, header.request.raw()), (client(), 77));
                assert_eq!((header.session, header.tag), (self.session, TOKEN));
                match header.kind {
                    Kind::Hit => Hit(header.order, packet.payload.to_vec()),
                    Kind::Miss => Miss(header.order),
                    _ => panic!("{header}"),
                }
            }
            Passed::Up => Up,
            Passed::Gone => panic!("a READ is gone"),
        }
    }

    /// Sends an update, which the pipeline must acknowledge. Returns the order of the update.
    fn update(&self, seq: u64, key: u64, payload: &[u8]) -> u64 {
        let bytes = updated(self.session, seq, key, payload);
        let passed = self.give(client(), &bytes);
        assert!(matches!(passed, Passed::Out(..)), "{passed:?}");
        self.bench.last()
    }

    /// Updates a key in another bucket than [`KEY`], and returns the key.
    fn other(&self) -> u64 {
        OTHERS
            .map(|key| key << 40)
            .find(|&key| self.read(&[key]) == Miss(0))
            .expect("there are several buckets")
    }
}

#[test]
fn what_was_acknowledged_is_shown_by_the_kernel_until_it_is_applied() {
    if skipped() {
        return;
    }
    let mut head = Head::new(1);
    for (seq, payload) in [
        (1, &b"value"[..]),
        (2, b""),
        (3, b"1234567"),
        (4, b"12345678"),
        (5, &[7; 1344]),
    ] {
        let order = head.update(seq, KEY, payload);
        let other = head.other();
        assert_eq!(head.read(&[KEY]), Hit(order, payload.to_vec()));
        assert_eq!(
            head.read(&[KEY, other]),
            Miss(order),
            "several are never shown"
        );
        assert_eq!(head.read(&[]), Miss(order), "all keys");
        let of_replicas = asked_with(Flags::REPLICAS, head.session, &[other]);
        assert_eq!(
            head.said(&of_replicas),
            Up,
            "the process knows what a replica must have"
        );
    }
    let other = head.other();
    let last = head.bench.last();
    let applied = Header {
        order: last,
        ..hop(Kind::Applied, 0, 0)
    };
    head.bench.turn(&[(next(), written(applied, b""))]);
    assert_eq!(head.read(&[KEY]), Miss(last));
    let unknown = head.update(6, 0, b"several keys");
    assert_eq!(head.read(&[other]), Miss(unknown), "the floor has risen");
    assert_eq!(head.read(&[KEY]), Miss(unknown));
    let fragment = Header {
        fragment_count: 2,
        seq: 7,
        key_hash: raw(KEY),
        ..of_client(Kind::Update, head.session)
    };
    head.give(client(), &written(fragment, b"half of it"));
    assert_eq!(head.read(&[KEY]), Miss(unknown + 1), "not a whole update");
}

#[test]
fn what_is_applied_is_shown_until_it_is_overwritten() {
    if skipped() {
        return;
    }
    let mut head = Head::new(1);
    let payload = [7; 1000];
    let order = head.update(1, KEY, &payload);
    let other = head.other();
    let apply = |head: &mut Head| {
        let applied = Header {
            order: head.bench.last(),
            ..hop(Kind::Applied, 0, 0)
        };
        head.bench.turn(&[(next(), written(applied, b""))]);
    };
    apply(&mut head);
    assert_eq!(head.read(&[KEY]), Miss(order));
    let mut shown = 0;
    // The ring has 16 KiB, so it wraps.
    for seq in 2..40 {
        match head.read_kept(KEY) {
            Hit(at, bytes) => {
                assert_eq!((at, &bytes[..]), (order, &payload[..]), "at {seq}");
                assert_eq!(shown, seq - 2, "once overwritten, never again");
                shown += 1;
            }
            said => assert_eq!(said, Miss(order), "at {seq}"),
        }
        let newest = head.update(seq, other, &[8; 1000]);
        apply(&mut head);
        assert_eq!(head.read_kept(other), Hit(newest, vec![8; 1000]));
    }
    assert!(
        (12..20).contains(&shown),
        "{shown} frames fit into the ring"
    );
    // A bypass, which has no order, hides older writes of its key.
    let newest = head.bench.last();
    let deeds = [(client(), bypass(head.session, 39, 1, other))];
    head.bench.turn(&deeds);
    assert_eq!(head.read_kept(other), Up);
    head.bench
        .turn(&[(next(), answered(head.session, 1, newest))]);
    assert_eq!(head.read_kept(other), Miss(newest));
}

#[test]
fn in_a_chain_only_what_is_committed_is_shown() {
    if skipped() {
        return;
    }
    let head = Head::new(2);
    let bytes = updated(head.session, 1, KEY, b"value");
    let passed = head.give(client(), &bytes);
    assert!(
        matches!(passed, Passed::Out(..)),
        "to the next device: {passed:?}"
    );
    assert_eq!(head.read(&[KEY]), Miss(1), "not acknowledged yet");
    let passed = head.give(next(), &crate::races::durable(1, 2));
    assert!(
        matches!(passed, Passed::Out(..)),
        "the acknowledgement: {passed:?}"
    );
    assert_eq!(head.read(&[KEY]), Hit(2, b"value".to_vec()));
}

#[test]
fn from_before_the_barrier_until_the_process_has_said_so_every_read_goes_up() {
    if skipped() {
        return;
    }
    let mut head = Head::new(1);
    let order = head.update(1, KEY, b"older");
    let other = head.other();
    // "look" is the call with which the process begins to follow, "tell_reads" the call before it sends.
    for moment in ["look", "tell_reads"] {
        let asks = asked(head.session, &[KEY]);
        head.bench.script.before(moment, Deed::Run(client(), asks));
        let id = if moment == "look" { 1 } else { 2 };
        let (session, before) = (head.session, reads_up(&head));
        let sent = head.bench.turn(&[(client(), bypass(session, 1, id, KEY))]);
        head.bench.script.assert_done();
        assert_eq!(reads_up(&head), before + 1, "at {moment}");
        let passed_on = sent.iter().filter(|(_, bytes)| {
            Packet::parse(bytes).is_ok_and(|packet| packet.header.kind == Kind::Bypass)
        });
        assert_eq!(passed_on.count(), 1, "and then the bypass passes");
    }
    assert_eq!(head.read(&[KEY]), Up, "outstanding");
    assert_eq!(head.read(&[KEY, other]), Up);
    assert_eq!(head.read(&[other]), Miss(0), "another bucket");
    // The bypass was executed after the update.
    head.bench
        .turn(&[(next(), answered(head.session, 2, order))]);
    assert_eq!(head.read(&[KEY]), Miss(order));
    let newer = head.update(2, KEY, b"newer");
    assert_eq!(head.read(&[KEY]), Hit(newer, b"newer".to_vec()));
}

/// Returns the number of READs that the pipeline has passed to the process.
fn reads_up(head: &Head) -> u64 {
    let name = head.bench.node.pins().folder().file_name().unwrap();
    let status = pmnet_dataplane::xdp::Status::read(&name.to_string_lossy()).unwrap();
    let found = status.counters.iter().find(|(name, _)| *name == "reads_up");
    found.expect("it is counted").1
}

#[test]
fn what_the_session_does_next_is_what_readers_of_its_bypass_wait_for() {
    if skipped() {
        return;
    }
    let mut head = Head::new(1);
    head.update(1, KEY, b"older");
    let other = head.other();
    head.bench
        .turn(&[(client(), bypass(head.session, 1, 1, KEY))]);
    // The pipeline admits the entry, which the process has not followed yet.
    let next_entry = head.update(2, other, b"of another key");
    assert_eq!(head.read(&[KEY]), Up);
    head.bench.turn(&[]);
    assert_eq!(
        head.read(&[KEY]),
        Miss(next_entry),
        "executed before it, or never"
    );
    assert_eq!(
        head.read(&[other]),
        Hit(next_entry, b"of another key".to_vec())
    );
}

#[test]
fn a_process_that_dies_with_a_bypass_on_its_way_leaves_its_key_closed() {
    if skipped() {
        return;
    }
    for moment in ["look", "tell_reads"] {
        let mut head = Head::new(1);
        head.update(1, KEY, b"older");
        head.bench.script.before(moment, Deed::Kill);
        let session = head.session;
        let sent = head.bench.turn(&[(client(), bypass(session, 1, 1, KEY))]);
        head.bench.script.assert_done();
        assert!(sent.is_empty() && !head.bench.node.lives());
        assert_eq!(head.read(&[KEY]), Up, "at {moment}");
        head.bench.now = pmnet_proto::Time(head.bench.now.0 + 1);
        assert_eq!(head.bench.node.restart(head.bench.now), Ok(()));
        assert_eq!(head.read(&[KEY]), Up, "the server has not answered yet");
        head.bench.serve();
        // The client sends to the new process, which learns the client's address from this packet.
        let asks = asked(session, &[KEY]);
        head.bench.turn(&[(client(), asks)]);
        let last = head.bench.last();
        assert_eq!(head.read(&[KEY]), Miss(last), "the index begins anew");
    }
}

#[test]
fn a_late_copy_of_what_falls_back_is_left_to_the_process() {
    if skipped() {
        return;
    }
    let mut head = Head::new(1);
    let session = head.session;
    head.update(1, KEY, b"older");
    let other = head.other();
    let fallback = Header {
        seq: 2,
        request: raw(2),
        key_hash: raw(KEY),
        flags: Flags::FALLBACK,
        ..of_client(Kind::Bypass, session)
    };
    head.bench.turn(&[(client(), written(fallback, b"value"))]);
    assert_eq!(head.read(&[KEY]), Up);
    let copy = updated(session, 2, other, b"value");
    assert!(matches!(head.give(client(), &copy), Passed::Up));
    head.bench.turn(&[(client(), copy)]);
    let last = head.bench.last();
    assert_eq!(
        head.read(&[other]),
        Miss(last),
        "it has no place that is known"
    );
    let confirmed = Header {
        session,
        seq: 2,
        request: raw(2),
        flags: Flags::FALLBACK,
        ..hop(Kind::Response, 0, 0)
    };
    head.bench.turn(&[(next(), written(confirmed, b""))]);
    let order = head.update(3, KEY, b"next");
    assert_eq!(head.read(&[KEY]), Hit(order, b"next".to_vec()));
}

#[test]
fn while_a_mark_is_open_every_read_goes_up() {
    if skipped() {
        return;
    }
    let mut head = Head::new(1);
    head.update(1, KEY, b"value");
    let mark = TOKEN | 1 | 1 << 20;
    let open = Header {
        shard: SHARD,
        tag: mark,
        ..Header::new(Kind::Open)
    };
    head.bench
        .turn(&[(client(), written(open, &mark.to_be_bytes()))]);
    let id = head.bench.last();
    assert_eq!(head.read(&[KEY]), Up);
    let end = Header {
        tag: mark,
        seq: 1,
        ..of_client(Kind::End, id)
    };
    head.bench.turn(&[(client(), written(end, b""))]);
    assert_eq!(head.read(&[KEY]), Up, "its END is not applied");
    let last = head.bench.last();
    let applied = Header {
        order: last,
        ..hop(Kind::Applied, 0, 0)
    };
    head.bench.turn(&[(next(), written(applied, b""))]);
    assert_eq!(
        head.read(&[KEY]),
        Miss(last),
        "the index knows nothing from before the END"
    );
}
