//! Network namespaces that belong to a single test.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::chain::{Client, eventually};

static MADE: AtomicU32 = AtomicU32::new(0);

/// Returns the reason why this machine cannot make namespaces for a test; `None` if it can.
pub fn missing(tools: &[&str]) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("network namespaces need root".into());
    }
    let is_missing = |tool: &&&str| Command::new(tool).arg("--version").output().is_err();
    let tool = tools.iter().find(is_missing)?;
    Some(format!("{tool} is not installed"))
}

/// Two network namespaces, joined by a veth. The namespaces are removed when this value is dropped.
pub struct Two(pub [String; 2]);

/// Runs a command line that has no quotes.
pub fn run(line: &str) {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().unwrap())
        .args(words)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{line}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

impl Two {
    pub fn new() -> Two {
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        let name = |name| format!("pmnet-host-{}-{made}-{name}", std::process::id());
        let two = Two(["device", "front"].map(name));
        let [device, front] = &two.0;
        run(&format!("ip netns add {device}"));
        run(&format!("ip netns add {front}"));
        run(&format!(
            "ip -n {device} link add va type veth peer name vb netns {front}"
        ));
        for (namespace, interface, address) in
            [(device, "va", "10.9.0.2/24"), (front, "vb", "10.9.0.1/24")]
        {
            run(&format!("ip -n {namespace} link set lo up"));
            run(&format!(
                "ip -n {namespace} addr add {address} dev {interface}"
            ));
            run(&format!(
                "ip netns exec {namespace} ethtool -K {interface} tx off"
            ));
            run(&format!("ip -n {namespace} link set {interface} up"));
        }
        two
    }

    /// Returns a command that runs inside one of the namespaces.
    pub fn inside(&self, place: usize, command: &Command) -> Command {
        // `ip netns exec` mounts the namespace's own /sys; nsenter does not.
        let mut inside = Command::new("ip");
        inside
            .args(["netns", "exec", &self.0[place]])
            .arg(command.get_program())
            .args(command.get_args())
            .envs(settings(command));
        inside
    }

    /// Returns a command that runs in the network of one of the namespaces, with the machine's
    /// mounts.
    pub fn in_network(&self, place: usize, command: &Command) -> Command {
        let mut inside = Command::new("nsenter");
        inside
            .arg(format!("--net=/run/netns/{}", self.0[place]))
            .arg(command.get_program())
            .args(command.get_args())
            .envs(settings(command));
        inside
    }

    /// Returns a client in the second namespace for the front at this address.
    pub fn client(&self, at: &str) -> Client {
        let namespace = std::fs::File::open(format!("/run/netns/{}", self.0[1])).unwrap();
        let at = at.parse().unwrap();
        std::thread::spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            let mut client = None;
            eventually("the front listens", || {
                client = Client::connect(at).ok();
                client.is_some()
            });
            client.unwrap()
        })
        .join()
        .unwrap()
    }
}

/// Returns the environment variables that a command sets.
pub fn settings(command: &Command) -> impl Iterator<Item = (&OsStr, &OsStr)> {
    let set = command.get_envs();
    set.filter_map(|(name, value)| Some((name, value?)))
}

impl Drop for Two {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}
