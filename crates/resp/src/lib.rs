//! RESP2 and RESP3, the languages of Redis: the one reader and the one writer of this workspace.
//!
//! | module | what it does |
//! |---|---|
//! | [`request`] | finds commands in what clients send, as strictly as Redis does, inline commands too |
//! | [`scan`] | finds where a reply ends |
//! | [`read`] | looks into a reply that is there as a whole, without copying it |
//! | [`value`] | a reply as a tree of values, for tools |
//! | [`write`](mod@write) | appends commands and replies to a buffer |
//! | [`reply`] | short replies as a whole |
//! | [`limits`] | what is Redis's own limit, and which limits each user sets |
//!
//! Invariants: no input causes a panic; nothing is allocated by a length that was announced but not received;
//! input that arrives in pieces has the same meaning as in one piece, and each byte is searched once.
//! No IO, no clock, no meaning of commands.
//!
//! Numbers and lengths are taken only as Redis writes them ([`parse_integer`]). A line ends at its first
//! CR LF. A CR or LF alone belongs to the line, as in hiredis.

mod arguments;
mod element;
mod inline;
pub mod limits;
mod number;
pub mod read;
pub mod reply;
pub mod request;
pub mod scan;
pub mod value;
pub mod write;

pub use limits::{ReplyLimits, RequestLimits};
pub use number::parse_integer;
pub use request::{Arguments, Parser, ProtocolError, Status};
pub use scan::{Malformed, Scanner};
pub use value::Reply;
pub use write::{
    write_bulk, write_command, write_error, write_header, write_integer, write_map, write_null,
};
