//! A set-up over links. Client and server are network namespaces. Between client and server is a device in the kernel,
//! or no device.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::Context;

use super::{ValueBytes, limit};
use crate::bench::micro::stand::{START_MAX, Stand};
use crate::bench::micro::system::{SERVER, System};
use crate::bench::micro::{Medium, pinned};
use crate::harness::{Binaries, Process, Ready, Role, Scratch, Spec, StoreKind};
use crate::harness::{answered, drained, redis_spec, sweep_namespaces};
use crate::resp::Reply;

/// Port of Redis and of the front. The two are in different namespaces, so both can use it.
const REDIS_PORT: u16 = 6379;
const FRONT_PORT: u16 = 6380;
/// The namespace of the load and the front.
const CLIENT: &str = "client1";
/// The namespace of Redis and the server.
const FAR: &str = "server";
/// Time after which a path without an answer counts as broken.
const PATH_MAX: Duration = Duration::from_secs(5);

/// The process at the far end of the links.
#[derive(Clone, Copy, Debug)]
pub enum Far {
    /// A database, with further arguments for the front that uses it.
    Store(StoreKind, &'static [&'static str]),
    /// The upper bound, `resp-limit`. The system has no device.
    Limit(ValueBytes),
}

/// The running set-up. When this value is dropped, all processes end and the network is removed.
pub struct Linked {
    // The fields are dropped in the order of their declaration: client side first, folders last.
    front: Option<Process>,
    stand: Stand,
    /// Redis or the upper bound, with its name.
    far: Option<(String, Process)>,
    endpoint: SocketAddr,
    scratch: Scratch,
}

/// Removes the networks of owners that were killed.
pub fn sweep() -> anyhow::Result<()> {
    sweep_namespaces();
    Ok(pinned::sweep()?)
}

impl Linked {
    /// Makes the network of `system`, and starts the processes on the path of a Redis client. Front and load are on the
    /// client's node. Device, server and Redis are on the nodes that `system` names. If `system` has no device, there
    /// is only Redis, or only the server that is the upper bound. `name` and `number` distinguish several set-ups.
    ///
    /// The calling thread must outlive the set-up, because the processes end when this thread ends.
    ///
    /// # Errors
    /// Fails if this machine lacks a program or a right, or if a process does not start. The error names the first such
    /// obstacle.
    pub fn start(
        system: System,
        name: &str,
        number: usize,
        far: Far,
        folder: &Path,
    ) -> anyhow::Result<Linked> {
        let scratch = Scratch::new(folder, &format!("{name}-{}", system.name()))?;
        let stand = Stand::build(system, number)?;
        let has_device = system.has_device();
        let near = SocketAddr::from((Ipv4Addr::LOCALHOST, FRONT_PORT));
        // The address of Redis, for clients and for fronts that read from it directly.
        let redis = SocketAddr::from((*SERVER.ip(), REDIS_PORT));
        let mut linked = Linked {
            front: None,
            stand,
            far: None,
            endpoint: if has_device { near } else { redis },
            scratch,
        };
        let url = match far {
            Far::Limit(value) => {
                linked.start_limit(redis, value)?;
                String::new()
            }
            Far::Store(StoreKind::Redis, _) => {
                linked.start_redis(redis)?;
                format!("redis://{redis}")
            }
            Far::Store(StoreKind::Packet, _) => {
                format!(
                    "packet:{}?size=64M",
                    linked.scratch.disk().join("store").display()
                )
            }
            Far::Store(StoreKind::Region, _) => {
                anyhow::bail!("a store beside a log has no server of its own")
            }
            Far::Store(StoreKind::Null, _) => "null:".to_owned(),
        };
        linked.stand.serve(Medium::Dram, &url, &linked.scratch)?;
        if has_device {
            let (listen, via) = (near.to_string(), linked.stand.recipe.target.to_string());
            let arguments = [
                "redis",
                "--anyone-may-connect",
                "--log-json",
                "--listen",
                &listen,
                "--via",
                &via,
            ];
            let more = match far {
                Far::Store(_, more) => more,
                Far::Limit(_) => &[],
            };
            let arguments = arguments.iter().chain(more).map(OsString::from).collect();
            let front = linked
                .stand
                .start("front", CLIENT, arguments, &linked.scratch)?;
            linked.front = Some(front);
        }
        let is_value = |reply: &Reply| matches!(reply, Reply::Nil | Reply::Bulk(_));
        let read = || {
            answered(
                linked.endpoint,
                PATH_MAX,
                &["GET", "pmnet-settle"],
                is_value,
            )
        };
        linked.inside(read).context("nothing goes over its links")?;
        Ok(linked)
    }

    fn start_limit(&mut self, address: SocketAddr, value: ValueBytes) -> anyhow::Result<()> {
        let binaries = Binaries::own()?;
        let arguments = limit::arguments(address, value);
        let (program, args) = self.stand.network.program(FAR, &binaries.lab, arguments)?;
        let spec = Spec {
            name: limit::NAME.into(),
            binaries,
            program: Some(program),
            args,
            ready: Ready::Line,
        };
        let process = Process::start(spec, self.scratch.disk(), START_MAX)?;
        self.far = Some((limit::NAME.to_owned(), process));
        Ok(())
    }

    fn start_redis(&mut self, address: SocketAddr) -> anyhow::Result<()> {
        // Only the client's namespace can reach this Redis.
        let open = ["--protected-mode", "no"].map(String::from);
        let spec = redis_spec(&Binaries::own()?, address, self.scratch.disk(), &open)?;
        let redis = spec.program.as_deref().context("a Redis is a program")?;
        let (program, args) = self.stand.network.program(FAR, redis, spec.args)?;
        let spec = Spec {
            program: Some(program),
            args,
            ..spec
        };
        let mut process = Process::launch(spec, self.scratch.disk())?;
        let network = &self.stand.network;
        network.inside(FAR, || process.wait_ready(START_MAX))?;
        self.far = Some((Role::Redis.to_string(), process));
        Ok(())
    }

    /// Returns the RESP endpoint. The endpoint can be used from [inside](Linked::inside).
    pub const fn endpoint(&self) -> SocketAddr {
        self.endpoint
    }

    /// Runs `work` in the namespace of the clients.
    pub fn inside<T: Send>(
        &self,
        work: impl FnOnce() -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        self.stand.network.inside(CLIENT, work)
    }

    /// Returns all processes, client side first.
    pub fn processes(&self) -> Vec<(String, &Process)> {
        let front = self.front.iter().map(|process| (Role::Front, process));
        let far = self
            .far
            .iter()
            .map(|(name, process)| (name.clone(), process));
        super::named(front.chain(self.stand.processes()))
            .chain(far)
            .collect()
    }

    /// Returns the front, if there is one.
    pub const fn front(&mut self) -> Option<&mut Process> {
        self.front.as_mut()
    }

    /// Waits until the database has applied all acknowledged updates. Without a front there is nothing to wait for.
    pub fn settle(&self) -> anyhow::Result<()> {
        match self.front {
            Some(_) => self.inside(|| drained(self.endpoint)),
            None => Ok(()),
        }
    }

    /// Ends every process with SIGTERM, client side first. Returns the names of the processes that did not end by
    /// themselves with exit code 0.
    pub fn stop(mut self) -> anyhow::Result<Vec<String>> {
        let mut unclean = Vec::new();
        let front = self.front.iter_mut().map(|process| (Role::Front, process));
        let own = front.chain(self.stand.processes_mut());
        let own = own.map(|(role, process)| (role.to_string(), process));
        let far = self.far.iter_mut();
        for (name, process) in own.chain(far.map(|(name, process)| (name.clone(), process))) {
            if !process.stop()? {
                unclean.push(name);
            }
        }
        if !unclean.is_empty() {
            self.scratch.keep();
        }
        Ok(unclean)
    }
}
