//! A record, where it lies.

use pmnet_log::Media;

use crate::geometry::index;
use crate::line::{Form, Line};
use crate::prefix::{Prefix, joined};
use crate::reader::Reader;

/// What is kept with a value. The store gives no meaning to any of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// What the value is.
    pub kind: u8,
    /// When it ends, in milliseconds since 1970; 0: never. A record whose time is over stays until it is removed.
    pub expires_at_ms: u64,
    /// Order of the write in the log; 0: it came another way.
    pub order: u64,
    /// When the packet was received, in microseconds since 1970; 0: not known.
    pub received_us: u64,
}

/// A record whose checksums were right when it was looked at. It lies where it was stored.
pub struct Record<'a, M> {
    pub(crate) reader: Reader<'a, M>,
    pub(crate) slot: u32,
    pub(crate) line: Line,
}

impl<'a, M: Media> Record<'a, M> {
    /// What is kept with it.
    #[must_use]
    pub fn meta(&self) -> Meta {
        self.line.meta()
    }

    /// Bytes of the value.
    #[must_use]
    pub fn value_len(&self) -> usize {
        index(self.line.value_len)
    }

    /// Key and value: where they lie if the record is in one frame, else put together in `scratch`; as is a key with a prefix.
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

    /// The value; see [`Record::key_and_value`].
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

    /// The packet that the record came in, with the CRC32C that its sender computed, if it still lies as it came.
    #[must_use]
    pub fn packet(&self) -> Option<(&'a [u8], u32)> {
        let packet = matches!(self.line.form, Form::Packet | Form::Shared);
        packet.then(|| (self.reader.payload(&self.line), self.line.payload_crc))
    }
}

impl Line {
    /// What is kept with a value.
    pub(crate) fn meta(&self) -> Meta {
        Meta {
            kind: self.kind,
            expires_at_ms: self.expires_at_ms,
            order: self.order,
            received_us: self.received_us,
        }
    }

    /// Bytes that count as live in its frame.
    pub(crate) fn weight(&self) -> usize {
        match self.form {
            Form::Shared => index(self.key_len) + index(self.value_len),
            Form::Plain | Form::Packet | Form::Piece => usize::from(self.len),
        }
    }
}
