//! Settings and rights of Redis that early acknowledgements need, and the changes of them that clients may make through
//! pmnet.
//!
//! A front acknowledges a command before Redis has received it. So no client may change Redis such that it refuses,
//! drops or undoes acknowledged commands, or locks pmnet out. Only the operator may make such changes, directly at
//! Redis. The store's adaptor checks the same settings whenever it connects.

use crate::MESSAGE_BYTES_MAX;
use crate::promise::RECORDS_PREFIX;

/// Smallest allowed `proto-max-bulk-len`, in bytes: twice the largest message, because pmnet stores its records
/// together with the message.
pub const BULK_BYTES_MIN: u64 = 2 * MESSAGE_BYTES_MAX as u64;
/// Smallest allowed `client-query-buffer-limit`, in bytes. Redis applies the limit to a whole transaction, here with
/// the largest message and pmnet's records.
pub const QUERY_BYTES_MIN: u64 = 4 * MESSAGE_BYTES_MAX as u64;
/// Smallest allowed limit of `client-output-buffer-limit normal`, in bytes, if there is a limit. One reply contains all
/// of pmnet's records.
pub const OUTPUT_BYTES_MIN: u64 = 16 * MESSAGE_BYTES_MAX as u64;
/// Smallest allowed `maxclients`: enough for the server, and for some clients of a front that need their own
/// connections.
const CLIENTS_MIN: u64 = 100;
/// Maximum number of digits of a number that is read. Longer numbers exceed every limit in this module.
const DIGITS_MAX: usize = 18;

/// Values that a client may give to a setting.
enum Allowed {
    Nothing,
    Word(&'static str),
    /// Only an amount of memory of 0, which means no limit.
    NoLimit,
    Bytes(u64),
    Number(u64),
    /// Limits of output buffers, one for each class of clients.
    Output,
}

const GUARDED: &[(&str, Allowed)] = &[
    // Redis must not evict keys.
    ("MAXMEMORY", Allowed::NoLimit),
    ("MAXMEMORY-POLICY", Allowed::Word("noeviction")),
    // Data must be on disk, in the file that Redis reads when it starts.
    ("APPENDONLY", Allowed::Word("yes")),
    ("APPENDFSYNC", Allowed::Word("always")),
    ("NO-APPENDFSYNC-ON-REWRITE", Allowed::Word("no")),
    ("DIR", Allowed::Nothing),
    ("DBFILENAME", Allowed::Nothing),
    ("APPENDFILENAME", Allowed::Nothing),
    ("APPENDDIRNAME", Allowed::Nothing),
    // Redis must not refuse acknowledged writes.
    ("PROTO-MAX-BULK-LEN", Allowed::Bytes(BULK_BYTES_MIN)),
    ("CLIENT-QUERY-BUFFER-LIMIT", Allowed::Bytes(QUERY_BYTES_MIN)),
    ("CLIENT-OUTPUT-BUFFER-LIMIT", Allowed::Output),
    ("MAXMEMORY-CLIENTS", Allowed::NoLimit),
    ("MIN-REPLICAS-TO-WRITE", Allowed::Word("0")),
    ("MIN-REPLICAS-MAX-LAG", Allowed::Word("0")),
    ("MIN-SLAVES-TO-WRITE", Allowed::Word("0")),
    ("MIN-SLAVES-MAX-LAG", Allowed::Word("0")),
    ("REPLICAOF", Allowed::Nothing),
    ("SLAVEOF", Allowed::Nothing),
    // Redis must let pmnet log in.
    ("REQUIREPASS", Allowed::Nothing),
    ("PORT", Allowed::Nothing),
    ("BIND", Allowed::Nothing),
    ("PROTECTED-MODE", Allowed::Word("no")),
    ("MAXCLIENTS", Allowed::Number(CLIENTS_MIN)),
    ("TLS-PORT", Allowed::Nothing),
    ("TLS-AUTH-CLIENTS", Allowed::Word("no")),
    ("TLS-CERT-FILE", Allowed::Nothing),
    ("TLS-KEY-FILE", Allowed::Nothing),
    ("TLS-KEY-FILE-PASS", Allowed::Nothing),
    ("TLS-CA-CERT-FILE", Allowed::Nothing),
    ("TLS-CA-CERT-DIR", Allowed::Nothing),
    ("TLS-DH-PARAMS-FILE", Allowed::Nothing),
    ("TLS-PROTOCOLS", Allowed::Nothing),
    ("TLS-CIPHERS", Allowed::Nothing),
    ("TLS-CIPHERSUITES", Allowed::Nothing),
    // Redis must accept writes even after a failed snapshot.
    ("STOP-WRITES-ON-BGSAVE-ERROR", Allowed::Word("no")),
];

/// The setting, in capitals, that matters only if `maxmemory` is not 0.
const EVICTION: &str = "MAXMEMORY-POLICY";

/// Returns whether this command is a `CONFIG SET` that could make Redis evict keys if it had a memory limit.
pub fn sets_eviction<'a>(count: usize, argument: impl Fn(usize) -> &'a [u8]) -> bool {
    settings(count, argument).any(|(name, _)| name == EVICTION)
}

/// Returns the guarded setting, in capitals, to which this `CONFIG SET` gives a value with which acknowledged writes
/// could be lost. `unlimited`: Redis has no memory limit, so its eviction policy does not matter.
pub fn sets_guarded<'a>(
    count: usize,
    argument: impl Fn(usize) -> &'a [u8],
    unlimited: bool,
) -> Option<&'static str> {
    settings(count, argument)
        .find(|(name, value)| {
            let rule = GUARDED.iter().find(|(guarded, _)| guarded == name);
            rule.is_some_and(|(_, allowed)| !allowed.allows(value))
                && !(unlimited && *name == EVICTION)
        })
        .map(|(name, _)| name)
}

/// Returns the guarded settings of a `CONFIG SET`, in capitals, with their values.
fn settings<'a>(
    count: usize,
    argument: impl Fn(usize) -> &'a [u8],
) -> impl Iterator<Item = (&'static str, &'a [u8])> {
    let is = |index: usize, word: &str| argument(index).eq_ignore_ascii_case(word.as_bytes());
    let sets = count >= 4 && is(0, "CONFIG") && is(1, "SET");
    // Redis refuses a name without a value.
    let end = if sets { count - 1 } else { 0 };
    (2..end).step_by(2).filter_map(move |at| {
        let is = |word: &str| argument(at).eq_ignore_ascii_case(word.as_bytes());
        let (name, _) = GUARDED.iter().find(|(name, _)| is(name))?;
        Some((*name, argument(at + 1)))
    })
}

/// Commands that keep state in their connection, although Redis's own description of them (COMMAND) does not say so.
const STATEFUL: [&str; 1] = ["HIMPORT"];

/// Commands that write without naming a key, and change only indexes. Some forms of these commands can do more
/// ([`reaches_records`]).
const SPARING: [&str; 18] = [
    "FT.ALIASADD",
    "FT._ALIASADDIFNX",
    "FT.ALIASDEL",
    "FT._ALIASDELIFX",
    "FT.ALIASUPDATE",
    "FT.ALTER",
    "FT._ALTERIFNX",
    "FT.CREATE",
    "FT._CREATEIFNX",
    "FT.DICTADD",
    "FT.DICTDEL",
    "FT.DROP",
    "FT._DROPIFX",
    "FT.DROPINDEX",
    "FT._DROPINDEXIFX",
    "FT.SYNADD",
    "FT.SYNFORCEUPDATE",
    "FT.SYNUPDATE",
];

/// Reason why a command that writes without naming a key is refused.
pub const UNNAMED_KEYS: &str = "it changes keys that it does not name, and pmnet's own records may be among them: send it to the Redis server itself";
/// Reason why a command that keeps state in its connection is refused on a shared connection.
pub const OWN_CONNECTION: &str = "it keeps state in its connection, and this connection is shared";

/// Returns whether this command (in capitals) keeps state in its connection, although Redis's own description of it
/// does not say so.
#[must_use]
pub fn keeps_state(name: &[u8]) -> bool {
    STATEFUL.iter().any(|known| known.as_bytes() == name)
}

/// Returns whether this command (in capitals) changes no keys, although it writes without naming a key.
#[must_use]
pub fn spares_keys(name: &[u8]) -> bool {
    SPARING.iter().any(|known| known.as_bytes() == name)
}

/// Subcommands of `CLUSTER` in newer servers that remove keys by their slots, or move them away.
const OF_SLOTS: [&str; 5] = [
    "FLUSHSLOT",
    "MIGRATESLOTS",
    "MIGRATION",
    "SYNCSLOTS",
    "CANCELSLOTMIGRATIONS",
];

/// Returns the reason why this command, of a module or of a newer server, could show or remove pmnet's own keys without
/// naming them, or `None`.
pub fn reaches_records<'a>(
    count: usize,
    argument: impl Fn(usize) -> &'a [u8],
) -> Option<&'static str> {
    let is = |index: usize, word: &str| {
        index < count && argument(index).eq_ignore_ascii_case(word.as_bytes())
    };
    let has = |word: &str| (2..count).any(|index| is(index, word));
    let drops = is(0, "FT.DROPINDEX") || is(0, "FT._DROPINDEXIFX");
    if drops && has("DD") {
        return Some(
            "with DD it removes all keys of the index, and pmnet's records may be among them: leave DD out, and remove the keys by SCAN",
        );
    }
    if (is(0, "FT.DROP") || is(0, "FT._DROPIFX")) && !has("KEEPDOCS") {
        return Some("it removes all keys of the index: use FT.DROPINDEX without DD");
    }
    let creates = is(0, "FT.CREATE") || is(0, "FT._CREATEIFNX");
    if creates && !leaves_records_out(count, &argument) {
        return Some(
            "the index would have pmnet's records in it: give it a PREFIX that they do not begin with (pmnet:{), or ON JSON",
        );
    }
    if is(0, "TRIMSLOTS") || (is(0, "CLUSTER") && OF_SLOTS.iter().any(|word| is(1, word))) {
        return Some(
            "it removes or moves keys by their slots, pmnet's records among them: do that at the server itself",
        );
    }
    None
}

/// Returns whether the index that this FT.CREATE makes leaves out all hashes of pmnet.
fn leaves_records_out<'a>(count: usize, argument: &impl Fn(usize) -> &'a [u8]) -> bool {
    let is = |index: usize, word: &str| argument(index).eq_ignore_ascii_case(word.as_bytes());
    let mut at = 2;
    while at + 1 < count && !is(at, "SCHEMA") {
        if is(at, "ON") && is(at + 1, "JSON") {
            return true;
        }
        if is(at, "PREFIX") {
            let number = std::str::from_utf8(argument(at + 1)).ok();
            let number = number.and_then(|number| number.parse::<usize>().ok());
            let prefixes = number.filter(|number| *number > 0 && *number < count - at - 1);
            return prefixes.is_some_and(|number| {
                (at + 2..at + 2 + number).all(|index| {
                    let prefix = argument(index);
                    !RECORDS_PREFIX.starts_with(prefix) && !prefix.starts_with(RECORDS_PREFIX)
                })
            });
        }
        at += 1;
    }
    false
}

/// Returns whether this command is an `ACL` that could take away pmnet's own rights in Redis: it names `own_user`, or
/// loads all users again. `None`: the user is unknown, so any named user counts.
pub fn changes_access<'a>(
    count: usize,
    argument: impl Fn(usize) -> &'a [u8],
    own_user: Option<&[u8]>,
) -> bool {
    let is = |index: usize, word: &str| argument(index).eq_ignore_ascii_case(word.as_bytes());
    let own = |index: usize| own_user.is_none_or(|own| own == argument(index));
    if count < 2 || !is(0, "ACL") {
        return false;
    }
    is(1, "LOAD")
        || (is(1, "SETUSER") && count > 2 && own(2))
        || (is(1, "DELUSER") && (2..count).any(own))
}

impl Allowed {
    fn allows(&self, value: &[u8]) -> bool {
        match self {
            Allowed::Nothing => false,
            Allowed::Word(word) => value.eq_ignore_ascii_case(word.as_bytes()),
            Allowed::NoLimit => memory(value) == Some(0),
            Allowed::Bytes(least) => memory(value).is_some_and(|bytes| bytes >= *least),
            Allowed::Number(least) => digits(value).is_some_and(|number| number >= *least),
            Allowed::Output => output_limit(value).is_some_and(|least| least >= OUTPUT_BYTES_MIN),
        }
    }
}

/// Returns the lower of the limits (in bytes) that a value of `client-output-buffer-limit` sets for ordinary clients;
/// `u64::MAX`: it sets no limit. `None`: the value cannot be read.
#[must_use]
pub fn output_limit(value: &[u8]) -> Option<u64> {
    let words: Vec<&[u8]> = value
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
        .collect();
    let mut least = u64::MAX;
    for class in words.chunks(4) {
        let [name, hard, soft, _seconds] = class else {
            return None;
        };
        let ordinary = name.eq_ignore_ascii_case(b"normal");
        for limit in [hard, soft] {
            match memory(limit)? {
                // 0 means no limit.
                0 => {}
                limit if ordinary => least = least.min(limit),
                _ => {}
            }
        }
    }
    Some(least)
}

/// Returns an amount of memory in one of Redis's forms: 100, 64k, 64kb, 1m, 1mb, 1g, 1gb.
#[must_use]
pub fn memory(text: &[u8]) -> Option<u64> {
    let end = text
        .iter()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit: u64 = match unit.to_ascii_lowercase().as_slice() {
        b"" | b"b" => 1,
        b"k" => 1000,
        b"kb" => 1 << 10,
        b"m" => 1_000_000,
        b"mb" => 1 << 20,
        b"g" => 1_000_000_000,
        b"gb" => 1 << 30,
        _ => return None,
    };
    digits(number)?.checked_mul(unit)
}

fn digits(text: &[u8]) -> Option<u64> {
    let plain = (1..=DIGITS_MAX).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text)
        .ok()
        .filter(|_| plain)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<&[u8]> {
        // Words in quotes form one argument.
        line.split('"')
            .enumerate()
            .flat_map(|(part, text)| {
                let quoted = part % 2 == 1;
                let words: Vec<&str> = if quoted {
                    vec![text]
                } else {
                    text.split_whitespace().collect()
                };
                words.into_iter().map(str::as_bytes)
            })
            .collect()
    }

    fn refused(line: &str, unlimited: bool) -> Option<&'static str> {
        let words = words(line);
        sets_guarded(words.len(), |index| words[index], unlimited)
    }

    fn guarded(line: &str) -> bool {
        refused(line, false).is_some()
    }

    #[test]
    fn eviction_does_not_matter_where_memory_has_no_limit() {
        let policy = "CONFIG SET Maxmemory-Policy allkeys-lru";
        assert_eq!(refused(policy, false), Some("MAXMEMORY-POLICY"));
        assert_eq!(refused(policy, true), None);
        for (line, name) in [
            (
                "CONFIG SET maxmemory-policy allkeys-lru port 0",
                Some("PORT"),
            ),
            (
                "CONFIG SET maxmemory 1mb maxmemory-policy allkeys-lru",
                Some("MAXMEMORY"),
            ),
            ("CONFIG SET maxmemory 0 maxmemory-policy allkeys-lru", None),
        ] {
            assert_eq!(refused(line, true), name, "{line}");
        }
        for (line, sets) in [
            (policy, true),
            ("CONFIG SET hz 10 maxmemory-policy noeviction", true),
            ("CONFIG SET maxmemory 1mb", false),
            ("CONFIG SET hz maxmemory-policy", false),
            ("CONFIG GET maxmemory-policy x", false),
        ] {
            let words = words(line);
            assert_eq!(
                sets_eviction(words.len(), |index| words[index]),
                sets,
                "{line}"
            );
        }
    }

    #[test]
    fn what_promises_rest_on_cannot_be_weakened() {
        for line in [
            "CONFIG SET maxmemory 1mb",
            "CONFIG SET maxmemory-policy allkeys-lru",
            "config set AppendOnly no",
            "CONFIG SET appendfsync everysec",
            "CONFIG SET no-appendfsync-on-rewrite yes",
            "CONFIG SET dir /tmp",
            "CONFIG SET dbfilename x",
            "CONFIG SET proto-max-bulk-len 1mb",
            "CONFIG SET proto-max-bulk-len 33554431",
            "CONFIG SET proto-max-bulk-len 33m",
            "CONFIG SET proto-max-bulk-len many",
            "CONFIG SET client-query-buffer-limit 32mb",
            "CONFIG SET client-query-buffer-limit 67108863",
            "CONFIG SET client-output-buffer-limit \"normal 1mb 0 0\"",
            "CONFIG SET client-output-buffer-limit \"normal 268435455 0 0\"",
            "CONFIG SET client-output-buffer-limit \"pubsub 1mb 0 0 NORMAL 0 1mb 1\"",
            "CONFIG SET client-output-buffer-limit \"normal 0 0\"",
            "CONFIG SET maxmemory-clients 5%",
            "CONFIG SET min-replicas-to-write 1",
            "CONFIG SET min-slaves-to-write 1",
            "CONFIG SET min-replicas-max-lag 1",
            "CONFIG SET requirepass x",
            "CONFIG SET requirepass \"\"",
            "CONFIG SET port 0",
            "CONFIG SET bind 10.0.0.1",
            "CONFIG SET protected-mode yes",
            "CONFIG SET maxclients 1",
            "CONFIG SET maxclients 99",
            "CONFIG SET replicaof \"10.0.0.1 6379\"",
            "CONFIG SET tls-port 0",
            "CONFIG SET tls-auth-clients yes",
            "CONFIG SET tls-ca-cert-file /dev/null",
            "CONFIG SET stop-writes-on-bgsave-error yes",
            "CONFIG SET hz 10 requirepass x",
            "CONFIG SET appendfsync always appendfsync no",
        ] {
            assert!(guarded(line), "{line}");
        }
    }

    #[test]
    fn what_breaks_nothing_is_allowed() {
        for line in [
            "CONFIG SET maxmemory 0",
            "CONFIG SET maxmemory-policy noeviction",
            "CONFIG SET appendonly yes",
            "CONFIG SET appendfsync ALWAYS",
            "CONFIG SET no-appendfsync-on-rewrite no",
            "CONFIG SET proto-max-bulk-len 32mb",
            "CONFIG SET proto-max-bulk-len 1GB",
            "CONFIG SET client-query-buffer-limit 1gb",
            "CONFIG SET client-query-buffer-limit 64mb",
            "CONFIG SET client-output-buffer-limit \"normal 0 0 0\"",
            "CONFIG SET client-output-buffer-limit \"normal 1gb 256mb 60 pubsub 1mb 1mb 1\"",
            "CONFIG SET client-output-buffer-limit \"replica 1mb 1mb 1\"",
            "CONFIG SET maxmemory-clients 0",
            "CONFIG SET min-replicas-to-write 0",
            "CONFIG SET protected-mode no",
            "CONFIG SET maxclients 10000",
            "CONFIG SET tls-auth-clients no",
            "CONFIG SET tls-replication no",
            "CONFIG SET stop-writes-on-bgsave-error no",
            "CONFIG SET maxclients 100",
            "CONFIG SET hz 10",
            // Here the value, not the setting, has the name of a guarded setting.
            "CONFIG SET proc-title-template requirepass",
            "CONFIG SET requirepass",
            "CONFIG SET hz 10 requirepass",
            "CONFIG GET requirepass",
            "CONFIG GET requirepass port",
            "CLIENT SET requirepass x",
            "CONFIG SET",
            "CONFIG",
            "SET config set",
        ] {
            assert!(!guarded(line), "{line}");
        }
    }

    #[test]
    fn an_amount_of_memory_is_that_of_redis() {
        for (text, bytes) in [
            ("0", 0),
            ("100", 100),
            ("7b", 7),
            ("64k", 64_000),
            ("64kb", 65_536),
            ("1m", 1_000_000),
            ("1MB", 1_048_576),
            ("1g", 1_000_000_000),
            ("2Gb", 2_147_483_648),
            ("999999999999999999", 999_999_999_999_999_999),
        ] {
            assert_eq!(memory(text.as_bytes()), Some(bytes), "{text}");
        }
        for text in [
            "",
            "k",
            "1kk",
            "1tb",
            "-1",
            " 1",
            "1 kb",
            "1000000000000000000",
            "999999999999999999gb",
        ] {
            assert_eq!(memory(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn the_lower_limit_of_ordinary_clients_counts() {
        for (text, least) in [
            ("normal 0 0 0", Some(u64::MAX)),
            ("normal 5 4 60", Some(4)),
            ("Normal 4 5 60", Some(4)),
            ("normal 0 7 0", Some(7)),
            ("replica 1 1 1 normal 9 0 0 pubsub 2 2 2", Some(9)),
            ("replica 1 1 1", Some(u64::MAX)),
            ("", Some(u64::MAX)),
            ("normal 1 1", None),
            ("normal 1 x 1", None),
        ] {
            assert_eq!(output_limit(text.as_bytes()), least, "{text}");
        }
    }

    #[test]
    fn a_number_has_digits_only() {
        assert_eq!(digits(b"15"), Some(15));
        for text in ["", "+15", "-15", " 15", "1_5", "0x1"] {
            assert_eq!(digits(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn pmnets_own_user_is_not_to_be_changed() {
        let changes = |line: &str, own: Option<&str>| {
            let words = words(line);
            changes_access(words.len(), |index| words[index], own.map(str::as_bytes))
        };
        for line in [
            "ACL SETUSER pm off",
            "acl setuser pm",
            "ACL DELUSER other pm",
            "ACL LOAD",
        ] {
            assert!(changes(line, Some("pm")) && changes(line, None), "{line}");
        }
        for line in [
            "ACL SETUSER PM off",
            "ACL SETUSER other pm",
            "ACL DELUSER other",
        ] {
            assert!(!changes(line, Some("pm")) && changes(line, None), "{line}");
        }
        for line in [
            "ACL WHOAMI",
            "ACL SAVE",
            "ACL LOG RESET",
            "ACL",
            "GET acl",
            "ACL SETUSER",
            "FUNCTION LOAD",
        ] {
            assert!(!changes(line, Some("pm")) && !changes(line, None), "{line}");
        }
    }

    #[test]
    fn what_servers_do_not_say_of_commands_is_known() {
        assert!(keeps_state(b"HIMPORT") && !keeps_state(b"HSET"));
        assert!(spares_keys(b"FT.CREATE") && spares_keys(b"FT._DROPINDEXIFX"));
        assert!(!spares_keys(b"FLUSHALL") && !spares_keys(b"FT.NEW"));
    }

    #[test]
    fn keys_that_a_command_does_not_name_are_safe_from_it() {
        let refused = |line: &str| {
            let words = words(line);
            reaches_records(words.len(), |index| words[index]).is_some()
        };
        for line in [
            "FT.DROPINDEX i DD",
            "ft.dropindex i dd",
            "FT._DROPINDEXIFX i DD",
            "FT.DROP i",
            "FT._DROPIFX i",
            "FT.CREATE i FILTER JSON SCHEMA t TEXT",
            "FT.CREATE i SCHEMA t TEXT",
            "FT.CREATE i ON HASH SCHEMA t TEXT",
            "FT.CREATE i PREFIX 1 \"\" SCHEMA t TEXT",
            "FT.CREATE i PREFIX 2 doc: p SCHEMA t TEXT",
            "FT.CREATE i PREFIX 1 pmnet:{0} SCHEMA t TEXT",
            "FT.CREATE i PREFIX 0 SCHEMA t TEXT",
            "FT.CREATE i PREFIX 99 a SCHEMA t TEXT",
            "FT.CREATE i PREFIX x a SCHEMA t TEXT",
            "FT.CREATE i SCHEMA t TEXT ON JSON",
            "FT._CREATEIFNX i SCHEMA t TEXT",
            "FT.CREATE",
            "CLUSTER FLUSHSLOT 7",
            "cluster migrateslots x",
            "CLUSTER MIGRATION IMPORT 0 5",
            "TRIMSLOTS RANGES 1 0 5",
        ] {
            assert!(refused(line), "{line}");
        }
        for line in [
            "FT.DROPINDEX i",
            "FT.DROPINDEX DD",
            "FT.DROP i KEEPDOCS",
            "FT.CREATE i ON JSON SCHEMA t TEXT",
            "FT.CREATE i ON HASH PREFIX 2 doc: pmnet:x SCHEMA t TEXT",
            "FT.SEARCH i *",
            "CLUSTER INFO",
            "CLUSTER",
            "DEL DD",
            "DEL k DD",
            "DEL FLUSHSLOT",
        ] {
            assert!(!refused(line), "{line}");
        }
    }
}
