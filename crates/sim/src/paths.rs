//! The packet lengths that the paths carry (`docs/spec/protocol.md` §7).
//!
//! Fault model: in some worlds the paths between devices and server, and the paths of single clients, carry only
//! packets that are shorter than the largest packet of pmnet. They do so from the beginning, or all paths between
//! devices and server begin to do so at one moment while clients are at work. Then each process notices the change
//! within a second, by a report of its system. A packet that is longer than its path carries arrives as IP fragments.
//! In a world in which no path changes, such a packet is a violation. In the other worlds it is a violation only in the
//! idle and closing phases. Messages of sessions are excepted even then, because they were cut into fragments before
//! the change.

use crate::config::WorldConfig;
use crate::world::{Event, Phase, World, address, shown};
use pmnet_proto::time::{MILLISECOND, Nanos, SECOND};
use pmnet_proto::{Peer, Random};
use pmnet_wire::{FragmentSize, Packet};

/// Fragment sizes from which a world draws.
const SIZES: [u64; 4] = [1144, 1160, 1280, 1328];
/// Number of fragment sizes of clients. A client's number determines which of them it has.
const OF_CLIENTS: usize = 4;
/// Minimum for the largest payload and the largest reply of such a world, in bytes.
const BYTES: usize = 4_000;
/// Longest time until a process notices that its paths carry less.
const NOTICED_MAX: Nanos = SECOND;
/// Latest time at which paths shrink, counted from the beginning.
const SHRINK_MAX: Nanos = 100 * MILLISECOND;

/// The sizes of the largest fragments that the paths of a world carry.
#[derive(Clone, Copy, Debug, Default)]
pub struct Paths {
    /// The fragment size between devices and server.
    machines: FragmentSize,
    /// The fragment sizes of the clients.
    clients: [FragmentSize; OF_CLIENTS],
    /// The later fragment size between devices and server; `None`: it does not change.
    shrinks_to: Option<FragmentSize>,
}

impl Paths {
    fn drawn(random: &mut Random) -> Paths {
        let mut size = || {
            let at = random.next_u64() % u64::try_from(SIZES.len()).expect("few");
            FragmentSize::from_wire(SIZES[usize::try_from(at).expect("few")])
        };
        Paths {
            machines: size(),
            clients: [FragmentSize::MAX, size(), FragmentSize::MAX, size()],
            shrinks_to: None,
        }
    }

    /// Returns the fragment size of this node's paths in a world with `devices` devices.
    pub(crate) fn of(&self, node: usize, devices: usize) -> FragmentSize {
        if node <= devices {
            self.machines
        } else {
            self.clients[node % OF_CLIENTS]
        }
    }
}

impl WorldConfig {
    /// Returns this world with paths that carry less.
    #[must_use]
    pub fn with_paths(mut self, random: &mut Random) -> WorldConfig {
        self.paths = Paths::drawn(random);
        if random.next_u64().is_multiple_of(2) {
            let machines = std::mem::take(&mut self.paths.machines);
            self.paths.shrinks_to = Some(machines);
        }
        self.payload_max = self.payload_max.max(BYTES);
        self.reply_max = self.reply_max.max(BYTES);
        self
    }

    /// Returns this world with paths that carry less from the beginning and do not shrink.
    #[must_use]
    pub fn with_narrow_paths(self) -> WorldConfig {
        let mut random = Random::new(7);
        let mut narrow = self.with_paths(&mut random);
        narrow.paths.machines = FragmentSize::MIN;
        narrow.paths.shrinks_to = None;
        narrow
    }
}

impl World {
    /// Plans the moment at which the paths begin to carry less, if they do.
    pub(crate) fn plan_paths(&mut self) {
        if self.config.paths.shrinks_to.is_some() {
            let after = self.below(SHRINK_MAX);
            self.schedule(after, Event::PathsShrink);
        }
    }

    pub(crate) fn paths_shrink(&mut self) {
        let Some(size) = self.config.paths.shrinks_to else {
            return;
        };
        self.happened("paths that shrank");
        self.tell(|| format!("the machines' paths carry {size} bytes from now on"));
        self.config.paths.machines = size;
        self.noticed = vec![self.now; self.clocks.len()];
        for node in 0..self.clocks.len() {
            let after = self.below(NOTICED_MAX);
            self.noticed[node] = self.now + after;
            self.schedule(after, Event::PathNoticed { node });
        }
    }

    /// Returns the size of the largest fragments of a node's paths, once the node has noticed that its paths carry
    /// less.
    pub(crate) fn path_of(&self, node: usize) -> Option<FragmentSize> {
        let at = self.noticed.get(node)?;
        let own = self.config.paths.of(node, self.config.devices);
        (self.now >= *at).then_some(own)
    }

    /// Checks a packet that is longer than its path carries: reports a violation, unless such a packet is allowed.
    pub(crate) fn look_at_length(&mut self, from: Peer, to: Peer, bytes: &[u8]) {
        let devices = self.config.devices;
        let of = |peer| {
            let node = (0..self.clocks.len()).find(|&node| address(node) == peer);
            node.map_or(FragmentSize::MAX, |node| {
                self.config.paths.of(node, devices)
            })
        };
        let carried = of(from).min(of(to)).datagram_bytes();
        if bytes.len() <= carried {
            return;
        }
        let Ok(packet) = Packet::parse(bytes) else {
            // The packet is damaged, so a device passes it on like foreign traffic.
            return;
        };
        self.happened("IP fragments");
        if self.config.keyed {
            // An adversary can redirect answers to another address. The path to it may carry less than the path for
            // which the answers were cut.
            return;
        }
        let at_rest = matches!(self.phase, Phase::Idle { .. } | Phase::Closing { .. });
        // A message is still sent after its caller has given up, in the fragments into which it was cut.
        let may_be_cut_before = packet.header.session != 0;
        if self.noticed.is_empty() || at_rest && !may_be_cut_before {
            self.violation(format!(
                "a packet of {} bytes from {from} to {to}, where the path carries {carried}: {}",
                bytes.len(),
                shown(bytes)
            ));
        }
    }

    /// Checks at the end that all processes use the smaller size.
    pub(crate) fn look_at_sizes(&mut self) {
        if self.noticed.is_empty() {
            return;
        }
        let (head, carried) = (self.head(), self.config.paths.machines);
        let running = self.devices[head].running.as_ref();
        if let Some(size) = running.map(|running| running.machine().fragment_size())
            && size > carried
        {
            self.violation(format!(
                "the head cuts fragments of {size} bytes, and its paths carry {carried}"
            ));
        }
    }
}
