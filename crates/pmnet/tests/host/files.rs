//! Tests of the limit of open files.

use std::process::Command;

use crate::chain::{Client, Places, Running, eventually, product, serves};
use crate::redis::RedisServer;

/// Returns the command with these limits of open files, the soft and the hard limit.
fn limited(command: &Command, soft: u32, hard: u32) -> Command {
    let mut shell = Command::new("sh");
    shell
        .arg("-c")
        .arg(format!(
            "ulimit -Sn {soft} && ulimit -Hn {hard} && exec \"$0\" \"$@\""
        ))
        .arg(command.get_program())
        .args(command.get_args());
    shell
}

fn limit_of(process: u32) -> String {
    let limits = std::fs::read_to_string(format!("/proc/{process}/limits")).unwrap();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap();
    line.split_whitespace().nth(3).unwrap().to_owned()
}

#[test]
fn every_role_raises_its_limit_of_open_files() {
    let places = Places::new();
    let store = places.store();
    let mut names = ["server.err", "device.err", "front.err"].into_iter();
    let all = places.all(&store).map(|command| {
        let log = places.path(names.next().unwrap());
        Running::logged(limited(&command, 256, 2000), &log)
    });
    serves(places.front_at());
    for running in &all {
        assert_eq!(limit_of(running.id()), "2000");
    }
}

#[test]
fn a_client_too_many_is_refused_and_those_that_are_served_can_do_everything() {
    let Some(redis) = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"])
    else {
        return;
    };
    let places = Places::new();
    let [server, device, front] = places.all(&format!("redis://127.0.0.1:{}", redis.port()));
    let _server = Running::logged(server, &places.path("server.err"));
    let _device = Running::logged(device, &places.path("device.err"));
    let mut front = Running::logged(limited(&front, 64, 200), &places.path("front.err"));
    serves(places.front_at());
    front.says("so at most 55 clients may connect");
    let mut clients: Vec<Client> = Vec::new();
    // For a moment, the files of earlier connections may still be counted.
    eventually("so many are served", || {
        let mut client = Client::connect(places.front_at()).unwrap();
        if client.call("SET k v").unwrap() == "+OK" {
            clients.push(client);
        }
        clients.len() == 55
    });
    for _ in 0..20 {
        let mut late = Client::connect(places.front_at()).unwrap();
        assert_eq!(late.line().unwrap(), "-ERR max number of clients reached");
        assert_eq!(late.line().unwrap(), "", "it is closed");
    }
    // Each client also needs a connection to Redis.
    for client in &mut clients {
        assert_eq!(client.call("WATCH k").unwrap(), "+OK");
    }
    for client in &mut clients {
        assert_eq!(client.call("BLPOP none 0.01").unwrap(), "*-1");
        assert_eq!(client.call("INCR n").unwrap().as_bytes()[0], b':');
    }
    let log = front.log();
    assert_eq!(log.matches("too many clients").count(), 1, "{log}");
    clients.pop();
    serves(places.front_at());
}

/// Other open files use up what is left of the front's limit. Even then a client must get an answer.
#[test]
fn out_of_files_a_client_is_told_so() {
    let places = Places::new();
    let store = places.store();
    let [server, device, mut front] = places.all(&store);
    let _server = Running::logged(server, &places.path("server.err"));
    let _device = Running::logged(device, &places.path("device.err"));
    front.args(["--cache", "off"]);
    let mut front = Running::logged(limited(&front, 200, 200), &places.path("front.err"));
    serves(places.front_at());
    let used = std::fs::read_dir(format!("/proc/{}/fd", front.id()))
        .unwrap()
        .count();
    let limit = format!("{0}:{0}", used + 2);
    let lowered = Command::new("prlimit")
        .args(["--pid", &front.id().to_string()])
        .arg(format!("--nofile={limit}"))
        .status()
        .unwrap();
    assert!(lowered.success());
    let mut clients: Vec<Client> = (0..20)
        .map(|_| Client::connect(places.front_at()).unwrap())
        .collect();
    let mut refused = 0;
    for client in &mut clients {
        let reply = client.call("PING").unwrap_or_default();
        refused += usize::from(reply == "-ERR max number of clients reached");
    }
    assert!(refused >= 15, "{refused} of 20: {}", front.log());
    front.says("clients are refused: raise the limit of open files");
    assert_eq!(
        front.log().matches("clients are refused").count(),
        1,
        "{}",
        front.log()
    );
    drop(clients);
    serves(places.front_at());
}

/// Regression test: silent connections used up a small limit of open files. No silent connection was closed before its
/// deadline, so `pmnet ctl` waited for seconds.
#[test]
fn silent_connections_keep_ctl_from_no_device_that_has_few_open_files() {
    let places = Places::new();
    let store = places.store();
    let _server = Running::logged(places.server(&store), &places.path("server.err"));
    let device = places.device(&places.server_at());
    let few = limited(&device, 24, 24);
    let device = Running::logged(few, &places.path("device.err"));
    let _front = Running::logged(places.front(&places.device_at()), &places.path("front.err"));
    serves(places.front_at());
    let at: std::net::SocketAddr = places.device_at().parse().unwrap();
    for round in 0..3 {
        let silent: Vec<_> = (0..60)
            .map(|_| std::net::TcpStream::connect(at).unwrap())
            .collect();
        let begun = std::time::Instant::now();
        let mut ctl = product();
        ctl.args([
            "ctl",
            "--via",
            &places.device_at(),
            "--server",
            &places.server_at(),
            "status",
        ]);
        let said = ctl.output().unwrap();
        let took = begun.elapsed();
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        let error = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(
            said.status.success(),
            "round {round}: {text}{error}{}",
            device.log()
        );
        assert!(text.contains(&places.device_at()), "{text}{error}");
        assert!(
            took < std::time::Duration::from_secs(1),
            "round {round}: {took:?}"
        );
        drop(silent);
    }
}
