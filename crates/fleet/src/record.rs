//! Keys and values in etcd: `/pmnet/FLEET/SHARD/…`.
//!
//! | name | contents | removed |
//! |---|---|---|
//! | `members/ID` | [`MemberRecord`], put with each lease: its revision is the lease's number | never |
//! | `alive/ID` | the process of the device | with its lease |
//! | `words/ID` | the [`Word`] about the device | never |
//! | `chain` | [`Plan`](crate::Plan): the chain as it shall be | never |
//! | `server` | [`ServerRecord`]: the chain that the store has on record | never |
//! | `server-alive` | the process of the server | with its lease |
//! | `wishes/ID` | [`Wish`]: the operator's wish about the device | never |
//! | `copies` | the length of the chain that an operator wants | never |

use std::net::SocketAddr;

use pmnet_proto::lease::Word;
use serde::{Deserialize, Serialize};

/// Maximum length of a fleet's name, in bytes.
const NAME_MAX: usize = 64;

/// Name of the key with the wanted chain.
pub(crate) const CHAIN: &str = "chain";
/// Name of the key with the server's record.
pub(crate) const SERVER: &str = "server";
/// Name of the key that shows that the server is running.
pub(crate) const SERVER_ALIVE: &str = "server-alive";
/// Name of the key with the wanted length of the chain.
pub(crate) const COPIES: &str = "copies";

/// The names of one shard's keys.
#[derive(Clone, Debug)]
pub struct Names(String);

impl Names {
    /// Returns the names of this shard's keys.
    ///
    /// # Errors
    /// Returns a message if the fleet's name is not allowed.
    pub fn new(fleet: &str, shard: u32) -> Result<Names, String> {
        let usual = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if fleet.is_empty() || fleet.len() > NAME_MAX || !fleet.chars().all(usual) {
            return Err(format!(
                "--fleet {fleet}: a name has 1 to {NAME_MAX} letters, digits, '-', '_' or '.'"
            ));
        }
        Ok(Names(format!("/pmnet/{fleet}/{shard}/")))
    }

    /// Returns the prefix of all these names.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.0
    }

    pub(crate) fn chain(&self) -> String {
        format!("{}{CHAIN}", self.0)
    }

    pub(crate) fn server(&self) -> String {
        format!("{}{SERVER}", self.0)
    }

    pub(crate) fn server_alive(&self) -> String {
        format!("{}{SERVER_ALIVE}", self.0)
    }

    pub(crate) fn copies(&self) -> String {
        format!("{}{COPIES}", self.0)
    }

    pub(crate) fn wish(&self, id: u32) -> String {
        format!("{}wishes/{id}", self.0)
    }

    pub(crate) fn member(&self, id: u32) -> String {
        format!("{}members/{id}", self.0)
    }

    pub(crate) fn alive(&self, id: u32) -> String {
        format!("{}alive/{id}", self.0)
    }

    pub(crate) fn word(&self, id: u32) -> String {
        format!("{}words/{id}", self.0)
    }
}

/// A device's record, as the device wrote it with its last lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord {
    /// Address at which the device listens.
    pub address: SocketAddr,
    /// Identity of the device's log, in hexadecimal digits.
    pub log: String,
    /// Incarnation of the device's log.
    pub incarnation: u32,
    /// The epoch that the device served; 0: the device did not serve, and its lease only shows that it is running.
    pub epoch: u32,
    /// Length of the device's leases, in seconds.
    pub seconds: u64,
    /// The device's next hop.
    #[serde(default)]
    pub next: Option<SocketAddr>,
    /// The devices of the chain of `epoch`, head first; empty if the device does not serve.
    #[serde(default)]
    pub chain: Vec<u32>,
    /// The device holds every update that was acknowledged before `epoch` and is not applied.
    #[serde(default)]
    pub whole: bool,
    /// The device is a spare: a controller may add it to a chain that is shorter than wanted.
    #[serde(default)]
    pub spare: bool,
    /// The epoch in which the device is ready to join; 0: it is not ready.
    #[serde(default)]
    pub joins: u32,
    /// The status port of the device's process; `None`: the process has no such port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<StatusRecord>,
}

/// The address of a status port, by which other processes find it. While the key with the process's lease exists, the
/// record describes the running process. Afterwards the port may be another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusRecord {
    /// `HOST:PORT`, `unix:PATH`, `http://HOST:PORT` or `https://HOST:PORT`.
    pub at: String,
    /// The machine and its network namespace, if the port can only be reached from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
}

/// A server's record about its store. The record never becomes wrong, because the chain of an epoch never changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerRecord {
    /// Address at which the server listens.
    pub address: SocketAddr,
    /// The epoch that the server's store has on record; 0: the server has not read the store yet, or the store has no
    /// epoch.
    pub epoch: u32,
    /// The devices of the chain of `epoch`, head first.
    pub chain: Vec<u32>,
    /// Length of the leases that show that the server is running, in seconds.
    pub seconds: u64,
    /// The server is one of several, of which one serves at a time. The chain sends to the server that serves.
    #[serde(default)]
    pub standby: bool,
    /// The status port of the server's process; `None`: the process has no such port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<StatusRecord>,
}

/// An operator's wish about a device. Only the device itself acts on the wish: it returns its lease, if the chain can
/// continue without it. When the lease has ended, the controllers take their steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wish {
    /// The device must leave its chain, and must not be used as a spare.
    pub leaves: bool,
}

/// The form in which a [`Word`] is written.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum WordRecord {
    Stopped,
    LeftOut(u32),
}

impl From<WordRecord> for Word {
    fn from(record: WordRecord) -> Word {
        match record {
            WordRecord::Stopped => Word::Stopped,
            WordRecord::LeftOut(epoch) => Word::LeftOut(epoch),
        }
    }
}

/// Returns the bytes that etcd stores for a record.
pub(crate) fn bytes(record: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(record).expect("records have no maps and no foreign types")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_were_written() {
        for (record, word, text) in [
            (WordRecord::Stopped, Word::Stopped, r#""stopped""#),
            (
                WordRecord::LeftOut(7),
                Word::LeftOut(7),
                r#"{"left-out":7}"#,
            ),
        ] {
            assert_eq!(bytes(&record), text.as_bytes());
            let read: WordRecord = serde_json::from_str(text).unwrap();
            assert_eq!(Word::from(read), word);
        }
    }

    /// Processes of the previous version read these records, and write records without a status port.
    #[test]
    fn a_record_without_a_status_port_is_that_of_the_version_before() {
        let before = r#"{"address":"10.0.0.9:1","epoch":5,"chain":[7],"seconds":3,"standby":true}"#;
        let mut server: ServerRecord = serde_json::from_str(before).unwrap();
        assert_eq!((&server.status, bytes(&server)), (&None, before.into()));
        let at = r#"{"at":"https://10.0.0.9:9464"}"#;
        server.status = Some(serde_json::from_str(at).unwrap());
        let now = before.replace('}', &format!(r#","status":{at}}}"#));
        assert_eq!(bytes(&server), now.as_bytes());
        assert_eq!(serde_json::from_str::<ServerRecord>(&now).unwrap(), server);
    }

    #[test]
    fn a_fleet_cannot_be_called_anything() {
        assert_eq!(Names::new("a-1", 3).unwrap().prefix(), "/pmnet/a-1/3/");
        for bad in ["", "a/b", "a b", &"x".repeat(65)] {
            assert!(Names::new(bad, 0).unwrap_err().contains("--fleet"), "{bad}");
        }
    }
}
