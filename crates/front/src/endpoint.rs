//! The production implementation of [`Upstream`]: the client endpoint on its UDP socket.

use std::io;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use pmnet_client::{ClientConfig, ClientNode};
use pmnet_wire::FrontId;

use crate::upstream::{
    Call, CallId, Calls, Event, Refused, SessionHandle, Submit, Time, Upstream, UpstreamCounters,
};

/// The longest time that the end of a session may take to reach the devices, in nanoseconds. If the message about the
/// end of the session is lost, the session expires at the devices.
const END_TIMEOUT: Time = 5_000_000_000;

/// The endpoint could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("cannot open a UDP socket towards the device at {head}: {source}")]
pub struct EndpointError {
    head: std::net::SocketAddr,
    source: io::Error,
}

/// Makes an endpoint for a [`crate::Front`], which sends to the head device of the configuration.
///
/// # Errors
/// [`EndpointError`], if the operating system has no socket for the endpoint.
pub fn bind(config: ClientConfig) -> Result<ClientNode, EndpointError> {
    let head = config.head;
    ClientNode::bind(config).map_err(|source| EndpointError { head, source })
}

fn time(nanos: Time) -> pmnet_client::Time {
    pmnet_client::Time(nanos)
}

impl Calls for ClientNode {
    fn open(&mut self, now: Time) -> Result<SessionHandle, Refused> {
        ClientNode::open(self, time(now))
    }

    fn submit(
        &mut self,
        _: Time,
        session: SessionHandle,
        call: Call<'_>,
    ) -> Result<CallId, Refused> {
        let (payload, key_hash) = (call.payload.clone(), call.key_hash);
        let deadline = time(call.deadline);
        match call.how {
            Submit::Update => self.update(session, payload, key_hash, deadline),
            Submit::Bypass { read_only } => {
                self.bypass(session, payload, key_hash, read_only, deadline)
            }
        }
    }

    fn read(
        &mut self,
        now: Time,
        hashes: &[u64],
        replicas: bool,
        deadline: Time,
    ) -> Result<CallId, Refused> {
        ClientNode::read(self, time(now), hashes, replicas, time(deadline))
    }
}

impl Upstream for ClientNode {
    fn open_mark(&mut self, now: Time) -> Result<SessionHandle, Refused> {
        ClientNode::open_mark(self, time(now))
    }

    fn end(&mut self, now: Time, session: SessionHandle) {
        ClientNode::end(self, session, time(now.saturating_add(END_TIMEOUT)));
    }

    fn end_reads(&mut self, now: Time) {
        ClientNode::end_reads(self, time(now));
    }

    fn poll_event(&mut self) -> Option<Event> {
        ClientNode::poll_event(self)
    }

    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(&mut SourceFd(&self.raw_fd()), token, Interest::READABLE)
    }

    fn take_other_socket(&mut self) -> bool {
        ClientNode::take_other_socket(self)
    }

    fn receive(&mut self, now: Time) -> bool {
        match ClientNode::receive(self, time(now)) {
            Ok((_, more)) => more,
            Err(error) => {
                // The next datagram causes a new event, and lost packets are sent again.
                tracing::warn!(%error, "PM3206 receiving from the device");
                false
            }
        }
    }

    fn flush(&mut self, now: Time) {
        if let Err(error) = ClientNode::flush(self, time(now)) {
            // Unsent packets are sent again when their timer is due.
            tracing::warn!(%error, "PM3207 sending to the device");
        }
    }

    fn next_timeout(&self) -> Option<Time> {
        ClientNode::next_timeout(self).map(|time| time.0)
    }

    fn counters(&self) -> UpstreamCounters {
        UpstreamCounters {
            client: ClientNode::counters(self),
            socket: self.socket_counters(),
            link: self.link_counters().unwrap_or_default(),
        }
    }

    fn key(&self) -> Option<FrontId> {
        self.config().keys.map(|key| key.id())
    }

    fn peer(&self) -> String {
        let config = self.config();
        let heads: Vec<String> = config.heads().map(|head| head.to_string()).collect();
        format!(
            "the device at {} (shard {})",
            heads.join(" or "),
            config.shard
        )
    }
}
