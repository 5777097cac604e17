//! Free ports, never the same one twice from one process.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::ops::RangeInclusive;
use std::sync::Mutex;

use anyhow::Context;

/// Below the range that Linux gives to outgoing connections, so that none of those takes a port
/// between this look and the bind of the process that is to have it.
const TCP_PORTS: RangeInclusive<u16> = 20_000..=31_999;
/// The reserved range (`docs/spec/wire.md`).
const UDP_PORTS: RangeInclusive<u16> = pmnet_wire::PORT_FIRST..=pmnet_wire::PORT_LAST;

static GIVEN: Mutex<BTreeSet<(bool, u16)>> = Mutex::new(BTreeSet::new());

/// A TCP port of 127.0.0.1 that nobody uses now.
///
/// # Errors
/// All are in use.
pub fn free_tcp() -> anyhow::Result<u16> {
    free(TCP_PORTS, true, |port| {
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
    })
}

/// A UDP port of 127.0.0.1 in the reserved range that nobody uses now.
///
/// # Errors
/// All are in use.
pub fn free_udp() -> anyhow::Result<u16> {
    free(UDP_PORTS, false, |port| {
        UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
    })
}

fn free(
    range: RangeInclusive<u16>,
    tcp: bool,
    is_free: impl Fn(u16) -> bool,
) -> anyhow::Result<u16> {
    let mut given = GIVEN.lock().unwrap_or_else(|poison| poison.into_inner());
    let (first, last) = (*range.start(), *range.end());
    // Several harnesses may run at once: each starts somewhere else.
    let start = fastrand::u16(first..=last);
    (start..=last)
        .chain(first..start)
        .find(|port| !given.contains(&(tcp, *port)) && is_free(*port))
        .inspect(|port| {
            given.insert((tcp, *port));
        })
        .with_context(|| format!("no free port from {first} to {last}"))
}
