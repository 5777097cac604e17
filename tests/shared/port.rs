//! Ports for servers that the tests of a crate start.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

/// Below the range that Linux gives to outgoing connections (32768 and up). There, polling a port
/// until its server is up can connect to itself, and the server finds its port taken.
const PORTS: std::ops::Range<u16> = 10_000..20_000;

/// A TCP port of 127.0.0.1 that nobody uses now, never the same one twice from one process.
pub fn free() -> u16 {
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    let count = PORTS.end - PORTS.start;
    // Several test processes may run at once: each starts somewhere else.
    let start = std::process::id().wrapping_mul(37) % u32::from(count);
    (0..count)
        .map(|_| (start + u32::from(GIVEN.fetch_add(1, Relaxed))) % u32::from(count))
        .map(|offset| PORTS.start + u16::try_from(offset).expect("below count"))
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a free port")
}
