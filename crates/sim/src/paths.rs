//! How long the packets are that the paths carry (`docs/spec/protocol.md` §7).
//!
//! Fault model: in some worlds the paths between the machines, and those of single clients, carry less than a packet may have. That is so
//! from the beginning, or all machines' paths shrink at one moment while clients are at work; each process notices it within a second,
//! as its system says it. A packet that is longer than its path arrives as IP fragments. In a world where nothing shrinks, such a packet is
//! a violation; in the others it is one when the world has come to rest, but for messages of sessions, which were cut before: clients make no new ones then.

use crate::config::WorldConfig;
use crate::world::{Event, Phase, World, address, shown};
use pmnet_proto::time::{MILLISECOND, Nanos, SECOND};
use pmnet_proto::{Peer, Random};
use pmnet_wire::{FragmentSize, Packet};

/// Sizes of which a world draws.
const SIZES: [u64; 4] = [1144, 1160, 1280, 1328];
/// Clients in such a world have one of so many sizes of their own, by their numbers.
const OF_CLIENTS: usize = 4;
/// Largest payloads and replies of such a world, in bytes, at least.
const BYTES: usize = 4_000;
/// A process notices within this time that its paths have shrunk.
const NOTICED_MAX: Nanos = SECOND;
/// Paths shrink within this time after the beginning.
const SHRINK_MAX: Nanos = 100 * MILLISECOND;

/// Largest fragments that the paths of a world carry.
#[derive(Clone, Copy, Debug, Default)]
pub struct Paths {
    /// Those between devices and server.
    machines: FragmentSize,
    /// Those of the clients.
    clients: [FragmentSize; OF_CLIENTS],
    /// The same of the machines, from some moment on.
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

    /// Of this node among so many devices.
    pub(crate) fn of(&self, node: usize, devices: usize) -> FragmentSize {
        if node <= devices {
            self.machines
        } else {
            self.clients[node % OF_CLIENTS]
        }
    }
}

impl WorldConfig {
    /// The same world with paths that carry less.
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

    /// The same, and nothing shrinks.
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
    /// Plans the moment at which paths shrink, if they do.
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

    /// Largest fragments of a node's paths, once it knows that these have shrunk.
    pub(crate) fn path_of(&self, node: usize) -> Option<FragmentSize> {
        let at = self.noticed.get(node)?;
        let own = self.config.paths.of(node, self.config.devices);
        (self.now >= *at).then_some(own)
    }

    /// A packet that is longer than its path carries: was that to be expected?
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
            // A damaged packet, which a device takes for foreign traffic and passes on.
            return;
        };
        self.happened("IP fragments");
        if self.config.keyed {
            // An adversary can have answers sent to another address, on paths for which they were not cut.
            return;
        }
        let at_rest = matches!(self.phase, Phase::Idle { .. } | Phase::Closing { .. });
        // A call whose caller gave up is sent on, and its messages keep the fragments into which they were cut.
        let may_be_cut_before = packet.header.session != 0;
        if self.noticed.is_empty() || at_rest && !may_be_cut_before {
            self.violation(format!(
                "a packet of {} bytes from {from} to {to}, where the path carries {carried}: {}",
                bytes.len(),
                shown(bytes)
            ));
        }
    }

    /// In the end all know that paths have shrunk.
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
