//! The reply of a command, in RESP2 or RESP3.

use pmnet_resp::{write_bulk, write_error, write_header, write_integer, write_map, write_null};

use super::float;

/// A reply that is being written.
pub struct Reply {
    out: Vec<u8>,
    resp3: bool,
}

/// The start of an array whose length is not known yet.
#[must_use]
pub struct Deferred(usize);

impl Reply {
    /// Makes an empty reply.
    pub fn new(resp3: bool) -> Reply {
        Reply {
            out: Vec::new(),
            resp3,
        }
    }

    /// Returns the number of bytes that were written so far.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Replaces everything that was written by an error.
    pub fn fail(&mut self, text: &[u8]) {
        self.out.clear();
        write_error(&mut self.out, text);
    }

    /// Returns the bytes of the reply.
    pub fn finish(self) -> Vec<u8> {
        self.out
    }

    /// Writes a status, such as OK.
    pub fn status(&mut self, text: &str) {
        self.out.push(b'+');
        self.out.extend_from_slice(text.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    /// Writes OK.
    pub fn ok(&mut self) {
        self.status("OK");
    }

    /// Writes an integer.
    pub fn integer(&mut self, number: i64) {
        write_integer(&mut self.out, number);
    }

    /// Writes a count as an integer.
    pub fn count(&mut self, count: u64) {
        self.integer(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Writes the integer 1 (true) or 0 (false).
    pub fn flag(&mut self, is: bool) {
        self.integer(i64::from(is));
    }

    /// Writes a bulk string.
    pub fn bulk(&mut self, text: &[u8]) {
        write_bulk(&mut self.out, text);
    }

    /// Writes a bulk string, or a null.
    pub fn bulk_or_null(&mut self, text: Option<&[u8]>) {
        match text {
            Some(text) => self.bulk(text),
            None => self.null(),
        }
    }

    /// Writes a null.
    pub fn null(&mut self) {
        write_null(&mut self.out, self.resp3);
    }

    /// Writes a null array.
    pub fn null_array(&mut self) {
        if self.resp3 {
            self.null();
        } else {
            self.out.extend_from_slice(b"*-1\r\n");
        }
    }

    /// Writes a floating-point number, which is a bulk string in RESP2.
    pub fn double(&mut self, value: f64) {
        let text = float::double_text(value);
        if self.resp3 {
            self.out.push(b',');
            self.out.extend_from_slice(text.as_bytes());
            self.out.extend_from_slice(b"\r\n");
        } else {
            self.bulk(text.as_bytes());
        }
    }

    /// Writes the head of an array.
    pub fn array(&mut self, count: usize) {
        write_header(&mut self.out, count);
    }

    /// Writes the head of a set, which is an array in RESP2.
    pub fn set(&mut self, count: usize) {
        let at = self.out.len();
        self.array(count);
        if self.resp3 {
            self.out[at] = b'~';
        }
    }

    /// Writes the head of a map of `pairs` pairs, which is an array in RESP2.
    pub fn map(&mut self, pairs: usize) {
        write_map(&mut self.out, pairs, self.resp3);
    }

    /// Writes the head of an array of pairs. In RESP3 each pair is an array of two elements, in RESP2 the pairs form
    /// one flat array. Each pair must begin with [`Reply::pair`].
    pub fn pairs(&mut self, count: usize) {
        self.array(if self.resp3 { count } else { 2 * count });
    }

    /// Begins a pair in an array of [`Reply::pairs`].
    pub fn pair(&mut self) {
        if self.resp3 {
            self.array(2);
        }
    }

    /// Begins an array whose length is known only at its end.
    pub fn deferred(&self) -> Deferred {
        Deferred(self.out.len())
    }

    /// Inserts the head of an array before the elements that were written since [`Reply::deferred`].
    pub fn begin(&mut self, begun: Deferred, head: impl FnOnce(&mut Reply)) {
        let Deferred(at) = begun;
        let mut front = Reply::new(self.resp3);
        head(&mut front);
        self.out.splice(at..at, front.out);
    }
}
