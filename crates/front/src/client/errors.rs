//! Error texts that are used in several places: those of Redis, and pmnet's refusal.

use bytes::Bytes;
use pmnet_resp::{Arguments, reply};

use crate::table::Verdict;

/// Redis's error for options that it cannot parse.
pub(crate) const SYNTAX: &str = "ERR syntax error";
/// Redis's error for an invalid client name.
pub(super) const BAD_NAME: &str =
    "ERR Client names cannot contain spaces, newlines or special characters.";
/// Redis's error for an EXEC with arguments, which ends the transaction.
pub(super) const EXEC_ARITY: Bytes = Bytes::from_static(
    b"-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command\r\n",
);
/// Redis's error for the EXEC of a transaction that has failed.
pub(crate) const EXECABORT: Bytes =
    Bytes::from_static(b"-EXECABORT Transaction discarded because of previous errors.\r\n");

/// Returns Redis's error for a wrong number of arguments, if the number is wrong.
pub(super) fn arity_error(verdict: &Verdict, arguments: &Arguments<'_>) -> Option<Bytes> {
    let name = verdict.misfit(arguments)?.name.to_ascii_lowercase();
    if name == "exec" {
        return Some(EXEC_ARITY);
    }
    Some(reply::error(&format!(
        "ERR wrong number of arguments for '{name}' command"
    )))
}

pub(super) fn refusal(arguments: &Arguments<'_>, why: &str) -> Bytes {
    reply::error(&format!(
        "ERR pmnet: {} is not possible through the front: {why}",
        shown(arguments)
    ))
}

/// Returns the command's name for an error text, in capitals and of limited length.
pub(crate) fn shown(arguments: &Arguments<'_>) -> String {
    let name = arguments.get(0);
    String::from_utf8_lossy(&name[..name.len().min(64)]).to_ascii_uppercase()
}

/// Returns Redis's error for an unknown subcommand.
pub(super) fn unknown_subcommand(arguments: &Arguments<'_>) -> Bytes {
    let (sub, name) = (shown_text(arguments.get(1), 128), shown(arguments));
    let name = name.as_bytes();
    reply::error(
        &[
            b"ERR unknown subcommand '",
            sub,
            b"'. Try ",
            name,
            b" HELP.",
        ]
        .concat(),
    )
}

/// Returns Redis's error for an unknown command.
pub(crate) fn unknown_command(arguments: &Arguments<'_>) -> Bytes {
    let mut beginning = Vec::new();
    for argument in arguments.iter().skip(1) {
        let Some(room) = 128_usize
            .checked_sub(beginning.len())
            .filter(|room| *room > 0)
        else {
            break;
        };
        beginning.extend_from_slice(&[b"'", shown_text(argument, room), b"' "].concat());
    }
    let name = shown_text(arguments.get(0), 128);
    let parts = [
        b"ERR unknown command '",
        name,
        b"', with args beginning with: ",
        &beginning,
    ];
    reply::error(&parts.concat())
}

/// Returns the part of a text that Redis would show: the bytes before the first NUL, at most `most`.
fn shown_text(bytes: &[u8], most: usize) -> &[u8] {
    let most = most.min(bytes.len());
    let end = bytes[..most].iter().position(|byte| *byte == 0);
    &bytes[..end.unwrap_or(most)]
}
