//! `--assume-ok`: commands that the operator wants acknowledged early although Redis may refuse them.
//!
//! A listed command gets `+OK` once it is durable in the devices. If Redis then refuses the command (HMSET on a key
//! that holds a list, LSET beyond the end), the command has no effect, and the client gets no error. So only commands
//! that answer `+OK` on success can be listed, and only their usual forms are acknowledged early.

use super::FACTS;
use super::early::touches_reserved;
use pmnet_resp::{Arguments, parse_integer};

/// Commands that can be listed in `--assume-ok`, with the errors that their clients then do not get.
pub const ASSUMABLE: &[(&str, &str)] = &[
    ("FLUSHALL", "nothing in practice"),
    ("FLUSHDB", "nothing in practice"),
    ("HMSET", "the key holds another type"),
    (
        "LSET",
        "no such key, index out of range, the key holds another type",
    ),
    ("LTRIM", "the key holds another type"),
    ("PFMERGE", "a key holds another type"),
    ("RENAME", "no such key"),
    (
        "RESTORE",
        "the key exists already, a damaged or foreign dump",
    ),
];

/// Commands that are acknowledged early even if `--assume-ok` does not list them.
const ALWAYS: &[&str] = &["SET", "MSET", "SETEX", "PSETEX"];

/// Why a command cannot be listed in `--assume-ok`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssumeError {
    /// Redis 7.0 has no command of this name.
    #[error("--assume-ok: there is no command {0:?}")]
    Unknown(String),
    /// The reply of the command carries information that only Redis has.
    #[error(
        "--assume-ok: {0} cannot be acknowledged early, because its reply is more than +OK; \
         possible are {list}", list = assumable_names()
    )]
    NotStatus(String),
}

fn assumable_names() -> String {
    ASSUMABLE
        .iter()
        .map(|(name, _)| *name)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Checks the operator's list. Returns the names of the commands to acknowledge early.
pub(super) fn validate<S: AsRef<str>>(list: &[S]) -> Result<Vec<&'static str>, AssumeError> {
    let mut names = Vec::new();
    for listed in list {
        let upper = listed.as_ref().trim().to_ascii_uppercase();
        if upper.is_empty() || ALWAYS.contains(&upper.as_str()) {
            continue;
        }
        match ASSUMABLE.iter().find(|(name, _)| *name == upper) {
            Some((name, _)) => names.push(*name),
            None if FACTS.iter().any(|facts| facts.name == upper) => {
                return Err(AssumeError::NotStatus(upper));
            }
            None => return Err(AssumeError::Unknown(upper)),
        }
    }
    Ok(names)
}

/// Whether Redis accepts the command in this form, provided that the keys are as the operator assumes. The number of
/// arguments must have been checked before.
pub(super) fn usual(name: &str, arguments: &Arguments<'_>) -> bool {
    let integer = |index| parse_integer(arguments.get(index)).is_some();
    let form = match name {
        "HMSET" => arguments.len().is_multiple_of(2),
        "LSET" => integer(2),
        "LTRIM" => integer(2) && integer(3),
        "RESTORE" => {
            parse_integer(arguments.get(2)).is_some_and(|ttl| ttl >= 0)
                && (arguments.len() == 4 || (arguments.len() == 5 && arguments.is(4, "REPLACE")))
        }
        "FLUSHALL" | "FLUSHDB" => {
            arguments.len() == 1
                || (arguments.len() == 2 && (arguments.is(1, "SYNC") || arguments.is(1, "ASYNC")))
        }
        _ => true,
    };
    form && !touches_reserved(arguments)
}
