//! A set-up that runs, on the loopback or over links: what measuring needs of it.

use std::net::SocketAddr;
use std::path::Path;

use super::linked::{Linked, sweep};
use super::plan::{Place, Plan, Stack};
use super::view::View;
use crate::harness::{Binaries, Cluster, Process, Role, settle};

/// See the module's text; everything is ended and removed when it is dropped.
pub enum Running {
    /// Processes of this machine, joined by its loopback.
    Local(Box<Cluster>),
    /// Namespaces, joined by links.
    Linked(Box<Linked>),
}

impl Running {
    fn start(
        stack: &Stack,
        number: usize,
        plan: &Plan,
        binaries: &Binaries,
        out: &Path,
    ) -> anyhow::Result<Running> {
        Ok(match &stack.place {
            Place::Loopback(topology) => {
                let name = format!("demo{number}");
                Running::Local(Box::new(Cluster::start(
                    binaries,
                    out,
                    &name,
                    topology.clone(),
                )?))
            }
            Place::Links(system) => {
                Running::Linked(Box::new(Linked::start(*system, number, plan.store, out)?))
            }
        })
    }

    /// The RESP endpoint, as seen from [inside](Running::inside).
    pub fn endpoint(&self) -> anyhow::Result<SocketAddr> {
        match self {
            Running::Local(cluster) => cluster.endpoint(),
            Running::Linked(linked) => Ok(linked.endpoint()),
        }
    }

    /// Runs `work` where the clients are.
    pub fn inside<T: Send>(
        &self,
        work: impl FnOnce() -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        match self {
            Running::Local(_) => work(),
            Running::Linked(linked) => linked.inside(work),
        }
    }

    /// Its processes, client side first.
    pub fn processes(&self) -> Vec<(Role, &Process)> {
        match self {
            Running::Local(cluster) => cluster.processes().collect(),
            Running::Linked(linked) => linked.processes().collect(),
        }
    }

    /// Waits until everything acknowledged has reached the database.
    pub fn settle(&self) -> anyhow::Result<()> {
        match self {
            Running::Local(cluster) => settle(cluster),
            Running::Linked(linked) => linked.settle(),
        }
    }

    /// Ends it in good order; the names of those that did not.
    pub fn stop(self) -> anyhow::Result<Vec<String>> {
        match self {
            Running::Local(cluster) => cluster.stop(),
            Running::Linked(linked) => linked.stop(),
        }
    }
}

/// Starts all stacks of the plan. Those over links are optional: if one cannot be started here, all of
/// them are removed from the plan, and a note says why.
pub fn start_all(
    plan: &mut Plan,
    binaries: &Binaries,
    out: &Path,
    view: &View,
) -> anyhow::Result<Vec<Running>> {
    let mut running = Vec::new();
    let linked = plan.stacks.iter().any(Stack::is_linked);
    let mut missing = linked
        .then(sweep)
        .and_then(Result::err)
        .map(|error| format!("{error:#}"));
    for (number, stack) in plan.stacks.iter().enumerate() {
        if stack.is_linked() && missing.is_some() {
            continue;
        }
        view.step(&format!("starting {}", stack.name), 0);
        match Running::start(stack, number, plan, binaries, out) {
            Ok(started) => running.push(started),
            Err(error) if stack.is_linked() => {
                missing = Some(format!("{}: {error:#}", stack.name));
            }
            Err(error) => return Err(error),
        }
    }
    if let Some(reason) = missing {
        running.retain(|running| matches!(running, Running::Local(_)));
        view.say(plan.leave_out_links(&reason));
    }
    Ok(running)
}
