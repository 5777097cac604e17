//! The pipeline in the kernel, as user space sees it: loads it, maps what it shares, holds and
//! releases it (`docs/spec/pipeline.md`).

#![allow(unsafe_code)]

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use aya::maps::{HashMap as BpfHashMap, Map, MapData, RingBuf};
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::{ProgramError, ProgramFd, TestRun, TestRunOptions, Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader};
use memmap2::{MmapOptions, MmapRaw};
use pmnet_device::FastPath;
use pmnet_log::{Media, Parameters, Tail};
use pmnet_proto::Peer;
use pmnet_proto::device::{ChainState, HopWork, SessionState};
use pmnet_wire::Header;
use pmnet_wire::packet::{Ack, Append, Fragment, Stamp, Update};

use super::error::KernelError;
use super::image::MapMedia;
use super::pins::Pins;
use super::rows::{Rows, mask};
use super::shared::{Counters, Hops, LAYOUT, Session, Shard};
use super::stage::{Stage, is_unused};

/// The compiled programs; empty if there was no compiler.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/pipeline.o"));
/// Bytes behind the image, so that the verifier can bound what begins inside it.
const PAD_BYTES: usize = 8192;
const PAGE_BYTES: usize = 4096;
/// The verifier allows no larger offsets into a map.
const FRAME_BYTES_MAX: u64 = 256 << 20;
const ENTRIES_MAX: u64 = 1 << 22;
const IMAGE: &str = "pm_image";
/// `BPF_MAP_TYPE_ARRAY` and `BPF_F_MMAPABLE` (linux/bpf.h).
const TYPE_ARRAY: u32 = 2;
const FLAG_MMAPABLE: u32 = 1 << 10;
/// How long `hold` and its like try to get the lock.
const LOCK_WAIT: Duration = Duration::from_secs(3);
/// Tries without a pause between them; each looks for some tens of microseconds.
const LOCK_TRIES: u32 = 16;
/// The pause.
const LOCK_PAUSE: Duration = Duration::from_micros(50);
/// A frame that the programs that look at none are run with.
const NO_FRAME: [u8; 64] = [0; 64];
/// Verdicts of XDP programs (linux/bpf.h).
pub const XDP_DROP: u32 = 1;
/// Up to the network stack.
pub const XDP_PASS: u32 = 2;
/// Back out of the interface that it came in by.
pub const XDP_TX: u32 = 3;

/// What the kernel's part of a device needs to know.
#[derive(Clone, Debug)]
pub struct KernelConfig {
    /// Address and port to which clients send.
    pub address: SocketAddr,
    /// In a switch: where the device itself is, with the same port.
    pub own: Option<Own>,
    /// Size of the log; both numbers are powers of two.
    pub parameters: Parameters,
    /// Sessions that the pipeline serves, at most; others are served by user space.
    pub sessions_max: u32,
}

/// A device in a switch, apart from the server for which it speaks.
#[derive(Clone, Copy, Debug)]
pub struct Own {
    /// Its address.
    pub address: Ipv4Addr,
    /// Hardware address under which the switch takes packets for itself.
    pub mac: [u8; 6],
}

/// The loaded pipeline of one shard.
pub struct Kernel {
    ebpf: Ebpf,
    pins: Pins,
    shard: MmapRaw,
    chain: MmapRaw,
    sessions: MmapRaw,
    index: BpfHashMap<MapData, u64, u32>,
    wakeups: RingBuf<MapData>,
    rows: Rows,
    rows_max: u32,
    /// Which row a session's id asks for: known to the pipeline as well.
    mask: u32,
    held: bool,
    stamp: Stamp,
    copies: u8,
    /// In a switch the hops are not the pipeline's.
    own: bool,
}

impl Kernel {
    /// Loads the pipeline; maps that are pinned already are used as they are, with what they hold. New ones are not a
    /// device yet: [`super::open`] makes one of them. Gives the log's medium as well. The pipeline is held, unless it was admitting.
    ///
    /// # Errors
    /// [`KernelError`].
    pub fn load(config: &KernelConfig, pins: Pins) -> Result<(Kernel, MapMedia), KernelError> {
        if OBJECT.is_empty() {
            return Err(KernelError::NotBuilt);
        }
        if !cfg!(target_arch = "x86_64") {
            return Err(KernelError::Architecture);
        }
        let Parameters {
            entries,
            frame_bytes,
        } = config.parameters;
        if !entries.is_power_of_two() || !frame_bytes.is_power_of_two() {
            return Err(KernelError::Parameters(format!(
                "the pipeline needs powers of two: {entries} entries, {frame_bytes} bytes of frames"
            )));
        }
        if frame_bytes > FRAME_BYTES_MAX || entries > ENTRIES_MAX {
            return Err(KernelError::Parameters(format!(
                "a log in the kernel has at most {ENTRIES_MAX} entries and {} MiB of frames, which is what a verifier \
                 allows: choose a smaller --log-size, or --mode relay",
                FRAME_BYTES_MAX >> 20
            )));
        }
        check_layout(&pins)?;
        let image_bytes = config.parameters.image_bytes();
        let (image, _) = map_image(&pins, Some(image_bytes))?;
        let (high, low) = address_words(config.address.ip());
        let port = u32::from(u16::from_ne_bytes(config.address.port().to_be_bytes()));
        let own_address = config
            .own
            .map_or(0, |own| u32::from_ne_bytes(own.address.octets()));
        let mut own_mac = [0u8; 8];
        if let Some(own) = config.own {
            own_mac[..6].copy_from_slice(&own.mac);
        }
        let own_mac = u64::from_ne_bytes(own_mac);
        let session_mask = mask(config.sessions_max);
        let mut loader = EbpfLoader::new();
        loader
            .override_global("pm_entries", &entries, true)
            .override_global("pm_frame_bytes", &frame_bytes, true)
            .override_global("pm_address_high", &high, true)
            .override_global("pm_address_low", &low, true)
            .override_global("pm_port", &port, true)
            .override_global("pm_session_mask", &session_mask, true)
            .override_global("pm_own_address", &own_address, true)
            .override_global("pm_own_mac", &own_mac, true)
            .map_max_entries("pm_sessions", config.sessions_max)
            .map_max_entries("pm_session_rows", config.sessions_max);
        for name in MAPS {
            loader.map_pin_path(name, pins.path(name));
        }
        let mut ebpf = loader.load(OBJECT)?;
        for name in ["pipeline", "hold", "release", "wake_me"] {
            program(&mut ebpf, name)?
                .load()
                .map_err(|source| KernelError::Program { name, source })?;
        }
        let shard = mapped(&take(&mut ebpf, "pm_shards"), PAGE_BYTES)?;
        let chain = mapped(&take(&mut ebpf, "pm_chain"), PAGE_BYTES)?;
        let sessions = take(&mut ebpf, "pm_sessions");
        // Pinned maps keep the size that they were made with.
        let rows_max = sessions
            .info()
            .map_err(|error| KernelError::map("pm_sessions", error))?
            .max_entries();
        let bytes = usize::try_from(rows_max).unwrap_or(0) * size_of::<Session>();
        let sessions = mapped(&sessions, bytes)?;
        let index = take_map(&mut ebpf, "pm_session_rows");
        let wakeups = take_map(&mut ebpf, "pm_wakeups");
        let mut kernel = Kernel {
            ebpf,
            pins,
            shard,
            chain,
            sessions,
            index: BpfHashMap::try_from(index)
                .map_err(|e| KernelError::map("pm_session_rows", e))?,
            wakeups: RingBuf::try_from(wakeups).map_err(|e| KernelError::map("pm_wakeups", e))?,
            rows: Rows::new(rows_max, session_mask),
            rows_max,
            mask: session_mask,
            held: false,
            stamp: Stamp::default(),
            copies: 1,
            own: config.own.is_some(),
        };
        kernel.shard().layout.store(LAYOUT, Relaxed);
        kernel.held = !kernel.admits();
        Ok((kernel, MapMedia::new(image, image_bytes)))
    }

    /// The size of the log that is pinned.
    ///
    /// # Errors
    /// [`KernelError`]: there is none, or it cannot be read.
    pub fn parameters(pins: &Pins) -> Result<Parameters, KernelError> {
        let (map, bytes) = map_image(pins, None)?;
        pmnet_log::parameters(MapMedia::new(map, bytes).bytes())
            .map_err(|error| KernelError::Parameters(error.to_string()))
    }

    /// The image of the log that is pinned, mapped once more.
    ///
    /// # Errors
    /// [`KernelError`]: there is none.
    pub fn image(pins: &Pins) -> Result<MapMedia, KernelError> {
        let (map, bytes) = map_image(pins, None)?;
        Ok(MapMedia::new(map, bytes))
    }

    /// Puts the pipeline in front of these interfaces of the calling thread's network namespace, or in the
    /// place of an earlier one, without a gap; takes it away from others. `native` is what a driver
    /// does; the other mode is slow, and never chosen for you.
    ///
    /// # Errors
    /// [`KernelError::Attach`] says which one; [`KernelError::FileSystem`].
    pub fn attach(&mut self, interfaces: &[String], native: bool) -> Result<(), KernelError> {
        for interface in interfaces {
            self.attach_one(interface, native)
                .map_err(|error| KernelError::Attach {
                    interface: interface.clone(),
                    source: Box::new(error),
                })?;
        }
        self.pins.remove_links_but(interfaces)
    }

    fn attach_one(&mut self, interface: &str, native: bool) -> Result<(), KernelError> {
        let name = "pipeline";
        let failed = |source| KernelError::Program { name, source };
        let path = self.pins.link(interface);
        let program = program(&mut self.ebpf, name)?;
        if path.exists() {
            let link: FdLink = PinnedLink::from_pin(&path)?.into();
            match program.attach_to_link(link.try_into()?) {
                // It stays pinned, so it lives on when this process ends.
                Ok(id) => {
                    drop(program.take_link(id).map_err(failed)?);
                    return Ok(());
                }
                Err(error) if severed(&error) => self.pins.remove_link(interface)?,
                Err(error) => return Err(failed(error)),
            }
        }
        let mode = if native {
            XdpMode::Driver
        } else {
            XdpMode::Skb
        };
        let id = program.attach(interface, mode).map_err(failed)?;
        let link: FdLink = program.take_link(id).map_err(failed)?.try_into()?;
        let pinned = link
            .pin(&path)
            .map_err(|error| KernelError::pin(path.display().to_string(), error))?;
        drop(pinned);
        Ok(())
    }

    /// Runs one frame through the pipeline as if it had come in by an interface: the verdict, and the
    /// frame as it is then in `out`.
    ///
    /// # Errors
    /// [`KernelError::Program`].
    pub fn run<'a>(
        &mut self,
        frame: &[u8],
        out: &'a mut [u8],
    ) -> Result<(u32, &'a [u8]), KernelError> {
        let name = "pipeline";
        let result = program(&mut self.ebpf, name)?
            .test_run(TestRunOptions {
                data_in: Some(frame),
                data_out: Some(out),
                ..TestRunOptions::new()
            })
            .map_err(|source| KernelError::Program { name, source })?;
        let len = usize::try_from(result.data_size_out)
            .unwrap_or(0)
            .min(out.len());
        Ok((result.return_value, &out[..len]))
    }

    /// Instructions that the verifier looked at to accept the pipeline, if this kernel tells.
    #[must_use]
    pub fn verified_instructions(&mut self) -> Option<u32> {
        let program = program(&mut self.ebpf, "pipeline").ok()?;
        program.info().ok()?.verified_instruction_count()
    }

    /// The program itself, to be gone over to from another one.
    pub(super) fn pipeline(&mut self) -> Result<&ProgramFd, KernelError> {
        let name = "pipeline";
        program(&mut self.ebpf, name)?
            .fd()
            .map_err(|source| KernelError::Program { name, source })
    }

    /// Says how far the maps are in their life. Everything that was stored before is seen by whoever sees this.
    pub(super) fn set_stage(&self, stage: Stage) {
        self.shard().stage.store(stage.word(), Release);
    }

    /// Where it is pinned.
    #[must_use]
    pub fn pins(&self) -> &Pins {
        &self.pins
    }

    fn shard(&self) -> &Shard {
        shard_in(&self.shard)
    }

    fn chain(&self) -> &Hops {
        hops_in(&self.chain)
    }

    fn row(&self, row: u32) -> &Session {
        let row = usize::try_from(row).expect("u32 fits usize");
        assert!((row + 1) * size_of::<Session>() <= self.sessions.len());
        // SAFETY: inside the mapping by the assertion, aligned since rows are 64-byte aligned multiples
        // of their alignment from the start of a page; all fields are atomic.
        unsafe { &*self.sessions.as_ptr().cast::<Session>().add(row) }
    }

    /// `hold`, `release` or `wake_me`: waits for the lock, but not for ever.
    fn run_plain(&mut self, name: &'static str) -> Result<(), KernelError> {
        let program = program(&mut self.ebpf, name)?;
        let mut tries = 0;
        let mut since = None;
        loop {
            let result = program
                .test_run(TestRunOptions {
                    data_in: Some(&NO_FRAME),
                    ..TestRunOptions::new()
                })
                .map_err(|source| KernelError::Program { name, source })?;
            match result.return_value {
                XDP_PASS => return Ok(()),
                // Another CPU is inside, or the hypervisor has put it aside there.
                XDP_DROP => {}
                answer => return Err(KernelError::Answer { name, answer }),
            }
            tries += 1;
            if tries < LOCK_TRIES {
                continue;
            }
            if since.get_or_insert_with(Instant::now).elapsed() > LOCK_WAIT {
                return Err(KernelError::Locked(name));
            }
            std::thread::sleep(LOCK_PAUSE);
        }
    }

    fn describe_session(&mut self, state: &SessionState) -> io::Result<()> {
        let Some(address) = state.address else {
            return Ok(());
        };
        let (row, new) = match self.rows.get(state.id) {
            Some(row) => (row, false),
            None => match self.rows.take(state.id) {
                Some(row) => (row, true),
                // More sessions than rows: this one is served by user space.
                None => return Ok(()),
            },
        };
        if new && !self.held {
            // Somebody may still look at the session that had the row before.
            self.run_plain("hold")?;
        }
        let checksum = |header: Header| {
            let bytes = header.emit();
            u32::from_be_bytes([bytes[76], bytes[77], bytes[78], bytes[79]])
        };
        // What is the same in every packet of the session; the pipeline adds the rest to the checksums.
        let client = Stamp {
            shard: self.stamp.shard,
            epoch: self.stamp.epoch,
            tag: state.token,
            ..Stamp::default()
        };
        let update = Update {
            session: state.id,
            seq: 0,
            key_hash: 0,
            fragment: Fragment::WHOLE,
        };
        let update = update.header(&client);
        let append = Append::admitted(&update, 0, &self.stamp);
        let ack = Ack {
            session: state.id,
            seq: 0,
            committed: 0,
            room: 0,
            applied: 0,
            copies: self.copies,
        };
        let ack = ack.header(&self.stamp.tagged(state.token));
        let (high, low) = address_words(address.ip());
        let port = u32::from(u16::from_ne_bytes(address.port().to_be_bytes()));
        let session = self.row(row);
        if new || self.held {
            session.id.store(state.id, Relaxed);
            session
                .token
                .store(u64::from_ne_bytes(state.token.to_be_bytes()), Relaxed);
            session.last.store(state.last, Relaxed);
            session.committed.store(state.committed, Relaxed);
            session.update_crc.store(checksum(update), Relaxed);
            session.append_crc.store(checksum(append), Relaxed);
            session.ack_crc.store(checksum(ack), Relaxed);
        }
        session.until.store(state.until, Relaxed);
        session.applied.store(state.applied, Relaxed);
        let known = (&session.address_high, &session.address_low, &session.port);
        let known = (
            known.0.load(Relaxed),
            known.1.load(Relaxed),
            known.2.load(Relaxed),
        );
        if new || known != (high, low, port) {
            // The way to where it was before does not lead to it.
            session.client[WAY_INTERFACE].store(0, Relaxed);
        }
        session.port.store(port, Relaxed);
        session.address_high.store(high, Relaxed);
        session.address_low.store(low, Relaxed);
        if new {
            let key = u64::from_ne_bytes(state.id.to_be_bytes());
            self.index
                .insert(key, row, 0)
                .map_err(|error| KernelError::map("pm_session_rows", error))?;
            if !self.held {
                self.run_plain("release")?;
            }
        }
        Ok(())
    }

    fn describe_chain(&self, state: &ChainState) -> bool {
        let chain = self.chain();
        let hops = self.copies > 1 && !self.own && state.next.is_ipv4();
        let behind = u32::try_from(state.behind.len()).expect("a chain is short");
        chain.follows.store(u32::from(state.position > 0), Relaxed);
        chain.behind.store(behind, Relaxed);
        let next = (hops && behind > 0).then_some(state.next);
        tell_peer(next, &chain.next_address, &chain.next_port, &chain.next);
        let before = state.before.filter(|_| hops);
        tell_peer(
            before,
            &chain.before_address,
            &chain.before_port,
            &chain.before,
        );
        chain.receive_window.store(state.receive_window, Relaxed);
        chain.window.store(state.window, Relaxed);
        for (index, row) in state.behind.iter().enumerate() {
            let mut name = [0; 8];
            name[..4].copy_from_slice(&row.device.to_be_bytes());
            name[4..].copy_from_slice(&row.incarnation.to_be_bytes());
            chain.names[index].store(u64::from_ne_bytes(name), Relaxed);
        }
        for (index, order) in chain.orders.iter().enumerate() {
            let held = state.behind.get(index).map_or(0, |row| row.order);
            order.store(held, Relaxed);
        }
        chain.credit.store(state.credit, Relaxed);
        chain.sent.store(state.sent, Relaxed);
        chain.committed.store(state.committed, Relaxed);
        hops
    }

    /// The pipeline finds a session by its row's id alone: nobody must be found there any more.
    fn clear_row(&self, row: u32) {
        let session = self.row(row);
        session.until.store(0, Relaxed);
        session.id.store(0, Relaxed);
    }

    fn forget_session(&mut self, id: u64) -> io::Result<()> {
        if let Some(row) = self.rows.give_back(id) {
            self.clear_row(row);
            self.index
                .remove(&u64::from_ne_bytes(id.to_be_bytes()))
                .map_err(|error| KernelError::map("pm_session_rows", error))?;
        }
        Ok(())
    }
}

const MAPS: [&str; 7] = [
    "pm_image",
    "pm_shards",
    "pm_chain",
    "pm_sessions",
    "pm_session_rows",
    "pm_counts",
    "pm_wakeups",
];

impl FastPath for Kernel {
    fn admits(&self) -> bool {
        self.shard().admits.load(Acquire) == 1
    }

    fn last(&self) -> u64 {
        self.shard().last.load(Acquire)
    }

    fn tail(&self) -> Tail {
        let shard = self.shard();
        Tail {
            last: shard.last.load(Acquire),
            head: shard.head.load(Relaxed),
            applied: shard.applied.load(Relaxed),
            stated: shard.stated.load(Relaxed),
            released: shard.released.load(Relaxed),
        }
    }

    fn hold(&mut self) -> io::Result<()> {
        if !self.held {
            self.run_plain("hold")?;
            self.held = true;
        }
        Ok(())
    }

    fn look(&mut self) -> HopWork {
        while self.wakeups.next().is_some() {}
        let chain = self.chain();
        let mut work = HopWork::default();
        for (order, shared) in work.orders.iter_mut().zip(&chain.orders) {
            *order = shared.load(Acquire);
        }
        work.credit = chain.credit.load(Acquire);
        work.sent = chain.sent.load(Acquire);
        work.committed = chain.committed.load(Acquire);
        work.skipped = chain.skipped.load(Acquire);
        work.told = chain.told.load(Acquire);
        work
    }

    fn describe(&mut self, stamp: &Stamp, chain: &ChainState) -> bool {
        let copies = chain.position + 1 + chain.behind.len();
        self.copies = u8::try_from(copies).expect("a chain is short");
        self.stamp = *stamp;
        // As they stand in a header.
        let word = |first: u32, second: u32| {
            let number = u64::from(first) << 32 | u64::from(second);
            u64::from_ne_bytes(number.to_be_bytes())
        };
        let shard = self.shard();
        let (shard_epoch, device_incarnation) = (
            word(stamp.shard, stamp.epoch),
            word(stamp.device, stamp.incarnation),
        );
        shard.shard_epoch.store(shard_epoch, Relaxed);
        shard.device_incarnation.store(device_incarnation, Relaxed);
        shard
            .token
            .store(u64::from_ne_bytes(stamp.tag.to_be_bytes()), Relaxed);
        shard.epoch.store(stamp.epoch, Relaxed);
        shard.incarnation.store(stamp.incarnation, Relaxed);
        shard.alone.store(u32::from(copies == 1), Relaxed);
        shard.copies.store(u32::from(self.copies), Relaxed);
        self.describe_chain(chain)
    }

    fn release(&mut self, tail: &Tail) -> io::Result<()> {
        let shard = self.shard();
        let given = shard.last.load(Acquire);
        if tail.last < given {
            return Err(io::Error::other(format!(
                "order {given} is given, and the process knows of {} only",
                tail.last
            )));
        }
        shard.head.store(tail.head, Relaxed);
        shard.applied.store(tail.applied, Relaxed);
        shard.stated.store(tail.stated, Relaxed);
        shard.released.store(tail.released, Relaxed);
        shard.last.store(tail.last, Release);
        self.run_plain("release")?;
        self.held = false;
        Ok(())
    }

    fn applied(&mut self, applied: u64) {
        self.shard().applied.store(applied, Release);
    }

    fn session(&mut self, id: u64, state: Option<SessionState>) -> io::Result<()> {
        match state {
            Some(state) => self.describe_session(&state),
            None => self.forget_session(id),
        }
    }

    fn sleep(&mut self) -> io::Result<()> {
        Ok(self.run_plain("wake_me")?)
    }

    fn wakeup_fd(&self) -> Option<RawFd> {
        Some(self.wakeups.as_raw_fd())
    }

    fn heard(&mut self, id: u64) -> bool {
        self.rows
            .get(id)
            .is_some_and(|row| self.row(row).heard.swap(0, Relaxed) == 1)
    }

    fn forget_sessions(&mut self) -> io::Result<()> {
        let keys: Vec<u64> = self.index.keys().filter_map(Result::ok).collect();
        for key in keys {
            self.index
                .remove(&key)
                .map_err(|error| KernelError::map("pm_session_rows", error))?;
        }
        for row in 0..self.rows_max {
            // Most were never used, and reading them costs nothing.
            if self.row(row).id.load(Relaxed) != 0 {
                self.clear_row(row);
            }
        }
        self.rows = Rows::new(self.rows_max, self.mask);
        Ok(())
    }
}

/// Place of the interface in [`Hops::next`] and its like.
const WAY_INTERFACE: usize = 3;

/// An IPv4 address and port as they stand in packets; others have none.
fn peer_words(peer: Option<Peer>) -> (u32, u32) {
    match peer {
        Some(SocketAddr::V4(peer)) => (
            u32::from_ne_bytes(peer.ip().octets()),
            u16::from_ne_bytes(peer.port().to_be_bytes()).into(),
        ),
        _ => (0, 0),
    }
}

/// Tells where a hop is; how frames get there is forgotten when it moved.
fn tell_peer(
    peer: Option<Peer>,
    address: &AtomicU32,
    port: &AtomicU32,
    way: &[AtomicU32; WAY_INTERFACE + 1],
) {
    let (new_address, new_port) = peer_words(peer);
    let before = (address.load(Relaxed), port.load(Relaxed));
    if before != (new_address, new_port) {
        address.store(new_address, Relaxed);
        port.store(new_port, Relaxed);
        way[WAY_INTERFACE].store(0, Relaxed);
    }
}

/// The interface of a link is gone; one of the same name may have come since.
fn severed(error: &ProgramError) -> bool {
    matches!(error, ProgramError::SyscallError(error) if error.io_error.raw_os_error() == Some(libc::ENOLINK))
}

/// An address as the pipeline compares it: two words as they stand in an IPv6 packet.
fn address_words(address: IpAddr) -> (u64, u64) {
    let octets = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    let half =
        |at: usize| u64::from_ne_bytes(octets[at..at + 8].try_into().expect("8 of 16 bytes"));
    match address {
        IpAddr::V4(_) => (0, half(8)),
        IpAddr::V6(_) => (half(0), half(8)),
    }
}

pub(super) fn program<'a>(
    ebpf: &'a mut Ebpf,
    name: &'static str,
) -> Result<&'a mut Xdp, KernelError> {
    ebpf.program_mut(name)
        .expect("the object has this program")
        .try_into()
        .map_err(|source| KernelError::Program { name, source })
}

pub(super) fn take_map(ebpf: &mut Ebpf, name: &str) -> Map {
    ebpf.take_map(name).expect("the object has this map")
}

pub(super) fn take(ebpf: &mut Ebpf, name: &str) -> MapData {
    match take_map(ebpf, name) {
        Map::Array(data) => data,
        _ => unreachable!("{name} is an array"),
    }
}

pub(super) fn mapped(map: &MapData, bytes: usize) -> Result<MmapRaw, KernelError> {
    MmapOptions::new()
        .len(bytes.next_multiple_of(PAGE_BYTES))
        .map_raw(map.fd().as_fd().as_raw_fd())
        .map_err(|error| KernelError::io("mapping", error))
}

/// What is pinned already must be laid out as this version does it.
pub(super) fn check_layout(pins: &Pins) -> Result<(), KernelError> {
    for (name, bytes) in [
        ("pm_shards", size_of::<Shard>()),
        ("pm_chain", size_of::<Hops>()),
        ("pm_sessions", size_of::<Session>()),
        ("pm_counts", size_of::<Counters>()),
    ] {
        let path = pins.path(name);
        if !path.exists() {
            // With an image and without the rest, it was made before there was this map.
            if pins.in_use() && pins.path("pm_shards").exists() {
                return Err(KernelError::OtherVersion(pins.folder().to_owned()));
            }
            continue;
        }
        let map = MapData::from_pin(&path).map_err(|error| KernelError::map(name, error))?;
        let info = map.info().map_err(|error| KernelError::map(name, error))?;
        if usize::try_from(info.value_size()).ok() != Some(bytes) {
            return Err(KernelError::OtherVersion(pins.folder().to_owned()));
        }
    }
    if pins.path("pm_shards").exists() {
        let shard = map_pinned(pins, "pm_shards")?;
        let shard = shard_in(&shard);
        let layout = shard.layout.load(Relaxed);
        // Whoever made them may have died before it said so; then nobody has used them.
        if layout != LAYOUT && !(layout == 0 && is_unused(shard)) {
            return Err(KernelError::OtherVersion(pins.folder().to_owned()));
        }
    }
    Ok(())
}

/// What the map `pm_shards` holds.
pub(super) fn shard_in(map: &MmapRaw) -> &Shard {
    // SAFETY: the mapping is a page that begins with a `Shard`, aligned as a page is, and lives as long as the
    // reference; all its fields are atomic.
    unsafe { &*map.as_ptr().cast::<Shard>() }
}

/// What the map `pm_chain` holds.
pub(super) fn hops_in(map: &MmapRaw) -> &Hops {
    // SAFETY: as the shard's.
    unsafe { &*map.as_ptr().cast::<Hops>() }
}

/// A small map that is pinned.
pub(super) fn map_pinned(pins: &Pins, name: &str) -> Result<MmapRaw, KernelError> {
    let map = MapData::from_pin(pins.path(name)).map_err(|error| KernelError::map(name, error))?;
    mapped(&map, PAGE_BYTES)
}

/// The image's map and the bytes of the image; made and pinned with room for `bytes` if it is not there:
/// only its maker can give it its size.
fn map_image(pins: &Pins, bytes: Option<usize>) -> Result<(MmapRaw, usize), KernelError> {
    let path = pins.path(IMAGE);
    let map = match bytes {
        Some(bytes) if !path.exists() => {
            let size = u32::try_from(bytes + PAD_BYTES).map_err(|_| {
                KernelError::Parameters(format!("a log of {bytes} bytes does not fit a map"))
            })?;
            let definition = aya_obj::Map::new_from_params(TYPE_ARRAY, 4, size, 1, FLAG_MMAPABLE);
            let map = MapData::create(definition, IMAGE, None)
                .map_err(|error| KernelError::map(IMAGE, error))?;
            map.pin(&path)
                .map_err(|error| KernelError::pin(IMAGE, error))?;
            map
        }
        _ => MapData::from_pin(&path).map_err(|error| KernelError::map(IMAGE, error))?,
    };
    let size = map
        .info()
        .map_err(|error| KernelError::map(IMAGE, error))?
        .value_size();
    let size = usize::try_from(size).unwrap_or(0);
    Ok((mapped(&map, size)?, size.saturating_sub(PAD_BYTES)))
}
