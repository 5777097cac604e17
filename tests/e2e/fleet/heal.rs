//! A chain that repairs itself. There are a real etcd and two controllers, and devices are lost under load.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use pmnet_lab::harness::{Cluster, Medium, Process, Role, StoreKind, Topology, free_port, settle};
use pmnet_lab::resp::Reply;
use rustix::process::Signal;

use super::etcd::Etcds;
use crate::common;
use crate::status::shown;
use crate::support::{
    Acknowledged, Answer, Caller, eventually, launch, refuses, seed, write_around,
};

/// Length of a lease.
const LEASE: Duration = Duration::from_secs(3);
/// Longest permitted time without an acknowledgement, on a machine with other work. The goal is the length of a lease
/// plus two seconds.
const GAP_MAX: Duration = Duration::from_secs(12);
/// Longest wait until a shard has repaired itself.
pub const HEALED_MAX: Duration = Duration::from_secs(60);

/// A chain in a fleet, with two controllers.
pub struct World {
    pub cluster: Cluster,
    pub controllers: [Process; 2],
    pub flags: Vec<String>,
    /// The logs of the controllers that were killed.
    past: String,
    /// Devices that were started with --join.
    spares: Vec<Role>,
    // The last field, so that etcd ends last.
    pub etcds: Etcds,
}

impl World {
    /// Starts a world. Returns `None` if a program that the world needs is not installed.
    pub fn start(name: &str, devices: usize) -> Option<World> {
        World::with(name, devices, 1)
    }

    /// Starts a world with this number of etcd members.
    pub fn with(name: &str, devices: usize, members: usize) -> Option<World> {
        World::of(Etcds::start(name, members)?, name, devices)
    }

    /// Starts a world with this etcd.
    pub fn of(etcds: Etcds, name: &str, devices: usize) -> Option<World> {
        let mut topology = shown(Topology::new(StoreKind::Redis, devices, Medium::File));
        topology.device_args.extend(etcds.flags());
        topology.server_args.extend(etcds.flags());
        topology.front_follows = true;
        // The deadline is longer than every fault, so that no call has an unknown outcome.
        let patient = ["--deadline-ms", "60000"].map(String::from);
        topology.front_args.extend(patient);
        let cluster = common::start(name, topology)?;
        let flags = etcds.flags();
        let args: Vec<&str> = flags.iter().map(String::as_str).collect();
        let controllers = ["a", "b"].map(|which| {
            let args = [&["controller", "--json"], &args[..]].concat();
            let mut process = launch(&format!("controller-{which}"), cluster.folder(), &args);
            process.wait_ready(HEALED_MAX).unwrap();
            process
        });
        let world = World {
            cluster,
            controllers,
            flags,
            past: String::new(),
            spares: Vec::new(),
            etcds,
        };
        let whole = format!(r#""copies_wanted":{devices},"#);
        eventually("a controller knows the chain", HEALED_MAX, || {
            world.done(&whole) > 0
        });
        Some(world)
    }

    /// Returns how often the two controllers together have taken this step.
    pub fn done(&self, part: &str) -> usize {
        let said = self.controllers.iter().map(Process::stdout);
        let all = said.chain([self.past.clone()]);
        all.map(|said| said.matches(part).count()).sum()
    }

    /// Starts a spare, which waits for a place in the chain.
    pub fn spare(&self) -> Process {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()));
        let log = self.cluster.folder().join("spare.log");
        let (listen, server) = (address.to_string(), self.cluster.server().unwrap());
        let server = server.to_string();
        let mut args = vec!["device", "--join", "--listen", &listen, "--next", &server];
        args.extend(["--media", "file", "--log", log.to_str().unwrap()]);
        args.extend(self.flags.iter().map(String::as_str));
        launch("spare", self.cluster.folder(), &args)
    }

    /// Sends writes while `accident` runs, and for a while after it.
    pub fn under_load<T>(
        &mut self,
        name: &str,
        accident: impl FnOnce(&mut World) -> T,
    ) -> (Acknowledged, T) {
        let endpoint = self.cluster.endpoint().unwrap();
        write_around(endpoint, name, Duration::from_secs(1), || accident(self))
    }

    /// Kills one controller, and starts it again. The controller's earlier steps still count.
    pub fn kill_controller(&mut self, which: usize) {
        let controller = &mut self.controllers[which];
        controller.kill().unwrap();
        self.past += &controller.stdout();
        controller.relaunch().unwrap();
    }

    pub fn signal(&mut self, role: Role, signal: Signal) {
        let process = self.cluster.process(role).unwrap();
        process.signal(signal).unwrap();
    }

    /// Makes a device that was left out join again, as a spare.
    pub fn comes_back(&mut self, role: Role, frozen: bool) {
        let process = self.cluster.process(role).unwrap();
        if frozen {
            process.signal(Signal::CONT).unwrap();
        }
        if !self.spares.contains(&role) {
            // Without --join the server refuses the device, and the device ends.
            process.wait_exit(HEALED_MAX).unwrap();
            process.set_flag("--join", None);
            self.spares.push(role);
            process.relaunch().unwrap();
        } else if !frozen {
            process.wait_exit(HEALED_MAX).unwrap();
            process.relaunch().unwrap();
        }
        let ids = self.cluster.chain().len();
        let whole = format!(r#""places":{ids},"#);
        eventually("the chain is as long as it was", HEALED_MAX, || {
            let status = self.status();
            // All devices must serve the same epoch, and each device must have a place in the chain.
            let epochs = status.split(r#""epoch":"#).skip(1);
            let epochs: Vec<&str> = epochs.filter_map(|rest| rest.split(',').next()).collect();
            status.matches(&whole).count() == ids
                && epochs
                    .iter()
                    .all(|epoch| *epoch == epochs[0] && *epoch != "0")
        });
    }

    /// Returns the output of `pmnet status` about the fleet.
    pub fn status(&self) -> String {
        let status = std::process::Command::new(common::pmnet())
            .args(["status", "--json"])
            .args(&self.flags)
            .output()
            .unwrap();
        String::from_utf8(status.stdout).unwrap()
    }

    /// Checks that Redis has all acknowledged updates.
    pub fn nothing_is_lost(&self, acknowledged: &Acknowledged) {
        settle(&self.cluster).unwrap();
        let mut direct = self.cluster.reader().unwrap();
        for (key, _) in acknowledged {
            let reply = direct.call(&["GET", key]).unwrap();
            assert_eq!(reply, Reply::Bulk(key.clone().into_bytes()), "{key}");
        }
        println!("{} writes acknowledged, none lost", acknowledged.len());
    }
}

/// Returns the longest time without an acknowledgement. Only times that end after `from` and before `to` count.
fn gap(all: &Acknowledged, from: Instant, to: Instant) -> Duration {
    let pairs = all.windows(2).map(|pair| (pair[0].1, pair[1].1));
    let within = pairs.filter(|(before, after)| *after >= from && *before < to);
    let lengths = within.map(|(before, after)| after - before);
    lengths.max().expect("writes went on")
}

/// Prints the longest time without an acknowledgement after `killed`, and checks that it is short enough. Checks that
/// writes continued afterwards.
pub fn tell(what: &str, all: &Acknowledged, killed: Instant) {
    tell_within(GAP_MAX, what, all, killed);
}

/// Prints and checks as [`tell`] does, with another limit.
pub fn tell_within(most: Duration, what: &str, all: &Acknowledged, killed: Instant) {
    let (_, last) = all.last().expect("something was acknowledged");
    let gap = gap(all, killed, *last);
    println!("{what}: gap {gap:?} (lease {LEASE:?})");
    assert!(gap < most, "{what}: {gap:?}");
}

/// Waits until this number of devices have been left out of the served chain.
pub fn until_healed(world: &World, steps: usize) {
    eventually("a device is left out", HEALED_MAX, || {
        world.done(r#""step":"left-out""#) >= steps
    });
}

#[test]
fn a_head_and_then_a_tail_are_lost_and_a_spare_takes_a_place_without_a_person() {
    let Some(mut world) = World::start("heal", 2) else {
        return;
    };
    let mut spare = world.spare();
    let (acknowledged, killed) = world.under_load("h", |world| {
        let killed = Instant::now();
        world.cluster.kill(Role::Device(0)).unwrap();
        until_healed(world, 1);
        killed
    });
    tell("head lost", &acknowledged, killed);
    spare.wait_ready(HEALED_MAX).unwrap();
    eventually("there are two again", HEALED_MAX, || {
        spare.stdout().contains("copies=2")
    });
    world.nothing_is_lost(&acknowledged);

    // The front's list of addresses has neither the spare nor any device that becomes the tail later.
    let (more, killed) = world.under_load("t", |world| {
        let killed = Instant::now();
        spare.kill().unwrap();
        until_healed(world, 2);
        killed
    });
    tell("tail lost", &more, killed);
    let everything = [acknowledged, more].concat();
    world.nothing_is_lost(&everything);
    // Each step must have been taken once, by one of the controllers.
    assert_eq!(world.done(r#""step":"stop""#), 2);
    assert_eq!(world.done(r#""step":"left-out""#), 2);
    let text = world.status();
    assert_eq!(text.matches(r#""left_out""#).count(), 2, "{text}");
    assert_eq!(text.matches(r#""place":1"#).count(), 1, "{text}");
}

/// A device has lost its log, and a service manager restarts it again and again. Regression test: each start got a
/// lease, so that no controller could declare the device stopped.
#[test]
fn a_member_that_has_lost_its_log_is_left_out_and_joins_anew_though_it_is_started_again_all_the_time()
 {
    let Some(mut world) = World::start("no-log", 2) else {
        return;
    };
    let (acknowledged, killed) = world.under_load("n", |world| {
        let killed = Instant::now();
        let log = world.cluster.device_log(1);
        let process = world.cluster.process(Role::Device(1)).unwrap();
        process.kill().unwrap();
        std::fs::remove_file(&log).unwrap();
        process.set_flag("--join", None);
        process.relaunch().unwrap();
        let whole = r#""places":2,"#;
        eventually("it is a member again", HEALED_MAX, || {
            let process = world.cluster.process(Role::Device(1)).unwrap();
            if process.exited().unwrap().is_some() {
                process.relaunch().unwrap();
            }
            world.done(r#""step":"left-out""#) == 1 && world.status().matches(whole).count() == 2
        });
        killed
    });
    tell("log lost", &acknowledged, killed);
    world.nothing_is_lost(&acknowledged);
}

#[test]
fn a_middle_is_lost_and_then_two_at_once() {
    let Some(mut world) = World::start("three", 3) else {
        return;
    };
    let mut spare = world.spare();
    let (acknowledged, killed) = world.under_load("m", |world| {
        let killed = Instant::now();
        world.cluster.kill(Role::Device(1)).unwrap();
        until_healed(world, 1);
        killed
    });
    tell("middle of three lost", &acknowledged, killed);
    spare.wait_ready(HEALED_MAX).unwrap();
    eventually("there are three again", HEALED_MAX, || {
        spare.stdout().contains("copies=3")
    });
    let (more, killed) = world.under_load("two", |world| {
        let killed = Instant::now();
        spare.kill().unwrap();
        world.cluster.kill(Role::Device(0)).unwrap();
        until_healed(world, 3);
        killed
    });
    tell("head and tail of three lost", &more, killed);
    world.nothing_is_lost(&[acknowledged, more].concat());
    assert_eq!(world.done(r#""step":"stop""#), 3);
}

#[test]
fn a_head_that_is_only_stopped_answers_nobody_behind_its_lease_and_learns_that_it_was_left_out() {
    let Some(mut world) = World::start("frozen", 2) else {
        return;
    };
    let head = world.cluster.head().unwrap().to_string();
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()));
    let text = listen.to_string();
    let args = [
        "redis",
        "--listen",
        &text,
        "--via",
        &head,
        "--deadline-ms",
        "1000",
        "--anyone-may-connect",
    ];
    // Clients of this front can reach only the head that is stopped.
    let mut front = launch("front-of-the-head", world.cluster.folder(), &args);
    front.wait_ready(HEALED_MAX).unwrap();
    let mut caller = Caller::new(listen);
    let set = |caller: &mut Caller, key: &str| caller.call(&["SET", key, "x"]);
    assert!(matches!(
        set(&mut caller, "reaches"),
        Answer::Reply(Reply::Status(_))
    ));

    let (acknowledged, stopped) = world.under_load("f", |world| {
        let stopped = Instant::now();
        let process = world.cluster.process(Role::Device(0)).unwrap();
        process.signal(Signal::STOP).unwrap();
        until_healed(world, 1);
        stopped
    });
    tell("head stopped", &acknowledged, stopped);
    // The old head answers packets that were in its socket when it continued, and packets that arrive later.
    let mut answered = Vec::new();
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| {
            let mut answered = Vec::new();
            for number in 0..6 {
                let key = format!("late:{number}");
                for arguments in [&["SET", &key, "x"][..], &["GET", "reaches"]] {
                    if let Answer::Reply(reply) = caller.call(arguments)
                        && !matches!(reply, Reply::Error(_))
                    {
                        answered.push((key.clone(), reply));
                    }
                }
            }
            answered
        });
        std::thread::sleep(Duration::from_millis(500));
        let process = world.cluster.process(Role::Device(0)).unwrap();
        process.signal(Signal::CONT).unwrap();
        answered = asks.join().unwrap();
    });
    assert!(answered.is_empty(), "{answered:?}");
    let old = world.cluster.process(Role::Device(0)).unwrap();
    eventually("it learns that it was left out", HEALED_MAX, || {
        old.exited().unwrap().is_some()
    });
    let said = old.stderr();
    assert!(said.contains("is not a member of the chain"), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    world.nothing_is_lost(&acknowledged);
    assert_eq!(world.done(r#""step":"stop""#), 1);
}

/// Random devices are killed or stopped under load, again and again. The killed and stopped devices come back as spares
/// with their old logs. `PMNET_RUNS` is the number of rounds.
#[test]
fn random_devices_are_lost_and_come_back_as_spares() {
    let runs = std::env::var("PMNET_RUNS").ok();
    let runs: usize = runs.and_then(|text| text.parse().ok()).unwrap_or(3);
    let mut random = fastrand::Rng::with_seed(seed());
    let devices = random.usize(2..=3);
    let Some(mut world) = World::start("random", devices) else {
        return;
    };
    let mut everything = Vec::new();
    for run in 1..=runs {
        let victim = Role::Device(random.usize(..devices));
        let frozen = random.bool();
        let signal = if frozen { Signal::STOP } else { Signal::KILL };
        let (acknowledged, lost) = world.under_load(&format!("{run}:"), |world| {
            let lost = Instant::now();
            world.signal(victim, signal);
            until_healed(world, run);
            lost
        });
        let how = if frozen { "frozen" } else { "killed" };
        tell(
            &format!("run {run} of R = {devices}: {victim} {how}"),
            &acknowledged,
            lost,
        );
        world.kill_controller(random.usize(..2));
        world.comes_back(victim, frozen);
        everything.extend(acknowledged);
    }
    world.nothing_is_lost(&everything);
}

#[test]
fn a_controller_says_what_it_cannot_be_told_and_waits_for_an_etcd() {
    let folder = common::folder().join(format!("controller-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let etcd = ["--etcd", "http://127.0.0.1:9"];
    for (more, says) in [
        (
            &["--fleet", "a/b", "--etcd", "http://127.0.0.1:9"][..],
            "letters, digits",
        ),
        (&["--fleet", "f", "--etcd", "10.0.0.7"], "http://HOST:2379"),
        (
            &[&["--fleet", "f", "--copies", "9"], &etcd[..]].concat(),
            "1 to 8",
        ),
        (&["--fleet", "f"], "--etcd"),
    ] {
        let (code, text) = refuses("refused", &folder, &[&["controller"], more].concat());
        assert_eq!(code, 2, "{text}");
        assert!(text.contains(says), "{says}: {text}");
    }
    let args = [&["controller", "--fleet", "f"], &etcd[..]].concat();
    let process = launch("waits", &folder, &args);
    eventually("it says why", Duration::from_secs(10), || {
        process
            .stderr()
            .contains("Until it answers, no device is left out")
    });
    drop(process);
    std::fs::remove_dir_all(&folder).unwrap();
}
