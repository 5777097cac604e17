//! `pmnet run`: all roles of a machine in one process.

use std::path::Path;
use std::time::Duration;

use pmnet_lab::harness::{Port, Process, Scratch};
use rustix::process::Signal;

use crate::common;
use crate::support::{bulk, connect, eventually, launch, ok, refuses};

const SOON: Duration = Duration::from_secs(10);

/// Returns a configuration file with a chain of these devices, head first, and a front.
fn file(folder: &Path, server: &Port, devices: &[&Port], front: &str) -> String {
    let mut text = format!(
        "[run]\nstatus = \"127.0.0.1:0\"\n[server]\nlisten = \"127.0.0.1:{}\"\nstore = \"packet:{}?size=64M\"\n",
        server.number(),
        folder.join("store").display(),
    );
    for (place, device) in devices.iter().enumerate() {
        let next = devices.get(place + 1).unwrap_or(&server);
        text += &format!(
            "[[device]]\nlisten = \"127.0.0.1:{}\"\nnext = \"127.0.0.1:{}\"\nlog = \"{}\"\nmedia = \"dram\"\nlog-size = \"1M\"\n",
            device.number(),
            next.number(),
            folder.join(format!("log{place}")).display(),
        );
    }
    let via = devices.first().unwrap_or(&server).number();
    text += &format!(
        "[redis]\nlisten = \"{front}\"\nvia = \"127.0.0.1:{via}\"\ncopies = {}\n",
        devices.len()
    );
    let path = folder.join("pmnet.toml");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

fn ready_lines(process: &Process) -> Vec<String> {
    let out = process.stdout();
    let lines = out.lines().filter(|line| line.contains("ready"));
    lines.map(str::to_owned).collect()
}

#[test]
fn a_chain_of_two_in_one_process_has_one_line_and_ends_well() {
    let scratch = Scratch::new(common::folder(), "run-chain").unwrap();
    let folder = scratch.memory();
    let [server, first, second, front] = [(); 4].map(|()| Port::claim().unwrap());
    let listen = format!("127.0.0.1:{}", front.number());
    let path = file(folder, &server, &[&first, &second], &listen);
    let mut process = launch("run", scratch.disk(), &["run", &path]);
    process.wait_ready(SOON).unwrap();
    let mut client = connect(listen.parse().unwrap());
    assert_eq!(client.call(&["SET", "a", "1"]).unwrap(), ok());
    assert_eq!(client.call(&["GET", "a"]).unwrap(), bulk("1"));
    let lines = ready_lines(&process);
    let [line] = &lines[..] else {
        panic!("one line: {lines:?}");
    };
    for part in [
        "ready run ",
        &format!("device.1=127.0.0.1:{}", first.number()),
        &format!("device.2=127.0.0.1:{}", second.number()),
        &format!("redis={listen}"),
        &format!("server=127.0.0.1:{}", server.number()),
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    process.signal(Signal::HUP).unwrap();
    eventually("SIGHUP is answered", SOON, || {
        process
            .stderr()
            .contains("SIGHUP: read again: the configuration")
    });
    assert!(process.stop().unwrap(), "{}", process.stderr());
    // The log must be complete, so that the next start finds all entries.
    let mut again = launch("run-again", scratch.disk(), &["run", &path]);
    again.wait_ready(SOON).unwrap();
    let mut client = connect(listen.parse().unwrap());
    assert_eq!(client.call(&["GET", "a"]).unwrap(), bulk("1"));
}

#[test]
fn a_role_that_fails_ends_all_with_its_sentence() {
    let scratch = Scratch::new(common::folder(), "run-fails").unwrap();
    let [server, device] = [(); 2].map(|()| Port::claim().unwrap());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    let path = file(scratch.memory(), &server, &[&device], &listen);
    let (code, said) = refuses("run", scratch.disk(), &["run", &path]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("PM6041 [redis] has failed"), "{said}");
    let last = said.lines().last().unwrap_or_default();
    assert!(
        last.starts_with("pmnet: [redis]: ") && last.contains(&listen),
        "{last}"
    );
    // An invalid setting must be reported as by a process with this role alone.
    let path = file(scratch.memory(), &server, &[], "nowhere");
    let (code, said) = refuses("run-wrong", scratch.disk(), &["run", &path]);
    assert_eq!(code, 2, "{said}");
    assert!(
        said.contains("[redis]") && said.contains("--listen"),
        "{said}"
    );
    std::fs::write(&path, "[run]\n").unwrap();
    let (code, said) = refuses("run-nothing", scratch.disk(), &["run", &path]);
    assert!(code == 2 && said.contains("has no role"), "{said}");
}
