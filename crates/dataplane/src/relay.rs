//! The UDP relay: a device that receives packets of clients, or of the previous device of the chain, at a UDP socket.
//!
//! One thread serves one shard. A process with several shards has several relays, each with its own port, log and core.
//! This module must not decide anything about a packet.

use crate::burst::Bursts;
use crate::interface::Interface;
use crate::log_name::LogName;
use mio::unix::SourceFd;
use pmnet_device::{
    DeviceConfig, DeviceError, DeviceNode, FastPath, Port, PortCounters, Renewal, Served, Turn,
    Wake, serve,
};
use pmnet_log::{Log, Media};
use pmnet_proto::device::Device;
use pmnet_proto::keys::{ClusterKeys, DeviceKeys, Unserved};
use pmnet_proto::time::{Nanos, SECOND};
use pmnet_proto::{FragmentSize, Outbox, Peer, Random, Time};
pub use pmnet_udp::LeaseWords;
use pmnet_udp::{Clock, Latest, Latter, Paths, Pulse, STOP_TOKEN, Socket, Spin, Standing, Stop};
use pmnet_wire::{Header, Kind};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// Settings of a relay.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// UDP address to listen on.
    pub listen: Peer,
    /// The address to which clients send, if this is not `listen`. In switch mode it is the server's address, with the
    /// same port.
    pub known_as: Option<IpAddr>,
    /// Settings of the device's machine.
    pub device: DeviceConfig,
    /// Microseconds for which the loop polls after activity before it blocks.
    pub spin_micros: u64,
    /// Connection to the agent of the device, which can end the loop, and to which the loop reports the device's state.
    /// With `device.leased` the agent also provides the device's leases.
    pub lease: Option<Lease>,
    /// The cluster's keys, which may change while the relay runs. `device` has the current keys at the start. `None`:
    /// the keys do not change.
    pub keys: Option<Latest<ClusterKeys>>,
    /// The name of the log. If its file has lost this name, the device is told that its log is endangered. `None`: the log
    /// is not a file.
    pub log: Option<LogName>,
    /// The counter by which the loop shows that it runs.
    pub pulse: Arc<Pulse>,
}

/// The device's side of the connection to its agent, or to the program that runs the device.
#[derive(Clone, Debug)]
pub struct Lease {
    /// Messages between the device and its agent.
    pub words: Arc<LeaseWords>,
    /// The clock of the device and its agent.
    pub clock: Clock,
    /// Length of a lease: at most the time for which the lease store keeps it; 0: no leases.
    pub length: Nanos,
}

const SOCKET_TOKEN: mio::Token = mio::Token(0);
/// Interval of the looks at the name of the log.
const LOG_LOOK_EVERY: Nanos = SECOND;
/// If a device has not served for this long, it warns.
const PATIENCE: Nanos = 5 * SECOND;
const MEDIA_TOKEN: mio::Token = mio::Token(1);
const FAST_PATH_TOKEN: mio::Token = mio::Token(2);
/// Poll token of wake-ups: the agent has a message, or there are other keys.
const WAKE_TOKEN: mio::Token = mio::Token(3);
const MORE_TOKEN: mio::Token = mio::Token(4);
/// Approximate number of bytes that a small datagram takes in the receive buffer.
const DATAGRAM_COST_BYTES: usize = 1280;

/// A device's socket in the kernel's network stack.
pub(crate) struct Relay {
    socket: Socket,
    bursts: Bursts,
    paths: Paths,
    /// Address to which clients send, and the interface that has it.
    listen: Peer,
    interface: Interface,
    clock: Clock,
    spin: Spin,
    poll: mio::Poll,
    /// The waker of the poll. A poll can have only one waker, so it is shared.
    waker: Arc<mio::Waker>,
    events: mio::Events,
    /// The last wait has made a system call, and has not only spun.
    asked: bool,
    lease: Option<Lease>,
    keys: Option<Latter<ClusterKeys>>,
    /// The last renewal that was passed to the device.
    renewed: (u32, Time),
    log: Option<LogName>,
    /// Time of the last look at the name of the log.
    log_looked: Time,
    pulse: Arc<Pulse>,
    /// Number of datagrams from port 0.
    from_nowhere: u64,
}

impl Relay {
    /// Opens the socket.
    pub(crate) fn open(config: &RelayConfig, stop: &Stop) -> io::Result<Relay> {
        let mut socket = Socket::bind_patiently(config.listen, stop)?;
        if let Some(address) = config.known_as {
            socket.speak_for(address, config.device.next, is_between_hops)?;
        }
        let bursts = Bursts::new(socket.io())?;
        let poll = mio::Poll::new()?;
        let waker = Arc::new(mio::Waker::new(poll.registry(), WAKE_TOKEN)?);
        let relay = Relay {
            socket,
            bursts,
            paths: Paths::new(config.device.size_max),
            listen: config.listen,
            interface: Interface::of(config.listen.ip()),
            clock: config
                .lease
                .as_ref()
                .map_or_else(Clock::start, |lease| lease.clock),
            spin: Spin::new(config.spin_micros),
            poll,
            waker,
            events: mio::Events::with_capacity(16),
            asked: true,
            lease: config.lease.clone(),
            keys: None,
            renewed: (0, Time(0)),
            log: config.log.clone(),
            log_looked: Time(0),
            pulse: Arc::clone(&config.pulse),
            from_nowhere: 0,
        };
        relay.wake_by(relay.socket.io().as_raw_fd(), SOCKET_TOKEN)?;
        if let Some(lease) = &relay.lease {
            lease.words.begin(relay.waker.clone());
        }
        stop.register(relay.poll.registry())?;
        Ok(relay)
    }

    /// From now on a wait also ends when this descriptor becomes readable.
    pub(crate) fn wake_by(&self, fd: RawFd, token: mio::Token) -> io::Result<()> {
        let interest = mio::Interest::READABLE;
        self.poll
            .registry()
            .register(&mut SourceFd(&fd), token, interest)
    }

    /// Returns the clock of this port.
    pub(crate) const fn clock(&self) -> Clock {
        self.clock
    }

    /// Returns whether the last wait has made a system call. Only a wait with a system call finds out whether the
    /// socket has packets, because a spinning turn does not check the socket.
    pub(crate) const fn asked(&self) -> bool {
        self.asked
    }

    /// Returns the address of the socket.
    pub(crate) fn address(&self) -> io::Result<Peer> {
        self.socket.local_address()
    }

    /// From now on a wait also ends when `latest` has other keys than the device. If `latest` already has other keys
    /// now, the first turn passes them to the device, like any later change. They must not become the device's first
    /// keys, because a fast path, or a server beside the device, has already begun with the old keys.
    fn follow_keys(&mut self, own: &DeviceKeys, latest: &Latest<ClusterKeys>) {
        let print = own.cluster.print();
        let mut latter = latest.follow_on(|present| present.print() == print);
        latter.wake_by(Arc::clone(&self.waker));
        self.keys = Some(latter);
    }

    /// Returns the device's node, with a receive window that fits into the socket's receive buffer.
    pub(crate) fn node<M: Media>(
        &mut self,
        mut device: DeviceConfig,
        keys: Option<&Latest<ClusterKeys>>,
        log: Log<M>,
    ) -> io::Result<DeviceNode<M>> {
        if let (Some(own), Some(latest)) = (&device.keys, keys) {
            self.follow_keys(own, latest);
        }
        if let Some(fd) = log.wakeup_fd() {
            self.wake_by(fd, MEDIA_TOKEN)?;
        }
        let bytes = self.socket.receive_buffer_bytes();
        let holds = u64::try_from(bytes / DATAGRAM_COST_BYTES).unwrap_or(64);
        device.receive_window = device.receive_window.min(holds.max(64));
        let random = Random::new(pmnet_udp::os_random()?);
        Ok(DeviceNode::new(device, log, random, self.clock.now()))
    }
}

impl Port for Relay {
    fn receive(&mut self, deliver: &mut dyn FnMut(Peer, u8, &[u8])) -> io::Result<usize> {
        let from_nowhere = &mut self.from_nowhere;
        let received = self.bursts.receive(self.socket.io(), |from, hops, bytes| {
            // No answer can be sent to port 0, and only a forger sends from it.
            if from.port() == 0 {
                *from_nowhere += 1;
            } else {
                deliver(from, hops, bytes);
            }
        });
        if self.socket.is_everywhere() {
            for (from, at) in self.bursts.heard() {
                self.socket.heard(*from, *at);
            }
        }
        received.or_else(|error| self.socket.tolerate(error))
    }

    fn hop_before(&mut self, peer: Option<Peer>) {
        self.socket.speak_as_itself_to(peer);
    }

    fn send(&mut self, out: &Outbox) -> io::Result<()> {
        self.socket.send(out);
        Ok(())
    }

    fn paths(&mut self, now: Time, next: Peer, before: Option<Peer>) -> Option<FragmentSize> {
        if !self.paths.is_due(now, &self.socket) {
            return None;
        }
        // If the device is also the server, its next hop is not in the network, and needs no path.
        let peers = [Some(next), before].into_iter().flatten();
        let peers = peers.filter(|peer| !peer.ip().is_unspecified());
        let own = self.interface.mtu().map(|mtu| (self.listen, mtu));
        Some(self.paths.look(now, &mut self.socket, peers, own))
    }

    fn heard_next(&mut self) {
        if let Some(lease) = &self.lease {
            lease.words.hear_next();
        }
    }

    fn renewal(&mut self) -> Option<Renewal> {
        let lease = self.lease.as_ref()?;
        let (epoch, sent_at) = lease.words.given();
        let new = epoch != 0 && self.renewed != (epoch, sent_at);
        self.renewed = (epoch, sent_at);
        new.then_some(Renewal {
            epoch,
            sent_at,
            length: lease.length,
        })
    }

    fn lost_log(&mut self, now: Time) -> bool {
        if now.since(self.log_looked) < LOG_LOOK_EVERY {
            return false;
        }
        self.log_looked = now;
        let lost = self.log.as_ref().is_some_and(LogName::is_lost);
        if lost {
            self.log = None;
        }
        lost
    }

    fn keys(&mut self) -> Option<ClusterKeys> {
        self.keys.as_mut()?.take()
    }

    fn counters(&self) -> PortCounters {
        let socket = self.socket.counters();
        PortCounters {
            send_dropped: socket.send_dropped,
            send_errors: socket.send_errors,
            from_nowhere: socket.from_nowhere + self.from_nowhere,
            fragmented: socket.fragmented,
        }
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    fn wait(&mut self, busy: bool, until: Option<Time>) -> io::Result<Wake> {
        let now = self.clock.now();
        if busy {
            self.spin.active(now);
        }
        let polling = busy || self.spin.again(now, &self.clock);
        self.asked = !polling || self.spin.look_around(now);
        if !self.asked {
            self.pulse.works();
            return Ok(Wake::Work);
        }
        let timeout = if polling {
            Some(Duration::ZERO)
        } else {
            until.map(|at| Duration::from_nanos(at.since(now)))
        };
        let wait = || self.poll.poll(&mut self.events, timeout);
        match self.pulse.rests_for(wait) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        let ends = |lease: &Lease| lease.words.is_to_end();
        let stop = self.events.iter().any(|event| match event.token() {
            STOP_TOKEN => true,
            WAKE_TOKEN => self.lease.as_ref().is_some_and(ends),
            _ => false,
        });
        Ok(if stop { Wake::Stop } else { Wake::Work })
    }
}

/// Returns whether only devices and servers exchange this kind of packet. A device sends such packets from its own
/// address, even in switch mode.
fn is_between_hops(datagram: &[u8]) -> bool {
    matches!(
        Header::kind_of(datagram),
        Some(
            Kind::Append
                | Kind::Durable
                | Kind::Applied
                | Kind::Retrans
                | Kind::Recover
                | Kind::RecoverReply
                | Kind::StaleEpoch
        )
    )
}

/// Checks whether a socket can be bound to `listen`, before anything is created for this address.
///
/// # Errors
/// A sentence with the reason; [`io::ErrorKind::Interrupted`]: the process was asked to stop while another process had
/// the port.
pub fn can_listen(listen: Peer, stop: &Stop) -> io::Result<()> {
    Socket::bind_patiently(listen, stop).map(drop)
}

/// Serves one shard on one UDP socket until stopped. With a fast path, the socket gets only packets that the fast path
/// does not process. Calls `observe` once a turn. When the device first serves, calls `ready` once, with the bound
/// address and the node.
///
/// # Errors
/// [`DeviceError`].
pub fn run<M: Media>(
    config: RelayConfig,
    log: Log<M>,
    fast_path: Option<Box<dyn FastPath>>,
    stop: &Stop,
    mut observe: impl FnMut(&DeviceNode<M>, &Turn),
    ready: impl FnOnce(Peer, &DeviceNode<M>),
) -> Result<(), DeviceError> {
    let mut relay = Relay::open(&config, stop)?;
    let next = config.device.next;
    let mut node = relay.node(config.device, config.keys.as_ref(), log)?;
    if let Some(path) = fast_path {
        if let Some(fd) = path.wakeup_fd() {
            relay.wake_by(fd, FAST_PATH_TOKEN)?;
        }
        node = node.with_fast_path(path);
    }
    let mut watch = watch(config.lease, relay.clock(), next, relay.address()?, ready);
    serve(
        node,
        &mut relay,
        move |node: &DeviceNode<M>, turn: &Turn| {
            observe(node, turn);
            watch(node);
        },
    )
}

/// Serves a device together with the other machines that `make` adds to it.
///
/// # Errors
/// [`DeviceError`].
pub fn run_with<N: Served>(
    config: RelayConfig,
    log: Log<N::Medium>,
    stop: &Stop,
    make: impl FnOnce(DeviceNode<N::Medium>) -> N,
    mut observe: impl FnMut(&N, &Turn),
    ready: impl FnOnce(Peer, &DeviceNode<N::Medium>),
) -> Result<(), DeviceError> {
    let mut relay = Relay::open(&config, stop)?;
    let next = config.device.next;
    let node = make(relay.node(config.device, config.keys.as_ref(), log)?);
    if let Some(fd) = node.wakeup_fd() {
        relay.wake_by(fd, MORE_TOKEN)?;
    }
    let mut watch = watch(config.lease, relay.clock(), next, relay.address()?, ready);
    serve(node, &mut relay, move |node: &N, turn: &Turn| {
        observe(node, turn);
        watch(node.device());
    })
}

/// State of a device: the epoch that it serves, or 0; whether it holds all entries that it must hold; the epoch in
/// which it is ready to join, or 0.
type Place = (u32, bool, u32);

/// Reports the device's needs and its state to the agent, if they have changed. `told`: the last report.
fn tell(words: &LeaseWords, machine: &Device, told: &mut Option<(Place, Option<String>)>) {
    let epoch = if machine.is_serving() {
        machine.epoch()
    } else {
        0
    };
    let joins = machine.ready_to_join().unwrap_or(0);
    let news = (epoch, machine.holds_everything(), joins);
    let waits = machine.waits_for();
    let is_old = told
        .as_ref()
        .is_some_and(|(place, waited)| *place == news && waited.as_deref() == waits);
    if !is_old {
        *told = Some((news, waits.map(str::to_owned)));
        words.say(Standing {
            epoch,
            chain: machine.chain().collect(),
            whole: news.1,
            joins,
            waits: waits.map(str::to_owned),
        });
    }
    words.want(machine.needs_lease());
}

/// Whether a warning about `count` events is due. It is due at the first event, and when the number of events has
/// doubled since the last warning. `told`: the number of events at the last warning.
const fn is_due(count: u64, told: &mut u64) -> bool {
    let is_due = count >= told.saturating_mul(2) && count > 0;
    if is_due {
        *told = count;
    }
    is_due
}

/// Warns, less and less often, that sessions were ended because other sessions needed their places, or because their
/// client was started again. `told`: the number of such sessions at the last warning.
fn tell_of_sessions(machine: &Device, told: &mut u64) {
    let counters = machine.counters();
    let all = counters.succeeded_sessions + counters.crowded_out_sessions + counters.crowded_opens;
    if is_due(all, told) {
        tracing::warn!(
            open = machine.sessions(),
            of_clients_started_again = counters.succeeded_sessions,
            silent_when_there_was_no_room = counters.crowded_out_sessions,
            refused_for_want_of_room = counters.crowded_opens,
            "PM1113 sessions were ended, or not begun (all since this device's start)"
        );
    }
}

/// Warns, less and less often, that a front over its share is refused more and more updates. `told`: the number of
/// refused updates at the last warning.
fn tell_of_shares(machine: &Device, told: &mut u64) {
    let counters = machine.counters();
    let all = counters.over_share + counters.over_share_opens + counters.over_share_sessions;
    if is_due(all, told) {
        let (front, refused) = machine.most_over_share().map_or_else(
            || ("several".to_owned(), 0),
            |(front, refused)| (format!("{:016x}", front.get()), refused),
        );
        tracing::warn!(
            front,
            refused,
            updates = counters.over_share,
            opens = counters.over_share_opens,
            sessions_ended = counters.over_share_sessions,
            "PM1116 a front had more than its share of the log or of the sessions while others needed room: it goes on at the server's pace, and the others are acknowledged here (all since this device's start; `front` was refused most often, and `pmnet key show FILE` says the id of a key)"
        );
    }
}

/// Warns, less and less often, that clients were refused because the server would skip their updates. `told`: the
/// number of such clients at the last warning.
fn tell_of_other_payloads(machine: &Device, told: &mut u64) {
    let refused = machine.counters().other_payloads;
    if is_due(refused, told) {
        tracing::warn!(
            refused,
            "PM1119 a client was refused, because the server would skip its updates: it is the front of a store, and a program of its own serves here, or \
             the reverse. Give it the devices of its own shard (refused since this device's start)"
        );
    }
}

/// Warns, less and less often, that a front is not served, and says why. `told`: the number of packets of such fronts
/// at the last warning.
fn tell_of_unserved_fronts(machine: &Device, told: &mut u64) {
    let Some((front, why, packets)) = machine.unserved() else {
        return;
    };
    if !is_due(packets, told) {
        return;
    }
    let id = front.get();
    let print = id >> 32;
    let own = machine.fingerprints().map(|print| format!("{print:08x}"));
    let own = own.collect::<Vec<_>>().join(" and ");
    match why {
        Unserved::Refused => tracing::warn!(
            packets,
            "PM1117 a front is not served: its key, with the id {id:016x}, is on the list of refused fronts. Its calls end at their deadline. Give it a key \
             with another name, or take it off the list"
        ),
        Unserved::OfAnotherCluster => tracing::warn!(
            packets,
            "PM1118 a front is not served: its key, with the id {id:016x}, is of the cluster {print:08x}, and this device has {own}. Its calls end at their \
             deadline. Give it a key that follows from this cluster's (pmnet key front), or look whether it was led to the wrong device"
        ),
    }
}

/// Warns, less and less often, that processes send packets with keys although this process has none, or the reverse.
/// `told`: the number of such packets at the last warning.
fn tell_of_the_other_mode(machine: &Device, told: &mut u64) {
    let packets = machine.counters().other_mode;
    if is_due(packets, told) {
        let (own, other) = if machine.has_keys() {
            ("has a key", "without one")
        } else {
            ("has no key", "with one")
        };
        tracing::warn!(
            packets,
            "PM1115 this device {own}, and a process {other} sends to it: they cannot speak with each other. Give --key to all processes of the \
             shard, or to none"
        );
    }
}

/// Reports to the device's agent, and in the log, when the device begins to serve, and when it has not served for long.
pub(crate) fn watch<M: Media>(
    lease: Option<Lease>,
    clock: Clock,
    next: Peer,
    address: Peer,
    ready: impl FnOnce(Peer, &DeviceNode<M>),
) -> impl FnMut(&DeviceNode<M>) {
    let mut ready = Some(ready);
    let mut epoch = 0;
    let mut waits: Option<String> = None;
    let mut out_of_service = Some(clock.now());
    let mut told = None;
    let mut large_lost = false;
    let mut sessions = 0;
    let mut other_mode = 0;
    let mut over_share = 0;
    let mut unserved = 0;
    let mut other_payloads = 0;
    move |node| {
        let machine = node.machine();
        tell_of_the_other_mode(machine, &mut other_mode);
        tell_of_shares(machine, &mut over_share);
        tell_of_unserved_fronts(machine, &mut unserved);
        tell_of_other_payloads(machine, &mut other_payloads);
        if machine.loses_large() && !std::mem::replace(&mut large_lost, true) {
            tracing::warn!(
                "PM1114 large packets to {next} do not arrive, and small ones do: the path carries less than the system knows. New writes are sent in \
                 packets of {} bytes; those in the log wait. Let ICMP pass, or set the MTU of the route (ip route replace … mtu 1280), then start this \
                 device again",
                FragmentSize::MTU_MIN
            );
        }
        if let Some(lease) = &lease {
            tell(&lease.words, machine, &mut told);
        }
        if machine.is_serving() {
            out_of_service = None;
        } else if clock
            .now()
            .since(*out_of_service.get_or_insert_with(|| clock.now()))
            > PATIENCE
        {
            // While the device does not serve, the warning is repeated after each `PATIENCE`.
            out_of_service = Some(clock.now());
            match machine.waits_for() {
                Some(text) => tracing::warn!("still waiting, as the server said last: {text}"),
                None => tracing::warn!(
                    "PM1111 no answer from the server through {next} for {} s: this device serves nobody. Is the next hop \
                     running, and the server after it? With keys: have all the same one, and is --next-id the next hop's number?",
                    PATIENCE / SECOND
                ),
            }
        }
        if machine.waits_for() != waits.as_deref() {
            waits = machine.waits_for().map(str::to_owned);
            if let Some(text) = &waits {
                tracing::warn!("waiting: {text}");
            }
        }
        tell_of_sessions(machine, &mut sessions);
        if machine.is_serving() && machine.epoch() != epoch {
            epoch = machine.epoch();
            tracing::info!(
                epoch,
                copies = machine.copies(),
                head = machine.is_head(),
                fragment = machine.fragment_size().bytes(),
                "serving"
            );
        }
        let answers =
            machine.is_serving() && (!machine.is_leased() || machine.deadline().is_some());
        if answers && let Some(ready) = ready.take() {
            ready(address, node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmnet_proto::keys::ClusterKey;
    use std::thread;
    use std::time::Instant;

    const FIRST: ClusterKey = ClusterKey::new(*b"the first of all");
    const NEXT: ClusterKey = ClusterKey::new(*b"the key after it");

    fn relay(stop: &Stop) -> (Relay, DeviceKeys) {
        let own = DeviceKeys {
            cluster: ClusterKeys::new(FIRST),
            next: 0,
        };
        let nowhere = Peer::from(([127, 0, 0, 1], 0));
        let config = RelayConfig {
            listen: nowhere,
            known_as: None,
            device: DeviceConfig::new(1, 0, nowhere),
            spin_micros: 0,
            lease: None,
            keys: None,
            log: None,
            pulse: Arc::default(),
        };
        (Relay::open(&config, stop).unwrap(), own)
    }

    /// Without the wake-up, the pipeline in the kernel would still serve a front that is now refused, until the process
    /// wakes for another reason.
    #[test]
    fn a_device_that_sleeps_is_woken_by_other_keys() {
        let (stop, _trigger) = Stop::new().unwrap();
        let (mut relay, own) = relay(&stop);
        let latest = Latest::new(own.cluster.clone());
        relay.follow_keys(&own, &latest);
        let hangup = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            latest.replace(ClusterKeys::new(NEXT));
        });
        let begun = Instant::now();
        let until = relay.now() + 20 * SECOND;
        let keys = loop {
            if let Some(keys) = relay.keys() {
                break keys;
            }
            assert_eq!(relay.wait(false, Some(until)).unwrap(), Wake::Work);
        };
        assert_eq!(keys.present, NEXT);
        assert!(begun.elapsed() < Duration::from_secs(10), "it slept on");
        hangup.join().unwrap();
    }

    /// A pipeline was taken over with the first keys, and still admits. It is held before it gets the new keys.
    #[test]
    fn keys_that_came_while_the_device_started_come_in_its_first_turn() {
        let (stop, _trigger) = Stop::new().unwrap();
        let (mut relay, own) = relay(&stop);
        let latest = Latest::new(own.cluster.clone());
        relay.follow_keys(&own, &latest);
        assert!(relay.keys().is_none(), "it has them");
        latest.replace(ClusterKeys::new(NEXT));
        relay.follow_keys(&own, &latest);
        assert_eq!(relay.keys().map(|keys| keys.present), Some(NEXT));
        assert!(relay.keys().is_none());
    }
}
