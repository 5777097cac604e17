//! A tap in a link. The tap keeps a sample of the passing packets, and sends packets to both ends
//! of the link.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pmnet_wire::{Header, Kind};
use pnet_datalink::{Channel, ChannelType, Config, DataLinkReceiver, DataLinkSender};

use super::packets::{Datagram, Field, Hoard, Trick, Tricks};
use super::witness::Witness;
use crate::bench::pipeline::frame;
use crate::harness::namespaces::enter;

/// Link address of all frames that the adversary sends. Taps ignore frames with this address.
const OWN_MAC: [u8; 6] = [2, 0xad, 0, 0, 0, 1];
/// Interval at which a tap checks whether the attack has ended.
const LOOK: Duration = Duration::from_millis(20);
/// Interval between two bursts of sent packets.
const TURN: Duration = Duration::from_millis(1);
/// Maximum number of packets in a burst. A sender that is late makes up for a part of the delay
/// only.
const BURST: u64 = 400;
/// Number of bytes of the Ethernet and IPv4 headers, before the UDP header.
const UDP_AT: usize = 14 + 20;
const PAYLOAD_AT: usize = UDP_AT + 8;

/// An end of a link, to which a tap can send.
#[derive(Clone, Debug)]
pub struct End {
    /// Name of the end's machine, which is also the name of the tap's port to it.
    pub name: String,
    /// The link address of the end.
    pub mac: [u8; 6],
    /// The IP address of the end.
    pub ip: Ipv4Addr,
}

/// Number of packets sent, by receiver, trick and kind.
pub type Sent = BTreeMap<(String, Trick, Option<Kind>), u64>;

/// State that all taps share.
pub struct Shared {
    /// The sample of seen packets.
    pub hoard: RwLock<Hoard>,
    /// The entries that appeared, and the packets of the front that asked for entries.
    pub witness: Mutex<Witness>,
    /// Receivers, sender addresses and the adversary's key. The client's port is kept in
    /// `client_port`.
    pub field: Field,
    /// The client's address.
    pub client: Ipv4Addr,
    /// The client's port in its last packet; 0: no packet was seen yet.
    pub client_port: AtomicU16,
    /// The packets sent so far.
    pub sent: Mutex<Sent>,
    /// Number of packets that each tap sends per second; 0: the taps only receive.
    pub rate: AtomicU64,
    /// The adversary also sends repeated packets.
    pub repeats: AtomicBool,
    /// Number of packets that all taps together still have to send.
    pub left: AtomicU64,
    /// The attack has ended.
    pub over: AtomicBool,
}

type Ends = (Box<dyn DataLinkSender>, Box<dyn DataLinkReceiver>);

fn open(interface: &str) -> anyhow::Result<Ends> {
    let all = pnet_datalink::interfaces();
    let interface = all.iter().find(|known| known.name == interface);
    let config = Config {
        read_timeout: Some(LOOK),
        channel_type: ChannelType::Layer2,
        ..Config::default()
    };
    let interface = interface.context("a tap's port is missing")?;
    match pnet_datalink::channel(interface, config).context("a tap needs root")? {
        Channel::Ethernet(to, from) => Ok((to, from)),
        _ => bail!("a tap's port is no Ethernet"),
    }
}

/// Returns the link address of an interface of the calling thread's namespace.
pub fn mac(interface: &str) -> anyhow::Result<[u8; 6]> {
    let all = pnet_datalink::interfaces();
    let found = all.into_iter().find(|known| known.name == interface);
    let found = found.and_then(|interface| interface.mac);
    let mac = found.with_context(|| format!("{interface} has no link address"))?;
    Ok(mac.octets())
}

/// Receives the packets that pass this tap until the attack ends.
pub fn look(namespace: &str, port: &str, shared: &Shared) -> anyhow::Result<()> {
    enter(namespace)?;
    let (_, mut receiver) = open(port)?;
    let mut random = fastrand::Rng::new();
    while !shared.over.load(Ordering::Relaxed) {
        // `next` fails when its timeout has passed. The loop then goes on.
        let Some(datagram) = receiver.next().ok().and_then(parsed) else {
            continue;
        };
        if Header::kind_of(&datagram.bytes).is_none() {
            continue;
        }
        for end in [datagram.from, datagram.to] {
            if *end.ip() == shared.client {
                shared.client_port.store(end.port(), Ordering::Relaxed);
            }
        }
        let by_front = *datagram.from.ip() == shared.client;
        let mut witness = shared.witness.lock().expect("no tap panics");
        witness.note(&datagram.bytes, by_front);
        drop(witness);
        let mut hoard = shared.hoard.write().expect("no tap panics");
        hoard.keep(&mut random, datagram);
    }
    Ok(())
}

/// Returns the UDP datagram of a frame, unless the frame is the adversary's own.
fn parsed(frame: &[u8]) -> Option<Datagram> {
    let is_udp = frame.get(12..15)? == [8, 0, 0x45] && frame.get(23)? == &17;
    if !is_udp || frame.get(6..12)? == OWN_MAC {
        return None;
    }
    let octets = |at: usize| -> Option<Ipv4Addr> {
        let bytes: [u8; 4] = frame.get(at..at + 4)?.try_into().ok()?;
        Some(bytes.into())
    };
    let number = |at: usize| -> Option<u16> {
        let bytes = frame.get(at..at + 2)?.try_into().ok()?;
        Some(u16::from_be_bytes(bytes))
    };
    let length = usize::from(number(UDP_AT + 4)?);
    Some(Datagram {
        from: SocketAddrV4::new(octets(26)?, number(UDP_AT)?),
        to: SocketAddrV4::new(octets(30)?, number(UDP_AT + 2)?),
        bytes: frame.get(PAYLOAD_AT..UDP_AT + length)?.to_vec(),
    })
}

/// Sends from this tap to the two ends of its link until the attack ends.
pub fn send(namespace: &str, ends: &[End; 2], shared: &Shared) -> anyhow::Result<()> {
    enter(namespace)?;
    let mut ports = Vec::new();
    for end in ends {
        ports.push(open(&end.name)?.0);
    }
    let mut random = fastrand::Rng::new();
    let mut field = shared.field.clone();
    let mut sent: BTreeMap<(usize, Trick, Option<Kind>), u64> = BTreeMap::new();
    let mut due = Instant::now();
    // The number of packets that are due, multiplied by a million.
    let mut owed = 0;
    while !shared.over.load(Ordering::Relaxed) {
        std::thread::sleep(TURN);
        let passed = due.elapsed();
        due = Instant::now();
        let rate = shared.rate.load(Ordering::Relaxed);
        let micros = u64::try_from(passed.as_micros()).unwrap_or(u64::MAX);
        owed += rate.saturating_mul(micros);
        let count = (owed / 1_000_000).min(BURST);
        owed %= 1_000_000;
        let tricks = match shared.repeats.load(Ordering::Relaxed) {
            true => Tricks::All,
            false => Tricks::WithoutEffect,
        };
        let port = shared.client_port.load(Ordering::Relaxed);
        for role in &mut field.roles {
            if *role.ip() == shared.client {
                role.set_port(port);
            }
        }
        let to = |end: &End| {
            field
                .roles
                .iter()
                .find(|role| *role.ip() == end.ip)
                .copied()
        };
        let to: Vec<SocketAddrV4> = ends.iter().filter_map(to).collect();
        let hoard = shared.hoard.read().expect("no tap panics");
        for _ in 0..count {
            let Some(shot) = field.shot(&mut random, &hoard, tricks, &to) else {
                continue;
            };
            let is_left = |left: u64| left.checked_sub(1);
            let (set, load) = (Ordering::Relaxed, Ordering::Relaxed);
            if shared.left.fetch_update(set, load, is_left).is_err() {
                break;
            }
            let reached = ends.iter().position(|end| end.ip == *shot.datagram.to.ip());
            let end = reached.context("a shot goes to one of both ends")?;
            let datagram = shot.datagram;
            let (from, to) = (SocketAddr::V4(datagram.from), SocketAddr::V4(datagram.to));
            let mut frame = frame::udp(from, to, &datagram.bytes)?;
            frame[..6].copy_from_slice(&ends[end].mac);
            frame[6..12].copy_from_slice(&OWN_MAC);
            // The socket's buffer is full. The packet is not counted, and another packet is sent
            // instead.
            if ports[end]
                .send_to(&frame, None)
                .is_some_and(|sent| sent.is_ok())
            {
                *sent.entry((end, shot.trick, shot.kind)).or_default() += 1;
            } else {
                shared.left.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    let mut all = shared.sent.lock().expect("no tap panics");
    for ((end, trick, kind), count) in sent {
        let key = (ends[end].name.clone(), trick, kind);
        *all.entry(key).or_default() += count;
    }
    Ok(())
}
