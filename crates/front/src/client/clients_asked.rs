//! The conditions by which a CLIENT LIST or CLIENT KILL selects some of the front's clients.
//!
//! Server versions differ in the conditions that they know. The front knows the conditions of all versions
//! that it supports. If a condition is newer than Redis 7.0, or is unknown to the front, the store is asked,
//! and its answer is the reply to a wrong condition ([`Parsed::Asked`]).

use bytes::Bytes;
use pmnet_resp::{Arguments, parse_integer, write_command};

use super::Shared;
use super::client_command::{ClientKind, ClientSocket, ClientsAsk, Portrait};
use crate::upstream::Time;

/// An address that no client has.
const NOBODY: &str = "0.0.0.0:0";
/// Nanoseconds of a second.
const SECOND: Time = 1_000_000_000;

/// Selects the clients that meet all these conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Which {
    conditions: Vec<Condition>,
    /// Whether the client that asks is left out.
    pub(crate) skips_me: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Condition {
    negated: bool,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Ids(Vec<i64>),
    Kind(ClientKind),
    /// The client connected at least this many seconds ago. `Idle`: the client has been idle for at least this many
    /// seconds.
    Age(i64),
    Idle(i64),
    /// The client has all these flags, or capabilities.
    Flags(Vec<u8>),
    Capabilities(Vec<u8>),
    /// A field of CLIENT LIST has this value.
    Field(&'static str, Vec<u8>),
    /// The client's address without the port.
    Ip(Vec<u8>),
}

/// Parsed conditions.
pub(super) enum Parsed {
    /// Every store understands these conditions.
    Plain(Which),
    /// The store must be asked with this command, which matches none of the store's clients. `None`: the
    /// front does not understand the conditions.
    Asked(Option<Which>, Bytes),
    /// The last condition has no value.
    Cut,
}

/// Parses the conditions of CLIENT LIST or CLIENT KILL.
pub(super) fn parse(arguments: &Arguments<'_>, kills: bool, shared: &Shared) -> Parsed {
    let mut which = Which {
        skips_me: kills,
        ..Which::default()
    };
    let mut plain = kills || arguments.len() <= 4 || arguments.is(2, "ID");
    let mut at = 2;
    while at < arguments.len() {
        if at + 1 == arguments.len() && kills {
            // Otherwise the added condition would be read as the value of the last condition.
            return if !arguments.is(at, "ID") || names_address(arguments) {
                Parsed::Cut
            } else {
                Parsed::Asked(Some(which), question(arguments, Some(Nobody::First)))
            };
        }
        let Some((condition, next, usual)) = which.condition(arguments, at, kills) else {
            return Parsed::Asked(None, question(arguments, kills.then_some(Nobody::Last)));
        };
        // Only newer versions accept several numbers in CLIENT KILL, or several conditions in CLIENT LIST.
        plain &= usual && (kills || next == arguments.len());
        if let Some(Condition {
            what: What::Field("user", name),
            ..
        }) = &condition
        {
            // If the front does not know the user, the store's error is the reply.
            plain &= shared.users.has(name);
        }
        which.conditions.extend(condition);
        at = next;
    }
    if plain {
        Parsed::Plain(which)
    } else {
        Parsed::Asked(
            Some(which),
            question(arguments, kills.then_some(Nobody::Last)),
        )
    }
}

/// Whether the command has a condition on a local address. A second condition on a local address would have no effect.
fn names_address(arguments: &Arguments<'_>) -> bool {
    (2..arguments.len()).any(|at| arguments.is(at, "LADDR") || arguments.is(at, "NOT-LADDR"))
}

/// The place at which a condition that no client of the store meets is added to the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nobody {
    /// Before the other conditions, none of which is of the same kind.
    First,
    /// After the other conditions. At this place the added condition always counts as a condition, or is an error.
    Last,
}

/// Returns the command as a question to the store. `nobody`: place of a condition that is added and that no client of
/// the store meets; `None`: no condition is added.
fn question(arguments: &Arguments<'_>, nobody: Option<Nobody>) -> Bytes {
    let mut words: Vec<&[u8]> = arguments.iter().collect();
    if let Some(nobody) = nobody {
        let place = match nobody {
            Nobody::First => 2,
            Nobody::Last => words.len(),
        };
        words.splice(place..place, [&b"LADDR"[..], NOBODY.as_bytes()]);
    }
    let mut frame = Vec::new();
    write_command(&mut frame, &words);
    Bytes::from(frame)
}

impl Which {
    /// Returns the condition at position `at`, the position of the next condition, and whether Redis 7.0
    /// knows this condition. `None`: the condition is not understood.
    fn condition(
        &mut self,
        arguments: &Arguments<'_>,
        at: usize,
        kills: bool,
    ) -> Option<(Option<Condition>, usize, bool)> {
        let name = arguments.get(at).to_ascii_uppercase();
        let (negated, name) = match name.strip_prefix(b"NOT-") {
            Some(rest) => (true, rest),
            None => (false, &name[..]),
        };
        let value = (at + 1 < arguments.len()).then(|| arguments.get(at + 1))?;
        let (usual, mut next) = (!negated, at + 2);
        let field = |field| Some((What::Field(field, value.to_vec()), false));
        let (what, known) = match name {
            b"ID" => {
                let mut ids = vec![parse_integer(value).filter(|id| *id > 0 || !kills)?];
                while next < arguments.len()
                    && let Some(id) = parse_integer(arguments.get(next))
                {
                    ids.push(id);
                    next += 1;
                }
                let one = ids.len() == 1;
                (What::Ids(ids), one || !kills)
            }
            b"TYPE" => (
                What::Kind(ClientKind::parse(value)?),
                // Newer versions use this name for a master.
                !value.eq_ignore_ascii_case(b"primary"),
            ),
            b"SKIPME" if !negated => {
                let yes = value.eq_ignore_ascii_case(b"YES");
                if !yes && !value.eq_ignore_ascii_case(b"NO") {
                    return None;
                }
                self.skips_me = yes;
                return Some((None, next, kills));
            }
            b"ADDR" => (What::Field("addr", value.to_vec()), kills),
            b"LADDR" => (What::Field("laddr", value.to_vec()), kills),
            b"USER" => (What::Field("user", value.to_vec()), kills),
            b"MAXAGE" => (What::Age(parse_integer(value)?), false),
            b"IDLE" => (What::Idle(parse_integer(value)?), false),
            b"FLAGS" => (What::Flags(value.to_vec()), false),
            b"CAPA" => (What::Capabilities(value.to_vec()), false),
            b"IP" => (What::Ip(value.to_vec()), false),
            b"NAME" => field("name")?,
            b"LIB-NAME" => field("lib-name")?,
            b"LIB-VER" => field("lib-ver")?,
            b"DB" => field("db")?,
            _ => return None,
        };
        Some((Some(Condition { negated, what }), next, known && usual))
    }

    /// Whether this client meets all the conditions.
    pub(crate) fn has(&self, client: &Portrait<'_>, socket: ClientSocket, shared: &Shared) -> bool {
        let mut conditions = self.conditions.iter();
        conditions
            .all(|condition| condition.what.holds(client, socket, shared) != condition.negated)
    }
}

impl What {
    fn holds(&self, client: &Portrait<'_>, socket: ClientSocket, shared: &Shared) -> bool {
        let is = |name: &str| client.field(name, socket, shared);
        let seconds = |since: Time| i64::try_from(shared.now.saturating_sub(since) / SECOND);
        let at_least = |since: Time, least: i64| seconds(since).is_ok_and(|time| time >= least);
        match self {
            What::Ids(ids) => ids.contains(&client.id()),
            What::Kind(kind) => *kind == client.kind(),
            What::Age(least) => at_least(client.life.begun(shared.now), *least),
            What::Idle(least) => at_least(client.life.heard(), *least),
            What::Flags(flags) => all_in(flags, is("flags").as_bytes()),
            What::Capabilities(all) => all_in(all, is("capa").as_bytes()),
            What::Field("user", name) => client.user == name,
            What::Field(name, value) => is(name).as_bytes() == value,
            What::Ip(ip) => {
                let address = is("addr");
                let own = address.rsplit_once(':').map_or("", |(own, _)| own);
                own.trim_matches(['[', ']']).as_bytes() == ip
            }
        }
    }
}

fn all_in(wanted: &[u8], own: &[u8]) -> bool {
    wanted.iter().all(|letter| own.contains(letter))
}

/// Returns the request that is carried out if the store accepts its conditions.
pub(super) fn ask(which: Which, kills: bool) -> ClientsAsk {
    if kills {
        ClientsAsk::Kill(which)
    } else {
        ClientsAsk::List(which)
    }
}
