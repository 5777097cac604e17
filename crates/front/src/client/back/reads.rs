//! Reads that are not bypasses: the head is asked first, and then the head or the store itself answers
//! (`docs/spec/reads.md`).
//!
//! The reads of a connection in one turn are a *batch*. The batch waits until everything before it is answered. Then
//! the head is asked once for the whole batch. A HIT is the value of the batch's only key. After a MISS the front reads
//! from the store on a connection of its own, and gives clients replies that are as fresh as the MISS requires
//! ([`StoreRead`]). If a MISS is probable, the front asks the store at the same time as the head
//! ([`super::read_before`]). A read goes as a bypass if the head does not answer, the store lags, or anything
//! unexpected happens. Once a read goes as a bypass, the rest of its batch goes as bypasses, too. The batch is answered
//! before any later command is taken from the input, so a client's reads do not go back in time.
//!
//! A READ does not travel in the connection's session, so the head does not know the session's requests. Therefore the
//! head is asked only if the session has nothing outstanding, and if no call of the session had an unknown outcome
//! since its last answered bypass. A call with an unknown outcome may still take effect. Of all requests, only a bypass
//! is certain to be executed after that call.
//!
//! Invariants: a batch needs no slots among the replies, because all earlier replies have been given when the batch is
//! answered. A batch is bounded by [`COMMANDS_PER_TURN`] and [`BATCH_BYTES_MAX`], its replies by
//! [`BATCH_REPLY_BYTES_MAX`].

use bytes::Bytes;
use pmnet_resp::reply;
use pmnet_wire::command::Protocol;

use super::batch::{BATCH_REPLY_BYTES_MAX, Batch, BatchStage, Freshness, StoreRead, Unread};
use super::calls::Session;
use super::own_keys::Listing;
use super::pack::{Company, Kind, Packs, Part};
use super::read_before::{Asked, Before, Missed, Progress, Version};
use crate::client::command::Command;
use crate::client::context::{Context, Later};
use crate::client::face::Pending;
use crate::client::settings::Selected;
use crate::client::{Shared, lane};
use crate::table::{Facts, NONDETERMINISTIC};
use crate::upstream::{CallId, ReadAnswer, Time};

/// Longest read command that may join a batch, in bytes. A longer command is a bypass.
const READ_BYTES_MAX: usize = 16 * 1024;
/// Time without listings from the store after a listing could not be read from the store, in nanoseconds.
const LISTING_PAUSE: Time = 10_000_000;
/// Time without batches after the replies of a batch were too long, in nanoseconds.
const LARGE_PAUSE: Time = 1_000_000_000;
/// Length in bytes above which a reply counts as long. After a long reply, reads do not travel with writes for
/// [`APART_PAUSE`], unless their replies are short.
const LONG_READ: usize = 16 * 1024;
/// Time after a long reply in which only reads with short replies travel with writes, in nanoseconds.
const APART_PAUSE: Time = 1_000_000_000;

/// The reads of a connection that are not bypasses.
#[derive(Default)]
pub(in crate::client) struct Reads {
    /// The present batch. No later command is taken until the batch is answered or sent.
    batch: Option<Batch>,
    /// Number of questions to the store so far.
    questions: u64,
    /// The question that the front sent to the store before the head answered.
    early_question: Option<Before>,
    /// Until this time only short reads travel with writes, because a read had a long reply.
    apart_before: Time,
    /// Until this time there are no batches, because the replies of a batch were too long.
    no_batch_before: Time,
    /// Whether a call had an unknown outcome, and no bypass has been answered since.
    uncertain: bool,
}

/// Whether a client may cache its reads (CLIENT TRACKING).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) enum Kept {
    No,
    Yes,
}

impl Kept {
    /// Whether the client is told of changes of the keys that it reads.
    pub(in crate::client) fn of(tracks: bool) -> Kept {
        if tracks { Kept::Yes } else { Kept::No }
    }
}

/// A read for the batch.
#[derive(Clone, Copy)]
pub(in crate::client) struct Read<'a> {
    pub(in crate::client) command: &'a Command<'a>,
    pub(in crate::client) facts: &'a Facts,
    pub(in crate::client) listing: Option<Listing>,
    pub(in crate::client) kept: Kept,
}

impl Reads {
    /// Whether there is a batch.
    pub(in crate::client) fn has_batch(&self) -> bool {
        self.batch.is_some()
    }

    /// Notes that a call has an unknown outcome.
    pub(in crate::client) fn doubt(&mut self) {
        self.uncertain = true;
    }

    /// Notes that a bypass was answered: all earlier calls have taken effect, or never will.
    pub(in crate::client) fn trust(&mut self) {
        self.uncertain = false;
    }

    /// Notes the length of the reply to a read that travelled with writes.
    pub(in crate::client) fn note_length(&mut self, bytes: usize, now: Time) {
        if bytes > LONG_READ {
            self.apart_before = now.saturating_add(APART_PAUSE);
        }
    }

    /// Whether a read whose reply may be long may travel with writes now.
    pub(in crate::client) fn may_be_long(&self, now: Time) -> bool {
        now >= self.apart_before
    }

    /// Whether a read of this length may join the batch.
    pub(in crate::client) fn may_join(&self, bytes: usize, packs: &Packs, shared: &Shared) -> bool {
        shared.asks_head()
            && !self.uncertain
            && shared.now >= self.no_batch_before
            && bytes <= READ_BYTES_MAX
            // The read joins a pack of reads, which are bypasses.
            && !packs.has_reads()
    }

    /// Whether there is a batch that takes no further read.
    pub(in crate::client) fn is_full(&self) -> bool {
        self.batch.as_ref().is_some_and(|batch| !batch.has_room())
    }

    /// Adds a read of these keys to the batch.
    pub(in crate::client) fn add<'a>(
        &mut self,
        read: Read<'a>,
        keys: impl Iterator<Item = &'a [u8]>,
        cx: &Context<'_>,
    ) {
        let Read {
            command,
            facts,
            listing,
            kept,
        } = read;
        let kept = kept == Kept::Yes;
        // A client that caches its reads must read from Redis itself, because Redis reports changes of the
        // keys that it has shown.
        let get = (facts.name == "GET" && !kept).then(|| command.arguments.get(1));
        let begun = cx.pending.times.begun();
        let batch = self.batch.get_or_insert_with(|| Batch::new(begun));
        if let Some(listing) = listing.filter(|_| cx.selected.database == 0) {
            batch.listings.push((batch.ends.len(), listing));
        }
        batch.all_keys |= listing.is_some();
        batch.add(command.frame, get, keys);
        // The master reports changes to a client that caches its reads.
        batch.fits_replicas &= !kept && listing.is_none() && !is_of_one_process(facts);
    }

    /// Takes the batch through as many stages as possible now.
    ///
    /// # Errors
    /// [`Later`], until the whole batch is answered or sent.
    pub(in crate::client) fn advance(
        &mut self,
        packs: &mut Packs,
        session: &mut Session,
        cx: &mut Context<'_>,
    ) -> Result<(), Later> {
        let Some(batch) = &mut self.batch else {
            return Ok(());
        };
        if batch.stage == BatchStage::Gathers {
            if !cx.pending.replies.slots.is_empty() {
                return Err(Later::Outstanding);
            }
            batch.begun = cx.pending.times.since(batch.begun);
            batch.stage = if self.uncertain {
                BatchStage::Bypassed
            } else {
                cx.wishes.name_store();
                batch.ask_head(cx.selected.protocol, cx.up, cx.shared)
            };
            if let BatchStage::Asked(call) = batch.stage {
                cx.wishes.asked_head(call);
            }
            self.ask_store_at_once(cx.selected, cx.shared);
        }
        let bypassed = |batch: &Batch| batch.stage == BatchStage::Bypassed;
        if !self.batch.as_ref().is_some_and(bypassed) || cx.pending.hold.is_for_outcome() {
            return Err(Later::Outstanding);
        }
        self.bypass_batch(packs, session, cx)
    }

    /// Sends the rest of the batch as bypasses.
    fn bypass_batch(
        &mut self,
        packs: &mut Packs,
        session: &mut Session,
        cx: &mut Context<'_>,
    ) -> Result<(), Later> {
        let Some(mut batch) = self.batch.take() else {
            return Ok(());
        };
        let begun = cx.pending.times.since(batch.begun);
        let begun = cx.pending.times.replace_begun(begun);
        let mut result = Ok(());
        while result.is_ok() && batch.done < batch.ends.len() {
            result = if cx.pending.replies.full() {
                Err(Later::Outstanding)
            } else if let Some(busy) = cx.shared.busy.error(cx.shared.now) {
                packs.reply(&mut cx.pending.replies, busy.clone());
                Ok(())
            } else {
                let part = Part {
                    frame: batch.frame(batch.done),
                    key_hash: batch.key_hash(),
                    kind: Kind::Reads,
                    company: Company::Any,
                    code: false,
                };
                let sent = match packs.goes_before(&part) {
                    true => packs.send(session, cx),
                    false => Ok(()),
                };
                sent.map(|()| packs.put(part, cx))
            };
            batch.done += usize::from(result.is_ok());
        }
        cx.pending.times.replace_begun(begun);
        if result.is_err() {
            self.batch = Some(batch);
        }
        result
    }

    /// Takes the head's answer to a READ, or notes that none came in time.
    pub(in crate::client) fn answered(
        &mut self,
        call: CallId,
        answer: ReadAnswer,
        selected: Selected,
        pending: &mut Pending,
        shared: &mut Shared,
    ) {
        let asked = |batch: &&mut Batch| batch.stage == BatchStage::Asked(call);
        let Some(batch) = self.batch.as_mut().filter(asked) else {
            return;
        };
        let missed = match answer {
            ReadAnswer::Hit {
                epoch,
                order,
                payload,
            } => {
                if let Some(value) = batch.value_in(&payload, selected.database) {
                    let count = batch.ends.len();
                    shared.counters.hits += u64::try_from(count).unwrap_or(0);
                    shared.heard.not_missed();
                    shared.replicas.not_missed();
                    let value = reply::bulk(value);
                    for _ in 0..count {
                        pending.replies.push(value.clone());
                    }
                    return self.finish_batch(pending, shared.now);
                }
                // A store that has applied this order is fresh enough, whatever the update is.
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
        let early = self.early_question.as_ref();
        let early = early.filter(|early| early.is_for(batch.question) && early.is_sent);
        batch.stage = match (missed, early) {
            (Some(missed), Some(early)) if let Some(need) = early.must_have(&missed) => {
                BatchStage::Awaits {
                    epoch: missed.epoch,
                    need,
                }
            }
            // A replica that was already asked does not have the required order.
            (Some(missed), _)
                if missed.replicas > 0
                    && shared.replicas.fit[lane(selected.protocol)]
                    && !batch.of_replica =>
            {
                BatchStage::Replica {
                    epoch: missed.epoch,
                    need: missed.replicas,
                }
            }
            _ => batch.at_master(shared, selected.protocol),
        };
        if !matches!(batch.stage, BatchStage::Awaits { .. }) {
            self.drop_before();
        }
        self.use_before(selected.protocol, pending, shared);
    }

    /// Returns the reads that must now be sent to the store. Returns each question once.
    pub(in crate::client) fn take_store_read(
        &mut self,
        connection: u64,
        selected: Selected,
    ) -> Option<StoreRead> {
        let batch = self.batch.as_mut()?;
        let freshness = match (batch.stage, &mut self.early_question) {
            (BatchStage::Missed { epoch, need } | BatchStage::Replica { epoch, need }, _) => {
                batch.of_replica = matches!(batch.stage, BatchStage::Replica { .. });
                batch.stage = BatchStage::HandedOut;
                self.questions += 1;
                batch.question = self.questions;
                Freshness::Known { epoch, need }
            }
            (BatchStage::Asked(_), Some(early))
                if early.is_for(batch.question) && !early.is_sent =>
            {
                early.is_sent = true;
                batch.of_replica = early.asked == Asked::Replica;
                Freshness::Told
            }
            _ => return None,
        };
        Some(StoreRead {
            connection,
            batch: batch.question,
            protocol: selected.protocol,
            database: selected.database,
            commands: Bytes::copy_from_slice(&batch.commands),
            count: batch.ends.len(),
            freshness,
            replica: batch.of_replica,
        })
    }

    fn handed_out(&mut self, number: u64) -> Option<&mut Batch> {
        self.batch
            .as_mut()
            .filter(|batch| batch.question == number && batch.stage == BatchStage::HandedOut)
    }

    /// Takes the store's reply to the next read of this batch.
    pub(in crate::client) fn store_replied(
        &mut self,
        number: u64,
        reply: Bytes,
        protocol: Protocol,
        pending: &mut Pending,
        shared: &mut Shared,
    ) {
        if let Some(early) = self.asked_before(number) {
            let progress = early.replied(reply);
            if progress == Progress::Large {
                self.store_unread(number, Unread::Large, protocol, shared);
            } else if progress == Progress::Whole && !early.is_wanted {
                self.early_question = None;
            } else {
                self.use_before(protocol, pending, shared);
            }
            return;
        }
        let Some(batch) = self.handed_out(number) else {
            return;
        };
        batch.reply_bytes += reply.len();
        if batch.reply_bytes > BATCH_REPLY_BYTES_MAX {
            return self.store_unread(number, Unread::Large, protocol, shared);
        }
        let reply = batch.shown(batch.done, reply);
        batch.done += 1;
        let finished = batch.done == batch.ends.len();
        shared.counters.direct_reads += 1;
        if batch.of_replica {
            shared.counters.replica_reads += 1;
            shared.replicas.was_fresh();
        }
        pending.replies.push(reply);
        if finished {
            self.finish_batch(pending, shared.now);
        }
    }

    /// Notes that the rest of this batch cannot be read from the store, or from the replica that was asked.
    pub(in crate::client) fn store_unread(
        &mut self,
        number: u64,
        why: Unread,
        protocol: Protocol,
        shared: &mut Shared,
    ) {
        let mut wanted = false;
        if let Some(asked) = self.asked_before(number) {
            wanted = asked.is_wanted;
            self.early_question = None;
        }
        let asks = if wanted {
            self.batch.as_mut()
        } else {
            self.handed_out(number)
        };
        let Some(batch) = asks else { return };
        if batch.of_replica && why == Unread::Unfit {
            shared.replicas.was_of_no_use(shared.now);
        }
        if batch.all_keys && !batch.of_replica {
            // While other clients write, the store rarely has applied everything that is in the head's log.
            shared.listing_after = shared.now.saturating_add(LISTING_PAUSE);
        }
        // After a failed read from a replica, the rest of the batch could be read from the master, which has everything
        // that the replica has shown. But the master is only asked for whole batches.
        batch.store_failed |= !batch.of_replica || why == Unread::Large || batch.done > 0;
        // The head may still answer with a HIT.
        if !matches!(batch.stage, BatchStage::Asked(_)) {
            batch.stage = batch.at_master(shared, protocol);
        }
        if why == Unread::Large {
            self.no_batch_before = shared.now.saturating_add(LARGE_PAUSE);
        }
    }

    /// Drops the batch. No answer to the batch is awaited any longer.
    pub(in crate::client) fn drop_batch(&mut self) {
        self.batch = None;
        self.drop_before();
    }

    fn finish_batch(&mut self, pending: &mut Pending, now: Time) {
        self.drop_batch();
        pending.times.answer(now);
    }

    /// If the head was asked and will probably say MISS, asks the store or a replica at once.
    fn ask_store_at_once(&mut self, selected: Selected, shared: &Shared) {
        let Some(batch) = &mut self.batch else {
            return;
        };
        let useful = matches!(batch.stage, BatchStage::Asked(_)) && self.early_question.is_none();
        let reads = shared.reads_from_store(selected.protocol);
        let asked = match batch.asks_replica {
            true => Some(Asked::Replica),
            false => shared.heard.expected().filter(|_| reads).map(Asked::Master),
        };
        if let Some(asked) = asked.filter(|_| useful) {
            self.questions += 1;
            batch.question = self.questions;
            self.early_question = Some(Before::new(batch.question, asked, batch.ends.len()));
        }
    }

    /// Drops the early question and its answer.
    fn drop_before(&mut self) {
        match &mut self.early_question {
            Some(early) if early.is_sent && early.progress() == Progress::Waits => {
                early.is_over();
            }
            early => *early = None,
        }
    }

    /// If the early answer is complete, answers the batch with it. If the early answer is too old, asks again.
    fn use_before(&mut self, protocol: Protocol, pending: &mut Pending, shared: &mut Shared) {
        let (Some(batch), Some(early)) = (&mut self.batch, &mut self.early_question) else {
            return;
        };
        let BatchStage::Awaits { epoch, need } = batch.stage else {
            return;
        };
        if !early.is_for(batch.question) {
            return;
        }
        if !early.may_be_fresh(epoch, need) {
            if early.asked == Asked::Replica {
                shared.replicas.was_of_no_use(shared.now);
            }
            batch.stage = batch.at_master(shared, protocol);
            return self.drop_before();
        }
        if early.progress() == Progress::Waits {
            return;
        }
        let replies = early.take();
        let count = u64::try_from(replies.len()).unwrap_or(0);
        shared.counters.direct_reads += count;
        shared.counters.reads_at_once += count;
        if early.asked == Asked::Replica {
            shared.counters.replica_reads += count;
            shared.replicas.was_fresh();
        }
        let shown = replies.into_iter().enumerate();
        let shown: Vec<Bytes> = shown.map(|(at, reply)| batch.shown(at, reply)).collect();
        for reply in shown {
            pending.replies.push(reply);
        }
        self.early_question = None;
        self.finish_batch(pending, shared.now);
    }

    fn asked_before(&mut self, number: u64) -> Option<&mut Before> {
        self.early_question
            .as_mut()
            .filter(|early| early.number == number)
    }

    /// Takes the store's record, for reads that the shell sent to the store before the head answered.
    pub(in crate::client) fn store_recorded(
        &mut self,
        number: u64,
        record: (u32, u64),
        protocol: Protocol,
        pending: &mut Pending,
        shared: &mut Shared,
    ) {
        if let Some(early) = self.asked_before(number) {
            early.recorded(record);
            self.use_before(protocol, pending, shared);
        }
    }
}

/// Whether the reply is valid only at the store process that gave it. A cursor is an example: it is a place in a table
/// that each process hashes with its own seed. TOUCH is meant for the master. For a command that this program does not
/// know by name, the store's facts decide.
fn is_of_one_process(facts: &Facts) -> bool {
    facts.has(NONDETERMINISTIC) || matches!(facts.name, "TOUCH" | "HSCAN" | "SSCAN" | "ZSCAN")
}
