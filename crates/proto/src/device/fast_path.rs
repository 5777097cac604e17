//! What the machine does for a fast path that admits updates beside it, by the same rules and into
//! the same log: the pipeline in the kernel (`docs/spec/pipeline.md`).
//!
//! Whatever the fast path admitted is folded here before the machine looks at a packet, so the
//! machine never decides on an old state. Admission itself is never shared: while the machine
//! admits, the fast path is held.

use super::Device;
use crate::Peer;
use crate::time::Time;
use pmnet_wire::{Flags, Header, Kind, Packet};

/// What a fast path must know to admit updates of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionState {
    /// The session.
    pub id: u64,
    /// Its token.
    pub token: u64,
    /// Last admitted seq.
    pub last: u64,
    /// It may be admitted up to this seq: ended sessions and quotas.
    pub until: u64,
    /// Last applied seq.
    pub applied: u64,
    /// Where its client was last heard from.
    pub address: Option<Peer>,
}

impl Device {
    /// From now on [`Device::changed_sessions`] says which sessions changed.
    pub fn note_changes(&mut self) {
        self.changed.get_or_insert_default();
    }

    pub(super) fn note_change(&mut self, id: u64) {
        let Some(changed) = &mut self.changed else {
            return;
        };
        let known = self.sessions.get_mut(&id);
        if known.is_none_or(|session| !std::mem::replace(&mut session.changed, true)) {
            changed.push(id);
        }
    }

    /// Every session is to be told anew: after a recovery.
    pub(super) fn note_all(&mut self) {
        if let Some(changed) = &mut self.changed {
            changed.clear();
            changed.extend(self.sessions.keys());
            changed.sort_unstable();
            for session in self.sessions.values_mut() {
                session.changed = true;
            }
        }
    }

    /// The sessions that changed since the last call, with their state; `None`: it is over.
    pub fn changed_sessions(&mut self, mut tell: impl FnMut(u64, Option<SessionState>)) {
        let Some(changed) = &mut self.changed else {
            return;
        };
        for id in changed.drain(..) {
            let state = self.sessions.get_mut(&id).map(|session| {
                session.changed = false;
                let share = self.config.session_entries_max;
                let until = match share {
                    _ if session.ended => 0,
                    u64::MAX => u64::MAX,
                    _ => session
                        .last
                        .saturating_add(share.saturating_sub(session.outstanding)),
                };
                SessionState {
                    id,
                    token: session.token,
                    last: session.last,
                    until,
                    applied: session.applied,
                    address: session.address,
                }
            });
            tell(id, state);
        }
    }

    /// Whether a fast path may admit updates now: this is a head, in service, not being replaced.
    #[must_use]
    pub const fn admits(&self) -> bool {
        self.is_head() && !self.joining
    }

    /// Shard, epoch, device, incarnation and token, as this device writes them between hops.
    #[must_use]
    pub fn stamp(&self) -> Header {
        self.hop_header(Kind::Append)
    }

    /// Whether taking in this packet may admit something or move a session: then the fast path has
    /// to be held before.
    #[must_use]
    pub fn may_admit(header: &Header) -> bool {
        match header.kind {
            Kind::Open | Kind::Update | Kind::End | Kind::Append | Kind::RecoverReply => true,
            Kind::Response => header.flags.has(Flags::FALLBACK),
            _ => false,
        }
    }

    /// Whether [`Device::poll_own_entry`] may have something to append.
    #[must_use]
    pub fn has_own_entries(&self) -> bool {
        !self.expired.is_empty()
    }

    /// Before idle sessions are looked for: the fast path says which ones it has heard of since it was
    /// last asked. What it admitted is known already; these repeated what they had sent.
    pub fn refresh(&mut self, now: Time, mut heard: impl FnMut(u64) -> bool) {
        if self.next_expiry.is_none_or(|due| now < due) {
            return;
        }
        for (&id, session) in &mut self.sessions {
            if heard(id) {
                session.seen = now;
            }
        }
    }

    /// Takes in an entry that the fast path admitted: its frame, as it stands in the log.
    ///
    /// # Errors
    /// A text that says why the frame cannot be the next of this log.
    pub fn follow(&mut self, now: Time, frame: &[u8]) -> Result<(), String> {
        let packet = Packet::parse(frame)
            .map_err(|reason| format!("a frame of the fast path does not parse: {reason}"))?;
        let header = &packet.header;
        let known = self.sessions.get_mut(&header.session);
        let Some(session) = known.filter(|session| session.next_seq() == header.seq) else {
            return Err(format!(
                "the fast path admitted (session {}, seq {}), which is not the next of a session",
                header.session, header.seq
            ));
        };
        session.seen = now;
        if header.order != self.last + 1 || header.copies != Kind::Update.number() {
            return Err(format!(
                "the fast path admitted {header} behind order {}",
                self.last
            ));
        }
        self.fold(header, 0);
        self.counters.admitted += 1;
        Ok(())
    }

    /// What was followed is durable up to `order`. With `acknowledged` the fast path has told the
    /// clients itself, which it may only as the whole chain (rule 5).
    pub fn followed(&mut self, order: u64, acknowledged: bool) {
        assert!(
            !acknowledged || self.members.len() == 1,
            "one device acknowledges for one device"
        );
        let told = self.touched.len();
        self.persisted(order);
        if acknowledged {
            for id in self.touched.split_off(told) {
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.touched = false;
                }
            }
        }
    }
}
