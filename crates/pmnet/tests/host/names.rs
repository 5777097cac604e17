//! Names that are not known yet, and names that lead elsewhere later: containers that come back with another address.

use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use crate::chain::{Client, Places, Running, eventually, serves};
use crate::skip::skip;

/// The same command, where names are looked up in this file alone.
fn with_hosts(command: &Command, places: &Places) -> Command {
    let resolver = places.path("resolv.conf");
    std::fs::write(
        &resolver,
        "nameserver 127.0.0.9\noptions timeout:1 attempts:1\n",
    )
    .unwrap();
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

/// Says where the names are. The file stays the same one: it is mounted.
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
    let port = |at: &str| at.rsplit_once(':').unwrap().1.to_owned();
    let (server_port, device_port) = (port(&places.server_at()), port(&places.device_at()));
    let store = format!("kv:{}", places.path("store.kv").display());
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

    // The server comes back with another address.
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

    // And the device.
    device.stop();
    name(&hosts, "127.0.0.7", "127.0.0.8");
    let mut device = device_on("127.0.0.8");
    counts(&mut client);
    front.says("have these addresses now");
    // A name that leads elsewhere, and elsewhere again, while its device stays. (Found: after the second time the front asked it no more.)
    for elsewhere in ["127.0.0.9", "127.0.0.10", "127.0.0.11"] {
        name(&hosts, "127.0.0.7", elsewhere);
        front.says(&format!("now devices=[{elsewhere}:"));
    }
    counts(&mut client);
    // A name that is gone changes nothing.
    std::fs::write(&hosts, "").unwrap();
    device.says("The address that it had is used on");
    counts(&mut client);
}

/// A process that is asked to end while a resolver takes its time. (Found: if the name was known in the end, it served on.)
#[test]
fn who_is_asked_to_end_while_a_name_is_looked_up_does_not_begin() {
    if !rustix::process::geteuid().is_root() {
        return skip("names of a test's own need a mount namespace, and that root");
    }
    let places = Places::new();
    let hosts = places.path("hosts");
    std::fs::write(&hosts, "").unwrap();
    let port = |at: &str| at.rsplit_once(':').unwrap().1.to_owned();
    let device = places.device_on(
        &places.device_at(),
        &format!("server.pmnet.test:{}", port(&places.server_at())),
    );
    let front = places.front(&format!("device.pmnet.test:{}", port(&places.device_at())));
    for (role, command) in [("device", device), ("front", front)] {
        let mut running = Running::logged(with_hosts(&command, &places), &places.path("asked.err"));
        running.says("the name is not known");
        // It looks again within this time, and then knows it.
        running.signal(Signal::STOP);
        name(&hosts, "127.0.0.1", "127.0.0.1");
        running.signal(Signal::TERM);
        running.signal(Signal::CONT);
        let status = running.wait();
        assert!(status.success(), "{role}: {}", running.log());
        std::fs::write(&hosts, "").unwrap();
    }
}
