//! Helpers that the end-to-end tests share: the binaries, a folder, and clusters that need a Redis.

#[path = "../shared/skip.rs"]
mod skip;

use std::path::Path;
use std::sync::LazyLock;

use pmnet_lab::harness::{Binaries, Cluster, StoreKind, Topology, find_program};

pub use skip::skip;

/// Returns the binary under test, and the binary that starts it.
pub fn binaries() -> &'static Binaries {
    static BINARIES: LazyLock<Binaries> = LazyLock::new(|| {
        Binaries::beside(Path::new(env!("CARGO_BIN_EXE_pmnet-lab"))).expect("the product is built")
    });
    &BINARIES
}

/// Returns the path of the binary under test.
pub fn pmnet() -> &'static Path {
    &binaries().pmnet
}

/// Returns a folder on a real disk.
pub fn folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// Starts a cluster. Returns `None` if the cluster needs a Redis and no Redis is installed.
pub fn start(name: &str, topology: Topology) -> Option<Cluster> {
    if topology.store == StoreKind::Redis && find_program("redis-server").is_none() {
        skip("redis-server is not installed");
        return None;
    }
    Some(Cluster::start(binaries(), folder(), name, topology).expect("the cluster starts"))
}
