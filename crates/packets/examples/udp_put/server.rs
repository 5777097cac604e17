//! Requests and answers of the server.
//!
//! A request is a letter, a number of 8 bytes that the answer repeats, the length of the key (1 byte), the key, and the
//! value if the request is a put. The letters are `P` (put), `D` (delete) and `G` (get). An answer is the number, a
//! letter, and the value if the letter is `V`. The letters are `S` (done), `V` (found), `N` (not found), `F` (full,
//! nothing was changed) and `B` (not understood). A request that is sent twice is executed twice.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use pmnet_packets::{Error, InPlace, Meta, Packet, Records, RecordsOptions, Room};

/// Length of a request's number, in bytes.
const NUMBER: usize = 8;
/// Offset of the byte with the key's length in the payload. The letter precedes this byte.
const KEY: usize = NUMBER + 1;

/// A request. Key and value are ranges of its payload.
struct Request {
    letter: u8,
    key: Range<usize>,
    value: Range<usize>,
}

impl Request {
    fn read(datagram: &[u8]) -> Option<Request> {
        let (&letter, payload) = datagram.split_first()?;
        let end = KEY + usize::from(*payload.get(NUMBER)?);
        let known = match letter {
            b'P' => end <= payload.len(),
            b'D' | b'G' => end == payload.len(),
            _ => false,
        };
        known.then_some(Request {
            letter,
            key: KEY..end,
            value: end..payload.len(),
        })
    }
}

/// Serves until something fails.
pub fn serve(options: &RecordsOptions) -> anyhow::Result<()> {
    let mut records = Records::open(options)?;
    let waiting = records.waiting().count();
    apply(&mut records)?;
    let found = records.store()?.len();
    println!("{found} records from before, {waiting} requests of them applied now");
    println!("what is answered survives {}", records.survives());
    let mut burst = Vec::new();
    loop {
        records.receive(Duration::from_secs(60), &mut burst)?;
        let (mut done, mut reads) = (Vec::new(), Vec::new());
        for packet in burst.drain(..) {
            log(&mut records, packet, &mut done, &mut reads);
        }
        // One fence makes all requests durable. The answers are sent after the fence.
        records.persist()?;
        for (from, answer) in done {
            records.send(from, &answer)?;
        }
        records.flush()?;
        apply(&mut records)?;
        for (from, payload, key) in reads {
            let answer = get(&mut records, &payload[..NUMBER], &payload[key])?;
            records.send(from, &answer)?;
        }
        records.flush()?;
    }
}

type Answers = Vec<(SocketAddr, Vec<u8>)>;
type Reads = Vec<(SocketAddr, Vec<u8>, Range<usize>)>;

/// Logs a write in its buffer. If the write cannot be logged, answers it with an error.
fn log(records: &mut Records, packet: Packet, done: &mut Answers, reads: &mut Reads) {
    let from = packet.from();
    let datagram = records.bytes(&packet);
    let payload = datagram.get(1..).unwrap_or_default();
    let mut answer = payload[..NUMBER.min(payload.len())].to_vec();
    match Request::read(datagram) {
        Some(Request {
            letter: b'G', key, ..
        }) => {
            reads.push((from, payload.to_vec(), key));
            records.release(packet);
            return;
        }
        Some(_) => match records.log(packet, 0) {
            Ok(_order) => answer.push(b'S'),
            Err((_full, packet)) => {
                answer.push(b'F');
                records.release(packet);
            }
        },
        None => {
            answer.push(b'B');
            records.release(packet);
        }
    }
    done.push((from, answer));
}

fn get(records: &mut Records, number: &[u8], key: &[u8]) -> anyhow::Result<Vec<u8>> {
    // A write that was answered is at least in the log, and a reader must not miss it.
    if records.waiting().next().is_some() {
        return Ok([number, b"F"].concat());
    }
    let store = records.store()?;
    Ok(match store.get(key)? {
        None => [number, b"N"].concat(),
        Some(record) => [number, b"V", record.value(&mut Vec::new())].concat(),
    })
}

/// Applies the log to the store: all orders in one change or, if the store is too full for this, as many orders as
/// possible.
fn apply(records: &mut Records) -> Result<(), Error> {
    let last = records.applied() + u64::try_from(records.waiting().count()).unwrap_or(0);
    let mut upto = last;
    while records.applied() < last {
        match apply_upto(records, upto) {
            Ok(()) => upto = last,
            Err(Error::Records(pmnet_packet_store::Error::Full { .. })) => {
                let next = records.applied() + 1;
                // Orders that cannot be applied stay in the log. When the log is full, writes are answered with `F`.
                if records.pack()? == 0 && upto == next {
                    return Ok(());
                }
                upto = next;
            }
            Err(error) => return Err(error),
        }
    }
    records.pack().map(drop)
}

fn apply_upto(records: &mut Records, upto: u64) -> Result<(), Error> {
    let requests: Vec<_> = records
        .waiting()
        .take_while(|entry| entry.order <= upto)
        .map(|entry| {
            let request =
                Request::read(entry.bytes).expect("it was understood before it was logged");
            let removed =
                (request.letter == b'D').then(|| entry.bytes[1..][request.key.clone()].to_vec());
            (entry.order, request, removed)
        })
        .collect();
    let mut change = records.change(upto)?;
    for (order, request, removed) in requests {
        match removed {
            Some(key) => {
                change.remove(&key)?;
            }
            None => {
                let record = InPlace {
                    key: request.key,
                    value: request.value,
                    meta: Meta::default(),
                };
                change.link(order, &[record], Room::Ordinary)?;
            }
        }
    }
    Ok(change.commit()?)
}
