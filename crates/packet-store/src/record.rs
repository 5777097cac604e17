//! A record in the store.

use pmnet_log::Media;

use crate::geometry::index;
use crate::line::{Form, Line};
use crate::prefix::{Prefix, joined};
use crate::reader::Reader;

/// Properties that are stored with a value. The properties have no meaning for the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Kind of the value, as the user of the store has given it.
    pub kind: u8,
    /// Time of expiry, in milliseconds since 1970; 0: never. An expired record stays until it is removed.
    pub expires_at_ms: u64,
    /// Order of the write in the log; 0: the log does not have this write.
    pub order: u64,
    /// Time at which the packet was received, in microseconds since 1970; 0: unknown.
    pub received_us: u64,
}

/// A record whose checksums were right when it was read. The bytes of the record are read in place.
pub struct Record<'a, M> {
    pub(crate) reader: Reader<'a, M>,
    pub(crate) slot: u32,
    pub(crate) line: Line,
}

impl<'a, M: Media> Record<'a, M> {
    /// Returns the properties that are stored with the record.
    #[must_use]
    pub fn meta(&self) -> Meta {
        self.line.meta()
    }

    /// Returns the length of the value in bytes.
    #[must_use]
    pub fn value_len(&self) -> usize {
        index(self.line.value_len)
    }

    /// Returns key and value. Key and value are returned in place if the record lies in one frame, and are assembled in
    /// `scratch` otherwise. A key with a prefix is always assembled.
    #[must_use]
    pub fn key_and_value<'s>(&self, scratch: &'s mut Vec<u8>) -> (&'s [u8], &'s [u8])
    where
        'a: 's,
    {
        if self.line.prefix != Prefix::NONE {
            let all: &'a [u8] = self.reader.payload(&self.line);
            let key = joined(self.line.prefix, &all[self.line.key_part()], scratch);
            return (key, &all[self.line.value()]);
        }
        let all = self.reader.whole(self.slot, &self.line, scratch);
        let key =
            usize::from(self.line.key_at)..usize::from(self.line.key_at) + index(self.line.key_len);
        (&all[key], &all[self.line.value()])
    }

    /// Returns the value like [`Record::key_and_value`].
    #[must_use]
    pub fn value<'s>(&self, scratch: &'s mut Vec<u8>) -> &'s [u8]
    where
        'a: 's,
    {
        if self.line.prefix != Prefix::NONE {
            return &self.reader.payload(&self.line)[self.line.value()];
        }
        self.key_and_value(scratch).1
    }

    /// If the record is still in the packet in which it arrived, returns the packet's payload, and the CRC32C that the
    /// packet's sender computed.
    #[must_use]
    pub fn packet(&self) -> Option<(&'a [u8], u32)> {
        let packet = matches!(self.line.form, Form::Packet | Form::Shared);
        packet.then(|| (self.reader.payload(&self.line), self.line.payload_crc))
    }
}

impl Line {
    /// Returns the properties that are stored in the line.
    pub(crate) fn meta(&self) -> Meta {
        Meta {
            kind: self.kind,
            expires_at_ms: self.expires_at_ms,
            order: self.order,
            received_us: self.received_us,
        }
    }

    /// Returns the number of bytes that count as live in the line's frame.
    pub(crate) fn weight(&self) -> usize {
        match self.form {
            Form::Shared => index(self.key_len) + index(self.value_len),
            Form::Plain | Form::Packet | Form::Piece => usize::from(self.len),
        }
    }
}
