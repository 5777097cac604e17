//! A set-up in which every process has a machine of its own (a namespace). The network between the machines can fail.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context;

use super::binaries::Binaries;
use super::cluster::{Medium, READY_MAX, Role, own_spec, redis_spec, who_may_connect, words};
use super::keys::{self, Keys};
use super::namespaces::{Namespace, Namespaces};
use super::process::{Process, Spec};
use super::proxy::{LossyProxy, Trouble};
use super::scratch::Scratch;

/// Port of redis-server and of the front. The two are on different machines.
const RESP_PORT: u16 = 6379;
/// Port of every device and of the server.
const PMNET_PORT: u16 = pmnet_wire::PORT_FIRST;
/// Port of a proxy, which receives the packets for the process on its machine.
const PROXY_PORT: u16 = pmnet_wire::PORT_FIRST + 1;

/// The parts of a fleet, besides a Redis with `appendfsync always`, a server and a front.
#[derive(Clone, Debug)]
pub struct FleetPlan {
    /// Number of devices in the chain.
    pub devices: usize,
    /// Medium of every device.
    pub medium: Medium,
    /// Faults that affect the datagrams to every device and to the server.
    pub trouble: Option<Trouble>,
    /// Further arguments for the front.
    pub front_args: Vec<String>,
}

/// One machine of a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Machine {
    /// The machine on which this process runs.
    Of(Role),
    /// The machine of the clients.
    Clients,
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Machine::Of(role) => role.fmt(f),
            Machine::Clients => f.write_str("clients"),
        }
    }
}

/// A running fleet. When this value is dropped, all processes end and the networks are removed.
#[derive(Debug)]
pub struct Fleet {
    // The fields are dropped in the order of their declaration: processes, machines, folders.
    processes: Vec<(Role, Process)>,
    proxies: Vec<LossyProxy>,
    machines: Vec<Machine>,
    namespaces: Namespaces,
    scratch: Scratch,
}

impl Fleet {
    /// Makes the machines, and starts all processes, database first. Moves the calling thread into the hub, from which
    /// every machine can be reached. The thread stays in the hub, and must outlive the fleet.
    ///
    /// # Errors
    /// Fails if the machines cannot be made ([`Namespaces::create`]), or if a process cannot be started.
    pub fn start(
        binaries: &Binaries,
        folder: &Path,
        name: &str,
        plan: &FleetPlan,
    ) -> anyhow::Result<Fleet> {
        let roles = [Role::Redis, Role::Server, Role::Front]
            .into_iter()
            .chain((0..plan.devices).map(Role::Device));
        let machines: Vec<Machine> = roles.map(Machine::Of).chain([Machine::Clients]).collect();
        let names: Vec<String> = machines.iter().map(Machine::to_string).collect();
        let namespaces = Namespaces::create(&names)?;
        namespaces.enter_hub()?;
        let mut fleet = Fleet {
            processes: Vec::new(),
            proxies: Vec::new(),
            machines,
            namespaces,
            scratch: Scratch::new(folder, name)?,
        };
        let started = fleet.start_all(binaries, plan);
        if started.is_err() {
            fleet.scratch.keep();
        }
        started.map(|()| fleet)
    }

    fn start_all(&mut self, binaries: &Binaries, plan: &FleetPlan) -> anyhow::Result<()> {
        let disk = self.scratch.disk().to_owned();
        let redis = self.address(Role::Redis, RESP_PORT);
        // In protected mode, Redis answers only clients on its own machine.
        let more = ["--protected-mode".to_owned(), "no".to_owned()];
        self.add(Role::Redis, redis_spec(binaries, redis, &disk, &more)?)?;

        let server = self.address(Role::Server, PMNET_PORT);
        let store = format!("redis://{redis}");
        let keys = Keys::make(binaries, &disk)?;
        let of_cluster = keys::flag(Some(&keys.cluster));
        let mut args = words(&["server", "--listen", &server.to_string(), "--store", &store]);
        args.extend(of_cluster.clone());
        self.add(Role::Server, own_spec(binaries, "server", args))?;
        let mut next = self.through(Role::Server, server, plan.trouble)?;

        for index in (0..plan.devices).rev() {
            let role = Role::Device(index);
            let listen = self.address(role, PMNET_PORT);
            let folder = match plan.medium {
                Medium::Dram => self.scratch.memory(),
                Medium::File => self.scratch.disk(),
            };
            let log = folder.join(format!("{role}.log"));
            let listen_text = listen.to_string();
            let mut args = words(&["device", "--listen", &listen_text, "--next"]);
            args.extend(words(&[
                &next.to_string(),
                "--media",
                plan.medium.name(),
                "--log",
            ]));
            args.push(log.into());
            // The default id is the port number, which all machines share. So each device gets an id of its own.
            args.extend(words(&["--id", &(index + 1).to_string()]));
            let behind = if index + 1 == plan.devices {
                0
            } else {
                index + 2
            };
            args.extend(words(&["--next-id", &behind.to_string()]));
            args.extend(of_cluster.clone());
            self.add(role, own_spec(binaries, &role.to_string(), args))?;
            next = self.through(role, listen, plan.trouble)?;
        }
        let front = self.endpoint().to_string();
        let via = next.to_string();
        let mut args = words(&["redis", "--listen", &front, "--via", &via]);
        args.extend(keys::flag(Some(&keys.front)));
        args.extend(words(who_may_connect(&plan.front_args)));
        args.extend(words(&plan.front_args));
        self.add(Role::Front, own_spec(binaries, "front", args))
    }

    fn add(&mut self, role: Role, mut spec: Spec) -> anyhow::Result<()> {
        let program = spec.program.as_ref().unwrap_or(&spec.binaries.pmnet);
        let args = std::mem::take(&mut spec.args);
        let node = self.node(Machine::Of(role))?;
        let (program, args) = self.namespaces.inside(node, program, args)?;
        (spec.program, spec.args) = (Some(program), args);
        let process = Process::start(spec, self.scratch.disk(), READY_MAX)?;
        self.processes.insert(0, (role, process));
        Ok(())
    }

    /// Returns the address to use for `role`: the address of the process itself, or of a proxy on its machine.
    fn through(
        &mut self,
        role: Role,
        target: SocketAddr,
        trouble: Option<Trouble>,
    ) -> anyhow::Result<SocketAddr> {
        let Some(trouble) = trouble else {
            return Ok(target);
        };
        let listen = SocketAddr::new(target.ip(), PROXY_PORT);
        let node = self.node(Machine::Of(role))?;
        let namespace = self.namespaces.node(node);
        // The proxy's thread inherits the namespace of the thread that starts it.
        let proxy = std::thread::scope(|scope| {
            let start = || {
                namespace.enter()?;
                LossyProxy::start_at(listen, target, trouble)
            };
            scope
                .spawn(start)
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        self.proxies.push(proxy);
        Ok(listen)
    }

    fn node(&self, machine: Machine) -> anyhow::Result<usize> {
        self.machines
            .iter()
            .position(|candidate| *candidate == machine)
            .with_context(|| format!("this fleet has no {machine}"))
    }

    fn address(&self, role: Role, port: u16) -> SocketAddr {
        let node = self
            .machines
            .iter()
            .position(|candidate| *candidate == Machine::Of(role))
            .unwrap_or(0);
        SocketAddr::from((self.namespaces.address(node), port))
    }

    /// Returns the address of the front.
    #[must_use]
    pub fn endpoint(&self) -> SocketAddr {
        self.address(Role::Front, RESP_PORT)
    }

    /// Returns the address of the database.
    #[must_use]
    pub fn redis(&self) -> SocketAddr {
        self.address(Role::Redis, RESP_PORT)
    }

    /// Returns all machines.
    #[must_use]
    pub fn machines(&self) -> &[Machine] {
        &self.machines
    }

    /// Returns the clients' machine, for threads that act as clients.
    ///
    /// # Errors
    /// Fails if the fleet has no such machine.
    pub fn clients(&self) -> anyhow::Result<Namespace> {
        Ok(self.namespaces.node(self.node(Machine::Clients)?))
    }

    /// Returns the numbers of datagrams that the proxies dropped, repeated and delayed.
    #[must_use]
    pub fn troubled(&self) -> [u64; 3] {
        let mut sum = [0; 3];
        for proxy in &self.proxies {
            for (sum, count) in sum.iter_mut().zip(proxy.counts()) {
                *sum += count;
            }
        }
        sum
    }

    /// Kills a process (`kill -9`). Returns false if the process was not running.
    ///
    /// # Errors
    /// Fails if the fleet has no such process, if the process has ended by itself, or if the kernel refuses the
    /// operation.
    pub fn kill(&mut self, role: Role) -> anyhow::Result<bool> {
        let process = self.process(role)?;
        let runs = process.id().is_some();
        process.kill()?;
        Ok(runs)
    }

    /// Starts a killed process again, without waiting until it serves.
    ///
    /// # Errors
    /// Fails if the process cannot be started.
    pub fn start_again(&mut self, role: Role) -> anyhow::Result<()> {
        let process = self.process(role)?;
        if process.id().is_some() {
            return Ok(());
        }
        process.relaunch()
    }

    fn process(&mut self, role: Role) -> anyhow::Result<&mut Process> {
        let (_, process) = self
            .processes
            .iter_mut()
            .find(|(candidate, _)| *candidate == role)
            .with_context(|| format!("this fleet has no {role}"))?;
        // If a process has ended by itself, a restart would hide this.
        if let Some(status) = process.exited()? {
            anyhow::bail!(
                "{role} ended by itself ({status}): {}",
                process.stderr().lines().last().unwrap_or("it said nothing")
            );
        }
        Ok(process)
    }

    /// Drops all packets from one machine to another from now on. Returns false if this direction was cut before.
    ///
    /// # Errors
    /// Fails if the fleet has no such machine, or the kernel refuses the operation.
    pub fn cut(&mut self, from: Machine, to: Machine) -> anyhow::Result<bool> {
        let (from, to) = (self.node(from)?, self.node(to)?);
        self.namespaces.cut(from, to)
    }

    /// Ends the cut of this direction, if there is one.
    ///
    /// # Errors
    /// Fails if the fleet has no such machine, or the kernel refuses the operation.
    pub fn heal(&mut self, from: Machine, to: Machine) -> anyhow::Result<()> {
        let (from, to) = (self.node(from)?, self.node(to)?);
        self.namespaces.heal(from, to)
    }

    /// Takes the link of a machine down. Returns false if the link was already down.
    ///
    /// # Errors
    /// Fails if the fleet has no such machine, or the kernel refuses the operation.
    pub fn link_down(&mut self, machine: Machine) -> anyhow::Result<bool> {
        let node = self.node(machine)?;
        self.namespaces.link_down(node)
    }

    /// Takes the link of a machine up again.
    ///
    /// # Errors
    /// Fails if the fleet has no such machine, or the kernel refuses the operation.
    pub fn link_up(&mut self, machine: Machine) -> anyhow::Result<()> {
        let node = self.node(machine)?;
        self.namespaces.link_up(node)
    }

    /// Repairs the network, starts all processes that do not run, and waits until all serve.
    ///
    /// # Errors
    /// Fails if a process has ended by itself, or if a process does not serve in time.
    pub fn repair(&mut self) -> anyhow::Result<()> {
        self.namespaces.heal_all()?;
        let roles: Vec<Role> = self.processes.iter().map(|(role, _)| *role).collect();
        for role in &roles {
            self.start_again(*role)?;
        }
        for role in roles {
            self.process(role)?.wait_ready(READY_MAX)?;
        }
        Ok(())
    }

    /// Returns the folder with the output of all processes.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.scratch.disk()
    }

    /// Makes the fleet leave its folder on disk at its end.
    pub fn keep_folder(&mut self) {
        self.scratch.keep();
    }
}
