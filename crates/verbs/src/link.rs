//! A client's side: one QP to the head, which carries all packets of the client's sessions except OPEN and PING
//! (`docs/spec/verbs.md` §3, 6 and 8).
//!
//! Invariants: in a session, seq *s* + 1 is sent on a connection only after *s*, or if *s* was acknowledged before. An
//! update counts as acknowledged when a READ after it has completed. Packets that cannot be sent now wait in bounded
//! queues, or are dropped. The protocol's timers send dropped packets again.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use mio::net::TcpStream;
use mio::unix::SourceFd;
use mio::{Interest, Token};
use pmnet_proto::client::Binding;
use pmnet_proto::keys::FrontKey;
use pmnet_proto::time::{MILLISECOND, Nanos, SECOND, earliest};
use pmnet_proto::{Random, Time};
use pmnet_wire::{DATAGRAM_BYTES_MAX, Header, Kind, Packet};

use crate::connections::nonce;
use crate::gates::{Gates, Offer, takes_seq};
use crate::line::{Ended, Line};
use crate::message::{Message, Refusal};
use crate::nic::{Completion, Completions, Nic, NicError, QueuePair, Readable, SendBuffers};
use crate::sealed::{Caller, Told};

/// Maximum number of messages that the NIC has at one time.
const SENDS: usize = 512;
/// Maximum number of READs that the NIC has at one time.
const READS: usize = 64;
/// Maximum number of messages that wait for the NIC, not counting messages that first waited for the device to confirm
/// their session.
const BACKLOG_MAX: usize = 4096;
/// Time within which the device must answer a HELLO.
const GREETING: Nanos = 2 * SECOND;
/// Pause between the end of a connection, or a refusal, and the next attempt.
const AGAIN: Nanos = 50 * MILLISECOND;
/// Minimum time between two polls of TCP.
const LOOK_EVERY: Nanos = MILLISECOND / 4;

const LINE: Token = Token(0);
const WAKE: Token = Token(1);

/// Counters of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Connections that were established.
    pub made: u64,
    /// Connections that broke, and attempts that failed.
    pub broken: u64,
    /// Messages that were passed to the NIC.
    pub sent: u64,
    /// Messages that were dropped, because there was no connection or no space, or because it was not the message's
    /// turn.
    pub dropped: u64,
    /// READs that have completed. Each acknowledges all messages before it.
    pub reads: u64,
    /// Attempts that the device has refused because of the client's key, or because the client has no key.
    pub refused: u64,
    /// With a key: connections that ended because a message of the device had a wrong MAC.
    pub unproven: u64,
}

/// News for the client's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// A connection was established. The machine then sends unacknowledged packets again.
    Connected,
    /// The device accepts no connection in the epoch that the client knows.
    OtherEpoch,
    /// The NIC has all updates up to `seq` of this session, in this epoch, and the chain has only this device.
    Taken {
        /// Id of the session.
        session: u64,
        /// Last acknowledged seq.
        seq: u64,
        /// Epoch of the acknowledgement.
        epoch: u32,
    },
}

/// The messages that a READ acknowledges.
#[derive(Debug, Default)]
struct Batch {
    /// Number of messages of the connection up to the last one in the batch. It is also the id of the batch's READ.
    messages: u64,
    /// Sessions and last seqs of the messages, if the chain has only this device.
    upto: Vec<(u64, u64)>,
}

/// An established connection. Its fields are dropped in their order, so the QP is dropped first.
struct Up {
    qp: QueuePair,
    buffers: SendBuffers,
    line: Line,
    caller: Caller,
    epoch: u32,
    copies: u8,
    byte: Readable,
    gates: Gates,
    backlog: VecDeque<(Header, Vec<u8>)>,
    /// Number of messages that were passed to the NIC, and how many of them are complete.
    sent: u64,
    done: u64,
    batch: Batch,
    reading: VecDeque<Batch>,
}

/// A connection whose WELCOME has not come yet. The QP is dropped first.
struct Greeting {
    qp: QueuePair,
    line: Line,
    caller: Caller,
    since: Time,
    epoch: u32,
}

enum State {
    Idle { until: Time },
    Greeting(Box<Greeting>),
    Up(Box<Up>),
}

/// A client's RDMA connection to the head.
pub struct Link {
    state: State,
    /// Whether the client knows an epoch, so that a connection can be made.
    may_begin: bool,
    nic: Nic,
    completions: Completions,
    poll: mio::Poll,
    events: mio::Events,
    random: Random,
    shard: u32,
    /// UDP port to which the device sends its answers.
    port: u16,
    looked: Option<Time>,
    skipped: bool,
    armed: bool,
    polled: Vec<Completion>,
    counters: LinkCounters,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("nic", &self.nic).finish()
    }
}

impl Link {
    /// Opens the NIC. `address`: the client's address; `port`: the client's UDP port, to which the device sends its
    /// answers.
    ///
    /// # Errors
    /// [`NicError`].
    pub fn open(
        rdma: &str,
        address: SocketAddr,
        shard: u32,
        random: Random,
    ) -> Result<Link, NicError> {
        let nic = Nic::open(rdma, address.ip())?;
        let entries = u32::try_from(SENDS + READS + 64).expect("small");
        let completions = Completions::new(&nic, entries)?;
        let failed = |error| NicError::said(&format!("cannot wait for the NIC: {error}"));
        let poll = mio::Poll::new().map_err(failed)?;
        let fd = completions.fd();
        let registered = poll
            .registry()
            .register(&mut SourceFd(&fd), WAKE, Interest::READABLE);
        registered.map_err(failed)?;
        Ok(Link {
            state: State::Idle { until: Time(0) },
            may_begin: false,
            nic,
            completions,
            poll,
            events: mio::Events::with_capacity(16),
            random,
            shard,
            port: address.port(),
            looked: None,
            skipped: false,
            armed: false,
            polled: Vec::new(),
            counters: LinkCounters::default(),
        })
    }

    /// Returns a descriptor that becomes readable when there is something to do, or when `udp` is readable.
    ///
    /// # Errors
    /// An error of the operating system.
    pub fn wait_for(&self, udp: RawFd) -> std::io::Result<()> {
        self.poll
            .registry()
            .register(&mut SourceFd(&udp), WAKE, Interest::READABLE)
    }

    /// Returns the descriptor to wait for.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.poll.as_raw_fd()
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counters(&self) -> LinkCounters {
        self.counters
    }

    /// Returns whether a packet may go by UDP instead of the QP. OPEN and PING may, because no other packet has to stay in
    /// order with them.
    #[must_use]
    pub fn goes_beside(packet: &[u8]) -> bool {
        matches!(Header::kind_of(packet), Some(Kind::Open | Kind::Ping))
    }

    /// Connects, if an attempt is due, and processes everything that has arrived. `epoch`: the client's epoch; 0: the
    /// client knows none yet. `key`: the client's key for a new connection.
    pub fn turn(
        &mut self,
        now: Time,
        head: SocketAddr,
        epoch: u32,
        key: Option<FrontKey>,
        mut news: impl FnMut(News),
    ) {
        if let State::Up(up) = &self.state
            && up.epoch != epoch
        {
            // A connection is valid only in its own epoch.
            self.end(now, "the chain is another one");
        }
        self.may_begin = epoch != 0;
        if let State::Idle { until } = self.state
            && now >= until
            && self.may_begin
        {
            self.begin(now, head, epoch, key);
        }
        self.look(now, head, &mut news);
        self.take_completions(now, &mut news);
        if let State::Up(up) = &mut self.state
            && let Err(error) = up.push(&mut self.counters)
        {
            self.end(now, &error.to_string());
        }
    }

    /// Sends a packet that needs the order of the queue. `of` returns what the client's machine knows of a session.
    pub fn send(&mut self, packet: &[u8], of: impl Fn(u64) -> Option<Binding>) {
        let State::Up(up) = &mut self.state else {
            self.counters.dropped += 1;
            return;
        };
        if !up.offer(packet, of) {
            self.counters.dropped += 1;
        }
    }

    /// Passes the messages of this turn to the NIC, and a READ after them.
    pub fn flush(&mut self, now: Time) {
        if let State::Up(up) = &mut self.state
            && let Err(error) = up.push(&mut self.counters)
        {
            self.end(now, &error.to_string());
        }
    }

    /// Must be called before a wait. Returns the latest time at which [`Link::turn`] must be called.
    pub fn rest(&mut self, now: Time) -> Option<Time> {
        let mut due = match &self.state {
            State::Idle { until } => self.may_begin.then(|| (*until).max(now + MILLISECOND)),
            State::Greeting(greeting) => Some(greeting.since + GREETING),
            State::Up(_) => None,
        };
        if !self.armed && matches!(self.state, State::Up(_)) {
            match self.completions.arm() {
                // A completion that came before this request does not wake the process.
                Ok(()) => due = Some(now),
                Err(error) => self.end(now, &error.to_string()),
            }
            self.armed = true;
        }
        let look = self.looked.filter(|_| self.skipped);
        earliest(due, look.map(|at| at + LOOK_EVERY))
    }

    fn begin(&mut self, now: Time, head: SocketAddr, epoch: u32, key: Option<FrontKey>) {
        let psn = u32::try_from(self.random.next_u64() & 0xff_ffff).expect("24 bits");
        let sends = u32::try_from(SENDS + READS).expect("small");
        let begun = QueuePair::new(&self.nic, &self.completions, None, sends, psn)
            .map_err(|error| error.to_string())
            .and_then(|qp| {
                let mut stream = TcpStream::connect(head).map_err(|error| error.to_string())?;
                let interest = Interest::READABLE | Interest::WRITABLE;
                let registered = self.poll.registry().register(&mut stream, LINE, interest);
                registered.map_err(|error| error.to_string())?;
                let nonce = nonce().map_err(|error| error.to_string())?;
                Ok((qp, Line::new(stream), nonce))
            });
        match begun {
            Ok((qp, mut line, nonce)) => {
                let hello = Message::Hello {
                    shard: self.shard,
                    epoch,
                    port: self.port,
                    mtu: self.nic.mtu(),
                    client: qp.whereto(),
                };
                let since = now;
                let (caller, first) = Caller::begin(key, nonce, hello);
                let sent = line.send(&first);
                self.state = State::Greeting(Box::new(Greeting {
                    qp,
                    line,
                    caller,
                    since,
                    epoch,
                }));
                if sent.is_err() {
                    self.end(now, "no connection");
                }
            }
            Err(error) => self.end(now, &error),
        }
    }

    fn end(&mut self, now: Time, why: &str) {
        self.counters.broken += 1;
        tracing::debug!("the connection by RDMA ends: {why}");
        self.state = State::Idle { until: now + AGAIN };
    }

    /// Polls TCP and the NIC's events.
    fn look(&mut self, now: Time, head: SocketAddr, news: &mut impl FnMut(News)) {
        self.skipped = self.looked.is_some_and(|at| now.since(at) < LOOK_EVERY);
        if self.skipped {
            return;
        }
        self.looked = Some(now);
        if let Err(error) = self.poll.poll(&mut self.events, Some(Duration::ZERO)) {
            tracing::debug!(%error, "the connection cannot be looked at in this turn");
        }
        let why = loop {
            let (line, caller) = match &mut self.state {
                State::Idle { .. } => return,
                State::Greeting(greeting) if now.since(greeting.since) >= GREETING => {
                    break Ended::Closed;
                }
                State::Greeting(greeting) => (&mut greeting.line, &mut greeting.caller),
                State::Up(up) => (&mut up.line, &mut up.caller),
            };
            let told = match line.flush().and_then(|()| line.next()) {
                Ok(None) => return,
                Ok(Some(bytes)) => caller.hear(&bytes),
                Err(ended) => break ended,
            };
            if let Told::Answer(bytes) = told {
                match line.send(&bytes) {
                    Ok(()) => continue,
                    Err(ended) => break ended,
                }
            }
            match told {
                Told::Message(message) if self.hear(&message, news) => {}
                Told::Refused(why) => {
                    self.counters.refused += 1;
                    tell_of_refusal(self.counters.refused, why);
                    break Ended::Closed;
                }
                Told::Unproven => {
                    self.counters.unproven += 1;
                    tell_of_unproven(self.counters.unproven, head);
                    break Ended::Unproven;
                }
                Told::Message(_) | Told::Answer(_) | Told::Garbage => break Ended::Garbage,
            }
        };
        self.end(now, &format!("{why:?}"));
    }

    /// Handles a message of the device. Returns false if the connection must end.
    fn hear(&mut self, message: &Message, news: &mut impl FnMut(News)) -> bool {
        match (&mut self.state, *message) {
            (State::Greeting(_), Message::Welcome { .. }) => self.welcome(message, news),
            (
                State::Greeting(_),
                Message::Refused {
                    why: Refusal::Epoch,
                    ..
                },
            ) => {
                news(News::OtherEpoch);
                false
            }
            (State::Up(up), Message::Bound { session }) => {
                let sent = up.gates.open(session);
                up.backlog.extend(sent);
                true
            }
            // If this client has not asked, the device has received a BIND that this client did not send.
            (State::Up(up), Message::Unknown { session }) => up.gates.close(session),
            _ => false,
        }
    }

    fn welcome(&mut self, message: &Message, news: &mut impl FnMut(News)) -> bool {
        let Message::Welcome {
            epoch,
            copies,
            slot_bytes,
            mtu,
            device,
            byte,
        } = *message
        else {
            return false;
        };
        let before = std::mem::replace(&mut self.state, State::Idle { until: Time(0) });
        let State::Greeting(greeting) = before else {
            return false;
        };
        let Greeting {
            qp,
            line,
            caller,
            epoch: asked,
            ..
        } = *greeting;
        let holds = usize::try_from(slot_bytes).is_ok_and(|bytes| bytes >= DATAGRAM_BYTES_MAX);
        if epoch != asked || !holds {
            return false;
        }
        let connected = qp.connect(&device, mtu);
        let made = connected.and_then(|()| SendBuffers::new(&self.nic, SENDS, DATAGRAM_BYTES_MAX));
        let Ok(buffers) = made else {
            return false;
        };
        self.counters.made += 1;
        self.state = State::Up(Box::new(Up {
            qp,
            buffers,
            line,
            caller,
            epoch,
            copies,
            byte,
            gates: Gates::default(),
            backlog: VecDeque::new(),
            sent: 0,
            done: 0,
            batch: Batch::default(),
            reading: VecDeque::new(),
        }));
        news(News::Connected);
        true
    }

    fn take_completions(&mut self, now: Time, news: &mut impl FnMut(News)) {
        self.polled.clear();
        if let Err(error) = self.completions.poll(&mut self.polled) {
            self.end(now, &error.to_string());
            return;
        }
        if self.polled.is_empty() && self.completions.take_event() {
            self.armed = false;
        }
        let polled = std::mem::take(&mut self.polled);
        for completion in &polled {
            let State::Up(up) = &mut self.state else {
                break;
            };
            if completion.qpn != up.qp.number() {
                // The completion belongs to an earlier connection.
                continue;
            }
            if let Err(status) = completion.outcome {
                self.end(now, &format!("the NIC says error {status}"));
                break;
            }
            let Some(batch) = up.reading.pop_front() else {
                self.end(now, "a READ completed that nobody began");
                break;
            };
            if batch.messages != completion.id {
                self.end(now, "a READ completed out of order");
                break;
            }
            self.counters.reads += 1;
            up.done = batch.messages;
            let epoch = up.epoch;
            for (session, seq) in batch.upto {
                news(News::Taken {
                    session,
                    seq,
                    epoch,
                });
            }
        }
        self.polled = polled;
    }
}

/// Warns that the device refuses the client. The warnings become less and less frequent.
fn tell_of_refusal(refused: u64, why: Refusal) {
    if refused.is_power_of_two()
        && let Some(why) = why.about_keys()
    {
        tracing::warn!(
            refused,
            "PM3009 the device connects no client like this one by RDMA, so no update is sent: {why}. The device has not proven that it says so"
        );
    }
}

/// Warns of messages that have a wrong MAC. The warnings become less and less frequent.
fn tell_of_unproven(unproven: u64, head: SocketAddr) {
    if unproven.is_power_of_two() {
        tracing::warn!(
            unproven,
            "PM3010 the answer of {head} (TCP) to a connection by RDMA was not made with this front's key, or was changed on its way: the \
             connection is given up, and tried again"
        );
    }
}

impl Up {
    /// Sends a packet, keeps it waiting, or drops it. Returns false if it is dropped.
    fn offer(&mut self, packet: &[u8], of: impl Fn(u64) -> Option<Binding>) -> bool {
        let Ok(parsed) = Packet::parse(packet) else {
            return false;
        };
        let header = parsed.header;
        if packet.len() > self.buffers.each() || self.backlog.len() >= BACKLOG_MAX {
            return false;
        }
        let session = header.session;
        let Some(binding) = of(session) else {
            return false;
        };
        match self.gates.offer(&header, packet, binding.acknowledged) {
            Offer::Ask => {
                let bind = self.caller.bind(session, &binding);
                // If the send fails, the next poll of TCP ends the connection.
                bind.is_some_and(|bind| self.line.send(&bind).is_ok())
            }
            Offer::Wait => true,
            Offer::Send => {
                self.backlog.push_back((header, packet.to_vec()));
                true
            }
            Offer::Drop => false,
        }
    }

    /// Passes waiting messages to the NIC, and a READ after them.
    fn push(&mut self, counters: &mut LinkCounters) -> Result<(), NicError> {
        let sends = u64::try_from(SENDS).expect("small");
        while self.sent - self.done < sends
            && let Some((header, packet)) = self.backlog.pop_front()
        {
            let buffer = usize::try_from(self.sent % sends).expect("small");
            self.buffers.send(&self.qp, buffer, &packet)?;
            self.sent += 1;
            counters.sent += 1;
            if self.copies == 1 && takes_seq(&header) {
                self.batch.upto.push((header.session, header.seq));
            }
        }
        if self.sent == self.batch.messages || self.reading.len() == READS {
            return Ok(());
        }
        let mut batch = std::mem::take(&mut self.batch);
        batch.messages = self.sent;
        self.buffers
            .read_byte(&self.qp, self.byte, batch.messages)?;
        self.batch.messages = self.sent;
        self.reading.push_back(batch);
        Ok(())
    }
}
