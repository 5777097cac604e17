//! Ends the loop from another thread. The threads of the front share no other state.
//!
//! The loop checks a flag and sleeps. Another thread sets the flag and wakes the loop. Invariant: the flag is set
//! before the wake-up is sent. If the loop does not sleep, the wake-up ends its next sleep. So a loop that checked the
//! flag too early is woken and checks again. If the flag were set after the wake-up, the loop could continue to sleep
//! until something else happens. The code uses traits, so that the tests run this same code under a scheduler that
//! tries the interleavings of the threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mio::Waker;

/// A flag that can be set and never cleared.
pub(crate) trait Flag {
    /// Sets the flag. A loop that sees the flag set also sees everything that the setting thread wrote before.
    fn raise(&self);
    /// Whether the flag is set.
    fn is_up(&self) -> bool;
}

/// Ends a loop's present sleep, or the next sleep if the loop does not sleep now.
pub(crate) trait Wake {
    /// Ends the sleep.
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
        // Waking fails only if the loop has already ended.
        let _ = Waker::wake(self);
    }
}

/// The flag and the wake-up of one loop.
pub(crate) struct Ending<F, W> {
    flag: Arc<F>,
    waker: Arc<W>,
}

impl<F: Flag, W: Wake> Ending<F, W> {
    /// Makes the state for a loop whose sleep `waker` can end.
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

    /// Returns the object that ends the loop's sleep.
    pub(crate) fn waker(&self) -> Arc<W> {
        Arc::clone(&self.waker)
    }

    /// Whether the loop must end. Must be called before every sleep.
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

    /// Maximum number of schedules that are tried, depth first. With one stopper, there are fewer schedules than this
    /// maximum.
    const SCHEDULES_MAX: usize = 200_000;

    impl Flag for AtomicBool {
        fn raise(&self) {
            self.store(true, Ordering::Release);
        }
        fn is_up(&self) -> bool {
            self.load(Ordering::Acquire)
        }
    }

    /// A model of mio's waker: a count that ends a sleep while it is not zero, and is then reset to zero.
    #[derive(Default)]
    struct Count {
        pending: Mutex<bool>,
        changed: Condvar,
    }

    impl Count {
        /// Sleeps until woken. Without a wake-up, the sleep never ends.
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

    /// A loop without work, and several threads that end it.
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
