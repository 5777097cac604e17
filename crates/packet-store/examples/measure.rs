//! Measures a packet store in shared memory, or in a file: puts, gets, scans, replacement of records, recovery.
//!
//! Example: `cargo run --release -p pmnet-packet-store --example measure -- put PATH`. The other subcommands are
//! logged, churn and recover.

use std::hint::black_box;
use std::ops::Bound;
use std::path::Path;
use std::time::Duration;

use pmnet_log::{Identity as LogIdentity, Media, NewEntry};
use pmnet_media::{AnyMedia, Kind};
use pmnet_packet_store::{
    Error, Geometry, Identity, InPlace, Meta, Packet, PacketStore, Room, Scan, Shared, format,
    format_shared,
};

use rustix::time::{ClockId, clock_gettime};

type Failure = Box<dyn std::error::Error>;

/// Number of bytes that one step of packing moves.
const PACKED_BYTES: usize = 256 << 10;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["put", path] => put(path.as_ref()),
        ["logged", path] => logged(path.as_ref()),
        ["churn", path, operations] => churn(path.as_ref(), operations.parse()?),
        ["recover", path, keys] => recover(path.as_ref(), keys.parse()?),
        _ => Err("put PATH, logged PATH, churn PATH OPERATIONS or recover PATH KEYS".into()),
    }
}

fn make(path: &Path, bytes: u64) -> Result<PacketStore<AnyMedia>, Failure> {
    let geometry = Geometry::for_size(bytes, 4096)?;
    let kind = pmnet_media::look(path)?.kind;
    let mut medium = pmnet_media::create(path, kind, geometry.image_bytes())?;
    let identity = Identity {
        uuid: u128::from(std::process::id()),
        shard: 0,
    };
    format(&mut medium, &identity, &geometry)?;
    Ok(Scan::open(medium, None)?.repair()?)
}

/// The next random number of SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn key(number: u64) -> [u8; 16] {
    let mut name = *b"key:000000000000";
    let mut rest = number;
    for digit in name[4..].iter_mut().rev() {
        *digit = b'0' + u8::try_from(rest % 10).expect("a digit");
        rest /= 10;
    }
    name
}

/// A start time, by the wall clock and by the processor time of this thread. On a busy machine only the processor time
/// is meaningful.
#[derive(Clone, Copy)]
struct Started {
    wall: Duration,
    processor: Duration,
}

impl Started {
    fn now() -> Started {
        Started {
            wall: wall_time(),
            processor: processor_time(),
        }
    }
}

fn processor_time() -> Duration {
    time(ClockId::ThreadCPUTime)
}

fn wall_time() -> Duration {
    time(ClockId::Monotonic)
}

fn time(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

fn report(what: &str, started: Started, operations: u64) {
    let operations = u128::from(operations.max(1));
    let processor = (processor_time() - started.processor).as_nanos() / operations;
    let wall = (wall_time() - started.wall).as_nanos() / operations;
    println!("{what}: {processor} ns of a processor each ({wall} ns on the wall)");
}

fn put(path: &Path) -> Result<(), Failure> {
    for (value_bytes, keys, size) in [
        (50, 100_000u64, 1u64 << 28),
        (1024, 100_000, 1 << 29),
        (1024, 1_000_000, 3 << 30),
    ] {
        let mut store = make(path, size)?;
        println!(
            "values of {value_bytes} bytes, {keys} keys, medium {}",
            store.media().name()
        );
        let value = vec![7; value_bytes];
        let mut random = 1;
        let started = Started::now();
        for number in 0..keys {
            set(&mut store, &key(number.wrapping_mul(7919) % keys), &value)?;
        }
        report("  put, new key", started, keys);
        let started = Started::now();
        for _ in 0..keys {
            set(&mut store, &key(next(&mut random) % keys), &value)?;
            if store.wants_packing() {
                store.pack_step(PACKED_BYTES)?;
            }
        }
        report("  put over another value, packing included", started, keys);
        let started = Started::now();
        let mut transaction = store.transaction();
        for _ in 0..50_000 {
            transaction.put(
                &key(next(&mut random) % keys),
                &value,
                Meta::default(),
                Room::Ordinary,
            )?;
        }
        transaction.commit()?;
        report("  put, 50,000 in a transaction", started, 50_000);
        while store.pack_step(PACKED_BYTES)? > 0 {}
        let mut scratch = Vec::new();
        let started = Started::now();
        for _ in 0..keys {
            let record = store
                .get(&key(next(&mut random) % keys))?
                .ok_or("a key is missing")?;
            black_box(record.value(&mut scratch));
        }
        report("  get", started, keys);
        let started = Started::now();
        let mut seen = 0;
        for record in store.range(Bound::Unbounded, Bound::Unbounded) {
            black_box(record?.value(&mut scratch));
            seen += 1;
        }
        report("  scan", started, seen);
        in_place(&mut store, &value, keys)?;
        let stat = store.stat();
        println!(
            "  {} bytes live, {} dead, {} of {} frames free",
            stat.bytes_live, stat.bytes_dead, stat.frames_free, stat.frames
        );
        drop(store);
        std::fs::remove_file(path)?;
    }
    Ok(())
}

/// Measures puts of packets that are already in lent frames, with checksums that another program computed.
fn in_place(store: &mut PacketStore<AnyMedia>, value: &[u8], keys: u64) -> Result<(), Failure> {
    let mut random = 3;
    let count = 10_000;
    let mut packets = Vec::new();
    for _ in 0..count {
        let Some(frame) = store.lend_frame() else {
            println!("  too few frames are free for packets");
            return Ok(());
        };
        let name = key(next(&mut random) % keys);
        let payload = [
            &b"*3\r\n$3\r\nSET\r\n$16\r\n"[..],
            &name,
            b"\r\n$1024\r\n",
            value,
            b"\r\n",
        ]
        .concat();
        store.deposit(frame, 22, &payload);
        packets.push(Packet {
            frame,
            payload: 22..22 + payload.len(),
            crc: crc32c::crc32c(&payload),
        });
    }
    let started = Started::now();
    for packet in &packets {
        let record = InPlace {
            key: 19..35,
            value: 44..44 + value.len(),
            meta: Meta::default(),
        };
        let mut transaction = store.transaction();
        transaction.put_in_place(packet, &[record], Room::Ordinary)?;
        transaction.commit()?;
    }
    report("  put in place, over another value", started, count);
    Ok(())
}

/// Measures puts from a log in the same region, applied with and without a copy. Every persist flushes the medium.
fn logged(path: &Path) -> Result<(), Failure> {
    let (keys, frames, log_frames) = (100_000u64, 1 << 18, 4096);
    for (value_bytes, copies) in [(1024, true), (1024, false), (1400, true), (1400, false)] {
        let geometry = Geometry::shared(frames, 2048, 8192)?;
        let mut medium = pmnet_media::create(path, Kind::Dram, geometry.image_bytes())?;
        if let AnyMedia::Dram(memory) = &mut medium {
            memory.rehearse_flushes(path)?;
        }
        let (uuid, shard, device) = (u128::from(std::process::id()), 0, 1);
        let log = LogIdentity {
            log_uuid: uuid,
            device,
            shard,
        };
        format_shared(&mut medium, &Identity { uuid, shard }, &log, &geometry)?;
        let mut shared = Shared::open(medium, shard, device, log_frames)?;
        let mut random = 3;
        let (mut logged, mut applied) = (Duration::ZERO, Duration::ZERO);
        let begun = Started::now();
        for number in 0..2 * keys {
            // Each key is put once before the measurement. The measured puts replace the records.
            let (name, measured) = match number < keys {
                true => (key(number.wrapping_mul(7919) % keys), false),
                false => (key(next(&mut random) % keys), true),
            };
            let order = receive(&mut shared, &name, value_bytes)?;
            let before = processor_time();
            shared.persist_start()?;
            shared.persist_poll(true)?;
            let persisted = processor_time();
            apply(&mut shared, order, value_bytes, copies)?;
            let done = processor_time();
            if measured {
                logged += persisted - before;
                applied += done - persisted;
            }
            shared.pack_step(PACKED_BYTES)?;
        }
        let each = |time: Duration| time.as_nanos() / u128::from(keys);
        println!(
            "values of {value_bytes} bytes, {}: persisted in the log {} ns, applied {} ns of a processor each",
            if copies { "copied" } else { "where they lie" },
            each(logged),
            each(applied)
        );
        report(
            "  all in all, reception and packing included",
            begun,
            2 * keys,
        );
        println!("  {:?}", shared.store()?.stat());
        drop(shared);
        std::fs::remove_file(path)?;
    }
    Ok(())
}

/// Appends a packet that is in a lent buffer, as the device's receive path does.
fn receive(shared: &mut Shared<AnyMedia>, name: &[u8], value_bytes: usize) -> Result<u64, Failure> {
    while let Some(number) = shared.poll_released() {
        shared.give_back_buffer(number);
    }
    let number = shared.lend_buffer().ok_or("no buffer is free")?;
    let start = usize::try_from(number)? * 2048 + 300;
    let packet = [&[9; 88][..], name, &vec![7; value_bytes]].concat();
    shared.deposit(start, &packet);
    let new = NewEntry {
        session: 1,
        seq: 1,
        kind: 1,
        fragment_index: 0,
        fragment_count: 1,
    };
    let crc = crc32c::crc32c(&packet[88..]);
    let frame = start..start + packet.len();
    Ok(shared.append_in_place(&new, &[1; 88], &frame, crc)?)
}

fn apply(
    shared: &mut Shared<AnyMedia>,
    order: u64,
    value_bytes: usize,
    copies: bool,
) -> Result<(), Failure> {
    let record = InPlace {
        key: 0..16,
        value: 16..16 + value_bytes,
        meta: Meta::default(),
    };
    if copies {
        // A server whose store is separate copies the payload from the packet into the store.
        let payload = shared.log().frame(order).ok_or("it is logged")?[88..].to_vec();
        let mut change = shared.change(order)?;
        change.put(
            &payload[record.key],
            &payload[record.value],
            Meta {
                order,
                ..record.meta
            },
            Room::Ordinary,
        )?;
        return Ok(change.commit()?);
    }
    let mut change = shared.change(order)?;
    change.link(order, &[record], Room::Ordinary)?;
    Ok(change.commit()?)
}

/// Measures how much space ten million operations take in a store that is half full.
fn churn(path: &Path, operations: u64) -> Result<(), Failure> {
    let size = 1 << 28;
    let mut store = make(path, size)?;
    let mut random = 5;
    let keys = 200_000;
    let (mut full, mut packed, mut free_min) = (0u64, 0, u32::MAX);
    let started = Started::now();
    let value = vec![9; 4096];
    for operation in 0..operations {
        let drawn = next(&mut random);
        let name = key(drawn % keys);
        let len = match drawn >> 32 & 31 {
            0 => 4096,
            1..=3 => 1024,
            _ => usize::try_from(drawn >> 40 & 255)?,
        };
        let changed = match drawn >> 60 < 4 {
            true => remove(&mut store, &name),
            false => set(&mut store, &name, &value[..len]),
        };
        match changed {
            Ok(()) => {}
            Err(Error::Full { .. }) => full += 1,
            Err(other) => return Err(other.into()),
        }
        packed += store.pack_step(PACKED_BYTES)?;
        free_min = free_min.min(store.stat().frames_free);
        if operation % (operations / 10).max(1) == 0 {
            println!("{operation}: {:?}", store.stat());
        }
    }
    report("operation", started, operations);
    println!(
        "refused as full: {full}; bytes moved by packing: {packed}; fewest free frames: {free_min}"
    );
    println!("{:?}", store.stat());
    drop(store);
    let scan = Scan::open(pmnet_media::open(path, kind(path)?)?, None)?;
    println!(
        "whole: {}, damaged records: {}",
        scan.loss().is_none(),
        scan.verify().len()
    );
    drop(scan);
    std::fs::remove_file(path)?;
    Ok(())
}

fn set(store: &mut PacketStore<AnyMedia>, key: &[u8], value: &[u8]) -> Result<(), Error> {
    let mut transaction = store.transaction();
    transaction.put(key, value, Meta::default(), Room::Ordinary)?;
    transaction.commit()
}

fn remove(store: &mut PacketStore<AnyMedia>, key: &[u8]) -> Result<(), Error> {
    let mut transaction = store.transaction();
    transaction.remove(key)?;
    transaction.commit()
}

fn kind(path: &Path) -> Result<Kind, Failure> {
    Ok(pmnet_media::look(path)?.kind)
}

fn recover(path: &Path, keys: u64) -> Result<(), Failure> {
    let mut store = make(path, keys * 420 + (64 << 20))?;
    let value = [3; 100];
    let mut number = 0u64;
    while number < keys {
        let mut transaction = store.transaction();
        for _ in 0..10_000.min(keys - number) {
            transaction.put(
                &key(number.wrapping_mul(7919) % keys),
                &value,
                Meta::default(),
                Room::Ordinary,
            )?;
            number += 1;
        }
        transaction.commit()?;
    }
    println!("{:?}", store.stat());
    drop(store);
    let medium = pmnet_media::open(path, kind(path)?)?;
    let started = Started::now();
    let scan = Scan::open(medium, None)?;
    println!(
        "scan of {keys} keys: {} ms",
        (processor_time() - started.processor).as_millis()
    );
    let store = scan.repair()?;
    println!(
        "open, all in all: {} ms, {} records",
        (processor_time() - started.processor).as_millis(),
        store.len()
    );
    drop(store);
    std::fs::remove_file(path)?;
    Ok(())
}
