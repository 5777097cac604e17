//! The waiting room of bypasses: who has a place in it when there are more than fit (`docs/spec/protocol.md` §4, "The waiting room").
//!
//! A request of one packet is complete at once, and is gone after one turn of the store. A long one that never becomes complete would stay. So
//! those that are not complete have half of the room, in it each front an equal part if others need it, and who is silent loses its place.

use super::bypass::Waiting;
use super::{Server, WaitingRoom};
use crate::Time;
use crate::time::{MILLISECOND, Nanos, SECOND};
use pmnet_wire::FrontId;
use rustc_hash::FxHashMap;

/// An incomplete bypass counts as abandoned this long after its last new part, if there is no room. A client that lives repeats
/// what is missing several times within it.
const ABANDONED_AFTER: Nanos = 2 * SECOND;
/// Between two searches for what can go. Each looks at the whole room.
const SEARCH_EVERY: Nanos = 50 * MILLISECOND;

impl WaitingRoom {
    pub(super) fn forget(&mut self, id: u64) {
        if let Some(waiting) = self.waiting.remove(&id) {
            self.ready.remove(&(waiting.asked.barrier, id));
            self.bytes -= waiting.bytes;
            self.partial_bytes -= waiting.partial_bytes();
        }
    }

    /// Another head, or the same one in another life: the clients ask again, through that one.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.ready.clear();
        self.bytes = 0;
        self.partial_bytes = 0;
    }
}

impl Server {
    /// Whether this many bytes more of the bypass of this session have room, after others were forgotten if need be. If not, the packet is
    /// counted, and to be dropped. `long`: it has several parts.
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
        // Said less and less often.
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

    /// Removes bypasses whose callers have given up, and incomplete ones of which nothing has come for a while. If their clients live, they begin
    /// again.
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

    /// Takes from the front that holds most of the incomplete ones what is above an equal part, if this session is another front's. Who was
    /// silent longest goes first.
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
