//! The session table of a device, folded from its log (`docs/spec/protocol.md` §1).

use super::reads::Outstanding;
use super::{Device, DeviceConfig, IndexRow, Phase, Table};
use crate::keys::{ClusterKeys, Seal};
use crate::{Peer, Time};
use pmnet_wire::packet::{Append, EntryKind, Identity, LetGo};
use pmnet_wire::record::SessionRow;
use pmnet_wire::{FrontId, Header, SessionKeys};

/// One session as a device knows it.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) token: u64,
    /// Front and keys of the session, if the shard has keys.
    pub(super) front: Option<FrontId>,
    pub(super) keys: Option<SessionKeys>,
    /// Row of the session's front ([`super::shares`]).
    pub(super) share: u8,
    /// Last admitted seq.
    pub(super) last: u64,
    /// Last committed seq.
    pub(super) committed: u64,
    /// Last applied seq.
    pub(super) applied: u64,
    /// Number of entries in the log that are not applied.
    pub(super) unapplied: u64,
    /// Address from which the client last sent.
    pub(super) address: Option<Peer>,
    pub(super) seen: Time,
    /// The END of the session is in the log, with seq `last`.
    pub(super) ended: bool,
    /// The client itself has sent the session's END. If false, the head has made the END.
    pub(super) end_asked: bool,
    pub(super) touched: bool,
    /// The next [`Device::changed_sessions`] reports the session.
    pub(super) changed: bool,
    pub(super) nacked_in: u64,
    /// The last answer to the client said that the store is short of space.
    pub(super) told_short: bool,
    pub(super) outstanding: Outstanding,
    /// Name of the client and number of its start, if this process has received them.
    pub(super) client: (u64, u64),
    /// Reason for which the head has ended the session on its own.
    pub(super) let_go: Option<LetGo>,
    /// Number of connections on which a NIC takes messages of the session. A broken connection counts until this
    /// machine has received all messages that the NIC took.
    pub(super) bound: u32,
}

impl Session {
    pub(super) fn from_row(
        row: &SessionRow,
        keys: Option<SessionKeys>,
        share: u8,
        now: Time,
    ) -> Session {
        Session {
            token: row.token,
            front: row.front,
            keys,
            share,
            last: row.last_seq,
            committed: row.last_seq,
            applied: row.last_seq,
            unapplied: 0,
            address: None,
            seen: now,
            ended: false,
            end_asked: false,
            touched: false,
            changed: false,
            nacked_in: 0,
            told_short: false,
            outstanding: Outstanding::default(),
            client: (0, 0),
            let_go: None,
            bound: 0,
        }
    }
}

impl Table {
    /// Keeps the counts of connections of sessions that were known before the recovery, because the NIC's slots may
    /// still have messages of these sessions.
    pub(super) fn keep_bound(&mut self, before: &Table) {
        for (id, old) in before.sessions.iter().filter(|(_, old)| old.bound > 0) {
            if let Some(session) = self.sessions.get_mut(id)
                && session.token == old.token
            {
                session.bound = old.bound;
                // Even if the key of the session's front was removed, messages in slots must still be verified.
                session.keys = session.keys.or(old.keys);
            }
        }
    }
}

impl Session {
    /// Returns the session that is created for an unknown id without [`Rule::KnownSession`](crate::rules::Rule).
    pub(super) fn unknown(header: &Header, now: Time) -> Session {
        let row = SessionRow {
            session: header.session,
            last_seq: header.seq.saturating_sub(1),
            token: header.tag,
            front: None,
        };
        Session::from_row(&row, None, super::shares::COMMON, now)
    }

    /// Returns token and front of the session.
    pub(super) const fn identity(&self) -> Identity {
        Identity {
            token: self.token,
            front: self.front,
        }
    }

    /// Removes the session's keys, if its front is not served any more and it has no connection whose messages must
    /// still be verified. Returns true if the keys were removed.
    pub(super) fn forget_keys(&mut self, cluster: &ClusterKeys) -> bool {
        let is_served = self.front.is_some_and(|id| cluster.serves(id));
        !is_served && self.bound == 0 && self.keys.take().is_some()
    }

    /// Returns the seal of packets to the client. `None`: the shard has keys and the session has none, so its front is
    /// refused and gets no packets.
    pub(super) fn seal(&self, config: &DeviceConfig) -> Option<Seal> {
        match self.keys {
            Some(keys) => Some(Seal::Key(keys.to_client)),
            None if config.keys.is_some() => None,
            None => Some(Seal::Token),
        }
    }

    /// Returns the client's address, and the seal of packets to it. `None`: the address is unknown, or the shard has
    /// keys and the session has none.
    pub(super) fn route(&self, config: &DeviceConfig) -> Option<(Peer, Seal)> {
        Some((self.address?, self.seal(config)?))
    }

    /// Returns the next seq. If this is the largest seq, the result is the same seq; only a broken server can state so
    /// large a seq.
    pub(super) const fn next_seq(&self) -> u64 {
        self.last.saturating_add(1)
    }

    /// Whether the head has ended the session on its own. The client may not know this, and may have used the END's seq
    /// for an update. This update must not be acknowledged together with the END.
    pub(super) const fn is_expired(&self) -> bool {
        self.ended && !self.end_asked
    }
}

impl Device {
    /// Folds one entry of the log into the session table and the index, in the same way at every hop.
    pub(super) fn fold(&mut self, entry: &Header, said: Identity) {
        debug_assert_eq!(
            entry.order,
            self.cursors.last + 1,
            "entries are folded in order"
        );
        let view = Append::read(entry);
        let kind = view.entry;
        self.cursors.last = entry.order;
        if kind == EntryKind::Open {
            let row = SessionRow {
                session: entry.session,
                last_seq: 0,
                token: said.token,
                front: said.front,
            };
            self.begin_session(&row, Time(0));
        }
        let mut share = super::shares::COMMON;
        if let Some(session) = self.table.sessions.get_mut(&entry.session) {
            share = session.share;
            session.last = session.last.max(entry.seq);
            session.unapplied += 1;
            session.ended |= kind == EntryKind::End;
            if kind != EntryKind::Open {
                self.table.opening.remove(&session.identity());
            }
            self.reads.admitted(&view, said.token, session);
        }
        let blocks = self.table.shares.entry_comes(share, entry);
        self.table.index.push_back(IndexRow {
            session: entry.session,
            seq: entry.seq,
            payload_crc: entry.payload_crc,
            entry: kind,
            share,
            blocks,
        });
    }

    /// Adds a session from the server's table or from an entry.
    pub(super) fn begin_session(&mut self, row: &SessionRow, now: Time) {
        let whose = Identity {
            token: row.token,
            front: row.front,
        };
        let keys = self.session_keys(whose);
        let share = self.table.shares.row_of(now, row.front);
        let session = Session::from_row(row, keys, share, now);
        self.table.shares.session_begins(share);
        if let Some(before) = self.table.sessions.insert(row.session, session) {
            self.table.shares.session_ends(before.share);
        }
    }

    /// Notes that the client of this session must be sent an acknowledgement at the end of the burst.
    pub(super) fn touch(&mut self, id: u64) {
        if let Phase::Serving(serving) = &mut self.phase
            && let Some(session) = self.table.sessions.get_mut(&id)
            && !std::mem::replace(&mut session.touched, true)
        {
            serving.touched.push(id);
        }
    }
}
