//! How the router routes a command: by its keys, or by its name.

use bytes::Bytes;
use pmnet_resp::{Arguments, reply};

use super::client::Common;
use super::merge::Merge;
use super::slot::slot_of;
use crate::client::unknown_command;
use crate::table::{Facts, NEW, OPAQUE, STATE, Sub, Verdict, keys, named};

/// The router's treatment of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Sends the command to the shard of its keys, or to the first shard if the command has no keys.
    Keys,
    /// The router sends the command to the first shard.
    Home,
    /// Sends the command to all shards.
    All(Merge),
    /// Handles SCAN, whose cursor names a shard.
    Scan,
    /// Changes the state of the connection.
    State,
    /// The command CLIENT REPLY, which the router carries out itself.
    Reply,
    /// Changes subscriptions.
    Subscribe,
    /// The command PUBLISH, which goes to the shard of its channel.
    Publish,
    /// The command MULTI, which begins a transaction.
    Multi,
    /// The command EXEC, which ends a transaction.
    Exec,
    /// The command DISCARD, which ends a transaction.
    Discard,
    /// The command WATCH, which goes to the shard of its keys.
    Watch,
    /// The command UNWATCH, which ends the watch of all keys.
    Unwatch,
    /// The command QUIT, which ends the connection.
    Quit,
    /// The command CLUSTER, which the router answers itself.
    Cluster,
    /// Answers the command with this reply.
    Own(Bytes),
}

/// The destination of a command, by its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The command has no keys.
    Anywhere,
    /// All keys are of this slot.
    Slot(u16),
    /// The keys are of several slots.
    Cross,
}

/// Returns the place for these keys.
pub(super) fn place<'a>(keys: impl IntoIterator<Item = &'a [u8]>) -> Place {
    let mut slots = keys.into_iter().map(slot_of);
    let Some(first) = slots.next() else {
        return Place::Anywhere;
    };
    if slots.all(|slot| slot == first) {
        Place::Slot(first)
    } else {
        Place::Cross
    }
}

/// Returns the place for a command's keys. The channel of PUBLISH counts as a key.
fn place_of(verdict: &Verdict, arguments: &Arguments<'_>) -> Place {
    if !verdict.arity_fits(arguments) {
        return Place::Anywhere;
    }
    if verdict.facts.is_some_and(|facts| facts.name == "PUBLISH") {
        return place([arguments.get(1)]);
    }
    place(keys(verdict, arguments))
}

/// A complete command of a client.
pub(super) struct Command<'a> {
    pub(super) arguments: &'a Arguments<'a>,
    /// The command's bytes.
    pub(super) frame: &'a [u8],
    pub(super) verdict: Verdict,
    pub(super) common: &'a Common,
}

impl Command<'_> {
    /// Returns the place for the command's keys.
    pub(super) fn place(&self) -> Place {
        place_of(&self.verdict, self.arguments)
    }

    /// Returns the shard that serves a slot, or the error for commands whose keys are in the slot.
    pub(super) fn server_of(&self, slot: u16) -> Result<usize, Bytes> {
        match self.common.map.shard(slot) {
            None => Err(CLUSTERDOWN),
            Some(_) if self.common.map.is_moving(slot) => Err(TRYAGAIN),
            Some(shard) => Ok(shard),
        }
    }
}

/// Redis Cluster's error for keys of several slots (known gap G54).
pub(super) const CROSSSLOT: Bytes =
    Bytes::from_static(b"-CROSSSLOT Keys in request don't hash to the same slot\r\n");
/// Redis Cluster's error for a slot that no shard serves.
pub(super) const CLUSTERDOWN: Bytes = Bytes::from_static(b"-CLUSTERDOWN Hash slot not served\r\n");
pub(super) const TRYAGAIN: Bytes = Bytes::from_static(
    b"-TRYAGAIN pmnet: the slot is being moved to another shard; the command was not executed\r\n",
);

/// Returns the router's treatment of a command.
pub(super) fn kind(verdict: &Verdict, arguments: &Arguments<'_>) -> Kind {
    let Some(facts) = verdict.facts else {
        // The store does not say where the keys of this command are, so the command could reach a wrong shard.
        return Kind::Own(unknown_command(arguments));
    };
    if !verdict.arity_fits(arguments) || matches!(verdict.sub, Sub::Unknown) {
        return Kind::Home;
    }
    if facts.has(NEW) {
        return new_kind(facts, arguments);
    }
    let sub = |words: &[&str]| words.iter().any(|word| arguments.is(1, word));
    match facts.name {
        "MULTI" => Kind::Multi,
        "EXEC" => Kind::Exec,
        "DISCARD" => Kind::Discard,
        "WATCH" => Kind::Watch,
        "UNWATCH" => Kind::Unwatch,
        "QUIT" => Kind::Quit,
        "CLUSTER" if sub(&["HELP"]) => Kind::Home,
        "CLUSTER" => Kind::Cluster,
        "AUTH" | "RESET" => Kind::State,
        "HELLO" if arguments.len() > 1 => Kind::State,
        "CLIENT" => client(arguments),
        "SUBSCRIBE" | "UNSUBSCRIBE" | "PSUBSCRIBE" | "PUNSUBSCRIBE" | "SSUBSCRIBE"
        | "SUNSUBSCRIBE" => Kind::Subscribe,
        "PUBLISH" => Kind::Publish,
        "SELECT" if arguments.get(1) == b"0" => Kind::Home,
        "SELECT" if pmnet_resp::parse_integer(arguments.get(1)).is_none() => Kind::Home,
        "SELECT" => own("ERR SELECT is not allowed in cluster mode"),
        "MOVE" => own("ERR MOVE is not allowed in cluster mode"),
        "SWAPDB" => own("ERR SWAPDB is not allowed in cluster mode"),
        "COPY" if copies_elsewhere(arguments) => {
            own("ERR Copying to another database is not allowed in cluster mode")
        }
        "SORT" | "SORT_RO" => {
            let options = crate::table::sort_options(arguments);
            if options.by {
                own("ERR BY option of SORT denied in Cluster mode.")
            } else if options.get {
                own("ERR GET option of SORT denied in Cluster mode.")
            } else {
                Kind::Keys
            }
        }
        "READONLY" | "READWRITE" | "ASKING" => Kind::Own(reply::OK),
        "SCAN" => Kind::Scan,
        "DBSIZE" => Kind::All(Merge::Sum),
        "KEYS" => Kind::All(Merge::Join),
        "RANDOMKEY" => Kind::All(Merge::Found(0)),
        "FLUSHALL" | "FLUSHDB" | "SAVE" | "BGSAVE" | "BGREWRITEAOF" => Kind::All(Merge::First),
        "SCRIPT" if sub(&["EXISTS"]) => Kind::All(Merge::Smallest),
        "SCRIPT" | "FUNCTION" if sub(&["KILL"]) => Kind::All(Merge::Any),
        "SCRIPT" if sub(&["LOAD", "FLUSH"]) => Kind::All(Merge::First),
        "FUNCTION" if sub(&["LOAD", "DELETE", "FLUSH", "RESTORE"]) => Kind::All(Merge::First),
        "CONFIG" if sub(&["SET", "RESETSTAT", "REWRITE"]) => Kind::All(Merge::First),
        "ACL" if sub(&["SETUSER", "DELUSER", "LOAD", "SAVE"]) => Kind::All(Merge::First),
        "ACL" if sub(&["LOG"]) && arguments.is(2, "RESET") => Kind::All(Merge::First),
        "LATENCY" | "SLOWLOG" if sub(&["RESET"]) => Kind::All(Merge::First),
        "MEMORY" if sub(&["PURGE"]) => Kind::All(Merge::First),
        "MODULE" if sub(&["LOAD", "LOADEX", "UNLOAD"]) => Kind::All(Merge::First),
        "PUBSUB" if sub(&["CHANNELS", "SHARDCHANNELS"]) => Kind::All(Merge::Join),
        "PUBSUB" if sub(&["NUMSUB", "SHARDNUMSUB"]) => Kind::All(Merge::SumNumbers),
        "MONITOR" => own(
            "ERR pmnet: MONITOR shows one store, and there are many here: connect to the Redis of a shard, or to its own front",
        ),
        "WAIT" => own(
            "ERR pmnet: WAIT counts the replicas of one store, and there are many here: connect to the front of a shard",
        ),
        _ => Kind::Keys,
    }
}

/// Returns the treatment of a command that the router knows only from a store. The keys of the command choose the
/// shard. A command without keys is refused, because it would reach one shard only. A command that keeps state in its
/// connection is refused, because there is one connection for each shard.
fn new_kind(facts: &Facts, arguments: &Arguments<'_>) -> Kind {
    if !facts.names_keys() || facts.has(OPAQUE) {
        return own(
            "ERR pmnet: the store does not say where the keys of this command are, so it is not known for which of the shards it \
             is: send it to the front of a shard",
        );
    }
    if facts.has(STATE) {
        return own(
            "ERR pmnet: it keeps state in its connection, and this front has one for each shard: send it to the front of a shard",
        );
    }
    if named(facts, arguments).is_none() {
        return Kind::Home;
    }
    Kind::Keys
}

fn client(arguments: &Arguments<'_>) -> Kind {
    let is = |word| arguments.is(1, word);
    let has = |words: &[&str]| {
        (2..arguments.len()).any(|at| words.iter().any(|word| arguments.is(at, word)))
    };
    if is("REPLY") {
        Kind::Reply
    } else if is("SETNAME") {
        Kind::State
    } else if is("UNBLOCK") {
        Kind::All(Merge::Largest)
    } else if is("PAUSE") || is("UNPAUSE") {
        Kind::All(Merge::First)
    } else if is("CACHING") || (is("TRACKING") && has(&["OPTIN", "OPTOUT"])) {
        own(
            "ERR pmnet: CLIENT CACHING, OPTIN and OPTOUT are not possible here: they are about the next command, and that may \
             be of another shard; leave OPTIN or OPTOUT away",
        )
    } else if is("TRACKING") && has(&["REDIRECT"]) {
        own(
            "ERR pmnet: CLIENT TRACKING with REDIRECT is not possible here: use RESP3 (HELLO 3), where it is not needed",
        )
    } else if is("TRACKING") {
        Kind::State
    } else {
        Kind::Home
    }
}

/// Whether COPY names another database than 0.
fn copies_elsewhere(arguments: &Arguments<'_>) -> bool {
    let names = |at: usize| arguments.is(at, "DB") && at + 1 < arguments.len();
    let number = |at: usize| pmnet_resp::parse_integer(arguments.get(at + 1));
    (3..arguments.len())
        .filter(|at| names(*at))
        .filter_map(number)
        .any(|database| (1..16).contains(&database))
}

fn own(text: &str) -> Kind {
    Kind::Own(reply::error(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::REQUESTS;
    use crate::table::{FACTS, SUBCOMMANDS, Table};
    use pmnet_resp::{Parser, Status};

    fn with<T>(words: &[&str], look: impl FnOnce(&Verdict, &Arguments<'_>) -> T) -> T {
        let mut frame = Vec::new();
        pmnet_resp::write_command(&mut frame, words);
        let mut parser = Parser::new(REQUESTS);
        assert!(matches!(parser.poll(&frame), Ok(Status::Complete)));
        let arguments = parser.arguments(&frame);
        let table = Table::new::<String>(&[]).unwrap();
        look(&table.verdict(&arguments), &arguments)
    }

    fn kind_of(words: &str) -> Kind {
        let words: Vec<&str> = words.split(' ').collect();
        with(&words, kind)
    }

    #[test]
    fn keys_of_one_slot_have_a_place() {
        let place = |words: &str| {
            let words: Vec<&str> = words.split(' ').collect();
            with(&words, place_of)
        };
        assert_eq!(place("GET foo"), Place::Slot(12182));
        assert_eq!(place("MSET {foo}1 a {foo}2 b"), Place::Slot(12182));
        assert_eq!(place("MSET foo a bar b"), Place::Cross);
        assert_eq!(place("PUBLISH foo x"), Place::Slot(12182));
        assert_eq!(place("PING"), Place::Anywhere);
        assert_eq!(place("GET foo bar"), Place::Anywhere);
        assert_eq!(place("EVAL x 0"), Place::Anywhere);
    }

    #[test]
    fn what_has_no_meaning_for_many_shards_says_so() {
        for words in [
            "SELECT 1",
            "MOVE a 1",
            "SWAPDB 0 1",
            "COPY a b DB 1",
            "SORT a BY w_*",
            "SORT a GET #",
            "MONITOR",
            "WAIT 1 0",
            "NOSUCH a",
            "CLIENT CACHING YES",
            "CLIENT TRACKING ON OPTIN",
            "CLIENT TRACKING ON REDIRECT 5",
        ] {
            assert!(
                matches!(kind_of(words), Kind::Own(error) if error.starts_with(b"-ERR ")),
                "{words}"
            );
        }
        for words in [
            "SORT a BY nosort LIMIT 0 1",
            "COPY a b REPLACE",
            "GET a",
            "EVAL x 0",
        ] {
            assert_eq!(kind_of(words), Kind::Keys, "{words}");
        }
        for words in ["SELECT 0", "SELECT x", "MULTI x", "AUTH", "CONFIG NOSUCH"] {
            assert_eq!(kind_of(words), Kind::Home, "{words}");
        }
    }

    /// A command that writes without keys must reach all shards, or be refused.
    #[test]
    fn a_write_without_keys_is_not_for_one_shard_alone() {
        use crate::table::WRITE;
        for facts in FACTS.iter().chain(SUBCOMMANDS) {
            let movable = facts.has(crate::table::MOVABLEKEYS);
            if !facts.has(WRITE) || facts.first_key != 0 || movable {
                continue;
            }
            let mut words: Vec<&str> = facts.name.split('|').collect();
            let count = usize::try_from(facts.arity.unsigned_abs()).unwrap();
            words.resize(count.max(words.len()), "x");
            let found = with(&words, kind);
            assert!(
                matches!(found, Kind::All(_) | Kind::Own(_)),
                "{}: {found:?}",
                facts.name
            );
        }
    }
}
