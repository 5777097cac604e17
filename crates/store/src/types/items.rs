//! Items of memcached: applies the rule of [`pmnet_wire::item`] to strings.

use pmnet_wire::item::{Change, Old, Touch, Written};

use super::Call;
use super::arguments::{Outcome, SYNTAX, error};
use super::expiry;

/// Executes a change of an item. Its arguments are a key and the change.
pub fn item(call: &mut Call<'_, '_>) -> Outcome {
    let [key, change @ ..] = call.arguments else {
        return Err(SYNTAX);
    };
    let change = Change::parse(change).ok_or(SYNTAX)?;
    let old = call.string(key)?;
    let expires = old.as_ref().map_or(0, |(expires, _)| *expires);
    let left = (expires != 0).then(|| expires.saturating_sub(call.keys.now()));
    let applied = change
        .apply(old.as_ref().map(|(_, stored)| Old { stored, left }))
        .map_err(error)?;
    match applied.written {
        Written::Nothing => {}
        Written::Removed => call.remove(key)?,
        Written::String(stored, touch) => {
            let end = match touch {
                Touch::Keep => expires,
                Touch::Until(end) => end,
            };
            if old.as_ref().is_none_or(|(_, before)| *before != stored) {
                call.put_grown(key, expires, &stored)?;
            }
            expiry::change(call, key, expires, end)?;
        }
    }
    call.reply.array(4);
    call.reply.bulk(applied.status.as_bytes());
    call.reply.bulk(&applied.text);
    let left = left.and_then(|left| i64::try_from(left).ok());
    call.reply.integer(left.unwrap_or(-1));
    call.reply.flag(applied.won);
    Ok(())
}
