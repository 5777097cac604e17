//! A network with one client. The clock of the network advances when no other work is left.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;

use bytes::Bytes;
use pmnet_device::{Buffers, Port, Taken, Wake};
use pmnet_proto::client::{CallId, Client, ClientConfig, Event, Outcome, SessionHandle};
use pmnet_proto::time::{MICROSECOND, MILLISECOND, SECOND, earliest};
use pmnet_proto::{Outbox, Peer, Random, Time};

const fn peer(last: u8) -> Peer {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)), 51_000)
}
pub const HEAD: Peer = peer(1);
const CLIENT: Peer = peer(2);
/// One packet in this number of packets is lost.
const LOST: u64 = 23;
/// Size of a packet buffer in bytes. `FRONT` is the offset of the packet in the buffer.
const BUFFER: usize = 2048;
const FRONT: usize = 42;
/// Maximum number of buffers that are lent at the same time.
const LENT: usize = 6;
/// Maximum number of calls in flight.
const CALLS: usize = 24;
/// Longest virtual time of a run. A call that has no answer by then will not get one.
const LONG: u64 = 3600 * SECOND;

/// One call of the client.
pub struct Call {
    pub payload: Vec<u8>,
    pub hash: u64,
    /// The call is a bypass, so the server answers it.
    pub bypass: bool,
}

pub struct Network {
    now: Cell<Time>,
    client: Client,
    session: SessionHandle,
    script: VecDeque<Call>,
    waiting: Vec<CallId>,
    /// The replies, in the order of the calls. Among calls of one kind, the outcomes also come in this order.
    pub replies: Vec<(CallId, Bytes)>,
    pub committed: usize,
    /// The calls in the order of their submission. The outcome of each is a reply, or an acknowledgement without a
    /// reply.
    pub submitted: Vec<CallId>,
    pub outcomes: BTreeMap<CallId, Option<Bytes>>,
    out: Outbox,
    random: Random,
    /// Packets are received in the buffers in which they are logged.
    in_place: bool,
    arrived: Vec<Range<usize>>,
    lent: Vec<u32>,
    back: Vec<u32>,
    /// Number of turns until the run must have ended.
    turns: u64,
}

impl Network {
    pub fn new(script: Vec<Call>, in_place: bool, seed: u64) -> Network {
        let mut client = Client::new(ClientConfig::new(HEAD), Random::new(seed));
        let session = client.open(Time(0)).unwrap();
        Network {
            now: Cell::new(Time(1)),
            client,
            session,
            script: script.into(),
            waiting: Vec::new(),
            replies: Vec::new(),
            committed: 0,
            submitted: Vec::new(),
            outcomes: BTreeMap::new(),
            out: Outbox::new(),
            random: Random::new(seed ^ 1),
            in_place,
            arrived: Vec::new(),
            lent: Vec::new(),
            back: Vec::new(),
            turns: 200_000,
        }
    }

    /// Forgets the device and its buffers after a crash. A new device follows.
    pub fn crash(&mut self) {
        self.arrived.clear();
        self.lent.clear();
        self.back.clear();
    }

    pub fn script(&mut self, more: Vec<Call>) {
        self.script.extend(more);
    }

    pub fn is_done(&self) -> bool {
        self.script.is_empty() && self.waiting.is_empty()
    }

    fn lost(&mut self) -> bool {
        self.random.next_u64().is_multiple_of(LOST)
    }

    fn submit(&mut self) {
        while self.waiting.len() < CALLS
            && let Some(call) = self.script.pop_front()
        {
            let deadline = self.now.get() + LONG;
            let payload = Bytes::from(call.payload);
            let client = &mut self.client;
            let submitted = match call.bypass {
                true => client.bypass(self.session, payload, call.hash, false, deadline),
                false => client.update(self.session, payload, call.hash, deadline),
            };
            let call = submitted.unwrap();
            self.waiting.push(call);
            self.submitted.push(call);
        }
    }

    fn hear(&mut self) {
        while let Some(event) = self.client.poll_event() {
            match event {
                Event::Done { call, outcome, .. } => {
                    self.waiting.retain(|waiting| *waiting != call);
                    match outcome {
                        Outcome::Committed { .. } => {
                            self.committed += 1;
                            self.outcomes.insert(call, None);
                        }
                        Outcome::Reply(reply) => {
                            self.outcomes.insert(call, Some(reply.clone()));
                            self.replies.push((call, reply));
                        }
                        other => panic!("{call:?}: {other:?}"),
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Returns the packets that the client sends in this turn.
    fn packets(&mut self) -> Vec<Vec<u8>> {
        self.submit();
        self.client.flush(self.now.get(), &mut self.out);
        let packets: Vec<Vec<u8>> = self.out.iter().map(|(_, bytes)| bytes.to_vec()).collect();
        self.out.clear();
        packets.into_iter().filter(|_| !self.lost()).collect()
    }
}

impl Port for Network {
    fn receive(&mut self, deliver: &mut dyn FnMut(Peer, u8, &[u8])) -> io::Result<usize> {
        if self.in_place {
            return Ok(0);
        }
        let packets = self.packets();
        for packet in &packets {
            deliver(CLIENT, 64, packet);
        }
        Ok(packets.len())
    }

    fn receive_in_place(
        &mut self,
        deliver: &mut dyn FnMut(Peer, u8, &Range<usize>) -> Taken,
    ) -> io::Result<usize> {
        let arrived = std::mem::take(&mut self.arrived);
        for place in &arrived {
            if deliver(CLIENT, 64, place) != Taken::Kept {
                self.back.push(u32::try_from(place.start / BUFFER).unwrap());
            }
        }
        Ok(arrived.len())
    }

    fn exchange(&mut self, log: &mut dyn Buffers) -> io::Result<()> {
        while let Some(number) = log.poll_released() {
            self.back.push(number);
        }
        for number in self.back.drain(..) {
            log.give_back(number);
        }
        while self.lent.len() < LENT
            && let Some(number) = log.lend()
        {
            self.lent.push(number);
        }
        if !self.arrived.is_empty() {
            return Ok(());
        }
        for packet in self.packets() {
            // If no buffer is free, the packet is lost.
            let Some(number) = self.lent.pop() else { break };
            let start = usize::try_from(number).unwrap() * BUFFER + FRONT;
            log.deposit(start, &packet);
            self.arrived.push(start..start + packet.len());
        }
        Ok(())
    }

    fn send(&mut self, out: &Outbox) -> io::Result<()> {
        for (to, bytes) in out.iter() {
            assert_eq!(to, CLIENT);
            if !self.lost() {
                self.client.receive(self.now.get(), HEAD, bytes);
            }
        }
        Ok(())
    }

    fn now(&self) -> Time {
        self.now.get()
    }

    fn wait(&mut self, busy: bool, until: Option<Time>) -> io::Result<Wake> {
        self.hear();
        self.turns -= 1;
        assert!(self.turns > 0, "calls that wait: {:?}", self.waiting);
        if self.is_done() {
            return Ok(Wake::Stop);
        }
        let now = self.now.get();
        let soon = now + 20 * MICROSECOND;
        let next = match busy || !self.arrived.is_empty() {
            true => soon,
            false => earliest(until, self.client.next_timeout())
                .map_or(soon, |at| at.min(now + MILLISECOND)),
        };
        self.now.set(next.max(now + MICROSECOND));
        Ok(Wake::Work)
    }
}
