//! A variant of the switch that has been set up: its network, programs and processes. Network, programs and processes
//! are removed when this value is dropped.

use std::ffi::OsString;

use anyhow::Context;

use super::plan::{MTU, Variant};
use crate::bench::micro::pinned::Pinned;
use crate::bench::micro::stand::launch;
use crate::bench::micro::system::{SERVER, System};
use crate::harness::namespaces::PREFIX;
use crate::harness::{Process, Scratch};
use crate::testbed::{Layout, Network};
use crate::xdp::plain::{self, Plain, Program};

/// Nodes and interfaces to which the program of [`Variant::Pass`] is attached: the ports of the switch.
const PORTS: [(&str, &str); 2] = [("device1", "client1"), ("device1", "server")];
const CLIENT: (&str, &str) = ("client1", "eth0");

/// A variant of the switch. The fields are dropped in the order of their declaration, so that all users of the network
/// end before the network.
pub struct Stand {
    device: Option<Process>,
    pinned: Option<Pinned>,
    server: Option<Process>,
    _programs: Vec<Plain>,
    variant: Variant,
    mtu: u16,
    /// The network with the machines of the variant.
    pub network: Network,
}

impl Stand {
    /// Sets up a variant. If the variant has a device, waits until the device serves. `number` distinguishes several
    /// stands.
    ///
    /// The calling thread must outlive the stand, because the processes end when this thread ends.
    ///
    /// # Errors
    /// Fails if `ip`, `ethtool`, the kernel, the server or the device fails, and then removes everything that it
    /// created.
    pub fn build(
        variant: Variant,
        mtu: u16,
        number: usize,
        scratch: &Scratch,
    ) -> anyhow::Result<Stand> {
        let prefix = format!("{PREFIX}{}-t{number}-", std::process::id());
        let network = Network::create(Layout::new(&prefix, 1, 1))?;
        if mtu != MTU {
            network.set_mtu(mtu)?;
        }
        if variant == Variant::Offloaded {
            network.default_offloads()?;
        }
        let mut stand = Stand {
            device: None,
            pinned: None,
            server: None,
            _programs: Vec::new(),
            variant,
            mtu,
            network,
        };
        if variant.has_device() {
            stand.pinned = Some(Pinned::new(number, 0));
            stand.serve(scratch)?;
        }
        let programs: &[_] = match variant {
            Variant::Pass | Variant::Control => &[PORTS[0], PORTS[1], CLIENT],
            Variant::Device | Variant::Loaded => &[CLIENT],
            // In generic mode, a packet of the device is an ordinary packet for its receiver, so the receiver needs no
            // program.
            Variant::Bare | Variant::Generic | Variant::Offloaded => &[],
        };
        for (node, interface) in programs {
            let attach = || plain::attach(Program::Pass, interface);
            let attached = stand.network.inside(node, attach);
            let attached =
                attached.with_context(|| format!("cannot attach to {interface} of {node}"))?;
            stand._programs.push(attached);
        }
        Ok(stand)
    }

    fn serve(&mut self, scratch: &Scratch) -> anyhow::Result<()> {
        let recipe = System::Switch.recipe().device.context("a device")?;
        let mut flags: Vec<OsString> = vec!["device".into()];
        flags.extend(recipe.flags.iter().map(Into::into));
        if let Some(pinned) = &self.pinned {
            flags.extend(["--name".into(), OsString::from(&pinned.0)]);
        }
        if !self.variant.is_native() {
            flags.push("--xdp-generic".into());
        }
        let server = [
            "server",
            "--listen",
            &SERVER.to_string(),
            "--store",
            "null:",
        ];
        let server = server.map(OsString::from).to_vec();
        self.server = Some(self.start("server", "server", server, scratch)?);
        self.device = Some(self.start("device", recipe.node, flags, scratch)?);
        Ok(())
    }

    fn start(
        &self,
        role: &str,
        node: &str,
        arguments: Vec<OsString>,
        scratch: &Scratch,
    ) -> anyhow::Result<Process> {
        let name = format!("{}-{}-{role}", self.variant.name(), self.mtu);
        launch(&self.network, name, node, arguments, scratch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_where_the_layout_has_interfaces() {
        let layout = Layout::new("x-", 1, 1);
        for (node, interface) in PORTS.into_iter().chain([CLIENT]) {
            let end = (node.to_owned(), interface.to_owned());
            assert!(layout.links.iter().any(|link| link.ends.contains(&end)));
        }
    }
}
