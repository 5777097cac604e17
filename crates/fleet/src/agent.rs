//! The agent of one device: it renews the device's lease, in a thread of its own.
//!
//! A lease of the protocol is a lease of etcd *that is granted anew each time*, with the key `alive/ID` that
//! belongs to it. One transaction puts that key under the new lease. Its condition is that the word about the
//! device, its last lease and its process are unchanged since the agent read them. So a single step grants
//! the lease and confirms that the device was not declared stopped. A step that arrives late has no effect.
//! The device's deadline counts from the time before the grant was requested.

mod told;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use pmnet_proto::Time;
use pmnet_proto::lease::{self, Word};
use pmnet_proto::rules::Rules;
use pmnet_proto::time::Nanos;
use pmnet_udp::{Clock, LeaseWords, Standing};

use self::told::Told;
use crate::etcd::{Etcd, Members, Put};
use crate::heal::may_leave;
use crate::plan::{Order, Plan};
use crate::record::{MemberRecord, Names, StatusRecord, bytes};
use crate::shard::{Row, Shard};

/// Renewals within the length of a lease.
const RENEWALS: u64 = 3;
/// Reads of the shard's state within the length of a lease; each includes the wanted chain.
const LOOKS: u64 = 16;
/// Divisor of a lease's length that gives the longest time for a call of etcd.
const CALLS: u64 = 6;

/// Settings of an agent.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Members of etcd.
    pub members: Members,
    /// The shard's keys.
    pub names: Names,
    /// Id of the device.
    pub id: u32,
    /// Address at which the device listens.
    pub address: SocketAddr,
    /// Length of its leases, in seconds.
    pub seconds: u64,
    /// The device may be taken into a chain that is shorter than it shall be.
    pub spare: bool,
    /// An operator's flags decide how the device starts: the chain in etcd counts for it only from the
    /// chain's next change on.
    pub by_hand: bool,
    /// The clock of the device's loop.
    pub clock: Clock,
    /// The status port of this process, if it has one.
    pub status: Option<StatusRecord>,
}

/// Facts about the log of a running device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Identity of the log.
    pub log: u128,
    /// Incarnation of the log.
    pub incarnation: u32,
}

/// A running agent. It ends when this value is dropped; then the lease expires.
#[derive(Debug)]
pub struct Agent {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    config: AgentConfig,
    /// Name of this process.
    process: String,
}

/// One run of the device's loop.
#[derive(Clone, Debug)]
struct Run {
    facts: Facts,
    words: Arc<LeaseWords>,
    order: Order,
}

#[derive(Debug, Default)]
struct Shared {
    ends: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    run: Option<Run>,
    /// The device's next hop and statement, by the chain in etcd.
    order: Option<Order>,
    /// etcd has this process on record as the device's.
    registered: bool,
    /// An operator wants the device to leave, and the chain can continue without it.
    leaves: bool,
    failed: Option<String>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Agent {
    /// Starts the agent.
    ///
    /// # Errors
    /// The operating system gives no thread, or no random numbers.
    pub fn start(config: AgentConfig) -> std::io::Result<Agent> {
        let shared = Arc::new(Shared::default());
        let mut keeper = Keeper::new(config.clone(), shared.clone())?;
        let process = keeper.process.clone();
        let thread = std::thread::Builder::new()
            .name("lease".into())
            .spawn(move || keeper.keep())?;
        Ok(Agent {
            shared,
            thread: Some(thread),
            config,
            process,
        })
    }

    /// Notes that the device runs with this log, and with this wiring. `words`: messages of this run alone. By these
    /// messages the agent ends the run when the device must get another next hop, or must not continue.
    pub fn attend(&self, facts: Facts, words: Arc<LeaseWords>, order: Order) {
        self.shared.state().run = Some(Run {
            facts,
            words,
            order,
        });
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// Returns whether etcd has this process on record as the device's, so that the device may run.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.shared.state().registered
    }

    /// To be called once the device is registered. Returns the next hop and the statement that the device must have;
    /// `None`: etcd has no record of them.
    #[must_use]
    pub fn order(&self) -> Option<Order> {
        self.shared.state().order
    }

    /// Returns why the device must not continue, as text; `None` if it may.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.shared.state().failed.clone()
    }

    /// Returns whether the device must end and return its lease, because an operator wants that and the chain
    /// can continue without it.
    #[must_use]
    pub fn leaves(&self) -> bool {
        self.shared.state().leaves
    }

    /// Returns the lease. **The device must have ended**: it no longer answers under this lease.
    ///
    /// # Errors
    /// A text: etcd does not answer. Then the lease expires by itself.
    pub fn give_back(mut self) -> Result<(), String> {
        // From now on no further lease is requested.
        self.finish();
        let timeout = Duration::from_nanos(crate::length(self.config.seconds) / CALLS);
        let mut etcd = Etcd::new(self.config.members.clone(), timeout);
        let row = Shard::read(&mut etcd, &self.config.names)?.row(self.config.id);
        if row.process.as_ref() != Some(&self.process) || row.lease_id == 0 {
            return Ok(());
        }
        etcd.revoke(row.lease_id).map_err(|error| error.to_string())
    }

    fn finish(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic in the thread was already printed.
            let _ = thread.join();
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.finish();
    }
}

/// The last lease: the epoch and facts for which it was granted, and the time of the request.
struct Held {
    epoch: Option<u32>,
    facts: Facts,
    standing: Standing,
    sent_at: Time,
}

/// Why there is no lease now.
enum Not {
    /// There is no lease at present, for this reason. A later request may get one.
    Yet(String),
    /// The device must end, for this reason.
    Ever(String),
}

impl From<String> for Not {
    fn from(text: String) -> Not {
        Not::Yet(text)
    }
}

struct Keeper {
    config: AgentConfig,
    shared: Arc<Shared>,
    etcd: Etcd,
    length: Nanos,
    /// Name of this process.
    process: String,
    held: Option<Held>,
    /// The lease of another process that existed when this agent first saw it.
    other: Option<u64>,
    /// Revision of the chain in etcd that this agent ignores, because the operator's flags are newer.
    overruled: Option<u64>,
    told: Told,
}

impl Keeper {
    fn new(config: AgentConfig, shared: Arc<Shared>) -> std::io::Result<Keeper> {
        let length = crate::length(config.seconds);
        let timeout = Duration::from_nanos(length / CALLS);
        Ok(Keeper {
            etcd: Etcd::new(config.members.clone(), timeout),
            length,
            process: format!("{:016x}", pmnet_udp::os_random()?),
            held: None,
            other: None,
            overruled: None,
            told: Told::default(),
            config,
            shared,
        })
    }

    fn keep(&mut self) {
        while !self.shared.ends.load(Ordering::Acquire) {
            let run = self.shared.state().run.clone();
            if let Some(run) = run {
                let words = run.words.clone();
                words.attend();
                // The epoch is read before the device's standing, so that a standing in a later epoch is not
                // recorded for this epoch.
                let epoch = words.wanted();
                let turned = self.turn(&run, epoch);
                if let Err(Not::Ever(text)) = &turned {
                    self.shared.state().failed = Some(text.clone());
                    words.end();
                    return;
                }
                let why = turned.err().map(|(Not::Yet(text) | Not::Ever(text))| text);
                let lives = self.lives(epoch);
                let (now, length) = (self.config.clock.now(), self.length);
                self.told.tell(now, epoch, lives, why, length);
            }
            std::thread::park_timeout(Duration::from_nanos(self.length / LOOKS));
        }
    }

    /// Returns whether the device has a lease for this epoch.
    fn lives(&self, epoch: Option<u32>) -> bool {
        self.held.as_ref().is_some_and(|held| {
            let deadline = lease::deadline(held.sent_at, self.length);
            held.epoch == epoch && self.config.clock.now() < deadline
        })
    }

    /// Reads the chain as it shall be. Renews the lease if that is due, or if something is new.
    fn turn(&mut self, run: &Run, epoch: Option<u32>) -> Result<(), Not> {
        let (facts, words) = (run.facts, &run.words);
        let shard = Shard::read(&mut self.etcd, &self.config.names)?;
        let row = shard.row(self.config.id);
        self.follow(&shard, &row, run);
        if row.wish.leaves && may_leave(&shard, self.config.id) {
            self.shared.state().leaves = true;
            words.end();
            return Err(Not::Yet("a person wants it to leave its chain".into()));
        }
        let standing = words.standing();
        let now = self.config.clock.now();
        let due = self.held.as_ref().is_none_or(|held| {
            let old = now.since(held.sent_at) >= self.length / RENEWALS;
            let same = (held.epoch, held.facts, &held.standing) == (epoch, facts, &standing);
            old || !same
        });
        if !due {
            return Ok(());
        }
        self.may_claim(&row, facts)?;
        let overruled = self.overruled == Some(shard.plans);
        if !overruled && has_lost_its_log(&shard, &row, self.config.id, facts) {
            return Err(Not::Yet(format!(
                "PM1611 device {} has another log than the one with which it is in the chain. Put that one back; if it is gone for \
                 good, wait: without a lease this device is left out, and may join anew (--join)",
                self.config.id
            )));
        }
        allows(row.word, epoch)?;
        let serves = epoch == Some(standing.epoch);
        let record = MemberRecord {
            address: self.config.address,
            log: format!("{:032x}", facts.log),
            incarnation: facts.incarnation,
            epoch: epoch.unwrap_or(0),
            seconds: self.config.seconds,
            next: Some(run.order.next),
            chain: standing.chain.iter().copied().filter(|_| serves).collect(),
            whole: serves && standing.whole,
            spare: self.config.spare && !row.wish.leaves,
            joins: standing.joins,
            status: self.config.status.clone(),
        };
        let sent_at = self.config.clock.now();
        if !self.claim(&row, &record)? {
            return Err(Not::Yet("somebody changed its record in etcd".into()));
        }
        self.held = Some(Held {
            epoch,
            facts,
            standing,
            sent_at,
        });
        self.shared.state().registered = true;
        if let Some(epoch) = epoch {
            words.give(epoch, sent_at);
        }
        Ok(())
    }

    /// Ends the run in three cases: the device must get another next hop; it serves an epoch in which it was
    /// left out (the server then tells it); or its statement about stopped devices was not heard.
    fn follow(&mut self, shard: &Shard, row: &Row, run: &Run) {
        if self.config.by_hand && self.overruled.is_none() {
            self.overruled = Some(shard.plans);
        }
        let overruled = self.overruled == Some(shard.plans);
        let plan = shard.plan.as_ref().filter(|_| !overruled);
        let order = plan.and_then(|plan| wiring(plan, self.config.id, self.config.spare));
        self.shared.state().order = order;
        let otherwise = order.is_some_and(|order| run.order.is_to_become(order));
        let past = match (row.word, run.words.wanted()) {
            (Word::LeftOut(since), Some(epoch)) => epoch <= since,
            _ => false,
        };
        let unheard = plan.is_some_and(|plan| is_unheard(plan, run.order, &run.words.standing()));
        if (otherwise || past || unheard) && !run.words.is_to_end() {
            if unheard {
                tracing::warn!(
                    "PM1602 this device told the server that a member is stopped while its own path still led through that member: it tells it again"
                );
            } else if let Some(order) = order {
                let Order { next, shrink, .. } = order;
                tracing::info!(%next, shrink, "the chain in etcd says how this device is wired");
            } else {
                tracing::warn!("PM1603 this device was left out of the chain: it asks the server");
            }
            run.words.end();
        }
    }

    /// Checks whether the device belongs to this process: no other process holds a lease for it.
    fn may_claim(&mut self, row: &Row, facts: Facts) -> Result<(), Not> {
        let Some(process) = row.process.as_ref().filter(|one| **one != self.process) else {
            self.other = None;
            return Ok(());
        };
        let before = row.record.as_ref().is_some_and(|record| {
            // No two processes have the same log open, so the earlier process has ended.
            record.log == format!("{:032x}", facts.log) && record.incarnation < facts.incarnation
        });
        if before {
            return Ok(());
        }
        let seen = *self.other.get_or_insert(row.alive);
        let address = row.record.as_ref().map(|record| record.address);
        let address = address.map_or_else(|| "an unknown address".into(), |at| at.to_string());
        if seen != row.alive {
            return Err(Not::Ever(format!(
                "PM1604 device {} of this shard runs already, at {address}, and renews its lease in etcd: stop that process, or \
                 give this one another --id",
                self.config.id
            )));
        }
        Err(Not::Yet(format!(
            "PM1612 another process ({process}, at {address}) holds the lease of device {}",
            self.config.id
        )))
    }

    /// Takes one step in etcd, if nothing has changed since it was read. Returns whether it was done.
    fn claim(&mut self, row: &Row, record: &MemberRecord) -> Result<bool, String> {
        let (names, id) = (&self.config.names, self.config.id);
        let lease = self.etcd.grant(self.config.seconds);
        let lease = lease.map_err(|error| error.to_string())?;
        let are = [
            (names.member(id), row.lease),
            (names.alive(id), row.alive),
            (names.word(id), row.words),
        ];
        let mut puts = vec![Put {
            key: names.alive(id),
            value: self.process.clone().into_bytes(),
            lease,
        }];
        // If the record is unchanged and the previous lease still exists, the record is not written again.
        // The lease's number stays the same, as if the lease had never ended.
        let renews = row.process.as_ref() == Some(&self.process);
        if !renews || row.record.as_ref() != Some(record) {
            puts.push(Put {
                key: names.member(id),
                value: bytes(record),
                lease: 0,
            });
        }
        let done = self.etcd.put_if(&are, &puts);
        done.map_err(|error| error.to_string())
    }
}

/// Returns whether a member of the chain comes with another log before it is declared stopped. The server
/// would refuse it. With a lease it would seem alive, so no controller could leave it out.
fn has_lost_its_log(shard: &Shard, row: &Row, id: u32, facts: Facts) -> bool {
    let is_member = shard.plan.as_ref().is_some_and(|plan| {
        let is_joining = plan.joiner() == Some(id);
        plan.ids().contains(&id) && !is_joining
    });
    let another = row
        .record
        .as_ref()
        .is_some_and(|record| record.log != format!("{:032x}", facts.log));
    is_member && another && row.word != Word::Stopped
}

/// Returns whether the device's statement about stopped members was not heard: the device still serves the
/// epoch of the statement, and the chain of that epoch still has such a member. This happens if another
/// device had its old next hop when the device asked the server. By now the other device may be wired again,
/// and wait for the statement to be repeated.
fn is_unheard(plan: &Plan, order: Order, standing: &Standing) -> bool {
    let ids = plan.ids();
    order.shrink.is_some_and(|epoch| epoch == standing.epoch)
        && standing.chain.iter().any(|id| !ids.contains(id))
}

/// Returns how the chain wires this device. A spare that is not in the chain sends to the server.
fn wiring(plan: &Plan, id: u32, spare: bool) -> Option<Order> {
    let waits = Order {
        next: plan.server,
        next_id: Some(0),
        shrink: None,
    };
    plan.order(id).or(Some(waits).filter(|_| spare))
}

/// Checks whether the word about a device allows a lease for this epoch. A lease without serving (`None`)
/// needs less: only a device that was declared stopped gets none.
fn allows(word: Word, epoch: Option<u32>) -> Result<(), String> {
    let allowed = match epoch {
        Some(epoch) => word.allows(epoch, Rules::ALL),
        None => word != Word::Stopped,
    };
    match word {
        _ if allowed => Ok(()),
        Word::LeftOut(since) => Err(format!(
            "PM1606 it was left out of the chain in epoch {since}"
        )),
        _ => Err("PM1605 it was declared stopped, and must join anew".into()),
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod week;
