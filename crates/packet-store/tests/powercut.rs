//! The two ends of `make powercut` for the packet store. One is a process that changes a store and prints which changes
//! are durable, the other checks the store that a power cut has left. Between the two ends is a guest that records
//! every write to its disk (`tests/powercut`).

#[path = "../../../tests/shared/powercut.rs"]
mod powercut;
mod support;

use std::io::Write;
use std::ops::Range;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::{Arc, Mutex};

use pmnet_log::{Media, MediaError};
use pmnet_media::{AnyMedia, Kind, create, open};
use pmnet_packet_store::{
    Geometry, InPlace, Meta, Packet, PacketStore, Room, Scan, Transaction, format,
};
use support::{Content, IDENTITY, Random, content};

/// The key whose value is the number of transactions of the store.
const COUNT: &[u8] = b"count";
const GEOMETRY: Geometry = Geometry {
    lines: 1024,
    frames: 128,
    frame_bytes: 4096,
    log_entries: 0,
};

/// One step of a transaction.
enum Step {
    Put(Vec<u8>, Vec<u8>, Meta),
    /// Keeps a packet whose payload is a key and a value.
    InPlace(Vec<u8>, Vec<u8>, Meta),
    Remove(Vec<u8>),
}

/// Returns the steps of transaction `number`. The steps depend on the number alone.
fn steps(number: u64) -> Vec<Step> {
    let mut random = Random(number.wrapping_mul(0x9e37_79b9));
    let mut steps: Vec<Step> = (0..=random.index(5))
        .map(|_| {
            let key = format!("key {}", random.index(40)).into_bytes();
            let len = match random.index(12) {
                0 => random.index(9000),
                1..=4 => random.index(1200),
                _ => random.index(80),
            };
            let meta = Meta {
                order: number,
                ..Meta::default()
            };
            match random.index(8) {
                0..=1 => Step::Remove(key),
                2..=3 => Step::InPlace(key, random.bytes(len % 1200), meta),
                _ => Step::Put(key, random.bytes(len), meta),
            }
        })
        .collect();
    let count = number.to_le_bytes().to_vec();
    steps.push(Step::Put(COUNT.to_vec(), count, Meta::default()));
    steps
}

/// Returns the contents of a store after this many transactions.
fn expected(transactions: u64) -> Content {
    let mut content = Content::new();
    for step in (1..=transactions).flat_map(steps) {
        match step {
            Step::Remove(key) => drop(content.remove(&key)),
            Step::Put(key, value, meta) | Step::InPlace(key, value, meta) => {
                content.insert(key, (value, meta));
            }
        }
    }
    content
}

/// Returns a packet in a frame, as if a network interface had put it there.
fn received(store: &mut PacketStore<Told>, key: &[u8], value: &[u8]) -> Packet {
    let frame = store.lend_frame().expect("the store has room");
    let bytes = [key, value].concat();
    store.deposit(frame, 42, &bytes);
    Packet {
        frame,
        payload: 42..42 + bytes.len(),
        crc: crc32c::crc32c(&bytes),
    }
}

fn take<M: Media>(transaction: &mut Transaction<'_, M>, step: &Step, packet: Option<&Packet>) {
    match (step, packet) {
        (Step::Remove(key), _) => drop(transaction.remove(key).unwrap()),
        (Step::InPlace(key, value, meta), Some(packet)) => {
            let record = InPlace {
                key: 0..key.len(),
                value: key.len()..key.len() + value.len(),
                meta: *meta,
            };
            let kept = transaction.put_in_place(packet, &[record], Room::Ordinary);
            kept.unwrap();
        }
        (Step::Put(key, value, meta) | Step::InPlace(key, value, meta), _) => {
            transaction.put(key, value, *meta, Room::Ordinary).unwrap();
        }
    }
}

/// A medium that prints after each persist how many transactions are promised, and how many have begun: `mark PROMISED
/// BEGUN`. The medium waits for a line of input before it continues, so at most one persist is under way between two
/// marks.
struct Told {
    medium: AnyMedia,
    under_way: bool,
    numbers: Arc<Mutex<(u64, u64)>>,
}

fn tell((promised, begun): (u64, u64)) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "mark {promised} {begun}").unwrap();
    out.flush().unwrap();
    let mut answer = String::new();
    let count = std::io::stdin().read_line(&mut answer).unwrap();
    assert!(count > 0, "whoever records answers");
}

impl Media for Told {
    fn bytes(&self) -> &[u8] {
        self.medium.bytes()
    }
    fn store(&mut self, offset: usize, bytes: &[u8]) {
        self.medium.store(offset, bytes);
    }
    fn persist_start(&mut self, ranges: &[Range<usize>]) -> Result<(), MediaError> {
        self.under_way = true;
        self.medium.persist_start(ranges)
    }
    fn persist_poll(&mut self, wait: bool) -> Result<bool, MediaError> {
        let done = self.medium.persist_poll(wait)?;
        if done && std::mem::take(&mut self.under_way) {
            let numbers = *self.numbers.lock().unwrap();
            tell(numbers);
        }
        Ok(done)
    }
    fn wakeup_fd(&self) -> Option<RawFd> {
        self.medium.wakeup_fd()
    }
    fn survives(&self) -> &'static str {
        self.medium.survives()
    }
    fn name(&self) -> &'static str {
        self.medium.name()
    }
}

/// Makes a store and changes it, and prints marks.
fn record(rounds: u64, path: &Path) {
    let mut medium = create(path, Kind::File, GEOMETRY.image_bytes()).unwrap();
    format(&mut medium, &IDENTITY, &GEOMETRY).unwrap();
    let numbers = Arc::new(Mutex::new((0, 0)));
    let medium = Told {
        medium,
        under_way: false,
        numbers: numbers.clone(),
    };
    let scan = Scan::open(medium, Some(IDENTITY.shard)).unwrap();
    let mut store = scan.repair().unwrap();
    for number in 1..=rounds {
        *numbers.lock().unwrap() = (number - 1, number);
        let steps = steps(number);
        let packets: Vec<Option<Packet>> = steps
            .iter()
            .map(|step| match step {
                Step::InPlace(key, value, _) => Some(received(&mut store, key, value)),
                _ => None,
            })
            .collect();
        let mut transaction = store.transaction();
        for (step, packet) in steps.iter().zip(&packets) {
            take(&mut transaction, step, packet.as_ref());
        }
        transaction.commit().unwrap();
        *numbers.lock().unwrap() = (number, number);
        tell((number, number));
        if number % 3 == 0 && number < rounds {
            store.pack_step(16 * 1024).unwrap();
        }
    }
    println!("end");
}

/// Returns what is wrong with the store at `path`, which must hold at least `durable` and at most `most` transactions.
/// The store is repaired as a server would do it, and then used further.
fn wrong(path: &Path, durable: u64, most: u64) -> Result<(), String> {
    let opened = || {
        let medium = open(path, Kind::File).map_err(|error| error.to_string())?;
        let scan = Scan::open(medium, Some(IDENTITY.shard)).map_err(|error| error.to_string())?;
        if let Some(damage) = scan.verify().first() {
            return Err(format!("damaged: {damage:?}"));
        }
        scan.repair().map_err(|error| error.to_string())
    };
    let mut store = opened()?;
    let found = content(&store);
    let count = found.get(COUNT).map_or(0, |(value, _)| {
        u64::from_le_bytes(value.as_slice().try_into().expect("eight bytes"))
    });
    if !(durable..=most).contains(&count) {
        return Err(format!(
            "{count} transactions are there, {durable} were durable, at most {most} were begun"
        ));
    }
    if found != expected(count) {
        return Err(format!("other records than after {count} transactions"));
    }
    let mut transaction = store.transaction();
    for step in &steps(count + 1) {
        take(&mut transaction, step, None);
    }
    transaction.commit().map_err(|error| error.to_string())?;
    drop(store);
    if content(&opened()?) != expected(count + 1) {
        return Err("other records after one more transaction".to_owned());
    }
    Ok(())
}

/// Not a test: `make powercut` runs this function, on this machine and in the guest.
#[test]
fn child() {
    powercut::child(record, wrong);
}

/// Without a power cut the check succeeds. If a promise is broken, the check notices it.
#[test]
fn what_was_recorded_is_there_and_what_was_not_is_missed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let marks = powercut::marks(200, &path).len();
    assert!(
        marks > 600,
        "{marks}: a persist of records, and one of the commit"
    );
    let copy = |name: &str| {
        let copy = directory.path().join(name);
        std::fs::copy(&path, &copy).unwrap();
        copy
    };
    let bent = copy("bent");
    let mut bytes = std::fs::read(&bent).unwrap();
    let frames = bytes.len() - usize::try_from(GEOMETRY.frames).unwrap() * 4096;
    for at in frames..bytes.len() - 3 {
        if bytes[at..].starts_with(b"key") {
            bytes[at] ^= 1;
        }
    }
    std::fs::write(&bent, bytes).unwrap();
    let lines = [
        format!("200 200 {}", copy("good").display()),
        format!("201 201 {}", copy("lost").display()),
        format!("198 199 {}", copy("early").display()),
        // These are the keys of all records that are in packets.
        format!("200 200 {}", bent.display()),
    ];
    let verdicts = powercut::verdicts(directory.path(), &lines);
    assert!(verdicts[0].contains("whole"), "{verdicts:?}");
    assert!(verdicts[1].contains("201 were durable"), "{verdicts:?}");
    assert!(
        verdicts[2].contains("at most 199 were begun"),
        "{verdicts:?}"
    );
    assert!(verdicts[3].contains("damaged"), "{verdicts:?}");
}
