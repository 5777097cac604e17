//! `pmnet ctl --via`: a device in the kernel, or a device that bypasses the network stack, gets another next hop while
//! it runs.

use super::CALL_MAX;
use super::world::{Place, Plan, READY_MAX, World};
use crate::support::eventually;

/// A spare joins after the device, is lost, and is left out. The device's process is never restarted.
fn grows_and_shrinks(plan: Plan) {
    let Some(mut world) = World::start(plan) else {
        return;
    };
    let in_kernel = world.is_in_kernel();
    let mut writer = world.session(CALL_MAX);
    writer.sets(50, 1);
    world.start_spare();
    eventually("it is ready to join", READY_MAX, || {
        world.process("spare").stderr().contains("is ready to join")
    });
    let (code, said) = world.ctl("add");
    assert_eq!(code, Some(0), "{said}");
    writer.sets(50, 2);
    if in_kernel {
        assert_eq!(world.status()["copies"], 2);
        // If the process ended, its device in the kernel would continue to acknowledge. So the command must be refused.
        let (code, said) = world.ctl("remove 1 --to-one");
        assert!(code == Some(1) && said.contains("--detach"), "{said}");
    }
    world.kill("spare");
    let (code, said) = world.ctl("remove 9 --to-one");
    assert!(code == Some(1) && said.contains("--is-stopped"), "{said}");
    let (code, said) = world.ctl("remove 9 --to-one --is-stopped");
    assert_eq!(code, Some(0), "{said}");
    writer.sets(50, 1);
    // A new process takes over the device. The flags of the process have the right next hop again.
    world.kill("device");
    world.restart("device");
    writer.sets(50, 1);
    world.check(&writer);
}

#[test]
fn a_spare_joins_behind_a_device_in_the_kernel_and_is_left_out_by_hand() {
    grows_and_shrinks(Plan::new(Place::Nic));
}

#[test]
fn a_spare_joins_behind_a_device_past_the_kernels_stack_and_is_left_out_by_hand() {
    let mut plan = Plan::new(Place::Nic);
    plan.direct = Some("dram");
    grows_and_shrinks(plan);
}

/// Clients send to the address of the server. Each switch has an address of its own, at which it accepts questions and
/// orders.
#[test]
fn the_last_of_two_switches_is_detached_and_left_out_by_hand() {
    let mut plan = Plan::new(Place::Switch);
    (plan.followers, plan.followers_in_kernel) = (1, true);
    let Some(mut world) = World::start(plan) else {
        return;
    };
    let mut writer = world.session(CALL_MAX);
    writer.sets(50, 2);
    let (code, said) = world.ctl("status");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("the chain is [1, 2]"), "{said}");
    let (code, said) = world.ctl("remove 2 --to-one");
    assert!(code == Some(1) && said.contains("--detach"), "{said}");
    world.stop("follower");
    let follower = world.process("follower");
    for flag in ["--detach", "--discard"] {
        follower.set_flag(flag, None);
    }
    follower.relaunch().unwrap();
    assert!(follower.wait_exit(READY_MAX).unwrap().success());
    let (code, said) = world.ctl("remove 2 --to-one --is-stopped");
    assert_eq!(code, Some(0), "{said}");
    writer.sets(50, 1);
    assert_eq!(world.status()["copies"], 1);
    world.check(&writer);
}
