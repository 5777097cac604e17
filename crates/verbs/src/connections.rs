//! A device's connections: who may send, from the first message by TCP to the last slot that is processed (`docs/spec/verbs.md` §3, §6).
//!
//! ```text
//! Greeting ──HELLO──▶ Up ──broken──▶ Draining ──its last completion is polled──▶ Leaving ──its slots are processed──▶ gone
//! ```
//! A QP is destroyed at the end of Draining only: drivers drop the completions of a QP that is destroyed. The sessions of a connection are
//! bound until it is gone.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use mio::net::TcpListener;
use mio::unix::SourceFd;
use mio::{Interest, Token};
use pmnet_device::DeviceNode;
use pmnet_log::Media;
use pmnet_proto::time::{MILLISECOND, Nanos, SECOND, earliest};
use pmnet_proto::{Peer, Random, Time};
use rustc_hash::FxHashMap;

use crate::line::{Ended, Line};
use crate::message::{Message, Refusal};
use crate::nic::{Completions, Nic, NicError, NicEvent, QueuePair, Receiver, SlotMemory};

/// Connections of a device, at most; those that are leaving count. Those with a QP are also fewer than slots: if each left a slot open, none
/// would be left to show by its message that these are open for too long.
pub const CONNECTIONS_MAX: usize = 64;
/// Sessions of one connection, at most.
const SESSIONS_MAX: usize = 65_536;
/// A client that has connected must say HELLO within this.
const GREETING: Nanos = 2 * SECOND;
/// A NIC has this long to say that a broken QP took its last slot. Some never say it: then this much silence is the sign.
const SETTLE: Nanos = SECOND / 2;
/// Completions that are there beside those of slots, at most.
const COMPLETIONS_MORE: u32 = 64;
/// Shortest time between two looks at TCP.
const LOOK_EVERY: Nanos = MILLISECOND / 2;
/// After an error of the system no client is let in for this long.
const ACCEPT_PAUSE: Nanos = 100 * MILLISECOND;
/// Messages of one connection that are taken in one look.
const MESSAGES_A_LOOK: usize = 64;

const LISTENER: Token = Token(usize::MAX);
const WAKE: Token = Token(usize::MAX - 1);

/// Events of connections, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCounters {
    /// QPs that were made.
    pub made: u64,
    /// Clients that were refused: not serving, another epoch or shard, too many.
    pub refused: u64,
    /// TCP connections that were closed because of bytes that are no message.
    pub garbage: u64,
    /// TCP connections that were closed because nothing came, or nothing was read.
    pub silent: u64,
    /// QPs that the device has broken: because of the oldest slot, or because it does not serve any more.
    pub broken: u64,
    /// QPs whose NIC did not say that they took their last slot.
    pub unsaid: u64,
}

/// Completed messages of a QP may be polled until it is destroyed.
#[derive(Debug)]
struct Pair {
    qp: QueuePair,
    number: u32,
    peer: Peer,
    sessions: Vec<u64>,
}

#[derive(Debug)]
struct Client {
    line: Line,
    since: Time,
    pair: Option<Pair>,
}

#[derive(Debug)]
struct Draining {
    pair: Pair,
    since: Time,
    /// The NIC has said that it took its last slot.
    said: bool,
}

/// A broken connection of which slots are to be processed.
#[derive(Debug)]
struct Leaving {
    number: u32,
    end: u64,
    sessions: Vec<u64>,
}

/// The parts of which QPs are made.
pub struct Parts {
    pub nic: Nic,
    pub completions: Completions,
    pub receiver: Receiver,
    pub memory: SlotMemory,
    pub slots: usize,
    pub slot_bytes: u32,
}

impl Parts {
    /// Makes them, for slots of this number and size in this memory.
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

/// See the module's text.
pub struct Connections {
    parts: Parts,
    listener: TcpListener,
    poll: mio::Poll,
    events: mio::Events,
    looked: Option<Time>,
    /// It was too early to look.
    skipped: bool,
    /// From then on, clients may wait to be let in.
    waiting: Option<Time>,
    clients: FxHashMap<usize, Client>,
    draining: Vec<Draining>,
    leaving: Vec<Leaving>,
    /// Where the clients of connections are, until their slots are processed.
    peers: FxHashMap<u32, Peer>,
    /// By the number of a QP, while it exists: the number of its connection, and the end of the last slot that it has completed.
    by_qpn: FxHashMap<u32, (u32, u64)>,
    random: Random,
    next_number: u32,
    next_token: usize,
    shard: u32,
    /// Sessions that clients have and the device does not, with their tokens.
    unknown: Vec<(Peer, u64, u64)>,
    counters: ConnectionCounters,
}

impl Connections {
    /// Listens.
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
            unknown: Vec::new(),
            counters: ConnectionCounters::default(),
        })
    }

    /// The descriptor that can be read when there is something to do.
    pub fn fd(&self) -> RawFd {
        self.poll.as_raw_fd()
    }

    /// The parts of which QPs are made.
    pub const fn parts(&self) -> &Parts {
        &self.parts
    }

    pub const fn counters(&self) -> ConnectionCounters {
        self.counters
    }

    /// Where the client of a connection is.
    pub fn peer(&self, number: u32) -> Option<Peer> {
        self.peers.get(&number).copied()
    }

    /// The connections whose QPs are there, broken or not.
    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        let up = self.clients.values().filter_map(|it| it.pair.as_ref());
        up.chain(self.draining.iter().map(|it| &it.pair))
            .map(|pair| pair.number)
    }

    /// The number that the next connection gets.
    pub const fn next_number(&self) -> u32 {
        self.next_number
    }

    /// Sessions that clients have and the device does not, since the last call: the device's machine has an answer for them.
    pub fn take_unknown(&mut self) -> Vec<(Peer, u64, u64)> {
        std::mem::take(&mut self.unknown)
    }

    /// No QP is there: the NIC acknowledges nothing.
    pub fn are_gone(&self) -> bool {
        self.numbers().next().is_none()
    }

    /// The connection of a QP. `end`: after the slot that it has completed.
    pub fn completed(&mut self, qpn: u32, end: u64) -> Option<u32> {
        let (number, last) = self.by_qpn.get_mut(&qpn)?;
        *last = (*last).max(end);
        Some(*number)
    }

    /// Looks at TCP, if it is time, and at what the NIC says. `open`: whether clients may come, and the epoch. True: something was done.
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

    /// Lets in clients that wait: a bounded number. Further ones have their turn at the next look, without an event that says so.
    fn accept(&mut self, now: Time) {
        if self.waiting.is_none_or(|at| now < at) {
            return;
        }
        for _ in 0..CONNECTIONS_MAX {
            let mut stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.waiting = None;
                    return;
                }
                Err(error) => {
                    // No descriptor is left, for example.
                    tracing::debug!(%error, "no client can be let in at present");
                    self.waiting = Some(now + ACCEPT_PAUSE);
                    return;
                }
            };
            if self.clients.len() + self.draining.len() + self.leaving.len() >= CONNECTIONS_MAX {
                self.counters.refused += 1;
                continue;
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
                    since: now,
                    pair: None,
                };
                self.clients.insert(token, client);
            }
        }
    }

    /// Takes in what a client says by TCP.
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
                Ok(Some(message)) => self.answer(token, &message, node, open),
                Err(ended) => Err(ended),
            };
            worked = true;
            if let Err(ended) = ended {
                match ended {
                    Ended::Closed => {}
                    Ended::Garbage => self.counters.garbage += 1,
                    Ended::Unread => self.counters.silent += 1,
                }
                self.close(now, token)?;
                return Ok(true);
            }
        }
        // There may be more, and no further event.
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
            (Message::Bind { session, token }, Some(pair)) => {
                let known = pair.sessions.contains(&session);
                let may = known || pair.sessions.len() < SESSIONS_MAX;
                if may && (known || node.bind_session(session, token)) {
                    if !known {
                        pair.sessions.push(session);
                    }
                    return client.line.send(&Message::Bound { session });
                }
                self.unknown.push((pair.peer, session, token));
                client.line.send(&Message::Unknown { session })
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
                .line
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
            sessions: Vec::new(),
        });
        client.line.send(&welcome)
    }

    /// A client's TCP connection is over, and so is its QP.
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

    /// Breaks these connections, all that are up of them: after this the NIC acknowledges nothing more there.
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

    /// A message of this connection ended in error: its QP is broken by the NIC.
    pub fn failed(&mut self, now: Time, number: u32) -> Result<(), NicError> {
        let of = |client: &Client| client.pair.as_ref().map(|pair| pair.number);
        let token = self.clients.iter().find(|(_, it)| of(it) == Some(number));
        match token.map(|(token, _)| *token) {
            Some(token) => self.close(now, token),
            None => Ok(()),
        }
    }

    /// Connections whose last completion may be there: their numbers. To be followed by a poll of all completions, and [`Connections::drained`].
    pub fn settled(&mut self, now: Time) -> Vec<u32> {
        let is = |it: &&Draining| it.said || now.since(it.since) >= SETTLE;
        let settled = self.draining.iter().filter(is);
        settled.map(|it| it.pair.number).collect()
    }

    /// All completions of these connections were polled: their QPs are destroyed.
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

    /// All slots below `processed` were handed on: connections that have no others are gone, and their sessions may end.
    pub fn processed<M: Media>(&mut self, now: Time, processed: u64, node: &mut DeviceNode<M>) {
        for it in self.leaving.extract_if(.., |it| it.end <= processed) {
            for session in it.sessions {
                node.unbind_session(now, session);
            }
            self.peers.remove(&it.number);
        }
    }

    /// When [`Connections::look`], or [`Connections::settled`], has something to do.
    pub fn next_timeout(&self) -> Option<Time> {
        let greeting = self.clients.values().filter(|client| client.pair.is_none());
        let greeting = greeting.map(|client| client.since + GREETING).min();
        let settle = self.draining.iter().map(|it| it.since + SETTLE).min();
        let look = self.looked.filter(|_| self.skipped);
        let look = look.map(|at| at + LOOK_EVERY);
        earliest(earliest(look, self.waiting), earliest(greeting, settle))
    }
}
