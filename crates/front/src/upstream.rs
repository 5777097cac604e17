//! The front's interface to the network: one client endpoint with many sessions.
//!
//! Purpose: separates the RESP front from the pmnet client endpoint, so that tests can connect the front directly to a
//! store. The front submits calls and collects their outcomes. The endpoint sends the calls, sends them again if
//! needed, and ends them at their deadlines (`docs/spec/protocol.md` §3). An implementation must not block, because it
//! runs in the front's event loop.

use bytes::Bytes;
pub use pmnet_client::{
    CROWDED, CallId, ClientCounters, Closed, Event, LinkCounters, Outcome, ReadAnswer, Refused,
    SessionHandle, SocketCounters,
};
use pmnet_wire::FrontId;

/// Numbers of events of the endpoint since the start of the front.
#[derive(Clone, Copy, Debug, Default)]
pub struct UpstreamCounters {
    /// Events of the client machine.
    pub client: ClientCounters,
    /// Events of the endpoint's sockets.
    pub socket: SocketCounters,
    /// Events of the endpoint's RDMA link; all 0 without such a link.
    pub link: LinkCounters,
}

/// Nanoseconds since the start of the front.
pub type Time = u64;

/// The way in which a call is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submit {
    /// The call is acknowledged when it is durable ([`Outcome::Committed`]).
    Update,
    /// The store answers the call ([`Outcome::Reply`]). A call that may change state is executed exactly once. A
    /// `read_only` call may be executed several times.
    Bypass {
        /// The call changes nothing.
        read_only: bool,
    },
}

/// A call to be submitted.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The payload: preamble and commands.
    pub payload: &'a Bytes,
    /// Hash of the call's only key; 0 if the call has no key or several keys.
    pub key_hash: u64,
    /// The way in which the call is carried out.
    pub how: Submit,
    /// Deadline of the call.
    pub deadline: Time,
}

impl<'a> Call<'a> {
    /// Makes a question to the store, which changes nothing.
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

/// The state of the devices, as this endpoint sees it.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The addresses that the endpoint sends to, as text.
    pub peer: String,
    /// Number of copies that the last acknowledgement named; 0 before the first acknowledgement.
    pub copies: u8,
    /// The time since which calls have been outstanding without any answer.
    pub unanswered_since: Option<Time>,
}

/// The operations of the endpoint that a client of the front needs. A call is sent at the next [`Upstream::flush`], not
/// earlier. Calls of one session take effect in the order in which they were submitted. If a call follows a bypass that
/// changes state, the endpoint holds the call back until that bypass has its reply.
pub trait Calls {
    /// Opens a session. Calls may be submitted in it at once.
    ///
    /// # Errors
    /// [`Refused::Sessions`] if no further session is possible.
    fn open(&mut self, now: Time) -> Result<SessionHandle, Refused>;

    /// Submits a call.
    ///
    /// # Errors
    /// [`Refused`]: nothing was sent.
    fn submit(
        &mut self,
        now: Time,
        session: SessionHandle,
        call: Call<'_>,
    ) -> Result<CallId, Refused>;

    /// Asks the head how fresh the store must be for the keys with these hashes (`docs/spec/reads.md` §2). If there are
    /// no hashes, or more than the head accepts, the question is about all keys. `replicas`: whether the answer should
    /// also say how fresh a replica of the store must be (§11). The call ends with [`Event::Read`]. All earlier calls
    /// of the caller must have been committed or answered.
    ///
    /// # Errors
    /// [`Refused`]: nothing was sent.
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
    /// Opens a *mark*, which is a session. While the mark is open, the head knows that a command which passes no device
    /// may change the store (`docs/spec/reads.md` §5). The mark counts only from [`Event::Marked`] on.
    ///
    /// # Errors
    /// [`Refused::Sessions`] if no further session is possible.
    fn open_mark(&mut self, now: Time) -> Result<SessionHandle, Refused>;

    /// Ends a session. The session's submitted updates still take effect.
    fn end(&mut self, now: Time, session: SessionHandle);

    /// Ends the session in which [`Calls::read`] asks, if there is one.
    fn end_reads(&mut self, _now: Time) {}

    /// Returns the next event, if there is one.
    fn poll_event(&mut self) -> Option<Event>;

    /// Registers the endpoint's socket for readability under `token`.
    ///
    /// # Errors
    /// An error of the operating system.
    fn register(&mut self, registry: &mio::Registry, token: mio::Token) -> std::io::Result<()>;

    /// Returns whether the endpoint has a new socket since the last call of this function. A new socket must
    /// be registered.
    fn take_other_socket(&mut self) -> bool {
        false
    }

    /// Reads from the socket a bounded number of datagrams. Returns whether more may be waiting.
    fn receive(&mut self, now: Time) -> bool;

    /// Handles timers that are due, and sends all packets that are ready with as few system calls as possible.
    fn flush(&mut self, now: Time);

    /// Returns the time when `flush` must be called even if nothing arrives; `None`: no such time.
    fn next_timeout(&self) -> Option<Time>;

    /// Returns the addresses that the endpoint sends to, as text for the log.
    fn peer(&self) -> String;

    /// Returns the id of the front key under which the endpoint sends; `None`: it sends without a front key.
    fn key(&self) -> Option<FrontId> {
        None
    }

    /// Returns the numbers of the endpoint's events since the start of the front.
    fn counters(&self) -> UpstreamCounters {
        UpstreamCounters::default()
    }
}
