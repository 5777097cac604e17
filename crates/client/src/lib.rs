//! Client library: the sans-IO client machine on a UDP socket.
//!
//! A client opens a session with the head of a chain of devices. Its *updates* are acknowledged as soon as
//! all devices hold them, before the server has them. From then on each takes effect exactly once, in the
//! session's order. Its *bypasses* are answered by the server, after all updates that were acknowledged
//! before. Client and server agree on the form of payloads (`docs/spec/wire.md` §6): commands for a Redis, or
//! any bytes for a program (`pmnet_server::program`, `docs/use/programs.md`). A client that says its form in
//! [`ClientConfig::payloads`] gets no session from a shard whose server would skip its updates.
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
//! [`ClientNode`] is for programs with an event loop of their own (the RESP front): it is non-blocking, can
//! be registered with a poll, and has many sessions. [`Session`] is for all other programs: one session, with
//! calls that block, or with many calls under way. Not allowed here: decisions about the protocol;
//! `pmnet-proto` makes them.

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
