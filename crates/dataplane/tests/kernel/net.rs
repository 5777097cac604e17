//! A network between the devices of a chain, clients and the server. The network loses, repeats and reorders packets.
//! It checks that the claims in every packet are true at the moment of sending.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use fastrand::Rng;
use pmnet_device::FastPath;
use pmnet_proto::Peer;
use pmnet_wire::{Kind, Packet};

use crate::rig::{Hook, Part, Passed, kill, run};

pub fn device(place: usize) -> SocketAddr {
    SocketAddr::from((
        Ipv4Addr::new(10, 0, 0, 11 + u8::try_from(place).unwrap()),
        51_000,
    ))
}

pub fn is_client(peer: Peer) -> bool {
    peer.port() / 1_000 == 40
}

pub struct Wire {
    pub from: Peer,
    pub to: Peer,
    pub bytes: Vec<u8>,
}

/// The network, and all packets that were seen on it.
pub struct Net {
    pub rng: Rng,
    pub copies: usize,
    pub now: u64,
    pub flying: Vec<Wire>,
    pub sockets: Vec<Vec<(Peer, Vec<u8>)>>,
    /// Last published order of each device.
    pub last: Vec<u64>,
    /// The order of each frame, and the frame of each order.
    pub identities: HashMap<u64, (u64, u64, u32, u8)>,
    /// The packet that stated the order of a frame; only for messages of failures.
    pub said: HashMap<u64, String>,
    pub orders: HashMap<(u64, u64), u64>,
    /// For each bypass, its session, and the highest order that had been acknowledged to any client when the bypass was
    /// sent.
    pub barriers: HashMap<u64, (u64, u64)>,
    /// The network loses, repeats and reorders packets, and processes are killed.
    pub hostile: bool,
    /// For each device, the number of calls until its process is killed.
    pub kill_in: Vec<Option<u32>>,
    pub acks: u64,
    pub by_kernel: u64,
    /// The number of HITs and MISSes among these.
    pub reads_by_kernel: u64,
}

impl Net {
    /// Sends a packet. Checks that an acknowledgement is true at this moment.
    pub fn emit(&mut self, from: Peer, to: Peer, bytes: Vec<u8>) {
        if let Ok(packet) = Packet::parse(&bytes) {
            let header = packet.header;
            match header.kind {
                Kind::Append => {
                    let who = (
                        header.session,
                        header.seq,
                        header.payload_crc,
                        header.copies.raw(),
                    );
                    let known = *self.identities.entry(header.order).or_insert(who);
                    let told = format!("{from} to {to}: {header}");
                    let first = self.said.entry(header.order).or_insert(told.clone());
                    assert_eq!(known, who, "two identities: {first}, and {told}");
                    self.orders.entry((who.0, who.1)).or_insert(header.order);
                }
                Kind::Ack => {
                    let held = self.last.iter().min().unwrap();
                    assert!(
                        header.order <= *held,
                        "acknowledged {header}, but the logs end at {:?}",
                        self.last
                    );
                    assert_eq!(usize::from(header.copies.raw()), self.copies, "{header}");
                    // A device that is alone acknowledges an update before it sends the APPEND that names the order.
                    let order = self.orders.get(&(header.session, header.seq));
                    assert!(
                        self.copies == 1 || order.is_some_and(|&order| order <= header.order),
                        "{header}: seq has order {order:?}"
                    );
                    self.acks += 1;
                }
                Kind::Bypass => {
                    let (session, barrier) = self.barriers[&header.request.raw()];
                    assert_eq!(session, header.session);
                    assert!(
                        header.order >= barrier,
                        "{header}: {barrier} was acknowledged before it was asked"
                    );
                }
                _ => {}
            }
        } else {
            panic!(
                "a device sent a packet that does not parse: {:?}",
                Packet::parse(&bytes)
            );
        }
        self.flying.push(Wire { from, to, bytes });
    }

    /// Returns the next packet; if an address is given, the next packet to this address.
    pub fn take(&mut self, to: Option<Peer>) -> Option<Wire> {
        let fits = |wire: &Wire| to.is_none_or(|to| wire.to == to);
        let mut all = (0..self.flying.len()).filter(|&at| fits(&self.flying[at]));
        let skip = if self.hostile && self.rng.u8(..4) == 0 {
            self.rng.usize(..6)
        } else {
            0
        };
        let first = all.next()?;
        let at = all.take(skip).last().unwrap_or(first);
        let wire = self.flying.remove(at);
        if self.hostile && self.rng.u8(..40) == 0 {
            // The packet will arrive once more, much later.
            let (from, to, bytes) = (wire.from, wire.to, wire.bytes.clone());
            self.flying.push(Wire { from, to, bytes });
        }
        if self.hostile && self.rng.u8(..40) == 0 {
            return None;
        }
        Some(wire)
    }
}

pub type SharedNet = Arc<Mutex<Net>>;

/// A frame arrives at the interface of a device.
pub fn arrive(net: &SharedNet, kernel: &Part, place: usize, wire: &Wire) {
    // The frames of one caller run one after the other; `Cpus` runs frames of several callers at the same time.
    let passed = run(kernel, wire.from, wire.to, &wire.bytes);
    let last = kernel.lock().unwrap().last();
    let mut net = net.lock().unwrap();
    // Another thread may have run between the two locks.
    net.last[place] = net.last[place].max(last);
    match passed {
        Passed::Out(to, bytes) => {
            net.by_kernel += 1;
            let kind = Packet::parse(&bytes).map(|packet| packet.header.kind);
            net.reads_by_kernel += u64::from(matches!(kind, Ok(Kind::Hit | Kind::Miss)));
            net.emit(device(place), to, bytes);
        }
        Passed::Up => net.sockets[place].push((wire.from, wire.bytes.clone())),
        Passed::Gone => {}
    }
}

/// Returns the hook that is run before each call of the process: other CPUs run frames, or the process is killed.
pub fn hook(net: &SharedNet, place: usize) -> Hook {
    let net = net.clone();
    Arc::new(move |kernel: &Part, _call| {
        let (die, frames) = {
            let mut net = net
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            let due = net.kill_in[place].map(|calls| calls.checked_sub(1));
            net.kill_in[place] = due.flatten();
            (
                due == Some(None),
                if net.hostile {
                    net.rng.u32(..6).saturating_sub(3)
                } else {
                    0
                },
            )
        };
        for _frame in 0..frames {
            let wire = net.lock().unwrap().take(Some(device(place)));
            if let Some(wire) = wire {
                arrive(&net, kernel, place, &wire);
            }
        }
        if die {
            kill();
        }
    })
}
