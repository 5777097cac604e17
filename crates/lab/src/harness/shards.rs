//! Several shards, each a complete set-up, and one front for all of them.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::process::Signal;

use super::binaries::Binaries;
use super::claims::Port;
use super::cluster::{Cluster, READY_MAX, Topology, own_spec, who_may_connect, words};
use super::process::Process;

/// Number of slots of a map.
const SLOTS: usize = 16_384;

/// Running processes. The processes are killed when this value is dropped.
#[derive(Debug)]
pub struct Shards {
    // The front, which is dropped first.
    front: Process,
    endpoint: SocketAddr,
    /// The set-up of each shard. The shards have equal parts of the slots, in order.
    pub clusters: Vec<Cluster>,
    file: PathBuf,
    _port: Port,
}

/// Returns a shard's entry in the front's map file.
fn entry(slots: &str, cluster: &Cluster) -> anyhow::Result<String> {
    let via = cluster.head().context("a shard needs a device")?;
    let mut text = format!("[[shard]]\nslots = \"{slots}\"\nvia = \"{via}\"\n");
    if let Some(keys) = cluster.keys() {
        text += &format!("key = {:?}\n", keys.front.display().to_string());
    }
    Ok(text)
}

/// Returns the slots of shard number `shard` if there are `count` shards.
#[must_use]
pub fn slots_of(shard: usize, count: usize) -> String {
    let (first, next) = (shard * SLOTS / count, (shard + 1) * SLOTS / count);
    format!("{first}-{}", next - 1)
}

impl Shards {
    /// Starts `count` shards, and then the front.
    ///
    /// # Errors
    /// Fails if a process cannot be started. The error names the first such process, with the end of its output.
    pub fn start(
        binaries: &Binaries,
        folder: &Path,
        name: &str,
        count: usize,
        topology: &Topology,
    ) -> anyhow::Result<Shards> {
        Shards::start_each(binaries, folder, name, &vec![topology.clone(); count], "")
    }

    /// Starts one shard for each topology, and then the front, whose arguments are those of the first topology. `head`
    /// is the beginning of the front's map file.
    ///
    /// # Errors
    /// Fails if a process cannot be started, as [`Shards::start`] does.
    pub fn start_each(
        binaries: &Binaries,
        folder: &Path,
        name: &str,
        topologies: &[Topology],
        head: &str,
    ) -> anyhow::Result<Shards> {
        let (mut clusters, mut text) = (Vec::new(), head.to_owned());
        for (shard, topology) in topologies.iter().enumerate() {
            let own = Topology {
                front: false,
                ..topology.clone()
            };
            let cluster = Cluster::start(binaries, folder, &format!("{name}-{}", shard + 1), own)?;
            text += &entry(&slots_of(shard, topologies.len()), &cluster)?;
            clusters.push(cluster);
        }
        let home: PathBuf = clusters.first().context("no shard")?.folder().to_owned();
        let file = home.join("shards.toml");
        std::fs::write(&file, text).context("cannot write the file of shards")?;
        let front_args = &topologies[0].front_args;
        let port = Port::claim().context("no port for the front")?;
        let endpoint = SocketAddr::from((Ipv4Addr::LOCALHOST, port.number()));
        let mut args = words(&["redis", "--listen", &endpoint.to_string(), "--shards"]);
        args.push(file.clone().into());
        args.extend(words(who_may_connect(front_args)));
        args.extend(words(front_args));
        let front = Process::start(own_spec(binaries, "router", args), &home, READY_MAX)?;
        Ok(Shards {
            front,
            endpoint,
            clusters,
            file,
            _port: port,
        })
    }

    /// Writes a map file that begins with `head` and gives each shard these slots. Then makes the front read the file.
    ///
    /// # Errors
    /// Fails if the file cannot be written, or if the front has ended.
    pub fn change_map(&mut self, head: &str, slots: &[&str]) -> anyhow::Result<()> {
        let mut text = head.to_owned();
        for (slots, cluster) in slots.iter().zip(&self.clusters) {
            text += &entry(slots, cluster)?;
        }
        std::fs::write(&self.file, text).context("cannot write the file of shards")?;
        self.front.signal(Signal::HUP)
    }

    /// Returns the address for clients.
    #[must_use]
    pub fn endpoint(&self) -> SocketAddr {
        self.endpoint
    }

    /// Returns the path of the map file.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns the process of the front.
    pub fn front(&mut self) -> &mut Process {
        &mut self.front
    }

    /// Returns the shard of a slot.
    #[must_use]
    pub fn shard_of(&self, slot: usize) -> usize {
        let count = self.clusters.len();
        let begins = |shard: &usize| shard * SLOTS / count <= slot;
        (0..count).rev().find(begins).unwrap_or(0)
    }

    /// Ends every process with SIGTERM, client side first. Returns the names of the processes that did not end with
    /// exit code 0.
    ///
    /// # Errors
    /// Fails if the kernel refuses the operation.
    pub fn stop(mut self) -> anyhow::Result<Vec<String>> {
        let mut unclean = Vec::new();
        if !self.front.stop()? {
            unclean.push("router".to_owned());
        }
        for cluster in self.clusters {
            unclean.extend(cluster.stop()?);
        }
        Ok(unclean)
    }
}
