//! Programs in Rust, in Python and with libpmnet as the store. The programs take batches from real
//! devices, and are killed.

#[path = "programs/library.rs"]
mod library;
#[path = "programs/pmem.rs"]
mod pmem;
#[path = "programs/pulled.rs"]
mod pulled;
#[path = "programs/python.rs"]
mod python;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use pmnet_lab::harness::{Process, Ready, Scratch, Spec, free_port};

use crate::common;

/// Time within which a process must serve.
const READY_MAX: Duration = Duration::from_secs(20);

/// Returns a free address for a process.
fn place() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port().unwrap()).into()
}

/// A chain of one device. The server belongs to the test.
struct Chain {
    device: Process,
    /// The address of the device.
    via: SocketAddr,
    /// The address of the server.
    server: SocketAddr,
    scratch: Scratch,
}

impl Chain {
    /// Starts the device, which waits until a server runs.
    fn launch(name: &str) -> Chain {
        let scratch = Scratch::new(common::folder(), name).unwrap();
        let (via, server) = (place(), place());
        let device = launch_device(&scratch, via, server, &[]);
        Chain {
            device,
            via,
            server,
            scratch,
        }
    }

    /// Loses the device with its log, and starts another device that declares the loss.
    fn lose_device(&mut self) {
        self.device.kill().unwrap();
        std::fs::remove_file(log(&self.scratch)).unwrap();
        let more = ["--declare-data-loss"];
        self.device = launch_device(&self.scratch, self.via, self.server, &more);
    }
}

fn log(scratch: &Scratch) -> PathBuf {
    scratch.memory().join("device.pmlog")
}

fn launch_device(scratch: &Scratch, via: SocketAddr, server: SocketAddr, more: &[&str]) -> Process {
    let (via, server, log) = (via.to_string(), server.to_string(), log(scratch));
    let words = [
        "device",
        "--listen",
        &via,
        "--next",
        &server,
        "--media",
        "dram",
        "--log",
        log.to_str().unwrap(),
    ];
    let spec = Spec {
        name: "device".into(),
        binaries: common::binaries().clone(),
        program: None,
        args: words.iter().chain(more).map(Into::into).collect(),
        ready: Ready::Line,
    };
    Process::launch(spec, scratch.disk()).unwrap()
}
