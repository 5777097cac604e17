//! A Redis Cluster as the store of three shards. Each shard has a chain of three devices, and one front serves all of
//! them. One process of each kind is killed under load, and a slot moves (`docs/spec/sharding.md`, §5;
//! `docs/use/sharding.md`).

mod nodes;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pmnet_lab::check::{Ledger, verify};
use pmnet_lab::harness::{
    Medium, Role, Shards, StoreKind, Topology, drained, find_program, slots_of,
};
use pmnet_lab::load::{CheckedOptions, Hooks, Options, Progress, Workload, run};
use pmnet_lab::resp::{Reply, write_command};

use crate::common::{binaries, folder, skip};
use crate::failover::call;
use crate::support::{Answer, Caller, SetOnDrop, bulk, connect, eventually, ok, seed};
use nodes::{MASTERS, Nodes};

/// Longest wait for a condition.
const WAIT: Duration = Duration::from_secs(60);
/// The first line of the front's map file. The line says that all shards belong to one Redis Cluster.
const HEAD: &str = "cluster = true\n";
/// The slot that moves from the first shard, and the prefix of all keys in it.
const MOVES: u16 = 5061;
const TAG: &str = "{bar}";
/// The line that the front logs when a change of its map is complete.
const OVER: &str = "all commands that were taken before the map of slots changed are over";

struct World {
    // The shards are dropped first.
    shards: Shards,
    nodes: Nodes,
    _folder: tempfile::TempDir,
}

impl World {
    /// Starts a world. Returns `None` if Redis is not installed.
    fn start(name: &str, devices: usize) -> Option<World> {
        if find_program("redis-server").is_none() {
            skip("redis-server is not installed");
            return None;
        }
        let own = tempfile::tempdir_in(folder()).unwrap();
        let nodes = Nodes::start(own.path());
        let topology = |shard: usize| {
            let mut topology = Topology::new(StoreKind::Redis, devices, Medium::Dram);
            topology.store_url = Some(nodes.url(&slots_of(shard, MASTERS)));
            // The deadline is longer than every fault, so that a call has an unknown outcome only if its front is
            // killed.
            topology.front_args = vec!["--deadline-ms".into(), "60000".into()];
            topology
        };
        let topologies: Vec<Topology> = (0..MASTERS).map(topology).collect();
        let shards = Shards::start_each(binaries(), folder(), name, &topologies, HEAD);
        Some(World {
            shards: shards.expect("the shards start"),
            nodes,
            _folder: own,
        })
    }

    /// Moves a slot from the first shard to the second shard (`there`), or back, as the guide describes.
    fn move_slot(&mut self, slot: u16, there: bool) {
        let ranges = |own: bool| -> Vec<String> {
            let mut ranges: Vec<String> =
                (0..MASTERS).map(|shard| slots_of(shard, MASTERS)).collect();
            if !own {
                ranges[0] = format!("0-{},{}-{}", slot - 1, slot + 1, 16384 / MASTERS - 1);
                ranges[1] += &format!(",{slot}");
            }
            ranges
        };
        let change = |shards: &mut Shards, head: &str, ranges: &[String]| {
            let before = shards.front().stderr().matches(OVER).count();
            let ranges: Vec<&str> = ranges.iter().map(String::as_str).collect();
            shards.change_map(head, &ranges).unwrap();
            eventually("the front has read the map", WAIT, || {
                shards.front().stderr().matches(OVER).count() > before
            });
        };
        change(
            &mut self.shards,
            &format!("{HEAD}moving = \"{slot}\"\n"),
            &ranges(there),
        );
        drained(self.shards.endpoint()).expect("everything is applied");
        let to = self.nodes.master_of(if there { 16384 / 2 } else { 0 });
        self.nodes.move_slot(slot, to);
        for (shard, slots) in ranges(!there).iter().enumerate().take(2) {
            let url = self.nodes.url(slots);
            let cluster = &mut self.shards.clusters[shard];
            cluster
                .process(Role::Server)
                .unwrap()
                .set_flag("--store", Some(&url));
            cluster.restart(Role::Server).unwrap();
        }
        change(&mut self.shards, HEAD, &ranges(!there));
    }

    fn kill(&mut self, shard: usize, role: Role) {
        let cluster = &mut self.shards.clusters[shard];
        cluster.kill(role).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        cluster.restart(role).unwrap();
    }

    fn kill_front(&mut self) {
        self.shards.front().kill().unwrap();
        self.shards.front().relaunch().unwrap();
        self.shards.front().wait_ready(WAIT).unwrap();
    }

    /// Compares every key with the master of its slot, which the cluster itself names.
    fn check(&self, ledger: &Ledger) {
        let mut asks = self.nodes.client(0);
        let keys: Vec<&String> = ledger.keys().collect();
        let mut home = HashMap::new();
        let mut masters = HashMap::new();
        for chunk in keys.chunks(500) {
            let mut bytes = Vec::new();
            for key in chunk {
                write_command(&mut bytes, &["CLUSTER", "KEYSLOT", key]);
            }
            let slots = asks.exchange(&bytes, chunk.len()).unwrap();
            for (key, slot) in chunk.iter().zip(slots) {
                let Reply::Integer(slot) = slot else {
                    panic!("{slot:?}")
                };
                let slot = u16::try_from(slot).unwrap();
                let master = masters
                    .entry(slot)
                    .or_insert_with(|| self.nodes.master_of(slot));
                home.insert((*key).clone(), *master);
            }
        }
        let mut found = 0;
        for number in 0..self.nodes.all.len() {
            let part = ledger.part(|key| home[key] == number);
            if part.keys().next().is_none() {
                continue;
            }
            let verdict = verify(&part, &mut self.nodes.client(number)).unwrap();
            println!("node {number}: {verdict}");
            assert!(verdict.is_clean(), "{verdict}");
            found += verdict.keys;
        }
        assert_eq!(found, u64::try_from(keys.len()).unwrap());
        println!(
            "{} acknowledged, {} unknown, {} refused, {found} keys compared: none lost, none twice",
            ledger.acknowledged, ledger.unknown, ledger.failed
        );
    }
}

/// A load that runs until it is told to end.
struct Load {
    acknowledged: AtomicU64,
    ended: AtomicBool,
}

impl Load {
    fn new() -> Load {
        Load {
            acknowledged: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        }
    }

    fn run(&self, options: &Options, stop: &AtomicBool) -> Ledger {
        let _end = SetOnDrop(&self.ended);
        let mut ledger = Ledger::new();
        let mut record = |record: &pmnet_lab::load::Record| Ok(ledger.add(record)?);
        let mut progress = |progress: &Progress| {
            self.acknowledged
                .store(progress.acknowledged, Ordering::Relaxed);
        };
        let hooks = Hooks {
            record: Some(&mut record),
            progress: Some(&mut progress),
        };
        run(options, hooks, stop).expect("the load runs");
        ledger
    }

    /// Waits until the load has made progress.
    fn wait(&self) {
        let before = self.acknowledged.load(Ordering::Relaxed);
        eventually("commands are acknowledged", WAIT, || {
            assert!(!self.ended.load(Ordering::Acquire), "the load has ended");
            self.acknowledged.load(Ordering::Relaxed) > before + 20
        });
    }
}

fn options(world: &World, clients: usize, prefix: &str) -> Options {
    let mut options = Options::new(world.shards.endpoint());
    options.clients = clients;
    options.pipeline = 4;
    options.duration = Duration::from_secs(3600);
    options.deadline = Duration::from_secs(60);
    options.seed = seed();
    options.workload = Workload::Checked(CheckedOptions {
        prefix: format!("{prefix}chk:"),
        ring: 100_000,
        lists: true,
        value_bytes: 0,
    });
    options
}

/// Runs two loads during `deeds`: one on all slots, and one on the slot that moves. Then compares all keys.
fn under_load(world: &mut World, deeds: impl FnOnce(&mut World, &[Load; 2])) {
    let loads = [Load::new(), Load::new()];
    let stop = AtomicBool::new(false);
    let all = [options(world, 4, ""), options(world, 2, TAG)];
    let ledgers = std::thread::scope(|scope| {
        let _stops = SetOnDrop(&stop);
        let stop = &stop;
        let running: Vec<_> = loads
            .iter()
            .zip(&all)
            .map(|(load, options)| scope.spawn(move || load.run(options, stop)))
            .collect();
        deeds(world, &loads);
        for load in &loads {
            load.wait();
        }
        stop.store(true, Ordering::Release);
        let join = |one: std::thread::ScopedJoinHandle<'_, Ledger>| {
            one.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        running.into_iter().map(join).collect::<Vec<Ledger>>()
    });
    drained(world.shards.endpoint()).expect("everything is applied");
    world.nodes.wait_whole();
    for ledger in &ledgers {
        assert!(ledger.acknowledged > 100);
        world.check(ledger);
    }
}

/// One process of each kind is killed, and a slot moves. Acceptance test for Redis Cluster as the store.
#[test]
fn one_of_everything_is_killed_and_a_slot_moves_and_nothing_is_lost() {
    let Some(mut world) = World::start("redis-cluster", 3) else {
        return;
    };
    under_load(&mut world, |world, loads| {
        let roles = [
            (0, Role::Device(0)),
            (1, Role::Device(1)),
            (2, Role::Device(2)),
            (1, Role::Server),
        ];
        for (shard, role) in roles {
            loads[0].wait();
            world.kill(shard, role);
        }
        loads[0].wait();
        world.kill_front();
        loads[0].wait();
        // The master of the first shard fails over. Then one of its slots moves to the second shard.
        let (old, new) = world.nodes.fail_over(MOVES);
        println!("{old} killed, {new} promoted");
        loads[1].wait();
        world.nodes.wait_whole();
        // The server must have begun an epoch.
        let server = world.shards.clusters[0].process(Role::Server).unwrap();
        let said = server.stderr();
        for words in [
            "the nodes of the Redis Cluster name another master",
            "the store is another process",
        ] {
            assert!(said.contains(words), "{words}: {said}");
        }
        world.move_slot(MOVES, true);
        println!("slot {MOVES} has moved");
        loads[1].wait();
    });
    let to = world.nodes.master_of(MOVES);
    assert_eq!(to, world.nodes.master_of(8000));
}

/// Runs the acceptance test in many rounds, with random faults, sometimes two together. `PMNET_RUNS` is the number of
/// rounds.
#[test]
#[ignore = "long: PMNET_RUNS=20 make redis-cluster"]
fn many() {
    let runs = std::env::var("PMNET_RUNS").ok();
    let runs: usize = runs.and_then(|text| text.parse().ok()).unwrap_or(10);
    let Some(mut world) = World::start("redis-cluster-many", 3) else {
        return;
    };
    let mut random = fastrand::Rng::with_seed(seed());
    under_load(&mut world, |world, loads| {
        let mut there = false;
        for run in 1..=runs {
            let mut done = Vec::new();
            for _ in 0..random.usize(1..=2) {
                let shard = random.usize(..MASTERS);
                let role = match random.u8(..5) {
                    0 => Role::Server,
                    1 => Role::Device(random.usize(..3)),
                    2 => {
                        world.kill_front();
                        done.push("front".to_owned());
                        continue;
                    }
                    3 => {
                        let slot = [MOVES, 8000, 16000][shard];
                        let (old, new) = world.nodes.fail_over(slot);
                        done.push(format!("{old}, {new} promoted"));
                        world.nodes.wait_whole();
                        continue;
                    }
                    _ => {
                        there = !there;
                        world.move_slot(MOVES, there);
                        done.push(format!("slot to shard {}", usize::from(there) + 1));
                        continue;
                    }
                };
                world.kill(shard, role);
                done.push(format!("{role} of shard {}", shard + 1));
            }
            println!("run {run}: {}", done.join("; "));
            for load in loads {
                load.wait();
            }
        }
    });
}

/// An operator moves a slot without telling pmnet. The acknowledged updates of this slot must wait, and must be applied
/// when the slot is back. The server must name the slot in its log.
#[test]
fn a_slot_that_moves_unannounced_is_waited_for() {
    let Some(mut world) = World::start("redis-cluster-unannounced", 1) else {
        return;
    };
    let mut caller = Caller::new(world.shards.endpoint());
    let counted = caller.call(&["INCR", "bar"]);
    assert_eq!(counted, Answer::Reply(Reply::Integer(1)));
    world.nodes.move_slot(MOVES, world.nodes.master_of(8000));
    // In every form, a command that must be executed before its reply must be refused.
    for line in [
        "INCR bar",
        "GET bar",
        "BLPOP {bar}l 1",
        "WATCH bar",
        "EVAL return(1) 1 bar",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let Answer::Reply(Reply::Error(text)) = caller.call(&words) else {
            panic!("{line} is answered");
        };
        assert!(text.starts_with("TRYAGAIN pmnet: "), "{line}: {text}");
    }
    caller.call(&["UNWATCH"]);
    // Commands for other slots must still work.
    let counted = caller.call(&["INCR", "{k2}n"]);
    assert_eq!(counted, Answer::Reply(Reply::Integer(1)));
    // The first commands are acknowledged early, and wait in the devices. All later commands wait for the first
    // commands.
    let commands: [&[&str]; 2] = [&["SET", "k2", "new"], &["SET", "bar", "new"]];
    assert_eq!(caller.exchange(&commands), vec![Answer::Reply(ok()); 2]);
    let server = world.shards.clusters[0].process(Role::Server).unwrap();
    eventually("the server says what it waits for", WAIT, || {
        server
            .stderr()
            .contains("slot 5061 is not with this shard's master")
    });
    assert!(server.exited().unwrap().is_none());
    let other = world.nodes.master_of(MOVES);
    assert_eq!(call(&mut world.nodes.client(other), "GET bar"), bulk("1"));
    let back = world.nodes.master_of(0);
    world.nodes.move_slot(MOVES, back);
    assert_eq!(caller.read(&["GET", "bar"]), bulk("new"));
    drained(world.shards.endpoint()).unwrap();
    for key in ["bar", "k2"] {
        assert_eq!(
            call(&mut world.nodes.client(back), &format!("GET {key}")),
            bulk("new")
        );
    }
    // A subscriber must get each message once, although each node of the cluster delivers it.
    let mut subscriber = connect(world.shards.endpoint());
    let told = subscriber.call(&["PSUBSCRIBE", "n?ws"]).unwrap();
    assert_eq!(
        told,
        Reply::Array(vec![bulk("psubscribe"), bulk("n?ws"), Reply::Integer(1)])
    );
    for channel in ["news", "nows"] {
        caller.call(&["PUBLISH", channel, "hello"]);
    }
    for channel in ["news", "nows"] {
        let message = subscriber.exchange(&[], 1).unwrap();
        let words = ["pmessage", "n?ws", channel, "hello"].map(bulk);
        assert_eq!(message, [Reply::Array(words.to_vec())]);
    }
    assert_eq!(world.shards.stop().unwrap(), Vec::<String>::new());
}
