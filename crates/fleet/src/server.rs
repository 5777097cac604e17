//! The agent of a server: it reports in etcd the chain that the store has on record, in a thread of its own
//! (`docs/spec/protocol.md` §14).
//!
//! A server needs no lease to serve, because its records in the store fence it. The key with a lease only shows that
//! the server is running. The server's report never becomes wrong, because the chain of an epoch never changes. So a
//! report that arrives late does no harm.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use pmnet_proto::Time;
use pmnet_proto::time::{Nanos, SECOND};
use pmnet_udp::{Clock, OnRecord, ServerWords};

use crate::etcd::{Etcd, Members, Put};
use crate::record::{Names, ServerRecord, StatusRecord, bytes};
use crate::shard::Shard;

/// Number of renewals within the length of a lease.
const RENEWALS: u64 = 3;
/// Number of times that the agent reads the shard's state within the length of a lease.
const LOOKS: u64 = 16;
/// Divisor of a lease's length. The quotient is the longest time for a call to etcd.
const CALLS: u64 = 6;
/// Time after which a message about a lasting state is repeated.
const PATIENCE: Nanos = 5 * SECOND;

/// Settings of a server's agent.
#[derive(Clone, Debug)]
pub struct ServerAgentConfig {
    /// The members of the etcd cluster.
    pub members: Members,
    /// Names of the shard's keys in etcd.
    pub names: Names,
    /// Address at which the server listens.
    pub address: SocketAddr,
    /// Length of the leases that show that the server is running, in seconds.
    pub seconds: u64,
    /// The server is one of several, of which one serves at a time.
    pub standby: bool,
    /// The status port of this process, if it has one.
    pub status: Option<StatusRecord>,
}

/// An agent that has not started yet.
#[derive(Debug)]
pub struct Candidate {
    keeper: Keeper,
    /// Whether this process has not served yet.
    begins: bool,
}

impl Candidate {
    /// Makes an agent with these settings.
    ///
    /// # Errors
    /// The operating system gives no random numbers.
    pub fn new(config: ServerAgentConfig) -> std::io::Result<Candidate> {
        Keeper::new(config).map(|keeper| Candidate {
            keeper,
            begins: true,
        })
    }

    /// Makes the agent of a process that has served, and has been replaced by another server.
    ///
    /// # Errors
    /// As [`Candidate::new`].
    pub fn again(config: ServerAgentConfig) -> std::io::Result<Candidate> {
        let candidate = Candidate::new(config)?;
        Ok(Candidate {
            begins: false,
            ..candidate
        })
    }

    /// Tries to become the server that serves, if no other server does. Returns whether this server may begin. **This
    /// only avoids that two servers begin together**: the store decides which server may write.
    ///
    /// # Errors
    /// A text: etcd does not answer.
    pub fn takes_turn(&mut self) -> Result<bool, String> {
        let keeper = &mut self.keeper;
        let shard = Shard::read(&mut keeper.etcd, &keeper.config.names)?;
        let address = shard.server.as_ref().map(|record| record.address);
        // The record has this address. At the first start of this process, the server that wrote the record has ended.
        // Later, this process may have written the record. In the second case another server serves, and has not
        // reported its address yet.
        let ended = self.begins && address == Some(keeper.config.address);
        if shard.has_server() && !ended {
            return Ok(false);
        }
        let alive = keeper.alive()?;
        let are = [(keeper.config.names.server_alive(), shard.server_alive)];
        let done = keeper.etcd.put_if(&are, &[alive]);
        done.map_err(|error| error.to_string())
    }

    /// Starts the agent.
    ///
    /// # Errors
    /// The operating system cannot start a thread.
    pub fn start(self, words: Arc<ServerWords>) -> std::io::Result<ServerAgent> {
        let mut keeper = self.keeper;
        keeper.words = words.clone();
        let thread = std::thread::Builder::new()
            .name("fleet".into())
            .spawn(move || keeper.keep())?;
        Ok(ServerAgent {
            words,
            thread: Some(thread),
        })
    }
}

/// A running agent. The agent ends when this value is dropped.
#[derive(Debug)]
pub struct ServerAgent {
    words: Arc<ServerWords>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for ServerAgent {
    fn drop(&mut self) {
        self.words.finish();
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread's panic message was already printed.
            let _ = thread.join();
        }
    }
}

#[derive(Debug)]
struct Keeper {
    config: ServerAgentConfig,
    words: Arc<ServerWords>,
    etcd: Etcd,
    clock: Clock,
    length: Nanos,
    /// Name of this process in etcd.
    process: String,
    /// Time of the last renewal of this server's lease.
    renewed: Option<Time>,
    /// Time of the last message about a failure.
    said: Option<Time>,
}

impl Keeper {
    fn new(config: ServerAgentConfig) -> std::io::Result<Keeper> {
        let length = crate::length(config.seconds);
        let timeout = Duration::from_nanos(length / CALLS);
        Ok(Keeper {
            etcd: Etcd::new(config.members.clone(), timeout),
            clock: Clock::boottime(),
            length,
            process: format!("{:016x}", pmnet_udp::os_random()?),
            renewed: None,
            said: None,
            config,
            words: Arc::default(),
        })
    }

    fn keep(&mut self) {
        self.words.attend();
        while !self.words.is_over() {
            let turned = self.turn();
            self.tell(turned);
            std::thread::park_timeout(Duration::from_nanos(self.length / LOOKS));
        }
    }

    fn turn(&mut self) -> Result<(), String> {
        let shard = Shard::read(&mut self.etcd, &self.config.names)?;
        let on_record = self.words.on_record();
        if let Some(epoch) = to_end(&shard, &on_record) {
            self.words.end_epoch(epoch);
        }
        let has_turn = shard.has_server() && shard.server_process == self.process.as_bytes();
        if self.config.standby && !has_turn {
            // A standby without the turn stops serving even if no other server serves now. Another server may have
            // served in the meantime, and may have changed the records.
            self.words.end_turn();
            return Err(
                "PM2704 the turn of this server is over: another one has it now, or may have had it"
                    .into(),
            );
        }
        let now = self.clock.now();
        if let Some(before) = &shard.server
            && before.epoch > on_record.epoch
            && on_record.epoch > 0
        {
            return Err(format!(
                "PM2705 the server at {} knew epoch {}, and the store of this one is in epoch {}: it is another store, or an old copy. \
                 Nothing is said in etcd",
                before.address, before.epoch, on_record.epoch
            ));
        }
        let record = ServerRecord {
            address: self.config.address,
            epoch: on_record.epoch,
            chain: on_record.chain.clone(),
            seconds: self.config.seconds,
            standby: self.config.standby,
            status: self.config.status.clone(),
        };
        let knows = on_record.epoch > 0;
        let is_said = shard.servers != 0 && (!knows || shard.server.as_ref() == Some(&record));
        if has_turn && is_said {
            let is_fresh = |at: Time| now.since(at) < self.length / RENEWALS;
            if self.renewed.is_some_and(is_fresh) {
                return Ok(());
            }
            // Nothing is new, so a keep-alive is enough. The lease of a server only informs operators and standby
            // servers, so the members of etcd need not agree on the keep-alive.
            let lives = self.etcd.keep_alive(shard.server_lease);
            if lives.map_err(|error| error.to_string())? {
                self.renewed = Some(now);
                return Ok(());
            }
        }
        self.claim(&shard, &record, knows)?;
        self.renewed = Some(now);
        Ok(())
    }

    /// Puts the server's report into etcd, if nothing has changed since the state was read. A server that has not read
    /// its store only reports that it is running.
    fn claim(&mut self, shard: &Shard, record: &ServerRecord, knows: bool) -> Result<(), String> {
        let alive = self.alive()?;
        let names = &self.config.names;
        let are = [
            (names.server(), shard.servers),
            (names.server_alive(), shard.server_alive),
        ];
        let mut puts = vec![alive];
        let is_new = shard.server.as_ref() != Some(record);
        if is_new && (knows || shard.servers == 0) {
            puts.push(Put {
                key: names.server(),
                value: bytes(record),
                lease: 0,
            });
        }
        let done = self.etcd.put_if(&are, &puts);
        if done.map_err(|error| error.to_string())? {
            return Ok(());
        }
        Err(
            "PM2707 another process writes the record of this shard's server in etcd: does a second server run?"
                .into(),
        )
    }

    /// Returns the key that shows that this process is running, attached to a new lease.
    fn alive(&mut self) -> Result<Put, String> {
        let lease = self.etcd.grant(self.config.seconds);
        Ok(Put {
            key: self.config.names.server_alive(),
            value: self.process.clone().into_bytes(),
            lease: lease.map_err(|error| error.to_string())?,
        })
    }

    fn tell(&mut self, turned: Result<(), String>) {
        let now = self.clock.now();
        let Err(text) = turned else {
            if self.said.take().is_some() {
                tracing::info!("etcd has this server's record again");
            }
            return;
        };
        if self.said.is_none_or(|at| now.since(at) >= PATIENCE) {
            tracing::warn!("PM2706 etcd: {text}. The server serves without it");
            self.said = Some(now);
        }
    }
}

/// Returns the epoch that the server must end, under two conditions: the devices serve the chain of the plan in etcd,
/// and this plan has a statement about the next epoch. If the lost device had joined, the next epoch would have begun.
fn to_end(shard: &Shard, on_record: &OnRecord) -> Option<u32> {
    let plan = shard.plan.as_ref()?;
    let same = plan.epoch == on_record.epoch && plan.ids() == on_record.chain;
    let waits = same && !plan.joins && plan.says == Some(plan.epoch + 1);
    waits.then_some(plan.epoch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Place, Plan};

    #[test]
    fn an_epoch_ends_only_if_a_joiner_was_lost_of_which_nobody_knows_whether_it_joined() {
        let at = |port| SocketAddr::from(([10, 0, 0, 1], port));
        let place = |id: u32| Place {
            id,
            at: at(7),
            whole: true,
        };
        let plan = Plan {
            epoch: 4,
            says: Some(5),
            places: vec![place(7), place(8)],
            joins: false,
            server: at(99),
            copies: 3,
        };
        let of = |plan: &Plan| Shard {
            plan: Some(plan.clone()),
            ..Shard::default()
        };
        let on_record = |epoch, chain: &[u32]| OnRecord {
            epoch,
            chain: chain.to_vec(),
        };
        let here = on_record(4, &[7, 8]);
        assert_eq!(to_end(&of(&plan), &here), Some(4));
        // The device has joined. So the epoch has begun, and the head makes the statement in this epoch.
        assert_eq!(to_end(&of(&plan), &on_record(5, &[7, 8, 9])), None);
        assert_eq!(to_end(&of(&plan), &on_record(4, &[7, 8, 9])), None);
        assert_eq!(to_end(&Shard::default(), &here), None);
        for other in [
            Plan {
                says: Some(4),
                ..plan.clone()
            },
            Plan {
                says: None,
                ..plan.clone()
            },
            Plan {
                joins: true,
                ..plan.clone()
            },
        ] {
            assert_eq!(to_end(&of(&other), &here), None, "{other:?}");
        }
    }
}
