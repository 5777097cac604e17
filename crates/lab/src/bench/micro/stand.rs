//! A system that is set up: its network, programs and processes; all are removed when it is dropped.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Context;

use super::carrier::ClientIo;
use super::pinned::Pinned;
use super::system::{Medium, Recipe, SERVER, System};
use crate::harness::namespaces::PREFIX;
use crate::harness::{Binaries, Process, Ready, Role, Scratch, Spec};
use crate::testbed::{END_INTERFACE, Layout, Network};
use crate::xdp::plain::{self, Plain, Program};

/// Node of the clients.
pub const CLIENT: &str = "client1";
/// If a process does not serve after this time, it is an error.
pub const START_MAX: Duration = Duration::from_secs(15);

/// See the module's text. Fields are dropped in this order: first who uses the network.
pub struct Stand {
    device: Option<Process>,
    pinned: Option<Pinned>,
    server: Option<Process>,
    _programs: Vec<Plain>,
    /// What is at the client's end, for clients with sockets.
    client_program: Option<Plain>,
    system: System,
    /// Its network.
    pub network: Network,
    /// What it is made of.
    pub recipe: Recipe,
}

impl Stand {
    /// Makes the network of a system, with its programs, for clients with sockets. `number` keeps several apart.
    pub fn build(system: System, number: usize) -> anyhow::Result<Stand> {
        let recipe = system.recipe();
        let prefix = format!("{PREFIX}{}-b{number}-", std::process::id());
        let network = Network::create(Layout::new(&prefix, 1, recipe.devices))?;
        let mut programs = Vec::new();
        for (node, interface, program) in recipe.programs {
            programs.push(attach(&network, node, interface, *program)?);
        }
        let in_kernel = recipe.device.is_some_and(|device| device.in_kernel);
        let mut stand = Stand {
            device: None,
            pinned: in_kernel.then(|| Pinned::new(number)),
            server: None,
            _programs: programs,
            client_program: None,
            system,
            network,
            recipe,
        };
        stand.clients_by(ClientIo::Socket)?;
        Ok(stand)
    }

    /// Prepares the client's end for such clients. Clients with AF_XDP bring their own program, and an interface
    /// can have only one.
    pub fn clients_by(&mut self, client_io: ClientIo) -> anyhow::Result<()> {
        if client_io == ClientIo::AfXdp || !self.recipe.client_takes_xdp {
            self.client_program = None;
        } else if self.client_program.is_none() {
            let program = attach(&self.network, CLIENT, END_INTERFACE, Program::Pass)?;
            self.client_program = Some(program);
        }
        Ok(())
    }

    /// Starts server and device, if it has any, and waits until they serve. `store` is the server's.
    ///
    /// Call it from a thread that outlives the stand: its processes end with that thread.
    pub fn serve(&mut self, medium: Medium, store: &str, scratch: &Scratch) -> anyhow::Result<()> {
        let Some(device) = self.recipe.device else {
            return Ok(());
        };
        let words = |words: &[&str]| -> Vec<OsString> { words.iter().map(Into::into).collect() };
        let mut server = words(&["server", "--listen", &SERVER.to_string(), "--store", store]);
        let mut arguments = words(&["device"]);
        arguments.extend(words(device.flags));
        if let Some(pinned) = &self.pinned {
            arguments.extend(words(&["--name", &pinned.0]));
            if device.server_reads_log {
                arguments.push("--server-reads-log".into());
                server.extend(words(&["--device-log", &pinned.0]));
            }
        } else {
            let folder = match medium {
                Medium::Dram => scratch.memory(),
                Medium::File => scratch.disk(),
            };
            arguments.extend(words(&["--media", medium.flag(), "--log"]));
            arguments.push(folder.join(self.name("log")).into());
        }
        self.server = Some(self.start("server", "server", server, scratch)?);
        self.device = Some(self.start("device", device.node, arguments, scratch)?);
        Ok(())
    }

    /// Starts a pmnet in a node and waits until it serves.
    pub fn start(
        &self,
        role: &str,
        node: &str,
        arguments: Vec<OsString>,
        scratch: &Scratch,
    ) -> anyhow::Result<Process> {
        launch(&self.network, self.name(role), node, arguments, scratch)
    }

    /// Device and server, where they run.
    pub fn processes(&self) -> impl Iterator<Item = (Role, &Process)> {
        let device = self.device.iter().map(|process| (Role::Device(0), process));
        device.chain(self.server.iter().map(|process| (Role::Server, process)))
    }

    /// The same, to be ended.
    pub fn processes_mut(&mut self) -> impl Iterator<Item = (Role, &mut Process)> {
        let device = self.device.iter_mut();
        let device = device.map(|process| (Role::Device(0), process));
        device.chain(
            self.server
                .iter_mut()
                .map(|process| (Role::Server, process)),
        )
    }

    fn name(&self, role: &str) -> String {
        format!("{}-{role}", self.system.name())
    }
}

/// Starts a pmnet in a node of a network, under this name for people, and waits until it serves.
///
/// # Errors
/// It cannot be started, or does not serve in time.
pub fn launch(
    network: &Network,
    name: String,
    node: &str,
    arguments: Vec<OsString>,
    scratch: &Scratch,
) -> anyhow::Result<Process> {
    let binaries = Binaries::own()?;
    let (program, args) = network.program(node, &binaries.pmnet, arguments)?;
    let spec = Spec {
        name,
        binaries,
        program: Some(program),
        args,
        ready: Ready::Line,
    };
    Process::start(spec, scratch.disk(), START_MAX)
}

fn attach(
    network: &Network,
    node: &str,
    interface: &str,
    program: Program,
) -> anyhow::Result<Plain> {
    let attached = network.inside(node, || plain::attach(program, interface));
    attached.with_context(|| format!("cannot attach {} to {interface} of {node}", program.name()))
}
