//! An etcd of three members. The leader of this etcd is killed while devices are lost.

use std::time::{Duration, Instant};

use pmnet_lab::harness::Role;
use rustix::process::Signal;

use super::heal::{HEALED_MAX, World, tell, tell_within, until_healed};
use crate::support::seed;

/// `PMNET_RUNS` is the number of rounds.
#[test]
fn the_leader_of_etcd_is_killed_while_devices_are_lost() {
    let runs = std::env::var("PMNET_RUNS").ok();
    let runs: usize = runs.and_then(|text| text.parse().ok()).unwrap_or(3);
    let mut random = fastrand::Rng::with_seed(seed());
    let Some(mut world) = World::with("members", 2, 3) else {
        return;
    };
    let mut everything = Vec::new();
    for run in 1..=runs {
        // The first victim is the head. Later victims are random. The leader dies before the
        // victim, together with the victim, or while the victim's lease expires.
        let victim = Role::Device(if run == 1 { 0 } else { random.usize(..2) });
        let after = Duration::from_millis([0, 1_500, 2_900][random.usize(..3)]);
        let leader = world.etcds.leader();
        let (acknowledged, lost) = world.under_load(&format!("{run}:"), |world| {
            let lost = Instant::now();
            world.signal(victim, Signal::KILL);
            std::thread::sleep(after);
            world.etcds.kill(leader);
            until_healed(world, run);
            lost
        });
        // etcd elects another leader, which renews every lease to its full length.
        tell_within(
            HEALED_MAX,
            &format!("run {run}: {victim} killed, and {after:?} later etcd's leader"),
            &acknowledged,
            lost,
        );
        assert_ne!(world.etcds.leader(), leader, "another one leads");
        world.etcds.restart(leader);
        world.comes_back(victim, false);
        everything.extend(acknowledged);
    }
    world.nothing_is_lost(&everything);
}

/// If all devices of a shard are alive, the election of another etcd leader causes at most a pause.
#[test]
fn the_leader_of_etcd_is_killed_and_no_device_is_left_out() {
    let Some(mut world) = World::with("leader", 2, 3) else {
        return;
    };
    let (acknowledged, killed) = world.under_load("l", |world| {
        let mut first = None;
        for _ in 0..3 {
            let leader = world.etcds.leader();
            let killed = Instant::now();
            world.etcds.kill(leader);
            std::thread::sleep(Duration::from_secs(4));
            world.etcds.restart(leader);
            first.get_or_insert(killed);
        }
        first.unwrap()
    });
    tell("etcd's leader killed three times", &acknowledged, killed);
    assert_eq!(world.done(r#""step":"stop""#), 0);
    world.nothing_is_lost(&acknowledged);
}
