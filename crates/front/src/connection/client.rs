//! CLIENT: what a client says and asks about itself and the front's other clients.
//!
//! Purpose: answers as Redis does about connections to Redis; but the clients are those of this front. What concerns
//! the others (LIST, KILL, UNBLOCK) the front answers ([`ClientsAsk`]). Which fields a client has, and in which order, says the
//! Redis behind.

use std::net::SocketAddr;

use bytes::Bytes;
use pmnet_resp::reply::{self, OK};
use pmnet_resp::{Arguments, parse_integer, read, write_command};
use pmnet_wire::command::{Form, Protocol, preamble};

use super::calls::{Purpose, Submit};
use super::local::{BAD_NAME, valid_name};
use super::mode::Mode;
use super::passage::Stage;
use super::replies::Slot;
use super::transaction::unknown_subcommand;
use super::{Connection, Later, Shared, Wait};
use crate::table::{Facts, Sub};
use crate::tracking::Tracker;
use crate::upstream::{Outcome, Time, Upstream};

const SYNTAX: &str = "ERR syntax error";
const UNBLOCK_REASON: &str = "ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR";
/// The fields of Redis 7.0, for a store that does not say which it has.
const FIELDS: &str = "id addr laddr fd name age idle flags db sub psub ssub multi qbuf qbuf-free argv-mem multi-mem rbs rbp obl oll \
                      omem tot-mem events cmd user redir resp";
/// Nanoseconds of a second.
const SECOND: Time = 1_000_000_000;

/// What a client's input and last command were.
#[derive(Default)]
pub(super) struct Life {
    begun: Option<Time>,
    heard: Time,
    pending: usize,
    pub(super) command: Option<&'static Facts>,
}

impl Life {
    /// It has its turn, with so many bytes of input.
    pub(super) fn note(&mut self, pending: usize, now: Time) {
        self.begun.get_or_insert(now);
        if pending != self.pending {
            self.heard = now;
        }
        self.pending = pending;
    }
}

/// CLIENT REPLY SKIP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Skip {
    #[default]
    No,
    /// The reply to the next command is thrown away.
    Next,
    /// It is this command's.
    Now,
    /// That command is over.
    Over,
}

impl Skip {
    pub(super) fn command_over(&mut self) {
        *self = match *self {
            Skip::Next => Skip::Now,
            Skip::Now => Skip::Over,
            other => other,
        };
    }
}

/// A kind of client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientKind {
    Normal,
    PubSub,
    /// A front has none of these.
    Replication,
}

impl ClientKind {
    fn parse(name: &[u8]) -> Result<ClientKind, Bytes> {
        let is = |word: &str| name.eq_ignore_ascii_case(word.as_bytes());
        if is("normal") {
            Ok(ClientKind::Normal)
        } else if is("pubsub") {
            Ok(ClientKind::PubSub)
        } else if is("master") || is("replica") || is("slave") {
            Ok(ClientKind::Replication)
        } else {
            let name = String::from_utf8_lossy(name);
            Err(reply::error(&format!("ERR Unknown client type '{name}'")))
        }
    }
}

/// What a client wants of the front's clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClientsAsk {
    /// CLIENT INFO.
    Info,
    /// CLIENT LIST: those with these numbers if there are some, and of this kind.
    List {
        ids: Vec<i64>,
        kind: Option<ClientKind>,
    },
    /// CLIENT KILL of one address.
    KillAddress(Vec<u8>),
    /// CLIENT KILL of all that fit.
    Kill(KillFilter),
    /// CLIENT UNBLOCK.
    Unblock { id: i64, error: bool },
}

/// Whom CLIENT KILL means.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KillFilter {
    pub(crate) id: Option<i64>,
    pub(crate) kind: Option<ClientKind>,
    pub(crate) address: Option<Vec<u8>>,
    pub(crate) local_address: Option<Vec<u8>>,
    pub(crate) user: Option<Vec<u8>>,
    pub(crate) with_me: bool,
}

/// What the front knows of a client's socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientSocket {
    pub(crate) local: Option<SocketAddr>,
    pub(crate) fd: i32,
    pub(crate) writes: bool,
}

/// What the front answers.
pub(crate) enum ClientsTold {
    Reply(Bytes),
    /// Lines about clients.
    Lines(String),
    /// This client of Redis is to be unblocked.
    Unblock(i64),
}

impl Connection {
    /// CLIENT; its number of arguments is checked.
    pub(super) fn client<U: Upstream>(
        &mut self,
        sub: Sub,
        arguments: &Arguments<'_>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Later> {
        let Sub::Known(sub) = sub else {
            // Libraries send SETINFO (Redis 7.2) to whatever they connect to.
            let answer = if arguments.is(1, "SETINFO") && arguments.len() == 4 {
                OK
            } else {
                unknown_subcommand(arguments)
            };
            self.reply(answer);
            return Ok(());
        };
        let ask = match sub.name {
            "CLIENT|INFO" => Ok(ClientsAsk::Info),
            "CLIENT|LIST" => parse_list(arguments),
            "CLIENT|KILL" if arguments.len() == 3 => {
                Ok(ClientsAsk::KillAddress(arguments.get(2).to_vec()))
            }
            "CLIENT|KILL" => parse_kill(arguments, shared).map(ClientsAsk::Kill),
            "CLIENT|UNBLOCK" => parse_unblock(arguments),
            "CLIENT|HELP" => {
                let mut frame = Vec::new();
                write_command(&mut frame, &["CLIENT", "HELP"]);
                return self.pack_frame(&frame, 0, true, true, up, shared);
            }
            "CLIENT|TRACKING" if arguments.is(2, "ON") => {
                let may = self.may_track(arguments, shared)?;
                Err(may.map_or_else(|error| error, |()| self.client_tracking(arguments, shared)))
            }
            name => Err(self.client_alone(name, arguments, shared)),
        };
        match ask {
            Err(answer) => {
                if !answer.is_empty() {
                    self.reply(answer);
                }
                Ok(())
            }
            Ok(ask @ (ClientsAsk::Info | ClientsAsk::List { .. }))
                if shared.client_fields.is_none() =>
            {
                let purpose = Purpose::ClientFields(ask);
                self.ask_store(0, &[b"CLIENT", b"INFO"], purpose, up, shared)?;
                Ok(())
            }
            Ok(ask) => {
                self.replies.slots.push_back(Slot::Clients);
                self.wait_for_clients(ask);
                Ok(())
            }
        }
    }

    /// What concerns only this connection; empty if there is no answer.
    pub(super) fn client_alone(
        &mut self,
        name: &str,
        arguments: &Arguments<'_>,
        shared: &mut Shared,
    ) -> Bytes {
        match name {
            "CLIENT|ID" => reply::integer(self.shown_id()),
            "CLIENT|GETNAME" if self.settings.name.is_empty() => {
                reply::null(self.settings.protocol == Protocol::Resp3)
            }
            "CLIENT|GETNAME" => reply::bulk(&self.settings.name),
            "CLIENT|SETNAME" if !valid_name(arguments.get(2)) => reply::error(BAD_NAME),
            "CLIENT|SETNAME" => {
                self.settings.name = Bytes::copy_from_slice(arguments.get(2));
                OK
            }
            "CLIENT|NO-EVICT" => {
                let on = arguments.is(2, "ON");
                if !on && !arguments.is(2, "OFF") {
                    return reply::error(SYNTAX);
                }
                self.settings.no_evict = on;
                OK
            }
            "CLIENT|GETREDIR" => {
                reply::integer(Tracker::shown_redirect(shared.tracking.client(self.id)))
            }
            "CLIENT|TRACKINGINFO" => self.tracking_info(shared),
            "CLIENT|CACHING" => {
                Tracker::client_caching(shared.tracking.client_mut(self.id), arguments)
            }
            "CLIENT|TRACKING" => self.client_tracking(arguments, shared),
            "CLIENT|REPLY" => self.client_reply(arguments),
            "CLIENT|PAUSE" => match parse_pause(arguments) {
                Ok((millis, all)) => {
                    shared.pause.begin(millis, all, shared.now);
                    OK
                }
                Err(error) => error,
            },
            "CLIENT|UNPAUSE" => {
                shared.pause.end();
                OK
            }
            _ => unknown_subcommand(arguments),
        }
    }

    /// CLIENT REPLY.
    fn client_reply(&mut self, arguments: &Arguments<'_>) -> Bytes {
        if arguments.is(2, "ON") {
            self.settings.silent = false;
            self.skip = Skip::No;
            self.replies.mute(false);
            return OK;
        }
        if arguments.is(2, "OFF") {
            self.settings.silent = true;
            self.skip = Skip::No;
            self.replies.mute(true);
        } else if !arguments.is(2, "SKIP") {
            return reply::error(SYNTAX);
        } else if !self.settings.silent {
            self.skip = Skip::Next;
            self.replies.mute(true);
        }
        Bytes::new()
    }

    /// The command whose reply is thrown away is over: the next one has a reply.
    pub(super) fn go_on_skipping<U: Upstream>(
        &mut self,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Later> {
        if self.skip == Skip::Over {
            self.flush_pack(up, shared)?;
            self.replies.mute(false);
            self.skip = Skip::No;
        }
        Ok(())
    }

    /// The next commands wait until the front has answered this.
    pub(super) fn wait_for_clients(&mut self, ask: ClientsAsk) {
        self.wait = Wait::Outcome;
        self.clients_ask = Some(ask);
    }

    /// What it wants to know of the front's clients, once.
    pub(crate) fn take_clients_ask(&mut self) -> Option<ClientsAsk> {
        self.clients_ask.take()
    }

    /// The front has answered.
    pub(crate) fn clients_told<U: Upstream>(
        &mut self,
        told: ClientsTold,
        error: bool,
        up: &mut U,
        shared: &mut Shared,
    ) {
        self.wait = Wait::Nothing;
        let asks = |slot: &Slot| matches!(slot, Slot::Clients);
        let Some(index) = self.replies.slots.iter().position(asks) else {
            return;
        };
        let answer = match told {
            ClientsTold::Reply(answer) => answer,
            ClientsTold::Lines(lines) => self.verbatim(&lines),
            ClientsTold::Unblock(id) => {
                let mut payload = preamble(Form::Single, Protocol::Resp2, 0).to_vec();
                let reason = if error { "ERROR" } else { "TIMEOUT" };
                let frame = ["CLIENT", "UNBLOCK", &id.to_string(), reason];
                write_command(&mut payload, &frame);
                let bytes = payload.len();
                // Repeated, it would unblock nobody.
                let how = Submit::Bypass { read_only: true };
                let payload = Bytes::from(payload);
                match self.submit(&payload, 0, how, self.times.begun, up, shared) {
                    Ok(Ok(call)) => {
                        let purpose = Purpose::Bypass {
                            replies: 1,
                            again: None,
                            plain: false,
                        };
                        self.replies.flight_bytes += bytes;
                        self.replies.slots[index] = Slot::Call {
                            call,
                            purpose,
                            bytes,
                        };
                        return;
                    }
                    Ok(Err(error)) => error,
                    Err(_) => reply::error("ERR pmnet: too much is under way; try again"),
                }
            }
        };
        self.replies.fill(index, answer);
        self.replies.drain();
    }

    fn verbatim(&self, text: &str) -> Bytes {
        match self.settings.protocol {
            Protocol::Resp2 => reply::bulk(text.as_bytes()),
            Protocol::Resp3 => {
                Bytes::from(format!("={}\r\ntxt:{text}\r\n", text.len() + "txt:".len()))
            }
        }
    }

    /// Which client of Redis it is while it waits there for others.
    pub(crate) fn blocked_as(&self) -> Option<i64> {
        let passage = self.passing.passage.as_ref()?;
        let blocked = passage.blocks && passage.stage == Stage::Sent;
        let direct = self.passing.direct.as_ref().filter(|_| blocked)?;
        direct.found.as_ref()?.client
    }

    pub(crate) fn kind(&self) -> ClientKind {
        if self.passing.subscriptions() > 0 {
            ClientKind::PubSub
        } else {
            ClientKind::Normal
        }
    }

    /// Name of its user.
    pub(crate) fn user(&self) -> &[u8] {
        self.gate.name()
    }

    /// No further command is taken; what is outstanding is answered.
    pub(crate) fn end_after_reply(&mut self) {
        self.end.end();
    }

    /// What Redis would say of it, in these fields.
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

    fn field(&self, field: &str, socket: ClientSocket, shared: &Shared) -> String {
        let now = shared.now;
        let tracker = shared.tracking.client(self.id);
        let direct = self.passing.direct.as_ref();
        let seconds = |since: Time| (now.saturating_sub(since) / SECOND).to_string();
        let count = |count: fn(&super::direct::Direct) -> u64| direct.map_or(0, count).to_string();
        match field {
            "id" => self.id.to_string(),
            "addr" => self.peer.clone(),
            "laddr" => socket
                .local
                .map(|local| local.to_string())
                .unwrap_or_default(),
            "fd" => socket.fd.to_string(),
            "name" => String::from_utf8_lossy(&self.settings.name).into_owned(),
            "age" => seconds(self.life.begun.unwrap_or(now)),
            "idle" => seconds(self.life.heard),
            "flags" => self.flags(tracker),
            "db" => self.settings.database.to_string(),
            "sub" => count(|direct| direct.subscribed.saturating_sub(direct.patterns)),
            "psub" => count(|direct| direct.patterns),
            "ssub" => count(|direct| direct.subscribed_sharded),
            "multi" => match &self.mode {
                Mode::Queueing(transaction) => transaction.count().to_string(),
                Mode::WatchingMulti { .. } => "0".to_owned(),
                _ => "-1".to_owned(),
            },
            "watch" => u8::from(self.watches_keys()).to_string(),
            "qbuf" => self.life.pending.to_string(),
            "omem" | "tot-mem" => self.replies.held().to_string(),
            "events" => if socket.writes { "rw" } else { "r" }.to_owned(),
            "cmd" => match self.life.command {
                Some(facts) => facts.name.to_ascii_lowercase(),
                None => "NULL".to_owned(),
            },
            "user" => String::from_utf8_lossy(self.gate.name()).into_owned(),
            "redir" => Tracker::shown_redirect(tracker).to_string(),
            "resp" => match self.settings.protocol {
                Protocol::Resp2 => "2".to_owned(),
                Protocol::Resp3 => "3".to_owned(),
            },
            "lib-name" | "lib-ver" => String::new(),
            _ => "0".to_owned(),
        }
    }

    fn flags(&self, tracker: Option<&Tracker>) -> String {
        let multi = matches!(self.mode, Mode::Queueing(_) | Mode::WatchingMulti { .. });
        let flags: String = [
            ('O', self.mode.monitors()),
            ('P', self.passing.subscriptions() > 0),
            ('x', multi),
            ('b', self.blocked_as().is_some()),
            ('t', tracker.is_some()),
            ('R', tracker.is_some_and(|tracker| tracker.broken)),
            ('B', tracker.is_some_and(Tracker::broadcasts)),
            ('e', self.settings.no_evict),
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
    /// The fields of a client, in the order of the store.
    pub(crate) fn client_fields(&self) -> Vec<String> {
        match &self.client_fields {
            Some(fields) => fields.clone(),
            None => FIELDS.split_whitespace().map(str::to_owned).collect(),
        }
    }

    /// The store has said something of a client of its own, or has not.
    pub(super) fn learn_client_fields(&mut self, outcome: &Outcome) {
        let Outcome::Reply(reply) = outcome else {
            return;
        };
        let Some(line) = read::bulk(reply) else {
            return;
        };
        let words = String::from_utf8_lossy(line.trim_ascii()).into_owned();
        let names = words
            .split(' ')
            .filter_map(|word| word.split_once('=').map(|(name, _)| name.to_owned()));
        let fields: Vec<String> = names.collect();
        if fields.first().is_some_and(|first| first == "id") {
            self.client_fields = Some(fields);
        }
    }
}

fn parse_list(arguments: &Arguments<'_>) -> Result<ClientsAsk, Bytes> {
    let (mut ids, mut kind) = (Vec::new(), None);
    if arguments.len() == 4 && arguments.is(2, "TYPE") {
        kind = Some(ClientKind::parse(arguments.get(3))?);
    } else if arguments.len() > 3 && arguments.is(2, "ID") {
        for at in 3..arguments.len() {
            let id = parse_integer(arguments.get(at));
            ids.push(id.ok_or_else(|| reply::error("ERR Invalid client ID"))?);
        }
    } else if arguments.len() != 2 {
        return Err(reply::error(SYNTAX));
    }
    Ok(ClientsAsk::List { ids, kind })
}

fn parse_kill(arguments: &Arguments<'_>, shared: &Shared) -> Result<KillFilter, Bytes> {
    let mut filter = KillFilter::default();
    for at in (2..arguments.len()).step_by(2) {
        if at + 1 == arguments.len() {
            return Err(reply::error(SYNTAX));
        }
        let value = arguments.get(at + 1);
        if arguments.is(at, "ID") {
            let id = parse_integer(value).filter(|id| *id > 0);
            let bad = || reply::error("ERR client-id should be greater than 0");
            filter.id = Some(id.ok_or_else(bad)?);
        } else if arguments.is(at, "TYPE") {
            filter.kind = Some(ClientKind::parse(value)?);
        } else if arguments.is(at, "ADDR") {
            filter.address = Some(value.to_vec());
        } else if arguments.is(at, "LADDR") {
            filter.local_address = Some(value.to_vec());
        } else if arguments.is(at, "USER") {
            if !shared.users.has(value) {
                let user = String::from_utf8_lossy(value);
                return Err(reply::error(&format!("ERR No such user '{user}'")));
            }
            filter.user = Some(value.to_vec());
        } else if arguments.is(at, "SKIPME") {
            filter.with_me = arguments.is(at + 1, "NO");
            if !filter.with_me && !arguments.is(at + 1, "YES") {
                return Err(reply::error(SYNTAX));
            }
        } else {
            return Err(reply::error(SYNTAX));
        }
    }
    Ok(filter)
}

fn parse_unblock(arguments: &Arguments<'_>) -> Result<ClientsAsk, Bytes> {
    let error = arguments.len() == 4 && arguments.is(3, "ERROR");
    if arguments.len() > 4 {
        return Err(wrong_number("UNBLOCK"));
    }
    if arguments.len() == 4 && !error && !arguments.is(3, "TIMEOUT") {
        return Err(reply::error(UNBLOCK_REASON));
    }
    let id = parse_integer(arguments.get(2));
    let bad = || reply::error("ERR value is not an integer or out of range");
    Ok(ClientsAsk::Unblock {
        id: id.ok_or_else(bad)?,
        error,
    })
}

/// Milliseconds, and whether commands that only read wait as well.
fn parse_pause(arguments: &Arguments<'_>) -> Result<(u64, bool), Bytes> {
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
