//! The driver for RESP endpoints: one thread with one poll for all connections.

use std::sync::atomic::AtomicBool;

use mio::{Interest, Token};

use super::connection::{Broken, Connection, Link, READ_BYTES};
use super::generator::Lane;
use super::history::Outcome;
use super::options::{Hooks, Options};
use super::run::Run;
use super::summary::Summary;
use super::wait::Waiter;
use crate::clock::now_ns;
use crate::resp::{Reply, write_command};

/// Time after which an attempt to connect is given up, in nanoseconds.
const CONNECT_NS_MAX: u64 = 1_000_000_000;
/// Time after which the run is given up if no connection could be made, in nanoseconds.
const NOBODY_NS_MAX: u64 = 3_000_000_000;

/// Runs the load. The server is at `address` of the options.
pub fn run(options: &Options, hooks: Hooks<'_>, stop: &AtomicBool) -> anyhow::Result<Summary> {
    let mut run = Run::new(options, hooks);
    let connections = (0..options.clients)
        .map(|_| Connection::new(run.new_client()))
        .collect();
    let mut driver = Driver {
        run,
        waiter: Waiter::new(options.spin)?,
        connections,
        scratch: vec![0; READ_BYTES],
        round_robin: 0,
        ever_up: false,
    };
    driver.main(stop)?;
    Ok(driver.run.finish())
}

struct Driver<'a, 'h> {
    run: Run<'a, 'h>,
    waiter: Waiter,
    connections: Vec<Connection>,
    scratch: Vec<u8>,
    round_robin: usize,
    ever_up: bool,
}

impl Driver<'_, '_> {
    fn main(&mut self, stop: &AtomicBool) -> anyhow::Result<()> {
        let mut ready = Vec::new();
        loop {
            let now = now_ns();
            let goes_on = self.run.goes_on(now, stop);
            if !goes_on && self.connections.iter().all(|c| c.pending.is_empty()) {
                return Ok(());
            }
            if self.run.tick(now) {
                self.tick(now)?;
            }
            if goes_on {
                self.issue(now)?;
            }
            self.waiter.wait(self.run.next_tick_ns(), &mut ready)?;
            for token in &ready {
                self.ready(token.0)?;
            }
        }
    }

    /// Ends operations and connects that are over their deadlines, and reconnects.
    fn tick(&mut self, now: u64) -> anyhow::Result<()> {
        for index in 0..self.connections.len() {
            let connection = &mut self.connections[index];
            let overdue = connection
                .pending
                .front()
                .is_some_and(|pending| now >= pending.deadline_ns);
            let broken = match &connection.link {
                _ if overdue => Some("no reply before the deadline".to_owned()),
                Link::Connecting { deadline_ns, .. } if now >= *deadline_ns => {
                    Some("connect: timed out".to_owned())
                }
                Link::Down { retry_ns } if now >= *retry_ns && !self.run.is_over() => {
                    self.connect(index, now).err()
                }
                _ => None,
            };
            if let Some(text) = broken {
                self.broken(index, &text)?;
            }
        }
        if !self.ever_up && now > self.run.start_ns + NOBODY_NS_MAX {
            let text = self
                .run
                .recorder
                .first_error()
                .unwrap_or_else(|| "nothing answered".to_owned());
            anyhow::bail!(
                "no connection to {}: {text}; is something listening there?",
                self.run.options.address
            );
        }
        Ok(())
    }

    fn connect(&mut self, index: usize, now: u64) -> Result<(), Broken> {
        let connection = &mut self.connections[index];
        connection.connect(self.run.options.address, now + CONNECT_NS_MAX)?;
        if let Link::Connecting { stream, .. } = &mut connection.link {
            self.waiter
                .registry()
                .register(
                    stream,
                    Token(index),
                    Interest::READABLE | Interest::WRITABLE,
                )
                .map_err(|error| format!("connect: {error}"))?;
        }
        Ok(())
    }

    /// Handles a socket that is ready.
    fn ready(&mut self, index: usize) -> anyhow::Result<()> {
        let connection = &mut self.connections[index];
        let outcome = connection
            .finish_connect()
            .and_then(|()| connection.flush());
        if let Err(text) = outcome {
            return self.broken(index, &text);
        }
        self.ever_up |= connection.is_up();
        loop {
            match self.connections[index].fill(&mut self.scratch) {
                Err(text) => {
                    // Replies that arrived before the connection closed still count.
                    if self.replies(index)? {
                        self.broken(index, &text)?;
                    }
                    return Ok(());
                }
                Ok(more) => {
                    if !self.replies(index)? || !more {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Handles all complete replies. Returns false if the connection was given up during this call.
    fn replies(&mut self, index: usize) -> anyhow::Result<bool> {
        loop {
            let (pending, reply) = match self.connections[index].next_reply() {
                Ok(Some(pair)) => pair,
                Ok(None) => return Ok(true),
                Err(text) => {
                    self.broken(index, &text)?;
                    return Ok(false);
                }
            };
            let (outcome, text) = judge(&reply);
            if outcome != Outcome::Ok {
                self.run.recorder.error(text.as_deref().unwrap_or_default());
            }
            let client = self.connections[index].client;
            self.run.ended(client, pending, outcome, text)?;
            if outcome == Outcome::Unknown {
                self.broken(index, "outcome unknown")?;
                return Ok(false);
            }
        }
    }

    /// Gives up a connection. All operations in flight get an unknown outcome.
    fn broken(&mut self, index: usize, text: &str) -> anyhow::Result<()> {
        let connection = &mut self.connections[index];
        let was_used = connection.is_up();
        let client = connection.client;
        let unknown = text == "outcome unknown";
        let pending = connection.give_up(now_ns());
        if unknown || !pending.is_empty() {
            // The outcome of this client's last operation is unknown. From now on the connection counts as a new
            // logical client. So the statement "its operations took effect in order" holds for each client.
            connection.client = self.run.new_client();
            connection.lane = Lane::default();
        }
        if was_used {
            self.run.recorder.reconnects += 1;
        }
        self.run.recorder.error(text);
        for pending in pending {
            self.run
                .ended(client, pending, Outcome::Unknown, Some(text.to_owned()))?;
        }
        Ok(())
    }

    /// Sends all operations that are due.
    fn issue(&mut self, now: u64) -> anyhow::Result<()> {
        if self.run.options.rate.is_some() {
            return self.issue_open(now);
        }
        for index in 0..self.connections.len() {
            let connection = &self.connections[index];
            if connection.is_up() && connection.pending.is_empty() {
                for _ in 0..self.run.options.pipeline {
                    self.issue_one(index, now);
                }
                self.flush(index)?;
            }
        }
        Ok(())
    }

    fn issue_open(&mut self, now: u64) -> anyhow::Result<()> {
        let count = self.connections.len();
        let mut used = Vec::new();
        let mut full = 0;
        while self.run.due_ns() <= now && full < count {
            let index = self.round_robin % count;
            self.round_robin = index + 1;
            let connection = &self.connections[index];
            if !connection.is_up() || connection.pending.len() >= self.run.options.pipeline {
                full += 1;
                continue;
            }
            full = 0;
            self.issue_one(index, self.run.due_ns());
            if !used.contains(&index) {
                used.push(index);
            }
        }
        for index in used {
            self.flush(index)?;
        }
        // Operations that are overdue wait for a reply, and need no timer.
        if self.run.due_ns() > now {
            self.waiter.alarm(self.run.due_ns())?;
        }
        Ok(())
    }

    fn issue_one(&mut self, index: usize, invoke_ns: u64) {
        let Connection {
            client,
            lane,
            out,
            pending,
            ..
        } = &mut self.connections[index];
        let mut issued = self.run.issue(*client, lane, invoke_ns, out);
        let replicas = self.run.options.replicas;
        if replicas > 0 && issued.issued.op.writes() {
            issued.replicas = replicas;
            let limit = self.run.options.deadline.as_millis().to_string();
            write_command(out, &["WAIT", &replicas.to_string(), &limit]);
        }
        pending.push_back(issued);
    }

    fn flush(&mut self, index: usize) -> anyhow::Result<()> {
        match self.connections[index].flush() {
            Ok(()) => Ok(()),
            Err(text) => self.broken(index, &text),
        }
    }
}

/// Returns the outcome of the operation that got this reply, and the error text.
pub fn judge(reply: &Reply) -> (Outcome, Option<String>) {
    match reply {
        Reply::Error(text) if text.contains("outcome unknown") => {
            (Outcome::Unknown, Some(text.clone()))
        }
        Reply::Error(text) => (Outcome::Failed, Some(text.clone())),
        other => (Outcome::Ok, other.text()),
    }
}
