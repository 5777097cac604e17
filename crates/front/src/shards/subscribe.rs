//! Subscriptions over shards. Each channel has one home: the shard of its name's slot, where PUBLISH sends what is for it.
//! Patterns, and the channels of keyspace events, which each Redis has for itself, are subscribed to at all shards.
//!
//! Each front counts its own subscriptions, so the number in a confirmation is written anew here.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use pmnet_resp::{Arguments, read, write_bulk, write_header, write_integer};

use super::answer::Wait;
use super::client::{Client, Common, Done, HOME};
use super::link::{CONFIRMS, Owed};
use super::route::{CLUSTERDOWN, CROSSSLOT, Place, place};
use super::slot::{SlotMap, slot_of};

/// So many confirmations of the same links, one after the other.
struct Step {
    /// `None`: all.
    shard: Option<usize>,
    left: usize,
    /// Who has still to confirm the present one; empty: it has not begun.
    waiting: Vec<usize>,
    confirmed: Option<Bytes>,
}

/// A change of subscriptions under way.
pub(super) struct Change {
    steps: VecDeque<Step>,
    shards: Vec<usize>,
    failed: Vec<usize>,
    succeeded: bool,
    error: Option<Bytes>,
}

impl Change {
    /// Whether it waits for this shard.
    pub(super) fn concerns(&self, shard: usize) -> bool {
        let step = self.steps.front();
        step.is_some_and(|step| step.waiting.contains(&shard))
    }
}

/// What a client is subscribed to.
#[derive(Default)]
pub(super) struct Subscriptions {
    channels: BTreeSet<Bytes>,
    patterns: BTreeSet<Bytes>,
    sharded: BTreeSet<Bytes>,
}

impl Subscriptions {
    /// Whether it is to anything.
    pub(super) fn is_any(&self) -> bool {
        !(self.channels.is_empty() && self.patterns.is_empty() && self.sharded.is_empty())
    }

    /// What a confirmation of this kind is about.
    fn of(&mut self, name: &[u8]) -> &mut BTreeSet<Bytes> {
        match name {
            [b'p', ..] => &mut self.patterns,
            [b's', b's', ..] | [b's', b'u', b'n', ..] => &mut self.sharded,
            _ => &mut self.channels,
        }
    }

    /// A confirmation with the client's own number in it; the shard's is noted.
    fn confirm(&mut self, frame: &[u8], subscribed: &mut [u64; 2]) -> Option<Bytes> {
        let [kind, channel, count] = read::elements(frame)?[..] else {
            return None;
        };
        let name = read::bulk(kind)?;
        if !CONFIRMS.contains(&name) {
            return None;
        }
        let sharded = name.starts_with(b"ss") || name.starts_with(b"sun");
        let removes = name.starts_with(b"un") || name[1..].starts_with(b"un");
        subscribed[usize::from(sharded)] = u64::try_from(read::integer(count)?).ok()?;
        let set = self.of(name);
        if let Some(channel) = read::bulk(channel) {
            if removes {
                set.remove(channel);
            } else {
                set.insert(Bytes::copy_from_slice(channel));
            }
        }
        let count = if sharded {
            self.sharded.len()
        } else {
            self.channels.len() + self.patterns.len()
        };
        let mut out = Vec::with_capacity(frame.len() + 8);
        out.extend_from_slice(&frame[..4]);
        out.extend_from_slice(kind);
        out.extend_from_slice(channel);
        write_integer(&mut out, i64::try_from(count).unwrap_or(i64::MAX));
        Some(out.into())
    }
}

/// Where a channel's messages come from; `None`: from all shards.
fn home_of(channel: &[u8], map: &SlotMap) -> Option<usize> {
    if channel.starts_with(b"__keyevent@") {
        return None;
    }
    let event = channel.strip_prefix(b"__keyspace@").and_then(|rest| {
        let at = rest.windows(3).position(|three| three == b"__:")?;
        Some(&rest[at + 3..])
    });
    Some(map.shard(slot_of(event.unwrap_or(channel))).unwrap_or(HOME))
}

impl Client {
    /// SUBSCRIBE and its like.
    pub(super) fn subscribe(
        &mut self,
        arguments: &Arguments<'_>,
        frame: &[u8],
        common: &mut Common,
    ) -> Done {
        let name = arguments.get(0).to_ascii_uppercase();
        let sharded = matches!(&name[..], b"SSUBSCRIBE" | b"SUNSUBSCRIBE");
        let patterns = matches!(&name[..], b"PSUBSCRIBE" | b"PUNSUBSCRIBE");
        let mut channels: Vec<Bytes> = arguments
            .iter()
            .skip(1)
            .map(Bytes::copy_from_slice)
            .collect();
        if sharded {
            match place(channels.iter().map(|channel| &channel[..])) {
                Place::Cross => return self.own(CROSSSLOT, common),
                Place::Slot(slot) if common.map.shard(slot).is_none() => {
                    return self.own(CLUSTERDOWN, common);
                }
                Place::Slot(_) | Place::Anywhere => {}
            }
        }
        if channels.is_empty() {
            // All: which these are is known when what was sent before is confirmed.
            if self.is_changing() {
                return Done::Later;
            }
            let set = match (patterns, sharded) {
                (true, _) => &self.subscriptions.patterns,
                (_, true) => &self.subscriptions.sharded,
                _ => &self.subscriptions.channels,
            };
            channels = set.iter().cloned().collect();
        }
        let places: Vec<Option<usize>> = if channels.is_empty() {
            vec![Some(HOME)]
        } else {
            let home = |channel: &Bytes| {
                if patterns {
                    // Any node of a Redis Cluster has all messages; but events of keys only its own.
                    (common.cluster && !channel.starts_with(b"__key")).then_some(HOME)
                } else if sharded {
                    Some(common.map.shard(slot_of(channel)).unwrap_or(HOME))
                } else {
                    home_of(channel, &common.map)
                }
            };
            channels.iter().map(home).collect()
        };
        let is_of = |shard: usize| places.iter().any(|own| own.is_none_or(|own| own == shard));
        let shards: Vec<usize> = (0..self.links.len())
            .filter(|shard| is_of(*shard))
            .collect();
        for shard in &shards {
            if let Err(done) = self.ready(*shard, common) {
                return done;
            }
        }
        for shard in &shards {
            let own: Vec<&[u8]> = std::iter::once(&name[..])
                .chain(
                    channels
                        .iter()
                        .zip(&places)
                        .filter(|(_, own)| own.is_none_or(|own| own == *shard))
                        .map(|(channel, _)| &channel[..]),
                )
                .collect();
            let mut own_frame = Vec::with_capacity(frame.len());
            write_header(&mut own_frame, own.len());
            for word in own {
                write_bulk(&mut own_frame, word);
            }
            if let Some(link) = &mut self.links[*shard] {
                link.send(&own_frame, Owed::Client);
            }
        }
        let mut steps: VecDeque<Step> = VecDeque::new();
        for shard in places {
            match steps.back_mut() {
                Some(step) if step.shard == shard => step.left += 1,
                _ => steps.push_back(Step {
                    shard,
                    left: 1,
                    waiting: Vec::new(),
                    confirmed: None,
                }),
            }
        }
        self.wait_for(Wait::Subscribe(Box::new(Change {
            steps,
            shards,
            failed: Vec::new(),
            succeeded: false,
            error: None,
        })));
        Done::Taken
    }

    /// Whether it listens where nothing will come any more when `new` has replaced `old`.
    pub(super) fn listens_elsewhere(&self, old: &SlotMap, new: &SlotMap) -> bool {
        let moves = |channel: &Bytes| home_of(channel, old) != home_of(channel, new);
        let Subscriptions {
            channels, sharded, ..
        } = &self.subscriptions;
        (self.is_changing() && old.differing(new).is_some())
            || channels.iter().chain(sharded).any(moves)
    }

    /// Whether a change of subscriptions is under way.
    pub(super) fn is_changing(&self) -> bool {
        let changes = |slot: &super::answer::Slot| matches!(slot.wait, Wait::Subscribe(_));
        self.slots.iter().any(changes)
    }

    /// Hands on confirmations; what is left to say when there are no more.
    pub(super) fn subscribed(&mut self, change: &mut Change, silent: bool) -> Option<Bytes> {
        while let Some(step) = change.steps.front_mut() {
            if step.waiting.is_empty() {
                let all: Vec<usize> = match step.shard {
                    Some(shard) => vec![shard],
                    None => (0..self.links.len()).collect(),
                };
                let works = |shard: &usize| !change.failed.contains(shard);
                step.waiting = all.into_iter().filter(works).collect();
                if step.waiting.is_empty() {
                    change.steps.pop_front();
                    continue;
                }
            }
            while let Some(shard) = step.waiting.last().copied() {
                let frame = self.reply_of(shard)?;
                step.waiting.pop();
                let link = self.links[shard].as_deref_mut()?;
                match self.subscriptions.confirm(&frame, &mut link.subscribed) {
                    Some(told) => {
                        change.succeeded = true;
                        step.confirmed = Some(told);
                    }
                    None => {
                        change.failed.push(shard);
                        change.error.get_or_insert(frame);
                    }
                }
            }
            if let Some(told) = step.confirmed.take()
                && (!silent || self.state.resp3)
            {
                self.out.extend_from_slice(&told);
            }
            step.left -= 1;
            if step.left == 0 {
                change.steps.pop_front();
            }
        }
        for shard in &change.shards {
            if let Some(link) = &mut self.links[*shard] {
                link.settle();
            }
        }
        // Half of it would be neither one nor the other.
        if change.error.is_some() && change.succeeded {
            (self.ending, self.done, self.lingers) = (true, true, true);
        }
        Some(change.error.take().unwrap_or_default())
    }

    /// PUBLISH: to the home of its channel.
    pub(super) fn publish(
        &mut self,
        arguments: &Arguments<'_>,
        frame: &[u8],
        common: &mut Common,
    ) -> Done {
        let shard = home_of(arguments.get(1), &common.map).unwrap_or(HOME);
        self.forward(shard, frame, Wait::One(shard), common)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shards::slot::parse_slots;

    #[test]
    fn numbers_of_confirmations_are_the_clients_own() {
        let mut own = Subscriptions::default();
        let mut shards = [[0; 2]; 2];
        let mut told = |shard: usize, marker: char, kind: &str, channel: &str, count: u64| {
            let channel = if channel.is_empty() {
                "$-1\r\n".to_owned()
            } else {
                format!("${}\r\n{channel}\r\n", channel.len())
            };
            let frame = format!(
                "{marker}3\r\n${}\r\n{kind}\r\n{channel}:{count}\r\n",
                kind.len()
            );
            let told = own.confirm(frame.as_bytes(), &mut shards[shard]).unwrap();
            let told = String::from_utf8(told.to_vec()).unwrap();
            let (before, number) = told.trim_end().rsplit_once(':').unwrap();
            assert!(frame.starts_with(before), "{told}");
            (number.parse::<u64>().unwrap(), shards[shard], own.is_any())
        };
        assert_eq!(told(0, '*', "subscribe", "a", 1), (1, [1, 0], true));
        assert_eq!(told(1, '*', "subscribe", "b", 1), (2, [1, 0], true));
        assert_eq!(told(0, '>', "psubscribe", "p", 2), (3, [2, 0], true));
        assert_eq!(told(1, '>', "ssubscribe", "s", 1), (1, [1, 1], true));
        assert_eq!(told(0, '*', "unsubscribe", "a", 1), (2, [1, 0], true));
        assert_eq!(told(0, '*', "punsubscribe", "p", 0), (1, [0, 0], true));
        assert_eq!(told(1, '*', "sunsubscribe", "s", 0), (0, [1, 0], true));
        assert_eq!(told(1, '*', "unsubscribe", "b", 0), (0, [0, 0], false));
        assert_eq!(told(0, '*', "unsubscribe", "", 0), (0, [0, 0], false));
        assert_eq!(own.confirm(b"-ERR x\r\n", &mut [0; 2]), None);
    }

    #[test]
    fn a_channel_has_one_home_and_events_are_where_their_keys_are() {
        let lists = ["0-8191", "8192-16382"].map(|text| parse_slots(text).unwrap());
        let map = SlotMap::new(&lists).unwrap();
        // foo: 12182, bar: 5061.
        assert_eq!(home_of(b"foo", &map), Some(1));
        assert_eq!(home_of(b"bar", &map), Some(0));
        assert_eq!(home_of(b"__keyspace@0__:foo", &map), Some(1));
        assert_eq!(home_of(b"__keyspace@0__:bar", &map), Some(0));
        assert_eq!(home_of(b"__keyevent@0__:del", &map), None);
    }
}
