//! Converts the store's replies into memcached's answers.

use bytes::Bytes;
use pmnet_resp::read;
use pmnet_wire::item::{Item, NO_ITEM};

use super::shared::Shared;
use crate::request::{Form, Meta, item_bytes};

/// The form of the store's reply to a command that stores an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Words {
    /// A plain reply: OK, or null.
    Plain,
    /// The reply to a change with a condition.
    Compared,
    /// The reply to a change that joins data.
    Joined,
}

/// How the answer to a command is made from the store's replies.
#[derive(Debug)]
pub(super) enum Answer {
    Values(Values),
    /// The answer to a command that stores an item, with the item's unique.
    Stored(Words, Form, u64),
    /// The answer to `incr` (`true`) or `decr`, with the item's unique.
    Counted(bool, Form, u64),
    Touched(bool),
    Deleted(Form),
    Flushed(bool),
    Meta {
        key: Bytes,
        meta: Meta,
    },
    Debug {
        key: Bytes,
        shown: Bytes,
    },
    /// The answer is this text, whatever the store replies; `None`: no answer.
    Said(Option<&'static str>),
}

/// The items of a retrieval, one for each reply.
#[derive(Debug)]
pub(super) struct Values {
    /// The keys whose replies have not come.
    keys: std::vec::IntoIter<Bytes>,
    /// Whether the answer includes uniques.
    unique: bool,
    touched: bool,
    /// Whether one key got an error, which has ended the answer.
    failed: bool,
}

/// The store's reply to one unit, or the reason why there is none.
pub(super) type Part = Result<Bytes, String>;

/// The result of adding a reply to an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rendered {
    Text,
    /// The item is stale and was not promised to a client yet. The store must be asked again, by a change.
    Again,
}

/// A reply of the store from which no answer can be made.
struct Trouble(String);

type Outcome = Result<Option<Vec<u8>>, Trouble>;

fn line(text: &str) -> Vec<u8> {
    [text.as_bytes(), b"\r\n"].concat()
}

fn strange() -> Trouble {
    Trouble("the store has answered in another form than expected".into())
}

/// Returns the reply. Fails if it is an error of the store.
fn checked(part: &Part) -> Result<&Bytes, Trouble> {
    let reply = part.as_ref().map_err(|why| Trouble(why.clone()))?;
    match read::error(reply) {
        Some(error) => Err(Trouble(error.to_owned())),
        None => Ok(reply),
    }
}

/// Returns the item in a reply; `None`: there is no item.
fn item(reply: &[u8]) -> Result<Option<Item<'_>>, Trouble> {
    if matches!(reply, b"$-1\r\n" | b"_\r\n") {
        return Ok(None);
    }
    let stored = read::bulk(reply).ok_or_else(strange)?;
    Ok(Some(
        Item::parse(stored).ok_or_else(|| Trouble(NO_ITEM.into()))?,
    ))
}

/// The reply to a change.
struct Changed<'a> {
    status: &'a [u8],
    text: &'a [u8],
    /// Remaining time of the item in milliseconds; -1: the item never expires.
    left: i64,
    won: bool,
}

fn changed(reply: &[u8]) -> Result<Changed<'_>, Trouble> {
    let elements = read::elements(reply).ok_or_else(strange)?;
    let [status, text, left, won] = elements[..] else {
        return Err(strange());
    };
    let changed = || {
        Some(Changed {
            status: read::bulk(status)?,
            text: read::bulk(text)?,
            left: read::integer(left)?,
            won: read::integer(won)? != 0,
        })
    };
    changed().ok_or_else(strange)
}

impl Answer {
    fn is_quiet(&self) -> bool {
        match self {
            Answer::Stored(_, form, _) | Answer::Counted(_, form, _) | Answer::Deleted(form) => {
                *form == Form::Quiet
            }
            Answer::Touched(quiet) | Answer::Flushed(quiet) => *quiet,
            Answer::Said(text) => text.is_none(),
            Answer::Values(_) | Answer::Meta { .. } | Answer::Debug { .. } => false,
        }
    }

    /// Whether the answer has ended with an error, so that further replies add nothing.
    pub(super) fn has_failed(&self) -> bool {
        matches!(self, Answer::Values(values) if values.failed)
    }

    /// Adds the text for one reply. Only a retrieval has several replies.
    pub(super) fn render(
        &mut self,
        part: &Part,
        is_last: bool,
        out: &mut Vec<u8>,
        shared: &mut Shared,
    ) -> Rendered {
        let is_quiet = self.is_quiet();
        let rendered = match self {
            Answer::Values(values) => values.render(part, is_last, out, shared).map(|()| None),
            Answer::Meta { meta, .. } => match meta_get(meta, part, shared) {
                Ok(Some(text)) => Ok(Some(text)),
                Ok(None) => return Rendered::Again,
                Err(trouble) => Err(trouble),
            },
            Answer::Stored(words, form, unique) => stored(*words, form, *unique, part, shared),
            Answer::Counted(up, form, unique) => counted(*up, form, *unique, part, shared),
            Answer::Touched(_) => touched(part, shared),
            Answer::Deleted(form) => deleted(form, part, shared),
            Answer::Flushed(_) => checked(part).map(|_| Some(line("OK"))),
            Answer::Debug { key, shown } => debug(key, shown, part).map(Some),
            Answer::Said(text) => Ok(text.map(line)),
        };
        let text = match rendered {
            Ok(text) => text.unwrap_or_default(),
            Err(Trouble(why)) => {
                shared.counters.errors += 1;
                line(&format!("SERVER_ERROR {why}"))
            }
        };
        if !is_quiet {
            out.extend_from_slice(&text);
        }
        Rendered::Text
    }
}

impl Values {
    pub(super) fn new(keys: Vec<Bytes>, unique: bool, touched: bool) -> Values {
        Values {
            keys: keys.into_iter(),
            unique,
            touched,
            failed: false,
        }
    }

    fn render(
        &mut self,
        part: &Part,
        is_last: bool,
        out: &mut Vec<u8>,
        shared: &mut Shared,
    ) -> Result<(), Trouble> {
        let key = self.keys.next().unwrap_or_default();
        if self.failed {
            return Ok(());
        }
        let found = checked(part).and_then(|reply| item(reply));
        self.failed = found.is_err();
        let found = found?;
        shared.counters.note_get(self.touched, found.is_some());
        if let Some(Item {
            flags,
            unique,
            data,
            ..
        }) = found
        {
            out.extend_from_slice(b"VALUE ");
            out.extend_from_slice(&key);
            out.extend_from_slice(format!(" {flags} {}", data.len()).as_bytes());
            if self.unique {
                out.extend_from_slice(format!(" {unique}").as_bytes());
            }
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(data);
            out.extend_from_slice(b"\r\n");
        }
        if is_last {
            out.extend_from_slice(b"END\r\n");
        }
        Ok(())
    }
}

fn stored(words: Words, form: &Form, unique: u64, part: &Part, shared: &mut Shared) -> Outcome {
    let reply = checked(part)?;
    let status: &[u8] = match (words, &reply[..]) {
        (Words::Plain, b"+OK\r\n") => b"STORED",
        (Words::Plain, b"$-1\r\n" | b"_\r\n") => b"NOT_STORED",
        (Words::Plain, _) => return Err(strange()),
        (Words::Compared | Words::Joined, reply) => changed(reply)?.status,
    };
    let (text, code) = match status {
        b"STORED" => ("STORED", "HD"),
        b"EXISTS" => ("EXISTS", "EX"),
        b"NOT_FOUND" => ("NOT_FOUND", "NF"),
        b"NOT_STORED" => ("NOT_STORED", "NS"),
        _ => return Err(strange()),
    };
    if words == Words::Compared {
        shared.counters.note_cas(code);
    }
    let Form::Meta(meta) = form else {
        return Ok(Some(line(text)));
    };
    let is_stored = code == "HD";
    if is_stored && meta.quiet {
        return Ok(None);
    }
    let mut out = code.as_bytes().to_vec();
    for (letter, opaque) in &meta.wanted {
        match letter {
            b'O' | b'k' => tell(&mut out, *letter, opaque, meta),
            b'c' => number(&mut out, b'c', if is_stored { unique } else { 0 }),
            _ => {}
        }
    }
    out.extend_from_slice(b"\r\n");
    Ok(Some(out))
}

fn counted(up: bool, form: &Form, unique: u64, part: &Part, shared: &mut Shared) -> Outcome {
    let Changed {
        status,
        text,
        left,
        won,
    } = changed(checked(part)?)?;
    if status == b"NON_NUMERIC" {
        let text = "CLIENT_ERROR cannot increment or decrement non-numeric value";
        return Ok(Some(line(text)));
    }
    let found = matches!(status, b"OK" | b"NEW");
    if !won && status != b"EXISTS" {
        shared.counters.note_count(up, found);
    }
    let Form::Meta(meta) = form else {
        return Ok(Some([if found { text } else { status }, b"\r\n"].concat()));
    };
    if status == b"OK" && meta.quiet {
        return Ok(None);
    }
    let mut out = match status {
        b"OK" | b"NEW" if meta.value => format!("VA {}", text.len()).into_bytes(),
        b"OK" | b"NEW" => b"HD".to_vec(),
        b"EXISTS" => b"EX".to_vec(),
        _ => b"NF".to_vec(),
    };
    let mut life = Life::of(left);
    for (letter, opaque) in &meta.wanted {
        match letter {
            b'O' | b'k' => tell(&mut out, *letter, opaque, meta),
            b'c' if found => number(&mut out, b'c', unique),
            b't' if found => life.tell(&mut out),
            b'T' => life.set(meta.touch, shared),
            b'N' if won => life.set(meta.vivify, shared),
            _ => {}
        }
    }
    out.extend_from_slice(b"\r\n");
    if found && meta.value {
        out.extend_from_slice(text);
        out.extend_from_slice(b"\r\n");
    }
    Ok(Some(out))
}

/// Remaining time of an item in seconds; `None`: the item never expires.
struct Life(Option<u64>);

impl Life {
    /// Makes the remaining time that the item had before the command. (A new item never expires, until its flag `N` is
    /// handled.)
    fn of(left: i64) -> Life {
        Life(u64::try_from(left).ok().map(|left| left.div_ceil(1000)))
    }

    fn until(exptime: i32, shared: &Shared) -> Life {
        Life((exptime != 0).then(|| shared.seconds_until(exptime)))
    }

    /// Sets the remaining time, if the command gives one.
    fn set(&mut self, exptime: Option<i32>, shared: &Shared) {
        if let Some(exptime) = exptime {
            *self = Life::until(exptime, shared);
        }
    }

    fn tell(&self, out: &mut Vec<u8>) {
        match self.0 {
            Some(seconds) => number(out, b't', seconds),
            None => out.extend_from_slice(b" t-1"),
        }
    }
}

/// Adds the letter and an opaque or the key to the answer.
fn tell(out: &mut Vec<u8>, letter: u8, opaque: &[u8], meta: &Meta) {
    out.extend([b' ', letter]);
    match letter {
        b'k' => {
            out.extend_from_slice(&meta.shown);
            if meta.binary {
                out.extend_from_slice(b" b");
            }
        }
        _ => out.extend_from_slice(opaque),
    }
}

fn number(out: &mut Vec<u8>, letter: u8, value: u64) {
    out.extend([b' ', letter]);
    out.extend_from_slice(value.to_string().as_bytes());
}

fn touched(part: &Part, shared: &mut Shared) -> Outcome {
    let reply = checked(part)?;
    let found = match read::integer(reply) {
        Some(flag) => flag != 0,
        None => item(reply)?.is_some(),
    };
    shared.counters.note_touch(found);
    Ok(Some(line(if found { "TOUCHED" } else { "NOT_FOUND" })))
}

fn deleted(form: &Form, part: &Part, shared: &mut Shared) -> Outcome {
    let reply = checked(part)?;
    let status = match read::integer(reply) {
        Some(0) => &b"NOT_FOUND"[..],
        Some(_) => b"DELETED",
        None => changed(reply)?.status,
    };
    shared.counters.note_delete(status == b"DELETED");
    let Form::Meta(meta) = form else {
        return Ok(Some([status, b"\r\n"].concat()));
    };
    let code = match status {
        b"DELETED" if meta.quiet => return Ok(None),
        b"DELETED" => "HD",
        b"EXISTS" => "EX",
        _ => "NF",
    };
    let mut out = code.as_bytes().to_vec();
    for (letter, opaque) in &meta.wanted {
        if matches!(letter, b'O' | b'k') {
            tell(&mut out, *letter, opaque, meta);
        }
    }
    out.extend_from_slice(b"\r\n");
    Ok(Some(out))
}

/// Facts about an item that a command asked for.
struct Found<'a> {
    item: Item<'a>,
    left: i64,
    won: bool,
    is_new: bool,
    /// Whether the command only read the item.
    plain: bool,
}

/// Returns the facts in a reply; `None`: there is no item.
fn found<'a>(part: &'a Part) -> Result<Option<Found<'a>>, Trouble> {
    let reply = checked(part)?;
    let looked = |item: Option<Item<'a>>, left| {
        item.map(|item| Found {
            item,
            left,
            won: false,
            is_new: false,
            plain: true,
        })
    };
    let Some(elements) = read::elements(reply) else {
        return Ok(looked(item(reply)?, -1));
    };
    if let [stored, left] = elements[..] {
        if let Some(error) = read::error(stored) {
            return Err(Trouble(error.to_owned()));
        }
        return Ok(looked(
            item(stored)?,
            read::integer(left).ok_or_else(strange)?,
        ));
    }
    let Changed {
        status,
        text,
        left,
        won,
    } = changed(reply)?;
    if status == b"NOT_FOUND" {
        return Ok(None);
    }
    Ok(Some(Found {
        item: Item::parse(text).ok_or_else(strange)?,
        left,
        won,
        is_new: status == b"NEW",
        plain: false,
    }))
}

/// Returns the answer to `mg`. `None`: the item may be promised to this client, which needs a change in the store.
fn meta_get(meta: &Meta, part: &Part, shared: &mut Shared) -> Outcome {
    let Some(found) = found(part)? else {
        shared.counters.note_get(meta.touch.is_some(), false);
        if meta.quiet {
            return Ok(Some(Vec::new()));
        }
        let mut out = b"EN".to_vec();
        for (letter, opaque) in &meta.wanted {
            if matches!(letter, b'O' | b'k') {
                tell(&mut out, *letter, opaque, meta);
            }
        }
        out.extend_from_slice(b"\r\n");
        return Ok(Some(out));
    };
    let Item {
        flags,
        unique,
        data,
        stale,
        token_sent,
    } = found.item;
    if found.plain && stale && !token_sent {
        return Ok(None);
    }
    shared.counters.note_get(meta.touch.is_some(), true);
    let mut out = if meta.value {
        format!("VA {}", data.len()).into_bytes()
    } else {
        b"HD".to_vec()
    };
    let mut life = Life::of(found.left);
    for (letter, opaque) in &meta.wanted {
        match letter {
            b'O' | b'k' => tell(&mut out, *letter, opaque, meta),
            b's' => number(
                &mut out,
                b's',
                u64::try_from(data.len()).unwrap_or(u64::MAX),
            ),
            b't' => life.tell(&mut out),
            b'T' => life.set(meta.touch, shared),
            b'N' if found.is_new => life.set(meta.vivify, shared),
            b'c' => number(&mut out, b'c', unique),
            b'f' => number(&mut out, b'f', flags.into()),
            _ => {}
        }
    }
    for (said, text) in [(token_sent, b" Z"), (stale, b" X"), (found.won, b" W")] {
        if said {
            out.extend_from_slice(text);
        }
    }
    out.extend_from_slice(b"\r\n");
    if meta.value {
        out.extend_from_slice(data);
        out.extend_from_slice(b"\r\n");
    }
    Ok(Some(out))
}

fn debug(key: &Bytes, shown: &Bytes, part: &Part) -> Result<Vec<u8>, Trouble> {
    let Some(Found { item, left, .. }) = found(part)? else {
        return Ok(line("EN"));
    };
    let life = u64::try_from(left).map_or(-1, |left| {
        i64::try_from(left.div_ceil(1000)).unwrap_or(i64::MAX)
    });
    let size = item_bytes(key.len(), item.flags, item.data.len());
    let facts = format!(" exp={life} cas={} size={size}\r\n", item.unique);
    Ok([b"ME ", &shown[..], facts.as_bytes()].concat())
}
