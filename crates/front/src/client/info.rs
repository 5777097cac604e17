//! The section `# Pmnet` of INFO: facts of the front, after the sections of the store.
//!
//! A client gets this section with an INFO without arguments, or with `default`, `all`, `everything` or
//! `pmnet`. In a transaction, in a script and on a client's own connection to Redis, INFO has only the
//! store's sections.

use bytes::Bytes;
use pmnet_resp::{Arguments, read, reply};
use pmnet_wire::command::{Form, preamble};

use super::Connection;
use super::back::calls::Purpose;
use super::command::Command;
use super::context::{Env, Later};
use super::shared::Shared;
use crate::upstream::{Seen, Time};

/// Arguments of INFO that ask for the section `# Pmnet`.
const WORDS: [&str; 4] = ["default", "all", "everything", "pmnet"];
/// Title of the section.
const TITLE: &[u8] = b"# Pmnet\r\n";
const MILLISECOND: Time = 1_000_000;

/// Whether this command is an INFO that asks for the section `# Pmnet`.
pub(crate) fn wants_section(arguments: &Arguments<'_>) -> bool {
    let is_word = |at| WORDS.iter().any(|word| arguments.is(at, word));
    arguments.is(0, "INFO") && (arguments.len() == 1 || (1..arguments.len()).any(is_word))
}

impl Connection {
    /// Asks the store for its sections.
    ///
    /// # Errors
    /// [`Later`]: the question cannot be sent now.
    pub(super) fn info(&mut self, command: &Command<'_>, env: &mut Env<'_>) -> Result<(), Later> {
        let cx = &mut self.face.context(env);
        let selected = cx.selected;
        let mut payload = preamble(Form::Single, selected.protocol, selected.database).to_vec();
        payload.extend_from_slice(command.frame);
        let section = section(&cx.up.seen(), cx.shared);
        let purpose = Purpose::Info { section };
        self.back.ask(payload.into(), purpose, cx)?;
        Ok(())
    }
}

/// Returns the section `# Pmnet`.
fn section(seen: &Seen, shared: &Shared) -> String {
    let unanswered = seen
        .unanswered_since
        .map_or(0, |since| shared.now.saturating_sub(since) / MILLISECOND);
    let count = &shared.counters;
    let lines = [
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("devices", seen.peer.clone()),
        ("copies", seen.copies.to_string()),
        ("unanswered_ms", unanswered.to_string()),
        ("reads_own_write", count.own_writes.to_string()),
        ("reads_head", count.hits.to_string()),
        ("reads_store", count.direct_reads.to_string()),
        ("reads_bypass", count.bypassed_reads.to_string()),
    ];
    let lines = lines.map(|(name, value)| format!("pmnet_{name}:{value}\r\n"));
    format!("# Pmnet\r\n{}", lines.concat())
}

/// Returns the store's reply, followed by the front's section. A reply that is not a text, such as an error, stays
/// unchanged.
pub(super) fn with_section(reply: Bytes, section: &str) -> Bytes {
    let Some(theirs) = read::bulk(&reply) else {
        return reply;
    };
    let between: &[u8] = if theirs.is_empty() { b"" } else { b"\r\n" };
    let text = [theirs, between, section.as_bytes()].concat();
    if reply.starts_with(b"=") {
        reply::verbatim(&text)
    } else {
        reply::bulk(&text)
    }
}

/// Returns a reply to INFO with these lines at the end of the front's section. A reply without the section stays
/// unchanged.
pub(crate) fn with_lines(reply: Bytes, lines: &str) -> Bytes {
    match read::bulk(&reply) {
        Some(text) if text.windows(TITLE.len()).any(|part| part == TITLE) => {
            let text = [text, lines.as_bytes()].concat();
            if reply.starts_with(b"=") {
                reply::verbatim(&text)
            } else {
                reply::bulk(&text)
            }
        }
        _ => reply,
    }
}

#[cfg(test)]
mod tests {
    use pmnet_resp::{Parser, Status};

    use super::*;
    use crate::limits::REQUESTS;

    fn is_wanted(line: &str) -> bool {
        let words: Vec<&str> = line.split(' ').collect();
        let mut bytes = Vec::new();
        pmnet_resp::write_command(&mut bytes, &words);
        let mut parser = Parser::new(REQUESTS);
        assert_eq!(parser.poll(&bytes), Ok(Status::Complete));
        wants_section(&parser.arguments(&bytes))
    }

    #[test]
    fn words_ask_for_the_section() {
        for line in [
            "INFO",
            "info",
            "INFO pmnet",
            "INFO server PMNET",
            "INFO all",
            "INFO everything",
            "INFO default clients",
        ] {
            assert!(is_wanted(line), "{line}");
        }
        for line in ["INFO server", "INFO pmnetx", "XINFO pmnet", "PING pmnet"] {
            assert!(!is_wanted(line), "{line}");
        }
    }

    #[test]
    fn the_section_comes_after_the_stores() {
        let with =
            |reply: &'static [u8]| with_section(Bytes::from_static(reply), "# Pmnet\r\na:1\r\n");
        assert_eq!(
            with(b"$12\r\n# S\r\nx:yyy\r\n\r\n"),
            "$28\r\n# S\r\nx:yyy\r\n\r\n# Pmnet\r\na:1\r\n\r\n"
        );
        assert_eq!(with(b"=4\r\ntxt:\r\n"), "=18\r\ntxt:# Pmnet\r\na:1\r\n\r\n");
        assert_eq!(with(b"$0\r\n\r\n"), "$14\r\n# Pmnet\r\na:1\r\n\r\n");
        let reply = Bytes::from_static(b"$14\r\n# Pmnet\r\na:1\r\n\r\n");
        let other = Bytes::from_static(b"$3\r\n# S\r\n");
        assert_eq!(
            with_lines(reply, "b:2\r\n"),
            "$19\r\n# Pmnet\r\na:1\r\nb:2\r\n\r\n"
        );
        assert_eq!(with_lines(other.clone(), "b:2\r\n"), other);
        for other in [&b"-NOPERM no\r\n"[..], b"$-1\r\n", b"_\r\n"] {
            assert_eq!(with(other), other);
        }
    }
}
