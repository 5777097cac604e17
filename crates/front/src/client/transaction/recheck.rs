//! If the rights of a user have changed since MULTI, EXEC checks the commands of the user's transaction again.
//!
//! As in Redis, a command that is no longer allowed gets an error at its place, and the other commands run.

use bytes::Bytes;
use pmnet_resp::{Parser, Status, read, reply};
use pmnet_wire::command::PREAMBLE_LEN;

use super::{Own, Transaction};
use crate::client::settings::parse_database;
use crate::limits::REQUESTS;

/// State of the check of a transaction's queued commands at EXEC.
#[derive(Debug, Default)]
pub(super) struct Recheck {
    /// Number of checked commands.
    count: usize,
    /// Position of the next command in the payload.
    offset: usize,
    /// Index of the next command that the front answers itself.
    own: usize,
    /// The database that the checked commands have selected, if any.
    database: Option<u32>,
    /// Indexes of the commands that are not allowed, with Redis's errors.
    denied: Vec<(usize, Bytes)>,
}

impl Transaction {
    /// Whether the check has begun.
    pub(in crate::client) fn is_rechecked(&self) -> bool {
        self.recheck.is_some()
    }

    /// Begins the check unless it has begun. Returns false if there is nothing to check, because EXEC will
    /// abort.
    pub(in crate::client) fn recheck(&mut self) -> bool {
        if !self.failed {
            self.recheck.get_or_insert_default();
        }
        !self.failed
    }

    /// Returns the database of the next command, if the transaction has selected one before it.
    pub(in crate::client) fn checked_database(&self) -> Option<u32> {
        self.recheck.as_ref()?.database
    }

    /// Returns the next command to check, if there is one left.
    pub(in crate::client) fn unchecked(&mut self) -> Option<Vec<u8>> {
        loop {
            let recheck = self.recheck.as_mut()?;
            match self.own.get(recheck.own) {
                Some((at, Own::Command(frame))) if *at == recheck.count => {
                    return Some(frame.clone());
                }
                Some((at, Own::Reply(_))) if *at == recheck.count => {
                    recheck.own += 1;
                    recheck.count += 1;
                }
                _ => {
                    let rest = self.payload.get(PREAMBLE_LEN + recheck.offset..)?;
                    return first_frame(rest).map(<[u8]>::to_vec);
                }
            }
        }
    }

    /// Notes the result for the command that [`Self::unchecked`] returned: allowed, or denied with Redis's
    /// error.
    pub(in crate::client) fn checked(&mut self, length: usize, denied: Option<Bytes>) {
        let Some(recheck) = &mut self.recheck else {
            return;
        };
        if self
            .own
            .get(recheck.own)
            .is_some_and(|(at, _)| *at == recheck.count)
        {
            recheck.own += 1;
        } else {
            if denied.is_none()
                && let Some(frame) = self.payload.get(PREAMBLE_LEN + recheck.offset..)
                && let Some(database) = selected(frame)
            {
                recheck.database = Some(database);
            }
            recheck.offset += length;
        }
        let at = recheck.count;
        recheck.denied.extend(denied.map(|error| (at, error)));
        recheck.count += 1;
    }

    /// Ends the check: removes the commands that are not allowed from the payload.
    pub(in crate::client) fn drop_denied(&mut self) {
        let denied = self.recheck.take().map(|recheck| recheck.denied);
        let Some(denied) = denied.filter(|denied| !denied.is_empty()) else {
            return;
        };
        let (payload, own) = (
            std::mem::take(&mut self.payload),
            std::mem::take(&mut self.own),
        );
        let count = self.commands + own.len();
        let (mut own, mut denied) = (own.into_iter().peekable(), denied.into_iter().peekable());
        let mut rest = payload.get(PREAMBLE_LEN..).unwrap_or_default();
        self.payload = payload[..PREAMBLE_LEN].to_vec();
        (self.commands, self.database) = (0, None);
        for at in 0..count {
            let mine = own.next_if(|(place, _)| *place == at);
            let frame = if mine.is_none() {
                first_frame(rest)
            } else {
                None
            };
            rest = &rest[frame.map_or(0, <[u8]>::len)..];
            if let Some((_, error)) = denied.next_if(|(place, _)| *place == at) {
                self.own.push((at, Own::Reply(error)));
            } else if let Some(mine) = mine {
                self.own.push(mine);
            } else if let Some(frame) = frame {
                self.payload.extend_from_slice(frame);
                self.commands += 1;
                self.database = selected(frame).or(self.database);
            }
        }
    }
}

/// Returns Redis's reply for a command that was allowed when it was queued, and that Redis denies now with
/// `error`.
pub(in crate::client) fn not_allowed_any_more(error: &Bytes) -> Bytes {
    let text = read::error(error).unwrap_or_default();
    if !text.starts_with("NOPERM") {
        return error.clone();
    }
    let reason = if text.contains("permissions to run") {
        "no permission to execute the command or subcommand"
    } else if text.contains("channel") {
        "no permission to access one of the channels used as arguments"
    } else if text.contains("key") {
        "no permission to touch the specified keys"
    } else {
        "no permission"
    };
    reply::error(&format!(
        "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command is no \
         longer allowed for the following reason: {reason}"
    ))
}

fn first_frame(bytes: &[u8]) -> Option<&[u8]> {
    let mut parser = Parser::new(REQUESTS);
    match parser.poll(bytes) {
        Ok(Status::Complete) => bytes.get(..parser.frame(bytes).len()),
        _ => None,
    }
}

/// Returns the database that a command selects.
fn selected(frame: &[u8]) -> Option<u32> {
    let mut parser = Parser::new(REQUESTS);
    let Ok(Status::Complete) = parser.poll(frame) else {
        return None;
    };
    let arguments = parser.arguments(frame);
    (arguments.is(0, "SELECT") && arguments.len() == 2)
        .then(|| parse_database(arguments.get(1)).ok())
        .flatten()
}
