//! A UDP proxy that drops, repeats and delays datagrams. The proxy serves kernels without netem.
//!
//! The proxy has one thread. For each sender the proxy has a socket of its own towards the target,
//! so that answers reach the right sender. Random numbers decide what happens to each datagram. A
//! seed repeats the random numbers. A seed does not repeat the exact course of a run, because the
//! processes around the proxy are real.

use std::collections::{HashMap, VecDeque};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use std::os::fd::AsRawFd;

/// Maximum number of senders. If there are more senders, the proxy forgets the oldest sender.
const SENDERS_MAX: usize = 256;
/// Maximum number of datagrams that are delayed at a time. Further datagrams are forwarded at once.
const HELD_MAX: usize = 256;
/// Longest sleep of the loop. After each sleep the loop checks whether it must end.
const LOOK: Duration = Duration::from_millis(20);
/// Maximum size of a datagram.
const DATAGRAM_BYTES: usize = 65_536;
/// Token of the socket that receives from the senders.
const FRONT: Token = Token(usize::MAX - 1);

/// Probabilities of the faults of each datagram, and the maximum delay.
#[derive(Clone, Copy, Debug)]
pub struct Trouble {
    /// Fraction of the datagrams that are dropped, 0 to 1.
    pub drop: f64,
    /// Fraction of the datagrams that are sent twice, 0 to 1.
    pub repeat: f64,
    /// Fraction of the datagrams that are delayed, 0 to 1. Later datagrams overtake delayed
    /// datagrams.
    pub hold: f64,
    /// Maximum delay of a datagram.
    pub hold_max: Duration,
    /// Seed of the random draws.
    pub seed: u64,
}

/// A running proxy. The proxy ends when this value is dropped.
#[derive(Debug)]
pub struct LossyProxy {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    counts: Arc<[AtomicU64; 3]>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl LossyProxy {
    /// Starts a proxy that forwards to `target`.
    ///
    /// # Errors
    /// Fails if the system cannot give a socket or a thread.
    pub fn start(target: SocketAddr, trouble: Trouble) -> anyhow::Result<LossyProxy> {
        // The kernel chooses the port, and the socket stays open until the proxy ends.
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        LossyProxy::start_at(listen, target, trouble)
    }

    /// Starts a proxy at this address, in the calling thread's network namespace.
    ///
    /// # Errors
    /// Fails if the system cannot give a socket or a thread.
    pub fn start_at(
        listen: SocketAddr,
        target: SocketAddr,
        trouble: Trouble,
    ) -> anyhow::Result<LossyProxy> {
        let socket = UdpSocket::bind(listen).context("cannot open the proxy's socket")?;
        let address = socket.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let counts = Arc::new([const { AtomicU64::new(0) }; 3]);
        let mut relay = Relay::new(socket, target, trouble, Arc::clone(&counts))?;
        let ended = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("proxy".into())
            .spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    if let Err(error) = relay.turn() {
                        tracing::error!(%error, "the proxy ends");
                        return;
                    }
                }
            })
            .context("cannot start the proxy")?;
        Ok(LossyProxy {
            address,
            stop,
            counts,
            thread: Some(thread),
        })
    }

    /// Returns the address that senders must use.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the numbers of datagrams dropped, repeated and delayed.
    #[must_use]
    pub fn counts(&self) -> [u64; 3] {
        std::array::from_fn(|index| self.counts[index].load(Ordering::Relaxed))
    }
}

impl Drop for LossyProxy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The direction of a datagram.
#[derive(Clone, Copy)]
enum Way {
    /// To the target, for the sender in this slot.
    Forth(usize),
    /// Back to the sender in this slot.
    Back(usize),
}

struct Relay {
    front: UdpSocket,
    target: SocketAddr,
    trouble: Trouble,
    counts: Arc<[AtomicU64; 3]>,
    random: fastrand::Rng,
    poll: Poll,
    events: Events,
    slots: Vec<(SocketAddr, UdpSocket)>,
    slot_of: HashMap<SocketAddr, usize>,
    next_slot: usize,
    held: VecDeque<(Instant, Way, Vec<u8>)>,
    buffer: Vec<u8>,
}

impl Relay {
    fn new(
        front: UdpSocket,
        target: SocketAddr,
        trouble: Trouble,
        counts: Arc<[AtomicU64; 3]>,
    ) -> anyhow::Result<Relay> {
        front.set_nonblocking(true)?;
        let poll = Poll::new()?;
        poll.registry()
            .register(&mut SourceFd(&front.as_raw_fd()), FRONT, Interest::READABLE)?;
        Ok(Relay {
            front,
            target,
            trouble,
            counts,
            random: fastrand::Rng::with_seed(trouble.seed),
            poll,
            events: Events::with_capacity(64),
            slots: Vec::new(),
            slot_of: HashMap::new(),
            next_slot: 0,
            held: VecDeque::new(),
            buffer: vec![0; DATAGRAM_BYTES],
        })
    }

    fn turn(&mut self) -> std::io::Result<()> {
        let wait = self
            .held
            .iter()
            .map(|held| held.0)
            .min()
            .map_or(LOOK, |at| {
                at.saturating_duration_since(Instant::now()).min(LOOK)
            });
        match self.poll.poll(&mut self.events, Some(wait)) {
            Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        let tokens: Vec<_> = self.events.iter().map(mio::event::Event::token).collect();
        for token in tokens {
            self.drain(token)?;
        }
        let now = Instant::now();
        for _ in 0..self.held.len() {
            if let Some((at, way, datagram)) = self.held.pop_front() {
                if at <= now {
                    self.send(way, &datagram);
                } else {
                    self.held.push_back((at, way, datagram));
                }
            }
        }
        Ok(())
    }

    fn drain(&mut self, token: Token) -> std::io::Result<()> {
        loop {
            let received = if token == FRONT {
                self.front.recv_from(&mut self.buffer)
            } else {
                let socket = &self.slots[token.0].1;
                socket.recv(&mut self.buffer).map(|got| (got, self.target))
            };
            let (got, from) = match received {
                Ok(received) => received,
                // No process listened at the target when the proxy sent an earlier datagram.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => continue,
                Err(_) => return Ok(()),
            };
            let way = if token == FRONT {
                Way::Forth(self.slot(from)?)
            } else {
                Way::Back(token.0)
            };
            let datagram = self.buffer[..got].to_vec();
            self.pass(way, datagram);
        }
    }

    fn slot(&mut self, from: SocketAddr) -> std::io::Result<usize> {
        if let Some(slot) = self.slot_of.get(&from) {
            return Ok(*slot);
        }
        let socket = UdpSocket::bind((self.front.local_addr()?.ip(), 0))?;
        socket.connect(self.target)?;
        socket.set_nonblocking(true)?;
        let slot = self.next_slot % SENDERS_MAX;
        self.next_slot += 1;
        self.poll.registry().register(
            &mut SourceFd(&socket.as_raw_fd()),
            Token(slot),
            Interest::READABLE,
        )?;
        if slot < self.slots.len() {
            self.slot_of.remove(&self.slots[slot].0);
            self.slots[slot] = (from, socket);
        } else {
            self.slots.push((from, socket));
        }
        self.slot_of.insert(from, slot);
        Ok(slot)
    }

    fn pass(&mut self, way: Way, datagram: Vec<u8>) {
        let point = self.random.f64();
        let Trouble {
            drop, repeat, hold, ..
        } = self.trouble;
        let count = |index: usize| self.counts[index].fetch_add(1, Ordering::Relaxed);
        if point < drop {
            count(0);
        } else if point < drop + repeat {
            count(1);
            self.send(way, &datagram);
            self.send(way, &datagram);
        } else if point < drop + repeat + hold && self.held.len() < HELD_MAX {
            count(2);
            let wait = self.trouble.hold_max.mul_f64(self.random.f64());
            self.held.push_back((Instant::now() + wait, way, datagram));
        } else {
            self.send(way, &datagram);
        }
    }

    fn send(&self, way: Way, datagram: &[u8]) {
        // If the target is down, or the buffer is full, the datagram is lost, as by any other fault
        // of the network.
        let _ = match way {
            Way::Forth(slot) => self.slots[slot].1.send(datagram),
            Way::Back(slot) => self.front.send_to(datagram, self.slots[slot].0),
        };
    }
}
