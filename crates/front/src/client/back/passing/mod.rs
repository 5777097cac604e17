//! A command that passes through depends on the state of a real connection, so it goes to the store on the client's own
//! connection.
//!
//! These commands pass through: WATCH and the commands after it, blocking commands, WAIT, subscriptions, MONITOR,
//! SCRIPT KILL, and commands of newer servers and modules that keep state in a connection. After a command of the last
//! kind, all commands of the client that only the store knows use the client's own connection. Only one command passes
//! at a time. Later commands of this client wait, and the reply of the passed command keeps its place in the order of
//! replies.
//!
//! The path of a passed command, from file to file:
//!
//! ```text
//! begin.rs      start, pass_command      which effect it will have, whether it needs the mark; its slot among the replies
//!   │ Stage::Address                     (between MULTI and EXEC, and for a RESP2 subscriber: directly to send.rs)
//! advance.rs    advance, done            asks the server for the store's name: Address → Mark, or Kill
//! mark.rs       Stage::Mark              waits for the front's mark if it may change the store
//!   │ Stage::Barrier                     everything acknowledged before is applied when this call has its answer
//! advance.rs    check_store              Stage::Connection: the connection must lead to the store that the answer names
//! send.rs       send_passed, send_kill   into the outbox of `Direct` (direct.rs), as the client's user (Stage::Login)
//!   │ Stage::Sent
//! receive.rs    receive → value          answers to the front, messages to the client (subscription.rs, fence.rs), the reply
//! confirm.rs    Stage::Confirm           the server confirms the reply if the store could lose it
//! end.rs        give_up, fail, lost      without a reply: an error, or the end of the client's connection
//! ```
//!
//! At any stage the command's time can be over (deadline.rs), the mark can be lost (mark.rs), or the
//! connection can be lost (end.rs). A store that is no Redis serves WATCH and blocking commands by calls
//! instead: `Stage::Embedded` and `Stage::Rest` (embedded.rs).
//!
//! Invariants: before each command a barrier travels through the log, so that all acknowledged writes are applied when
//! the store gets the command (protocol.md §2 rule 8). Two kinds of commands cannot depend on these writes, and go
//! without a barrier: commands between MULTI and EXEC, and commands of a RESP2 client that is subscribed. If the
//! connection to the store is lost with state on it (a watch, a subscription), the front closes the client's connection
//! too. If a plain Redis fails, its clients lose their connections, too.

mod advance;
mod begin;
mod confirm;
mod deadline;
mod direct;
pub(in crate::client) mod embedded;
mod end;
mod fence;
mod mark;
mod passage;
mod receive;
mod send;
mod subscription;

use std::net::SocketAddr;
use std::sync::Arc;

use pmnet_tls::ClientTls;

use crate::client::mode::Mode;
use crate::shell::socket::Unwritten;
use crate::store::StoreAddress;
use crate::upstream::Time;
use crate::users::Credentials;
pub use deadline::HALF_CLOSED_TIMEOUT;
use direct::Direct;
use embedded::Watching;
use fence::Published;
use passage::{Effect, Marks, Passage, Stage};

/// A client's command that is being passed, and the client's own connection to the store.
#[derive(Default)]
pub(in crate::client) struct Passing {
    passage: Option<Passage>,
    direct: Option<Direct>,
    /// Credentials of the client. The next connection to the store logs in with these credentials for the client's
    /// commands.
    acts_as: Vec<Arc<Credentials>>,
    /// Number of connections to the store so far.
    directs: u64,
    /// Number of the next sentinel.
    sentinels: u64,
    /// Whether a command that may have changed the store was given up without a reply.
    unanswered: bool,
    /// Whether a script was killed.
    killed: bool,
    /// Keys that the client watches at a store that is no Redis.
    watching: Option<Watching>,
    /// The PUBLISH of a subscribed client, if the store sends the reply before the message.
    published: Option<Published>,
}

impl Passing {
    /// Prepares a connection to the store. The front then opens the socket.
    fn new_direct(&mut self, store: &StoreAddress, now: Time) -> &mut Direct {
        self.directs += 1;
        let direct = Direct::new(store, self.directs, now, self.acts_as.clone());
        self.direct.insert(direct)
    }

    /// Sets the credentials for the client's commands, tried in this order on connections to the store.
    /// If the list is empty, the front's own credentials are used.
    pub(in crate::client) fn set_acts_as(&mut self, acts_as: Vec<Arc<Credentials>>) {
        if let Some(direct) = &mut self.direct {
            direct.set_client(&acts_as);
        }
        self.acts_as = acts_as;
    }

    /// Returns the address of the store for the client's own connection, and the connection's number.
    pub(in crate::client) fn target(&self) -> Option<(u64, SocketAddr)> {
        let direct = self.direct.as_ref()?;
        Some((direct.serial, direct.line.address))
    }

    /// Returns the TLS settings of the client's own connection to the store, if it uses TLS.
    pub(in crate::client) fn tls(&self) -> Option<&ClientTls> {
        self.direct.as_ref()?.tls.as_ref()
    }

    /// Returns the bytes that must be written to the store.
    pub(in crate::client) fn unwritten(&self) -> &[u8] {
        let direct = self.direct.as_ref();
        direct
            .map(|direct| direct.line.unwritten())
            .unwrap_or_default()
    }

    /// Notes that `count` bytes were written to the store.
    pub(in crate::client) fn wrote(&mut self, count: usize) {
        if let Some(direct) = &mut self.direct {
            direct.used = true;
            direct.line.wrote(count);
        }
    }

    /// Whether a command is being passed.
    pub(in crate::client) fn is_under_way(&self) -> bool {
        self.passage.is_some()
    }

    /// Returns the stage of the command that is being passed.
    fn stage(&self) -> Option<&Stage> {
        self.passage.as_ref().map(|passage| &passage.stage)
    }

    /// Whether the store has the command, and has not answered it.
    fn is_sent(&self) -> bool {
        matches!(self.stage(), Some(Stage::Sent))
    }

    /// Ends the connection to the store, with all the state on it.
    pub(in crate::client) fn drop_direct(&mut self) {
        self.direct = None;
    }

    /// Returns the client's number in the store's Redis while the client is blocked in that Redis.
    pub(in crate::client) fn blocked_as(&self) -> Option<i64> {
        let blocked = self.passage.as_ref()?.blocks && self.is_sent();
        let direct = self.direct.as_ref().filter(|_| blocked)?;
        direct.found.as_ref()?.client
    }

    /// Returns the numbers of channels, patterns and shard channels to which the client is subscribed.
    pub(in crate::client) fn subscribed(&self) -> [u64; 3] {
        self.direct.as_ref().map_or([0; 3], |direct| {
            let channels = direct.subscribed.saturating_sub(direct.patterns);
            [channels, direct.patterns, direct.subscribed_sharded]
        })
    }

    /// Returns the number of the client's subscriptions.
    pub(in crate::client) fn subscriptions(&self) -> u64 {
        self.direct.as_ref().map_or(0, |direct| {
            direct.subscribed.saturating_add(direct.subscribed_sharded)
        })
    }

    /// Returns the number of the change of subscriptions that is under way. Changes are numbered from the
    /// beginning of the client's connection.
    pub(in crate::client) fn changes_subscriptions(&self) -> Option<u64> {
        let passage = self.passage.as_ref()?;
        let changes = passage.is_about_subscriptions() && passage.name != "PING";
        changes.then_some(self.sentinels)
    }

    /// Whether messages to the client come before the reply to the command that is being passed.
    pub(in crate::client) fn lets_messages_pass(&self) -> bool {
        let lets = |passage: &Passage| passage.blocks || passage.is_about_subscriptions();
        self.passage.as_ref().is_some_and(lets)
    }

    /// Whether this client waits for something that may never come.
    pub(in crate::client) fn endless(&self, mode: &Mode) -> bool {
        let monitors = matches!(&self.passage, Some(passage) if passage.effect == Effect::Monitor);
        self.lets_messages_pass() || monitors || mode.monitors() || self.subscriptions() > 0
    }

    /// Whether the connection to the store has state that a new connection would not have.
    fn stateful(&self, mode: &Mode) -> bool {
        mode.monitors() || mode.watches() || self.subscriptions() > 0 || self.has_state()
    }

    /// Whether the store may keep connection state that pmnet does not know.
    pub(in crate::client) fn has_state(&self) -> bool {
        self.direct.as_ref().is_some_and(|direct| direct.has_state)
    }

    /// Gives up the passed command. The store may still execute the command.
    pub(in crate::client) fn drop_passage(&mut self) -> Option<Passage> {
        let passage = self.passage.take()?;
        self.unanswered |= passage.marks == Marks::Yes && matches!(passage.stage, Stage::Sent);
        Some(passage)
    }

    /// Returns whether a script was killed since the last call of this function.
    pub(in crate::client) fn take_killed(&mut self) -> bool {
        std::mem::take(&mut self.killed)
    }

    /// Returns whether a command was given up without an answer since the last call of this function.
    pub(in crate::client) fn take_unanswered(&mut self) -> bool {
        std::mem::take(&mut self.unanswered)
    }
}
