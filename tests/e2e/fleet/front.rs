//! A front that gets the name of a fleet, and no address.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use pmnet_lab::harness::{Role, drained, free_port};
use pmnet_lab::resp::Reply;

use super::heal::{HEALED_MAX, World, until_healed};
use crate::common;
use crate::support::{Answer, Caller, eventually, launch, ok, refuses};

#[test]
fn a_front_follows_its_fleet_to_devices_that_were_not_there_when_it_was_started() {
    let Some(mut world) = World::start("byname", 2) else {
        return;
    };
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()));
    let text = listen.to_string();
    let flags: Vec<String> = world.flags.clone();
    let mut args = vec!["redis", "--listen", &text, "--deadline-ms", "60000"];
    args.extend(["--anyone-may-connect"]);
    args.extend(flags.iter().map(String::as_str));
    let mut front = launch("front-by-name", world.cluster.folder(), &args);
    front.wait_ready(HEALED_MAX).unwrap();
    let mut caller = Caller::new(listen);
    let mut number = 0;
    let mut set = |caller: &mut Caller| {
        number += 1;
        let key = format!("k:{number}");
        let begun = Instant::now();
        assert_eq!(
            caller.call(&["SET", &key, &key]),
            Answer::Reply(ok()),
            "{key}"
        );
        begun.elapsed()
    };
    set(&mut caller);
    // The spare starts after the front.
    let mut spare = world.spare();
    eventually("the spare is ready", HEALED_MAX, || {
        spare.stderr().contains("is ready to join")
    });
    world.cluster.kill(Role::Device(0)).unwrap();
    println!("the head lost: a SET took {:?}", set(&mut caller));
    until_healed(&world, 1);
    spare.wait_ready(HEALED_MAX).unwrap();
    eventually("there are two again", HEALED_MAX, || {
        set(&mut caller);
        spare.stdout().contains("copies=2")
    });
    // No flag of the front names the remaining device.
    world.cluster.kill(Role::Device(1)).unwrap();
    println!("the next head lost: a SET took {:?}", set(&mut caller));
    until_healed(&world, 2);
    for _ in 0..20 {
        set(&mut caller);
        std::thread::sleep(Duration::from_millis(2));
    }
    drained(listen).unwrap();
    let mut direct = world.cluster.reader().unwrap();
    for at in 1..=number {
        let key = format!("k:{at}");
        let reply = direct.call(&["GET", &key]).unwrap();
        assert_eq!(reply, Reply::Bulk(key.clone().into_bytes()));
    }
    assert!(front.stderr().contains("the devices are here now"));
}

#[test]
fn a_front_without_its_fleet_says_what_it_lacks() {
    let folder = common::folder().join(format!("no-devices-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let listen = format!("127.0.0.1:{}", free_port().unwrap());
    let base = [
        "redis",
        "--anyone-may-connect",
        "--listen",
        &listen,
        "--fleet",
        "f",
    ];
    let etcd = ["--etcd", "http://127.0.0.1:9"];
    for (more, says) in [
        (&[][..], "--etcd is missing"),
        (&["--via", "127.0.0.1:1"], "cannot be used with"),
    ] {
        let (code, text) = refuses("refused", &folder, &[&base[..], more].concat());
        assert_eq!(code, 2, "{text}");
        assert!(text.contains(says), "{says}: {text}");
    }
    let process = launch("waits", &folder, &[&base[..], &etcd].concat());
    eventually("it says why", Duration::from_secs(10), || {
        process.stderr().contains("waits for 30 s at most")
    });
    drop(process);
    std::fs::remove_dir_all(&folder).unwrap();
}
