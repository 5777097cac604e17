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

use super::back::calls::{Purpose, Submit, outcome_reply};
use super::back::pack::{Company, Kind, Part};
use super::clients_asked::{self, Parsed, Which};
use super::local::{BAD_NAME, valid_name};
use super::mode::Mode;
use super::replies::{Muted, Slot};
use super::transaction::unknown_subcommand;
use super::{Connection, Later, Shared, refusal};
use crate::table::{Facts, Sub};
use crate::tracking::Tracker;
use crate::upstream::{Outcome, Time, Upstream};

const SYNTAX: &str = "ERR syntax error";
/// The field of the commands in its MULTI, for a client that has none, as Redis shows it.
pub(super) const NO_MULTI: &str = "-1";
/// Why a subcommand of newer stores is refused.
const STATE: &str = "it is state of a connection to the store, and all clients of a front share those; send it to the store itself";
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

    /// When it came.
    pub(super) fn begun(&self, now: Time) -> Time {
        self.begun.unwrap_or(now)
    }

    /// When something of it came last.
    pub(super) fn heard(&self) -> Time {
        self.heard
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

/// What a client wants of the front's clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientsAsk {
    /// CLIENT INFO.
    Info,
    /// CLIENT LIST.
    List(Which),
    /// CLIENT KILL of one address.
    KillAddress(Vec<u8>),
    /// CLIENT KILL of all of these.
    Kill(Which),
    /// CLIENT UNBLOCK.
    Unblock { id: i64, error: bool },
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
            let answer = if is_set_info(arguments) {
                self.settings.set_info(arguments)
            } else {
                unknown_subcommand(arguments)
            };
            self.reply(answer);
            return Ok(());
        };
        let ask = match sub.name {
            "CLIENT|INFO" => Ok(ClientsAsk::Info),
            "CLIENT|KILL" if arguments.len() == 3 => {
                Ok(ClientsAsk::KillAddress(arguments.get(2).to_vec()))
            }
            "CLIENT|LIST" | "CLIENT|KILL" => {
                let kills = sub.name == "CLIENT|KILL";
                match clients_asked::parse(arguments, kills, shared) {
                    Parsed::Plain(which) => Ok(clients_asked::ask(which, kills)),
                    Parsed::Cut => Err(reply::error(SYNTAX)),
                    Parsed::Asked(which, question) => {
                        let ask = which.map(|which| clients_asked::ask(which, kills));
                        return self.ask_about_clients(ask, &question, up, shared);
                    }
                }
            }
            "CLIENT|UNBLOCK" if arguments.len() > 4 => {
                // Redis refuses it, and Valkey 9.1 takes it for one without a reason. No client has the number 0.
                let id = parse_integer(arguments.get(2));
                let mut words: Vec<&[u8]> = arguments.iter().collect();
                if id.is_some() {
                    words[2] = b"0";
                }
                let mut question = Vec::new();
                write_command(&mut question, &words);
                let ask = id.map(|id| ClientsAsk::Unblock { id, error: false });
                return self.ask_about_clients(ask, &question.into(), up, shared);
            }
            "CLIENT|UNBLOCK" => parse_unblock(arguments),
            "CLIENT|HELP" => {
                let mut frame = Vec::new();
                write_command(&mut frame, &["CLIENT", "HELP"]);
                let part = Part {
                    frame: &frame,
                    key_hash: 0,
                    kind: Kind::Reads,
                    company: Company::Alone,
                };
                return self.pack_part(part, up, shared);
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
            Ok(ask @ (ClientsAsk::Info | ClientsAsk::List(_)))
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

    /// Asks the store whether it takes these conditions, and what its clients look like. `ask`: the request to carry out then; `None`: the
    /// conditions are not understood here.
    fn ask_about_clients<U: Upstream>(
        &mut self,
        ask: Option<ClientsAsk>,
        question: &Bytes,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Later> {
        self.flush_pack(up, shared)?;
        let mut payload = preamble(Form::Transaction, Protocol::Resp2, 0).to_vec();
        write_command(&mut payload, &["CLIENT", "INFO"]);
        payload.extend_from_slice(question);
        let bytes = payload.len();
        let how = Submit::Bypass { read_only: true };
        let submitted = self.submit(&payload.into(), 0, how, self.times.begun(), up, shared)?;
        if submitted.is_ok() {
            self.hold.for_outcome();
        }
        self.expect(submitted, Purpose::ClientsWhich(ask), bytes);
        Ok(())
    }

    /// The store has accepted or refused the conditions. Returns the request to carry out, or the reply to the client.
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
                let Some(on) = on_or_off(arguments) else {
                    return reply::error(SYNTAX);
                };
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
            "CLIENT|NO-TOUCH" => match on_or_off(arguments) {
                Some(on) => {
                    self.settings.no_touch = on;
                    OK
                }
                None => reply::error(SYNTAX),
            },
            "CLIENT|SETINFO" => self.settings.set_info(arguments),
            // Those that a server does not know it ignores.
            "CLIENT|CAPA" => {
                self.settings.redirects |=
                    (2..arguments.len()).any(|at| arguments.is(at, "REDIRECT"));
                OK
            }
            _ => refusal(arguments, STATE),
        }
    }

    /// CLIENT REPLY.
    fn client_reply(&mut self, arguments: &Arguments<'_>) -> Bytes {
        if arguments.is(2, "ON") {
            self.settings.silent = false;
            self.skip = Skip::No;
            self.replies.mute(Muted::No);
            return OK;
        }
        if arguments.is(2, "OFF") {
            self.settings.silent = true;
            self.skip = Skip::No;
            self.replies.mute(Muted::Yes);
        } else if !arguments.is(2, "SKIP") {
            return reply::error(SYNTAX);
        } else if !self.settings.silent {
            self.skip = Skip::Next;
            self.replies.mute(Muted::Yes);
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
            self.replies.mute(Muted::No);
            self.skip = Skip::No;
        }
        Ok(())
    }

    /// The next commands wait until the front has answered this.
    pub(super) fn wait_for_clients(&mut self, ask: ClientsAsk) {
        self.hold.for_outcome();
        self.clients_ask = Some(ask);
    }

    /// The front has answered.
    pub(crate) fn clients_told<U: Upstream>(
        &mut self,
        told: ClientsTold,
        error: bool,
        up: &mut U,
        shared: &mut Shared,
    ) {
        self.hold.release();
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
                match self.submit(&payload, 0, how, self.times.begun(), up, shared) {
                    Ok(Ok(call)) => {
                        let purpose = Purpose::Bypass {
                            replies: 1,
                            again: None,
                            plain: false,
                        };
                        self.replies.await_call_at(index, call, purpose, bytes);
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
        self.passing.blocked_as()
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
        self.rights.name()
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

    /// The value of this field in CLIENT LIST.
    pub(super) fn field(&self, field: &str, socket: ClientSocket, shared: &Shared) -> String {
        let now = shared.now;
        let tracker = shared.tracking.client(self.id);
        let [channels, patterns, sharded] = self.passing.subscribed();
        let seconds = |since: Time| (now.saturating_sub(since) / SECOND).to_string();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match field {
            "id" => self.id.to_string(),
            "addr" => self.peer.clone(),
            "laddr" => socket
                .local
                .map(|local| local.to_string())
                .unwrap_or_default(),
            "fd" => socket.fd.to_string(),
            "name" => text(&self.settings.name),
            "age" => seconds(self.life.begun(now)),
            "idle" => seconds(self.life.heard),
            "flags" => self.flags(tracker),
            "db" => self.settings.database.to_string(),
            "sub" => channels.to_string(),
            "psub" => patterns.to_string(),
            "ssub" => sharded.to_string(),
            "multi" => match &self.mode {
                Mode::Queueing(transaction) => transaction.count().to_string(),
                Mode::WatchingMulti { .. } => "0".to_owned(),
                _ => shared.no_multi.clone(),
            },
            "watch" => u8::from(self.watches_keys()).to_string(),
            "qbuf" => self.life.pending.to_string(),
            "omem" | "tot-mem" => self.replies.held().to_string(),
            "events" => if socket.writes { "rw" } else { "r" }.to_owned(),
            "cmd" => match self.life.command {
                Some(facts) => facts.name.to_ascii_lowercase(),
                None => "NULL".to_owned(),
            },
            "user" => text(self.rights.name()),
            "redir" => Tracker::shown_redirect(tracker).to_string(),
            "resp" => match self.settings.protocol {
                Protocol::Resp2 => "2".to_owned(),
                Protocol::Resp3 => "3".to_owned(),
            },
            "lib-name" => text(&self.settings.library.0),
            "lib-ver" => text(&self.settings.library.1),
            "capa" => if self.settings.redirects { "r" } else { "" }.to_owned(),
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
            ('T', self.settings.no_touch),
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

/// Whether it is a CLIENT SETINFO, which older stores do not know.
pub(super) fn is_set_info(arguments: &Arguments<'_>) -> bool {
    arguments.is(1, "SETINFO") && arguments.len() == 4
}

fn on_or_off(arguments: &Arguments<'_>) -> Option<bool> {
    let on = arguments.is(2, "ON");
    (on || arguments.is(2, "OFF")).then_some(on)
}

fn parse_unblock(arguments: &Arguments<'_>) -> Result<ClientsAsk, Bytes> {
    let error = arguments.len() == 4 && arguments.is(3, "ERROR");
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
