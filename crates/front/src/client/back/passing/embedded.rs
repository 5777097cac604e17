//! WATCH and blocking commands at a store that is no Redis (`docs/spec/embedded-store.md` §8).
//!
//! Purpose: with an embedded store, commands that pass through to a Redis have no connection of their own. WATCH asks
//! the store for the versions of keys, and EXEC sends these versions with the transaction. The transaction runs if the
//! versions are unchanged. A blocking command is sent like any other write, and the store does not wait. If the reply
//! is null, the client waits in the front. The front wakes the client when one of its keys may have got an element
//! (`waiting` of [`crate::shell`]). Invariants: each element is taken by exactly one command, once. A client that waits
//! has no call under way unless it was woken.

use bytes::Bytes;
use pmnet_resp::{Arguments, Parser, Status, parse_integer, read, reply, write_command};
use pmnet_wire::command::{Form, PREAMBLE_LEN, Protocol, UNCHANGED, WATCH, arrival};

use super::Passing;
use super::passage::{Effect, Marks, Passage, Stage};
use crate::client::Shared;
use crate::client::back::calls::{Session, head, outcome_reply};
use crate::client::context::Later;
use crate::client::face::Face;
use crate::client::mode::Mode;
use crate::client::output::Waiting;
use crate::limits::REQUESTS;
use crate::upstream::{Call, CallId, Calls, Outcome, Submit, Time};

/// Maximum number of keys that a client may watch, or wait for, at an embedded store.
const KEYS_MAX: usize = 1024;
/// Maximum number of bytes of the names of all watched keys.
const WATCHED_BYTES_MAX: usize = 256 * 1024;

/// Keys that a client watches.
#[derive(Debug)]
pub(super) struct Watching {
    /// Start number of the store's process, by which a restart is recognized.
    start: i64,
    /// Database, version and name of each key.
    keys: Vec<(u32, i64, Bytes)>,
    bytes: usize,
    /// Whether the process has changed since the first WATCH. After a change of the process, no transaction will run.
    broken: bool,
}

impl Watching {
    /// Returns the payload of a transaction of a client that watches keys. The payload has the versions under
    /// which the transaction may run.
    fn guard(&self, payload: &[u8]) -> Vec<u8> {
        // A start number that no process has.
        let start = if self.broken {
            "-"
        } else {
            &self.start.to_string()
        };
        let mut command: Vec<Vec<u8>> = vec![UNCHANGED.into(), start.into()];
        for (database, version, key) in &self.keys {
            command.push(database.to_string().into());
            command.push(version.to_string().into());
            command.push(key.to_vec());
        }
        let (head, commands) = payload.split_at(PREAMBLE_LEN);
        let mut guarded = head.to_vec();
        write_command(&mut guarded, &command);
        guarded.extend_from_slice(commands);
        guarded
    }
}

/// The wait of a blocking command at an embedded store.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// The awaited keys, as the numbers that [`arrival`] gives them.
    keys: Vec<i64>,
    /// End of the wait; `None`: no end.
    until: Option<Time>,
    /// Whether an element may have arrived at one of the keys while the command was tried.
    again: bool,
    /// `Some`: if the next try finds no element, the wait ends with this reply.
    ended: Option<Bytes>,
}

impl Waits {
    /// Returns the wait of a blocking command, which begins now; `None`: its timeout is not a number.
    fn of(arguments: &Arguments<'_>, database: u32, shared: &Shared) -> Option<Waits> {
        let (keys, time) = layout(arguments)?;
        let sorted = arguments
            .get(0)
            .get(1)
            .is_some_and(|byte| byte.eq_ignore_ascii_case(&b'Z'));
        Some(Waits {
            keys: keys
                .map(|at| arrival(database, sorted, arguments.get(at)))
                .collect(),
            until: end_of(arguments.get(time), shared.now)?,
            again: false,
            ended: None,
        })
    }
}

/// Returns the positions of a blocking command's keys, and the position of its timeout.
fn layout(arguments: &Arguments<'_>) -> Option<(std::ops::Range<usize>, usize)> {
    let count = arguments.len();
    let is = |name: &str| arguments.is(0, name);
    match () {
        () if ["BLPOP", "BRPOP", "BZPOPMIN", "BZPOPMAX"]
            .into_iter()
            .any(is) =>
        {
            Some((1..count - 1, count - 1))
        }
        () if is("BLMOVE") => Some((1..2, 5)),
        () if is("BRPOPLPUSH") => Some((1..2, 3)),
        () if is("BLMPOP") || is("BZMPOP") => {
            let keys = parse_integer(arguments.get(2)).and_then(|keys| usize::try_from(keys).ok());
            // The store refuses a wrong number.
            Some((3..keys.unwrap_or(0).saturating_add(3).min(count), 1))
        }
        () => None,
    }
}

/// Returns the end of a wait of `seconds` that begins now. `None`: `seconds` is not a number. `Some(None)`: `seconds`
/// is 0, so the wait has no end.
fn end_of(seconds: &[u8], now: Time) -> Option<Option<Time>> {
    let seconds: f64 = std::str::from_utf8(seconds).ok()?.parse().ok()?;
    let millis = (seconds * 1000.0).ceil().max(0.0);
    let wait =
        std::time::Duration::try_from_secs_f64(millis / 1000.0).unwrap_or(std::time::Duration::MAX);
    let wait = Time::try_from(wait.as_nanos()).unwrap_or(Time::MAX);
    Some((wait > 0).then(|| now.saturating_add(wait)))
}

/// Whether this reply says that the store had no element.
pub(super) fn is_nothing(reply: &[u8]) -> bool {
    matches!(reply, b"*-1\r\n" | b"$-1\r\n" | b"_\r\n")
}

/// Reads the integers of an array.
pub(crate) fn integers(reply: &[u8]) -> Option<Vec<i64>> {
    let number = |element: &[u8]| parse_integer(element.strip_prefix(b":")?.strip_suffix(b"\r\n")?);
    read::elements(reply)?.into_iter().map(number).collect()
}

/// Calls `look` with the arguments of a command that was parsed before.
fn with_arguments<T>(frame: &[u8], look: impl FnOnce(&Arguments<'_>) -> T) -> Option<T> {
    let mut parser = Parser::new(REQUESTS);
    matches!(parser.poll(frame), Ok(Status::Complete)).then(|| look(&parser.arguments(frame)))
}

impl Passing {
    /// Handles a passed command at a store that is no Redis. If calls can serve the command, prepares the calls and
    /// returns true; otherwise returns false.
    pub(super) fn serve_embedded(&mut self) -> bool {
        let Some(passage) = &mut self.passage else {
            return false;
        };
        let waits = passage.blocks
            && with_arguments(&passage.frame, |arguments| layout(arguments).is_some())
                == Some(true);
        if !waits && passage.effect != Effect::Watch {
            return false;
        }
        // The command goes through the devices like any other command.
        passage.marks = Marks::No;
        passage.confirm_run_id = None;
        passage.stage = Stage::Embedded {
            call: None,
            waits: None,
        };
        true
    }

    /// Takes the command through as many steps as possible now.
    pub(super) fn advance_embedded(
        &mut self,
        face: &mut Face,
        session: &mut Session,
        up: &mut dyn Calls,
        shared: &Shared,
    ) -> Result<(), Later> {
        let protocol = face.settings.selected.protocol;
        let Some(passage) = &mut self.passage else {
            return Ok(());
        };
        // A command that waits has a whole deadline for each try.
        let begun = match &passage.stage {
            Stage::Rest(waits) if waits.until.is_some_and(|until| shared.now >= until) => {
                self.end_wait(face, nothing(protocol), shared.now);
                return Ok(());
            }
            Stage::Embedded { call: None, waits } => match waits {
                Some(_) => shared.now,
                None => passage.begun,
            },
            _ => return Ok(()),
        };
        let watches = passage.effect == Effect::Watch;
        let mut selected = face.settings.selected;
        if watches {
            selected.protocol = Protocol::Resp2;
        }
        let mut payload = head(Form::Single, selected).to_vec();
        if watches {
            let written = with_arguments(&passage.frame, |arguments| {
                let keys = arguments.iter().skip(1);
                let command: Vec<&[u8]> = std::iter::once(WATCH.as_bytes()).chain(keys).collect();
                write_command(&mut payload, &command);
            });
            if written.is_none() {
                self.give_up(
                    face,
                    reply::error("ERR pmnet: a command cannot be read again"),
                );
                return Ok(());
            }
        } else {
            payload.extend_from_slice(&passage.frame);
        }
        let call = Call {
            payload: &payload.into(),
            key_hash: 0,
            how: Submit::Bypass { read_only: watches },
            deadline: shared.deadline(begun),
        };
        match session.submit(call, up, shared.now)? {
            Ok(submitted) => {
                if let Stage::Embedded { call, .. } = &mut passage.stage {
                    *call = Some(submitted);
                }
            }
            Err(error) => self.give_up(face, error),
        }
        Ok(())
    }

    /// Returns whether `call` belonged to a command at an embedded store. For such a call, this function advances the
    /// command with the call's outcome.
    pub(super) fn embedded_answered(
        &mut self,
        face: &mut Face,
        call: CallId,
        outcome: &Outcome,
        shared: &mut Shared,
    ) -> bool {
        let Some(passage) = &self.passage else {
            return false;
        };
        if !matches!(passage.stage, Stage::Embedded { call: Some(mine), .. } if mine == call) {
            return false;
        }
        let watches = passage.effect == Effect::Watch;
        match outcome_reply(outcome.clone()) {
            Ok(reply) if watches => self.versions_known(face, &reply, shared),
            Ok(reply) if is_nothing(&reply) => self.nothing_yet(face, shared),
            Ok(reply) => self.end_wait(face, reply, shared.now),
            // A WATCH that has failed has changed nothing at the store. But its client must not continue as if it
            // watched the keys.
            Err(error) if watches => self.give_up(face, error),
            Err(error) => self.end_wait(face, error, shared.now),
        }
        true
    }

    /// The session closed while the command was under way.
    pub(super) fn embedded_session_closed(&mut self, face: &mut Face) {
        let Some(Passage {
            stage: Stage::Embedded { call: Some(_), .. },
            effect,
            ..
        }) = &self.passage
        else {
            return;
        };
        let outcome = if *effect == Effect::Watch {
            Outcome::Failed("the session closed; the command was not executed")
        } else {
            Outcome::Unknown
        };
        if let Err(error) = outcome_reply(outcome) {
            self.give_up(face, error);
        }
    }

    fn versions_known(&mut self, face: &mut Face, reply: &[u8], shared: &mut Shared) {
        let Some(passage) = &self.passage else {
            return;
        };
        let keys = with_arguments(&passage.frame, |arguments| {
            arguments
                .iter()
                .skip(1)
                .map(Bytes::copy_from_slice)
                .collect::<Vec<_>>()
        })
        .unwrap_or_default();
        let known = integers(reply).filter(|numbers| numbers.len() == keys.len() + 1);
        let Some((start, versions)) = known.as_deref().and_then(<[i64]>::split_first) else {
            shared.embedded = false;
            let name = &passage.name;
            return self.give_up(
                face,
                reply::error(&format!(
                    "ERR pmnet: {name} needs a Redis store: this store cannot do it"
                )),
            );
        };
        let watching = self.watching.get_or_insert_with(|| Watching {
            start: *start,
            keys: Vec::new(),
            bytes: 0,
            broken: false,
        });
        watching.broken |= watching.start != *start;
        for (key, version) in keys.into_iter().zip(versions) {
            watching.bytes += key.len();
            watching
                .keys
                .push((face.settings.selected.database, *version, key));
        }
        if watching.keys.len() > KEYS_MAX || watching.bytes > WATCHED_BYTES_MAX {
            return self.give_up(face, reply::error(&format!(
                "ERR pmnet: closing: a client can watch {KEYS_MAX} keys with {WATCHED_BYTES_MAX} bytes of names"
            )));
        }
        self.end_wait(face, reply::OK, shared.now);
    }

    /// Handles that the store had no element: the client waits, or its time is over.
    fn nothing_yet(&mut self, face: &mut Face, shared: &Shared) {
        let nothing = nothing(face.settings.selected.protocol);
        let database = face.settings.selected.database;
        let Some(Passage {
            stage: Stage::Embedded { call, waits },
            frame,
            ..
        }) = &mut self.passage
        else {
            return;
        };
        if waits.is_none() {
            let wait = with_arguments(frame, |arguments| Waits::of(arguments, database, shared));
            match wait.flatten() {
                Some(wait) if wait.keys.len() <= KEYS_MAX => *waits = Some(wait),
                Some(_) => {
                    let error = format!("ERR pmnet: a command can wait for {KEYS_MAX} keys");
                    return self.end_wait(face, reply::error(&error), shared.now);
                }
                None => {
                    return self.end_wait(
                        face,
                        reply::error("ERR timeout is not a float or out of range"),
                        shared.now,
                    );
                }
            }
        }
        let Some(wait) = waits else {
            return;
        };
        if let Some(ended) = wait.ended.take() {
            return self.end_wait(face, ended, shared.now);
        }
        if wait.until.is_some_and(|until| shared.now >= until) {
            return self.end_wait(face, nothing, shared.now);
        }
        *call = None;
        if !std::mem::take(&mut wait.again) {
            let rests = Stage::Rest(std::mem::take(wait));
            if let Some(passage) = &mut self.passage {
                passage.stage = rests;
            }
        }
    }

    /// Returns the keys for which the client waits at an embedded store, and the end of its wait.
    pub(in crate::client) fn waits_for(&self) -> Option<(&[i64], Option<Time>)> {
        let waits = self.passage.as_ref()?.waits()?;
        Some((&waits.keys, waits.until))
    }

    /// Returns the state of the client's wait.
    pub(in crate::client) fn waiting(&self) -> Waiting {
        match self.waits_for() {
            None => Waiting::No,
            Some(_) if self.rests() => Waiting::Rests,
            Some(_) => Waiting::Tries,
        }
    }

    /// Whether the client's last try has found nothing, and the client was not woken since.
    fn rests(&self) -> bool {
        matches!(self.stage(), Some(Stage::Rest(_)))
    }

    /// Wakes the client, because an element may have arrived at one of its keys.
    pub(in crate::client) fn wake(&mut self) {
        let Some(passage) = &mut self.passage else {
            return;
        };
        match &mut passage.stage {
            Stage::Rest(waits) => {
                let waits = Some(std::mem::take(waits));
                passage.stage = Stage::Embedded { call: None, waits };
            }
            Stage::Embedded {
                waits: Some(waits), ..
            } => waits.again = true,
            _ => {}
        }
    }

    /// Ends the client's wait with this reply, unless its next try finds an element.
    pub(in crate::client) fn stop_waiting(&mut self, face: &mut Face, answer: Bytes, now: Time) {
        if self.rests() {
            return self.end_wait(face, answer, now);
        }
        if let Some(Passage {
            stage: Stage::Embedded {
                waits: Some(waits), ..
            },
            ..
        }) = &mut self.passage
        {
            waits.ended = Some(answer);
        }
    }

    /// Ends the watch of all keys, after EXEC, DISCARD, UNWATCH or RESET.
    pub(in crate::client) fn unwatch(&mut self) {
        self.watching = None;
    }

    /// Whether the client watches keys, at an embedded store or at a Redis.
    pub(in crate::client) fn watches_keys(&self, mode: &Mode) -> bool {
        self.watches_here() || mode.watches()
    }

    /// Whether the client watches keys at an embedded store.
    pub(in crate::client) fn watches_here(&self) -> bool {
        self.watching.is_some()
    }

    /// Returns the payload of a transaction. If the client watches keys, the payload has the versions under
    /// which the transaction may run.
    pub(in crate::client) fn guarded(&self, payload: &Bytes) -> Bytes {
        match &self.watching {
            Some(watching) => Bytes::from(watching.guard(payload)),
            None => payload.clone(),
        }
    }
}

/// Returns the reply of a waiting command that CLIENT UNBLOCK ends.
pub(in crate::client) fn unblocked(error: bool, protocol: Protocol) -> Bytes {
    if error {
        return reply::error("UNBLOCKED client unblocked via CLIENT UNBLOCK");
    }
    nothing(protocol)
}

/// Returns the reply of a waiting command whose time is over.
pub(super) fn nothing(protocol: Protocol) -> Bytes {
    match protocol {
        Protocol::Resp2 => Bytes::from_static(b"*-1\r\n"),
        Protocol::Resp3 => Bytes::from_static(b"_\r\n"),
    }
}
