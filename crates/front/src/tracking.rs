//! Client-side caching (CLIENT TRACKING): which clients must be told when a key changes.
//!
//! Purpose: Redis does not know which client of a front has read which key, because the pmnet server executes the
//! clients' commands. So the front keeps a table of the keys that its clients have read, as Redis does for its own
//! clients. Redis reports every changed key to the front on one connection of the front ([`crate::store`]'s `changes`;
//! CLIENT TRACKING in the mode BCAST). Invariants: a key is in the table before the client reads its value, and the
//! client's reads come from Redis itself. So the report about any change after the read finds the key in the table.
//! When the connection for reports is lost, every key that clients may have cached counts as changed. Clients then read
//! nothing until there is a new connection. The table is bounded, and a key that does not fit counts as changed. A
//! client may get a message about a key that has not changed, but misses no message about a key that has changed. Not
//! allowed here: sockets and clocks.

mod keys;
mod tracker;

use std::collections::HashMap;

use bytes::Bytes;
use pmnet_resp::{write_bulk, write_header};
use pmnet_wire::promise::RECORDS_PREFIX;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::upstream::Time;
pub(crate) use keys::{Access, accessed_keys};
pub(crate) use tracker::{Tracker, Wish};

/// Maximum number of keys of which clients must be told, counted once for each client. The bound is the default of
/// Redis's `tracking-table-max-keys`.
const ITEMS_MAX: usize = 1_000_000;
/// Maximum number of bytes of the names of all keys in the table.
const NAME_BYTES_MAX: usize = 256 * 1024 * 1024;

/// A message to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// The keys in this value have changed. The value is a RESP array of the keys.
    Keys(Bytes),
    /// All keys may have changed.
    All,
}

/// Whether Redis reports changed keys to the front.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum LinkState {
    /// Redis has not been asked to report.
    #[default]
    New,
    /// Redis reports changed keys.
    Up,
    /// Redis reported changed keys before, and cannot now.
    Down,
    /// Redis refuses to report, for this reason.
    Refused(String),
}

/// The clients that must be told of changes, and the keys of each client.
#[derive(Debug, Default)]
pub(crate) struct Tracking {
    /// Clients with CLIENT TRACKING ON, by their number.
    clients: FxHashMap<u64, Tracker>,
    /// Number of clients with CLIENT TRACKING ON in the mode BCAST.
    broadcasts: usize,
    /// The clients that must be told when a key changes. The names of the keys come from clients, so the hash
    /// has a secret.
    keys: HashMap<Box<[u8]>, FxHashSet<u64>>,
    items: usize,
    name_bytes: usize,
    /// Messages and their receivers, oldest first. The list is emptied in each turn.
    outbox: Vec<(u64, Told)>,
    link: LinkState,
    /// Whether the state of the link has changed, so that clients which wait for it must continue.
    news: bool,
    /// The latest time until which a client waits for the link.
    wanted_until: Time,
    /// Number of fences requested, and number of fences passed.
    fences: (u64, u64),
    /// The index of each client of the front, by its number.
    places: FxHashMap<u64, usize>,
}

impl Tracking {
    /// Notes that a client has connected.
    pub(crate) fn came(&mut self, id: u64, place: usize) {
        self.places.insert(id, place);
    }

    /// Notes that a client has disconnected.
    pub(crate) fn left(&mut self, id: u64) {
        self.places.remove(&id);
        self.end(id);
    }

    /// Returns the index of the client with this number, if it is connected.
    pub(crate) fn place(&self, id: u64) -> Option<usize> {
        self.places.get(&id).copied()
    }

    /// Returns the tracking state of this client.
    pub(crate) fn client(&self, id: u64) -> Option<&Tracker> {
        self.clients.get(&id)
    }

    pub(crate) fn client_mut(&mut self, id: u64) -> Option<&mut Tracker> {
        self.clients.get_mut(&id)
    }

    /// Begins tracking for a client that sends CLIENT TRACKING ON.
    ///
    /// # Errors
    /// Redis's error, if the options contradict each other, or contradict the client's present options.
    pub(crate) fn begin(&mut self, id: u64, wish: Wish) -> Result<(), Bytes> {
        let there = |redirect: i64| {
            u64::try_from(redirect).is_ok_and(|redirect| self.places.contains_key(&redirect))
        };
        let tracker = wish.apply(self.clients.get(&id), there)?;
        self.end_broadcast(id);
        self.broadcasts += usize::from(tracker.broadcasts());
        self.clients.insert(id, tracker);
        Ok(())
    }

    fn end_broadcast(&mut self, id: u64) {
        let before = self.clients.get(&id).is_some_and(Tracker::broadcasts);
        self.broadcasts -= usize::from(before);
    }

    /// Ends tracking for a client that sends CLIENT TRACKING OFF. As in Redis, the client's keys stay in the table
    /// until they change, and the client is not told then.
    pub(crate) fn end(&mut self, id: u64) {
        self.end_broadcast(id);
        self.clients.remove(&id);
        if self.clients.is_empty() {
            self.forget_keys();
        }
    }

    fn forget_keys(&mut self) {
        self.keys = HashMap::new();
        self.items = 0;
        self.name_bytes = 0;
    }

    /// Registers a key that the client is about to read, so that the client is told of the key's next change.
    pub(crate) fn register(&mut self, id: u64, key: &[u8]) {
        if let Some(ids) = self.keys.get_mut(key) {
            self.items += usize::from(ids.insert(id));
        } else {
            self.keys.insert(key.into(), FxHashSet::from_iter([id]));
            self.items += 1;
            self.name_bytes += key.len();
        }
        if self.items > ITEMS_MAX || self.name_bytes > NAME_BYTES_MAX {
            self.forget_keys();
            self.tell_all(|tracker| !tracker.broadcasts());
        }
    }

    /// Notes that the client itself has written this key. The client is told at once, because the write may be
    /// acknowledged long before Redis executes it.
    pub(crate) fn wrote(&mut self, id: u64, key: &[u8]) {
        let mode = self.clients.get(&id);
        if mode.is_none_or(|tracker| tracker.broadcasts() || tracker.no_loop) {
            return;
        }
        let Some(ids) = self.keys.get_mut(key) else {
            return;
        };
        if !ids.remove(&id) {
            return;
        }
        self.items -= 1;
        if ids.is_empty() {
            self.name_bytes -= key.len();
            self.keys.remove(key);
        }
        self.outbox.push((id, Told::Keys(array(&[key]))));
    }

    /// Notes that the client has written more keys than the front remembers.
    pub(crate) fn wrote_much(&mut self, id: u64) {
        self.outbox.push((id, Told::All));
    }

    /// Handles a report of Redis that these keys have changed.
    pub(crate) fn changed(&mut self, keys: &[&[u8]]) {
        let clients_own = |key: &&&[u8]| !key.starts_with(RECORDS_PREFIX);
        let keys: Vec<&[u8]> = keys.iter().filter(clients_own).copied().collect();
        for key in &keys {
            let Some(ids) = self.keys.remove(*key) else {
                continue;
            };
            self.items -= ids.len();
            self.name_bytes -= key.len();
            let told = Told::Keys(array(&[key]));
            for id in ids {
                // A client that has changed to the mode BCAST in the meantime is told according to its prefixes alone.
                let listens = |tracker: &Tracker| !tracker.broadcasts();
                if self.clients.get(&id).is_some_and(listens) {
                    self.outbox.push((id, told.clone()));
                }
            }
        }
        if self.broadcasts == 0 {
            return;
        }
        for (id, tracker) in &self.clients {
            for prefix in tracker.prefixes() {
                let fit = keys.iter().filter(|key| key.starts_with(prefix));
                let fit: Vec<&[u8]> = fit.copied().collect();
                if !fit.is_empty() {
                    self.outbox.push((*id, Told::Keys(array(&fit))));
                }
            }
        }
    }

    /// Notes that all keys may have changed: databases were emptied, or Redis could not report.
    pub(crate) fn all_changed(&mut self) {
        self.forget_keys();
        self.tell_all(|_| true);
    }

    fn tell_all(&mut self, whom: impl Fn(&Tracker) -> bool) {
        let ids = self.clients.iter().filter(|(_, tracker)| whom(tracker));
        let told = ids.map(|(id, _)| (*id, Told::All));
        self.outbox.extend(told);
    }

    /// Takes the messages that must be sent now.
    pub(crate) fn take_outbox(&mut self) -> Vec<(u64, Told)> {
        std::mem::take(&mut self.outbox)
    }

    pub(crate) fn link(&self) -> &LinkState {
        &self.link
    }

    /// Notes the state of the link. If the link was up before and is not up now, keys that clients have cached may
    /// change without a report.
    pub(crate) fn set_link(&mut self, state: LinkState) {
        if self.link == state {
            return;
        }
        if self.link == LinkState::Up {
            self.all_changed();
            // Without the link no fence will be passed, so no client must wait for a fence.
            self.fences.1 = self.fences.0;
        }
        self.link = state;
        self.news = true;
    }

    /// Requests a fence and returns its number. Reports after this fence are about later changes.
    pub(crate) fn ask_fence(&mut self) -> u64 {
        self.fences.0 += 1;
        self.fences.0
    }

    /// Returns the number of fences requested.
    pub(crate) fn fences_asked(&self) -> u64 {
        self.fences.0
    }

    /// Notes that the first `count` fences have been passed.
    pub(crate) fn passed_fences(&mut self, count: u64) {
        self.fences.1 = self.fences.1.max(count);
        self.news = true;
    }

    /// Whether this fence has been passed.
    pub(crate) fn has_passed(&self, fence: u64) -> bool {
        fence <= self.fences.1
    }

    /// Returns whether the state of the link has changed, or a fence was passed, since the last call of this
    /// function.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// Notes that a client waits for the link until this time.
    pub(crate) fn want_until(&mut self, until: Time) {
        self.wanted_until = self.wanted_until.max(until);
    }

    /// Whether a client needs the link.
    pub(crate) fn is_wanted(&self, now: Time) -> bool {
        !self.clients.is_empty() || now < self.wanted_until
    }
}

/// Returns these keys as an array of RESP.
fn array(keys: &[&[u8]]) -> Bytes {
    let mut out = Vec::new();
    write_header(&mut out, keys.len());
    for key in keys {
        write_bulk(&mut out, key);
    }
    Bytes::from(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracking(clients: &[(u64, &[&str])]) -> Tracking {
        let mut tracking = Tracking::default();
        for (id, words) in clients {
            tracking.came(*id, 0);
            tracking.begin(*id, Wish::of(words).unwrap()).unwrap();
        }
        tracking
    }

    fn told(tracking: &mut Tracking) -> Vec<(u64, String)> {
        let show = |told| match told {
            Told::All => "all".to_owned(),
            Told::Keys(keys) => String::from_utf8_lossy(&keys).replace("\r\n", " "),
        };
        let outbox = tracking.take_outbox();
        let mut told: Vec<_> = outbox
            .into_iter()
            .map(|(id, told)| (id, show(told)))
            .collect();
        told.sort();
        told
    }

    fn says(list: &[(u64, &str)]) -> Vec<(u64, String)> {
        list.iter()
            .map(|(id, text)| (*id, (*text).to_owned()))
            .collect()
    }

    #[test]
    fn who_has_read_a_key_is_told_of_one_change() {
        let mut tracking = tracking(&[(1, &[]), (2, &[]), (3, &["BCAST", "PREFIX", "a"])]);
        tracking.register(1, b"a");
        tracking.register(1, b"a");
        tracking.register(2, b"a");
        tracking.register(2, b"b");
        tracking.changed(&[b"a", b"pmnet:{0}", b"c"]);
        let one = "*1 $1 a ";
        assert_eq!(told(&mut tracking), says(&[(1, one), (2, one), (3, one)]));
        tracking.changed(&[b"a"]);
        assert_eq!(told(&mut tracking), says(&[(3, one)]));
        assert_eq!((tracking.items, tracking.name_bytes), (1, 1));
        // Later client 1 disconnects, and client 2 changes its mode.
        tracking.register(1, b"b");
        tracking.left(1);
        tracking.end(2);
        tracking
            .begin(2, Wish::of(&["BCAST", "PREFIX", "x"]).unwrap())
            .unwrap();
        tracking.changed(&[b"b"]);
        assert_eq!(told(&mut tracking), says(&[]));
        assert_eq!((tracking.items, tracking.name_bytes), (0, 0));
    }

    #[test]
    fn own_writes_are_told_at_once_unless_the_client_does_not_want_it() {
        let mut tracking = tracking(&[(1, &[]), (2, &["NOLOOP"]), (3, &["BCAST"])]);
        for id in 1..=3 {
            tracking.register(id, b"k");
            tracking.wrote(id, b"k");
            tracking.wrote(id, b"other");
        }
        assert_eq!(told(&mut tracking), says(&[(1, "*1 $1 k ")]));
        // The other two clients are told when Redis reports the change.
        tracking.changed(&[b"k"]);
        let one = "*1 $1 k ";
        assert_eq!(told(&mut tracking), says(&[(2, one), (3, one)]));
    }

    #[test]
    fn a_lost_link_means_that_all_may_have_changed() {
        let mut tracking = tracking(&[(1, &[]), (2, &["BCAST"]), (3, &["OPTIN"])]);
        tracking.set_link(LinkState::Refused("x".into()));
        tracking.set_link(LinkState::Up);
        assert!(tracking.take_news());
        assert_eq!(told(&mut tracking), says(&[]));
        tracking.register(1, b"k");
        tracking.set_link(LinkState::Down);
        let all = says(&[(1, "all"), (2, "all"), (3, "all")]);
        assert_eq!(told(&mut tracking), all);
        assert_eq!((tracking.items, tracking.name_bytes), (0, 0));
        tracking.set_link(LinkState::Down);
        assert_eq!(told(&mut tracking), says(&[]));
    }

    #[test]
    fn what_does_not_fit_counts_as_changed() {
        let mut tracking = tracking(&[(1, &[]), (2, &["BCAST"])]);
        let long = vec![b'x'; NAME_BYTES_MAX / 2];
        tracking.register(1, &long);
        tracking.register(1, b"k");
        tracking.register(1, &[&long[..], b"y"].concat());
        assert_eq!(told(&mut tracking), says(&[(1, "all")]));
        assert_eq!((tracking.items, tracking.name_bytes), (0, 0));
    }
}
