//! Ending the loop from another thread: the only state that threads of the front share.
//!
//! The loop checks a flag and sleeps; another thread sets the flag and wakes the loop. Invariant: the
//! flag is set before the wake-up is sent, and a wake-up of a loop that is awake is kept for the next
//! sleep. So a loop that checked too early is woken and checks again. In the other order the loop could
//! sleep on until something else happens. Written with traits, so that the tests run exactly this code
//! under a scheduler that tries the interleavings.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mio::Waker;

/// A flag that only goes up.
pub(crate) trait Flag {
    /// Puts it up; a loop that sees it up sees what was written before.
    fn raise(&self);
    /// Whether it is up.
    fn is_up(&self) -> bool;
}

/// Something that ends a sleep, the present or the next one.
pub(crate) trait Wake {
    /// Ends it.
    fn wake(&self);
}

impl Flag for AtomicBool {
    fn raise(&self) {
        self.store(true, Ordering::Release);
    }
    fn is_up(&self) -> bool {
        self.load(Ordering::Acquire)
    }
}

impl Wake for Waker {
    fn wake(&self) {
        // Fails only if the loop is gone already.
        let _ = Waker::wake(self);
    }
}

/// Flag and wake-up of one loop.
pub(crate) struct Ending<F, W> {
    flag: Arc<F>,
    waker: Arc<W>,
}

impl<F: Flag, W: Wake> Ending<F, W> {
    /// For a loop that sleeps until `waker` ends it.
    pub(crate) fn new(flag: F, waker: W) -> Ending<F, W> {
        Ending {
            flag: Arc::new(flag),
            waker: Arc::new(waker),
        }
    }

    /// Asks the loop to end.
    pub(crate) fn stop(&self) {
        self.flag.raise();
        self.waker.wake();
    }

    /// What ends its sleep.
    pub(crate) fn waker(&self) -> Arc<W> {
        Arc::clone(&self.waker)
    }

    /// Whether the loop is to end; asked before every sleep.
    pub(crate) fn is_asked(&self) -> bool {
        self.flag.is_up()
    }
}

impl<F, W> Clone for Ending<F, W> {
    fn clone(&self) -> Ending<F, W> {
        Ending {
            flag: Arc::clone(&self.flag),
            waker: Arc::clone(&self.waker),
        }
    }
}

/// Ends a running front from another thread.
#[derive(Clone)]
pub struct Stopper(pub(crate) Ending<AtomicBool, Waker>);

impl Stopper {
    /// Asks the front to end; [`Front::run`](super::Front::run) returns soon after.
    pub fn stop(&self) {
        self.0.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shuttle::sync::atomic::{AtomicBool, Ordering};
    use shuttle::sync::{Condvar, Mutex};

    use super::{Ending, Flag, Wake};

    /// Schedules that are tried, depth first; there are fewer with one stopper.
    const SCHEDULES_MAX: usize = 200_000;

    impl Flag for AtomicBool {
        fn raise(&self) {
            self.store(true, Ordering::Release);
        }
        fn is_up(&self) -> bool {
            self.load(Ordering::Acquire)
        }
    }

    /// What mio's waker is: a count that ends a sleep while it is not zero, and is then zero.
    #[derive(Default)]
    struct Count {
        pending: Mutex<bool>,
        changed: Condvar,
    }

    impl Count {
        /// Sleeps until woken, for ever if nothing does.
        fn sleep(&self) {
            let mut pending = self.pending.lock().unwrap();
            while !*pending {
                pending = self.changed.wait(pending).unwrap();
            }
            *pending = false;
        }
    }

    impl Wake for Arc<Count> {
        fn wake(&self) {
            *self.pending.lock().unwrap() = true;
            self.changed.notify_one();
        }
    }

    /// A loop with nothing to do, and several who end it.
    fn loop_and_stoppers(stoppers: usize, stop: fn(&Ending<AtomicBool, Arc<Count>>)) {
        let count = Arc::new(Count::default());
        let ending = Ending::new(AtomicBool::new(false), Arc::clone(&count));
        let threads: Vec<_> = (0..stoppers)
            .map(|_| {
                let ending = ending.clone();
                shuttle::thread::spawn(move || stop(&ending))
            })
            .collect();
        while !ending.is_asked() {
            count.sleep();
        }
        for thread in threads {
            thread.join().unwrap();
        }
    }

    #[test]
    fn a_stop_is_never_lost() {
        for stoppers in [1, 2] {
            let test = move || loop_and_stoppers(stoppers, Ending::stop);
            shuttle::check_dfs(test, Some(SCHEDULES_MAX));
        }
        shuttle::check_random(|| loop_and_stoppers(3, Ending::stop), 5_000);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn the_other_order_loses_it() {
        let wrong = |ending: &Ending<AtomicBool, Arc<Count>>| {
            ending.waker.wake();
            ending.flag.raise();
        };
        shuttle::check_dfs(move || loop_and_stoppers(1, wrong), Some(SCHEDULES_MAX));
    }
}
