//! Runs processes as containers do: with process id 1, a read-only root, an unknown user and no privileges.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::chain::{Places, Running, eventually, serves};
use crate::skip::skip;

const SCRIPT: &str = "mount --make-rprivate / && mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro / \
                      && exec setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs \
                         --inh-caps=-all --bounding-set=-all \"$@\"";

fn contained(command: &Command, places: &Places) -> Command {
    let mut inside = Command::new("unshare");
    inside
        .args([
            "--mount",
            "--pid",
            "--fork",
            "--mount-proc",
            "sh",
            "-c",
            SCRIPT,
        ])
        .arg(places.folder.path())
        .arg(command.get_program())
        .args(command.get_args());
    inside
}

/// Returns the process id, seen from outside the container, of the process that was started inside.
fn inside(running: &Running) -> Option<Pid> {
    let path = format!("/proc/{0}/task/{0}/children", running.id());
    let children = std::fs::read_to_string(path).ok()?;
    Pid::from_raw(children.split_whitespace().next()?.parse().ok()?)
}

#[test]
fn every_role_runs_as_process_1_of_a_container_and_ends_when_it_is_asked_to() {
    if !geteuid().is_root() {
        return skip("namespaces need root");
    }
    for media in ["file", "dram"] {
        let places = Places::new();
        let all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(places.folder.path(), all).unwrap();
        let store = places.store();
        let commands = [
            places.server(&store),
            places.device_with(&places.device_at(), &places.server_at(), media),
            places.front(&places.device_at()),
        ];
        let mut names = ["server.err", "device.err", "front.err"].into_iter();
        let mut running = commands.map(|command| {
            let log = places.path(names.next().unwrap());
            Running::logged(contained(&command, &places), &log)
        });
        serves(places.front_at());
        for one in &mut running {
            let process = inside(one).expect("it runs");
            let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
            let has = |line: &str| status.lines().any(|one| one.starts_with(line));
            assert!(
                has("Uid:\t65534") && has("CapEff:\t0000000000000000"),
                "{status}"
            );
            let numbers = status
                .lines()
                .find(|line| line.starts_with("NSpid:"))
                .unwrap();
            assert!(numbers.ends_with("\t1"), "{numbers}");
            kill_process(process, Signal::TERM).unwrap();
            let ended = one.wait();
            assert!(ended.success(), "{ended}: {}", one.log());
        }
        // The device still waits for its server. Nevertheless it must be possible to end the device.
        let device = contained(&places.device(&places.server_at()), &places);
        let mut device = Running::logged(device, &places.path("waits.err"));
        device.says("read the log");
        eventually("it runs", || inside(&device).is_some());
        kill_process(inside(&device).unwrap(), Signal::TERM).unwrap();
        assert!(device.wait().success());
    }
}
