//! Records that are written only after the effects to which they belong.
//!
//! Invariants: an owed record is written before anything else is executed. The records that this process returns to its
//! caller include the owed records. This module does not decide the contents of a record.

use bytes::Bytes;
use pmnet_resp::read::error;
use pmnet_server::{RecordChange, RecordKey, StoreError};

use super::config::WaitFor;
use super::owner::{FENCED, RECORDS_LUA, taken_over};
use super::{LOST_REPLY, Link, RedisStore, WATERMARK};

/// Maximum number of bytes of owed records that one call writes, unless it writes a single record. The bound keeps the
/// call short, because the call must end within its deadline.
const CALL_BYTES_MAX: usize = 16 << 20;

/// A change of a record that belongs to commands that a Redis has executed.
#[derive(Clone)]
struct Debt {
    change: RecordChange,
    /// The commands that are sent instead to a Redis that was restarted in the meantime and has no such record. `None`:
    /// no commands, because that Redis has lost the effect, too.
    otherwise: Option<Bytes>,
}

impl Debt {
    /// Returns the change that must be written to a Redis that was restarted in the meantime and now has `records`.
    fn on_another(mut self, records: &[(RecordKey, Bytes)]) -> Option<Debt> {
        let (key, value) = &self.change;
        let found = records.iter().find(|(known, _)| known == key);
        // In the record of a pack, each part has the reply [`LOST_REPLY`].
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

/// Changes of records that Redis refused, although it executed the commands to which the records belong. While this
/// process lives, these changes count as written. The next load writes them before anything else.
#[derive(Default)]
pub struct Owed {
    /// Run id of the Redis process that executed the commands. A later Redis process may have lost the commands'
    /// effects.
    run_id: String,
    debts: Vec<Debt>,
}

impl Owed {
    /// Adds changes that belong to commands of the Redis behind `link`. That Redis began the commands' records together
    /// with the commands. So if a record is missing, the commands have had no effect. (A missing watermark of a batch
    /// is treated in the same way, because applying a batch again is better than losing it.)
    pub fn add(&mut self, link: &Link, changes: impl IntoIterator<Item = RecordChange>) {
        let debts = changes.into_iter().map(|change| Debt {
            change,
            otherwise: None,
        });
        self.run_id.clone_from(&link.facts.run_id);
        self.debts.extend(debts);
    }

    /// Adds the record of a request that the Redis behind `link` executed without having begun a record. So a missing
    /// record does not prove that the request had no effect. `begun`: the record that the request gets if its reply is
    /// lost.
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

    /// Returns the number of changes that the next call writes. The watermark is written after all other changes.
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

    /// Must be called when the connected Redis may not be the process that executed the commands. If another process is
    /// connected, keeps only the changes that can be written to that process, which has `records`.
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

/// Adds the call that changes records in database 0. In a Redis Cluster the call names no key, so that a transaction
/// for another slot may contain it.
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

/// Returns the error for commands that Redis executed while it refused their records.
pub fn unrecorded(why: &str) -> StoreError {
    StoreError::Retry(format!(
        "PM2206 Redis executed something and refused to keep pmnet's record of it: {why}. Allow it (HSET, HDEL, EVAL, SELECT), \
         and do not stop this server before that: it keeps the record until then"
    ))
}

impl RedisStore {
    /// Writes the owed records durably. After an error, the records that were not written are still owed.
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

    /// Called after a load. If Redis accepts writes, writes the owed records. Adds them to the loaded records.
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
            // Redis has the effects of a batch, but not their watermark, so nothing may be read yet.
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
