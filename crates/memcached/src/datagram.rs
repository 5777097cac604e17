//! The header of memcached's UDP requests and replies: eight bytes before the text.
//!
//! ```text
//!  0            2           4            6          8
//!  +------------+-----------+------------+----------+------
//!  | request id | number of | number of  | reserved | text…
//!  |            | datagram  | datagrams  |          |
//!  +------------+-----------+------------+----------+------
//! ```

/// Length of the header, in bytes.
pub const HEADER_LEN: usize = 8;
/// Longest datagram of a reply in bytes, as in memcached.
pub const DATAGRAM_BYTES_MAX: usize = 1400;
/// Largest reply, in bytes. Any item within memcached's default limit fits into such a reply.
pub const REPLY_BYTES_MAX: usize = 2 << 20;

/// Answer to a request in several datagrams, which memcached refuses.
pub const IN_PIECES: &[u8] = b"SERVER_ERROR multi-packet request not supported\r\n";
/// Answer to a request whose reply is too long.
pub const TOO_LONG: &[u8] = b"SERVER_ERROR the reply is too long for UDP: use TCP\r\n";

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received<'a> {
    /// A complete request: its number and text.
    Whole(u16, &'a [u8]),
    /// The first of several datagrams of one request, with the number of the request.
    Piece(u16),
    /// The datagram is not a request, or is a further datagram of one.
    Nothing,
}

/// Parses a datagram.
#[must_use]
pub fn read(datagram: &[u8]) -> Received<'_> {
    let Some((header, text)) = datagram.split_first_chunk::<HEADER_LEN>() else {
        return Received::Nothing;
    };
    let field = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let (id, number, count) = (field(0), field(2), field(4));
    match (number, count) {
        _ if text.is_empty() => Received::Nothing,
        // memcached does not check the number of the datagram, either.
        (_, 1) => Received::Whole(id, text),
        (0, 2..) => Received::Piece(id),
        _ => Received::Nothing,
    }
}

/// Returns the datagrams of a reply.
pub fn write(id: u16, text: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let text = if text.len() > REPLY_BYTES_MAX {
        TOO_LONG
    } else {
        text
    };
    let parts = text.chunks(DATAGRAM_BYTES_MAX - HEADER_LEN);
    let count = u16::try_from(parts.len()).unwrap_or(u16::MAX);
    (0..count).zip(parts).map(move |(number, part)| {
        let header = [id, number, count, 0].map(u16::to_be_bytes);
        [header.as_flattened(), part].concat()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_datagram() {
        for (header, text, received) in [
            (
                [0, 7, 0, 0, 0, 1, 0, 0],
                "get k\r\n",
                Received::Whole(7, b"get k\r\n"),
            ),
            ([1, 7, 0, 0, 0, 1, 9, 9], "x", Received::Whole(263, b"x")),
            ([0, 7, 0, 0, 0, 2, 0, 0], "get k", Received::Piece(7)),
            ([0, 7, 0, 1, 0, 2, 0, 0], "\r\n", Received::Nothing),
            ([0, 7, 0, 0, 0, 0, 0, 0], "get k\r\n", Received::Nothing),
            ([0, 7, 0, 0, 0, 1, 0, 0], "", Received::Nothing),
        ] {
            let datagram = [&header, text.as_bytes()].concat();
            assert_eq!(read(&datagram), received, "{header:?}");
        }
        assert_eq!(read(&[0; 7]), Received::Nothing);
    }

    #[test]
    fn a_reply_is_cut_into_datagrams_that_are_counted() {
        let text = vec![b'x'; 1392 * 2 + 1];
        let datagrams: Vec<Vec<u8>> = write(0x0102, &text).collect();
        assert_eq!(datagrams.len(), 3);
        for (number, datagram) in (0u8..).zip(&datagrams) {
            assert_eq!(datagram[..8], [1, 2, 0, number, 0, 3, 0, 0]);
        }
        assert_eq!(
            datagrams.iter().map(Vec::len).collect::<Vec<_>>(),
            [1400, 1400, 9]
        );
        let long = vec![b'x'; REPLY_BYTES_MAX + 1];
        let refused: Vec<Vec<u8>> = write(1, &long).collect();
        assert!(refused.len() == 1 && refused[0].ends_with(TOO_LONG));
        assert_eq!(write(1, &long[1..]).count(), REPLY_BYTES_MAX.div_ceil(1392));
        assert_eq!(write(1, b"").count(), 0);
    }
}
