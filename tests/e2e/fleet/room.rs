//! The number of values that a fleet writes to etcd. (`make week` makes the writes of a week, in a shorter time.)

use std::process::Command;
use std::time::Duration;

use super::etcd::revision;
use super::heal::World;
use crate::common;

/// Duration of the idle period.
const IDLE: Duration = Duration::from_secs(10);

/// Each device renews its lease once a second, with one write. The fleet must write nothing else.
#[test]
fn an_idle_fleet_writes_one_value_a_second_for_each_device() {
    const DEVICES: u64 = 2;
    let Some(world) = World::start("room", 2) else {
        return;
    };
    std::thread::sleep(Duration::from_secs(3));
    let at = world.etcds.address(0);
    let before = revision(at);
    std::thread::sleep(IDLE);
    let written = revision(at) - before;
    println!("{written} revisions in {IDLE:?}");
    assert!(written <= DEVICES * IDLE.as_secs() + DEVICES, "{written}");
    assert!(
        written >= DEVICES * IDLE.as_secs() / 2,
        "leases are renewed: {written}"
    );
    let doctor = Command::new(common::pmnet())
        .args(["doctor", "--json", "--etcd", &format!("http://{at}")])
        .output()
        .unwrap();
    let said = String::from_utf8(doctor.stdout).unwrap();
    let line = said
        .split(r#""what":"etcd""#)
        .nth(1)
        .expect("a line about etcd");
    assert!(line.contains("MiB in use"), "{said}");
}
