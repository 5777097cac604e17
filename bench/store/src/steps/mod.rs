//! Table 1 of "Packets as Persistent In-Memory Data Structures" (M. Honda, HotNets 2021): the parts
//! of the time of a 1 KB put, with the usual steps and with packets as records, in one run.
//!
//! Both ways take the same request from the same place, and flush the same kind of memory. The two
//! ways differ in how they store the request. The usual steps make a structure from the request,
//! compute a checksum, allocate, copy, and insert into a persistent skip list. With packets as
//! records, the packet is already in a frame of the store, and is only linked.

mod packets;
mod server;
mod usual;
mod watched;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::ensure;
use pmnet_resp::{Parser, RequestLimits, Status, write_command};
use serde::Serialize;

use crate::keys::{self, Keys, Values};
use crate::measure::{Scratch, middle};
use crate::plan::Choice;

/// Size of the value in bytes, as in the paper.
pub const VALUE_BYTES: usize = 1024;
/// Maximum size of a request in bytes.
const REQUEST_BYTES_MAX: usize = VALUE_BYTES + 128;
/// One of this many puts is also sent over a TCP connection.
const SENT: u64 = 10;
/// Number of clock readings from which the cost of one reading is computed.
const CLOCK_READS: u32 = 10_000;

/// The parts of the wall-clock time of one put, in ns.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    prepare: f64,
    checksum: f64,
    copy: f64,
    insert: f64,
    flush: f64,
}

/// A row of the table. All times are medians in µs.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// The group of overheads to which the operation belongs.
    pub overhead: &'static str,
    /// Name of the operation.
    pub operation: &'static str,
    /// The time that the paper gives.
    pub published: Option<f64>,
    /// The measured time with the usual steps.
    pub usual: Option<f64>,
    /// The measured time with packets as records.
    pub packets: Option<f64>,
}

/// The table with its parameters and ratios.
#[derive(Clone, Debug, Serialize)]
pub struct Breakdown {
    /// Number of records in the store.
    pub keys: u64,
    /// Size of a value in bytes.
    pub value_bytes: usize,
    /// The rows.
    pub lines: Vec<Line>,
    /// Time of data management with packets as records, as a fraction of that with the usual steps.
    pub ratio: f64,
    /// Time of data management with packets as records and of later packing, per put, as a fraction of the time with
    /// the usual steps.
    pub ratio_with_packing: f64,
    /// Time of data management with packets as records and of the receiver's check of the sender's checksum, as a
    /// fraction of the time with the usual steps. In pmnet this check is a part of receiving.
    pub ratio_with_check: f64,
}

/// A way of storing requests that is measured.
trait Way {
    /// Writes an arriving packet into memory, as a network interface does. The time of this
    /// function is not measured.
    fn arrive(&mut self, request: &[u8]) -> anyhow::Result<()>;
    /// Stores the arrived request durably, and returns the times of the parts.
    fn put(&mut self) -> anyhow::Result<Times>;
}

/// A way that stores no data, which shows the cost of the round trip alone.
#[derive(Default)]
struct Nothing(Vec<u8>);

impl Way for Nothing {
    fn arrive(&mut self, request: &[u8]) -> anyhow::Result<()> {
        self.0.clear();
        self.0.extend_from_slice(request);
        Ok(())
    }

    fn put(&mut self) -> anyhow::Result<Times> {
        Ok(Times::default())
    }
}

/// In each round, measures `count` puts of each way.
///
/// # Errors
/// A store fails.
pub fn measure(
    memory: &Path,
    key_count: u64,
    count: u64,
    rounds: usize,
    tell: &dyn Fn(&str),
) -> anyhow::Result<Breakdown> {
    let folder = Scratch::new(memory)?;
    let mut keys = Keys::new(key_count, Choice::Uniform, 3);
    let mut values = Values::new(VALUE_BYTES);
    let clock = clock_ns();
    let versions = key_count + u64::try_from(rounds)? * (count + count / SENT + 1);
    let mut usual = usual::Usual::new(folder.path(), versions, clock)?;
    let mut packets = packets::Packets::new(folder.path(), key_count, clock)?;
    tell("breakdown: load");
    for rank in 0..key_count {
        let request = request(keys.at(rank), &mut values)?;
        usual.arrive(&request)?;
        usual.put()?;
        packets.load(&request)?;
    }
    let mut results = [Vec::new(), Vec::new()];
    let mut trips = [Vec::new(), Vec::new(), Vec::new()];
    packets.packing = Duration::ZERO;
    let mut check = Vec::new();
    for round in 0..rounds {
        tell(&format!("breakdown: round {}", round + 1));
        let ways: [&mut dyn Way; 3] = [&mut usual, &mut packets, &mut Nothing::default()];
        let mut order: Vec<_> = ways.into_iter().enumerate().collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for (at, way) in order {
            let requests: Vec<_> = (0..count)
                .map(|_| request(keys.draw(), &mut values))
                .collect::<Result<_, _>>()?;
            if let Some(results) = results.get_mut(at) {
                for request in &requests {
                    way.arrive(request)?;
                    results.push(way.put()?);
                }
            }
            let sent = &requests[..usize::try_from(count / SENT)?];
            trips[at].push(middle(server::round_trips(way, sent)?));
        }
        check.push(check_ns(&request(keys.draw(), &mut values)?, clock));
    }
    usual.verify(keys.at(0))?;
    packets.verify(key_count)?;
    let puts = u64::try_from(rounds)? * (count + count / SENT);
    let packing = packets.packing.as_secs_f64() * 1e6 / crate::run::f64_of(puts.max(1));
    Ok(breakdown(
        key_count,
        &results,
        trips.map(middle),
        packing,
        middle(check) / 1000.0,
    ))
}

fn breakdown(
    keys: u64,
    results: &[Vec<Times>; 2],
    trips: [f64; 3],
    packing: f64,
    check: f64,
) -> Breakdown {
    let medians = |figure: &dyn Fn(&Times) -> f64| {
        [0, 1].map(|way| middle(results[way].iter().map(figure).collect()) / 1000.0)
    };
    let managed = medians(&|times| times.prepare + times.checksum + times.copy + times.insert);
    let line = |overhead, operation, published, [usual, packets]: [f64; 2]| Line {
        overhead,
        operation,
        published,
        usual: Some(usual),
        packets: Some(packets),
    };
    let alone = |overhead, operation, packets| Line {
        overhead,
        operation,
        published: None,
        usual: None,
        packets: Some(packets),
    };
    let [usual_trip, packets_trip, network] = trips;
    let data = "data management";
    let lines = vec![
        line(
            "networking",
            "TCP on the loopback, both ends",
            Some(26.71),
            [network, network],
        ),
        line(
            data,
            "request preparation",
            Some(0.70),
            medians(&|times| times.prepare),
        ),
        line(
            data,
            "checksum calculation",
            Some(1.77),
            medians(&|times| times.checksum),
        ),
        line(data, "data copy", Some(1.14), medians(&|times| times.copy)),
        line(
            data,
            "buffer allocation and insertion",
            Some(2.78),
            medians(&|times| times.insert),
        ),
        line(data, "together", Some(6.39), managed),
        line(
            "persistence",
            "flush",
            Some(1.94),
            medians(&|times| times.flush),
        ),
        line(
            "total",
            "round trip",
            Some(34.79),
            [usual_trip, packets_trip],
        ),
        alone("afterwards", "packing, for each put", packing),
        Line {
            usual: Some(check),
            ..alone("receiving", "check of the sender's checksum", check)
        },
    ];
    Breakdown {
        keys,
        value_bytes: VALUE_BYTES,
        lines,
        ratio: managed[1] / managed[0],
        ratio_with_packing: (managed[1] + packing) / managed[0],
        ratio_with_check: (managed[1] + check) / managed[0],
    }
}

/// Returns a `SET` command as a client sends it.
fn request(key: u64, values: &mut Values) -> anyhow::Result<Vec<u8>> {
    let mut request = Vec::new();
    write_command(
        &mut request,
        &[&b"SET"[..], &keys::name(key), &values.next(key)],
    );
    ensure!(request.len() <= REQUEST_BYTES_MAX, "a request is too long");
    Ok(request)
}

/// Returns pmnet's parser of requests.
fn parser() -> Parser {
    Parser::new(RequestLimits {
        bulk_bytes: REQUEST_BYTES_MAX,
        command_bytes: REQUEST_BYTES_MAX,
    })
}

/// Returns the positions of key and value in a request.
fn parse(parser: &mut Parser, request: &[u8]) -> anyhow::Result<[std::ops::Range<usize>; 2]> {
    ensure!(
        parser.poll(request)? == Status::Complete,
        "an incomplete request"
    );
    let start = request.as_ptr().addr();
    let arguments = parser.arguments(request);
    ensure!(arguments.len() == 3, "a request without key or value");
    let places = [1, 2].map(|index| {
        let argument = arguments.get(index);
        let at = argument.as_ptr().addr() - start;
        at..at + argument.len()
    });
    parser.consume();
    Ok(places)
}

/// Returns the cost of reading the clock, in ns.
fn clock_ns() -> f64 {
    let started = Instant::now();
    for _ in 0..CLOCK_READS {
        std::hint::black_box(Instant::now());
    }
    started.elapsed().as_secs_f64() * 1e9 / f64::from(CLOCK_READS)
}

/// Returns the cost of checking a request's checksum, in ns.
fn check_ns(request: &[u8], clock: f64) -> f64 {
    const TIMES: u32 = 1000;
    let started = Instant::now();
    for _ in 0..TIMES {
        std::hint::black_box(crc32c::crc32c(std::hint::black_box(request)));
    }
    (started.elapsed().as_secs_f64() * 1e9 - clock) / f64::from(TIMES)
}

fn nanos(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e9
}
