//! A value that one thread may replace while loops use it; for example keys, which a process may read again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A number of replacements that is never reached.
const NEVER: u64 = u64::MAX;

/// The handle of the thread that replaces the value.
#[derive(Debug)]
pub struct Latest<T>(Arc<Shared<T>>);

#[derive(Debug)]
struct Shared<T> {
    /// Number of replacements so far.
    replaced: AtomicU64,
    value: Mutex<T>,
    /// Wakers of the loops that wait ([`Latter::wake_by`]). The entry of a loop that has ended stays, but wakes
    /// nothing.
    wakers: Mutex<Vec<Weak<mio::Waker>>>,
}

/// The handle of one loop. The check in each turn is one load from memory; it takes a lock only if the value was
/// replaced.
#[derive(Debug)]
pub struct Latter<T> {
    shared: Arc<Shared<T>>,
    seen: u64,
    /// The waker of the loop, which works as long as this field holds it.
    _waker: Option<Arc<mio::Waker>>,
}

impl<T: Clone> Latest<T> {
    /// Returns the handle for replacing the value, with this first value.
    #[must_use]
    pub fn new(value: T) -> Latest<T> {
        Latest(Arc::new(Shared {
            replaced: AtomicU64::new(0),
            value: Mutex::new(value),
            wakers: Mutex::default(),
        }))
    }

    /// Replaces the value. Each loop takes the new value before it processes later packets; a loop that can be woken
    /// takes it at once.
    pub fn replace(&self, value: T) {
        let mut present = self.0.value.lock().unwrap_or_else(PoisonError::into_inner);
        *present = value;
        self.0.replaced.fetch_add(1, Ordering::Release);
        drop(present);
        let wakers = self.0.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        for waker in wakers.iter().filter_map(Weak::upgrade) {
            // A loop that has ended needs no wake-up.
            let _ = waker.wake();
        }
    }

    /// Returns the current value, and a handle for a loop, which gives it later values.
    #[must_use]
    pub fn follow(&self) -> (T, Latter<T>) {
        let value = self.0.value.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = self.0.replaced.load(Ordering::Acquire);
        let shared = Arc::clone(&self.0);
        let latter = Latter {
            shared,
            seen,
            _waker: None,
        };
        (value.clone(), latter)
    }

    /// Returns a handle for a loop that may have begun with an earlier value. If so, the first [`Latter::take`] returns
    /// the current value.
    #[must_use]
    pub fn follow_on(&self, is_present: impl FnOnce(&T) -> bool) -> Latter<T> {
        let (present, mut latter) = self.follow();
        if !is_present(&present) {
            latter.seen = NEVER;
        }
        latter
    }
}

impl<T> Clone for Latest<T> {
    fn clone(&self) -> Latest<T> {
        Latest(Arc::clone(&self.0))
    }
}

impl<T: Clone> Latter<T> {
    /// Makes `waker` wake the loop whenever the value is replaced. If the value was replaced before this call, the loop
    /// is woken at once.
    pub fn wake_by(&mut self, waker: Arc<mio::Waker>) {
        let wakers = self.shared.wakers.lock();
        let mut wakers = wakers.unwrap_or_else(PoisonError::into_inner);
        wakers.retain(|waker| waker.strong_count() > 0);
        wakers.push(Arc::downgrade(&waker));
        drop(wakers);
        if self.shared.replaced.load(Ordering::Acquire) != self.seen {
            // A loop that has ended needs no wake-up.
            let _ = waker.wake();
        }
        self._waker = Some(waker);
    }

    /// Returns the value if it was replaced since the last call.
    pub fn take(&mut self) -> Option<T> {
        if self.shared.replaced.load(Ordering::Relaxed) == self.seen {
            return None;
        }
        let value = self.shared.value.lock();
        let value = value.unwrap_or_else(PoisonError::into_inner);
        self.seen = self.shared.replaced.load(Ordering::Acquire);
        Some(value.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn each_loop_takes_the_last_value_once() {
        let latest = Latest::new(1);
        let (first, mut one) = latest.follow();
        assert_eq!((first, one.take()), (1, None));
        latest.clone().replace(2);
        latest.replace(3);
        let (later, mut other) = latest.follow();
        assert_eq!((later, other.take()), (3, None));
        assert_eq!((one.take(), one.take()), (Some(3), None));
        let mut began_with_it = latest.follow_on(|&present| present == 3);
        let mut began_earlier = latest.follow_on(|&present| present == 1);
        assert_eq!(began_with_it.take(), None);
        assert_eq!(
            (began_earlier.take(), began_earlier.take()),
            (Some(3), None)
        );
    }

    #[test]
    fn a_loop_that_waits_is_woken_when_the_value_is_replaced() {
        let latest = Latest::new(1);
        let (_, mut ended) = latest.follow();
        let (_, mut latter) = latest.follow();
        let poll = || {
            let poll = mio::Poll::new().unwrap();
            let waker = mio::Waker::new(poll.registry(), mio::Token(1)).unwrap();
            (poll, Arc::new(waker))
        };
        let waits = |mut poll: mio::Poll| {
            let mut events = mio::Events::with_capacity(1);
            poll.poll(&mut events, Some(PATIENCE)).unwrap();
            assert!(!events.is_empty(), "it is woken");
        };
        ended.wake_by(poll().1);
        drop(ended);
        let (poll_first, waker) = poll();
        latter.wake_by(waker);
        latest.replace(2);
        waits(poll_first);
        assert_eq!(latter.take(), Some(2));
        // The value was replaced before the loop could be woken.
        let (_, mut late) = latest.follow();
        latest.replace(3);
        let (poll_late, waker) = poll();
        late.wake_by(waker);
        waits(poll_late);
        assert_eq!(
            latest.0.wakers.lock().unwrap().len(),
            2,
            "that of the loop that has ended is gone"
        );
    }
}
