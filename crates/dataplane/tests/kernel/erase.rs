//! A device with a pipeline was left out. The device empties its log in the kernel and joins again
//! (`docs/spec/protocol.md` §5, "Joining"), even if its process is killed in between.

use pmnet_device::FastPath;
use pmnet_proto::Peer;
use pmnet_proto::device::HopWork;
use pmnet_proto::time::MILLISECOND;
use pmnet_wire::packet::{self, Fragment, Stamp};
use pmnet_wire::record::{Member, RecoverReply, read_path};
use pmnet_wire::{Flags, Header, Kind, Packet, raw};

use crate::races::{Bench, Deed, address, client, hop, next, update, written};
use crate::rig::{Passed, run};
use crate::world::{SHARD, SHARD_TOKEN, settings, skipped};

/// The epoch in which the device is not a member of the chain.
const WITHOUT: u32 = 2;
/// The order that the server has applied when the device joins: lower than the device's last order, and not 0.
const APPLIED: u64 = 3;

/// Returns the question that the device now asks the server. Returns `None` if the device asks nothing, or if its
/// process is dead.
fn question(bench: &mut Bench) -> Option<Vec<u8>> {
    for _turn in 0..8 {
        bench.now.0 += 300 * MILLISECOND;
        let asked = bench.turn(&[]).into_iter().map(|(_, bytes)| bytes);
        let mut asked = asked.filter(|bytes| Header::kind_of(bytes) == Some(Kind::Recover));
        if let Some(bytes) = asked.next() {
            return Some(bytes);
        }
    }
    None
}

/// Returns the server's reply that the device is not a member: the device must erase its log and join.
fn no_member(asked: &[u8]) -> Vec<u8> {
    let asked = Packet::parse(asked).unwrap().header;
    let refused = packet::RecoverReply {
        applied: 0,
        nonce: packet::Recover::read(&asked).nonce,
        payloads: 0,
        part: Fragment::WHOLE,
        refused: true,
        held: true,
        erase: true,
        reads: false,
    };
    let stamp = Stamp {
        shard: SHARD,
        epoch: WITHOUT,
        device: asked.device,
        incarnation: asked.incarnation,
        ..Stamp::default()
    };
    written(refused.header(&stamp), b"it is no member")
}

/// Returns the server's reply that the device is a member, after another device.
fn joined(asked: &[u8]) -> Vec<u8> {
    let packet = Packet::parse(asked).unwrap();
    let origin = read_path(packet.payload).unwrap()[0];
    assert_eq!(origin.tail, 0, "it says that its log is empty");
    let other = Member {
        device: 10,
        incarnation: 1,
        ..origin
    };
    let reply = RecoverReply {
        shard_token: SHARD_TOKEN,
        members: vec![other, origin],
        sessions: Vec::new(),
    };
    let header = Header {
        epoch: WITHOUT + 1,
        order: APPLIED,
        request: packet.header.request,
        flags: Flags::READS,
        ..hop(Kind::RecoverReply, 1, packet.header.incarnation)
    };
    written(header, &reply.write())
}

/// Returns a device that was left out while it was alone and had orders that are not applied. Its next process finds
/// out that the device was left out.
fn left_out() -> Bench {
    let mut device = settings(1, next());
    device.flags |= Member::JOIN;
    let mut bench = Bench::with(0, 1, pmnet_proto::Time(1), device);
    let session = bench.open();
    for seq in 1..=6 {
        let passed = run(
            &bench.node.kernel,
            client(),
            address(),
            &update(session, seq),
        );
        assert!(matches!(passed, Passed::Out(..)), "{passed:?}");
    }
    bench.turn(&[]);
    assert_eq!(bench.last(), 7);
    bench.node.anew = true;
    bench
}

/// Checks that the device is empty, waits, and acknowledges no update.
fn assert_empty(bench: &Bench) {
    let device = bench.node.device().unwrap();
    assert_eq!(device.machine().ready_to_join(), Some(WITHOUT));
    assert_eq!((device.log().last(), bench.last()), (0, 0));
    let work = bench.node.kernel.lock().unwrap().look();
    assert_eq!(
        work,
        HopWork::default(),
        "nothing is known of what others have"
    );
    assert_eq!(device.log().served(), device.log().incarnation(), "marked");
    let passed = run(&bench.node.kernel, client(), address(), &update(1, 7));
    assert!(matches!(passed, Passed::Up), "{passed:?}");
    assert_eq!(bench.last(), 0);
}

/// Lets the device join, and checks that its pipeline takes the entries of the device before it.
fn joins(bench: &mut Bench) {
    let before = Peer::from(([10, 0, 0, 10], 51_000));
    let reply = question(bench).map(|asked| joined(&asked)).unwrap();
    bench.turn(&[(next(), reply)]);
    // The first time, the server must learn that a device with this log serves.
    if let Some(asked) =
        question(bench).filter(|_| !bench.node.device().unwrap().machine().is_serving())
    {
        bench.turn(&[(next(), joined(&asked))]);
    }
    assert!(bench.node.device().unwrap().machine().is_serving());
    assert_eq!(bench.last(), APPLIED);
    for order in APPLIED + 1..APPLIED + 8 {
        let header = Header {
            epoch: WITHOUT + 1,
            device: 10,
            order,
            session: order,
            request: raw(0),
            copies: raw(Kind::Open.number()),
            ..hop(Kind::Append, 10, 1)
        };
        let open = written(header, &order.to_be_bytes());
        let passed = run(&bench.node.kernel, before, address(), &open);
        let sent = match passed {
            Passed::Up => bench.turn(&[(before, open)]),
            other => panic!("an OPEN: {other:?}"),
        };
        let holds = sent.iter().any(|(to, bytes)| {
            let said = Packet::parse(bytes).unwrap().header;
            *to == before && said.kind == Kind::Durable && said.order == order
        });
        assert!(holds, "order {order} is confirmed");
    }
    assert_eq!(bench.last(), APPLIED + 7);
}

#[test]
fn a_log_in_the_kernel_is_emptied_whoever_is_killed_meanwhile_and_the_device_joins() {
    if skipped() {
        return;
    }
    for killed_before in [None, Some("forget_log"), Some("log_forgotten")] {
        let mut bench = left_out();
        bench.node.restart(bench.now).unwrap();
        if let Some(call) = killed_before {
            bench.script.before(call, Deed::Kill);
            let asked = question(&mut bench).unwrap();
            bench.turn(&[(next(), no_member(&asked))]);
            bench.script.assert_done();
            assert!(!bench.node.lives());
            bench.node.restart(bench.now).unwrap();
            // As long as the log is not empty, it has all its entries.
            assert_eq!(bench.node.device().unwrap().log().last(), 7, "{call}");
        }
        let asked = question(&mut bench).unwrap();
        bench.turn(&[(next(), no_member(&asked))]);
        assert_empty(&bench);
        // A process that is killed now finds an empty log at its next start.
        if killed_before.is_some() {
            bench.node.restart(bench.now).unwrap();
            assert_eq!(bench.node.device().unwrap().log().last(), 0);
            let asked = question(&mut bench).unwrap();
            bench.turn(&[(next(), no_member(&asked))]);
            assert_empty(&bench);
        }
        joins(&mut bench);
    }
}

#[test]
fn a_log_that_goes_on_while_its_device_asks_is_not_erased() {
    if skipped() {
        return;
    }
    let mut bench = left_out();
    bench.node.anew = false;
    bench.node.restart(bench.now).unwrap();
    let asked = question(&mut bench).unwrap();
    bench.now.0 += MILLISECOND;
    let refused = bench.node.turn(bench.now, &[(next(), no_member(&asked))]);
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("--detach --discard"), "{text}");
    assert_eq!(bench.last(), 7);
}
