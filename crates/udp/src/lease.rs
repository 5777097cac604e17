//! What a device's loop and the agent that keeps its lease tell each other (`docs/spec/protocol.md` §14).
//!
//! The loop reads and writes words: no lock, no system call. Only when it has news it wakes the agent.

use pmnet_proto::Time;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Thread;

/// What a device says of itself and of its chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The epoch that it serves; 0: it does not serve.
    pub epoch: u32,
    /// The devices of that epoch's chain, head first.
    pub chain: Vec<u32>,
    /// It holds everything that a head must.
    pub whole: bool,
    /// The epoch in which it is ready to join; 0: it is not.
    pub joins: u32,
    /// What it waits for, if it says so.
    pub waits: Option<String>,
}

/// The words between one run of a loop and the agent.
#[derive(Debug, Default)]
pub struct LeaseWords {
    /// The epoch for which a lease is needed; 0: none is.
    wanted: AtomicU32,
    /// The epoch of the last lease, written before `sent_at`.
    epoch: AtomicU32,
    /// When that lease was asked for, by the loop's clock.
    sent_at: AtomicU64,
    /// The loop is to end.
    ends: AtomicBool,
    /// Something came from the next hop.
    next_spoke: AtomicBool,
    /// Whether the loop is to ask the next hop for an answer.
    asks_next: AtomicBool,
    agent: OnceLock<Thread>,
    waker: Mutex<Option<Arc<mio::Waker>>>,
    standing: Mutex<Standing>,
}

impl LeaseWords {
    /// The loop can be woken by this from now on.
    pub fn begin(&self, waker: Arc<mio::Waker>) {
        let mut place = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        *place = Some(waker);
        drop(place);
        if self.is_to_end() {
            self.wake();
        }
    }

    /// The loop needs a lease for this epoch, or none. Cheap unless that is new.
    pub fn want(&self, epoch: Option<u32>) {
        let epoch = epoch.unwrap_or(0);
        if self.wanted.load(Ordering::Relaxed) != epoch {
            self.wanted.store(epoch, Ordering::Release);
            if let Some(agent) = self.agent.get() {
                agent.unpark();
            }
        }
    }

    /// The device's place is new. Takes a lock: to be called only then, and before [`LeaseWords::want`].
    pub fn say(&self, standing: Standing) {
        *self.standing.lock().unwrap_or_else(PoisonError::into_inner) = standing;
        if let Some(agent) = self.agent.get() {
            agent.unpark();
        }
    }

    /// What the device said last of its place.
    pub fn standing(&self) -> Standing {
        let standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        standing.clone()
    }

    /// Returns the last lease: its epoch, and when it was asked for.
    ///
    /// If the agent writes just now, the epoch may be that of the next lease. So the answer may be an epoch that has a lease, with
    /// a moment that is too early: this makes a deadline too early, never too late.
    pub fn given(&self) -> (u32, Time) {
        let sent_at = Time(self.sent_at.load(Ordering::Acquire));
        (self.epoch.load(Ordering::Acquire), sent_at)
    }

    /// Something came from the next hop. Called once for a burst.
    pub fn hear_next(&self) {
        // It is seldom looked at: mostly nothing is written.
        if !self.next_spoke.load(Ordering::Relaxed) {
            self.next_spoke.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether something came from the next hop since the last call.
    pub fn next_spoke(&self) -> bool {
        self.next_spoke.swap(false, Ordering::Relaxed)
    }

    /// Makes the loop ask the next hop for an answer. If the hop lives, [`LeaseWords::next_spoke`] is soon true.
    pub fn ask_next(&self) {
        self.asks_next.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// Returns whether that was wanted since the last call.
    pub fn asks_next(&self) -> bool {
        // Looked at in each turn: mostly nothing is written.
        self.asks_next.load(Ordering::Relaxed) && self.asks_next.swap(false, Ordering::Relaxed)
    }

    /// Returns whether the agent wants the loop to end.
    pub fn is_to_end(&self) -> bool {
        self.ends.load(Ordering::Acquire)
    }

    /// This thread is the agent: it is woken when the loop has news.
    pub fn attend(&self) {
        let _one = self.agent.set(std::thread::current());
    }

    /// Returns the epoch for which the loop needs a lease.
    pub fn wanted(&self) -> Option<u32> {
        Some(self.wanted.load(Ordering::Acquire)).filter(|&epoch| epoch != 0)
    }

    /// There is a lease for this epoch, asked for when the loop's clock showed this.
    pub fn give(&self, epoch: u32, sent_at: Time) {
        self.epoch.store(epoch, Ordering::Release);
        self.sent_at.store(sent_at.0, Ordering::Release);
        self.wake();
    }

    /// The loop is to end.
    pub fn end(&self) {
        self.ends.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waker) = &*waker {
            // A loop that is gone needs no waking.
            let _ = waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Moments of the agent's clock for each epoch.
    const EACH: u64 = 10;

    #[test]
    fn a_pair_that_is_read_while_it_changes_is_never_too_late() {
        let words = LeaseWords::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for epoch in 1..200_000 {
                    words.give(epoch, Time(u64::from(epoch) * EACH));
                }
                words.end();
            });
            let mut last = Time(0);
            while !words.is_to_end() {
                let (epoch, sent_at) = words.given();
                assert!(
                    sent_at <= Time(u64::from(epoch) * EACH),
                    "{epoch} {sent_at:?}"
                );
                assert!(sent_at >= last, "back from {last:?} to {sent_at:?}");
                last = sent_at;
            }
        });
        assert_eq!(words.given().0, 199_999);
    }

    #[test]
    fn what_a_loop_wants_wakes_the_agent_and_an_end_that_came_first_is_heard() {
        let words = LeaseWords::default();
        assert_eq!(words.wanted(), None);
        std::thread::scope(|scope| {
            let agent = scope.spawn(|| {
                words.attend();
                while words.wanted() != Some(3) {
                    std::thread::park();
                }
            });
            words.want(Some(3));
            // It may have parked before it attended.
            while !agent.is_finished() {
                agent.thread().unpark();
                std::thread::yield_now();
            }
        });
        let standing = Standing {
            epoch: 3,
            chain: vec![1, 2],
            ..Standing::default()
        };
        words.say(standing.clone());
        assert_eq!(words.standing(), standing);
        words.want(None);
        assert_eq!(words.wanted(), None);
        words.end();
        let mut poll = mio::Poll::new().unwrap();
        let mut events = mio::Events::with_capacity(1);
        let waker = mio::Waker::new(poll.registry(), mio::Token(1)).unwrap();
        words.begin(Arc::new(waker));
        poll.poll(&mut events, Some(std::time::Duration::from_secs(5)))
            .unwrap();
        assert!(!events.is_empty() && words.is_to_end());
    }
}
