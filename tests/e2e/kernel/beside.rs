//! Two devices of two shards at one interface, each with a process of its own. While one device fails in any way, the
//! other device must answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::load::Load;
use super::world::{Place, Plan, World};
use super::{CALL_MAX, load, took_over};
use crate::support::seed;

fn both(place: Place) -> Option<World> {
    let mut plan = Plan::new(place);
    plan.shards = 2;
    let mut world = World::start(plan)?;
    world.start_beside();
    world.wait_ready("beside");
    Some(world)
}

/// Checks that both devices report the same interfaces.
fn are_together(world: &World) {
    let (one, other) = (world.status(), world.follower_status());
    assert_ne!(one["interfaces"], serde_json::json!([]), "{one}");
    assert_eq!(one["interfaces"], other["interfaces"]);
    assert_eq!((&one["shard"], &other["shard"]), (&0.into(), &1.into()));
}

#[test]
fn two_shards_at_one_interface() {
    for place in [Place::Nic, Place::Switch] {
        let Some(mut world) = both(place) else {
            return;
        };
        are_together(&world);
        let mut writers = [0, 1].map(|shard| world.session_of(shard, CALL_MAX));
        for writer in &mut writers {
            writer.sets(50, 1);
        }
        // The kernel continues for both devices.
        for name in ["device", "beside"] {
            world.kill(name);
        }
        for writer in &mut writers {
            writer.sets(200, 1);
        }
        for name in ["beside", "device"] {
            world.restart(name);
        }
        took_over(&mut world);
        for writer in &writers {
            world.check(writer);
        }
        let mut kills = 0;
        let often = Load {
            every: Duration::from_millis(600),
            clients: 4,
            ..load(6, 0)
        };
        world.checked(often, |world, number| {
            let names = ["device", "beside", "server", "beside", "device", "server2"];
            let name = names[usize::try_from(number).unwrap() % names.len()];
            world.kill(name);
            world.restart(name);
            kills += 1;
        });
        assert!(kills >= 3, "{kills} kills");
        // One device is removed. The other device stays in the kernel without a process. With a process, this device
        // could open its session again, because the session was idle during the load.
        writers[0].sets(10, 1);
        world.kill("device");
        world.stop("beside");
        assert!(world.has_program());
        writers[0].sets(200, 1);
        world
            .session_of(1, Duration::from_millis(300))
            .set()
            .unwrap_err();
        // The removed device is started again at the same interface.
        world.restart("beside");
        writers[1].sets(50, 1);
        writers[0].sets(50, 1);
        world.restart("device");
        are_together(&world);
        for writer in &writers {
            world.check(writer);
        }
        // The device that was attached first is removed, and the other device takes its place.
        let (taken_out, said) = world.device_with(&["--detach"]);
        assert!(!taken_out && said.contains("another process"), "{said}");
        // The process may be killed before the server has reported to it that the last entry is applied.
        let taken_out = (0..5).any(|_| {
            world.kill("device");
            let (taken_out, said) = world.device_with(&["--detach"]);
            if !taken_out {
                assert!(said.contains("not applied by the server yet"), "{said}");
                world.restart("device");
            }
            taken_out
        });
        assert!(taken_out);
        world.kill("beside");
        writers[1].sets(200, 1);
        assert!(world.has_program());
        world.restart("beside");
        world.stop("beside");
        assert!(!world.has_program());
    }
}

/// One device is started, stopped and killed again and again, even during its start and its end. The other device has
/// no process, and must answer.
#[test]
fn killed_while_it_comes_and_goes_beside_another() {
    let Some(mut world) = both(Place::Nic) else {
        return;
    };
    let mut random = fastrand::Rng::with_seed(seed());
    let mut writer = world.session_of(0, CALL_MAX);
    let mut other = world.session_of(1, CALL_MAX);
    for writer in [&mut writer, &mut other] {
        writer.sets(20, 1);
    }
    world.kill("device");
    let ended = AtomicBool::new(false);
    let (writer, kills) = std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            while !ended.load(Ordering::Acquire) {
                writer.sets(1, 1);
                std::thread::sleep(Duration::from_millis(1));
            }
            writer
        });
        let mut kills = 0;
        for round in 0..24 {
            if round % 4 == 3 {
                world.wait_ready("beside");
                // The log of the device is saved, and the device is removed.
                world.stop("beside");
            } else {
                std::thread::sleep(Duration::from_millis(random.u64(..150)));
                world.process("beside").kill().unwrap();
                kills += 1;
            }
            world.process("beside").relaunch().unwrap();
        }
        world.wait_ready("beside");
        ended.store(true, Ordering::Release);
        (writing.join().unwrap(), kills)
    });
    println!("{kills} kills, {} acknowledged", writer.acknowledged.len());
    assert!(writer.acknowledged.len() > 100);
    other.sets(20, 1);
    world.restart("device");
    are_together(&world);
    world.check(&writer);
    world.check(&other);
}
