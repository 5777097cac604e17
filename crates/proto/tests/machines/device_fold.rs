//! A device that comes back folds its log entry by entry, and reports an entry that cannot belong to this log
//! (`docs/spec/protocol.md` §5; recovery.md §5).

use crate::support::device::{Bench, config, entry, from_client, server, table};
use crate::support::{EPOCH, TOKEN, datagram, only};
use pmnet_proto::device::{LogState, Recovery, Verdict};
use pmnet_wire::{Header, Kind, raw};

/// A device with orders 1 to 3 in its log, none applied, that is about to fold them.
fn about_to_fold() -> (Bench, Recovery) {
    let state = LogState {
        log_uuid: 1,
        incarnation: 2,
        served: 1,
        epoch: EPOCH,
        last: 3,
        applied: 0,
    };
    let mut bench = Bench::starting(config(1, server()), state, Vec::new());
    let recover = only(bench.tick());
    let reply = Header {
        kind: Kind::RecoverReply,
        epoch: EPOCH,
        order: 0,
        ..recover.header
    };
    let verdict = bench.give(server(), &reply, &table(1, &[]));
    let Verdict::Resume(recovery) = verdict else {
        panic!("not resumed: {verdict:?}")
    };
    (bench, recovery)
}

fn frame(order: u64) -> Vec<u8> {
    let (header, payload) = entry(order);
    datagram(&header, &payload)
}

/// A frame's order and seq depend on its position in the log. So a frame in a wrong position is never taken for the
/// right frame.
#[test]
fn a_frame_of_another_order_is_refused() {
    for (kept, found) in [(0, 2), (1, 1), (1, 3), (2, 1)] {
        let (mut bench, recovery) = about_to_fold();
        let frames: Vec<_> = (1..=kept).chain([found]).map(frame).collect();
        let frames = frames.iter().map(Vec::as_slice);
        let why = bench.device.serve(bench.now, recovery, 3, frames);
        let why = why.expect_err("it is of another order");
        let expected = format!("order {found} found at order {}", kept + 1);
        assert!(why.contains(&expected), "{why}");
        assert_eq!(bench.device.cursors().0, kept, "nothing of it is folded");
    }
}

#[test]
fn a_frame_that_is_no_entry_is_refused() {
    let (open, token) = entry(1);
    let mut damaged = frame(1);
    damaged[40] ^= 1;
    for (what, bytes, says) in [
        ("damaged", damaged, "does not parse"),
        ("cut", frame(1)[..80].to_vec(), "does not parse"),
        (
            "of no kind",
            datagram(
                &Header {
                    copies: raw(0),
                    ..open
                },
                &token,
            ),
            "is not an entry",
        ),
        (
            "an OPEN without its token",
            datagram(&open, &token[..7]),
            "is not an entry",
        ),
        (
            "an OPEN as its client sent it",
            datagram(&from_client(Kind::Open, 0), &TOKEN.to_be_bytes()),
            "is not an entry",
        ),
    ] {
        let (mut bench, recovery) = about_to_fold();
        let frames = [bytes.as_slice()].into_iter();
        let why = bench.device.serve(bench.now, recovery, 3, frames);
        let why = why.expect_err(what);
        assert!(why.contains(says), "{what}: {why}");
        assert_eq!(bench.device.cursors().0, 0, "{what}");
    }
}
