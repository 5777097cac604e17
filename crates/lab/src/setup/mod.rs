//! Set-ups that are measured, on the loopback interface or over links: pmnet, a Redis without pmnet, and an upper bound
//! for both.
//!
//! Purpose: code that the demo and `bench redis` share. Invariants: when a handle is dropped, its processes end and its
//! networks are removed; every set-up has one RESP endpoint for clients. The thread that starts a set-up must outlive
//! the set-up, because the processes end when this thread ends.

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

/// Size in bytes of the value with which the upper bound answers a `GET`. This size is the size of the values that
/// clients write.
#[derive(Clone, Copy, Debug)]
pub struct ValueBytes(pub usize);

/// The machine of a set-up's clients, and the parts of the set-up.
#[derive(Clone, Debug)]
pub enum Place {
    /// The upper bound, `resp-limit`, on the loopback interface.
    Limit(ValueBytes),
    /// A database, with or without pmnet, on the loopback interface.
    Loopback(Topology),
    /// A Redis with replicas, on the loopback interface. The replicas never write to a disk.
    Replicated {
        /// Number of replicas.
        replicas: u8,
        /// If true, the first Redis syncs each write to its disk. If false, the first Redis writes to no disk.
        synced: bool,
    },
    /// The upper bound at the other end of a link, in namespaces.
    LinkedLimit(ValueBytes),
    /// Namespaces that are joined by links, as in `pmnet-lab bench micro`, with a database and further arguments for
    /// the front.
    Links(System, StoreKind, &'static [&'static str]),
}

impl Place {
    /// Returns whether the clients of the set-up are at the other end of a link.
    #[must_use]
    pub const fn is_linked(&self) -> bool {
        matches!(self, Place::Links(..) | Place::LinkedLimit(_))
    }
}

/// A running set-up.
pub enum Running {
    /// The upper bound alone.
    Limit(Box<LimitAlone>),
    /// Processes of this machine on its loopback interface.
    Local(Box<Cluster>),
    /// A Redis and its replicas.
    Replicated(Box<Replicated>),
    /// Namespaces that are joined by links.
    Linked(Box<Linked>),
}

impl Running {
    /// Starts all processes, and waits until they serve. `number` distinguishes several set-ups of a run. `name` is the
    /// prefix of the names of their folders in `out`.
    ///
    /// # Errors
    /// Fails if this machine lacks a program or a right, or if a process does not start. The error names the first such
    /// obstacle.
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

    /// Returns the RESP endpoint. The endpoint can be used from [inside](Running::inside).
    ///
    /// # Errors
    /// Fails if the set-up has no endpoint: an embedded store without pmnet.
    pub fn endpoint(&self) -> anyhow::Result<SocketAddr> {
        match self {
            Running::Limit(limit) => Ok(limit.endpoint()),
            Running::Local(cluster) => cluster.endpoint(),
            Running::Replicated(redis) => redis.endpoint(),
            Running::Linked(linked) => Ok(linked.endpoint()),
        }
    }

    /// Runs `work` in the namespace of the clients.
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

    /// Returns the processes with the names of their roles, client side first.
    #[must_use]
    pub fn processes(&self) -> Vec<(String, &Process)> {
        match self {
            Running::Limit(limit) => vec![(limit::NAME.to_owned(), limit.process())],
            Running::Local(cluster) => named(cluster.processes()).collect(),
            Running::Replicated(redis) => redis.processes(),
            Running::Linked(linked) => linked.processes(),
        }
    }

    /// Waits until the database has applied all acknowledged updates.
    ///
    /// # Errors
    /// Fails if the database still lacks acknowledged updates after half a minute.
    pub fn settle(&self) -> anyhow::Result<()> {
        match self {
            Running::Limit(_) => Ok(()),
            Running::Local(cluster) => settle(cluster),
            Running::Replicated(redis) => redis.settle(),
            Running::Linked(linked) => linked.settle(),
        }
    }

    /// Ends the front, if there is one. After this call the set-up answers no requests.
    ///
    /// # Errors
    /// Fails if the kernel refuses the operation.
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

    /// Ends every process with SIGTERM. Returns the names of the processes that did not end with exit code 0.
    ///
    /// # Errors
    /// Fails if the kernel refuses the operation.
    pub fn stop(self) -> anyhow::Result<Vec<String>> {
        match self {
            Running::Limit(limit) => limit.stop(),
            Running::Local(cluster) => cluster.stop(),
            Running::Replicated(redis) => redis.stop(),
            Running::Linked(linked) => linked.stop(),
        }
    }
}

/// The results of a front that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedFront {
    /// The front ended by itself with exit code 0.
    pub clean: bool,
    /// The front's log since its start.
    pub log: String,
}

/// Returns processes with the names of their roles.
fn named<'a>(
    processes: impl Iterator<Item = (Role, &'a Process)>,
) -> impl Iterator<Item = (String, &'a Process)> {
    processes.map(|(role, process)| (role.to_string(), process))
}
