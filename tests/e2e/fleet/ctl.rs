//! `pmnet ctl`: the chain of a fleet is changed under load. No process is killed.

use std::time::{Duration, Instant};

use pmnet_lab::harness::{Process, Role};
use rustix::process::Signal;

use super::heal::{HEALED_MAX, World, tell};
use crate::status::{get, place};
use crate::support::{self, Said, eventually};

/// Longest time until an idle device learns of a new epoch. The device asks once a second.
const HEARD_MAX: Duration = Duration::from_secs(3);

fn ctl(world: &World, args: &[&str]) -> Said {
    let flags: Vec<&str> = world.flags.iter().map(String::as_str).collect();
    support::ctl(&[&flags, args].concat())
}

fn ids(world: &World) -> Vec<String> {
    let role = |index| match world
        .cluster
        .processes()
        .find(|one| one.0 == Role::Device(index))
    {
        Some((_, process)) => ready_id(process),
        None => panic!("no device {index}"),
    };
    world.cluster.chain().into_iter().map(role).collect()
}

/// Returns the id that a device's ready line has.
fn ready_id(process: &Process) -> String {
    let said = process.stdout();
    let (_, rest) = said.split_once(" id=").expect("a ready line");
    rest.split(' ').next().unwrap_or_default().to_owned()
}

/// Waits until this number of devices serve, at consecutive places of the chain.
fn until_long(world: &World, copies: usize) {
    let whole = format!(r#""places":{copies},"#);
    eventually("the chain is so long", HEALED_MAX, || {
        world.status().matches(&whole).count() == copies
    });
}

#[test]
fn a_device_is_removed_comes_back_and_is_replaced_under_load_without_a_lease_to_wait_for() {
    let Some(mut world) = World::start("ctl", 3) else {
        return;
    };
    let ids = ids(&world);
    let head = ids[0].clone();

    // Without confirmation, the command must change nothing.
    let before = world.status();
    let said = ctl(&world, &["remove", &head, "--dry-run"]);
    assert_eq!(said.code, Some(0));
    assert!(
        said.out.contains("An acknowledgement has 2 copies"),
        "{}",
        said.out
    );
    let epochs = |status: &str| status.matches(r#""leaves":true"#).count();
    assert_eq!((epochs(&before), epochs(&world.status())), (0, 0));
    // Impossible changes must be refused.
    for (args, says) in [
        (&["replace", &head][..], "no spare is ready"),
        (&["add"], "no spare is ready"),
        (&["remove", "7"], "is not in the chain"),
        (&["add", "--device", &head], "nothing to take back"),
    ] {
        let said = ctl(&world, args);
        assert_eq!(said.code, Some(1));
        assert!(said.err.contains(says), "{says}: {}", said.err);
    }

    // The head is ordered to leave, and its process ends by itself.
    let (mut everything, removed) = world.under_load("r", |world| {
        let begun = Instant::now();
        let said = ctl(world, &["remove", &head]);
        assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
        begun
    });
    tell("head removed", &everything, removed);
    let process = world.cluster.process(Role::Device(0)).unwrap();
    let status = process.wait_exit(HEALED_MAX).unwrap();
    assert!(status.success(), "{}", process.stderr());
    assert!(process.stderr().contains("leaves its chain"));
    until_long(&world, 2);
    assert_eq!(world.done(r#""step":"left-out""#), 1);

    // A device that has left and is started again becomes a spare only with --join.
    let process = world.cluster.process(Role::Device(0)).unwrap();
    process.set_flag("--join", None);
    process.relaunch().unwrap();
    eventually("it waits", HEALED_MAX, || {
        process.stderr().contains("is ready to join")
    });
    let said = ctl(&world, &["add", "--wait", "1"]);
    assert!(said.err.contains("no spare is ready"), "{}", said.err);
    assert!(
        ctl(&world, &["add", "--device", &head])
            .out
            .contains("done")
    );
    let (more, ()) = world.under_load("a", |world| {
        eventually("it is ready", HEALED_MAX, || {
            ctl(world, &["add", "--dry-run"]).code == Some(0)
        });
        let said = ctl(world, &["add", "--json"]);
        assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
        assert!(said.out.contains(r#""done":true"#), "{}", said.out);
    });
    everything.extend(more);
    until_long(&world, 3);

    // Another spare takes the place of the middle device.
    let middle = ids[2].clone();
    let spare = world.spare();
    eventually("the spare is ready", HEALED_MAX, || {
        spare.stderr().contains("is ready to join")
    });
    let (more, replaced) = world.under_load("m", |world| {
        let begun = Instant::now();
        let said = ctl(world, &["replace", &middle]);
        assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
        begun
    });
    tell("middle replaced", &more, replaced);
    until_long(&world, 3);
    assert!(spare.stdout().contains("copies=3"));
    everything.extend(more);
    let key = world.cluster.keys().unwrap().cluster.display().to_string();
    let said = ctl(&world, &["drain", "--key", &key]);
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    world.nothing_is_lost(&everything);
}

#[test]
fn without_a_controller_a_device_that_was_asked_to_leave_is_asked_to_stay_after_all() {
    let Some(mut world) = World::start("ctl-alone", 2) else {
        return;
    };
    let ids = ids(&world);
    let tail = ids[1].clone();
    // The command refuses to leave only one copy, unless a flag permits it.
    let said = ctl(&world, &["remove", &tail]);
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains("--to-one"), "{}", said.err);
    for controller in &world.controllers {
        controller.signal(Signal::STOP).unwrap();
    }
    let said = ctl(&world, &["remove", &tail, "--to-one", "--wait", "4"]);
    assert_eq!(said.code, Some(1));
    assert!(said.out.contains("taken back"), "{}", said.out);
    // The process has ended. The process is started again, as a service manager does.
    let process = world.cluster.process(Role::Device(1)).unwrap();
    assert!(process.wait_exit(HEALED_MAX).unwrap().success());
    process.relaunch().unwrap();
    process.wait_ready(HEALED_MAX).unwrap();
    until_long(&world, 2);
    for controller in &world.controllers {
        controller.signal(Signal::CONT).unwrap();
    }
    let (acknowledged, ()) = world.under_load("b", |_| std::thread::sleep(Duration::from_secs(1)));
    world.nothing_is_lost(&acknowledged);
    assert_eq!(world.done(r#""step":"stop""#), 0);
    assert_eq!(ids.len(), 2);
}

/// No client writes, so no entry tells the head that a device has joined.
#[test]
fn a_chain_that_nobody_uses_knows_who_has_joined_and_can_be_changed() {
    let Some(mut world) = World::start("ctl-idle", 2) else {
        return;
    };
    let ids = ids(&world);
    world.cluster.kill(Role::Front).unwrap();
    let head = world.cluster.process(Role::Device(0)).unwrap();
    head.set_flag("--copies", Some("3"));
    head.kill().unwrap();
    head.relaunch().unwrap();
    head.wait_ready(HEALED_MAX).unwrap();
    let port = place(head);
    let (status, said) = get(port, "/readyz");
    assert_eq!(status, 503, "{said}");
    let spare = world.spare();
    eventually("the spare is ready", HEALED_MAX, || {
        spare.stderr().contains("is ready to join")
    });
    // The restart of the head may have begun another epoch meanwhile, in which the spare must get ready again.
    eventually("the spare is added", HEALED_MAX, || {
        let said = ctl(&world, &["add"]);
        let not_yet = said.err.contains("no spare is ready");
        assert!(said.code == Some(0) || not_yet, "{}{}", said.out, said.err);
        !not_yet
    });
    let joined = Instant::now();
    eventually("the head has three copies", HEARD_MAX, || {
        get(port, "/readyz").0 == 200
    });
    println!(
        "the head knew of the third device {:?} later",
        joined.elapsed()
    );
    let said = ctl(&world, &["remove", &ids[1]]);
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    eventually("the head has two copies", HEARD_MAX, || {
        get(port, "/readyz").0 == 503
    });
}
