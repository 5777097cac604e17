//! SIGHUP, which terminals, scripts and service managers send to daemons.

use std::process::Command;

use rustix::process::Signal;

use crate::chain::{Places, Running, pmnet, serves};

#[test]
fn a_hangup_ends_nobody() {
    let places = Places::new();
    let store = format!("kv:{}", places.path("store.kv").display());
    let mut all = places.start_all(&store);
    serves(places.front_at());
    for running in &mut all {
        running.signal(Signal::HUP);
        running.says("SIGHUP: there is nothing to reload");
    }
    serves(places.front_at());
    for running in all {
        running.stop();
    }
    // Also one that waits for etcd, or has only begun to.
    let mut controller = Command::new(pmnet());
    controller.args(["controller", "--fleet", "f", "--etcd", "http://127.0.0.1:9"]);
    let mut controller = Running::logged(controller, &places.path("controller.err"));
    controller.says("etcd");
    controller.signal(Signal::HUP);
    controller.says("nothing to reload");
    controller.stop();
    let shards = places.path("shards.toml");
    std::fs::write(
        &shards,
        "[[shard]]\nslots = \"0-16383\"\nfleet = \"f\"\netcd = \"http://127.0.0.1:9\"\n",
    )
    .unwrap();
    let mut front = Command::new(pmnet());
    front
        .args([
            "redis",
            "--listen",
            &places.front_at().to_string(),
            "--shards",
        ])
        .arg(&shards);
    let mut front = Running::logged(front, &places.path("shards.err"));
    front.says("etcd");
    front.signal(Signal::HUP);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(front.exited().is_none(), "{}", front.log());
}
