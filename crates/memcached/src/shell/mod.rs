//! The event loop of the front: one thread, a listener, a UDP socket, its clients, and the endpoint for the
//! devices.
//!
//! Purpose: moves bytes between sockets and [`Connection`]s, and calls between connections and the devices. The loop
//! works in turns: it reads from all ready sockets, submits all commands, sends once, and writes to each client once.
//! Invariants: the work for each client in a turn is bounded. There are at most `connections_max` clients and
//! [`EXCHANGES_MAX`] UDP requests.

mod accept;
mod calls;
mod config;
mod guest;

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mio::net::{TcpStream, UdpSocket};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use pmnet_client::{
    ClientCounters, ClientNode, Clock, Closed, Event, Latest, Latter, Pulse, Refused, STOP_TOKEN,
    SessionHandle, SocketCounters, Spin, Stop, StopTrigger, Time,
};

use crate::connection::{Call, Connection, Shared};
use crate::datagram::{self, Received};
use crate::stats::Counters;
use accept::Door;
use calls::{Calls, Name, Owner};
pub use config::{FrontConfig, FrontError, Limits};
use guest::{Edge, Guest, Tcp, Transfer};

const LISTENER: Token = Token(0);
const ENDPOINT: Token = Token(1);
const DATAGRAMS: Token = Token(2);
const FIRST_GUEST: usize = 16;
/// Maximum number of events taken from the operating system at once.
const EVENTS_MAX: usize = 1024;
/// Size of the buffer into which all sockets are read, in bytes. No datagram is longer.
const SCRATCH_BYTES: usize = 64 * 1024;
/// Maximum number of UDP requests that are not answered yet. Further requests are dropped and counted.
pub const EXCHANGES_MAX: usize = 256;
/// Maximum number of bytes of UDP requests that are not answered yet. Above this bound, no further request is taken. In
/// memory, a request may need a hundred times its number of bytes.
const EXCHANGE_BYTES_MAX: usize = 1 << 20;
/// Maximum number of UDP requests taken in one turn.
const DATAGRAMS_PER_TURN: usize = 64;
/// Time until a delayed `flush_all` that has failed is repeated, in milliseconds.
const FLUSH_AGAIN: u64 = 1000;

/// Ends a running front from another thread.
pub type Stopper = StopTrigger;

/// A front that listens; [`Front::run`] serves.
pub struct Front {
    calls: Calls,
    shared: Shared,
    poll: Poll,
    /// Its events end the loop. The events come only while this value exists.
    _stop: Stop,
    door: Door,
    udp: Option<UdpSocket>,
    /// Whether the UDP socket may have datagrams.
    udp_ready: bool,
    /// Number of UDP requests that are not answered yet.
    exchanges: usize,
    /// Number of bytes of UDP requests that are not answered yet.
    exchange_bytes: usize,
    clients: usize,
    limits: Latest<Limits>,
    newest_limits: Latter<Limits>,
    clock: Clock,
    spin: Spin,
    guests: Vec<Option<Box<Guest>>>,
    free: Vec<usize>,
    serial: u64,
    queue: VecDeque<usize>,
    /// Indexes of guests whose calls the busy endpoint has refused.
    busy: Vec<usize>,
    now: Time,
    scratch: Vec<u8>,
    pulse: Arc<Pulse>,
}

/// The state at the end of a turn of [`Front::run_observed`]. The observer reads the values by functions; values that
/// it does not read are not copied.
pub struct FrontTurn<'a>(&'a Front);

impl FrontTurn<'_> {
    /// Returns the numbers of events since the start of the front.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.0.shared.counters
    }

    /// Returns the numbers of events of the client machine since the start of the front.
    #[must_use]
    pub fn client(&self) -> ClientCounters {
        self.0.calls.node.counters()
    }

    /// Returns the numbers of events of the endpoint's sockets since the start of the front.
    #[must_use]
    pub fn socket(&self) -> SocketCounters {
        self.0.calls.node.socket_counters()
    }

    /// Returns the number of UDP requests that are not answered yet.
    #[must_use]
    pub const fn exchanges(&self) -> usize {
        self.0.exchanges
    }

    /// Returns the time for which calls have been outstanding without any answer, in nanoseconds.
    #[must_use]
    pub fn unanswered(&self) -> u64 {
        let silent = self.0.calls.node.unanswered_since();
        silent.map_or(0, |since| self.0.now.since(since))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Front {
    /// Opens the front's addresses. Nothing is served before [`Front::run`].
    ///
    /// # Errors
    /// [`FrontError`], which says what to do.
    pub fn bind(
        config: &FrontConfig,
        mut node: ClientNode,
    ) -> Result<(Front, Stopper), FrontError> {
        let failed =
            |protocol, address| move |source| FrontError::listen(protocol, address, source);
        let mut door =
            Door::open(config.listen, config.keepalive).map_err(failed("tcp", config.listen))?;
        let poll = Poll::new()?;
        poll.registry()
            .register(door.listener(), LISTENER, Interest::READABLE)?;
        let mut udp = None;
        if let Some(address) = config.udp {
            let mut socket = UdpSocket::bind(address).map_err(failed("udp", address))?;
            poll.registry()
                .register(&mut socket, DATAGRAMS, Interest::READABLE)?;
            udp = Some(socket);
        }
        let (stop, stopper) = Stop::new()?;
        stop.register(poll.registry())?;
        register(&poll, &mut node)?;
        let limits = Latest::new(config.limits());
        let (_, newest_limits) = limits.follow();
        let mut shared = Shared::new(
            config.database,
            config.item_max,
            config.connections_max,
            config.id,
        );
        shared.unix_millis = unix_millis();
        shared.counters.began = shared.unix_millis;
        let front = Front {
            calls: Calls::new(node, nanos(config.call_timeout)),
            shared,
            poll,
            _stop: stop,
            door,
            udp_ready: udp.is_some(),
            udp,
            exchanges: 0,
            exchange_bytes: 0,
            clients: 0,
            limits,
            newest_limits,
            clock: Clock::start(),
            spin: Spin::new(config.spin_micros),
            guests: Vec::new(),
            free: Vec::new(),
            serial: 0,
            queue: VecDeque::new(),
            busy: Vec::new(),
            now: Time(0),
            scratch: vec![0; SCRATCH_BYTES],
            pulse: Arc::clone(&config.pulse),
        };
        Ok((front, stopper))
    }

    /// Returns a handle that changes the limits of a running front.
    #[must_use]
    pub fn limits(&self) -> Latest<Limits> {
        self.limits.clone()
    }

    /// Applies the new limits, if the limits have changed.
    fn take_limits(&mut self) {
        if let Some(limits) = self.newest_limits.take() {
            self.shared.connections_max = limits.connections_max;
            self.calls.set_timeout(nanos(limits.call_timeout));
            self.door.set_keepalive(limits.keepalive);
        }
    }

    /// Returns the address to which clients connect (the chosen port, if port 0 was configured).
    ///
    /// # Errors
    /// An error of the operating system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.door.local_addr()
    }

    /// Returns the address of the UDP socket, if there is one.
    ///
    /// # Errors
    /// An error of the operating system.
    pub fn udp_addr(&self) -> io::Result<Option<SocketAddr>> {
        self.udp.as_ref().map(UdpSocket::local_addr).transpose()
    }

    /// Serves until stopped, and ends its sessions then. Acknowledged writes stay acknowledged. Returns the numbers of
    /// events.
    ///
    /// # Errors
    /// [`FrontError::Loop`] if the operating system's event queue fails.
    pub fn run(self) -> Result<Counters, FrontError> {
        self.run_observed(|_| ())
    }

    /// Serves like [`Front::run`], with an observer. The front calls `observe` once a turn, at the end of the turn.
    ///
    /// # Errors
    /// The errors of [`Front::run`].
    pub fn run_observed(
        mut self,
        mut observe: impl FnMut(&FrontTurn<'_>),
    ) -> Result<Counters, FrontError> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        let mut more_from_endpoint = false;
        loop {
            let work = more_from_endpoint || self.has_work();
            let spinning = self.spin.is_on(self.now);
            let timeout = if work || spinning {
                Some(Duration::ZERO)
            } else {
                self.sleep()
            };
            let wait = || self.poll.poll(&mut events, timeout);
            match self.pulse.rests_for(wait) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            }
            self.now = self.clock.now();
            self.shared.unix_millis = unix_millis();
            if !events.is_empty() || work {
                self.spin.active(self.now);
            } else if spinning {
                // The process that will answer may need this core of the processor.
                self.spin.yield_core(&self.clock);
            }
            let mut endpoint_ready = more_from_endpoint;
            for event in &events {
                match event.token() {
                    LISTENER => self.door.ready = true,
                    ENDPOINT => endpoint_ready = true,
                    DATAGRAMS => self.udp_ready = true,
                    STOP_TOKEN => return Ok(self.shut_down()),
                    token => self.note(token, event),
                }
            }
            more_from_endpoint = endpoint_ready && self.receive();
            self.take_limits();
            self.accept();
            self.take_datagrams();
            self.flush_if_due();
            for _ in 0..self.queue.len() {
                if let Some(index) = self.queue.pop_front() {
                    self.serve(index);
                }
            }
            self.send()?;
            observe(&FrontTurn(&self));
        }
    }

    /// Whether there is work that no event will announce.
    fn has_work(&self) -> bool {
        let door = self.door.due().is_some_and(|due| self.now >= due);
        door || !self.queue.is_empty() || (self.udp_ready && self.may_take_datagram())
    }

    /// Returns the time for which the loop may sleep if nothing arrives; `None`: there is no limit.
    fn sleep(&self) -> Option<Duration> {
        let flush = self.shared.flush_at.map(|at| {
            self.now
                + at.saturating_sub(self.shared.unix_millis)
                    .saturating_mul(1_000_000)
        });
        let next = [self.calls.node.next_timeout(), self.door.due(), flush];
        let next = next.into_iter().flatten().min()?;
        Some(Duration::from_nanos(next.since(self.now)))
    }

    /// Takes packets from the devices. Returns whether more may be waiting.
    fn receive(&mut self) -> bool {
        let more = match self.calls.node.receive(self.now) {
            Ok((_, more)) => more,
            Err(error) => {
                // The next datagram causes a new event, and lost packets are sent again.
                tracing::warn!(%error, "PM3102 receiving from the device");
                false
            }
        };
        self.take_events();
        more
    }

    /// Sends all submitted calls together.
    fn send(&mut self) -> Result<(), FrontError> {
        if let Err(error) = self.calls.node.flush(self.now) {
            // An unsent packet is sent again when its timer is due.
            tracing::warn!(%error, "PM3103 sending to the device");
        }
        if self.calls.node.take_other_socket() {
            register(&self.poll, &mut self.calls.node)?;
        }
        self.take_events();
        Ok(())
    }

    fn take_events(&mut self) {
        while let Some(event) = self.calls.node.poll_event() {
            match event {
                Event::Done { call, outcome, .. } => {
                    let Some(name) = self.calls.caller(call) else {
                        continue;
                    };
                    if let Some(guest) = find(&mut self.guests, name) {
                        guest.connection.done(call, outcome, &mut self.shared);
                        self.enqueue(name.0);
                    }
                    // The endpoint has a free place for another call.
                    while let Some(index) = self.busy.pop() {
                        self.enqueue(index);
                    }
                }
                Event::SessionClosed { session, reason } => self.session_closed(session, reason),
                // This front submits no READ and opens no mark, so these events do not come.
                Event::Read { .. } | Event::Marked { .. } => {}
            }
        }
    }

    fn session_closed(&mut self, session: SessionHandle, reason: Closed) {
        let owner = self.calls.closed(session);
        match reason {
            Closed::Ended => {}
            Closed::DataLoss { .. } | Closed::TooFewCopies { .. } => {
                tracing::error!(%reason, "PM3104 a session with the devices is closed");
            }
            _ => tracing::info!(%reason, "a session with the devices is closed"),
        }
        if reason != Closed::Ended {
            self.shared.forget_store();
        }
        if let Closed::OtherPayloads(_) = reason {
            self.shared.does_not_serve(format!("pmnet: {reason}"));
        }
        let Some(Owner::Guest(name)) = owner else {
            return;
        };
        if let Some(guest) = find(&mut self.guests, name) {
            guest.connection.session_closed(reason);
            if let Edge::Tcp(tcp) = &mut guest.edge
                && tcp.session == Some(session)
            {
                tcp.session = None;
            }
            self.enqueue(name.0);
        }
    }

    fn note(&mut self, token: Token, event: &mio::event::Event) {
        let Some(index) = token.0.checked_sub(FIRST_GUEST) else {
            return;
        };
        if let Some(Some(guest)) = self.guests.get_mut(index)
            && let Edge::Tcp(tcp) = &mut guest.edge
        {
            tcp.note(event);
            self.enqueue(index);
        }
    }

    fn enqueue(&mut self, index: usize) {
        if let Some(Some(guest)) = self.guests.get_mut(index)
            && !std::mem::replace(&mut guest.queued, true)
        {
            self.queue.push_back(index);
        }
    }

    fn accept(&mut self) {
        for stream in self.door.accept(self.now) {
            if self.clients >= self.shared.connections_max {
                self.shared.counters.connections_refused += 1;
                self.door.turn_away(stream);
            } else if let Err(error) = self.admit(stream) {
                tracing::debug!(%error, "a client was lost before it was served");
            }
        }
    }

    fn admit(&mut self, mut stream: TcpStream) -> io::Result<()> {
        self.door.welcome(&stream)?;
        let index = self.place();
        let token = Token(FIRST_GUEST + index);
        let interest = Interest::READABLE | Interest::WRITABLE;
        if let Err(error) = self.poll.registry().register(&mut stream, token, interest) {
            self.free.push(index);
            return Err(error);
        }
        self.clients += 1;
        self.shared.counters.connections += 1;
        self.shared.counters.connections_ever += 1;
        self.seat(index, Edge::Tcp(Tcp::new(stream)), &[]);
        Ok(())
    }

    /// Returns a free index for a guest.
    fn place(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.guests.push(None);
            self.guests.len() - 1
        })
    }

    fn seat(&mut self, index: usize, edge: Edge, said: &[u8]) {
        self.serial += 1;
        let connection = match edge {
            Edge::Tcp(_) => Connection::new(&self.shared),
            // The buffer keeps one byte more than can be sent. This byte shows that the answer is too long.
            Edge::Udp(..) | Edge::Timer(_) => {
                Connection::of_one_request(&self.shared, said, datagram::REPLY_BYTES_MAX + 1)
            }
        };
        self.guests[index] = Some(Box::new(Guest {
            connection,
            edge,
            serial: self.serial,
            queued: false,
        }));
        self.enqueue(index);
    }

    fn may_take_datagram(&self) -> bool {
        self.exchanges < EXCHANGES_MAX && self.exchange_bytes < EXCHANGE_BYTES_MAX
    }

    fn take_datagrams(&mut self) {
        for _ in 0..DATAGRAMS_PER_TURN {
            let Some(socket) = self.udp.as_ref().filter(|_| self.udp_ready) else {
                return;
            };
            if !self.may_take_datagram() {
                return;
            }
            let (count, from) = match socket.recv_from(&mut self.scratch) {
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.udp_ready = false;
                    return;
                }
                // The error is about an earlier answer whose receiver was unreachable.
                Err(_) => continue,
            };
            let counters = &mut self.shared.counters;
            counters.bytes_read += u64::try_from(count).unwrap_or(0);
            match datagram::read(&self.scratch[..count]) {
                Received::Whole(id, text) => {
                    let said = text.to_vec();
                    let index = self.place();
                    self.exchanges += 1;
                    self.exchange_bytes += said.len();
                    self.seat(index, Edge::Udp(id, from, said.len(), Vec::new()), &said);
                }
                Received::Piece(id) => {
                    counters.datagrams_dropped += 1;
                    self.answer(id, from, datagram::IN_PIECES);
                }
                Received::Nothing => counters.datagrams_dropped += 1,
            }
        }
    }

    /// Sends an answer over UDP. If the socket does not take the answer, the answer is lost, which may happen to any
    /// UDP datagram.
    fn answer(&mut self, id: u16, to: SocketAddr, text: &[u8]) {
        let Some(socket) = &self.udp else {
            return;
        };
        for datagram in datagram::write(id, text) {
            match socket.send_to(&datagram, to) {
                Ok(count) => {
                    self.shared.counters.bytes_written += u64::try_from(count).unwrap_or(0);
                }
                Err(_) => self.shared.counters.datagrams_dropped += 1,
            }
        }
    }

    /// Begins a delayed `flush_all` if it is due.
    fn flush_if_due(&mut self) {
        let due = |at: &mut u64| *at <= self.shared.unix_millis;
        if self.shared.flush_at.take_if(due).is_some() {
            let index = self.place();
            self.seat(index, Edge::Timer(Vec::new()), b"flush_all\r\n");
        }
    }

    /// One turn of a guest: reads, takes commands, writes.
    fn serve(&mut self, index: usize) {
        let Some(Some(guest)) = self.guests.get_mut(index) else {
            return;
        };
        guest.queued = false;
        if let Transfer::Broken = guest.read(&mut self.scratch, &mut self.shared) {
            return self.close(index);
        }
        if advance(guest, index, self.now, &mut self.calls, &mut self.shared) {
            self.busy.push(index);
        }
        if let Transfer::Broken = guest.write(&mut self.shared) {
            return self.close(index);
        }
        if guest.connection.is_finished() {
            return self.finish(index);
        }
        // Because bytes were written, there may be space for further commands.
        if guest.has_more() || guest.connection.has_more() {
            self.enqueue(index);
        }
    }

    /// Ends a guest that has got all its answers.
    fn finish(&mut self, index: usize) {
        let Some(Some(guest)) = self.guests.get_mut(index) else {
            return;
        };
        match &mut guest.edge {
            Edge::Tcp(_) => {}
            Edge::Udp(id, from, _, answer) => {
                let (id, from, answer) = (*id, *from, std::mem::take(answer));
                if guest.connection.is_within() {
                    self.shared.counters.datagrams_dropped += 1;
                }
                self.answer(id, from, &answer);
            }
            Edge::Timer(answer) => {
                if answer != b"OK\r\n" && self.shared.flush_at.is_none() {
                    tracing::warn!(
                        answer = %String::from_utf8_lossy(answer).trim_end(),
                        "PM3105 flush_all, whose time has come, could not be done; it is tried again"
                    );
                    self.shared.flush_at = Some(self.shared.unix_millis + FLUSH_AGAIN);
                }
            }
        }
        self.close(index);
    }

    fn close(&mut self, index: usize) {
        let Some(guest) = self.guests.get_mut(index).and_then(Option::take) else {
            return;
        };
        self.free.push(index);
        match guest.edge {
            Edge::Tcp(tcp) => {
                self.clients -= 1;
                self.shared.counters.connections -= 1;
                if let Some(session) = tcp.session {
                    self.calls.end(self.now, session);
                }
            }
            Edge::Udp(_, _, length, _) => {
                self.exchanges -= 1;
                self.exchange_bytes -= length;
            }
            Edge::Timer(_) => {}
        }
    }

    fn shut_down(mut self) -> Counters {
        for index in 0..self.guests.len() {
            self.close(index);
        }
        self.calls.end_shared(self.now);
        if let Err(error) = self.calls.node.flush(self.now) {
            tracing::debug!(%error, "the ends of the sessions could not be sent; they expire");
        }
        self.shared.counters
    }
}

fn unix_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

fn register(poll: &Poll, node: &mut ClientNode) -> io::Result<()> {
    poll.registry()
        .register(&mut SourceFd(&node.raw_fd()), ENDPOINT, Interest::READABLE)
}

fn find(guests: &mut [Option<Box<Guest>>], name: Name) -> Option<&mut Guest> {
    let guest = guests.get_mut(name.0)?.as_deref_mut()?;
    (guest.serial == name.1).then_some(guest)
}

/// Takes commands and submits calls. Returns whether a call was refused because the endpoint was busy.
fn advance(
    guest: &mut Guest,
    index: usize,
    now: Time,
    calls: &mut Calls,
    shared: &mut Shared,
) -> bool {
    let Guest {
        connection,
        edge,
        serial,
        ..
    } = guest;
    let name = (index, *serial);
    let mut busy = false;
    let mut submit = |call: Call| {
        let submitted = match edge {
            Edge::Tcp(tcp) => calls.submit_own(now, name, &mut tcp.session, call),
            Edge::Udp(..) | Edge::Timer(_) => calls.submit_shared(now, name, call),
        };
        busy |= submitted == Err(Refused::Busy);
        submitted
    };
    connection.advance(shared, &mut submit);
    busy
}
