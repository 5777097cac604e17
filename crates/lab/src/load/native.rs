//! The driver for pmnet itself: sessions of one client endpoint, without a front.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use bytes::Bytes;
use mio::unix::SourceFd;
use mio::{Interest, Token};
use pmnet_client::{CallId, ClientConfig, ClientNode, Event, Refused, SessionHandle, Time};
use pmnet_wire::command::{Commands, Form, Protocol, key_hash, preamble};

use super::generator::Lane;
use super::history::{Op, Outcome};
use super::options::{Hooks, Options};
use super::resp::judge;
use super::run::{Pending, Run};
use super::summary::Summary;
use super::wait::Waiter;
use crate::clock::now_ns;
use crate::resp;

/// Time after which the run is given up if no operation has had a known outcome.
const NOBODY_NS_MAX: u64 = 5_000_000_000;
/// Token of the endpoint's socket.
const SOCKET: Token = Token(0);

/// The state of one logical client.
struct Slot {
    session: Option<SessionHandle>,
    client: u64,
    lane: Lane,
    pending: HashMap<CallId, Pending>,
    /// The session is being ended. A new session follows.
    leaving: bool,
}

struct Driver<'a, 'h> {
    run: Run<'a, 'h>,
    endpoint: ClientNode,
    waiter: Waiter,
    slots: Vec<Slot>,
    slot_of: HashMap<SessionHandle, usize>,
    round_robin: usize,
    command: Vec<u8>,
}

/// Runs the load. The head device is at `address` of the options.
pub fn run(options: &Options, hooks: Hooks<'_>, stop: &AtomicBool) -> anyhow::Result<Summary> {
    let mut run = Run::new(options, hooks);
    let mut config = ClientConfig::new(options.address);
    config.shard = options.shard;
    let endpoint = ClientNode::bind(config)
        .with_context(|| format!("cannot open a socket towards {}", options.address))?;
    let waiter = Waiter::new(options.spin)?;
    waiter
        .registry()
        .register(
            &mut SourceFd(&endpoint.raw_fd()),
            SOCKET,
            Interest::READABLE,
        )
        .context("cannot poll the socket")?;
    let slots = (0..options.clients)
        .map(|_| Slot {
            session: None,
            client: run.new_client(),
            lane: Lane::default(),
            pending: HashMap::new(),
            leaving: false,
        })
        .collect();
    let mut driver = Driver {
        run,
        endpoint,
        waiter,
        slots,
        slot_of: HashMap::new(),
        round_robin: 0,
        command: Vec::new(),
    };
    driver.main(stop)?;
    Ok(driver.run.finish())
}

impl Driver<'_, '_> {
    fn main(&mut self, stop: &AtomicBool) -> anyhow::Result<()> {
        let mut ready = Vec::new();
        let mut more = false;
        loop {
            let now = now_ns();
            let goes_on = self.run.goes_on(now, stop);
            if !goes_on && self.slots.iter().all(|slot| slot.pending.is_empty()) {
                return self.leave(now);
            }
            if self.run.tick(now) && self.run.recorder.acknowledged == 0 {
                anyhow::ensure!(
                    now < self.run.start_ns + NOBODY_NS_MAX
                        || self.run.recorder.failed > 0
                        || !goes_on,
                    "no answer from {}: is a device serving there?",
                    self.run.options.address
                );
            }
            if goes_on {
                self.issue(now)?;
            }
            self.endpoint
                .flush(Time(now_ns()))
                .context("cannot send to the device")?;
            self.outcomes()?;
            let until = self
                .endpoint
                .next_timeout()
                .map_or(u64::MAX, |time| time.0)
                .min(self.run.next_tick_ns());
            self.waiter.wait(if more { 0 } else { until }, &mut ready)?;
            if more || !ready.is_empty() {
                (_, more) = self
                    .endpoint
                    .receive(Time(now_ns()))
                    .context("cannot receive from the device")?;
                self.outcomes()?;
            }
        }
    }

    /// Sends all operations that are due.
    fn issue(&mut self, now: u64) -> anyhow::Result<()> {
        let pipeline = self.run.options.pipeline;
        if self.run.options.rate.is_none() {
            for index in 0..self.slots.len() {
                if self.usable(index, now)? && self.slots[index].pending.is_empty() {
                    for _ in 0..pipeline {
                        self.issue_one(index, now)?;
                    }
                }
            }
            return Ok(());
        }
        let count = self.slots.len();
        let mut full = 0;
        while self.run.due_ns() <= now && full < count {
            let index = self.round_robin % count;
            self.round_robin = index + 1;
            if self.usable(index, now)? && self.slots[index].pending.len() < pipeline {
                full = 0;
                self.issue_one(index, self.run.due_ns())?;
            } else {
                full += 1;
            }
        }
        if self.run.due_ns() > now {
            self.waiter.alarm(self.run.due_ns())?;
        }
        Ok(())
    }

    /// Returns whether a slot can send an operation. Opens a session if the slot has none.
    fn usable(&mut self, index: usize, now: u64) -> anyhow::Result<bool> {
        let slot = &mut self.slots[index];
        if slot.session.is_none() {
            let session = self
                .endpoint
                .open(Time(now))
                .context("cannot open a session")?;
            slot.session = Some(session);
            self.slot_of.insert(session, index);
        }
        Ok(!slot.leaving)
    }

    fn issue_one(&mut self, index: usize, invoke_ns: u64) -> anyhow::Result<()> {
        let slot = &mut self.slots[index];
        let Some(session) = slot.session else {
            return Ok(());
        };
        self.command.clear();
        self.command
            .extend_from_slice(&preamble(Form::Single, Protocol::Resp2, 0));
        let pending = self
            .run
            .issue(slot.client, &mut slot.lane, invoke_ns, &mut self.command);
        let key = Commands::parse(&self.command)
            .ok()
            .and_then(|commands| commands.iter().next()?.nth(1))
            .map_or(0, key_hash);
        let payload = Bytes::copy_from_slice(&self.command);
        let deadline = Time(pending.deadline_ns);
        let call = match pending.issued.op {
            // The replies to these operations do not depend on the data, so devices may acknowledge
            // them.
            Op::Set | Op::Mset => self.endpoint.update(session, payload, key, deadline),
            op => {
                let read_only = !op.writes();
                self.endpoint
                    .bypass(session, payload, key, read_only, deadline)
            }
        };
        match call {
            Ok(call) => {
                slot.pending.insert(call, pending);
                Ok(())
            }
            Err(refused) => {
                let text = refused.to_string();
                self.run.recorder.error(&text);
                if refused == Refused::Closed {
                    // The end of this session has not been handled yet.
                    slot.leaving = true;
                }
                let client = slot.client;
                self.run.ended(client, pending, Outcome::Failed, Some(text))
            }
        }
    }

    /// Handles the events of the endpoint.
    fn outcomes(&mut self) -> anyhow::Result<()> {
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::Done {
                    session,
                    call,
                    outcome,
                } => self.done(session, call, outcome)?,
                Event::SessionClosed { session, reason } => {
                    if let Some(index) = self.slot_of.remove(&session) {
                        let client = self.run.new_client();
                        let slot = &mut self.slots[index];
                        slot.session = None;
                        slot.leaving = false;
                        slot.client = client;
                        slot.lane = Lane::default();
                        self.run.recorder.reconnects += 1;
                        self.run
                            .recorder
                            .error(&format!("session closed: {reason:?}"));
                    }
                }
                // The load sends no READs, and opens no marks.
                Event::Read { .. } | Event::Marked { .. } => {}
            }
        }
        Ok(())
    }

    fn done(
        &mut self,
        session: SessionHandle,
        call: CallId,
        outcome: pmnet_client::Outcome,
    ) -> anyhow::Result<()> {
        let Some(slot) = self
            .slot_of
            .get(&session)
            .map(|index| &mut self.slots[*index])
        else {
            return Ok(());
        };
        let Some(pending) = slot.pending.remove(&call) else {
            return Ok(());
        };
        let (outcome, text) = match outcome {
            pmnet_client::Outcome::Committed { .. } => (Outcome::Ok, Some("OK".to_owned())),
            pmnet_client::Outcome::Reply(bytes) => match resp::parse(&bytes) {
                Ok(Some((reply, _))) => judge(&reply),
                // The database executed the operation, but its reply cannot be parsed.
                _ => (
                    Outcome::Unknown,
                    Some("a reply that is not RESP".to_owned()),
                ),
            },
            pmnet_client::Outcome::Failed(why) => (Outcome::Failed, Some(why.to_owned())),
            pmnet_client::Outcome::Unknown => {
                (Outcome::Unknown, Some("outcome unknown".to_owned()))
            }
        };
        if outcome != Outcome::Ok {
            self.run.recorder.error(text.as_deref().unwrap_or_default());
        }
        if outcome == Outcome::Unknown && !slot.leaving {
            // A new logical client takes the slot, as in the driver for RESP.
            slot.leaving = true;
            self.endpoint.end(session, Time(pending.deadline_ns));
        }
        let client = slot.client;
        self.run.ended(client, pending, outcome, text)
    }

    /// Starts the end of all sessions, without waiting. A session that is not ended properly
    /// expires.
    fn leave(&mut self, now: u64) -> anyhow::Result<()> {
        for session in self.slot_of.keys() {
            self.endpoint.end(*session, Time(now));
        }
        self.endpoint
            .flush(Time(now_ns()))
            .context("cannot send to the device")
    }
}
