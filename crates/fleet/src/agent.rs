//! The agent of one device: it renews the device's lease, in a thread of its own.
//!
//! etcd can renew a lease with a keep-alive, but the agent does not use this call. For each renewal the agent asks etcd
//! for a new lease, and one transaction attaches the key `alive/ID` to the new lease. The condition of the transaction:
//! the word about the device, its last lease and its process are unchanged since the agent read them. So a single step
//! grants the lease and confirms that the device was not declared stopped. A transaction that reaches etcd too late
//! fails its condition and has no effect. The device counts its deadline from the time just before it requested the
//! lease.

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

/// Number of renewals within the length of a lease.
const RENEWALS: u64 = 3;
/// Number of times that the agent reads the shard's state, with the wanted chain, within the length of a lease.
const LOOKS: u64 = 16;
/// Divisor of a lease's length. The quotient is the longest time for a call to etcd.
const CALLS: u64 = 6;

/// Settings of an agent.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// The members of the etcd cluster.
    pub members: Members,
    /// Names of the shard's keys in etcd.
    pub names: Names,
    /// Id of the device.
    pub id: u32,
    /// Address at which the device listens.
    pub address: SocketAddr,
    /// Length of the device's leases, in seconds.
    pub seconds: u64,
    /// The device is a spare: a controller may add it to a chain that has fewer devices than wanted.
    pub spare: bool,
    /// An operator's flags decide how the device starts. The device ignores the chain that etcd has at the start, and
    /// follows the first chain that is newer.
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

/// A running agent. The agent ends when this value is dropped; afterwards the lease expires.
#[derive(Debug)]
pub struct Agent {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    config: AgentConfig,
    /// Name of this process in etcd.
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
    /// The next hop and the statement of the device, as the chain in etcd requires them.
    order: Option<Order>,
    /// etcd's record of this device names this process.
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
    /// The operating system cannot start a thread, or gives no random numbers.
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

    /// Notes that the device runs with this log and this next hop. `words`: the messages to the loop of this run. With
    /// such a message the agent ends the run when the device must get another next hop, or must not continue.
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

    /// Returns whether etcd's record of the device names this process, so that the device may run.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.shared.state().registered
    }

    /// Returns the next hop and the statement that the device must have; `None`: etcd has no record of them. Call this
    /// function only after the device is registered.
    #[must_use]
    pub fn order(&self) -> Option<Order> {
        self.shared.state().order
    }

    /// Returns the reason, as text, why the device must not continue; `None`: it may continue.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.shared.state().failed.clone()
    }

    /// Returns whether the device must end and return its lease: an operator has ordered it to leave, and the chain can
    /// continue without it.
    #[must_use]
    pub fn leaves(&self) -> bool {
        self.shared.state().leaves
    }

    /// Returns the lease to etcd. **The device must have ended before**, so that it no longer answers under this lease.
    ///
    /// # Errors
    /// A text: etcd does not answer, and the lease expires by itself.
    pub fn give_back(mut self) -> Result<(), String> {
        // From now on the agent requests no further lease.
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
            // The thread's panic message was already printed.
            let _ = thread.join();
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.finish();
    }
}

/// The last lease: its epoch, the facts for which it was granted, and the time of the request.
struct Held {
    epoch: Option<u32>,
    facts: Facts,
    standing: Standing,
    sent_at: Time,
}

/// The reason why the device has no lease now.
enum Not {
    /// The device has no lease at present, for this reason. A later request may succeed.
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
    /// Number of the lease that another process held when this agent first read the state.
    other: Option<u64>,
    /// Revision of the chain in etcd that this agent ignores, because the operator's flags take precedence over it.
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
                // The epoch is read first and the device's standing second. Otherwise a standing of a later epoch could
                // be recorded for this epoch.
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

    /// Reads the wanted chain. Renews the lease if a renewal is due, or if there are new facts to report.
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

    /// Ends the run in three cases: the device must get another next hop; the word *left out* names the epoch that the
    /// device wants to serve or a later epoch; or the device's statement about stopped devices did not take effect.
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

    /// Checks whether the device belongs to this process, because no other process holds a lease for the device.
    fn may_claim(&mut self, row: &Row, facts: Facts) -> Result<(), Not> {
        let Some(process) = row.process.as_ref().filter(|one| **one != self.process) else {
            self.other = None;
            return Ok(());
        };
        let before = row.record.as_ref().is_some_and(|record| {
            // Two processes cannot have the same log open, so the earlier process has ended.
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

    /// Puts the device's record and lease into etcd, if nothing has changed since the state was read. Returns whether
    /// they were put.
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
        // If the record is unchanged and the previous lease still exists, the record is not written again. So the
        // number of the lease stays the same.
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

/// Returns whether the device is a member of the chain, has another log than before, and was not declared stopped. The
/// server would refuse such a device. With a lease, the device would seem alive, and no controller could leave it out.
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

/// Returns whether the device's statement about stopped members had no effect. It had no effect if the device still
/// serves the epoch of the statement, and the chain of this epoch still has a stopped member. This happens if another
/// device still had its old next hop when this device asked the server. By now the other device may have its new next
/// hop, and wait until the statement is repeated.
fn is_unheard(plan: &Plan, order: Order, standing: &Standing) -> bool {
    let ids = plan.ids();
    order.shrink.is_some_and(|epoch| epoch == standing.epoch)
        && standing.chain.iter().any(|id| !ids.contains(id))
}

/// Returns the next hop and the statement of this device in the chain. A spare that is not in the chain sends to the
/// server.
fn wiring(plan: &Plan, id: u32, spare: bool) -> Option<Order> {
    let waits = Order {
        next: plan.server,
        next_id: Some(0),
        shrink: None,
    };
    plan.order(id).or(Some(waits).filter(|_| spare))
}

/// Checks whether the word about a device allows a lease for this epoch. If the device does not serve (`None`), the
/// device gets a lease unless it was declared stopped.
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
