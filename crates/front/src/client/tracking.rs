//! Client-side caching of one client: what it may keep is registered before it is read, and what it is told has its place among
//! the replies ([`crate::tracking`]).
//!
//! Invariant: what a client is told comes behind the replies to all commands that were taken before. So it never keeps the value
//! of a reply that comes after the word that this value has changed. (A command that blocks makes nobody wait: it is told before
//! the reply to that, as by Redis.)

use bytes::Bytes;
use pmnet_resp::{Arguments, reply, write_bulk, write_null};
use pmnet_wire::command::Protocol;

use super::back::pass::Effect;
use super::back::passage::Passage;
use super::mode::Mode;
use super::replies::Slot;
use super::{Connection, Later, Shared, refusal};
use crate::limits::COMMAND_BYTES_MAX;
use crate::table::{Action, Local, Pass, Sub, Verdict};
use crate::tracking::{Access, LinkState, Told, Tracker, Wish, accessed_keys};
use crate::upstream::{Time, Upstream};

const OVERDUE: &str = "ERR pmnet: deadline passed before Redis could be asked to tell of changed keys (CLIENT TRACKING); the command was not \
                       executed";

/// What a connection has to do with it.
#[derive(Default)]
pub(super) struct Tracks {
    /// CLIENT TRACKING is on.
    pub(super) on: bool,
    /// It waits until Redis tells of changed keys.
    waits: bool,
    /// Its TRACKING ON waits for this fence: Redis may have more to say of changes before it.
    fence: Option<u64>,
    /// Keys of the commands that are queued in its MULTI.
    queued: Queued,
    /// What it is to be told, when everything that was taken from it has its place.
    told: Vec<Bytes>,
}

/// Keys of the commands since MULTI.
#[derive(Default)]
struct Queued {
    keys: Vec<(Access, Vec<u8>)>,
    bytes: usize,
    /// There were more than is remembered.
    too_many: bool,
    /// CLIENT CACHING YES was one of them.
    caching: bool,
}

impl Connection {
    /// Whether it waits until Redis tells the front of changed keys.
    pub(crate) fn waits_for_tracking(&self) -> bool {
        self.tracks.waits
    }

    /// Whether it has waited for that for too long.
    pub(super) fn tracking_is_overdue(&self, shared: &Shared) -> bool {
        self.tracks.waits && shared.now >= self.tracking_until(shared)
    }

    fn tracking_until(&self, shared: &Shared) -> Time {
        self.times.begun().saturating_add(shared.call_timeout)
    }

    /// CLIENT TRACKING ON: waits for the first answer of Redis whether it will tell the front.
    ///
    /// # Errors
    /// [`Later`]: it waits. Inside: why there can be none.
    pub(super) fn may_track(
        &mut self,
        arguments: &Arguments<'_>,
        shared: &mut Shared,
    ) -> Result<Result<(), Bytes>, Later> {
        self.tracks.waits = false;
        let until = self.tracking_until(shared);
        let fence = self.tracks.fence;
        match shared.tracking.link() {
            LinkState::Refused(why) => return Ok(Err(refusal(arguments, why))),
            LinkState::Up if fence.is_none() => {
                self.tracks.fence = Some(shared.tracking.ask_fence());
            }
            LinkState::Up if fence.is_some_and(|fence| !shared.tracking.has_passed(fence)) => {}
            LinkState::New => {}
            LinkState::Up | LinkState::Down => {
                self.tracks.fence = None;
                return Ok(Ok(()));
            }
        }
        if shared.now >= until {
            self.tracks.fence = None;
            return Ok(Err(reply::error(OVERDUE)));
        }
        shared.tracking.want_until(until);
        self.tracks.waits = true;
        Err(Later::Tracking)
    }

    /// CLIENT TRACKING.
    pub(super) fn client_tracking(
        &mut self,
        arguments: &Arguments<'_>,
        shared: &mut Shared,
    ) -> Bytes {
        let there = |id: i64| u64::try_from(id).is_ok_and(|id| shared.tracking.place(id).is_some());
        let wish = match Wish::parse(arguments, there) {
            Ok(wish) => wish,
            Err(error) => return error,
        };
        if arguments.is(2, "OFF") {
            shared.tracking.end(self.id);
            self.tracks.on = false;
            return reply::OK;
        }
        if !arguments.is(2, "ON") {
            return reply::error("ERR syntax error");
        }
        match shared.tracking.begin(self.id, wish) {
            Ok(()) => {
                self.tracks.on = true;
                reply::OK
            }
            Err(error) => error,
        }
    }

    /// Before a command of a client with CLIENT TRACKING ON: registers the keys whose values it may keep. Whether it is answered
    /// already, with an error.
    ///
    /// # Errors
    /// [`Later`]: Redis does not tell of changed keys now.
    pub(super) fn track<U: Upstream>(
        &mut self,
        verdict: &Verdict,
        arguments: &Arguments<'_>,
        up: &mut U,
        shared: &mut Shared,
    ) -> Result<bool, Later> {
        self.tracks.waits = false;
        let executes = verdict.action == Action::Local(Local::Exec);
        // What a command that blocks reads may be read much later.
        let blocks = matches!(verdict.action, Action::Pass(Pass::Blocking));
        if self.queues() != executes || blocks {
            return Ok(false);
        }
        let Some(tracker) = shared.tracking.client(self.id) else {
            return Ok(false);
        };
        let queued = &self.tracks.queued;
        let broadcasts = tracker.broadcasts();
        if !tracker.keeps(queued.caching) {
            return Ok(false);
        }
        let reads = |access: Access| access != Access::Writes;
        let own =
            accessed_keys(verdict, arguments).filter(|(access, _)| !executes && reads(*access));
        let any = own.is_some()
            || (executes
                && (queued.too_many || queued.keys.iter().any(|(access, _)| reads(*access))));
        if !any {
            return Ok(false);
        }
        let error = match shared.tracking.link() {
            LinkState::Up => None,
            LinkState::Refused(why) => Some(refusal(arguments, why)),
            LinkState::New | LinkState::Down if shared.now >= self.tracking_until(shared) => {
                self.times.fail();
                Some(reply::error(OVERDUE))
            }
            LinkState::New | LinkState::Down => {
                self.tracks.waits = true;
                return self.flush_pack(up, shared).and(Err(Later::Tracking));
            }
        };
        if let Some(error) = error {
            if executes {
                // The transaction must end, and nothing of it run.
                self.fail_transaction();
                return Ok(false);
            }
            self.flush_pack(up, shared)?;
            self.reply(error);
            return Ok(true);
        }
        if broadcasts {
            return Ok(false);
        }
        if let Some((_, keys)) = own {
            for key in keys {
                shared.tracking.register(self.id, key);
            }
        } else {
            let keys = self.tracks.queued.keys.iter();
            for (_, key) in keys.filter(|(access, _)| reads(*access)) {
                shared.tracking.register(self.id, key);
            }
        }
        Ok(false)
    }

    /// Whether commands are queued until EXEC.
    fn queues(&self) -> bool {
        matches!(self.mode, Mode::Queueing(_) | Mode::WatchingMulti { .. })
    }

    /// A command of a client with CLIENT TRACKING ON, or that had it before, was taken and has its place.
    pub(super) fn tracked(&mut self, arguments: &Arguments<'_>, shared: &mut Shared) {
        if !self.tracks.on {
            // RESET.
            shared.tracking.end(self.id);
            self.tracks.queued = Queued::default();
            return;
        }
        let verdict = shared.table.verdict(arguments);
        let client = matches!(verdict.action, Action::Local(Local::Client));
        let ends = matches!(verdict.action, Action::Local(Local::Exec | Local::Discard));
        if self.queues() && !ends {
            let is = |name: &str| matches!(verdict.sub, Sub::Known(sub) if sub.name == name);
            self.tracks.queued.caching |= is("CLIENT|CACHING") && arguments.is(2, "YES");
            return self.queue_keys(&verdict, arguments);
        }
        let queued = std::mem::take(&mut self.tracks.queued);
        if verdict.action == Action::Local(Local::Exec) {
            let written = queued
                .keys
                .iter()
                .filter(|(access, _)| *access == Access::Writes);
            for (_, key) in written {
                shared.tracking.wrote(self.id, key);
            }
            if queued.too_many {
                shared.tracking.wrote_much(self.id);
            }
        } else if let Some((Access::Writes, keys)) = accessed_keys(&verdict, arguments) {
            for key in keys {
                shared.tracking.wrote(self.id, key);
            }
        }
        if !client && let Some(tracker) = shared.tracking.client_mut(self.id) {
            tracker.caching = false;
        }
    }

    fn queue_keys(&mut self, verdict: &Verdict, arguments: &Arguments<'_>) {
        let Some((access, keys)) = accessed_keys(verdict, arguments) else {
            return;
        };
        let queued = &mut self.tracks.queued;
        for key in keys {
            queued.bytes += key.len() + size_of::<(Access, Vec<u8>)>();
            if queued.bytes > COMMAND_BYTES_MAX {
                queued.too_many = true;
                return;
            }
            queued.keys.push((access, key.to_vec()));
        }
    }

    /// It is told something about keys: its own, or those of a client that has named it (`redirected`). Whether it listens.
    pub(crate) fn told_of_keys(&mut self, told: &Told, redirected: bool) -> bool {
        let resp3 = self.settings.protocol == Protocol::Resp3;
        let mut out = Vec::new();
        if resp3 {
            out.extend_from_slice(b">2\r\n");
            write_bulk(&mut out, b"invalidate");
        } else if redirected && self.passing.subscriptions() > 0 {
            out.extend_from_slice(b"*3\r\n");
            write_bulk(&mut out, b"message");
            write_bulk(&mut out, b"__redis__:invalidate");
        } else {
            return false;
        }
        match told {
            Told::Keys(keys) => out.extend_from_slice(keys),
            Told::All => write_null(&mut out, resp3),
        }
        self.tracks.told.push(Bytes::from(out));
        self.hand_out_told();
        true
    }

    /// The client is gone that it wanted to be told in its place. Whether it is told that.
    pub(crate) fn told_of_no_redirect(&mut self, redirect: u64) -> bool {
        if self.settings.protocol != Protocol::Resp3 {
            return false;
        }
        let mut out = b">2\r\n".to_vec();
        write_bulk(&mut out, b"tracking-redir-broken");
        out.extend_from_slice(format!(":{redirect}\r\n").as_bytes());
        self.tracks.told.push(Bytes::from(out));
        self.hand_out_told();
        true
    }

    /// What it is told gets its place, unless something that was taken from it has none yet.
    pub(super) fn hand_out_told(&mut self) {
        if self.tracks.told.is_empty() || !self.packs.is_empty() || self.reads.batch.is_some() {
            return;
        }
        let waits = |passage: &Passage| passage.blocks || passage.effect == Effect::Subscribe;
        let waits = self.passing.passage.as_ref().is_some_and(waits);
        for told in std::mem::take(&mut self.tracks.told) {
            let passage = |slot: &Slot| matches!(slot, Slot::Passage);
            let place = self.replies.slots.iter().position(passage);
            let place = place.filter(|_| waits);
            let behind_all = self.replies.slots.len();
            self.replies.insert(place.unwrap_or(behind_all), &told);
        }
    }

    /// What CLIENT TRACKINGINFO says.
    pub(super) fn tracking_info(&self, shared: &Shared) -> Bytes {
        let resp3 = self.settings.protocol == Protocol::Resp3;
        Tracker::info(shared.tracking.client(self.id), resp3)
    }
}
