//! Two devices in user space that get the same packets. The first device copies the packets into its log, as the relay
//! does. The second device gets them in packet buffers of its log, as with `--mode af-xdp`; as in that mode, some
//! packets come through the system's stack. Answers and logs must be equal. These tests need no root.

use std::net::SocketAddr;
use std::ops::Range;

use pmnet_device::{Buffers, DeviceConfig, DeviceNode, Taken};
use pmnet_log::Parameters;
use pmnet_proto::{Peer, Random, Time};
use pmnet_wire::{Header, Kind, Packet};

use crate::differential::{PACKETS, PACKETS_ALL, Pair, Run, number};
use crate::world::{
    DEVICE, IDENTITY, Memory, SHARD, Sent, describe, recover_reply, repaired, server, settings,
    without_kept,
};

/// Number of entries in both logs. The logs have room for the same number of frames of maximum length.
const ENTRIES: u64 = 64;
const RING: Parameters = Parameters::ring(ENTRIES, 131_072);
/// One buffer in 32 is for copies. Here there are so many buffers that the buffers for copies can hold all entries, so
/// the ENDs of many sessions fit into one turn.
const BUFFERS: Parameters = Parameters::buffers(ENTRIES, 32 * ENTRIES * BUFFER, 2_048);
/// Parameters with the usual proportion of buffers to entries: eight buffers of the log are for copies.
const FEW: Parameters = Parameters::buffers(ENTRIES, 4 * ENTRIES * BUFFER, 2_048);
const BUFFER: u64 = 2_048;
/// Hop limit of the packets that clients send.
const HOPS: u8 = 64;
/// Offsets at which a datagram may begin in its buffer: after IPv4 or IPv6 headers, at the start of a cache line or
/// not.
const OFFSETS: [usize; 4] = [320, 340, 321, 500];
/// Of this number of datagrams, one comes through the system's stack and is copied.
const STACK_EVERY: usize = 5;

struct Beside {
    now: Time,
    address: SocketAddr,
    copies: DeviceNode<Memory>,
    keeps: DeviceNode<Memory>,
    /// Buffers that are lent and empty. As with a network interface, these are all buffers that the log does not hold
    /// back.
    lent: Vec<u32>,
    /// All packets come through the system's stack.
    stack_only: bool,
    packets: usize,
    kept: usize,
}

fn device(settings: DeviceConfig, parameters: &Parameters) -> DeviceNode<Memory> {
    let mut memory = Memory(vec![0; parameters.image_bytes()]);
    pmnet_log::format(&mut memory, &IDENTITY, parameters).unwrap();
    DeviceNode::new(settings, repaired(memory), Random::new(9), Time(1))
}

/// Returns the datagrams that a device sends, from its outbox or its log, each with its hop limit.
fn sent(device: &mut DeviceNode<Memory>) -> Vec<(Sent, Option<u8>)> {
    let out = device.out();
    let all = out.places().map(|place| {
        let bytes = match &place.logged {
            Some(frame) => device.log().lent(frame),
            None => out.bytes(place.range.clone()),
        };
        let sent = Sent {
            to: place.to,
            bytes: bytes.to_vec(),
        };
        (sent, place.hops)
    });
    let all = all.collect();
    device.sent();
    all
}

impl Beside {
    fn new(address: SocketAddr, change: &dyn Fn(&mut DeviceConfig)) -> Beside {
        Beside::with(&BUFFERS, address, change)
    }

    fn with(
        buffers: &Parameters,
        address: SocketAddr,
        change: &dyn Fn(&mut DeviceConfig),
    ) -> Beside {
        let mut settings = settings(DEVICE, server(address));
        change(&mut settings);
        let mut pair = Beside {
            now: Time(1),
            address,
            copies: device(settings.clone(), &RING),
            keeps: device(settings, buffers).with_packet_buffers(),
            lent: Vec::new(),
            stack_only: false,
            packets: 0,
            kept: 0,
        };
        while let Some(number) = pair.keeps.buffers().lend() {
            pair.lent.push(number);
        }
        for _turn in 0..64 {
            for packet in pair.compare() {
                if let Some(reply) = recover_reply(&packet.bytes, (0, 0)) {
                    pair.receive(server(address), &reply);
                }
            }
            pair.now = Time(pair.now.0 + 300_000_000);
        }
        assert!(pair.keeps.machine().is_serving());
        pair
    }

    /// Puts this datagram into a lent buffer. Returns the buffer's number, and the datagram's range in the frame space.
    fn put(&mut self, datagram: &[u8]) -> (u32, Range<usize>) {
        let number = self.lent.pop();
        let number = number.expect("a full log leaves buffers to receive into");
        let offset = OFFSETS[self.packets % OFFSETS.len()];
        let at = usize::try_from(u64::from(number) * BUFFER).unwrap() + offset;
        self.keeps.buffers().deposit(at, datagram);
        (number, at..at + datagram.len())
    }

    /// Takes new buffers and returns used ones, as a port does after every turn.
    fn exchange(&mut self) {
        let buffers = self.keeps.buffers();
        while let Some(number) = buffers.poll_released() {
            self.lent.push(number);
        }
        while buffers.wants() {
            buffers.give_back(self.lent.pop().expect("one was released"));
        }
    }

    /// Ends a burst, and checks that both devices sent the same packets. Returns these packets.
    fn compare(&mut self) -> Vec<Sent> {
        self.copies.finish(self.now).unwrap();
        self.keeps.finish(self.now).unwrap();
        let (mut one, mut other) = (sent(&mut self.copies), sent(&mut self.keeps));
        // Only the log with copies keeps applied updates. The other device receives new packets into the buffers of
        // applied updates.
        let (_, _, _, applied) = self.copies.machine().cursors();
        for (sent, _) in one.iter_mut().chain(&mut other) {
            without_kept(sent, applied);
        }
        self.exchange();
        let only = |all: &[(Sent, Option<u8>)]| -> Vec<Sent> {
            all.iter().map(|(sent, _)| sent.clone()).collect()
        };
        assert_eq!(
            describe(&only(&one)),
            describe(&only(&other)),
            "copied beside kept"
        );
        assert_eq!(one, other);
        assert_eq!(
            self.copies.machine().cursors(),
            self.keeps.machine().cursors()
        );
        only(&one)
    }

    /// Compares both logs: the entries, without the positions of their frames, and the frames.
    fn compare_logs(&self) {
        let log = |device: &DeviceNode<Memory>| -> Vec<(String, Vec<u8>)> {
            let log = device.log();
            let orders = log.applied() + 1..=log.last();
            let all = orders.map(|order| {
                let e = log.entry(order).unwrap();
                let said = (e.order, e.session, e.seq, e.durable, e.applied, e.epoch);
                let more = (e.incarnation, e.kind, e.fragment_index, e.fragment_count);
                let text = format!("{said:?} {more:?} {} {:#x}", e.frame_len, e.payload_crc);
                (text, log.frame(order).unwrap().to_vec())
            });
            all.collect()
        };
        assert_eq!(log(&self.copies), log(&self.keeps));
    }
}

impl Pair for Beside {
    fn receive(&mut self, from: Peer, datagram: &[u8]) -> Vec<Sent> {
        self.packets += 1;
        self.copies
            .receive_with_hops(self.now, from, HOPS, datagram)
            .unwrap();
        if self.stack_only || self.packets.is_multiple_of(STACK_EVERY) {
            self.keeps
                .receive_with_hops(self.now, from, HOPS, datagram)
                .unwrap();
        } else {
            let (number, frame) = self.put(datagram);
            let taken = self.keeps.receive_in_place(self.now, from, HOPS, &frame);
            match taken.unwrap() {
                Taken::Kept => self.kept += 1,
                Taken::Heard | Taken::NothingNew | Taken::Refused => self.lent.push(number),
            }
        }
        // A burst has one to three datagrams.
        if self.packets.is_multiple_of(3) || self.packets.is_multiple_of(7) {
            self.compare()
        } else {
            Vec::new()
        }
    }

    fn later(&mut self, nanos: u64) -> Vec<Sent> {
        self.now = Time(self.now.0 + nanos);
        self.compare()
    }

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn cursors(&self) -> (u64, u64, u64, u64) {
        self.copies.machine().cursors()
    }
}

#[test]
fn kept_where_it_came_is_as_if_it_were_copied() {
    let packets = number("PMNET_PACKETS", PACKETS_ALL);
    let first = number("PMNET_SEED", 1);
    let mut kept = 0;
    for seed in first..first + packets.div_ceil(PACKETS) {
        let outcome = std::panic::catch_unwind(|| {
            let mut run = Run::new(seed, Beside::new);
            for packet in 0..PACKETS {
                run.step();
                if packet % 50 == 0 {
                    run.world.compare();
                    run.world.compare_logs();
                }
            }
            run.world.kept
        });
        kept += outcome.unwrap_or_else(|panic| {
            println!("PMNET_SEED={seed} PMNET_PACKETS={PACKETS} shows it again");
            std::panic::resume_unwind(panic);
        });
    }
    println!("{packets} packets, {kept} of them kept");
    let kept = u64::try_from(kept).unwrap();
    assert!(
        kept * 10 > packets,
        "{kept} of {packets}: hardly any was kept, so little was compared"
    );
}

/// Opens a session with this token. Returns the answer to the client.
fn opened(pair: &mut Beside, token: u64) -> Header {
    let client = SocketAddr::from(([10, 0, 0, 1], 40_001));
    let mut open = Vec::new();
    Header {
        shard: SHARD,
        tag: token,
        ..Header::new(Kind::Open)
    }
    .write(&token.to_be_bytes(), &mut open);
    let mut sent = pair.receive(client, &open);
    sent.extend(pair.compare());
    let told = sent.iter().find(|sent| sent.to == client);
    Packet::parse(&told.expect("an answer").bytes)
        .unwrap()
        .header
}

fn pair() -> Beside {
    Beside::with(&FEW, SocketAddr::from(([10, 0, 0, 7], 51_000)), &|_| ())
}

/// Nearly all buffers are lent for receiving. They still count as room, because a received packet stays in its buffer.
#[test]
fn the_room_that_clients_are_told_is_what_the_log_can_take() {
    for stack_only in [false, true] {
        let mut pair = pair();
        pair.stack_only = stack_only;
        let told = opened(&mut pair, 2);
        assert_eq!(told.kind, Kind::OpenReply);
        assert_eq!(told.request.raw(), ENTRIES - 1, "{stack_only}");
    }
}

/// A log that is 80 % full admits no session. Buffers that are free for copies play no part in this: a client whose
/// packets come through the system's stack is admitted like any other client.
#[test]
fn sessions_open_by_the_systems_stack_while_nearly_all_buffers_are_lent() {
    let mut pair = pair();
    pair.stack_only = true;
    // These are more sessions than there are buffers for copies.
    for number in 1..=ENTRIES / 2 {
        let told = opened(&mut pair, 2 * number);
        assert_eq!(told.kind, Kind::OpenReply, "session {number}");
    }
}
