//! One session with blocking calls (Table I of the PMNet paper, see protocol.md §8: start, update, bypass, end).

use crate::node::ClientNode;
use bytes::Bytes;
use pmnet_proto::Time;
use pmnet_proto::client::{CallId, ClientConfig, Closed, Event, Outcome, Refused, SessionHandle};
use pmnet_udp::Clock;
use std::io;
use std::time::Duration;

const SOCKET: mio::Token = mio::Token(0);

/// Why a call gave no result.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The socket failed.
    #[error("the socket failed: {0}")]
    Io(#[from] io::Error),
    /// The call was not accepted.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// It has no effect and never will.
    #[error("failed: {0}")]
    Failed(&'static str),
    /// The deadline passed: it takes effect at most once, or not at all.
    #[error("outcome unknown: the deadline passed; it may or may not take effect, at most once")]
    Unknown,
}

/// One session over a socket of its own.
#[derive(Debug)]
pub struct Session {
    endpoint: ClientNode,
    session: SessionHandle,
    clock: Clock,
    poll: mio::Poll,
    events: mio::Events,
    deadline: Duration,
    closed: Option<Closed>,
}

impl Session {
    /// Opens a session; every later call ends within `deadline`.
    ///
    /// # Errors
    /// If the socket cannot be opened. The first call shows whether the device is there.
    pub fn start(config: ClientConfig, deadline: Duration) -> Result<Session, SessionError> {
        let clock = Clock::start();
        let mut endpoint = ClientNode::bind(config)?;
        let session = endpoint.open(clock.now())?;
        let poll = mio::Poll::new()?;
        poll.registry().register(
            &mut mio::unix::SourceFd(&endpoint.raw_fd()),
            SOCKET,
            mio::Interest::READABLE,
        )?;
        let events = mio::Events::with_capacity(8);
        Ok(Session {
            endpoint,
            session,
            clock,
            poll,
            events,
            deadline,
            closed: None,
        })
    }

    fn until(&self) -> Time {
        self.clock.now() + u64::try_from(self.deadline.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Sends an update; returns once the chain holds it, with the number of devices that do
    /// (0: the server itself, because the log was full).
    ///
    /// # Errors
    /// [`SessionError`].
    pub fn update(&mut self, payload: Bytes, key_hash: u64) -> Result<u8, SessionError> {
        let call = self
            .endpoint
            .update(self.session, payload, key_hash, self.until())?;
        match self.wait(call)? {
            Outcome::Committed { copies } => Ok(copies),
            Outcome::Failed(reason) => Err(SessionError::Failed(reason)),
            _ => Err(SessionError::Unknown),
        }
    }

    /// Sends a bypass; returns the server's reply.
    ///
    /// # Errors
    /// [`SessionError`].
    pub fn bypass(
        &mut self,
        payload: Bytes,
        key_hash: u64,
        read_only: bool,
    ) -> Result<Bytes, SessionError> {
        let call =
            self.endpoint
                .bypass(self.session, payload, key_hash, read_only, self.until())?;
        match self.wait(call)? {
            Outcome::Reply(reply) => Ok(reply),
            Outcome::Failed(reason) => Err(SessionError::Failed(reason)),
            _ => Err(SessionError::Unknown),
        }
    }

    /// Ends the session.
    ///
    /// # Errors
    /// If the socket failed. A device that is not there lets the session expire.
    pub fn end(mut self) -> Result<(), SessionError> {
        self.endpoint.end(self.session, self.until());
        while self.closed.is_none() {
            self.turn()?;
            while let Some(event) = self.endpoint.poll_event() {
                if let Event::SessionClosed { reason, .. } = event {
                    self.closed = Some(reason);
                }
            }
        }
        Ok(())
    }

    fn wait(&mut self, call: CallId) -> Result<Outcome, SessionError> {
        loop {
            self.turn()?;
            let mut found = None;
            while let Some(event) = self.endpoint.poll_event() {
                match event {
                    Event::Done {
                        call: done,
                        outcome,
                        ..
                    } if done == call => found = Some(outcome),
                    Event::SessionClosed { reason, .. } => self.closed = Some(reason),
                    _ => {}
                }
            }
            if let Some(outcome) = found {
                return Ok(outcome);
            }
        }
    }

    fn turn(&mut self) -> Result<(), SessionError> {
        let now = self.clock.now();
        self.endpoint.flush(now)?;
        let (received, _) = self.endpoint.receive(now)?;
        if received == 0 {
            let timeout = self
                .endpoint
                .next_timeout()
                .map(|at| Duration::from_nanos(at.since(now)));
            match self
                .poll
                .poll(&mut self.events, Some(timeout.unwrap_or(self.deadline)))
            {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    return Err(error.into());
                }
                _ => {}
            }
            self.endpoint.receive(self.clock.now())?;
        }
        Ok(())
    }
}
