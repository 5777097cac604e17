//! A client, a device with its fast path in the kernel, and a server with a real Redis. Each process is on a machine of
//! its own, which is a network namespace. The test removes all objects at its end. If a test is killed, the next test
//! removes its objects.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use pmnet_lab::harness::{Process, Ready, Scratch, Spec, find_program, sweep_namespaces};
use pmnet_lab::resp::Client;
use pmnet_lab::testbed::{Layout, Network, refusal};
use pmnet_lab::xdp::plain::{self, Plain, Program};

use super::load::Writer;
use super::pinned::{Pinned, folder, sweep};
use crate::common;
use crate::support::eventually;

const PORT: u16 = 51_000;
const FOLLOWER_PORT: u16 = 51_001;
const SPARE_PORT: u16 = 51_002;
const SERVER_PORT: u16 = 51_500;
/// Address of Redis on the server's machine, and of the front on the clients' machine.
const REDIS: &str = "127.0.0.1";
const REDIS_PORT: u16 = 6379;
const ETCD_PORT: u16 = 2379;
/// Port of a front on the clients' machine that knows only the head.
const STALE_PORT: u16 = 6380;
/// The front's deadline in milliseconds.
const FRONT_MS: u32 = 1_200;
const STALE_MS: u32 = 400;
const PATIENT_MS: u32 = 60_000;
/// Time within which a process must serve.
pub const READY_MAX: Duration = Duration::from_secs(60);
static COUNT: AtomicU32 = AtomicU32::new(0);

/// The server processes, by shard.
const SERVERS: [&str; 2] = ["server", "server2"];
/// The processes of all devices except the first.
const FOLLOWERS: [&str; 2] = ["follower", "follower2"];

/// Names of additional ordinary devices.
const RELAYS: [&str; 8] = [
    "relay1", "relay2", "relay3", "relay4", "relay5", "relay6", "relay7", "relay8",
];

/// Where the device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At the interface of the server's machine.
    Nic,
    /// On a machine between client and server.
    Router,
    /// In the bridge of a machine between client and server. Clients do not know about the device.
    Switch,
}

/// The parts of a world.
#[derive(Clone, Debug)]
pub struct Plan {
    pub place: Place,
    /// All machines use IPv6.
    pub ipv6: bool,
    /// Number of devices between this device and the server, at most 2.
    pub followers: usize,
    /// If true, the other devices of the chain are in the kernel too. If false, the other devices are ordinary
    /// processes.
    pub followers_in_kernel: bool,
    /// Further arguments of the device.
    pub args: Vec<String>,
    /// The server reads the log in the kernel directly.
    pub reads_log: bool,
    /// At its end the device saves the log in the file [`World::spill`].
    pub spill: bool,
    /// The kind of medium, if the device bypasses the kernel's network stack.
    pub direct: Option<&'static str>,
    /// Only with `direct`: the device is also the server, and its log is in a region with a store.
    pub region: bool,
    /// Folder of the device's log; `None`: the usual folder.
    pub folder: Option<PathBuf>,
    /// Devices and server belong to a fleet. An etcd and a controller run on the server's machine.
    pub fleet: bool,
    /// The device is an ordinary one, which uses a UDP socket.
    pub relay: bool,
    /// MTU of every interface; `None`: 1500.
    pub mtu: Option<u16>,
    /// Number of shards, at most 2. Each shard has a server of its own. With two shards, one device process serves
    /// both, and every interface at its link has two queues. In the kernel, [`World::start_beside`] starts a device for
    /// the second shard instead.
    pub shards: u32,
}

impl Plan {
    pub fn new(place: Place) -> Plan {
        Plan {
            place,
            ipv6: false,
            followers: 0,
            followers_in_kernel: false,
            args: Vec::new(),
            reads_log: false,
            spill: false,
            direct: None,
            region: false,
            folder: None,
            fleet: false,
            relay: false,
            mtu: None,
            shards: 1,
        }
    }
}

/// A running world.
pub struct World {
    // The fields are dropped in the order of their declaration.
    processes: BTreeMap<&'static str, Process>,
    pinned: Pinned,
    followers_pinned: Vec<Pinned>,
    _pass: Option<Plain>,
    network: Arc<Network>,
    scratch: Scratch,
    plan: Plan,
}

/// Returns the reason why these tests cannot run on this machine; `None` if they can.
fn refused() -> Option<String> {
    let reason = refusal().or_else(|| {
        (!plain::is_built()).then(|| "built without clang: no programs for the kernel".to_owned())
    });
    let reason = reason.or_else(|| {
        let missing = ["redis-server", "nsenter"]
            .into_iter()
            .find(|program| find_program(program).is_none())?;
        Some(format!("{missing} is not installed"))
    })?;
    common::skip(&reason);
    Some(reason)
}

fn words(text: &str) -> Vec<OsString> {
    text.split_whitespace().map(OsString::from).collect()
}

impl World {
    /// Starts all processes except the device. Returns `None` if the tests cannot run on this machine.
    pub fn without_device(plan: Plan) -> Option<World> {
        if refused().is_some() {
            return None;
        }
        if plan.fleet && find_program("etcd").is_none() {
            common::skip("etcd is not installed");
            return None;
        }
        sweep_namespaces();
        sweep();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id();
        let hops = match plan.place {
            Place::Nic => 0,
            Place::Router | Place::Switch => 1 + plan.followers,
        };
        let hops = u8::try_from(hops).unwrap();
        let layout = Layout::new(&format!("pmnet-{pid}-k{number}-"), 1, hops);
        let network = Network::create(layout).expect("a network");
        if plan.shards > 1 && plan.direct.is_some() {
            // With an XDP program, one end of a link needs as many receive queues as the other end has transmit queues.
            for (node, queues) in [
                ("client1", "rx 2 tx 1"),
                ("server", "rx 2 tx 2"),
                ("client1", "rx 2 tx 2"),
            ] {
                let run = || -> anyhow::Result<Output> {
                    let args = words(&format!("-L eth0 {queues}"));
                    Ok(Command::new("ethtool").args(args).output()?)
                };
                let output = network.inside(node, run).expect("ethtool");
                assert!(output.status.success(), "{node}, {queues}: {output:?}");
            }
        }
        if let Some(mtu) = plan.mtu {
            network.set_mtu(mtu).expect("an MTU");
        }
        // A veth accepts packets that its peer transmits from XDP only if the veth itself has an XDP program.
        let pass = (!plan.relay).then(|| {
            network
                .inside("client1", || plain::attach(Program::Pass, "eth0"))
                .expect("a program that passes everything")
        });
        let mut world = World {
            processes: BTreeMap::new(),
            pinned: Pinned::new(number),
            followers_pinned: Vec::new(),
            _pass: pass,
            network: Arc::new(network),
            scratch: Scratch::new(common::folder(), "kernel").expect("a folder"),
            plan,
        };
        let disk = world.scratch.disk().display().to_string();
        let redis = format!(
            "--bind {REDIS} --port {REDIS_PORT} --appendonly yes --appendfsync always --save '' \
             --auto-aof-rewrite-percentage 0 --daemonize no --loglevel warning --dir {disk}"
        );
        let redis = words(&redis)
            .into_iter()
            .map(|word| if word == "''" { OsString::new() } else { word });
        let program = find_program("redis-server").expect("looked for before");
        let serves = Ready::Line;
        world.launch("redis", "server", &program, redis.collect(), serves);
        eventually("Redis answers", READY_MAX, || {
            world.redis().call(&["PING"]).is_ok()
        });
        if world.plan.fleet {
            world.start_etcd();
        }
        for (shard, name) in (0..world.shards()).zip(SERVERS) {
            let mut listen = world.server();
            listen.set_port(listen.port() + u16::try_from(shard).unwrap());
            let mut args = format!(
                "server --listen {listen} --shard {shard} --store redis://{REDIS}:{REDIS_PORT}"
            );
            if world.plan.reads_log {
                args += &format!(" --device-log {}", world.name());
            }
            args += &world.fleet_flags();
            world.own(name, "server", words(&args));
            world.wait_ready(name);
        }
        // The last device starts first, because the server learns the chain beginning with the last device.
        for index in (0..world.plan.followers).rev() {
            world.start_follower(index);
        }
        Some(world)
    }

    fn start_follower(&mut self, index: usize) {
        let name = FOLLOWERS[index];
        let next = match FOLLOWERS.get(index + 1) {
            Some(next) if index + 1 < self.plan.followers => self.follower(next),
            _ => self.server(),
        };
        let is_switch = self.plan.place == Place::Switch && self.plan.followers_in_kernel;
        let listen = match is_switch {
            true => self.server(),
            false => self.follower(name),
        };
        let id = index + 2;
        let mut args = format!("device --listen {listen} --next {next} --id {id} ");
        if self.plan.followers_in_kernel {
            let pinned = Pinned::new(1_000 * (COUNT.fetch_add(1, Ordering::Relaxed) + 1));
            let behind = match next == self.server() {
                true => "server".to_owned(),
                false => format!("device{}", index + 3),
            };
            let before = index + 1;
            let mode = match is_switch {
                true => format!("switch --address {}", self.follower(name).ip()),
                false => "router".to_owned(),
            };
            args += &format!(
                "--mode {mode} --dev device{before},{behind} --name {}",
                pinned.name()
            );
            self.followers_pinned.push(pinned);
        } else {
            let log = self.scratch.memory().join(format!("{name}.log"));
            args += &format!("--media dram --log {}", log.display());
        }
        args += &self.fleet_flags();
        self.own(name, self.node(name), words(&args));
    }

    /// Returns the address to which the hop before this device sends.
    fn follower(&self, name: &str) -> SocketAddr {
        match (self.plan.place, self.plan.followers_in_kernel) {
            (Place::Switch, true) => self.address(name, SERVER_PORT),
            _ => self.address(name, FOLLOWER_PORT),
        }
    }

    fn start_etcd(&mut self) {
        let client = format!("http://{}", self.etcd());
        let peer = format!("http://127.0.0.1:{}", ETCD_PORT + 1);
        let data = self.scratch.disk().join("etcd");
        let args = format!(
            "--data-dir {} --listen-client-urls {client} --advertise-client-urls {client} --listen-peer-urls {peer} \
             --initial-advertise-peer-urls {peer} --initial-cluster default={peer} --log-level error",
            data.display()
        );
        let program = find_program("etcd").expect("looked for before");
        self.launch("etcd", "server", &program, words(&args), Ready::Line);
        let at = self.etcd();
        eventually("etcd answers", READY_MAX, || {
            self.inside("server", || TcpStream::connect(at).is_ok())
        });
    }

    fn etcd(&self) -> SocketAddr {
        SocketAddr::new(self.server().ip(), ETCD_PORT)
    }

    /// Returns the flags for the fleet; empty if the world has no fleet.
    fn fleet_flags(&self) -> String {
        match self.plan.fleet {
            true => format!(" --fleet kernel --etcd http://{}", self.etcd()),
            false => String::new(),
        }
    }

    /// Starts a controller, and waits until it knows the chain.
    pub fn start_controller(&mut self) {
        let args = format!("controller --json{}", self.fleet_flags());
        self.own("controller", "server", words(&args));
        self.wait_ready("controller");
        self.until_done(r#""step":"adopt""#, 1);
    }

    /// Waits until the controller has taken this step `times` times.
    pub fn until_done(&mut self, step: &str, times: usize) {
        let controller = &self.processes["controller"];
        eventually(step, READY_MAX, || {
            controller.stdout().matches(step).count() >= times
        });
    }

    /// Starts an ordinary device on the server's machine, as a spare that waits for a place in the chain.
    pub fn start_spare(&mut self) {
        let (listen, server) = (self.spare(), self.server());
        let log = self.scratch.memory().join("spare.log");
        let args = format!(
            "device --join --listen {listen} --next {server} --id 9 --media dram --log {}{}",
            log.display(),
            self.fleet_flags()
        );
        self.own("spare", "server", words(&args));
    }

    fn spare(&self) -> SocketAddr {
        self.address(RELAYS[0], SPARE_PORT)
    }

    /// Runs `pmnet ctl` for a shard without a fleet. Returns the exit code and the output.
    pub fn ctl(&self, args: &str) -> (Option<i32>, String) {
        let server = self.server();
        let (device, other) = match self.plan.place {
            // A switch has an address of its own, to which clients do not send.
            Place::Switch => (
                self.address("device", SERVER_PORT),
                self.follower(FOLLOWERS[0]),
            ),
            _ => (self.head(), self.spare()),
        };
        let args = format!("ctl --via {device},{other} --server {server} {args}");
        let output = self.run(common::pmnet(), words(&args));
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        println!("{args}:\n{text}");
        assert!(!text.contains("panicked"), "{text}");
        (output.status.code(), text)
    }

    /// Starts all processes, and waits until they serve. Returns `None` if the tests cannot run on this machine.
    pub fn start(plan: Plan) -> Option<World> {
        let mut world = World::without_device(plan)?;
        world.start_device();
        world.wait_ready("device");
        Some(world)
    }

    /// Starts a front on the clients' machine, and waits until it serves. Returns its address.
    pub fn start_front(&mut self) -> SocketAddr {
        let (listen, via) = (self.redis_address(), self.head().to_string());
        self.front("front", listen, &via, FRONT_MS);
        listen
    }

    /// Starts a front that knows only the first device, and has a short deadline.
    pub fn start_stale_front(&mut self) -> SocketAddr {
        let listen = SocketAddr::new(self.redis_address().ip(), STALE_PORT);
        let via = self.head().to_string();
        self.front("stale", listen, &via, STALE_MS);
        listen
    }

    /// Starts a front that knows all devices. The deadline of this front is longer than any test.
    pub fn start_following_front(&mut self) -> SocketAddr {
        let listen = self.redis_address();
        let followers = FOLLOWERS[..self.plan.followers].iter();
        let followers = followers.map(|name| self.address(name, FOLLOWER_PORT).to_string());
        let via: Vec<String> = [self.head().to_string()]
            .into_iter()
            .chain(followers)
            .collect();
        self.front("front", listen, &via.join(","), PATIENT_MS);
        listen
    }

    /// Starts a front on the clients' machine with further arguments. Returns its address.
    pub fn start_front_with(&mut self, deadline_ms: u32, more: &str) -> SocketAddr {
        let (listen, via) = (self.redis_address(), format!("{} {more}", self.head()));
        self.front("front", listen, &via, deadline_ms);
        listen
    }

    fn front(&mut self, name: &'static str, listen: SocketAddr, via: &str, deadline_ms: u32) {
        let args = format!(
            "redis --anyone-may-connect --listen {listen} --via {via} --deadline-ms {deadline_ms} --cache log"
        );
        self.own(name, "client1", words(&args));
        self.wait_ready(name);
    }

    /// Starts the device for the first time or again. Does not wait until the device serves.
    pub fn start_device(&mut self) {
        if self.processes.contains_key("device") {
            self.process("device").relaunch().unwrap();
        } else {
            let args = self.device_args();
            self.own("device", self.node("device"), args);
        }
    }

    /// Starts another device in the kernel, for shard 1, at the interfaces of the device. The process of the new device
    /// is named `beside`. When this device is stopped, its log is saved. Does not wait until the new device serves.
    pub fn start_beside(&mut self) {
        let pinned = Pinned::new(1_000 * (COUNT.fetch_add(1, Ordering::Relaxed) + 1));
        let mut next = self.server();
        next.set_port(next.port() + 1);
        let mut args = self.device_args();
        for (option, value) in [
            ("--listen", self.head_of(1).to_string()),
            ("--next", next.to_string()),
            ("--name", pinned.name().to_owned()),
        ] {
            let at = args.iter().position(|known| known == option).unwrap();
            args[at + 1] = value.into();
        }
        let saved = self.scratch.disk().join("beside.log");
        args.extend(words(&format!("--shard 1 --spill {}", saved.display())));
        self.followers_pinned.push(pinned);
        self.own("beside", self.node("device"), args);
    }

    /// Starts an ordinary device on the server's machine. Does not wait until the device serves.
    pub fn start_relay(&mut self, index: usize, listen: SocketAddr, next: SocketAddr) {
        let name = RELAYS[index];
        let log = self.scratch.memory().join(format!("{name}.log"));
        let args = format!(
            "device --listen {listen} --next {next} --id {} --media dram --log-size 64K --log {}",
            index + 1,
            log.display()
        );
        self.own(name, "server", words(&args));
    }

    /// Starts to remove the device from the kernel. The process that removes the device is named `detach`.
    pub fn start_detach(&mut self) {
        if self.processes.contains_key("detach") {
            self.process("detach").relaunch().unwrap();
        } else {
            let mut args = self.device_args();
            args.push("--detach".into());
            self.own("detach", self.node("device"), args);
        }
    }

    /// Returns whether the device continues in the kernel while its process is dead.
    pub fn is_in_kernel(&self) -> bool {
        self.plan.direct.is_none() && !self.plan.relay
    }

    /// Returns the device's command line.
    pub fn device_args(&self) -> Vec<OsString> {
        let next = if self.plan.followers > 0 {
            self.follower(FOLLOWERS[0])
        } else {
            self.server()
        };
        let (mode, interface) = match self.plan.place {
            Place::Nic => ("nic", "eth0"),
            // Confirmations from the next hop arrive at another port than the packets of clients.
            Place::Router if self.plan.followers > 0 => ("router", "client1,device2"),
            Place::Router => ("router", "client1"),
            Place::Switch if self.plan.followers > 0 => ("switch", "client1,device2"),
            Place::Switch => ("switch", "client1,server"),
        };
        let head = self.head();
        if let Some(media) = self.plan.direct {
            let log = self.log().display().to_string();
            let place = match self.plan.region {
                true => format!("--store packet:{log}?size=64M&media={media} --log-size 16M"),
                false => format!("--next {next} --media {media} --log {log}"),
            };
            let mut args = words(&format!(
                "device --mode af-xdp --dev {interface} --listen {head} --id 1 {place}"
            ));
            if self.shards() > 1 {
                args.extend(words(&format!("--shards {}", self.shards())));
            }
            args.extend(words(&self.fleet_flags()));
            args.extend(self.plan.args.iter().map(OsString::from));
            return args;
        }
        if self.plan.relay {
            let log = self.scratch.memory().join("device.log");
            let mut args = words(&format!(
                "device --listen {head} --next {next} --id 1 --media dram --log {}",
                log.display()
            ));
            args.extend(self.plan.args.iter().map(OsString::from));
            return args;
        }
        let mut args = words(&format!(
            "device --mode {mode} --dev {interface} --listen {head} --next {next} --id 1 --name {}",
            self.pinned.name()
        ));
        if self.plan.place == Place::Switch {
            let own = self.address("device", PORT).ip().to_string();
            args.extend(["--address".into(), own.into()]);
        }
        if self.plan.reads_log {
            args.push("--server-reads-log".into());
        }
        if self.plan.spill {
            args.extend(["--spill".into(), self.spill().into_os_string()]);
        }
        args.extend(words(&self.fleet_flags()));
        args.extend(self.plan.args.iter().map(OsString::from));
        args
    }

    fn node(&self, process: &str) -> &'static str {
        match (process, self.plan.place) {
            ("device", Place::Router | Place::Switch) => "device1",
            ("follower", Place::Router | Place::Switch) => "device2",
            ("follower2", Place::Router | Place::Switch) => "device3",
            _ => "server",
        }
    }

    fn address(&self, process: &str, port: u16) -> SocketAddr {
        let node = self.network.layout().node(self.node(process)).unwrap();
        let address = if self.plan.ipv6 {
            IpAddr::from(node.ipv6.unwrap())
        } else {
            IpAddr::from(node.ipv4.unwrap())
        };
        SocketAddr::new(address, port)
    }

    /// Returns the address to which clients send.
    pub fn head(&self) -> SocketAddr {
        match self.plan.place {
            // Clients send to the server's address, but their packets never reach the server.
            Place::Switch => self.server(),
            _ => self.address("device", PORT),
        }
    }

    /// Returns the number of shards.
    pub fn shards(&self) -> u32 {
        self.plan.shards
    }

    /// Returns the address to which clients of a shard send.
    pub fn head_of(&self, shard: u32) -> SocketAddr {
        let mut head = self.head();
        head.set_port(head.port() + u16::try_from(shard).unwrap());
        head
    }

    fn server(&self) -> SocketAddr {
        self.address("server", SERVER_PORT)
    }

    /// Returns the path of the log of a device that is not in the kernel.
    pub fn log(&self) -> PathBuf {
        if let Some(folder) = &self.plan.folder {
            return folder.join("device.log");
        }
        match self.plan.direct {
            Some("dram") => self.scratch.memory().join("device.log"),
            _ => self.scratch.disk().join("device.log"),
        }
    }

    /// Returns the path of the file in which the log is saved.
    pub fn spill(&self) -> PathBuf {
        self.scratch.disk().join("saved.log")
    }

    /// Returns a folder that is removed at the end, unless the test fails.
    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// Returns the folder of the device's pinned objects.
    pub fn pins(&self) -> PathBuf {
        folder(self.pinned.name())
    }

    /// Returns the name of the device in the kernel.
    pub fn name(&self) -> &str {
        self.pinned.name()
    }

    /// Returns the program and the arguments with which a program is started in the namespace of a node.
    pub fn nsenter(&self, node: &str, program: &Path, args: Vec<OsString>) -> Vec<OsString> {
        let namespace = &self.network.layout().node(node).unwrap().namespace;
        let mut all = words(&format!("--net=/run/netns/{namespace} --"));
        all.push(program.into());
        all.extend(args);
        all
    }

    fn own(&mut self, name: &'static str, node: &str, args: Vec<OsString>) {
        self.launch(name, node, common::pmnet(), args, Ready::Line);
    }

    fn launch(
        &mut self,
        name: &'static str,
        node: &str,
        program: &Path,
        args: Vec<OsString>,
        ready: Ready,
    ) {
        let spec = Spec {
            name: name.to_owned(),
            binaries: common::binaries().clone(),
            program: find_program("nsenter"),
            args: self.nsenter(node, program, args),
            ready,
        };
        let process = Process::launch(spec, self.scratch.disk()).unwrap();
        self.processes.insert(name, process);
    }

    /// Runs a program to its end in the device's namespace. Kills the program after 10 s.
    pub fn run(&self, program: &Path, args: Vec<OsString>) -> Output {
        let mut all = words("10 nsenter");
        all.extend(self.nsenter(self.node("device"), program, args));
        let mut command = Command::new("timeout");
        // These networks have no other users, so the processes may run without keys.
        for role in ["DEVICE", "SERVER", "REDIS"] {
            command.env(format!("PMNET_{role}_INSECURE"), "true");
        }
        command.args(all).output().unwrap()
    }

    /// Returns the output of `pmnet status` about the device.
    pub fn status(&self) -> serde_json::Value {
        self.status_of(self.name())
    }

    /// Returns the output of `pmnet status` about the next device of the chain, or about the device `beside`.
    pub fn follower_status(&self) -> serde_json::Value {
        self.status_of(self.followers_pinned[0].name())
    }

    fn status_of(&self, name: &str) -> serde_json::Value {
        let args = ["status", name, "--json"].map(OsString::from);
        let output = self.run(common::pmnet(), args.to_vec());
        assert!(output.status.success(), "{output:?}");
        let all: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        all[0].clone()
    }

    /// Runs the device's command line with further arguments. An argument replaces an equal flag of the command line.
    /// Returns whether the command succeeded, and its output.
    pub fn device_with(&self, more: &[&str]) -> (bool, String) {
        let mut args = self.device_args();
        let mut more = more.iter().map(OsString::from).peekable();
        while let Some(option) = more.next() {
            match args.iter().position(|known| *known == option) {
                Some(at) => args[at + 1] = more.next().expect("a value"),
                None => args.push(option),
            }
        }
        let output = self.run(common::pmnet(), args);
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(!text.contains("panicked"), "{text}");
        (output.status.success(), text)
    }

    /// Returns the output of `pmnet status` about the fleet.
    pub fn fleet_status(&self) -> String {
        let args = words(&format!("status --json{}", self.fleet_flags()));
        let output = self.run(common::pmnet(), args);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns whether the device's interface has an XDP program, according to `ip link`.
    pub fn has_program(&self) -> bool {
        let ip = find_program("ip").unwrap();
        let interface = match self.plan.place {
            Place::Nic => "eth0",
            Place::Router | Place::Switch => "client1",
        };
        let output = self.run(&ip, words(&format!("-d link show dev {interface}")));
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).contains("prog/xdp")
    }

    /// Returns one of the processes.
    pub fn process(&mut self, name: &str) -> &mut Process {
        self.processes.get_mut(name).unwrap()
    }

    pub fn wait_ready(&mut self, name: &str) {
        self.process(name).wait_ready(READY_MAX).unwrap();
    }

    /// Kills a process (`kill -9`). The test fails if the process had already ended by itself.
    pub fn kill(&mut self, name: &str) {
        let process = self.process(name);
        if let Some(status) = process.exited().unwrap() {
            panic!("{name} ended by itself ({status}): {}", process.stderr());
        }
        process.kill().unwrap();
    }

    /// Starts a killed process again, and waits until it serves.
    pub fn restart(&mut self, name: &str) {
        self.process(name).relaunch().unwrap();
        if name == "redis" {
            eventually("Redis answers again", READY_MAX, || {
                self.try_redis()
                    .is_ok_and(|mut redis| redis.call(&["PING"]).is_ok())
            });
        } else {
            self.wait_ready(name);
        }
    }

    /// Stops a process with SIGTERM. The process must end with exit code 0.
    pub fn stop(&mut self, name: &str) {
        let process = self.process(name);
        let good = process.stop().unwrap();
        assert!(
            good,
            "{name} did not end in good order: {}",
            process.stderr()
        );
    }

    /// Runs `work` on another thread, on one of the machines.
    pub fn inside<T: Send>(&self, node: &str, work: impl FnOnce() -> T + Send) -> T {
        self.network.inside(node, || Ok(work())).unwrap()
    }

    /// Opens a session on the client's machine. The calls of the session end within `deadline`.
    pub fn session(&self, deadline: Duration) -> Writer {
        let head = self.head();
        self.inside("client1", || Writer::open(head, deadline))
    }

    /// Opens a session of a shard on the client's machine.
    pub fn session_of(&self, shard: u32, deadline: Duration) -> Writer {
        let head = self.head_of(shard);
        self.inside("client1", || Writer::open_of(shard, head, deadline))
    }

    /// Returns the machines, for threads that run on them.
    pub fn network(&self) -> Arc<Network> {
        Arc::clone(&self.network)
    }

    /// Returns the address of the database, on the server's machine.
    pub fn redis_address(&self) -> SocketAddr {
        SocketAddr::new(REDIS.parse().unwrap(), REDIS_PORT)
    }

    fn try_redis(&self) -> anyhow::Result<Client> {
        let address = self.redis_address();
        self.network.inside("server", || {
            Client::connect(address, Duration::from_secs(20)).context("no Redis")
        })
    }

    /// Connects directly to the database.
    pub fn redis(&self) -> Client {
        let deadline = Instant::now() + READY_MAX;
        loop {
            match self.try_redis() {
                Ok(client) => return client,
                Err(error) => assert!(Instant::now() < deadline, "{error:#}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for (name, process) in &self.processes {
                eprintln!("--- {name}:\n{}", process.stderr());
            }
        }
    }
}
