//! Loads the pipeline: checks the settings, makes the maps or takes the pinned maps, sets the constants of the program,
//! and passes the program to the verifier.
//!
//! Invariants: pinned maps are used with their contents, and only if their layout is that of this version. Spec:
//! `docs/spec/pipeline.md` §3 and §8. This module must not attach anything, or decide what happens to maps that were
//! found ([`super::open()`]).

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU64;
use std::sync::atomic::Ordering::Relaxed;

use aya::maps::RingBuf;
use aya::{Ebpf, EbpfLoader};
use pmnet_device::FastPath;
use pmnet_log::{FrameSpace, Media, Parameters};
use pmnet_wire::packet::Stamp;

use super::error::KernelError;
use super::image::MapMedia;
use super::kernel::{Kernel, program};
use super::maps::{check_layout, map_array, map_image, pinned_entries, take_array, take_map};
use super::names;
use super::pins::Pins;
use super::reads::Buckets;
use super::rows::preferred_mask;
use super::sessions::Sessions;
use super::shared::{HopKeys, Hops, LAYOUT, Shard};
use super::words::{address_words, ipv4_word, port_word};

/// The compiled programs; empty if there was no compiler at the build.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/pipeline.o"));
/// The compiled programs for a shard with keys.
static KEYED_OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/pipeline_keyed.o"));
/// Largest frame space in bytes. The verifier does not allow larger offsets into a map.
const FRAME_BYTES_MAX: u64 = 256 << 20;
const ENTRIES_MAX: u64 = 1 << 22;

/// Configuration of the kernel's part of a device.
#[derive(Clone, Debug)]
pub struct KernelConfig {
    /// Address and port to which clients send.
    pub address: SocketAddr,
    /// In switch mode, the device's own address, with the same port; `None`: not in switch mode.
    pub own: Option<Own>,
    /// Size of the log. Both numbers must be powers of two.
    pub parameters: Parameters,
    /// Maximum number of sessions that the pipeline serves; user space serves all other sessions.
    pub sessions_max: u32,
    /// Number of buckets of the index for READs, a power of two. If the device has another number of buckets, its
    /// process answers READs.
    pub read_buckets: u32,
    /// Fingerprint of the shard's keys ([`ClusterKeys::print`]); `None`: the shard has no keys.
    ///
    /// [`ClusterKeys::print`]: pmnet_proto::keys::ClusterKeys::print
    pub keys: Option<NonZeroU64>,
}

/// The own addresses of a device in a switch. Clients know only the server's address, and the device takes packets to
/// this address.
#[derive(Clone, Copy, Debug)]
pub struct Own {
    /// The device's address.
    pub address: Ipv4Addr,
    /// Hardware address of the switch itself.
    pub mac: [u8; 6],
}

impl Kernel {
    /// Loads the pipeline. Also returns the log's medium. Maps that are already pinned are used with their contents.
    /// New maps become a device only when [`super::open()`] has completed them. The pipeline is held, unless it was
    /// already admitting.
    ///
    /// # Errors
    /// [`KernelError`].
    pub fn load(config: &KernelConfig, pins: Pins) -> Result<(Kernel, MapMedia), KernelError> {
        check(config)?;
        check_layout(&pins)?;
        let image_bytes = config.parameters.image_bytes();
        let (image, _) = map_image(&pins, Some(image_bytes))?;
        let mut ebpf = load_object(config, &pins)?;
        let shard = map_array(&take_array(&mut ebpf, names::SHARDS), size_of::<Shard>())?;
        let chain = map_array(&take_array(&mut ebpf, names::CHAIN), size_of::<Hops>())?;
        let sessions = Sessions::new(
            &take_array(&mut ebpf, names::SESSIONS),
            take_map(&mut ebpf, names::SESSION_ROWS),
            preferred_mask(config.sessions_max),
            config
                .keys
                .map(|_| take_array(&mut ebpf, names::SESSION_KEYS))
                .as_ref(),
        )?;
        let keys = match config.keys {
            Some(print) => {
                let map = take_array(&mut ebpf, names::HOP_KEYS);
                Some((print, map_array(&map, size_of::<HopKeys>())?))
            }
            None => None,
        };
        let buckets = Buckets::new(
            &take_array(&mut ebpf, names::BUCKETS),
            &take_array(&mut ebpf, names::CLOSED),
            config.read_buckets,
        )?;
        let wakeups = RingBuf::try_from(take_map(&mut ebpf, names::WAKEUPS))
            .map_err(|error| KernelError::map(names::WAKEUPS, error))?;
        let outlives = pins.outlives_the_process();
        let mut kernel = Kernel {
            ebpf,
            pins,
            shard,
            chain,
            sessions,
            buckets,
            wakeups,
            held: false,
            stamp: Stamp::default(),
            copies: 1,
            port: config.address.port(),
            is_ipv4: config.address.is_ipv4(),
            keys,
        };
        kernel.shard().layout.store(LAYOUT, Relaxed);
        kernel.held = !kernel.admits();
        Ok((kernel, MapMedia::new(image, image_bytes, outlives)))
    }

    /// Returns the size of the pinned log.
    ///
    /// # Errors
    /// [`KernelError`]: no log is pinned, or the log cannot be read.
    pub fn parameters(pins: &Pins) -> Result<Parameters, KernelError> {
        let (map, bytes) = map_image(pins, None)?;
        pmnet_log::parameters(MapMedia::new(map, bytes, true).bytes())
            .map_err(|error| KernelError::Parameters(error.to_string()))
    }

    /// Returns another mapping of the pinned log's image.
    ///
    /// # Errors
    /// [`KernelError`]: no log is pinned.
    pub fn image(pins: &Pins) -> Result<MapMedia, KernelError> {
        let (map, bytes) = map_image(pins, None)?;
        Ok(MapMedia::new(map, bytes, pins.outlives_the_process()))
    }
}

/// Checks whether this binary can run such a pipeline on this computer.
fn check(config: &KernelConfig) -> Result<(), KernelError> {
    if OBJECT.is_empty() {
        return Err(KernelError::NotBuilt);
    }
    if !cfg!(target_arch = "x86_64") {
        return Err(KernelError::Architecture);
    }
    let Parameters {
        entries,
        frame_bytes,
        space,
    } = config.parameters;
    if space != FrameSpace::Ring {
        return Err(KernelError::Parameters(
            "the pipeline appends to a ring, not to packet buffers (those are --mode af-xdp)"
                .into(),
        ));
    }
    if !entries.is_power_of_two() || !frame_bytes.is_power_of_two() {
        return Err(KernelError::Parameters(format!(
            "the pipeline needs powers of two: {entries} entries, {frame_bytes} bytes of frames"
        )));
    }
    if !config.read_buckets.is_power_of_two() {
        return Err(KernelError::Parameters(format!(
            "the pipeline needs a power of two: {} buckets of the index",
            config.read_buckets
        )));
    }
    if frame_bytes > FRAME_BYTES_MAX || entries > ENTRIES_MAX {
        return Err(KernelError::Parameters(format!(
            "PM1446 a log in the kernel has at most {ENTRIES_MAX} entries and {} MiB of frames, which is what a verifier \
             allows: choose a smaller --log-size, or --mode relay",
            FRAME_BYTES_MAX >> 20
        )));
    }
    Ok(())
}

/// Sets the constants of `bpf/maps.h`, makes the maps that are not pinned yet, and loads the programs.
fn load_object(config: &KernelConfig, pins: &Pins) -> Result<Ebpf, KernelError> {
    let (high, low) = address_words(config.address.ip());
    let port = port_word(config.address.port());
    let own_address = config.own.map_or(0, |own| ipv4_word(own.address));
    let mut own_mac = [0u8; 8];
    if let Some(own) = config.own {
        own_mac[..6].copy_from_slice(&own.mac);
    }
    let own_mac = u64::from_ne_bytes(own_mac);
    let session_mask = preferred_mask(config.sessions_max);
    let bucket_mask = config.read_buckets - 1;
    // A pinned map of sessions keeps its number of rows, and all maps with rows must have this number.
    let rows = pinned_entries(pins, names::SESSIONS)?.unwrap_or(config.sessions_max);
    let object = if config.keys.is_some() {
        KEYED_OBJECT
    } else {
        OBJECT
    };
    let mut loader = EbpfLoader::new();
    loader
        .override_global("pm_entries", &config.parameters.entries, true)
        .override_global("pm_frame_bytes", &config.parameters.frame_bytes, true)
        .override_global("pm_address_high", &high, true)
        .override_global("pm_address_low", &low, true)
        .override_global("pm_port", &port, true)
        .override_global("pm_session_mask", &session_mask, true)
        .override_global("pm_bucket_mask", &bucket_mask, true)
        .override_global("pm_own_address", &own_address, true)
        .override_global("pm_own_mac", &own_mac, true)
        .map_max_entries(names::SESSIONS, config.sessions_max)
        .map_max_entries(names::SESSION_ROWS, config.sessions_max)
        .map_max_entries(names::SESSION_KEYS, rows)
        .map_max_entries(names::BUCKETS, config.read_buckets)
        .map_max_entries(names::CLOSED, config.read_buckets);
    for name in names::ALL {
        loader.map_pin_path(name, pins.path(name));
    }
    let mut ebpf = loader.load(object)?;
    for name in ["pipeline", "hold", "release", "wake_me"] {
        program(&mut ebpf, name)?
            .load()
            .map_err(|source| KernelError::load(name, source))?;
    }
    Ok(ebpf)
}
