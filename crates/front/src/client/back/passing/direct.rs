//! The client's own connection to the store: its output, and the handling of replies.
//!
//! Invariants: replies and messages for the client leave in the order in which the store sent them. A message comes
//! between two replies, never inside a reply. Replies to the front's own AUTH, HELLO and SELECT never reach the client.

use std::sync::Arc;

use bytes::Bytes;
use pmnet_resp::{read, reply};
use pmnet_tls::ClientTls;
use pmnet_wire::command::Protocol;

use crate::limits::REPLIES;
use crate::store::StoreAddress;
use crate::store::identity::{
    ASK_CLIENT, ASK_RUN_ID, Found, NO_RUN_ID, Own, ask_owner, owner_of, run_id_of, version_of,
};
use crate::store::line::Line;
use crate::upstream::Time;
use crate::users::Credentials;

/// The first Redis version whose WAIT counts the writes of its own connection.
const OWN_WRITES_VERSION: (u32, u32) = (7, 2);

/// Command of a fence. Redis does not know this command, and answers it whatever rights the user has.
const FENCE: &str = "pmnet-fence";

/// The client's own connection to the store, without its socket.
pub(super) struct Direct {
    /// Number of the connection among the connections of this client.
    pub(super) serial: u64,
    /// The front's own commands on this connection, a few for each passage, and the matching of replies to them.
    /// Replies to client commands are recognized by their order.
    pub(super) line: Line<Own>,
    pub(super) tls: Option<ClientTls>,
    /// Whether bytes were written since the last command was put into the outbox. If bytes were written since, the
    /// store may have executed a part of that command.
    pub(super) used: bool,
    pub(super) database: u32,
    pub(super) protocol: Protocol,
    /// Identity of the Redis at the other end, once the identity is known.
    pub(super) found: Option<Found>,
    asked: Found,
    /// Whether bytes came from the store since [`Direct::proof`] was updated.
    pub(super) heard: bool,
    /// The time when the store was last known to answer.
    pub(super) proof: Time,
    /// Number of subscribed channels and patterns.
    pub(super) subscribed: u64,
    /// Number of subscribed patterns; channels are not counted.
    pub(super) patterns: u64,
    pub(super) subscribed_sharded: u64,
    /// The store's error for the front's write that precedes WAIT.
    pub(super) refused: Option<Bytes>,
    /// Whether the answer to a fence has just come.
    pub(super) passed_fence: bool,
    /// The store, with the front's own login.
    store: StoreAddress,
    /// Credentials with which the client's commands run, tried in this order. Empty: the client's commands run with the
    /// front's own login.
    client: Vec<Arc<Credentials>>,
    /// Number of credentials tried since the connection was logged in as the front.
    tried: usize,
    /// Whether the connection is logged in as the client.
    is_client: bool,
    /// Place of the server's records in the connected store, once the store has been asked for them.
    records: String,
    /// Whether a command has set a state of this connection, as far as the front knows.
    pub(super) has_state: bool,
}

/// Why a connection to the store is given up.
pub(super) enum Failure {
    Lost(String),
    /// The store refuses the login of the client.
    Refused(String),
}

impl From<String> for Failure {
    fn from(why: String) -> Failure {
        Failure::Lost(why)
    }
}

impl Direct {
    pub(super) fn new(
        store: &StoreAddress,
        serial: u64,
        now: Time,
        client: Vec<Arc<Credentials>>,
    ) -> Direct {
        let mut direct = Direct {
            serial,
            line: Line::new(store, REPLIES),
            tls: store.tls.clone(),
            used: false,
            database: 0,
            protocol: Protocol::Resp2,
            found: None,
            asked: Found::default(),
            heard: false,
            proof: now,
            subscribed: 0,
            patterns: 0,
            subscribed_sharded: 0,
            refused: None,
            passed_fence: false,
            store: store.clone(),
            client,
            tried: 0,
            is_client: false,
            records: String::new(),
            has_state: false,
        };
        if let Some(auth) = store.auth() {
            direct.set(&auth);
        }
        direct
    }

    /// Adds a command of the front that must succeed.
    pub(super) fn set<A: AsRef<[u8]>>(&mut self, command: &[A]) {
        self.line.ask(Own::Setting, command);
    }

    /// If the connection is logged in as the client, logs in as the front. The client's user may have no right for the
    /// next command.
    pub(super) fn act_as_front(&mut self) {
        self.tried = 0;
        if !std::mem::take(&mut self.is_client) {
            return;
        }
        match self.store.auth() {
            Some(auth) => self.set(&auth),
            // The front's user is `default`, which needs no password: any password will do.
            None => self.set(&["AUTH", "default", "none"]),
        }
    }

    /// Updates the credentials: the client's user may have another password by now.
    pub(super) fn set_client(&mut self, client: &[Arc<Credentials>]) {
        // Attempts that are under way continue with the old credentials.
        if self.tried == 0 || self.is_client {
            self.client = client.to_vec();
        }
    }

    /// Returns whether the connection is logged in as the user for the client's commands. If the connection is logged
    /// in as the front, and all earlier questions are answered, this function sends the login. Some Redis versions do
    /// not report a wrong password while another answer is still to be sent. The answer to the login must be awaited: a
    /// command that follows a failed login would run as the front.
    pub(super) fn acts_as_client(&mut self) -> bool {
        if self.client.is_empty() || self.is_client {
            return true;
        }
        if self.tried == 0 && self.line.asked().is_empty() {
            self.log_in();
        }
        false
    }

    /// Tries the next of the client's passwords. Returns false if no password is left.
    fn log_in(&mut self) -> bool {
        let Some(client) = self.client.get(self.tried) else {
            return false;
        };
        self.tried += 1;
        let password = client.password.bytes();
        let auth = [&b"AUTH"[..], &client.user, &password];
        self.line.ask(Own::Login, &auth);
        true
    }

    /// Asks for the identity of the store at the other end, and for the owner of `records` there.
    pub(super) fn identify(&mut self, records: &str) {
        self.act_as_front();
        records.clone_into(&mut self.records);
        if self.database != 0 {
            self.database = 0;
            self.set(&["SELECT", "0"]);
        }
        self.found = None;
        // If the user may not ask for the client id, the only effect is that the client cannot be unblocked.
        self.line.ask(Own::Client, &ASK_CLIENT);
        self.line.ask(Own::Info, &ASK_RUN_ID);
        self.line.ask(Own::Owner, &ask_owner(records));
    }

    /// Makes WAIT and WAITAOF wait for earlier writes of other connections. Redis 7.0 does so if the connection has run
    /// any command. A newer Redis waits only for writes of the connection itself, so a key is written and removed. The
    /// store may refuse that write (no memory, no replicas, no right). WAIT then gets the error of the write.
    pub(super) fn come_behind_writes(&mut self) {
        self.refused = None;
        let writes = |found: &Found| found.version >= OWN_WRITES_VERSION;
        if self.found.as_ref().is_some_and(writes) {
            let key = format!("{}:wait", self.records);
            // The key expires if the connection breaks between the two commands.
            self.line.ask(Own::Marker, &["SET", &key, "", "PX", "1000"]);
            self.line.ask(Own::Marker, &["DEL", &key]);
        }
    }

    /// Adds a question whose answer comes after all messages that the store sent before it got the question
    /// ([`super::fence`]).
    pub(super) fn fence(&mut self) {
        self.line.ask(Own::Fence, &[FENCE]);
    }

    /// Whether the answer to a fence is under way.
    pub(super) fn has_fence(&self) -> bool {
        self.line.asked().contains(&Own::Fence)
    }

    /// Whether an answer about the store's identity is under way.
    pub(super) fn identifies(&self) -> bool {
        let asked = self.line.asked();
        asked.contains(&Own::Info) || asked.contains(&Own::Owner)
    }

    /// Returns whether `value` answers a command of the front. If `value` is such an answer, this function takes it in.
    ///
    /// # Errors
    /// The reason why the connection is unusable.
    pub(super) fn take_answer(&mut self, value: &[u8]) -> Result<bool, Failure> {
        if value.starts_with(b">") {
            return Ok(false);
        }
        let Some(own) = self.line.answered() else {
            return Ok(false);
        };
        if value.starts_with(b"-") && !matches!(own, Own::Fence | Own::Client) {
            let text = String::from_utf8_lossy(value.trim_ascii());
            return match own {
                Own::Marker => {
                    self.refused.get_or_insert_with(|| no_marker(&text));
                    Ok(true)
                }
                Own::Login if self.log_in() => Ok(true),
                Own::Login => Err(Failure::Refused(text.into_owned())),
                _ => Err(format!("it said {text}").into()),
            };
        }
        match own {
            Own::Setting | Own::Marker => {}
            Own::Login => self.is_client = true,
            Own::Fence => self.passed_fence = true,
            Own::Info => {
                self.asked.run_id = run_id_of(value).ok_or_else(|| NO_RUN_ID.to_owned())?;
                self.asked.version = version_of(value).unwrap_or_default();
            }
            Own::Owner => self.asked.owner = owner_of(value),
            Own::Client => self.asked.client = read::integer(value),
        }
        if matches!(own, Own::Info | Own::Owner) && !self.identifies() {
            self.found = Some(self.asked.clone());
        }
        Ok(true)
    }
}

/// Returns the reply to a WAIT before which the store has refused the front's write with this error.
fn no_marker(error: &str) -> Bytes {
    let (code, text) = error.split_once(' ').unwrap_or((error, ""));
    let code = code.trim_start_matches('-');
    reply::error(&format!(
        "{code} pmnet: it is not known which replicas have what was written: the store refuses the front's write that tells it what to \
         count ({text}); acknowledged writes stay"
    ))
}
