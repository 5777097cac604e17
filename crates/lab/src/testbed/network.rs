//! Builds a layout: namespaces, bridges, veth pairs, and the offload settings that XDP needs.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use super::layout::{BRIDGE, Layout, Node};
use crate::harness::Namespaces;
use crate::harness::find_program;
use crate::harness::namespaces::{FOLDER, enter, ip};

/// Returns the reason why this process cannot make a testbed; `None` if no obstacle is known before the attempt.
#[must_use]
pub fn refusal() -> Option<String> {
    if !Namespaces::is_root() {
        return Some("a testbed needs root (network namespaces): use sudo".to_owned());
    }
    [("ip", "iproute2"), ("ethtool", "ethtool")]
        .into_iter()
        .find(|(program, _)| find_program(program).is_none())
        .map(|(program, package)| format!("{program} is not installed: apt-get install {package}"))
}

/// The namespaces of a layout. The namespaces are removed when this value is dropped, unless they were
/// [kept](Network::keep).
#[derive(Debug)]
pub struct Network {
    layout: Layout,
    made: Vec<String>,
}

impl Network {
    /// Makes all namespaces and links, in at most a few seconds.
    ///
    /// # Errors
    /// Fails if this process cannot make a testbed ([`refusal`]), or if `ip` or `ethtool` fails. After a failure,
    /// everything that was created is removed.
    pub fn create(layout: Layout) -> anyhow::Result<Network> {
        if let Some(reason) = refusal() {
            anyhow::bail!(reason);
        }
        // If a step fails, the drop of this value removes all that was made so far.
        let mut network = Network {
            layout,
            made: Vec::new(),
        };
        for node in &network.layout.nodes {
            ip(&["netns", "add", &node.namespace])?;
            network.made.push(node.namespace.clone());
        }
        network.join()?;
        for node in &network.layout.nodes {
            batch(&node.namespace, &node_commands(node))?;
            network.inside(&node.name, || offloads(node, FOR_XDP))?;
        }
        Ok(network)
    }

    fn join(&self) -> anyhow::Result<()> {
        for link in &self.layout.links {
            let [near, far] = &link.ends;
            let namespaces = [near, far].map(|(name, _)| {
                let node = self.layout.node(name);
                node.map_or("", |node| node.namespace.as_str())
            });
            batch(
                namespaces[0],
                &[format!(
                    "link add {} type veth peer name {} netns {}",
                    near.1, far.1, namespaces[1]
                )],
            )?;
        }
        Ok(())
    }

    /// Returns the layout.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Keeps the network, so that [`super::down`] must remove it. Returns the layout.
    pub fn keep(mut self) -> Layout {
        self.made.clear();
        self.layout.clone()
    }

    /// Returns the program and the arguments that start a program inside a node.
    ///
    /// # Errors
    /// Fails if the layout has no such node, or if `nsenter` is not installed.
    pub fn program(
        &self,
        name: &str,
        program: &Path,
        arguments: Vec<OsString>,
    ) -> anyhow::Result<(PathBuf, Vec<OsString>)> {
        let node = self.layout.node(name);
        let namespace = &node.with_context(|| format!("no node {name}"))?.namespace;
        let nsenter = find_program("nsenter")
            .context("nsenter is not installed: apt-get install util-linux")?;
        let mut all = vec![
            OsString::from(format!("--net={FOLDER}/{namespace}")),
            "--".into(),
            program.into(),
        ];
        all.extend(arguments);
        Ok((nsenter, all))
    }

    /// Sets the MTU of every interface, in bytes. Must be called before programs are attached, because a veth whose
    /// peer has a program may refuse a large MTU.
    ///
    /// # Errors
    /// Fails if `ip` fails.
    pub fn set_mtu(&self, mtu: u16) -> anyhow::Result<()> {
        for node in &self.layout.nodes {
            let ports = node.ports.iter().map(String::as_str);
            let commands = ports
                .chain([node.interface])
                .map(|interface| format!("link set {interface} mtu {mtu}"));
            batch(&node.namespace, &commands.collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// Sets the offloads of every interface to the defaults of a new veth. The kernel then merges packets, so links of
    /// a device must not have these settings.
    ///
    /// # Errors
    /// Fails if `ethtool` fails.
    pub fn default_offloads(&self) -> anyhow::Result<()> {
        for node in &self.layout.nodes {
            self.inside(&node.name, || offloads(node, &["gro", "off", "tx", "on"]))?;
        }
        Ok(())
    }

    /// Moves the calling thread into a node. Processes that the thread starts from now on also run in the node.
    ///
    /// # Errors
    /// Fails if the layout has no such node, or the kernel refuses the operation.
    pub fn enter(&self, name: &str) -> anyhow::Result<()> {
        let node = self.layout.node(name);
        enter(&node.with_context(|| format!("no node {name}"))?.namespace)
    }

    /// Runs `work` on a thread of its own inside a node.
    ///
    /// # Errors
    /// Fails if the node cannot be entered ([`Network::enter`]), or if `work` fails.
    pub fn inside<T: Send>(
        &self,
        name: &str,
        work: impl FnOnce() -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    self.enter(name)?;
                    work()
                })
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // The kernel removes the interfaces together with their namespaces.
        for namespace in &self.made {
            let _ = ip(&["netns", "del", namespace]);
        }
    }
}

fn node_commands(node: &Node) -> Vec<String> {
    let mut commands = vec!["link set lo up".to_owned()];
    if !node.ports.is_empty() {
        commands.push(format!(
            "link add {BRIDGE} type bridge stp_state 0 mcast_snooping 0"
        ));
    }
    for port in &node.ports {
        commands.push(format!("link set {port} master {BRIDGE} up"));
    }
    let interface = node.interface;
    // By default a bridge takes the smallest link address of its ports, so its address changes when ports come and go.
    // This bridge gets a fixed address.
    if let (false, Some(ipv4)) = (node.ports.is_empty(), node.ipv4) {
        let [a, b, c, d] = ipv4.octets();
        commands.push(format!(
            "link set {interface} address 02:00:{a:02x}:{b:02x}:{c:02x}:{d:02x}"
        ));
    }
    commands.push(format!("link set {interface} up"));
    if let Some(address) = node.ipv4 {
        commands.push(format!("addr add {address}/24 dev {interface}"));
    }
    // Without IPv6 in the kernel, the node gets no IPv6 address.
    let has_ipv6 = Path::new("/proc/sys/net/ipv6").is_dir();
    if let Some(address) = node.ipv6.filter(|_| has_ipv6) {
        commands.push(format!("addr add {address}/64 dev {interface} nodad"));
    }
    commands
}

/// Runs many commands in a namespace with one `ip` process.
fn batch(namespace: &str, commands: &[String]) -> anyhow::Result<()> {
    let mut child = Command::new("ip")
        .args(["-n", namespace, "-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run ip")?;
    let mut script = commands.join("\n");
    script.push('\n');
    // The pipe is closed at once, so that `ip` sees the end of its input. If `ip` has already ended, its exit status
    // gives the reason.
    let written = child
        .stdin
        .take()
        .map(|mut pipe| pipe.write_all(script.as_bytes()));
    let output = child.wait_with_output().context("cannot wait for ip")?;
    ensure!(
        output.status.success() && written.is_some_and(|written| written.is_ok()),
        "ip -n {namespace}: {} (commands: {})",
        String::from_utf8_lossy(&output.stderr).trim(),
        commands.join("; ")
    );
    Ok(())
}

/// XDP needs complete packets with complete checksums, which a veth with transmit offload does not produce. With `gro`,
/// a veth has a receive queue of its own, as drivers with XDP have.
const FOR_XDP: &[&str] = &["gro", "on", "tx", "off"];

/// Sets the offloads of a node's interfaces. Must be called inside the node.
fn offloads(node: &Node, features: &[&str]) -> anyhow::Result<()> {
    let ports = node.ports.iter().map(String::as_str);
    let own = node.ports.is_empty().then_some(node.interface);
    for interface in ports.chain(own) {
        ethtool(&[&["-K", interface], features].concat())?;
    }
    Ok(())
}

fn ethtool(arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("ethtool")
        .args(arguments)
        .output()
        .context("cannot run ethtool")?;
    ensure!(
        output.status.success(),
        "ethtool {}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}
