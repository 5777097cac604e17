//! Several shards at one interface. Each shard has its own queues and its own log, and all shards
//! share one program (`docs/spec/packet-buffers.md` §7).

use std::time::Duration;

use super::super::load::Writer;
use super::super::world::{Place, Plan, World};
use super::super::{CALL_MAX, load};
use super::plan;
use crate::common;

/// A veth has at most as many queues as the machine has processors.
fn two(media: &'static str) -> Option<Plan> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores < 2 {
        common::skip("an interface has two queues only where there are two processors");
        return None;
    }
    Some(Plan {
        shards: 2,
        ..plan(Place::Nic, media)
    })
}

/// Returns clients of both shards. There are enough clients to use both queues.
fn writers(world: &World) -> Vec<Writer> {
    let of = |shard| (0..16).map(move |_| world.session_of(shard, CALL_MAX));
    (0..world.shards()).flat_map(of).collect()
}

fn log(world: &World, shard: u32) -> std::path::PathBuf {
    let mut path = world.log().into_os_string();
    path.push(format!(".{shard}"));
    path.into()
}

#[test]
fn clients_of_both_shards_are_served_whichever_queue_they_come_by() {
    let Some(plan) = two("dram") else { return };
    let Some(mut world) = World::start(plan) else {
        return;
    };
    let mut all = writers(&world);
    for writer in &mut all {
        writer.sets(20, 1);
    }
    let said = world.process("device").stdout();
    for shard in 0..2 {
        // Each shard has one of the two queues, and a log of its own.
        let sockets = format!("sockets=eth0/{shard}:copy");
        assert!(said.contains(&sockets), "{sockets} in {said}");
        assert!(log(&world, shard).exists(), "{shard}");
    }
    assert!(!world.log().exists(), "no log without a number");
    // All acknowledged updates survive the death of all processes.
    world.kill("server");
    world.kill("server2");
    for writer in &mut all {
        writer.sets(5, 1);
    }
    world.kill("device");
    for name in ["server", "server2", "device"] {
        world.restart(name);
    }
    for writer in &mut all {
        writer.sets(5, 1);
    }
    world.settle();
    for writer in &all {
        world.check_without_device(writer);
    }
    world.stop("device");
    assert!(!world.has_program(), "the last shard takes it with it");
}

#[test]
fn killed_every_second_with_two_shards() {
    for media in ["dram", "file"] {
        let Some(plan) = two(media) else { return };
        let Some(mut world) = World::start(plan) else {
            return;
        };
        let mut kills = 0;
        world.checked(load(6, 0), |world, number| {
            let name =
                ["device", "server2", "device", "server"][usize::try_from(number).unwrap() % 4];
            world.kill(name);
            std::thread::sleep(Duration::from_millis(100));
            world.restart(name);
            kills += 1;
        });
        assert!(kills >= 2, "{kills} kills");
    }
}

/// A shard that cannot continue logs this. The other shard must still be served.
#[test]
fn a_shard_that_stops_does_not_take_the_other_with_it() {
    let Some(plan) = two("dram") else { return };
    let Some(mut world) = World::without_device(plan) else {
        return;
    };
    std::fs::write(log(&world, 1), vec![7; 1 << 20]).unwrap();
    world.start_device();
    world.wait_ready("device");
    let mut writer = world.session_of(0, CALL_MAX);
    writer.sets(50, 1);
    let said = world.process("device").stderr();
    assert!(said.contains("shard 1 stopped: "), "{said}");
    assert!(said.contains("not a pmnet log"), "{said}");
    let mut redis = world.redis();
    drop(writer.read());
    for (key, value) in &writer.acknowledged {
        let found = redis.call(&["GET", key]).unwrap();
        let value = value.clone().into_bytes();
        assert_eq!(found, pmnet_lab::resp::Reply::Bulk(value), "{key}");
    }
}

#[test]
fn shards_that_cannot_be_are_refused_with_a_sentence() {
    let Some(world) = World::without_device(plan(Place::Nic, "dram")) else {
        return;
    };
    let refused = |more: &[&str], sentence: &str| {
        let (good, said) = world.device_with(more);
        assert!(!good && said.contains(sentence), "{more:?}: {said}");
    };
    refused(
        &["--shards", "2"],
        "eth0 has 1 receive queue(s), and each of 2 shards needs one of its own",
    );
    refused(
        &["--shards", "2", "--dev", "nothing0"],
        "interface nothing0",
    );
    refused(
        &["--shards", "2", "--next", "10.51.0.200:51001"],
        "a shard would send to another one",
    );
    refused(
        &["--shards", "2", "--listen", "10.51.0.200:65535"],
        "is not a port",
    );
    for shard in 0..2 {
        assert!(!log(&world, shard).exists(), "no log is made");
    }
    assert!(!world.has_program());
}
