//! A value that one thread may replace while loops use it: keys that were read again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The value, for who replaces it.
#[derive(Debug)]
pub struct Latest<T>(Arc<Shared<T>>);

#[derive(Debug)]
struct Shared<T> {
    /// How often it was replaced.
    replaced: AtomicU64,
    value: Mutex<T>,
}

/// The same for one loop, which looks each turn: one load from memory, and a lock only if the value is another one.
#[derive(Debug)]
pub struct Latter<T> {
    shared: Arc<Shared<T>>,
    seen: u64,
}

impl<T: Clone> Latest<T> {
    /// The first value.
    #[must_use]
    pub fn new(value: T) -> Latest<T> {
        Latest(Arc::new(Shared {
            replaced: AtomicU64::new(0),
            value: Mutex::new(value),
        }))
    }

    /// Replaces it. Each loop takes it before it handles what it receives after this.
    pub fn replace(&self, value: T) {
        let mut present = self.0.value.lock().unwrap_or_else(PoisonError::into_inner);
        *present = value;
        self.0.replaced.fetch_add(1, Ordering::Release);
    }

    /// The present value, and a loop's side that says when there is another one.
    #[must_use]
    pub fn follow(&self) -> (T, Latter<T>) {
        let value = self.0.value.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = self.0.replaced.load(Ordering::Acquire);
        let shared = Arc::clone(&self.0);
        (value.clone(), Latter { shared, seen })
    }
}

impl<T> Clone for Latest<T> {
    fn clone(&self) -> Latest<T> {
        Latest(Arc::clone(&self.0))
    }
}

impl<T: Clone> Latter<T> {
    /// The value, if it was replaced since the last call.
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
    }
}
