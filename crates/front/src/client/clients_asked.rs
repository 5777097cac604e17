//! Which of the front's clients CLIENT LIST and CLIENT KILL mean.
//!
//! Servers differ in the conditions that they know. All of them are understood here. The store itself says whether it knows one that Redis 7.0
//! does not have, and what is wrong with one that is not understood ([`Parsed::Asked`]).

use bytes::Bytes;
use pmnet_resp::{Arguments, parse_integer, write_command};

use super::Shared;
use super::client_command::{ClientKind, ClientSocket, ClientsAsk, Portrait};
use crate::upstream::Time;

/// An address that no client has.
const NOBODY: &str = "0.0.0.0:0";
/// Nanoseconds of a second.
const SECOND: Time = 1_000_000_000;

/// Clients for which all of this holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Which {
    conditions: Vec<Condition>,
    /// Not the one that asks.
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
    /// At least so old, in seconds; as long idle.
    Age(i64),
    Idle(i64),
    /// These flags, or capabilities, are among its own.
    Flags(Vec<u8>),
    Capabilities(Vec<u8>),
    /// A field of CLIENT LIST has this value.
    Field(&'static str, Vec<u8>),
    /// The same without a port.
    Ip(Vec<u8>),
}

/// The conditions as they were read.
pub(super) enum Parsed {
    /// Any store understands it.
    Plain(Which),
    /// The store has to be asked with this; it names no client. `None`: it is not understood here.
    Asked(Option<Which>, Bytes),
    /// The last condition has no value.
    Cut,
}

/// Reads the conditions of CLIENT LIST, or of CLIENT KILL.
pub(super) fn parse(arguments: &Arguments<'_>, kills: bool, shared: &Shared) -> Parsed {
    let mut which = Which {
        skips_me: kills,
        ..Which::default()
    };
    let mut plain = kills || arguments.len() <= 4 || arguments.is(2, "ID");
    let mut at = 2;
    while at < arguments.len() {
        if at + 1 == arguments.len() && kills {
            // The words that are added after it would become its value.
            return if !arguments.is(at, "ID") || names_address(arguments) {
                Parsed::Cut
            } else {
                Parsed::Asked(Some(which), question(arguments, Some(Nobody::First)))
            };
        }
        let Some((condition, next, usual)) = which.condition(arguments, at, kills) else {
            return Parsed::Asked(None, question(arguments, kills.then_some(Nobody::Last)));
        };
        // Only newer ones take several numbers where clients are killed, and several conditions where they are listed.
        plain &= usual && (kills || next == arguments.len());
        if let Some(Condition {
            what: What::Field("user", name),
            ..
        }) = &condition
        {
            // The store says that there is none.
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

/// Whether one of its words is that for an address of the store, with which another one would not count.
fn names_address(arguments: &Arguments<'_>) -> bool {
    (2..arguments.len()).any(|at| arguments.is(at, "LADDR") || arguments.is(at, "NOT-LADDR"))
}

/// Where a condition is put that none of the store's clients meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nobody {
    /// Before the others, none of which is of the same kind.
    First,
    /// After the others: there it is read as a condition, or is an error, after any other words.
    Last,
}

/// Returns the same command for the store. `nobody`: where a condition is added that no client of the store meets.
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
    /// The condition at `at`, where the next one is, and whether Redis 7.0 knows it; `None`: it is not understood.
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
                // The name of newer ones.
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

    /// Whether this client is one of them.
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

/// The request that is carried out if the store has no objection.
pub(super) fn ask(which: Which, kills: bool) -> ClientsAsk {
    if kills {
        ClientsAsk::Kill(which)
    } else {
        ClientsAsk::List(which)
    }
}
