//! [`Upstream`] on the real thing: the client endpoint on its UDP socket.

use std::io;

use bytes::Bytes;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use pmnet_client::{ClientConfig, Closed, Endpoint, SessionHandle};

use crate::upstream::{CallId, Event, Outcome, Refused, SessionId, Time, Upstream};

/// How long the end of a session may take to reach the devices, in nanoseconds. A session whose end
/// is lost expires there.
const END_TIMEOUT: Time = 5_000_000_000;

/// The endpoint could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("cannot open a UDP socket towards the device at {head}: {source}")]
pub struct EndpointError {
    head: std::net::SocketAddr,
    source: io::Error,
}

/// An endpoint for a [`crate::Front`], towards the head device of the configuration.
///
/// # Errors
/// [`EndpointError`], if the operating system has no socket for it.
pub fn bind(config: ClientConfig) -> Result<Endpoint, EndpointError> {
    let head = config.head;
    Endpoint::bind(config).map_err(|source| EndpointError { head, source })
}

fn time(nanos: Time) -> pmnet_client::Time {
    pmnet_client::Time(nanos)
}

fn refused(refused: pmnet_client::Refused) -> Refused {
    match refused {
        pmnet_client::Refused::Busy => Refused::Busy,
        pmnet_client::Refused::TooLarge => Refused::TooLarge,
        pmnet_client::Refused::Closed => Refused::Closed,
        pmnet_client::Refused::Sessions => Refused::Sessions,
    }
}

fn event(event: pmnet_client::Event) -> Event {
    match event {
        pmnet_client::Event::Done {
            session,
            call,
            outcome,
        } => Event::Done {
            session: SessionId(session.0),
            call: CallId(call.0),
            outcome: match outcome {
                pmnet_client::Outcome::Committed { copies } => Outcome::Committed { copies },
                pmnet_client::Outcome::Reply(reply) => Outcome::Reply(reply),
                pmnet_client::Outcome::Failed(why) => Outcome::Failed(why.to_owned()),
                pmnet_client::Outcome::Unknown => Outcome::Unknown,
            },
        },
        pmnet_client::Event::SessionClosed { session, reason } => Event::SessionClosed {
            session: SessionId(session.0),
            data_loss: matches!(reason, Closed::DataLoss { .. }),
            reason: match reason {
                Closed::Ended => "it was ended".to_owned(),
                Closed::Refused => "the device does not know it any more".to_owned(),
                Closed::DataLoss { from, to } => {
                    format!(
                        "DATA_LOSS: acknowledged updates {from} to {to} of this session are gone"
                    )
                }
                Closed::TooFewCopies { have } => {
                    format!("the chain keeps {have} copies, which is fewer than demanded")
                }
            },
        },
    }
}

impl Upstream for Endpoint {
    fn open(&mut self, now: Time) -> Result<SessionId, Refused> {
        Endpoint::open(self, time(now))
            .map(|session| SessionId(session.0))
            .map_err(refused)
    }

    fn update(
        &mut self,
        _now: Time,
        session: SessionId,
        payload: Bytes,
        key_hash: u64,
        deadline: Time,
    ) -> Result<CallId, Refused> {
        Endpoint::update(
            self,
            SessionHandle(session.0),
            payload,
            key_hash,
            time(deadline),
        )
        .map(|call| CallId(call.0))
        .map_err(refused)
    }

    fn bypass(
        &mut self,
        _now: Time,
        session: SessionId,
        payload: Bytes,
        key_hash: u64,
        read_only: bool,
        deadline: Time,
    ) -> Result<CallId, Refused> {
        Endpoint::bypass(
            self,
            SessionHandle(session.0),
            payload,
            key_hash,
            read_only,
            time(deadline),
        )
        .map(|call| CallId(call.0))
        .map_err(refused)
    }

    fn end(&mut self, now: Time, session: SessionId) {
        Endpoint::end(
            self,
            SessionHandle(session.0),
            time(now.saturating_add(END_TIMEOUT)),
        );
    }

    fn poll_event(&mut self) -> Option<Event> {
        Endpoint::poll_event(self).map(event)
    }

    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(&mut SourceFd(&self.raw_fd()), token, Interest::READABLE)
    }

    fn receive(&mut self, now: Time) -> bool {
        match Endpoint::receive(self, time(now)) {
            Ok((_, more)) => more,
            Err(error) => {
                // The next datagram is a new event; what is missing is sent again.
                tracing::warn!(%error, "receiving from the device");
                false
            }
        }
    }

    fn flush(&mut self, now: Time) {
        if let Err(error) = Endpoint::flush(self, time(now)) {
            // What was not sent is sent again when its timer is due.
            tracing::warn!(%error, "sending to the device");
        }
    }

    fn next_timeout(&self) -> Option<Time> {
        Endpoint::next_timeout(self).map(|time| time.0)
    }
}
