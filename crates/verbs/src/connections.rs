//! A device's connections, from the first TCP message to the last processed slot (`docs/spec/verbs.md` §3, §6). This
//! module decides which clients may send.
//!
//! ```text
//! Greeting ──HELLO──▶ Up ──broken──▶ Draining ──its last completion is polled──▶ Leaving ──its slots are processed──▶ gone
//! ```
//! A QP is destroyed only at the end of Draining, because drivers drop the completions of a destroyed QP. The sessions
//! of a connection stay bound until the connection is gone.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use mio::net::TcpListener;
use mio::unix::SourceFd;
use mio::{Interest, Token};
use pmnet_device::DeviceNode;
use pmnet_log::Media;
use pmnet_proto::keys::ClusterKeys;
use pmnet_proto::time::{MILLISECOND, Nanos, SECOND, earliest};
use pmnet_proto::{Peer, Random, Time};
use pmnet_udp::place_to_give_up;
use pmnet_wire::FrontId;
use pmnet_wire::packet::Identity;
use rustc_hash::FxHashMap;

use crate::line::{Ended, Line};
use crate::message::{MESSAGE_BYTES, Message, Nonce, Refusal};
use crate::nic::{Completions, Nic, NicError, NicEvent, QueuePair, Receiver, SlotMemory};
use crate::sealed::{Heard, Host};

/// Maximum number of connections of a device, including those in the state Leaving. The number of connections with a QP
/// is also less than the number of slots. So even if each connection leaves one slot open, there is one more slot that
/// can complete. A complete slot after open ones is the sign that the open ones block the queue.
pub const CONNECTIONS_MAX: usize = 64;
/// Maximum number of sessions of one connection.
const SESSIONS_MAX: usize = 65_536;
/// Time within which a client must send HELLO after it has connected.
const GREETING: Nanos = 2 * SECOND;
/// Time within which a NIC must report that a broken QP has taken its last slot. Some NICs never report it, so the
/// device does not wait longer.
const SETTLE: Nanos = SECOND / 2;
/// Number of places in the completion queue, in addition to one for each slot.
const COMPLETIONS_MORE: u32 = 64;
/// Minimum time between two polls of the TCP connections.
const LOOK_EVERY: Nanos = MILLISECOND / 2;
/// Pause after an error of the operating system, in which no client is accepted.
const ACCEPT_PAUSE: Nanos = 100 * MILLISECOND;
/// Maximum number of messages of one connection that are taken in one poll.
const MESSAGES_A_LOOK: usize = 64;

const LISTENER: Token = Token(usize::MAX);
const WAKE: Token = Token(usize::MAX - 1);

/// Counters of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCounters {
    /// QPs that were created.
    pub made: u64,
    /// Clients that were refused, because the device did not serve, the client had another epoch or shard, or there
    /// were too many clients.
    pub refused: u64,
    /// TCP connections that were closed because the client sent bytes that are no message.
    pub garbage: u64,
    /// TCP connections that were closed because the client sent nothing in time or did not read, or gave its place to
    /// another client before it had a QP.
    pub silent: u64,
    /// Clients that have not proven that they have a valid key: they have no key or a wrong one, their front is
    /// refused, or they repeat messages of another client. If the device has no keys: clients with a key.
    pub unproven: u64,
    /// QPs that the device has broken, because the oldest slot stayed open, the device no longer serves, the client's
    /// key was removed, or the client sent a message without a valid MAC.
    pub broken: u64,
    /// Broken QPs whose NIC did not report in time that they had taken their last slot.
    pub unsaid: u64,
}

/// The QP of a connection, with its sessions. Completions of a QP can be polled until the QP is destroyed.
#[derive(Debug)]
struct Pair {
    qp: QueuePair,
    number: u32,
    peer: Peer,
    /// Front of the client, if there are keys.
    front: Option<FrontId>,
    /// Bound sessions, each with its front. While a client changes its key, a session may have another front than the
    /// client.
    sessions: Vec<(u64, Option<FrontId>)>,
}

#[derive(Debug)]
struct Client {
    line: Line,
    host: Host,
    from: IpAddr,
    since: Time,
    pair: Option<Pair>,
}

#[derive(Debug)]
struct Draining {
    pair: Pair,
    since: Time,
    /// Whether the NIC has reported that the QP has taken its last slot.
    said: bool,
}

/// A broken connection that still has slots to process.
#[derive(Debug)]
struct Leaving {
    number: u32,
    end: u64,
    sessions: Vec<(u64, Option<FrontId>)>,
}

impl Client {
    /// Sends a message. With keys, the message is sealed.
    fn send(&mut self, message: &Message) -> Result<(), Ended> {
        let bytes = self.host.write(message);
        self.line.send(&bytes)
    }
}

/// Returns a new nonce from the operating system. A [`Random`] would not do, because its next number follows from its
/// last ones.
pub(crate) fn nonce() -> io::Result<Nonce> {
    Ok([getrandom::u64()?, getrandom::u64()?])
}

/// The objects from which QPs are created.
pub struct Parts {
    pub nic: Nic,
    pub completions: Completions,
    pub receiver: Receiver,
    pub memory: SlotMemory,
    pub slots: usize,
    pub slot_bytes: u32,
}

impl Parts {
    /// Creates the objects, for slots of this number and size in this memory.
    pub fn make(
        nic: &Nic,
        memory: pmnet_media::Memory,
        slots: u32,
        slot_bytes: u32,
    ) -> Result<Parts, NicError> {
        let memory = SlotMemory::register(nic, memory)?;
        Ok(Parts {
            nic: nic.clone(),
            completions: Completions::new(nic, slots + COMPLETIONS_MORE)?,
            receiver: Receiver::new(nic, memory.clone(), slots)?,
            memory,
            slots: usize::try_from(slots).expect("at most 32,768"),
            slot_bytes,
        })
    }
}

/// The connections of one device, with their QPs and sessions.
pub struct Connections {
    parts: Parts,
    listener: TcpListener,
    poll: mio::Poll,
    events: mio::Events,
    looked: Option<Time>,
    /// Whether the last call of [`Connections::look`] came too early and did not poll TCP.
    skipped: bool,
    /// The time from which waiting clients can be accepted; `None`: no client is waiting.
    waiting: Option<Time>,
    clients: FxHashMap<usize, Client>,
    draining: Vec<Draining>,
    leaving: Vec<Leaving>,
    /// Addresses of the clients, by the numbers of their connections; they are kept until the slots of the connections
    /// are processed.
    peers: FxHashMap<u32, Peer>,
    /// For each existing QP, by its number: the number of its connection, and the number of the last slot that the QP
    /// has completed, plus one.
    by_qpn: FxHashMap<u32, (u32, u64)>,
    random: Random,
    next_number: u32,
    next_token: usize,
    shard: u32,
    /// The cluster's keys; a client must have one of them. `None`: no keys.
    keys: Option<ClusterKeys>,
    /// Sessions that a client has named, but that the device does not know: address of the client, session, token.
    unknown: Vec<(Peer, u64, u64)>,
    counters: ConnectionCounters,
}

impl Connections {
    /// Listens for clients on TCP.
    pub fn listen(
        parts: Parts,
        at: SocketAddr,
        shard: u32,
        random: Random,
    ) -> io::Result<Connections> {
        let mut listener = TcpListener::bind(at)?;
        let poll = mio::Poll::new()?;
        poll.registry()
            .register(&mut listener, LISTENER, Interest::READABLE)?;
        for fd in [parts.nic.event_fd(), parts.completions.fd()] {
            poll.registry()
                .register(&mut SourceFd(&fd), WAKE, Interest::READABLE)?;
        }
        Ok(Connections {
            parts,
            listener,
            poll,
            events: mio::Events::with_capacity(64),
            looked: None,
            skipped: false,
            waiting: None,
            clients: FxHashMap::default(),
            draining: Vec::new(),
            leaving: Vec::new(),
            peers: FxHashMap::default(),
            by_qpn: FxHashMap::default(),
            random,
            next_number: 1,
            next_token: 0,
            shard,
            keys: None,
            unknown: Vec::new(),
            counters: ConnectionCounters::default(),
        })
    }

    /// Returns the descriptor that becomes readable when there is work for [`Connections::look`].
    pub fn fd(&self) -> RawFd {
        self.poll.as_raw_fd()
    }

    /// Returns the objects from which QPs are created.
    pub const fn parts(&self) -> &Parts {
        &self.parts
    }

    pub const fn counters(&self) -> ConnectionCounters {
        self.counters
    }

    /// Returns the address of a connection's client.
    pub fn peer(&self, number: u32) -> Option<Peer> {
        self.peers.get(&number).copied()
    }

    /// Returns the connections that have a QP, broken or not.
    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        let up = self.clients.values().filter_map(|it| it.pair.as_ref());
        up.chain(self.draining.iter().map(|it| &it.pair))
            .map(|pair| pair.number)
    }

    /// Returns the number that the next connection gets.
    pub const fn next_number(&self) -> u32 {
        self.next_number
    }

    /// Sets the keys with which the device begins. The device must have no connections yet.
    pub fn begin_with(&mut self, keys: Option<&ClusterKeys>) {
        self.keys = keys.cloned();
    }

    /// Sets the cluster's keys. If the key of a front is not valid any more, this breaks the connections of that front,
    /// and all connections with a session of that front. The caller keeps the keys of their sessions until
    /// [`Connections::processed`] unbinds the sessions.
    pub fn rekey(&mut self, now: Time, keys: &ClusterKeys) -> Result<(), NicError> {
        let is_over = |pair: &Pair| {
            let sessions = pair.sessions.iter().map(|(_, front)| *front);
            let mut fronts = std::iter::once(pair.front).chain(sessions);
            !fronts.all(|front| front.is_some_and(|front| keys.serves(front)))
        };
        let pairs = self.clients.values().filter_map(|it| it.pair.as_ref());
        let over = pairs.filter(|pair| is_over(pair)).map(|pair| pair.number);
        let over: Vec<u32> = over.collect();
        self.keys = Some(keys.clone());
        self.break_off(now, |number| over.contains(&number))
    }

    /// Takes the sessions that clients have named since the last call, but that the device does not know. The device's
    /// machine answers these clients.
    pub fn take_unknown(&mut self) -> Vec<(Peer, u64, u64)> {
        std::mem::take(&mut self.unknown)
    }

    /// Returns whether no QP exists. If so, the NIC acknowledges nothing.
    pub fn are_gone(&self) -> bool {
        self.numbers().next().is_none()
    }

    /// Notes a completion, and returns the number of the QP's connection. `end` is the number of the completed slot
    /// plus one.
    pub fn completed(&mut self, qpn: u32, end: u64) -> Option<u32> {
        let (number, last) = self.by_qpn.get_mut(&qpn)?;
        *last = (*last).max(end);
        Some(*number)
    }

    /// Polls the events of the NIC, and also TCP if it is time for that. `open`: the epoch in which clients may
    /// connect, or the reason why they may not. Returns true if there was something to process.
    pub fn look<M: Media>(
        &mut self,
        now: Time,
        node: &mut DeviceNode<M>,
        open: Result<u32, Refusal>,
    ) -> Result<bool, NicError> {
        self.skipped = self.looked.is_some_and(|at| now.since(at) < LOOK_EVERY);
        if self.skipped {
            return Ok(false);
        }
        self.looked = Some(now);
        if let Err(error) = self.poll.poll(&mut self.events, Some(Duration::ZERO)) {
            tracing::debug!(%error, "the TCP connections cannot be looked at in this turn");
        }
        let mut worked = false;
        let tokens: Vec<Token> = self.events.iter().map(|event| event.token()).collect();
        for token in tokens {
            match token {
                LISTENER => self.waiting = Some(now),
                WAKE => {}
                Token(client) => worked |= self.hear(now, client, node, open)?,
            }
        }
        self.accept(now);
        while let Some(event) = self.parts.nic.next_event() {
            match event {
                NicEvent::LastTaken(place) => {
                    let mut draining = self.draining.iter_mut();
                    if let Some(it) = draining.find(|it| it.pair.qp.place() == place) {
                        it.said = true;
                    }
                }
                NicEvent::Broken(what) => return Err(NicError::said(what)),
                NicEvent::Other => {}
            }
        }
        let late = |client: &Client| client.pair.is_none() && now.since(client.since) >= GREETING;
        let before = self.clients.len();
        self.clients.retain(|_, client| !late(client));
        self.counters.silent += u64::try_from(before - self.clients.len()).unwrap_or(0);
        Ok(worked)
    }

    /// Accepts a bounded number of waiting clients. The next poll accepts more, without a new event.
    fn accept(&mut self, now: Time) {
        if self.waiting.is_none_or(|at| now < at) {
            return;
        }
        for _ in 0..CONNECTIONS_MAX {
            let (mut stream, from) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.waiting = None;
                    return;
                }
                Err(error) => {
                    // For example, the process may have no free descriptor.
                    tracing::debug!(%error, "no client can be let in at present");
                    self.waiting = Some(now + ACCEPT_PAUSE);
                    return;
                }
            };
            if self.clients.len() + self.draining.len() + self.leaving.len() >= CONNECTIONS_MAX {
                let Some(stranger) = self.stranger() else {
                    self.counters.refused += 1;
                    continue;
                };
                self.clients.remove(&stranger);
                self.counters.silent += 1;
            }
            let token = self.next_token;
            self.next_token += 1;
            let interest = Interest::READABLE | Interest::WRITABLE;
            let registered = self
                .poll
                .registry()
                .register(&mut stream, Token(token), interest);
            if registered.is_ok() {
                let client = Client {
                    line: Line::new(stream),
                    host: Host::default(),
                    from: from.ip(),
                    since: now,
                    pair: None,
                };
                self.clients.insert(token, client);
            }
        }
    }

    /// Returns the client that gives its place to a new one: of the clients that have no QP yet, the oldest one of the
    /// host that has most of them. So a host without a key cannot keep others out. `None`: all clients have a QP.
    fn stranger(&self) -> Option<usize> {
        let strangers = self.clients.iter().filter(|(_, it)| it.pair.is_none());
        let mut strangers: Vec<(usize, IpAddr)> =
            strangers.map(|(token, it)| (*token, it.from)).collect();
        strangers.sort_unstable_by_key(|(token, _)| *token);
        place_to_give_up(strangers.iter().map(|(_, from)| *from)).map(|at| strangers[at].0)
    }

    /// Reads the messages of one client from TCP, and processes them.
    fn hear<M: Media>(
        &mut self,
        now: Time,
        token: usize,
        node: &mut DeviceNode<M>,
        open: Result<u32, Refusal>,
    ) -> Result<bool, NicError> {
        let mut worked = false;
        for _ in 0..MESSAGES_A_LOOK {
            let Some(client) = self.clients.get_mut(&token) else {
                return Ok(worked);
            };
            let heard = client.line.flush().and_then(|()| client.line.next());
            let ended = match heard {
                Ok(None) => return Ok(worked),
                Ok(Some(bytes)) => self.take(token, &bytes, node, open),
                Err(ended) => Err(ended),
            };
            worked = true;
            if let Err(ended) = ended {
                match ended {
                    Ended::Closed => {}
                    Ended::Garbage => self.counters.garbage += 1,
                    Ended::Unread => self.counters.silent += 1,
                    Ended::Unproven => self.counters.unproven += 1,
                }
                self.close(now, token)?;
                return Ok(true);
            }
        }
        // More messages may be waiting, for which no further event would come. To register the connection again creates
        // an event.
        let registry = self.poll.registry();
        if let Some(client) = self.clients.get_mut(&token) {
            let interest = Interest::READABLE | Interest::WRITABLE;
            let again = registry.reregister(client.line.stream(), Token(token), interest);
            if again.is_err() {
                self.close(now, token)?;
            }
        }
        Ok(true)
    }

    /// Verifies a message of a client, and answers it.
    fn take<M: Media>(
        &mut self,
        token: usize,
        bytes: &[u8; MESSAGE_BYTES],
        node: &mut DeviceNode<M>,
        open: Result<u32, Refusal>,
    ) -> Result<(), Ended> {
        let client = self.clients.get_mut(&token).expect("looked up by hear");
        match client.host.hear(bytes, self.keys.as_ref(), || nonce().ok()) {
            Heard::Message(message) => self.answer(token, &message, node, open),
            Heard::Answer(bytes) => client.line.send(&bytes),
            Heard::Garbage => Err(Ended::Garbage),
            Heard::Refuse(why) => {
                let refused = Message::Refused { why, epoch: 0 };
                // The other side has not proven that it is the client. So the refusal has no MAC, and its loss does not
                // matter.
                let _ = client.line.send(&refused.write());
                if (self.counters.unproven + 1).is_power_of_two() {
                    let from = client.line.stream().peer_addr().ok();
                    let why = why.about_keys().unwrap_or("no reason");
                    tracing::warn!(
                        ?from,
                        clients = self.counters.unproven + 1,
                        "PM1709 a client is not connected by RDMA: {why}"
                    );
                }
                Err(Ended::Unproven)
            }
        }
    }

    fn answer<M: Media>(
        &mut self,
        token: usize,
        message: &Message,
        node: &mut DeviceNode<M>,
        open: Result<u32, Refusal>,
    ) -> Result<(), Ended> {
        let client = self.clients.get_mut(&token).expect("looked up by hear");
        match (*message, &mut client.pair) {
            (Message::Hello { .. }, None) => self.greet(token, message, node, open),
            (
                Message::Bind {
                    session,
                    token,
                    front,
                },
                Some(pair),
            ) => {
                let known = pair.sessions.contains(&(session, front));
                let may = known || pair.sessions.len() < SESSIONS_MAX;
                if may && (known || node.bind_session(session, Identity { token, front })) {
                    if !known {
                        pair.sessions.push((session, front));
                    }
                    return client.send(&Message::Bound { session });
                }
                // A client with keys asks by itself, with a PING that has its token and front (keys.md §4).
                if front.is_none() {
                    self.unknown.push((pair.peer, session, token));
                }
                client.send(&Message::Unknown { session })
            }
            _ => Err(Ended::Garbage),
        }
    }

    fn greet<M: Media>(
        &mut self,
        token: usize,
        message: &Message,
        node: &DeviceNode<M>,
        open: Result<u32, Refusal>,
    ) -> Result<(), Ended> {
        let pairs = self.numbers().count() + self.leaving.len();
        let client = self.clients.get_mut(&token).expect("looked up by hear");
        let Message::Hello {
            shard,
            epoch,
            port,
            mtu,
            client: to,
        } = *message
        else {
            return Err(Ended::Garbage);
        };
        let own = open.unwrap_or(node.machine().epoch());
        let refuse = |client: &mut Client, why| {
            client
                .send(&Message::Refused { why, epoch: own })
                .and(Err(Ended::Closed))
        };
        let why = match open {
            Err(why) => Some(why),
            Ok(own) if own != epoch => Some(Refusal::Epoch),
            Ok(_) => (shard != self.shard).then_some(Refusal::Shard),
        };
        if let Some(why) = why {
            self.counters.refused += 1;
            return refuse(client, why);
        }
        let Ok(from) = client.line.stream().peer_addr() else {
            return Err(Ended::Closed);
        };
        if pairs + 1 >= self.parts.slots {
            self.counters.refused += 1;
            return Err(Ended::Closed);
        }
        let psn = u32::try_from(self.random.next_u64() & 0xff_ffff).expect("24 bits");
        let mtu = mtu.min(self.parts.nic.mtu());
        let Parts {
            nic,
            completions,
            receiver,
            ..
        } = &self.parts;
        let made = QueuePair::new(nic, completions, Some(receiver), 1, psn)
            .and_then(|qp| qp.connect(&to, mtu).map(|()| qp));
        let qp = match made {
            Ok(qp) => qp,
            Err(error) => {
                tracing::warn!(%from, "PM1705 a client cannot be connected: {error}");
                self.counters.refused += 1;
                return refuse(client, Refusal::Nic);
            }
        };
        let number = self.next_number;
        self.next_number += 1;
        let peer = SocketAddr::new(from.ip(), port);
        let welcome = Message::Welcome {
            epoch: own,
            copies: node.machine().copies(),
            slot_bytes: self.parts.slot_bytes,
            mtu,
            device: qp.whereto(),
            byte: self.parts.memory.readable(),
        };
        self.peers.insert(number, peer);
        self.by_qpn.insert(qp.number(), (number, 0));
        self.counters.made += 1;
        client.pair = Some(Pair {
            qp,
            number,
            peer,
            front: client.host.front(),
            sessions: Vec::new(),
        });
        client.send(&welcome)
    }

    /// Ends a client's TCP connection and its QP.
    fn close(&mut self, now: Time, token: usize) -> Result<(), NicError> {
        if let Some(pair) = self.clients.remove(&token).and_then(|client| client.pair) {
            self.drain(now, pair)?;
        }
        Ok(())
    }

    fn drain(&mut self, now: Time, pair: Pair) -> Result<(), NicError> {
        tracing::debug!(connection = pair.number, peer = %pair.peer, "a connection is broken");
        pair.qp.break_off()?;
        self.draining.push(Draining {
            pair,
            since: now,
            said: false,
        });
        Ok(())
    }

    /// Breaks all connections that are up and for which `which` returns true. After this call, the NIC acknowledges
    /// nothing more on them.
    pub fn break_off(&mut self, now: Time, which: impl Fn(u32) -> bool) -> Result<(), NicError> {
        let of = |client: &Client| client.pair.as_ref().map(|pair| pair.number);
        let tokens = self.clients.iter();
        let tokens = tokens.filter(|(_, client)| of(client).is_some_and(&which));
        let tokens: Vec<usize> = tokens.map(|(token, _)| *token).collect();
        for token in tokens {
            self.counters.broken += 1;
            self.close(now, token)?;
        }
        Ok(())
    }

    /// Ends a connection after a message with an error; the NIC has already broken its QP.
    pub fn failed(&mut self, now: Time, number: u32) -> Result<(), NicError> {
        let of = |client: &Client| client.pair.as_ref().map(|pair| pair.number);
        let token = self.clients.iter().find(|(_, it)| of(it) == Some(number));
        match token.map(|(token, _)| *token) {
            Some(token) => self.close(now, token),
            None => Ok(()),
        }
    }

    /// Returns the numbers of the connections whose last completion should have arrived. The caller then polls all
    /// completions, and calls [`Connections::drained`].
    pub fn settled(&mut self, now: Time) -> Vec<u32> {
        let is = |it: &&Draining| it.said || now.since(it.since) >= SETTLE;
        let settled = self.draining.iter().filter(is);
        settled.map(|it| it.pair.number).collect()
    }

    /// Destroys the QPs of these connections. All their completions must have been polled.
    pub fn drained(&mut self, settled: &[u32]) {
        for it in self
            .draining
            .extract_if(.., |it| settled.contains(&it.pair.number))
        {
            self.counters.unsaid += u64::from(!it.said);
            let known = self.by_qpn.remove(&it.pair.qp.number());
            self.leaving.push(Leaving {
                number: it.pair.number,
                end: known.map_or(0, |(_, end)| end),
                sessions: it.pair.sessions,
            });
        }
    }

    /// Notes that all slots below `processed` were given to the machine. Broken connections without later slots are
    /// then gone, so this unbinds their sessions.
    pub fn processed<M: Media>(&mut self, now: Time, processed: u64, node: &mut DeviceNode<M>) {
        for it in self.leaving.extract_if(.., |it| it.end <= processed) {
            for (session, _) in it.sessions {
                node.unbind_session(now, session);
            }
            self.peers.remove(&it.number);
        }
    }

    /// Returns the latest time at which [`Connections::look`] or [`Connections::settled`] must be called.
    pub fn next_timeout(&self) -> Option<Time> {
        let greeting = self.clients.values().filter(|client| client.pair.is_none());
        let greeting = greeting.map(|client| client.since + GREETING).min();
        let settle = self.draining.iter().map(|it| it.since + SETTLE).min();
        let look = self.looked.filter(|_| self.skipped);
        let look = look.map(|at| at + LOOK_EVERY);
        earliest(earliest(look, self.waiting), earliest(greeting, settle))
    }
}
