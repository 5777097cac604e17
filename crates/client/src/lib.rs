//! Client library: the sans-IO client on a UDP socket.
//!
//! A client opens a session with the head of a chain of devices. Its *updates* are acknowledged as soon as all devices hold them, before the server has seen
//! them; from then on each takes effect exactly once, in the session's order. Its *bypasses* are answered by the server, after everything that was
//! acknowledged before. The language of payloads is between client and server (`docs/spec/wire.md` §6): commands
//! for a Redis, bytes of any kind for a program of one's own (`pmnet_server::program`, `docs/use/programs.md`).
//!
//! ```no_run
//! # use pmnet_client::{ClientConfig, Session};
//! # use std::time::Duration;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = ClientConfig::new("127.0.0.1:51000".parse()?);
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
//! [`ClientNode`] is for programs with an event loop of their own (the RESP front): non-blocking,
//! registers with a poll, many sessions. [`Session`] is for everybody else: one session, with calls that block, or with many calls under way.
//! May not: decide anything about the protocol; that is `pmnet-proto`.

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
