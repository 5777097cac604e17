//! The devices and the server of the world: production code on simulated media and a simulated store.
//!
//! Fault model: a device dies between two turns, or in the middle of any persist (even during its recovery); the server
//! dies between two steps of its store. Their memory is lost, and packets that were not sent yet are never sent.

use crate::config::WorldConfig;
use crate::media::{Handle, SimMedia};
use crate::rollover::KeyFile;
use crate::store::SimStore;
use crate::without::{Place, Without};
use crate::world::address;
use pmnet_device::{Buffers, DeviceConfig, DeviceError, DeviceNode, Taken};
use pmnet_log::{Expected, Identity, Log, LogError, Parameters, Payloads, Scan, format};
use pmnet_proto::keys::DeviceKeys;
use pmnet_proto::server::{Server, ServerConfig};
use pmnet_proto::{Outbox, Peer, Random, Time};
use pmnet_server::ServerNode;
use pmnet_wire::ClusterKey;

/// Bytes of a packet buffer.
const BUFFER_BYTES: u32 = 2048;
/// Smallest frame space of a log of packet buffers, in bytes.
const BUFFERS_BYTES_MIN: u64 = 16 * 2048;
/// Offset at which a network interface stores a packet in its buffer.
const PACKET_OFFSET: usize = 320;

/// Returns the id of the device on this node.
pub(crate) fn device_id(node: usize) -> u32 {
    u32::try_from(node + 1).expect("few nodes")
}

/// The cluster key of worlds with keys.
pub(crate) const CLUSTER: ClusterKey = ClusterKey::new(*b"of all the world");

/// The next cluster key, in worlds in which the key changes.
pub(crate) const NEXT: ClusterKey = ClusterKey::new(*b"of another world");

/// Returns the id of the hop at this address; 0: the server.
fn hop_id(peer: Peer, world: &WorldConfig) -> u32 {
    let device = (0..world.devices).find(|&node| address(node) == peer);
    device.map_or(0, device_id)
}

/// Delivers a packet to a device. If the log consists of packet buffers, the packet arrives in one of them.
pub(crate) fn arrive(
    running: &mut DeviceNode<SimMedia>,
    now: Time,
    from: Peer,
    packet: &[u8],
) -> Result<(), DeviceError> {
    const HOPS: u8 = 64;
    let bytes = usize::try_from(BUFFER_BYTES).expect("small");
    let fits = running.has_packet_buffers() && packet.len() <= bytes - PACKET_OFFSET;
    let Some(number) = fits.then(|| running.buffers().lend()).flatten() else {
        return running.receive(now, from, packet);
    };
    let start = usize::try_from(number).expect("small") * bytes + PACKET_OFFSET;
    running.buffers().deposit(start, packet);
    let place = start..start + packet.len();
    if running.receive_in_place(now, from, HOPS, &place)? != Taken::Kept {
        running.buffers().give_back(number);
    }
    Ok(())
}

/// The contents of a device's medium.
#[derive(Debug)]
pub(crate) enum Image {
    /// The device's own log.
    Own,
    /// Another image. The device's own image is kept in `right`.
    Wrong { right: Handle },
    /// The device's own log with damage at its end. `end`: last order of the log before the damage.
    Damaged { end: u64 },
}

/// A device, running or not, and its medium.
pub(crate) struct DeviceHost {
    node: usize,
    pub(crate) media: Handle,
    pub(crate) running: Option<DeviceNode<SimMedia>>,
    pub(crate) life: u32,
    /// Whether the device does not belong to the operator's chain: the operator has given it up, or it is a spare. A
    /// device that was given up may still run.
    pub(crate) lost: bool,
    /// Whether the computer is broken, and its operator does not know this yet. The device does not start then.
    pub(crate) gone: bool,
    /// Whether the operator starts the device with `--join`.
    pub(crate) joins: bool,
    /// Whether the device is to join, and has not started yet. Its medium may have been damaged when the device was
    /// lost.
    pub(crate) unproven: bool,
    /// Whether the device has served since it was started to join.
    pub(crate) served: bool,
    /// The next hop with which the device was started.
    pub(crate) next: Option<Peer>,
    /// The contents of the device's medium.
    pub(crate) image: Image,
    /// The bytes of the medium before the device's present incarnation.
    pub(crate) earlier: Option<Vec<u8>>,
    /// Whether the operator starts the device with `--declare-data-loss`.
    pub(crate) declares: bool,
    /// The device's key file, in worlds with keys.
    pub(crate) file: KeyFile,
    /// The key file as the device's process has last read it.
    pub(crate) used: KeyFile,
}

/// Why a device did not start.
#[derive(Debug)]
pub(crate) enum StartError {
    /// The computer died during the start.
    Died,
    /// The device refuses its medium.
    Refused(String),
}

impl DeviceHost {
    pub(crate) fn new(node: usize, config: &WorldConfig, spare: bool) -> DeviceHost {
        let device = u128::try_from(node + 1).expect("few nodes");
        DeviceHost {
            node,
            media: formatted(node, config, device << 64 | 7),
            running: None,
            life: 0,
            lost: spare,
            gone: false,
            joins: false,
            unproven: false,
            served: false,
            next: None,
            image: Image::Own,
            earlier: None,
            declares: false,
            file: KeyFile::Old,
            used: KeyFile::Old,
        }
    }

    /// A new, empty medium for this device.
    pub(crate) fn blank(&self, config: &WorldConfig, log_uuid: u128) -> Handle {
        formatted(self.node, config, log_uuid)
    }

    /// The medium is lost. The device gets a new medium, and its operator will declare the loss.
    pub(crate) fn reformat(&mut self, config: &WorldConfig, log_uuid: u128) {
        self.media = self.blank(config, log_uuid);
        self.earlier = None;
        self.image = Image::Own;
        self.declares = true;
    }

    /// Starts the process: scan, decide, repair, serve.
    pub(crate) fn start(
        &mut self,
        next: Peer,
        flags: u32,
        word_epoch: Option<u32>,
        world: &WorldConfig,
        seed: u64,
        now: Time,
    ) -> Result<(), StartError> {
        let failed = |media: &Handle, text: String| match media.is_blown() {
            true => StartError::Died,
            false => StartError::Refused(text),
        };
        let id = device_id(self.node);
        let before = self.media.durable();
        let log = self
            .log_of(&self.media, world)
            .map_err(|error| failed(&self.media, error.to_string()))?;
        self.earlier = Some(before);
        let mut config = DeviceConfig::new(id, 0, next);
        config.session_idle = world.session_idle;
        config.sessions_max = world.sessions_max;
        config.session_quiet = world.session_quiet;
        // There are only two buckets, so several keys share a bucket.
        config.read_buckets = 2;
        config.session_entries_max = world.session_entries_max;
        config.flags = flags;
        config.word_epoch = word_epoch;
        config.leased = world.lease > 0;
        config.size_max = world.paths.of(self.node, world.devices);
        config.rules = Without::rules(world.without);
        config.keys = world.keyed.then(|| DeviceKeys {
            cluster: self.file.keys(world),
            next: hop_id(next, world),
        });
        self.used = self.file;
        self.life += 1;
        self.next = Some(next);
        self.running = Some(DeviceNode::new(config, log, Random::new(seed), now));
        Ok(())
    }

    /// Scans and repairs the log on this medium.
    fn log_of(&self, media: &Handle, world: &WorldConfig) -> Result<Log<SimMedia>, LogError> {
        let expected = Expected {
            device: device_id(self.node),
            shard: 0,
            parameters: Some(parameters(world)),
        };
        let payloads = match Without::breaks(world.without, Place::Checksum) {
            true => Payloads::Trusted,
            false => Payloads::Checked,
        };
        let scan = Scan::open_with(media.open(), Some(expected), payloads)?;
        let decision = scan.decide();
        scan.repair(decision)
    }

    /// Returns the last order of the log on the device's medium. The device must not run.
    pub(crate) fn end_of_log(&self, world: &WorldConfig) -> Option<u64> {
        let copy = self.media.copy_of(self.media.durable());
        self.log_of(&copy, world).ok().map(|log| log.durable())
    }
}

fn parameters(config: &WorldConfig) -> Parameters {
    let (entries, bytes) = (config.log_entries, config.log_frame_bytes);
    match config.packet_buffers {
        true => Parameters::buffers(entries, bytes.max(BUFFERS_BYTES_MIN), BUFFER_BYTES),
        false => Parameters::ring(entries, bytes),
    }
}

fn formatted(node: usize, config: &WorldConfig, log_uuid: u128) -> Handle {
    let parameters = parameters(config);
    let media = Handle::blank(config.media, parameters.image_bytes());
    media.set_lying(Without::breaks(config.without, Place::Persist));
    let identity = Identity {
        log_uuid,
        device: device_id(node),
        shard: 0,
    };
    format(media.open(), &identity, &parameters).expect("a blank medium can be formatted");
    media
}

/// The server, running or not, and its store.
pub(crate) struct ServerHost {
    pub(crate) store: SimStore,
    pub(crate) running: Option<ServerNode<SimStore>>,
    pub(crate) out: Outbox,
    /// Whether the store is at work. The packets that report its result are not sent yet.
    pub(crate) busy: bool,
    pub(crate) life: u32,
    /// The server is not started before this time.
    pub(crate) down_until: Time,
    /// Whether the server has loaded its records and serves.
    pub(crate) is_loaded: bool,
    /// The server's key file, in worlds with keys.
    pub(crate) file: KeyFile,
    /// The key file as the server's process has last read it.
    pub(crate) used: KeyFile,
}

impl ServerHost {
    pub(crate) fn new(store: SimStore) -> ServerHost {
        let out = Outbox::new();
        ServerHost {
            store,
            running: None,
            out,
            busy: false,
            life: 0,
            down_until: Time(0),
            is_loaded: false,
            file: KeyFile::Old,
            used: KeyFile::Old,
        }
    }

    /// Starts the process, if it does not run.
    pub(crate) fn start(&mut self, world: &WorldConfig, seed: u64, now: Time) {
        if self.running.is_none() && now >= self.down_until {
            self.life += 1;
            let mut config = ServerConfig::new(0);
            config.size_max = world.paths.of(world.devices, world.devices);
            config.rules = Without::rules(world.without);
            config.keys = world.keyed.then(|| self.file.keys(world));
            self.used = self.file;
            let machine = Server::new(config, Random::new(seed));
            self.running = Some(ServerNode::new(machine, self.store.handle()));
        }
    }

    /// The process dies.
    pub(crate) fn die(&mut self) -> Option<ServerNode<SimStore>> {
        self.busy = false;
        self.is_loaded = false;
        self.out.clear();
        self.running.take()
    }
}
