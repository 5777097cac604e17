//! The state of one shard in etcd, at one moment.

use std::collections::BTreeMap;

use pmnet_proto::lease::Word;

use crate::etcd::{Entry, Etcd, EtcdError};
use crate::plan::Plan;
use crate::record::{
    CHAIN, COPIES, MemberRecord, Names, SERVER, SERVER_ALIVE, ServerRecord, Wish, WordRecord,
};

/// The state of one device in etcd.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// The record that the device wrote with its last lease.
    pub record: Option<MemberRecord>,
    /// Number of the device's last lease; 0: the device never had a lease.
    pub lease: u64,
    /// Name of the process that holds that lease, while the lease exists.
    pub process: Option<String>,
    /// etcd's number of the lease; 0: the lease has ended.
    pub lease_id: i64,
    /// Revision of the key that names `process`; 0: the lease has ended.
    pub(crate) alive: u64,
    /// The word about the device.
    pub word: Word,
    /// Revision of the key with the word; 0: the key does not exist.
    pub(crate) words: u64,
    /// The operator's wish about the device.
    pub wish: Wish,
    /// Revision of the key with the wish; 0: the key does not exist.
    pub(crate) wishes: u64,
}

impl Row {
    /// Returns whether the device has a lease, and was not declared stopped.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.alive != 0 && self.word != Word::Stopped
    }
}

/// The state of a shard: its devices, its plan and its server.
#[derive(Clone, Debug, Default)]
pub struct Shard {
    /// The devices by id.
    pub rows: BTreeMap<u32, Row>,
    /// The wanted chain; `None`: no controller has written a plan yet.
    pub plan: Option<Plan>,
    /// Revision of the key with the plan; 0: the key does not exist.
    pub(crate) plans: u64,
    /// Record of the server; `None`: no server of this shard has `--fleet`.
    pub server: Option<ServerRecord>,
    /// Revision of the server's record; 0: the record does not exist.
    pub(crate) servers: u64,
    /// Revision of the key that shows that the server is running; 0: it is not running, or does not reach
    /// etcd.
    pub(crate) server_alive: u64,
    /// Name of the server's process, while it is running.
    pub(crate) server_process: Vec<u8>,
    /// etcd's number of the lease that shows that the server is running.
    pub(crate) server_lease: i64,
    /// Number of devices that an operator wants in the chain; `None`: no operator has set one.
    pub copies: Option<usize>,
    /// Revision of the key with the wanted number; 0: the key does not exist.
    pub(crate) copies_at: u64,
}

impl Shard {
    /// Reads the state from etcd.
    ///
    /// # Errors
    /// A text: etcd does not answer, or a key has an unexpected value.
    pub fn read(etcd: &mut Etcd, names: &Names) -> Result<Shard, String> {
        let entries = etcd.range(names.prefix());
        let entries = entries.map_err(|error: EtcdError| error.to_string())?;
        let mut shard = Shard::default();
        for entry in &entries {
            shard.take(names, entry).ok_or_else(|| {
                format!(
                    "PM4105 the key {} in etcd is not what this version of pmnet writes: another version, or another program",
                    entry.key
                )
            })?;
        }
        Ok(shard)
    }

    /// Reads the shard once. If one endpoint does not answer, asks the other endpoints.
    ///
    /// # Errors
    /// As for [`Shard::read`]. The error is that of the last endpoint.
    pub fn read_somewhere(etcd: &mut Etcd, names: &Names) -> Result<Shard, String> {
        for _ in 1..etcd.endpoints() {
            if let Ok(shard) = Shard::read(etcd, names) {
                return Ok(shard);
            }
        }
        Shard::read(etcd, names)
    }

    fn take(&mut self, names: &Names, entry: &Entry) -> Option<()> {
        let name = entry.key.strip_prefix(names.prefix())?;
        if name == CHAIN {
            self.plan = Some(serde_json::from_slice(&entry.value).ok()?);
            self.plans = entry.revision;
            return Some(());
        }
        if name == SERVER {
            self.server = Some(serde_json::from_slice(&entry.value).ok()?);
            self.servers = entry.revision;
            return Some(());
        }
        if name == COPIES {
            self.copies = Some(serde_json::from_slice(&entry.value).ok()?);
            self.copies_at = entry.revision;
            return Some(());
        }
        if name == SERVER_ALIVE {
            self.server_alive = entry.revision;
            self.server_process.clone_from(&entry.value);
            self.server_lease = entry.lease;
            return Some(());
        }
        let (kind, id) = name.split_once('/')?;
        let row = self.rows.entry(id.parse().ok()?).or_default();
        match kind {
            "members" => {
                row.record = Some(serde_json::from_slice(&entry.value).ok()?);
                row.lease = entry.revision;
            }
            "alive" => {
                row.process = Some(String::from_utf8(entry.value.clone()).ok()?);
                (row.alive, row.lease_id) = (entry.revision, entry.lease);
            }
            "words" => {
                let word: WordRecord = serde_json::from_slice(&entry.value).ok()?;
                (row.word, row.words) = (word.into(), entry.revision);
            }
            "wishes" => {
                row.wish = serde_json::from_slice(&entry.value).ok()?;
                row.wishes = entry.revision;
            }
            _ => return None,
        }
        Some(())
    }

    /// Returns whether the server is running, and reaches etcd.
    #[must_use]
    pub const fn has_server(&self) -> bool {
        self.server_alive != 0
    }

    /// Returns the state of this device.
    pub(crate) fn row(&self, id: u32) -> Row {
        self.rows.get(&id).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, value: &str, revision: u64, lease: i64) -> Entry {
        Entry {
            key: key.to_owned(),
            value: value.into(),
            revision,
            lease,
        }
    }

    #[test]
    fn a_shard_is_read_from_its_keys_and_what_is_foreign_is_not() {
        let names = Names::new("f", 2).unwrap();
        let mut shard = Shard::default();
        let record =
            r#"{"address":"10.0.0.2:51000","log":"00","incarnation":3,"epoch":4,"seconds":3}"#;
        for known in [
            entry("/pmnet/f/2/members/7", record, 11, 0),
            entry("/pmnet/f/2/alive/7", "p", 12, 99),
            entry("/pmnet/f/2/words/8", r#"{"left-out":5}"#, 13, 0),
            entry("/pmnet/f/2/wishes/8", r#"{"leaves":true}"#, 9, 0),
            entry("/pmnet/f/2/copies", "3", 8, 0),
        ] {
            shard.take(&names, &known).unwrap();
        }
        let row = shard.row(7);
        assert_eq!(
            (row.lease, row.alive, row.lease_id, row.words),
            (11, 12, 99, 0)
        );
        assert_eq!((row.record.unwrap().epoch, row.word), (4, Word::None));
        let row = shard.row(8);
        assert_eq!((row.lease, row.word, row.words), (0, Word::LeftOut(5), 13));
        assert!(row.wish.leaves && row.wishes == 9);
        assert_eq!((shard.copies, shard.copies_at), (Some(3), 8));
        assert_eq!((shard.plans, &shard.plan), (0, &None));
        let plan = r#"{"epoch":4,"says":5,"places":[{"id":7,"at":"10.0.0.2:1","whole":true}],"joins":false,"server":"10.0.0.9:1","copies":2}"#;
        shard
            .take(&names, &entry("/pmnet/f/2/chain", plan, 14, 0))
            .unwrap();
        assert_eq!(
            (shard.plans, shard.plan.clone().unwrap().says),
            (14, Some(5))
        );
        let server = r#"{"address":"10.0.0.9:1","epoch":5,"chain":[7],"seconds":3}"#;
        assert!(!shard.has_server());
        for (key, value, revision) in [("server", server, 15), ("server-alive", "p", 16)] {
            let key = format!("/pmnet/f/2/{key}");
            shard
                .take(&names, &entry(&key, value, revision, 0))
                .unwrap();
        }
        assert_eq!(shard.server.as_ref().unwrap().chain, [7]);
        assert!(shard.has_server() && shard.servers == 15);
        for (key, value) in [
            ("/pmnet/f/2/server", "{}"),
            ("/pmnet/f/2/chain", r#"{"epoch":4}"#),
            ("/pmnet/f/2/chains", plan),
            ("/pmnet/f/2/members/7", "{}"),
            ("/pmnet/f/2/members/x", record),
            ("/pmnet/f/2/words/7", r#""gone""#),
            ("/pmnet/f/2/what/7", ""),
            ("/pmnet/f/2/wishes/7", "true"),
            ("/pmnet/f/2/copies", "many"),
            ("/pmnet/f/3/alive/7", "p"),
        ] {
            assert_eq!(shard.take(&names, &entry(key, value, 1, 0)), None, "{key}");
        }
    }
}
