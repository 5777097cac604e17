//! The commands of a transaction are looked at once more at EXEC if the rights of their user have changed since MULTI.
//!
//! As in Redis, each of them that is not allowed any more gets an error at its place, and the others run.

use bytes::Bytes;
use pmnet_resp::{Parser, Status, read, reply};
use pmnet_wire::command::PREAMBLE_LEN;

use super::{Own, Transaction};
use crate::client::settings::parse_database;
use crate::limits::REQUESTS;

/// How far that has come.
#[derive(Debug, Default)]
pub(super) struct Recheck {
    /// How many commands have been looked at; where the next one of the payload is; and which of the front's own is the next.
    count: usize,
    offset: usize,
    own: usize,
    /// The database that is selected so far, if one is.
    database: Option<u32>,
    /// The places of those that are not allowed, and Redis's errors.
    denied: Vec<(usize, Bytes)>,
}

impl Transaction {
    /// Whether it has begun.
    pub(in crate::client) fn is_rechecked(&self) -> bool {
        self.recheck.is_some()
    }

    /// Begins, unless it has begun; false: there is nothing to look at, as EXEC will abort.
    pub(in crate::client) fn recheck(&mut self) -> bool {
        if !self.failed {
            self.recheck.get_or_insert_default();
        }
        !self.failed
    }

    /// The database of the next command to look at, if the transaction has selected one before it.
    pub(in crate::client) fn checked_database(&self) -> Option<u32> {
        self.recheck.as_ref()?.database
    }

    /// The next command to look at, if there is one left.
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

    /// The command that [`Self::unchecked`] has named is allowed, or Redis says this.
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

    /// All have been looked at: those that are not allowed are taken out.
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

/// Redis's reply in place of a command that was allowed when it was queued, and for which it says `error` now.
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

/// The database that a command selects.
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
