//! Records that are written behind what they belong to.
//!
//! Invariants: what is owed is written before anything else is executed, and what this process hands to its
//! caller as the records includes it. May not decide what a record says.

use bytes::Bytes;
use pmnet_resp::read::error;
use pmnet_server::{RecordChange, RecordKey, StoreError};

use super::owner::{FENCED, RECORDS_LUA, taken_over};
use super::{LOST_REPLY, Link, RedisStore, WATERMARK};

/// Changes of records that belong to what a Redis has executed, and that it did not take with it. As long as
/// this process lives they are as good as there; the next load writes them before anything else.
#[derive(Default)]
pub struct Owed {
    /// Run id of the Redis that executed it: a later one may have lost it.
    run_id: String,
    changes: Vec<RecordChange>,
}

impl Owed {
    /// Adds changes that belong to what the Redis behind `link` has executed.
    pub fn add(&mut self, link: &Link, changes: impl IntoIterator<Item = RecordChange>) {
        self.run_id.clone_from(&link.facts.run_id);
        self.changes.extend(changes);
    }

    fn value(&self, key: &[u8]) -> Option<Bytes> {
        let (_, value) = self.changes.iter().find(|(known, _)| known == key)?;
        Some(value.clone().unwrap_or_default())
    }
}

/// Whether the record says that the request has begun whose reply the change would write.
fn has_begun(records: &[(RecordKey, Bytes)], (key, value): &RecordChange) -> bool {
    let found = records.iter().find(|(known, _)| known == key);
    let prefix = found.and_then(|(_, found)| found.strip_suffix(LOST_REPLY));
    prefix.is_some_and(|prefix| {
        value
            .as_ref()
            .is_some_and(|value| value.starts_with(prefix))
    })
}

/// Redis executed something, and did not take the records that belong to it.
pub fn unrecorded(why: &str) -> StoreError {
    StoreError::Retry(format!(
        "Redis executed something and refused to keep pmnet's record of it: {why}. Allow it (HSET, HDEL, EVAL), \
         and do not stop this server before that: it keeps the record until then"
    ))
}

impl RedisStore {
    /// Writes what is owed, durably. On an error it stays owed.
    pub(super) fn write_owed(&mut self, link: &mut Link) -> Result<(), StoreError> {
        let removed: Vec<&[u8]> = self
            .owed
            .changes
            .iter()
            .filter(|(_, value)| value.is_none())
            .map(|(key, _)| &key[..])
            .collect();
        let removed_count = removed.len().to_string();
        let mut call: Vec<&[u8]> = vec![
            b"EVAL",
            RECORDS_LUA.as_bytes(),
            b"1",
            &self.hash,
            &link.owner,
            removed_count.as_bytes(),
        ];
        call.extend(removed);
        for (key, value) in &self.owed.changes {
            if let Some(value) = value {
                call.extend([&key[..], &value[..]]);
            }
        }
        let watermark = self.owed.value(WATERMARK);
        let watermark = watermark.unwrap_or_else(|| self.watermark.clone());
        link.connection.add(&call);
        link.add_watch(&self.hash, true);
        link.add_wait(self.url.wait_replicas);
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
        link.read_wait(self.url.wait_replicas)?;
        self.watermark = watermark;
        self.in_flight = None;
        self.seen_records = true;
        self.owed.changes.clear();
        Ok(())
    }

    /// Behind a load: writes what is owed, if Redis takes writes, and adds it to what was loaded.
    pub(super) fn settle(
        &mut self,
        link: &mut Link,
        records: &mut Vec<(RecordKey, Bytes)>,
    ) -> Result<(), StoreError> {
        if self.owed.run_id != link.facts.run_id {
            // Then its record shows whether this Redis has it.
            self.owed
                .changes
                .retain(|change| has_begun(records, change));
            self.owed.run_id.clone_from(&link.facts.run_id);
        }
        if self.owed.changes.is_empty() {
            return Ok(());
        }
        let owed = self.owed.changes.clone();
        match &link.writes_refused {
            None => self.write_owed(link)?,
            // Effects of a batch are there and their watermark is not: nothing may be read yet either.
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
