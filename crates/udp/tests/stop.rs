//! One stop ends many loops. Each loop has its own thread and its own poll; they share only the stop.

use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::Duration;

use pmnet_udp::{STOP_TOKEN, Stop};

/// Number of loops that one stop ends: the shards of one process.
const LOOPS: usize = 8;
/// Longest wait of each loop. If a stop is lost, the test fails after this time.
const DEADLINE: Duration = Duration::from_secs(20);

/// Runs a loop that only waits for its end. Returns true if the stop ended it, and false if the deadline passed.
fn end_of_a_loop(stop: &Stop) -> bool {
    let mut poll = mio::Poll::new().unwrap();
    let mut events = mio::Events::with_capacity(4);
    stop.register(poll.registry()).unwrap();
    loop {
        match poll.poll(&mut events, Some(DEADLINE)) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            result => result.unwrap(),
        }
        return events.iter().any(|event| event.token() == STOP_TOKEN);
    }
}

fn loops(stop: &Stop, start: &Arc<Barrier>) -> Vec<JoinHandle<bool>> {
    (0..LOOPS)
        .map(|_| {
            let (stop, start) = (stop.try_clone().unwrap(), Arc::clone(start));
            std::thread::spawn(move || {
                start.wait();
                end_of_a_loop(&stop)
            })
        })
        .collect()
}

fn all_end(loops: Vec<JoinHandle<bool>>) {
    for thread in loops {
        assert!(thread.join().unwrap(), "a loop missed the stop");
    }
}

#[test]
fn every_loop_ends_whenever_the_stop_comes() {
    for _ in 0..50 {
        let (stop, trigger) = Stop::new().unwrap();
        let start = Arc::new(Barrier::new(LOOPS + 1));
        let waiting = loops(&stop, &start);
        // At the moment of the stop, some loops have not registered yet, some are registering, and some have
        // registered.
        start.wait();
        trigger.stop();
        trigger.stop();
        all_end(waiting);
    }
}

#[test]
fn a_loop_that_begins_after_the_stop_ends_as_well() {
    let (stop, trigger) = Stop::new().unwrap();
    trigger.stop();
    drop(trigger);
    let start = Arc::new(Barrier::new(LOOPS));
    all_end(loops(&stop, &start));
}

#[test]
fn a_trigger_that_is_gone_without_a_word_ends_the_loops() {
    // The trigger is dropped, as when the process ends, so no code is left that could end the loops.
    let (stop, trigger) = Stop::new().unwrap();
    drop(trigger);
    assert!(end_of_a_loop(&stop));
}
