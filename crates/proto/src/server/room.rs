//! The waiting room of bypasses: which bypasses keep their place when the room is full (`docs/spec/protocol.md` §4,
//! "The waiting room").
//!
//! A bypass of one packet is complete at once, and leaves the room when the store has executed it. A long bypass whose
//! fragments never all arrive would stay. So incomplete bypasses may use only half of the room's bytes. If the room is
//! full, incomplete bypasses without new fragments lose their place, and each front may use only an equal part of the
//! half.

use super::bypass::Waiting;
use super::{Server, WaitingRoom};
use crate::Time;
use crate::time::{MILLISECOND, Nanos, SECOND};
use pmnet_wire::FrontId;
use rustc_hash::FxHashMap;

/// If the room is full, an incomplete bypass counts as abandoned this long after its last new fragment. A living client
/// repeats missing fragments several times within this time.
const ABANDONED_AFTER: Nanos = 2 * SECOND;
/// Shortest time between two searches for bypasses to drop. Each search examines the whole room.
const SEARCH_EVERY: Nanos = 50 * MILLISECOND;

impl WaitingRoom {
    pub(super) fn forget(&mut self, id: u64) {
        if let Some(waiting) = self.waiting.remove(&id) {
            self.ready.remove(&(waiting.asked.barrier, id));
            self.bytes -= waiting.bytes;
            self.partial_bytes -= waiting.partial_bytes();
        }
    }

    /// Drops all bypasses, because the chain has another head, or another incarnation of its head. The clients send
    /// them again through the new head.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.ready.clear();
        self.bytes = 0;
        self.partial_bytes = 0;
    }
}

impl Server {
    /// Whether there is room for `bytes` more of this session's bypass, after other bypasses were dropped if necessary.
    /// If there is no room, the packet is counted and must be dropped. `long`: the bypass has several fragments.
    pub(super) fn make_room(&mut self, now: Time, id: u64, bytes: usize, long: bool) -> bool {
        if self.has_room(id, bytes, long) {
            return true;
        }
        let searched = self.room.searched_at;
        if searched.is_none_or(|at| now.since(at) >= SEARCH_EVERY) {
            self.room.searched_at = Some(now);
            self.evict_abandoned(now, id);
            if !self.has_room(id, bytes, long) {
                self.evict_over_share(id);
            }
            if self.has_room(id, bytes, long) {
                return true;
            }
        }
        self.counters.no_room += 1;
        // The operator is told at the first, second, fourth, eighth… packet.
        if self.counters.no_room.is_power_of_two() {
            self.notice(format!(
                "PM2608 the room for requests that wait is full ({} requests, {} bytes of which are of incomplete ones): {} packets of others \
                 were dropped so far, and their clients send again",
                self.room.waiting.len(),
                self.room.partial_bytes,
                self.counters.no_room
            ));
        }
        false
    }

    fn has_room(&self, id: u64, bytes: usize, long: bool) -> bool {
        let (room, max) = (&self.room, self.config.waiting_bytes_max);
        let is_new = !room.waiting.contains_key(&id);
        (!is_new || room.waiting.len() < self.config.waiting_max)
            && room.bytes + bytes <= max
            && (!long || room.partial_bytes + bytes <= max / 2)
    }

    /// Drops bypasses whose deadlines have passed, and incomplete bypasses without a new fragment for
    /// [`ABANDONED_AFTER`]. A client that still lives sends its bypass again from the start.
    fn evict_abandoned(&mut self, now: Time, except: u64) {
        let is_over = |waiting: &Waiting| {
            let silent = now.since(waiting.touched) >= ABANDONED_AFTER;
            !waiting.is_complete() && silent || waiting.is_late(now)
        };
        let waiting = self.room.waiting.iter();
        let over: Vec<u64> = waiting
            .filter(|(id, waiting)| **id != except && is_over(waiting))
            .map(|(id, _)| *id)
            .collect();
        self.evict(&over);
    }

    /// If the front with the most bytes of incomplete bypasses is not this session's front, drops bypasses of that
    /// front until it has at most an equal part. The bypass with the longest silence is dropped first.
    fn evict_over_share(&mut self, newcomer: u64) {
        let front_of = |id: &u64| self.sessions.get(id).and_then(|session| session.front);
        let mine = front_of(&newcomer);
        let mut held: FxHashMap<Option<FrontId>, usize> = FxHashMap::default();
        held.insert(mine, 0);
        for (id, waiting) in &self.room.waiting {
            *held.entry(front_of(id)).or_default() += waiting.partial_bytes();
        }
        let part = self.room.partial_bytes / held.len();
        let Some((&most, &bytes)) = held.iter().max_by_key(|(front, bytes)| (**bytes, **front))
        else {
            return;
        };
        if most == mine || held[&mine] >= part {
            return;
        }
        let of_it = self.room.waiting.iter();
        let of_it =
            of_it.filter(|(id, waiting)| front_of(id) == most && waiting.partial_bytes() > 0);
        let mut of_it: Vec<(Time, u64, usize)> = of_it
            .map(|(id, waiting)| (waiting.touched, *id, waiting.partial_bytes()))
            .collect();
        of_it.sort_unstable();
        let mut left = bytes;
        let mut over = Vec::new();
        for (_, id, bytes) in of_it {
            if left <= part {
                break;
            }
            left -= bytes;
            over.push(id);
        }
        self.evict(&over);
    }

    fn evict(&mut self, ids: &[u64]) {
        for id in ids {
            self.counters.abandoned += 1;
            self.room.forget(*id);
        }
    }
}
