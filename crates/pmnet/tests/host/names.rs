//! Tests of names that are not known yet, and of names whose address changes, as after a restart of a container.

use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use crate::chain::{Client, Places, Running, eventually, serves};
use crate::skip::skip;

/// Returns the command with a host file. Only this file is used to look up names.
fn with_hosts(command: &Command, places: &Places) -> Command {
    with_resolver(command, places, "127.0.0.9", 1)
}

/// Returns the command with a host file. If a name is not in the file, the resolver asks the DNS server `at`, and waits
/// `seconds` for its answer.
fn with_resolver(command: &Command, places: &Places, at: &str, seconds: u32) -> Command {
    let resolver = places.path("resolv.conf");
    let text = format!("nameserver {at}\noptions timeout:{seconds} attempts:1\n");
    std::fs::write(&resolver, text).unwrap();
    let mut inside = Command::new("unshare");
    inside
        .args(["--mount", "sh", "-c"])
        .arg("mount --bind \"$0\" /etc/hosts && mount --bind \"$1\" /etc/resolv.conf && shift && exec \"$@\"")
        .arg(places.path("hosts"))
        .arg(resolver)
        .arg(command.get_program())
        .args(command.get_args());
    inside
}

fn port(at: &str) -> String {
    at.rsplit_once(':').unwrap().1.to_owned()
}

/// Writes the addresses of the names into the file. The file is not replaced, because it is mounted.
fn name(hosts: &Path, server: &str, device: &str) {
    let text = format!("{server} server.pmnet.test\n{device} device.pmnet.test\n");
    std::fs::write(hosts, text).unwrap();
}

#[test]
fn a_name_is_waited_for_and_found_again_elsewhere() {
    if !rustix::process::geteuid().is_root() {
        return skip("names of a test's own need a mount namespace, and that root");
    }
    let places = Places::new();
    let hosts = places.path("hosts");
    std::fs::write(&hosts, "").unwrap();
    let (server_port, device_port) = (port(&places.server_at()), port(&places.device_at()));
    let store = places.store();
    let device_on = |ip: &str| {
        let device = places.device_on(
            &format!("{ip}:{device_port}"),
            &format!("server.pmnet.test:{server_port}"),
        );
        Running::logged(with_hosts(&device, &places), &places.path("device.err"))
    };
    let server_on = |ip: &str| {
        let server = places.server_on(&format!("{ip}:{server_port}"), &store);
        Running::logged(server, &places.path("server.err"))
    };
    let server = server_on("127.0.0.1");
    let mut device = device_on("127.0.0.1");
    let front = places.front(&format!("device.pmnet.test:{device_port}"));
    let mut front = Running::logged(with_hosts(&front, &places), &places.path("front.err"));
    device.says("--next server.pmnet.test: the name is not known");
    front.says("--via device.pmnet.test: the name is not known");
    name(&hosts, "127.0.0.1", "127.0.0.1");
    serves(places.front_at());

    // The server is restarted with another address.
    server.stop();
    name(&hosts, "127.0.0.7", "127.0.0.1");
    let _server = server_on("127.0.0.7");
    let mut client = Client::connect(places.front_at()).unwrap();
    let counts = |client: &mut Client| {
        eventually("an INCR is answered", || {
            client
                .call("INCR n")
                .is_ok_and(|reply| reply.starts_with(':'))
        });
    };
    counts(&mut client);
    device.says("has the address 127.0.0.7");

    // The device is also restarted with another address.
    device.stop();
    name(&hosts, "127.0.0.7", "127.0.0.8");
    let mut device = device_on("127.0.0.8");
    counts(&mut client);
    front.says("have these addresses now");
    // The address of the name changes several times, but the device stays at its address. Regression test: after the
    // second change, the front no longer asked the device.
    for elsewhere in ["127.0.0.9", "127.0.0.10", "127.0.0.11"] {
        name(&hosts, "127.0.0.7", elsewhere);
        front.says(&format!("now devices=[{elsewhere}:"));
    }
    counts(&mut client);
    // If a name can no longer be resolved, nothing changes.
    std::fs::write(&hosts, "").unwrap();
    device.says("The address that it had is used on");
    counts(&mut client);
}

/// Regression test: the resolver often gives `::1` first for a name with both families, and all roles took this address
/// alone. So a front did not find a device at `127.0.0.1`, and a device refused a next hop with only an IPv4 address.
#[test]
fn a_name_of_both_families_is_ipv4_where_its_neighbours_are() {
    if !rustix::process::geteuid().is_root() {
        return skip("names of a test's own need a mount namespace, and that root");
    }
    let places = Places::new();
    let hosts = places.path("hosts");
    let on = |ipv4: &str| {
        let text = format!("::1 both.pmnet.test\n{ipv4} both.pmnet.test\n");
        std::fs::write(&hosts, text).unwrap();
    };
    on("127.0.0.1");
    let named = |at: &str| format!("both.pmnet.test:{}", port(at));
    let store = places.store();
    let _server = Running::logged(places.server(&store), &places.path("server.err"));
    let device = || {
        let device = places.device_on(&named(&places.device_at()), &places.server_at());
        Running::logged(with_hosts(&device, &places), &places.path("device.err"))
    };
    let first = device();
    let front = places.front_on(
        &named(&places.front_at().to_string()),
        &named(&places.device_at()),
    );
    let mut front = Running::logged(with_hosts(&front, &places), &places.path("front.err"));
    serves(places.front_at());
    // The front continues with IPv4 when the name has other addresses.
    first.stop();
    on("127.0.0.8");
    let _second = device();
    let device_port = port(&places.device_at());
    front.says(&format!("now devices=[127.0.0.8:{device_port}]"));
    serves(places.front_at());
}

/// The process is asked to end while the resolver still waits for an answer. Regression test: when the name was
/// resolved after that, the process continued to serve.
#[test]
fn who_is_asked_to_end_while_a_name_is_looked_up_does_not_begin() {
    if !rustix::process::geteuid().is_root() {
        return skip("names of a test's own need a mount namespace, and that root");
    }
    let places = Places::new();
    let hosts = places.path("hosts");
    std::fs::write(&hosts, "").unwrap();
    let device = places.device_on(
        &places.device_at(),
        &format!("server.pmnet.test:{}", port(&places.server_at())),
    );
    let front = places.front(&format!("device.pmnet.test:{}", port(&places.device_at())));
    for (role, command) in [("device", device), ("front", front)] {
        let mut running = Running::logged(with_hosts(&command, &places), &places.path("asked.err"));
        running.says("the name is not known");
        // The process is suspended while the name becomes known and while it is asked to end. So the process sees both
        // events at the same time.
        running.signal(Signal::STOP);
        name(&hosts, "127.0.0.1", "127.0.0.1");
        running.signal(Signal::TERM);
        running.signal(Signal::CONT);
        let status = running.wait();
        assert!(status.success(), "{role}: {}", running.log());
        std::fs::write(&hosts, "").unwrap();
    }
}

/// Regression test: an idle device took its server for silent. The device started again with the new address of the
/// name, where no server was.
#[test]
fn an_idle_device_stays_with_a_server_that_answers_when_its_name_leads_elsewhere() {
    if !rustix::process::geteuid().is_root() {
        return skip("names of a test's own need a mount namespace, and that root");
    }
    let places = Places::new();
    let hosts = places.path("hosts");
    let port = port(&places.server_at());
    name(&hosts, "127.0.0.1", "127.0.0.1");
    let store = places.store();
    let server = Running::logged(places.server(&store), &places.path("server.err"));
    let device = places.device(&format!("server.pmnet.test:{port}"));
    let mut device = Running::logged(with_hosts(&device, &places), &places.path("device.err"));
    let _front = Running::start(places.front(&places.device_at()));
    serves(places.front_at());
    name(&hosts, "127.0.0.9", "127.0.0.1");
    // Four look-ups take place in this time, each with a check whether the server answers.
    std::thread::sleep(std::time::Duration::from_secs(9));
    let log = device.log();
    assert!(!log.contains("is silent at"), "{log}");
    serves(places.front_at());
    // If the server no longer answers, the device uses the new address.
    server.stop();
    device.says("is silent at 127.0.0.1");
    let server = places.server_on(&format!("127.0.0.9:{port}"), &store);
    let _server = Running::logged(server, &places.path("server.err"));
    serves(places.front_at());
}

/// Regression test: the name was looked up only once. After Redis had moved to another address, all commands failed.
#[test]
fn a_redis_of_direct_is_found_again_elsewhere() {
    if !rustix::process::geteuid().is_root() {
        return skip("names of a test's own need a mount namespace, and that root");
    }
    let program = std::env::var("PMNET_TEST_REDIS").unwrap_or_else(|_| "redis-server".into());
    if Command::new(&program).arg("--version").output().is_err() {
        return skip("redis-server is not installed");
    }
    let places = Places::new();
    let hosts = places.path("hosts");
    let redis_port = crate::claims::Port::claim().unwrap();
    let redis_at = |ip: &str| {
        let mut command = Command::new(&program);
        let number = redis_port.number().to_string();
        command.args(["--bind", ip, "--port", &number, "--dir"]);
        command.arg(places.folder.path());
        command.args([
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
            "--save",
            "",
        ]);
        Running::logged(command, &places.path("redis.err"))
    };
    let redis = redis_at("127.0.0.1");
    std::fs::write(&hosts, "").unwrap();
    let named = format!("store.pmnet.test:{}", redis_port.number());
    let server = places.server(&format!("redis://{named}"));
    let _server = Running::logged(with_hosts(&server, &places), &places.path("server.err"));
    let _device = Running::logged(
        places.device(&places.server_at()),
        &places.path("device.err"),
    );
    let mut front = places.front(&places.device_at());
    front.args(["--direct", &named]);
    let mut front = Running::logged(with_hosts(&front, &places), &places.path("front.err"));
    front.says("--direct store.pmnet.test: the name is not known");
    std::fs::write(&hosts, "127.0.0.1 store.pmnet.test\n").unwrap();
    serves(places.front_at());
    let passes = || {
        eventually("a command passes", || {
            let pass = || Client::connect(places.front_at())?.call("BLPOP nothing 0.01");
            pass().is_ok_and(|reply| reply == "*-1")
        });
    };
    passes();
    redis.stop();
    let _redis = redis_at("127.0.0.7");
    std::fs::write(&hosts, "127.0.0.7 store.pmnet.test\n").unwrap();
    serves(places.front_at());
    passes();
    front.says("the Redis of --direct has another address now");
}

/// Regression test: the process ended only when the resolver gave up, after more than nine seconds. Then the process
/// logged that its disk was slow.
#[test]
fn a_server_whose_resolver_is_silent_ends_when_it_is_asked_to() {
    if !rustix::process::geteuid().is_root() {
        return skip("names of a test's own need a mount namespace, and that root");
    }
    let places = Places::new();
    std::fs::write(places.path("hosts"), "").unwrap();
    let resolver = "127.83.51.53";
    let Ok(silent) = std::net::UdpSocket::bind((resolver, 53)) else {
        return skip("port 53 is taken");
    };
    silent.set_read_timeout(Some(crate::chain::WAIT)).unwrap();
    let server = places.server("redis://silent.pmnet.test:6379");
    let server = with_resolver(&server, &places, resolver, 10);
    let mut server = Running::logged(server, &places.path("server.err"));
    silent.recv(&mut [0; 512]).expect("it asks for the name");
    std::thread::sleep(std::time::Duration::from_secs(2));
    let begun = std::time::Instant::now();
    server.signal(Signal::TERM);
    let status = server.wait();
    let took = begun.elapsed();
    let log = server.log();
    assert!(status.success(), "{status}: {log}");
    assert!(took < std::time::Duration::from_secs(3), "{took:?}: {log}");
    assert!(!log.contains("Is the store's disk slow"), "{log}");
    assert!(
        log.contains("resolver has not yet said where silent.pmnet.test is"),
        "{log}"
    );
}
