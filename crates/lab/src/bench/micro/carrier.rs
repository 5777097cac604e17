//! How the datagrams of clients are sent and received.

use std::time::Instant;

use clap::ValueEnum;
use pmnet_wire::DATAGRAM_BYTES_MAX;
use serde::Serialize;

/// The clients' means to send and receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ClientIo {
    /// AF_XDP: bypasses the kernel's network stack; receiving takes no system call.
    AfXdp,
    /// A UDP socket for each client, as in most programs: each round trip has two system calls and
    /// passes the stack.
    Socket,
    /// The client library for Rust, as programs of one's own use it; measured in turn with `libpmnet`.
    Session,
    /// The same library through libpmnet's interface in C, from a program that is compiled first.
    Libpmnet,
}

impl ClientIo {
    /// Returns the name for titles.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            ClientIo::AfXdp => "AF_XDP client",
            ClientIo::Socket => "socket client",
            ClientIo::Session => "Rust client",
            ClientIo::Libpmnet => "libpmnet client",
        }
    }

    /// Returns a sentence that describes this kind of client.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            ClientIo::AfXdp => {
                "past the kernel's stack, copy mode, one socket for all clients; the round trip is from before the \
                 submission to when the descriptor is seen. All systems have the same XDP program at the client's \
                 end, the client-server ones no other"
            }
            ClientIo::Socket => {
                "UDP sockets: two system calls and the stack below them are in every round trip. The client-server \
                 systems have no XDP program at all"
            }
            ClientIo::Session => {
                "pmnet_client::Session, one for each client: an update is started, and the session is asked for its end \
                 without waiting, again and again"
            }
            ClientIo::Libpmnet => {
                "the same calls from a program in C, through the exported functions of libpmnet.so; of Rust: so many \
                 times the p50 of the Rust client in the same round (median over the rounds)"
            }
        }
    }

    /// Whether the clients are those of a program. Such clients are measured in turn with each other.
    #[must_use]
    pub const fn is_program(self) -> bool {
        matches!(self, ClientIo::Session | ClientIo::Libpmnet)
    }
}

/// A buffer for any datagram. A datagram that fills the buffer is too long.
pub type Buffer = [u8; DATAGRAM_BYTES_MAX + 1];

/// A received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// The client that receives the datagram.
    pub client: usize,
    /// Length of the datagram in the buffer, in bytes.
    pub length: usize,
    /// The time at which this program saw it.
    pub at: Instant,
}

/// Sends and receives datagrams for clients that are numbered from 0. No method waits.
pub trait Carrier {
    /// Prepares datagrams before the measured time begins. The next [`send`](Carrier::send) of this
    /// client sends these datagrams.
    fn prepare(&mut self, client: usize, datagrams: &[Vec<u8>]) -> anyhow::Result<()>;

    /// Sends datagrams; returns the number of datagrams that could not be sent now.
    fn send(&mut self, client: usize, datagrams: &[Vec<u8>]) -> anyhow::Result<u64>;

    /// Returns a received datagram, if one has arrived.
    fn receive(&mut self, buffer: &mut Buffer) -> anyhow::Result<Option<Arrived>>;

    /// Notes that the client waits for datagrams that follow its last received datagram.
    fn unfinished(&mut self, client: usize);
}
