//! `trait Store`: the database as a pmnet server needs it (protocol.md §2 rules 6–8).
//!
//! A store applies batches of updates, and with each batch, *in the same atomic durable step*, a
//! few opaque records of the protocol (watermark, session table, stored replies, staged
//! fragments, chain record). The store never looks into the records; the server machine never
//! looks into the payloads.

use bytes::Bytes;

pub use pmnet_proto::server::{Origin, Source};

/// One record of the protocol's own state: a short key and an opaque value.
pub type RecordKey = Vec<u8>;

/// Change of one record: `Some` writes it, `None` removes it.
pub type RecordChange = (RecordKey, Option<Bytes>);

/// Updates to apply, in log order, and the records that change with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Whole update payloads (`docs/spec/wire.md` §6), in the order in which they take effect.
    pub effects: Vec<Bytes>,
    /// Entry of the log from which each of them came, if it was a single one; for a store that has the log as well. Empty: from
    /// none.
    pub origins: Vec<Option<Origin>>,
    /// Session and place of each of them, for a store that wants to know. Empty: not known.
    pub sources: Vec<Source>,
    /// Order up to which the store is with this batch, if that changes. The records say it, too.
    pub upto: Option<u64>,
    /// Record changes; a key occurs at most once.
    pub records: Vec<RecordChange>,
}

/// A bypass to execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Whole payload (`docs/spec/wire.md` §6).
    pub payload: Bytes,
    /// Session and place, for a store that wants to know.
    pub source: Source,
    /// `None`: read-only, may be executed at any time and again. `Some((key, prefix))`: changes
    /// state; in the same atomic durable step the record `key` becomes `prefix ++ reply`.
    pub record: Option<(RecordKey, Bytes)>,
}

/// Beginning of the text of [`StoreError::Fatal`] if another server process owns the records now. The records are in order then.
pub const TAKEN_OVER: &str =
    "PM2005 another pmnet server process has taken over this shard's records";

/// Reason why a store could not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Nothing was done, or it is unknown whether it was done: the caller reloads the records
    /// (`Store::load`) and continues from what they say. Out of memory, read-only, loading, lost
    /// connection, full disk.
    #[error("store not ready, will be retried: {0}")]
    Retry(String),
    /// The store cannot keep its promises (records gone, evicting configuration, foreign data):
    /// the shard stops. The text says what to do.
    #[error("{0}")]
    Fatal(String),
}

impl StoreError {
    /// Returns the reason, for a caller that does not try again.
    #[must_use]
    pub fn into_text(self) -> String {
        match self {
            StoreError::Retry(text) | StoreError::Fatal(text) => text,
        }
    }
}

/// A database that applies updates exactly once, because it keeps the records atomically with them.
///
/// Every call is bounded in time by the store's own deadlines (some seconds at most).
pub trait Store: Send {
    /// Returns all records as last durably written (empty for a fresh store). Also reconnects.
    ///
    /// # Errors
    /// [`StoreError`].
    fn load(&mut self) -> Result<Vec<(RecordKey, Bytes)>, StoreError>;

    /// Applies the batch and its records atomically and durably; returns how many effects the
    /// store rejected for good (malformed or failing commands: they have no effect, the rest of the
    /// batch stands). An effect that fails for a passing reason fails the whole batch with `Retry`.
    ///
    /// # Errors
    /// [`StoreError`]; after `Retry` the batch may or may not have been applied: `load` tells.
    fn apply(&mut self, batch: &Batch) -> Result<u64, StoreError>;

    /// Executes the requests in order and appends one reply (RESP bytes) for each to `replies`.
    /// Replies are returned only once the state that they show is durable as configured.
    /// On an error `replies` holds those of the requests that are certainly done.
    ///
    /// # Errors
    /// [`StoreError`]; after `Retry` a request with a record may or may not have been executed:
    /// `load` tells.
    fn execute(&mut self, requests: &[Request], replies: &mut Vec<Bytes>)
    -> Result<(), StoreError>;

    /// Name of the store that was loaded last: another one after each start of a store process, and another
    /// one for each copy of it. `None`: no other store can take its place, or it takes no writes now.
    fn identity(&self) -> Option<Bytes> {
        None
    }

    /// To be called once, at the start: `wake` is called, from another thread, when [`Store::has_moved`] may have become true.
    fn attend(&mut self, wake: Box<dyn Fn() + Send>) {
        drop(wake);
    }

    /// Returns whether what was loaded last is not the store to use any more: the records are to be loaded again, from another one.
    fn has_moved(&self) -> bool {
        false
    }

    /// Returns whether the connection to what was loaded last has ended. Asked twice a second, also if there is nothing to do: no client is let in by a front
    /// whose Redis is another process than the server's, so no work would ever show it. Must not wait.
    fn is_gone(&mut self) -> bool {
        false
    }

    /// Returns whether [`Store::is_gone`] can ever say so.
    fn may_go(&self) -> bool {
        false
    }

    /// Returns whether what the logs of the devices may hold could find no room: nothing more is to be acknowledged in advance.
    fn is_short(&self) -> bool {
        false
    }

    /// Returns whether what room there is is for the sessions that are there, and for deletes: no new session is to begin.
    fn is_crowded(&self) -> bool {
        false
    }

    /// Returns whether this store has work of its own: then [`Store::tidy`] is called now and then.
    fn tidies(&self) -> bool {
        false
    }

    /// Does a little of that. Returns whether there may be more of it.
    ///
    /// # Errors
    /// [`StoreError`].
    fn tidy(&mut self) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// One line for status and logs: what a reply of this store means for durability.
    fn durability(&self) -> String;
}

impl<S: Store + ?Sized> Store for Box<S> {
    fn load(&mut self) -> Result<Vec<(RecordKey, Bytes)>, StoreError> {
        (**self).load()
    }
    fn apply(&mut self, batch: &Batch) -> Result<u64, StoreError> {
        (**self).apply(batch)
    }
    fn execute(
        &mut self,
        requests: &[Request],
        replies: &mut Vec<Bytes>,
    ) -> Result<(), StoreError> {
        (**self).execute(requests, replies)
    }
    fn identity(&self) -> Option<Bytes> {
        (**self).identity()
    }
    fn attend(&mut self, wake: Box<dyn Fn() + Send>) {
        (**self).attend(wake);
    }
    fn has_moved(&self) -> bool {
        (**self).has_moved()
    }
    fn is_gone(&mut self) -> bool {
        (**self).is_gone()
    }
    fn may_go(&self) -> bool {
        (**self).may_go()
    }
    fn is_short(&self) -> bool {
        (**self).is_short()
    }
    fn is_crowded(&self) -> bool {
        (**self).is_crowded()
    }
    fn tidies(&self) -> bool {
        (**self).tidies()
    }
    fn tidy(&mut self) -> Result<bool, StoreError> {
        (**self).tidy()
    }
    fn durability(&self) -> String {
        (**self).durability()
    }
}
