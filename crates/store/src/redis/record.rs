//! Records that are written after the effects that they belong to.
//!
//! Invariants: an owed record is written before anything else is executed, and the records that this process
//! gives to its caller include it. May not decide what a record says.

use bytes::Bytes;
use pmnet_resp::read::error;
use pmnet_server::{RecordChange, RecordKey, StoreError};

use super::config::WaitFor;
use super::owner::{FENCED, RECORDS_LUA, taken_over};
use super::{LOST_REPLY, Link, RedisStore, WATERMARK};

/// Bytes that one call writes of the records that are owed, if there are several: it must end within the deadline of a call.
const CALL_BYTES_MAX: usize = 16 << 20;

/// A change of a record that belongs to what a Redis has executed.
#[derive(Clone)]
struct Debt {
    change: RecordChange,
    /// Commands for a Redis that was restarted since, if it has nothing of the record. `None`: nothing,
    /// because then it has also lost the effect that the record belongs to.
    otherwise: Option<Bytes>,
}

impl Debt {
    /// Returns the commands for a Redis that was restarted since and has these records.
    fn on_another(mut self, records: &[(RecordKey, Bytes)]) -> Option<Debt> {
        let (key, value) = &self.change;
        let found = records.iter().find(|(known, _)| known == key);
        // Of a pack, each part has that reply.
        let begun = found.and_then(|(_, found)| found.strip_suffix(LOST_REPLY));
        let begun = begun.map(|mut found| {
            while let Some(shorter) = found.strip_suffix(LOST_REPLY) {
                found = shorter;
            }
            found
        });
        let is_there = found.map(|(_, found)| found) == value.as_ref();
        let has_begun = begun
            .zip(value.as_ref())
            .is_some_and(|(prefix, value)| value.starts_with(prefix));
        if !is_there && !has_begun {
            self.change.1 = Some(self.otherwise.clone()?);
        }
        Some(self)
    }
}

/// Record changes that Redis refused although it executed the commands they belong to. As long as this process
/// lives they count as written; the next load writes them before anything else.
#[derive(Default)]
pub struct Owed {
    /// Run id of the Redis that executed it: a later one may have lost it.
    run_id: String,
    debts: Vec<Debt>,
}

impl Owed {
    /// Adds changes that belong to what the Redis behind `link` has executed, and that it had begun to record in
    /// the same step: if there is no record, it has not happened. (The watermark of a batch counts as such,
    /// because it is better to apply a batch again than not at all.)
    pub fn add(&mut self, link: &Link, changes: impl IntoIterator<Item = RecordChange>) {
        let debts = changes.into_iter().map(|change| Debt {
            change,
            otherwise: None,
        });
        self.run_id.clone_from(&link.facts.run_id);
        self.debts.extend(debts);
    }

    /// Adds a request's record of which the Redis behind `link` wrote nothing when it executed the request: a missing
    /// record proves nothing. `begun`: the record of a request whose reply is lost.
    pub fn add_unrecorded(&mut self, link: &Link, change: RecordChange, begun: Bytes) {
        self.run_id.clone_from(&link.facts.run_id);
        self.debts.push(Debt {
            change,
            otherwise: Some(begun),
        });
    }

    fn changes(&self) -> impl Iterator<Item = &RecordChange> + Clone {
        self.debts.iter().map(|debt| &debt.change)
    }

    /// Returns how many of the first changes the next call writes. The watermark comes last, when all others are there.
    fn next_part(&mut self) -> usize {
        self.debts
            .sort_by_key(|Debt { change, .. }| change.0 == WATERMARK);
        let mut bytes = 0;
        let fits = |(key, value): &&RecordChange| {
            bytes += key.len() + value.as_ref().map_or(0, Bytes::len);
            bytes <= CALL_BYTES_MAX
        };
        let count = self.changes().take_while(fits).count();
        count.max(1).min(self.debts.len())
    }

    fn value(&self, key: &[u8]) -> Option<Bytes> {
        let (_, value) = self.changes().find(|(known, _)| known == key)?;
        Some(value.clone().unwrap_or_default())
    }

    /// Keeps what can be written to a Redis other than the one that executed it; that Redis has these records.
    fn move_on(&mut self, run_id: &str, records: &[(RecordKey, Bytes)]) {
        if self.run_id == run_id {
            return;
        }
        run_id.clone_into(&mut self.run_id);
        let batch = self.value(WATERMARK).is_some();
        let debts = std::mem::take(&mut self.debts).into_iter();
        self.debts = debts.filter_map(|debt| debt.on_another(records)).collect();
        if batch && self.value(WATERMARK).is_none() {
            tracing::warn!(
                "PM2207 Redis was restarted before it took the record of a batch that it had executed: the batch is applied \
                 again"
            );
        }
    }
}

/// Adds the call that changes records, in their database, whichever is selected. In a Redis Cluster it names no key, so that it can be
/// in a transaction for another slot.
pub fn add_records<'a>(
    link: &mut Link,
    hash: &[u8],
    changes: impl Iterator<Item = &'a RecordChange> + Clone,
) {
    let removed = changes.clone().filter(|(_, value)| value.is_none());
    let count = removed.clone().count().to_string();
    let mut call: Vec<&[u8]> = vec![b"EVAL", RECORDS_LUA.as_bytes()];
    match link.home {
        None => call.extend([b"1", hash]),
        Some(_) => call.push(b"0"),
    }
    call.extend([&link.owner[..], count.as_bytes()]);
    call.extend(removed.map(|(key, _)| &key[..]));
    for (key, value) in changes {
        if let Some(value) = value {
            call.extend([&key[..], &value[..]]);
        }
    }
    if link.home.is_some() {
        call.push(hash);
    }
    link.connection.add(&call);
}

/// Redis executed something, and refused the records that belong to it.
pub fn unrecorded(why: &str) -> StoreError {
    StoreError::Retry(format!(
        "PM2206 Redis executed something and refused to keep pmnet's record of it: {why}. Allow it (HSET, HDEL, EVAL, SELECT), \
         and do not stop this server before that: it keeps the record until then"
    ))
}

impl RedisStore {
    /// Writes what is owed, durably. On an error the rest stays owed.
    pub(super) fn write_owed(&mut self, link: &mut Link) -> Result<(), StoreError> {
        let what = match self.owed.value(WATERMARK) {
            Some(_) => WaitFor::Updates,
            None => WaitFor::Reply,
        };
        while !self.owed.debts.is_empty() {
            let count = self.owed.next_part();
            let is_last = count == self.owed.debts.len();
            let watermark = self.owed.value(WATERMARK).filter(|_| is_last);
            let watermark = watermark.unwrap_or_else(|| self.watermark.clone());
            add_records(link, &self.hash, self.owed.changes().take(count));
            link.add_watch(&self.hash, true);
            link.add_wait(what, self.url.wait_replicas);
            self.in_flight = Some(watermark.clone());
            link.connection.send()?;
            let reply = link.connection.reply()?;
            if let Some(error) = error(&reply) {
                return Err(if error.starts_with(FENCED) {
                    taken_over(&self.hash)
                } else {
                    unrecorded(error)
                });
            }
            link.read_watch(&self.hash, true, &watermark)?;
            link.read_wait(what, self.url.wait_replicas)?;
            self.watermark = watermark;
            self.in_flight = None;
            self.seen_records = true;
            self.owed.debts.drain(..count);
        }
        Ok(())
    }

    /// After a load: writes what is owed, if Redis accepts writes, and adds it to what was loaded.
    pub(super) fn settle(
        &mut self,
        link: &mut Link,
        records: &mut Vec<(RecordKey, Bytes)>,
    ) -> Result<(), StoreError> {
        self.owed.move_on(&link.facts.run_id, records);
        if self.owed.debts.is_empty() {
            return Ok(());
        }
        let owed: Vec<RecordChange> = self.owed.changes().cloned().collect();
        match &link.writes_refused {
            None => self.write_owed(link)?,
            // Effects of a batch are there, but not their watermark: so nothing may be read yet either.
            Some(error) if self.owed.value(WATERMARK).is_some() => return Err(unrecorded(error)),
            Some(_) => {}
        }
        for (key, value) in owed {
            records.retain(|(known, _)| *known != key);
            records.extend(value.map(|value| (key, value)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_owed_is_written_in_parts_and_the_watermark_last() {
        let debt = |key: &[u8], bytes: usize| Debt {
            change: (key.to_vec(), Some(vec![b'x'; bytes].into())),
            otherwise: None,
        };
        let removal = Debt {
            change: (b"gone".to_vec(), None),
            otherwise: None,
        };
        let mib = 1 << 20;
        let mut owed = Owed {
            run_id: String::new(),
            debts: vec![
                debt(WATERMARK, 8),
                debt(b"a", 9 * mib),
                debt(b"b", 6 * mib),
                debt(b"c", 2 * mib),
                debt(b"long", 17 * mib),
                removal,
                debt(b"d", 16 * mib - 1),
            ],
        };
        let mut parts = Vec::new();
        while !owed.debts.is_empty() {
            let count = owed.next_part();
            let part = owed.debts.drain(..count);
            let names = part.map(|debt| String::from_utf8(debt.change.0).unwrap());
            parts.push(names.collect::<Vec<_>>().join(" "));
        }
        assert_eq!(parts, ["a b", "c", "long", "gone", "d", "watermark"]);
        assert_eq!(owed.next_part(), 0);
    }
}
