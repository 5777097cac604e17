//! A serving device whose server contradicts its own earlier packets (`docs/spec/protocol.md` §5): the device asks the
//! server, and stops only if it is refused.

use crate::support::device::{Bench, from_hop, member, server};
use crate::support::{SHARD, Sent, only, peer};
use pmnet_proto::device::Verdict;
use pmnet_proto::time::SECOND;
use pmnet_wire::record::{read_path, write_path};
use pmnet_wire::{Flags, Header, Kind, raw};

/// A head that is alone in its chain, and whose only entry is applied.
fn drained() -> Bench {
    let mut bench = Bench::head(1);
    let applied = Header {
        order: 1,
        request: raw(100),
        ..from_hop(Kind::Applied, 0)
    };
    assert_eq!(bench.answer(server(), &applied, &[]), []);
    assert_eq!(bench.device.cursors().3, 1);
    bench
}

/// Packets of a server that does not know orders that it had applied before.
fn doubtful() -> [(&'static str, Header); 3] {
    [
        (
            "it asks for an order that it had applied",
            Header {
                order: 1,
                request: raw(1),
                ..from_hop(Kind::Retrans, 0)
            },
        ),
        (
            "it has applied less than it had",
            Header {
                order: 0,
                ..from_hop(Kind::Applied, 0)
            },
        ),
        (
            "it knows no chain, and so no token",
            Header {
                tag: 0,
                epoch: 0,
                ..from_hop(Kind::StaleEpoch, 0)
            },
        ),
    ]
}

fn answer_to(question: &Sent, flags: Flags) -> Header {
    Header {
        kind: Kind::RecoverReply,
        flags,
        tag: 0,
        ..question.header
    }
}

#[test]
fn it_asks_and_goes_on_serving() {
    for (what, header) in doubtful() {
        let mut bench = drained();
        bench.now = bench.now + 2 * SECOND;
        let question = only(bench.answer(server(), &header, &[]));
        assert_eq!(question.header.kind, Kind::Recover, "{what}");
        let path = read_path(&question.payload).expect("a path");
        assert_eq!((path[0].tail, path[0].applied), (1, 1), "{what}");
        assert!(bench.device.is_serving(), "{what}");
        assert_eq!(
            bench.answer(server(), &header, &[]),
            [],
            "{what}: once a second"
        );
        bench.now = bench.now + SECOND;
        let again = only(bench.answer(server(), &header, &[]));
        assert_eq!(
            (again.header.kind, again.header.request),
            (Kind::Recover, question.header.request),
            "{what}: and then again"
        );
    }
}

/// A server decides nothing before it has read its records. Then it answers a repeated question, which it recognises by
/// the nonce. Regression: each question had a new nonce, so the device noticed that the store was an old copy only when
/// it was started again. Until then `SET`s were acknowledged and never applied.
#[test]
fn it_asks_the_same_until_it_is_answered_and_then_something_new() {
    for (what, header) in doubtful() {
        let mut bench = drained();
        let mut nonces = Vec::new();
        for turn in 0..4 {
            bench.now = bench.now + 2 * SECOND;
            let question = only(bench.answer(server(), &header, &[]));
            nonces.push(question.header.request);
            if turn == 2 {
                let fine = answer_to(&question, Flags(0));
                assert_eq!(bench.answer(server(), &fine, &[]), [], "{what}");
            }
        }
        assert_eq!(nonces[0], nonces[1], "{what}");
        assert_eq!(nonces[0], nonces[2], "{what}");
        assert_ne!(nonces[0], nonces[3], "{what}: that one was answered");
    }
}

#[test]
fn a_refusal_stops_it() {
    for (what, header) in doubtful() {
        let mut bench = drained();
        bench.now = bench.now + 2 * SECOND;
        let question = only(bench.answer(server(), &header, &[]));
        let refusal = answer_to(&question, Flags::REFUSED);
        let verdict = bench.give(server(), &refusal, b"the store was emptied");
        assert_eq!(
            verdict,
            Verdict::Stop("the store was emptied".to_owned()),
            "{what}"
        );
        assert!(!bench.device.is_serving(), "{what}");
    }
}

#[test]
fn an_old_packet_has_no_consequences() {
    for (what, header) in doubtful() {
        let mut bench = drained();
        bench.now = bench.now + 2 * SECOND;
        let question = only(bench.answer(server(), &header, &[]));
        let fine = answer_to(&question, Flags(0));
        assert_eq!(bench.answer(server(), &fine, &[]), [], "{what}");
        assert!(bench.device.is_serving(), "{what}");
        let stranger = answer_to(&question, Flags::REFUSED);
        let stranger = Header {
            request: raw(question.header.request.raw() ^ 1),
            ..stranger
        };
        assert_eq!(
            bench.give(server(), &stranger, b"stop"),
            Verdict::Done,
            "{what}"
        );
        assert!(bench.device.is_serving(), "{what}");
    }
}

/// If devices on several computers listen on the same port, they get equal ids, unless an operator sets the ids.
/// Regression: the second device dropped every RECOVER of the first, without a message.
#[test]
fn an_id_that_is_on_the_path_twice_is_said() {
    let mut bench = Bench::serving(2, 2);
    let recover = Header {
        device: 2,
        incarnation: 1,
        request: raw(77),
        tag: 0,
        ..Header::new(Kind::Recover)
    };
    let recover = Header {
        shard: SHARD,
        ..recover
    };
    let said = only(bench.answer(peer(9), &recover, &write_path(&[member(2)])));
    let hold = Flags::REFUSED.with(Flags::PROGRESS);
    assert!(said.is(Kind::RecoverReply, hold), "{said:?}");
    assert_eq!((said.to, said.header.request.raw()), (peer(9), 77));
    let text = String::from_utf8_lossy(&said.payload).into_owned();
    assert!(text.contains("--id"), "{text}");
}

/// A device once passed a reply on as often as it arrived. In a circle of devices, each device then passed the reply to
/// the previous device, and the reply went round for ever.
#[test]
fn a_reply_passes_back_as_often_as_it_was_asked_for() {
    let mut bench = Bench::serving(2, 2);
    let recover = Header {
        shard: SHARD,
        device: 7,
        incarnation: 1,
        request: raw(77),
        ..Header::new(Kind::Recover)
    };
    let reply = Header {
        kind: Kind::RecoverReply,
        flags: Flags::REFUSED.with(Flags::PROGRESS),
        ..recover
    };
    let path = write_path(&[member(7)]);
    // Device 8 has asked once, device 9 twice, and the server repeats its reply.
    for asker in [8, 9, 9] {
        let relayed = only(bench.answer(peer(asker), &recover, &path));
        assert_eq!((relayed.to, relayed.header.kind), (server(), Kind::Recover));
    }
    for _ in 0..2 {
        let passed = only(bench.answer(server(), &reply, b"wait"));
        assert_eq!(
            (passed.to, passed.header.kind),
            (peer(9), Kind::RecoverReply)
        );
    }
    for _ in 0..3 {
        assert_eq!(bench.answer(server(), &reply, b"wait"), []);
    }
    // If the question comes again, a reply may pass back again.
    bench.answer(peer(9), &recover, &path);
    assert_eq!(only(bench.answer(server(), &reply, b"wait")).to, peer(9));
}
