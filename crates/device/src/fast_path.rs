//! `trait FastPath`: code outside of the machine that appends updates to the machine's log (`docs/spec/pipeline.md`).
//! `trait Hold`: the guard by which the node sets the state that the fast path needs to admit.

use pmnet_log::Tail;
use pmnet_proto::Time;
use pmnet_proto::device::{Bucket, ChainState, HopWork, ReadState, SessionState};
use pmnet_wire::packet::Stamp;
use std::io;
use std::os::fd::RawFd;

/// A fast path at the head admits updates by the machine's rules; at a follower it takes the entries of the previous
/// hop. It appends these entries to the machine's log, and acknowledges them when all devices of the chain hold them.
/// It passes all other packets unchanged to the node.
///
/// The methods return errors of the operating system. After an error the device ends, and the fast path stays as it
/// was.
pub trait FastPath: Send {
    /// Returns whether the fast path admits now. If it already admits when the node starts, an earlier process has left
    /// it in this state.
    fn admits(&self) -> bool;

    /// Returns the fast path's last order: all entries up to this order are complete in the image.
    fn last(&self) -> u64;

    /// Returns the end of the log as the fast path sees it, without entries whose append is under way.
    fn tail(&self) -> Tail;

    /// Stops admission. After the return no append is under way, and [`FastPath::last`] does not change until
    /// [`Hold::release`]. If the fast path is already held, the call only returns the guard again.
    ///
    /// # Errors
    /// An error of the operating system, which ends the device.
    fn hold(&mut self) -> io::Result<Box<dyn Hold + '_>>;

    /// Forgets all wake-ups until now, and returns the fast path's progress with the neighbour hops. Must be called
    /// before [`FastPath::last`]. Then the last order is at least as high as the neighbours' orders in the result.
    fn look(&mut self) -> HopWork;

    /// Tells the fast path that the store has applied all entries up to order `applied`.
    fn applied(&mut self, applied: u64);

    /// Sets the session's fields that only the machine knows, while the fast path admits: the limit, the applied seq,
    /// the client's address, or the end of the session. The seqs that the fast path itself counts stay unchanged. To
    /// add a session, or to erase the keys of an ended session, the call holds the fast path briefly.
    ///
    /// # Errors
    /// An error of the operating system, which ends the device.
    fn refresh_session(&mut self, id: u64, state: Option<SessionState>) -> io::Result<()>;

    /// Makes the fast path pass every READ to the node, until the next [`FastPath::tell_reads`], or until
    /// [`Hold::tell_reads`] and a release. After the return, [`FastPath::last`] includes every update that was admitted
    /// before a READ that the fast path has answered.
    fn hand_reads_up(&mut self);

    /// Sets the READ state that only the machine knows, while the fast path admits: the floor, the bounds of shown
    /// updates, and the closed buckets. `changed`: the buckets whose state has changed. The secret stays unchanged, and
    /// so do the updates that the fast path itself has noted in the buckets. After this call the fast path answers
    /// READs again.
    fn tell_reads(&mut self, state: &ReadState, changed: &[(usize, Bucket)]);

    /// Lets the fast path give answers that need a lease ([`Device::may_answer`]) only until `deadline`, by
    /// `CLOCK_BOOTTIME`. The deadline holds even after the death of the process. A deadline that is earlier than the
    /// last one is ignored. `None`: the last deadline stays, and a fast path that had no deadline stops answering.
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
    /// An error of the operating system, which ends the device.
    fn sleep(&mut self) -> io::Result<()>;

    /// Returns the descriptor that becomes readable at the first admission after [`FastPath::sleep`], and when the fast
    /// path leaves work to the machine for which a peer waits. `None`: the fast path needs no wake-up from outside.
    fn wakeup_fd(&self) -> Option<RawFd>;
}

/// A fast path that is held. Only this guard can set the fast path's epoch, chain and sessions, and let it admit again.
/// If the guard is dropped without [`Hold::release`], the fast path stays held, because a device that does not serve
/// must hold it for several turns. [`FastPath::hold`] then returns the guard again.
pub trait Hold {
    /// Sets the stamp under which the fast path admits, and the state of its chain. Must be called before the sessions
    /// are set. Returns whether the fast path itself exchanges packets with the neighbour hops.
    fn describe(&mut self, stamp: &Stamp, chain: &ChainState) -> bool;

    /// Sets the whole state of one session. `None`: the session has ended.
    ///
    /// # Errors
    /// An error of the operating system, which ends the device.
    fn set_session(&mut self, id: u64, state: Option<SessionState>) -> io::Result<()>;

    /// Forgets all sessions.
    ///
    /// # Errors
    /// An error of the operating system, which ends the device.
    fn forget_sessions(&mut self) -> io::Result<()>;

    /// Tells the fast path that the log is about to be emptied. The fast path then has no last order, and knows nothing
    /// of the neighbours' logs. A process that takes over later must read the whole log.
    ///
    /// # Errors
    /// An error of the operating system, which ends the device.
    fn forget_log(&mut self) -> io::Result<()>;

    /// Sets the whole state for READs, and the state of these buckets.
    fn tell_reads(&mut self, state: &ReadState, changed: &[(usize, Bucket)]);

    /// Lets the fast path answer without a deadline, because its device needs no lease.
    fn answers_for_ever(&mut self);

    /// Lets the fast path admit entries after `tail`.
    ///
    /// # Errors
    /// An error of the operating system, or an error that says that the fast path has given an order after `tail`. Both
    /// end the device.
    fn release(self: Box<Self>, tail: &Tail) -> io::Result<()>;
}
