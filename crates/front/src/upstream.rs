//! What the front needs from the network side: one client endpoint with many sessions.
//!
//! Purpose: the seam between the RESP front and the pmnet client endpoint, so that the front can be
//! tested against a store that it talks to directly. The front submits calls and collects their
//! outcomes; how they travel, are repeated or time out is the endpoint's business
//! (`docs/spec/protocol.md` §3).
//! An implementation may not block: it lives in the front's event loop.

use bytes::Bytes;

/// Nanoseconds since the start of the front.
pub type Time = u64;

/// A session of the endpoint, as the endpoint numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId(pub u32);

/// One call of the endpoint; never reused while the endpoint lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId(pub u64);

/// Why a call was not taken. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A bounded queue is full: try again after a `Done` event.
    #[error("queue full")]
    Busy,
    /// The payload is larger than one message may be.
    #[error(
        "larger than the {} bytes of one message",
        pmnet_wire::MESSAGE_BYTES_MAX
    )]
    TooLarge,
    /// The session is closed or was never open: open another.
    #[error("session closed")]
    Closed,
    /// There are as many sessions as there may be.
    #[error("too many sessions")]
    Sessions,
}

/// How a call ended. Every call ends, at the latest at its deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The update is durable in so many devices.
    Committed {
        /// Number of devices that hold it.
        copies: u8,
    },
    /// The store's reply to a bypass, as RESP bytes.
    Reply(Bytes),
    /// Certainly without effect; the text says why.
    Failed(String),
    /// The deadline passed: it may or may not take effect, at most once.
    Unknown,
}

/// What the endpoint has to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A call ended.
    Done {
        /// Its session.
        session: SessionId,
        /// The call.
        call: CallId,
        /// How it ended.
        outcome: Outcome,
    },
    /// A session is gone; calls of it that are not done have an unknown outcome.
    SessionClosed {
        /// The session.
        session: SessionId,
        /// Updates that were acknowledged are lost (protocol.md §3, DATA_LOSS).
        data_loss: bool,
        /// Why, in words.
        reason: String,
    },
}

/// The client endpoint. Calls of one session take effect in the order submitted; a call after a
/// state-changing bypass is held by the endpoint until that bypass has its reply.
pub trait Upstream {
    /// Opens a session; calls may be submitted at once.
    ///
    /// # Errors
    /// [`Refused::Sessions`].
    fn open(&mut self, now: Time) -> Result<SessionId, Refused>;

    /// Submits an update that is acknowledged when durable ([`Outcome::Committed`]).
    ///
    /// # Errors
    /// [`Refused`]; nothing was sent.
    fn update(
        &mut self,
        now: Time,
        session: SessionId,
        payload: Bytes,
        key_hash: u64,
        deadline: Time,
    ) -> Result<CallId, Refused>;

    /// Submits a call that the store answers ([`Outcome::Reply`]): executed exactly once if it
    /// changes state, perhaps several times if `read_only`.
    ///
    /// # Errors
    /// [`Refused`]; nothing was sent.
    fn bypass(
        &mut self,
        now: Time,
        session: SessionId,
        payload: Bytes,
        key_hash: u64,
        read_only: bool,
        deadline: Time,
    ) -> Result<CallId, Refused>;

    /// Ends a session. Its updates that were submitted still take effect.
    fn end(&mut self, now: Time, session: SessionId);

    /// The next event, if there is one.
    fn poll_event(&mut self) -> Option<Event>;

    /// Registers the endpoint's socket for readability under `token`.
    ///
    /// # Errors
    /// Of the operating system.
    fn register(&mut self, registry: &mio::Registry, token: mio::Token) -> std::io::Result<()>;

    /// The socket may be readable: takes in what is there (a bounded amount; returns whether more
    /// may be waiting).
    fn receive(&mut self, now: Time) -> bool;

    /// Handles timers that are due and sends what is ready to be sent, in as few system calls as
    /// possible.
    fn flush(&mut self, now: Time);

    /// When `flush` must be called again although nothing arrives; `None`: not needed.
    fn next_timeout(&self) -> Option<Time>;
}
