//! Stores a device's next hop in a file next to its log, so that a restart with the old flags does not undo
//! `pmnet ctl`.
//!
//! The file holds the `--next` of the command line at the time of writing. If the command line now has another
//! `--next`, the file does not count.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::next_flags;

/// Maximum length of a record, in bytes.
const RECORD_MAX: u64 = 4096;

/// The record in the file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    shard: u32,
    id: u32,
    /// The next hop that the command line gave when the record was written.
    flag: SocketAddr,
    /// Next hop that `pmnet ctl` set later.
    next: SocketAddr,
    /// The id of the next hop, if `pmnet ctl` gave it.
    #[serde(default)]
    next_id: Option<u32>,
    /// After setting the next hop, an operator ended the device. The server may still have the device on record, so the
    /// next hop counts, unless the device starts with `--join`.
    #[serde(default)]
    left: bool,
}

/// A next hop, and its id if that is known.
pub(super) type Hop = (SocketAddr, Option<u32>);

/// The file in which a device's next hop is stored, and the flags with which it is compared.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    pub(super) path: Option<PathBuf>,
    pub(super) shard: u32,
    pub(super) id: u32,
    pub(super) flag: Hop,
    pub(super) listen: SocketAddr,
    /// The device starts with `--join`.
    pub(super) joins: bool,
}

impl Memory {
    /// Returns the next hop that an operator ordered last, if the file counts.
    pub(super) fn recall(&self, by_hand: bool) -> Option<Hop> {
        let path = self.path.as_ref()?;
        let bytes = match read_whole(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "PM1506 cannot read how this device was wired last: its flags count");
                return None;
            }
        };
        let record: Option<Record> = serde_json::from_slice(&bytes).ok();
        let Some(record) = record else {
            tracing::warn!(path = %path.display(), "PM1507 this file does not say how the device was wired last: its flags count");
            return None;
        };
        let same = (record.shard, record.id, record.flag) == (self.shard, self.id, self.flag.0)
            && !(record.left && self.joins);
        if let Some(why) = (same && !by_hand)
            .then(|| unfit(record.next, self.listen))
            .flatten()
        {
            tracing::warn!(path = %path.display(), "PM1508 this file says that the device sends to {}, and {why}: its flags count", record.next);
            return None;
        }
        if !same || by_hand {
            tracing::info!(path = %path.display(), "the flags of this device are newer than what `pmnet ctl` said: they count");
            self.forget(path);
            return None;
        }
        tracing::warn!(
            "PM1509 this device was wired by `pmnet ctl`: its next hop is {}, and not that of --next {}. Write {} into its unit file",
            record.next,
            self.flag.0,
            self.flags_of((record.next, record.next_id))
        );
        Some((record.next, record.next_id))
    }

    /// Returns the flags that a unit file needs for this next hop.
    pub(super) fn flags_of(&self, (next, next_id): Hop) -> String {
        // A device without keys does not use an id.
        next_flags(next, next_id.filter(|_| self.flag.1.is_some()))
    }

    /// Stores an operator's order. `left`: the device was ordered to end. Returns false if no file is
    /// configured.
    pub(super) fn keep(&self, (next, next_id): Hop, left: bool) -> std::io::Result<bool> {
        let Some(path) = &self.path else {
            return Ok(false);
        };
        let (flag, flag_id) = self.flag;
        let is_of_the_flags = next == flag
            && next_id
                .zip(flag_id)
                .is_none_or(|(said, of_flag)| said == of_flag);
        if is_of_the_flags {
            remove(path)?;
            return Ok(true);
        }
        let record = Record {
            shard: self.shard,
            id: self.id,
            flag,
            next,
            next_id,
            left,
        };
        // The new file replaces the old file by a rename, so an incomplete record never exists.
        let mut beside = path.clone().into_os_string();
        beside.push(".new");
        let beside = PathBuf::from(beside);
        let mut file = std::fs::File::create(&beside)?;
        file.write_all(&crate::record::bytes(&record))?;
        file.sync_all()?;
        std::fs::rename(&beside, path)?;
        Ok(true)
    }

    /// Forgets the next hop that `pmnet ctl` set.
    pub(super) fn forget_all(&self) {
        if let Some(path) = &self.path {
            self.forget(path);
        }
    }

    fn forget(&self, path: &Path) {
        if let Err(error) = remove(path) {
            tracing::warn!(path = %path.display(), %error, device = self.id, "PM1510 cannot remove the file that says how this device was wired");
        }
    }
}

/// Removes the file, if it exists.
fn remove(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns the contents of the file. Fails if the file is not a regular file, or is longer than a record.
fn read_whole(path: &Path) -> std::io::Result<Vec<u8>> {
    let about = std::fs::metadata(path)?;
    if !about.is_file() || about.len() > RECORD_MAX {
        return Err(std::io::Error::other("it is no file of this program"));
    }
    std::fs::read(path)
}

/// Returns the reason why a device that listens at `listen` cannot send to `next`; `None`: it can.
pub(super) fn unfit(next: SocketAddr, listen: SocketAddr) -> Option<String> {
    let ip = next.ip();
    let broadcast = ip == IpAddr::V4(Ipv4Addr::BROADCAST);
    if next.is_ipv4() != listen.is_ipv4() || next.port() == 0 {
        Some(format!(
            "that cannot be the next hop of a device at {listen}"
        ))
    } else if ip.is_unspecified() || ip.is_multicast() || broadcast {
        Some("that is no address of one machine".into())
    } else {
        (next == listen).then(|| "that is this device itself".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If an operator put only the new `--next` into the unit file, the old `--next-id` would stay, and the server
    /// would refuse the device.
    #[test]
    fn with_keys_the_flags_of_a_next_hop_have_its_id() {
        let next = SocketAddr::from(([10, 0, 0, 2], 51_000));
        let memory = |flag_id| Memory {
            path: None,
            shard: 0,
            id: 7,
            flag: (SocketAddr::from(([10, 0, 0, 1], 51_000)), flag_id),
            listen: SocketAddr::from(([10, 0, 0, 9], 51_000)),
            joins: false,
        };
        let with_id = "--next 10.0.0.2:51000 --next-id 3";
        assert_eq!(memory(Some(1)).flags_of((next, Some(3))), with_id);
        // The server can also be the next hop. The id of the server is 0.
        assert!(memory(Some(1)).flags_of((next, Some(0))).ends_with(" 0"));
        // A device without keys gets the id from `pmnet ctl`, and refuses --next-id.
        let without = "--next 10.0.0.2:51000";
        assert_eq!(memory(None).flags_of((next, Some(3))), without);
        assert_eq!(memory(Some(1)).flags_of((next, None)), without);
    }

    #[test]
    fn what_was_said_last_counts() {
        let name = format!("pmnet-wiring-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let at = |port| SocketAddr::from(([10, 0, 0, 1], port));
        let memory = |flag| Memory {
            path: Some(path.clone()),
            shard: 0,
            id: 7,
            flag: (at(flag), None),
            listen: at(9),
            joins: false,
        };
        assert_eq!(memory(1).recall(false), None);
        assert!(memory(1).keep((at(2), None), false).unwrap());
        // The stored next hop counts at each start with the old flag.
        assert_eq!(memory(1).recall(false), Some((at(2), None)));
        assert_eq!(memory(1).recall(false), Some((at(2), None)));
        // The command line has a new `--next`, so the file is removed.
        assert_eq!(memory(3).recall(false), None);
        assert_eq!(memory(1).recall(false), None);
        // The flags by which an operator decides the start take precedence over the file.
        memory(1).keep((at(2), None), false).unwrap();
        assert_eq!(memory(1).recall(true), None);
        assert_eq!(memory(1).recall(false), None);
        // The order names the next hop of the command line, so there is nothing to store.
        memory(1).keep((at(2), None), false).unwrap();
        memory(1).keep((at(1), None), false).unwrap();
        assert!(!path.exists());
        // A file of another device and an invalid file do not count.
        memory(1).keep((at(2), None), false).unwrap();
        let other = Memory { id: 8, ..memory(1) };
        assert_eq!(other.recall(false), None);
        std::fs::write(&path, "{").unwrap();
        assert_eq!(memory(1).recall(false), None);
        // After the device was ordered to end, its next hop counts until the device starts with `--join`.
        memory(1).keep((at(2), None), true).unwrap();
        assert_eq!(memory(1).recall(false), Some((at(2), None)));
        let joiner = Memory {
            joins: true,
            ..memory(1)
        };
        assert_eq!(joiner.recall(false), None);
        assert!(!path.exists());
        memory(1).keep((at(2), None), false).unwrap();
        assert_eq!(joiner.recall(false), Some((at(2), None)));
        joiner.forget_all();
        let nowhere = Memory {
            path: None,
            ..memory(1)
        };
        assert!(!nowhere.keep((at(2), None), false).unwrap());
    }
}
