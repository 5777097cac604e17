//! `pmnet ctl promote` without Sentinels: a master hands over to its replica, and a lost master is
//! replaced. The tests with Sentinels are in `sentinel.rs`.

use std::net::SocketAddr;
use std::process::{Command, Output, Stdio};

use pmnet_lab::harness::{Cluster, Medium, Role, StoreKind, Topology};
use pmnet_lab::resp::Reply;

use crate::common;
use crate::failover::{call, replica};
use crate::support::{Answer, Caller, bulk, connect};

/// Returns the command `pmnet ctl promote` with these arguments.
pub fn promote(words: &[&str]) -> Command {
    let mut command = Command::new(common::pmnet());
    command.args(["ctl", "promote"]).args(words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Checks the exit code of an output. Returns its stdout and stderr.
pub fn said(output: &Output, code: i32) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    println!("{out}{err}");
    assert_eq!(output.status.code(), Some(code), "{out}{err}");
    assert!(!err.contains("panicked"));
    (out, err)
}

fn refused(words: &[&str]) -> String {
    said(&promote(words).output().unwrap(), 1).1
}

/// Promotes a replica. Then starts the server with the new master, as the output of the command
/// says.
fn moves(cluster: &mut Cluster, words: &[&str], to: SocketAddr) -> String {
    let asked = promote(words).args(["--wait", "60"]).spawn().unwrap();
    let server = cluster.process(Role::Server).unwrap();
    server.set_flag("--store", Some(&format!("redis://{to}")));
    cluster.kill(Role::Server).unwrap();
    cluster.restart(Role::Server).unwrap();
    let (out, _) = said(&asked.wait_with_output().unwrap(), 0);
    assert!(out.contains(&format!("done: {to} is the master")), "{out}");
    out
}

#[test]
fn a_master_hands_over_and_one_that_is_gone_is_replaced() {
    let mut topology = Topology::new(StoreKind::Redis, 1, Medium::Dram);
    // The deadline is longer than every fault, so that no call has an unknown outcome.
    topology.front_args = vec!["--deadline-ms".into(), "60000".into()];
    let Some(mut cluster) = common::start("promote", topology) else {
        return;
    };
    let first = cluster.redis().unwrap();
    let folder = common::folder().join(format!("promote-{}", first.port()));
    let (mut process, second) = replica(first, &folder);
    let mut caller = Caller::new(cluster.endpoint().unwrap());
    let one = Answer::Reply(Reply::Integer(1));
    assert_eq!(caller.call(&["INCR", "n"]), one);
    let (of_first, of_second) = (format!("redis://{first}"), format!("redis://{second}"));
    let (to_first, to_second) = (first.to_string(), second.to_string());

    // A command that would lose data, or is a mistake, must be refused and must change nothing.
    let store = ["--store", &of_first, "--to"];
    let words = |to: &'static str| [store[0], store[1], store[2], to];
    let text = refused(&[store[0], store[1], store[2], &to_first]);
    assert!(text.contains("is a master, no replica"), "{text}");
    let text = refused(&[store[0], store[1], store[2], &to_second, "--is-stopped"]);
    assert!(text.contains("it is not stopped"), "{text}");
    let text = refused(&["--store", &of_second, "--to", &to_first]);
    assert!(text.contains("is no master"), "{text}");
    let text = refused(&words("127.0.0.1:1"));
    assert!(text.contains("127.0.0.1:1"), "{text}");
    assert!(!text.contains("retried"), "nobody tries again: {text}");
    let dry = promote(&[store[0], store[1], store[2], &to_second, "--dry-run"]);
    let (out, _) = said(&{ dry }.output().unwrap(), 0);
    assert!(out.contains("nothing is lost"), "{out}");
    assert!(out.contains(&format!("--store redis://…{second}")), "{out}");
    assert_eq!(
        caller.call(&["INCR", "n"]),
        Answer::Reply(Reply::Integer(2))
    );

    moves(
        &mut cluster,
        &[store[0], store[1], store[2], &to_second],
        second,
    );
    assert_eq!(
        caller.call(&["INCR", "n"]),
        Answer::Reply(Reply::Integer(3))
    );
    assert_eq!(call(&mut connect(second), "GET n"), bulk("3"));
    let Reply::Array(role) = call(&mut connect(first), "ROLE") else {
        panic!("it has a role")
    };
    assert_eq!(role[0], bulk("slave"));

    // The new master is lost. Only an operator can know that this master will not come back.
    assert_eq!(call(&mut connect(second), "WAIT 1 5000"), Reply::Integer(1));
    process.kill().unwrap();
    let back = ["--store", &of_second, "--to", &to_first];
    let text = refused(&back);
    assert!(text.contains("--is-stopped"), "{text}");
    let mut words = back.to_vec();
    words.push("--is-stopped");
    let out = moves(&mut cluster, &words, first);
    assert!(out.contains("which is said to be stopped"), "{out}");
    assert_eq!(
        caller.call(&["INCR", "n"]),
        Answer::Reply(Reply::Integer(4))
    );
}
