//! Converts addresses, ports and keys into the form in which the pipeline reads them: the bytes of a packet, read as
//! numbers in the byte order of this computer.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use pmnet_wire::{KEY_BYTES, MacKey};

/// Returns an address as two words, in the form of an IPv6 header. An IPv4 address becomes `::ffff:a.b.c.d`, whose
/// first word is 0.
pub(super) fn address_words(address: IpAddr) -> (u64, u64) {
    let octets = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    let half =
        |at: usize| u64::from_ne_bytes(octets[at..at + 8].try_into().expect("8 of 16 bytes"));
    match address {
        IpAddr::V4(_) => (0, half(8)),
        IpAddr::V6(_) => (half(0), half(8)),
    }
}

/// Returns an IPv4 address as one word, in the form of an IPv4 header.
pub(super) fn ipv4_word(address: Ipv4Addr) -> u32 {
    u32::from_ne_bytes(address.octets())
}

/// Returns a UDP port in network byte order.
pub(super) fn port_word(port: u16) -> u32 {
    port.to_be().into()
}

/// Stores a key as the two words that SipHash takes, or zeros.
pub(super) fn store_key(words: &[AtomicU64], key: Option<MacKey>) {
    let bytes = key.map_or([0; KEY_BYTES], |key| *key.bytes());
    for (word, bytes) in words.iter().zip(bytes.chunks_exact(8)) {
        let half = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        word.store(half, Relaxed);
    }
}
