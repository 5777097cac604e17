//! What the front needs from the network side: one client endpoint with many sessions.
//!
//! Purpose: the seam between the RESP front and the pmnet client endpoint, so that the front can be
//! tested against a store that it talks to directly. The front submits calls and collects their
//! outcomes; how they travel, are repeated or time out is the endpoint's business
//! (`docs/spec/protocol.md` §3).
//! An implementation may not block: it lives in the front's event loop.

use bytes::Bytes;
pub use pmnet_client::{
    CROWDED, CallId, ClientCounters, Closed, Event, LinkCounters, Outcome, ReadAnswer, Refused,
    SessionHandle, SocketCounters,
};
use pmnet_wire::FrontId;

/// Events of the endpoint so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct UpstreamCounters {
    /// Of the client machine.
    pub client: ClientCounters,
    /// Of its sockets.
    pub socket: SocketCounters,
    /// Of its link by RDMA; all 0 without one.
    pub link: LinkCounters,
}

/// Nanoseconds since the start of the front.
pub type Time = u64;

/// How a call is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submit {
    /// Acknowledged when durable ([`Outcome::Committed`]).
    Update,
    /// Answered by the store ([`Outcome::Reply`]): executed exactly once if it changes state, perhaps several times if `read_only`.
    Bypass {
        /// It changes nothing.
        read_only: bool,
    },
}

/// A call that is to be submitted.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Preamble and commands.
    pub payload: &'a Bytes,
    /// Hash of the one key that it is about; 0 if there is none.
    pub key_hash: u64,
    /// How it is carried out.
    pub how: Submit,
    /// End of its time.
    pub deadline: Time,
}

impl<'a> Call<'a> {
    /// A question to the store, which changes nothing.
    #[must_use]
    pub fn question(payload: &'a Bytes, deadline: Time) -> Call<'a> {
        Call {
            payload,
            key_hash: 0,
            how: Submit::Bypass { read_only: true },
            deadline,
        }
    }
}

/// The devices, as this endpoint sees them.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Whom it asks, in words.
    pub peer: String,
    /// Copies that the last acknowledgement named; 0 before the first one.
    pub copies: u8,
    /// Since when nothing has come back although something was asked.
    pub unanswered_since: Option<Time>,
}

/// The part of the endpoint that a client needs. Nothing of a call leaves before the next [`Upstream::flush`]. Calls of one session take effect in
/// the order submitted; a call after a state-changing bypass is held by the endpoint until that bypass has its reply.
pub trait Calls {
    /// Opens a session; calls may be submitted at once.
    ///
    /// # Errors
    /// [`Refused::Sessions`].
    fn open(&mut self, now: Time) -> Result<SessionHandle, Refused>;

    /// Submits a call.
    ///
    /// # Errors
    /// [`Refused`]; nothing was sent.
    fn submit(
        &mut self,
        now: Time,
        session: SessionHandle,
        call: Call<'_>,
    ) -> Result<CallId, Refused>;

    /// Asks the head how fresh the store must be for the keys with these hashes (`docs/spec/reads.md` §2); none,
    /// or more than it takes: for all keys. `replicas`: the answer may say how fresh a replica of the store must be (§11). Ends as [`Event::Read`]. Everything that its caller has sent must be
    /// committed or answered.
    ///
    /// # Errors
    /// [`Refused`]; nothing was sent.
    fn read(
        &mut self,
        now: Time,
        hashes: &[u64],
        replicas: bool,
        deadline: Time,
    ) -> Result<CallId, Refused>;

    /// Returns the devices as this endpoint sees them.
    fn seen(&self) -> Seen {
        Seen::default()
    }
}

/// The client endpoint.
pub trait Upstream: Calls {
    /// Opens a *mark*: a session that says, for as long as it is open, that something may change the store which passes no
    /// device (`docs/spec/reads.md` §5). It counts from [`Event::Marked`] on.
    ///
    /// # Errors
    /// [`Refused::Sessions`].
    fn open_mark(&mut self, now: Time) -> Result<SessionHandle, Refused>;

    /// Ends a session. Its updates that were submitted still take effect.
    fn end(&mut self, now: Time, session: SessionHandle);

    /// The next event, if there is one.
    fn poll_event(&mut self) -> Option<Event>;

    /// Registers the endpoint's socket for readability under `token`.
    ///
    /// # Errors
    /// Of the operating system.
    fn register(&mut self, registry: &mio::Registry, token: mio::Token) -> std::io::Result<()>;

    /// Whether its socket is another one since this was last asked: then it has to be registered.
    fn take_other_socket(&mut self) -> bool {
        false
    }

    /// The socket may be readable: takes in what is there (a bounded amount; returns whether more
    /// may be waiting).
    fn receive(&mut self, now: Time) -> bool;

    /// Handles timers that are due and sends what is ready to be sent, in as few system calls as
    /// possible.
    fn flush(&mut self, now: Time);

    /// When `flush` must be called again although nothing arrives; `None`: not needed.
    fn next_timeout(&self) -> Option<Time>;

    /// Whom it asks, in words for the log.
    fn peer(&self) -> String;

    /// Id of the key with which it asks; `None`: it has none.
    fn key(&self) -> Option<FrontId> {
        None
    }

    /// Returns the events of the endpoint so far.
    fn counters(&self) -> UpstreamCounters {
        UpstreamCounters::default()
    }
}
