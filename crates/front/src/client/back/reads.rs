//! Reads that are no bypasses: asked of the head, and answered by it or by the store itself (`docs/spec/reads.md`).
//!
//! The reads that a connection has in one turn are a *batch*. It waits until everything before it is answered; then the
//! head is asked once for all of it. A HIT is the value of the one key that is asked for. After a MISS the front
//! reads from the store, on a connection of its own, and hands on what is as fresh as the MISS asks for
//! ([`StoreRead`]). Where a MISS is probable, the store is asked together with the head ([`super::read_before`]). What cannot be answered so is sent as a bypass: the head does not answer, the store lags, anything is
//! odd. From the first such read on, so is the rest of the batch. The batch is answered before anything behind it is
//! taken from the input, so what a client reads does not go back in time.
//!
//! A READ does not travel in the connection's session, so the head does not know what that has sent. Therefore a batch is only
//! asked for when the session has nothing outstanding, and none of its calls had an unknown outcome since the last bypass that
//! was answered: such a call may still take effect, and only a bypass comes behind it for sure.
//!
//! Invariants: a batch has no places among the replies, since there are none in front of it when it is answered; it is bounded by
//! [`COMMANDS_PER_TURN`] and [`BATCH_BYTES_MAX`], its replies by [`BATCH_REPLY_BYTES_MAX`].

use bytes::Bytes;
use pmnet_resp::{Arguments, reply};
use pmnet_wire::command::{Commands, Form, Protocol, key_hash};
use pmnet_wire::packet::READ_KEYS_MAX;

use super::own_keys::{Listing, listing, without_own};
use super::pack::{Company, Kind, Part};
use super::read_before::{Asked, Before, Missed, Progress, Version};
use crate::client::{COMMANDS_PER_TURN, Connection, Later, Shared, lane};
use crate::limits::BULK_BYTES_MAX;
use crate::table::{Facts, NONDETERMINISTIC, read_keys, touches_reserved};
use crate::upstream::{CallId, ReadAnswer, Time, Upstream};

/// Longest read that is no bypass, in bytes.
const READ_BYTES_MAX: usize = 16 * 1024;
/// Bytes of a batch's commands above which it takes no further one.
pub const BATCH_BYTES_MAX: usize = 64 * 1024;
/// Longest replies of a batch together, in bytes: as of bypasses that are packed.
pub const BATCH_REPLY_BYTES_MAX: usize = BULK_BYTES_MAX;
/// After a listing that could not be read from the store: none is tried for so long, in nanoseconds.
const LISTING_PAUSE: Time = 10_000_000;
/// A connection whose replies were longer does not read from the store for so long, in nanoseconds.
const LARGE_PAUSE: Time = 1_000_000_000;

/// What a connection reads otherwise than as bypasses.
#[derive(Default)]
pub(in crate::client) struct Reads {
    /// Nothing behind it is taken before it is answered or sent.
    pub(in crate::client) batch: Option<Batch>,
    /// How many questions to the store there were.
    pub(in crate::client) questions: u64,
    /// The store was asked before the head had answered.
    pub(in crate::client) before: Option<Before>,
    /// One beside writes had a long reply: only short ones go with them before this time.
    pub(in crate::client) apart_before: Time,
    /// The replies of a batch were too long: none before this time.
    no_batch_before: Time,
    /// A call had an unknown outcome, and no bypass was answered since.
    pub(in crate::client) uncertain: bool,
}

/// Reads of one connection that are answered together.
pub(in crate::client) struct Batch {
    /// Its question to the store: tells it from earlier ones of this connection.
    pub(in crate::client) number: u64,
    pub(in crate::client) stage: BatchStage,
    /// When the time of the first of them began.
    begun: Time,
    /// The commands, one after the other, and where each ends.
    commands: Vec<u8>,
    pub(in crate::client) ends: Vec<usize>,
    /// How many of them are answered, or sent as bypasses.
    done: usize,
    /// Bytes of the replies that came from the store.
    reply_bytes: usize,
    /// The store has said something that it must say to a bypass.
    unfit: bool,
    /// The different hashes of their keys, as long as there are few.
    hashes: Vec<u64>,
    /// The key, if each of them is a GET of it.
    key: Option<Vec<u8>>,
    /// Which of them list the keys of database 0.
    listings: Vec<(usize, Listing)>,
    /// One of them reads all keys.
    all_keys: bool,
    /// None of them is for the master alone.
    fits_replicas: bool,
    /// The head is asked what a replica must have applied.
    pub(in crate::client) asks_replica: bool,
    /// What it has been read from last, or is, is a replica.
    of_replica: bool,
    /// The head's answer, if it is no HIT.
    missed: Option<Missed>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) enum BatchStage {
    /// Takes further reads, or waits until what is in front of it is answered.
    Gathers,
    /// The head was asked.
    Asked(CallId),
    /// The head has said MISS. What the store was asked before is on its way, and may be fresh enough.
    Awaits { epoch: u32, need: u64 },
    /// May be read from the store if its record names this epoch and it has applied everything up to `need`.
    Missed { epoch: u32, need: u64 },
    /// The same, of a replica of it.
    Replica { epoch: u32, need: u64 },
    /// Handed out, to be read from the store.
    HandedOut,
    /// To be sent as bypasses.
    Bypassed,
}

/// Reads of one connection for the store itself.
#[derive(Clone, Debug)]
pub struct StoreRead {
    /// [`Connection::id`].
    pub connection: u64,
    /// Which of its questions.
    pub batch: u64,
    /// RESP version of the replies.
    pub protocol: Protocol,
    /// Where the keys are.
    pub database: u32,
    /// The commands, one after the other.
    pub commands: Bytes,
    /// How many they are.
    pub count: usize,
    /// How fresh the store must be.
    pub freshness: Freshness,
    /// From a replica of the store.
    pub replica: bool,
}

/// How fresh a store must be that is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// As the head has said.
    Known {
        /// Epoch that the store's record must name.
        epoch: u32,
        /// What the store must have applied.
        need: u64,
    },
    /// The head has not answered yet: the connection is told the record, and decides.
    Told,
}

/// Why a batch cannot be read from the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// The store cannot be asked, is not fresh enough, or said something odd.
    Unfit,
    /// Its replies are longer than [`BATCH_REPLY_BYTES_MAX`].
    Large,
}

impl Batch {
    fn new(begun: Time) -> Batch {
        Batch {
            number: 0,
            stage: BatchStage::Gathers,
            begun,
            commands: Vec::new(),
            ends: Vec::new(),
            done: 0,
            reply_bytes: 0,
            unfit: false,
            hashes: Vec::new(),
            key: None,
            listings: Vec::new(),
            all_keys: false,
            fits_replicas: true,
            asks_replica: false,
            of_replica: false,
            missed: None,
        }
    }

    /// Where it is read behind the head's MISS if no replica will do.
    pub(in crate::client) fn at_master(&self, shared: &Shared, protocol: Protocol) -> BatchStage {
        match self.missed {
            Some(Missed { epoch, need, .. })
                if shared.reads_from_store(protocol) && !self.unfit =>
            {
                BatchStage::Missed { epoch, need }
            }
            _ => BatchStage::Bypassed,
        }
    }

    fn add<'a>(
        &mut self,
        frame: &[u8],
        get: Option<&[u8]>,
        mut keys: impl Iterator<Item = &'a [u8]>,
    ) {
        // One more than fit says that they do not.
        while self.hashes.len() <= READ_KEYS_MAX
            && let Some(key) = keys.next()
        {
            let hash = key_hash(key);
            if !self.hashes.contains(&hash) {
                self.hashes.push(hash);
            }
        }
        if self.ends.is_empty() {
            self.key = get.map(<[u8]>::to_vec);
        } else if self.key.as_deref() != get {
            self.key = None;
        }
        self.commands.extend_from_slice(frame);
        self.ends.push(self.commands.len());
    }

    fn has_room(&self) -> bool {
        self.ends.len() < COMMANDS_PER_TURN && self.commands.len() < BATCH_BYTES_MAX
    }

    /// The store's reply to the command at `index`, as clients see it.
    pub(in crate::client) fn shown(&self, index: usize, reply: Bytes) -> Bytes {
        let found = self.listings.iter().find(|(at, _)| *at == index);
        match found {
            Some((_, listing)) => without_own(*listing, reply),
            None => reply,
        }
    }

    /// The command at `index`.
    fn frame(&self, index: usize) -> &[u8] {
        let from = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.commands[from..self.ends[index]]
    }
}

impl Connection {
    /// Adds a read to the batch; false if it has to be a bypass.
    ///
    /// # Errors
    /// [`Later`]: it has to wait for the batch.
    pub(in crate::client) fn batch_read<U: Upstream>(
        &mut self,
        frame: &[u8],
        facts: Option<&Facts>,
        arguments: &Arguments<'_>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<bool, Later> {
        let Some(facts) = facts.filter(|_| self.may_batch(frame, shared)) else {
            return Ok(false);
        };
        let listing = listing(facts, arguments).filter(|_| shared.now >= shared.listing_after);
        let keys = read_keys(facts, arguments);
        if (keys.is_none() && listing.is_none()) || touches_reserved(arguments) {
            return Ok(false);
        }
        if !self.packs.is_empty()
            || self
                .reads
                .batch
                .as_ref()
                .is_some_and(|batch| !batch.has_room())
        {
            self.flush_pack(up, shared)?;
        }
        // What a client may keep comes from Redis itself, which tells of its changes.
        let get = (facts.name == "GET" && !self.tracks.on).then(|| arguments.get(1));
        let begun = self.times.begun();
        let batch = self.reads.batch.get_or_insert_with(|| Batch::new(begun));
        if let Some(listing) = listing.filter(|_| self.settings.database == 0) {
            batch.listings.push((batch.ends.len(), listing));
        }
        batch.all_keys |= listing.is_some();
        batch.add(frame, get, keys.into_iter().flatten());
        // A client that keeps what it reads hears of changes from the master.
        batch.fits_replicas &= !self.tracks.on && listing.is_none() && !is_of_one_process(facts);
        Ok(true)
    }

    fn may_batch(&self, frame: &[u8], shared: &Shared) -> bool {
        shared.asks_head()
            && !self.reads.uncertain
            && shared.now >= self.reads.no_batch_before
            && frame.len() <= READ_BYTES_MAX
            // It goes with those in front of it that are bypasses.
            && !self.packs.has_reads()
            && self.passing.subscriptions() == 0
    }

    /// Gets the batch on, as far as it can go now.
    ///
    /// # Errors
    /// [`Later`], until all of it is answered or sent.
    pub(in crate::client) fn advance_batch<U: Upstream>(
        &mut self,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<(), Later> {
        let Some(batch) = &mut self.reads.batch else {
            return Ok(());
        };
        if batch.stage == BatchStage::Gathers {
            if !self.replies.slots.is_empty() {
                return Err(Later::Reads);
            }
            batch.begun = self.times.since(batch.begun);
            batch.stage = if self.reads.uncertain {
                BatchStage::Bypassed
            } else {
                self.wishes.name_store();
                ask_head(batch, self.settings.protocol, up, shared)
            };
            if let BatchStage::Asked(call) = batch.stage {
                self.wishes.asked_head(call);
            }
            self.ask_store_at_once(shared);
        }
        let bypassed = |batch: &Batch| batch.stage == BatchStage::Bypassed;
        if !self.reads.batch.as_ref().is_some_and(bypassed) || self.hold.is_for_outcome() {
            return Err(Later::Reads);
        }
        self.bypass_batch(up, shared)
    }

    /// Sends the rest of the batch as bypasses.
    fn bypass_batch<U: Upstream>(&mut self, up: &mut U, shared: &mut Shared) -> Result<(), Later> {
        let Some(mut batch) = self.reads.batch.take() else {
            return Ok(());
        };
        let begun = self.times.replace_begun(self.times.since(batch.begun));
        let key_hash = match batch.hashes[..] {
            [hash] => hash,
            _ => 0,
        };
        let mut result = Ok(());
        while result.is_ok() && batch.done < batch.ends.len() {
            result = if self.replies.full() {
                Err(Later::Reads)
            } else if let Some(busy) = shared.busy.error(shared.now) {
                self.reply(busy.clone());
                Ok(())
            } else {
                let part = Part {
                    frame: batch.frame(batch.done),
                    key_hash,
                    kind: Kind::Reads,
                    company: Company::Any,
                };
                self.pack_part(part, up, shared)
            };
            batch.done += usize::from(result.is_ok());
        }
        self.times.replace_begun(begun);
        if result.is_err() {
            self.reads.batch = Some(batch);
        }
        result
    }

    /// The head answered a READ, or nobody did.
    pub fn read_answered(&mut self, call: CallId, answer: ReadAnswer, shared: &mut Shared) {
        let database = self.settings.database;
        let protocol = self.settings.protocol;
        let Some(batch) = self
            .reads
            .batch
            .as_mut()
            .filter(|batch| batch.stage == BatchStage::Asked(call))
        else {
            return;
        };
        let missed = match answer {
            ReadAnswer::Hit {
                epoch,
                order,
                payload,
            } => {
                if let Some(value) = batch
                    .key
                    .as_ref()
                    .and_then(|key| value_of(&payload, database, key))
                {
                    let count = batch.ends.len();
                    shared.counters.hits += u64::try_from(count).unwrap_or(0);
                    shared.heard.not_missed();
                    shared.replicas.not_missed();
                    let value = reply::bulk(value);
                    for _ in 0..count {
                        self.reply(value.clone());
                    }
                    return self.finish_batch(shared.now);
                }
                // Whatever it is, a store that has it is fresh enough.
                shared.heard.not_missed();
                Some(Missed {
                    epoch,
                    need: order,
                    version: None,
                    replicas: 0,
                })
            }
            ReadAnswer::Miss {
                epoch,
                need,
                version,
                replicas,
            } => {
                let version = Version { epoch, version };
                shared.heard.missed(version);
                shared.replicas.missed();
                Some(Missed {
                    epoch,
                    need,
                    version: Some(version),
                    replicas,
                })
            }
            ReadAnswer::None => {
                shared.heard.not_missed();
                shared.head_is_silent();
                None
            }
        };
        batch.missed = missed;
        let before = self.reads.before.as_ref();
        let before = before.filter(|before| before.is_for(batch.number) && before.is_sent);
        batch.stage = match (missed, before) {
            (Some(missed), Some(before)) if let Some(need) = before.must_have(&missed) => {
                BatchStage::Awaits {
                    epoch: missed.epoch,
                    need,
                }
            }
            // One that has been asked does not have it.
            (Some(missed), _)
                if missed.replicas > 0
                    && shared.replicas.fit[lane(protocol)]
                    && !batch.of_replica =>
            {
                BatchStage::Replica {
                    epoch: missed.epoch,
                    need: missed.replicas,
                }
            }
            _ => batch.at_master(shared, protocol),
        };
        if !matches!(batch.stage, BatchStage::Awaits { .. }) {
            self.drop_before();
        }
        self.use_before(shared);
    }

    /// What is to be read from the store now; each question once.
    pub(in crate::client) fn take_store_read(&mut self) -> Option<StoreRead> {
        let batch = self.reads.batch.as_mut()?;
        let freshness = match (batch.stage, &mut self.reads.before) {
            (BatchStage::Missed { epoch, need } | BatchStage::Replica { epoch, need }, _) => {
                batch.of_replica = matches!(batch.stage, BatchStage::Replica { .. });
                batch.stage = BatchStage::HandedOut;
                self.reads.questions += 1;
                batch.number = self.reads.questions;
                Freshness::Known { epoch, need }
            }
            (BatchStage::Asked(_), Some(before))
                if before.is_for(batch.number) && !before.is_sent =>
            {
                before.is_sent = true;
                batch.of_replica = before.asked == Asked::Replica;
                Freshness::Told
            }
            _ => return None,
        };
        Some(StoreRead {
            connection: self.id,
            batch: batch.number,
            protocol: self.settings.protocol,
            database: self.settings.database,
            commands: Bytes::copy_from_slice(&batch.commands),
            count: batch.ends.len(),
            freshness,
            replica: batch.of_replica,
        })
    }

    fn handed_out(&mut self, number: u64) -> Option<&mut Batch> {
        self.reads
            .batch
            .as_mut()
            .filter(|batch| batch.number == number && batch.stage == BatchStage::HandedOut)
    }

    /// The store's reply to the next read of this batch.
    pub fn store_replied(&mut self, number: u64, reply: Bytes, shared: &mut Shared) {
        if let Some(before) = self.asked_before(number) {
            let progress = before.replied(reply);
            if progress == Progress::Large {
                self.store_unread(number, Unread::Large, shared);
            } else if progress == Progress::Whole && !before.is_wanted {
                self.reads.before = None;
            } else {
                self.use_before(shared);
            }
            return;
        }
        let Some(batch) = self.handed_out(number) else {
            return;
        };
        batch.reply_bytes += reply.len();
        if batch.reply_bytes > BATCH_REPLY_BYTES_MAX {
            return self.store_unread(number, Unread::Large, shared);
        }
        let reply = batch.shown(batch.done, reply);
        batch.done += 1;
        let finished = batch.done == batch.ends.len();
        shared.counters.direct_reads += 1;
        if batch.of_replica {
            shared.counters.replica_reads += 1;
            shared.replicas.was_fresh();
        }
        self.reply(reply);
        if finished {
            self.finish_batch(shared.now);
        }
    }

    /// The rest of this batch cannot be read from the store, or from the replica that was asked.
    pub fn store_unread(&mut self, number: u64, why: Unread, shared: &mut Shared) {
        let protocol = self.settings.protocol;
        let mut wanted = false;
        if let Some(asked) = self.asked_before(number) {
            wanted = asked.is_wanted;
            self.reads.before = None;
        }
        let asks = if wanted {
            self.reads.batch.as_mut()
        } else {
            self.handed_out(number)
        };
        let Some(batch) = asks else { return };
        if batch.of_replica && why == Unread::Unfit {
            shared.replicas.was_of_no_use(shared.now);
        }
        if batch.all_keys && !batch.of_replica {
            // While others write, the store has seldom everything that the head has.
            shared.listing_after = shared.now.saturating_add(LISTING_PAUSE);
        }
        // The master has all that a replica has shown of this batch, but is not asked for a part of it.
        batch.unfit |= !batch.of_replica || why == Unread::Large || batch.done > 0;
        // The head's answer may be a HIT yet.
        if !matches!(batch.stage, BatchStage::Asked(_)) {
            batch.stage = batch.at_master(shared, protocol);
        }
        if why == Unread::Large {
            self.reads.no_batch_before = shared.now.saturating_add(LARGE_PAUSE);
        }
    }

    /// Nobody waits for the answer any more.
    pub(in crate::client) fn drop_batch(&mut self) {
        self.reads.batch = None;
        self.drop_before();
    }

    pub(in crate::client) fn finish_batch(&mut self, now: Time) {
        self.drop_batch();
        self.times.answer(now);
    }
}

/// Asks the head, if that can be of use.
fn ask_head<U: Upstream>(
    batch: &mut Batch,
    protocol: Protocol,
    up: &mut U,
    shared: &mut Shared,
) -> BatchStage {
    let deadline = batch.begun.saturating_add(shared.call_timeout);
    batch.asks_replica = batch.fits_replicas && shared.replicas.are_wanted(protocol, shared.now);
    let useful = batch.key.is_some() || shared.reads_from_store(protocol) || batch.asks_replica;
    if !useful || shared.now >= deadline {
        return BatchStage::Bypassed;
    }
    let hashes = if batch.all_keys || batch.hashes.len() > READ_KEYS_MAX {
        &[]
    } else {
        &batch.hashes[..]
    };
    match up.read(shared.now, hashes, batch.asks_replica, deadline) {
        Ok(call) => BatchStage::Asked(call),
        Err(error) => {
            tracing::trace!(%error, "the head is not asked");
            shared.head_is_silent();
            BatchStage::Bypassed
        }
    }
}

/// The value that an update gives to this key, if it is a plain SET of it.
fn value_of<'a>(payload: &'a [u8], database: u32, key: &[u8]) -> Option<&'a [u8]> {
    let commands = Commands::parse(payload).ok()?;
    if commands.form != Form::Single || commands.database != database {
        return None;
    }
    let mut arguments = commands.iter().next()?;
    let words = [(); 3].map(|()| arguments.next());
    match (words, arguments.next()) {
        ([Some(name), Some(set), Some(value)], None)
            if name.eq_ignore_ascii_case(b"SET") && set == key =>
        {
            Some(value)
        }
        _ => None,
    }
}

/// Whether what the store says of it holds in that process alone: a cursor is a place in a table that each process hashes with its own seed. TOUCH is
/// meant for the master. Of a command that this program does not know, the store says it.
fn is_of_one_process(facts: &Facts) -> bool {
    facts.has(NONDETERMINISTIC) || matches!(facts.name, "TOUCH" | "HSCAN" | "SSCAN" | "ZSCAN")
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmnet_resp::write_command;
    use pmnet_wire::command::{preamble, single};

    #[test]
    fn only_a_plain_set_of_the_key_in_the_database_has_its_value() {
        let of = |payload: &[u8]| value_of(payload, 0, b"k").map(<[u8]>::to_vec);
        assert_eq!(of(&single(&["SET", "k", "v"])), Some(b"v".to_vec()));
        assert_eq!(of(&single(&["set", "k", ""])), Some(Vec::new()));
        for other in [
            &["SET", "k2", "v"][..],
            &["SET", "K", "v"],
            &["SET", "k"],
            &["SET", "k", "v", "KEEPTTL"],
            &["SET", "k", "v", "EX", "9"],
            &["MSET", "k", "v"],
            &["SETEX", "k", "9", "v"],
            &["APPEND", "k", "v"],
        ] {
            assert_eq!(of(&single(other)), None, "{other:?}");
        }
        let with = |form: Form, protocol: Protocol, database: u32, times: usize| {
            let mut payload = preamble(form, protocol, database).to_vec();
            for _ in 0..times {
                write_command(&mut payload, &["SET", "k", "v"]);
            }
            of(&payload)
        };
        let resp3 = with(Form::Single, Protocol::Resp3, 0, 1);
        assert_eq!(resp3, Some(b"v".to_vec()), "whoever set it");
        assert_eq!(with(Form::Single, Protocol::Resp2, 1, 1), None);
        assert_eq!(with(Form::Transaction, Protocol::Resp2, 0, 1), None);
        assert_eq!(with(Form::Pipeline, Protocol::Resp2, 0, 2), None);
        assert_eq!(of(b""), None);
        assert_eq!(of(&single(&["SET", "k", "v"])[..20]), None);
    }
}
