//! A device in the kernel at a veth whose other end receives nothing from programs.

use std::process::Command;

use crate::chain::{Places, Running, eventually, pmnet};
use crate::namespaces::{Two, missing, run};
use crate::skip::skip;

const COMPILE: &str = "echo '__attribute__((section(\"xdp\"), used)) int pass(void *c) { return 2; }' \
                       | clang -O2 -target bpf -c -x c - -o pass.o";

#[test]
fn answers_that_vanish_at_a_veth_are_noticed() {
    if let Some(what) = missing(&["ip", "ethtool", "clang"]) {
        return skip(&what);
    }
    let (two, places) = (Two::new(), Places::new());
    let doctor = || {
        let mut doctor = Command::new(pmnet());
        doctor.args(["doctor", "--dev", "va"]);
        let output = two.inside(0, &doctor).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let says = doctor();
    assert!(
        says.contains("warn  XDP            va is a veth")
            && says.contains("its other end has none"),
        "{says}"
    );

    let store = format!("kv:{}", places.path("store.kv").display());
    let server = two.inside(0, &places.server_on("127.0.0.1:51500", &store));
    let _server = Running::logged(server, &places.path("server.err"));
    let mut device = Command::new(pmnet());
    device.args([
        "device",
        "--mode",
        "nic",
        "--dev",
        "va",
        "--listen",
        "10.9.0.2:51000",
    ]);
    device.args(["--next", "127.0.0.1:51500", "--log-size", "1M", "--name"]);
    let name = format!("host{}", std::process::id());
    device.arg(&name);
    let mut running = Running::logged(two.inside(0, &device), &places.path("device.err"));
    running.says("va is a veth");
    let mut front = Command::new(pmnet());
    front.args([
        "redis",
        "--listen",
        "127.0.0.1:6380",
        "--via",
        "10.9.0.2:51000",
        "--deadline-ms",
        "4000",
    ]);
    let _front = Running::logged(two.inside(1, &front), &places.path("front.err"));
    let mut client = two.client("127.0.0.1:6380");
    let mut set = || client.call("SET k v").unwrap();
    for _ in 0..3 {
        set();
    }
    running.says("va: its driver did not take");
    // As the guide says.
    let made = Command::new("sh")
        .args(["-c", COMPILE])
        .current_dir(places.folder.path())
        .status();
    assert!(made.unwrap().success());
    let object = places.path("pass.o");
    run(&format!(
        "ip -n {} link set dev vb xdpdrv obj {} sec xdp",
        two.0[1],
        object.display()
    ));
    assert!(!doctor().contains("is a veth"));
    eventually("a SET is acknowledged", || set() == "+OK");
    running.stop();
    device.args(["--detach", "--discard"]);
    assert!(two.inside(0, &device).status().unwrap().success());
}
