//! The process of a device in the kernel is killed while it makes, loads, saves or removes the device's objects. After
//! any such kill, it must be possible to start the device again and to remove it, and no acknowledged update may be
//! missing (`docs/spec/pipeline.md` §6).

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use pmnet_dataplane::xdp::Pins;

use super::CALL_MAX;
use super::load::Writer;
use super::world::{Place, Plan, READY_MAX, World};
use crate::common;
use crate::support::seed;

/// Number of entries that are acknowledged and not applied. Loading and saving these entries takes long enough for a
/// kill.
const ORDERS: u64 = 2_000;

/// Number of moments of kills in one sweep.
const MOMENTS: u32 = 16;
/// Number of moments of kills in a sweep of the long form.
const MANY_MOMENTS: u32 = 150;

fn plan() -> Plan {
    let mut plan = Plan::new(Place::Nic);
    plan.spill = true;
    plan.args = ["--log-size", "2M"].map(String::from).to_vec();
    plan
}

/// Returns the number of entries that a device would keep if it started from this file.
fn kept(file: &Path) -> u64 {
    let output = Command::new(common::pmnet())
        .args(["log", "verify"])
        .arg(file)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    let count = text.split_once(" would be kept (").unwrap().1;
    count.split_once(' ').unwrap().0.parse().unwrap()
}

/// Returns a world whose device has ended. The log of the device is in a file, and has this number of entries that no
/// server has applied.
fn saved() -> Option<(World, Writer, u64)> {
    let mut world = World::start(plan())?;
    let mut writer = world.session(CALL_MAX);
    writer.sets(10, 1);
    world.kill("server");
    writer.sets(ORDERS, 1);
    world.stop("device");
    let orders = kept(&world.spill());
    assert!(orders >= ORDERS, "{orders}");
    Some((world, writer, orders))
}

/// Starts the device, and waits until it has read the log. Without a server the device cannot serve.
fn begin(world: &mut World) -> Duration {
    let since = Instant::now();
    world.start_device();
    loop {
        let said = world.process("device").stderr();
        assert!(!said.contains("made a new log"), "{said}");
        if said.contains("loaded the saved log") || said.contains("took over the log") {
            return since.elapsed();
        }
        let ended = world.process("device").exited().unwrap();
        assert!(ended.is_none(), "it ended by itself: {said}");
        assert!(since.elapsed() < READY_MAX, "{said}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Removes the device from the kernel. Afterwards the file must have all entries.
fn take_out(world: &World, orders: u64) {
    let (good, said) = world.device_with(&["--detach"]);
    assert!(good, "{said}");
    assert!(!world.pins().exists() && !world.has_program(), "{said}");
    assert_eq!(kept(&world.spill()), orders, "{said}");
}

/// Divides a period that is a little longer than `time` into equal parts, and returns a random moment in each.
fn spread(time: Duration, count: u32) -> impl Iterator<Item = Duration> {
    let mut random = fastrand::Rng::with_seed(seed());
    let share = time.mul_f64(1.2) / count;
    (0..count).map(move |number| share * number + share.mul_f64(random.f64()))
}

/// Starts a server, and checks that all entries are applied.
fn all_is_applied(mut world: World, writer: &Writer) {
    world.start_device();
    world.restart("server");
    world.wait_ready("device");
    world.check(writer);
}

/// Regression test: if a device was killed in its first 0.2 s, it could neither start again nor be removed, because its
/// maps had no log or an incomplete one.
#[test]
fn killed_at_any_moment_of_its_start() {
    killed_while_it_starts(MOMENTS);
}

/// The long form of both tests, which `make kernel` runs.
#[test]
#[ignore = "two minutes: make kernel"]
fn killed_at_many_moments() {
    killed_while_it_starts(MANY_MOMENTS);
    killed_while_it_is_taken_out(MANY_MOMENTS);
}

fn killed_while_it_starts(moments: u32) {
    let Some((mut world, writer, orders)) = saved() else {
        return;
    };
    let whole = begin(&mut world);
    world.kill("device");
    take_out(&world, orders);
    for (number, moment) in spread(whole, moments).enumerate() {
        world.start_device();
        std::thread::sleep(moment);
        world.kill("device");
        match number % 3 {
            0 => take_out(&world, orders),
            1 => {
                begin(&mut world);
                // The device has not served. Nevertheless the log that the device loaded must be saved again.
                world.stop("device");
                assert_eq!(kept(&world.spill()), orders, "after {moment:?}");
            }
            // The next attempt begins with the state that this attempt has left.
            _ => {}
        }
    }
    all_is_applied(world, &writer);
}

#[test]
fn killed_at_any_moment_while_it_is_saved_and_taken_out() {
    killed_while_it_is_taken_out(MOMENTS);
}

fn killed_while_it_is_taken_out(moments: u32) {
    let Some((mut world, writer, orders)) = saved() else {
        return;
    };
    begin(&mut world);
    world.kill("device");
    let since = Instant::now();
    take_out(&world, orders);
    let whole = since.elapsed();
    for (number, moment) in spread(whole, moments).enumerate() {
        begin(&mut world);
        world.kill("device");
        world.start_detach();
        std::thread::sleep(moment);
        world.process("detach").kill().unwrap();
        if number % 2 == 0 {
            take_out(&world, orders);
        }
    }
    all_is_applied(world, &writer);
}

/// A new device without any state is killed at any moment. Afterwards the device must start and serve.
#[test]
fn killed_at_any_moment_of_its_first_start() {
    let Some(mut world) = World::without_device(Plan::new(Place::Nic)) else {
        return;
    };
    let since = Instant::now();
    world.start_device();
    world.wait_ready("device");
    let whole = since.elapsed();
    let mut writer = world.session(CALL_MAX);
    writer.sets(10, 1);
    world.check(&writer);
    world.kill("device");
    let (good, said) = world.device_with(&["--detach", "--discard"]);
    assert!(good, "{said}");
    // The device's state is lost. From now on the shard has no server, and it is enough that the device begins.
    world.kill("server");
    for (number, moment) in spread(whole.min(Duration::from_millis(400)), MOMENTS).enumerate() {
        world.start_device();
        std::thread::sleep(moment);
        world.kill("device");
        if number % 2 == 0 {
            let (good, said) = world.device_with(&["--detach"]);
            assert!(good, "after {moment:?}: {said}");
            assert!(!world.pins().exists() && !world.has_program(), "{said}");
        }
    }
    world.start_device();
    let deadline = Instant::now() + READY_MAX;
    while !world.has_program() {
        let said = world.process("device").stderr();
        assert!(Instant::now() < deadline, "{said}");
        assert!(
            world.process("device").exited().unwrap().is_none(),
            "{said}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Two processes are started together. One becomes the device, the other reports this, and neither damages the log.
#[test]
fn two_starts_at_once() {
    let Some((mut world, writer, orders)) = saved() else {
        return;
    };
    for _ in 0..4 {
        world.start_device();
        let (good, said) = world.device_with(&["--detach"]);
        // Either of the two processes may have been first.
        assert!(good || said.contains("another process serves"), "{said}");
        let ended = world.process("device").exited().unwrap();
        if ended.is_some() {
            let said = world.process("device").stderr();
            assert!(said.contains("another process serves"), "{said}");
            begin(&mut world);
        }
        world.kill("device");
        take_out(&world, orders);
    }
    all_is_applied(world, &writer);
}

/// Kills the process that removes the device, at a moment at which both the file and the maps exist. The device
/// continues, so from then on the file is an old copy.
fn saved_and_not_removed(world: &mut World) -> Vec<u8> {
    let spill = world.spill();
    for _ in 0..200 {
        assert!(!spill.exists());
        world.start_detach();
        let deadline = Instant::now() + READY_MAX;
        while !spill.exists() {
            assert!(Instant::now() < deadline, "never saved");
            std::hint::spin_loop();
        }
        world.process("detach").kill().unwrap();
        let file = std::fs::read(&spill).unwrap();
        world.start_device();
        world.wait_ready("device");
        let said = world.process("device").stderr();
        if said.contains("took over the log") {
            return file;
        }
        assert!(said.contains("loaded the saved log"), "{said}");
        world.kill("device");
    }
    panic!("always removed before it could be killed");
}

/// Regression test: this file was used after a power failure, and later acknowledged updates were lost silently.
#[test]
fn a_file_beside_maps_that_went_on_is_an_old_copy() {
    let Some(mut world) = World::start(plan()) else {
        return;
    };
    let mut writer = world.session(CALL_MAX);
    writer.sets(100, 1);
    world.check(&writer);
    world.kill("device");
    let file = saved_and_not_removed(&mut world);
    let put_aside = !world.spill().exists();
    // The kernel acknowledges updates, and no server applies them. Then the power fails.
    world.kill("server");
    writer.sets(100, 1);
    world.kill("device");
    Pins::existing(world.name()).remove().unwrap();
    world.process("server").relaunch().unwrap();
    world.wait_ready("server");
    // Restores the file, as if it had never been put aside.
    std::fs::write(world.spill(), file).unwrap();
    for _ in 0..3 {
        world.start_device();
        let refusal = world.process("device").wait_exit(READY_MAX).unwrap();
        let said = world.process("device").stderr();
        assert!(!refusal.success() && said.contains("old copy"), "{said}");
    }
    assert!(
        put_aside,
        "an old copy must not be loaded by accident either"
    );
}

/// An empty log must be saved too, because the server has registered it.
#[test]
fn an_empty_log_is_saved_too() {
    let Some(mut world) = World::start(plan()) else {
        return;
    };
    world.stop("device");
    world.start_device();
    world.wait_ready("device");
    let mut writer = world.session(CALL_MAX);
    writer.sets(10, 1);
    world.check(&writer);
}
