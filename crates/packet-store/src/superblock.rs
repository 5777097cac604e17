//! The constant properties of a store, in two copies (`docs/spec/packet-store.md` §2).
//!
//! ```text
//! 0       8         12      16     32      36       40            44   60    64
//! +-------+---------+-------+------+-------+--------+-------------+----+-----+---
//! | magic | version | shard | uuid | lines | frames | frame bytes | 0  | crc | 0 …
//! +-------+---------+-------+------+-------+--------+-------------+----+-----+---
//! ```
//! In versions 2 and 3, the number of entries of the log in the same region follows the bytes of a frame (§11). In
//! version 3, keys may have prefixes that are not in their packets (§3).

use pmnet_log::Media;

use crate::commit::Commit;
use crate::error::OpenError;
use crate::geometry::{BLOCK_BYTES, Geometry, LINE_BYTES, commit_record, is_zero, take};
use crate::medium::persist_now;

const MAGIC: [u8; 8] = *b"pmnetPKT";
/// Format version of a store without a log. Each version has a layout of its own.
pub const FORMAT_VERSION: u32 = 1;
/// Format version of a region that a log shares.
const FORMAT_VERSION_SHARED: u32 = 3;
/// The earlier format version of such a region, in which no key has a prefix.
const FORMAT_VERSION_BARE: u32 = 2;
const CRC_AT: usize = 60;

/// The identity of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// A random number that was chosen when the store was created. It is a part of every checksum.
    pub uuid: u128,
    /// Shard whose data the store holds (protocol.md §1).
    pub shard: u32,
}

impl Identity {
    /// Returns the checksum with which all checksums of this store begin.
    pub(crate) fn seed(&self) -> u32 {
        crc32c::crc32c(&self.uuid.to_le_bytes())
    }
}

/// Reads a whole copy. Returns its content, and whether keys may have prefixes.
pub(crate) fn read(image: &[u8]) -> Result<(Identity, Geometry, bool), OpenError> {
    let Some((first, second)) = image
        .split_at_checked(BLOCK_BYTES)
        .filter(|(_, rest)| rest.len() >= BLOCK_BYTES)
    else {
        return Err(OpenError::Truncated {
            image: image.len(),
            needed: 2 * BLOCK_BYTES,
        });
    };
    let copies = [first, &second[..BLOCK_BYTES]];
    let mut refused = None;
    for copy in copies {
        match decode(&take(copy, 0)) {
            Ok((identity, geometry, prefixes)) => {
                let needed = geometry.image_bytes();
                if image.len() < needed {
                    return Err(OpenError::Truncated {
                        image: image.len(),
                        needed,
                    });
                }
                return Ok((identity, geometry, prefixes));
            }
            Err(error) => refused = refused.or(error),
        }
    }
    Err(match refused {
        Some(error) => error,
        None if is_unfinished(image) => match is_zero(image) {
            true => OpenError::Blank,
            false => OpenError::Interrupted,
        },
        None if copies.iter().all(|copy| copy[..MAGIC.len()] != MAGIC) => OpenError::Foreign,
        None => OpenError::Unreadable {
            what: "no superblock has a right checksum".into(),
        },
    })
}

fn encode(identity: &Identity, geometry: &Geometry) -> [u8; LINE_BYTES] {
    let mut out = [0; LINE_BYTES];
    out[0..8].copy_from_slice(&MAGIC);
    let version = match geometry.log_entries {
        0 => FORMAT_VERSION,
        _ => FORMAT_VERSION_SHARED,
    };
    out[8..12].copy_from_slice(&version.to_le_bytes());
    out[12..16].copy_from_slice(&identity.shard.to_le_bytes());
    out[16..32].copy_from_slice(&identity.uuid.to_le_bytes());
    out[32..36].copy_from_slice(&geometry.lines.to_le_bytes());
    out[36..40].copy_from_slice(&geometry.frames.to_le_bytes());
    out[40..44].copy_from_slice(&geometry.frame_bytes.to_le_bytes());
    out[44..48].copy_from_slice(&geometry.log_entries.to_le_bytes());
    let crc = crc32c::crc32c(&out[..CRC_AT]);
    out[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Decodes a copy. `Err(None)`: the bytes are not a superblock, or are damaged.
fn decode(raw: &[u8; LINE_BYTES]) -> Result<(Identity, Geometry, bool), Option<OpenError>> {
    let crc = u32::from_le_bytes(take(raw, CRC_AT));
    if raw[..8] != MAGIC || crc32c::crc32c(&raw[..CRC_AT]) != crc {
        return Err(None);
    }
    let found = u32::from_le_bytes(take(raw, 8));
    let log_entries = u32::from_le_bytes(take(raw, 44));
    let known = match log_entries {
        0 => FORMAT_VERSION,
        _ => FORMAT_VERSION_SHARED,
    };
    let before = log_entries != 0 && found == FORMAT_VERSION_BARE;
    if found != known && !before {
        return Err(Some(OpenError::Version { found, known }));
    }
    let geometry = Geometry {
        lines: u32::from_le_bytes(take(raw, 32)),
        frames: u32::from_le_bytes(take(raw, 36)),
        frame_bytes: u32::from_le_bytes(take(raw, 40)),
        log_entries,
    };
    geometry.validate().map_err(Some)?;
    let identity = Identity {
        shard: u32::from_le_bytes(take(raw, 12)),
        uuid: u128::from_le_bytes(take(raw, 16)),
    };
    Ok((identity, geometry, found == FORMAT_VERSION_SHARED))
}

/// Returns whether the image contains only bytes that `format` stores before copy 0, even if some of them are torn.
fn is_unfinished(image: &[u8]) -> bool {
    let record = commit_record(0);
    is_zero(&image[..BLOCK_BYTES])
        && is_zero(&image[BLOCK_BYTES + LINE_BYTES..record.start.min(image.len())])
        && image.get(record.end..).is_none_or(is_zero)
}

/// Creates an empty store in a blank image, or in an image in which a crash interrupted an earlier call. The store is
/// durable when the call returns. After the call, [`Scan::open`](crate::Scan::open) can open the store.
///
/// # Errors
/// [`OpenError::Geometry`], [`OpenError::Truncated`] (image too small), [`OpenError::NotBlank`] if any byte in the
/// range of the store is not zero, [`OpenError::Media`].
pub fn format<M: Media>(
    mut media: M,
    identity: &Identity,
    geometry: &Geometry,
) -> Result<(), OpenError> {
    geometry.validate()?;
    let needed = geometry.image_bytes();
    let Some(place) = media.bytes().get(..needed) else {
        return Err(OpenError::Truncated {
            image: media.bytes().len(),
            needed,
        });
    };
    if !is_unfinished(place) {
        return Err(OpenError::NotBlank);
    }
    // The first commit record is stored before anything says that the image is a store.
    let range = Commit::default().store(&mut media, identity.seed());
    persist_now(&mut media, &[range])?;
    write(&mut media, identity, geometry)
}

/// Writes both copies over zeros, which is the last step of creating a store.
pub(crate) fn write<M: Media>(
    media: &mut M,
    identity: &Identity,
    geometry: &Geometry,
) -> Result<(), OpenError> {
    let superblock = encode(identity, geometry);
    // Copy 0 is written last: while it is zero, the store may be incomplete, and was never used.
    for start in [BLOCK_BYTES, 0] {
        media.store(start, &superblock);
        let place = start..start + LINE_BYTES;
        persist_now(media, std::slice::from_ref(&place))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: Identity = Identity {
        uuid: 1 << 100 | 7,
        shard: 3,
    };
    const GEOMETRY: Geometry = Geometry {
        lines: 128,
        frames: 32,
        frame_bytes: 4096,
        log_entries: 0,
    };

    fn image() -> Vec<u8> {
        let mut image = vec![0; GEOMETRY.image_bytes()];
        let block = encode(&IDENTITY, &GEOMETRY);
        image[..LINE_BYTES].copy_from_slice(&block);
        image[BLOCK_BYTES..][..LINE_BYTES].copy_from_slice(&block);
        image
    }

    #[test]
    fn either_copy_is_enough_and_none_is_damage() {
        assert_eq!(read(&image()).unwrap(), (IDENTITY, GEOMETRY, false));
        for at in 0..LINE_BYTES {
            let mut bad = image();
            bad[at] ^= 4;
            assert_eq!(
                read(&bad).unwrap(),
                (IDENTITY, GEOMETRY, false),
                "byte {at}"
            );
            bad[BLOCK_BYTES + at] ^= 4;
            let error = read(&bad).unwrap_err();
            match at < 8 {
                true => assert!(matches!(error, OpenError::Foreign), "{at}: {error}"),
                false => assert!(
                    matches!(error, OpenError::Unreadable { .. }),
                    "{at}: {error}"
                ),
            }
        }
    }

    /// The version is the number directly after the magic number.
    fn with_version(geometry: &Geometry, version: u8) -> Result<bool, OpenError> {
        let mut image = vec![0; geometry.image_bytes()];
        let mut block = encode(&IDENTITY, geometry);
        block[8] = version;
        let crc = crc32c::crc32c(&block[..CRC_AT]);
        block[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        image[..LINE_BYTES].copy_from_slice(&block);
        read(&image).map(|(.., prefixes)| prefixes)
    }

    #[test]
    fn a_region_of_the_version_before_opens_and_has_no_prefixes() {
        let region = Geometry {
            log_entries: 64,
            ..GEOMETRY
        };
        assert!(!with_version(&region, 2).unwrap());
        assert!(with_version(&region, 3).unwrap());
        for (geometry, version) in [(region, 1), (region, 4), (GEOMETRY, 2), (GEOMETRY, 3)] {
            let found = with_version(&geometry, version);
            assert!(
                matches!(found, Err(OpenError::Version { .. })),
                "{version}: {found:?}"
            );
        }
    }

    #[test]
    fn blank_truncated_and_other_versions_are_told_apart() {
        let whole = image();
        assert!(matches!(read(&vec![0; 20_000]), Err(OpenError::Blank)));
        assert!(matches!(
            read(&whole[..whole.len() - 1]),
            Err(OpenError::Truncated { .. })
        ));
        assert!(matches!(
            read(&whole[..100]),
            Err(OpenError::Truncated { .. })
        ));
        let mut future = whole;
        for start in [0, BLOCK_BYTES] {
            future[start + 8] = 2;
            let crc = crc32c::crc32c(&future[start..start + CRC_AT]);
            future[start + CRC_AT..start + LINE_BYTES].copy_from_slice(&crc.to_le_bytes());
        }
        assert!(matches!(
            read(&future),
            Err(OpenError::Version { found: 2, known: 1 })
        ));
    }
}
