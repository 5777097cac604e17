//! Commands that find the processes of a fleet by the fleet's name.

use std::process::{Command, Output};

use pmnet_lab::harness::Role;

use super::heal::{HEALED_MAX, World};
use crate::common;
use crate::status::place;
use crate::support::eventually;

fn ask(world: &World, args: &[&str]) -> Output {
    let mut command = Command::new(common::pmnet());
    command.args(args).args(&world.flags).output().unwrap()
}

#[test]
fn processes_are_found_by_the_name_of_their_fleet_for_as_long_as_they_live() {
    let Some(mut world) = World::start("found", 2) else {
        return;
    };
    let roles = [Role::Server, Role::Device(0), Role::Device(1), Role::Front];
    let [server, head, tail, front] =
        roles.map(|role| place(world.cluster.process(role).unwrap()).to_string());
    let status = |world: &World| {
        let output = ask(world, &["status", "--ask", "--json"]);
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), text)
    };
    let (code, text) = status(&world);
    assert_eq!(code, Some(0), "{text}");
    for at in [&server, &head, &tail] {
        let at = format!(r#""at":"{at}""#);
        assert_eq!(text.matches(&at).count(), 1, "{at}: {text}");
    }
    let args = ["top", "--once", "--interval", "0.2", "--at", &front];
    let output = ask(&world, &args);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    let tables = ["4 processes, 4 ready", "FRONTS", "DEVICES", "SERVERS"];
    for part in tables.into_iter().chain([&*server, &head, &tail, &front]) {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The command must also name a process that has no status port.
    let spare = world.spare();
    eventually("the spare is ready", HEALED_MAX, || {
        spare.stderr().contains("is ready to join")
    });
    eventually("it is named", HEALED_MAX, || {
        let said = ask(&world, &["status", "--ask"]).stderr;
        String::from_utf8(said)
            .unwrap()
            .contains("has no status port")
    });
    drop(spare);
    // After the lease of a dead process has expired, the process is no longer asked.
    world.cluster.kill(Role::Device(1)).unwrap();
    eventually("only the others are found", HEALED_MAX, || {
        let (_, text) = status(&world);
        text.contains(&head) && !text.contains(&tail)
    });
}
