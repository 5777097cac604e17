//! A variant of the switch that stands: its network, programs and processes, all gone when dropped.

use std::ffi::OsString;

use anyhow::{Context, ensure};
use pmnet_dataplane::xdp::plain::{self, Plain, Program};

use super::plan::{LOAD_RATE, MTU, Variant};
use crate::bench::micro::pinned::Pinned;
use crate::bench::micro::stand::{START_MAX, own_binary};
use crate::bench::micro::system::{SERVER, System};
use crate::harness::namespaces::PREFIX;
use crate::harness::{Process, Ready, Scratch, Spec};
use crate::testbed::{Layout, Network};

/// Where the passing program is attached, of those that the switch has and of the client's.
const PORTS: [(&str, &str); 2] = [("device1", "client1"), ("device1", "server")];
const CLIENT: (&str, &str) = ("client1", "eth0");
/// Seconds after which the updating client ends by itself, if it is not ended before.
const LOAD_SECONDS: &str = "600";

/// See the module's text. Fields are dropped in this order: first who uses the network.
pub struct Stand {
    device: Option<Process>,
    pinned: Option<Pinned>,
    server: Option<Process>,
    _programs: Vec<Plain>,
    variant: Variant,
    mtu: u16,
    /// Its network.
    pub network: Network,
}

impl Stand {
    /// Sets a variant up, and waits until its device serves, if it has one. `number` keeps several
    /// apart.
    ///
    /// Call it from a thread that outlives the stand: its processes end with that thread.
    ///
    /// # Errors
    /// What `ip`, `ethtool`, the kernel, server and device say; nothing is left then.
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
            stand.pinned = Some(Pinned::new(number));
            stand.serve(scratch)?;
        }
        let programs: &[_] = match variant {
            Variant::Pass | Variant::Control => &[PORTS[0], PORTS[1], CLIENT],
            Variant::Device | Variant::Loaded => &[CLIENT],
            // In the generic mode what the device transmits is a packet like others.
            Variant::Bare | Variant::Generic | Variant::Offloaded => &[],
        };
        for (node, interface) in programs {
            let attach = || Ok(plain::attach(Program::Pass, interface)?);
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
        Process::start(self.spec(role, node, arguments)?, scratch.disk(), START_MAX)
    }

    fn spec(&self, role: &str, node: &str, arguments: Vec<OsString>) -> anyhow::Result<Spec> {
        let pmnet = own_binary()?;
        let (program, args) = self.network.program(node, &pmnet, arguments)?;
        Ok(Spec {
            name: format!("{}-{}-{role}", self.variant.name(), self.mtu),
            pmnet,
            program: Some(program),
            args,
            ready: Ready::Line,
        })
    }

    /// Starts the client that updates, in [`Variant::Loaded`].
    ///
    /// # Errors
    /// It cannot be started.
    pub fn load(&self, scratch: &Scratch) -> anyhow::Result<Option<Load>> {
        if self.variant != Variant::Loaded {
            return Ok(None);
        }
        let (via, rate) = (SERVER.to_string(), LOAD_RATE.to_string());
        let arguments = [
            "load",
            "--via",
            &via,
            "--rate",
            &rate,
            "--seconds",
            LOAD_SECONDS,
            "--warmup",
            "0",
            "--json",
        ];
        let spec = self.spec("load", "client1", arguments.map(OsString::from).to_vec())?;
        Ok(Some(Load(Process::launch(spec, scratch.disk())?)))
    }
}

/// A client that updates; ended when dropped.
pub struct Load(Process);

impl Load {
    /// Ends it: how many of its updates were acknowledged.
    ///
    /// # Errors
    /// It had ended before, or none was acknowledged.
    pub fn end(mut self) -> anyhow::Result<u64> {
        let early = self.0.exited()?.is_some();
        self.0.stop()?;
        let text = self.0.stdout();
        let acknowledged = acknowledged(&text).unwrap_or(0);
        ensure!(
            !early && acknowledged > 0,
            "the client that updates got no acknowledgements: {}{text}",
            self.0.stderr()
        );
        Ok(acknowledged)
    }
}

/// From the summary of `pmnet load --json`.
fn acknowledged(text: &str) -> Option<u64> {
    let summary: serde_json::Value = serde_json::from_str(text.lines().last()?).ok()?;
    summary["acknowledged"].as_u64()
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

    #[test]
    fn acknowledgements_are_in_the_last_line() {
        assert_eq!(acknowledged("x\n{\"acknowledged\":7}\n"), Some(7));
        assert_eq!(acknowledged("{}"), None);
        assert_eq!(acknowledged(""), None);
    }
}
