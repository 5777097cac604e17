//! `trait Store`: the database as a pmnet server needs it (protocol.md §2 rules 6–8).
//!
//! A store applies batches of updates. *In the same atomic durable step* as each batch, it stores a few
//! opaque records of the protocol (watermark, session table, stored replies, staged fragments, chain record).
//! The store never reads the records; the server machine never reads the payloads.

use bytes::Bytes;

pub use pmnet_proto::server::{Origin, Source};
use pmnet_wire::Payloads;

/// Key of a record of the protocol's state. The record's value is opaque to the store.
pub type RecordKey = Vec<u8>;

/// Change of one record: `Some` writes it, `None` removes it.
pub type RecordChange = (RecordKey, Option<Bytes>);

/// Updates to apply, in log order, and the records that change with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Complete update payloads (`docs/spec/wire.md` §6), in the order in which they take effect.
    pub effects: Vec<Bytes>,
    /// For each effect, the log entry from which it came, if that was a single one. For a store that shares
    /// the log. Empty: no origins are known.
    pub origins: Vec<Option<Origin>>,
    /// For each effect, its session and place, for a store that needs them. Empty: not known.
    pub sources: Vec<Source>,
    /// Order up to which the log is applied with this batch, if the order changes. The records have it, too.
    pub upto: Option<u64>,
    /// Changes of records. A key occurs at most once.
    pub records: Vec<RecordChange>,
}

/// A bypass to execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The complete payload (`docs/spec/wire.md` §6).
    pub payload: Bytes,
    /// Session and place, for a store that needs them.
    pub source: Source,
    /// `None`: the request only reads, and may be executed at any time and more than once. `Some((key,
    /// prefix))`: the request changes state; in the same atomic durable step the record `key` becomes `prefix
    /// ++ reply`.
    pub record: Option<(RecordKey, Bytes)>,
}

/// Beginning of the text of [`StoreError::Fatal`] if another server process owns the records now. In this
/// case the records are intact.
pub const TAKEN_OVER: &str =
    "PM2005 another pmnet server process has taken over this shard's records";

/// Why a store could not carry out a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Nothing was done, or it is unknown whether it was done. The caller reloads the records (`Store::load`)
    /// and continues from their state. Causes: out of memory, read-only, loading, lost connection, full disk.
    #[error("store not ready, will be retried: {0}")]
    Retry(String),
    /// The store cannot keep its guarantees (records missing, a configuration that evicts, foreign data), so
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

/// A database that applies updates exactly once, because it keeps the records atomically with their effects.
///
/// Every call is bounded by the store's own deadlines (several seconds at most).
pub trait Store: Send {
    /// Returns all records as last durably written (empty for a fresh store). Also reconnects.
    ///
    /// # Errors
    /// [`StoreError`] if the records cannot be read.
    fn load(&mut self) -> Result<Vec<(RecordKey, Bytes)>, StoreError>;

    /// Applies the batch and its records atomically and durably. Returns how many effects the store rejected
    /// for good (malformed or failing commands). A rejected effect has no effect on the data, and the rest of
    /// the batch is applied. An effect that fails for a temporary reason fails the whole batch with `Retry`.
    ///
    /// # Errors
    /// [`StoreError`]. After `Retry`, `load` shows whether the batch was applied.
    fn apply(&mut self, batch: &Batch) -> Result<u64, StoreError>;

    /// Executes the requests in order, and appends one reply (RESP bytes) for each to `replies`. Replies are
    /// returned only once the state that they show is durable as configured. On an error, `replies` has the
    /// replies to those requests that are certainly done.
    ///
    /// # Errors
    /// [`StoreError`]. After `Retry`, `load` shows whether a request with a record was executed.
    fn execute(&mut self, requests: &[Request], replies: &mut Vec<Bytes>)
    -> Result<(), StoreError>;

    /// Returns the name of the store that was loaded last. The name changes with each start of the store
    /// process, and each copy of the store has its own. `None`: no other store can take its place, or it
    /// accepts no writes now.
    fn identity(&self) -> Option<Bytes> {
        None
    }

    /// Must be called once, at the start. The store calls `wake`, from another thread, when
    /// [`Store::has_moved`] may have become true.
    fn attend(&mut self, wake: Box<dyn Fn() + Send>) {
        drop(wake);
    }

    /// Returns whether another store must be used instead of the one that was loaded last. Then the records
    /// must be loaded again.
    fn has_moved(&self) -> bool {
        false
    }

    /// Returns whether the connection to the store that was loaded last has ended. Called twice a second,
    /// even without work. A front accepts no clients while its Redis is another process than the server's, so
    /// in that case no work would ever reveal a lost connection. Must not wait.
    fn is_gone(&mut self) -> bool {
        false
    }

    /// Returns whether [`Store::is_gone`] can ever return true.
    fn may_go(&self) -> bool {
        false
    }

    /// Returns whether the store might lack space for the updates in the devices' logs. Then no further
    /// update may be acknowledged early.
    fn is_short(&self) -> bool {
        false
    }

    /// Returns whether the free space is reserved for existing sessions and for deletes. Then no new session
    /// may begin.
    fn is_crowded(&self) -> bool {
        false
    }

    /// Returns whether this store has maintenance work, so that [`Store::tidy`] must be called from time to
    /// time.
    fn tidies(&self) -> bool {
        false
    }

    /// Does a part of the maintenance work. Returns whether there may be more.
    ///
    /// # Errors
    /// [`StoreError`] if the store fails.
    fn tidy(&mut self) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Returns the kinds of payloads that this store takes. It skips updates of all others. Always the same.
    fn payloads(&self) -> Payloads {
        Payloads::COMMANDS
    }

    /// Returns one line for status and logs: how durable an effect is when this store replies.
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
    fn payloads(&self) -> Payloads {
        (**self).payloads()
    }
    fn durability(&self) -> String {
        (**self).durability()
    }
}
