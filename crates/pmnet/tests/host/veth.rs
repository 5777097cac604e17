//! A device in the kernel at a veth whose other end receives nothing from programs.

use std::os::fd::AsFd;
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::chain::{Client, Places, Running, eventually, pmnet};
use crate::skip::skip;

const COMPILE: &str = "echo '__attribute__((section(\"xdp\"), used)) int pass(void *c) { return 2; }' \
                       | clang -O2 -target bpf -c -x c - -o pass.o";

/// Two network namespaces with a veth between them; removed when dropped.
struct Two([String; 2]);

fn run(line: &str) {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().unwrap())
        .args(words)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{line}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

impl Two {
    fn new() -> Two {
        let two = Two(
            ["device", "front"].map(|name| format!("pmnet-host-{}-{name}", std::process::id()))
        );
        let [device, front] = &two.0;
        run(&format!("ip netns add {device}"));
        run(&format!("ip netns add {front}"));
        run(&format!(
            "ip -n {device} link add va type veth peer name vb netns {front}"
        ));
        for (namespace, interface, address) in
            [(device, "va", "10.9.0.2/24"), (front, "vb", "10.9.0.1/24")]
        {
            run(&format!("ip -n {namespace} link set lo up"));
            run(&format!(
                "ip -n {namespace} addr add {address} dev {interface}"
            ));
            run(&format!(
                "ip netns exec {namespace} ethtool -K {interface} tx off"
            ));
            run(&format!("ip -n {namespace} link set {interface} up"));
        }
        two
    }

    fn inside(&self, place: usize, command: &Command) -> Command {
        // Unlike nsenter it shows the namespace's own /sys.
        let mut inside = Command::new("ip");
        inside
            .args(["netns", "exec", &self.0[place]])
            .arg(command.get_program())
            .args(command.get_args());
        inside
    }

    fn client(&self, at: &str) -> Client {
        let namespace = std::fs::File::open(format!("/run/netns/{}", self.0[1])).unwrap();
        let at = at.parse().unwrap();
        std::thread::spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            let mut client = None;
            eventually("the front listens", || {
                client = Client::connect(at).ok();
                client.is_some()
            });
            client.unwrap()
        })
        .join()
        .unwrap()
    }
}

impl Drop for Two {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

#[test]
fn answers_that_vanish_at_a_veth_are_noticed() {
    let tools = ["ip", "ethtool", "clang"];
    let missing = tools
        .iter()
        .find(|tool| Command::new(tool).arg("--version").output().is_err());
    if !rustix::process::geteuid().is_root() || missing.is_some() {
        return skip("network namespaces need root, ip, ethtool and clang");
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
