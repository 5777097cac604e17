//! Calls of the event loop that concern one part of a client.

use std::net::SocketAddr;

use bytes::Bytes;
use pmnet_tls::ClientTls;
use pmnet_wire::StoreName;

use super::back::passing::embedded::unblocked;
use super::client_command::Portrait;
use super::{Connection, Shared, Unread};
use crate::tracking::Told;
use crate::upstream::{CallId, ReadAnswer, SessionHandle, Time};

impl Connection {
    /// Returns the number that CLIENT ID gives.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.face.id
    }

    /// Returns the client's address.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.face.peer
    }

    /// Returns the session that this connection uses now at the endpoint.
    #[must_use]
    pub fn session(&self) -> Option<SessionHandle> {
        self.back.session.handle()
    }

    /// Returns the bytes to write to the client.
    #[must_use]
    pub fn unwritten(&self) -> &[u8] {
        self.face.pending.replies.unwritten()
    }

    /// Notes that `count` of the unwritten bytes were written.
    pub fn wrote(&mut self, count: usize) {
        self.face.pending.replies.wrote(count);
    }

    /// Returns the bytes of replies that are held for the client.
    #[must_use]
    pub fn held(&self) -> usize {
        self.face.pending.replies.held()
    }

    /// Whether the client has so many unread replies that no further command may be taken from it.
    #[must_use]
    pub fn congested(&self) -> bool {
        self.face.pending.replies.congested()
    }

    /// Whether the connection is congested and the client has sent more: the client may write all its
    /// commands before it reads any reply.
    #[must_use]
    pub fn held_up(&self) -> bool {
        self.congested() && !self.face.end.ends() && !self.input.starved()
    }

    /// Whether the connection ends with an error, and the client may not have sent everything yet.
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        self.face.end.is_cut_off()
    }

    /// Whether the client waits for something that the store may send much later.
    #[must_use]
    pub fn waits_on_store(&self) -> bool {
        self.back.passing.waits_on_store(&self.face.mode)
    }

    /// Whether the store may be busy, since the client has waited for long (`DOUBT_AFTER`).
    #[must_use]
    pub fn doubts_store(&self, now: Time) -> bool {
        self.face.pending.doubts_store(now)
    }

    /// Whether the client waits for the end of a pause.
    pub(crate) fn is_paused(&self) -> bool {
        self.face.pending.hold.is_paused()
    }

    /// Tells the client about changed keys. `redirected`: the keys are those of another client, which has named this
    /// client in REDIRECT. Returns whether the client takes such messages.
    pub(crate) fn told_of_keys(&mut self, told: &Told, redirected: bool) -> bool {
        let (protocol, passing) = (self.face.protocol(), &self.back.passing);
        let listens = self.tracks.tell(told, redirected, protocol, passing);
        self.hand_out_told();
        listens
    }

    /// Notes that the client named in REDIRECT has disconnected. Returns whether this client gets a message that its
    /// REDIRECT client has disconnected.
    pub(crate) fn told_of_no_redirect(&mut self, redirect: u64) -> bool {
        let protocol = self.face.protocol();
        let listens = self.tracks.tell_of_no_redirect(redirect, protocol);
        self.hand_out_told();
        listens
    }

    /// Returns the properties of this client that other clients can ask for.
    pub(crate) fn portrait(&self) -> Portrait<'_> {
        Portrait {
            face: &self.face,
            life: &self.life,
            passing: &self.back.passing,
            user: self.rights.name(),
        }
    }

    /// Returns the client's number in the store's Redis while the client is blocked in that Redis.
    pub(crate) fn blocked_as(&self) -> Option<i64> {
        self.back.passing.blocked_as()
    }

    /// Takes the head's answer to a READ, or notes that none came in time.
    pub fn read_answered(&mut self, call: CallId, answer: ReadAnswer, shared: &mut Shared) {
        let (selected, pending) = (self.face.settings.selected, &mut self.face.pending);
        let reads = &mut self.back.reads;
        reads.answered(call, answer, selected, pending, shared);
    }

    /// Takes the store's record, for reads that the shell sent to the store before the head answered.
    pub fn store_recorded(&mut self, number: u64, epoch: u32, watermark: u64, shared: &mut Shared) {
        let (protocol, pending) = (self.face.protocol(), &mut self.face.pending);
        let (reads, record) = (&mut self.back.reads, (epoch, watermark));
        reads.store_recorded(number, record, protocol, pending, shared);
    }

    /// Takes the store's reply to the next read of the batch with this number.
    pub fn store_replied(&mut self, number: u64, reply: Bytes, shared: &mut Shared) {
        let (protocol, pending) = (self.face.protocol(), &mut self.face.pending);
        let reads = &mut self.back.reads;
        reads.store_replied(number, reply, protocol, pending, shared);
    }

    /// Notes that the rest of the batch with this number cannot be read from the store, or from the replica that was
    /// asked.
    pub fn store_unread(&mut self, number: u64, why: Unread, shared: &mut Shared) {
        let protocol = self.face.protocol();
        self.back.reads.store_unread(number, why, protocol, shared);
    }

    /// Whether a pass-through command of this client may change the store, so that the mark must be open.
    #[must_use]
    pub fn needs_mark(&self) -> bool {
        self.back.passing.needs_mark(&self.face.mode)
    }

    /// Returns whether a passed command was given up without an answer since the last call of this function.
    pub fn take_unanswered(&mut self) -> bool {
        self.back.passing.take_unanswered()
    }

    /// Gives up the passed command, because the client disconnects. Returns whether a command was given up without a
    /// reply.
    pub fn close_unanswered(&mut self) -> bool {
        self.back.passing.close_unanswered()
    }

    /// Handles that the mark is no longer open. Returns whether the client's state has changed.
    pub fn mark_lost(&mut self) -> bool {
        self.back.passing.mark_lost(&mut self.face)
    }

    /// Returns the keys for which the client waits at an embedded store, and the end of its wait.
    pub(crate) fn waits_for(&self) -> Option<(&[i64], Option<Time>)> {
        self.back.passing.waits_for()
    }

    /// Wakes the client, because an element may have arrived at one of its keys.
    pub(crate) fn wake(&mut self) {
        self.back.passing.wake();
    }

    /// Ends the client's wait with this reply, unless its next try finds an element.
    pub(crate) fn stop_waiting(&mut self, answer: Bytes, shared: &Shared) {
        let passing = &mut self.back.passing;
        passing.stop_waiting(&mut self.face, answer, shared.now);
    }

    /// Returns the reply that ends the client's wait after CLIENT UNBLOCK.
    pub(crate) fn unblocked(&self, error: bool) -> Bytes {
        unblocked(error, self.face.protocol())
    }

    /// Returns the address and the number of this client's connection to the store. A new number means that a new
    /// socket is needed. `None`: there must be no connection.
    #[must_use]
    pub fn direct_target(&self) -> Option<(u64, SocketAddr)> {
        self.back.passing.target()
    }

    /// Returns the TLS settings of the client's own connection to the store, if it uses TLS.
    #[must_use]
    pub fn direct_tls(&self) -> Option<&ClientTls> {
        self.back.passing.tls()
    }

    /// Whether the front may read from the store's connection now. Messages that a subscriber does not read wait at the
    /// store, as they do without pmnet. The reply to a command is always read.
    #[must_use]
    pub fn wants_direct(&self) -> bool {
        let replies = &self.face.pending.replies;
        let waits = self.back.passing.is_under_way() && !replies.congested();
        waits || !replies.holds_much()
    }

    /// Returns the bytes to write to the store.
    #[must_use]
    pub fn direct_unwritten(&self) -> &[u8] {
        self.back.passing.unwritten()
    }

    /// Notes that `count` bytes were written to the store.
    pub fn direct_wrote(&mut self, count: usize) {
        self.back.passing.wrote(count);
    }

    /// Notes that the connection to the store could not be made, or is lost.
    pub fn direct_lost(&mut self, why: &str) {
        self.back.passing.lost(&mut self.face, why);
    }

    /// Takes bytes from the store.
    pub fn direct_receive(&mut self, bytes: &[u8], shared: &Shared) {
        self.back.passing.receive(bytes, &mut self.face, shared);
    }

    /// Notes that the server now uses the store with this name. A command that waits for another store ends
    /// as if its connection were lost. Returns whether anything has changed.
    pub fn store_named(&mut self, name: &StoreName) -> bool {
        self.back.passing.store_named(&mut self.face, name)
    }
}
