//! A system that stands: its network, programs and processes, all gone when dropped.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Context;
use pmnet_dataplane::xdp::plain::{self, Plain};

use super::pinned::Pinned;
use super::plan::{Medium, Plan};
use super::system::{Recipe, SERVER, System};
use crate::harness::namespaces::{FOLDER, PREFIX};
use crate::harness::{Process, Ready, Scratch, Spec, find_program};
use crate::testbed::{Layout, Network};

/// A process that does not serve after so long is an error.
const START_MAX: Duration = Duration::from_secs(15);

/// See the module's text. Fields are dropped in this order: first who uses the network.
pub struct Stand {
    _device: Option<Process>,
    _pinned: Option<Pinned>,
    _server: Option<Process>,
    _programs: Vec<Plain>,
    /// Its network.
    pub network: Network,
    /// What it is made of.
    pub recipe: Recipe,
}

impl Stand {
    /// Sets a system up and waits until it serves. `number` keeps several apart.
    ///
    /// Call it from a thread that outlives the stand: its processes end with that thread.
    pub fn start(
        system: System,
        number: usize,
        plan: &Plan,
        scratch: &Scratch,
    ) -> anyhow::Result<Stand> {
        let recipe = system.recipe();
        let prefix = format!("{PREFIX}{}-b{number}-", std::process::id());
        let network = Network::create(Layout::new(&prefix, 1, recipe.devices))?;
        let mut programs = Vec::new();
        for (node, interface, program) in recipe.programs {
            let attached = network.inside(node, || Ok(plain::attach(*program, interface)?));
            programs.push(attached.with_context(|| {
                format!("cannot attach {} to {interface} of {node}", program.name())
            })?);
        }
        let mut stand = Stand {
            _device: None,
            _pinned: None,
            _server: None,
            _programs: programs,
            network,
            recipe,
        };
        if let Some(device) = recipe.device {
            let name = |role: &str| format!("{}-{role}", system.name());
            let server = ["--listen", &SERVER.to_string(), "--store", "null:"].map(OsString::from);
            let mut arguments = vec!["server".into()];
            arguments.extend(server);
            stand._server = Some(stand.launch(name("server"), "server", arguments, scratch)?);
            let mut arguments: Vec<OsString> = vec!["device".into()];
            arguments.extend(device.flags.iter().map(OsString::from));
            if device.in_kernel {
                let pinned = Pinned::new(number);
                arguments.extend(["--name", &pinned.0].map(OsString::from));
                stand._pinned = Some(pinned);
            } else {
                let folder = match plan.medium {
                    Medium::Dram => scratch.memory(),
                    Medium::File => scratch.disk(),
                };
                arguments.extend(["--media", plan.medium.flag(), "--log"].map(OsString::from));
                arguments.push(folder.join(name("log")).into());
            }
            stand._device = Some(stand.launch(name("device"), device.node, arguments, scratch)?);
        }
        Ok(stand)
    }

    fn launch(
        &self,
        name: String,
        node: &str,
        arguments: Vec<OsString>,
        scratch: &Scratch,
    ) -> anyhow::Result<Process> {
        let pmnet = std::env::current_exe().context("cannot find the pmnet binary")?;
        let node = self.network.layout().node(node);
        let namespace = &node.context("a recipe names its nodes")?.namespace;
        let nsenter = find_program("nsenter")
            .context("nsenter is not installed: apt-get install util-linux")?;
        let mut all = vec![
            OsString::from(format!("--net={FOLDER}/{namespace}")),
            "--".into(),
            pmnet.clone().into(),
        ];
        all.extend(arguments);
        let spec = Spec {
            name,
            pmnet,
            program: Some(nsenter),
            args: all,
            ready: Ready::Line,
        };
        Process::start(spec, scratch.disk(), START_MAX)
    }
}
