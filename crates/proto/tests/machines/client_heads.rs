//! A client that was given several addresses finds the head (`docs/spec/protocol.md` §3).

use crate::support::client::{Bench, config};
use crate::support::{datagram, only, peer};
use pmnet_proto::client::{ClientConfig, HEAD_SILENCE, Outcome};
use pmnet_proto::time::MILLISECOND;
use pmnet_wire::{Header, Kind};

fn three() -> ClientConfig {
    ClientConfig {
        others: vec![peer(2), peer(1), peer(3)],
        ..config()
    }
}

impl Bench {
    fn ack_from(&mut self, device: u8, seq: u64) {
        let ack = Header {
            seq,
            ..self.reply(Kind::Ack)
        };
        self.client
            .receive(self.now, peer(device), &datagram(&ack, &[]));
    }
}

#[test]
fn while_the_head_is_silent_the_others_are_tried_in_turn() {
    let mut bench = Bench::open_with(three());
    bench.update();
    assert_eq!(only(bench.flush()).to, peer(1));
    let mut tried = vec![];
    for _ in 0..300 {
        for sent in bench.after(10 * MILLISECOND) {
            assert_eq!((sent.header.kind, sent.header.seq), (Kind::Update, 1));
            tried.push(sent.to);
        }
    }
    tried.dedup();
    let turns = [1, 2, 3, 1].map(peer);
    assert_eq!(&tried[..4], turns, "{tried:?}");
    assert!(
        tried.len() <= 13,
        "each gets its {HEAD_SILENCE} ns: {tried:?}"
    );
    // The third is the head; it is asked alone from now on.
    bench.ack_from(3, 1);
    bench.update();
    let sent = only(bench.flush());
    assert_eq!((sent.to, sent.header.seq), (peer(3), 2));
}

#[test]
fn a_late_answer_of_the_head_counts_and_brings_the_client_back() {
    let mut bench = Bench::open_with(three());
    let call = bench.update();
    bench.flush();
    while only(bench.after(100 * MILLISECOND)).to == peer(1) {}
    bench.ack_from(1, 1);
    assert_eq!(bench.outcomes(), [(call, Outcome::Committed { copies: 1 })]);
    bench.update();
    assert_eq!(only(bench.flush()).to, peer(1));
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
fn an_answer_from_elsewhere_counts_for_nothing() {
    let mut bench = Bench::open_with(three());
    bench.update();
    bench.flush();
    bench.ack_from(4, 1);
    assert_eq!(bench.outcomes(), []);
    assert_eq!(bench.client.counters().unexpected, 1);
}
