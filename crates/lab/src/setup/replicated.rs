//! A Redis with replicas, on the loopback interface.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::harness::{Binaries, Cluster, Process, StoreKind, Topology, settle};
use crate::resp::Reply;

/// Time within which every replica must have the data of the first Redis.
const JOIN_MAX: Duration = Duration::from_secs(20);
/// Interval at which the start checks the replicas.
const LOOK: Duration = Duration::from_millis(20);

/// A Redis with its replicas.
pub struct Replicated {
    // The replicas are dropped first, because otherwise they would report a lost link.
    replicas: Vec<Cluster>,
    first: Cluster,
}

impl Replicated {
    /// Starts all processes, and waits until every replica has the data of the first Redis.
    pub fn start(
        binaries: &Binaries,
        folder: &Path,
        name: &str,
        count: u8,
        synced: bool,
    ) -> anyhow::Result<Replicated> {
        let redis = |name: &str, arguments: Vec<String>| {
            let mut topology = Topology::direct(StoreKind::Redis);
            topology.redis_args = arguments;
            Cluster::start(binaries, folder, name, topology)
        };
        let mut arguments = words(&["--repl-diskless-sync-delay", "0"]);
        if !synced {
            arguments.extend(words(&["--appendonly", "no"]));
        }
        let mut all = Replicated {
            replicas: Vec::new(),
            first: redis(name, arguments)?,
        };
        let address = all.first.endpoint()?;
        for number in 1..=count {
            let (ip, port) = (address.ip().to_string(), address.port().to_string());
            let arguments = words(&["--appendonly", "no", "--replicaof", &ip, &port]);
            all.replicas
                .push(redis(&format!("{name}-replica{number}"), arguments)?);
        }
        all.wait_joined()?;
        Ok(all)
    }

    fn wait_joined(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + JOIN_MAX;
        for replica in &self.replicas {
            let mut reader = replica.reader()?;
            loop {
                let Reply::Bulk(text) = reader.ask(&["INFO", "replication"])? else {
                    anyhow::bail!("a replica does not say what it does");
                };
                if String::from_utf8_lossy(&text)
                    .lines()
                    .any(|line| line == "master_link_status:up")
                {
                    break;
                }
                anyhow::ensure!(
                    Instant::now() < deadline,
                    "a replica does not follow within {} s",
                    JOIN_MAX.as_secs()
                );
                std::thread::sleep(LOOK);
            }
        }
        Ok(())
    }

    pub fn endpoint(&self) -> anyhow::Result<SocketAddr> {
        self.first.endpoint()
    }

    pub fn processes(&self) -> Vec<(String, &Process)> {
        let first = super::named(self.first.processes());
        let replicas = self.replicas.iter().zip(1..).flat_map(|(replica, number)| {
            replica
                .processes()
                .map(move |(_, process)| (format!("replica{number}"), process))
        });
        first.chain(replicas).collect()
    }

    pub fn settle(&self) -> anyhow::Result<()> {
        settle(&self.first)
    }

    pub fn stop(self) -> anyhow::Result<Vec<String>> {
        let mut unclean = Vec::new();
        for cluster in self.replicas.into_iter().chain([self.first]) {
            unclean.extend(cluster.stop()?);
        }
        Ok(unclean)
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
