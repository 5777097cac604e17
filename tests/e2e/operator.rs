//! Mistakes of an operator, and the regular end of processes.

use std::process::{Command, Output};

use pmnet_lab::harness::{Cluster, Medium, Role, StoreKind, Topology, free_port};
use pmnet_lab::resp::Reply;
use rustix::process::Signal;

use crate::common;
use crate::support::{Answer, CALL_MAX, Caller, connect, eventually, front, ok};

fn fails(args: &[&str]) -> String {
    let output = run(args);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{args:?} succeeded");
    assert!(!text.contains("panicked"), "{text}");
    text
}

fn run(args: &[&str]) -> Output {
    // If a process serves although it should refuse, timeout(1) ends it.
    Command::new("timeout")
        .arg("20")
        .arg(common::pmnet())
        .args(args)
        .output()
        .unwrap()
}

#[test]
fn mistakes_of_an_operator_get_a_sentence() {
    let folder = common::folder().join(format!("mistakes-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let taken = std::net::UdpSocket::bind(("127.0.0.1", free_port().unwrap())).unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let free = format!("127.0.0.1:{}", free_port().unwrap());

    // The server waits 10 seconds for the port to become free.
    let text = fails(&["server", "--listen", &taken, "--store", "null:"]);
    let owner = format!("process {} (", std::process::id());
    assert!(
        text.contains(&owner) && text.contains("listens there: choose another port"),
        "{text}"
    );
    let text = fails(&["server", "--listen", &free, "--store", "mysql://x"]);
    assert!(text.contains("redis://HOST:PORT"), "{text}");
    let text = fails(&["server", "--store", "null:"]);
    assert!(text.contains("--listen is missing"), "{text}");
    let text = fails(&[
        "device", "--listen", &free, "--next", &free, "--log", "x", "--media", "dram",
    ]);
    assert!(text.contains("this device itself"), "{text}");

    // Files that are not logs, or are logs of another device.
    let next = format!("127.0.0.1:{}", free_port().unwrap());
    let device = |log: &str, more: &[&str]| {
        let base = [
            "device", "--listen", &free, "--next", &next, "--media", "file", "--log", log,
        ];
        fails(&[&base[..], more].concat())
    };
    let foreign = path("foreign");
    std::fs::write(&foreign, vec![7; 1 << 20]).unwrap();
    let text = device(&foreign, &[]);
    assert!(text.contains("not a pmnet log"), "{text}");
    assert_eq!(
        std::fs::read(&foreign).unwrap(),
        vec![7; 1 << 20],
        "it was not touched"
    );
    let log = path("log");
    // Without a server, the device waits until it is ended. By then the device has made the log.
    let text = device(&log, &["--entries", "256", "--frame-bytes", "65536"]);
    assert!(text.contains("made a new log"), "{text}");
    let text = device(&log, &["--id", "7"]);
    assert!(text.contains("belongs to device"), "{text}");
    let text = device(&log, &["--entries", "512", "--frame-bytes", "65536"]);
    assert!(text.contains("was made with 256 entries"), "{text}");
    let verify = run(&["log", "verify", &log]);
    assert!(verify.status.success(), "{verify:?}");
    let inspect = run(&["log", "inspect", &log, "--json"]);
    assert!(
        String::from_utf8_lossy(&inspect.stdout).contains("\"usable\":true"),
        "{inspect:?}"
    );
    let whole = std::fs::read(&log).unwrap();
    std::fs::write(&log, &whole[..whole.len() - 8192]).unwrap();
    let text = device(&log, &[]);
    assert!(text.contains("truncated"), "{text}");
    assert!(!run(&["log", "verify", &log]).status.success());
    // The process that made the file was killed before it had written anything, so the file has
    // only zeros. A file of another size belongs to another program.
    let blank = path("blank");
    std::fs::write(&blank, vec![0; whole.len()]).unwrap();
    let text = device(&blank, &["--entries", "512", "--frame-bytes", "65536"]);
    assert!(text.contains("of another size"), "{text}");
    let text = device(&blank, &["--entries", "256", "--frame-bytes", "65536"]);
    assert!(text.contains("made a new log"), "{text}");
    assert!(run(&["log", "verify", &blank]).status.success());
    let text = device(&path("no/such/folder/log"), &[]);
    assert!(text.contains("no/such/folder"), "{text}");

    let config = path("pmnet.toml");
    std::fs::write(&config, "[device]\nlisten_on = \"x\"\n").unwrap();
    let text = fails(&["device", "--config", &config]);
    assert!(text.contains("listen_on"), "{text}");
    let text = fails(&["redis", "--config", &path("none.toml")]);
    assert!(text.contains("none.toml"), "{text}");
    let text = fails(&["redis", "--config", "/dev/zero"]);
    assert!(text.contains("more than 1048576 bytes"), "{text}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_chain_counts_its_copies_and_sigterm_ends_it_in_good_order() {
    let topology = Topology::new(StoreKind::Packet, 3, Medium::Dram);
    let Some(mut cluster) = common::start("order", topology) else {
        return;
    };
    let mut client = front(&cluster);
    for number in 0..100 {
        assert_eq!(
            client.call(&["SET", &format!("k{number}"), "v"]).unwrap(),
            ok()
        );
    }
    let head = cluster.process(Role::Device(0)).unwrap().stdout();
    assert!(head.contains("copies=3"), "{head}");
    assert_eq!(cluster.stop().unwrap(), Vec::<String>::new());
}

/// While pmnet runs, an operator sets a password on Redis itself, and then a memory limit. Updates
/// that are acknowledged meanwhile must wait in the device, and the server must wait too.
/// Regression test: the server ended, or tried for ever without reporting a reason.
#[test]
fn a_redis_that_is_put_wrong_while_it_serves_is_waited_for() {
    let topology = Topology::new(StoreKind::Redis, 1, Medium::Dram);
    let Some(mut cluster) = common::start("put-wrong", topology) else {
        return;
    };
    let mut client = Caller::new(cluster.endpoint().unwrap());
    let refused = |answer: Answer| match answer {
        Answer::Refused(text) => assert!(text.contains("rest on this setting"), "{text}"),
        other => panic!("{other:?}"),
    };
    // The front must refuse each of these settings, alone and while keys are watched.
    for setting in [
        ["requirepass", "x"],
        ["proto-max-bulk-len", "1mb"],
        ["min-replicas-to-write", "1"],
    ] {
        let command = ["CONFIG", "SET", setting[0], setting[1]];
        refused(client.call(&command));
        assert_eq!(client.call(&["WATCH", "k"]), Answer::Reply(ok()));
        refused(client.call(&command));
        assert_eq!(client.call(&["UNWATCH"]), Answer::Reply(ok()));
    }
    let mut direct = connect(cluster.redis().unwrap());
    let value = "v".repeat(2 << 20);
    for (setting, bad, good, says) in [
        ("requirepass", "x", "", "NOAUTH"),
        (
            "proto-max-bulk-len",
            "1mb",
            "512mb",
            "proto-max-bulk-len is 1048576",
        ),
    ] {
        let set = direct.call(&["CONFIG", "SET", setting, bad]).unwrap();
        assert_eq!(set, ok());
        // The connection breaks, as after a network fault.
        direct
            .call(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
            .unwrap();
        for command in [&["SET", "k", setting][..], &["SET", "large", &value]] {
            assert_eq!(client.call(command), Answer::Reply(ok()), "{setting}");
        }
        let server = cluster.process(Role::Server).unwrap();
        eventually("it says why it waits", CALL_MAX, || {
            assert!(server.exited().unwrap().is_none(), "{}", server.stderr());
            let said = server.stderr();
            said.lines()
                .any(|line| line.contains(says) && line.contains("it waits"))
        });
        direct.call(&["CONFIG", "SET", setting, good]).unwrap();
        let k = client.read(&["GET", "k"]);
        assert_eq!(k, Reply::Bulk(setting.as_bytes().to_vec()));
        let length = client.read(&["STRLEN", "large"]);
        assert_eq!(length, Reply::Integer(2 << 20));
        direct.call(&["DEL", "k", "large"]).unwrap();
    }
}

/// While the server is stopped, only the devices have the acknowledged updates. A command that
/// waits until they are applied must report this, and wait.
#[test]
fn a_drain_ends_when_the_database_has_what_was_acknowledged() {
    let topology = Topology::new(StoreKind::Redis, 2, Medium::Dram);
    let Some(mut cluster) = common::start("drain", topology) else {
        return;
    };
    let listens = |cluster: &mut Cluster, index| {
        let said = cluster.process(Role::Device(index)).unwrap().stdout();
        let (_, rest) = said.split_once(" listen=").expect("a ready line");
        rest.split_whitespace()
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let key = cluster.keys().unwrap().front.display().to_string();
    // The head need not be the first of the addresses.
    let via = [listens(&mut cluster, 1), listens(&mut cluster, 0)].join(",");
    let drain = |more: &[&str]| {
        let said = run(&[&["ctl", "drain", "--via", &via, "--key", &key], more].concat());
        let out = String::from_utf8(said.stdout).unwrap();
        (said.status.code(), out)
    };
    let mut client = Caller::new(cluster.endpoint().unwrap());
    assert_eq!(client.call(&["SET", "first", "v"]), Answer::Reply(ok()));
    let (code, out) = drain(&[]);
    assert_eq!(code, Some(0), "{out}");

    let server = cluster.process(Role::Server).unwrap();
    server.signal(Signal::STOP).unwrap();
    for number in 0..100 {
        let set = client.call(&["SET", &format!("k{number}"), "v"]);
        assert_eq!(set, Answer::Reply(ok()));
    }
    let (code, out) = drain(&["--wait", "1", "--json"]);
    assert_eq!(code, Some(1), "{out}");
    assert!(out.contains(r#""drained":false"#), "{out}");
    let (code, out) = drain(&["--dry-run"]);
    assert_eq!(code, Some(0), "{out}");
    let mut direct = connect(cluster.redis().unwrap());
    let last = direct.call(&["EXISTS", "k99"]).unwrap();
    assert_eq!(last, Reply::Integer(0), "it stood still");
    cluster
        .process(Role::Server)
        .unwrap()
        .signal(Signal::CONT)
        .unwrap();
    // No device of this other shard answers.
    let (code, out) = drain(&["--shard", "7", "--wait", "1"]);
    assert_eq!(code, Some(1), "{out}");
    let (code, out) = drain(&["--shard", "0", "--json"]);
    assert_eq!(code, Some(0), "{out}");
    assert!(out.contains(r#""drained":true"#), "{out}");
    for number in 0..100 {
        let there = direct.call(&["EXISTS", &format!("k{number}")]).unwrap();
        assert_eq!(there, Reply::Integer(1));
    }
    for (args, says) in [
        (&["drain"][..], "where is the shard?"),
        (&["drain", "--via", "x"], "--via"),
        (&["remove", "1"], "where is the shard?"),
    ] {
        let text = fails(&[&["ctl"], args].concat());
        assert!(text.contains(says), "{text}");
    }
}

/// A bit of one value flips while no process runs. The damaged value must be named, must never be
/// served, and may be removed only on the operator's order.
#[test]
fn a_flipped_bit_in_a_packet_store_is_named_and_never_served() {
    let topology = Topology::new(StoreKind::Packet, 1, Medium::Dram);
    let Some(mut cluster) = common::start("flipped", topology) else {
        return;
    };
    let mut client = Caller::new(cluster.endpoint().unwrap());
    let set = |client: &mut Caller, key: &str, value: &str| {
        assert_eq!(client.call(&["SET", key, value]), Answer::Reply(ok()));
    };
    for number in 0..50 {
        set(&mut client, &format!("k{number}"), "of no interest");
    }
    set(&mut client, "odd", "one-that-is-found-again");
    // A bit flips in one member of a collection.
    let members = ["element-0", "element-1", "element-2"];
    for (command, rest) in [
        ("RPUSH", members),
        ("SADD", members),
        ("HSET", ["element-1", "value", "other"]),
        ("ZADD", ["1", "element-1", "2"]),
    ] {
        let key = format!("by-{command}");
        let all = [&[command, &key][..], &rest[..], &["element-3"][..]].concat();
        let all = if command == "RPUSH" || command == "SADD" {
            &all[..5]
        } else {
            &all[..]
        };
        assert!(matches!(client.call(all), Answer::Reply(Reply::Integer(_))));
    }
    // The read is answered after the store has applied all earlier updates.
    assert_eq!(client.read(&["DBSIZE"]), Reply::Integer(55));
    let server = cluster.process(Role::Server).unwrap();
    assert!(server.stop().unwrap(), "it ends in good order");

    let store = cluster.folder().join("store");
    let path = store.to_str().unwrap();
    let says = |args: &[&str]| {
        let output = run(&[&["store"], args, &[path]].concat());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!text.is_empty(), "{args:?}: {output:?}");
        (output.status.code(), text)
    };
    let (code, text) = says(&["stat", "--json"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("\"whole\":true"), "{text}");
    let (code, text) = says(&["verify"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("whole"), "{text}");

    let mut bytes = std::fs::read(&store).unwrap();
    let value = b"one-that-is-found-again";
    let at = bytes.windows(value.len()).position(|part| part == value);
    bytes[at.expect("the value is there as it came")] ^= 1;
    std::fs::write(&store, &bytes).unwrap();
    let (code, text) = says(&["verify", "--json"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("odd"), "{text}");

    cluster.restart(Role::Server).unwrap();
    match client.call(&["GET", "odd"]) {
        Answer::Refused(text) => assert!(text.contains("odd"), "{text}"),
        other => panic!("{other:?}"),
    }
    let other = client.read(&["GET", "k7"]);
    assert_eq!(other, Reply::Bulk(b"of no interest".to_vec()));
    let server = cluster.process(Role::Server).unwrap();
    assert!(server.stop().unwrap(), "it ends in good order");
    // If bits of keys flip, the server must not start.
    let mut bytes = std::fs::read(&store).unwrap();
    let element = b"element-1";
    let places: Vec<usize> = (0..bytes.len() - element.len())
        .filter(|&at| bytes[at..].starts_with(element))
        .collect();
    for at in places {
        bytes[at] ^= 1;
    }
    std::fs::write(&store, &bytes).unwrap();
    let server = cluster.restart(Role::Server).unwrap_err().to_string();
    assert!(server.contains("damaged, and left as it is"), "{server}");
    assert!(!run(&["store", "repair", path]).status.success());
    let (code, text) = says(&["repair", "--without-damaged"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(says(&["verify"]).0, Some(0));
    cluster.restart(Role::Server).unwrap();
    assert_eq!(client.read(&["GET", "odd"]), Reply::Nil);
    assert_eq!(client.read(&["DBSIZE"]), Reply::Integer(54));
    set(&mut client, "odd", "again");
    let bulk = |text: &str| Reply::Bulk(text.as_bytes().to_vec());
    let left = Reply::Array(vec![bulk("element-0"), bulk("element-2")]);
    // The remaining data must be consistent.
    assert_eq!(client.read(&["LRANGE", "by-RPUSH", "0", "-1"]), left);
    assert_eq!(client.read(&["LINDEX", "by-RPUSH", "1"]), bulk("element-2"));
    assert_eq!(client.read(&["SMEMBERS", "by-SADD"]), left);
    assert_eq!(client.read(&["SCARD", "by-SADD"]), Reply::Integer(2));
    assert_eq!(client.read(&["HLEN", "by-HSET"]), Reply::Integer(1));
    let other = Reply::Array(vec![bulk("other"), bulk("element-3")]);
    assert_eq!(client.read(&["HGETALL", "by-HSET"]), other);
    assert_eq!(client.read(&["ZCARD", "by-ZADD"]), Reply::Integer(1));
    let member = Reply::Array(vec![bulk("element-3")]);
    assert_eq!(client.read(&["ZRANGE", "by-ZADD", "0", "-1"]), member);
}

/// The shipped program must have no means of switching off a rule of the protocol.
#[test]
fn in_the_product_every_rule_holds() {
    let output = run(&["--version"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("every rule of the protocol holds"),
        "{text}: build it alone (make build), not with the simulator"
    );
}
