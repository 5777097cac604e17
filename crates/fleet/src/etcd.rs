//! A small client of etcd: its JSON gateway (`/v3/…`, from etcd 3.4 on), blocking, with TLS and a user if that is wanted.
//!
//! Four calls are all that a lease needs: read a range (linearizable), grant a lease, end one, and one transaction that compares
//! revisions and puts. All go through the agreement of etcd's members. The keep-alive of etcd does not: a member that
//! believes to be the leader renews alone. So it is used only for what is there for people to see ([`Etcd::keep_alive`]).
//! The rest is about what etcd keeps ([`History`](crate::History)).

mod http;
mod members;

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use self::http::{ALARM, Http};
pub use self::members::{Access, Login, Members};

/// Most keys of one range.
pub const LIMIT: u64 = 1_000;

/// In what etcd says of a revision whose history is gone.
const COMPACTED: &str = "has been compacted";

/// Reason why etcd did not answer, or not as it should.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// This endpoint cannot be reached, or not in time.
    #[error("{0}: {1}")]
    Unreachable(String, String),
    /// It says no.
    #[error("{0} says: {1}")]
    Refused(String, String),
    /// It takes no writes: its database is as large as it may be.
    #[error(
        "PM4103 {0} takes no writes: its database has reached --quota-backend-bytes (alarm NOSPACE). Until that is mended no device gets a \
         lease, and nobody is answered; what was acknowledged is kept. In this order: etcdctl --endpoints {0} compact --physical REVISION \
         (etcdctl endpoint status -w json names it), etcdctl defrag at each member, etcdctl alarm disarm. Then let etcd compact by \
         itself: --auto-compaction-mode periodic --auto-compaction-retention 5m"
    )]
    Full(String),
    /// This is no answer of etcd 3.4 or later.
    #[error("PM4104 {0} does not answer as etcd 3.4 or later does ({1})")]
    Foreign(String, &'static str),
    /// This process and this endpoint do not trust each other's certificates.
    #[error(
        "PM4106 TLS with {0}: {1}. Until that is mended nothing is read or renewed there; what was acknowledged is kept"
    )]
    Distrusted(String, String),
    /// It has users, and does not take this process for one.
    #[error(
        "PM4107 {0}: {1}. Until that is mended nothing is read or renewed there; what was acknowledged is kept"
    )]
    Login(String, String),
    /// The user may not do that.
    #[error(
        "PM4108 {0} does not allow this user to do that: its role needs to read and write below /pmnet/ (etcdctl role grant-permission \
         ROLE --prefix=true readwrite /pmnet/)"
    )]
    Forbidden(String),
}

/// One key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name.
    pub key: String,
    /// Value.
    pub value: Vec<u8>,
    /// Revision of the store at which it was last put.
    pub revision: u64,
    /// Its lease; 0: none.
    pub lease: i64,
}

/// A key that a transaction writes if all its comparisons hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// Name.
    pub key: String,
    /// Value.
    pub value: Vec<u8>,
    /// Lease that the key goes with; 0: none.
    pub lease: i64,
}

/// The members of one etcd, of which one is asked at a time.
#[derive(Debug)]
pub struct Etcd {
    http: Http,
    /// Number of the endpoint that answered last.
    at: usize,
    /// The highest revision that was heard of.
    revision: u64,
}

/// The database of one member of etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Storage {
    /// Version of etcd.
    pub version: String,
    /// Size of the file: that counts for the quota.
    pub bytes: u64,
    /// Bytes of it that are in use; the rest is free for what comes.
    pub used: u64,
    /// The quota; `None`: it does not say.
    pub quota: Option<u64>,
    /// It takes no writes any more.
    pub is_full: bool,
}

/// The quota of an etcd that was given none.
const QUOTA_USUAL: u64 = 2 << 30;

impl Storage {
    /// Returns whether more than half of what it may be is reached.
    #[must_use]
    pub fn is_large(&self) -> bool {
        self.bytes > self.quota.unwrap_or(QUOTA_USUAL) / 2
    }
}

impl Etcd {
    /// Returns a client of these members, each call of which ends within `timeout`.
    #[must_use]
    pub fn new(members: Members, timeout: Duration) -> Etcd {
        Etcd {
            http: Http::new(members, timeout),
            at: 0,
            revision: 0,
        }
    }

    /// Returns the highest revision of etcd that was heard of; 0: none.
    #[must_use]
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns how many endpoints there are.
    #[must_use]
    pub fn endpoints(&self) -> usize {
        self.http.urls().len()
    }

    /// Returns all keys that begin with `prefix`, at one moment that is not before this call; at most [`LIMIT`].
    ///
    /// # Errors
    /// [`EtcdError`]; another endpoint is asked the next time.
    pub fn range(&mut self, prefix: &str) -> Result<Vec<Entry>, EtcdError> {
        let mut end = prefix.as_bytes().to_vec();
        // The next name that does not begin so. A prefix ends with a slash.
        if let Some(last) = end.last_mut() {
            *last = last.saturating_add(1);
        }
        let question = json!({
            "key": STANDARD.encode(prefix),
            "range_end": STANDARD.encode(end),
            "limit": LIMIT.to_string(),
        });
        let answer = self.call("kv/range", &question)?;
        if answer["more"] == true {
            return Err(self.foreign("more keys than there can be devices"));
        }
        let none = Vec::new();
        let entries = answer["kvs"].as_array().unwrap_or(&none);
        let entries: Option<Vec<Entry>> = entries.iter().map(entry).collect();
        entries.ok_or_else(|| self.foreign("a key is not understood"))
    }

    /// Asks for a new lease of at least `seconds`.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub fn grant(&mut self, seconds: u64) -> Result<i64, EtcdError> {
        let answer = self.call("lease/grant", &json!({ "TTL": seconds.to_string() }))?;
        let granted = number(&answer["TTL"]).is_some_and(|ttl| ttl >= seconds);
        let id = answer["ID"].as_str().and_then(|id| id.parse().ok());
        id.filter(|_| granted)
            .ok_or_else(|| self.foreign("a lease is shorter than asked for"))
    }

    /// Lets a lease last for its whole length again. Returns whether it was still there. **For people to see only**: no agreement of the members.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub fn keep_alive(&mut self, lease: i64) -> Result<bool, EtcdError> {
        let answer = self.call("lease/keepalive", &json!({ "ID": lease.to_string() }))?;
        Ok(number(&answer["TTL"]).is_some())
    }

    /// Returns whether this revision can still be read: it was not compacted away.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub fn keeps(&mut self, revision: u64) -> Result<bool, EtcdError> {
        let question = json!({
            "key": STANDARD.encode("/pmnet/"), "revision": revision.to_string(), "serializable": true,
        });
        match self.call("kv/range", &question) {
            Ok(_) => Ok(true),
            Err(EtcdError::Refused(_, text)) if text.contains(COMPACTED) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Forgets what was before this revision, of **all** users of this etcd. The present values stay.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub fn compact(&mut self, revision: u64) -> Result<(), EtcdError> {
        match self.call(
            "kv/compaction",
            &json!({ "revision": revision.to_string() }),
        ) {
            // Another controller was faster.
            Err(EtcdError::Refused(_, text)) if text.contains(COMPACTED) => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// Returns the database of the member that answered last.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub fn storage(&mut self) -> Result<Storage, EtcdError> {
        let says = self.call("maintenance/status", &json!({}))?;
        let alarms = self.call(ALARM, &json!({ "action": "GET" }))?;
        let none = Vec::new();
        let alarms = alarms["alarms"].as_array().unwrap_or(&none);
        let bytes = number(&says["dbSize"]).unwrap_or(0);
        Ok(Storage {
            version: says["version"].as_str().unwrap_or_default().to_owned(),
            bytes,
            used: number(&says["dbSizeInUse"]).unwrap_or(bytes),
            quota: number(&says["dbSizeQuota"]).or_else(|| self.quota()),
            is_full: alarms.iter().any(|alarm| alarm["alarm"] == "NOSPACE"),
        })
    }

    /// Only etcd 3.6 says it in its status; earlier ones in their metrics, if these are open to us.
    fn quota(&mut self) -> Option<u64> {
        let url = format!("{}/metrics", self.endpoint());
        quota_in(&self.http.text(&url)?)
    }

    /// Ends a lease, and removes the keys that go with it.
    ///
    /// # Errors
    /// [`EtcdError`]: then it may or may not be done, or the lease was gone.
    pub fn revoke(&mut self, lease: i64) -> Result<(), EtcdError> {
        self.call("lease/revoke", &json!({ "ID": lease.to_string() }))
            .map(|_| ())
    }

    /// Puts all this in one step if each of these keys was last put at this revision (0: is not there). Returns whether it did.
    ///
    /// # Errors
    /// [`EtcdError`]: then it may or may not be done.
    pub fn put_if(&mut self, are: &[(String, u64)], puts: &[Put]) -> Result<bool, EtcdError> {
        let compare: Vec<Value> = are
            .iter()
            .map(|(key, revision)| {
                json!({
                    "key": STANDARD.encode(key), "target": "MOD", "result": "EQUAL",
                    "mod_revision": revision.to_string(),
                })
            })
            .collect();
        let success: Vec<Value> = puts
            .iter()
            .map(|put| {
                json!({ "request_put": {
                    "key": STANDARD.encode(&put.key), "value": STANDARD.encode(&put.value),
                    "lease": put.lease.to_string(),
                }})
            })
            .collect();
        let question = json!({ "compare": compare, "success": success, "failure": [] });
        let answer = self.call("kv/txn", &question)?;
        Ok(answer["succeeded"] == true)
    }

    /// Seconds that a lease has left; `None`: it is gone. For people only: one member of etcd answers alone.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub fn seconds_left(&mut self, lease: i64) -> Result<Option<u64>, EtcdError> {
        let answer = self.call("lease/timetolive", &json!({ "ID": lease.to_string() }))?;
        Ok(number(&answer["TTL"]))
    }

    pub(crate) fn call(&mut self, path: &str, question: &Value) -> Result<Value, EtcdError> {
        let endpoint = self.endpoint();
        let answer = self.http.ask(&endpoint, path, question);
        match &answer {
            Ok(json) => {
                let revision = number(&json["header"]["revision"]);
                self.revision = self.revision.max(revision.unwrap_or(0));
            }
            Err(
                EtcdError::Refused(..)
                | EtcdError::Full(_)
                | EtcdError::Forbidden(_)
                | EtcdError::Login(..),
            ) => {}
            Err(_) => self.at = (self.at + 1) % self.endpoints(),
        }
        answer
    }

    fn endpoint(&self) -> String {
        self.http.urls()[self.at].clone()
    }

    fn foreign(&self, why: &'static str) -> EtcdError {
        EtcdError::Foreign(self.endpoint(), why)
    }
}

/// Numbers of 64 bits are strings in JSON; what is 0 or negative is left out or means nothing here.
fn number(value: &Value) -> Option<u64> {
    value.as_str().and_then(|text| text.parse().ok())
}

/// Returns the quota in etcd's metrics.
fn quota_in(metrics: &str) -> Option<u64> {
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix("etcd_server_quota_backend_bytes "))?;
    let bytes: f64 = line.trim().parse().ok()?;
    // A quota is far below what a floating-point number holds exactly.
    (bytes >= 1.0).then_some(bytes as u64)
}

fn entry(value: &Value) -> Option<Entry> {
    let bytes = |value: &Value| STANDARD.decode(value.as_str().unwrap_or_default()).ok();
    Some(Entry {
        key: String::from_utf8(bytes(&value["key"])?).ok()?,
        value: bytes(&value["value"])?,
        revision: number(&value["mod_revision"])?,
        lease: value["lease"]
            .as_str()
            .map_or(Some(0), |id| id.parse().ok())?,
    })
}

#[cfg(test)]
#[path = "../../../tests/shared/certificates.rs"]
mod certificates;

#[cfg(test)]
mod real;

#[cfg(test)]
mod tests {
    use super::entry;
    use serde_json::json;

    #[test]
    fn the_quota_is_read_from_metrics() {
        let text = "# TYPE x gauge\netcd_server_quota_backend_bytes 6.7108864e+07\nx 1\n";
        assert_eq!(super::quota_in(text), Some(64 << 20));
        for none in [
            "",
            "etcd_server_quota_backend_bytes 0",
            "etcd_server_quota_backend_bytes x",
        ] {
            assert_eq!(super::quota_in(none), None, "{none}");
        }
    }

    #[test]
    fn a_key_of_etcd_is_understood_and_what_is_none_is_not() {
        let whole = json!({ "key": "bQ==", "value": "dg==", "mod_revision": "2", "lease": "-7" });
        let read = entry(&whole).unwrap();
        assert_eq!((read.key.as_str(), read.revision, read.lease), ("m", 2, -7));
        for (field, value) in [
            ("key", "*"),
            ("value", "*"),
            ("mod_revision", "x"),
            ("lease", "x"),
        ] {
            let mut bad = whole.clone();
            bad[field] = value.into();
            assert_eq!(entry(&bad), None, "{field}");
        }
    }
}
