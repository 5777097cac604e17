//! The keys of a command that a client may cache, or that it changes.

use pmnet_resp::Arguments;

use crate::table::keys::{counted, fixed, streams};
use crate::table::{Facts, NEW, PUBSUB, READONLY, Sub, Verdict, WRITE, named};

/// The use that a command makes of its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Reads,
    Writes,
    /// The use is unknown before the command runs: a script, or a command whose keys or effect are unknown.
    May,
}

/// Returns the keys of a command and their use, as Redis sees them for client-side caching. `None`: the command has no
/// keys.
pub(crate) fn accessed_keys<'a>(
    verdict: &Verdict,
    arguments: &Arguments<'a>,
) -> Option<(Access, Vec<&'a [u8]>)> {
    let facts = match verdict.sub {
        Sub::Known(sub) => sub,
        Sub::No if verdict.facts.is_some() => verdict.facts?,
        Sub::No | Sub::Unknown => return any_argument(arguments),
    };
    if facts.has(NEW) {
        return of_new(facts, arguments);
    }
    let (access, keys) = match facts.name {
        // Redis registers the keys that a script names if the script reads keys.
        "EVAL" | "EVALSHA" | "EVAL_RO" | "EVALSHA_RO" | "FCALL" | "FCALL_RO" => {
            (Access::May, counted(arguments, 2))
        }
        "SINTERCARD" | "ZDIFF" | "ZINTER" | "ZINTERCARD" | "ZUNION" => {
            (Access::Reads, counted(arguments, 1))
        }
        "XREAD" => (Access::Reads, streams(arguments, 1)),
        _ if facts.has(PUBSUB) => return None,
        _ if facts.has(READONLY) => (Access::Reads, fixed(facts, arguments)),
        _ if facts.has(WRITE) => (Access::Writes, fixed(facts, arguments)),
        _ => return None,
    };
    (!keys.is_empty()).then_some((access, keys))
}

/// Returns the keys of an unknown command: any argument may be a key that the command reads.
fn any_argument<'a>(arguments: &Arguments<'a>) -> Option<(Access, Vec<&'a [u8]>)> {
    let all: Vec<&[u8]> = arguments.iter().skip(1).collect();
    (!all.is_empty()).then_some((Access::May, all))
}

/// Returns the keys of a command that only the store has described.
fn of_new<'a>(facts: &Facts, arguments: &Arguments<'a>) -> Option<(Access, Vec<&'a [u8]>)> {
    let access = match () {
        () if facts.has(READONLY) => Access::Reads,
        () if facts.has(WRITE) => Access::Writes,
        () => return any_argument(arguments),
    };
    let Some(keys) = named(facts, arguments) else {
        return any_argument(arguments);
    };
    let keys: Vec<&[u8]> = keys.collect();
    (!keys.is_empty()).then_some((access, keys))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Table;
    use pmnet_resp::{Parser, Status};

    fn keys(words: &str) -> Option<(Access, String)> {
        let words: Vec<&str> = words.split(' ').collect();
        let mut frame = Vec::new();
        pmnet_resp::write_command(&mut frame, &words);
        let mut parser = Parser::new(crate::limits::REQUESTS);
        assert!(matches!(parser.poll(&frame), Ok(Status::Complete)));
        let arguments = parser.arguments(&frame);
        let table = Table::new::<String>(&[]).unwrap();
        let (access, keys) = accessed_keys(&table.verdict(&arguments), &arguments)?;
        let text = |key: &&[u8]| String::from_utf8_lossy(key).into_owned();
        Some((access, keys.iter().map(text).collect::<Vec<_>>().join(" ")))
    }

    #[test]
    fn keys_are_found_where_redis_finds_them() {
        use Access::{May, Reads, Writes};
        for (words, access, found) in [
            ("GET a", Reads, "a"),
            ("mget a b c", Reads, "a b c"),
            ("OBJECT ENCODING a", Reads, "a"),
            ("XINFO STREAM a FULL", Reads, "a"),
            ("SORT_RO a BY x_*", Reads, "a"),
            ("SINTERCARD 2 a b LIMIT 1", Reads, "a b"),
            ("ZUNION 2 a b WITHSCORES", Reads, "a b"),
            ("ZINTER 9 a b", Reads, "a b"),
            ("XREAD COUNT 2 STREAMS a b 0 0", Reads, "a b"),
            ("XREAD BLOCK 0 streams a 0", Reads, "a"),
            ("EVAL_RO x 2 a b c", May, "a b"),
            ("FCALL f 1 a b", May, "a"),
            ("HTTL a FIELDS 1 f", May, "a FIELDS 1 f"),
            ("JSON.GET a $", May, "a $"),
            ("OBJECT NOSUCH a", May, "NOSUCH a"),
            ("SET a 1", Writes, "a"),
            ("MSET a 1 b 2", Writes, "a b"),
            ("DEL a b", Writes, "a b"),
            ("RENAME a b", Writes, "a b"),
        ] {
            assert_eq!(keys(words), Some((access, found.to_owned())), "{words}");
        }
        for words in [
            "PING",
            "KEYS *",
            "SCAN 0",
            "EVAL x 0",
            "EVAL x -1 a",
            "EVAL x",
            "ZUNION x a",
            "XREAD COUNT 1",
            "SPUBLISH a b",
            "OBJECT HELP",
            "GET",
            "NOSUCH",
            "CLIENT ID",
        ] {
            assert_eq!(keys(words), None, "{words}");
        }
    }
}
