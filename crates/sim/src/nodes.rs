//! The devices and the server of the world: production code over simulated media and a simulated
//! store.
//!
//! Fault model: a device dies between two turns, or in the middle of any persist (also of those of
//! its recovery); the server dies between two steps of its store. What they had in memory is gone,
//! and what they had not sent is never sent.

use crate::config::WorldConfig;
use crate::media::{Handle, SimMedia};
use crate::store::SimStore;
use pmnet_device::{DeviceConfig, Pipeline};
use pmnet_log::{Identity, Parameters, Scan, format};
use pmnet_proto::server::{Server, ServerConfig};
use pmnet_proto::{Outbox, Peer, Random, Time};
use pmnet_server::Core;
use pmnet_wire::record::Member;

/// A device, running or not, and its medium.
pub(crate) struct DeviceNode {
    node: usize,
    pub(crate) media: Handle,
    pub(crate) running: Option<Pipeline<SimMedia>>,
    pub(crate) life: u32,
    /// Its operator has given it up; it may still be running, as a zombie.
    pub(crate) lost: bool,
    /// The next hop that it was started with.
    pub(crate) next: Option<Peer>,
}

/// Why a device did not start.
#[derive(Debug)]
pub(crate) enum StartError {
    /// Its machine died on the way.
    Died,
    /// It refuses its medium.
    Refused(String),
}

impl DeviceNode {
    pub(crate) fn new(node: usize, config: &WorldConfig) -> DeviceNode {
        let (entries, frame_bytes) = (config.log_entries, config.log_frame_bytes);
        let parameters = Parameters {
            entries,
            frame_bytes,
        };
        let media = Handle::blank(config.media, parameters.image_bytes());
        let device = u32::try_from(node + 1).expect("few nodes");
        let identity = Identity {
            log_uuid: u128::from(device) << 64 | 7,
            device,
            shard: 0,
        };
        format(media.open(), &identity, &parameters).expect("a blank medium can be formatted");
        DeviceNode {
            node,
            media,
            running: None,
            life: 0,
            lost: false,
            next: None,
        }
    }

    /// Starts the process: scan, decide, repair, serve.
    pub(crate) fn start(
        &mut self,
        next: Peer,
        shrink: bool,
        world: &WorldConfig,
        seed: u64,
        now: Time,
    ) -> Result<(), StartError> {
        let failed = |media: &Handle, text: String| match media.is_blown() {
            true => StartError::Died,
            false => StartError::Refused(text),
        };
        let scan = Scan::open(self.media.open(), None)
            .map_err(|error| failed(&self.media, error.to_string()))?;
        let decision = scan.decide();
        let log = scan
            .repair(decision)
            .map_err(|error| failed(&self.media, error.to_string()))?;
        let id = u32::try_from(self.node + 1).expect("few nodes");
        let mut config = DeviceConfig::new(id, 0, next);
        config.session_idle = world.session_idle;
        config.session_entries_max = world.session_entries_max;
        if shrink {
            config.flags = Member::SHRINK;
        }
        self.life += 1;
        self.next = Some(next);
        self.running = Some(Pipeline::new(config, log, Random::new(seed), now));
        Ok(())
    }
}

/// The server, running or not, and its store.
pub(crate) struct ServerNode {
    pub(crate) store: SimStore,
    pub(crate) core: Option<Core<SimStore>>,
    pub(crate) out: Outbox,
    /// The store is at work: what was said of it has not left yet.
    pub(crate) busy: bool,
    pub(crate) life: u32,
    /// Nobody starts it before this moment.
    pub(crate) down_until: Time,
}

impl ServerNode {
    pub(crate) fn new(store: SimStore) -> ServerNode {
        let out = Outbox::new();
        ServerNode {
            store,
            core: None,
            out,
            busy: false,
            life: 0,
            down_until: Time(0),
        }
    }

    /// Starts the process, if it does not run.
    pub(crate) fn start(&mut self, seed: u64, now: Time) {
        if self.core.is_none() && now >= self.down_until {
            self.life += 1;
            let machine = Server::new(ServerConfig::new(0), Random::new(seed));
            self.core = Some(Core::new(machine, self.store.clone()));
        }
    }

    /// The process dies.
    pub(crate) fn die(&mut self) -> Option<Core<SimStore>> {
        self.busy = false;
        self.out.clear();
        self.core.take()
    }
}
