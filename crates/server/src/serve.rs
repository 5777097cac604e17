//! A server on a UDP socket. The server has one thread, which receives while the store is idle. Packets that arrive
//! during a disk flush wait in the socket, and form the next batch.

use crate::feed::{Feed, Reader};
use crate::node::ServerNode;
use crate::store::Store;
use mio::unix::SourceFd;
use pmnet_proto::keys::ClusterKeys;
use pmnet_proto::server::{Server, ServerConfig};
use pmnet_proto::time::{MILLISECOND, Nanos, SECOND};
use pmnet_proto::{Outbox, Peer, Random, Time};
use pmnet_udp::{
    Clock, Latest, Latter, OnRecord, Paths, Pulse, STOP_TOKEN, Socket, SocketCounters, Spin, Stop,
};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

pub use pmnet_udp::ServerWords;

/// Settings of the loop.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// UDP address on which the server listens.
    pub listen: Peer,
    /// Settings of the machine.
    pub server: ServerConfig,
    /// Time in microseconds for which the loop polls after activity, before it blocks.
    pub spin_micros: u64,
    /// Messages to and from the fleet's agent; `None` without a fleet.
    pub words: Option<Arc<ServerWords>>,
    /// The cluster's keys, which may be replaced while the server runs. `server` has the keys at the start. `None`: the
    /// keys never change.
    pub keys: Option<Latest<ClusterKeys>>,
    /// The loop changes the pulse in each turn, so that other threads see that the loop is running.
    pub pulse: Arc<Pulse>,
}

/// The facts about one turn of [`serve`] that its observer gets.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Time in which the store did its work; `None`: there was no work.
    pub step: Option<Nanos>,
    /// The socket's event counters so far.
    pub socket: SocketCounters,
}

impl ServeConfig {
    /// Returns settings for a server at this address, without a fleet. The server sleeps when it has no work.
    #[must_use]
    pub fn new(listen: Peer, server: ServerConfig) -> ServeConfig {
        ServeConfig {
            listen,
            server,
            spin_micros: 0,
            words: None,
            keys: None,
            pulse: Arc::default(),
        }
    }
}

/// The reason why a server ended without having been asked to.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// A socket call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The shard stopped.
    #[error("the shard stopped")]
    Stopped(#[from] pmnet_proto::server::Stop),
}

/// The reason why a loop ended without a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The server was asked to end.
    Asked,
    /// Another server of the shard serves now, or may have served in the meantime ([`ServerWords::end_turn`]).
    TurnIsOver,
}

const SOCKET_TOKEN: mio::Token = mio::Token(0);
/// Token of the waker that the fleet's agent, the store and the keys use.
const WAKE_TOKEN: mio::Token = mio::Token(1);
/// Duration of a store's step above which the step is logged.
const SLOW_STORE: Nanos = SECOND;
/// Maximum number of bursts that are received between two steps of the store.
const BURSTS_MAX: usize = 16;
/// Approximate space in bytes that a small datagram takes in a socket's receive buffer.
const DATAGRAM_COST_BYTES: usize = 1280;

/// Runs until the server is asked to end, or until another server serves. With a `feed`, entries that the tail only
/// announces are read from the feed. `observe` is called once in each turn, and once before the first turn. `ready` is
/// called when the socket is open, with the bound address and the durability that the store states.
///
/// # Errors
/// [`DriverError`] if the server ended because of a fault.
pub fn serve(
    mut config: ServeConfig,
    store: Box<dyn Store>,
    mut feed: Option<Box<dyn Feed>>,
    stop: &Stop,
    mut observe: impl FnMut(&ServerNode<Box<dyn Store>>, &Turn),
    ready: impl FnOnce(Peer, &str),
) -> Result<Ended, DriverError> {
    let mut socket = Socket::bind_patiently(config.listen, stop)?;
    // Packets that do not fit into the socket's buffer are lost, and must be requested again. So the tail gets only
    // credit for packets that fit.
    let holds = socket.receive_buffer_bytes() / DATAGRAM_COST_BYTES;
    config.server.queue_max = config.server.queue_max.min(holds.max(64));
    let clock = Clock::start();
    let random = Random::new(pmnet_udp::os_random()?);
    let mut paths = Paths::new(config.server.size_max);
    // The last device that asked to join the chain.
    let mut asked: Option<Peer> = None;
    let mut keys: Option<Latter<ClusterKeys>> = None;
    if let (Some(own), Some(latest)) = (&mut config.server.keys, &config.keys) {
        let (present, latter) = latest.follow();
        *own = present;
        keys = Some(latter);
    }
    let mut core = ServerNode::new(Server::new(config.server, random), store);
    let (words, pulse) = (config.words, config.pulse);
    let mut said = OnRecord::default();
    let mut other_mode = 0;
    let mut poll = mio::Poll::new()?;
    let mut events = mio::Events::with_capacity(16);
    poll.registry().register(
        &mut SourceFd(&socket.io().as_raw_fd()),
        SOCKET_TOKEN,
        mio::Interest::READABLE,
    )?;
    stop.register(poll.registry())?;
    // A poll can have only one waker.
    let waker = Arc::new(mio::Waker::new(poll.registry(), WAKE_TOKEN)?);
    if let Some(words) = &words {
        words.begin(waker.clone());
    }
    if let Some(keys) = &mut keys {
        keys.wake_by(waker.clone());
    }
    core.store_mut().attend(Box::new(move || {
        // If the loop has ended, it needs no wake-up.
        let _ = waker.wake();
    }));
    let mut reader = Reader::default();
    let mut spin = Spin::new(config.spin_micros);
    let mut out = Outbox::new();
    // The first step loads the records, after which the store's durability is known. If the store cannot be reached
    // yet, later steps try again.
    core.step(clock.now(), &mut out)?;
    let first = Turn {
        step: None,
        socket: socket.counters(),
    };
    observe(&core, &first);
    ready(socket.local_address()?, &core.store().durability());
    // Time since which the socket was not read. The packets in the socket may have arrived at any moment since then.
    let mut unheard: Option<Time> = None;
    loop {
        if words.as_ref().is_some_and(|words| words.is_turn_over()) {
            return Ok(Ended::TurnIsOver);
        }
        if let Some(keys) = keys.as_mut().and_then(Latter::take) {
            core.machine_mut().rekey(keys);
        }
        let now = clock.now();
        let came = unheard.unwrap_or(now);
        let mut busy = false;
        for _ in 0..BURSTS_MAX {
            let mut stopped = Ok(());
            let mut asks = None;
            let received = socket.receive(|from, datagram| {
                let Some(genuine) = core.check(datagram) else {
                    return;
                };
                if genuine.asks() && core.machine().tail().is_none() && !paths.knows(from) {
                    asks = Some(from);
                    core.machine_mut().asked_by(paths.glance(from));
                }
                let only_told = feed.is_some() && reader.notice(core.machine(), from, &genuine);
                if stopped.is_ok() && !only_told {
                    let machine = core.machine_mut();
                    stopped = machine.receive_genuine(came, from, &genuine, &mut out);
                }
            })?;
            stopped?;
            asked = asks.or(asked);
            busy |= received > 0;
            if received == 0 {
                unheard = None;
                break;
            }
        }
        if let Some(feed) = &mut feed {
            busy |= reader.feed(feed.as_mut(), &mut core, now, &mut out)?;
        }
        if let Some(words) = &words
            && let Some(epoch) = words.epoch_to_end()
        {
            core.machine_mut().end_epoch(epoch);
        }
        let tail = core.machine().tail().or(asked);
        if tail.is_some_and(|peer| !paths.knows(peer)) || paths.is_due(now, &socket) {
            let size = paths.look(now, &mut socket, tail, None);
            core.machine_mut().set_path(size);
        }
        let begun = clock.now();
        let stepped = core.step(now, &mut out)?;
        if stepped {
            busy = true;
            unheard.get_or_insert(begun);
        }
        let took = clock.now().since(begun);
        if took >= SLOW_STORE {
            tracing::warn!(
                ms = took / MILLISECOND,
                "PM2605 the store needed this time for one step, and the server answered no client and no returning \
                 device meanwhile. Is the store's disk slow, is it hard to reach, or did it run a long command?"
            );
        }
        if !out.is_empty() {
            socket.send(&out);
            out.clear();
        }
        while let Some(notice) = core.machine_mut().poll_notice() {
            tracing::warn!("{notice}");
        }
        tell_of_the_other_mode(core.machine(), &mut other_mode);
        if let Some(words) = &words {
            tell(words, core.machine(), &mut said);
        }
        let turn = Turn {
            step: stepped.then_some(took),
            socket: socket.counters(),
        };
        observe(&core, &turn);
        let now = clock.now();
        if busy {
            spin.active(now);
        }
        let polling = busy || spin.again(now, &clock);
        if polling && !spin.look_around(now) {
            pulse.works();
            continue;
        }
        let timeout = if polling {
            Some(Duration::ZERO)
        } else {
            core.next_timeout()
                .map(|at| Duration::from_nanos(at.since(now)))
        };
        match pulse.rests_for(|| poll.poll(&mut events, timeout)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error.into()),
            _ => {}
        }
        if events.iter().any(|event| event.token() == STOP_TOKEN) {
            return Ok(Ended::Asked);
        }
    }
}

/// Logs that devices with the other setting of keys send to this server: devices with keys if this server has no keys,
/// and devices without keys if this server has keys. Such devices and this server cannot communicate. The messages
/// become rarer with time. `told`: the number of such packets at the last message.
fn tell_of_the_other_mode(machine: &Server, told: &mut u64) {
    let packets = machine.counters().other_mode;
    if packets >= told.saturating_mul(2).max(1) {
        *told = packets;
        let (own, other) = if machine.has_keys() {
            ("has a key", "without one")
        } else {
            ("has no key", "with one")
        };
        tracing::warn!(
            packets,
            "PM2607 this server {own}, and a device {other} sends to it: they cannot speak with each other. Give --key to all processes of the shard, \
             or to none"
        );
    }
}

/// Tells the agent the chain on record, if it has changed.
fn tell(words: &ServerWords, machine: &Server, said: &mut OnRecord) {
    let Some(chain) = machine.chain() else { return };
    // The members of an epoch never change.
    if chain.epoch != said.epoch {
        said.epoch = chain.epoch;
        said.chain = chain.members.iter().map(|member| member.device).collect();
        words.say(said.clone());
    }
}
