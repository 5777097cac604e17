//! Client-side caching of one client. The keys that the client may cache are registered before they are read. Each
//! message about changed keys has its place among the replies ([`crate::tracking`]).
//!
//! Invariant: a message about a changed key comes after the replies to all commands that were taken before the message.
//! Otherwise a reply with an old value could come after the message, and the client would cache that value. (A command
//! that blocks does not delay such a message: as in Redis, the message comes before the reply to that command.)

use bytes::Bytes;
use pmnet_resp::{Arguments, reply, write_bulk, write_null};
use pmnet_wire::command::Protocol;

use super::Shared;
use super::back::Back;
use super::back::passing::Passing;
use super::command::Command;
use super::context::Later;
use super::errors::{SYNTAX, refusal};
use super::face::Face;
use super::replies::{Replies, Slot};
use crate::limits::COMMAND_BYTES_MAX;
use crate::table::{Action, Local, Pass, Sub, Verdict};
use crate::tracking::{Access, LinkState, Told, Wish, accessed_keys};
use crate::upstream::Time;

const OVERDUE: &str = "ERR pmnet: deadline passed before Redis could be asked to tell of changed keys (CLIENT TRACKING); the command was not \
                       executed";

/// The tracking state of a connection.
#[derive(Default)]
pub(crate) struct Tracks {
    /// Whether CLIENT TRACKING is on.
    pub(super) on: bool,
    /// Whether the client waits until Redis reports changed keys.
    waits: bool,
    /// The fence for which the client's TRACKING ON waits, because Redis may still report earlier changes.
    fence: Option<u64>,
    /// Keys of the commands that are queued in the client's MULTI.
    queued: Queued,
    /// Messages for the client. A message gets its place among the replies once all commands that were taken from the
    /// client have their places.
    told: Vec<Bytes>,
}

/// Keys of the commands since MULTI.
#[derive(Default)]
struct Queued {
    keys: Vec<(Access, Vec<u8>)>,
    bytes: usize,
    /// Whether the transaction has more keys than the front remembers.
    too_many: bool,
    /// Whether CLIENT CACHING YES was one of the commands.
    caching: bool,
}

impl Tracks {
    /// Whether the client waits until Redis reports changed keys to the front.
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// CLIENT TRACKING ON: waits for Redis's first answer whether it will report changed keys to the front, at the
    /// longest until `until`.
    ///
    /// # Errors
    /// [`Later`]: the command waits. The inner error says why tracking is not possible.
    pub(super) fn may_track(
        &mut self,
        arguments: &Arguments<'_>,
        until: Time,
        shared: &mut Shared,
    ) -> Result<Result<(), Bytes>, Later> {
        self.waits = false;
        let fence = self.fence;
        match shared.tracking.link() {
            LinkState::Refused(why) => return Ok(Err(refusal(arguments, why))),
            LinkState::Up if fence.is_none() => {
                self.fence = Some(shared.tracking.ask_fence());
            }
            LinkState::Up if fence.is_some_and(|fence| !shared.tracking.has_passed(fence)) => {}
            LinkState::New => {}
            LinkState::Up | LinkState::Down => {
                self.fence = None;
                return Ok(Ok(()));
            }
        }
        if shared.now >= until {
            self.fence = None;
            return Ok(Err(reply::error(OVERDUE)));
        }
        shared.tracking.want_until(until);
        self.waits = true;
        Err(Later::Tracking)
    }

    /// Carries out CLIENT TRACKING and returns its reply.
    pub(super) fn client_tracking(
        &mut self,
        id: u64,
        arguments: &Arguments<'_>,
        shared: &mut Shared,
    ) -> Bytes {
        let there = |id: i64| u64::try_from(id).is_ok_and(|id| shared.tracking.place(id).is_some());
        let wish = match Wish::parse(arguments, there) {
            Ok(wish) => wish,
            Err(error) => return error,
        };
        if arguments.is(2, "OFF") {
            shared.tracking.end(id);
            self.on = false;
            return reply::OK;
        }
        if !arguments.is(2, "ON") {
            return reply::error(SYNTAX);
        }
        match shared.tracking.begin(id, wish) {
            Ok(()) => {
                self.on = true;
                reply::OK
            }
            Err(error) => error,
        }
    }

    /// Registers the keys that a client with CLIENT TRACKING ON may cache, before its command is carried out. Returns
    /// an error if the command must not be carried out.
    ///
    /// # Errors
    /// [`Later`]: Redis does not report changed keys now.
    pub(super) fn track(
        &mut self,
        command: &Command<'_>,
        face: &mut Face,
        shared: &mut Shared,
    ) -> Result<Option<Bytes>, Later> {
        self.waits = false;
        let Command {
            arguments, verdict, ..
        } = command;
        let executes = verdict.action == Action::Local(Local::Exec);
        // A command that blocks may read its keys much later.
        let blocks = matches!(verdict.action, Action::Pass(Pass::Blocking));
        if face.mode.queues() != executes || blocks {
            return Ok(None);
        }
        let Some(tracker) = shared.tracking.client(face.id) else {
            return Ok(None);
        };
        let queued = &self.queued;
        let broadcasts = tracker.broadcasts();
        if !tracker.keeps(queued.caching) {
            return Ok(None);
        }
        let reads = |access: Access| access != Access::Writes;
        let own =
            accessed_keys(verdict, arguments).filter(|(access, _)| !executes && reads(*access));
        let any = own.is_some()
            || (executes
                && (queued.too_many || queued.keys.iter().any(|(access, _)| reads(*access))));
        if !any {
            return Ok(None);
        }
        let times = &mut face.pending.times;
        let error = match shared.tracking.link() {
            LinkState::Up => None,
            LinkState::Refused(why) => Some(refusal(arguments, why)),
            LinkState::New | LinkState::Down if shared.now >= shared.deadline(times.begun()) => {
                times.fail();
                Some(reply::error(OVERDUE))
            }
            LinkState::New | LinkState::Down => {
                self.waits = true;
                return Err(Later::Tracking);
            }
        };
        if error.is_some() && executes {
            // The transaction must end, and no command of it may run.
            face.mode.fail();
            return Ok(None);
        }
        if error.is_some() || broadcasts {
            return Ok(error);
        }
        if let Some((_, keys)) = own {
            for key in keys {
                shared.tracking.register(face.id, key);
            }
        } else {
            let keys = self.queued.keys.iter();
            for (_, key) in keys.filter(|(access, _)| reads(*access)) {
                shared.tracking.register(face.id, key);
            }
        }
        Ok(None)
    }

    /// Updates the tracking state after a command of a client that has, or had, CLIENT TRACKING ON. The command was
    /// taken and has its place among the replies.
    pub(super) fn tracked(&mut self, arguments: &Arguments<'_>, face: &Face, shared: &mut Shared) {
        let id = face.id;
        if !self.on {
            // A RESET ends tracking.
            shared.tracking.end(id);
            self.queued = Queued::default();
            return;
        }
        let verdict = shared.table.verdict(arguments);
        let client = matches!(verdict.action, Action::Local(Local::Client));
        let ends = matches!(verdict.action, Action::Local(Local::Exec | Local::Discard));
        if face.mode.queues() && !ends {
            let is = |name: &str| matches!(verdict.sub, Sub::Known(sub) if sub.name == name);
            self.queued.caching |= is("CLIENT|CACHING") && arguments.is(2, "YES");
            return self.queue_keys(&verdict, arguments);
        }
        let queued = std::mem::take(&mut self.queued);
        if verdict.action == Action::Local(Local::Exec) {
            let written = queued
                .keys
                .iter()
                .filter(|(access, _)| *access == Access::Writes);
            for (_, key) in written {
                shared.tracking.wrote(id, key);
            }
            if queued.too_many {
                shared.tracking.wrote_much(id);
            }
        } else if let Some((Access::Writes, keys)) = accessed_keys(&verdict, arguments) {
            for key in keys {
                shared.tracking.wrote(id, key);
            }
        }
        if !client && let Some(tracker) = shared.tracking.client_mut(id) {
            tracker.caching = false;
        }
    }

    fn queue_keys(&mut self, verdict: &Verdict, arguments: &Arguments<'_>) {
        let Some((access, keys)) = accessed_keys(verdict, arguments) else {
            return;
        };
        let queued = &mut self.queued;
        for key in keys {
            queued.bytes += key.len() + size_of::<(Access, Vec<u8>)>();
            if queued.bytes > COMMAND_BYTES_MAX {
                queued.too_many = true;
                return;
            }
            queued.keys.push((access, key.to_vec()));
        }
    }

    /// Tells the client about changed keys. `redirected`: the keys are those of another client, which has named this
    /// client in REDIRECT. Returns whether the client takes such messages.
    pub(super) fn tell(
        &mut self,
        told: &Told,
        redirected: bool,
        protocol: Protocol,
        passing: &Passing,
    ) -> bool {
        let resp3 = protocol == Protocol::Resp3;
        let mut out = Vec::new();
        if resp3 {
            out.extend_from_slice(b">2\r\n");
            write_bulk(&mut out, b"invalidate");
        } else if redirected && passing.subscriptions() > 0 {
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
        self.told.push(Bytes::from(out));
        true
    }

    /// Notes that the client named in REDIRECT has disconnected. Returns whether this client gets a message that its
    /// REDIRECT client has disconnected (RESP3 only).
    pub(super) fn tell_of_no_redirect(&mut self, redirect: u64, protocol: Protocol) -> bool {
        if protocol != Protocol::Resp3 {
            return false;
        }
        let mut out = b">2\r\n".to_vec();
        write_bulk(&mut out, b"tracking-redir-broken");
        out.extend_from_slice(format!(":{redirect}\r\n").as_bytes());
        self.told.push(Bytes::from(out));
        true
    }

    /// Gives the messages their places among the replies, unless a command that was taken from the client has no place
    /// yet.
    pub(super) fn hand_out(&mut self, back: &Back, replies: &mut Replies) {
        if self.told.is_empty() || !back.packs.is_empty() || back.reads.has_batch() {
            return;
        }
        let waits = back.passing.lets_messages_pass();
        for told in std::mem::take(&mut self.told) {
            let passage = |slot: &Slot| matches!(slot, Slot::Passage);
            let place = replies.slots.iter().position(passage);
            let place = place.filter(|_| waits);
            let behind_all = replies.slots.len();
            replies.insert(place.unwrap_or(behind_all), &told);
        }
    }
}
