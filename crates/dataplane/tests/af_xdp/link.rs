//! Two network namespaces joined by a veth pair. Both are removed when the value is dropped.

use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::skip::skip;

pub const NEAR: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub const FAR: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

static LINKS: AtomicU32 = AtomicU32::new(0);

/// Prints why these tests cannot run on this machine, and returns true; in CI this is a failure.
pub fn skipped() -> bool {
    let reason = if !rustix::process::geteuid().is_root() {
        "AF_XDP needs root"
    } else if Command::new("ip").arg("-V").output().is_err() {
        "ip is not installed: apt-get install iproute2"
    } else {
        return false;
    };
    skip(reason);
    true
}

pub struct Link {
    /// Names of the namespaces of the near and the far end; the interface in both is `veth0`. After a killed run,
    /// `pmnet-lab bench micro` finds the namespaces by the form of their names, and removes them.
    names: [String; 2],
}

impl Link {
    pub fn new() -> Link {
        let number = LINKS.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id();
        let link = Link {
            names: ["near", "far"].map(|end| format!("pmnet-{pid}-xdp{number}-{end}")),
        };
        let [near, far] = &link.names;
        ip(&["netns", "add", near]);
        ip(&["netns", "add", far]);
        ip(&[
            "-n", near, "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns",
            far,
        ]);
        for (name, address) in [(near, NEAR), (far, FAR)] {
            let address = format!("{address}/24");
            ip(&["-n", name, "addr", "add", &address, "dev", "veth0"]);
            ip(&["-n", name, "link", "set", "veth0", "up"]);
        }
        link
    }

    /// Runs `work` at the near end. A socket stays in the namespace in which it was made.
    pub fn near<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        inside(&self.names[0], work)
    }

    /// Runs `work` at the far end.
    pub fn far<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        inside(&self.names[1], work)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

fn inside<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let namespace = std::fs::File::open(format!("/run/netns/{name}")).unwrap();
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        });
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments:?}: {error}");
}
