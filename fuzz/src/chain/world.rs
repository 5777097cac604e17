//! The nodes, the network between them, and the faults of both.

use pmnet_device::{DeviceConfig, DeviceNode};
use pmnet_log::Parameters;
use pmnet_proto::client::{Client, ClientConfig, SessionHandle};
use pmnet_proto::server::{Server, ServerConfig};
use pmnet_proto::time::{MILLISECOND, SECOND};
use pmnet_proto::{Outbox, Peer, Random, Time};
use pmnet_server::ServerNode;

use super::calls::Calls;
use crate::input::Input;
use crate::log::{formatted, recover};
use crate::medium::Forgetful;
use crate::peers::{SHARD, client, peer, server};
use crate::store::Lists;

/// Maximum number of packets in the network; further ones are lost.
const NETWORK_MAX: usize = 512;
/// Maximum number of steps of the store in one turn of the server.
const WORKS: usize = 64;
/// Number of turns of 5 ms in which all calls must have ended and all logs must be empty after the
/// faults.
const HEAL_TURNS: usize = 4000;

struct Packet {
    from: Peer,
    to: Peer,
    bytes: Vec<u8>,
}

/// The world of one input.
pub(super) struct World {
    pub(super) client: Client,
    client_out: Outbox,
    devices: Vec<Option<DeviceNode<Forgetful>>>,
    configs: Vec<DeviceConfig>,
    core: Option<ServerNode<Lists>>,
    core_out: Outbox,
    store: Lists,
    network: Vec<Packet>,
    pub(super) now: Time,
    lives: u64,
    pub(super) sessions: Vec<SessionHandle>,
    pub(super) calls: Calls,
}

impl World {
    pub(super) fn new(input: &mut Input<'_>) -> World {
        let chain = 1 + input.byte() % 3;
        let parameters = Parameters::ring(64, input.pick(&[4096, 16_384]));
        let now = Time(MILLISECOND);
        let config = |number: u8| {
            let next = if number == chain {
                server()
            } else {
                peer(number + 1)
            };
            DeviceConfig {
                server_linger: MILLISECOND,
                ..DeviceConfig::new(u32::from(number), SHARD, next)
            }
        };
        let configs: Vec<DeviceConfig> = (1..=chain).map(config).collect();
        let device = |config: &DeviceConfig| {
            let log = recover(formatted(&parameters));
            Some(DeviceNode::new(
                config.clone(),
                log,
                Random::new(u64::from(config.id)),
                now,
            ))
        };
        let store = Lists::default();
        let mut world = World {
            client: Client::new(
                ClientConfig {
                    shard: SHARD,
                    window_max: 16,
                    queue_max: 32,
                    ..ClientConfig::new(peer(1))
                },
                Random::new(77),
            ),
            client_out: Outbox::new(),
            devices: configs.iter().map(device).collect(),
            configs,
            core: Some(new_core(&store, 1)),
            core_out: Outbox::new(),
            store,
            network: Vec::new(),
            now,
            // Each incarnation draws nonces that differ from all earlier ones.
            lives: 100,
            sessions: Vec::new(),
            calls: Calls::default(),
        };
        // The chain forms first, from its tail; then the faults begin.
        for _ in 0..200 {
            world.turn(5 * MILLISECOND);
            let formed = |pipeline: &DeviceNode<Forgetful>| {
                pipeline.machine().is_serving() && pipeline.machine().copies() == chain
            };
            if world.devices.iter().flatten().all(formed) {
                break;
            }
        }
        let serving = world.devices.iter().flatten();
        assert!(serving.clone().count() == usize::from(chain));
        for pipeline in serving {
            assert!(pipeline.machine().is_serving(), "a chain forms by itself");
            assert_eq!(pipeline.machine().copies(), chain);
        }
        for _ in 0..2 {
            world
                .sessions
                .push(world.client.open(world.now).expect("two sessions"));
        }
        world
    }

    fn post(&mut self, from: Peer, to: Peer, bytes: Vec<u8>) {
        if self.network.len() < NETWORK_MAX {
            self.network.push(Packet { from, to, bytes });
        }
    }

    /// Delivers one random packet of the network.
    pub(super) fn deliver_one(&mut self, input: &mut Input<'_>) {
        if !self.network.is_empty() {
            let at = input.index(self.network.len());
            let packet = self.network.remove(at);
            self.arrive(packet);
            self.end_bursts();
        }
    }

    /// Delivers all packets under way, in order.
    pub(super) fn deliver_all(&mut self) {
        for packet in std::mem::take(&mut self.network) {
            self.arrive(packet);
        }
        self.end_bursts();
    }

    pub(super) fn lose(&mut self, input: &mut Input<'_>) {
        for _ in 0..1 + input.below(32) {
            if !self.network.is_empty() {
                let at = input.index(self.network.len());
                self.network.remove(at);
            }
        }
    }

    pub(super) fn repeat(&mut self, input: &mut Input<'_>) {
        if !self.network.is_empty() {
            let packet = &self.network[input.index(self.network.len())];
            let (from, to, bytes) = (packet.from, packet.to, packet.bytes.clone());
            self.post(from, to, bytes);
        }
    }

    fn arrive(&mut self, packet: Packet) {
        let Packet { from, to, bytes } = packet;
        let now = self.now;
        if to == client(0) {
            self.client.receive(now, from, &bytes);
        } else if to == server() {
            if let Some(core) = &mut self.core {
                core.receive(now, from, &bytes, &mut self.core_out)
                    .expect("the shard goes on");
            }
        } else {
            let at = (1..=self.devices.len())
                .position(|number| u8::try_from(number).is_ok_and(|number| peer(number) == to));
            let pipeline = at.and_then(|at| self.devices[at].as_mut());
            if let Some(pipeline) = pipeline {
                pipeline
                    .receive(now, from, &bytes)
                    .expect("the device goes on");
            }
        }
    }

    /// Ends the burst of every node.
    fn end_bursts(&mut self) {
        let now = self.now;
        let mut posted: Vec<(Peer, Peer, Vec<u8>)> = Vec::new();
        self.client.flush(now, &mut self.client_out);
        posted.extend(
            self.client_out
                .iter()
                .map(|(to, bytes)| (client(0), to, bytes.to_vec())),
        );
        self.client_out.clear();
        for (pipeline, config) in self.devices.iter_mut().zip(&self.configs) {
            let Some(pipeline) = pipeline else {
                continue;
            };
            pipeline.finish(now).expect("the device goes on");
            let own = peer(u8::try_from(config.id).expect("few devices"));
            posted.extend(
                pipeline
                    .out()
                    .iter()
                    .map(|(to, bytes)| (own, to, bytes.to_vec())),
            );
            pipeline.sent();
            let (last, persisted, committed, applied) = pipeline.machine().cursors();
            assert!(applied <= committed && committed <= last && persisted <= last);
        }
        if let Some(core) = &mut self.core {
            for _ in 0..WORKS {
                if !core
                    .step(now, &mut self.core_out)
                    .expect("the shard goes on")
                {
                    break;
                }
            }
        }
        posted.extend(
            self.core_out
                .iter()
                .map(|(to, bytes)| (server(), to, bytes.to_vec())),
        );
        self.core_out.clear();
        for (from, to, bytes) in posted {
            self.post(from, to, bytes);
        }
        self.calls.take_events(&mut self.client, &mut self.sessions);
        self.calls.check(&self.store.state().effects);
    }

    pub(super) fn pass_time(&mut self, input: &mut Input<'_>) {
        let step = input.pick(&[
            0,
            100_000,
            MILLISECOND,
            6 * MILLISECOND,
            60 * MILLISECOND,
            SECOND,
        ]);
        self.now = self.now + step;
        self.end_bursts();
    }

    pub(super) fn restart_device(&mut self, input: &mut Input<'_>) {
        let at = input.index(self.devices.len());
        let medium = match self.devices[at].take() {
            Some(pipeline) => pipeline.into_media(),
            None => return,
        };
        let medium = match input.byte() % 3 {
            0 => medium.kill(),
            1 => medium.crash(0, 0),
            _ => medium.crash(input.long(), 4),
        };
        self.lives += 1;
        let pipeline = DeviceNode::new(
            self.configs[at].clone(),
            recover(medium),
            Random::new(self.lives),
            self.now,
        );
        self.devices[at] = Some(pipeline);
        self.end_bursts();
    }

    pub(super) fn restart_server(&mut self, _input: &mut Input<'_>) {
        self.lives += 1;
        self.core_out.clear();
        self.core = Some(new_core(&self.store, self.lives));
        self.end_bursts();
    }

    pub(super) fn fail_store(&mut self, input: &mut Input<'_>) {
        let mut state = self.store.state();
        state.fail_before = input.byte() % 3;
        state.fail_after = input.byte() % 2;
    }

    /// Runs some time without faults.
    fn turn(&mut self, nanos: u64) {
        self.now = self.now + nanos;
        self.end_bursts();
        self.deliver_all();
        self.deliver_all();
    }

    /// Ends the faults, and checks that every call ends, every log becomes empty, and the store has
    /// all effects.
    pub(super) fn heal(&mut self) {
        {
            let mut state = self.store.state();
            (state.fail_before, state.fail_after) = (0, 0);
        }
        for session in self.sessions.clone() {
            self.client.end(session, self.now + 15 * SECOND);
        }
        let quiet = |world: &World| {
            let drained = world.devices.iter().flatten().all(|pipeline| {
                let (last, .., applied) = pipeline.machine().cursors();
                pipeline.machine().is_serving() && last == applied
            });
            drained && world.client.sessions() == 0
        };
        for _ in 0..HEAL_TURNS {
            self.turn(5 * MILLISECOND);
            if quiet(self) {
                break;
            }
        }
        assert!(quiet(self), "everything drains once the faults are over");
        let state = self.store.state();
        self.calls.check(&state.effects);
        self.calls.all_ended(&state.effects);
    }
}

fn new_core(store: &Lists, seed: u64) -> ServerNode<Lists> {
    let config = ServerConfig {
        batch_entries_max: 8,
        queue_max: 64,
        ..ServerConfig::new(SHARD)
    };
    ServerNode::new(Server::new(config, Random::new(seed)), store.clone())
}
