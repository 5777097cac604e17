//! Tests of SIGHUP, which terminals, scripts and service managers send to daemons, and of the end of processes that are
//! still waiting at their start.

use rustix::process::Signal;

use crate::chain::{Places, Running, product, serves};

#[test]
fn a_hangup_ends_nobody() {
    let places = Places::new();
    let store = places.store();
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
    // The controller still waits for etcd. SIGHUP must not end this controller either.
    let mut controller = product();
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
    let mut front = product();
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

/// Regression test: a front waited for the first device of its fleet and was asked to end. The front continued to wait
/// for 30 s, and then served.
#[test]
fn a_front_that_waits_for_etcd_ends_when_it_is_asked_to() {
    let places = Places::new();
    let shards = places.path("shards.toml");
    let text = "[[shard]]\nslots = \"0-16383\"\nfleet = \"f\"\netcd = \"http://127.0.0.1:9\"\n";
    std::fs::write(&shards, text).unwrap();
    let shards = shards.display().to_string();
    for way in [
        &["--fleet", "f", "--etcd", "http://127.0.0.1:9"][..],
        &["--shards", &shards],
    ] {
        let mut front = product();
        let listen = places.front_at().to_string();
        front.args(["redis", "--listen", &listen]).args(way);
        let mut front = Running::logged(front, &places.path("front.err"));
        front.says("waits for 30 s at most");
        let asked = std::time::Instant::now();
        front.signal(Signal::TERM);
        let status = front.wait();
        assert!(status.success(), "{way:?}: {}", front.log());
        assert!(asked.elapsed().as_secs() < 10, "{way:?}");
    }
}
