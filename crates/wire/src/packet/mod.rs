//! The meaning of the header's fields in each kind of packet, under the names that they have in this kind
//! (`docs/spec/wire.md` §2).
//!
//! Each kind of packet has a struct, its *view*. `read` takes the view's fields out of a header, and `header` makes a
//! header from them. A view only says which fields of [`Header`] the kind uses, and under which names. So code outside
//! of this crate never misuses a field such as `key_hash`. Invariants: `read(header(view)) == view`. If a field of the
//! header has no name in the view, `header` writes 0, and `read` ignores the field. This module does not allocate, and
//! cannot fail.

mod ack;
mod append;
mod applied;
mod bypass;
mod durable;
mod nack;
mod open;
mod ping;
mod place;
mod read;
mod recover;
mod response;
mod retrans;
mod update;

pub use ack::Ack;
pub use append::{Append, EntryKind};
pub use applied::Applied;
pub use bypass::{Bypass, Fallback, TimeLeft};
pub use durable::Durable;
pub use nack::{LetGo, Nack, NotLogged};
pub use open::{Identity, IdentityBytes, Open, OpenReply, is_mark};
pub use ping::{Ping, Pong, StaleEpoch};
pub use place::Fragment;
pub use read::{Hit, Miss, READ_KEYS_MAX, ReadKeys, read_hashes, write_hashes};
pub use recover::{Recover, RecoverReply};
pub use response::{Progress, Response};
pub use retrans::Retrans;
pub use update::{End, Update};

use crate::{Flags, Header, Kind};

/// Stamp: the fields that are equal in all packets of a sender to one receiver (`docs/spec/wire.md` §1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// The shard.
    pub shard: u32,
    /// The sender's epoch.
    pub epoch: u32,
    /// Id of the device; 0 for a client or the server.
    pub device: u32,
    /// The device's incarnation.
    pub incarnation: u32,
    /// Token of the session or, between hops, of the shard.
    pub tag: u64,
}

impl Stamp {
    /// Returns the stamp of a received packet.
    #[must_use]
    pub const fn of(header: &Header) -> Stamp {
        Stamp {
            shard: header.shard,
            epoch: header.epoch,
            device: header.device,
            incarnation: header.incarnation,
            tag: header.tag,
        }
    }

    /// Returns this sender's stamp for a receiver with this token.
    #[must_use]
    pub const fn tagged(self, tag: u64) -> Stamp {
        Stamp { tag, ..self }
    }

    /// Returns a header of this kind with this stamp. All other fields are 0.
    #[must_use]
    pub(crate) const fn header(&self, kind: Kind) -> Header {
        let mut header = Header::new(kind);
        header.shard = self.shard;
        header.epoch = self.epoch;
        header.device = self.device;
        header.incarnation = self.incarnation;
        header.tag = self.tag;
        header
    }
}

/// Name and position of one field, in the header (of a view) or in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name of the field in this kind of packet, or in the row.
    pub name: &'static str,
    /// Offset of the field's first byte.
    pub offset: usize,
    /// Length of the field in bytes.
    pub bytes: usize,
}

impl Field {
    pub(crate) const fn new(name: &'static str, offset: usize, bytes: usize) -> Field {
        Field {
            name,
            offset,
            bytes,
        }
    }
}

/// A flag of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlagName {
    /// Name of the flag in this kind.
    pub name: &'static str,
    /// Bit of the flag.
    pub bit: Flags,
}

/// The fields of one view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Name of the view.
    pub name: &'static str,
    /// Kind of the packets that have this view.
    pub kind: Kind,
    /// Flags that are always set in packets with this view. They distinguish it from other views of its kind.
    pub always: Flags,
    /// Fields of the view in their order, without flags.
    pub fields: &'static [Field],
    /// Other flags of the view.
    pub flags: &'static [FlagName],
}

/// Defines a view: `Name = Kind, flags that are always set { field: place, … } flags { field: FLAG, … }`.
macro_rules! view {
    (
        $(#[$doc:meta])*
        $name:ident = $kind:ident $(, $always:ident)? {
            $($(#[$field_doc:meta])* $field:ident: $place:ident,)*
        }
        $(flags { $($(#[$flag_doc:meta])* $flag:ident: $bit:ident,)* })?
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $crate::packet::place::$place::Value,)*
            $($($(#[$flag_doc])* pub $flag: bool,)*)?
        }

        impl $name {
            /// Layout of the view's fields.
            pub const LAYOUT: $crate::packet::Layout = $crate::packet::Layout {
                name: stringify!($name),
                kind: $crate::Kind::$kind,
                always: $crate::Flags(0)$(.with($crate::Flags::$always))?,
                fields: &[$($crate::packet::Field {
                    name: stringify!($field),
                    offset: $crate::packet::place::$place::OFFSET,
                    bytes: $crate::packet::place::$place::BYTES,
                }),*],
                flags: &[$($($crate::packet::FlagName {
                    name: stringify!($flag),
                    bit: $crate::Flags::$bit,
                }),*)?],
            };

            /// Returns the fields of a header of this kind. The caller has checked the kind.
            #[must_use]
            #[inline]
            #[allow(unused_variables)]
            pub const fn read(header: &$crate::Header) -> $name {
                $name {
                    $($field: $crate::packet::place::$place::get(header),)*
                    $($($flag: header.flags.has($crate::Flags::$bit),)*)?
                }
            }

            /// Returns the header with these fields and this stamp.
            #[must_use]
            #[inline]
            pub const fn header(&self, stamp: &$crate::packet::Stamp) -> $crate::Header {
                #[allow(unused_mut)]
                let mut header = stamp.header($crate::Kind::$kind);
                $(header.flags = header.flags.with($crate::Flags::$always);)?
                $($crate::packet::place::$place::set(&mut header, self.$field);)*
                $($(if self.$flag {
                    header.flags = header.flags.with($crate::Flags::$bit);
                })*)?
                header
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(stringify!($name))?;
                $(write!(f, " {} {}", stringify!($field), self.$field)?;)*
                $($(if self.$flag {
                    f.write_str(concat!(" ", stringify!($flag)))?;
                })*)?
                Ok(())
            }
        }
    };
}
pub(crate) use view;

/// Every view, by the number of its kind.
pub const LAYOUTS: &[Layout] = &[
    Open::LAYOUT,
    OpenReply::LAYOUT,
    Update::LAYOUT,
    Append::LAYOUT,
    Ack::LAYOUT,
    Nack::LAYOUT,
    NotLogged::LAYOUT,
    Durable::LAYOUT,
    Applied::LAYOUT,
    Bypass::LAYOUT,
    Fallback::LAYOUT,
    Response::LAYOUT,
    Progress::LAYOUT,
    ReadKeys::LAYOUT,
    Hit::LAYOUT,
    Miss::LAYOUT,
    Retrans::LAYOUT,
    Recover::LAYOUT,
    RecoverReply::LAYOUT,
    StaleEpoch::LAYOUT,
    Ping::LAYOUT,
    Pong::LAYOUT,
    End::LAYOUT,
];

#[cfg(test)]
mod tests;
