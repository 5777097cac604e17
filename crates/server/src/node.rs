//! The server machine together with its store, without a socket or a clock.

use crate::store::{Batch, Request, Store, StoreError};
use pmnet_proto::server::{Genuine, Server, Stop, Work};
use pmnet_proto::time::{MILLISECOND, Nanos, SECOND};
use pmnet_proto::{Outbox, Peer, Time};
use pmnet_wire::Packet;

/// Pause after the first failure of the store. The pause grows with each further failure, up to [`PAUSE_MAX`].
const PAUSE_MIN: Nanos = 5 * MILLISECOND;
const PAUSE_MAX: Nanos = 500 * MILLISECOND;
/// Interval at which a store does a part of its maintenance work. While more work is waiting, the interval is
/// [`TIDY_ON_AFTER`].
const TIDY_EVERY: Nanos = 100 * MILLISECOND;
const TIDY_ON_AFTER: Nanos = 10 * MILLISECOND;
/// Interval at which the node checks that the store is still connected, while no work would show it.
const LOOK_EVERY: Nanos = 500 * MILLISECOND;
/// Time after which the same failure is logged again.
const TOLD_EVERY: Nanos = 5 * SECOND;

/// A server of one shard over a store.
pub struct ServerNode<S> {
    machine: Server,
    store: S,
    pause: Nanos,
    resume_at: Option<Time>,
    /// Time at which the store must do a part of its maintenance work.
    tidy_at: Option<Time>,
    /// Time of the next check that the store is still connected. `None`: this store needs no such check.
    look_at: Option<Time>,
    /// The failure that was logged last, with the time of the message.
    told: Option<(String, Time)>,
    rejected_packets: u64,
}

impl<S: Store> ServerNode<S> {
    /// Joins a machine and a store.
    pub fn new(mut machine: Server, store: S) -> ServerNode<S> {
        machine.take(store.payloads());
        ServerNode {
            look_at: store.may_go().then_some(Time(0)),
            machine,
            store,
            pause: PAUSE_MIN,
            resume_at: None,
            tidy_at: None,
            told: None,
            rejected_packets: 0,
        }
    }

    /// Returns the machine, for its counters and state.
    pub const fn machine(&self) -> &Server {
        &self.machine
    }
    /// Returns the machine, for its notices.
    pub const fn machine_mut(&mut self) -> &mut Server {
        &mut self.machine
    }
    /// Returns the store.
    pub const fn store(&self) -> &S {
        &self.store
    }
    /// Returns the number of datagrams that were rejected because they are not valid packets.
    pub const fn rejected_packets(&self) -> u64 {
        self.rejected_packets
    }
    /// Returns the store's last failure while the server makes a pause because of it. `None`: there is no pause.
    pub fn pauses(&self) -> Option<&str> {
        let (text, _) = self.told.as_ref()?;
        self.resume_at.map(|_| text.as_str())
    }
    /// Returns the store, so that the caller can set its waker.
    pub const fn store_mut(&mut self) -> &mut S {
        &mut self.store
    }
    /// Returns the store in the state that the death of the process would leave.
    pub fn into_store(self) -> S {
        self.store
    }

    /// Handles one datagram. `now`: the earliest time at which the datagram may have arrived, because the datagram may
    /// have waited in the socket.
    ///
    /// # Errors
    /// [`Stop`]: the shard must not continue.
    pub fn receive(
        &mut self,
        now: Time,
        from: Peer,
        datagram: &[u8],
        out: &mut Outbox,
    ) -> Result<(), Stop> {
        match self.check(datagram) {
            Some(genuine) => self.machine.receive_genuine(now, from, &genuine, out),
            None => Ok(()),
        }
    }

    /// Checks a datagram, as the first part of [`ServerNode::receive`] ([`Server::check`]).
    pub fn check<'a>(&mut self, datagram: &'a [u8]) -> Option<Genuine<'a>> {
        let Ok(packet) = Packet::parse(datagram) else {
            self.rejected_packets += 1;
            return None;
        };
        self.machine.check(&packet)
    }

    /// Lets the store do the next work, if there is work and the store is not in a pause. Returns `true` if the store
    /// did work. After `true`, the caller must receive the packets that have arrived meanwhile, and call again.
    ///
    /// # Errors
    /// [`Stop`]: the shard must not continue.
    pub fn step(&mut self, now: Time, out: &mut Outbox) -> Result<bool, Stop> {
        if self.store.has_moved() {
            // No work is in progress. The records are loaded from the other store. The present store has not failed, so
            // there is no pause.
            self.machine.failed();
        } else if self.resume_at.is_some_and(|at| now < at) {
            return Ok(false);
        } else if self.look_at.is_some_and(|at| now >= at) {
            self.look_at = Some(now + LOOK_EVERY);
            if self.store.is_gone() {
                // The store had no work. With work, a failure would have shown the lost connection.
                tracing::info!("the store has closed its connection: the records are read again");
                self.machine.failed();
            }
        }
        self.resume_at = None;
        self.machine.answer_waiting(now, out);
        if self.tidy_at.is_some_and(|at| now >= at) {
            let tidied = self.store.tidy();
            self.tell_room();
            match tidied {
                Ok(more) => {
                    let pause = if more { TIDY_ON_AFTER } else { TIDY_EVERY };
                    self.tidy_at = Some(now + pause);
                }
                Err(error) => {
                    self.set_back(error, now)?;
                    return Ok(true);
                }
            }
        }
        let Some(work) = self.machine.next_work(now)? else {
            self.machine.finish(out);
            return Ok(false);
        };
        let result = match work {
            Work::Load => match self.store.load() {
                Ok(records) => {
                    let identity = self.store.identity();
                    self.machine.loaded(records, identity).map(|()| Ok(()))?
                }
                Err(error) => Err(error),
            },
            Work::Apply(effects) => {
                let batch = Batch {
                    effects: effects.payloads,
                    origins: effects.origins,
                    sources: effects.sources,
                    upto: effects.upto,
                    records: effects.records,
                };
                self.store
                    .apply(&batch)
                    .map(|rejected| self.machine.applied(rejected, out))
            }
            Work::Execute(executions) => {
                let requests: Vec<Request> = executions
                    .into_iter()
                    .map(|e| Request {
                        payload: e.payload,
                        source: e.source,
                        record: e.record,
                    })
                    .collect();
                let mut replies = Vec::with_capacity(requests.len());
                let result = self.store.execute(&requests, &mut replies);
                self.machine.executed(replies, out);
                result
            }
        };
        self.tell_room();
        match result {
            Ok(()) => {
                self.pause = PAUSE_MIN;
                if self.store.tidies() {
                    self.tidy_at.get_or_insert(now + TIDY_EVERY);
                }
            }
            Err(error) => self.set_back(error, now)?,
        }
        self.machine.finish(out);
        Ok(true)
    }

    /// Tells the machine whether the store lacks free space.
    fn tell_room(&mut self) {
        let (short, crowded) = (self.store.is_short(), self.store.is_crowded());
        self.machine.set_room(short, crowded);
    }

    /// Handles a failure of the store: its records are loaded again after a pause.
    fn set_back(&mut self, error: StoreError, now: Time) -> Result<(), Stop> {
        let text = match error {
            StoreError::Fatal(text) => return Err(Stop(text)),
            StoreError::Retry(text) => text,
        };
        let is_new = self
            .told
            .as_ref()
            .is_none_or(|(before, at)| *before != text || now.since(*at) >= TOLD_EVERY);
        if is_new {
            tracing::warn!(pause_ms = self.pause / MILLISECOND, "{text}");
            self.told = Some((text, now));
        }
        self.machine.failed();
        self.tidy_at = None;
        self.resume_at = Some(now + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Ok(())
    }

    /// Returns the time at which [`ServerNode::step`] has work again, even if no packet arrives.
    pub fn next_timeout(&self) -> Option<Time> {
        let next = self.tidy_at.into_iter().chain(self.look_at).min();
        self.resume_at.or(next)
    }
}
