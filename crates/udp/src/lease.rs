//! State that a device's loop shares with the agent that keeps the device's lease (`docs/spec/protocol.md` §14).
//!
//! The loop reads and writes atomic words, without a lock or a system call. It wakes the agent only if its state has
//! changed.

use pmnet_proto::Time;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Thread;

/// State of a device and of its chain, as the device reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The epoch in which the device serves; 0: it does not serve.
    pub epoch: u32,
    /// The devices of that epoch's chain, head first.
    pub chain: Vec<u32>,
    /// Whether the device has all entries that a head must have.
    pub whole: bool,
    /// The epoch which the device is ready to join; 0: it is not ready.
    pub joins: u32,
    /// The reason why the device waits, as a text; `None`: it does not wait.
    pub waits: Option<String>,
}

/// The words that the agent shares with one run of a loop.
#[derive(Debug, Default)]
pub struct LeaseWords {
    /// The epoch for which a lease is needed; 0: none is needed.
    wanted: AtomicU32,
    /// The epoch of the last granted lease, written before `sent_at`.
    epoch: AtomicU32,
    /// The time at which that lease was requested, on the loop's clock.
    sent_at: AtomicU64,
    /// Whether the loop must end.
    ends: AtomicBool,
    /// Whether a packet came from the next hop.
    next_spoke: AtomicBool,
    agent: OnceLock<Thread>,
    waker: Mutex<Option<Arc<mio::Waker>>>,
    standing: Mutex<Standing>,
}

impl LeaseWords {
    /// Makes `waker` wake the loop.
    pub fn begin(&self, waker: Arc<mio::Waker>) {
        let mut place = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        *place = Some(waker);
        drop(place);
        if self.is_to_end() {
            self.wake();
        }
    }

    /// Requests a lease for this epoch, or none. The call is cheap unless the epoch is new.
    pub fn want(&self, epoch: Option<u32>) {
        let epoch = epoch.unwrap_or(0);
        if self.wanted.load(Ordering::Relaxed) != epoch {
            self.wanted.store(epoch, Ordering::Release);
            if let Some(agent) = self.agent.get() {
                agent.unpark();
            }
        }
    }

    /// Reports a new state of the device. This function takes a lock, so call it only if the state is new. Call it
    /// before [`LeaseWords::want`].
    pub fn say(&self, standing: Standing) {
        *self.standing.lock().unwrap_or_else(PoisonError::into_inner) = standing;
        if let Some(agent) = self.agent.get() {
            agent.unpark();
        }
    }

    /// Returns the state that the device reported last.
    pub fn standing(&self) -> Standing {
        let standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        standing.clone()
    }

    /// Returns the last lease: its epoch, and the time of its request.
    ///
    /// If the agent writes at this moment, the epoch may be that of the next lease, and the time still that of the last
    /// one. The deadline is then too early, but never too late.
    pub fn given(&self) -> (u32, Time) {
        let sent_at = Time(self.sent_at.load(Ordering::Acquire));
        (self.epoch.load(Ordering::Acquire), sent_at)
    }

    /// Notes that a packet came from the next hop. One call for each burst is enough.
    pub fn hear_next(&self) {
        // The agent clears this word seldom, so in most cases it need not be written.
        if !self.next_spoke.load(Ordering::Relaxed) {
            self.next_spoke.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether a packet came from the next hop since the last call.
    pub fn next_spoke(&self) -> bool {
        self.next_spoke.swap(false, Ordering::Relaxed)
    }

    /// Returns whether the agent wants the loop to end.
    pub fn is_to_end(&self) -> bool {
        self.ends.load(Ordering::Acquire)
    }

    /// Makes the calling thread the agent. The loop wakes the agent when there is something new.
    pub fn attend(&self) {
        let _one = self.agent.set(std::thread::current());
    }

    /// Returns the epoch for which the loop needs a lease.
    pub fn wanted(&self) -> Option<u32> {
        Some(self.wanted.load(Ordering::Acquire)).filter(|&epoch| epoch != 0)
    }

    /// Grants a lease for this epoch, which was requested when the loop's clock showed `sent_at`.
    pub fn give(&self, epoch: u32, sent_at: Time) {
        self.epoch.store(epoch, Ordering::Release);
        self.sent_at.store(sent_at.0, Ordering::Release);
        self.wake();
    }

    /// Makes the loop end.
    pub fn end(&self) {
        self.ends.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waker) = &*waker {
            // A loop that has ended needs no wake-up.
            let _ = waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the test, the times at which the leases of two successive epochs were requested differ by this much.
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
            // The thread may have parked just before it became the agent, so one wake-up may be too few.
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
