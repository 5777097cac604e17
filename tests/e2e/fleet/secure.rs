//! All roles with an etcd that uses TLS, requires certificates, and has users.

#[path = "../../shared/certificates.rs"]
mod certificates;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use pmnet_lab::harness::{Role, free_port};

use super::etcd::Etcds;
use super::heal::{HEALED_MAX, World, until_healed};
use crate::common;
use crate::support::{Answer, Caller, ctl, eventually, launch, ok};

/// Time within which every role must log that it cannot use etcd.
const SAID_MAX: Duration = Duration::from_secs(10);

#[test]
fn a_fleet_heals_and_is_changed_through_an_etcd_with_tls_and_users() {
    let Some(mut etcds) = Etcds::start("secure", 1) else {
        return;
    };
    let files = certificates::files();
    let [cert, key, ca] = ["server.pem", "server.key", "ca.pem"].map(|name| files.path(name));
    let text = |name: &str| files.path(name).to_str().unwrap().to_owned();
    // The certificate that the roles show. The test replaces the certificate later.
    let renew = |from: &str| {
        for ending in ["pem", "key"] {
            let to = files.path(&format!("mine.{ending}"));
            std::fs::copy(files.path(&format!("{from}.{ending}")), to).unwrap();
        }
    };
    renew("nameless");
    std::fs::write(files.path("password"), "secret\n").unwrap();
    let access: Vec<String> = [
        ["--etcd-ca", &text("ca.pem")],
        ["--etcd-cert", &text("mine.pem")],
        ["--etcd-key", &text("mine.key")],
        ["--etcd-user", "pmnet"],
        ["--etcd-password-file", &text("password")],
    ]
    .into_iter()
    .flatten()
    .map(str::to_owned)
    .collect();
    etcds.secure([&cert, &key, &ca], access);
    let Some(mut world) = World::of(etcds, "secure", 2) else {
        return;
    };
    let flags = world.flags.clone();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut caller = Caller::new(world.cluster.endpoint().unwrap());
    caller.call(&["SET", "a", "b"]);
    // The front gets the devices' addresses from etcd.
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()));
    let listens = listen.to_string();
    let front = ["redis", "--anyone-may-connect", "--listen", &listens];
    let mut front = launch(
        "by-name",
        world.cluster.folder(),
        &[&front, &flags[..]].concat(),
    );
    front.wait_ready(HEALED_MAX).unwrap();
    let mut by_name = Caller::new(listen);
    assert_eq!(by_name.call(&["SET", "by", "name"]), Answer::Reply(ok()));
    // An operator asks for the state, and changes the chain.
    let spare = world.spare();
    eventually("the spare is ready", HEALED_MAX, || {
        spare.stderr().contains("is ready to join")
    });
    let said = ctl(&[&flags[..], &["add"]].concat());
    assert_eq!(said.code, Some(0), "{} {}", said.out, said.err);
    assert!(world.status().contains(r#""places":3,"#));
    // etcd is restarted and has forgotten all logins. The lost logins must not affect any role.
    world.etcds.kill(0);
    world.etcds.relaunch(0);
    std::thread::sleep(Duration::from_secs(2));
    let begun = Instant::now();
    caller.call(&["SET", "c", "d"]);
    println!(
        "after etcd was started again a SET took {:?}",
        begun.elapsed()
    );

    // The roles' certificate has expired. All roles must log the expiry for new connections, and devices stop answering
    // when their leases expire.
    renew("old");
    world.etcds.kill(0);
    world.etcds.relaunch(0);
    let says = "PM4106 TLS with https://localhost:";
    let device = world.cluster.process(Role::Device(0)).unwrap();
    eventually("a device says why it has no lease", SAID_MAX, || {
        let said = device.stderr();
        said.lines()
            .any(|line| line.contains("PM1601") && line.contains(says))
    });
    eventually("a controller says it", SAID_MAX, || {
        let said = world.controllers.each_ref().map(|one| one.stderr());
        said.iter().any(|said| said.contains(says))
    });
    let said = ctl(&[&flags[..], &["status"]].concat());
    assert_eq!(said.code, Some(1));
    assert!(
        said.err.contains(says) && said.err.contains("--etcd-cert"),
        "{}",
        said.err
    );
    // The certificate is replaced, and no process is restarted.
    renew("nameless");
    caller.call(&["SET", "e", "f"]);
    // The chain must repair itself as before.
    world.cluster.kill(Role::Device(0)).unwrap();
    until_healed(&world, 1);
    caller.call(&["SET", "g", "h"]);

    // A client with a wrong password must get an error, and must change nothing.
    std::fs::write(files.path("password"), "guess\n").unwrap();
    let said = ctl(&[&flags[..], &["add"]].concat());
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains("PM4107 "), "{}", said.err);
    let at = flags
        .iter()
        .position(|flag| *flag == "--etcd-user")
        .unwrap();
    let said = ctl(&[&flags[..at], &["status"]].concat());
    assert!(
        said.err.contains("give one with --etcd-user"),
        "{}",
        said.err
    );
    let doctor = std::process::Command::new(common::pmnet())
        .arg("doctor")
        .args(&flags[2..])
        .output()
        .unwrap();
    let found = String::from_utf8(doctor.stdout).unwrap();
    assert!(found.contains("PM4107 "), "{found}");
}
