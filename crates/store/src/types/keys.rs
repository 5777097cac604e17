//! Commands for keys of any type, and for databases.

use std::ops::ControlFlow;

use super::arguments::{NO_SUCH_KEY, Options, Outcome, SYNTAX, database, error, is, wrong_number};
use super::layout::DATABASES;
use super::{Call, glob};

const SAME_OBJECT: super::arguments::Stop =
    error("ERR source and destination objects are the same");

pub fn del(call: &mut Call<'_, '_>) -> Outcome {
    let mut removed = 0;
    for key in call.arguments {
        removed += i64::from(call.head(key)?.is_some());
        call.remove(key)?;
    }
    call.reply.integer(removed);
    Ok(())
}

pub fn exists(call: &mut Call<'_, '_>) -> Outcome {
    let mut found = 0;
    for key in call.arguments {
        found += i64::from(call.head(key)?.is_some());
    }
    call.reply.integer(found);
    Ok(())
}

pub fn kind(call: &mut Call<'_, '_>) -> Outcome {
    let head = call.head(call.arguments[0])?;
    call.reply
        .status(head.map_or("none", |head| head.kind.name()));
    Ok(())
}

pub fn rename(call: &mut Call<'_, '_>) -> Outcome {
    rename_key(call, false)?;
    call.reply.ok();
    Ok(())
}

pub fn renamenx(call: &mut Call<'_, '_>) -> Outcome {
    let renamed = rename_key(call, true)?;
    call.reply.flag(renamed);
    Ok(())
}

fn rename_key(call: &mut Call<'_, '_>, only_if_free: bool) -> Outcome<bool> {
    let (from, to) = (call.arguments[0], call.arguments[1]);
    call.head(from)?.ok_or(NO_SUCH_KEY)?;
    if from == to || (only_if_free && call.head(to)?.is_some()) {
        return Ok(false);
    }
    call.keys
        .rename((call.database, from), (call.database, to))?;
    Ok(true)
}

pub fn move_key(call: &mut Call<'_, '_>) -> Outcome {
    let (key, target) = (call.arguments[0], database(call.arguments[1])?);
    if target == call.database {
        return Err(SAME_OBJECT);
    }
    let moved = call.head(key)?.is_some() && call.keys.head(target, key)?.is_none();
    if moved {
        call.keys.rename((call.database, key), (target, key))?;
    }
    call.reply.flag(moved);
    Ok(())
}

pub fn copy(call: &mut Call<'_, '_>) -> Outcome {
    let [from, to, rest @ ..] = call.arguments else {
        return Err(SYNTAX);
    };
    let (mut target, mut replace) = (call.database, false);
    let mut options = Options::new(rest);
    while let Some(option) = options.next() {
        if is(option, "REPLACE") {
            replace = true;
        } else if is(option, "DB") {
            target = database(options.value()?)?;
        } else {
            return Err(SYNTAX);
        }
    }
    if target == call.database && from == to {
        return Err(SAME_OBJECT);
    }
    let copied = call.head(from)?.is_some() && (replace || call.keys.head(target, to)?.is_none());
    if copied {
        call.keys.copy((call.database, from), (target, to))?;
    }
    call.reply.flag(copied);
    Ok(())
}

pub fn keys(call: &mut Call<'_, '_>) -> Outcome {
    let pattern = call.arguments[0];
    let (begun, mut count) = (call.reply.deferred(), 0);
    let reply = &mut call.reply;
    call.keys.heads(call.database, b"", &mut |key, _| {
        if pattern == b"*" || glob::matches(pattern, key) {
            reply.bulk(key);
            count += 1;
        }
        ControlFlow::Continue(())
    })?;
    call.reply.begin(begun, |reply| reply.array(count));
    Ok(())
}

pub fn dbsize(call: &mut Call<'_, '_>) -> Outcome {
    let count = call.keys.count_heads(call.database)?;
    call.reply.count(count);
    Ok(())
}

pub fn randomkey(call: &mut Call<'_, '_>) -> Outcome {
    let count = call.keys.count_heads(call.database)?;
    // Some of the randomly chosen keys may have expired. Redis, too, tries this number of times.
    for _ in 0..if count == 0 { 0 } else { 100 } {
        let skip = call.keys.random_below(count);
        if let Some((key, head)) = call.keys.nth_head(call.database, skip)?
            && call.keys.is_live(head)
        {
            call.reply.bulk(&key);
            return Ok(());
        }
    }
    let mut found = None;
    call.keys.heads(call.database, b"", &mut |key, _| {
        found = Some(key.to_vec());
        ControlFlow::Break(())
    })?;
    call.reply.bulk_or_null(found.as_deref());
    Ok(())
}

fn flush(call: &mut Call<'_, '_>, databases: std::ops::Range<u32>) -> Outcome {
    match call.arguments {
        [] => {}
        [how] if is(how, "SYNC") || is(how, "ASYNC") => {}
        _ => return Err(SYNTAX),
    }
    for database in databases {
        call.keys.flush(database)?;
    }
    call.reply.ok();
    Ok(())
}

pub fn flushdb(call: &mut Call<'_, '_>) -> Outcome {
    flush(call, call.database..call.database + 1)
}

pub fn flushall(call: &mut Call<'_, '_>) -> Outcome {
    flush(call, 0..DATABASES)
}

pub fn ping(call: &mut Call<'_, '_>) -> Outcome {
    match call.arguments {
        [] => call.reply.status("PONG"),
        [text] => call.reply.bulk(text),
        _ => return Err(wrong_number(call.name)),
    }
    Ok(())
}

pub fn echo(call: &mut Call<'_, '_>) -> Outcome {
    call.reply.bulk(call.arguments[0]);
    Ok(())
}
