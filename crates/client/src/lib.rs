//! The client library: the client machine (which has no IO) on a UDP socket.
//!
//! A client opens a session with the head of a chain of devices. An *update* is acknowledged as soon as all devices
//! hold it, even if the server does not have it yet. After the acknowledgement, each update takes effect exactly once,
//! in the session's order. A *bypass* is answered by the server, after all updates that were acknowledged before it.
//! Client and server agree on the form of payloads (`docs/spec/wire.md` §6): commands for a Redis, or any bytes for a
//! program (`pmnet_server::program`, `docs/use/programs.md`). If a client states its form in
//! [`ClientConfig::payloads`], and the shard's server would skip updates of this form, the client gets no session.
//!
//! ```no_run
//! # use pmnet_client::{ClientConfig, Session};
//! # use std::time::Duration;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut config = ClientConfig::new("127.0.0.1:51000".parse()?);
//! config.payloads = pmnet_wire::Payloads::PROGRAM;
//! let mut session = Session::start(config, Duration::from_secs(10))?;
//! let copies = session.update(pmnet_wire::program::payload(b"+1").into(), 0)?;
//! println!("{copies} devices hold it");
//! let reply = session.bypass(pmnet_wire::program::payload(b"get").into(), 0, true)?;
//! println!("{:?}", pmnet_wire::program::reply_body(&reply));
//! # session.end()?;
//! # Ok(())
//! # }
//! ```
//!
//! [`ClientNode`] is for programs with an event loop of their own, such as the RESP front. A `ClientNode` is
//! non-blocking, can be registered with a poll, and has many sessions. [`Session`] is for all other programs. A
//! `Session` has one session. The caller either makes calls that block, or starts many calls and takes their results
//! later. Not allowed here: decisions about the protocol; `pmnet-proto` makes them.

mod node;
mod session;
mod whereabouts;

pub use node::ClientNode;
pub use pmnet_proto::Time;
pub use pmnet_proto::client::{
    CROWDED, CallId, ClientConfig, ClientCounters, Closed, Event, LetGo, Outcome, ReadAnswer,
    Refused, SessionHandle,
};
pub use pmnet_udp::{
    Clock, Latest, Latter, Pulse, STOP_TOKEN, SocketCounters, Spin, Stop, StopTrigger,
    owner_of_port, path_mtu,
};
pub use pmnet_verbs::LinkCounters;
pub use session::{Answer, Finished, Session, SessionError};
pub use whereabouts::Whereabouts;
