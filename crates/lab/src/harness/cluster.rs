//! A whole set-up: database, server, chain of devices, front. Each process can be killed and
//! restarted.

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

/// Time within which a process must serve.
pub const READY_MAX: Duration = Duration::from_secs(15);
/// Maximum length of a chain (`docs/spec/protocol.md`).
pub const DEVICES_MAX: usize = 3;
/// Part of the line that a device prints when it has erased its log and can join the chain.
const READY_TO_JOIN: &str = "is ready to join";
/// Deadline of each call of the reader.
const READER_MAX: Duration = Duration::from_secs(20);

/// The kind of database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// A real redis-server with `appendfsync always`.
    Redis,
    /// The packet store in a file.
    Packet,
    /// The packet store in one region with the log of the last device. The last device is also the server.
    Region,
    /// No database: updates are accepted and discarded.
    Null,
}

/// The medium of the devices' logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Medium {
    /// A log file on tmpfs, which survives the death of the process, but not a power cut.
    Dram,
    /// An ordinary log file with O_DIRECT and O_DSYNC, which survives a power cut.
    File,
}

impl Medium {
    /// Returns the medium's name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Medium::Dram => "dram",
            Medium::File => "file",
        }
    }
}

/// The parts of a cluster.
#[derive(Clone, Debug)]
pub struct Topology {
    /// The kind of database.
    pub store: StoreKind,
    /// URL of a running database, which the server uses. If a URL is given, no database is started.
    pub store_url: Option<String>,
    /// Size of a packet store or a region; `None`: a size that is enough for a run under load.
    pub store_size: Option<&'static str>,
    /// Number of devices, up to [`DEVICES_MAX`]; 0: only the database, without pmnet.
    pub devices: usize,
    /// Medium of every device.
    pub medium: Medium,
    /// Faults that affect the datagrams between front, devices and server; `None`: no faults.
    pub trouble: Option<Trouble>,
    /// Fronts, devices and server have keys. A test must run without keys if it sends or reads packets itself, or
    /// starts further processes.
    pub keyed: bool,
    /// Further arguments for every device.
    pub device_args: Vec<String>,
    /// Further arguments for the server.
    pub server_args: Vec<String>,
    /// Further arguments for the front.
    pub front_args: Vec<String>,
    /// The cluster has a front.
    pub front: bool,
    /// The front knows the addresses of all devices, so the harness does not tell it about a new head.
    pub front_follows: bool,
    /// Further arguments for redis-server.
    pub redis_args: Vec<String>,
    /// Server, one device and front are one process (`pmnet run`). This process takes no further arguments.
    pub together: bool,
}

impl Topology {
    /// Returns a chain of `devices` devices with logs on `medium`, and the database `store`.
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
            together: false,
        }
    }

    /// Returns this topology without keys.
    #[must_use]
    pub fn unkeyed(self) -> Topology {
        Topology {
            keyed: false,
            ..self
        }
    }

    /// Returns a topology with only the database.
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
    /// `pmnet device`; number 0 is the first head.
    Device(usize),
    /// `pmnet redis`.
    Front,
    /// `pmnet run`: server, device and front.
    Run,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Role::Redis => f.write_str("redis"),
            Role::Server => f.write_str("server"),
            Role::Device(index) => write!(f, "device{}", index + 1),
            Role::Front => f.write_str("front"),
            Role::Run => f.write_str("run"),
        }
    }
}

/// The running processes; all of them are killed when this value is dropped.
#[derive(Debug)]
pub struct Cluster {
    // The fields are dropped in the order of their declaration: client side first, folders last.
    processes: Vec<(Role, Process)>,
    redis: Option<SocketAddr>,
    front: Option<SocketAddr>,
    /// Devices of the chain, head first: the number in [`Role::Device`], and the address.
    chain: Vec<(usize, SocketAddr)>,
    /// The id of each present or former device: the number of its first port.
    ids: Vec<(usize, u16)>,
    server: Option<SocketAddr>,
    proxies: Vec<LossyProxy>,
    /// Ports that stay claimed until all processes have ended.
    ports: Vec<Port>,
    topology: Topology,
    keys: Option<Keys>,
    /// The binaries with which spares are started.
    binaries: Binaries,
    scratch: Scratch,
}

impl Cluster {
    /// Starts all processes, database first, and waits until they serve. `binaries` are the programs to start. `folder`
    /// is the parent of the run's folder, and should be on a real disk.
    ///
    /// # Errors
    /// Fails if a process cannot be started. The error names the first such process, with the end of its output.
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
            // The data of a run under load, with a reserve, because no record is ever deleted.
            (None, StoreKind::Region) => {
                let size = self.topology.store_size.unwrap_or("384M");
                format!("packet:{}?size={size}", self.region().display())
            }
            (None, StoreKind::Null) => "null:".to_owned(),
        };
        if self.topology.devices == 0 {
            return Ok(());
        }
        if self.topology.together {
            return self.start_together(binaries, &store);
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

    /// Starts server, device and front as one process, with a configuration file.
    fn start_together(&mut self, binaries: &Binaries, store: &str) -> anyhow::Result<()> {
        let (server, device, front) = (self.port()?, self.port()?, self.port()?);
        let text = format!(
            "[server]\nlisten = \"{server}\"\nstore = \"{store}\"\n\
             [device]\nlisten = \"{device}\"\nnext = \"{server}\"\nlog = \"{}\"\nmedia = \"{}\"\n\
             [redis]\nlisten = \"{front}\"\nvia = \"{device}\"\nanyone-may-connect = true\n",
            self.device_log(0).display(),
            self.topology.medium.name(),
        );
        let file = self.scratch.disk().join("pmnet.toml");
        std::fs::write(&file, text).context("cannot write the configuration")?;
        (self.server, self.front) = (Some(server), Some(front));
        self.chain.push((0, device));
        let args = vec!["run".into(), file.into()];
        self.add(Role::Run, own_spec(binaries, "run", args))
    }

    /// Returns the path of the last device's region, with [`StoreKind::Region`].
    #[must_use]
    pub fn region(&self) -> PathBuf {
        let folder = match self.topology.medium {
            Medium::Dram => self.scratch.memory(),
            Medium::File => self.scratch.disk(),
        };
        folder.join("region")
    }

    /// Returns the key files; `None` if the topology has no keys.
    #[must_use]
    pub fn keys(&self) -> Option<&Keys> {
        self.keys.as_ref()
    }

    fn cluster_key(&self) -> Vec<OsString> {
        keys::flag(self.keys.as_ref().map(|keys| &keys.cluster))
    }

    /// Returns the path of a device's log.
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

    /// Claims an address for a process.
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

    /// Returns the RESP endpoint for clients: the front, or the database if the topology has no pmnet.
    ///
    /// # Errors
    /// Fails if there is no endpoint: an embedded store without pmnet.
    pub fn endpoint(&self) -> anyhow::Result<SocketAddr> {
        self.front
            .or(self.redis)
            .context("this cluster has no RESP endpoint")
    }

    /// Connects to the database directly. If the database is embedded, connects through the front.
    ///
    /// # Errors
    /// Fails if the database does not answer.
    pub fn reader(&self) -> anyhow::Result<Client> {
        let address = self.redis.map_or_else(|| self.endpoint(), Ok)?;
        Client::connect(address, READER_MAX)
            .with_context(|| format!("cannot reach the database at {address}"))
    }

    /// Returns the address of the head device, for native clients.
    #[must_use]
    pub fn head(&self) -> Option<SocketAddr> {
        self.chain.first().map(|(_, address)| *address)
    }

    /// Returns the address of the server, for devices that are not in this cluster.
    #[must_use]
    pub fn server(&self) -> Option<SocketAddr> {
        self.server
    }

    /// Returns the address that a process must use for `address`: `address` itself, or a new proxy to it that causes
    /// the faults of the topology.
    fn through(&mut self, address: SocketAddr) -> anyhow::Result<SocketAddr> {
        let Some(trouble) = self.topology.trouble else {
            return Ok(address);
        };
        let proxy = LossyProxy::start(address, trouble)?;
        let address = proxy.address();
        self.proxies.push(proxy);
        Ok(address)
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

    /// Loses devices for good, together with their logs. Then repairs the chain as an operator does: connects the other
    /// devices with each other, and starts the new head with `--shrink-chain`. If the front does not know all
    /// addresses, gives the front the new head's address.
    ///
    /// # Errors
    /// Fails if no device would remain, or if the remaining devices do not serve in time.
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

    /// Lets a device join at the end of the chain, as an operator does. Starts the device with `--join`, and waits
    /// until it is ready. Then restarts the chain's last device with the new device as its next hop. A device that was
    /// lost before keeps its id. If `keeps_log` is set, the device also keeps its log; otherwise the device gets a new
    /// log.
    ///
    /// # Errors
    /// Fails if the device does not join in time.
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
        // A device keeps its id when its address changes.
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

    /// Returns the id of a device: the number of its first port. A new device gets the port of this address.
    fn id(&self, index: usize, listen: SocketAddr) -> u16 {
        let known = self.ids.iter().find(|(known, _)| *known == index);
        known.map_or(listen.port(), |(_, id)| *id)
    }

    /// Sets a device's next hop for its next start.
    fn wire(&mut self, index: usize, (next_id, next): (u16, SocketAddr)) -> anyhow::Result<()> {
        let keyed = self.keys.is_some();
        let process = self.process(Role::Device(index))?;
        process.set_flag("--next", Some(&next.to_string()));
        if keyed {
            process.set_flag("--next-id", Some(&next_id.to_string()));
        }
        Ok(())
    }

    /// Returns the number of a device that was never in the chain.
    #[must_use]
    pub fn spare(&self) -> usize {
        self.ids.len()
    }

    /// Returns the devices of the chain, head first, by their numbers in [`Role::Device`].
    #[must_use]
    pub fn chain(&self) -> Vec<usize> {
        self.chain.iter().map(|(index, _)| *index).collect()
    }

    /// Returns the address of the redis-server.
    #[must_use]
    pub fn redis(&self) -> Option<SocketAddr> {
        self.redis
    }

    /// Returns the parts of the cluster.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Returns all processes, client side first.
    pub fn processes(&self) -> impl Iterator<Item = (Role, &Process)> {
        self.processes
            .iter()
            .map(|(role, process)| (*role, process))
    }

    /// Returns one of the processes.
    ///
    /// # Errors
    /// Fails if the cluster has no such process.
    pub fn process(&mut self, role: Role) -> anyhow::Result<&mut Process> {
        self.processes
            .iter_mut()
            .find(|(candidate, _)| *candidate == role)
            .map(|(_, process)| process)
            .with_context(|| format!("this cluster has no {role}"))
    }

    /// Kills a process (`kill -9`).
    ///
    /// # Errors
    /// Fails if the cluster has no such process, or if the kernel refuses the operation.
    pub fn kill(&mut self, role: Role) -> anyhow::Result<()> {
        self.process(role)?.kill()
    }

    /// Starts a killed process again, and waits until it serves.
    ///
    /// # Errors
    /// Fails if the process does not serve in time. The error has the end of its output.
    pub fn restart(&mut self, role: Role) -> anyhow::Result<()> {
        let process = self.process(role)?;
        process.relaunch()?;
        process.wait_ready(READY_MAX)
    }

    /// Ends a process of the product with SIGTERM, and starts another build of it in its place.
    ///
    /// # Errors
    /// Fails if the old process does not end with exit code 0, or if the new process does not serve in time.
    pub fn exchange(&mut self, role: Role, pmnet: &Path) -> anyhow::Result<()> {
        let process = self.process(role)?;
        anyhow::ensure!(process.stop()?, "{role} did not end well");
        process.set_product(pmnet);
        self.restart(role)
            .with_context(|| format!("{role} as {}", pmnet.display()))
    }

    /// Ends every process with SIGTERM, client side first. Returns the names of the processes that did not end by
    /// themselves with exit code 0.
    ///
    /// # Errors
    /// Fails if the kernel refuses the operation.
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

    /// Returns the folder with the output of all processes.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.scratch.disk()
    }

    /// Makes the cluster leave its folder on disk at its end.
    pub fn keep_folder(&mut self) {
        self.scratch.keep();
    }
}

/// Returns the arguments that say which clients may use a front, unless `args` already say it.
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
        // Redis must not rewrite the append-only file during a measurement.
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
