//! Network namespaces as the machines of one run, with links that can be cut.
//!
//! Every node has a namespace of its own, and one link to a router. The router, called the hub, is
//! also a namespace. The network of the machine itself stays unchanged, so runs do not see each
//! other, and may use the same addresses. A cut is a rule of the hub that silently drops all
//! packets from one node to another. The opposite direction needs another cut. If a link is down,
//! the hub answers that the node cannot be reached, as a real router does.
//!
//! Invariants: the name of each namespace contains the process id of its owner. The namespaces are
//! removed when the handle is dropped, even by a panic. If an owner was killed, the next owner
//! removes its namespaces. This module needs root, `ip` and `nsenter`.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, ensure};
use pmnet_cli::find_program;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Folder in which `ip netns` keeps the names.
pub(crate) const FOLDER: &str = "/run/netns";
/// Prefix of every namespace's name. The process id follows the prefix.
pub(crate) const PREFIX: &str = "pmnet-";
/// Maximum number of nodes of one run.
const NODES_MAX: usize = 32;

static RUNS: AtomicU32 = AtomicU32::new(0);
static SWEEP: Once = Once::new();

/// The namespaces of one run; they are removed when this value is dropped.
#[derive(Debug)]
pub struct Namespaces {
    prefix: String,
    nodes: Vec<String>,
    cuts: BTreeSet<(usize, usize)>,
    down: BTreeSet<usize>,
}

/// A namespace by its name.
#[derive(Clone, Debug)]
pub struct Namespace(String);

impl Namespace {
    /// Moves the calling thread into this namespace. Processes that the thread starts from now on
    /// also run in this namespace.
    ///
    /// # Errors
    /// Fails if the kernel refuses the operation.
    pub fn enter(&self) -> anyhow::Result<()> {
        enter(&self.0)
    }
}

impl Namespaces {
    /// Returns the reason why this process cannot make namespaces; `None` if no obstacle is known
    /// before the attempt.
    #[must_use]
    pub fn refusal() -> Option<String> {
        if !Namespaces::is_root() {
            return Some("network namespaces need root".to_owned());
        }
        ["ip", "nsenter"]
            .into_iter()
            .find(|program| find_program(program).is_none())
            .map(|program| {
                format!("{program} is not installed: apt-get install iproute2 util-linux")
            })
    }

    /// Returns whether this process is root.
    #[must_use]
    pub fn is_root() -> bool {
        rustix::process::geteuid().is_root()
    }

    /// Makes a namespace for each name, with a link to a hub.
    ///
    /// # Errors
    /// Fails if namespaces cannot be made ([`Namespaces::refusal`]), or if `ip` fails.
    pub fn create(names: &[String]) -> anyhow::Result<Namespaces> {
        if let Some(reason) = Namespaces::refusal() {
            anyhow::bail!(reason);
        }
        ensure!(names.len() <= NODES_MAX, "too many nodes");
        SWEEP.call_once(sweep);
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        // If a step fails, the drop of this value removes all that was made so far.
        let mut made = Namespaces {
            prefix: format!("{PREFIX}{}-{run}-", std::process::id()),
            nodes: Vec::new(),
            cuts: BTreeSet::new(),
            down: BTreeSet::new(),
        };
        ip(&["netns", "add", &made.hub()])?;
        made.in_hub(&["link", "set", "lo", "up"])?;
        std::thread::scope(|scope| {
            let made = &made;
            scope
                .spawn(|| -> anyhow::Result<()> {
                    made.enter_hub()?;
                    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")
                        .context("the hub cannot forward")
                })
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        for name in names {
            made.add(name)?;
        }
        Ok(made)
    }

    fn add(&mut self, name: &str) -> anyhow::Result<()> {
        let node = self.nodes.len();
        let full = format!("{}{name}", self.prefix);
        ip(&["netns", "add", &full])?;
        self.nodes.push(full.clone());
        let (link, gateway) = (link_name(node), gateway(node).to_string());
        self.in_hub(&[
            "link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &full,
        ])?;
        self.in_hub(&["addr", "add", &format!("{gateway}/24"), "dev", &link])?;
        self.in_hub(&["link", "set", &link, "up"])?;
        let address = format!("{}/24", self.address(node));
        for arguments in [
            &["link", "set", "lo", "up"][..],
            &["addr", "add", &address, "dev", "eth0"],
            &["link", "set", "eth0", "up"],
            &["route", "add", "default", "via", &gateway],
        ] {
            ip(&[&["-n", &full], arguments].concat())?;
        }
        Ok(())
    }

    fn hub(&self) -> String {
        format!("{}hub", self.prefix)
    }

    fn in_hub(&self, arguments: &[&str]) -> anyhow::Result<()> {
        ip(&[&["-n", &self.hub()], arguments].concat())
    }

    /// Returns the names of all namespaces, as `ip netns` lists them.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.nodes.iter().cloned().chain([self.hub()]).collect()
    }

    /// Returns the address of a node. All other nodes can reach this address.
    #[must_use]
    pub fn address(&self, node: usize) -> Ipv4Addr {
        let [a, b, c, _] = gateway(node).octets();
        Ipv4Addr::new(a, b, c, 2)
    }

    /// Moves the calling thread into the hub. Processes that the thread starts from now on also run
    /// in the hub.
    ///
    /// # Errors
    /// Fails if the kernel refuses the operation.
    pub fn enter_hub(&self) -> anyhow::Result<()> {
        enter(&self.hub())
    }

    /// Returns the namespace of a node.
    #[must_use]
    pub fn node(&self, node: usize) -> Namespace {
        Namespace(self.nodes[node].clone())
    }

    /// Returns the program and the arguments that start a program inside a node.
    ///
    /// # Errors
    /// Fails if `nsenter` is not installed.
    pub fn inside(
        &self,
        node: usize,
        program: &Path,
        arguments: Vec<OsString>,
    ) -> anyhow::Result<(PathBuf, Vec<OsString>)> {
        let nsenter = find_program("nsenter").context("nsenter is not installed")?;
        let mut all = vec![
            OsString::from(format!("--net={FOLDER}/{}", self.nodes[node])),
            "--".into(),
            program.into(),
        ];
        all.extend(arguments);
        Ok((nsenter, all))
    }

    /// Drops all packets from one node to another from now on. Returns false if this direction was
    /// cut before.
    ///
    /// # Errors
    /// Fails if `ip` fails.
    pub fn cut(&mut self, from: usize, to: usize) -> anyhow::Result<bool> {
        if self.cuts.contains(&(from, to)) {
            return Ok(false);
        }
        self.rule("add", from, to)?;
        Ok(self.cuts.insert((from, to)))
    }

    /// Ends the cut of this direction, if there is one.
    ///
    /// # Errors
    /// Fails if `ip` fails.
    pub fn heal(&mut self, from: usize, to: usize) -> anyhow::Result<()> {
        if self.cuts.remove(&(from, to)) {
            self.rule("del", from, to)?;
        }
        Ok(())
    }

    /// Takes the link of a node down. Returns false if the link was already down.
    ///
    /// # Errors
    /// Fails if `ip` fails.
    pub fn link_down(&mut self, node: usize) -> anyhow::Result<bool> {
        if self.down.contains(&node) {
            return Ok(false);
        }
        self.in_hub(&["link", "set", &link_name(node), "down"])?;
        Ok(self.down.insert(node))
    }

    /// Takes the link of a node up again, if it is down.
    ///
    /// # Errors
    /// Fails if `ip` fails.
    pub fn link_up(&mut self, node: usize) -> anyhow::Result<()> {
        if self.down.remove(&node) {
            self.in_hub(&["link", "set", &link_name(node), "up"])?;
        }
        Ok(())
    }

    /// Ends all cuts and takes all links up.
    ///
    /// # Errors
    /// Fails if `ip` fails.
    pub fn heal_all(&mut self) -> anyhow::Result<()> {
        for (from, to) in self.cuts.clone() {
            self.heal(from, to)?;
        }
        for node in self.down.clone() {
            self.link_up(node)?;
        }
        Ok(())
    }

    fn rule(&self, what: &str, from: usize, to: usize) -> anyhow::Result<()> {
        let (from_text, to_text) = (self.address(from).to_string(), self.address(to).to_string());
        let preference = (1_000 + from * NODES_MAX + to).to_string();
        self.in_hub(&[
            "rule",
            what,
            "blackhole",
            "from",
            &from_text,
            "to",
            &to_text,
            "pref",
            &preference,
        ])
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        // The kernel removes the network devices together with their namespaces.
        for name in self.names() {
            let _ = ip(&["netns", "del", &name]);
        }
    }
}

fn gateway(node: usize) -> Ipv4Addr {
    // `node` is below NODES_MAX, so the conversion cannot fail.
    Ipv4Addr::new(10, 99, u8::try_from(node + 1).unwrap_or(u8::MAX), 1)
}

fn link_name(node: usize) -> String {
    format!("node{node}")
}

pub(crate) fn enter(name: &str) -> anyhow::Result<()> {
    let file = std::fs::File::open(Path::new(FOLDER).join(name))
        .with_context(|| format!("no namespace {name}"))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .with_context(|| format!("cannot enter the namespace {name}"))
}

pub(crate) fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("ip")
        .args(arguments)
        .output()
        .context("cannot run ip")?;
    ensure!(
        output.status.success(),
        "ip {}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

/// Removes the namespaces of owners that have ended, as the module's invariants require. Namespaces
/// that cannot be removed stay.
pub fn sweep() {
    let Ok(entries) = std::fs::read_dir(FOLDER) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split_once('-'))
            .and_then(|(pid, _)| pid.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = ip(&["netns", "del", &name]);
        }
    }
}
