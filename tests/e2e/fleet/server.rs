//! The agent of a server in a fleet: what only the server knows of the chain.

use std::time::{Duration, Instant};

use pmnet_lab::harness::Role;
use rustix::process::Signal;

use super::heal::{HEALED_MAX, World, tell, until_healed};
use crate::support::{Caller, eventually};

/// The server begins another epoch by itself, since its store is another process. That epoch is the one that the head must state
/// something about, and no device can hear of it: the tail is gone.
#[test]
fn redis_is_restarted_just_while_a_tail_is_left_out() {
    let Some(mut world) = World::start("restarts", 2) else {
        return;
    };
    let (acknowledged, killed) = world.under_load("r", |world| {
        world.cluster.kill(Role::Redis).unwrap();
        // The server has something to apply, and notices.
        std::thread::sleep(Duration::from_millis(300));
        let killed = Instant::now();
        world.cluster.kill(Role::Device(1)).unwrap();
        world.cluster.restart(Role::Redis).unwrap();
        let server = world.cluster.process(Role::Server).unwrap();
        eventually("the server is at the new process", HEALED_MAX, || {
            server.stderr().contains("the store is another process")
        });
        until_healed(world, 1);
        killed
    });
    tell("tail lost, Redis restarted", &acknowledged, killed);
    world.nothing_is_lost(&acknowledged);
    let said = world.cluster.process(Role::Server).unwrap().stderr();
    assert!(said.contains("chain shrinks"), "{said}");
}

#[test]
fn a_spare_that_is_lost_just_while_it_joins_is_left_out_and_may_join_again() {
    let Some(mut world) = World::start("joins", 2) else {
        return;
    };
    let mut spare = world.spare();
    eventually("the spare is ready", HEALED_MAX, || {
        spare.stderr().contains("is ready to join")
    });
    let (acknowledged, ()) = world.under_load("j", |world| {
        world.cluster.kill(Role::Device(1)).unwrap();
        // A step that lets somebody join names it.
        eventually("the spare is to join", HEALED_MAX, || {
            world.done(r#""joins":"#) > world.done(r#""joins":null"#)
        });
        spare.signal(Signal::STOP).unwrap();
        until_healed(world, 2);
    });
    world.nothing_is_lost(&acknowledged);
    let said = world.cluster.process(Role::Server).unwrap().stderr();
    println!(
        "it {} joined",
        if said.contains("was to join was lost") {
            "had not"
        } else {
            "had"
        }
    );
    spare.signal(Signal::CONT).unwrap();
    let mut caller = Caller::new(world.cluster.endpoint().unwrap());
    eventually("it joins", HEALED_MAX, || {
        caller.call(&["SET", "wakes", "the chain"]);
        if spare.exited().unwrap().is_some() {
            spare.relaunch().unwrap();
        }
        spare.stdout().contains("copies=2")
    });
}
