//! The identity and the settings of a client, and the commands that were taken from it.

use std::net::SocketAddr;

use bytes::Bytes;
use pmnet_wire::command::Protocol;

use super::back::calls::Purpose;
use super::end::End;
use super::hold::Hold;
use super::mode::Mode;
use super::output::Wishes;
use super::replies::{Replies, Slot};
use super::settings::Settings;
use super::times::Times;
use super::{REPLY_BYTES_EXPECTED, Shared};
use crate::upstream::CallId;

/// The commands that were taken from a client and have no reply yet.
#[derive(Default)]
pub(super) struct Pending {
    /// The replies to the taken commands, in their order.
    pub(super) replies: Replies,
    /// The deadlines of the taken commands.
    pub(super) times: Times,
    /// The reason why the next command is not taken yet.
    pub(super) hold: Hold,
}

/// A client without its connections.
pub(super) struct Face {
    /// Answer to CLIENT ID.
    pub(super) id: u64,
    /// The client's address.
    pub(super) peer: String,
    pub(super) settings: Settings,
    pub(super) mode: Mode,
    pub(super) pending: Pending,
    pub(super) end: End,
    pub(super) wishes: Wishes,
}

impl Pending {
    /// Gives a submitted call its place among the replies, or puts the error there if it was not submitted.
    /// `bytes`: length of the payload.
    pub(super) fn expect(
        &mut self,
        submitted: Result<CallId, Bytes>,
        purpose: Purpose,
        bytes: usize,
    ) {
        match submitted {
            Ok(call) => {
                let bytes = bytes + purpose.replies_expected() * REPLY_BYTES_EXPECTED;
                self.replies.await_call(call, purpose, bytes);
            }
            Err(error) => self.replies.push(purpose.failed(&error)),
        }
    }

    /// Gives a submitted call its place like [`Pending::expect`], and makes the next command wait for the outcome, on
    /// which the command depends.
    pub(super) fn expect_first(
        &mut self,
        submitted: Result<CallId, Bytes>,
        purpose: Purpose,
        bytes: usize,
    ) {
        if submitted.is_ok() {
            self.hold.for_outcome();
        }
        self.expect(submitted, purpose, bytes);
    }

    /// Gives this reply to the command that passes through.
    pub(super) fn settle(&mut self, reply: Bytes) {
        let passage = |slot: &Slot| matches!(slot, Slot::Passage);
        if let Some(index) = self.replies.slots.iter().position(passage) {
            self.replies.fill(index, reply);
        }
        self.replies.drain();
    }
}

impl Face {
    pub(super) fn new(id: u64, peer: SocketAddr) -> Face {
        Face {
            id,
            peer: peer.to_string(),
            settings: Settings::default(),
            mode: Mode::Ordinary,
            pending: Pending::default(),
            end: End::default(),
            wishes: Wishes::default(),
        }
    }

    /// Returns the connection's number in the form in which clients see it.
    pub(super) fn shown_id(&self) -> i64 {
        i64::try_from(self.id).unwrap_or(i64::MAX)
    }

    /// Returns the reply to HELLO in the present protocol.
    pub(super) fn hello_reply(&self, shared: &Shared) -> Bytes {
        shared.about.reply(self.protocol(), self.shown_id())
    }

    /// Carries out HELLO except for its login. Returns the reply.
    pub(super) fn greet(
        &mut self,
        protocol: Protocol,
        name: Option<Bytes>,
        shared: &Shared,
    ) -> Bytes {
        if let Some(name) = name {
            self.settings.name = name;
        }
        self.settings.selected.protocol = protocol;
        self.hello_reply(shared)
    }

    /// Returns the RESP version of the client's replies.
    pub(super) fn protocol(&self) -> Protocol {
        self.settings.selected.protocol
    }
}
