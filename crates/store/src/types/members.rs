//! Functions that hashes, sets and sorted sets have in common: counting members, looking them up, and choosing them at
//! random.

use std::collections::BTreeSet;
use std::ops::{Bound, ControlFlow};

use super::arguments::{Outcome, SYNTAX, error, is, signed_count};
use super::layout::{Head, Kind, Part};
use super::{Call, float, layout, size};
use crate::REPLY_BYTES_MAX;
use crate::rows::{Fault, Order};

/// A member with its stored value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// The range of all names of members.
pub const ALL: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Unbounded, Bound::Unbounded);

impl Call<'_, '_> {
    /// Returns all members of a collection, in the order of their bytes.
    pub(super) fn all(&self, head: &Head) -> Outcome<Vec<Pair>> {
        let mut found = Vec::with_capacity(size(head.count));
        self.keys.members(
            head.id,
            Part::Members,
            ALL,
            Order::Ascending,
            &mut |name, row| {
                found.push((name.to_vec(), row.value.to_vec()));
                ControlFlow::Continue(())
            },
        )?;
        Ok(found)
    }

    /// Replies with the number of members of the collection at a key.
    pub(super) fn reply_length(&mut self, kind: Kind) -> Outcome {
        let head = self.find(self.arguments[0], kind)?;
        self.reply.count(head.map_or(0, |head| head.count));
        Ok(())
    }

    /// Replies whether the collection at a key has a member.
    pub(super) fn reply_exists(&mut self, kind: Kind) -> Outcome {
        let head = self.find(self.arguments[0], kind)?;
        let name = self.arguments[1];
        let is = match head {
            Some(head) => self.keys.has(head.id, Part::Members, name)?,
            None => false,
        };
        self.reply.flag(is);
        Ok(())
    }

    /// Removes members of a hash or set, and replies with the number that existed.
    pub(super) fn remove_members(&mut self, kind: Kind) -> Outcome {
        let key = self.arguments[0];
        let Some(mut head) = self.find(key, kind)? else {
            self.reply.integer(0);
            return Ok(());
        };
        let before = head.count;
        for name in &self.arguments[1..] {
            if self.keys.has(head.id, Part::Members, name)? {
                self.keys.remove_member(head.id, Part::Members, name)?;
                head.count -= 1;
            }
        }
        if head.count != before {
            self.keep(key, &head)?;
        }
        self.reply.count(before - head.count);
        Ok(())
    }

    /// Returns the member at this position in the order of bytes. The position must exist.
    fn nth(&self, head: &Head, at: u64) -> Outcome<Pair> {
        let (mut found, ascending) = (None, Order::Ascending);
        self.keys.members_from(
            head.id,
            Part::Members,
            ALL,
            ascending,
            at,
            &mut |name, row| {
                found = Some((name.to_vec(), row.value.to_vec()));
                ControlFlow::Break(())
            },
        )?;
        let missing = || Fault::Corrupted("a collection has fewer members than it says".into());
        Ok(found.ok_or_else(missing)?)
    }

    /// Returns `count` different random members, or all members if there are fewer.
    pub(super) fn draw(&self, head: &Head, count: u64) -> Outcome<Vec<Pair>> {
        // If only a few of many members are wanted, the function chooses different positions at random (Floyd's
        // algorithm), and looks up the member at each position.
        if count < head.count / 16 {
            let mut chosen = BTreeSet::new();
            for last in head.count - count..head.count {
                let at = self.keys.random_below(last + 1);
                if !chosen.insert(at) {
                    chosen.insert(last);
                }
            }
            return chosen.into_iter().map(|at| self.nth(head, at)).collect();
        }
        let (mut wanted, mut left) = (count.min(head.count), head.count);
        let mut found = Vec::with_capacity(size(wanted));
        self.keys.members(
            head.id,
            Part::Members,
            ALL,
            Order::Ascending,
            &mut |name, row| {
                if wanted == 0 || left == 0 {
                    return ControlFlow::Break(());
                }
                if self.keys.random_below(left) < wanted {
                    found.push((name.to_vec(), row.value.to_vec()));
                    wanted -= 1;
                }
                left -= 1;
                ControlFlow::Continue(())
            },
        )?;
        Ok(found)
    }

    /// Replies with random members: `SRANDMEMBER`, `HRANDFIELD` and `ZRANDMEMBER`. `with`: the name of the option that
    /// also requests the members' stored values.
    pub(super) fn reply_random(&mut self, kind: Kind, with: Option<&str>) -> Outcome {
        let [key, options @ ..] = self.arguments else {
            return Err(SYNTAX);
        };
        let Some((count, options)) = options.split_first() else {
            let found = match self.find(key, kind)? {
                Some(head) => self.draw(&head, 1)?,
                None => Vec::new(),
            };
            let first = found.first().map(|(name, _)| &name[..]);
            self.reply.bulk_or_null(first);
            return Ok(());
        };
        if with.is_none() && !options.is_empty() {
            return Err(SYNTAX);
        }
        let count = signed_count(count)?;
        let both = match (options, with) {
            ([], _) => false,
            ([word], Some(with)) if is(word, with) => true,
            _ => return Err(SYNTAX),
        };
        if both && count.unsigned_abs() > i64::MAX.unsigned_abs() / 2 {
            return Err(error("ERR value is out of range"));
        }
        let head = self.find(key, kind)?;
        let Some(head) = head.filter(|_| count != 0) else {
            self.reply.array(0);
            return Ok(());
        };
        if count > 0 {
            let found = self.draw(&head, count.unsigned_abs())?;
            self.begin_random(found.len(), both);
            for pair in &found {
                self.random_pair(kind, pair, both);
            }
            return Ok(());
        }
        let few = count.unsigned_abs() < head.count / 16;
        let all = if few { Vec::new() } else { self.all(&head)? };
        self.begin_random(size(count.unsigned_abs()), both);
        for _ in 0..count.unsigned_abs() {
            let at = self.keys.random_below(head.count);
            match all.get(size(at)) {
                Some(pair) => self.random_pair(kind, pair, both),
                None => self.random_pair(kind, &self.nth(&head, at)?, both),
            }
            if self.reply.len() > REPLY_BYTES_MAX {
                return Err(super::arguments::Stop::Error(REPLY_TOO_LONG.into()));
            }
        }
        Ok(())
    }

    fn begin_random(&mut self, count: usize, both: bool) {
        if both {
            self.reply.pairs(count);
        } else {
            self.reply.array(count);
        }
    }

    fn random_pair(&mut self, kind: Kind, (name, value): &Pair, both: bool) {
        if !both {
            return self.reply.bulk(name);
        }
        self.reply.pair();
        self.reply.bulk(name);
        if kind == Kind::SortedSet {
            self.reply.double(stored_score(value));
        } else {
            self.reply.bulk(value);
        }
    }
}

/// Error that a command gets if its reply would be too long.
const REPLY_TOO_LONG: &[u8] = b"ERR pmnet: the reply is larger than 16 MiB";

/// Returns the score that the row of a member has.
pub fn stored_score(value: &[u8]) -> f64 {
    value.try_into().map_or(f64::NAN, layout::score_of)
}

/// Returns the score that the row of a member has, in the form in which iterations of its set show it.
pub fn shown_score(set: &Head, value: &[u8]) -> Vec<u8> {
    let score = stored_score(value);
    if set.large {
        float::double_text(score).into_bytes()
    } else {
        float::score_text(score).into_bytes()
    }
}
