//! The entries of the log in the tests of a region. Each entry puts a record or removes one.

use pmnet_log::{Log, Media, NewEntry};
use pmnet_packet_store::{Change, Error, InPlace, Meta, Prefix, Room, Seat, Shared};

use crate::support::{Content, Random};

pub const HEADER: [u8; 24] = *b"the header of the entry.";
/// Offset of a packet in its buffer. The offset differs from that of a line.
pub const FRONT: usize = 42;
/// First byte of a payload. The first byte says which operation the entry has.
const PUT: u8 = 1;
const REMOVE: u8 = 2;

pub const NEW: NewEntry = NewEntry {
    session: 1,
    seq: 2,
    kind: 3,
    fragment_index: 0,
    fragment_count: 1,
};

/// Returns the name of a key. All names have five bytes, so that one name can be forged from another.
pub fn name(key: u8) -> Vec<u8> {
    format!("key{key:02}").into_bytes()
}

/// Returns the prefix of the key with this name. Every second key has a prefix that is not in its packet.
fn prefix(name: &[u8]) -> Prefix {
    let number = u64::from(name[4] % 4) << 16;
    let bytes = [&[1], &number.to_be_bytes()[..]].concat();
    match name[4] % 2 {
        1 => Prefix::of(&bytes).unwrap(),
        _ => Prefix::NONE,
    }
}

/// Returns the store's key for this name.
pub fn stored(name: &[u8]) -> Vec<u8> {
    [prefix(name).bytes(), name].concat()
}

/// Returns the store's key for this number.
pub fn key(key: u8) -> Vec<u8> {
    stored(&name(key))
}

pub fn put(key: u8, len: usize, seed: u64) -> Vec<u8> {
    let mut payload = vec![PUT];
    payload.extend_from_slice(&name(key));
    payload.extend_from_slice(b"\r\n");
    payload.extend_from_slice(&Random(seed).bytes(len));
    payload
}

pub fn remove(key: u8) -> Vec<u8> {
    let mut payload = vec![REMOVE];
    payload.extend_from_slice(&name(key));
    payload
}

/// Returns a put whose key has another name and the same checksum. A hostile sender could choose such a key.
pub fn forged(key: u8, len: usize) -> Vec<u8> {
    // These bytes are the polynomial of CRC32C, lowest bit first. Adding them to a message changes no checksum.
    let mut message = [0_u8; 5];
    let polynomial = 1_u64 << 32 | 0x1edc_6f41;
    for bit in 0..33 {
        if polynomial >> (32 - bit) & 1 == 1 {
            message[bit / 8] |= 1 << (bit % 8);
        }
    }
    let mut payload = put(key, len, 0);
    for (byte, change) in payload[1..6].iter_mut().zip(message) {
        *byte ^= change;
    }
    payload
}

fn meta(order: u64) -> Meta {
    Meta {
        kind: 1,
        expires_at_ms: 0,
        order,
        received_us: 1000 + order,
    }
}

/// Notes the effect of an entry on the contents of a store.
pub fn note(content: &mut Content, order: u64, payload: &[u8]) {
    let key = stored(&payload[1..6]);
    match payload[0] {
        PUT => content.insert(key, (payload[8..].to_vec(), meta(order))),
        _ => content.remove(&key),
    };
}

/// Returns the payload of an order that is not applied.
pub fn payload<M: Media>(log: &Log<Seat<M>>, order: u64) -> Vec<u8> {
    log.frame(order).expect("the log has it")[HEADER.len()..].to_vec()
}

/// Applies all orders up to this order. [`Error::Full`]: no order was applied.
pub fn apply<M: Media>(shared: &mut Shared<M>, upto: u64) -> Result<(), Error> {
    let first = shared.log().applied() + 1;
    let change = changed(shared, first, upto)?;
    change.commit()
}

/// Makes the changes of these orders without committing them.
pub fn changed<M: Media>(
    shared: &mut Shared<M>,
    first: u64,
    upto: u64,
) -> Result<Change<'_, M>, Error> {
    let payloads: Vec<_> = (first..=upto)
        .map(|order| payload(shared.log(), order))
        .collect();
    let mut change = shared.change(upto).expect("the medium works");
    for (order, payload) in (first..).zip(payloads) {
        if payload[0] == REMOVE {
            change.remove(&stored(&payload[1..6]))?;
            continue;
        }
        let record = InPlace {
            key: 1..6,
            value: 8..payload.len(),
            meta: Meta {
                order: 0,
                ..meta(order)
            },
        };
        change.link_with(order, prefix(&payload[1..6]), &[record], Room::Ordinary)?;
    }
    Ok(change)
}
