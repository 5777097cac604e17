//! A complete shard in a fleet, with real processes. The shard repairs itself, with a service manager that restarts
//! processes which have ended.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use pmnet_lab::harness::{Medium, Namespaces, Process, Ready, Scratch, Spec, find_program};
use pmnet_lab::resp::Client;
use rustix::process::Signal;

use super::plan::{How, Kind, Place, WorldPlan};
use super::state::State;
use crate::common;
use crate::failover::call;
use crate::fleet::etcd::Etcds;
use crate::sentinel;
use crate::support::{connect, eventually};

/// Time within which a restarted process must serve, and time within which a new world must serve.
const READY_MAX: Duration = Duration::from_secs(40);
/// Deadline of one question to a Redis or a Sentinel.
const ASK_MAX: Duration = Duration::from_secs(2);
/// UDP port of every device and of the server.
const DEVICE_PORT: u16 = pmnet_wire::PORT_FIRST;
const SERVER_PORT: u16 = DEVICE_PORT + 500;
/// Numbers of processes: Redis masters and replicas; Sentinels; controllers; fronts; members of etcd.
const REDIS: usize = 3;
const SENTINELS: usize = 3;
const CONTROLLERS: usize = 2;
const FRONTS: usize = 2;
const ETCDS: usize = 3;
/// Maximum number of characters of a log line that an error quotes.
const SAID_CHARS: usize = 300;
/// Texts that a device logs when it ends because the chain continues without it. The service manager then restarts the
/// device with --join.
const LEFT_OUT: [&str; 4] = [
    "is not a member of the chain",
    // The device learns of the new chain while it cannot reach etcd.
    "does not fit the chain",
    "must join anew",
    "was declared stopped",
];

/// One process of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Device(usize),
    Server,
    Redis(usize),
    Controller(usize),
    Front(usize),
}

struct Member {
    who: Who,
    process: Process,
    /// The process was killed, and not started again yet.
    down: bool,
}

/// A fault that has begun, with the data that is needed to end it.
#[derive(Clone, Copy, Debug)]
pub enum Begun {
    Killed(Who),
    Stopped(Who),
    Cut(usize),
    Etcd(usize),
}

pub struct World {
    pub plan: WorldPlan,
    // The fields are dropped in the order of their declaration.
    members: Vec<Member>,
    sentinels: Vec<(Process, SocketAddr)>,
    redis: Vec<SocketAddr>,
    fronts: Vec<SocketAddr>,
    etcds: Etcds,
    flags: Vec<String>,
    /// Indices of devices that have a fault.
    busy: Vec<usize>,
    /// Number of devices that ended by themselves because the chain continued without them.
    pub ended: usize,
    namespaces: Namespaces,
    scratch: Scratch,
}

impl World {
    /// Starts a world. Returns `None` if etcd is not installed. Moves the calling thread into the world's network. The
    /// thread must outlive the world.
    pub fn start(plan: WorldPlan, name: &str) -> anyhow::Result<Option<World>> {
        let count = plan.devices + plan.spares;
        let mut nodes: Vec<String> = (0..count).map(|at| format!("d{at}")).collect();
        nodes.push("etcd".to_owned());
        let namespaces = Namespaces::create(&nodes)?;
        namespaces.enter_hub()?;
        let inside = |program: PathBuf, args| namespaces.inside(count, &program, args).unwrap();
        // All files, including those of Redis, are in memory. No machine loses power in these runs, and a disk that
        // others use delays writes by seconds.
        let scratch = Scratch::new(common::folder(), name)?;
        let machine = namespaces.address(count);
        let Some(etcds) = Etcds::start_at(name, ETCDS, scratch.memory(), machine, inside) else {
            return Ok(None);
        };
        let mut world = World {
            plan,
            members: Vec::new(),
            sentinels: Vec::new(),
            redis: Vec::new(),
            fronts: Vec::new(),
            flags: etcds.flags(),
            etcds,
            busy: Vec::new(),
            ended: 0,
            namespaces,
            scratch,
        };
        let started = world.start_all();
        if started.is_err() {
            world.scratch.keep();
        }
        started.map(|()| Some(world))
    }

    fn start_all(&mut self) -> anyhow::Result<()> {
        self.start_stores()?;
        let server = self.server();
        let mut args = words(&["server", "--listen", &server.to_string(), "--store"]);
        args.push(sentinel::url(&self.sentinels, self.plan.confirm).into());
        self.add(Who::Server, args, true)?;
        let devices = self.plan.devices;
        for index in (0..devices).rev() {
            let behind = index + 1;
            let next = if behind < devices {
                self.device(behind)
            } else {
                server
            };
            self.add_device(index, next, &[])?;
        }
        for index in 0..CONTROLLERS {
            self.add(
                Who::Controller(index),
                words(&["controller", "--json"]),
                true,
            )?;
        }
        // While a chain forms, it grows at its head. So for a moment the last device alone looks like a complete chain.
        self.state_when(READY_MAX, |state| {
            state.is_formed() && state.chain().len() == devices
        })?;
        for index in devices..devices + self.plan.spares {
            self.add_device(index, server, &["--join"])?;
        }
        // From now on, a device that was left out may join again.
        for member in &mut self.members {
            if matches!(member.who, Who::Device(_)) {
                member.process.set_flag("--join", None);
            }
        }
        for index in 0..FRONTS {
            let listen = local()?;
            self.fronts.push(listen);
            let text = listen.to_string();
            let args = ["redis", "--listen", &text, "--deadline-ms", "60000"];
            let args = [&args[..], &["--anyone-may-connect"]].concat();
            self.add(Who::Front(index), words(&args), true)?;
        }
        let deadline = Instant::now() + READY_MAX;
        while !self.is_whole()? {
            self.tend()?;
            ensure!(Instant::now() < deadline, "the world is not whole");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Starts a master, its replicas, and the Sentinels that watch them. Each process has a configuration file of its
    /// own, so that Sentinel's changes survive the process.
    fn start_stores(&mut self) -> anyhow::Result<()> {
        let program = find_program("redis-server").context("no redis-server")?;
        for index in 0..REDIS {
            let address = local()?;
            let folder = self.scratch.memory().join(format!("redis-{index}"));
            std::fs::create_dir_all(&folder)?;
            let mut config = format!(
                "bind 127.0.0.1\nport {}\ndir {}\nappendonly yes\nappendfsync always\nsave \"\"\n\
                 auto-aof-rewrite-percentage 0\nloglevel warning\nrepl-diskless-sync-delay 0\n",
                address.port(),
                folder.display()
            );
            if let Some(master) = self.redis.first() {
                config += &format!("replicaof 127.0.0.1 {}\n", master.port());
            }
            let path = folder.join("redis.conf");
            std::fs::write(&path, config)?;
            let spec = Spec {
                name: format!("redis-{index}"),
                binaries: common::binaries().clone(),
                program: Some(program.clone()),
                args: vec![path.into()],
                ready: Ready::Redis(address),
            };
            let process = Process::start(spec, self.scratch.disk(), READY_MAX)?;
            self.redis.push(address);
            self.members.push(Member {
                who: Who::Redis(index),
                process,
                down: false,
            });
        }
        eventually("the replicas have everything", READY_MAX, || {
            self.replicas_are_there()
        });
        for index in 0..SENTINELS {
            let folder = self.scratch.disk().join(format!("sentinel-{index}"));
            self.sentinels
                .push(sentinel::sentinel(self.redis[0], &folder));
        }
        for (_, at) in &self.sentinels {
            let mut asks = connect(*at);
            eventually("the Sentinels know each other", READY_MAX, || {
                let says = call(&mut asks, &format!("SENTINEL MASTER {}", sentinel::NAME));
                sentinel::field(&says, "num-slaves") == "2"
                    && sentinel::field(&says, "num-other-sentinels") == "2"
            });
        }
        Ok(())
    }

    fn add_device(&mut self, index: usize, next: SocketAddr, more: &[&str]) -> anyhow::Result<()> {
        let folder = match self.plan.medium {
            Medium::Dram => self.scratch.memory(),
            Medium::File => self.scratch.disk(),
        };
        let log = folder.join(format!("device{}.log", index + 1));
        let (listen, next) = (self.device(index).to_string(), next.to_string());
        let id = (index + 1).to_string();
        let mut args = words(&["device", "--listen", &listen, "--next", &next, "--id", &id]);
        args.extend(words(&[
            "--media",
            self.plan.medium.name(),
            "--log-size",
            "32M",
        ]));
        args.extend([OsString::from("--log"), log.into()]);
        args.extend(words(more));
        self.add(Who::Device(index), args, more.is_empty())
    }

    fn add(&mut self, who: Who, mut args: Vec<OsString>, waits: bool) -> anyhow::Result<()> {
        args.extend(words(&self.flags));
        let product = common::pmnet().to_owned();
        let (name, (program, args)) = match who {
            Who::Device(index) => (
                format!("device{}", index + 1),
                self.namespaces.inside(index, &product, args)?,
            ),
            Who::Controller(index) => (format!("controller-{index}"), (product, args)),
            Who::Front(index) => (format!("front-{index}"), (product, args)),
            Who::Server | Who::Redis(_) => ("server".to_owned(), (product, args)),
        };
        let spec = Spec {
            name,
            binaries: common::binaries().clone(),
            program: Some(program),
            args,
            ready: Ready::Line,
        };
        let mut process = Process::launch(spec, self.scratch.disk())?;
        if waits && !matches!(who, Who::Device(_)) {
            process.wait_ready(READY_MAX)?;
        }
        self.members.push(Member {
            who,
            process,
            down: false,
        });
        Ok(())
    }

    fn device(&self, index: usize) -> SocketAddr {
        SocketAddr::from((self.namespaces.address(index), DEVICE_PORT))
    }

    /// The server is on the router between all machines.
    fn server(&self) -> SocketAddr {
        let [a, b, c, _] = self.namespaces.address(0).octets();
        SocketAddr::from((Ipv4Addr::new(a, b, c, 1), SERVER_PORT))
    }

    /// Returns the addresses for clients.
    pub fn fronts(&self) -> &[SocketAddr] {
        &self.fronts
    }

    pub fn folder(&self) -> &Path {
        self.scratch.disk()
    }

    /// Makes the world leave its folder for inspection.
    pub fn keep_folder(&mut self) {
        self.scratch.keep();
    }

    fn process(&mut self, who: Who) -> anyhow::Result<&mut Member> {
        let found = self.members.iter_mut().find(|member| member.who == who);
        found.with_context(|| format!("no {who:?}"))
    }

    /// Restarts processes that ended by themselves for one of the expected reasons.
    pub fn tend(&mut self) -> anyhow::Result<()> {
        for member in self.members.iter_mut().filter(|member| !member.down) {
            let Some(status) = member.process.exited()? else {
                continue;
            };
            let said = member.process.stderr();
            let last: String = said.lines().last().unwrap_or_default().to_owned();
            let last: String = last.chars().take(SAID_CHARS).collect();
            let expected = matches!(member.who, Who::Device(_))
                && LEFT_OUT.iter().any(|part| said.contains(part))
                && !said.contains("panicked");
            ensure!(expected, "{:?} ended ({status}): {last}", member.who);
            member.process.relaunch()?;
            self.ended += 1;
        }
        Ok(())
    }

    /// Checks that no process panicked.
    pub fn nobody_panicked(&self) -> anyhow::Result<()> {
        for member in &self.members {
            let said = member.process.stderr();
            if let Some(line) = said.lines().find(|line| line.contains("panicked")) {
                bail!("{:?}: {line}", member.who);
            }
        }
        Ok(())
    }

    /// Returns etcd's records about the devices; `None` if etcd does not answer.
    pub fn state(&self) -> anyhow::Result<Option<State>> {
        let status = std::process::Command::new(common::pmnet())
            .args(["status", "--json"])
            .args(&self.flags)
            .output()?;
        if !status.status.success() {
            return Ok(None);
        }
        let text = String::from_utf8(status.stdout)?;
        Ok(Some(State::read(&serde_json::from_str(&text)?)))
    }

    fn state_when(&self, wait: Duration, is: impl Fn(&State) -> bool) -> anyhow::Result<State> {
        let deadline = Instant::now() + wait;
        loop {
            let state = self.state()?;
            match state {
                Some(state) if is(&state) => return Ok(state),
                other if Instant::now() >= deadline => bail!("not within {wait:?}: {other:?}"),
                _ => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Returns whether the chain has the wanted number of devices, and all of them serve.
    pub fn is_restored(&self) -> anyhow::Result<bool> {
        let devices = self.plan.devices;
        let is = |state: State| state.is_formed() && state.chain().len() == devices;
        Ok(self.state()?.is_some_and(is))
    }

    /// Returns whether the chain has the wanted number of devices and serves, every other device is a spare, and etcd
    /// and the stores are complete.
    pub fn is_whole(&mut self) -> anyhow::Result<bool> {
        if self.members.iter().any(|member| member.down) || !self.etcds.are_there() {
            return Ok(false);
        }
        let (all, devices) = (self.plan.devices + self.plan.spares, self.plan.devices);
        let whole = |state: State| {
            let waiting = state.devices.iter().filter(|one| one.waits(state.epoch()));
            state.is_formed() && state.chain().len() == devices && waiting.count() == all - devices
        };
        Ok(self.state()?.is_some_and(whole) && self.replicas_are_there())
    }

    /// Returns the master that a majority of the Sentinels name.
    pub fn master(&self) -> Option<SocketAddr> {
        let named: Vec<SocketAddr> = self
            .sentinels
            .iter()
            .filter_map(|(_, at)| says(*at))
            .collect();
        let majority = |one: &&SocketAddr| {
            named.iter().filter(|other| other == one).count() * 2 > self.sentinels.len()
        };
        named.iter().find(majority).copied()
    }

    fn replicas_are_there(&self) -> bool {
        let master = if self.sentinels.is_empty() {
            self.redis.first().copied()
        } else {
            self.master()
        };
        let online = || {
            let mut client = Client::connect(master?, ASK_MAX).ok()?;
            let info = client.call(&["INFO", "replication"]).ok()?.text()?;
            Some(info.matches("state=online").count())
        };
        online() == Some(REDIS - 1)
    }

    /// Begins a fault.
    pub fn begin(&mut self, kind: Kind, choice: usize) -> anyhow::Result<Begun> {
        let who = match kind {
            Kind::Device(place, how) => {
                let index = self.device_at(place)?;
                self.busy.push(index);
                match how {
                    How::Killed | How::Restarted => Who::Device(index),
                    How::Frozen => {
                        let who = Who::Device(index);
                        self.process(who)?.process.signal(Signal::STOP)?;
                        return Ok(Begun::Stopped(who));
                    }
                    How::CutOff => {
                        let etcd = self.plan.devices + self.plan.spares;
                        self.namespaces.cut(index, etcd)?;
                        self.namespaces.cut(etcd, index)?;
                        return Ok(Begun::Cut(index));
                    }
                }
            }
            Kind::Server => Who::Server,
            Kind::RedisMaster => {
                let master = self.master().context("no majority of the Sentinels")?;
                let index = self.redis.iter().position(|at| *at == master);
                Who::Redis(index.context("the master is none of ours")?)
            }
            Kind::EtcdLeader => {
                let leader = self.etcds.leader();
                self.etcds.kill(leader);
                return Ok(Begun::Etcd(leader));
            }
            Kind::Controller => Who::Controller(choice % CONTROLLERS),
            Kind::Front => Who::Front(choice % FRONTS),
        };
        let member = self.process(who)?;
        member.process.kill()?;
        member.down = true;
        Ok(Begun::Killed(who))
    }

    /// Ends a fault.
    pub fn end(&mut self, begun: Begun) -> anyhow::Result<()> {
        let etcd = self.plan.devices + self.plan.spares;
        let over = match begun {
            Begun::Killed(who) => {
                let member = self.process(who)?;
                member.process.relaunch()?;
                member.down = false;
                who
            }
            Begun::Stopped(who) => {
                self.process(who)?.process.signal(Signal::CONT)?;
                who
            }
            Begun::Cut(index) => {
                self.namespaces.heal(index, etcd)?;
                self.namespaces.heal(etcd, index)?;
                Who::Device(index)
            }
            Begun::Etcd(leader) => {
                self.etcds.relaunch(leader);
                return Ok(());
            }
        };
        self.busy.retain(|index| Who::Device(*index) != over);
        Ok(())
    }

    /// Returns the device at this place of the chain. If this device already has a fault, returns the next device
    /// without a fault.
    fn device_at(&self, place: Place) -> anyhow::Result<usize> {
        let state = self.state_when(READY_MAX, |state| !state.chain().is_empty())?;
        let mut order = state.chain();
        let others: Vec<usize> = (0..self.plan.devices + self.plan.spares)
            .filter(|index| !order.contains(index))
            .collect();
        let at = match place {
            Place::Head => 0,
            Place::Middle => order.len() / 2,
            Place::Tail => order.len() - 1,
            Place::Spare => order.len(),
        };
        order.extend(others);
        let turn = order.iter().cycle().skip(at).take(order.len());
        let free = |index: &&usize| !self.busy.contains(*index);
        let found = turn.copied().find(|index| free(&index));
        found.context("all devices suffer already")
    }
}

/// Returns the master that this Sentinel names.
fn says(sentinel: SocketAddr) -> Option<SocketAddr> {
    let mut client = Client::connect(sentinel, ASK_MAX).ok()?;
    let says = client.call(&["SENTINEL", "MASTER", sentinel::NAME]).ok()?;
    let port = sentinel::field(&says, "port").parse().ok()?;
    Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}

fn local() -> anyhow::Result<SocketAddr> {
    let port = pmnet_lab::harness::free_port()?;
    Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}

fn words<S: AsRef<str>>(words: &[S]) -> Vec<OsString> {
    words.iter().map(|word| word.as_ref().into()).collect()
}
