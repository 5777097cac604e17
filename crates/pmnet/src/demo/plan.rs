//! What the demo measures, and for how long.

use std::time::Duration;

use crate::harness::{Medium, StoreKind, Topology, find_program};
use crate::load::Op;

/// One set-up that is measured.
#[derive(Clone, Debug)]
pub struct Stack {
    /// Name with medium and R.
    pub name: &'static str,
    /// What it consists of.
    pub topology: Topology,
}

/// The whole plan.
#[derive(Clone, Debug)]
pub struct Plan {
    pub store: StoreKind,
    pub stacks: Vec<Stack>,
    pub operations: Vec<Op>,
    pub clients: Vec<usize>,
    /// Rounds over all stacks; figures are medians over them.
    pub rounds: usize,
    pub duration: Duration,
    pub warmup: Duration,
    pub notes: Vec<String>,
}

impl Plan {
    pub fn new(no_redis: bool, quick: bool) -> Plan {
        let mut notes = Vec::new();
        let store = if no_redis || find_program("redis-server").is_none() {
            notes.push(
                "no redis-server: the embedded key-value store takes its place, so there is no \
                 Redis to compare with and the check reads through the front (make setup \
                 installs redis-server)"
                    .to_owned(),
            );
            StoreKind::Kv
        } else {
            StoreKind::Redis
        };
        if find_program("redis-benchmark").is_none() {
            notes.push(
                "no redis-benchmark: figures are those of `pmnet load` alone (make setup \
                 installs redis-tools)"
                    .to_owned(),
            );
        }
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        notes.push(format!(
            "all processes and the load share {cores} core{}; CPU time per operation is given \
             for each process",
            if cores == 1 { "" } else { "s" }
        ));
        let mut stacks = Vec::new();
        if store == StoreKind::Redis {
            stacks.push(Stack {
                name: "Redis, appendfsync always (direct)",
                topology: Topology::direct(store),
            });
        }
        for (name, devices, medium) in [
            ("pmnet, R = 1, file", 1, Medium::File),
            ("pmnet, R = 1, DRAM", 1, Medium::Dram),
            ("pmnet, R = 3, DRAM", 3, Medium::Dram),
        ] {
            stacks.push(Stack {
                name,
                topology: Topology::new(store, devices, medium),
            });
        }
        Plan {
            store,
            stacks,
            operations: vec![Op::Set, Op::Get],
            clients: vec![1, 16],
            rounds: if quick { 1 } else { 3 },
            duration: Duration::from_millis(if quick { 200 } else { 500 }),
            warmup: Duration::from_millis(100),
            notes,
        }
    }

    /// Number of progress steps of the measurements.
    pub fn steps(&self) -> u64 {
        let cells = self.stacks.len() * self.operations.len() * self.clients.len();
        let bench = usize::from(find_program("redis-benchmark").is_some());
        u64::try_from(cells * (self.rounds + bench)).unwrap_or(u64::MAX)
    }
}
