//! `trait FastPath`: code that appends updates to the machine's log outside of the machine (`docs/spec/pipeline.md`).
//! `trait Hold`: the guard under which the machine changes what the fast path admits.

use pmnet_log::Tail;
use pmnet_proto::Time;
use pmnet_proto::device::{Bucket, ChainState, HopWork, ReadState, SessionState};
use pmnet_wire::packet::Stamp;
use std::io;
use std::os::fd::RawFd;

/// Admits updates by the rules of the machine, or takes the entries of the hop before. It appends them to the machine's
/// log and acknowledges them when all devices of the chain hold them. It hands all other packets to the node unchanged.
///
/// Errors are errors of the system. Each of them ends the device, and the fast path stays in its state.
pub trait FastPath: Send {
    /// Returns whether the fast path admits now. If it does when the node starts, an earlier process left it admitting.
    fn admits(&self) -> bool;

    /// Returns the fast path's last order: all entries up to this order are complete in the image.
    fn last(&self) -> u64;

    /// Returns the end of the log as the fast path sees it, without entries that are just being appended.
    fn tail(&self) -> Tail;

    /// Stops admission. After the return nothing is being appended, and [`FastPath::last`] does not change until
    /// [`Hold::release`]. If the fast path is held already, this only returns the guard again.
    ///
    /// # Errors
    /// See above.
    fn hold(&mut self) -> io::Result<Box<dyn Hold + '_>>;

    /// Forgets all wake-ups until now, and returns the fast path's work with the neighbour hops. Call this before
    /// [`FastPath::last`]: the last order is then at least as high as the orders of neighbours in the returned work.
    fn look(&mut self) -> HopWork;

    /// The store has applied all entries up to order `applied`.
    fn applied(&mut self, applied: u64);

    /// Sets the session's fields that only the machine knows, while the fast path admits: the limit, the applied seq,
    /// the client's address, or the end of the session. The seqs that the fast path counts itself stay unchanged. To
    /// add a new session, and to erase the keys of an ended one, this holds the fast path briefly.
    ///
    /// # Errors
    /// See above.
    fn refresh_session(&mut self, id: u64, state: Option<SessionState>) -> io::Result<()>;

    /// From now on the fast path hands every READ to the node, until the next [`FastPath::tell_reads`], or until
    /// [`Hold::tell_reads`] and a release. After the return, [`FastPath::last`] includes all updates that were admitted
    /// before the last READ that the fast path answered.
    fn hand_reads_up(&mut self);

    /// Sets the READ state that only the machine knows, while the fast path admits: the floor, what is not shown, and
    /// what is closed, in the state and in these buckets. The secret, and the buckets' notes of updates that the fast
    /// path admitted, stay unchanged. After this call the fast path answers READs again.
    fn tell_reads(&mut self, state: &ReadState, changed: &[(usize, Bucket)]);

    /// From now on the fast path gives answers that need a lease ([`Device::may_answer`]) only until `deadline`, by
    /// `CLOCK_BOOTTIME`. It keeps this deadline also after the death of its process. A deadline earlier than the last
    /// one is ignored. `None`: the last deadline stays; a fast path that answered without a deadline stops answering.
    ///
    /// [`Device::may_answer`]: pmnet_proto::device::Device::may_answer
    fn answers_until(&mut self, deadline: Option<Time>);

    /// Returns whether the fast path has answered a packet of this session since the last call.
    fn heard(&mut self, id: u64) -> bool;

    /// Asks the fast path to signal [`FastPath::wakeup_fd`] at its next admission.
    ///
    /// After this call [`FastPath::last`] includes all earlier admissions.
    ///
    /// # Errors
    /// See above.
    fn sleep(&mut self) -> io::Result<()>;

    /// Returns the descriptor that becomes readable at the first admission after [`FastPath::sleep`], and whenever the
    /// fast path leaves work to the machine for which a peer waits. `None`: the fast path needs no wake-up from outside
    /// and polls by itself.
    fn wakeup_fd(&self) -> Option<RawFd>;
}

/// A fast path that is held. Only this guard can set the fast path's epoch, chain and sessions, and let it admit again.
/// If the guard is dropped without [`Hold::release`], the fast path stays held, and [`FastPath::hold`] returns the
/// guard again: a device that is out of service holds for more than one turn.
pub trait Hold {
    /// Sets the epoch, the names under which the fast path admits, and its chain. Call this before the sessions are
    /// set. Returns whether the fast path talks to the neighbour hops.
    fn describe(&mut self, stamp: &Stamp, chain: &ChainState) -> bool;

    /// Sets the whole state of one session. `None`: the session has ended.
    ///
    /// # Errors
    /// See [`FastPath`].
    fn set_session(&mut self, id: u64, state: Option<SessionState>) -> io::Result<()>;

    /// Forgets all sessions.
    ///
    /// # Errors
    /// See [`FastPath`].
    fn forget_sessions(&mut self) -> io::Result<()>;

    /// Forgets the log, which is about to be emptied: the fast path has then given no order, and knows nothing of the
    /// neighbours' logs. A process that takes over later reads the whole log.
    ///
    /// # Errors
    /// See [`FastPath`].
    fn forget_log(&mut self) -> io::Result<()>;

    /// Sets the whole state for READs, and the state of these buckets.
    fn tell_reads(&mut self, state: &ReadState, changed: &[(usize, Bucket)]);

    /// From now on the fast path answers without a deadline: its device needs no lease.
    fn answers_for_ever(&mut self);

    /// Lets the fast path admit entries after `tail`.
    ///
    /// # Errors
    /// See [`FastPath`]. An error is also returned if the fast path has given an order after `tail`.
    fn release(self: Box<Self>, tail: &Tail) -> io::Result<()>;
}
