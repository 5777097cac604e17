//! A client that has several addresses finds the head among them (`docs/spec/protocol.md` §3).

use crate::support::client::{Bench, config};
use crate::support::{EPOCH, Sent, datagram, only, peer};
use pmnet_proto::Peer;
use pmnet_proto::client::{ClientConfig, Closed, HEAD_SILENCE, Outcome};
use pmnet_proto::time::{MILLISECOND, Nanos, SECOND};
use pmnet_wire::{Flags, Header, Kind};

fn three() -> ClientConfig {
    ClientConfig {
        others: vec![peer(2), peer(1), peer(3)],
        ..config()
    }
}

impl Bench {
    fn answer_from(&mut self, device: u8, answer: Header) {
        self.client
            .receive(self.now, peer(device), &datagram(&answer, &[]));
    }

    fn ack_from(&mut self, device: u8, seq: u64) {
        let ack = Header {
            seq,
            ..self.reply(Kind::Ack)
        };
        self.answer_from(device, ack);
    }

    fn pong_from(&mut self, device: u8, epoch: u32) {
        let pong = Header {
            epoch,
            ..self.reply(Kind::Pong)
        };
        self.answer_from(device, pong);
    }

    /// The packets that the client sends during this time, in steps of a millisecond.
    fn during(&mut self, nanos: Nanos) -> Vec<Sent> {
        (0..nanos / MILLISECOND)
            .flat_map(|_| self.after(MILLISECOND))
            .collect()
    }
}

fn to(sent: &[Sent], kind: Kind) -> Vec<Peer> {
    let kinds = sent.iter().filter(|sent| sent.header.kind == kind);
    kinds.map(|sent| sent.to).collect()
}

#[test]
fn while_the_head_is_silent_all_are_asked_who_it_is() {
    let mut bench = Bench::open_with(three());
    bench.update();
    assert_eq!(only(bench.flush()).to, peer(1));
    let sent = bench.during(HEAD_SILENCE - MILLISECOND);
    assert_eq!(to(&sent, Kind::Ping), []);
    let sent = bench.during(10 * SECOND);
    let asked = to(&sent, Kind::Ping);
    assert_eq!(
        asked[..3],
        [1, 2, 3].map(peer),
        "each of them once, at once"
    );
    assert!((60..=300).contains(&asked.len()), "{}", asked.len());
    let updates = to(&sent, Kind::Update);
    assert!(updates.iter().all(|to| *to == peer(1)), "{updates:?}");
    // The third device is the head: the client sends it the update in flight at once, and from now on sends only to it.
    bench.pong_from(3, EPOCH + 1);
    let sent = only(bench.flush());
    assert_eq!((sent.to, sent.header.kind), (peer(3), Kind::Update));
    bench.ack_from(3, 1);
    bench.update();
    let sent = bench.during(HEAD_SILENCE / 2);
    assert!(sent.iter().all(|sent| sent.to == peer(3)), "{sent:?}");
    assert_eq!(sent[0].header.seq, 2);
}

#[test]
fn a_bypass_goes_to_the_new_head_as_soon_as_it_is_known() {
    let mut bench = Bench::open_with(three());
    bench.bypass(false);
    let request = only(bench.flush()).header.request;
    bench.during(HEAD_SILENCE + MILLISECOND);
    bench.pong_from(2, EPOCH + 1);
    let sent = only(bench.flush());
    assert_eq!((sent.to, sent.header.kind), (peer(2), Kind::Bypass));
    assert_eq!(sent.header.request, request);
}

#[test]
fn a_session_that_is_not_open_yet_asks_by_its_open() {
    let (mut bench, open) = Bench::opening(three());
    assert_eq!(open.to, peer(1));
    let sent = bench.during(HEAD_SILENCE + MILLISECOND);
    let mut asked: Vec<&Sent> = sent.iter().filter(|sent| sent.to != peer(1)).collect();
    asked.dedup_by_key(|sent| sent.to);
    assert_eq!(asked.len(), 2, "{sent:?}");
    for sent in asked {
        assert_eq!(
            (sent.header.kind, sent.header.tag),
            (Kind::Open, bench.token)
        );
        assert!(sent.header.flags.has(Flags::SEARCHES));
    }
}

/// A head was left out of its chain, and is cut off, so that it does not know this (seeds 33953, 81444, 85287, 87079 of
/// the simulator). Regression: the left-out head answered PINGs for ever, and the client never asked the other devices.
#[test]
fn who_only_says_that_it_is_there_does_not_keep_the_client() {
    let mut bench = Bench::open_with(three());
    bench.update();
    let mut sent = vec![];
    for _ in 0..20 {
        sent.extend(bench.during(50 * MILLISECOND));
        bench.pong_from(1, EPOCH);
        bench.nack(1);
        bench.not_logged(1);
    }
    let asked = to(&sent, Kind::Ping);
    assert!(
        asked.contains(&peer(2)) && asked.contains(&peer(3)),
        "{asked:?}"
    );
    bench.pong_from(2, EPOCH + 1);
    assert!(bench.flush().iter().all(|sent| sent.to == peer(2)));
    // The head that was left out still answers, in its old epoch.
    bench.pong_from(1, EPOCH);
    assert_eq!(bench.client.counters().stale_epoch, 1);
    let sent = bench.during(50 * MILLISECOND);
    assert!(!sent.is_empty() && sent.iter().all(|sent| sent.to == peer(2)));
}

#[test]
fn a_late_answer_of_the_head_counts() {
    let mut bench = Bench::open_with(three());
    let call = bench.update();
    bench.during(2 * HEAD_SILENCE);
    bench.ack_from(1, 1);
    assert_eq!(bench.outcomes(), [(call, Outcome::Committed { copies: 1 })]);
    bench.update();
    let sent = bench.during(HEAD_SILENCE / 2);
    assert!(sent.iter().all(|sent| sent.to == peer(1)), "{sent:?}");
}

#[test]
fn who_is_asked_nothing_is_not_silent() {
    let mut bench = Bench::open_with(three());
    bench.now = bench.now + 100 * HEAD_SILENCE / 2;
    bench.update();
    assert_eq!(only(bench.flush()).to, peer(1));
    bench.now = bench.now + MILLISECOND;
    bench.ack_from(1, 1);
    bench.now = bench.now + HEAD_SILENCE;
    bench.update();
    assert_eq!(only(bench.flush()).to, peer(1));
}

#[test]
fn what_was_given_up_is_no_reason_to_ask() {
    let mut bench = Bench::open_with(three());
    let call = bench.bypass(true);
    bench.flush();
    for _ in 0..40 {
        bench.during(50 * MILLISECOND);
        bench.pong_from(1, EPOCH);
    }
    assert!(matches!(bench.outcomes()[..], [(ended, Outcome::Failed(_))] if ended == call));
    let sent = bench.during(10 * SECOND);
    assert_eq!(sent.len(), 0, "{sent:?}");
}

/// A client without a session sends no pings, and does not ask for timers.
#[test]
fn a_client_without_sessions_rests() {
    let mut bench = Bench::open_with(three());
    bench.update();
    bench.flush();
    let unknown = Header {
        flags: Flags::UNKNOWN_SESSION,
        ..bench.reply(Kind::Nack)
    };
    bench.receive(&unknown, &[]);
    assert_eq!(bench.closed().1, Closed::Refused);
    bench.during(2 * HEAD_SILENCE);
    assert_eq!(bench.client.next_timeout(), None);
}

#[test]
fn with_one_address_nobody_else_is_asked() {
    let mut bench = Bench::open();
    bench.update();
    let sent = bench.during(2 * SECOND);
    assert_eq!(to(&sent, Kind::Ping), []);
}

#[test]
fn an_answer_from_elsewhere_counts_for_nothing() {
    let mut bench = Bench::open_with(three());
    bench.update();
    bench.flush();
    bench.ack_from(4, 1);
    assert_eq!(bench.outcomes(), []);
    assert_eq!(bench.client.counters().unexpected, 1);
}

/// A fleet gives the client new addresses of its devices while the client runs.
#[test]
fn the_addresses_may_change_and_the_head_stays_the_head_if_it_is_among_them() {
    let mut bench = Bench::open_with(three());
    bench.client.look_among(&[]);
    bench.client.look_among(&[peer(5), peer(1)]);
    bench.update();
    assert_eq!(only(bench.flush()).to, peer(1));
    bench.ack_from(1, 1);
    bench.outcomes();
    // The head's address is no longer in the list: the client sends to the first address, and asks the other addresses
    // while no device answers.
    bench.client.look_among(&[peer(5), peer(6)]);
    let call = bench.update();
    assert_eq!(only(bench.flush()).to, peer(5));
    bench.ack_from(1, 2);
    assert_eq!(bench.outcomes(), []);
    let asked = to(&bench.during(HEAD_SILENCE), Kind::Ping);
    assert_eq!(asked, [peer(5), peer(6)]);
    bench.ack_from(6, 2);
    let committed = Outcome::Committed { copies: 1 };
    assert_eq!(bench.outcomes(), [(call, committed)]);
    bench.update();
    assert_eq!(only(bench.flush()).to, peer(6));
}
