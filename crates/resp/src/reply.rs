//! Makes short replies as a server writes them.

use bytes::Bytes;

use crate::write::{write_bulk, write_error, write_integer, write_null};

/// The reply `+OK`.
pub const OK: Bytes = Bytes::from_static(b"+OK\r\n");

/// Returns an error reply. Line ends in the text become spaces, because an error is one line.
#[must_use]
pub fn error(text: &(impl AsRef<[u8]> + ?Sized)) -> Bytes {
    let mut out = Vec::with_capacity(text.as_ref().len() + 3);
    write_error(&mut out, text);
    out.into()
}

/// Returns a bulk string reply.
#[must_use]
pub fn bulk(text: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(text.len() + 16);
    write_bulk(&mut out, text);
    out.into()
}

/// Returns a verbatim string of RESP3: a text that is meant for people.
#[must_use]
pub fn verbatim(text: &[u8]) -> Bytes {
    const KIND: &[u8] = b"txt:";
    let length = (text.len() + KIND.len()).to_string();
    [b"=", length.as_bytes(), b"\r\n", KIND, text, b"\r\n"]
        .concat()
        .into()
}

/// Returns an integer reply.
#[must_use]
pub fn integer(number: i64) -> Bytes {
    let mut out = Vec::new();
    write_integer(&mut out, number);
    out.into()
}

/// Returns a null reply: the null of RESP3, or the null bulk string of RESP2.
#[must_use]
pub fn null(resp3: bool) -> Bytes {
    let mut out = Vec::new();
    write_null(&mut out, resp3);
    out.into()
}
