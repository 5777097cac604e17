//! Combines log entries into one batch (`docs/spec/protocol.md` §2 rule 6, §3 fragments, §4 fallback).

use super::kept::Kept;
use super::records::{self, Loaded, Record};
use super::{APPLIED_LATELY_MAX, Entry, InFlight, Part, Server, Session, Stop, Work};
use crate::rules::{Rule, Rules};
use bytes::Bytes;
use pmnet_wire::FrontId;
use pmnet_wire::packet::{EntryKind, Identity};
use rustc_hash::FxHashMap;

/// The log entry that has the whole payload of an update. A store can take the payload from the log again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Order of the entry.
    pub order: u64,
    /// CRC32C of the entry's payload, as the client computed it.
    pub payload_crc: u32,
}

/// Session of the client that caused an effect, and the effect's place in the order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The client's session.
    pub session: u64,
    /// For an update, the seq of its last packet; for a bypass, the id of its request. Later updates of a session have
    /// higher seqs, and later bypasses have higher ids.
    pub number: u64,
    /// For an update, the order of its last entry. For a bypass or a fallback, the last order that was applied before
    /// it.
    pub order: u64,
}

/// The changes that a store applies in one atomic durable step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Whole payloads, in the order in which they take effect.
    pub payloads: Vec<Bytes>,
    /// For each payload, the log entry that has the whole payload; `None`: the payload came in several entries, or in
    /// none.
    pub origins: Vec<Option<Origin>>,
    /// For each payload, its session and its place in the order.
    pub sources: Vec<Source>,
    /// Last order that is applied with these effects; `None`: the last applied order does not change.
    pub upto: Option<u64>,
    /// Changes of records. Each key occurs at most once.
    pub records: Vec<Record>,
}

/// A session as the batch changes it. Of the staged fragments it has only those of the batch, so that the cost of a
/// batch does not depend on the number of older fragments.
#[derive(Debug, Default)]
struct Changed {
    token: u64,
    front: Option<FrontId>,
    last_seq: u64,
    /// Number of earlier staged fragments that stay: either all or 0.
    kept: usize,
    /// Fragments that this batch stages, after the fragments that were staged earlier.
    added: Vec<Part>,
}

impl Changed {
    fn of(session: &Session) -> Changed {
        Changed {
            token: session.token,
            front: session.front,
            last_seq: session.last_seq,
            kept: session.stage.len(),
            added: Vec::new(),
        }
    }
}

/// Changes that the server makes in its memory when the store has applied the effects.
#[derive(Debug, Default)]
pub struct Change {
    applied: u64,
    sessions: FxHashMap<u64, Option<Changed>>,
    messages: u64,
    repeated: u64,
    malformed: u64,
}

/// A batch that is being built over the present session table.
struct Builder<'a> {
    rules: Rules,
    sessions: &'a FxHashMap<u64, Session>,
    change: Change,
    payloads: Vec<Bytes>,
    origins: Vec<Option<Origin>>,
    sources: Vec<Source>,
    stages: Vec<Record>,
}

impl Builder<'_> {
    fn session(&mut self, id: u64) -> Option<&mut Changed> {
        let present = self.sessions;
        self.change
            .sessions
            .entry(id)
            .or_insert_with(|| present.get(&id).map(Changed::of))
            .as_mut()
    }

    /// Returns the fragments of a session that were staged before this batch.
    fn staged_before(&self, id: u64) -> &[Part] {
        let present = self.sessions;
        present.get(&id).map_or(&[], |session| &session.stage)
    }

    fn drop_stage(&mut self, id: u64) {
        let Some(session) = self.session(id) else {
            return;
        };
        let (kept, added) = (
            std::mem::take(&mut session.kept),
            std::mem::take(&mut session.added),
        );
        let gone: Vec<u64> = self.staged_before(id)[..kept]
            .iter()
            .chain(&added)
            .map(|part| part.seq)
            .collect();
        let gone = gone.into_iter().map(|seq| records::stage_gone(id, seq));
        self.stages.extend(gone);
    }

    fn effect(&mut self, payload: Bytes, source: Source, origin: Option<Origin>) {
        self.payloads.push(payload);
        self.sources.push(source);
        self.origins.push(origin);
    }

    fn add(&mut self, entry: &Entry) -> Result<(), Stop> {
        let header = &entry.append;
        let id = header.session;
        match header.entry {
            EntryKind::Open => {
                let said = Identity::read(&entry.payload).unwrap_or(Identity::NOBODY);
                let fresh = Changed {
                    token: said.token,
                    front: said.front,
                    ..Changed::default()
                };
                self.change.sessions.insert(id, Some(fresh));
            }
            EntryKind::End => {
                self.drop_stage(id);
                self.change.sessions.insert(id, None);
            }
            EntryKind::Update | EntryKind::Unknown(_) => self.update(entry)?,
        }
        Ok(())
    }

    fn update(&mut self, entry: &Entry) -> Result<(), Stop> {
        let header = &entry.append;
        let id = header.session;
        let rules = self.rules;
        if !rules.hold(Rule::KnownSession) && self.session(id).is_none() {
            let unknown = Changed {
                last_seq: header.seq - 1,
                ..Changed::default()
            };
            self.change.sessions.insert(id, Some(unknown));
        }
        let Some(session) = self.session(id) else {
            // The session has ended, so no further update of it is applied.
            self.change.repeated += 1;
            return Ok(());
        };
        if header.seq <= session.last_seq && rules.hold(Rule::Duplicates) {
            self.change.repeated += 1;
            return Ok(());
        }
        if header.seq > session.last_seq + 1 {
            return Err(Stop(format!(
                "PM2010 order {} carries seq {} of session {id}, whose last applied seq is {}: an update is missing from \
                 the log. Keep the devices' logs and inspect them with `pmnet log inspect`.",
                header.order, header.seq, session.last_seq
            )));
        }
        session.last_seq = header.seq;
        if header.fragment.index == 0 {
            self.drop_stage(id);
        }
        if header.fragment.count == 1 {
            self.change.messages += 1;
            self.effect(entry.payload.clone(), entry.source(), Some(entry.origin()));
            return Ok(());
        }
        self.part(entry);
        Ok(())
    }

    /// Adds one fragment of an update that has several fragments.
    fn part(&mut self, entry: &Entry) {
        let header = &entry.append;
        let id = header.session;
        let before = self.staged_before(id);
        let last_before = before.last().map(|part| part.count);
        let Some(session) = self.session(id) else {
            return;
        };
        // Seqs have no gaps, and every entry that is not the next fragment empties the stage. So the staged fragments
        // directly precede this entry.
        let last = session.added.last().map(|part| part.count);
        let last = last.or(last_before.filter(|_| session.kept > 0));
        let of_another = last.is_some_and(|count| count != header.fragment.count);
        let staged = session.kept + session.added.len();
        if staged != usize::from(header.fragment.index) || of_another {
            // The client has numbered the fragments wrongly, so its update has no effect.
            self.change.malformed += 1;
            self.drop_stage(id);
            return;
        }
        let part = Part {
            seq: header.seq,
            count: header.fragment.count,
            payload: entry.payload.clone(),
        };
        session.added.push(part.clone());
        if header.fragment.index + 1 < header.fragment.count {
            self.stages.push(records::stage(id, &part));
            return;
        }
        let (kept, added) = (session.kept, std::mem::take(&mut session.added));
        let parts = self.staged_before(id)[..kept].iter().chain(&added);
        let whole: Vec<u8> = parts
            .flat_map(|part| part.payload.iter().copied())
            .collect();
        if let Some(session) = self.session(id) {
            session.added = added;
        }
        self.effect(whole.into(), entry.source(), None);
        self.change.messages += 1;
        self.drop_stage(id);
    }

    fn finish(self, watermark: Option<u64>) -> (Effects, Change) {
        // If the batch changes a stage record several times, only the last change is written.
        let mut stages: FxHashMap<Vec<u8>, Option<Bytes>> = FxHashMap::default();
        for (key, value) in self.stages {
            stages.insert(key, value);
        }
        let mut records: Vec<Record> = stages.into_iter().collect();
        for (&id, session) in &self.change.sessions {
            match session {
                Some(session) => {
                    let said = Identity {
                        token: session.token,
                        front: session.front,
                    };
                    records.push(records::session(id, said, session.last_seq));
                }
                None => {
                    records.push(records::session_gone(id));
                    records.push((records::reply_key(id), None));
                }
            }
        }
        records.sort();
        records.extend(watermark.map(records::watermark));
        (
            Effects {
                payloads: self.payloads,
                origins: self.origins,
                sources: self.sources,
                upto: watermark,
                records,
            },
            self.change,
        )
    }
}

impl Server {
    fn builder(&self) -> Builder<'_> {
        Builder {
            rules: self.config.rules,
            sessions: &self.sessions,
            change: Change::default(),
            payloads: Vec::new(),
            origins: Vec::new(),
            sources: Vec::new(),
            stages: Vec::new(),
        }
    }

    pub(super) fn next_batch(&mut self) -> Result<Option<Work>, Stop> {
        if self.entries.queue.is_empty() {
            return Ok(None);
        }
        let mut builder = self.builder();
        let mut bytes = 0;
        let mut applied = self.entries.applied;
        for entry in self
            .entries
            .queue
            .iter()
            .take(self.config.batch_entries_max)
        {
            let first = applied == self.entries.applied;
            if !first && bytes + entry.payload.len() > self.config.batch_bytes_max {
                break;
            }
            bytes += entry.payload.len();
            applied = entry.append.order;
            builder.add(entry)?;
        }
        let (effects, mut change) = builder.finish(Some(applied));
        change.applied = applied;
        // The store applies the batch only if its records agree with the server's memory. So the batch also serves
        // doubts as an access to the records.
        self.doubts.look();
        self.in_flight = InFlight::Batch(change);
        Ok(Some(Work::Apply(effects)))
    }

    /// Returns the effects of a fallback, together with the session's record. The session continues after `last_seq`.
    pub(super) fn fallback_effects(
        &self,
        id: u64,
        last_seq: u64,
        payload: Bytes,
    ) -> (Effects, Change) {
        let identified = self.config.rules.hold(Rule::FallbackIdentity);
        let mut builder = self.builder();
        builder.drop_stage(id);
        if let Some(session) = builder.session(id).filter(|_| identified) {
            session.last_seq = last_seq;
        }
        let source = Source {
            session: id,
            number: last_seq,
            order: self.entries.applied,
        };
        builder.effect(payload, source, None);
        let (effects, mut change) = builder.finish(None);
        change.applied = self.entries.applied;
        (effects, change)
    }

    /// The store has applied all orders up to `applied`. Removes the entries up to this order from the queue, and
    /// remembers their identities for a while.
    fn advance(&mut self, applied: u64) {
        while let Some(entry) = self
            .entries
            .queue
            .pop_front_if(|entry| entry.append.order <= applied)
        {
            if self.entries.lately.len() == APPLIED_LATELY_MAX {
                self.entries.lately.pop_front();
            }
            self.entries.lately.push_back(entry.identity());
            self.entries.applied = entry.append.order;
        }
        if self.entries.applied != applied {
            // Another process of this server has applied the other orders, and this process does not know the
            // identities of their entries.
            self.entries.lately.clear();
            self.entries.applied = applied;
        }
    }

    fn commit(&mut self, change: Change) {
        self.advance(change.applied);
        for (id, session) in change.sessions {
            match session {
                Some(changed) => {
                    // The session may have got other replies and request ids while the store applied the batch, so
                    // those stay.
                    let session = self.sessions.entry(id).or_default();
                    session.token = changed.token;
                    if session.front != changed.front {
                        // The bytes of long replies are counted by front, so they are counted again under the new
                        // front.
                        self.kept.take(session);
                        session.front = changed.front;
                        if let Some((request, reply)) = session.reply.take() {
                            self.kept.give(id, session, request, reply);
                        }
                    }
                    session.last_seq = changed.last_seq;
                    session.stage.truncate(changed.kept);
                    session.stage.extend(changed.added);
                }
                None => {
                    if let Some(mut ended) = self.sessions.remove(&id) {
                        self.kept.take(&mut ended);
                    }
                    self.turns.suspects.remove(&id);
                    self.room.forget(id);
                }
            }
        }
        self.counters.applied += change.messages;
        self.counters.repeated += change.repeated;
        self.counters.rejected += change.malformed;
        self.tell_applied = true;
    }

    /// The store has applied the work that [`Server::next_work`] returned. The store has refused `rejected` effects
    /// finally.
    pub fn applied(&mut self, rejected: u64, out: &mut crate::Outbox) {
        self.counters.rejected += rejected;
        self.doubts.looked();
        match std::mem::replace(&mut self.in_flight, InFlight::Nothing) {
            InFlight::Batch(change) => {
                self.counters.batches += 1;
                self.commit(change);
            }
            InFlight::Fallback {
                session,
                seq,
                change,
            } => {
                self.counters.fallbacks += 1;
                self.commit(change);
                self.answer_fallback(session, seq, out);
            }
            InFlight::Chain(chain) => self.chain_written(chain, out),
            InFlight::Shorten => {}
            other => panic!("no apply was under way: {other:?}"),
        }
    }

    /// Returns a text if the loaded records lack something that the store has confirmed to this process (protocol.md
    /// §5). The watermark shows only whether updates are missing. A fallback or a bypass changes only the record of its
    /// session, so every session is compared.
    fn lost_confirmation(&self, applied: u64, loaded: &FxHashMap<u64, Session>) -> Option<String> {
        // A batch of unknown outcome may have been applied, and may have ended sessions.
        let may_have_ended = applied > self.entries.applied;
        let lost = |(id, known): &(&u64, &Session)| match loaded.get(id) {
            Some(found) => {
                let (now, before) = (found.confirmed(), known.confirmed());
                now.0 < before.0 || now.1 < before.1
            }
            None => !may_have_ended,
        };
        let (id, known) = self
            .sessions
            .iter()
            .filter(lost)
            .min_by_key(|(id, _)| **id)?;
        let (last_seq, request) = known.confirmed();
        let now = loaded.get(id).map_or_else(
            || "is gone".to_owned(),
            |found| {
                let (last_seq, request) = found.confirmed();
                format!("has update {last_seq}, request {request}")
            },
        );
        Some(format!(
            "PM2004 session {id} went back in the store: it had confirmed update {last_seq}, request {request} of it, and now it \
             {now}. Its data was deleted or restored behind the server's back. Restore the store; what it \
             confirmed is in no device's log any more."
        ))
    }

    /// Takes the store's records, as loaded.
    ///
    /// # Errors
    /// [`Stop`] if the records do not belong to a pmnet shard, or are older than this process knows.
    pub fn loaded(
        &mut self,
        records: Vec<(Vec<u8>, Bytes)>,
        store: Option<Bytes>,
    ) -> Result<(), Stop> {
        self.in_flight = InFlight::Nothing;
        let mut applied = None;
        let mut chain = None;
        let mut begun_in = Bytes::new();
        let mut sessions: FxHashMap<u64, Session> = FxHashMap::default();
        let mut replies = Vec::new();
        let mut stages = Vec::new();
        for (key, value) in records {
            match records::read(&key, &value) {
                Some(Loaded::Watermark(watermark)) => applied = Some(watermark),
                Some(Loaded::Chain(found)) => chain = Some(found),
                Some(Loaded::Store(found)) => begun_in = found,
                Some(Loaded::Session { id, said, last_seq }) => {
                    sessions.insert(
                        id,
                        Session {
                            token: said.token,
                            front: said.front,
                            last_seq,
                            ..Session::default()
                        },
                    );
                }
                Some(Loaded::Reply { id, request, reply }) => replies.push((id, request, reply)),
                Some(Loaded::Stage { id, part }) => stages.push((id, part)),
                None => {
                    return Err(Stop(format!(
                        "PM2009 the store's record {:?} is not one of this version: it was written by another version or \
                         damaged. Use the version that wrote it.",
                        String::from_utf8_lossy(&key)
                    )));
                }
            }
        }
        let of_fronts = sessions.values().filter(|session| session.front.is_some());
        let of_fronts = of_fronts.count();
        if of_fronts > 0 && !self.has_keys() {
            return Err(Stop(format!(
                "PM2018 {of_fronts} sessions on record belong to fronts with keys, and this server has no key: without one, whoever knows their \
                 tokens could write in their place. Nothing was changed. Start the server, and all devices, with --key."
            )));
        }
        let applied = applied.unwrap_or(0);
        if applied < self.entries.applied || (chain.is_none() && self.chain.is_some()) {
            return Err(Stop(format!(
                "PM2003 the store's watermark went back from {} to {applied}: its data was deleted or restored behind the \
                 server's back. Restore the store; the devices still hold what was not applied.",
                self.entries.applied
            )));
        }
        let mut kept = Kept::default();
        for (id, request, reply) in replies {
            if let Some(session) = sessions.get_mut(&id) {
                session.highest_request = request;
                kept.give(id, session, request, super::bypass::bounded(reply));
            }
        }
        stages.sort_by_key(|(id, part)| (*id, part.seq));
        for (id, part) in stages {
            if let Some(session) = sessions.get_mut(&id) {
                session.stage.push(part);
            }
        }
        if let Some(lost) = self.lost_confirmation(applied, &sessions)
            && self.config.rules.hold(Rule::Confirmed)
        {
            return Err(Stop(lost));
        }
        for (id, session) in &mut sessions {
            if let Some(known) = self.sessions.get(id) {
                session.highest_request = session.highest_request.max(known.highest_request);
            }
        }
        self.sessions = sessions;
        self.kept = kept;
        self.bound_kept();
        if let Some(chain) = &mut chain {
            chain.store = begun_in;
        }
        self.enter(chain);
        // `None`: the store takes no writes. Nothing changes in it, so it is read in the old epoch.
        if let Some(store) = store {
            self.store = store;
            self.leave_other_store();
        }
        self.advance(applied);
        if self.entries.queue.is_empty() {
            self.entries.received = applied;
        }
        self.loaded = true;
        self.doubts.looked();
        self.tell_applied = true;
        Ok(())
    }
}
