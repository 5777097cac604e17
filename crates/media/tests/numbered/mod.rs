//! A log in which the content of each entry follows from its order, so a reader knows what it must find.

use std::path::Path;

use pmnet_log::{Expected, Identity, Log, NewEntry, Parameters, Scan, format};
use pmnet_media::{AnyMedia, Kind, create, open};

pub const EXPECTED: Expected = Expected {
    device: 1,
    shard: 0,
    parameters: None,
};
pub const PARAMETERS: Parameters = Parameters::ring(256, 128 * 1024);

/// Makes a new log.
pub fn make(path: &Path, kind: Kind) {
    let identity = Identity {
        log_uuid: 77,
        device: 1,
        shard: 0,
    };
    let media = create(path, kind, PARAMETERS.image_bytes()).unwrap();
    format(media, &identity, &PARAMETERS).unwrap();
}

/// Opens and repairs a log, as a device does at its start.
pub fn try_recover(path: &Path, kind: Kind) -> Result<Log<AnyMedia>, String> {
    let media = open(path, kind).map_err(|error| error.to_string())?;
    let scan = Scan::open(media, Some(EXPECTED)).map_err(|error| error.to_string())?;
    let decision = scan.decide();
    scan.repair(decision).map_err(|error| error.to_string())
}

/// As [`try_recover`], but panics if the log is refused.
pub fn recover(path: &Path, kind: Kind) -> Log<AnyMedia> {
    try_recover(path, kind).unwrap()
}

/// Returns the content of order `order`, which is always the same. Lengths vary, so that the frame ring has gaps and
/// wraps around.
pub fn frame(order: u64) -> (Vec<u8>, Vec<u8>) {
    let header = [order.to_le_bytes(); 11].concat();
    let len = usize::try_from(order * 131 % 1300).unwrap();
    (header, vec![order.to_le_bytes()[0]; len])
}

/// Appends the next order. Returns false if there is no room.
pub fn append(log: &mut Log<AnyMedia>) -> bool {
    let order = log.last() + 1;
    let (header, payload) = frame(order);
    let new = NewEntry {
        session: 1,
        seq: order,
        kind: 3,
        fragment_index: 0,
        fragment_count: 1,
    };
    match log.append(&new, &header, &payload, crc32c::crc32c(&payload)) {
        Ok(appended) => appended == order,
        Err(_) => false,
    }
}
