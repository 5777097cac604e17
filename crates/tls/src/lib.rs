//! TLS on TCP connections, for both ends, and the passwords that are sent through them.
//!
//! Purpose: reads certificates and keys ([`ServerTls`], [`ClientTls`]), and wraps a socket so that it can be
//! read and written like one without TLS ([`Stream`]). Holds passwords that may be replaced ([`Secret`]). The protocol is implemented by rustls with ring: TLS
//! 1.2 and 1.3.
//! Invariants: the other end's certificate is always checked, with its name. The memory for one connection is
//! bounded. Not known here: the meaning of the bytes that are sent.

mod distrust;
mod files;
mod secret;
mod stamps;
mod stream;

pub use distrust::{Distrust, Flags};
pub use files::{ClientTls, Clients, ServerTls, TlsError, authorities_file, provider};
pub use secret::Secret;
pub use stamps::Stamps;
pub use stream::Stream;
