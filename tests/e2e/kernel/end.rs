//! The end of a device in the kernel: its log is saved in a file, the device is removed, or the device is given up.
//! Attempts that would lose acknowledged entries or overwrite a foreign file must be refused.

use std::path::Path;
use std::process::Command;

use super::CALL_MAX;
use super::world::{Place, Plan, READY_MAX, World};
use crate::common;
use crate::support::eventually;

/// Checks that the kernel has no object of the device any more.
fn is_gone(world: &World) {
    assert!(!world.has_program(), "a program is left on the interface");
    assert!(!world.pins().exists(), "{} is left", world.pins().display());
}

/// Runs `pmnet log verify`. Returns whether a device could start from this log.
fn is_whole(log: &Path) -> bool {
    let output = Command::new(common::pmnet())
        .args(["log", "verify"])
        .arg(log)
        .output()
        .unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    output.status.success()
}

/// Returns a plan in which the device's log is saved at the device's end.
fn spilling() -> Plan {
    let mut plan = Plan::new(Place::Nic);
    plan.spill = true;
    // On a busy disk, saving a large log may take so long that the process is killed.
    plan.args = ["--log-size", "1M"].map(String::from).to_vec();
    plan
}

#[test]
fn saved_and_loaded() {
    let Some(mut world) = World::start(spilling()) else {
        return;
    };
    let mut writer = world.session(CALL_MAX);
    writer.sets(10, 1);
    world.kill("server");
    writer.sets(300, 1);
    world.stop("device");
    is_gone(&world);
    let saved = world.spill();
    assert!(is_whole(&saved));
    let old = std::fs::read(&saved).unwrap();

    // The device begins with the saved log, and all acknowledged updates are applied.
    world.start_device();
    world.restart("server");
    world.wait_ready("device");
    let said = world.process("device").stderr();
    assert!(said.contains("loaded the saved log"), "{said}");
    assert!(!saved.exists(), "an old copy must not be loaded again");
    writer.sets(10, 1);
    world.check(&writer);
    world.stop("device");
    is_gone(&world);

    // An old copy that is put back is not the log that served last.
    std::fs::write(&saved, old).unwrap();
    world.start_device();
    let refusal = world.process("device").wait_exit(READY_MAX).unwrap();
    let said = world.process("device").stderr();
    assert!(!refusal.success());
    assert!(said.contains("old copy"), "{said}");
    world.check_without_device(&writer);
}

/// After an old file was refused, the operator puts the newest file in its place. The next start must use the newest
/// file, and no process may overwrite it.
#[test]
fn the_newest_file_is_put_back_after_an_old_one_was_refused() {
    let Some(mut world) = World::start(spilling()) else {
        return;
    };
    let mut writer = world.session(CALL_MAX);
    writer.sets(20, 1);
    world.stop("device");
    let saved = world.spill();
    let old = std::fs::read(&saved).unwrap();
    world.start_device();
    world.wait_ready("device");
    writer.sets(20, 1);
    world.kill("server");
    writer.sets(40, 1);
    world.stop("device");
    let newest = std::fs::read(&saved).unwrap();

    std::fs::write(&saved, &old).unwrap();
    world.process("server").relaunch().unwrap();
    world.wait_ready("server");
    world.start_device();
    let refusal = world.process("device").wait_exit(READY_MAX).unwrap();
    let said = world.process("device").stderr();
    assert!(!refusal.success() && said.contains("old copy"), "{said}");
    is_gone(&world);

    std::fs::write(&saved, &newest).unwrap();
    let (good, said) = world.device_with(&["--detach"]);
    assert!(good, "{said}");
    assert!(std::fs::read(&saved).unwrap() == newest, "{said}");
    world.start_device();
    world.wait_ready("device");
    writer.sets(10, 1);
    world.check(&writer);
}

/// A file that is not an older copy of the log in the kernel must be neither put aside nor overwritten.
#[test]
fn what_is_not_its_own_older_copy_is_not_touched() {
    let Some(mut world) = World::start(spilling()) else {
        return;
    };
    let mut writer = world.session(CALL_MAX);
    writer.sets(20, 1);
    let saved = world.spill();
    let refused = |world: &mut World, why: &str| {
        world.start_device();
        let end = world.process("device").wait_exit(READY_MAX).unwrap();
        let said = world.process("device").stderr();
        assert!(!end.success() && said.contains(why), "{said}");
        let (good, said) = world.device_with(&["--detach"]);
        assert!(!good && said.contains(why), "{said}");
        assert!(world.has_program(), "it goes on");
    };

    world.kill("device");
    std::fs::create_dir(&saved).unwrap();
    refused(&mut world, "is not a file");
    std::fs::remove_dir(&saved).unwrap();
    std::fs::write(&saved, "not a log").unwrap();
    refused(&mut world, "is no log");
    assert_eq!(std::fs::read(&saved).unwrap(), b"not a log");
    std::fs::remove_file(&saved).unwrap();

    world.restart("device");
    writer.sets(20, 1);
    world.check(&writer);
}

#[test]
fn taken_out_when_it_is_drained() {
    let Some(mut world) = World::start(Plan::new(Place::Nic)) else {
        return;
    };
    let mut writer = world.session(CALL_MAX);
    writer.sets(10, 1);
    let (good, said) = world.device_with(&["--detach"]);
    assert!(!good && said.contains("another process serves"), "{said}");
    writer.sets(10, 1);

    world.kill("server");
    world.stop("device");
    assert!(world.has_program(), "it goes on without its process");
    writer.sets(100, 1);
    let (good, said) = world.device_with(&["--detach"]);
    assert!(!good && said.contains("not applied"), "{said}");
    assert!(world.has_program());
    // The attempt must not disturb the device, which still acknowledges.
    writer.sets(100, 1);

    world.process("server").relaunch().unwrap();
    world.restart("device");
    world.check(&writer);
    // The server's last packet, for example about the END of the checking session, may still be in flight. A new
    // process asks for this packet.
    eventually("all is applied", READY_MAX, || {
        world.stop("device");
        let (good, said) = world.device_with(&["--detach"]);
        if good {
            assert!(said.contains("not applied: 0"), "{said}");
        } else {
            assert!(said.contains("are not applied by the server"), "{said}");
            world.restart("device");
        }
        good
    });
    is_gone(&world);
    world.check_without_device(&writer);
    let (good, said) = world.device_with(&["--detach"]);
    assert!(
        good && said.contains("nothing was detached"),
        "taking out what is not there: {said}"
    );
    is_gone(&world);
}

#[test]
fn given_up_on_demand() {
    let Some(mut world) = World::start(Plan::new(Place::Router)) else {
        return;
    };
    let mut writer = world.session(CALL_MAX);
    writer.sets(10, 1);
    world.check(&writer);
    world.kill("server");
    writer.sets(10, 1);
    world.kill("device");
    let (good, said) = world.device_with(&["--detach"]);
    assert!(!good && said.contains("--discard"), "{said}");
    let (good, said) = world.device_with(&["--detach", "--discard"]);
    assert!(good && !said.contains("not applied: 0"), "{said}");
    is_gone(&world);
    // Without the log that was given up, the device must not be taken for the earlier device.
    world.process("server").relaunch().unwrap();
    world.wait_ready("server");
    world.start_device();
    let refusal = world.process("device").wait_exit(READY_MAX).unwrap();
    let said = world.process("device").stderr();
    assert!(
        !refusal.success() && said.contains("--declare-data-loss"),
        "{said}"
    );
}
