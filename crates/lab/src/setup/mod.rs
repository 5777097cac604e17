//! Set-ups that are measured, on the loopback or over links: pmnet, a Redis without it, and the bound of both.
//!
//! Purpose: what the demo and `bench redis` share. Invariants: everything is ended and removed when its handle is
//! dropped; clients see one RESP endpoint, whatever is behind it. Start them from a thread that outlives them: their
//! processes end with it.

mod limit;
mod linked;
mod replicated;

use std::net::SocketAddr;
use std::path::Path;

use crate::bench::micro::System;
use crate::harness::{Binaries, Cluster, Process, Role, StoreKind, Topology, settle};
use limit::LimitAlone;
pub(crate) use linked::sweep;
use linked::{Far, Linked};
use replicated::Replicated;

/// Size of the value that the bound answers a `GET` with: as large as those that are written.
#[derive(Clone, Copy, Debug)]
pub struct ValueBytes(pub usize);

/// Where a set-up stands, and what it consists of.
#[derive(Clone, Debug)]
pub enum Place {
    /// The bound, `resp-limit`, on the loopback.
    Limit(ValueBytes),
    /// A database, with or without pmnet, on the loopback.
    Loopback(Topology),
    /// Redis with this many replicas on the loopback. `synced`: the first one syncs each write to its disk; otherwise
    /// no disk is written at all.
    Replicated {
        /// Replicas.
        replicas: u8,
        /// See above.
        synced: bool,
    },
    /// The bound at the other end of a link, in namespaces.
    LinkedLimit(ValueBytes),
    /// Namespaces joined by links, as in `pmnet-lab bench micro`, with database, and a front with this many more arguments.
    Links(System, StoreKind, &'static [&'static str]),
}

impl Place {
    /// Whether its clients are at the other end of a link.
    #[must_use]
    pub const fn is_linked(&self) -> bool {
        matches!(self, Place::Links(..) | Place::LinkedLimit(_))
    }
}

/// A set-up that runs.
pub enum Running {
    /// The bound alone.
    Limit(Box<LimitAlone>),
    /// Processes of this machine, joined by its loopback.
    Local(Box<Cluster>),
    /// A Redis and its replicas.
    Replicated(Box<Replicated>),
    /// Namespaces, joined by links.
    Linked(Box<Linked>),
}

impl Running {
    /// Starts everything and waits until it serves. `number` keeps several set-ups of a run apart, `name` is the start
    /// of the names of their folders in `out`.
    ///
    /// # Errors
    /// What this machine lacks for it, or the first process that did not start.
    pub fn start(
        place: &Place,
        (name, number): (&str, usize),
        binaries: &Binaries,
        out: &Path,
    ) -> anyhow::Result<Running> {
        let name = format!("{name}{number}");
        Ok(match place {
            Place::Limit(value) => {
                Running::Limit(Box::new(LimitAlone::start(binaries, out, &name, *value)?))
            }
            Place::Loopback(topology) => {
                let cluster = Cluster::start(binaries, out, &name, topology.clone())?;
                Running::Local(Box::new(cluster))
            }
            Place::Replicated { replicas, synced } => {
                let redis = Replicated::start(binaries, out, &name, *replicas, *synced)?;
                Running::Replicated(Box::new(redis))
            }
            Place::LinkedLimit(value) => {
                let far = Far::Limit(*value);
                let linked = Linked::start(System::ClientServerNic, &name, number, far, out)?;
                Running::Linked(Box::new(linked))
            }
            Place::Links(system, store, front_arguments) => {
                let far = Far::Store(*store, front_arguments);
                let linked = Linked::start(*system, &name, number, far, out)?;
                Running::Linked(Box::new(linked))
            }
        })
    }

    /// The RESP endpoint, as seen from [inside](Running::inside).
    ///
    /// # Errors
    /// There is none (an embedded store without pmnet).
    pub fn endpoint(&self) -> anyhow::Result<SocketAddr> {
        match self {
            Running::Limit(limit) => Ok(limit.endpoint()),
            Running::Local(cluster) => cluster.endpoint(),
            Running::Replicated(redis) => redis.endpoint(),
            Running::Linked(linked) => Ok(linked.endpoint()),
        }
    }

    /// Runs `work` where the clients are.
    ///
    /// # Errors
    /// Returns the errors of `work`, or an error if the namespace cannot be entered.
    pub fn inside<T: Send>(
        &self,
        work: impl FnOnce() -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        match self {
            Running::Linked(linked) => linked.inside(work),
            _ => work(),
        }
    }

    /// Its processes and what they are, client side first.
    #[must_use]
    pub fn processes(&self) -> Vec<(String, &Process)> {
        match self {
            Running::Limit(limit) => vec![(limit::NAME.to_owned(), limit.process())],
            Running::Local(cluster) => named(cluster.processes()).collect(),
            Running::Replicated(redis) => redis.processes(),
            Running::Linked(linked) => linked.processes(),
        }
    }

    /// Waits until everything acknowledged has reached the database.
    ///
    /// # Errors
    /// That does not happen within half a minute.
    pub fn settle(&self) -> anyhow::Result<()> {
        match self {
            Running::Limit(_) => Ok(()),
            Running::Local(cluster) => settle(cluster),
            Running::Replicated(redis) => redis.settle(),
            Running::Linked(linked) => linked.settle(),
        }
    }

    /// Ends the front, if there is one. Afterwards the set-up answers no requests.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn end_front(&mut self) -> anyhow::Result<Option<EndedFront>> {
        let front = match self {
            Running::Local(cluster) => cluster.process(Role::Front).ok(),
            Running::Linked(linked) => linked.front(),
            Running::Limit(_) | Running::Replicated(_) => None,
        };
        let Some(front) = front else {
            return Ok(None);
        };
        let clean = front.stop()?;
        Ok(Some(EndedFront {
            clean,
            log: front.stderr(),
        }))
    }

    /// Ends it in good order; the names of those that did not.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn stop(self) -> anyhow::Result<Vec<String>> {
        match self {
            Running::Limit(limit) => limit.stop(),
            Running::Local(cluster) => cluster.stop(),
            Running::Replicated(redis) => redis.stop(),
            Running::Linked(linked) => linked.stop(),
        }
    }
}

/// A front that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedFront {
    /// By itself, with exit code 0.
    pub clean: bool,
    /// Log output of the process since its start.
    pub log: String,
}

/// Processes with the names of their roles.
fn named<'a>(
    processes: impl Iterator<Item = (Role, &'a Process)>,
) -> impl Iterator<Item = (String, &'a Process)> {
    processes.map(|(role, process)| (role.to_string(), process))
}
