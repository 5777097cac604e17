//! What a serving device does when the server's words do not fit what it said before
//! (`docs/spec/protocol.md` §5): it asks, and only a refusal stops it.

use crate::support::device::{Bench, from_hop, member, server};
use crate::support::{SHARD, Sent, only, peer};
use pmnet_proto::device::Verdict;
use pmnet_proto::time::SECOND;
use pmnet_wire::record::{read_path, write_path};
use pmnet_wire::{Flags, Header, Kind};

/// A head alone in its chain, whose only entry is applied.
fn drained() -> Bench {
    let mut bench = Bench::head(1);
    let applied = Header {
        order: 1,
        request: 100,
        ..from_hop(Kind::Applied, 0)
    };
    assert_eq!(bench.answer(server(), &applied, &[]), []);
    assert_eq!(bench.device.cursors().3, 1);
    bench
}

/// Words of a server that does not know what it had applied.
fn doubtful() -> [(&'static str, Header); 3] {
    [
        (
            "it asks for an order that it had applied",
            Header {
                order: 1,
                request: 1,
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
        assert_eq!(
            bench.answer(server(), &header, &[]).len(),
            1,
            "{what}: and then again"
        );
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
            request: question.header.request ^ 1,
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

/// Devices on several machines that listen on the same port get the same id unless they are given
/// one. Found: the second one dropped the RECOVER of the first for ever, and nobody said why.
#[test]
fn an_id_that_is_on_the_path_twice_is_said() {
    let mut bench = Bench::serving(2, 2);
    let recover = Header {
        device: 2,
        incarnation: 1,
        request: 77,
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
    assert_eq!((said.to, said.header.request), (peer(9), 77));
    let text = String::from_utf8_lossy(&said.payload).into_owned();
    assert!(text.contains("--id"), "{text}");
}
