//! Reads: what the head knows of the newest update of each key, and of what has no order yet
//! (`docs/spec/reads.md` §1, §2, §4, §11).
//!
//! Invariants: an update that is acknowledged is in its bucket, or at or below the floor; what passed and may change
//! state, and has not been answered, closes its bucket, or all of them. May not: look into a payload.

use super::session::Session;
use super::{Device, Verdict};
use crate::rules::{Rule, Rules};
use crate::{Outbox, Peer, Random, Time};
use pmnet_wire::packet::{
    Append, Bypass, EntryKind, Fallback, Hit, Miss, ReadKeys, Response, is_mark, read_hashes,
};
use pmnet_wire::{Flags, FragmentSize, Header, Packet};

/// What a READ is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The update with this order is what a reader must see.
    Hit(u64),
    /// The store must have applied everything up to here.
    Miss(u64),
}

/// Which updates may be shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Showable {
    /// Up to here they are committed.
    pub(super) committed: u64,
    /// Only what is above this order.
    pub(super) above: u64,
}

/// A bucket of the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Of the newest update that fell into it, whatever its key.
    pub order: u64,
    /// That update's mixed hash; 0: it is not to be shown.
    pub hash: u64,
    /// Something without an order came before this order, or never will. Entries below it are not shown.
    pub passed: u64,
    /// What is at or below this order is not shown: something without an order may have come behind it.
    pub shown_above: u64,
    /// How many bypasses are outstanding that may change a key of it.
    pub closed: u32,
    /// What changed a key of it without an order, and was answered, was executed before whatever is applied with this order or a later one.
    pub behind: u64,
}

impl Bucket {
    /// What a reader of its keys must see.
    const fn newest(&self) -> u64 {
        if self.order > self.passed {
            self.order
        } else {
            self.passed
        }
    }
}

/// What a fast path must know to answer READs as the head does, beside the buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadState {
    /// Buckets of the index, a power of two; 0: this device does not answer READs.
    pub buckets: usize,
    /// Mixed into the hashes.
    pub secret: u64,
    /// At or below this order the buckets may not know everything.
    pub floor: u64,
    /// What is at or below this order is not shown, in no bucket.
    pub shown_above: u64,
    /// While this is not 0, nothing is shown, and every reader waits for all that is committed.
    pub closed: u64,
    /// What a MISS says of the index.
    pub version: u64,
    /// All buckets are empty, but for those that are told with this.
    pub anew: bool,
}

/// What has changed in the index since the fast path was told.
#[derive(Debug, Default)]
struct Untold {
    anew: bool,
    words: bool,
    buckets: Vec<usize>,
}

/// The keys that a bypass may change: those with this hash; `None`: any.
type Keys = Option<u64>;

/// What passed of a session, may change state, and has not been answered.
#[derive(Debug, Default)]
pub(super) struct Outstanding {
    /// Ids at or below this one have been answered, or are never executed.
    answered: u64,
    /// Highest id of a bypass that is outstanding, and what it and those before it may change.
    bypass: Option<(u64, Keys)>,
    /// First and last seq of an update that falls back, and what it changes.
    fallback: Option<(u64, u64, Keys)>,
}

/// The index of a head.
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// A power of two; none while this device does not answer READs.
    buckets: Vec<Bucket>,
    /// Mixed into the hashes, so that nobody aims at a bucket.
    secret: u64,
    /// At or below this order the buckets may not know everything.
    floor: u64,
    /// What is at or below this order is not shown, in no bucket: something without an order, that may change any key, may
    /// have come behind it.
    shown_above: u64,
    /// How many bypasses are outstanding that may change any key, and how many mark sessions are open.
    all_closed: u64,
    /// How many are outstanding that may change those of one bucket.
    some_closed: u64,
    /// As in [`Bucket`], of all buckets; and the newest of all.
    behind: u64,
    behind_newest: u64,
    /// Another one, never the same again, whenever something is not outstanding any more (§3).
    version: u64,
    /// What a fast path must still be told; `None`: there is none.
    untold: Option<Untold>,
}

/// The bucket's number and the mixed hash, which is never 0.
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
    /// Begins anew with so many buckets; 0: READs are not answered. The log ends at `last`; so many mark sessions are open.
    /// `tells`: there is a fast path.
    pub(super) fn begin(
        &mut self,
        buckets: usize,
        last: u64,
        marks: u64,
        random: &mut Random,
        tells: bool,
        rules: Rules,
    ) {
        // What was answered before, nobody here knows.
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

    /// The fast path must be told what is now known of these keys.
    fn note(&mut self, keys: Keys) {
        let at = keys.map(|hash| self.place(mix(hash, self.secret)));
        if let Some(untold) = &mut self.untold {
            match at {
                Some(at) => untold.buckets.push(at),
                None => untold.words = true,
            }
        }
    }

    /// What a reader of these keys must see at least; of no keys: of all.
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

    /// What a replica of the store must have applied that is read from for these keys, or all; `last` has been admitted. `None`: none may be.
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

    /// An entry got its order.
    pub(super) fn admitted(&mut self, entry: &Append, token: u64, session: &mut Session) {
        if !self.answers() {
            return;
        }
        let seq = entry.seq;
        // Executed before this entry or never.
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

    /// Something without an order has come before this order, or never will.
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

    /// This machine has admitted an update of these keys itself. What the fast path admits, it knows.
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

    /// Something that may have changed these keys is not outstanding any more.
    fn left(&mut self, keys: Keys) {
        self.open(keys);
        self.version = self.version.wrapping_add(1);
        if let Some(untold) = &mut self.untold {
            untold.words = true;
        }
    }

    /// A client's bypass passes on its way to the server.
    pub(super) fn bypass_passes(&mut self, header: &Header, session: &mut Session) {
        let outstanding = &mut session.outstanding;
        if header.flags.has(Flags::FALLBACK) {
            let asked = Fallback::read(header);
            let before = outstanding.fallback.take();
            // A session has one update that falls back; what an older one was about stays closed with it.
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

    /// Something that may have changed these keys has been answered, after this order was admitted.
    fn answered(&mut self, keys: Keys, last: u64) {
        let behind = last + 1;
        match keys {
            None => self.behind = behind,
            Some(hash) => self.bucket(mix(hash, self.secret)).behind = behind,
        }
        self.behind_newest = behind;
    }

    /// The server's answer to a bypass passes on its way to the client; `last` has been admitted.
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

    /// What the log has of these keys up to this order may be older than what was just answered.
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

    /// A session is over: its END, which has this order, is applied.
    pub(super) fn session_over(&mut self, token: u64, order: u64) {
        if self.answers() && is_mark(token) {
            // What was passed through came before the END, and behind whatever the log has from before it.
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

    /// What the fast path is to be told: the words, all of them, and the buckets that changed.
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
    /// What is outstanding may change these.
    fn keys(&self) -> impl Iterator<Item = Keys> + use<> {
        let bypass = self.bypass.map(|(_, keys)| keys);
        let fallback = self.fallback.map(|(_, _, keys)| keys);
        bypass.into_iter().chain(fallback)
    }

    /// Whether an update falls back.
    pub(super) const fn falls_back(&self) -> bool {
        self.fallback.is_some()
    }
}

impl Device {
    /// A client asks how fresh the store must be.
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
                // 0 is no order: of a new shard, any replica will do.
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

    /// The answer in place of a HIT, whose update the log has no more: the store must have applied it.
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

    /// How many mark sessions are open.
    pub(super) fn marks(&self) -> u64 {
        let sessions = self.table.sessions.values();
        let marks = sessions.filter(|session| is_mark(session.token)).count();
        u64::try_from(marks).expect("bounded by the sessions")
    }
}
