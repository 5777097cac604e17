//! APPEND: an entry of the log, as hops send it and as the log stores it.
//!
//! ```text
//!         24        32    40      48    56         64
//! Append  | session | seq | order |     | key_hash | fragment |   byte 5: which kind of entry
//! ```
//! The stamp has epoch, device and incarnation of the head that admitted the entry, and the shard's token.

use super::{Stamp, view};
use crate::{Header, Kind};
use core::fmt;

/// Kind of an entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// A session begins. The entry's payload is the session's [`Identity`](super::Identity).
    Open,
    /// An update, or a fragment of an update.
    Update,
    /// A session ends.
    End,
    /// A kind that this version does not know.
    Unknown(u8),
}

impl EntryKind {
    /// Returns the kind of entry with this number, which is also the number of the packet ([`Kind`](crate::Kind)) by
    /// which a client asks for the entry.
    #[must_use]
    pub const fn from_number(number: u8) -> EntryKind {
        match Kind::from_u8(number) {
            Some(Kind::Open) => EntryKind::Open,
            Some(Kind::Update) => EntryKind::Update,
            Some(Kind::End) => EntryKind::End,
            _ => EntryKind::Unknown(number),
        }
    }

    /// Returns the number of the kind, on the wire and in the log.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            EntryKind::Open => Kind::Open.number(),
            EntryKind::Update => Kind::Update.number(),
            EntryKind::End => Kind::End.number(),
            EntryKind::Unknown(number) => number,
        }
    }
}

impl fmt::Display for EntryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EntryKind::Unknown(number) => write!(f, "unknown ({number})"),
            known => write!(f, "{known:?}"),
        }
    }
}

view! {
    /// An entry with its order.
    Append = Append {
        /// Kind of the entry.
        entry: entry,
        /// Id of the entry's session.
        session: session,
        /// Seq of the entry in its session; 0 for an OPEN.
        seq: seq,
        /// Order of the entry in the shard's log.
        order: order,
        /// Hash of the key, as the update states it.
        key_hash: key_hash,
        /// Part of the message that the entry carries, as the update states it.
        fragment: fragment,
    }
}

impl Append {
    /// Returns the entry for a client's OPEN, update or END that the head with this stamp admits at this order. Length
    /// and checksum of the payload are the client's. An OPEN has no session yet: its order becomes the session's id,
    /// and its seq is 0.
    #[must_use]
    #[inline]
    pub fn admitted(asked: &Header, order: u64, stamp: &Stamp) -> Header {
        let (session, seq) = match asked.kind {
            Kind::Open => (order, 0),
            _ => (asked.session, asked.seq),
        };
        // Only the head uses the client's name, so the entry does not have it.
        let key_hash = match asked.kind {
            Kind::Open => 0,
            _ => asked.key_hash.0,
        };
        let entry = Append {
            entry: EntryKind::from_number(asked.kind.number()),
            session,
            seq,
            order,
            key_hash,
            fragment: super::place::fragment::get(asked),
        };
        Header {
            payload_len: asked.payload_len,
            payload_crc: asked.payload_crc,
            ..entry.header(stamp)
        }
    }

    /// Returns the entry as it is sent in a later epoch, with the shard's token.
    #[must_use]
    pub fn in_epoch(entry: &Header, epoch: u32, shard_token: u64) -> Header {
        Header {
            epoch,
            tag: shard_token,
            ..*entry
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Flags;

    #[test]
    fn every_number_is_that_of_its_kind_of_entry() {
        for number in 0..=u8::MAX {
            assert_eq!(EntryKind::from_number(number).number(), number);
        }
        let known = [1, 3, 19].map(EntryKind::from_number);
        assert_eq!(known, [EntryKind::Open, EntryKind::Update, EntryKind::End]);
        assert_eq!(EntryKind::from_number(4), EntryKind::Unknown(4));
        assert_eq!(
            (
                EntryKind::End.to_string(),
                EntryKind::Unknown(4).to_string()
            ),
            ("End".into(), "unknown (4)".into())
        );
    }

    #[test]
    fn an_admitted_open_is_the_session_of_its_order() {
        let stamp = Stamp {
            device: 2,
            tag: 77,
            ..Stamp::default()
        };
        let open = Header {
            tag: 5,
            flags: Flags::READ_ONLY,
            session: 9,
            seq: 9,
            ..Header::new(Kind::Open)
        }
        .for_payload(&5u64.to_be_bytes());
        let entry = Append::admitted(&open, 40, &stamp);
        let view = Append::read(&entry);
        assert_eq!((view.session, view.seq, view.order), (40, 0, 40));
        assert_eq!(view.entry, EntryKind::Open);
        assert_eq!((entry.flags, entry.tag), (Flags(0), 77));
        assert_eq!(entry.payload_crc, open.payload_crc);
    }
}
