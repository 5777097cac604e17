//! CLIENT: settings of a client, and questions about this client and the front's other clients.
//!
//! Purpose: the front answers as Redis does, but about its own clients. Subcommands about other clients (LIST, KILL,
//! UNBLOCK) are carried out by the front's shell ([`ClientsAsk`]). The store's Redis decides which fields a client has,
//! and their order.

use std::net::SocketAddr;

use bytes::Bytes;
use pmnet_resp::reply::{self, OK};
use pmnet_resp::{Arguments, parse_integer, read, write_command};
use pmnet_wire::command::{Form, Protocol, preamble};

use super::Shared;
use super::back::calls::{outcome_reply, question};
use super::back::passing::Passing;
use super::clients_asked::{self, Parsed, Which};
use super::errors::{BAD_NAME, SYNTAX, refusal, unknown_subcommand};
use super::face::Face;
use super::mode::Mode;
use super::settings::{Settings, valid_name};
use crate::table::{Facts, Sub};
use crate::tracking::Tracker;
use crate::upstream::{Outcome, Time};

/// Value of the field `multi` for a client outside MULTI, as Redis shows it.
pub(super) const NO_MULTI: &str = "-1";
/// Error text for subcommands of newer stores that pmnet refuses.
const STATE: &str = "it is state of a connection to the store, and all clients of a front share those; send it to the store itself";
const UNBLOCK_REASON: &str = "ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR";
/// The fields of Redis 7.0, used if the store does not name its own.
const FIELDS: &str = "id addr laddr fd name age idle flags db sub psub ssub multi qbuf qbuf-free argv-mem multi-mem rbs rbp obl oll \
                      omem tot-mem events cmd user redir resp";
/// Nanoseconds of a second.
const SECOND: Time = 1_000_000_000;

/// Facts about a client's input and its last command.
#[derive(Default)]
pub(super) struct Life {
    begun: Option<Time>,
    heard: Time,
    pending: usize,
    pub(super) command: Option<&'static Facts>,
}

impl Life {
    /// Notes that the client has its turn, with this many bytes of input.
    pub(super) fn note(&mut self, pending: usize, now: Time) {
        self.begun.get_or_insert(now);
        if pending != self.pending {
            self.heard = now;
        }
        self.pending = pending;
    }

    /// Returns the time when the client connected.
    pub(super) fn begun(&self, now: Time) -> Time {
        self.begun.unwrap_or(now)
    }

    /// Returns the time when input of the client came last.
    pub(super) fn heard(&self) -> Time {
        self.heard
    }
}

/// A kind of client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientKind {
    Normal,
    PubSub,
    /// A front has no clients of this kind.
    Replication,
}

impl ClientKind {
    pub(super) fn parse(name: &[u8]) -> Option<ClientKind> {
        let is = |word: &str| name.eq_ignore_ascii_case(word.as_bytes());
        if is("normal") {
            Some(ClientKind::Normal)
        } else if is("pubsub") {
            Some(ClientKind::PubSub)
        } else if is("master") || is("replica") || is("slave") || is("primary") {
            Some(ClientKind::Replication)
        } else {
            None
        }
    }
}

/// A client's request about the clients of its front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientsAsk {
    /// The command CLIENT INFO.
    Info,
    /// The command CLIENT LIST.
    List(Which),
    /// The command CLIENT KILL with one address.
    KillAddress(Vec<u8>),
    /// The command CLIENT KILL for all clients that match.
    Kill(Which),
    /// The command CLIENT UNBLOCK.
    Unblock { id: i64, error: bool },
}

/// Facts of the front's shell about a client's socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientSocket {
    pub(crate) local: Option<SocketAddr>,
    pub(crate) fd: i32,
    pub(crate) writes: bool,
}

/// The front's answer to a request about clients.
pub(crate) enum ClientsTold {
    Reply(Bytes),
    /// Lines about clients.
    Lines(String),
    /// The client of Redis that must be unblocked, by its number.
    Unblock(i64),
}

/// The answer to a CLIENT command, or the question that the front asks first.
pub(super) enum Wanted {
    /// The command is about this client alone.
    Alone(&'static str),
    /// The command turns tracking on.
    Tracking,
    /// The store answers this command.
    Help(Vec<u8>),
    /// The front answers this request.
    Front(ClientsAsk),
    /// The store answers this command first, and then the front answers the request. `None`: the front does not
    /// understand the conditions, so only the store answers.
    Store(Bytes, Option<ClientsAsk>),
    /// The command has this reply.
    Reply(Bytes),
}

impl Wanted {
    /// Parses a CLIENT command whose number of arguments has been checked.
    pub(super) fn parse(sub: Sub, arguments: &Arguments<'_>, shared: &Shared) -> Wanted {
        let Sub::Known(sub) = sub else {
            // Libraries send SETINFO (Redis 7.2) to every server.
            return if is_set_info(arguments) {
                Wanted::Alone("CLIENT|SETINFO")
            } else {
                Wanted::Reply(unknown_subcommand(arguments))
            };
        };
        match sub.name {
            "CLIENT|INFO" => Wanted::Front(ClientsAsk::Info),
            "CLIENT|KILL" if arguments.len() == 3 => {
                Wanted::Front(ClientsAsk::KillAddress(arguments.get(2).to_vec()))
            }
            "CLIENT|LIST" | "CLIENT|KILL" => {
                let kills = sub.name == "CLIENT|KILL";
                match clients_asked::parse(arguments, kills, shared) {
                    Parsed::Plain(which) => Wanted::Front(clients_asked::ask(which, kills)),
                    Parsed::Cut => Wanted::Reply(reply::error(SYNTAX)),
                    Parsed::Asked(which, question) => Wanted::Store(
                        question,
                        which.map(|which| clients_asked::ask(which, kills)),
                    ),
                }
            }
            "CLIENT|UNBLOCK" if arguments.len() > 4 => {
                // Redis refuses a CLIENT UNBLOCK with this argument. Valkey 9.1 ignores the argument and unblocks the
                // client. So the question names number 0, which no client has.
                let id = parse_integer(arguments.get(2));
                let mut words: Vec<&[u8]> = arguments.iter().collect();
                if id.is_some() {
                    words[2] = b"0";
                }
                let mut question = Vec::new();
                write_command(&mut question, &words);
                let ask = id.map(|id| ClientsAsk::Unblock { id, error: false });
                Wanted::Store(question.into(), ask)
            }
            "CLIENT|UNBLOCK" => parse_unblock(arguments),
            "CLIENT|HELP" => {
                let mut frame = Vec::new();
                write_command(&mut frame, &["CLIENT", "HELP"]);
                Wanted::Help(frame)
            }
            "CLIENT|TRACKING" if arguments.is(2, "ON") => Wanted::Tracking,
            name => Wanted::Alone(name),
        }
    }
}

/// Returns the payload that asks the store whether it accepts these conditions, and which fields its clients have.
pub(super) fn clients_question(conditions: &Bytes) -> Bytes {
    let mut payload = preamble(Form::Transaction, Protocol::Resp2, 0).to_vec();
    write_command(&mut payload, &["CLIENT", "INFO"]);
    payload.extend_from_slice(conditions);
    payload.into()
}

/// Handles the store's answer about the conditions. Returns the request to carry out, or the reply to the
/// client.
pub(super) fn clients_which(
    ask: Option<ClientsAsk>,
    outcome: Outcome,
    shared: &mut Shared,
) -> Result<ClientsAsk, Bytes> {
    let reply = outcome_reply(outcome)?;
    let parts = read::elements(&reply).unwrap_or_default();
    let [info, said] = parts[..] else {
        return Err(if reply.starts_with(b"-") {
            reply
        } else {
            reply::error(SYNTAX)
        });
    };
    shared.learn_client_fields(info);
    if said.starts_with(b"-") {
        return Err(Bytes::copy_from_slice(said));
    }
    ask.ok_or_else(|| {
        reply::error(
            "ERR pmnet: the front answers CLIENT LIST and CLIENT KILL, and does not know one of these conditions",
        )
    })
}

impl Settings {
    /// Handles a CLIENT command that reads or changes a setting. `None`: the command is of another kind.
    pub(super) fn client(&mut self, name: &str, arguments: &Arguments<'_>) -> Option<Bytes> {
        let resp3 = self.selected.protocol == Protocol::Resp3;
        Some(match name {
            "CLIENT|GETNAME" if self.name.is_empty() => reply::null(resp3),
            "CLIENT|GETNAME" => reply::bulk(&self.name),
            "CLIENT|SETNAME" if !valid_name(arguments.get(2)) => reply::error(BAD_NAME),
            "CLIENT|SETNAME" => {
                self.name = Bytes::copy_from_slice(arguments.get(2));
                OK
            }
            "CLIENT|NO-EVICT" => set(&mut self.no_evict, arguments),
            "CLIENT|NO-TOUCH" => set(&mut self.no_touch, arguments),
            "CLIENT|SETINFO" => self.set_info(arguments),
            // A server ignores capabilities that it does not know.
            "CLIENT|CAPA" => {
                self.redirects |= (2..arguments.len()).any(|at| arguments.is(at, "REDIRECT"));
                OK
            }
            _ => return None,
        })
    }
}

/// Turns a setting ON or OFF.
fn set(setting: &mut bool, arguments: &Arguments<'_>) -> Bytes {
    let on = arguments.is(2, "ON");
    if !on && !arguments.is(2, "OFF") {
        return reply::error(SYNTAX);
    }
    *setting = on;
    OK
}

/// Returns the reply to a subcommand that no front supports.
pub(super) fn refused(arguments: &Arguments<'_>) -> Bytes {
    refusal(arguments, STATE)
}

/// Returns a text as a verbatim string (RESP3) or a bulk string (RESP2).
pub(super) fn verbatim(text: &str, protocol: Protocol) -> Bytes {
    match protocol {
        Protocol::Resp2 => reply::bulk(text.as_bytes()),
        Protocol::Resp3 => reply::verbatim(text.as_bytes()),
    }
}

/// Returns the payload that unblocks this client of Redis.
pub(super) fn unblock(id: i64, error: bool) -> Bytes {
    let reason = if error { "ERROR" } else { "TIMEOUT" };
    let id = id.to_string();
    let words: [&[u8]; 4] = [b"CLIENT", b"UNBLOCK", id.as_bytes(), reason.as_bytes()];
    question(0, &words)
}

/// The properties of a client that other clients can ask for.
pub(crate) struct Portrait<'a> {
    pub(super) face: &'a Face,
    pub(super) life: &'a Life,
    pub(super) passing: &'a Passing,
    pub(super) user: &'a [u8],
}

impl Portrait<'_> {
    /// Returns the number of the client's connection as clients see it.
    pub(super) fn id(&self) -> i64 {
        self.face.shown_id()
    }

    pub(crate) fn kind(&self) -> ClientKind {
        if self.passing.subscriptions() > 0 {
            ClientKind::PubSub
        } else {
            ClientKind::Normal
        }
    }

    /// Returns the client's line as Redis would show it, with these fields.
    pub(crate) fn describe(
        &self,
        fields: &[String],
        socket: ClientSocket,
        shared: &Shared,
    ) -> String {
        let mut line = String::new();
        for field in fields {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(field);
            line.push('=');
            line.push_str(&self.field(field, socket, shared));
        }
        line.push('\n');
        line
    }

    /// Returns the value of this field in CLIENT LIST.
    pub(super) fn field(&self, field: &str, socket: ClientSocket, shared: &Shared) -> String {
        let (now, settings) = (shared.now, &self.face.settings);
        let tracker = shared.tracking.client(self.face.id);
        let [channels, patterns, sharded] = self.passing.subscribed();
        let seconds = |since: Time| (now.saturating_sub(since) / SECOND).to_string();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match field {
            "id" => self.face.id.to_string(),
            "addr" => self.face.peer.clone(),
            "laddr" => socket
                .local
                .map(|local| local.to_string())
                .unwrap_or_default(),
            "fd" => socket.fd.to_string(),
            "name" => text(&settings.name),
            "age" => seconds(self.life.begun(now)),
            "idle" => seconds(self.life.heard),
            "flags" => self.flags(tracker),
            "db" => settings.selected.database.to_string(),
            "sub" => channels.to_string(),
            "psub" => patterns.to_string(),
            "ssub" => sharded.to_string(),
            "multi" => match &self.face.mode {
                Mode::Queueing(transaction) => transaction.count().to_string(),
                Mode::WatchingMulti { .. } => "0".to_owned(),
                _ => shared.no_multi.clone(),
            },
            "watch" => u8::from(self.passing.watches_keys(&self.face.mode)).to_string(),
            "qbuf" => self.life.pending.to_string(),
            "omem" | "tot-mem" => self.face.pending.replies.held().to_string(),
            "events" => if socket.writes { "rw" } else { "r" }.to_owned(),
            "cmd" => match self.life.command {
                Some(facts) => facts.name.to_ascii_lowercase(),
                None => "NULL".to_owned(),
            },
            "user" => text(self.user),
            "redir" => Tracker::shown_redirect(tracker).to_string(),
            "resp" => match settings.selected.protocol {
                Protocol::Resp2 => "2".to_owned(),
                Protocol::Resp3 => "3".to_owned(),
            },
            "lib-name" => text(&settings.library.0),
            "lib-ver" => text(&settings.library.1),
            "capa" => if settings.redirects { "r" } else { "" }.to_owned(),
            _ => "0".to_owned(),
        }
    }

    fn flags(&self, tracker: Option<&Tracker>) -> String {
        let (settings, multi) = (&self.face.settings, self.face.mode.queues());
        let flags: String = [
            ('O', self.face.mode.monitors()),
            ('P', self.passing.subscriptions() > 0),
            ('x', multi),
            ('b', self.passing.blocked_as().is_some()),
            ('t', tracker.is_some()),
            ('R', tracker.is_some_and(|tracker| tracker.broken)),
            ('B', tracker.is_some_and(Tracker::broadcasts)),
            ('e', settings.no_evict),
            ('T', settings.no_touch),
        ]
        .into_iter()
        .filter_map(|(flag, set)| set.then_some(flag))
        .collect();
        if flags.is_empty() {
            "N".to_owned()
        } else {
            flags
        }
    }
}

impl Shared {
    /// Returns the names of a client's fields, in the order of the store.
    pub(crate) fn client_fields(&self) -> Vec<String> {
        match &self.client_fields {
            Some(fields) => fields.clone(),
            None => FIELDS.split_whitespace().map(str::to_owned).collect(),
        }
    }

    /// Takes the store's CLIENT INFO line, or an error.
    pub(super) fn learn_client_fields(&mut self, reply: &[u8]) {
        let Some(line) = read::bulk(reply) else {
            return;
        };
        let words = String::from_utf8_lossy(line.trim_ascii()).into_owned();
        let names = words
            .split(' ')
            .filter_map(|word| word.split_once('=').map(|(name, _)| name.to_owned()));
        let fields: Vec<String> = names.collect();
        if fields.first().is_some_and(|first| first == "id") {
            let multi = words
                .split(' ')
                .find_map(|word| word.strip_prefix("multi="));
            self.no_multi = multi.unwrap_or(NO_MULTI).to_owned();
            self.client_fields = Some(fields);
        }
    }
}

/// Whether the command is CLIENT SETINFO, which older stores do not know.
pub(super) fn is_set_info(arguments: &Arguments<'_>) -> bool {
    arguments.is(1, "SETINFO") && arguments.len() == 4
}

fn parse_unblock(arguments: &Arguments<'_>) -> Wanted {
    let error = arguments.len() == 4 && arguments.is(3, "ERROR");
    if arguments.len() == 4 && !error && !arguments.is(3, "TIMEOUT") {
        return Wanted::Reply(reply::error(UNBLOCK_REASON));
    }
    match parse_integer(arguments.get(2)) {
        Some(id) => Wanted::Front(ClientsAsk::Unblock { id, error }),
        None => Wanted::Reply(reply::error("ERR value is not an integer or out of range")),
    }
}

/// Parses CLIENT PAUSE: milliseconds, and whether commands that only read wait as well.
pub(super) fn parse_pause(arguments: &Arguments<'_>) -> Result<(u64, bool), Bytes> {
    if arguments.len() > 4 {
        return Err(wrong_number("PAUSE"));
    }
    let all = match arguments.len() {
        4 if arguments.is(3, "WRITE") => false,
        4 if !arguments.is(3, "ALL") => {
            return Err(reply::error("ERR CLIENT PAUSE mode must be WRITE or ALL"));
        }
        _ => true,
    };
    let millis = parse_integer(arguments.get(2))
        .ok_or_else(|| reply::error("ERR timeout is not an integer or out of range"))?;
    let millis = u64::try_from(millis).map_err(|_| reply::error("ERR timeout is negative"))?;
    Ok((millis, all))
}

fn wrong_number(subcommand: &str) -> Bytes {
    reply::error(&format!(
        "ERR unknown subcommand or wrong number of arguments for '{subcommand}'. Try CLIENT HELP."
    ))
}
