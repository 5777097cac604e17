//! Puts with packets as records: a put only links the request, which is already in a frame of the
//! store, with the checksum that its sender computed.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use pmnet_media::AnyMedia;
use pmnet_packet_store::{Geometry, InPlace, Meta, Packet, PacketStore, Room, Scan};
use pmnet_resp::Parser;

use super::watched::Watched;
use super::{Times, VALUE_BYTES, Way, nanos, parse, parser};
use crate::engines::packet;
use crate::keys;
use crate::plan::Place;

/// Size of a packet buffer in bytes.
const FRAME_BYTES: u32 = 2048;
/// Offset at which a network interface puts a request in its buffer, after the headers.
const REQUEST_OFFSET: usize = 320;
/// Number of bytes that one step of packing moves.
const PACKED_BYTES: usize = 256 << 10;

pub struct Packets {
    store: PacketStore<Watched<AnyMedia>>,
    parser: Parser,
    clock: f64,
    /// The packet that has arrived.
    arrived: Option<(Packet, Vec<u8>)>,
    /// Time spent on packing.
    pub packing: Duration,
}

impl Packets {
    pub fn new(folder: &Path, keys: u64, clock: f64) -> anyhow::Result<Packets> {
        // One and a half frames for each record.
        let frames = u32::try_from(keys + keys / 2 + 1024)?;
        let geometry = Geometry {
            lines: u32::try_from((keys * 2).next_multiple_of(64))?.max(4096),
            frames,
            frame_bytes: FRAME_BYTES,
            log_entries: 0,
        };
        let medium = packet::make(&folder.join("packets"), Place::Flushed, &geometry)?;
        Ok(Packets {
            store: Scan::open(Watched::new(medium), Some(0))?.repair()?,
            parser: parser(),
            clock,
            arrived: None,
            packing: Duration::ZERO,
        })
    }

    /// Stores a request's value by copying it. This function loads the store before the measurement.
    pub fn load(&mut self, request: &[u8]) -> anyhow::Result<()> {
        let [key, value] = parse(&mut self.parser, request)?;
        let mut transaction = self.store.transaction();
        transaction.put(
            &request[key],
            &request[value],
            Meta::default(),
            Room::Ordinary,
        )?;
        Ok(transaction.commit()?)
    }

    /// Checks that every record can be read.
    pub fn verify(&self, keys: u64) -> anyhow::Result<()> {
        ensure!(
            self.store.len() == keys,
            "{} records instead of {keys}",
            self.store.len()
        );
        for key in (0..keys).step_by(97) {
            let record = self
                .store
                .get(&keys::name(key))?
                .context("a key is missing")?;
            let mut scratch = Vec::new();
            let value = record.value(&mut scratch);
            ensure!(
                value.len() == VALUE_BYTES && value[..8] == key.to_le_bytes(),
                "a wrong value"
            );
        }
        Ok(())
    }
}

impl Way for Packets {
    fn arrive(&mut self, request: &[u8]) -> anyhow::Result<()> {
        if self.store.wants_packing() {
            let started = Instant::now();
            self.store.pack_step(PACKED_BYTES)?;
            self.packing += started.elapsed();
        }
        let frame = self.store.lend_frame().context("no frame is free")?;
        self.store.deposit(frame, REQUEST_OFFSET, request);
        let packet = Packet {
            frame,
            payload: REQUEST_OFFSET..REQUEST_OFFSET + request.len(),
            // The sender computed the checksum, and the receiver checked it.
            crc: crc32c::crc32c(request),
        };
        self.arrived = Some((packet, request.to_vec()));
        Ok(())
    }

    fn put(&mut self) -> anyhow::Result<Times> {
        let (packet, request) = self.arrived.take().context("no packet")?;
        let (before, persists) = self.store.media().so_far();
        let started = Instant::now();
        let [key, value] = parse(&mut self.parser, &request)?;
        let parsed = Instant::now();
        let record = InPlace {
            key,
            value,
            meta: Meta::default(),
        };
        let mut transaction = self.store.transaction();
        transaction.put_in_place(&packet, &[record], Room::Ordinary)?;
        transaction.commit()?;
        let done = Instant::now();
        let (after, now) = self.store.media().so_far();
        // Each persist reads the clock twice. One of these two readings is a part of the time that
        // `Watched` measures.
        let persists = f64::from(now - persists);
        let flush = nanos(after - before) - persists * self.clock;
        let rest = nanos(done - parsed) - self.clock * 2.0f64.mul_add(persists, 1.0);
        Ok(Times {
            prepare: nanos(parsed - started) - self.clock,
            insert: rest - flush,
            flush,
            ..Times::default()
        })
    }
}
