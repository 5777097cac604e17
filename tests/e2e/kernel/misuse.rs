//! Mistakes of an operator. pmnet must report each mistake with a message, and must leave no
//! objects in the kernel.

use std::ffi::OsString;

use pmnet_lab::harness::find_program;

use super::CALL_MAX;
use super::pinned::folder;
use super::world::{Place, Plan, World};
use crate::common;

/// Returns the device's command line, with another value of a flag.
fn with(world: &World, flag: &str, value: &str) -> Vec<OsString> {
    let mut args = world.device_args();
    let at = args.iter().position(|arg| arg == flag).unwrap();
    args[at + 1] = value.into();
    args
}

/// Runs a command that must fail, and checks its exit code: 2 for an invalid command line, 1 if the
/// machine refuses the request.
fn fails(world: &World, code: i32, args: Vec<OsString>) -> String {
    let output = world.run(common::pmnet(), args);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(!text.contains("panicked"), "{text}");
    text
}

#[test]
fn mistakes_get_a_sentence() {
    let Some(mut world) = World::without_device(Plan::new(Place::Nic)) else {
        return;
    };
    let mut args = world.device_args();
    let at = args.iter().position(|arg| arg == "--dev").unwrap();
    args.drain(at..at + 2);
    let said = fails(&world, 2, args);
    assert!(said.contains("needs --dev"), "{said}");

    let said = fails(&world, 1, with(&world, "--dev", "no-such-if"));
    assert!(said.contains("cannot attach to no-such-if"), "{said}");
    let said = fails(&world, 2, with(&world, "--listen", "0.0.0.0:51000"));
    assert!(said.contains("to which clients send"), "{said}");
    let said = fails(&world, 2, with(&world, "--name", "../up"));
    assert!(said.contains("--name"), "{said}");
    let mut args = world.device_args();
    args.extend(["--log".into(), "x".into()]);
    let said = fails(&world, 2, args);
    assert!(said.contains("--log"), "{said}");
    let mut args = world.device_args();
    args.extend(["--shards".into(), "2".into()]);
    let said = fails(&world, 2, args);
    assert!(said.contains("--shards"), "{said}");
    assert!(!world.has_program());

    // After any mistake, the right command line must work.
    world.start_device();
    world.wait_ready("device");
    let mut writer = world.session(CALL_MAX);
    writer.sets(10, 1);

    let (good, said) = world.device_with(&[]);
    assert!(!good && said.contains("another process serves"), "{said}");
    // Under another name, the device would be another device. But the interface already has a
    // device with this port.
    let other = format!("{}-other", world.name());
    let said = fails(&world, 1, with(&world, "--name", &other));
    assert!(said.contains("has port 51000 at eth0"), "{said}");
    writer.sets(10, 1);
    world.check(&writer);
    remove(&world, &other);
}

/// Removes objects that a failed start may have left.
fn remove(world: &World, name: &str) {
    let mut args = with(world, "--name", name);
    args.push("--detach".into());
    let output = world.run(common::pmnet(), args);
    assert!(output.status.success(), "{output:?}");
    assert!(!folder(name).exists());
}

#[test]
fn without_root_it_says_so() {
    let Some(world) = World::without_device(Plan::new(Place::Nic)) else {
        return;
    };
    // The program at this path can be read by every user.
    let binary = world.scratch().memory().join("pmnet");
    std::fs::copy(common::pmnet(), &binary).unwrap();
    let nsenter = find_program("nsenter").unwrap();
    let mut args: Vec<OsString> = ["-S", "65534", "-G", "65534", "--"]
        .map(Into::into)
        .to_vec();
    args.push(binary.into());
    args.extend(world.device_args());
    let output = world.run(&nsenter, args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("root") && !said.contains("panicked"),
        "{said}"
    );
}
