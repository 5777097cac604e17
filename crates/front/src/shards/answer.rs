//! What a client waits for, in the order of its commands, and how it gets it.

use bytes::Bytes;
use pmnet_resp::{read, reply, write_bulk, write_header};

use super::client::Client;
use super::link::{Link, Owed};
use super::merge::Merge;
use super::subscribe::Change;

/// Answers to one client that it has not read, above which no more are taken from the links, in bytes.
pub(super) const OUT_BYTES_SOFT_MAX: usize = 1024 * 1024;

const LOST: &[u8] = b"-ERR pmnet: the front of the shard closed the connection\r\n";

/// What the reply to one command comes from.
pub(super) enum Wait {
    /// It is here.
    Ready(Bytes),
    /// The next of this link.
    One(usize),
    /// The same; if it is an error, the transaction with this number has not begun.
    Multi(usize, u64),
    /// The same, of a SCAN: the shard goes into the cursor.
    Scan(usize),
    /// One of each link.
    All(Merge, Vec<Option<Bytes>>),
    /// Those of a change of subscriptions.
    Subscribe(Box<Change>),
    /// That of a change of the state.
    State(u64),
}

/// A command that has no reply yet.
pub(super) struct Slot {
    pub(super) wait: Wait,
    /// Its reply is not sent (CLIENT REPLY).
    pub(super) silent: bool,
}

impl Client {
    /// Hands on what has come, as far as it is its turn. Whether there was anything.
    pub(super) fn pump(&mut self) -> bool {
        let mut any = false;
        loop {
            let mut moved = false;
            for shard in 0..self.links.len() {
                moved |= self.sweep(shard);
            }
            moved |= self.answer();
            self.note_lost();
            any |= moved;
            if !moved {
                return any;
            }
        }
    }

    /// Sends the replies that are there, in order.
    fn answer(&mut self) -> bool {
        let mut moved = false;
        while !self.is_congested() {
            let Some(mut slot) = self.slots.pop_front() else {
                break;
            };
            let Some(reply) = self.reply_to(&mut slot) else {
                self.slots.push_front(slot);
                break;
            };
            moved = true;
            self.taken_before = self.taken_before.saturating_sub(1);
            if !slot.silent {
                self.out.extend_from_slice(&reply);
            }
        }
        moved
    }

    fn reply_to(&mut self, slot: &mut Slot) -> Option<Bytes> {
        match &mut slot.wait {
            Wait::Ready(reply) => Some(std::mem::take(reply)),
            Wait::One(shard) => self.last_reply_of(*shard),
            Wait::Multi(shard, number) => {
                let reply = self.last_reply_of(*shard)?;
                if reply.starts_with(b"-") {
                    self.transaction_refused(*number);
                }
                Some(reply)
            }
            Wait::Scan(shard) => {
                let shards = self.links.len();
                let reply = self.last_reply_of(*shard)?;
                Some(with_shard(&reply, *shard, shards))
            }
            Wait::All(merge, parts) => {
                for (shard, part) in parts.iter_mut().enumerate() {
                    if part.is_none() {
                        *part = self.last_reply_of(shard);
                    }
                }
                let all: Option<Vec<Bytes>> = parts.iter().cloned().collect();
                all.map(|parts| merge.of(&parts))
            }
            Wait::Subscribe(change) => self.subscribed(change, slot.silent),
            Wait::State(number) => self.state.answer(*number),
        }
    }

    /// Links that have ended: those that were given up are gone; without any other the client cannot go on.
    fn note_lost(&mut self) {
        for shard in 0..self.links.len() {
            let over = |link: &mut Box<Link>| link.ended && link.has_head().is_none();
            if !self.links[shard].as_mut().is_some_and(over) {
                continue;
            }
            if self.links[shard]
                .as_ref()
                .is_some_and(|link| link.is_closing())
            {
                let link = self.links[shard].take();
                let settle = |link: &mut Box<Link>| link.settle();
                let owed = link.into_iter().flat_map(|mut link| {
                    std::iter::from_fn(move || settle(&mut link)).collect::<Vec<_>>()
                });
                for owed in owed {
                    match owed {
                        Owed::State(number) => {
                            self.state_answered(number, shard, Bytes::from_static(LOST));
                        }
                        // Nothing else is sent on a link that may be given up; should it be, its client cannot go on.
                        Owed::Client | Owed::Probe => (self.ending, self.done) = (true, true),
                        Owed::Setup | Owed::Nobody => {}
                    }
                }
                continue;
            }
            self.ending = true;
            self.lingers |= !self.eof;
            let owes = self.links[shard]
                .as_ref()
                .is_some_and(|link| link.owed().is_some());
            if self.slots.is_empty() || self.waits_for(shard) || (!owes && !self.eof) {
                self.done = true;
            }
        }
    }

    /// Whether the reply whose turn it is comes from this link.
    fn waits_for(&self, shard: usize) -> bool {
        match self.slots.front().map(|slot| &slot.wait) {
            None | Some(Wait::Ready(_)) => false,
            Some(Wait::One(own) | Wait::Multi(own, _) | Wait::Scan(own)) => *own == shard,
            Some(Wait::All(_, parts)) => parts.get(shard).is_some_and(Option::is_none),
            Some(Wait::Subscribe(change)) => change.concerns(shard),
            Some(Wait::State(_)) => true,
        }
    }
}

/// The reply to a SCAN with the shard in its cursor: `inner * shards + shard`; that of the last shard ends with 0.
fn with_shard(scanned: &[u8], shard: usize, shards: usize) -> Bytes {
    let parts = read::elements(scanned).unwrap_or_default();
    let [cursor, keys] = parts[..] else {
        return Bytes::copy_from_slice(scanned);
    };
    let inner = read::text(cursor)
        .and_then(|text| std::str::from_utf8(text).ok())
        .and_then(|text| text.parse::<u64>().ok());
    let (shard, shards) = (wide(shard), wide(shards));
    let outer = match inner {
        Some(0) if shard + 1 == shards => Some(0),
        Some(0) => Some(shard + 1),
        Some(inner) => inner
            .checked_mul(shards)
            .and_then(|outer| outer.checked_add(shard)),
        None => None,
    };
    let Some(outer) = outer else {
        return reply::error("ERR pmnet: the cursor of the shard is too large to carry its number");
    };
    let mut out = Vec::with_capacity(scanned.len() + 16);
    write_header(&mut out, 2);
    write_bulk(&mut out, outer.to_string().as_bytes());
    out.extend_from_slice(keys);
    out.into()
}

/// The shard that a cursor names, and the cursor there.
pub(super) fn shard_of_cursor(cursor: u64, shards: usize) -> (usize, u64) {
    let shards = wide(shards);
    let shard = usize::try_from(cursor % shards).unwrap_or(0);
    (shard, cursor / shards)
}

fn wide(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_carries_its_shard() {
        let scanned = |cursor: &str| format!("*2\r\n${}\r\n{cursor}\r\n*0\r\n", cursor.len());
        for (inner, shard, outer) in [
            ("0", 0, "1"),
            ("0", 1, "2"),
            ("0", 2, "0"),
            ("5", 0, "15"),
            ("5", 2, "17"),
        ] {
            let told = with_shard(scanned(inner).as_bytes(), shard, 3);
            assert_eq!(&told[..], scanned(outer).as_bytes());
            if outer != "0" {
                let (next, cursor) = shard_of_cursor(outer.parse().unwrap(), 3);
                let expected = if inner == "0" {
                    (shard + 1, 0)
                } else {
                    (shard, 5)
                };
                assert_eq!((next, cursor), expected);
            }
        }
        let huge = with_shard(scanned(&u64::MAX.to_string()).as_bytes(), 0, 3);
        assert!(huge.starts_with(b"-ERR pmnet: the cursor"));
        assert_eq!(&with_shard(b"-ERR x\r\n", 0, 3)[..], b"-ERR x\r\n");
    }
}
