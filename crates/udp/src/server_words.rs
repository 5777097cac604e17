//! State that a server's loop shares with its agent in a fleet (`docs/spec/protocol.md` §14).
//!
//! Neither side waits for the other. The loop reports its state whenever it changes, and reads one word in each turn.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Thread;

/// The chain in the record of a server's store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnRecord {
    /// Epoch of the chain; 0: there is no chain, or the store was not read yet.
    pub epoch: u32,
    /// Devices of the chain, head first.
    pub chain: Vec<u32>,
}

/// Words that a server's loop and its agent share.
#[derive(Debug, Default)]
pub struct ServerWords {
    on_record: Mutex<OnRecord>,
    /// The epoch that must end, because another epoch with the same devices must follow it; 0: none.
    ends: AtomicU32,
    over: AtomicBool,
    /// Whether another server has taken its turn, or may have taken it.
    turn_is_over: AtomicBool,
    agent: OnceLock<Thread>,
    waker: Mutex<Option<Arc<mio::Waker>>>,
}

impl ServerWords {
    /// Makes `waker` wake the loop.
    pub fn begin(&self, waker: Arc<mio::Waker>) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
    }

    /// Reports the chain in the store's record. This function takes a lock, so call it only for a new chain.
    pub fn say(&self, on_record: OnRecord) {
        let mut place = self
            .on_record
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *place = on_record;
        drop(place);
        self.wake_agent();
    }

    /// Returns the chain that the loop reported last.
    pub fn on_record(&self) -> OnRecord {
        let place = self.on_record.lock();
        place.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the epoch that must end, if there is one.
    pub fn epoch_to_end(&self) -> Option<u32> {
        Some(self.ends.load(Ordering::Acquire)).filter(|&epoch| epoch != 0)
    }

    /// Requests that another epoch with the same devices follows this epoch, and wakes the loop.
    pub fn end_epoch(&self, epoch: u32) {
        self.ends.store(epoch, Ordering::Release);
        self.wake_loop();
    }

    /// Notes that another server has taken its turn, or may have taken it. Then this loop's knowledge of its store is no
    /// longer valid, so the loop is woken, and ends.
    pub fn end_turn(&self) {
        self.turn_is_over.store(true, Ordering::Release);
        self.wake_loop();
    }

    /// Returns whether the loop must end because another server has taken its turn, or may have taken it.
    pub fn is_turn_over(&self) -> bool {
        self.turn_is_over.load(Ordering::Acquire)
    }

    fn wake_loop(&self) {
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waker) = &*waker {
            // A loop that has ended needs no wake-up.
            let _ = waker.wake();
        }
    }

    /// Makes the calling thread the agent. The loop wakes the agent when there is something new.
    pub fn attend(&self) {
        let _one = self.agent.set(std::thread::current());
    }

    /// Makes the agent end.
    pub fn finish(&self) {
        self.over.store(true, Ordering::Release);
        self.wake_agent();
    }

    /// Returns whether the agent must end.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    fn wake_agent(&self) {
        if let Some(agent) = self.agent.get() {
            agent.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loop_is_woken_by_a_word_and_the_agent_by_news() {
        let words = ServerWords::default();
        assert_eq!(words.epoch_to_end(), None);
        let mut poll = mio::Poll::new().unwrap();
        let mut events = mio::Events::with_capacity(1);
        let waker = mio::Waker::new(poll.registry(), mio::Token(1)).unwrap();
        words.begin(Arc::new(waker));
        words.end_epoch(3);
        poll.poll(&mut events, Some(std::time::Duration::from_secs(5)))
            .unwrap();
        assert!(!events.is_empty());
        assert_eq!(words.epoch_to_end(), Some(3));
        let on_record = OnRecord {
            epoch: 4,
            chain: vec![1, 2],
        };
        std::thread::scope(|scope| {
            let agent = scope.spawn(|| {
                words.attend();
                while words.on_record().epoch != 4 || !words.is_over() {
                    std::thread::park();
                }
            });
            words.say(on_record.clone());
            words.finish();
            // The thread may have parked just before it became the agent, so one wake-up may be too few.
            while !agent.is_finished() {
                agent.thread().unpark();
                std::thread::yield_now();
            }
        });
        assert_eq!(words.on_record(), on_record);
    }
}
