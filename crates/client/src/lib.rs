//! Client library: the sans-IO client on a UDP socket.
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
pub use pmnet_udp::{Clock, Spin, Stop, StopTrigger, owner_of_port, path_mtu};
pub use session::{Answer, Finished, Session, SessionError};
pub use whereabouts::Whereabouts;
