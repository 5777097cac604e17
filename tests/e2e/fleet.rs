//! Devices that keep leases in a real etcd (`docs/spec/protocol.md` §14).

mod ctl;
pub mod etcd;
mod found;
mod front;
pub mod heal;
mod members;
mod room;
mod secure;
mod server;
mod shards;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pmnet_lab::harness::{Medium, Role, StoreKind, Topology, free_port, settle};
use pmnet_lab::resp::Reply;
use rustix::process::Signal;

use self::etcd::Etcds;
use crate::common;
use crate::support::{Acknowledged, connect, eventually, launch, refuses, write_until};

/// Default length of a lease, less its margin. A device that has had no answer of etcd for this time answers no client.
const DEADLINE: Duration = Duration::from_millis(2_970);
/// Longest time from an acknowledgement until a client on a busy machine has noted it.
const NOTED: Duration = Duration::from_millis(1_500);

fn between(all: &Acknowledged, from: Instant, to: Instant) -> usize {
    let inside = |at: &&Instant| **at >= from && **at < to;
    all.iter().map(|(_, at)| at).filter(inside).count()
}

#[test]
fn without_etcd_a_chain_answers_until_its_leases_end_and_when_it_is_back_again() {
    let Some(mut etcds) = Etcds::start("lease", 1) else {
        return;
    };
    let mut topology = Topology::new(StoreKind::Redis, 2, Medium::Dram);
    topology.device_args = etcds.flags();
    // The deadline is longer than every fault, so that no call has an unknown outcome.
    topology.front_args = vec!["--deadline-ms".into(), "60000".into()];
    let Some(mut cluster) = common::start("lease", topology) else {
        return;
    };
    let endpoint = cluster.endpoint().unwrap();
    let mut counter = connect(endpoint);
    assert_eq!(counter.call(&["INCR", "n"]).unwrap(), Reply::Integer(1));
    let end = AtomicBool::new(false);
    let sleep = |millis| std::thread::sleep(Duration::from_millis(millis));
    let (acknowledged, outages, counted) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_until(&end, endpoint, "k"));
        sleep(1_000);
        let mut outages = Vec::new();
        let stopped = Instant::now();
        etcds.signal(0, Signal::STOP);
        sleep(6_000);
        // Operations that need no lease do not wait for a lease.
        let counted = counter.call(&["INCR", "n"]);
        let end_of_silence = Instant::now();
        etcds.signal(0, Signal::CONT);
        outages.push((stopped, end_of_silence, Instant::now()));
        sleep(5_000);
        let killed = Instant::now();
        etcds.kill(0);
        sleep(6_000);
        let end_of_silence = Instant::now();
        etcds.restart(0);
        outages.push((killed, end_of_silence, Instant::now()));
        sleep(5_000);
        end.store(true, Ordering::Relaxed);
        (writer.join().unwrap(), outages, counted.unwrap())
    });
    assert_eq!(counted, Reply::Integer(2));
    for (from, to, back) in outages {
        let last = acknowledged.iter().map(|(_, at)| *at);
        let last = last.filter(|at| *at < to).max().unwrap();
        println!(
            "the last acknowledgement came {:?} after etcd was gone",
            last - from
        );
        assert_eq!(between(&acknowledged, from + DEADLINE + NOTED, to), 0);
        let again = acknowledged.iter().find(|(_, at)| *at >= to);
        let (_, again) = again.expect("the write that waited is acknowledged");
        println!(
            "and the next one {:?} after it was back",
            again.saturating_duration_since(back)
        );
    }
    let said = cluster.process(Role::Device(0)).unwrap().stderr();
    assert!(
        said.matches("no lease: this device answers nobody").count() >= 2,
        "{said}"
    );
    assert!(
        said.matches("this device has a lease, and answers").count() >= 3,
        "{said}"
    );

    settle(&cluster).unwrap();
    let mut direct = cluster.reader().unwrap();
    for (key, _) in &acknowledged {
        let reply = direct.call(&["GET", key]).unwrap();
        assert_eq!(reply, Reply::Bulk(key.clone().into_bytes()), "{key}");
    }
    println!("{} writes acknowledged, none lost", acknowledged.len());
}

#[test]
fn status_shows_leases_and_a_second_process_of_a_device_is_refused() {
    let Some(etcds) = Etcds::start("twice", 1) else {
        return;
    };
    let mut topology = Topology::new(StoreKind::Packet, 1, Medium::Dram);
    topology.device_args = etcds.flags();
    topology.server_args = etcds.flags();
    let Some(mut cluster) = common::start("twice", topology) else {
        return;
    };
    let id = cluster.head().unwrap().port().to_string();
    let server = cluster.server().unwrap().to_string();
    let flags = etcds.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();

    let output = std::process::Command::new(common::pmnet())
        .args([&["status", "--json"], &flags[..]].concat())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        format!(r#""device":{id}"#),
        r#""lease_held":true"#.to_owned(),
        r#""lease_seconds":3"#.to_owned(),
    ] {
        assert!(text.contains(&part), "{part} in {text}");
    }
    let server_says = format!(r#"{{"chain":[{id}],"epoch":1,"server":"{server}","there":true}}"#);
    assert!(text.contains(&server_says), "{server_says} in {text}");
    // A program that asks etcd only once must get an answer, even if the first member of etcd is down.
    let alive = flags.last().unwrap();
    let some = format!("http://127.0.0.1:9,{alive}");
    let output = std::process::Command::new(common::pmnet())
        .args(["status", "--json", "--fleet", flags[1], "--etcd", &some])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    cluster.kill(Role::Server).unwrap();
    eventually("a server that is gone is shown so", 2 * DEADLINE, || {
        let output = std::process::Command::new(common::pmnet())
            .args(["status"])
            .args(etcds.flags())
            .output()
            .unwrap();
        String::from_utf8(output.stdout)
            .unwrap()
            .contains(&format!("server at {server}: is gone"))
    });
    cluster.restart(Role::Server).unwrap();

    let log = cluster.folder().join("other.log");
    let listen = format!("127.0.0.1:{}", free_port().unwrap());
    let args = [
        "device",
        "--id",
        &id,
        "--listen",
        &listen,
        "--next",
        &server,
        "--media",
        "file",
        "--log",
        log.to_str().unwrap(),
    ];
    let (code, said) = refuses(
        "second",
        cluster.folder(),
        &[&args[..], &flags[..]].concat(),
    );
    assert_eq!(code, 1);
    assert!(
        said.contains(&format!("device {id} of this shard runs already")),
        "{said}"
    );
    // If the device is killed and started again, the device need not wait for its lease to expire, because it has the
    // same log as before.
    let begun = Instant::now();
    cluster.restart(Role::Device(0)).unwrap();
    println!(
        "a device that is started again serves after {:?}",
        begun.elapsed()
    );
}

#[test]
fn what_cannot_be_in_a_fleet_says_so() {
    let folder = common::folder().join(format!("no-fleet-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let log = folder.join("d.log");
    let base = [
        "device",
        "--listen",
        "127.0.0.1:51999",
        "--next",
        "127.0.0.1:51998",
        "--log",
        log.to_str().unwrap(),
        "--media",
        "file",
        "--fleet",
        "f",
    ];
    let etcd = ["--etcd", "http://127.0.0.1:9"];
    let nic = ["--mode", "nic", "--dev", "lo"];
    let switch = ["--mode", "switch", "--dev", "lo", "--address", "127.0.0.2"];
    for (more, says) in [
        (&[][..], "--etcd is missing"),
        (&["--etcd", "a:1"], "https://HOST:2379"),
        (
            &[&etcd[..], &nic, &["--server-reads-log"]].concat(),
            "does not go with --server-reads-log",
        ),
        (
            &[&etcd[..], &switch, &["--join"]].concat(),
            "--join does not go with --mode switch",
        ),
        (&[&etcd[..], &["--lease-seconds", "1"]].concat(), "2 to 60"),
        (
            &[&etcd[..], &["--listen", "0.0.0.0:51999"]].concat(),
            "to which the others send",
        ),
    ] {
        // A flag in `more` replaces the flag of the same name in `base`.
        let mut args: Vec<&str> = base.to_vec();
        if more.contains(&"--listen") {
            args.drain(1..3);
        }
        if more.contains(&"--address") {
            // In a kernel mode, the log is in the kernel, so the flags for its file are removed.
            args.drain(5..9);
        }
        let (code, text) = refuses("refused", &folder, &[&args[..], more].concat());
        assert_eq!(code, 2, "{text}");
        assert!(text.contains(says), "{says}: {text}");
        assert!(!log.exists(), "nothing was made");
    }
    // If etcd is not running, a process must wait, and must log this.
    let process = launch("waits", &folder, &[&base[..], &etcd].concat());
    eventually("it says why", Duration::from_secs(10), || {
        process
            .stderr()
            .contains("no lease: this device answers nobody")
    });
    drop(process);
    std::fs::remove_dir_all(&folder).unwrap();
}
