//! A store with exactly the properties that the server needs: effects in a list and records in a
//! map, both changed in one step, and durable at once. It fails when the input says so, before or
//! after the step took place, as with a lost connection.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use pmnet_server::{Batch, RecordKey, Request, Store, StoreError};

/// The contents of the store, and its next failures.
#[derive(Debug, Default)]
pub struct State {
    /// Payloads of updates and of bypasses that change data, in the order of their effect.
    pub effects: Vec<Bytes>,
    /// The protocol's records.
    pub records: BTreeMap<RecordKey, Bytes>,
    /// Number of next steps that fail before they take place.
    pub fail_before: u8,
    /// Number of next steps that take place and are reported as failed.
    pub fail_after: u8,
}

/// A handle to the state, which survives the server.
#[derive(Clone, Debug, Default)]
pub struct Lists(Arc<Mutex<State>>);

impl Lists {
    /// Returns the state.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails as the state says. Returns the result that is to be reported after the step.
    fn outcome(state: &mut State) -> Result<Result<(), StoreError>, StoreError> {
        let retry = |when: &str| StoreError::Retry(format!("failed {when}"));
        if state.fail_before > 0 {
            state.fail_before -= 1;
            return Err(retry("before"));
        }
        if state.fail_after > 0 {
            state.fail_after -= 1;
            return Ok(Err(retry("after")));
        }
        Ok(Ok(()))
    }
}

impl Store for Lists {
    fn load(&mut self) -> Result<Vec<(RecordKey, Bytes)>, StoreError> {
        let mut state = self.state();
        Lists::outcome(&mut state)??;
        Ok(state.records.clone().into_iter().collect())
    }

    fn apply(&mut self, batch: &Batch) -> Result<u64, StoreError> {
        let mut state = self.state();
        let outcome = Lists::outcome(&mut state)?;
        let keys: BTreeSet<_> = batch.records.iter().map(|(key, _)| key).collect();
        assert_eq!(
            keys.len(),
            batch.records.len(),
            "a record changes once a step"
        );
        state.effects.extend(batch.effects.iter().cloned());
        for (key, value) in &batch.records {
            match value {
                Some(value) => state.records.insert(key.clone(), value.clone()),
                None => state.records.remove(key),
            };
        }
        outcome.map(|()| 0)
    }

    fn execute(
        &mut self,
        requests: &[Request],
        replies: &mut Vec<Bytes>,
    ) -> Result<(), StoreError> {
        for request in requests {
            let mut state = self.state();
            let outcome = Lists::outcome(&mut state)?;
            // The reply is the number of earlier effects.
            let reply = Bytes::from(format!(":{}\r\n", state.effects.len()));
            if let Some((key, prefix)) = &request.record {
                let value = [&prefix[..], &reply[..]].concat();
                state.records.insert(key.clone(), value.into());
                state.effects.push(request.payload.clone());
            }
            outcome?;
            replies.push(reply);
        }
        Ok(())
    }

    fn durability(&self) -> String {
        "as durable as a list".into()
    }
}
