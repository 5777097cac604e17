//! TLS on TCP connections, for clients and servers, and the passwords that are sent over such connections.
//!
//! Purpose: reads certificates and keys ([`ServerTls`], [`ClientTls`]), and wraps a socket so that it can be read and
//! written like a socket without TLS ([`Stream`]). Holds passwords that can be replaced ([`Secret`]). rustls with ring
//! implements the protocol: TLS 1.2 and 1.3. Invariants: the peer's certificate is always checked, together with its
//! name. The memory for one connection is bounded. Not allowed here: knowledge about the bytes that are sent.

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
