//! RESP2 and RESP3, the protocols of Redis. All crates of this workspace use this reader and this writer.
//!
//! | module | what it does |
//! |---|---|
//! | [`request`] | parses the commands in clients' bytes, as strictly as Redis does, inline commands too |
//! | [`scan`] | finds the end of a reply |
//! | [`read`] | reads parts of a complete reply without copying it |
//! | [`value`] | a reply as a tree of values, for tools |
//! | [`write`](mod@write) | appends commands and replies to a buffer |
//! | [`reply`] | makes short replies |
//! | [`limits`] | the limits of Redis, and the limits that each user of this crate sets |
//!
//! Invariants: no input causes a panic. No memory is allocated for a length that was announced but not received. Input
//! that arrives in pieces has the same meaning as in one piece, and each byte is searched only once. Not allowed here:
//! IO, clocks, and the meaning of commands.
//!
//! Numbers and lengths are accepted only in the form that Redis writes ([`parse_integer`]). A line ends at its first CR
//! LF. As in hiredis, a single CR or LF belongs to the line.

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
