//! A small client of etcd: its JSON gateway (`/v3/…`, from etcd 3.4 on), over plain HTTP, blocking.
//!
//! Four calls are all that is needed: read a range (linearizable), grant a lease, end one, and one transaction that compares
//! revisions and puts. All go through the agreement of etcd's members. The keep-alive of etcd does not, so it is not used: a member that
//! believes to be the leader renews by itself.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// Longest answer, in bytes.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Most keys of one range.
pub const LIMIT: u64 = 1_000;

/// Why etcd did not answer, or not as it should.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// This endpoint cannot be reached, or not in time.
    #[error("{0}: {1}")]
    Unreachable(String, String),
    /// It says no.
    #[error("{0} says: {1}")]
    Refused(String, String),
    /// This is no answer of etcd 3.4 or later.
    #[error("{0} does not answer as etcd 3.4 or later does ({1})")]
    Foreign(String, &'static str),
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

/// What a transaction puts, if all that it compares holds.
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
    http: ureq::Agent,
    endpoints: Vec<String>,
    /// Which one answered last.
    at: usize,
}

impl Etcd {
    /// A client of these endpoints (`http://HOST:PORT`), each call of which ends within `timeout`.
    #[must_use]
    pub fn new(endpoints: Vec<String>, timeout: Duration) -> Etcd {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(timeout))
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .build();
        Etcd {
            http: config.new_agent(),
            endpoints,
            at: 0,
        }
    }

    /// How many endpoints there are.
    #[must_use]
    pub fn endpoints(&self) -> usize {
        self.endpoints.len()
    }

    /// All keys that begin with `prefix`, at one moment that is not before this call; at most [`LIMIT`].
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

    /// A new lease of at least so many seconds.
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

    /// Ends a lease, and removes the keys that go with it.
    ///
    /// # Errors
    /// [`EtcdError`]: then it may or may not be done, or the lease was gone.
    pub fn revoke(&mut self, lease: i64) -> Result<(), EtcdError> {
        self.call("lease/revoke", &json!({ "ID": lease.to_string() }))
            .map(|_| ())
    }

    /// Puts all this in one step if each of these keys was last put at this revision (0: is not there); whether it did.
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

    /// Seconds that a lease has left; `None`: it is gone. For people only: one member of etcd answers by itself.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub fn seconds_left(&mut self, lease: i64) -> Result<Option<u64>, EtcdError> {
        let answer = self.call("lease/timetolive", &json!({ "ID": lease.to_string() }))?;
        Ok(number(&answer["TTL"]))
    }

    fn call(&mut self, path: &str, question: &Value) -> Result<Value, EtcdError> {
        let answer = self.ask(path, question);
        if !matches!(answer, Ok(_) | Err(EtcdError::Refused(..))) {
            self.at = (self.at + 1) % self.endpoints.len();
        }
        answer
    }

    fn ask(&self, path: &str, question: &Value) -> Result<Value, EtcdError> {
        let endpoint = &self.endpoints[self.at];
        let lost = |error: ureq::Error| EtcdError::Unreachable(endpoint.clone(), error.to_string());
        let mut answer = self
            .http
            .post(format!("{endpoint}/v3/{path}"))
            .header("content-type", "application/json")
            .send(question.to_string())
            .map_err(lost)?;
        let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX);
        let body = body.read_to_string().map_err(lost)?;
        let json: Value = serde_json::from_str(&body)
            .map_err(|_| EtcdError::Foreign(endpoint.clone(), "no JSON"))?;
        if let Some(text) = json["error"].as_str() {
            // What it cannot do at the moment, another member may.
            let text = text.to_owned();
            return Err(match json["code"].as_i64() {
                Some(4 | 14) => EtcdError::Unreachable(endpoint.clone(), text),
                _ => EtcdError::Refused(endpoint.clone(), text),
            });
        }
        if !answer.status().is_success() || !json["header"].is_object() {
            return Err(EtcdError::Foreign(endpoint.clone(), "no header"));
        }
        Ok(json)
    }

    fn foreign(&self, why: &'static str) -> EtcdError {
        EtcdError::Foreign(self.endpoints[self.at].clone(), why)
    }
}

/// Numbers of 64 bits are strings in JSON; what is 0 or negative is left out or means nothing here.
fn number(value: &Value) -> Option<u64> {
    value.as_str().and_then(|text| text.parse().ok())
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

/// What `--etcd` may be: `http://HOST:PORT[,…]`.
///
/// # Errors
/// A sentence.
pub fn endpoints(text: &str) -> Result<Vec<String>, String> {
    text.split(',')
        .map(|one| {
            let one = one.trim().trim_end_matches('/');
            let host = one.strip_prefix("http://").ok_or_else(|| {
                format!("--etcd {one}: it must be http://HOST:2379 (TLS to etcd is not built yet)")
            })?;
            let whole = host.rsplit_once(':').is_some_and(|(name, port)| {
                !name.is_empty() && !name.contains(['/', '@']) && port.parse::<u16>().is_ok()
            });
            if whole {
                Ok(one.to_owned())
            } else {
                Err(format!("--etcd {one}: it must be http://HOST:2379"))
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{endpoints, entry};
    use serde_json::json;

    #[test]
    fn endpoints_are_understood_or_get_a_sentence() {
        assert_eq!(
            endpoints("http://a:1, http://[::1]:2379/").unwrap(),
            ["http://a:1", "http://[::1]:2379"]
        );
        for bad in [
            "",
            "a:1",
            "https://a:1",
            "http://a",
            "http://:1",
            "http://a:x",
            "http://a/b:1",
        ] {
            assert!(endpoints(bad).unwrap_err().contains("--etcd"), "{bad}");
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
