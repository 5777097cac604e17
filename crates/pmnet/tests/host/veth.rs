//! Tests of a device in the kernel at a veth: the other end has no program, so it receives nothing; the interface is
//! removed and made again; the kernel refuses a request.

use std::fs::File;
use std::process::Command;

use crate::chain::{Places, Running, eventually, product};
use crate::namespaces::{Two, missing, run, settings};
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
        let mut doctor = product();
        doctor.args(["doctor", "--dev", "va"]);
        let output = two.inside(0, &doctor).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let says = doctor();
    assert!(
        says.contains("warn  XDP            PM1422 va is a veth")
            && says.contains("its other end has none"),
        "{says}"
    );

    let store = places.store();
    let server = two.inside(0, &places.server_on("127.0.0.1:51500", &store));
    let _server = Running::logged(server, &places.path("server.err"));
    let mut device = product();
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
    let mut front = product();
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
    // The following steps are those of the guide.
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

const LISTEN: &str = "10.9.0.2:51000";

/// Returns a device in the kernel at `va`.
fn device(name: &str) -> Command {
    let mut device = product();
    device.args(["device", "--mode", "nic", "--dev", "va", "--listen", LISTEN]);
    device.args(["--next", "127.0.0.1:51500", "--log-size", "1M", "--name"]);
    device.arg(format!("host-{name}-{}", std::process::id()));
    device
}

/// Removes the device from the kernel, if its BPF file system is mounted for the whole machine.
fn take_out(two: &Two, mut device: Command) {
    device.args(["--detach", "--discard"]);
    let _ = two.in_network(0, &device).output();
}

#[test]
fn a_log_in_the_kernel_that_ends_with_its_process_is_said_to() {
    if let Some(what) = missing(&["ip", "nsenter", "ethtool"]) {
        return skip(&what);
    }
    let (two, places) = (Two::new(), Places::new());
    let store = places.store();
    let server = two.inside(0, &places.server_on("127.0.0.1:51500", &store));
    let _server = Running::logged(server, &places.path("server.err"));
    let ready = places.path("ready");
    let start = |mut command: Command, log: &str| {
        command
            .stdout(File::create(&ready).unwrap())
            .stderr(File::create(places.path(log)).unwrap());
        Running::start(command)
    };
    let says = |file: &std::path::Path| std::fs::read_to_string(file).unwrap();
    // Mounts that are made under `ip netns exec` are visible only to that process.
    let running = start(two.inside(0, &device("mounts")), "private.err");
    eventually("it is ready", || says(&ready).contains("survives="));
    assert!(
        says(&ready).contains("survives=nothing, not even the death of the process"),
        "{}",
        says(&ready)
    );
    running.stop();
    let log = says(&places.path("private.err"));
    assert!(
        log.contains("is mounted only where this process is"),
        "{log}"
    );
    assert!(
        log.contains("the log in the kernel ends with this process"),
        "{log}"
    );
    assert!(!log.contains("goes on acknowledging; start"), "{log}");
}

#[test]
fn a_log_in_the_kernel_of_the_whole_machine_outlives_its_process() {
    if let Some(what) = missing(&["ip", "nsenter", "ethtool"]) {
        return skip(&what);
    }
    let (two, places) = (Two::new(), Places::new());
    let log = places.path("device.err");
    let mut running = Running::logged(two.in_network(0, &device("outlives")), &log);
    running.says("made a new log in the kernel");
    running.says("no answer from the server");
    running.stop();
    let first = std::fs::read_to_string(&log).unwrap();
    assert!(!first.contains("mounted only"), "{first}");
    let mut running = Running::logged(two.in_network(0, &device("outlives")), &log);
    running.says("took over the log in the kernel");
    running.stop();
    take_out(&two, device("outlives"));
}

#[test]
fn an_interface_that_is_made_anew_is_noticed() {
    if let Some(what) = missing(&["ip", "nsenter", "ethtool"]) {
        return skip(&what);
    }
    let places = Places::new();
    let mut past = product();
    past.args([
        "device", "--mode", "af-xdp", "--dev", "va", "--listen", LISTEN,
    ]);
    past.args(["--next", "127.0.0.1:51500", "--media", "dram"]);
    past.args(["--log-size", "1M", "--log"]);
    let log = format!("/dev/shm/pmnet-host-{}.pmlog", std::process::id());
    past.arg(&log);
    for command in [device("anew"), past] {
        let two = Two::new();
        let mut running = Running::logged(two.in_network(0, &command), &places.path("device.err"));
        running.says("made a new log");
        running.says("no answer from the server");
        let [here, there] = &two.0;
        run(&format!("ip -n {here} link del va"));
        running.says("there is no interface va any more");
        run(&format!(
            "ip -n {here} link add va type veth peer name vb netns {there}"
        ));
        running.says("va was removed and made anew");
        running.stop();
        take_out(&two, device("anew"));
    }
    let _ = std::fs::remove_file(log);
}

#[test]
fn what_the_kernel_refuses_a_device_says_what_to_do() {
    if let Some(what) = missing(&["ip", "nsenter", "ethtool", "setpriv", "unshare"]) {
        return skip(&what);
    }
    let two = Two::new();
    let refused = |before: &[&str]| {
        let device = device("refused");
        let mut command = Command::new(before[0]);
        command
            .args(&before[1..])
            .arg(device.get_program())
            .args(device.get_args())
            .envs(settings(&device));
        let output = two.in_network(0, &command).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let cases: [(&[&str], &[&str]); 3] = [
        (
            &[
                "setpriv",
                "--bounding-set=-all,+bpf,+net_admin",
                "--inh-caps=-all",
            ],
            &["CAP_PERFMON"],
        ),
        (
            &[
                "unshare",
                "--mount",
                "sh",
                "-c",
                "mount -t bpf -o ro bpf /sys/fs/bpf && exec \"$0\" \"$@\"",
            ],
            &["can only be read here"],
        ),
        (
            &["setpriv", "--reuid=65534", "--clear-groups"],
            // Another device that runs as root may have made the folder, even during this test.
            &[
                "is of root",
                "this user may not write to the BPF file system",
            ],
        ),
    ];
    for (before, texts) in cases {
        let says = refused(before);
        assert!(
            texts.iter().any(|text| says.contains(text)),
            "{before:?}: {says}"
        );
        assert!(says.lines().count() < 20, "{says}");
    }
    let [here, there] = &two.0;
    run(&format!("ip -n {here} link set va mtu 9001"));
    run(&format!("ip -n {there} link set vb mtu 9001"));
    let says = refused(&["env"]);
    assert!(
        says.contains("an MTU is too large for native XDP"),
        "{says}"
    );
}
