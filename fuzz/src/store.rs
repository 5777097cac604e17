//! A store that is exactly what the server asks of one: effects in a list, records in a map, both
//! changed in one step, durable at once. It fails when the input wants it to, before or after the
//! step took place, as a lost connection does.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use pmnet_server::{Batch, RecordKey, Request, Store, StoreError};

/// What the store holds, and how it behaves next.
#[derive(Debug, Default)]
pub struct State {
    /// Payloads of updates and of bypasses that change something, in the order of their effect.
    pub effects: Vec<Bytes>,
    /// The protocol's records.
    pub records: BTreeMap<RecordKey, Bytes>,
    /// The next steps fail before they take place, so many.
    pub fail_before: u8,
    /// The next steps take place and are reported as failed, so many.
    pub fail_after: u8,
}

/// A handle to the state, which survives the server.
#[derive(Clone, Debug, Default)]
pub struct Lists(Arc<Mutex<State>>);

impl Lists {
    /// The state.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails as the state says; what is to be reported after the step.
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
            // How many effects there were before.
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
