//! A whole set-up: database, server, chain of devices, front; each may be killed and come back.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::ValueEnum;
use pmnet_cli::find_program;

use super::binaries::Binaries;
use super::claims::Port;
use super::keys::{self, Keys};
use super::process::{Process, Ready, Spec};
use super::proxy::{LossyProxy, Trouble};
use super::scratch::Scratch;
use crate::resp::Client;

/// A process that does not serve after this long is a failure.
pub const READY_MAX: Duration = Duration::from_secs(15);
/// Longest chain (`docs/spec/protocol.md`).
pub const DEVICES_MAX: usize = 3;
/// What a device says when it has erased its log and may be wired into the chain.
const READY_TO_JOIN: &str = "is ready to join";
/// Each call of the reader.
const READER_MAX: Duration = Duration::from_secs(20);

/// Which database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// A real redis-server with `appendfsync always`.
    Redis,
    /// The packet store in a file.
    Packet,
    /// The packet store in one region with the log of the last device, which is the server, too.
    Region,
    /// Nothing: updates are accepted and forgotten.
    Null,
}

/// Where the devices keep their logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Medium {
    /// A file on tmpfs: survives the death of the process, not a power cut.
    Dram,
    /// An ordinary file, O_DIRECT and O_DSYNC: survives a power cut.
    File,
}

impl Medium {
    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Medium::Dram => "dram",
            Medium::File => "file",
        }
    }
}

/// What a cluster consists of.
#[derive(Clone, Debug)]
pub struct Topology {
    /// The database.
    pub store: StoreKind,
    /// A database that runs already, and how the server is to name it; then none is started.
    pub store_url: Option<String>,
    /// Size of a packet store or a region; `None`: what a run under load needs.
    pub store_size: Option<&'static str>,
    /// Length of the chain, 1 to [`DEVICES_MAX`]; 0: no pmnet at all, the database alone.
    pub devices: usize,
    /// Medium of every device.
    pub medium: Medium,
    /// What happens to the datagrams between front, devices and server; `None`: nothing.
    pub trouble: Option<Trouble>,
    /// Whether fronts, devices and server have keys. Not where a test sends or reads packets itself, or starts more processes.
    pub keyed: bool,
    /// More arguments for every device.
    pub device_args: Vec<String>,
    /// More arguments for the server.
    pub server_args: Vec<String>,
    /// More arguments for the front.
    pub front_args: Vec<String>,
    /// Whether there is a front.
    pub front: bool,
    /// The front knows the addresses of all devices, and is not told of a new head.
    pub front_follows: bool,
    /// More arguments for redis-server.
    pub redis_args: Vec<String>,
}

impl Topology {
    /// A chain of `devices` with logs on `medium` in front of `store`.
    #[must_use]
    pub fn new(store: StoreKind, devices: usize, medium: Medium) -> Topology {
        Topology {
            store,
            store_url: None,
            store_size: None,
            devices,
            medium,
            trouble: None,
            keyed: true,
            device_args: Vec::new(),
            server_args: Vec::new(),
            front_args: Vec::new(),
            front: true,
            front_follows: false,
            redis_args: Vec::new(),
        }
    }

    /// The same, without keys.
    #[must_use]
    pub fn unkeyed(self) -> Topology {
        Topology {
            keyed: false,
            ..self
        }
    }

    /// The database alone.
    #[must_use]
    pub fn direct(store: StoreKind) -> Topology {
        Topology::new(store, 0, Medium::Dram)
    }
}

/// One process of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// redis-server.
    Redis,
    /// `pmnet server`.
    Server,
    /// `pmnet device`, 0 is the head.
    Device(usize),
    /// `pmnet redis`.
    Front,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Role::Redis => f.write_str("redis"),
            Role::Server => f.write_str("server"),
            Role::Device(index) => write!(f, "device{}", index + 1),
            Role::Front => f.write_str("front"),
        }
    }
}

/// Running processes; all are killed when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    // Order of fields is order of the drop: the client side goes first, the folders last.
    processes: Vec<(Role, Process)>,
    redis: Option<SocketAddr>,
    front: Option<SocketAddr>,
    /// Devices of the chain, head first: number in the role, and address.
    chain: Vec<(usize, SocketAddr)>,
    /// The ids of all devices that ever were: the ports that they listened on first.
    ids: Vec<(usize, u16)>,
    server: Option<SocketAddr>,
    proxies: Vec<LossyProxy>,
    /// Claimed until all processes are gone.
    ports: Vec<Port>,
    topology: Topology,
    keys: Option<Keys>,
    /// What spares are started from.
    binaries: Binaries,
    scratch: Scratch,
}

impl Cluster {
    /// Starts everything, database first, and waits until it serves. `binaries` are what it starts,
    /// `folder` is where the run's folder is made (it should be on a real disk).
    ///
    /// # Errors
    /// The first process that could not be started, with the end of its output.
    pub fn start(
        binaries: &Binaries,
        folder: &Path,
        name: &str,
        topology: Topology,
    ) -> anyhow::Result<Cluster> {
        anyhow::ensure!(
            topology.devices <= DEVICES_MAX,
            "a chain has at most {DEVICES_MAX} devices"
        );
        let mut cluster = Cluster {
            processes: Vec::new(),
            redis: None,
            front: None,
            chain: Vec::new(),
            ids: Vec::new(),
            server: None,
            proxies: Vec::new(),
            ports: Vec::new(),
            topology,
            keys: None,
            binaries: binaries.clone(),
            scratch: Scratch::new(folder, name)?,
        };
        let started = cluster.start_all(binaries);
        if started.is_err() {
            cluster.scratch.keep();
        }
        started.map(|()| cluster)
    }

    fn start_all(&mut self, binaries: &Binaries) -> anyhow::Result<()> {
        let disk = self.scratch.disk().to_owned();
        let store = match (&self.topology.store_url, self.topology.store) {
            (Some(url), _) => url.clone(),
            (None, StoreKind::Redis) => {
                let address = self.port()?;
                self.redis = Some(address);
                self.add(
                    Role::Redis,
                    redis_spec(binaries, address, &disk, &self.topology.redis_args)?,
                )?;
                format!("redis://{address}")
            }
            (None, StoreKind::Packet) => {
                let size = self.topology.store_size.unwrap_or("64M");
                format!("packet:{}?size={size}", disk.join("store").display())
            }
            // What a run under load writes, and some more: nothing is deleted.
            (None, StoreKind::Region) => {
                let size = self.topology.store_size.unwrap_or("384M");
                format!("packet:{}?size={size}", self.region().display())
            }
            (None, StoreKind::Null) => "null:".to_owned(),
        };
        if self.topology.devices == 0 {
            return Ok(());
        }
        if self.topology.keyed {
            self.keys = Some(Keys::make(binaries, &disk)?);
        }
        let mut ways = Vec::new();
        let mut next_id = 0;
        let mut others = self.topology.devices;
        let mut next = if self.topology.store == StoreKind::Region {
            others -= 1;
            let listen = self.port()?;
            let mut args = words(&["device", "--listen", &listen.to_string(), "--store", &store]);
            if self.topology.device_args.is_empty() {
                args.extend(words(&["--log-size", "16M"]));
            }
            args.extend(self.cluster_key());
            args.extend(words(&self.topology.device_args));
            let role = Role::Device(others);
            self.add(role, own_spec(binaries, &role.to_string(), args))?;
            self.chain.insert(0, (others, listen));
            self.ids.push((others, listen.port()));
            next_id = listen.port();
            let next = self.through(listen)?;
            ways.insert(0, next.to_string());
            next
        } else {
            let server = self.port()?;
            self.server = Some(server);
            let mut args = words(&["server", "--listen", &server.to_string(), "--store", &store]);
            args.extend(self.cluster_key());
            args.extend(words(&self.topology.server_args));
            self.add(Role::Server, own_spec(binaries, "server", args))?;
            self.through(server)?
        };
        for index in (0..others).rev() {
            let listen = self.port()?;
            let spec = self.device_spec(binaries, index, listen, (next_id, next), &[]);
            self.add(Role::Device(index), spec)?;
            self.chain.insert(0, (index, listen));
            self.ids.push((index, listen.port()));
            next_id = listen.port();
            next = self.through(listen)?;
            ways.insert(0, next.to_string());
        }
        if !self.topology.front {
            return Ok(());
        }
        let via = if self.topology.front_follows {
            ways.join(",")
        } else {
            next.to_string()
        };
        let front = self.port()?;
        self.front = Some(front);
        let mut args = words(&["redis", "--listen", &front.to_string(), "--via", &via]);
        args.extend(keys::flag(self.keys.as_ref().map(|keys| &keys.front)));
        args.extend(words(who_may_connect(&self.topology.front_args)));
        args.extend(words(&self.topology.front_args));
        self.add(Role::Front, own_spec(binaries, "front", args))
    }

    /// The region of the last device, with [`StoreKind::Region`].
    #[must_use]
    pub fn region(&self) -> PathBuf {
        let folder = match self.topology.medium {
            Medium::Dram => self.scratch.memory(),
            Medium::File => self.scratch.disk(),
        };
        folder.join("region")
    }

    /// The key files, if there are keys.
    #[must_use]
    pub fn keys(&self) -> Option<&Keys> {
        self.keys.as_ref()
    }

    fn cluster_key(&self) -> Vec<OsString> {
        keys::flag(self.keys.as_ref().map(|keys| &keys.cluster))
    }

    /// Where the log of a device is.
    pub fn device_log(&self, index: usize) -> PathBuf {
        let folder = match self.topology.medium {
            Medium::Dram => self.scratch.memory(),
            Medium::File => self.scratch.disk(),
        };
        folder.join(format!("device{}.pmlog", index + 1))
    }

    fn device_spec(
        &self,
        binaries: &Binaries,
        index: usize,
        listen: SocketAddr,
        (next_id, next): (u16, SocketAddr),
        more: &[&str],
    ) -> Spec {
        let mut args = words(&[
            "device",
            "--listen",
            &listen.to_string(),
            "--next",
            &next.to_string(),
            "--media",
            self.topology.medium.name(),
            "--log",
        ]);
        args.push(self.device_log(index).into());
        args.extend(self.cluster_key());
        if self.keys.is_some() {
            args.extend(words(&["--next-id", &next_id.to_string()]));
        }
        args.extend(words(&self.topology.device_args));
        args.extend(words(more));
        own_spec(binaries, &Role::Device(index).to_string(), args)
    }

    /// An address for one of the processes.
    fn port(&mut self) -> anyhow::Result<SocketAddr> {
        let port = Port::claim().context("no port for a process")?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.number()));
        self.ports.push(port);
        Ok(address)
    }

    fn add(&mut self, role: Role, spec: Spec) -> anyhow::Result<()> {
        let process = Process::start(spec, self.scratch.disk(), READY_MAX)?;
        self.processes.insert(0, (role, process));
        Ok(())
    }

    /// The RESP endpoint for clients: the front, or the database where there is no pmnet.
    ///
    /// # Errors
    /// There is none (an embedded store without pmnet).
    pub fn endpoint(&self) -> anyhow::Result<SocketAddr> {
        self.front
            .or(self.redis)
            .context("this cluster has no RESP endpoint")
    }

    /// A connection straight to the database, or through the front where the database is
    /// embedded and cannot be asked otherwise.
    ///
    /// # Errors
    /// It does not answer.
    pub fn reader(&self) -> anyhow::Result<Client> {
        let address = self.redis.map_or_else(|| self.endpoint(), Ok)?;
        Client::connect(address, READER_MAX)
            .with_context(|| format!("cannot reach the database at {address}"))
    }

    /// Address of the head device, for native clients.
    #[must_use]
    pub fn head(&self) -> Option<SocketAddr> {
        self.chain.first().map(|(_, address)| *address)
    }

    /// Address of the server, for devices that are not of this cluster.
    #[must_use]
    pub fn server(&self) -> Option<SocketAddr> {
        self.server
    }

    /// Where to send what is for `address`: there, or to a new proxy that loses some of it.
    fn through(&mut self, address: SocketAddr) -> anyhow::Result<SocketAddr> {
        let Some(trouble) = self.topology.trouble else {
            return Ok(address);
        };
        let proxy = LossyProxy::start(address, trouble)?;
        let address = proxy.address();
        self.proxies.push(proxy);
        Ok(address)
    }

    /// Datagrams that the proxies dropped, repeated and held back.
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

    /// Loses devices for good, logs and all, and does what an operator does then: links the rest
    /// together again, starts the new head with `--shrink-chain`, points the front to it (if it does not follow).
    ///
    /// # Errors
    /// Nothing would be left, or what is left does not serve in time.
    pub fn lose(&mut self, lost: &[usize]) -> anyhow::Result<()> {
        for index in lost {
            self.kill(Role::Device(*index))?;
        }
        self.processes
            .retain(|(role, _)| !lost.iter().any(|index| *role == Role::Device(*index)));
        self.chain.retain(|(index, _)| !lost.contains(index));
        let chain = self.chain.clone();
        let server = self.server.context("this cluster has no server")?;
        let (_, head) = *chain.first().context("no device would be left")?;
        let mut next = self.through(server)?;
        let mut next_id = 0;
        for (position, (index, listen)) in chain.iter().enumerate().rev() {
            self.wire(*index, (next_id, next))?;
            next_id = self.id(*index, *listen);
            let process = self.process(Role::Device(*index))?;
            if position == 0 {
                process.set_flag("--shrink-chain", None);
            }
            process.relaunch()?;
            next = self.through(*listen)?;
        }
        for (index, _) in &chain {
            self.process(Role::Device(*index))?.wait_ready(READY_MAX)?;
        }
        if self.topology.front_follows {
            return Ok(());
        }
        let front = self.process(Role::Front)?;
        front.set_flag("--via", Some(&next.to_string()));
        self.restart(Role::Front)
            .with_context(|| format!("with the new head {head}"))
    }

    /// Lets a device join at the end of the chain, as an operator does: starts it with `--join`, waits until it is ready,
    /// starts the chain's last device again with this one as its next hop. A device that was lost before has the id that it
    /// had; `keeps_log`: and the log that it had, otherwise a new one.
    ///
    /// # Errors
    /// It does not join in time.
    pub fn join(&mut self, index: usize, keeps_log: bool) -> anyhow::Result<()> {
        let server = self.server.context("this cluster has no server")?;
        let (tail, _) = *self.chain.last().context("no device is left")?;
        let listen = self.port()?;
        let next = self.through(server)?;
        if !keeps_log {
            let log = self.device_log(index);
            match std::fs::remove_file(&log) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).context("cannot remove the log of a lost device");
                }
                _ => {}
            }
        }
        // Its id stays, whatever its address is now.
        let id = self.id(index, listen);
        if !self.ids.iter().any(|(known, _)| *known == index) {
            self.ids.push((index, id));
        }
        let more = ["--join", "--id", &id.to_string()];
        let spec = self.device_spec(&self.binaries, index, listen, (0, next), &more);
        let mut joiner = Process::launch(spec, self.scratch.disk())?;
        let deadline = Instant::now() + READY_MAX;
        while !joiner.stderr().contains(READY_TO_JOIN) {
            anyhow::ensure!(
                joiner.exited()?.is_none() && Instant::now() < deadline,
                "device{} does not get ready to join: {}",
                index + 1,
                joiner.stderr()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        self.processes.insert(0, (Role::Device(index), joiner));
        let next = self.through(listen)?;
        self.wire(tail, (id, next))?;
        self.process(Role::Device(tail))?.relaunch()?;
        self.chain.push((index, listen));
        for role in [Role::Device(tail), Role::Device(index)] {
            self.process(role)?.wait_ready(READY_MAX)?;
        }
        Ok(())
    }

    /// The id of a device that listens here: its first port.
    fn id(&self, index: usize, listen: SocketAddr) -> u16 {
        let known = self.ids.iter().find(|(known, _)| *known == index);
        known.map_or(listen.port(), |(_, id)| *id)
    }

    /// Gives a device this next hop, from its next start on.
    fn wire(&mut self, index: usize, (next_id, next): (u16, SocketAddr)) -> anyhow::Result<()> {
        let keyed = self.keys.is_some();
        let process = self.process(Role::Device(index))?;
        process.set_flag("--next", Some(&next.to_string()));
        if keyed {
            process.set_flag("--next-id", Some(&next_id.to_string()));
        }
        Ok(())
    }

    /// The number of a device that was never there.
    #[must_use]
    pub fn spare(&self) -> usize {
        self.ids.len()
    }

    /// The devices of the chain, head first, by their numbers in [`Role::Device`].
    #[must_use]
    pub fn chain(&self) -> Vec<usize> {
        self.chain.iter().map(|(index, _)| *index).collect()
    }

    /// Address of the redis-server.
    #[must_use]
    pub fn redis(&self) -> Option<SocketAddr> {
        self.redis
    }

    /// What it consists of.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// All its processes, client side first.
    pub fn processes(&self) -> impl Iterator<Item = (Role, &Process)> {
        self.processes
            .iter()
            .map(|(role, process)| (*role, process))
    }

    /// One of its processes.
    ///
    /// # Errors
    /// There is no such process.
    pub fn process(&mut self, role: Role) -> anyhow::Result<&mut Process> {
        self.processes
            .iter_mut()
            .find(|(candidate, _)| *candidate == role)
            .map(|(_, process)| process)
            .with_context(|| format!("this cluster has no {role}"))
    }

    /// `kill -9`.
    ///
    /// # Errors
    /// There is no such process, or the kernel refuses.
    pub fn kill(&mut self, role: Role) -> anyhow::Result<()> {
        self.process(role)?.kill()
    }

    /// Starts a killed process again and waits until it serves.
    ///
    /// # Errors
    /// It does not serve in time, with the end of its output.
    pub fn restart(&mut self, role: Role) -> anyhow::Result<()> {
        let process = self.process(role)?;
        process.relaunch()?;
        process.wait_ready(READY_MAX)
    }

    /// Ends every process in good order, client side first; the names of those that did not end
    /// by themselves with exit code 0.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn stop(mut self) -> anyhow::Result<Vec<String>> {
        let mut unclean = Vec::new();
        for (role, process) in &mut self.processes {
            if !process.stop()? {
                unclean.push(role.to_string());
            }
        }
        if !unclean.is_empty() {
            self.scratch.keep();
        }
        Ok(unclean)
    }

    /// Folder with the output of all processes.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.scratch.disk()
    }

    /// Leaves that folder when the cluster ends.
    pub fn keep_folder(&mut self) {
        self.scratch.keep();
    }
}

/// What says who may use a front, if its other arguments do not.
pub(super) fn who_may_connect<S: AsRef<str>>(args: &[S]) -> &'static [&'static str] {
    let says = |arg: &S| ["--users-of-redis", "--requirepass-file"].contains(&arg.as_ref());
    if args.iter().any(says) {
        &[]
    } else {
        &["--anyone-may-connect"]
    }
}

pub(super) fn words<S: AsRef<str>>(words: &[S]) -> Vec<OsString> {
    words.iter().map(|word| word.as_ref().into()).collect()
}

pub(super) fn own_spec(binaries: &Binaries, name: &str, args: Vec<OsString>) -> Spec {
    Spec {
        name: name.to_owned(),
        binaries: binaries.clone(),
        program: None,
        args,
        ready: Ready::Line,
    }
}

pub(crate) fn redis_spec(
    binaries: &Binaries,
    address: SocketAddr,
    folder: &Path,
    more: &[String],
) -> anyhow::Result<Spec> {
    let program: PathBuf = find_program("redis-server")
        .context("redis-server is not installed: apt-get install redis-server (make setup)")?;
    let mut args = words(&[
        "--bind",
        &address.ip().to_string(),
        "--port",
        &address.port().to_string(),
        "--appendonly",
        "yes",
        "--appendfsync",
        "always",
        "--save",
        "",
        // No rewrite of the append-only file in the middle of a measurement.
        "--auto-aof-rewrite-percentage",
        "0",
        "--daemonize",
        "no",
        "--loglevel",
        "warning",
        "--dir",
    ]);
    args.push(folder.into());
    args.extend(words(more));
    Ok(Spec {
        name: "redis".into(),
        binaries: binaries.clone(),
        program: Some(program),
        args,
        ready: Ready::Redis(address),
    })
}
