//! `trait FastPath`: who appends to the same log beside the machine (`docs/spec/pipeline.md`).

use pmnet_log::Tail;
use pmnet_proto::device::{ChainState, HopWork, SessionState};
use pmnet_wire::packet::Stamp;
use std::io;
use std::os::fd::RawFd;

/// Admits updates by the rules of the machine, or takes the entries of the hop before, appends them to the
/// machine's log, and, when all devices of the chain hold them, acknowledges them. What it cannot do
/// it hands to the pipeline, as if it were not there.
///
/// Errors are those of the system; any of them ends the device, and the fast path stays as it is.
pub trait FastPath: Send {
    /// Whether it admits now: left so by an owner that died.
    fn admits(&self) -> bool;

    /// Its last order: everything up to here is in the image, complete.
    fn last(&self) -> u64;

    /// The end of the log as it sees it: without orders that are being appended.
    fn tail(&self) -> Tail;

    /// Stops admission. When this returns nothing is being appended, and [`FastPath::last`] stands.
    ///
    /// # Errors
    /// See above.
    fn hold(&mut self) -> io::Result<()>;

    /// The epoch and the names under which it is to admit, and its chain; whether it talks to the hops beside
    /// it. Only while held, and before sessions are told.
    fn describe(&mut self, stamp: &Stamp, chain: &ChainState) -> bool;

    /// Forgets wake-ups until now, and says what it has done with the hops beside it. To be asked before
    /// [`FastPath::last`], which is then at least what others are said to hold.
    fn look(&mut self) -> HopWork;

    /// Lets it admit behind `tail`. Only while held.
    ///
    /// # Errors
    /// See above.
    fn release(&mut self, tail: &Tail) -> io::Result<()>;

    /// Everything up to here is applied.
    fn applied(&mut self, applied: u64);

    /// The state of one session, or that it is over. Last and committed seq and new sessions only while
    /// held.
    ///
    /// # Errors
    /// See above.
    fn session(&mut self, id: u64, state: Option<SessionState>) -> io::Result<()>;

    /// Whether it has answered a packet of this session since this was last asked.
    fn heard(&mut self, id: u64) -> bool;

    /// Asks to be woken by its next admission, through [`FastPath::wakeup_fd`].
    ///
    /// What it has admitted before, [`FastPath::last`] says from now on.
    ///
    /// # Errors
    /// See above.
    fn sleep(&mut self) -> io::Result<()>;

    /// Becomes readable when it admitted something after [`FastPath::sleep`], and whenever it leaves
    /// something to the machine that somebody waits for; `None`: it is never woken, and looks by itself.
    fn wakeup_fd(&self) -> Option<RawFd>;

    /// Forgets all sessions; only while held.
    ///
    /// # Errors
    /// See above.
    fn forget_sessions(&mut self) -> io::Result<()>;
}
