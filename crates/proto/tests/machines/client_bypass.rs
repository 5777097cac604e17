//! Bypasses of a client: only one is under way at a time, each is ordered with the session's updates, and a long bypass
//! is sent in windows of fragments (`docs/spec/protocol.md` §2 rule 8, §3).

use crate::support::client::Bench;
use crate::support::{Sent, kinds, only};
use bytes::Bytes;
use pmnet_proto::client::Outcome;
use pmnet_proto::time::{MILLISECOND, SECOND};
use pmnet_wire::command::barrier;
use pmnet_wire::packet::Bypass;
use pmnet_wire::{FRAGMENT_BYTES, Flags, Header, Kind, raw};

const LONG: u64 = 600 * MILLISECOND;

#[test]
fn a_bypass_names_the_last_seq_and_rising_ids() {
    let mut bench = Bench::open();
    bench.update();
    let first = bench.bypass(true);
    bench.update();
    let second = bench.bypass(false);
    let sent = bench.flush();
    assert_eq!(kinds(&sent), [Kind::Update, Kind::Bypass]);
    let read = &sent[1].header;
    assert_eq!(
        (read.seq, read.request.raw(), read.flags),
        (1, 1, Flags::READ_ONLY)
    );
    bench.response(1, Flags(0), b"reply");
    assert_eq!(
        bench.outcomes(),
        [(first, Outcome::Reply(Bytes::from_static(b"reply")))]
    );
    let sent = bench.flush();
    assert_eq!(
        kinds(&sent),
        [Kind::Update, Kind::Bypass],
        "what follows waits for the reply"
    );
    let write = &sent[1].header;
    assert_eq!(
        (write.seq, write.request.raw(), write.flags),
        (2, 2, Flags(0))
    );
    bench.response(1, Flags(0), b"the first reply again");
    assert_eq!(bench.outcomes(), []);
    bench.response(2, Flags(0), b":1\r\n");
    assert_eq!(
        bench.outcomes(),
        [(second, Outcome::Reply(Bytes::from_static(b":1\r\n")))]
    );
}

#[test]
fn a_bypass_is_asked_again_under_the_same_id() {
    let mut bench = Bench::open();
    bench.bypass(false);
    let first = only(bench.flush());
    // The second packet equals the first, except for the time that is left until the caller's deadline.
    let same = |sent: Sent| {
        let left = Bypass::read(&sent.header).left.nanos().expect("a deadline");
        assert!(
            Bypass::read(&first.header)
                .left
                .nanos()
                .is_some_and(|whole| left < whole)
        );
        assert!(first.header.copies.raw() > 0 && left > 0);
        let header = Header {
            copies: first.header.copies,
            ..sent.header
        };
        assert_eq!(Sent { header, ..sent }, first);
    };
    same(only(bench.after(LONG)));
    assert_eq!(bench.flush(), []);
    // The head has not admitted an update before the bypass, and asks for this update.
    let nack = Header {
        seq: 1,
        request: raw(1),
        ..bench.reply(Kind::Nack)
    };
    bench.receive(&nack, &[]);
    same(only(bench.flush()));
}

#[test]
fn what_a_late_bypass_is_worth() {
    let mut bench = Bench::open();
    for (read_only, outcome) in [(true, "Failed"), (false, "Unknown")] {
        let call = bench.bypass(read_only);
        bench.flush();
        bench.after(SECOND);
        let outcomes = bench.outcomes();
        assert_eq!(outcomes.len(), 1);
        assert_eq!(outcomes[0].0, call);
        assert!(
            format!("{:?}", outcomes[0].1).starts_with(outcome),
            "{outcomes:?}"
        );
        let next = bench.bypass(true);
        bench.flush();
        bench.response(if read_only { 1 } else { 3 }, Flags(0), b"too late");
        assert_eq!(bench.outcomes(), [], "an old reply answers nothing");
        if !read_only {
            // Before the call, the session has sent a fence, and this answers the fence.
            bench.response(4, Flags(0), b"+OK\r\n");
            bench.flush();
        }
        bench.response(if read_only { 2 } else { 5 }, Flags(0), b"in time");
        assert_eq!(
            bench.outcomes(),
            [(next, Outcome::Reply(Bytes::from_static(b"in time")))]
        );
    }
}

#[test]
fn a_long_bypass_moves_with_the_progress_of_the_server() {
    let mut bench = Bench::open();
    let payload = Bytes::from(vec![1; 100 * FRAGMENT_BYTES]);
    let deadline = bench.now + 10 * SECOND;
    bench
        .client
        .bypass(bench.session, payload, 0, false, deadline)
        .expect("accepted");
    let indices = |sent: &[crate::support::Sent]| -> Vec<u16> {
        sent.iter().map(|s| s.header.fragment_index).collect()
    };
    let progress = |bench: &mut Bench, order| {
        let header = Header {
            request: raw(1),
            order,
            flags: Flags::PROGRESS,
            ..bench.reply(Kind::Response)
        };
        bench.receive(&header, &[]);
    };
    assert_eq!(indices(&bench.flush()), (0..32).collect::<Vec<_>>());
    progress(&mut bench, 8);
    assert_eq!(indices(&bench.flush()), (32..40).collect::<Vec<_>>());
    // A fragment is missing: after the timeout the client sends again from that fragment on.
    assert_eq!(indices(&bench.after(LONG)), (8..40).collect::<Vec<_>>());
    progress(&mut bench, 40);
    progress(&mut bench, 101);
    assert_eq!(
        indices(&bench.flush()),
        (40..72).collect::<Vec<_>>(),
        "101 of 100 is nonsense"
    );
    progress(&mut bench, 0);
    assert_eq!(bench.flush(), [], "overtaken on its way");
    bench.after(LONG);
    progress(&mut bench, 0);
    assert_eq!(
        indices(&bench.flush()),
        (0..32).collect::<Vec<_>>(),
        "after silence: the server began anew"
    );
    assert_eq!(bench.outcomes(), []);
}

#[test]
fn a_long_reply_is_fetched_in_windows() {
    let mut bench = Bench::open();
    let call = bench.bypass(true);
    bench.flush();
    let count = 70u16;
    let whole: Vec<u8> = (0..count).flat_map(u16::to_be_bytes).collect();
    let crc = u64::from(pmnet_wire::crc(&whole));
    let fragment = |bench: &mut Bench, index: u16, crc: u64| {
        let header = Header {
            request: raw(1),
            key_hash: raw(crc),
            fragment_index: index,
            fragment_count: count,
            ..bench.reply(Kind::Response)
        };
        bench.receive(&header, &index.to_be_bytes());
    };
    // This part belongs to an earlier reply to the read, from before a restart of the server.
    fragment(&mut bench, 3, 1);
    for index in (0..32).rev() {
        fragment(&mut bench, index, crc);
        fragment(&mut bench, index, crc);
    }
    let more = only(bench.flush());
    assert!(more.is(Kind::Bypass, Flags::READ_ONLY.with(Flags::CONTINUE)));
    assert_eq!(
        (more.header.fragment_index, more.header.fragment_count),
        (32, count)
    );
    assert_eq!(
        only(bench.after(LONG)).header.fragment_index,
        32,
        "asked again"
    );
    for index in 32..64 {
        fragment(&mut bench, index, crc);
    }
    assert_eq!(only(bench.flush()).header.fragment_index, 64);
    for index in 64..count {
        fragment(&mut bench, index, crc);
    }
    assert_eq!(bench.outcomes(), [(call, Outcome::Reply(whole.into()))]);
}

/// A restarted server does not remember earlier reads. Regression: a restarted server executed a late copy of a command
/// whose caller had given up, although the session had read after the command, and operations had been passed through
/// to the store.
#[test]
fn behind_an_unknown_outcome_something_is_recorded_first() {
    let mut bench = Bench::open();
    bench.bypass(false);
    bench.flush();
    bench.after(SECOND);
    assert_eq!(bench.outcomes().len(), 1, "unknown");
    let read = bench.bypass(true);
    let fence = only(bench.flush());
    assert!(!fence.header.flags.has(Flags::READ_ONLY) && fence.header.request == raw(2));
    assert_eq!(fence.payload, barrier());
    // The fence is lost, and is sent again like any bypass.
    assert_eq!(only(bench.after(LONG)).header.request, raw(2));
    bench.response(2, Flags(0), b"+OK\r\n");
    assert_eq!(bench.outcomes(), [], "nobody called it");
    let sent = only(bench.flush());
    assert!(sent.header.flags.has(Flags::READ_ONLY) && sent.header.request == raw(3));
    bench.response(3, Flags(0), b"value");
    let reply = Outcome::Reply(Bytes::from_static(b"value"));
    assert_eq!(bench.outcomes(), [(read, reply)]);
    // One fence is enough.
    bench.bypass(true);
    assert_eq!(only(bench.flush()).header.request, raw(4));
}

/// If a fence is not answered in time, the call that waits for it is not sent, and the next call needs a fence too.
#[test]
fn a_fence_that_fails_has_sent_nothing_behind_it() {
    let mut bench = Bench::open();
    bench.bypass(false);
    bench.flush();
    bench.after(SECOND);
    bench.outcomes();
    let call = bench.bypass(false);
    bench.flush();
    bench.after(SECOND);
    let outcomes = bench.outcomes();
    assert_eq!(outcomes.len(), 1);
    assert_eq!(outcomes[0].0, call);
    assert!(
        matches!(outcomes[0].1, Outcome::Failed(_)),
        "it was not sent: {outcomes:?}"
    );
    bench.bypass(true);
    assert!(
        !only(bench.flush()).header.flags.has(Flags::READ_ONLY),
        "a fence again"
    );
    // Before an update no fence is needed: a late copy of the bypass states the last seq before the bypass, so the
    // server recognises the copy as late.
    bench.update();
}
