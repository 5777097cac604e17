//! Translates a client's commands into commands for the store.

use bytes::Bytes;
use pmnet_wire::item::{Change, Item, Mode, Touch};
use pmnet_wire::promise::RECORDS_PREFIX;

use super::answer::{Answer, Values, Words};
use super::shared::Shared;
use super::unit::{Unit, Work};
use crate::request::{Count, Form, Meta, Request, Store, TOO_LARGE, Verb};
use crate::stats;

const RESERVED: &[u8] = b"CLIENT_ERROR pmnet: keys that begin with pmnet:{ are reserved\r\n";

/// The plan for a command.
pub(super) enum Plan {
    /// The command is answered with this text.
    Said(Vec<u8>),
    /// The store is asked with these units, and its replies make the client's answer.
    Asks(Answer, Vec<Unit>),
    /// The command is answered with this text, and then the connection ends.
    Ends(Vec<u8>),
    /// The command is unknown.
    Unknown,
}

fn line(text: &str) -> Vec<u8> {
    [text.as_bytes(), b"\r\n"].concat()
}

fn said(text: Option<&str>) -> Plan {
    Plan::Said(text.map_or_else(Vec::new, line))
}

fn word(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn number(number: u64) -> Bytes {
    number.to_string().into()
}

/// Returns the change of an item's time of expiry, as the client gave it.
fn touch(exptime: Option<i32>, shared: &Shared) -> Touch {
    exptime.map_or(Touch::Keep, |exptime| Touch::Until(shared.until(exptime)))
}

/// Returns the keys of a command.
fn keys(request: &Request) -> &[Bytes] {
    match request {
        Request::Get { keys, .. } | Request::GetAndTouch { keys, .. } => keys,
        Request::Store(Store { key, .. })
        | Request::Count(Count { key, .. })
        | Request::Touch { key, .. }
        | Request::Delete { key, .. }
        | Request::MetaGet { key, .. }
        | Request::MetaDebug { key, .. }
        | Request::TooLarge { key: Some(key), .. } => std::slice::from_ref(key),
        _ => &[],
    }
}

/// Translates a command. `slot`: the number of the command's slot.
pub(super) fn plan(request: Request, slot: u64, shared: &mut Shared) -> Plan {
    if keys(&request)
        .iter()
        .any(|key| key.starts_with(RECORDS_PREFIX))
    {
        return Plan::Said(RESERVED.to_vec());
    }
    let unit = |key: &Bytes, work| Unit {
        slot,
        key: key.clone(),
        work,
    };
    match request {
        Request::Get { keys, unique } => {
            let units = keys.iter().map(|key| unit(key, Work::Look)).collect();
            Plan::Asks(Answer::Values(Values::new(keys, unique, false)), units)
        }
        Request::GetAndTouch { keys, .. } if keys.is_empty() => Plan::Said(line("END")),
        Request::GetAndTouch {
            keys,
            unique,
            exptime,
        } => {
            let units = keys
                .iter()
                .map(|key| unit(key, get_and_touch(key, exptime, shared)));
            let units = units.collect();
            Plan::Asks(Answer::Values(Values::new(keys, unique, true)), units)
        }
        Request::Store(store) => plan_store(store, slot, shared),
        Request::Count(count) => plan_count(count, slot, shared),
        Request::Touch {
            key,
            exptime,
            quiet,
        } => {
            let work = match exptime {
                // PERSIST does not say whether the key exists.
                0 => get_and_touch(&key, exptime, shared),
                _ => Work::Command {
                    words: vec![
                        word("PEXPIREAT"),
                        key.clone(),
                        number(shared.until(exptime)),
                    ],
                    shows: false,
                },
            };
            Plan::Asks(Answer::Touched(quiet), vec![unit(&key, work)])
        }
        Request::Delete { key, form } => plan_delete(&key, form, slot, shared),
        Request::MetaGet { key, meta } => plan_meta_get(&key, meta, slot, shared),
        Request::MetaDebug { key, shown } => {
            let unit = unit(&key, Work::LookLong);
            Plan::Asks(Answer::Debug { key, shown }, vec![unit])
        }
        Request::TooLarge { key, quiet } => {
            shared.counters.too_large += 1;
            let said = Answer::Said((!quiet).then_some(TOO_LARGE));
            match key {
                Some(key) => Plan::Asks(said, vec![unit(&key, delete(&key))]),
                None => self::said((!quiet).then_some(TOO_LARGE)),
            }
        }
        Request::Flush { delay, quiet } => plan_flush(delay, quiet, slot, shared),
        Request::Stats(which) => Plan::Said(stats::text(which, shared)),
        Request::Version => Plan::Said(line(&format!("VERSION {}", stats::VERSION))),
        Request::Unknown => Plan::Unknown,
        Request::Say(text) => said(text),
        Request::End(text) => Plan::Ends(text.map_or_else(Vec::new, line)),
    }
}

fn delete(key: &Bytes) -> Work {
    Work::Command {
        words: vec![word("DEL"), key.clone()],
        shows: false,
    }
}

fn get_and_touch(key: &Bytes, exptime: i32, shared: &Shared) -> Work {
    let mut words = vec![word("GETEX"), key.clone()];
    match shared.until(exptime) {
        0 => words.push(word("PERSIST")),
        until => words.extend([word("PXAT"), number(until)]),
    }
    Work::Command { words, shows: true }
}

fn plan_store(store: Store, slot: u64, shared: &mut Shared) -> Plan {
    shared.counters.sets += 1;
    let unique = shared.unique();
    let until = shared.until(store.exptime);
    let item = Item::new(store.flags, unique, &store.data);
    let change = |mode| Change::Store {
        mode,
        compare: match mode {
            // A unique of 0 counts as none, unless the command's only purpose is the comparison.
            Mode::Append | Mode::Prepend => store.compare.filter(|unique| *unique != 0),
            Mode::Replace => store.compare,
        },
        // In memcached, no item is newer than a unique of 0.
        stale: store.stale && store.compare != Some(0),
        item,
        until,
        data_max: shared.item_max,
    };
    let mode = match store.verb {
        Verb::Cas => Some(Mode::Replace),
        Verb::Append => Some(Mode::Append),
        Verb::Prepend => Some(Mode::Prepend),
        Verb::Set | Verb::Add | Verb::Replace => None,
    };
    if let Some(mode) = mode {
        let unit = Unit::change(slot, store.key.clone(), &change(mode));
        let words = if mode == Mode::Replace {
            Words::Compared
        } else {
            Words::Joined
        };
        return Plan::Asks(Answer::Stored(words, store.form, unique), vec![unit]);
    }
    let mut words = vec![word("SET"), store.key.clone(), item.stored().into()];
    match store.verb {
        Verb::Add => words.push(word("NX")),
        Verb::Replace => words.push(word("XX")),
        _ => {}
    }
    if until > 0 {
        words.extend([word("PXAT"), number(until)]);
    }
    let work = if store.verb == Verb::Set {
        Work::Update(words)
    } else {
        Work::Command {
            words,
            shows: false,
        }
    };
    let unit = Unit {
        slot,
        key: store.key,
        work,
    };
    Plan::Asks(Answer::Stored(Words::Plain, store.form, unique), vec![unit])
}

fn plan_count(count: Count, slot: u64, shared: &mut Shared) -> Plan {
    let meta = match &count.form {
        Form::Meta(meta) => meta,
        _ => &Meta::default(),
    };
    let unique = shared.unique();
    // If a command has both N and T, the later flag counts for a new item.
    let first = match (meta.vivify, meta.touch) {
        (Some(_), Some(touch)) if !meta.vivify_last => Some(touch),
        (vivify, _) => vivify,
    };
    let change = Change::Count {
        up: count.up,
        delta: count.delta,
        compare: meta.compare.filter(|unique| *unique != 0),
        unique,
        initial: first.map(|exptime| (meta.initial, shared.until(exptime))),
        touch: touch(meta.touch, shared),
    };
    let unit = Unit::change(slot, count.key, &change);
    Plan::Asks(Answer::Counted(count.up, count.form, unique), vec![unit])
}

fn plan_delete(key: &Bytes, form: Form, slot: u64, shared: &mut Shared) -> Plan {
    let change = match &form {
        Form::Meta(meta) if meta.compare.is_some() || meta.stale => Some(Change::Drop {
            compare: meta.compare,
            stale: meta.stale,
            unique: shared.unique(),
            touch: touch(meta.touch, shared),
        }),
        _ => None,
    };
    let unit = match change {
        Some(change) => Unit::change(slot, key.clone(), &change),
        None => Unit {
            slot,
            key: key.clone(),
            work: delete(key),
        },
    };
    Plan::Asks(Answer::Deleted(form), vec![unit])
}

fn plan_meta_get(key: &Bytes, meta: Meta, slot: u64, shared: &mut Shared) -> Plan {
    let changes = meta.vivify.is_some() || meta.touch.is_some() || meta.recache.is_some();
    let unit = if changes {
        fetch(key, &meta, slot, shared)
    } else {
        let long = meta.wanted.iter().any(|(letter, _)| *letter == b't');
        Unit {
            slot,
            key: key.clone(),
            work: if long { Work::LookLong } else { Work::Look },
        }
    };
    let key = key.clone();
    Plan::Asks(Answer::Meta { key, meta }, vec![unit])
}

/// Returns the change for an `mg` by which the item may be promised to the client.
pub(super) fn fetch(key: &Bytes, meta: &Meta, slot: u64, shared: &mut Shared) -> Unit {
    let first = match (meta.vivify, meta.touch) {
        (Some(_), Some(touch)) if !meta.vivify_last => Some(touch),
        (vivify, _) => vivify,
    };
    let change = Change::Fetch {
        unique: shared.unique(),
        vivify: first.map(|exptime| shared.until(exptime)),
        touch: touch(meta.touch, shared),
        recache: meta
            .recache
            .map_or(0, |exptime| shared.seconds_until(exptime)),
    };
    Unit::change(slot, key.clone(), &change)
}

fn plan_flush(delay: i32, quiet: bool, slot: u64, shared: &mut Shared) -> Plan {
    shared.counters.flushes += 1;
    let until = shared.until(delay);
    if delay > 0 && until > shared.unix_millis {
        shared.flush_at = Some(until);
        return said((!quiet).then_some("OK"));
    }
    shared.flush_at = None;
    let unit = Unit {
        slot,
        key: Bytes::new(),
        work: Work::Command {
            words: vec![word("FLUSHDB")],
            shows: false,
        },
    };
    Plan::Asks(Answer::Flushed(quiet), vec![unit])
}
