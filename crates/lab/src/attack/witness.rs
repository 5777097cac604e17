//! Records the entries that the taps see while no client writes: which entry raised an order, and whether the front
//! asked for the entry.
//!
//! Invariant: the numbers of kept entries, sessions and packets are bounded.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use pmnet_wire::packet::{Append, EntryKind};
use pmnet_wire::{Header, Kind, Packet};

/// Maximum number of entries that are kept for the report.
const ENTRIES_MAX: usize = 32;
/// Maximum number of the front's sessions, and of its packets, that are remembered.
const REMEMBERED_MAX: usize = 100_000;
/// Length of the token in the payload of an OPEN.
const TOKEN_LEN: usize = 8;

/// The name of an entry, which can be read from the packet that asks for the entry and from the entry's APPEND. The
/// name of an OPEN is its token. The name of any other entry is its session and seq.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    kind: u8,
    session: u64,
    seq: u64,
}

impl Name {
    fn of(entry: EntryKind, header: &Header, payload: &[u8]) -> Name {
        let kind = entry.number();
        let token = payload.first_chunk::<TOKEN_LEN>().copied();
        match (entry, token) {
            (EntryKind::Open, Some(token)) => Name {
                kind,
                session: u64::from_be_bytes(token),
                seq: 0,
            },
            _ => Name {
                kind,
                session: header.session,
                seq: header.seq,
            },
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    name: Name,
    kind: EntryKind,
    session: u64,
    seq: u64,
}

/// The entries that the taps saw, and the packets of the front that asked for entries.
#[derive(Debug, Default)]
pub struct Witness {
    /// For each session, the kinds of packets that the front has sent.
    sessions: BTreeMap<u64, BTreeSet<u8>>,
    /// Names of the entries that the front has asked for.
    asked: BTreeSet<Name>,
    /// Only entries above this order are kept.
    above: Option<u64>,
    entries: BTreeMap<u64, Entry>,
}

impl Witness {
    /// Takes a genuine packet. `by_front`: the front sent the packet.
    pub fn note(&mut self, datagram: &[u8], by_front: bool) {
        let Ok(packet) = Packet::parse(datagram) else {
            return;
        };
        let header = &packet.header;
        if header.kind == Kind::Append {
            let append = Append::read(header);
            let is_new = self.above.is_some_and(|above| append.order > above);
            if is_new && self.entries.len() < ENTRIES_MAX {
                self.entries.entry(append.order).or_insert(Entry {
                    name: Name::of(append.entry, header, packet.payload),
                    kind: append.entry,
                    session: append.session,
                    seq: append.seq,
                });
            }
        } else if by_front {
            let entry = EntryKind::from_number(header.kind.number());
            // Updates from before the watch need not be kept.
            let is_of_interest = match entry {
                EntryKind::Open | EntryKind::End => true,
                EntryKind::Update => self.above.is_some(),
                EntryKind::Unknown(_) => false,
            };
            if is_of_interest && self.asked.len() < REMEMBERED_MAX {
                self.asked.insert(Name::of(entry, header, packet.payload));
            }
            if header.session != 0 && self.sessions.len() < REMEMBERED_MAX {
                let kinds = self.sessions.entry(header.session).or_default();
                kinds.insert(header.kind.number());
            }
        }
    }

    /// Starts the watch: from now on, entries above this order are kept.
    pub fn watch(&mut self, above: u64) {
        self.above = Some(above);
        self.entries.clear();
    }

    /// Ends the watch. Returns descriptions of the entries that were kept.
    pub fn told(&mut self) -> Vec<String> {
        self.above = None;
        let entries = std::mem::take(&mut self.entries);
        let witness: &Witness = self;
        let told = entries.iter().map(|(order, entry)| {
            let told = Told {
                order: *order,
                entry,
                witness,
            };
            told.to_string()
        });
        told.collect()
    }
}

/// The description of an entry as text.
struct Told<'a> {
    order: u64,
    entry: &'a Entry,
    witness: &'a Witness,
}

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entry {
            name,
            kind,
            session,
            seq,
        } = self.entry;
        write!(
            f,
            "order {}: {kind} of session {session}, seq {seq}; ",
            self.order
        )?;
        let asked = self.witness.asked.contains(name);
        f.write_str(match asked {
            true => "the front asked for it",
            false => "the front did not ask for it",
        })?;
        let kinds = self.witness.sessions.get(session);
        let kinds: Vec<String> = kinds
            .into_iter()
            .flatten()
            .filter_map(|kind| Some(format!("{:?}", Kind::from_u8(*kind)?)))
            .collect();
        match kinds.is_empty() {
            true => write!(f, ", and sent nothing in this session"),
            false => write!(f, "; it sent in this session: {}", kinds.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(kind: Kind, session: u64, seq: u64, payload: &[u8]) -> Vec<u8> {
        let header = Header {
            session,
            seq,
            ..Header::new(kind)
        };
        let mut bytes = Vec::new();
        header.for_payload(payload).write(payload, &mut bytes);
        bytes
    }

    fn append(asked: Kind, session: u64, seq: u64, order: u64, payload: &[u8]) -> Vec<u8> {
        let asked = Header {
            session,
            seq,
            ..Header::new(asked)
        };
        let asked = asked.for_payload(payload);
        let header = Append::admitted(&asked, order, &pmnet_wire::packet::Stamp::default());
        let mut bytes = Vec::new();
        header.write(payload, &mut bytes);
        bytes
    }

    #[test]
    fn an_entry_is_told_with_whether_the_front_asked_for_it() {
        let mut witness = Witness::default();
        let token = [7; 16];
        witness.note(&packet(Kind::Read, 5, 0, b""), true);
        witness.note(&append(Kind::Update, 5, 1, 8, b"x"), false);
        witness.watch(8);
        witness.note(&append(Kind::Update, 5, 1, 8, b"x"), false);
        witness.note(&packet(Kind::End, 5, 2, b""), true);
        witness.note(&append(Kind::End, 5, 2, 9, b""), false);
        witness.note(&append(Kind::End, 5, 2, 9, b""), false);
        witness.note(&packet(Kind::Open, 0, 0, &token), true);
        witness.note(&append(Kind::Open, 0, 0, 10, &token), false);
        // A packet that another role sent does not count as a question of the front.
        witness.note(&packet(Kind::Update, 10, 1, b"y"), false);
        witness.note(&append(Kind::Update, 10, 1, 11, b"y"), false);
        let told = [
            "order 9: End of session 5, seq 2; the front asked for it; it sent in this session: End, Read",
            "order 10: Open of session 10, seq 0; the front asked for it, and sent nothing in this session",
            "order 11: Update of session 10, seq 1; the front did not ask for it, and sent nothing in this session",
        ];
        assert_eq!(witness.told(), told);
        assert!(witness.told().is_empty());
    }
}
