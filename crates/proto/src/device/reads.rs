//! The index for READs: what the head knows about the newest update of each key, and about requests without an order
//! (`docs/spec/reads.md` §1, §2, §4, §11).
//!
//! Invariants: an acknowledged update is in its bucket, or at or below the floor. A request that has passed the head
//! without an order, may change state, and is not answered, closes its bucket or all buckets. This module must not look
//! into a payload.

use super::session::Session;
use super::{Device, Verdict};
use crate::rules::{Rule, Rules};
use crate::{Outbox, Peer, Random, Time};
use pmnet_wire::packet::{
    Append, Bypass, EntryKind, Fallback, Hit, Miss, ReadKeys, Response, is_mark, read_hashes,
};
use pmnet_wire::{Flags, FragmentSize, Header, Packet};

/// The answer to a READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The reader must see the update with this order.
    Hit(u64),
    /// The store must have applied all orders up to this order before the client reads.
    Miss(u64),
}

/// Bounds of the updates that a HIT may show.
#[derive(Clone, Copy, Debug)]
pub(super) struct Showable {
    /// Highest committed order.
    pub(super) committed: u64,
    /// Only updates above this order are shown.
    pub(super) above: u64,
}

/// A bucket of the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Order of the newest update in this bucket, of any of its keys.
    pub order: u64,
    /// Mixed hash of the key of the newest update; 0: the update must not be shown.
    pub hash: u64,
    /// Entries below this order are not shown. A request without an order, for a key of this bucket, either was
    /// executed before the entry with this order was admitted, or will never be executed.
    pub passed: u64,
    /// Entries up to this order are not shown, because a request without an order may have been executed after them.
    pub shown_above: u64,
    /// Number of outstanding bypasses that may change a key of this bucket.
    pub closed: u32,
    /// Once the store has applied an entry with this order or a later order, it also has the effects of all answered
    /// requests without an order for keys of this bucket.
    pub behind: u64,
}

impl Bucket {
    /// Returns the order whose effects a reader of the bucket's keys must see.
    const fn newest(&self) -> u64 {
        if self.order > self.passed {
            self.order
        } else {
            self.passed
        }
    }
}

/// The state, besides the contents of the buckets, that a fast path needs to answer READs as the head does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadState {
    /// Buckets of the index, a power of two; 0: this device does not answer READs.
    pub buckets: usize,
    /// Secret that is mixed into the hashes.
    pub secret: u64,
    /// The buckets may lack updates at or below this order.
    pub floor: u64,
    /// No update at or below this order is shown.
    pub shown_above: u64,
    /// If this number is not 0, no update is shown, and the `need` of every MISS is at least the last committed order.
    pub closed: u64,
    /// Version of the index, which a MISS states.
    pub version: u64,
    /// The index was begun again: all buckets are empty, except the buckets that are told together with this state.
    pub anew: bool,
}

/// Changes of the index since the fast path was last told.
#[derive(Debug, Default)]
struct Untold {
    anew: bool,
    words: bool,
    buckets: Vec<usize>,
}

/// The keys that a request may change: the keys with this hash; `None`: any key.
type Keys = Option<u64>;

/// Requests of a session that have passed, may change state, and are not answered.
#[derive(Debug, Default)]
pub(super) struct Outstanding {
    /// Bypasses up to this id were answered, or will never be executed.
    answered: u64,
    /// Highest id of an outstanding bypass, and the keys that the outstanding bypasses of the session may change.
    bypass: Option<(u64, Keys)>,
    /// First and last seq of an outstanding fallback, and the keys that it may change.
    fallback: Option<(u64, u64, Keys)>,
}

/// The index of a head.
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// The buckets; their number is a power of two. Empty if this device does not answer READs.
    buckets: Vec<Bucket>,
    /// Secret that is mixed into the hashes, so that no client can choose its bucket.
    secret: u64,
    /// The buckets may lack updates at or below this order.
    floor: u64,
    /// No bucket shows an update at or below this order, because a request without an order that may change any key may
    /// have been executed after the update.
    shown_above: u64,
    /// Number of outstanding bypasses that may change any key, plus the number of open mark sessions.
    all_closed: u64,
    /// Number of outstanding bypasses that may change the keys of one bucket.
    some_closed: u64,
    /// `behind`: [`Bucket::behind`] for requests that may change any key. `behind_newest`: the highest such order of
    /// all requests.
    behind: u64,
    behind_newest: u64,
    /// Version of the index (§3). When a request stops being outstanding, the version changes. No version occurs twice.
    version: u64,
    /// Changes that the fast path must still be told; `None`: there is no fast path.
    untold: Option<Untold>,
}

/// Returns the mixed hash, which is never 0 and chooses the bucket.
const fn mix(hash: u64, secret: u64) -> u64 {
    // The finalizer of MurmurHash3 (public domain): every bit of the hash reaches the bits that choose the bucket.
    let mut mixed = hash ^ secret;
    mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^= mixed >> 33;
    if mixed == 0 { 1 } else { mixed }
}

const fn keys(hash: u64) -> Keys {
    if hash == 0 { None } else { Some(hash) }
}

impl Reads {
    /// Creates a new index with this number of buckets; 0: READs are not answered. `last`: last order of the log.
    /// `marks`: number of open mark sessions. `tells`: there is a fast path.
    pub(super) fn begin(
        &mut self,
        buckets: usize,
        last: u64,
        marks: u64,
        random: &mut Random,
        tells: bool,
        rules: Rules,
    ) {
        // This device does not know which requests were answered before its recovery. So a replica must have an entry
        // that is admitted after the recovery.
        let behind = if rules.hold(Rule::ReplicaRecovered) {
            last + 1
        } else {
            0
        };
        self.buckets.clear();
        if buckets == 0 {
            self.buckets.shrink_to_fit();
            return;
        }
        self.buckets
            .resize(buckets.next_power_of_two(), Bucket::default());
        *self = Reads {
            buckets: std::mem::take(&mut self.buckets),
            secret: random.next_u64(),
            floor: last,
            shown_above: 0,
            all_closed: marks,
            some_closed: 0,
            behind,
            behind_newest: behind,
            version: random.next_u64(),
            untold: tells.then(|| Untold {
                anew: true,
                ..Untold::default()
            }),
        };
    }

    /// Whether this device answers READs.
    pub(super) const fn answers(&self) -> bool {
        !self.buckets.is_empty()
    }

    fn place(&self, mixed: u64) -> usize {
        let mask = self.buckets.len() - 1;
        usize::try_from(mixed & u64::try_from(mask).unwrap_or(0)).unwrap_or(0)
    }

    fn bucket(&mut self, mixed: u64) -> &mut Bucket {
        let at = self.place(mixed);
        &mut self.buckets[at]
    }

    /// Notes that the fast path must be told the bucket of these keys, or the state of all buckets for any key.
    fn note(&mut self, keys: Keys) {
        let at = keys.map(|hash| self.place(mix(hash, self.secret)));
        if let Some(untold) = &mut self.untold {
            match at {
                Some(at) => untold.buckets.push(at),
                None => untold.words = true,
            }
        }
    }

    /// Returns the answer to a READ of the keys with these hashes; without hashes, of all keys.
    pub(super) fn answer(
        &mut self,
        hashes: impl ExactSizeIterator<Item = u64>,
        showable: Showable,
        rules: Rules,
    ) -> Answer {
        let Showable { committed, above } = showable;
        let single = hashes.len() == 1;
        let floor = if rules.hold(Rule::Floor) {
            self.floor
        } else {
            0
        };
        let mut need = floor;
        if hashes.len() == 0 || self.all_closed > 0 {
            need = need.max(committed);
        }
        for hash in hashes {
            let mixed = mix(hash, self.secret);
            let bucket = *self.bucket(mixed);
            if bucket.newest() > floor {
                need = need.max(bucket.newest().min(committed));
            }
            let open = self.all_closed == 0 && bucket.closed == 0;
            let durable = bucket.order <= committed || !rules.hold(Rule::HitCommitted);
            let shown_above = if rules.hold(Rule::ShownAbove) {
                self.shown_above.max(bucket.shown_above)
            } else {
                0
            };
            if single
                && open
                && durable
                && bucket.hash == mixed
                && bucket.order >= bucket.passed
                && bucket.order > floor.max(shown_above).max(above)
            {
                return Answer::Hit(bucket.order);
            }
        }
        Answer::Miss(need)
    }

    /// Returns the order that a replica of the store must have applied before a client reads these keys from the
    /// replica. Without hashes, the order is for all keys. `last`: last admitted order. `None`: no replica may be read.
    pub(super) fn replicas(
        &self,
        hashes: impl ExactSizeIterator<Item = u64>,
        last: u64,
        rules: Rules,
    ) -> Option<u64> {
        let of_all = hashes.len() == 0;
        let mut closed = self.all_closed > 0 || of_all && self.some_closed > 0;
        let mut need = self.floor.max(self.behind);
        if of_all {
            need = need.max(last).max(self.behind_newest);
        }
        for hash in hashes {
            let bucket = &self.buckets[self.place(mix(hash, self.secret))];
            closed |= bucket.closed > 0;
            need = need.max(bucket.newest()).max(bucket.behind);
        }
        (!closed || !rules.hold(Rule::ReplicaQuiet)).then_some(need)
    }

    /// Takes an entry that has just got its order into the index.
    pub(super) fn admitted(&mut self, entry: &Append, token: u64, session: &mut Session) {
        if !self.answers() {
            return;
        }
        let seq = entry.seq;
        // The session's outstanding bypass was executed before this entry, or never will be.
        if let Some((id, keys)) = session.outstanding.bypass.take() {
            session.outstanding.answered = id;
            self.passed(keys, entry.order);
            self.left(keys);
        }
        let mut late_copy = false;
        if let Some((first, last, keys)) = session.outstanding.fallback {
            late_copy = (first..=last).contains(&seq);
            if seq > last {
                session.outstanding.fallback = None;
                self.passed(keys, entry.order);
                self.left(keys);
            }
        }
        match entry.entry {
            EntryKind::Open if is_mark(token) => self.close(None),
            EntryKind::Update => {
                let showable = !late_copy && entry.fragment.count == 1;
                self.updated(keys(entry.key_hash), entry.order, showable);
            }
            _ => {}
        }
    }

    fn updated(&mut self, keys: Keys, order: u64, showable: bool) {
        match keys {
            None => self.floor = order,
            Some(hash) => {
                let mixed = mix(hash, self.secret);
                let bucket = self.bucket(mixed);
                bucket.order = order;
                bucket.hash = if showable { mixed } else { 0 };
            }
        }
    }

    /// Notes that a request without an order was executed before the entry with this order was admitted, or will never
    /// be executed.
    fn passed(&mut self, keys: Keys, order: u64) {
        self.note(keys);
        match keys {
            None => self.floor = order,
            Some(hash) => {
                let mixed = mix(hash, self.secret);
                self.bucket(mixed).passed = order;
            }
        }
    }

    /// Notes that this machine has admitted an update of these keys, so that the fast path is told. The fast path
    /// itself knows only the updates that it has admitted.
    pub(super) fn admitted_here(&mut self, key_hash: u64) {
        if self.answers() {
            self.note(keys(key_hash));
        }
    }

    fn close(&mut self, keys: Keys) {
        self.note(keys);
        match keys {
            None => self.all_closed += 1,
            Some(hash) => {
                let mixed = mix(hash, self.secret);
                self.bucket(mixed).closed += 1;
                self.some_closed += 1;
            }
        }
    }

    fn open(&mut self, keys: Keys) {
        self.note(keys);
        match keys {
            None => self.all_closed = self.all_closed.saturating_sub(1),
            Some(hash) => {
                let mixed = mix(hash, self.secret);
                let bucket = self.bucket(mixed);
                bucket.closed = bucket.closed.saturating_sub(1);
                self.some_closed = self.some_closed.saturating_sub(1);
            }
        }
    }

    /// Notes that a request that may have changed these keys is no longer outstanding.
    fn left(&mut self, keys: Keys) {
        self.open(keys);
        self.version = self.version.wrapping_add(1);
        if let Some(untold) = &mut self.untold {
            untold.words = true;
        }
    }

    /// Notes that a client's bypass passes the head on its way to the server.
    pub(super) fn bypass_passes(&mut self, header: &Header, session: &mut Session) {
        let outstanding = &mut session.outstanding;
        if header.flags.has(Flags::FALLBACK) {
            let asked = Fallback::read(header);
            let before = outstanding.fallback.take();
            // A session has at most one fallback. If an earlier fallback is still outstanding, both are noted as one,
            // with the keys of both.
            let now = match before {
                Some((first, last, known)) => {
                    self.open(known);
                    let same = known == keys(asked.key_hash);
                    let both = if same { known } else { None };
                    (first.min(asked.first_seq), last.max(asked.last_seq), both)
                }
                None => (asked.first_seq, asked.last_seq, keys(asked.key_hash)),
            };
            outstanding.fallback = Some(now);
            self.close(now.2);
            return;
        }
        let asked = Bypass::read(header);
        if asked.read_only || asked.more || asked.request <= outstanding.answered {
            return;
        }
        let now = match outstanding.bypass.take() {
            Some((id, known)) => {
                self.open(known);
                let same = known == keys(asked.key_hash);
                (id.max(asked.request), if same { known } else { None })
            }
            None => (asked.request, keys(asked.key_hash)),
        };
        outstanding.bypass = Some(now);
        self.close(now.1);
    }

    /// Notes that a request that may have changed these keys was answered when `last` was the last admitted order.
    fn answered(&mut self, keys: Keys, last: u64) {
        let behind = last + 1;
        match keys {
            None => self.behind = behind,
            Some(hash) => self.bucket(mix(hash, self.secret)).behind = behind,
        }
        self.behind_newest = behind;
    }

    /// Notes that the server's answer to a bypass passes the head on its way to the client. `last`: last admitted
    /// order.
    pub(super) fn answer_passes(
        &mut self,
        header: &Header,
        session: &mut Session,
        last: u64,
        rules: Rules,
    ) {
        let answer = Response::read(header);
        let outstanding = &mut session.outstanding;
        for keys in outstanding.keys() {
            self.show_above(keys, answer.applied);
            if rules.hold(Rule::ReplicaBehind) {
                self.answered(keys, last);
            }
        }
        if answer.fallback {
            if let Some((_, last, keys)) = outstanding.fallback
                && answer.seq >= last
            {
                outstanding.fallback = None;
                self.left(keys);
            }
            return;
        }
        outstanding.answered = outstanding.answered.max(answer.request);
        if let Some((id, keys)) = outstanding.bypass
            && id <= answer.request
        {
            outstanding.bypass = None;
            self.left(keys);
        }
    }

    /// No longer shows entries of these keys up to this order: they may be older than the effect of the request that
    /// was just answered.
    fn show_above(&mut self, keys: Keys, order: u64) {
        self.note(keys);
        let shown_above = match keys {
            None => &mut self.shown_above,
            Some(hash) => {
                let mixed = mix(hash, self.secret);
                &mut self.bucket(mixed).shown_above
            }
        };
        *shown_above = (*shown_above).max(order);
    }

    /// Notes that a session has ended. Its END has this order, and is applied.
    pub(super) fn session_over(&mut self, token: u64, order: u64) {
        if self.answers() && is_mark(token) {
            // All operations under the mark were executed before the END. Each of them may have been executed after any
            // entry before the END.
            self.floor = self.floor.max(order);
            self.left(None);
        }
    }

    /// Whether the fast path must be told something.
    pub(super) fn is_untold(&self) -> bool {
        self.untold
            .as_ref()
            .is_some_and(|untold| untold.anew || untold.words || !untold.buckets.is_empty())
    }

    /// Tells the fast path the changed buckets, and returns the rest of the state.
    pub(super) fn tell(&mut self, tell: &mut dyn FnMut(usize, Bucket)) -> ReadState {
        let anew = self.untold.as_mut().is_some_and(|untold| {
            for at in untold.buckets.drain(..) {
                tell(at, self.buckets[at]);
            }
            untold.words = false;
            std::mem::take(&mut untold.anew)
        });
        ReadState {
            buckets: self.buckets.len(),
            secret: self.secret,
            floor: self.floor,
            shown_above: self.shown_above,
            closed: self.all_closed,
            version: self.version,
            anew,
        }
    }
}

impl Outstanding {
    /// Returns the keys that outstanding requests may change.
    fn keys(&self) -> impl Iterator<Item = Keys> + use<> {
        let bypass = self.bypass.map(|(_, keys)| keys);
        let fallback = self.fallback.map(|(_, _, keys)| keys);
        bypass.into_iter().chain(fallback)
    }

    /// Whether an update of the session falls back.
    pub(super) const fn falls_back(&self) -> bool {
        self.fallback.is_some()
    }
}

impl Device {
    /// Answers a READ: a client asks how fresh the store must be.
    pub(super) fn on_read(
        &mut self,
        now: Time,
        from: Peer,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) -> Verdict {
        let header = &packet.header;
        if !self.reads.answers() || self.joining || from == self.config.next {
            self.counters.not_ready += 1;
            return Verdict::Done;
        }
        let Some(hashes) = read_hashes(packet.payload) else {
            self.counters.unexpected += 1;
            return Verdict::Done;
        };
        if self.known_session(now, from, header, out).is_none() {
            return Verdict::Done;
        }
        let ReadKeys {
            session,
            size,
            request,
            kept,
            replicas,
        } = ReadKeys::read(header);
        let showable = Showable {
            committed: self.cursors.committed,
            above: if kept { 0 } else { self.cursors.applied },
        };
        let stamp = self.stamp().tagged(header.tag);
        let rules = self.config.rules;
        match self.reads.answer(hashes.clone(), showable, rules) {
            Answer::Hit(order) => {
                self.counters.read_hits += 1;
                let hit = Hit {
                    session,
                    order,
                    request,
                };
                let most = FragmentSize::from_wire(size).min(self.fragment_size());
                Verdict::Hit(from, hit.header(&stamp), most, self.answers)
            }
            Answer::Miss(need) => {
                self.counters.read_misses += 1;
                let last = self.cursors.last;
                let replicas = if replicas {
                    self.reads.replicas(hashes, last, rules)
                } else {
                    None
                };
                // In a MISS, 0 means that no replica may be read. In a new shard any replica may be read, so the order
                // is at least 1.
                let replicas = replicas.map_or(0, |need| need.max(1));
                let miss = Miss {
                    session,
                    version: self.reads.version,
                    need,
                    request,
                    replicas,
                    behind: replicas > last,
                };
                out.seal(self.answers, from, &miss.header(&stamp), &[]);
                Verdict::Done
            }
        }
    }

    /// Returns the answer that replaces a HIT if the log no longer has the update: the store must have applied it.
    #[must_use]
    pub fn miss_instead(&mut self, hit: &Header) -> Header {
        self.counters.read_hits -= 1;
        self.counters.read_misses += 1;
        let Hit {
            session,
            order,
            request,
        } = Hit::read(hit);
        let miss = Miss {
            session,
            version: self.reads.version,
            need: order,
            request,
            replicas: 0,
            behind: false,
        };
        miss.header(&self.stamp().tagged(hit.tag))
    }

    /// Returns the number of open mark sessions.
    pub(super) fn marks(&self) -> u64 {
        let sessions = self.table.sessions.values();
        let marks = sessions.filter(|session| is_mark(session.token)).count();
        u64::try_from(marks).expect("bounded by the sessions")
    }
}
