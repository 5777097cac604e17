//! No process stays asleep after an append (`docs/spec/pipeline.md` §3, "Wake-ups"). This holds for every moment at
//! which the pipeline may read the word with which a process states that it sleeps. `crates/dataplane/tests/asleep.rs`
//! tries all of these moments in a model.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pmnet_dataplane::xdp::Kernel;
use pmnet_device::FastPath;
use pmnet_log::Tail;
use pmnet_wire::Kind;
use pmnet_wire::packet::Stamp;

use crate::races::{Bench, Deed, address, alone, client, fresh, hop, update};
use crate::rig::{Passed, run};
use crate::world::{Scratch, config, frame, skipped};

/// If the other thread takes longer than this, the test assumes that it hangs. The CPU of an emulator on a busy machine
/// may stand still for some seconds.
const OTHER_SIDE_MAX: Duration = Duration::from_secs(60);

/// Returns a device that has followed one update and is about to sleep.
fn bench_about_to_sleep() -> (Bench, u64) {
    let mut bench = Bench::new(0, 1);
    let session = bench.open();
    let passed = run(&bench.node.kernel, client(), address(), &update(session, 1));
    assert!(matches!(passed, Passed::Out(..)), "{passed:?}");
    bench.turn(&[]);
    // After a turn in which the process followed an entry, it runs once more by itself.
    assert!(bench.node.rest(bench.now).is_some());
    bench.turn(&[]);
    (bench, session)
}

/// Regression: a duplicate took the wake-up request of a process. That process drained the ring, found nothing, and
/// slept. After that the pipeline did not know that the process slept.
#[test]
fn a_duplicate_beside_a_process_that_goes_to_sleep_does_not_take_its_word() {
    if skipped() {
        return;
    }
    let (mut bench, session) = bench_about_to_sleep();
    // At this moment the process has made its request, and has not looked yet.
    bench
        .script
        .before("look", Deed::Run(client(), update(session, 1)));
    bench.node.rest(bench.now);
    bench.script.assert_done();
    let fd = bench.node.kernel.lock().unwrap().wakeup_fd().unwrap();
    assert!(!readable(fd), "it sleeps");
    let passed = run(&bench.node.kernel, client(), address(), &update(session, 2));
    assert!(
        matches!(passed, Passed::Out(..)),
        "acknowledged: {passed:?}"
    );
    assert_eq!(bench.last(), 3);
    assert!(
        readable(fd),
        "an acknowledged update that nobody was told of"
    );
}

/// A process that goes to sleep requests a wake-up, and then looks for updates. If an update is appended between the
/// two steps, the process sees it. The next update wakes the process again.
#[test]
fn an_update_beside_a_process_that_goes_to_sleep_is_seen_and_the_next_one_wakes_it() {
    if skipped() {
        return;
    }
    let (mut bench, session) = bench_about_to_sleep();
    bench
        .script
        .before("look", Deed::Run(client(), update(session, 2)));
    let until = bench.node.rest(bench.now);
    bench.script.assert_done();
    assert_eq!(until, Some(bench.now), "it does not sleep");
    bench.turn(&[]);
    bench.node.rest(bench.now);
    bench.turn(&[]);
    bench.node.rest(bench.now);
    let fd = bench.node.kernel.lock().unwrap().wakeup_fd().unwrap();
    assert!(!readable(fd), "it sleeps");
    run(&bench.node.kernel, client(), address(), &update(session, 3));
    assert!(readable(fd));
}

/// With real concurrency, the process sees an append or is woken.
#[test]
fn nobody_sleeps_over_what_was_appended() {
    if skipped() {
        return;
    }
    let millis = crate::differential::number("PMNET_RACE_MILLIS", 2_000);
    let scratch = Scratch::new();
    let (mut kernel, _image) = Kernel::load(&config(address()), scratch.0.clone()).unwrap();
    let (chain, state) = (alone(), fresh());
    // The number of the round. Once in each round, the other thread runs the frame of seq 2, and then sets `done` to
    // this number.
    let round = Arc::new(AtomicU64::new(0));
    let done = Arc::new(AtomicU64::new(0));
    let other = {
        let (round, done, pins) = (round.clone(), done.clone(), scratch.0.clone());
        std::thread::spawn(move || {
            let (mut kernel, _image) = Kernel::load(&config(address()), pins).unwrap();
            let frame = frame(client(), address(), &update(1, 2));
            let mut out = [0; 4096];
            let mut next = 1;
            loop {
                let now = round.load(Ordering::Acquire);
                if now == u64::MAX {
                    return;
                }
                if now == next {
                    kernel.run(&frame, &mut out).unwrap();
                    done.store(now, Ordering::Release);
                    next += 1;
                }
                std::hint::spin_loop();
            }
        })
    };
    let first = frame(client(), address(), &update(1, 1));
    let fd = kernel.wakeup_fd().unwrap();
    let end = Instant::now() + Duration::from_millis(millis);
    let (mut rounds, mut met, mut slept, mut handed_up) = (0_u64, 0_u64, 0_u64, 0_u64);
    let mut rng = fastrand::Rng::with_seed(7);
    let mut typical = 2_000_u64;
    while Instant::now() < end {
        let mut hold = kernel.hold().unwrap();
        hold.describe(&Stamp::of(&hop(Kind::Append, 1, 1)), &chain);
        hold.set_session(1, Some(state)).unwrap();
        drop(hold);
        let base = kernel.last();
        let drained = Tail {
            last: base,
            head: 0,
            applied: base,
            stated: base,
            released: base,
            laps: [base + 1; 2],
        };
        kernel.hold().unwrap().release(&drained).unwrap();
        let mut out = [0; 4096];
        kernel.sleep().unwrap();
        kernel.run(&first, &mut out).unwrap();
        // Now the process is awake, and the ring is empty.
        kernel.look();
        assert_eq!(kernel.last(), base + 1);
        rounds += 1;
        let start = Instant::now();
        round.store(rounds, Ordering::Release);
        let pause = u128::from(rng.u64(typical / 2..typical * 3 / 2 + 50));
        while start.elapsed().as_nanos() < pause {
            std::hint::spin_loop();
        }
        kernel.sleep().unwrap();
        let seen = kernel.last() == base + 2;
        let deadline = Instant::now() + OTHER_SIDE_MAX;
        while done.load(Ordering::Acquire) != rounds {
            assert!(Instant::now() < deadline, "the other side runs");
            std::hint::spin_loop();
        }
        if kernel.last() != base + 2 {
            // The holder of the lock stood still, so this packet went to the process, which would append it.
            handed_up += 1;
            continue;
        }
        let woken = readable(fd);
        met += u64::from(seen);
        // Keeps the delay near the moment at which the other side appends.
        typical = if seen {
            typical.saturating_sub(20).max(200)
        } else {
            (typical + 20).min(40_000)
        };
        slept += u64::from(!seen && !woken);
    }
    round.store(u64::MAX, Ordering::Release);
    other.join().unwrap();
    println!(
        "{rounds} rounds, in {met} it was seen, in {slept} neither seen nor woken, {handed_up} handed up"
    );
    assert_eq!(slept, 0);
    assert!(handed_up * 10 < rounds, "{handed_up} of {rounds}");
}

fn readable(fd: std::os::fd::RawFd) -> bool {
    let mut poll = mio::Poll::new().unwrap();
    let mut events = mio::Events::with_capacity(1);
    let mut source = mio::unix::SourceFd(&fd);
    poll.registry()
        .register(&mut source, mio::Token(0), mio::Interest::READABLE)
        .unwrap();
    poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
    !events.is_empty()
}
