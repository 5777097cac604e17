//! The agent of a server in a fleet. The agent reports facts about the chain that only the server knows.

use std::time::{Duration, Instant};

use pmnet_lab::harness::{Process, Role};
use rustix::process::Signal;

use super::heal::{HEALED_MAX, World, tell, until_healed};
use pmnet_lab::harness::free_port;
use pmnet_lab::resp::Reply;

use crate::support::{Answer, Caller, eventually, launch};

/// The server begins another epoch by itself, because its store is another process. The head must make its statement
/// for this epoch. But no device can learn of the epoch, because the tail is lost.
#[test]
fn redis_is_restarted_just_while_a_tail_is_left_out() {
    let Some(mut world) = World::start("restarts", 2) else {
        return;
    };
    let (acknowledged, killed) = world.under_load("r", |world| {
        world.cluster.kill(Role::Redis).unwrap();
        // The server has an update to apply, so it notices that its store has changed.
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
        // The step that lets a device join names this device.
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

/// Starts a second server with the same store and another address. Returns the second server, and a client. The
/// cluster's own server serves.
fn two_servers(world: &mut World) -> (Process, Caller) {
    let server = world.cluster.process(Role::Server).unwrap();
    server.set_flag("--standby", None);
    world.cluster.restart(Role::Server).unwrap();
    let redis = format!("redis://{}", world.cluster.redis().unwrap());
    let second = format!("127.0.0.1:{}", free_port().unwrap());
    let mut args = vec![
        "server",
        "--standby",
        "--listen",
        &second,
        "--store",
        &redis,
    ];
    args.extend(world.flags.iter().map(String::as_str));
    let other = launch("standby", world.cluster.folder(), &args);
    eventually("it stands by", HEALED_MAX, || {
        other.stderr().contains("this one stands by")
    });
    (other, Caller::new(world.cluster.endpoint().unwrap()))
}

/// Two servers with different addresses have the same store. When the first server is killed, the standby server takes
/// over, and the chain sends to the standby server.
#[test]
fn a_server_is_killed_and_the_one_that_stands_by_takes_over() {
    let Some(mut world) = World::start("standby", 2) else {
        return;
    };
    let first = world.cluster.server().unwrap();
    let (mut other, mut caller) = two_servers(&mut world);
    let one = caller.call(&["INCR", "n"]);
    assert_eq!(one, Answer::Reply(Reply::Integer(1)));
    let (acknowledged, killed) = world.under_load("s", |world| {
        let killed = Instant::now();
        world.cluster.kill(Role::Server).unwrap();
        let two = caller.call(&["INCR", "n"]);
        assert_eq!(two, Answer::Reply(Reply::Integer(2)));
        println!("server killed: INCR took {:?}", killed.elapsed());
        killed
    });
    tell(
        "server killed, another one took over",
        &acknowledged,
        killed,
    );
    other.wait_ready(HEALED_MAX).unwrap();
    world.nothing_is_lost(&acknowledged);
    // The first server is started again as the standby. Then devices are lost and replaced, as before.
    let server = world.cluster.process(Role::Server).unwrap();
    server.relaunch().unwrap();
    eventually("the first one stands by", HEALED_MAX, || {
        server.stderr().contains("this one stands by")
    });
    let (more, ()) = world.under_load("d", |world| {
        world.cluster.kill(Role::Device(1)).unwrap();
        until_healed(world, 1);
        // The server is only stopped. The server continues after another server has taken over, and must then not be
        // able to write.
        other.signal(Signal::STOP).unwrap();
        let three = caller.call(&["INCR", "n"]);
        assert_eq!(three, Answer::Reply(Reply::Integer(3)));
        other.signal(Signal::CONT).unwrap();
    });
    let says = format!(r#""server":"{first}","there":true"#);
    assert!(world.status().contains(&says), "{}", world.status());
    world.nothing_is_lost(&[acknowledged, more].concat());
    assert!(!other.stderr().contains("panicked"));
}

/// A server is stopped, another server serves, and later the first server serves again. The first server must not
/// report its old state to any device. Regression test: the first server told the devices that the store had lost data,
/// and all devices ended.
#[test]
fn a_server_that_slept_through_the_turn_of_another_one_begins_anew_when_it_gets_its_own() {
    let Some(mut world) = World::start("sleeps", 2) else {
        return;
    };
    let (mut other, mut caller) = two_servers(&mut world);
    let mut counted = 0;
    let mut count = |what: &str, times: i64| {
        for _ in 0..times {
            counted += 1;
            let one = caller.call(&["INCR", "n"]);
            assert_eq!(one, Answer::Reply(Reply::Integer(counted)), "{what}");
        }
    };
    count("the first one serves", 20);
    // No request is outstanding, so the store refuses no request of this server.
    std::thread::sleep(Duration::from_secs(1));
    world.signal(Role::Server, Signal::STOP);
    other.wait_ready(HEALED_MAX).unwrap();
    count("the second one serves", 200);
    std::thread::sleep(Duration::from_secs(1));
    world.signal(Role::Server, Signal::CONT);
    std::thread::sleep(Duration::from_secs(2));
    other.signal(Signal::STOP).unwrap();
    let begun = Instant::now();
    count("the first one serves again", 1);
    println!("the first one serves again after {:?}", begun.elapsed());
    count("the first one goes on", 20);
    // The report must also show that the server was stopped for this time.
    std::thread::sleep(Duration::from_secs(8).saturating_sub(begun.elapsed()));
    other.signal(Signal::CONT).unwrap();
    count("the second one is back", 20);
    for role in [Role::Device(0), Role::Device(1)] {
        let device = world.cluster.process(role).unwrap();
        let said = device.stderr();
        assert!(device.exited().unwrap().is_none(), "{said}");
        assert!(!said.contains("lost data"), "{said}");
    }
    let server = world.cluster.process(Role::Server).unwrap();
    let said = server.stderr();
    assert!(said.contains("the turn of this server is over"), "{said}");
    assert!(server.exited().unwrap().is_none(), "{said}");
}
