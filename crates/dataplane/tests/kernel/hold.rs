//! The guard that `hold` returns (`docs/spec/pipeline.md` §2): the pipeline admits nothing until the guard is released.
//! If the process sets the state of a session without a hold, the values that the pipeline counts stay unchanged.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::SeqCst;

use pmnet_dataplane::xdp::{Kernel, Status, XDP_PASS, XDP_TX};
use pmnet_device::FastPath;
use pmnet_proto::device::SessionState;
use pmnet_wire::Kind;
use pmnet_wire::packet::Stamp;

use crate::races::{address, alone, client, fresh, hop, update};
use crate::world::{IDENTITY, PARAMETERS, Scratch, Words, config, frame, skipped};

/// Returns a pipeline that is held, and that knows its chain but no session.
fn pipeline(scratch: &Scratch) -> Kernel {
    let (mut kernel, mut image) = Kernel::load(&config(address()), scratch.0.clone()).unwrap();
    pmnet_log::format(&mut image, &IDENTITY, &PARAMETERS).unwrap();
    let stamp = Stamp::of(&hop(Kind::Append, 1, 1));
    let mut hold = kernel.hold().unwrap();
    hold.describe(&stamp, &alone());
    hold.answers_for_ever();
    drop(hold);
    kernel
}

fn release(kernel: &mut Kernel) {
    let tail = kernel.tail();
    kernel.hold().unwrap().release(&tail).unwrap();
}

/// Returns the pipeline's verdict about an update of session 1.
fn verdict(kernel: &mut Kernel, seq: u64) -> u32 {
    let mut out = [0; 4096];
    let frame = frame(client(), address(), &update(1, seq));
    kernel.run(&frame, &mut out).unwrap().0
}

#[test]
fn a_guard_that_is_dropped_leaves_the_pipeline_held() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new();
    let mut kernel = pipeline(&scratch);
    let mut hold = kernel.hold().unwrap();
    hold.set_session(1, Some(fresh())).unwrap();
    drop(hold);
    assert!(!kernel.admits());
    assert_eq!(verdict(&mut kernel, 1), XDP_PASS);
    release(&mut kernel);
    assert!(kernel.admits());
    assert_eq!(verdict(&mut kernel, 1), XDP_TX);
    assert_eq!(kernel.last(), 1);
}

#[test]
fn a_session_that_is_new_is_told_under_a_hold_of_its_own() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new();
    let mut kernel = pipeline(&scratch);
    // A refresh of a session during another hold does not end that hold.
    kernel.refresh_session(1, Some(fresh())).unwrap();
    assert!(!kernel.admits());
    release(&mut kernel);
    kernel.refresh_session(1, None).unwrap();
    assert_eq!(verdict(&mut kernel, 1), XDP_PASS, "it is over");
    kernel.refresh_session(1, Some(fresh())).unwrap();
    assert!(kernel.admits());
    assert_eq!(verdict(&mut kernel, 1), XDP_TX);
}

/// Regression: a packet of session 0 found a free row, with the token and (with keys) the key of the session that had
/// used the row before.
#[test]
fn a_free_row_is_nobodys() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new();
    let mut kernel = pipeline(&scratch);
    // This session and session 0 have the same preferred row.
    let state = SessionState { id: 64, ..fresh() };
    kernel.hold().unwrap().set_session(64, Some(state)).unwrap();
    kernel.hold().unwrap().set_session(64, None).unwrap();
    release(&mut kernel);
    let mut out = [0; 4096];
    let frame = frame(client(), address(), &update(0, 1));
    assert_eq!(kernel.run(&frame, &mut out).unwrap().0, XDP_PASS);
    // `open` marks the maps of a complete device in the same way.
    Words::of(&scratch.0).shard().stage.store(1, SeqCst);
    let name = scratch.0.folder().file_name().unwrap();
    let status = Status::read(&name.to_string_lossy()).unwrap();
    let counted = status
        .counters
        .iter()
        .find(|(name, _)| *name == "sessions_unknown");
    assert_eq!(counted.unwrap().1, 1);
}

#[test]
fn what_the_pipeline_counts_is_not_refreshed() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new();
    let mut kernel = pipeline(&scratch);
    let set = |kernel: &mut Kernel, state: SessionState| {
        kernel.hold().unwrap().set_session(1, Some(state)).unwrap();
        release(kernel);
    };
    set(&mut kernel, fresh());
    assert_eq!(verdict(&mut kernel, 1), XDP_TX);
    // The process has not followed yet, so it sets an older state. The session continues after seq 1 all the same, and
    // up to seq 2, as the new state allows.
    let old = SessionState {
        until: 2,
        ..fresh()
    };
    kernel.refresh_session(1, Some(old)).unwrap();
    assert_eq!(verdict(&mut kernel, 2), XDP_TX);
    assert_eq!(verdict(&mut kernel, 3), XDP_PASS);
    assert_eq!(kernel.last(), 2);
    // If the process sets the state under a hold, the pipeline uses the whole state.
    let ahead = SessionState { last: 9, ..fresh() };
    set(&mut kernel, ahead);
    assert_eq!(verdict(&mut kernel, 3), XDP_TX, "a duplicate now");
    assert_eq!(kernel.last(), 2);
    assert_eq!(verdict(&mut kernel, 10), XDP_TX);
    assert_eq!(kernel.last(), 3);
}

#[test]
fn what_stands_for_ipv4_addresses_in_ipv6_goes_up() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new();
    let mut kernel = pipeline(&scratch);
    kernel
        .hold()
        .unwrap()
        .set_session(1, Some(fresh()))
        .unwrap();
    release(&mut kernel);
    let mapped = |at: SocketAddr| match at.ip() {
        IpAddr::V4(ip) => SocketAddr::from((ip.to_ipv6_mapped(), at.port())),
        IpAddr::V6(_) => at,
    };
    let frame = frame(mapped(client()), mapped(address()), &update(1, 1));
    let mut out = [0; 4096];
    let (passed, after) = kernel.run(&frame, &mut out).unwrap();
    assert_eq!((passed, after), (XDP_PASS, &frame[..]));
    assert_eq!(kernel.last(), 0);
    assert_eq!(verdict(&mut kernel, 1), XDP_TX);
}
