//! The measurements of the demo, and their durations.

use std::time::Duration;

use crate::bench::micro;
use crate::bench::micro::System;
use crate::harness::{Medium, StoreKind, Topology, find_program};
use crate::load::Op;
use crate::setup::{Place, ValueBytes};

/// Payload of a SET, in bytes.
pub const VALUE_BYTES: usize = 100;
/// Number of different keys.
pub const KEYS: u64 = 10_000;
/// Name of the set-up whose server is the upper bound on this machine.
const LIMIT: &str = "resp-limit (no data)";
/// A note about the set-up `resp-limit`.
const LIMIT_NOTE: &str = "resp-limit: a process that answers SET and GET at once and keeps nothing: what is left of a \
     server of Redis's protocol on this machine, with this client, that does nothing else";
/// Redis on the loopback interface. pmnet on the loopback interface is compared with this set-up.
const DIRECT: &str = "Redis, appendfsync always (direct)";
/// A note about the set-ups over links.
const LINKS: &str = "NIC, switch: the log is memory of the kernel, and an XDP program acknowledges; client and \
     server are network namespaces joined by a veth pair, with front and load at the client's end. They are compared \
     with a Redis at the other end of such a link (no switch in between, which is in its favour). CPU time of the program \
     in the kernel is part of whoever's packet it was";
/// Redis over a link. pmnet over links is compared with this set-up.
const DIRECT_LINK: &str = "Redis, always (direct, over a link)";

/// One set-up that is measured.
#[derive(Clone, Debug)]
pub struct Stack {
    /// The name, with medium and R.
    pub name: &'static str,
    /// The machine of the clients, and the parts of the set-up.
    pub place: Place,
    /// The name of the set-up that is the baseline; `None`: the set-up has no baseline.
    pub base: Option<&'static str>,
}

impl Stack {
    /// Returns whether the clients of the set-up are at the other end of a link.
    pub const fn is_linked(&self) -> bool {
        self.place.is_linked()
    }

    /// Returns whether this operation is measured with this set-up. Redis answers reads in every
    /// set-up, so reads are measured only on the loopback interface.
    pub fn measures(&self, operation: Op) -> bool {
        !self.is_linked() || operation == Op::Set
    }
}

/// The set-ups, operations and durations of a demo.
#[derive(Clone, Debug)]
pub struct Plan {
    pub store: StoreKind,
    pub stacks: Vec<Stack>,
    pub operations: Vec<Op>,
    pub clients: Vec<usize>,
    /// Number of rounds over all stacks. The figures are medians over the rounds.
    pub rounds: usize,
    pub duration: Duration,
    pub warmup: Duration,
    pub notes: Vec<String>,
}

/// Size of a packet store that has space for all data of a run.
pub const STORE_SIZE: &str = "1G";

impl Plan {
    pub fn new(no_redis: bool, quick: bool) -> Plan {
        let mut notes = Vec::new();
        let store = if no_redis || find_program("redis-server").is_none() {
            notes.push(
                "no redis-server: the packet store takes its place, so there is no \
                 Redis to compare with and the check reads through the front (make setup \
                 installs redis-server)"
                    .to_owned(),
            );
            StoreKind::Packet
        } else {
            StoreKind::Redis
        };
        if find_program("redis-benchmark").is_none() {
            notes.push(
                "no redis-benchmark: figures are those of `pmnet-lab load` alone (make setup \
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
        let has_redis = store == StoreKind::Redis;
        let mut stacks = Vec::new();
        let mut add = |name, place, base: Option<&'static str>| {
            stacks.push(Stack {
                name,
                place,
                base: base.filter(|_| has_redis),
            });
        };
        add(LIMIT, Place::Limit(ValueBytes(VALUE_BYTES)), None);
        notes.push(LIMIT_NOTE.to_owned());
        if has_redis {
            add(DIRECT, Place::Loopback(Topology::direct(store)), None);
        }
        for (name, devices, medium) in [
            ("pmnet, R = 1, file", 1, Medium::File),
            ("pmnet, R = 1, DRAM", 1, Medium::Dram),
            ("pmnet, R = 3, DRAM", 3, Medium::Dram),
        ] {
            let mut topology = Topology::new(store, devices, medium);
            topology.store_size = Some(STORE_SIZE);
            add(name, Place::Loopback(topology), Some(DIRECT));
        }
        if has_redis {
            let place = Place::Links(System::ClientServerNic, store, &[]);
            add(DIRECT_LINK, place, None);
        }
        for (name, system) in [
            ("pmnet, R = 1, NIC, kernel (DRAM)", System::Nic),
            ("pmnet, R = 1, switch, kernel (DRAM)", System::Switch),
        ] {
            add(name, Place::Links(system, store, &[]), Some(DIRECT_LINK));
        }
        let mut plan = Plan {
            store,
            stacks,
            operations: vec![Op::Set, Op::Get],
            clients: vec![1, 16],
            rounds: if quick { 1 } else { 3 },
            duration: Duration::from_millis(if quick { 200 } else { 400 }),
            warmup: Duration::from_millis(100),
            notes,
        };
        if let Some(reason) = micro::refusal() {
            plan.leave_out_links(&reason);
        } else {
            plan.notes.push(LINKS.to_owned());
        }
        plan
    }

    /// Removes the set-ups over links. Returns the note about the removal, with the reason.
    pub fn leave_out_links(&mut self, reason: &str) -> &str {
        self.stacks.retain(|stack| !stack.is_linked());
        self.notes.retain(|note| note != LINKS);
        let reason = reason.lines().next().unwrap_or_default();
        self.notes.push(format!(
            "the device in the kernel (NIC, switch) was left out: {}",
            reason.trim_end_matches([',', ':'])
        ));
        self.notes.last().map_or("", String::as_str)
    }

    /// Returns the set-up with this name.
    pub fn stack(&self, name: &str) -> Option<&Stack> {
        self.stacks.iter().find(|stack| stack.name == name)
    }

    /// Returns the approximate duration of the measurements: the runs, the starts, the initial
    /// writes and the waits between runs.
    pub fn lasts(&self) -> Duration {
        let around = Duration::from_millis(150);
        let runs = u32::try_from(self.steps()).unwrap_or(u32::MAX);
        (self.warmup + self.duration + around).saturating_mul(runs)
    }

    /// Returns the number of progress steps of the measurements.
    pub fn steps(&self) -> u64 {
        let measured = |operation: &Op| {
            let all = self.stacks.iter();
            all.filter(|stack| stack.measures(*operation)).count()
        };
        let cells = self.operations.iter().map(measured).sum::<usize>() * self.clients.len();
        let bench = usize::from(find_program("redis-benchmark").is_some());
        u64::try_from(cells * (self.rounds + bench)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_is_compared_with_redis_over_the_same_path() {
        let mut plan = Plan::new(false, true);
        if plan.store != StoreKind::Redis {
            return;
        }
        for stack in &plan.stacks {
            if let Some(base) = stack.base {
                let base = plan.stack(base).expect("a baseline is measured too");
                assert_eq!(base.is_linked(), stack.is_linked());
                assert_eq!(base.base, None);
            }
        }
        let before = plan.notes.len();
        let note = plan.leave_out_links("no way\nand many details");
        assert!(note.ends_with("left out: no way"), "{note}");
        assert!(plan.stacks.iter().all(|stack| !stack.is_linked()));
        assert_eq!(plan.stacks.len(), 5);
        assert!(plan.notes.len() <= before + 1 && !plan.notes.iter().any(|note| note == LINKS));
        // 5 set-ups, 2 operations, 2 numbers of clients, one round.
        assert!([20, 40].contains(&plan.steps()));
    }
}
