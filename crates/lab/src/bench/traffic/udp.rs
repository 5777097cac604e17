//! Traffic over UDP: as many small datagrams as one thread can send.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use socket2::SockRef;

use super::pace::{Pace, Sample, rate};
use super::plan::MESSAGE_BYTES;
use crate::bench::micro::{cpus, pin};
use crate::testbed::Network;

/// The server's port, which is not the port of the shard. The pipeline compares the port last, so these datagrams take
/// the longest path through it.
const PORT: u16 = 7_001;
/// Size of the receive buffer that is requested from the kernel. The kernel may grant less.
const BUFFER_BYTES: usize = 4 << 20;
/// Interval at which the receiver checks whether it must end.
const LOOK: Duration = Duration::from_millis(50);

/// Returns a socket of the client, and the server's socket. The client's socket sends to the server's.
///
/// # Errors
/// Fails if the kernel refuses a call.
pub fn connect(network: &Network, server: IpAddr) -> anyhow::Result<(UdpSocket, UdpSocket)> {
    let address = SocketAddr::new(server, PORT);
    let far = network.inside("server", || {
        UdpSocket::bind(address).with_context(|| format!("cannot listen on {address}"))
    })?;
    let near = network.inside("client1", || {
        let near = UdpSocket::bind("0.0.0.0:0")?;
        near.connect(address)?;
        Ok(near)
    })?;
    Ok((near, far))
}

/// Sends as many datagrams as possible. The figure is the number of received datagrams per second.
///
/// # Errors
/// Fails if the run is interrupted, if a socket fails, or if a received datagram is not one of the sent ones.
pub fn flood(near: &UdpSocket, far: &UdpSocket, pace: Pace<'_>) -> anyhow::Result<Sample> {
    let (sent, received) = (&AtomicU64::new(0), &AtomicU64::new(0));
    let done = &AtomicBool::new(false);
    let _ = SockRef::from(far).set_recv_buffer_size(BUFFER_BYTES);
    far.set_read_timeout(Some(LOOK))?;
    near.set_write_timeout(Some(LOOK))?;
    let cpus = cpus();
    let (first, last) = (cpus.first().copied(), cpus.last().copied());
    std::thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            pin(last);
            receive(far, received, done)
        });
        let sender = scope.spawn(move || {
            pin(first);
            send(near, sent, done)
        });
        let counters = || [&sent, &received].map(|count| count.load(Ordering::Relaxed));
        let measured = pace.measure(counters);
        done.store(true, Ordering::Relaxed);
        for worker in [sender, receiver] {
            let ended = worker.join();
            ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        let ([sent, received], seconds) = measured?;
        Ok(Sample {
            figure: rate(received, seconds),
            bytes: received * u64::try_from(MESSAGE_BYTES)?,
            sent: Some(rate(sent, seconds)),
            ..Sample::default()
        })
    })
}

/// Returns a datagram with a number. The rest is filled with the last byte of the number.
fn datagram(number: u64) -> [u8; MESSAGE_BYTES] {
    let bytes = number.to_le_bytes();
    let mut datagram = [bytes[0]; MESSAGE_BYTES];
    datagram[..8].copy_from_slice(&bytes);
    datagram
}

fn send(socket: &UdpSocket, sent: &AtomicU64, done: &AtomicBool) -> anyhow::Result<()> {
    let mut number = 0;
    while !done.load(Ordering::Relaxed) {
        match socket.send(&datagram(number)) {
            Ok(_) => {
                number += 1;
                sent.fetch_add(1, Ordering::Relaxed);
            }
            // The queue is full, or the other host has reported that no socket listens at the port.
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock
                | ErrorKind::OutOfMemory
                | ErrorKind::Interrupted
                | ErrorKind::ConnectionRefused => {}
                _ => return Err(error).context("a datagram cannot be sent"),
            },
        }
    }
    Ok(())
}

fn receive(socket: &UdpSocket, received: &AtomicU64, done: &AtomicBool) -> anyhow::Result<()> {
    let mut buffer = [0; MESSAGE_BYTES + 1];
    while !done.load(Ordering::Relaxed) {
        match socket.recv(&mut buffer) {
            Ok(length) => {
                let mut number = [0; 8];
                number.copy_from_slice(&buffer[..8]);
                ensure!(
                    buffer[..length] == datagram(u64::from_le_bytes(number)),
                    "another datagram arrived than was sent"
                );
                received.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                _ => return Err(error).context("datagrams cannot be received"),
            },
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sockets() -> (UdpSocket, UdpSocket) {
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        near.connect(far.local_addr().unwrap()).unwrap();
        (near, far)
    }

    #[test]
    fn datagrams_arrive_and_are_counted() {
        let (near, far) = sockets();
        let stop = AtomicBool::new(false);
        let pace = Pace {
            warmup: Duration::from_millis(5),
            duration: Duration::from_millis(50),
            stop: &stop,
        };
        let sample = flood(&near, &far, pace).unwrap();
        assert!(sample.bytes > 0 && sample.figure > 0.0, "{sample:?}");
        assert!(sample.sent.unwrap() > 0.0);
    }

    #[test]
    fn altered_datagrams_are_an_error() {
        let longer = [&datagram(7)[..], &[7]].concat();
        let mut altered = datagram(7);
        altered[40] ^= 1;
        for wrong in [&datagram(7)[..63], &longer, &altered, &[]] {
            let (near, far) = sockets();
            far.set_read_timeout(Some(LOOK)).unwrap();
            near.send(&datagram(6)).unwrap();
            near.send(wrong).unwrap();
            let (count, done) = (AtomicU64::new(0), AtomicBool::new(false));
            assert!(receive(&far, &count, &done).is_err());
            assert_eq!(count.into_inner(), 1);
        }
    }
}
