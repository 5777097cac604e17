//! A system that has been set up: its network, programs and processes.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use pmnet_wire::FrontKey;

use super::carrier::ClientIo;
use super::pinned::Pinned;
use super::system::{Device, Medium, Recipe, SERVER, System};
use crate::harness::namespaces::PREFIX;
use crate::harness::{Binaries, Keys, Process, Ready, Role, Scratch, Spec};
use crate::testbed::{END_INTERFACE, Layout, Network};
use crate::xdp::plain::{self, Plain, Program};

/// The node of the clients.
pub const CLIENT: &str = "client1";
/// Longest wait until a process serves.
pub const START_MAX: Duration = Duration::from_secs(15);

/// A system that has been set up. The fields are dropped in the order of their declaration, so that all users of the
/// network end before the network.
pub struct Stand {
    /// The running devices, the last device of the chain first.
    devices: Vec<(Role, Process)>,
    pinned: Vec<Pinned>,
    server: Option<Process>,
    _programs: Vec<Plain>,
    /// The program at the client's end of the link, which clients with sockets need.
    client_program: Option<Plain>,
    system: System,
    number: usize,
    /// The key files, if the system has keys and runs processes of pmnet.
    keys: Option<Keys>,
    /// The network of the system.
    pub network: Network,
    /// The recipe of the system.
    pub recipe: Recipe,
}

impl Stand {
    /// Creates the network of a system, with the programs for clients that use sockets. `number` distinguishes several
    /// systems.
    pub fn build(system: System, number: usize) -> anyhow::Result<Stand> {
        let recipe = system.recipe();
        let prefix = format!("{PREFIX}{}-b{number}-", std::process::id());
        let network = Network::create(Layout::new(&prefix, 1, recipe.devices))?;
        let mut programs = Vec::new();
        for (node, interface, program) in recipe.programs {
            programs.push(attach(&network, node, interface, *program)?);
        }
        let mut stand = Stand {
            devices: Vec::new(),
            pinned: Vec::new(),
            server: None,
            _programs: programs,
            client_program: None,
            system,
            number,
            keys: None,
            network,
            recipe,
        };
        stand.clients_by(ClientIo::Socket)?;
        Ok(stand)
    }

    /// Prepares the client's end of the link. Clients with AF_XDP attach a program of their own, and an interface can
    /// have only one program.
    pub fn clients_by(&mut self, client_io: ClientIo) -> anyhow::Result<()> {
        if client_io == ClientIo::AfXdp || !self.recipe.client_takes_xdp {
            self.client_program = None;
        } else if self.client_program.is_none() {
            let program = attach(&self.network, CLIENT, END_INTERFACE, Program::Pass)?;
            self.client_program = Some(program);
        }
        Ok(())
    }

    /// Starts the server and the devices of the system, if it has any, and waits until they serve. `store` is the URL
    /// of the store.
    ///
    /// The calling thread must outlive the stand, because the processes end when this thread ends.
    pub fn serve(&mut self, medium: Medium, store: &str, scratch: &Scratch) -> anyhow::Result<()> {
        let devices = self.recipe.device.iter().chain(self.recipe.behind);
        let devices: Vec<(usize, Device)> = devices.copied().enumerate().collect();
        let Some((_, head)) = devices.first() else {
            return Ok(());
        };
        for (index, device) in &devices {
            if device.in_kernel {
                self.pinned.push(Pinned::new(self.number, *index));
            }
        }
        if self.recipe.keyed {
            let folder = scratch.disk().join(self.name("keys"));
            std::fs::create_dir(&folder).context("no folder for keys")?;
            self.keys = Some(Keys::make(&Binaries::own()?, &folder)?);
        }
        let mut server = words(&["server", "--listen", &SERVER.to_string(), "--store", store]);
        if let (true, Some(pinned)) = (head.server_reads_log, self.pinned.first()) {
            server.extend(words(&["--device-log", &pinned.0]));
        }
        server.extend(self.cluster_key());
        self.server = Some(self.start("server", "server", server, scratch)?);
        // The last device starts first, because the server builds the chain beginning with the last device.
        for (index, device) in devices.into_iter().rev() {
            let process = self.start_device(index, device, medium, scratch)?;
            self.devices.push((Role::Device(index), process));
        }
        Ok(())
    }

    fn start_device(
        &self,
        index: usize,
        device: Device,
        medium: Medium,
        scratch: &Scratch,
    ) -> anyhow::Result<Process> {
        let role = format!("device{}", index + 1);
        let mut arguments = words(&["device"]);
        arguments.extend(words(device.flags));
        if self.keys.is_some() {
            // The id of each device's next hop is the device's own id plus one. The next hop of the last device is the
            // server, which has id 0.
            let last = index == self.recipe.behind.len();
            let next = if last { 0 } else { index + 2 };
            arguments.extend(words(&["--next-id", &next.to_string()]));
            arguments.extend(self.cluster_key());
        }
        if device.server_reads_log {
            arguments.push("--server-reads-log".into());
        }
        if let (true, Some(pinned)) = (device.in_kernel, self.pinned.get(index)) {
            arguments.extend(words(&["--name", &pinned.0]));
        } else {
            let folder = match medium {
                Medium::Dram => scratch.memory(),
                Medium::File => scratch.disk(),
            };
            arguments.extend(words(&["--media", medium.flag(), "--log"]));
            arguments.push(folder.join(self.name(&format!("{role}.log"))).into());
        }
        self.start(&role, device.node, arguments, scratch)
    }

    fn cluster_key(&self) -> Vec<OsString> {
        crate::harness::keys::flag(self.keys.as_ref().map(|keys| &keys.cluster))
    }

    /// Returns the key of the clients.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn front_key(&self) -> anyhow::Result<Option<FrontKey>> {
        let read = |keys: &Keys| pmnet_keys::Front::read(&keys.front);
        let front = self.keys.as_ref().map(read).transpose()?;
        Ok(front.map(|front| front.key))
    }

    /// Returns the file with the clients' key.
    pub fn front_key_file(&self) -> Option<&Path> {
        self.keys.as_ref().map(|keys| keys.front.as_path())
    }

    /// Starts a pmnet process in a node and waits until it serves.
    pub fn start(
        &self,
        role: &str,
        node: &str,
        arguments: Vec<OsString>,
        scratch: &Scratch,
    ) -> anyhow::Result<Process> {
        launch(&self.network, self.name(role), node, arguments, scratch)
    }

    /// Returns the running devices (head first) and the server.
    pub fn processes(&self) -> impl Iterator<Item = (Role, &Process)> {
        let devices = self.devices.iter().rev();
        let devices = devices.map(|(role, process)| (*role, process));
        devices.chain(self.server.iter().map(|process| (Role::Server, process)))
    }

    /// Returns all processes, so that they can be ended.
    pub fn processes_mut(&mut self) -> impl Iterator<Item = (Role, &mut Process)> {
        let devices = self.devices.iter_mut().rev();
        let devices = devices.map(|(role, process)| (*role, process));
        devices.chain(
            self.server
                .iter_mut()
                .map(|process| (Role::Server, process)),
        )
    }

    fn name(&self, role: &str) -> String {
        format!("{}-{role}", self.system.name())
    }
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(Into::into).collect()
}

/// Starts a pmnet process in a node of a network, and waits until it serves. Messages name the process with this name.
///
/// # Errors
/// Fails if the process cannot be started, or does not serve in time.
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
