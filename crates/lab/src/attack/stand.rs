//! The set-up that is attacked: a front, a chain with keys, and a server with a Redis. Each process is on a machine of
//! its own, and each link has a tap.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use pmnet_keys::{Cluster, FrontName};
use pmnet_wire::{ClusterKey, FrontKey};
use serde::Serialize;

use super::Plan;
use super::doors::{Door, DoorKind};
use super::tap::{End, mac};
use crate::bench::micro::pinned::{self, Pinned};
use crate::bench::micro::system::SERVER;
use crate::harness::keys::flag;
use crate::harness::namespaces::PREFIX;
use crate::harness::{Binaries, Keys, Process, Ready, Scratch, Spec, redis_spec};
use crate::resp::Client;
use crate::testbed::{END_INTERFACE, Layout, Network};
use crate::xdp::plain::{self, Plain, Program};

/// Time within which a process must serve.
const START_MAX: Duration = Duration::from_secs(30);
/// Deadline of one call to Redis, and of one request to a status port.
const CALL_MAX: Duration = Duration::from_secs(10);
/// Address of Redis, which must be reachable from the front too: the front asks for the users' rights, and reads data
/// that the log does not have.
const REDIS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(*SERVER.ip()), 6_379);
const FRONT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 6_380);
const STATUS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9_100);
/// UDP port of every device.
const DEVICE_PORT: u16 = 51_000;

/// How the devices process packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// User-space processes on UDP sockets.
    Relay,
    /// User-space processes on AF_XDP sockets.
    AfXdp,
    /// Programs in the kernel.
    Kernel,
}

/// Which updates the head shows to readers: `--cache` of `pmnet redis`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Cache {
    /// Updates that are not in Redis yet.
    Pending,
    /// In addition, updates that are in Redis, until the log drops them.
    Log,
}

impl Cache {
    /// Returns the value for `--cache`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Cache::Pending => "pending",
            Cache::Log => "log",
        }
    }
}

/// The running set-up. When this value is dropped, all processes end and the networks are removed.
pub struct Stand {
    // The order of the fields is the order of their drop: processes, programs, network.
    processes: BTreeMap<String, Process>,
    _redis: Process,
    pinned: Vec<Pinned>,
    _programs: Vec<Plain>,
    /// The network that connects the machines of the set-up.
    pub network: Network,
    mode: Mode,
    devices: u8,
    keys: Option<Keys>,
    binaries: Binaries,
    scratch: Scratch,
}

fn words(text: &str) -> Vec<OsString> {
    text.split_whitespace().map(OsString::from).collect()
}

/// Values of a status port, by metric name and labels.
pub type Metrics = BTreeMap<String, f64>;

impl Stand {
    /// Starts all processes, and waits until they serve.
    ///
    /// The calling thread must outlive the set-up, because the processes end when this thread ends.
    ///
    /// # Errors
    /// This machine lacks a program or a right, or a process does not start. The error names the first such obstacle.
    pub fn start(plan: &Plan, binaries: &Binaries) -> anyhow::Result<Stand> {
        crate::harness::sweep_namespaces();
        pinned::sweep()?;
        let devices = plan.devices;
        let scratch = Scratch::new(&plan.out, "attack")?;
        let keys = match plan.insecure {
            true => None,
            false => Some(Keys::make(binaries, scratch.disk())?),
        };
        let prefix = format!("{PREFIX}{}-a-", std::process::id());
        let network = Network::create(Layout::tapped(&prefix, devices))?;
        let mut stand = Stand {
            processes: BTreeMap::new(),
            _redis: start_redis(binaries, &network, &scratch)?,
            pinned: Vec::new(),
            _programs: match plan.mode {
                Mode::Relay => Vec::new(),
                Mode::AfXdp | Mode::Kernel => receivers(&network, devices)?,
            },
            network,
            mode: plan.mode,
            devices,
            keys,
            binaries: binaries.clone(),
            scratch,
        };
        let server = stand.address(devices + 1);
        let server = format!("server --listen {server} --store redis://{REDIS}");
        stand.launch("server", words(&server))?;
        // The last device starts first, because the server learns the chain beginning with the last device.
        for device in (1..=devices).rev() {
            let arguments = stand.device(device);
            stand.launch(&format!("device{device}"), arguments)?;
        }
        let via = (1..=devices).map(|device| stand.address(device).to_string());
        let via = via.collect::<Vec<_>>().join(",");
        let cache = plan.cache.word();
        let front =
            format!("redis --listen {FRONT} --via {via} --copies {devices} --cache {cache}");
        stand.launch("client1", words(&front))?;
        Ok(stand)
    }

    fn device(&mut self, device: u8) -> Vec<OsString> {
        let next = self.address(device + 1);
        let mut arguments = words(&format!(
            "device --listen {} --next {next} --id {device}",
            self.address(device)
        ));
        if self.keys.is_some() && device < self.devices {
            arguments.extend(words(&format!("--next-id {}", device + 1)));
        }
        let ports = format!("tap{device},tap{}", device + 1);
        let log = self.scratch.memory().join(format!("device{device}.log"));
        let on_log = format!("--media dram --log {}", log.display());
        arguments.extend(words(&match self.mode {
            Mode::Relay => on_log,
            Mode::AfXdp => format!("--mode af-xdp --dev {ports} {on_log}"),
            Mode::Kernel => {
                let pinned = Pinned::new(usize::from(device), 900);
                let arguments = format!("--mode router --dev {ports} --name {}", pinned.0);
                self.pinned.push(pinned);
                arguments
            }
        }));
        arguments
    }

    /// Makes the key of the adversary's own front.
    ///
    /// # Errors
    /// The file of the cluster's key cannot be read.
    pub fn adversary(&self) -> anyhow::Result<Option<FrontKey>> {
        let Some(keys) = &self.keys else {
            return Ok(None);
        };
        let name = FrontName::new("adversary").context("a name of letters")?;
        Ok(Some(Cluster::read(&keys.cluster)?.front(name).key))
    }

    /// Returns the cluster's key, for a genuine caller of the doors.
    ///
    /// # Errors
    /// The file of the cluster's key cannot be read.
    pub fn cluster_key(&self) -> anyhow::Result<Option<ClusterKey>> {
        let cluster = self.keys.as_ref().map(|keys| Cluster::read(&keys.cluster));
        Ok(cluster.transpose()?.map(|cluster| cluster.keys().present))
    }

    /// Returns the TCP doors of devices and server, at the addresses that the client's machine uses, and the status
    /// ports of all roles.
    pub fn doors(&self) -> Vec<Door> {
        let last = self.devices + 1;
        let ctl = (1..=last).map(|number| Door {
            role: match number == last {
                true => "server".to_owned(),
                false => format!("device{number}"),
            },
            from: self.namespace("client1"),
            at: self.address(number),
            kind: DoorKind::Ctl,
        });
        let status = self.roles().map(|role| Door {
            role: role.clone(),
            from: self.namespace(role),
            at: STATUS,
            kind: DoorKind::Status,
        });
        ctl.chain(status).collect()
    }

    /// Returns the address of the device with this number. For the number after the last device, returns the address of
    /// the server.
    pub fn address(&self, device: u8) -> SocketAddr {
        match device > self.devices {
            true => SERVER.into(),
            false => SocketAddr::from((self.ip(&format!("device{device}")), DEVICE_PORT)),
        }
    }

    /// Returns the IP address of this node.
    pub fn ip(&self, node: &str) -> Ipv4Addr {
        let node = self.network.layout().node(node);
        let ip = node.and_then(|node| node.ipv4);
        ip.expect("a node of the layout with an address")
    }

    /// Starts a role with its key on the node of the same name.
    fn launch(&mut self, role: &str, mut arguments: Vec<OsString>) -> anyhow::Result<()> {
        arguments.extend(words(&format!("--status {STATUS}")));
        match (&self.keys, role) {
            (None, _) => arguments.push("--insecure".into()),
            (Some(keys), "client1") => arguments.extend(flag(Some(&keys.front))),
            (Some(keys), _) => arguments.extend(flag(Some(&keys.cluster))),
        }
        let binaries = self.binaries.clone();
        let (program, args) = self.network.program(role, &binaries.pmnet, arguments)?;
        let spec = Spec {
            name: role.to_owned(),
            binaries,
            program: Some(program),
            args,
            ready: Ready::Line,
        };
        let process = Process::start(spec, self.scratch.disk(), START_MAX)?;
        self.processes.insert(role.to_owned(), process);
        Ok(())
    }

    /// Kills a role and starts it again. The role then recovers.
    ///
    /// # Errors
    /// The role does not start again.
    pub fn restart(&mut self, role: &str) -> anyhow::Result<()> {
        let process = self.processes.get_mut(role).context("no such role")?;
        process.kill()?;
        process.relaunch()?;
        process.wait_ready(START_MAX)
    }

    /// Returns the names of all roles: the front, the devices and the server.
    pub fn roles(&self) -> impl Iterator<Item = &String> {
        self.processes.keys()
    }

    /// Returns the roles whose process has ended.
    pub fn ended(&mut self) -> anyhow::Result<Vec<String>> {
        let mut ended = Vec::new();
        for (name, process) in &mut self.processes {
            if process.exited()?.is_some() {
                ended.push(name.clone());
            }
        }
        Ok(ended)
    }

    /// Returns the network namespace of a node.
    pub fn namespace(&self, node: &str) -> String {
        let node = self.network.layout().node(node);
        node.map_or_else(String::new, |node| node.namespace.clone())
    }

    /// Returns the namespaces of the taps, each with the two ends of the tap's link.
    ///
    /// # Errors
    /// The link address of an interface cannot be read.
    pub fn taps(&self) -> anyhow::Result<Vec<(String, [End; 2])>> {
        let last = self.devices + 1;
        let node = |number: u8| match number {
            0 => "client1".to_owned(),
            number if number == last => "server".to_owned(),
            number => format!("device{number}"),
        };
        let end = |number: u8| -> anyhow::Result<End> {
            let name = node(number);
            let interface = self.network.layout().node(&name).map(|node| node.interface);
            let interface = interface.unwrap_or(END_INTERFACE);
            Ok(End {
                mac: self.network.inside(&name, || mac(interface))?,
                ip: self.ip(&name),
                name,
            })
        };
        let taps = (1..=last).map(|tap| {
            Ok((
                self.namespace(&format!("tap{tap}")),
                [end(tap - 1)?, end(tap)?],
            ))
        });
        taps.collect()
    }

    /// Reads all values of a role's status port.
    ///
    /// # Errors
    /// The status port does not answer.
    pub fn metrics(&self, role: &str) -> anyhow::Result<Metrics> {
        let text = self.network.inside(role, || {
            let mut stream = TcpStream::connect_timeout(&STATUS, CALL_MAX)?;
            stream.set_read_timeout(Some(CALL_MAX))?;
            write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        });
        let text = text.with_context(|| format!("the status port of {role}"))?;
        let (_, body) = text.split_once("\r\n\r\n").context("no HTTP")?;
        let lines = body.lines().filter(|line| !line.starts_with('#'));
        let values = lines.map(|line| {
            let (name, value) = line.rsplit_once(' ').context("a metric without a value")?;
            Ok((name.to_owned(), value.parse()?))
        });
        values.collect()
    }

    /// Returns the number of UDP datagrams that were lost because a socket buffer of the machine
    /// was full.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn overrun(&self, role: &str) -> anyhow::Result<u64> {
        self.network.inside(role, || {
            // The file describes the network namespace of the calling thread.
            let text = std::fs::read_to_string("/proc/thread-self/net/snmp")?;
            let mut udp = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
            let (names, values) = (udp.next().context("no UDP")?, udp.next().context("no UDP")?);
            let at = names.split(' ').position(|name| name == "RcvbufErrors");
            let value = at.and_then(|at| values.split(' ').nth(at));
            Ok(value.context("no RcvbufErrors")?.parse()?)
        })
    }

    /// Returns the front's address for clients.
    pub const fn endpoint(&self) -> SocketAddr {
        FRONT
    }

    /// Runs `work` on the machine of the clients. The argument of `work` is the front's address.
    ///
    /// # Errors
    /// `work` fails.
    pub fn at_front<T: Send>(
        &self,
        work: impl FnOnce(SocketAddr) -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        self.network.inside("client1", || work(FRONT))
    }

    /// Runs `work` with a connection to the database.
    ///
    /// # Errors
    /// The database cannot be reached, or `work` fails.
    pub fn at_redis<T: Send>(
        &self,
        work: impl FnOnce(&mut Client) -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        self.network.inside("server", || {
            let mut client = Client::connect(REDIS, CALL_MAX)?;
            work(&mut client)
        })
    }

    /// Prevents that the folder with the processes' output is removed, and returns its path.
    pub fn keep(&mut self) -> &Path {
        self.scratch.keep();
        self.scratch.disk()
    }
}

/// A veth accepts packets that its peer transmits from XDP only if the veth itself has an XDP program. This function
/// attaches a program at each port of a tap that is linked to a device.
fn receivers(network: &Network, devices: u8) -> anyhow::Result<Vec<Plain>> {
    let links = (1..=devices).flat_map(|device| [(device, device), (device + 1, device)]);
    let attached = links.map(|(tap, device)| {
        let (tap, port) = (format!("tap{tap}"), format!("device{device}"));
        network.inside(&tap, || plain::attach(Program::Pass, &port))
    });
    attached.collect()
}

fn start_redis(
    binaries: &Binaries,
    network: &Network,
    scratch: &Scratch,
) -> anyhow::Result<Process> {
    // Only programs in the namespaces of this set-up can reach this Redis.
    let open = ["--protected-mode", "no"].map(String::from);
    let spec = redis_spec(binaries, REDIS, scratch.disk(), &open)?;
    let redis = spec.program.as_deref().context("a Redis is a program")?;
    let (program, args) = network.program("server", redis, spec.args)?;
    let spec = Spec {
        program: Some(program),
        args,
        ..spec
    };
    let mut process = Process::launch(spec, scratch.disk())?;
    network.inside("server", || process.wait_ready(START_MAX))?;
    Ok(process)
}
