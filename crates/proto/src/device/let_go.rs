//! Sessions that the head ends on its own (`docs/spec/protocol.md` §4, "Sessions that end by themselves").
//!
//! A session whose client has disappeared is ended after a long silence. Such a session is ended earlier in two cases:
//! its client reports that it was started again, or the table is full and the session is silent. A session that is in
//! use is ended only if its front has more than its share and another front finds no place. A mark (reads.md §5) is
//! ended only after the long silence, because commands of its client may still be executed in the store after the
//! client's end.

use super::session::Session;
use super::{Device, Room};
use crate::time::{Nanos, SECOND, earliest};
use crate::{Peer, Time};
use pmnet_wire::packet::{End, Identity, LetGo, Nack, Stamp, is_mark};
use pmnet_wire::{FrontId, Header};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::net::IpAddr;

/// Maximum number of ended sessions that are remembered, for clients that ask.
const GONE_MAX: usize = 65_536;
/// Maximum number of clients whose last start is remembered.
const CLIENTS_MAX: usize = 4096;
/// Maximum number of silent sessions that one search of a full table ends.
const MADE_ROOM_MAX: usize = 1024;
/// Maximum number of sessions that are ended in one burst, so that sessions in use are served between two bursts.
const ENDED_MAX: usize = 256;
/// Shortest time between two searches of all sessions for the same reason: a search takes time, and clients can cause a
/// search at any time.
const LOOKED_EVERY: Nanos = SECOND;

/// A session that the head has ended.
#[derive(Clone, Copy, Debug)]
struct Gone {
    token: u64,
    /// Seq of the session's END.
    end: u64,
    why: LetGo,
}

/// Sessions that must be ended, and sessions that were ended.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    /// Ids of sessions that must be ended, each with the reason.
    queue: VecDeque<(u64, LetGo)>,
    /// Number of sessions ended in this burst (`ended`), and whether more are waiting (`more`).
    ended: usize,
    more: bool,
    /// A session was refused because the table was full.
    crowded: bool,
    crowded_at: Option<Time>,
    /// Number of the last start of each client, by front, name and host of the client. A client with the same name on
    /// another host is a copy of the client, and not a later start.
    clients: FxHashMap<(Option<FrontId>, u64, IpAddr), u64>,
    /// Time of the next search for sessions of earlier starts; `None`: no client was started again.
    look_due: Option<Time>,
    looked_at: Option<Time>,
    gone: FxHashMap<u64, Gone>,
    gone_in_order: VecDeque<u64>,
}

impl Leaving {
    /// The device begins to serve. Sessions to end are searched for anew.
    pub(super) fn begin(&mut self) {
        self.queue.clear();
        (self.crowded, self.more, self.look_due) = (false, false, None);
        self.clients.clear();
    }

    /// Notes the end of a burst.
    pub(super) fn burst_ends(&mut self) {
        self.ended = 0;
    }

    /// Whether there are more sessions to end, so that the next burst must come at once.
    pub(super) fn goes_on(&self) -> bool {
        self.more
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    fn remember(&mut self, session: u64, gone: Gone) {
        if self.gone_in_order.len() == GONE_MAX
            && let Some(oldest) = self.gone_in_order.pop_front()
        {
            self.gone.remove(&oldest);
        }
        if self.gone.insert(session, gone).is_none() {
            self.gone_in_order.push_back(session);
        }
    }
}

impl Device {
    /// Notes the client of an OPEN or a PING. If this is a later start of a known client, the sessions of its earlier
    /// starts must be ended. With keys, a name counts only within its front, so that no front can end sessions of
    /// another front.
    pub(super) fn note_client(
        &mut self,
        now: Time,
        from: Peer,
        front: Option<FrontId>,
        (client, start): (u64, u64),
    ) {
        if client == 0 {
            return;
        }
        let name = (front, client, from.ip());
        if self.leaving.clients.len() >= CLIENTS_MAX && !self.leaving.clients.contains_key(&name) {
            self.leaving.clients.clear();
        }
        let known = self.leaving.clients.get(&name).copied();
        if known.is_some_and(|known| known >= start) {
            return;
        }
        self.leaving.clients.insert(name, start);
        let next = self.leaving.looked_at.map(|at| at + LOOKED_EVERY);
        let look = next.map_or(now, |next| next.max(now));
        let look = *self.leaving.look_due.get_or_insert(look);
        let due = &mut self.phase.serving().next_expiry;
        *due = earliest(*due, Some(look));
    }

    /// Queues the sessions of clients' earlier starts. They replace the sessions that an earlier search for this reason
    /// has queued.
    fn let_go_of_earlier_starts(&mut self, now: Time) {
        self.leaving.look_due = None;
        self.leaving.looked_at = Some(now);
        let clients = &self.leaving.clients;
        let is_former = |session: &Session| {
            let (client, start) = session.client;
            let name = session.address.map(|at| (session.front, client, at.ip()));
            let last = name.and_then(|name| clients.get(&name));
            last.is_some_and(|last| start < *last)
        };
        let sessions =
            self.table.sessions.iter().filter(|(_, session)| {
                !session.ended && !is_mark(session.token) && is_former(session)
            });
        let mut former: Vec<u64> = sessions.map(|(&id, _)| id).collect();
        former.sort_unstable();
        let queue = &mut self.leaving.queue;
        queue.retain(|(_, why)| *why != LetGo::Succeeded);
        queue.extend(former.into_iter().map(|id| (id, LetGo::Succeeded)));
    }

    /// The table is full, so silent sessions must be ended. The search follows when the fast path has stated from which
    /// sessions it has received packets.
    pub(super) fn make_room(&mut self, now: Time) {
        let lately = |at: Time| now.since(at) < LOOKED_EVERY;
        if !self.leaving.crowded_at.is_some_and(lately) {
            self.leaving.crowded_at = Some(now);
            self.leaving.crowded = true;
            self.phase.serving().next_expiry = Some(now);
        }
    }

    pub(super) fn tick_expiry(&mut self, now: Time) {
        let serving = self.phase.serving();
        if self.chain.position != 0 || serving.next_expiry.is_none_or(|due| now < due) {
            return;
        }
        if self.leaving.look_due.is_some_and(|due| due <= now) {
            self.let_go_of_earlier_starts(now);
        }
        let idle = self.config.session_idle;
        let crowded = std::mem::take(&mut self.leaving.crowded);
        let quiet = if crowded { self.quiet() } else { idle };
        let mut late: Vec<(Time, u64)> = self
            .table
            .sessions
            .iter()
            .filter(|(_, session)| {
                // The store may still execute a command under a mark long after the command's client has disappeared.
                // So a mark is ended only after the long silence.
                let quiet = if is_mark(session.token) { idle } else { quiet };
                !session.ended && now.since(session.seen) >= quiet
            })
            .map(|(&id, session)| (session.seen, id))
            .collect();
        if crowded {
            // The session with the longest silence is ended first.
            late.sort_unstable();
        } else {
            late.sort_unstable_by_key(|&(_, id)| id);
        }
        let why = |seen: Time| match now.since(seen) >= idle {
            true => LetGo::Silent,
            false => LetGo::Crowded,
        };
        let all = late.iter().map(|&(seen, id)| (id, why(seen)));
        let most = if crowded { MADE_ROOM_MAX } else { usize::MAX };
        self.leaving
            .queue
            .retain(|(_, why)| *why == LetGo::Succeeded);
        self.leaving.queue.extend(all.take(most));
        if crowded {
            let claims = std::mem::take(&mut self.table.shares.claims);
            let claims = claims.saturating_sub(late.len()).min(MADE_ROOM_MAX);
            self.let_go_beyond_shares(now, claims);
        }
        // Without sessions no timer is needed; the next OPEN sets it again.
        let some = !self.table.sessions.is_empty();
        let next = some.then(|| now + idle / 4);
        self.phase.serving().next_expiry = earliest(next, self.leaving.look_due);
    }

    /// Notes that a front with less than its share of the table found no place for a session. A session of a front with
    /// more than its share must then be ended.
    pub(super) fn claim(&mut self, now: Time, share: u8) {
        let most = self.config.sessions_max;
        let is_below = self.table.shares.is_below_in_table(now, share, most);
        self.table.shares.claims += usize::from(is_below);
    }

    /// Queues `claims` sessions of fronts with more than their share of the table, beginning with the longest silence.
    /// Leaves out marks, and sessions with a fallback: until the server has answered a fallback, it is unknown whether
    /// its seqs are used.
    fn let_go_beyond_shares(&mut self, now: Time, claims: usize) {
        let (shares, most) = (&self.table.shares, self.config.sessions_max);
        let mut beyond = shares.beyond_in_table(now, most);
        let sessions = self.table.sessions.iter();
        let mut silent: Vec<(Time, u64, u8)> = sessions
            .filter(|(_, session)| {
                let has_more = beyond.get(usize::from(session.share));
                let has_more = has_more.is_some_and(|&more| more > 0);
                has_more
                    && !session.ended
                    && !is_mark(session.token)
                    && !session.outstanding.falls_back()
            })
            .map(|(&id, session)| (session.seen, id, session.share))
            .collect();
        silent.sort_unstable();
        let mut left = claims;
        for (_, id, share) in silent {
            let more = &mut beyond[usize::from(share)];
            if left > 0 && *more > 0 {
                (left, *more) = (left - 1, *more - 1);
                self.leaving.queue.push_back((id, LetGo::OverShare));
            }
        }
    }

    /// Returns the silence after which a session may be ended if the table is full. A living client would have sent
    /// several PINGs in this time.
    fn quiet(&self) -> Nanos {
        self.config.session_quiet.min(self.config.session_idle)
    }

    /// Returns the next entry that the device itself must append: the END of a session that may still be ended.
    pub fn poll_own_entry(&mut self, now: Time, room: Room) -> Option<Header> {
        self.leaving.more = false;
        if !self.is_head() || !room.fits(&[]) {
            return None;
        }
        if self.leaving.ended == ENDED_MAX {
            self.leaving.more = self.leaving.len() > 0;
            return None;
        }
        while let Some(&(id, why)) = self.leaving.queue.front() {
            if why == LetGo::Succeeded && !room.admits_sessions() {
                // Many sessions may have to end. Their ENDs wait while the log is too full for new sessions, so that
                // active clients get its room.
                return None;
            }
            self.leaving.queue.pop_front();
            let quiet = match why {
                LetGo::Silent => self.config.session_idle,
                LetGo::Crowded => self.quiet(),
                LetGo::Succeeded | LetGo::OverShare => 0,
            };
            let Some(session) = self.table.sessions.get_mut(&id) else {
                continue;
            };
            // A client may have connected by RDMA since the session was queued. An END would take the seq of a message
            // that a NIC has already acknowledged.
            if session.bound > 0 {
                continue;
            }
            // The session may have been used, or may have ended, since it was queued.
            let settles = why == LetGo::OverShare && session.outstanding.falls_back();
            if session.ended || settles || now.since(session.seen) < quiet {
                continue;
            }
            session.let_go = Some(why);
            match why {
                LetGo::Silent => self.counters.expired_sessions += 1,
                LetGo::Crowded => self.counters.crowded_out_sessions += 1,
                LetGo::OverShare => self.counters.over_share_sessions += 1,
                LetGo::Succeeded => self.counters.succeeded_sessions += 1,
            }
            let end = End {
                session: id,
                seq: session.next_seq(),
            };
            let gone = Gone {
                token: session.token,
                end: end.seq,
                why,
            };
            self.leaving.remember(id, gone);
            let end = end.header(&Stamp {
                shard: self.config.shard,
                tag: gone.token,
                ..Stamp::default()
            });
            self.note_change(id);
            self.leaving.ended += 1;
            return match self.admit(&end.for_payload(&[]), &[], Identity::NOBODY) {
                super::Verdict::Append(header) => Some(header),
                _ => None,
            };
        }
        None
    }

    /// A connection is made on which a NIC will acknowledge messages of this session (`docs/spec/verbs.md` §3, 3). From
    /// now on the head does not end the session on its own. Returns false if there is no such session with this
    /// identity, or if this device is not the head. It also returns false if the shard has keys and the session has
    /// none, because the session's messages could not be verified. With keys the caller has verified that the client
    /// has the key of the session's front.
    pub fn bind(&mut self, session: u64, whose: Identity) -> bool {
        let head = self.is_head() && !self.joining;
        let keyed = self.has_keys();
        let found = self.table.sessions.get_mut(&session).filter(|found| {
            head && found.identity() == whose && !found.ended && found.keys.is_some() == keyed
        });
        if let Some(found) = found {
            found.bound += 1;
            return true;
        }
        false
    }

    /// A connection that was counted by [`Device::bind`] is broken, and this machine has received all messages that the
    /// NIC took from it. The session's silence counts from `now` on. If the key of the session's front was removed
    /// while the connection existed, the session loses its keys now.
    pub fn unbind(&mut self, now: Time, session: u64) {
        // After a recovery the table may be new, so that the session has no counted connection.
        if let Some(found) = self.table.sessions.get_mut(&session)
            && found.bound > 0
        {
            found.bound -= 1;
            found.seen = now;
            let cluster = self.config.keys.as_ref().map(|keys| &keys.cluster);
            if let Some(cluster) = cluster
                && found.forget_keys(cluster)
            {
                self.note_change(session);
            }
        }
    }

    /// Whether this device knows the session but cannot verify its messages. This is so if the shard has keys and the
    /// session has none, because the key of its front was removed.
    #[must_use]
    pub fn lacks_keys(&self, session: u64) -> bool {
        let found = self.table.sessions.get(&session);
        self.has_keys() && found.is_some_and(|found| found.keys.is_none())
    }

    /// Returns the answer to a client with this token about a session that has ended or is unknown.
    pub(super) fn over(&self, session: u64, token: u64) -> Nack {
        let gone = self.leaving.gone.get(&session);
        let gone = gone.filter(|gone| gone.token == token);
        Nack {
            session,
            expected: gone.map_or(0, |gone| gone.end),
            refused: 0,
            why: gone.map_or(0, |gone| gone.why.byte()),
            unknown_session: true,
        }
    }
}
