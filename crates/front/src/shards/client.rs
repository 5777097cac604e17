//! One client of the router: its socket, what it has sent, and its links to the shards.
//!
//! Invariants: replies leave in the order of the commands; a command is taken from the input only when it can be sent, and is
//! sent once; commands for one shard reach it in the order in which they came.

use std::collections::VecDeque;
use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use mio::{Registry, Token};
use pmnet_resp::{Parser, reply};

use super::answer::{OUT_BYTES_SOFT_MAX, Slot, Wait};
use super::link::{KEPT_BYTES_MAX, Link, Owed};
use super::slot::SlotMap;
use super::state::State;
use super::subscribe::Subscriptions;
use super::transaction::Transaction;
use crate::client::INPUT_BYTES_SOFT_MAX;
use crate::limits::REQUESTS;
use crate::shell::socket::{Ended, Socket};
use crate::shell::wire::Wire;
use crate::shell::{Entrance, Handed};
use crate::table::Table;
use crate::upstream::Time;

/// The shard that answers what is about no key: the first.
pub(super) const HOME: usize = 0;
/// Most bytes read from a client before the others get their turn.
const READ_BYTES_PER_TURN: usize = 256 * 1024;
/// Input of a client that has still to log in above which no more is read, unless one command needs more, in bytes.
const STRANGER_INPUT_BYTES_SOFT_MAX: usize = 64 * 1024;
/// Most bytes that are read and thrown away after an error that ends a connection.
pub(super) const LINGER_BYTES_MAX: usize = 512 * 1024 * 1024;
/// How long a client may go on after such an error, in nanoseconds.
pub(super) const LINGER_TIMEOUT: Time = 10_000_000_000;
/// How long a client may take to agree on TLS, in nanoseconds.
const HANDSHAKE_TIMEOUT: Time = 5_000_000_000;

const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// What all clients share.
pub(super) struct Common {
    pub(super) table: Table,
    pub(super) map: SlotMap,
    pub(super) entrances: Vec<Entrance>,
    pub(super) registry: Registry,
    /// Everybody may do everything.
    pub(super) trusting: bool,
    /// All shards' Redis are masters of one Redis Cluster.
    pub(super) cluster: bool,
}

/// Whether a command was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// It has a reply, or will have one.
    Taken,
    /// It stays where it is until something has changed.
    Later,
}

/// Whether a client may be told something without a front's being asked, and may send large commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// It has logged in, or need not.
    Yes,
    /// A front has to be asked.
    Unknown,
}

pub(super) struct Client {
    pub(super) id: u64,
    pub(super) peer: SocketAddr,
    token: usize,
    pub(super) socket: Socket,
    pub(super) handshake: Option<Time>,
    pub(super) input: BytesMut,
    pub(super) parser: Parser,
    pub(super) starved: bool,
    /// It sends no more.
    pub(super) eof: bool,
    pub(super) out: BytesMut,
    pub(super) slots: VecDeque<Slot>,
    pub(super) links: Vec<Option<Box<Link>>>,
    /// Why a link was given up, until somebody was told.
    pub(super) refusals: Vec<Option<Bytes>>,
    pub(super) state: State,
    pub(super) subscriptions: Subscriptions,
    pub(super) transaction: Option<Transaction>,
    pub(super) transactions_ever: u64,
    /// The slot of what it watches, and its shard.
    pub(super) watched: Option<(u16, usize)>,
    pub(super) trust: Trust,
    /// What it is at first.
    trusts: Trust,
    /// A front is being asked whether it may do anything.
    pub(super) probing: bool,
    /// It may not: this is what its command gets.
    pub(super) refused: Option<Bytes>,
    /// CLIENT REPLY OFF.
    pub(super) silent: bool,
    /// CLIENT REPLY SKIP: of the command that is taken now, and of the next one.
    pub(super) skip: bool,
    pub(super) skips_next: bool,
    /// The shard that it has used last.
    pub(super) last: usize,
    /// A link that has to be sent to before the next command can be taken.
    pub(super) full: Option<usize>,
    /// No further command is taken.
    pub(super) ending: bool,
    /// It is closed as soon as everything has left.
    pub(super) done: bool,
    /// What it still sends then is thrown away, so that it can read why.
    pub(super) lingers: bool,
    pub(super) lingering: Option<(usize, Time)>,
    /// It has closed its sending side, and commands of it cannot be taken before others are answered: when it is given up.
    pub(super) stuck: Option<Time>,
    /// In the list of those who have a turn.
    pub(super) queued: bool,
    /// How many of its commands without a reply were taken before the map was changed last.
    pub(super) taken_before: usize,
}

/// What becomes of a client after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nothing to do until something arrives.
    Idle,
    /// There is more to do; others first.
    More,
    /// It is gone.
    Closed,
}

impl Client {
    /// A client that was accepted. `token` is that of its socket; those of its links follow.
    pub(super) fn new(
        id: u64,
        peer: SocketAddr,
        wire: Wire,
        token: usize,
        now: Time,
        common: &Common,
    ) -> Client {
        let shards = common.entrances.len();
        let until = now.saturating_add(HANDSHAKE_TIMEOUT);
        Client {
            id,
            peer,
            token,
            handshake: wire.is_handshaking().then_some(until),
            socket: Socket::new(wire),
            input: BytesMut::new(),
            parser: Parser::new(REQUESTS),
            starved: true,
            eof: false,
            out: BytesMut::new(),
            slots: VecDeque::new(),
            links: (0..shards).map(|_| None).collect(),
            refusals: vec![None; shards],
            state: State::default(),
            subscriptions: Subscriptions::default(),
            transaction: None,
            transactions_ever: 0,
            watched: None,
            trust: trust(common.trusting),
            trusts: trust(common.trusting),
            probing: false,
            refused: None,
            silent: false,
            skip: false,
            skips_next: false,
            last: HOME,
            full: None,
            ending: false,
            done: false,
            lingers: false,
            lingering: None,
            stuck: None,
            queued: false,
            taken_before: 0,
        }
    }

    /// As if freshly connected.
    pub(super) fn reset(&mut self) {
        self.trust = self.trusts;
        self.subscriptions = Subscriptions::default();
        (self.transaction, self.watched) = (None, None);
        (self.silent, self.skip) = (false, false);
    }

    /// Where it connected to.
    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        self.socket.wire.local_addr()
    }

    /// Whether it has still to agree on TLS.
    pub(super) fn is_handshaking(&self) -> bool {
        self.handshake.is_some()
    }

    /// Whether it is late with what has to be done in time.
    pub(super) fn is_late(&self, now: Time) -> bool {
        let lingers_until = self.lingering.map(|(_, until)| until);
        self.handshake
            .or(lingers_until)
            .or(self.stuck)
            .is_some_and(|until| now >= until)
    }

    /// Whether something has to be done in time.
    pub(super) fn is_timed(&self) -> bool {
        self.handshake.is_some() || self.lingering.is_some() || self.stuck.is_some()
    }

    /// Throws away what it still sends after an error.
    pub(super) fn linger(&mut self, scratch: &mut [u8]) -> Turn {
        loop {
            match self.socket.read(scratch) {
                Ok(None) => return Turn::Idle,
                Ok(Some(count)) => match &mut self.lingering {
                    Some((left, _)) if *left >= count => *left -= count,
                    _ => return Turn::Closed,
                },
                Err(_) => return Turn::Closed,
            }
        }
    }

    pub(super) fn wants_input(&self) -> bool {
        let most = match self.trust {
            Trust::Yes => INPUT_BYTES_SOFT_MAX,
            Trust::Unknown => STRANGER_INPUT_BYTES_SOFT_MAX,
        };
        !self.eof && !self.ending && self.input.len() < most.max(self.parser.wanted())
    }

    pub(super) fn read(&mut self, scratch: &mut [u8]) -> Result<(), Ended> {
        let mut budget = READ_BYTES_PER_TURN;
        while self.socket.readable && budget > 0 && self.wants_input() {
            match self.socket.read(scratch) {
                Ok(None) => break,
                Ok(Some(count)) => {
                    // Grows with what has arrived, not with what was announced.
                    self.input.extend_from_slice(&scratch[..count]);
                    self.starved = false;
                    budget = budget.saturating_sub(count);
                }
                Err(Ended::Closed) => self.eof = true,
                Err(ended) => return Err(ended),
            }
        }
        Ok(())
    }

    pub(super) fn write(&mut self) -> Result<(), Ended> {
        self.socket.write(&mut self.out)?;
        if self.out.is_empty() && self.out.capacity() > KEPT_BYTES_MAX {
            self.out = BytesMut::new();
        }
        Ok(())
    }

    /// Makes the link to a shard, if there is none. The error: the command was answered, or has to wait.
    pub(super) fn open(&mut self, shard: usize, common: &mut Common) -> Result<(), Done> {
        match &self.links[shard] {
            Some(link) if link.is_closing() => return Err(Done::Later),
            Some(_) => return Ok(()),
            None => {}
        }
        let made = || -> std::io::Result<Link> {
            let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
            let mut ours = Wire::pair(ours, None)?;
            let token = Token(self.token + 1 + shard);
            ours.register(&common.registry, token)?;
            common.entrances[shard].hand_over(Handed {
                id: self.id,
                peer: self.peer,
                local: self.local_addr(),
                stream: theirs,
            });
            Ok(Link::new(ours))
        };
        match made() {
            Ok(mut link) => {
                for frame in self.state.replay() {
                    link.send(&frame, Owed::Setup);
                }
                self.links[shard] = Some(Box::new(link));
                Ok(())
            }
            Err(error) => {
                tracing::warn!(%error, shard = shard + 1, "cannot connect a client to its shard");
                self.wait_for(Wait::Ready(reply::error(&format!(
                    "ERR pmnet: the router cannot connect to shard {} ({error}); the command was not executed. Is its limit \
                     of open files (ulimit -n) high enough?",
                    shard + 1
                ))));
                Err(Done::Taken)
            }
        }
    }

    /// A link that takes commands. The error: the command was answered, or has to wait.
    pub(super) fn ready(&mut self, shard: usize, common: &mut Common) -> Result<(), Done> {
        if let Some(error) = self.refusals[shard].take() {
            self.wait_for(Wait::Ready(error));
            return Err(Done::Taken);
        }
        self.open(shard, common)?;
        match &self.links[shard] {
            Some(link) if link.is_full() => {
                self.full = Some(shard);
                Err(Done::Later)
            }
            Some(link) if !link.is_unsettled() => Ok(()),
            _ => Err(Done::Later),
        }
    }

    /// Sends to a link that is there.
    pub(super) fn send(&mut self, shard: usize, frame: &[u8], owed: Owed) {
        if let Some(link) = &mut self.links[shard] {
            link.send(frame, owed);
        }
    }

    /// Sends a command to one shard.
    pub(super) fn forward(
        &mut self,
        shard: usize,
        frame: &[u8],
        wait: Wait,
        common: &mut Common,
    ) -> Done {
        if let Err(done) = self.ready(shard, common) {
            return done;
        }
        self.send(shard, frame, Owed::Client);
        self.wait_for(wait);
        Done::Taken
    }

    /// Answers a command here, if its client may do anything at all.
    pub(super) fn own(&mut self, answer: Bytes, common: &mut Common) -> Done {
        if let Some(error) = self.refused.take() {
            self.wait_for(Wait::Ready(error));
            return Done::Taken;
        }
        let subscriber = !self.state.resp3 && self.subscriptions.is_any();
        if self.trust == Trust::Unknown && self.transaction.is_none() && !subscriber {
            match self.probe(common) {
                Done::Later => return Done::Later,
                Done::Taken => return Done::Taken,
            }
        }
        self.wait_for(Wait::Ready(answer));
        Done::Taken
    }

    /// Asks the first shard whether this client may do anything.
    pub(super) fn probe(&mut self, common: &mut Common) -> Done {
        if let Err(done) = self.ready(HOME, common) {
            return done;
        }
        self.send(HOME, PING, Owed::Probe);
        self.probing = true;
        Done::Later
    }

    /// Gives the command that is taken now its place among the replies.
    pub(super) fn wait_for(&mut self, wait: Wait) {
        self.slots.push_back(Slot {
            wait,
            silent: false,
        });
    }

    /// Whether so much is unread that no more is taken.
    pub(super) fn is_congested(&self) -> bool {
        self.out.len() > OUT_BYTES_SOFT_MAX
    }
}

fn trust(trusting: bool) -> Trust {
    if trusting { Trust::Yes } else { Trust::Unknown }
}
