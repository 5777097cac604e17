//! Payloads between hops: lists of durable orders, paths of RECOVER, and recover-replies (`docs/spec/wire.md` §5). They
//! consist of a bounded number of rows of fixed size, in big-endian order.

use crate::packet::Field;
use crate::{FragmentSize, FrontId};

/// Maximum number of devices of one chain.
pub const CHAIN_MAX: usize = 8;
/// Bytes of one [`Member`].
pub const MEMBER_BYTES: usize = 56;
/// Bytes of one [`DurableRow`].
pub const DURABLE_ROW_BYTES: usize = 16;
/// Bytes of one [`SessionRow`] without a front.
pub const SESSION_ROW_BYTES: usize = 24;
/// Bytes of one [`SessionRow`] in a part that has fronts (`docs/spec/keys.md` §2).
pub const KEYED_ROW_BYTES: usize = 32;
/// Bit in the number of session rows. If it is set, each row names its front.
const WITH_FRONTS: u32 = 1 << 31;
/// Number of bytes of a recover-reply besides its rows.
const REPLY_FIXED_BYTES: usize = 16;

/// Fields of a [`DurableRow`].
pub const DURABLE_ROW_FIELDS: &[Field] = &[
    Field::new("device", 0, 4),
    Field::new("incarnation", 4, 4),
    Field::new("order", 8, 8),
];
/// Fields of a [`Member`].
pub const MEMBER_FIELDS: &[Field] = &[
    Field::new("device", 0, 4),
    Field::new("incarnation", 4, 4),
    Field::new("log_uuid", 8, 16),
    Field::new("tail", 24, 8),
    Field::new("applied", 32, 8),
    Field::new("flags", 40, 4),
    Field::new("word_epoch", 44, 4),
    Field::new("served", 48, 4),
    Field::new("size", 52, 4),
];
/// Fields of a [`SessionRow`]; the last field exists only in keyed rows.
pub const SESSION_ROW_FIELDS: &[Field] = &[
    Field::new("session", 0, 8),
    Field::new("last_seq", 8, 8),
    Field::new("token", 16, 8),
    Field::new("front", 24, 8),
];

const fn rows_beside_a_chain(bytes: usize, row: usize) -> usize {
    (bytes - REPLY_FIXED_BYTES - CHAIN_MAX * MEMBER_BYTES) / row
}

/// Number of session rows in one part of a recover-reply, besides a chain of full length. With this number a part fits
/// every path.
pub const SESSION_ROWS_PER_PART: usize =
    rows_beside_a_chain(crate::FRAGMENT_BYTES_MIN, SESSION_ROW_BYTES);
/// Number of session rows with fronts in one part of a recover-reply.
pub const KEYED_ROWS_PER_PART: usize =
    rows_beside_a_chain(crate::FRAGMENT_BYTES_MIN, KEYED_ROW_BYTES);
/// Maximum number of session rows of a part. A server of an earlier version, which knows only one size of fragments,
/// sends this number.
pub const SESSION_ROWS_MAX: usize = rows_beside_a_chain(crate::FRAGMENT_BYTES, SESSION_ROW_BYTES);

/// State of one device in a DURABLE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurableRow {
    /// Id of the device.
    pub device: u32,
    /// Incarnation of the device.
    pub incarnation: u32,
    /// All orders up to this order are durable in the device.
    pub order: u64,
}

/// One device of a chain, as it describes itself in RECOVER and as the chain record keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Device id.
    pub device: u32,
    /// Incarnation.
    pub incarnation: u32,
    /// Uuid of the device's log, which identifies the medium.
    pub log_uuid: u128,
    /// Highest durable order of the device's log.
    pub tail: u64,
    /// Highest order of which the device knows that it is applied.
    pub applied: u64,
    /// Flags, such as [`Member::SHRINK`].
    pub flags: u32,
    /// The only epoch in which the operator's statement in the flags counts.
    pub word_epoch: u32,
    /// Last incarnation in which this log was marked as serving.
    pub served: u32,
    /// In RECOVER: the size of fragments that the device's paths to its neighbour hops carry. In the record and in
    /// replies, the smallest size of all rows is the shard's size ([`shard_size`]).
    pub size: FragmentSize,
}

/// Returns the size of fragments of a shard whose record has these members.
#[must_use]
pub fn shard_size(members: &[Member]) -> FragmentSize {
    let sizes = members.iter().map(|member| member.size);
    sizes.min().unwrap_or(FragmentSize::MAX)
}

impl Member {
    /// The operator states that the members which are missing on this path are stopped, and will not start again.
    pub const SHRINK: u32 = 1;
    /// The operator states that the entries of the lost chain are gone.
    pub const DECLARE_LOSS: u32 = 1 << 1;
    /// Entries may still be appended to the device's log, so `tail` may already be old.
    pub const SERVING: u32 = 1 << 2;
    /// The operator states that this device is to join the chain. If `tail` is 0, the device's log is erased.
    pub const JOIN: u32 = 1 << 3;
    /// In the chain record only: the device joined a chain that held data. When the device holds all orders up to
    /// `tail`, it has all entries that were acknowledged before it joined. So `tail` is not the end of its log here.
    pub const JOINED: u32 = 1 << 4;
}

/// One row of the session table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionRow {
    /// Session id.
    pub session: u64,
    /// Last applied seq of the session.
    pub last_seq: u64,
    /// Token of the session.
    pub token: u64,
    /// Front of the session, if the shard has keys.
    pub front: Option<FrontId>,
}

/// One part of a recover-reply. Every part repeats the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoverReply {
    /// Token of the shard, which every packet between hops carries.
    pub shard_token: u64,
    /// The chain of this epoch, head first.
    pub members: Vec<Member>,
    /// Session rows of this part.
    pub sessions: Vec<SessionRow>,
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }
    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }
}

fn read_member(r: &mut Reader<'_>) -> Option<Member> {
    Some(Member {
        device: r.u32()?,
        incarnation: r.u32()?,
        log_uuid: u128::from_be_bytes(r.take()?),
        tail: r.u64()?,
        applied: r.u64()?,
        flags: r.u32()?,
        word_epoch: r.u32()?,
        served: r.u32()?,
        size: FragmentSize::from_wire(r.u32()?.into()),
    })
}

fn write_member(m: &Member, out: &mut Vec<u8>) {
    out.extend_from_slice(&m.device.to_be_bytes());
    out.extend_from_slice(&m.incarnation.to_be_bytes());
    out.extend_from_slice(&m.log_uuid.to_be_bytes());
    out.extend_from_slice(&m.tail.to_be_bytes());
    out.extend_from_slice(&m.applied.to_be_bytes());
    out.extend_from_slice(&m.flags.to_be_bytes());
    out.extend_from_slice(&m.word_epoch.to_be_bytes());
    out.extend_from_slice(&m.served.to_be_bytes());
    let size = u32::try_from(m.size.on_wire()).expect("bounded");
    out.extend_from_slice(&size.to_be_bytes());
}

/// Returns the payload of DURABLE: one row for the sender, and then one row for each device after it, in the order of
/// the chain.
#[must_use]
pub fn write_durable(rows: &[DurableRow]) -> Vec<u8> {
    let mut out = Vec::with_capacity(rows.len() * DURABLE_ROW_BYTES);
    for row in rows {
        out.extend_from_slice(&row.device.to_be_bytes());
        out.extend_from_slice(&row.incarnation.to_be_bytes());
        out.extend_from_slice(&row.order.to_be_bytes());
    }
    out
}

/// Reads the payload of DURABLE. `None`: the payload does not consist of whole rows, is empty, or is too long.
#[must_use]
pub fn read_durable(payload: &[u8]) -> Option<Vec<DurableRow>> {
    let count = payload.len() / DURABLE_ROW_BYTES;
    if !payload.len().is_multiple_of(DURABLE_ROW_BYTES) || count == 0 || count > CHAIN_MAX {
        return None;
    }
    let mut r = Reader(payload);
    (0..count)
        .map(|_| {
            Some(DurableRow {
                device: r.u32()?,
                incarnation: r.u32()?,
                order: r.u64()?,
            })
        })
        .collect()
}

/// Returns the payload of RECOVER: the path so far, beginning with the device that asks. It is padded, so that no part
/// of the reply is longer than the request.
#[must_use]
pub fn write_path(path: &[Member]) -> Vec<u8> {
    write_padded_path(path, FragmentSize::MIN)
}

/// Returns the payload of [`write_path`], padded to `bytes`.
#[must_use]
pub fn write_padded_path(path: &[Member], bytes: FragmentSize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.bytes());
    let count = u32::try_from(path.len().min(CHAIN_MAX)).expect("bounded");
    out.extend_from_slice(&count.to_be_bytes());
    out.extend_from_slice(&[0; 4]);
    for member in path.iter().take(CHAIN_MAX) {
        write_member(member, &mut out);
    }
    out.resize(bytes.bytes(), 0);
    out
}

/// Reads the payload of RECOVER. `None`: the payload is malformed, or shorter than a reply may be.
#[must_use]
pub fn read_path(payload: &[u8]) -> Option<Vec<Member>> {
    if !(crate::FRAGMENT_BYTES_MIN..=crate::FRAGMENT_BYTES).contains(&payload.len()) {
        return None;
    }
    let mut r = Reader(payload);
    let count = usize::try_from(r.u32()?).ok()?;
    r.u32()?;
    if count == 0 || count > CHAIN_MAX {
        return None;
    }
    (0..count).map(|_| read_member(&mut r)).collect()
}

impl RecoverReply {
    /// Returns the payload of this part.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(crate::FRAGMENT_BYTES);
        out.extend_from_slice(&self.shard_token.to_be_bytes());
        out.extend_from_slice(
            &u32::try_from(self.members.len())
                .expect("bounded")
                .to_be_bytes(),
        );
        let keyed = self.sessions.iter().any(|row| row.front.is_some());
        let rows = u32::try_from(self.sessions.len()).expect("bounded");
        let rows = if keyed { rows | WITH_FRONTS } else { rows };
        out.extend_from_slice(&rows.to_be_bytes());
        for member in &self.members {
            write_member(member, &mut out);
        }
        for row in &self.sessions {
            out.extend_from_slice(&row.session.to_be_bytes());
            out.extend_from_slice(&row.last_seq.to_be_bytes());
            out.extend_from_slice(&row.token.to_be_bytes());
            if keyed {
                let front = row.front.map_or(0, FrontId::get);
                out.extend_from_slice(&front.to_be_bytes());
            }
        }
        out
    }

    /// Reads one part of a recover-reply; `None`: it is malformed.
    #[must_use]
    pub fn read(payload: &[u8]) -> Option<RecoverReply> {
        let mut r = Reader(payload);
        let shard_token = r.u64()?;
        let members = usize::try_from(r.u32()?).ok()?;
        let count = r.u32()?;
        let keyed = count & WITH_FRONTS != 0;
        let sessions = usize::try_from(count & !WITH_FRONTS).ok()?;
        let row = if keyed {
            KEYED_ROW_BYTES
        } else {
            SESSION_ROW_BYTES
        };
        if members > CHAIN_MAX
            || sessions > SESSION_ROWS_MAX
            || r.0.len() != members * MEMBER_BYTES + sessions * row
        {
            return None;
        }
        Some(RecoverReply {
            shard_token,
            members: (0..members)
                .map(|_| read_member(&mut r))
                .collect::<Option<_>>()?,
            sessions: (0..sessions)
                .map(|_| {
                    Some(SessionRow {
                        session: r.u64()?,
                        last_seq: r.u64()?,
                        token: r.u64()?,
                        front: if keyed { FrontId::new(r.u64()?) } else { None },
                    })
                })
                .collect::<Option<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number in a field of a row.
    fn number(row: &[u8], fields: &[Field], name: &str) -> u128 {
        let field = fields.iter().find(|field| field.name == name);
        let field = field.unwrap_or_else(|| panic!("no field {name}"));
        let bytes = &row[field.offset..field.offset + field.bytes];
        bytes
            .iter()
            .fold(0, |number, byte| number << 8 | u128::from(*byte))
    }

    fn cover(fields: &[Field], bytes: usize) {
        let mut end = 0;
        for field in fields {
            assert_eq!(field.offset, end, "{}", field.name);
            end += field.bytes;
        }
        assert_eq!(end, bytes);
    }

    #[test]
    fn fields_of_rows_are_where_they_are_written() {
        cover(DURABLE_ROW_FIELDS, DURABLE_ROW_BYTES);
        cover(MEMBER_FIELDS, MEMBER_BYTES);
        cover(SESSION_ROW_FIELDS, KEYED_ROW_BYTES);
        let row = write_durable(&[DurableRow {
            device: 1,
            incarnation: 2,
            order: 3,
        }]);
        let durable = |name| number(&row, DURABLE_ROW_FIELDS, name);
        assert_eq!(["device", "incarnation", "order"].map(durable), [1, 2, 3]);
        let member = Member {
            device: 1,
            incarnation: 2,
            log_uuid: 3,
            tail: 4,
            applied: 5,
            flags: 6,
            word_epoch: 7,
            served: 8,
            size: FragmentSize::MIN,
        };
        let session = SessionRow {
            session: 11,
            last_seq: 12,
            token: 13,
            front: FrontId::new(14),
        };
        let reply = RecoverReply {
            shard_token: 9,
            members: vec![member],
            sessions: vec![session],
        };
        let bytes = reply.write();
        let (members, sessions) = bytes[REPLY_FIXED_BYTES..].split_at(MEMBER_BYTES);
        for (name, value) in [
            ("device", 1),
            ("incarnation", 2),
            ("log_uuid", 3),
            ("tail", 4),
            ("applied", 5),
            ("flags", 6),
            ("word_epoch", 7),
            ("served", 8),
            ("size", FragmentSize::MIN.bytes() as u128),
        ] {
            assert_eq!(number(members, MEMBER_FIELDS, name), value, "{name}");
        }
        let row = |name| number(sessions, SESSION_ROW_FIELDS, name);
        assert_eq!(
            ["session", "last_seq", "token", "front"].map(row),
            [11, 12, 13, 14]
        );
    }
}
