//! Two devices that get the same packets: one entirely in user space, one with its fast path in the kernel. The second
//! device gets the packets as Ethernet frames, by BPF_PROG_TEST_RUN.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use pmnet_dataplane::xdp::{
    Dispatcher, Kernel, KernelConfig, MapMedia, Own, Pins, Status, XDP_DROP, XDP_PASS, XDP_TX,
};
use pmnet_device::{DeviceConfig, DeviceNode, FastPath, Hold};
use pmnet_log::{Identity, Log, Media, MediaError, Parameters, Scan, Tail};
use pmnet_proto::device::{Bucket, ChainState, HopWork, ReadState, SessionState};
use pmnet_proto::{Peer, Random, Time};
use pmnet_wire::packet::Stamp;
use pmnet_wire::record::{Member, RecoverReply, read_path};
use pmnet_wire::{Flags, Header, Kind, Packet, raw};

use crate::keyed::Keys;
use crate::shared::{FOR_EVER, Shard};
use crate::skip::skip;

pub const SHARD: u32 = 3;
pub const SHARD_TOKEN: u64 = 0x1122_3344_5566_7788;
pub const PARAMETERS: Parameters = Parameters::ring(64, 16_384);
pub const DEVICE: u32 = 7;
/// Hardware address of a switch.
const SWITCH_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
/// Number of buckets: small, so that keys share buckets.
const BUCKETS: u32 = 8;
pub const IDENTITY: Identity = Identity {
    log_uuid: 0x0123_4567_89ab_cdef_0011_2233_4455_6677,
    device: DEVICE,
    shard: SHARD,
};

/// Prints why these tests cannot run on this machine, and returns true; in CI this is a failure.
pub fn skipped() -> bool {
    if rustix::process::geteuid().is_root() {
        return false;
    }
    skip("the pipeline in the kernel needs root");
    true
}

/// The test's own mapping of `pm_shards`.
pub struct Words(memmap2::MmapRaw);

impl Words {
    pub fn of(pins: &Pins) -> Words {
        let map = aya::maps::MapData::from_pin(pins.path("pm_shards")).unwrap();
        let fd = map.fd().as_fd().as_raw_fd();
        Words(memmap2::MmapOptions::new().len(4096).map_raw(fd).unwrap())
    }

    #[allow(unsafe_code)]
    pub fn shard(&self) -> &Shard {
        // SAFETY: the page begins with a `Shard`, whose fields are all atomic.
        unsafe { &*self.0.as_ptr().cast::<Shard>() }
    }
}

/// Returns the time of the clock that the pipeline reads.
pub fn boottime() -> Time {
    pmnet_udp::Clock::boottime().now()
}

/// A medium in private memory, durable at once.
pub struct Memory(pub Vec<u8>);

impl Media for Memory {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
    fn store(&mut self, offset: usize, bytes: &[u8]) {
        self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
    fn persist_start(&mut self, _ranges: &[Range<usize>]) -> Result<(), MediaError> {
        Ok(())
    }
    fn persist_poll(&mut self, _wait: bool) -> Result<bool, MediaError> {
        Ok(true)
    }
    fn wakeup_fd(&self) -> Option<RawFd> {
        None
    }
    fn survives(&self) -> &'static str {
        "nothing"
    }
    fn name(&self) -> &'static str {
        "memory"
    }
}

/// The kernel's part of a device, shared by the device and the test that feeds it.
#[derive(Clone)]
pub struct Shared(pub Arc<Mutex<Kernel>>);

impl FastPath for Shared {
    fn admits(&self) -> bool {
        self.0.lock().unwrap().admits()
    }
    fn last(&self) -> u64 {
        self.0.lock().unwrap().last()
    }
    fn tail(&self) -> Tail {
        self.0.lock().unwrap().tail()
    }
    fn hold(&mut self) -> io::Result<Box<dyn Hold + '_>> {
        self.0.lock().unwrap().hold().map(drop)?;
        Ok(Box::new(SharedHold(self)))
    }
    fn look(&mut self) -> HopWork {
        self.0.lock().unwrap().look()
    }
    fn applied(&mut self, applied: u64) {
        self.0.lock().unwrap().applied(applied);
    }
    fn refresh_session(&mut self, id: u64, state: Option<SessionState>) -> io::Result<()> {
        self.0.lock().unwrap().refresh_session(id, state)
    }
    fn sleep(&mut self) -> io::Result<()> {
        self.0.lock().unwrap().sleep()
    }
    fn wakeup_fd(&self) -> Option<RawFd> {
        None
    }
    fn answers_until(&mut self, deadline: Option<Time>) {
        self.0.lock().unwrap().answers_until(deadline);
    }
    fn heard(&mut self, id: u64) -> bool {
        self.0.lock().unwrap().heard(id)
    }
    fn hand_reads_up(&mut self) {
        self.0.lock().unwrap().hand_reads_up();
    }
    fn tell_reads(&mut self, state: &ReadState, changed: &[(usize, Bucket)]) {
        self.0.lock().unwrap().tell_reads(state, changed);
    }
}

/// Locks the mutex only during each call, so the test can run frames between the calls.
struct SharedHold<'a>(&'a Shared);

impl Hold for SharedHold<'_> {
    fn describe(&mut self, stamp: &Stamp, chain: &ChainState) -> bool {
        let mut kernel = self.0.0.lock().unwrap();
        let mut hold = kernel.hold().unwrap();
        hold.describe(stamp, chain)
    }
    fn set_session(&mut self, id: u64, state: Option<SessionState>) -> io::Result<()> {
        self.0.0.lock().unwrap().hold()?.set_session(id, state)
    }
    fn forget_sessions(&mut self) -> io::Result<()> {
        self.0.0.lock().unwrap().hold()?.forget_sessions()
    }
    fn forget_log(&mut self) -> io::Result<()> {
        self.0.0.lock().unwrap().hold()?.forget_log()
    }
    fn tell_reads(&mut self, state: &ReadState, changed: &[(usize, Bucket)]) {
        let mut kernel = self.0.0.lock().unwrap();
        kernel.hold().unwrap().tell_reads(state, changed);
    }
    fn answers_for_ever(&mut self) {
        self.0.0.lock().unwrap().hold().unwrap().answers_for_ever();
    }
    fn release(self: Box<Self>, tail: &Tail) -> io::Result<()> {
        self.0.0.lock().unwrap().hold()?.release(tail)
    }
}

/// Pins of a test, which are removed at the end of the test.
pub struct Scratch(pub Pins);

impl Scratch {
    pub fn new() -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "test-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        Scratch(Pins::open(&name).unwrap())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = self.0.remove() {
            eprintln!("{}: {error}", self.0.folder().display());
        }
    }
}

/// A packet that a device sends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sent {
    pub to: Peer,
    pub bytes: Vec<u8>,
}

pub struct World {
    pub now: Time,
    pub reference: DeviceNode<Memory>,
    pub device: DeviceNode<MapMedia>,
    pub kernel: Shared,
    /// The dispatcher at the interface, which gets all frames; only if there are several devices.
    pub front: Option<Arc<Mutex<Dispatcher>>>,
    pub address: SocketAddr,
    /// In a switch, the switch's own address, to which the neighbouring hops send.
    pub own: Option<SocketAddr>,
    /// Number of packets that the kernel answered by itself.
    pub answered: u64,
    /// The READs among these: the number that got a HIT, and the number that got a MISS.
    pub reads: (u64, u64),
    /// The two devices have begun to release space at different times. From then on their released space is not
    /// compared.
    pub diverged: bool,
    /// Numbers of devices before and after these two in their chain.
    around: (usize, usize),
    words: Words,
    scratch: Scratch,
    /// Keys of the other parties, if the shard has keys.
    keys: Option<Keys>,
    /// Number of packets with a wrong seal that the pipeline had dropped when this number was last compared.
    forged: u64,
}

/// Returns the ids of the other devices, head first.
pub fn others() -> Range<u32> {
    101..110
}

/// Returns the address of the previous device, of the same family as this address.
pub fn before(beside: SocketAddr) -> Peer {
    let mut peer = server(beside);
    peer.set_port(51_400);
    peer
}

/// Returns the address of the next hop, of the same family as this address.
pub fn server(beside: SocketAddr) -> Peer {
    match beside {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::new(10, 0, 0, 200), 51_500)),
        SocketAddr::V6(_) => {
            SocketAddr::from((Ipv6Addr::new(0xfd51, 0, 0, 0, 0, 0, 0, 200), 51_500))
        }
    }
}

pub fn config(address: SocketAddr) -> KernelConfig {
    KernelConfig {
        address,
        own: None,
        parameters: PARAMETERS,
        sessions_max: 64,
        read_buckets: BUCKETS,
        keys: None,
    }
}

/// Returns the settings of a device whose pipeline answers READs.
pub fn settings(id: u32, next: Peer) -> DeviceConfig {
    DeviceConfig {
        read_buckets: usize::try_from(BUCKETS).unwrap(),
        ..DeviceConfig::new(id, SHARD, next)
    }
}

impl World {
    /// Returns two devices that serve epoch 1, each alone in its chain.
    pub fn new(address: SocketAddr, device: impl Fn(&mut DeviceConfig)) -> World {
        World::in_chain(address, (0, 0), device)
    }

    /// Returns two devices that serve epoch 1, each with these numbers of devices before and after it.
    pub fn in_chain(
        address: SocketAddr,
        around: (usize, usize),
        device: impl Fn(&mut DeviceConfig),
    ) -> World {
        World::with(address, None, around, device)
    }

    /// Returns the same devices in a switch that has this address.
    pub fn with(
        address: SocketAddr,
        own: Option<SocketAddr>,
        around: (usize, usize),
        device: impl Fn(&mut DeviceConfig),
    ) -> World {
        let scratch = Scratch::new();
        let mut settings = settings(DEVICE, server(address));
        device(&mut settings);
        let of_switch = own.map(|own| Own {
            address: match own.ip() {
                IpAddr::V4(address) => address,
                IpAddr::V6(_) => panic!("a switch has an IPv4 address"),
            },
            mac: SWITCH_MAC,
        });
        let config = KernelConfig {
            own: of_switch,
            keys: settings.keys.as_ref().map(|keys| keys.cluster.print()),
            ..config(address)
        };
        let (kernel, mut media) = Kernel::load(&config, scratch.0.clone()).unwrap();
        pmnet_log::format(&mut media, &IDENTITY, &PARAMETERS).unwrap();
        let mut memory = Memory(vec![0; PARAMETERS.image_bytes()]);
        pmnet_log::format(&mut memory, &IDENTITY, &PARAMETERS).unwrap();
        let now = Time(1);
        let kernel = Shared(Arc::new(Mutex::new(kernel)));
        let keys = settings.keys.as_ref();
        let keys = keys.map(|keys| Keys::new(keys, address, around));
        let mut world = World {
            keys,
            forged: 0,
            now,
            reference: DeviceNode::new(settings.clone(), repaired(memory), Random::new(9), now),
            device: DeviceNode::new(settings, repaired(media), Random::new(9), now)
                .with_fast_path(Box::new(kernel.clone())),
            kernel,
            front: None,
            address,
            own,
            answered: 0,
            reads: (0, 0),
            diverged: false,
            around,
            words: Words::of(&scratch.0),
            scratch,
        };
        // `open` marks the maps of a complete device in the same way.
        world.words.shard().stage.store(1, Ordering::SeqCst);
        world.settle();
        assert!(world.device.machine().is_serving());
        assert_eq!(world.device.machine().is_head(), around.0 == 0);
        world
    }

    /// Runs timers, and acts as the server in recovery, until the devices send nothing more.
    pub fn settle(&mut self) -> Vec<Sent> {
        let mut said = Vec::new();
        for _turn in 0..64 {
            let sent = self.finish();
            if sent.is_empty() {
                break;
            }
            for packet in sent {
                match recover_reply(&packet.bytes, self.around) {
                    Some(reply) => said.extend(self.receive(server(self.address), &reply)),
                    None => said.push(packet),
                }
            }
            self.now = Time(self.now.0 + 300_000_000);
        }
        said
    }

    /// Gives a datagram to both devices. Both devices must send the same packets, which are returned.
    pub fn receive(&mut self, from: Peer, datagram: &[u8]) -> Vec<Sent> {
        // ENDs of idle sessions may be waiting for room. One device would append them in the burst of this packet, the
        // other device would not. The acknowledgements would then differ, because an acknowledgement counts the entries
        // of its burst.
        let before = if self.reference.machine().own_entries() > 0 {
            self.finish()
        } else {
            Vec::new()
        };
        let mut answer = Vec::new();
        let is_hop = [crate::world::before(self.address), server(self.address)].contains(&from);
        let datagram = &match &mut self.keys {
            Some(keys) => keys.seal(datagram),
            None => datagram.to_vec(),
        };
        // A packet that a client sends to the switch itself goes to the process.
        let to_switch = is_hop || datagram.len() % 8 == 3;
        let to = self.own.filter(|_| to_switch).unwrap_or(self.address);
        let frame = frame(from, to, datagram);
        let mut out = [0; 2048];
        let mut kernel = self.kernel.0.lock().unwrap();
        // The kernel reads the real clock, but the deadlines in its maps are in the time of this world.
        let word = &self.words.shard().answers_until;
        let told = word.load(Ordering::SeqCst);
        let lives = self.now.0 < told;
        word.store(
            if lives { FOR_EVER - 1 } else { boottime().0 },
            Ordering::SeqCst,
        );
        let ran = match &self.front {
            None => kernel.run(&frame, &mut out),
            Some(front) => front.lock().unwrap().run(&frame, &mut out),
        };
        let (verdict, after) = ran.unwrap();
        let mut drops = false;
        word.store(told, Ordering::SeqCst);
        match verdict {
            XDP_TX => {
                // A switch sends to a hop from its own address, and to a client from the server's address.
                let speaks = |datagram: &[u8]| match (self.own, kind_of(datagram)) {
                    (Some(own), Some(Kind::Append | Kind::Durable)) => own,
                    _ => self.address,
                };
                let out = answered(after, self.address, speaks);
                self.reads.0 += u64::from(kind_of(&out.bytes) == Some(Kind::Hit));
                self.reads.1 += u64::from(kind_of(&out.bytes) == Some(Kind::Miss));
                answer.push(match &mut self.keys {
                    Some(keys) => keys.open(out),
                    None => out,
                });
                self.answered += 1;
            }
            XDP_PASS => match self.own {
                Some(own) if to != own => assert_delivered(after, &frame, own),
                _ => assert_eq!(after, frame, "what passes is as it was"),
            },
            XDP_DROP => {
                let forged = self.forged_by_kernel();
                drops = std::mem::replace(&mut self.forged, forged) != forged;
            }
            other => panic!("verdict {other}"),
        }
        let heard = verdict != XDP_PASS
            && !drops
            && match kind_of(datagram) {
                Some(Kind::Update) => kernel.last() == self.device.log().last(),
                kind => kind == Some(Kind::Read),
            };
        let released = (verdict == XDP_TX).then(|| kernel.tail().released);
        drop(kernel);
        if verdict == XDP_PASS {
            self.device.receive(self.now, from, datagram).unwrap();
        }
        self.reference.receive(self.now, from, datagram).unwrap();
        let answer = self.compare_answer(answer, released);
        if heard {
            // When the pipeline has answered a client, user space notices the client only when it looks for idle
            // sessions. A PING makes both devices notice the client now.
            self.ping(from, datagram);
        }
        [before, answer].concat()
    }

    fn ping(&mut self, from: Peer, datagram: &[u8]) {
        let header = Packet::parse(datagram).unwrap().header;
        assert!(self.kernel.heard(header.session), "the kernel noted it");
        let mut ping = Vec::new();
        Header {
            kind: Kind::Ping,
            ..header
        }
        .write(b"", &mut ping);
        if let Some(keys) = &self.keys {
            ping = keys.ping(&header);
        }
        self.device.receive(self.now, from, &ping).unwrap();
        self.reference.receive(self.now, from, &ping).unwrap();
        self.compare(Vec::new());
    }

    /// Gives both devices a lease that was requested at this moment.
    pub fn renew(&mut self, sent_at: Time, length: u64) {
        self.device.renewed(1, sent_at, length);
        self.reference.renewed(1, sent_at, length);
        let told = self.words.shard().answers_until.load(Ordering::SeqCst);
        let deadline = self.reference.machine().deadline();
        assert_eq!(Some(Time(told)), deadline, "the kernel's word");
    }

    /// Checks that without a lease, kernel and user space withhold the same number of answers. Returns this number.
    pub fn compare_silence(&self) -> u64 {
        let name = self.scratch.0.folder().file_name().unwrap();
        let status = Status::read(&name.to_string_lossy()).unwrap();
        let counted = status.counters.iter().find(|(name, _)| *name == "silenced");
        let by_kernel = counted.expect("it is counted").1;
        let of = |counters: &pmnet_proto::device::Counters| counters.silenced;
        assert_eq!(
            by_kernel + of(self.device.machine().counters()),
            of(self.reference.machine().counters()),
            "{by_kernel} by the kernel"
        );
        by_kernel
    }

    /// Stops the forging of packets.
    pub fn nobody_forges(&mut self) {
        self.keys.as_mut().expect("it has keys").honest = true;
    }

    /// Returns the pins of the device with a pipeline.
    pub fn pins(&self) -> &Pins {
        &self.scratch.0
    }

    /// Returns the number of packets that the kernel has dropped as forged; 0 without keys.
    fn forged_by_kernel(&self) -> u64 {
        if self.keys.is_none() {
            return 0;
        }
        let name = self.scratch.0.folder().file_name().unwrap();
        let status = Status::read(&name.to_string_lossy()).unwrap();
        let counted = status.counters.iter().find(|(name, _)| *name == "forged");
        counted.expect("it is counted").1
    }

    /// Checks that both devices have dropped the same number of packets for a wrong seal. Returns the number that the
    /// kernel dropped; `None`: there are no keys.
    pub fn compare_forged(&self) -> Option<u64> {
        self.keys.as_ref()?;
        let by_kernel = self.forged_by_kernel();
        let [ours, theirs] = [
            self.device.machine().counters(),
            self.reference.machine().counters(),
        ];
        let of = |counters: &pmnet_proto::device::Counters| {
            (counters.forged, counters.unknown_key, counters.misled)
        };
        let (forged, unknown, misled) = of(ours);
        assert_eq!(
            (forged + by_kernel, unknown, misled),
            of(theirs),
            "{by_kernel} by the kernel"
        );
        Some(by_kernel)
    }

    /// Ends a burst without a packet.
    pub fn finish(&mut self) -> Vec<Sent> {
        self.compare(Vec::new())
    }

    fn compare(&mut self, answer: Vec<Sent>) -> Vec<Sent> {
        self.compare_answer(answer, None)
    }

    /// Compares the answers of both devices. `released` is the order that was released when the kernel answered by
    /// itself. The end of the burst may release more: user space counts that in this acknowledgement, the kernel in its
    /// next acknowledgement.
    fn compare_answer(&mut self, mut answer: Vec<Sent>, released: Option<u64>) -> Vec<Sent> {
        self.device.finish(self.now).unwrap();
        self.reference.finish(self.now).unwrap();
        if let Some(released) = released {
            let gained = self.reference.log().tail().released - released;
            for sent in &mut answer {
                if !says_room(&sent.bytes) {
                    continue;
                }
                let bytes = std::mem::take(&mut sent.bytes);
                let packet = Packet::parse(&bytes).unwrap();
                Header {
                    request: raw(packet.header.request.raw() + gained),
                    ..packet.header
                }
                .write(packet.payload, &mut sent.bytes);
            }
        }
        let opened = |sent: Vec<Sent>, keys: &mut Option<Keys>| match keys {
            Some(keys) => sent.into_iter().map(|sent| keys.open(sent)).collect(),
            None => sent,
        };
        answer.extend(opened(sent(&mut self.device), &mut self.keys));
        let mut expected = opened(sent(&mut self.reference), &mut self.keys);
        if self.device.log().tail().released < self.reference.log().tail().released {
            // The reference has released space that the device releases one burst later. A comment in this function
            // gives the reason.
            answer.iter_mut().for_each(without_room);
            expected.iter_mut().for_each(without_room);
        }
        if released.is_none() {
            // The process does not show updates that the pipeline may be overwriting.
            let (_, _, _, applied) = self.reference.machine().cursors();
            for sent in answer.iter_mut().chain(&mut expected) {
                without_kept(sent, applied);
            }
        }
        answer.sort();
        expected.sort();
        assert_eq!(
            describe(&answer),
            describe(&expected),
            "kernel beside user space"
        );
        assert_eq!(answer, expected);
        assert_eq!(
            self.device.machine().cursors(),
            self.reference.machine().cursors()
        );
        let (ours, theirs) = (self.device.log().tail(), self.reference.log().tail());
        // This device may follow an entry before it looks for space to release. Then this entry is a witness already,
        // so the device finds less space to release. It releases the space one burst later, and from then on the two
        // devices differ.
        self.diverged |= ours.released < theirs.released;
        let ours = Tail {
            released: ours.released.max(theirs.released),
            ..ours
        };
        assert_eq!(ours, theirs, "the ends of the logs");
        let kernel = self.kernel.0.lock().unwrap().tail();
        let kernel = Tail {
            // In new maps, the numbers are 0.
            laps: kernel.laps.map(|lap| lap.max(1)),
            ..kernel
        };
        // While the last report of a hop says that the store is short of space, the process admits the packets itself,
        // and tells the pipeline at the end.
        if self.device.machine().admits() {
            assert_eq!(kernel, self.device.log().tail());
        }
        expected
    }

    /// Checks that entries, and frames that are not reclaimed, are equal byte for byte.
    pub fn compare_logs(&self) {
        let blocks = 2 * pmnet_log::BLOCK_BYTES;
        let at = PARAMETERS.image_bytes() - usize::try_from(PARAMETERS.frame_bytes).unwrap();
        let (ours, theirs) = (
            self.device.log().medium().bytes(),
            self.reference.log().medium().bytes(),
        );
        let entries = |image: &'_ [u8]| -> Vec<Vec<u8>> {
            let all = image[blocks..at].chunks(pmnet_log::ENTRY_BYTES);
            all.map(<[u8]>::to_vec).collect()
        };
        // With keys, the process of the last device seals an entry of the pipeline only when it sends the entry. The
        // tag, which an entry's checksum covers, is 0 until then.
        let sealed_later = self.keys.is_some() && self.around.1 == 0;
        let compared = pmnet_log::ENTRY_BYTES - if sealed_later { 4 } else { 0 };
        for (slot, (ours, theirs)) in entries(ours).iter().zip(entries(theirs)).enumerate() {
            assert_eq!(ours[..compared], theirs[..compared], "entry in slot {slot}");
        }
        let (_, _, _, applied) = self.reference.machine().cursors();
        for order in applied + 1..=self.reference.log().last() {
            let [ours, theirs] = [
                self.device.log().frame(order),
                self.reference.log().frame(order),
            ];
            if sealed_later && ours.is_some_and(|frame| frame[80..88] == [0; 8]) {
                assert_eq!(
                    ours.map(without_tag),
                    theirs.map(without_tag),
                    "frame {order}"
                );
            } else {
                assert_eq!(ours, theirs, "frame {order}");
            }
        }
    }
}

fn without_tag(frame: &[u8]) -> Vec<u8> {
    let packet = Packet::parse(frame).unwrap();
    let mut out = Vec::new();
    Header {
        tag: 0,
        ..packet.header
    }
    .write(packet.payload, &mut out);
    out
}

pub fn repaired<M: Media>(media: M) -> Log<M> {
    let scan = Scan::open(media, None).unwrap();
    let decision = scan.decide();
    scan.repair(decision).unwrap()
}

fn sent<M: Media>(device: &mut DeviceNode<M>) -> Vec<Sent> {
    let all = device
        .out()
        .iter()
        .map(|(to, bytes)| Sent {
            to,
            bytes: bytes.to_vec(),
        })
        .collect();
    device.sent();
    all
}

/// Returns whether the datagram states how many entries are free.
fn says_room(datagram: &[u8]) -> bool {
    matches!(kind_of(datagram), Some(Kind::Ack | Kind::Durable))
}

/// Turns a HIT with an applied update into a MISS. A HIT has no version, so the version of a MISS is removed too.
pub fn without_kept(sent: &mut Sent, applied: u64) {
    let bytes = std::mem::take(&mut sent.bytes);
    let header = Packet::parse(&bytes).map(|packet| packet.header);
    match header {
        Ok(header) if matches!(header.kind, Kind::Hit | Kind::Miss) && header.order <= applied => {
            Header {
                kind: Kind::Miss,
                seq: 0,
                payload_len: 0,
                payload_crc: 0,
                ..header
            }
            .write(b"", &mut sent.bytes);
        }
        _ => sent.bytes = bytes,
    }
}

/// Sets the free entries in an acknowledgement to 0.
fn without_room(sent: &mut Sent) {
    if !says_room(&sent.bytes) {
        return;
    }
    let bytes = std::mem::take(&mut sent.bytes);
    let packet = Packet::parse(&bytes).unwrap();
    Header {
        request: raw(0),
        ..packet.header
    }
    .write(packet.payload, &mut sent.bytes);
}

fn kind_of(datagram: &[u8]) -> Option<Kind> {
    Packet::parse(datagram)
        .ok()
        .map(|packet| packet.header.kind)
}

pub fn describe(sent: &[Sent]) -> Vec<String> {
    sent.iter()
        .map(|packet| match Packet::parse(&packet.bytes) {
            Ok(parsed) if parsed.header.kind == Kind::Durable => {
                let rows = pmnet_wire::record::read_durable(parsed.payload);
                format!("{} {:?} {rows:?}", packet.to, parsed.header)
            }
            Ok(parsed) => format!("{} {:?}", packet.to, parsed.header),
            Err(reason) => format!("{} {reason}", packet.to),
        })
        .collect()
}

/// Returns another device of the chain.
fn other(device: u32) -> Member {
    Member {
        device,
        incarnation: 1,
        log_uuid: device.into(),
        tail: 0,
        applied: 0,
        flags: 0,
        word_epoch: 0,
        served: 1,
        size: pmnet_wire::FragmentSize::MAX,
    }
}

pub fn recover_reply(bytes: &[u8], (before, behind): (usize, usize)) -> Option<Vec<u8>> {
    let packet = Packet::parse(bytes).ok()?;
    let asked = packet.header;
    (asked.kind == Kind::Recover).then(|| {
        let payload = RecoverReply {
            shard_token: SHARD_TOKEN,
            members: others()
                .take(before)
                .map(other)
                .chain(read_path(packet.payload).unwrap())
                .chain(others().skip(before).take(behind).map(other))
                .collect(),
            sessions: Vec::new(),
        }
        .write();
        let mut out = Vec::new();
        Header {
            shard: SHARD,
            epoch: 1,
            device: asked.device,
            incarnation: asked.incarnation,
            request: asked.request,
            flags: Flags::READS,
            ..Header::new(Kind::RecoverReply)
        }
        .write(&payload, &mut out);
        out
    })
}

/// Returns the Ethernet frame of a datagram.
pub fn frame(from: SocketAddr, to: SocketAddr, datagram: &[u8]) -> Vec<u8> {
    let mut out = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    let udp_len = u16::try_from(8 + datagram.len()).unwrap();
    match (from.ip(), to.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            out.extend([8, 0, 0x45, 0]);
            out.extend((20 + udp_len).to_be_bytes());
            out.extend([0, 1, 0x40, 0, 64, 17, 0, 0]);
            out.extend(source.octets());
            out.extend(destination.octets());
            let sum = internet_checksum(&out[14..34]);
            out[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            out.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            out.extend(udp_len.to_be_bytes());
            out.extend([17, 64]);
            out.extend(source.octets());
            out.extend(destination.octets());
        }
        _ => panic!("one family"),
    }
    out.extend(from.port().to_be_bytes());
    out.extend(to.port().to_be_bytes());
    out.extend(udp_len.to_be_bytes());
    out.extend([0, 0]);
    out.extend(datagram);
    // Some frames have no checksum. No stack accepts them over IPv6, so the pipeline must not forward them.
    if from.is_ipv6() && datagram.len() % 16 != 1 {
        let sum = udp6_checksum(&out);
        out[60..62].copy_from_slice(&sum.to_be_bytes());
    }
    out
}

/// Returns the UDP checksum over IPv6 for a frame that has 0 there. For a frame with a correct checksum it returns 0.
fn udp6_checksum(frame: &[u8]) -> u16 {
    let mut pseudo = frame[22..54].to_vec();
    pseudo.extend([0, 0, frame[18], frame[19], 0, 0, 0, 17]);
    pseudo.extend(&frame[54..]);
    internet_checksum(&pseudo)
}

/// Checks a frame that the pipeline passed to the stack of a switch: it has the switch's own addresses, and no UDP
/// checksum.
fn assert_delivered(after: &[u8], before: &[u8], own: SocketAddr) {
    let IpAddr::V4(address) = own.ip() else {
        panic!("a switch has an IPv4 address");
    };
    let mut expected = before.to_vec();
    expected[..6].copy_from_slice(&SWITCH_MAC);
    expected[30..34].copy_from_slice(&address.octets());
    expected[24..26].copy_from_slice(&after[24..26]);
    assert_eq!(after, expected, "delivered to the switch");
    assert_eq!(internet_checksum(&after[14..34]), 0, "IPv4 checksum");
}

/// Returns the datagram in a frame that the kernel sends; checks every byte around it. `speaks` gives the sender's
/// address of a datagram.
fn answered(frame: &[u8], device: SocketAddr, speaks: impl Fn(&[u8]) -> SocketAddr) -> Sent {
    assert_eq!(frame[..12], [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1], "turned");
    let udp = match device {
        SocketAddr::V4(_) => {
            assert_eq!(internet_checksum(&frame[14..34]), 0, "IPv4 checksum");
            assert_eq!(
                usize::from(u16::from_be_bytes([frame[16], frame[17]])),
                frame.len() - 14
            );
            34
        }
        SocketAddr::V6(_) => {
            let len = u16::from_be_bytes([frame[18], frame[19]]);
            assert_eq!(usize::from(len), frame.len() - 54);
            assert_eq!(udp6_checksum(frame), 0, "UDP checksum over IPv6");
            54
        }
    };
    let address = |at: usize| match device {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::from(
            <[u8; 4]>::try_from(&frame[at..at + 4]).unwrap(),
        )),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::from(
            <[u8; 16]>::try_from(&frame[at..at + 16]).unwrap(),
        )),
    };
    let width = if device.is_ipv4() { 4 } else { 16 };
    let port = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let to = SocketAddr::new(address(udp - width), port(udp + 2));
    assert_eq!(address(udp - 2 * width), speaks(&frame[udp + 8..]).ip());
    assert_eq!(port(udp), device.port());
    assert_eq!(usize::from(port(udp + 4)), frame.len() - udp);
    Sent {
        to,
        bytes: frame[udp + 8..].to_vec(),
    }
}

fn internet_checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}
