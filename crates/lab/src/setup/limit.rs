//! The upper bound `pmnet-lab resp-limit`, as a process of its own.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::Context;

use super::ValueBytes;
use crate::harness::{Binaries, Port, Process, READY_MAX, Ready, Scratch, Spec};

/// Name of the upper bound in tables of CPU times.
pub const NAME: &str = "resp-limit";

/// The upper bound alone, on the loopback interface.
pub struct LimitAlone {
    // The process is dropped first, because it uses the port and the folder.
    process: Process,
    address: SocketAddr,
    _port: Port,
    _scratch: Scratch,
}

/// Returns the arguments of the process.
pub fn arguments(listen: SocketAddr, value: ValueBytes) -> Vec<OsString> {
    let (listen, bytes) = (listen.to_string(), value.0.to_string());
    [NAME, "--listen", &listen, "--value-bytes", &bytes]
        .map(OsString::from)
        .into()
}

impl LimitAlone {
    /// Starts the process, and waits until it serves.
    pub fn start(
        binaries: &Binaries,
        folder: &Path,
        name: &str,
        value: ValueBytes,
    ) -> anyhow::Result<LimitAlone> {
        let scratch = Scratch::new(folder, name)?;
        let port = Port::claim().context("no port for a process")?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.number()));
        let spec = Spec {
            name: NAME.into(),
            binaries: binaries.clone(),
            program: Some(binaries.lab.clone()),
            args: arguments(address, value),
            ready: Ready::Line,
        };
        Ok(LimitAlone {
            process: Process::start(spec, scratch.disk(), READY_MAX)?,
            address,
            _port: port,
            _scratch: scratch,
        })
    }

    pub const fn endpoint(&self) -> SocketAddr {
        self.address
    }

    pub const fn process(&self) -> &Process {
        &self.process
    }

    pub fn stop(mut self) -> anyhow::Result<Vec<String>> {
        let clean = self.process.stop()?;
        Ok((!clean).then(|| NAME.to_owned()).into_iter().collect())
    }
}
