//! Passed commands that must not reach the store.
//!
//! Normally the store's adaptor checks every command. The adaptor refuses commands that would break the durability of
//! acknowledged writes, or the records by which writes apply exactly once. A passed command does not go through the
//! adaptor, so the front refuses the same commands, with the same errors (`crates/store/src/redis`: `commands`, `plan`,
//! and `guarded` in `request.lua`). Administrative commands without such an effect are passed, and the adaptor accepts
//! them, too: MODULE, FUNCTION, MIGRATE, SAVE, and changes of other settings. The front itself answers CLIENT. The
//! table refuses SHUTDOWN, DEBUG, REPLICAOF, SWAPDB and similar commands.

use bytes::Bytes;
use pmnet_resp::{Arguments, reply};
use pmnet_wire::guard::{changes_access, reaches_records, sets_guarded};

use super::errors::shown;

use crate::table::touches_reserved;

const FLUSH: &str =
    "in a MULTI behind WATCH it would remove pmnet's own records: send it before MULTI";
const LUA: &str = "a script could remove pmnet's own records unnoticed while WATCHing: it is one atomic \
                   step by itself, so send it without WATCH";
const SCRIPTS: &str =
    "pmnet keeps scripts by itself and would not learn of it while WATCHing: send it before WATCH";

const ACCESS: &str =
    "it could take pmnet's own rights in Redis away while WATCHing: send it before WATCH";

/// Refused commands: name, subcommands (empty: all), reason.
const REFUSED: &[(&str, &[&str], &str)] = &[
    ("FLUSHALL", &[], FLUSH),
    ("FLUSHDB", &[], FLUSH),
    ("EVAL", &[], LUA),
    ("EVALSHA", &[], LUA),
    ("FCALL", &[], LUA),
    ("SCRIPT", &["FLUSH", "LOAD"], SCRIPTS),
];

/// Returns the error for a command that must not reach Redis without the adaptor; `None` for other commands.
pub(super) fn objection(arguments: &Arguments<'_>) -> Option<Bytes> {
    let refused = REFUSED.iter().find(|(name, subcommands, _)| {
        arguments.is(0, name)
            && (subcommands.is_empty() || subcommands.iter().any(|sub| arguments.is(1, sub)))
    });
    if let Some((name, _, why)) = refused {
        return Some(reply::error(&format!(
            "ERR pmnet: {name} is not available here: {why}"
        )));
    }
    if let Some(why) = reaches_records(arguments.len(), |index| arguments.get(index)) {
        let name = shown(arguments);
        return Some(reply::error(&format!(
            "ERR pmnet: {name} is not available here: {why}"
        )));
    }
    // The front does not know whether the store's memory has a limit.
    if let Some(setting) = sets_guarded(arguments.len(), |index| arguments.get(index), false) {
        return Some(reply::error(&format!(
            "ERR pmnet: acknowledged writes rest on this setting ({}): change it in Redis itself and restart the pmnet server",
            setting.to_ascii_lowercase()
        )));
    }
    // The front does not know the name of the pmnet server's user.
    if changes_access(arguments.len(), |index| arguments.get(index), None) {
        return Some(reply::error(&format!(
            "ERR pmnet: ACL is not available here: {ACCESS}"
        )));
    }
    names_record(arguments)
}

/// Returns the error for a command with an argument that looks like one of pmnet's own keys; `None` if no
/// argument does.
pub(super) fn names_record(arguments: &Arguments<'_>) -> Option<Bytes> {
    touches_reserved(arguments)
        .then(|| reply::error("ERR pmnet: keys that begin with pmnet:{ are reserved"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::REQUESTS;
    use pmnet_resp::{Parser, Status};

    fn said(line: &str) -> Option<String> {
        let input = format!("{line}\r\n");
        let mut parser = Parser::new(REQUESTS);
        assert_eq!(parser.poll(input.as_bytes()), Ok(Status::Complete));
        objection(&parser.arguments(input.as_bytes()))
            .map(|error| String::from_utf8_lossy(&error).into_owned())
    }

    #[test]
    fn what_the_adaptor_refuses_is_refused_here() {
        for (line, why) in [
            ("FlushAll", FLUSH),
            ("FLUSHDB ASYNC", FLUSH),
            ("EVAL return 0", LUA),
            ("evalsha ff 0", LUA),
            ("FCALL f 0", LUA),
            ("SCRIPT flush", SCRIPTS),
            ("SCRIPT LOAD return", SCRIPTS),
            ("CONFIG SET appendonly no", "rest on this setting"),
            ("config set AppendFsync no", "rest on this setting"),
            ("CONFIG SET maxmemory-policy allkeys-lru", "rest on this"),
            ("CONFIG SET maxmemory 1mb", "rest on this setting"),
            ("CONFIG SET no-appendfsync-on-rewrite yes", "rest on this"),
            ("CONFIG SET hz 10 appendonly no", "rest on this setting"),
            ("CONFIG SET min-replicas-to-write 1", "rest on this setting"),
            ("CONFIG SET proto-max-bulk-len 1mb", "rest on this setting"),
            ("CONFIG SET requirepass x", "rest on this setting"),
            ("ACL SETUSER x", ACCESS),
            ("acl deluser x", ACCESS),
            ("ACL LOAD", ACCESS),
            ("FT.DROPINDEX i DD", "removes all keys of the index"),
            ("COPY k pmnet:{0}", "are reserved"),
            ("MIGRATE h 1 pmnet:{0} 0 9", "are reserved"),
        ] {
            let error = said(line).unwrap_or_default();
            assert!(
                error.starts_with("-ERR pmnet: ") && error.contains(why) && error.ends_with("\r\n"),
                "{line}: {error:?}"
            );
        }
    }

    #[test]
    fn what_breaks_nothing_passes_as_it_does_outside() {
        for line in [
            "CONFIG GET appendonly",
            "CONFIG SET hz 10",
            "CONFIG RESETSTAT",
            "CONFIG REWRITE",
            "CONFIG",
            "EVAL_RO return 0",
            "PFDEBUG ENCODING k",
            "EVALSHA_RO ff 0",
            "FCALL_RO f 0",
            "SCRIPT EXISTS ff",
            "SCRIPT",
            "FUNCTION FLUSH",
            "ACL WHOAMI",
            "CONFIG SET min-replicas-to-write 0",
            "MODULE LIST",
            "MIGRATE h 1 k 0 9",
            "BGSAVE",
            "SET k v",
            "SET flushall appendonly",
        ] {
            assert_eq!(said(line), None, "{line}");
        }
    }
}
