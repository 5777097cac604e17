//! A small client of etcd. The client uses etcd's JSON gateway (`/v3/…`, from etcd 3.4 on), blocks, and supports TLS
//! and a user.
//!
//! A lease needs four calls: read a range (linearizable), grant a lease, revoke a lease, and a transaction that
//! compares revisions and puts keys. All members of etcd agree on the results of these calls. The members do not agree
//! on a keep-alive: a member that wrongly believes that it is the leader renews a lease alone. So keep-alive is used
//! only for keys that inform users ([`Etcd::keep_alive`]). The other calls of this module concern the size and history
//! of etcd's database ([`History`](crate::History)).

mod http;
mod members;

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use self::http::{ALARM, Http};
pub use self::members::{Access, Login, Members};

/// Maximum number of keys in the answer for one range.
pub const LIMIT: u64 = 1_000;

/// Part of etcd's error text about a revision that was compacted.
const COMPACTED: &str = "has been compacted";

/// Why etcd gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// This endpoint (first field) cannot be reached, or does not answer in time (second field: the reason).
    #[error("{0}: {1}")]
    Unreachable(String, String),
    /// The endpoint (first field) refused the request (second field: its text).
    #[error("{0} says: {1}")]
    Refused(String, String),
    /// etcd accepts no writes, because its database has reached the quota.
    #[error(
        "PM4103 {0} takes no writes: its database has reached --quota-backend-bytes (alarm NOSPACE). Until that is mended no device gets a \
         lease, and nobody is answered; what was acknowledged is kept. In this order: etcdctl --endpoints {0} compact --physical REVISION \
         (etcdctl endpoint status -w json names it), etcdctl defrag at each member, etcdctl alarm disarm. Then let etcd compact by \
         itself: --auto-compaction-mode periodic --auto-compaction-retention 5m"
    )]
    Full(String),
    /// The answer does not come from etcd 3.4 or later.
    #[error("PM4104 {0} does not answer as etcd 3.4 or later does ({1})")]
    Foreign(String, &'static str),
    /// This process and this endpoint do not trust each other's certificates.
    #[error(
        "PM4106 TLS with {0}: {1}. Until that is mended nothing is read or renewed there; what was acknowledged is kept"
    )]
    Distrusted(String, String),
    /// etcd has users, and does not accept the name or password of this process.
    #[error(
        "PM4107 {0}: {1}. Until that is mended nothing is read or renewed there; what was acknowledged is kept"
    )]
    Login(String, String),
    /// The role of the user does not permit the request.
    #[error(
        "PM4108 {0} does not allow this user to do that: its role needs to read and write below /pmnet/ (etcdctl role grant-permission \
         ROLE --prefix=true readwrite /pmnet/)"
    )]
    Forbidden(String),
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name of the key.
    pub key: String,
    /// Value of the key.
    pub value: Vec<u8>,
    /// Revision of etcd's store at which the key was last put.
    pub revision: u64,
    /// Number of the lease to which the key is attached; 0: none.
    pub lease: i64,
}

/// A key that a transaction writes if all its comparisons hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// Name of the key.
    pub key: String,
    /// Value of the key.
    pub value: Vec<u8>,
    /// Number of the lease to which the key is attached; 0: none. etcd removes the key when this lease ends.
    pub lease: i64,
}

/// A client of the members of one etcd cluster. The client sends each request to one member.
#[derive(Debug)]
pub struct Etcd {
    http: Http,
    /// Index of the endpoint that gave the last answer.
    at: usize,
    /// The highest revision of etcd that this client has seen.
    revision: u64,
}

/// The state of the database of one member of etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Storage {
    /// Version of etcd.
    pub version: String,
    /// Size of the database file in bytes. etcd compares this size with the quota.
    pub bytes: u64,
    /// Bytes of the file that are in use. New data may use the other bytes.
    pub used: u64,
    /// The quota of the database file in bytes; `None`: unknown.
    pub quota: Option<u64>,
    /// etcd no longer accepts writes.
    pub is_full: bool,
}

/// The default quota of etcd, in bytes.
const QUOTA_USUAL: u64 = 2 << 30;

impl Storage {
    /// Returns whether the database is larger than half of the quota.
    #[must_use]
    pub fn is_large(&self) -> bool {
        self.bytes > self.quota.unwrap_or(QUOTA_USUAL) / 2
    }
}

impl Etcd {
    /// Makes a client of these members. Each call of the client ends within `timeout`.
    #[must_use]
    pub fn new(members: Members, timeout: Duration) -> Etcd {
        Etcd {
            http: Http::new(members, timeout),
            at: 0,
            revision: 0,
        }
    }

    /// Returns the highest revision of etcd that this client has seen; 0: none.
    #[must_use]
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the number of endpoints.
    #[must_use]
    pub fn endpoints(&self) -> usize {
        self.http.urls().len()
    }

    /// Returns all keys that begin with `prefix`, at most [`LIMIT`]. The result is the state at one moment during the
    /// call.
    ///
    /// # Errors
    /// [`EtcdError`]. The client sends the next request to another endpoint.
    pub fn range(&mut self, prefix: &str) -> Result<Vec<Entry>, EtcdError> {
        let mut end = prefix.as_bytes().to_vec();
        // The end of the range is the first name after all names with this prefix. A prefix ends with a slash.
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

    /// Requests a new lease of at least `seconds`.
    ///
    /// # Errors
    /// [`EtcdError`] if no lease was granted.
    pub fn grant(&mut self, seconds: u64) -> Result<i64, EtcdError> {
        let answer = self.call("lease/grant", &json!({ "TTL": seconds.to_string() }))?;
        let granted = number(&answer["TTL"]).is_some_and(|ttl| ttl >= seconds);
        let id = answer["ID"].as_str().and_then(|id| id.parse().ok());
        id.filter(|_| granted)
            .ok_or_else(|| self.foreign("a lease is shorter than asked for"))
    }

    /// Lets a lease run for its full length again. Returns whether the lease still existed. **Only for information**:
    /// one member may answer without the others.
    ///
    /// # Errors
    /// [`EtcdError`] if etcd gave no usable answer.
    pub fn keep_alive(&mut self, lease: i64) -> Result<bool, EtcdError> {
        let answer = self.call("lease/keepalive", &json!({ "ID": lease.to_string() }))?;
        Ok(number(&answer["TTL"]).is_some())
    }

    /// Returns whether etcd still has this revision, because it was not compacted.
    ///
    /// # Errors
    /// [`EtcdError`] if etcd gave no usable answer.
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

    /// Removes the history before this revision, for **all** users of this etcd. The present values of keys stay.
    ///
    /// # Errors
    /// [`EtcdError`] if etcd gave no usable answer.
    pub fn compact(&mut self, revision: u64) -> Result<(), EtcdError> {
        match self.call(
            "kv/compaction",
            &json!({ "revision": revision.to_string() }),
        ) {
            // Another controller has already compacted the history.
            Err(EtcdError::Refused(_, text)) if text.contains(COMPACTED) => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// Returns the state of the database of the member that gave the last answer.
    ///
    /// # Errors
    /// [`EtcdError`] if etcd gave no usable answer.
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

    /// Returns the quota. etcd 3.6 has the quota in its status. Earlier versions have the quota only in their metrics,
    /// which this process may not be allowed to read.
    fn quota(&mut self) -> Option<u64> {
        let url = format!("{}/metrics", self.endpoint());
        quota_in(&self.http.text(&url)?)
    }

    /// Ends a lease. etcd removes the keys that are attached to it.
    ///
    /// # Errors
    /// [`EtcdError`]: it is unknown whether the lease has ended, or the lease did not exist.
    pub fn revoke(&mut self, lease: i64) -> Result<(), EtcdError> {
        self.call("lease/revoke", &json!({ "ID": lease.to_string() }))
            .map(|_| ())
    }

    /// Puts all of `puts` in one step, if each key of `are` was last put at the given revision (0: the key does not
    /// exist). Returns whether the keys were put.
    ///
    /// # Errors
    /// [`EtcdError`]: it is unknown whether the keys were put.
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

    /// Returns the seconds until a lease ends; `None`: the lease has ended. Only for information: one member of etcd
    /// answers without the others.
    ///
    /// # Errors
    /// [`EtcdError`] if etcd gave no usable answer.
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

/// Parses a number. etcd writes numbers of 64 bits as strings in JSON. The result is `None` if the number is missing,
/// zero or negative.
fn number(value: &Value) -> Option<u64> {
    value.as_str().and_then(|text| text.parse().ok())
}

/// Returns the quota that etcd's metrics contain.
fn quota_in(metrics: &str) -> Option<u64> {
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix("etcd_server_quota_backend_bytes "))?;
    let bytes: f64 = line.trim().parse().ok()?;
    // A quota is far smaller than the largest integer that a floating-point number represents exactly.
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
