//! Subscriptions over shards. Each channel has one home: the shard of its name's slot, to which PUBLISH sends the
//! channel's messages. Subscriptions to patterns, and to the channels of keyspace events, are made at all shards,
//! because every shard may have messages for them.
//!
//! Each front counts only its own subscriptions, so the router replaces the number in a confirmation.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use pmnet_resp::{read, write_command, write_integer};

use super::backs::{Backs, HOME, Stop, Taken};
use super::client::Common;
use super::link::{CONFIRMS, Owed};
use super::replies::{Replies, Wait};
use super::route::{CLUSTERDOWN, CROSSSLOT, Command, Place, place};
use super::slot::{SlotMap, slot_of};

/// A number of consecutive confirmations that come from one shard, or each of them from all shards.
struct Step {
    /// The shard; `None`: all shards.
    shard: Option<usize>,
    left: usize,
    /// Shards that must still send the present confirmation; empty: no confirmation is awaited yet.
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
    /// Notes that a command was sent to these shards. `places`: for each of the command's channels, the shard that
    /// confirms it; `None`: all shards confirm it.
    fn new(places: Vec<Option<usize>>, shards: Vec<usize>) -> Change {
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
        Change {
            steps,
            shards,
            failed: Vec::new(),
            succeeded: false,
            error: None,
        }
    }

    /// Whether the change waits for a confirmation of this shard.
    pub(super) fn concerns(&self, shard: usize) -> bool {
        let step = self.steps.front();
        step.is_some_and(|step| step.waiting.contains(&shard))
    }

    /// Returns the shards to which the command was sent.
    pub(super) fn shards(&self) -> &[usize] {
        &self.shards
    }

    /// Returns the shard, of all `shards`, whose confirmation is next; `None`: no confirmation is missing.
    pub(super) fn next(&mut self, shards: usize) -> Option<usize> {
        while let Some(step) = self.steps.front_mut() {
            if step.waiting.is_empty() {
                let all = step.shard.map_or(0..shards, |shard| shard..shard + 1);
                let works = |shard: &usize| !self.failed.contains(shard);
                step.waiting = all.filter(works).collect();
            }
            if let Some(shard) = step.waiting.last() {
                return Some(*shard);
            }
            self.steps.pop_front();
        }
        None
    }

    /// Takes the confirmation of the shard that [`Change::next`] returned. Returns the confirmation for the client, if
    /// it is complete.
    pub(super) fn confirmed(
        &mut self,
        frame: Bytes,
        own: &mut Subscriptions,
        subscribed: &mut [u64; 2],
    ) -> Option<Bytes> {
        let step = self.steps.front_mut()?;
        let shard = step.waiting.pop()?;
        if let Some(told) = own.confirm(&frame, subscribed) {
            self.succeeded = true;
            step.confirmed = Some(told);
        } else {
            self.failed.push(shard);
            self.error.get_or_insert(frame);
        }
        if !step.waiting.is_empty() {
            return None;
        }
        let told = step.confirmed.take();
        step.left -= 1;
        if step.left == 0 {
            self.steps.pop_front();
        }
        told
    }

    /// Whether the change succeeded at some shards and failed at others.
    pub(super) fn is_half_done(&self) -> bool {
        self.error.is_some() && self.succeeded
    }

    /// Takes the error of the first shard that refused the change.
    pub(super) fn take_error(&mut self) -> Option<Bytes> {
        self.error.take()
    }
}

/// The subscriptions of a client.
#[derive(Default)]
pub(super) struct Subscriptions {
    channels: BTreeSet<Bytes>,
    patterns: BTreeSet<Bytes>,
    sharded: BTreeSet<Bytes>,
}

impl Subscriptions {
    /// Whether the client has any subscription.
    pub(super) fn is_any(&self) -> bool {
        !(self.channels.is_empty() && self.patterns.is_empty() && self.sharded.is_empty())
    }

    /// Returns the set of names to which a confirmation of this kind belongs.
    fn of(&mut self, name: &[u8]) -> &mut BTreeSet<Bytes> {
        match name {
            [b'p', ..] => &mut self.patterns,
            [b's', b's', ..] | [b's', b'u', b'n', ..] => &mut self.sharded,
            _ => &mut self.channels,
        }
    }

    /// Returns a confirmation in which the shard's number of subscriptions is replaced by the client's number. Stores
    /// the shard's number in `subscribed`.
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

/// Returns the shard that sends a channel's messages; `None`: each shard may send messages.
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

/// A kind of subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Channels,
    Patterns,
    Sharded,
}

impl Of {
    /// Returns the kind that a command changes.
    fn command(name: &[u8]) -> Of {
        match name {
            b"PSUBSCRIBE" | b"PUNSUBSCRIBE" => Of::Patterns,
            b"SSUBSCRIBE" | b"SUNSUBSCRIBE" => Of::Sharded,
            _ => Of::Channels,
        }
    }

    /// Returns the shard that sends the messages for this name; `None`: each shard may send messages.
    fn home_of(self, name: &[u8], common: &Common) -> Option<usize> {
        match self {
            Of::Channels => home_of(name, &common.map),
            // Each node of a Redis Cluster gets all messages, but only the keyspace events of its own keys.
            Of::Patterns => (common.cluster && !name.starts_with(b"__key")).then_some(HOME),
            Of::Sharded => Some(common.map.shard(slot_of(name)).unwrap_or(HOME)),
        }
    }
}

impl Subscriptions {
    fn set(&self, of: Of) -> &BTreeSet<Bytes> {
        match of {
            Of::Channels => &self.channels,
            Of::Patterns => &self.patterns,
            Of::Sharded => &self.sharded,
        }
    }

    /// Carries out SUBSCRIBE and similar commands. `replies`: the outstanding replies to earlier commands.
    pub(super) fn subscribe(
        &self,
        command: &Command<'_>,
        replies: &Replies,
        backs: &mut Backs,
    ) -> Taken {
        let common = command.common;
        let name = command.arguments.get(0).to_ascii_uppercase();
        let of = Of::command(&name);
        let channels = command.arguments.iter().skip(1);
        let mut channels: Vec<Bytes> = channels.map(Bytes::copy_from_slice).collect();
        if of == Of::Sharded {
            match place(channels.iter().map(|channel| &channel[..])) {
                Place::Cross => return Err(Stop::Own(CROSSSLOT)),
                Place::Slot(slot) if common.map.shard(slot).is_none() => {
                    return Err(Stop::Own(CLUSTERDOWN));
                }
                Place::Slot(_) | Place::Anywhere => {}
            }
        }
        if channels.is_empty() {
            // Without names, the command is about all subscriptions of the client. The client's subscriptions are known
            // only when all earlier changes are confirmed.
            if replies.change_subscriptions() {
                return Err(Stop::Later);
            }
            channels = self.set(of).iter().cloned().collect();
        }
        let places: Vec<Option<usize>> = if channels.is_empty() {
            vec![Some(HOME)]
        } else {
            let home = |channel: &Bytes| of.home_of(channel, common);
            channels.iter().map(home).collect()
        };
        let is_at = |own: Option<usize>, shard: usize| own.is_none_or(|own| own == shard);
        let shards: Vec<usize> = (0..backs.len())
            .filter(|shard| places.iter().any(|own| is_at(*own, *shard)))
            .collect();
        for shard in &shards {
            backs.ready(*shard)?;
        }
        for shard in &shards {
            let own = channels.iter().zip(&places);
            let own = own.filter(|(_, own)| is_at(**own, *shard));
            let words = std::iter::once(&name[..]).chain(own.map(|(channel, _)| &channel[..]));
            let words: Vec<&[u8]> = words.collect();
            let mut frame = Vec::with_capacity(command.frame.len());
            write_command(&mut frame, &words);
            backs.send(*shard, &frame, Owed::Client);
        }
        Ok(Wait::Subscribe(Box::new(Change::new(places, shards))))
    }

    /// Whether messages of a subscribed channel come from another shard once `new` has replaced `old`.
    pub(super) fn move_with(&self, old: &SlotMap, new: &SlotMap) -> bool {
        let moves = |channel: &Bytes| home_of(channel, old) != home_of(channel, new);
        self.channels.iter().chain(&self.sharded).any(moves)
    }
}

/// Returns the shard to which PUBLISH goes.
pub(super) fn home_of_message(channel: &[u8], map: &SlotMap) -> usize {
    home_of(channel, map).unwrap_or(HOME)
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
        // The slots are 12182 for foo and 5061 for bar.
        assert_eq!(home_of(b"foo", &map), Some(1));
        assert_eq!(home_of(b"bar", &map), Some(0));
        assert_eq!(home_of(b"__keyspace@0__:foo", &map), Some(1));
        assert_eq!(home_of(b"__keyspace@0__:bar", &map), Some(0));
        assert_eq!(home_of(b"__keyevent@0__:del", &map), None);
    }
}
