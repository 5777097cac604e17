//! `trait FastPath`: who appends to the same log beside the machine (`docs/spec/pipeline.md`), and `trait Hold`, the guard
//! under which the machine changes what it admits.

use pmnet_log::Tail;
use pmnet_proto::Time;
use pmnet_proto::device::{Bucket, ChainState, HopWork, ReadState, SessionState};
use pmnet_wire::packet::Stamp;
use std::io;
use std::os::fd::RawFd;

/// Admits updates by the rules of the machine, or takes the entries of the hop before. It appends them to the
/// machine's log and, when all devices of the chain hold them, acknowledges them. It hands the rest to
/// the node unchanged.
///
/// Errors are those of the system; any of them ends the device, and the fast path stays as it is.
pub trait FastPath: Send {
    /// Returns whether it admits now. If it does at the start, an earlier process left it admitting.
    fn admits(&self) -> bool;

    /// Returns its last order: everything up to here is in the image, complete.
    fn last(&self) -> u64;

    /// Returns the end of the log as it sees it: without orders that are being appended.
    fn tail(&self) -> Tail;

    /// Stops admission. When this returns nothing is being appended, and [`FastPath::last`] stands until
    /// [`Hold::release`]. While it is held already, this gives the guard once more and does nothing else.
    ///
    /// # Errors
    /// See above.
    fn hold(&mut self) -> io::Result<Box<dyn Hold + '_>>;

    /// Forgets wake-ups until now, and returns what it has done with the hops beside it. Call it before
    /// [`FastPath::last`]: that is then at least as high as the orders that it reports of others.
    fn look(&mut self) -> HopWork;

    /// Everything up to here is applied.
    fn applied(&mut self, applied: u64);

    /// Sets what only the machine knows of a session, while the fast path admits: its limit, what is applied, its
    /// client's address, or that it is over. The seqs that the fast path counts itself stay unchanged. A session that
    /// is new to the fast path is set, and the keys of one that is over are erased, under a separate hold, which ends before this returns.
    ///
    /// # Errors
    /// See above.
    fn refresh_session(&mut self, id: u64, state: Option<SessionState>) -> io::Result<()>;

    /// From now on every READ is handed to the node, until the next [`FastPath::tell_reads`], or [`Hold::tell_reads`] and
    /// a release. When this returns, what was admitted before a READ that the fast path still answered is in
    /// [`FastPath::last`].
    fn hand_reads_up(&mut self);

    /// Sets what only the machine knows of READs, while the fast path admits: the floor, what is not shown, and what is
    /// closed, in the state and in these buckets. What the fast path has noted of the updates that it admitted stays
    /// unchanged, and so does the secret. Then it answers READs again.
    fn tell_reads(&mut self, state: &ReadState, changed: &[(usize, Bucket)]);

    /// From now on it gives answers that need a lease ([`Device::may_answer`]) only until this moment, by `CLOCK_BOOTTIME`. It
    /// keeps to that by itself, also when its process has died. A moment that is earlier than the one that it was
    /// told before is not taken. `None`: as it was told before; if it was to answer for ever, it is silent now.
    ///
    /// [`Device::may_answer`]: pmnet_proto::device::Device::may_answer
    fn answers_until(&mut self, deadline: Option<Time>);

    /// Returns whether it has answered a packet of this session since this was last asked.
    fn heard(&mut self, id: u64) -> bool;

    /// Asks to be woken by its next admission, through [`FastPath::wakeup_fd`].
    ///
    /// After this call [`FastPath::last`] includes everything that it admitted before.
    ///
    /// # Errors
    /// See above.
    fn sleep(&mut self) -> io::Result<()>;

    /// Becomes readable when it admitted something after [`FastPath::sleep`], and whenever it leaves
    /// something to the machine that somebody waits for; `None`: it is never woken, and looks by itself.
    fn wakeup_fd(&self) -> Option<RawFd>;
}

/// A fast path that is held. Only through this guard are its epoch, chain and sessions set, and only this lets it admit
/// again. Dropped without [`Hold::release`] it stays held, and [`FastPath::hold`] gives the guard again: a device that is
/// out of service holds for longer than a turn.
pub trait Hold {
    /// Sets the epoch and the names under which it is to admit, and its chain. Returns whether it talks to the hops beside
    /// it. Before sessions are told.
    fn describe(&mut self, stamp: &Stamp, chain: &ChainState) -> bool;

    /// Sets the whole state of one session, or that it is over.
    ///
    /// # Errors
    /// See [`FastPath`].
    fn set_session(&mut self, id: u64, state: Option<SessionState>) -> io::Result<()>;

    /// Forgets all sessions.
    ///
    /// # Errors
    /// See [`FastPath`].
    fn forget_sessions(&mut self) -> io::Result<()>;

    /// Forgets the log, which is about to be emptied: it has given no order, and knows of no neighbour what that holds. Whoever
    /// takes over after this reads the whole log to know what is in it.
    ///
    /// # Errors
    /// See [`FastPath`].
    fn forget_log(&mut self) -> io::Result<()>;

    /// Sets the whole state of READs, and of these buckets.
    fn tell_reads(&mut self, state: &ReadState, changed: &[(usize, Bucket)]);

    /// From now on it answers for ever: its device needs no lease.
    fn answers_for_ever(&mut self);

    /// Lets it admit after `tail`.
    ///
    /// # Errors
    /// See [`FastPath`]. Also if `tail` would take back an order that it gave.
    fn release(self: Box<Self>, tail: &Tail) -> io::Result<()>;
}
