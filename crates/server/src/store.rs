//! The trait [`Store`]: what a pmnet server needs from a database (protocol.md §2 rules 6–8).
//!
//! A store applies batches of updates. *In the same atomic durable step* as each batch, it stores a few records of the
//! protocol (watermark, session table, stored replies, staged fragments, chain record). The records are opaque to the
//! store, and the payloads are opaque to the server machine.

use bytes::Bytes;

pub use pmnet_proto::server::{Origin, Source};
use pmnet_wire::Payloads;

/// Key of a record of the protocol's state. The value of the record is opaque to the store.
pub type RecordKey = Vec<u8>;

/// Change of one record: `Some` writes the record, and `None` removes it.
pub type RecordChange = (RecordKey, Option<Bytes>);

/// Updates in log order, and the changes of records that belong to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Complete payloads of updates (`docs/spec/wire.md` §6), in the order in which they take effect.
    pub effects: Vec<Bytes>,
    /// For each effect, the log entry from which it came; `None` if it came from several. The origin is for a store
    /// that shares the log. Empty: the origins are unknown.
    pub origins: Vec<Option<Origin>>,
    /// For each effect, its session and its position in the session, for a store that needs them. Empty: unknown.
    pub sources: Vec<Source>,
    /// Order up to which the log is applied after this batch; `None` if the batch does not change it. The records also
    /// contain this order.
    pub upto: Option<u64>,
    /// Changes of records. Each key occurs at most once.
    pub records: Vec<RecordChange>,
}

/// A bypass that the store must execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The complete payload (`docs/spec/wire.md` §6).
    pub payload: Bytes,
    /// Session of the request and its position in the session, for a store that needs them.
    pub source: Source,
    /// `None`: the request only reads, and may be executed at any time and more than once. `Some((key, prefix))`: the
    /// request changes state. In the same atomic durable step, the record `key` gets the value `prefix ++ reply`.
    pub record: Option<(RecordKey, Bytes)>,
}

/// Beginning of the text of a [`StoreError::Fatal`] if another server process now owns the records. Then the records
/// are intact.
pub const TAKEN_OVER: &str =
    "PM2005 another pmnet server process has taken over this shard's records";

/// The reason why a store could not carry out a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The store has done nothing, or it is unknown whether the store has executed the request. The caller loads the
    /// records again (`Store::load`) and continues from their state. Causes: out of memory, read-only, loading, lost
    /// connection, full disk.
    #[error("store not ready, will be retried: {0}")]
    Retry(String),
    /// The store cannot keep its guarantees, so the shard stops. Causes: records are missing, the configuration evicts
    /// data, or the data is foreign. The text has advice.
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

/// A database that applies updates exactly once. For this purpose the database writes the records in one atomic step
/// with their effects.
///
/// The store's own deadlines bound every call (several seconds at most).
pub trait Store: Send {
    /// Returns all records as they were last written durably; empty for a fresh store. Reconnects if necessary.
    ///
    /// # Errors
    /// [`StoreError`] if the records cannot be read.
    fn load(&mut self) -> Result<Vec<(RecordKey, Bytes)>, StoreError>;

    /// Applies the batch and its records atomically and durably. Returns the number of effects that the store rejected
    /// permanently (malformed or failing commands). A rejected effect does not change the data, and the other effects
    /// of the batch are applied. If an effect fails for a temporary reason, the whole batch fails with `Retry`.
    ///
    /// # Errors
    /// [`StoreError`]. After `Retry`, `load` shows whether the batch was applied.
    fn apply(&mut self, batch: &Batch) -> Result<u64, StoreError>;

    /// Executes the requests in order. Appends one reply (RESP bytes) for each request to `replies`. Returns only after
    /// the state that the replies show is as durable as configured. If the call fails, `replies` has the replies to the
    /// requests that were certainly executed.
    ///
    /// # Errors
    /// [`StoreError`]. After `Retry`, `load` shows whether a request with a record was executed.
    fn execute(&mut self, requests: &[Request], replies: &mut Vec<Bytes>)
    -> Result<(), StoreError>;

    /// Returns the name of the store process that was loaded last. Each start of the store process has another name.
    /// Each copy of the store also has another name. `None`: the store cannot be exchanged for another store, or
    /// accepts no writes now.
    fn identity(&self) -> Option<Bytes> {
        None
    }

    /// Gives the store a waker. Called once, at the start. The store calls `wake`, from another thread, when
    /// [`Store::has_moved`] may have become true.
    fn attend(&mut self, wake: Box<dyn Fn() + Send>) {
        drop(wake);
    }

    /// Returns whether another store must be used instead of the one that was loaded last. If so, the caller must load
    /// the records again.
    fn has_moved(&self) -> bool {
        false
    }

    /// Returns whether the connection to the store that was loaded last has ended. The server calls this function twice
    /// a second, even if the store has no work. A front accepts no clients while its Redis is another process than the
    /// server's. So only these calls reveal the lost connection. Must not wait.
    fn is_gone(&mut self) -> bool {
        false
    }

    /// Returns whether [`Store::is_gone`] can ever return true.
    fn may_go(&self) -> bool {
        false
    }

    /// Returns whether the store may lack space for the updates in the devices' logs. If so, no further update may be
    /// acknowledged early.
    fn is_short(&self) -> bool {
        false
    }

    /// Returns whether the remaining space is reserved for existing sessions and for deletes. If so, no new session may
    /// begin.
    fn is_crowded(&self) -> bool {
        false
    }

    /// Returns whether this store has maintenance work. If so, [`Store::tidy`] must be called from time to time.
    fn tidies(&self) -> bool {
        false
    }

    /// Does a part of the maintenance work. Returns whether more maintenance work may be waiting.
    ///
    /// # Errors
    /// [`StoreError`] if the store fails.
    fn tidy(&mut self) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Returns the kinds of payloads that this store accepts. The store skips updates with other payloads. The result
    /// never changes.
    fn payloads(&self) -> Payloads {
        Payloads::COMMANDS
    }

    /// Returns one line for status and logs that says how durable an effect is when this store replies.
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
