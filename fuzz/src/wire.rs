//! Packets: any bytes, or a datagram whose lengths and checksums are corrected, so that the later
//! checks are reached (`docs/spec/wire.md` §1–§4).
//!
//! Invariants: parsing never panics; an accepted packet is emitted as the same bytes; one flipped
//! bit is noticed; header and payload survive being written again; the first packet of a longer
//! buffer parses as it does alone.

use pmnet_wire::{FRAGMENT_BYTES, HEADER_LEN, Header, Kind, Packet, Reject};

use crate::input::Input;
use crate::payload;

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let repairs = input.byte();
    let flip = input.short();
    let mut datagram = input.rest().to_vec();
    repair(&mut datagram, repairs);
    let first = Packet::parse_first(&datagram);
    if let Ok(packet) = first {
        let length = HEADER_LEN + packet.payload.len();
        assert_eq!(Packet::parse(&datagram[..length]), first);
    }
    match Packet::parse(&datagram) {
        Ok(packet) => {
            assert_eq!(first, Ok(packet));
            accepted(&packet, &datagram, usize::from(flip));
        }
        Err(reason) => {
            assert!(Reject::ALL.contains(&reason));
            let ours = datagram.starts_with(&[0x50, 0x4d, 1]);
            assert_eq!(
                reason == Reject::Foreign,
                !ours,
                "foreign is what has not our magic and version, and nothing else"
            );
        }
    }
}

/// Corrects the parts that the bits of `what` select.
fn repair(datagram: &mut [u8], what: u8) {
    let Some((head, payload)) = datagram.split_first_chunk_mut::<HEADER_LEN>() else {
        return;
    };
    if what & 1 != 0 {
        head[..3].copy_from_slice(&[0x50, 0x4d, 1]);
        head[6..8].copy_from_slice(&[0, 88]);
    }
    if what & 2 != 0 {
        let kinds = u8::try_from(Kind::ALL.len()).expect("few kinds");
        head[3] = head[3] % kinds + 1;
    }
    if what & 4 != 0 {
        let length = u32::try_from(payload.len()).expect("an input is short");
        head[68..72].copy_from_slice(&length.to_be_bytes());
        head[72..76].copy_from_slice(&pmnet_wire::crc(payload).to_be_bytes());
    }
    if what & 8 != 0 {
        head[64..68].copy_from_slice(&[0, 0, 0, 1]);
    }
    if what & 16 != 0 {
        let crc = crc32c::crc32c_append(crc32c::crc32c(&head[..76]), &head[80..]);
        head[76..80].copy_from_slice(&crc.to_be_bytes());
    }
}

fn accepted(packet: &Packet<'_>, datagram: &[u8], flip: usize) {
    let mut again = Vec::new();
    packet.emit(&mut again);
    assert_eq!(again, datagram, "what parses is emitted as the same bytes");
    assert_eq!(packet.header.for_payload(packet.payload), packet.header);
    again.clear();
    packet.header.write(packet.payload, &mut again);
    assert_eq!(again, datagram);
    assert!(packet.payload.len() <= FRAGMENT_BYTES);
    assert!(!packet.header.to_string().is_empty());
    assert_eq!(
        Kind::from_u8(packet.header.kind.number()),
        Some(packet.header.kind)
    );

    let bit = flip % (again.len() * 8);
    again[bit / 8] ^= 1 << (bit % 8);
    let damaged = Packet::parse(&again);
    assert!(damaged.is_err(), "bit {bit} flipped, still accepted");

    // A hop that changes the header keeps the payload and its checksum.
    let hop = Header {
        epoch: packet.header.epoch.wrapping_add(1),
        ..packet.header
    };
    let mut relayed = hop.emit().to_vec();
    relayed.extend_from_slice(packet.payload);
    assert_eq!(
        Packet::parse(&relayed).map(|packet| packet.header),
        Ok(hop),
        "relayed"
    );
    payload::run(packet.payload);
}
