//! Number of bytes of a message that one packet carries (`docs/spec/wire.md` §1, "Size of fragments").
//!
//! Receivers accept every size up to [`crate::FRAGMENT_BYTES`]. A sender cuts messages into fragments of the shard's
//! size, or of the size that its own path carries if that is smaller. So no packet is longer than a hop can carry.

use crate::{FRAGMENT_BYTES, FRAGMENT_BYTES_MIN, Flags, HEADER_LEN};
use core::fmt;

/// Bytes of an IPv4 header without options, of an IPv6 header without extensions, and of a UDP header.
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;
/// Unit of sizes, in bytes: each size is a multiple of it.
const STEP: usize = 8;
/// Position of five bits in the flags of a bypass. They state the size of fragments that the bypass's client can
/// receive.
const FLAGS_SHIFT: u8 = 3;

/// Maximum number of payload bytes of one packet: a multiple of 8 from [`FRAGMENT_BYTES_MIN`] to [`FRAGMENT_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FragmentSize(u16);

const fn bounded(bytes: usize) -> FragmentSize {
    let bytes = if bytes > FRAGMENT_BYTES {
        FRAGMENT_BYTES
    } else if bytes < FRAGMENT_BYTES_MIN {
        FRAGMENT_BYTES_MIN
    } else {
        bytes - bytes % STEP
    };
    // The number is at most `FRAGMENT_BYTES`, so it fits a `u16`.
    #[allow(clippy::cast_possible_truncation)]
    FragmentSize(bytes as u16)
}

impl FragmentSize {
    /// The smallest MTU of a path, which IPv6 guarantees.
    pub const MTU_MIN: usize = 1280;
    /// The size that fits an MTU of 1500.
    pub const MAX: FragmentSize = bounded(FRAGMENT_BYTES);
    /// The size that fits an MTU of 1280, which IPv6 guarantees.
    pub const MIN: FragmentSize = bounded(FRAGMENT_BYTES_MIN);

    /// Returns the size for a path with this MTU (longest IP packet, with its header). For an MTU below 1280 the result
    /// is [`FragmentSize::MIN`], whose packets may not fit.
    #[must_use]
    pub const fn of_mtu(mtu: usize, ipv6: bool) -> FragmentSize {
        let ip = if ipv6 { IPV6_BYTES } else { IPV4_BYTES };
        bounded(mtu.saturating_sub(ip + UDP_BYTES + HEADER_LEN))
    }

    /// Returns the size in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.0 as usize
    }

    /// Returns the largest size of a whole packet in bytes: with pmnet's header, but without the headers of UDP and IP.
    #[must_use]
    pub const fn datagram_bytes(self) -> usize {
        HEADER_LEN + self.bytes()
    }

    /// Reads a size from its number in a packet or a record. 0, which earlier versions send, means
    /// [`FragmentSize::MAX`]. A number out of bounds counts as the nearest size.
    #[must_use]
    pub const fn from_wire(bytes: u64) -> FragmentSize {
        if bytes == 0 || bytes > FRAGMENT_BYTES as u64 {
            return FragmentSize::MAX;
        }
        #[allow(clippy::cast_possible_truncation)]
        bounded(bytes as usize)
    }

    /// Returns the number for a packet or a record.
    #[must_use]
    pub const fn on_wire(self) -> u64 {
        if self.0 == FragmentSize::MAX.0 {
            0
        } else {
            self.0 as u64
        }
    }

    /// Returns the size as five bits of the flags of a bypass: the number of steps below [`FragmentSize::MAX`].
    #[must_use]
    pub const fn flags(self) -> Flags {
        let steps = (FRAGMENT_BYTES - self.bytes()) / STEP;
        #[allow(clippy::cast_possible_truncation)]
        Flags((steps as u8) << FLAGS_SHIFT)
    }

    /// Reads the size from the flags of a bypass.
    #[must_use]
    pub const fn of_flags(flags: Flags) -> FragmentSize {
        let steps = (flags.0 >> FLAGS_SHIFT) as usize;
        bounded(FRAGMENT_BYTES - steps * STEP)
    }

    /// Returns the number of fragments of a message with `bytes` bytes. An empty message also has one fragment.
    #[must_use]
    pub const fn count(self, bytes: usize) -> usize {
        let count = bytes.div_ceil(self.bytes());
        if count == 0 { 1 } else { count }
    }
}

impl Default for FragmentSize {
    fn default() -> FragmentSize {
        FragmentSize::MAX
    }
}

impl fmt::Display for FragmentSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

const _: () =
    assert!(FRAGMENT_BYTES.is_multiple_of(STEP) && FRAGMENT_BYTES_MIN.is_multiple_of(STEP));
const _: () = assert!((FRAGMENT_BYTES - FRAGMENT_BYTES_MIN) / STEP < 1 << (8 - FLAGS_SHIFT));
const _: () =
    assert!(FRAGMENT_BYTES_MIN + HEADER_LEN + UDP_BYTES + IPV6_BYTES == FragmentSize::MTU_MIN);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_never_longer_than_its_path_allows() {
        for (ipv6, ip) in [(false, IPV4_BYTES), (true, IPV6_BYTES)] {
            for mtu in 1280..=9001 {
                let size = FragmentSize::of_mtu(mtu, ipv6);
                let packet = ip + UDP_BYTES + HEADER_LEN + size.bytes();
                assert!(packet <= mtu, "{packet} of {mtu}");
                assert!(size == FragmentSize::MAX || packet + STEP > mtu);
            }
            for mtu in [0, 20, 68, 576, 1259] {
                assert_eq!(FragmentSize::of_mtu(mtu, ipv6), FragmentSize::MIN);
            }
        }
        let of = |mtu, ipv6| FragmentSize::of_mtu(mtu, ipv6).bytes();
        assert_eq!([of(1280, true), of(1280, false)], [1144, 1160]);
        assert_eq!([of(1420, true), of(1450, false)], [1280, 1328]);
        assert_eq!([of(1459, false), of(1460, false)], [1336, 1344]);
        assert_eq!([of(1479, true), of(1480, true)], [1336, 1344]);
        assert_eq!([of(1500, true), of(9001, false)], [1344, 1344]);
    }

    #[test]
    fn every_size_is_said_in_each_way_and_nothing_else_is_one() {
        let sizes = (FRAGMENT_BYTES_MIN..=FRAGMENT_BYTES).step_by(STEP);
        for size in sizes.map(bounded) {
            assert_eq!(FragmentSize::from_wire(size.on_wire()), size);
            assert_eq!(FragmentSize::of_flags(size.flags()), size);
            assert_eq!(size.flags().0 & 7, 0, "other flags stay free");
        }
        assert_eq!(FragmentSize::MAX.on_wire(), 0);
        assert_eq!(FragmentSize::MAX.flags(), Flags(0));
        for (said, counts) in [(1, 1144), (1143, 1144), (1150, 1144), (1345, 1344)] {
            assert_eq!(FragmentSize::from_wire(said).bytes(), counts);
        }
        assert_eq!(FragmentSize::from_wire(u64::MAX), FragmentSize::MAX);
        assert_eq!(FragmentSize::of_flags(Flags(0xff)), FragmentSize::MIN);
        let counts = [0, 1, 1144, 1145, 2288].map(|bytes| FragmentSize::MIN.count(bytes));
        assert_eq!(counts, [1, 1, 1, 2, 2]);
    }
}
