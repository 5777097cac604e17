//! A chain of three devices. All processes are killed in turn, and then two devices are lost for good. There is one
//! test for each device that can remain.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use pmnet_lab::harness::{
    ACKNOWLEDGED_MIN, ChaosPlan, Cluster, Medium, Role, StoreKind, Topology, chaos, settle,
};
use pmnet_lab::resp::Reply;

use crate::common;
use crate::support::{CALL_MAX, Caller, front, launch, ok, seed};

fn plan(seconds: u64, victims: Vec<Role>, seed: u64) -> ChaosPlan {
    ChaosPlan {
        duration: Duration::from_secs(seconds),
        clients: 6,
        pipeline: 4,
        deadline: Duration::from_secs(10),
        victims,
        interval: Duration::from_millis(200),
        down: Duration::from_millis(20),
        lose_at_half: Vec::new(),
        replacements: Vec::new(),
        exchanges: Vec::new(),
        value_bytes: 0,
        seed,
    }
}

fn suffer(cluster: &mut Cluster, plan: &ChaosPlan) {
    let report = chaos(cluster, plan, &AtomicBool::new(false), |_| {}).expect("the run goes on");
    println!("{} {:?}", report.verdict, report.kills);
    assert!(report.verdict.is_clean(), "{}", report.verdict);
    assert!(
        report.verdict.acknowledged >= ACKNOWLEDGED_MIN,
        "{}",
        report.verdict
    );
}

/// Kills all processes in turn, loses two devices for good, and kills the remaining processes.
fn survive(name: &str, medium: Medium, survivor: usize) {
    let seed = seed();
    let Some(mut cluster) = common::start(name, Topology::new(StoreKind::Redis, 3, medium)) else {
        return;
    };
    let mut everybody: Vec<Role> = (0..3).map(Role::Device).collect();
    everybody.extend([Role::Server, Role::Front, Role::Redis]);
    fastrand::Rng::with_seed(seed).shuffle(&mut everybody);
    suffer(&mut cluster, &plan(5, everybody, seed));
    let mut plan_of_loss = plan(5, Vec::new(), seed + 1);
    plan_of_loss.lose_at_half = (0..3).filter(|device| *device != survivor).collect();
    suffer(&mut cluster, &plan_of_loss);
    let left = vec![Role::Device(survivor), Role::Server, Role::Front];
    suffer(&mut cluster, &plan(4, left, seed + 2));
}

#[test]
fn only_the_head_survives() {
    survive("chain-head", Medium::Dram, 0);
}

#[test]
fn only_the_middle_survives() {
    survive("chain-middle", Medium::File, 1);
}

#[test]
fn only_the_tail_survives() {
    survive("chain-tail", Medium::Dram, 2);
}

/// A front that knows all devices must continue when another device becomes the head. The connections of its clients
/// must stay open.
#[test]
fn a_front_that_knows_all_devices_finds_the_head() {
    let mut topology = Topology::new(StoreKind::Redis, 3, Medium::Dram);
    topology.front_follows = true;
    topology.front_args = ["--deadline-ms", "20000"].map(str::to_owned).into();
    let Some(mut cluster) = common::start("chain-follow", topology) else {
        return;
    };
    let number = Reply::Integer;
    let mut client = front(&cluster);
    let mut said = 0;
    for lost in [0, 1] {
        for _ in 0..50 {
            said += 1;
            assert_eq!(
                client.call(&["SET", "set", &said.to_string()]).unwrap(),
                ok()
            );
            assert_eq!(client.call(&["INCR", "count"]).unwrap(), number(said));
        }
        // The command is sent while the chain has no head, and is answered after it has one again.
        cluster.kill(Role::Device(lost)).unwrap();
        let waiting = std::thread::spawn(move || {
            let reply = client.call(&["INCR", "count"]);
            (client, reply)
        });
        cluster.lose(&[lost]).unwrap();
        said += 1;
        let (again, reply) = waiting.join().unwrap();
        assert_eq!(reply.unwrap(), number(said));
        client = again;
    }
    let last = client.call(&["GET", "set"]).unwrap();
    assert_eq!(last, Reply::Bulk((said - 1).to_string().into()));
    // The front must also find the head while all processes are killed in turn.
    let mut plan = plan(5, vec![Role::Server, Role::Front, Role::Redis], seed());
    suffer(&mut cluster, &plan);
    plan.victims.push(Role::Device(2));
    plan.seed += 1;
    suffer(&mut cluster, &plan);
}

/// Returns the address that a process got as the value of this flag.
fn told(cluster: &Cluster, role: Role, flag: &str) -> String {
    let (_, process) = cluster.processes().find(|(r, _)| *r == role).unwrap();
    let line = std::fs::read(format!("/proc/{}/cmdline", process.id().unwrap())).unwrap();
    let words: Vec<_> = line.split(|byte| *byte == 0).collect();
    let at = words.iter().position(|word| *word == flag.as_bytes());
    String::from_utf8(words[at.unwrap() + 1].to_vec()).unwrap()
}

/// The former head and the former middle device are started again after their removal, with their logs. Their answers
/// to clients must be true, and the shard must continue without them.
#[test]
fn removed_devices_that_come_back_are_fenced() {
    let Some(mut cluster) = common::start(
        "chain-fenced",
        Topology::new(StoreKind::Redis, 3, Medium::Dram),
    ) else {
        return;
    };
    let flags = ["--listen", "--next", "--log"];
    let old: Vec<Vec<String>> = (0..2)
        .map(|device| {
            let told = |flag: &&str| told(&cluster, Role::Device(device), flag);
            flags.iter().map(told).collect()
        })
        .collect();
    let mut client = front(&cluster);
    for number in 0..200 {
        let reply = client.call(&["SET", &format!("before:{number}"), "1"]);
        assert_eq!(reply.unwrap(), ok());
    }
    cluster.lose(&[0, 1]).unwrap();
    let zombies: Vec<_> = old
        .iter()
        .enumerate()
        .map(|(number, told)| {
            let args = [
                "device", "--media", "dram", flags[0], &told[0], flags[1], &told[1], flags[2],
                &told[2],
            ];
            launch(&format!("zombie{number}"), cluster.folder(), &args)
        })
        .collect();
    let port = pmnet_lab::harness::free_port().unwrap();
    let address = format!("127.0.0.1:{port}");
    let mut stray = launch(
        "stray-front",
        cluster.folder(),
        &[
            "redis",
            "--anyone-may-connect",
            "--listen",
            &address,
            "--via",
            &old[0][0],
            "--deadline-ms",
            "1500",
        ],
    );
    stray.wait_ready(CALL_MAX).unwrap();
    let mut client = Caller::new(address.parse().unwrap());
    let mut said_yes = Vec::new();
    for number in 0..3 {
        let key = format!("stray:{number}");
        let answer = client.call(&["SET", &key, "1"]);
        if answer == crate::support::Answer::Reply(ok()) {
            said_yes.push(key);
        }
    }
    let mut client = front(&cluster);
    for number in 0..200 {
        let reply = client.call(&["SET", &format!("after:{number}"), "1"]);
        assert_eq!(reply.unwrap(), ok());
    }
    settle(&cluster).unwrap();
    let mut direct = cluster.reader().unwrap();
    let all = (0..200).flat_map(|n| [format!("before:{n}"), format!("after:{n}")]);
    for key in all.chain(said_yes) {
        let reply = direct.call(&["GET", &key]).unwrap();
        assert_eq!(reply, Reply::Bulk(b"1".to_vec()), "{key}");
    }
    for zombie in &zombies {
        println!("{}", zombie.stderr().lines().last().unwrap_or_default());
        assert!(!zombie.stderr().contains("panicked"), "{}", zombie.stderr());
    }
}
