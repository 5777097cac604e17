//! Packets that a client does not accept as an answer (`docs/spec/protocol.md` §3).

use crate::support::client::{Bench, config};
use crate::support::{SESSION, kinds, only, seqs};
use pmnet_proto::client::{ClientConfig, Closed, Outcome};
use pmnet_wire::{Header, Kind, raw};

fn at_least_two() -> ClientConfig {
    ClientConfig {
        copies_min: 2,
        ..config()
    }
}

/// The id 0 belongs to no session: the head would refuse every packet of it.
#[test]
fn an_open_reply_without_a_session_opens_nothing() {
    let (mut bench, _) = Bench::opening(config());
    let call = bench.update();
    let nothing = Header {
        session: 0,
        ..bench.reply(Kind::OpenReply)
    };
    bench.receive(&nothing, &[]);
    assert_eq!(bench.flush(), [], "it waits for a reply that names one");
    bench.receive(&bench.reply(Kind::OpenReply), &[]);
    let update = only(bench.flush());
    assert_eq!((update.header.session, update.header.seq), (SESSION, 1));
    bench.ack(1);
    assert_eq!(bench.outcomes(), [(call, Outcome::Committed { copies: 1 })]);
}

/// The chain was made shorter while the session was open. If fewer devices hold an update than its caller demands, the
/// client does not report the update as committed.
#[test]
fn an_acknowledgement_by_fewer_copies_than_demanded_commits_nothing() {
    let (mut bench, _) = Bench::opening(at_least_two());
    let open = Header {
        copies: raw(2),
        ..bench.reply(Kind::OpenReply)
    };
    bench.receive(&open, &[]);
    let first = bench.update();
    let second = bench.update();
    assert_eq!(seqs(&bench.flush()), [1, 2]);
    let ack = |bench: &Bench, seq, copies| Header {
        seq,
        copies,
        ..bench.reply(Kind::Ack)
    };
    bench.receive(&ack(&bench, 1, raw(2)), &[]);
    assert_eq!(
        bench.outcomes(),
        [(first, Outcome::Committed { copies: 2 })]
    );
    bench.receive(&ack(&bench, 2, raw(1)), &[]);
    assert_eq!(
        bench.closed(),
        (
            vec![(second, Outcome::Unknown)],
            Closed::TooFewCopies { have: 1 }
        )
    );
}

/// If a bypass overtook updates, the head would refuse each packet of the bypass until it has received these updates.
#[test]
fn a_bypass_is_sent_behind_every_update_that_it_follows() {
    let mut bench = Bench::open();
    for _ in 0..40 {
        bench.update();
    }
    bench.bypass(false);
    let sent = bench.flush();
    assert_eq!(kinds(&sent), [Kind::Update; 32], "the window is full");
    bench.ack(32);
    let sent = bench.flush();
    assert_eq!(seqs(&sent), [33, 34, 35, 36, 37, 38, 39, 40, 40]);
    assert_eq!(kinds(&sent[..8]), [Kind::Update; 8]);
    assert_eq!(sent[8].header.kind, Kind::Bypass);
}

/// The server has restarted, and has executed a read again. Its two replies have equal numbers of fragments, with
/// different bytes.
#[test]
fn fragments_of_two_replies_are_not_put_together() {
    const COUNT: u16 = 3;
    let mut bench = Bench::open();
    let call = bench.bypass(true);
    bench.flush();
    let mut give = |index: u16, text: &[u8]| {
        let header = Header {
            request: raw(1),
            key_hash: raw(u64::from(pmnet_wire::crc(&text.repeat(usize::from(COUNT))))),
            fragment_index: index,
            fragment_count: COUNT,
            ..bench.reply(Kind::Response)
        };
        bench.receive(&header, text);
        bench.outcomes()
    };
    assert_eq!(give(0, b"old "), []);
    assert_eq!(give(1, b"new "), []);
    assert_eq!(
        give(2, b"new "),
        [],
        "the first part of this one is missing"
    );
    let whole = Outcome::Reply(b"new new new ".to_vec().into());
    assert_eq!(give(0, b"new "), [(call, whole)]);
}
