//! UDP in bursts, waiting and stopping: the code that all socket loops of pmnet share.
//!
//! Purpose: one place for socket options and for the following tasks. It sends and receives whole bursts with few
//! system calls (with segmentation and receive offload, if the kernel has them). It decides when a loop spins, and ends
//! a loop on a signal. It has the state that a loop shares with its agent in a fleet, it chooses the TCP connection
//! that gives way to another, and the address family of a socket. This crate knows nothing of the protocol.

mod family;
mod known_as;
mod latest;
mod lease;
mod owner;
mod path;
mod places;
mod pulse;
mod server_words;
mod socket;
mod spin;
mod wait;

pub use family::{Family, addresses};
pub use latest::{Latest, Latter};
pub use lease::{LeaseWords, Standing};
pub use owner::owner_of_port;
pub use path::{Paths, path_mtu};
pub use places::{place_for, place_to_give_up};
pub use pulse::Pulse;
pub use server_words::{OnRecord, ServerWords};
pub use socket::{Socket, SocketCounters};
pub use spin::Spin;
pub use wait::{Clock, STOP_TOKEN, Stop, StopTrigger, os_random};
