//! SCAN over all shards: its cursor names the shard that continues, and the cursor inside this shard.

use bytes::Bytes;
use pmnet_resp::{Arguments, read, reply, write_bulk, write_header};

/// Returns the shard that a SCAN must be sent to, and the SCAN for this shard; `None` if its cursor is no
/// number.
pub(super) fn for_shard(arguments: &Arguments<'_>, shards: usize) -> Option<(usize, Vec<u8>)> {
    let cursor = std::str::from_utf8(arguments.get(1))
        .ok()
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|text| text.parse().ok())?;
    let (shard, inner) = shard_of_cursor(cursor, shards);
    let mut frame = Vec::new();
    write_header(&mut frame, arguments.len());
    for (at, argument) in arguments.iter().enumerate() {
        if at == 1 {
            write_bulk(&mut frame, inner.to_string().as_bytes());
        } else {
            write_bulk(&mut frame, argument);
        }
    }
    Some((shard, frame))
}

/// Returns the reply to a SCAN with the shard in its cursor: `inner * shards + shard`. When the last shard's scan is
/// over, the cursor is 0.
pub(super) fn with_shard(scanned: &[u8], shard: usize, shards: usize) -> Bytes {
    let parts = read::elements(scanned).unwrap_or_default();
    let [cursor, keys] = parts[..] else {
        return Bytes::copy_from_slice(scanned);
    };
    let inner = read::text(cursor)
        .and_then(|text| std::str::from_utf8(text).ok())
        .and_then(|text| text.parse::<u64>().ok());
    let (shard, shards) = (wide(shard), wide(shards));
    let outer = match inner {
        Some(0) if shard + 1 == shards => Some(0),
        Some(0) => Some(shard + 1),
        Some(inner) => inner
            .checked_mul(shards)
            .and_then(|outer| outer.checked_add(shard)),
        None => None,
    };
    let Some(outer) = outer else {
        return reply::error("ERR pmnet: the cursor of the shard is too large to carry its number");
    };
    let mut out = Vec::with_capacity(scanned.len() + 16);
    write_header(&mut out, 2);
    write_bulk(&mut out, outer.to_string().as_bytes());
    out.extend_from_slice(keys);
    out.into()
}

/// Returns the shard that a cursor names, and the cursor inside this shard.
fn shard_of_cursor(cursor: u64, shards: usize) -> (usize, u64) {
    let shards = wide(shards);
    let shard = usize::try_from(cursor % shards).unwrap_or(0);
    (shard, cursor / shards)
}

fn wide(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_carries_its_shard() {
        let scanned = |cursor: &str| format!("*2\r\n${}\r\n{cursor}\r\n*0\r\n", cursor.len());
        for (inner, shard, outer) in [
            ("0", 0, "1"),
            ("0", 1, "2"),
            ("0", 2, "0"),
            ("5", 0, "15"),
            ("5", 2, "17"),
        ] {
            let told = with_shard(scanned(inner).as_bytes(), shard, 3);
            assert_eq!(&told[..], scanned(outer).as_bytes());
            if outer != "0" {
                let (next, cursor) = shard_of_cursor(outer.parse().unwrap(), 3);
                let expected = if inner == "0" {
                    (shard + 1, 0)
                } else {
                    (shard, 5)
                };
                assert_eq!((next, cursor), expected);
            }
        }
        let huge = with_shard(scanned(&u64::MAX.to_string()).as_bytes(), 0, 3);
        assert!(huge.starts_with(b"-ERR pmnet: the cursor"));
        assert_eq!(&with_shard(b"-ERR x\r\n", 0, 3)[..], b"-ERR x\r\n");
    }
}
