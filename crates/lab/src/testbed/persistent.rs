//! The persistent testbed, of which a machine has only one: `up` makes it, `exec` enters it, and `down` removes it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use pmnet_dataplane::xdp::Pins;
use rustix::process::{Pid, Signal, kill_process};

use super::layout::{END_INTERFACE, Layout};
use super::network::{Network, refusal};
use crate::harness::namespaces::{FOLDER, enter, ip};
use crate::xdp::plain::{self, Program};

/// Prefix of the names of the testbed's namespaces.
pub const PREFIX: &str = "pmnet-tb-";
/// Folder of the testbed's pinned programs, in the BPF file system.
const PINS: &str = "testbed-links";
/// Lock file that is held while the testbed is made or removed.
const LOCK: &str = "/run/pmnet-testbed.lock";
/// Time after SIGTERM at which programs inside the testbed are killed.
const END_MAX: Duration = Duration::from_secs(3);
/// Interval at which `down` checks whether these programs have ended.
const LOOK: Duration = Duration::from_millis(20);

/// Makes the testbed (see [`Layout::new`]). If this binary [has](plain::is_built) an XDP program that passes all
/// packets, attaches this program to the ends that face the server. These ends then accept packets that their peer
/// transmits from XDP. The other ends stay free for a device in the kernel. If `chain` is set, all ends of devices stay
/// free.
///
/// # Errors
/// Fails if this process cannot make a testbed ([`refusal`]), if the testbed exists already, or if `ip`, `ethtool` or
/// the kernel fails. After a failure, everything that was made is removed.
pub fn up(clients: u8, devices: u8, chain: bool) -> anyhow::Result<Layout> {
    let _lock = lock()?;
    let there = nodes();
    ensure!(
        there.is_empty(),
        "a testbed is up already ({}): use it with `pmnet-lab testbed exec NAME COMMAND`, or remove it first \
         with `pmnet-lab testbed down`",
        there.join(", ")
    );
    let network = Network::create(Layout::new(PREFIX, clients, devices))?;
    if plain::is_built() {
        let attached = take_xdp(&network, chain);
        if attached.is_err() {
            // An error of the clean-up is ignored, because the first error is the better message.
            let _ = remove_pins();
        }
        attached?;
    }
    Ok(network.keep())
}

/// Attaches a program to the ends that need one. A veth without an XDP program silently drops packets that its peer
/// transmits from XDP.
fn take_xdp(network: &Network, chain: bool) -> anyhow::Result<()> {
    remove_pins()?;
    let pins = Pins::open(PINS)?;
    for link in &network.layout().links {
        let (node, interface) = &link.ends[0];
        // All interfaces of clients have the same name. A port of a switch has the name of the node at its other end.
        if chain && interface != END_INTERFACE {
            continue;
        }
        let path = pins.path(&format!("link-{node}-{interface}"));
        network.inside(node, || {
            let attached = plain::attach(Program::Pass, interface)
                .with_context(|| format!("cannot attach to {interface} of {node}"))?;
            attached.pin(&path)
        })?;
    }
    Ok(())
}

/// Removes the pinned programs, also those that were left after a crash.
fn remove_pins() -> anyhow::Result<()> {
    Ok(Pins::open(PINS)?.remove()?)
}

/// Replaces this process by the command, which runs inside a node.
///
/// # Errors
/// Fails if the testbed has no such node, or if the command does not exist. The function returns only after a failure.
pub fn exec(name: &str, command: &[OsString]) -> anyhow::Result<Infallible> {
    if let Some(reason) = refusal() {
        bail!(reason);
    }
    let there = nodes();
    ensure!(
        !there.is_empty(),
        "there is no testbed: make one with `pmnet-lab testbed up`"
    );
    ensure!(
        there.iter().any(|node| node == name),
        "there is no {name} in this testbed, only {}",
        there.join(", ")
    );
    let (program, arguments) = command.split_first().context("no command was given")?;
    enter(&format!("{PREFIX}{name}"))?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}

/// The result of [`down`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Names of the removed nodes.
    pub nodes: Vec<String>,
    /// Number of programs that ran in the nodes and were ended.
    pub processes: usize,
}

/// Ends all programs in the testbed, and removes the testbed, even if it is incomplete.
///
/// # Errors
/// Fails if this process cannot remove a testbed ([`refusal`]), if it runs inside the testbed, or if a program cannot
/// be ended or a namespace cannot be removed.
pub fn down() -> anyhow::Result<Removed> {
    if let Some(reason) = refusal() {
        bail!(reason);
    }
    let _lock = lock()?;
    let nodes = nodes();
    let own = inode(Path::new("/proc/self/ns/net"));
    for node in &nodes {
        ensure!(
            own.is_none() || inode(&place(node)) != own,
            "this shell is inside of {node}: leave it first"
        );
    }
    let processes = end_all(&nodes)?;
    if plain::is_built() {
        remove_pins()?;
    }
    for node in &nodes {
        ip(&["netns", "del", &format!("{PREFIX}{node}")])?;
    }
    Ok(Removed { nodes, processes })
}

/// Returns the names of the existing nodes, sorted.
fn nodes() -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(FOLDER)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            name.strip_prefix(PREFIX).map(str::to_owned)
        })
        .collect();
    names.sort();
    names
}

fn place(node: &str) -> std::path::PathBuf {
    Path::new(FOLDER).join(format!("{PREFIX}{node}"))
}

fn inode(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|data| data.ino())
}

fn lock() -> anyhow::Result<File> {
    if let Some(reason) = refusal() {
        bail!(reason);
    }
    let file = File::create(LOCK).with_context(|| format!("cannot write {LOCK}"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(_) => {
            bail!("another `pmnet-lab testbed` is at work ({LOCK}): try again when it is done")
        }
    }
}

/// Returns the processes that run inside the nodes.
fn inside(nodes: &[String]) -> BTreeMap<i32, u64> {
    let wanted: Vec<_> = nodes
        .iter()
        .filter_map(|node| inode(&place(node)))
        .collect();
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let space = inode(&entry.path().join("ns/net"))?;
            wanted.contains(&space).then_some((pid, space))
        })
        .collect()
}

fn end_all(nodes: &[String]) -> anyhow::Result<usize> {
    let first = inside(nodes);
    signal(&first, Signal::TERM);
    let deadline = Instant::now() + END_MAX;
    let mut killed = false;
    loop {
        let left = inside(nodes);
        if left.is_empty() {
            return Ok(first.len());
        }
        if Instant::now() >= deadline {
            ensure!(
                !killed || Instant::now() < deadline + END_MAX,
                "processes {:?} are inside of the testbed and cannot be ended",
                left.keys()
            );
            signal(&left, Signal::KILL);
            killed = true;
        }
        std::thread::sleep(LOOK);
    }
}

fn signal(processes: &BTreeMap<i32, u64>, signal: Signal) {
    for (pid, space) in processes {
        // If the process has just ended, a new process may have got its id. The check of the namespace excludes the new
        // process.
        let same = inode(Path::new(&format!("/proc/{pid}/ns/net"))) == Some(*space);
        if let Some(pid) = Pid::from_raw(*pid).filter(|_| same) {
            let _ = kill_process(pid, signal);
        }
    }
}
