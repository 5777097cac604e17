//! The different ways in which the clients send and receive datagrams.

use std::time::Instant;

use clap::ValueEnum;
use pmnet_wire::DATAGRAM_BYTES_MAX;
use serde::Serialize;

/// How the clients send and receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ClientIo {
    /// AF_XDP: the clients bypass the kernel's network stack, and receive without a system call.
    AfXdp,
    /// A UDP socket for each client, as in most programs. Each round trip makes two system calls and passes the network
    /// stack.
    Socket,
    /// The client library for Rust, as a program uses it. This library is measured in turn with `libpmnet`.
    Session,
    /// The client library through libpmnet's C interface, in a program that is compiled first.
    Libpmnet,
}

impl ClientIo {
    /// Returns the name that titles use.
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

    /// Returns whether the clients use a client library. Such clients are measured in turn with each other.
    #[must_use]
    pub const fn is_program(self) -> bool {
        matches!(self, ClientIo::Session | ClientIo::Libpmnet)
    }
}

/// A buffer that is one byte longer than any valid datagram. A datagram that fills the buffer is too long.
pub type Buffer = [u8; DATAGRAM_BYTES_MAX + 1];

/// A received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Number of the client that receives the datagram.
    pub client: usize,
    /// Length of the datagram in the buffer, in bytes.
    pub length: usize,
    /// The time at which this program received the datagram.
    pub at: Instant,
}

/// Sends and receives datagrams for clients that are numbered from 0. No method waits.
pub trait Carrier {
    /// Prepares datagrams before the measured time begins. The client sends the prepared datagrams with its next
    /// [`send`](Carrier::send).
    fn prepare(&mut self, client: usize, datagrams: &[Vec<u8>]) -> anyhow::Result<()>;

    /// Sends datagrams; returns the number of datagrams that could not be sent now.
    fn send(&mut self, client: usize, datagrams: &[Vec<u8>]) -> anyhow::Result<u64>;

    /// Returns a received datagram; `None` if none has arrived.
    fn receive(&mut self, buffer: &mut Buffer) -> anyhow::Result<Option<Arrived>>;

    /// Notes that the last datagram of this client was not the end of an answer, so that the client needs
    /// further datagrams.
    fn unfinished(&mut self, client: usize);
}
