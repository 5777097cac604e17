//! Appends commands and replies to a buffer.

use crate::number::write_number;

/// Appends `*count`, the head of an array with `count` elements. The elements must follow.
pub fn write_header(out: &mut Vec<u8>, count: usize) {
    out.push(b'*');
    write_number(out, length(count));
    out.extend_from_slice(b"\r\n");
}

/// Appends the head of a map of `pairs` keys and values. The map is that of RESP3, or an array in RESP2.
pub fn write_map(out: &mut Vec<u8>, pairs: usize, resp3: bool) {
    if resp3 {
        out.push(b'%');
        write_number(out, length(pairs));
        out.extend_from_slice(b"\r\n");
    } else {
        write_header(out, 2 * pairs);
    }
}

/// Appends a bulk string.
pub fn write_bulk(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'$');
    write_number(out, length(text.len()));
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

/// Appends one command, the name first, as an array of bulk strings.
pub fn write_command<A: AsRef<[u8]>>(out: &mut Vec<u8>, arguments: &[A]) {
    write_header(out, arguments.len());
    for argument in arguments {
        write_bulk(out, argument.as_ref());
    }
}

/// Appends an integer reply.
pub fn write_integer(out: &mut Vec<u8>, number: i64) {
    out.push(b':');
    if number < 0 {
        out.push(b'-');
    }
    write_number(out, number.unsigned_abs());
    out.extend_from_slice(b"\r\n");
}

/// Appends an error reply. Line ends in the text become spaces, because an error is one line.
pub fn write_error(out: &mut Vec<u8>, text: &(impl AsRef<[u8]> + ?Sized)) {
    out.push(b'-');
    out.extend(text.as_ref().iter().map(|&byte| match byte {
        b'\r' | b'\n' => b' ',
        byte => byte,
    }));
    out.extend_from_slice(b"\r\n");
}

/// Appends a null: the null of RESP3, or the null bulk string of RESP2.
pub fn write_null(out: &mut Vec<u8>, resp3: bool) {
    out.extend_from_slice(if resp3 { b"_\r\n" } else { b"$-1\r\n" });
}

/// The length of a text in memory always fits into 64 bits.
fn length(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
