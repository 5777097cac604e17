//! The client machine on a non-blocking UDP socket.

use bytes::Bytes;
use pmnet_proto::client::{
    CallId, Client, ClientConfig, ClientCounters, Event, Refused, SessionHandle,
};
use pmnet_proto::keys::FrontKey;
use pmnet_proto::time::{Nanos, SECOND, earliest};
use pmnet_proto::{FragmentSize, Outbox, Random, Time};
use pmnet_udp::{Latest, Latter, Paths, Socket, SocketCounters};
use pmnet_verbs::{Link, LinkCounters, News};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use crate::whereabouts::Whereabouts;

/// Maximum number of bursts that one call of [`ClientNode::receive`] reads, so that a flood cannot starve the loop.
const BURSTS_MAX: usize = 8;

/// Time without an answer after which the node sends from another port. If there is still no answer, the port changes
/// again after each further period of this length.
const OTHER_PORT_AFTER: Nanos = 6 * SECOND;

/// Many sessions over one socket. The caller passes the present time to each call. In its loop the caller must call
/// [`ClientNode::receive`] when the socket is readable, and [`ClientNode::flush`] once after submissions and
/// receptions. The caller must not wait longer than [`ClientNode::next_timeout`].
#[derive(Debug)]
pub struct ClientNode {
    machine: Client,
    socket: Socket,
    out: Outbox,
    paths: Paths,
    whereabouts: Option<Arc<Whereabouts>>,
    keys: Option<Latter<FrontKey>>,
    /// The local address of the socket, with port 0.
    any: SocketAddr,
    /// Event counters of the sockets that were replaced.
    before: SocketCounters,
    /// Time of the first packet that was sent after the last answer, or after the last change of the port.
    unanswered: Option<Time>,
    /// Time of the first packet that was sent after the last answer. A change of the port does not affect this time.
    silent_since: Option<Time>,
    /// The socket was replaced since the last call of [`ClientNode::take_other_socket`].
    is_other: bool,
    /// The RDMA queue. The queue carries all packets whose order the slots must keep.
    queue: Option<Queue>,
}

/// The queue to a device whose NIC acknowledges on its own.
#[derive(Debug)]
struct Queue {
    link: Link,
    /// OPEN and PING packets to send over UDP.
    beside: Outbox,
    due: Option<Time>,
}

impl ClientNode {
    /// Binds a socket of the same address family as the head's address.
    ///
    /// # Errors
    /// The socket cannot be opened.
    pub fn bind(config: ClientConfig) -> io::Result<ClientNode> {
        let any: IpAddr = match config.head.ip() {
            IpAddr::V4(ip) if ip.is_loopback() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(ip) if ip.is_loopback() => Ipv6Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let any = SocketAddr::new(any, 0);
        let socket = Socket::bind(any, false)?;
        let random = Random::new(pmnet_udp::os_random()?);
        Ok(ClientNode {
            paths: Paths::new(config.size_max),
            machine: Client::new(config, random),
            socket,
            out: Outbox::new(),
            whereabouts: None,
            keys: None,
            any,
            before: SocketCounters::default(),
            unanswered: None,
            silent_since: None,
            is_other: false,
            queue: None,
        })
    }

    /// From now on, sends over RDMA, from this RDMA device to the head's queue of slots. Answers still arrive over UDP.
    ///
    /// # Errors
    /// The RDMA device cannot be used.
    pub fn by_rdma(mut self, rdma: &str) -> io::Result<ClientNode> {
        let head = self.machine.head();
        let probe = UdpSocket::bind(self.any)?;
        probe.connect(head)?;
        let port = self.socket.local_address()?.port();
        let address = SocketAddr::new(probe.local_addr()?.ip(), port);
        let random = Random::new(pmnet_udp::os_random()?);
        let link = Link::open(rdma, address, self.config().shard, random);
        let link = link.map_err(io::Error::other)?;
        link.wait_for(self.socket.io().as_raw_fd())?;
        self.queue = Some(Queue {
            link,
            beside: Outbox::new(),
            due: None,
        });
        Ok(self)
    }

    /// Returns the event counters of the RDMA queue; `None` without RDMA.
    #[must_use]
    pub fn link_counters(&self) -> Option<LinkCounters> {
        self.queue.as_ref().map(|queue| queue.link.counters())
    }

    /// Returns the time of the first packet that was sent after the last answer. `None`: all packets were answered.
    #[must_use]
    pub const fn unanswered_since(&self) -> Option<Time> {
        self.silent_since
    }

    /// Returns the event counters of all sockets so far, as sums.
    #[must_use]
    pub fn socket_counters(&self) -> SocketCounters {
        self.before.with(self.socket.counters())
    }

    /// Handles the events of the RDMA queue. Returns the number of events.
    fn receive_by_rdma(&mut self, now: Time) -> usize {
        let Some(queue) = &mut self.queue else {
            return 0;
        };
        let (head, epoch) = (self.machine.head(), self.machine.epoch());
        let key = self.machine.config().keys;
        let machine = &mut self.machine;
        let mut count = 0;
        queue.link.turn(now, head, epoch, key, |news| {
            count += 1;
            match news {
                News::Connected => machine.connection_changed(now),
                News::OtherEpoch => machine.doubt_epoch(),
                News::Taken {
                    session,
                    seq,
                    epoch,
                } => machine.taken_by_nic(now, session, seq, epoch),
            }
        });
        count
    }

    /// From now on, follows the addresses of the devices in `whereabouts`.
    pub fn follow(&mut self, whereabouts: Arc<Whereabouts>) {
        self.whereabouts = Some(whereabouts);
    }

    /// Returns whether the descriptor was replaced since the last call. The descriptor is replaced after a long time
    /// without an answer, because a load balancer may still send all packets from the old port to the device's former
    /// address. Sessions continue from the new port.
    pub fn take_other_socket(&mut self) -> bool {
        std::mem::take(&mut self.is_other)
    }

    /// Changes the port if no answer arrives at the present port.
    fn leave_port(&mut self, now: Time) {
        let Some(since) = self.unanswered else {
            return;
        };
        if now.since(since) < OTHER_PORT_AFTER {
            return;
        }
        self.unanswered = Some(now);
        match Socket::bind(self.any, false) {
            Ok(socket) => {
                tracing::debug!("nothing comes back: packets leave from another port");
                self.before = self.socket_counters();
                self.socket = socket;
                self.is_other = true;
            }
            Err(error) => tracing::debug!(%error, "there is no other port"),
        }
    }

    /// Returns the descriptor that must be polled for readability.
    #[must_use]
    pub fn raw_fd(&self) -> RawFd {
        match &self.queue {
            Some(queue) => queue.link.fd(),
            None => self.socket.io().as_raw_fd(),
        }
    }

    /// Returns the UDP socket, so that the caller can wait for it. The node of a [`Session`](crate::Session) has no
    /// RDMA.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.io().as_fd()
    }

    /// Opens a session, see [`Client::open`].
    ///
    /// # Errors
    /// [`Refused`]: no session was opened.
    pub fn open(&mut self, now: Time) -> Result<SessionHandle, Refused> {
        self.machine.open(now)
    }

    /// Submits an update, see [`Client::update`].
    ///
    /// # Errors
    /// [`Refused`]: nothing was submitted.
    pub fn update(
        &mut self,
        session: SessionHandle,
        payload: Bytes,
        key_hash: u64,
        deadline: Time,
    ) -> Result<CallId, Refused> {
        self.machine.update(session, payload, key_hash, deadline)
    }

    /// Submits a bypass, see [`Client::bypass`].
    ///
    /// # Errors
    /// [`Refused`]: nothing was submitted.
    pub fn bypass(
        &mut self,
        session: SessionHandle,
        payload: Bytes,
        key_hash: u64,
        read_only: bool,
        deadline: Time,
    ) -> Result<CallId, Refused> {
        self.machine
            .bypass(session, payload, key_hash, read_only, deadline)
    }

    /// Submits a read, see [`Client::read`].
    ///
    /// # Errors
    /// [`Refused`]: nothing was submitted.
    pub fn read(
        &mut self,
        now: Time,
        hashes: &[u64],
        replicas: bool,
        deadline: Time,
    ) -> Result<CallId, Refused> {
        self.machine.read(now, hashes, replicas, deadline)
    }

    /// Opens a mark, see [`Client::open_mark`].
    ///
    /// # Errors
    /// [`Refused`]: no mark was opened.
    pub fn open_mark(&mut self, now: Time) -> Result<SessionHandle, Refused> {
        self.machine.open_mark(now)
    }

    /// Ends a session, see [`Client::end`].
    pub fn end(&mut self, session: SessionHandle, deadline: Time) {
        self.machine.end(session, deadline);
    }

    /// Ends the session of the READs: [`Client::end_reads`].
    pub fn end_reads(&mut self, now: Time) {
        self.machine.end_reads(now);
    }

    /// Receives a bounded number of bursts from the socket. Returns the number of datagrams, and `true` if more may be
    /// waiting.
    ///
    /// # Errors
    /// An error of the socket.
    pub fn receive(&mut self, now: Time) -> io::Result<(usize, bool)> {
        let mut total = self.receive_by_rdma(now);
        for _ in 0..BURSTS_MAX {
            let machine = &mut self.machine;
            let count = self
                .socket
                .receive(|from, datagram| machine.receive(now, from, datagram))?;
            total += count;
            if count > 0 {
                self.unanswered = None;
                self.silent_since = None;
            }
            if count == 0 || self.socket.is_drained() {
                return Ok((total, false));
            }
        }
        Ok((total, true))
    }

    /// From now on, uses the key in `keys`, and checks at each flush whether `keys` has a new key (`docs/spec/keys.md`
    /// §7). Must be called before the first session is opened.
    pub fn follow_keys(&mut self, keys: &Latest<FrontKey>) {
        let (present, latter) = keys.follow();
        self.machine.rekey(Time(0), present);
        self.keys = Some(latter);
    }

    /// Runs the timers that are due, and sends all packets that may be sent now.
    ///
    /// # Errors
    /// An error of the socket.
    pub fn flush(&mut self, now: Time) -> io::Result<()> {
        self.receive_by_rdma(now);
        if let Some(peers) = self.whereabouts.as_ref().and_then(|one| one.take()) {
            self.machine.look_among(&peers);
            self.look_at_paths(now);
        } else if self.paths.is_due(now, &self.socket) {
            self.look_at_paths(now);
        }
        if let Some(key) = self.keys.as_mut().and_then(Latter::take) {
            self.machine.rekey(now, key);
        }
        self.machine.flush(now, &mut self.out);
        if self.machine.take_large_lost() {
            tracing::warn!(
                "PM3004 large packets to the device do not arrive, and small ones do: the path carries less than the system knows. From now on this \
                 client sends packets of {} bytes at most. Let ICMP pass, or set the MTU of the route or --mtu",
                FragmentSize::MTU_MIN
            );
        }
        if let Some(queue) = &mut self.queue {
            let machine = &self.machine;
            for (to, packet) in self.out.iter() {
                if Link::goes_beside(packet) {
                    queue.beside.send_raw(to, packet);
                } else {
                    queue.link.send(packet, |session| machine.binding(session));
                }
            }
            queue.link.flush(now);
            self.socket.send(&queue.beside);
            queue.beside.clear();
            queue.due = queue.link.rest(now);
        } else if !self.out.is_empty() {
            self.leave_port(now);
            self.unanswered.get_or_insert(now);
            self.silent_since.get_or_insert(now);
            self.socket.send(&self.out);
        }
        self.out.clear();
        Ok(())
    }

    /// Asks the operating system for the largest packet size on the paths to the devices.
    fn look_at_paths(&mut self, now: Time) {
        let size = self
            .paths
            .look(now, &mut self.socket, self.machine.heads(), None);
        self.machine.set_path(size);
    }

    /// Returns the next event; `None` if there is none.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.machine.poll_event()
    }

    /// Returns the time by which [`ClientNode::flush`] must be called again.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        let queue = self.queue.as_ref().and_then(|queue| queue.due);
        earliest(self.machine.next_timeout(), queue)
    }

    /// Returns the configuration.
    #[must_use]
    pub const fn config(&self) -> &ClientConfig {
        self.machine.config()
    }

    /// Returns the counters since the start of the client.
    #[must_use]
    pub const fn counters(&self) -> ClientCounters {
        self.machine.counters()
    }

    /// Returns the present size of fragments, see [`Client::fragment_size`].
    #[must_use]
    pub fn fragment_size(&self) -> FragmentSize {
        self.machine.fragment_size()
    }
}
