//! Traffic over TCP: a bulk transfer, and round trips of one message at a time.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;

use super::pace::{Pace, Sample, rate};
use super::plan::MESSAGE_BYTES;
use crate::bench::micro::{cpus, pin};
use crate::testbed::Network;

/// The server's port.
const PORT: u16 = 7_000;
/// Longest wait for the other end of a connection.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Interval at which a connection that is being made is checked.
const LOOK: Duration = Duration::from_millis(1);
/// Period of the sent bytes: the byte at position n of a stream is n modulo this number.
const PATTERN: usize = 251;
/// Size of one `write` in bytes: a multiple of the period.
const WRITE_BYTES: usize = PATTERN * 512;
/// Maximum number of bytes that one `read` takes.
const READ_BYTES: usize = 256 << 10;
/// Longest round trip that the histogram can hold, in nanoseconds.
const NANOS_MAX: u64 = 10_000_000_000;

/// The two ends of a connection, the client's end first.
pub type Pair = (TcpStream, TcpStream);

/// Makes `count` connections from `client1` to the server's address.
///
/// # Errors
/// Fails if a connection cannot be made within `WAIT_MAX`.
pub fn connect(network: &Network, server: IpAddr, count: usize) -> anyhow::Result<Vec<Pair>> {
    let address = SocketAddr::new(server, PORT);
    let listener = network.inside("server", || {
        TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))
    })?;
    let dial = || {
        let stream = TcpStream::connect_timeout(&address, WAIT_MAX);
        stream.with_context(|| format!("cannot connect to {address} through the switch"))
    };
    let pairs = (0..count).map(|_| {
        let near = network.inside("client1", dial)?;
        accept(&listener, near)
    });
    pairs.collect()
}

fn accept(listener: &TcpListener, near: TcpStream) -> anyhow::Result<Pair> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + WAIT_MAX;
    let far = loop {
        match listener.accept() {
            Ok((far, _)) => break far,
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {
                std::thread::sleep(LOOK);
            }
            Err(error) => return Err(error).context("a connection was not accepted"),
        }
    };
    for stream in [&near, &far] {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(WAIT_MAX))?;
        stream.set_write_timeout(Some(WAIT_MAX))?;
    }
    Ok((near, far))
}

/// Sends as many bytes as the connections accept, from client to server. The figure is in gigabits per second.
///
/// # Errors
/// Fails if the run is interrupted, if a connection breaks, or if the received bytes differ from the sent ones.
pub fn bulk(pairs: &[Pair], pace: Pace<'_>) -> anyhow::Result<Sample> {
    let (received, done) = (&AtomicU64::new(0), &AtomicBool::new(false));
    let cpus = &cpus();
    let core = |index: usize| cpus.get(index.checked_rem(cpus.len())?).copied();
    std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for (index, (near, far)) in pairs.iter().enumerate() {
            workers.push(scope.spawn(move || {
                pin(core(index));
                send(near, done)
            }));
            workers.push(scope.spawn(move || {
                pin(core(index + 1));
                receive(far, received, done)
            }));
        }
        let measured = pace.measure(|| [received.load(Ordering::Relaxed)]);
        done.store(true, Ordering::Relaxed);
        for stream in pairs.iter().flat_map(|(near, far)| [near, far]) {
            // The shutdown wakes a thread that sleeps in a call on the stream. If the connection is broken, the thread
            // has already reported its error.
            let _ = stream.shutdown(Shutdown::Both);
        }
        for worker in workers {
            let ended = worker.join();
            ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        let ([bytes], seconds) = measured?;
        Ok(Sample {
            figure: rate(bytes, seconds) * 8.0 / 1e9,
            bytes,
            ..Sample::default()
        })
    })
}

fn send(mut stream: &TcpStream, done: &AtomicBool) -> anyhow::Result<()> {
    let pattern: Vec<u8> = (0..=250).cycle().take(WRITE_BYTES).collect();
    while !done.load(Ordering::Relaxed) {
        if let Err(error) = stream.write_all(&pattern) {
            let ended = done.load(Ordering::Relaxed);
            return if ended {
                Ok(())
            } else {
                Err(error).context("a stream cannot be sent on")
            };
        }
    }
    Ok(())
}

fn receive(mut stream: &TcpStream, received: &AtomicU64, done: &AtomicBool) -> anyhow::Result<()> {
    let mut buffer = vec![0; READ_BYTES];
    let mut position = 0;
    loop {
        let count = match stream.read(&mut buffer) {
            Ok(count) => count,
            Err(_) if done.load(Ordering::Relaxed) => return Ok(()),
            Err(error) => return Err(error).context("a stream cannot be received"),
        };
        if count == 0 {
            ensure!(done.load(Ordering::Relaxed), "a stream ended too early");
            return Ok(());
        }
        // The kernel has already verified the checksums, so this check looks only for missing, repeated or misplaced
        // bytes.
        for at in [0, count - 1] {
            let expected = (position + at) % PATTERN;
            ensure!(
                usize::from(buffer[at]) == expected,
                "a stream brought the wrong bytes"
            );
        }
        position = (position + count) % PATTERN;
        received.fetch_add(u64::try_from(count)?, Ordering::Relaxed);
    }
}

/// Sends one message at a time to the server and back. Neither end sleeps. The figure is the median in microseconds.
///
/// # Errors
/// Fails if the run is interrupted, or if an answer is wrong or late.
pub fn round_trips(pair: &Pair, pace: Pace<'_>) -> anyhow::Result<Sample> {
    let (near, far) = pair;
    let done = &AtomicBool::new(false);
    let cpus = cpus();
    for stream in [near, far] {
        stream.set_nonblocking(true)?;
    }
    std::thread::scope(|scope| {
        let last = cpus.last().copied();
        let echo = scope.spawn(move || {
            pin(last);
            echo(far, done)
        });
        let first = cpus.first().copied();
        let client = scope.spawn(move || {
            pin(first);
            ask(near, pace)
        });
        let asked = client.join();
        done.store(true, Ordering::Relaxed);
        let echoed = echo.join();
        echoed.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let histogram = asked.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let micros = |quantile| {
            Duration::from_nanos(histogram.value_at_quantile(quantile)).as_secs_f64() * 1e6
        };
        let message = u64::try_from(MESSAGE_BYTES)?;
        Ok(Sample {
            figure: micros(0.5),
            bytes: histogram.len() * 2 * message,
            p99_us: Some(micros(0.99)),
            ..Sample::default()
        })
    })
}

fn echo(mut stream: &TcpStream, done: &AtomicBool) -> anyhow::Result<()> {
    let mut message = [0; MESSAGE_BYTES];
    loop {
        let over = || done.load(Ordering::Relaxed);
        if !exchange(|part| stream.read(part), &mut message, over)? {
            return Ok(());
        }
        // TCP accepts a message of this size either completely or not at all.
        stream
            .write_all(&message)
            .context("an answer cannot be sent")?;
    }
}

fn ask(mut stream: &TcpStream, pace: Pace<'_>) -> anyhow::Result<Histogram<u64>> {
    let mut histogram = Histogram::new_with_bounds(1, NANOS_MAX, 3)?;
    let begin = Instant::now() + pace.warmup;
    let end = begin + pace.duration;
    let (mut message, mut answer) = ([0; MESSAGE_BYTES], [0; MESSAGE_BYTES]);
    let mut number = 0_u64;
    loop {
        number += 1;
        message[..8].copy_from_slice(&number.to_le_bytes());
        let sent = Instant::now();
        stream
            .write_all(&message)
            .context("a message cannot be sent")?;
        let deadline = sent + WAIT_MAX;
        let over = || Instant::now() > deadline;
        let whole = exchange(|part| stream.read(part), &mut answer, over)?;
        let now = Instant::now();
        ensure!(whole, "no answer within {} s", WAIT_MAX.as_secs());
        ensure!(answer == message, "another answer than what was sent");
        if sent >= begin {
            let nanos = u64::try_from((now - sent).as_nanos()).unwrap_or(u64::MAX);
            histogram.saturating_record(nanos);
        }
        // Even a very short run must have one round trip.
        if now >= end && !histogram.is_empty() {
            return Ok(histogram);
        }
        ensure!(!pace.stop.load(Ordering::Relaxed), "interrupted");
    }
}

/// Reads until the buffer is full. Returns false if the run ended before that.
fn exchange(
    mut read: impl FnMut(&mut [u8]) -> std::io::Result<usize>,
    buffer: &mut [u8],
    over: impl Fn() -> bool,
) -> anyhow::Result<bool> {
    let mut filled = 0;
    while filled < buffer.len() {
        match read(&mut buffer[filled..]) {
            Ok(0) => anyhow::bail!("the connection ended too early"),
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if over() {
                    return Ok(false);
                }
                // On a machine with one core, the other end could not run otherwise.
                std::thread::yield_now();
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("cannot receive"),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(count: usize) -> Vec<Pair> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let one = |_| accept(&listener, TcpStream::connect(address).unwrap()).unwrap();
        (0..count).map(one).collect()
    }

    fn pace(stop: &AtomicBool) -> Pace<'_> {
        Pace {
            warmup: Duration::from_millis(5),
            duration: Duration::from_millis(50),
            stop,
        }
    }

    #[test]
    fn bytes_move_on_every_stream() {
        let stop = AtomicBool::new(false);
        let sample = bulk(&pairs(3), pace(&stop)).unwrap();
        assert!(sample.bytes > 0 && sample.figure > 0.0, "{sample:?}");
    }

    #[test]
    fn wrong_bytes_are_an_error() {
        let [(near, far)] = &pairs(1)[..] else {
            panic!("one");
        };
        let (count, done) = (AtomicU64::new(0), AtomicBool::new(false));
        (&*near).write_all(&[0, 1, 2, 9]).unwrap();
        let error = receive(far, &count, &done).unwrap_err();
        assert!(error.to_string().contains("wrong bytes"), "{error}");
    }

    #[test]
    fn an_end_that_nobody_asked_for_is_an_error() {
        let [(near, far)] = &pairs(1)[..] else {
            panic!("one");
        };
        let (count, done) = (AtomicU64::new(0), AtomicBool::new(false));
        near.shutdown(Shutdown::Both).unwrap();
        assert!(receive(far, &count, &done).is_err());
        done.store(true, Ordering::Relaxed);
        assert!(receive(far, &count, &done).is_ok());
        assert!(send(near, &AtomicBool::new(false)).is_err());
    }

    #[test]
    fn messages_come_back() {
        let stop = AtomicBool::new(false);
        let sample = round_trips(&pairs(1)[0], pace(&stop)).unwrap();
        assert!(sample.bytes >= 128 && sample.figure > 0.0, "{sample:?}");
        assert!(sample.p99_us.unwrap() >= sample.figure);
        stop.store(true, Ordering::Relaxed);
        let error = round_trips(&pairs(1)[0], pace(&stop)).unwrap_err();
        assert!(error.to_string().contains("interrupted"), "{error}");
    }
}
