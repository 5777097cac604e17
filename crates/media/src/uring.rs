//! Writes through io_uring: many blocks are in flight at once, and completions are processed without blocking.
//!
//! Each piece is copied into a staging slot, which belongs to the kernel until its completion has been seen. The ring's
//! own descriptor is readable exactly while completions wait, so it serves as the medium's wake-up. Nobody needs to
//! drain it, and a wake-up is never lost.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};
use memmap2::MmapMut;

use crate::PERSIST_SECONDS_MAX;
use crate::image::{BLOCK, offset};
use crate::memory::Memory;
use crate::sys;

/// Maximum number of writes in flight.
const DEPTH: u32 = 16;
const SLOTS: usize = 16;
/// Largest write, in bytes.
const SLOT_BYTES: usize = 64 * 1024;
/// Pause before the refused writes of a batch are repeated. The ring itself measures the pause, and its end makes the
/// ring's descriptor readable, so the device's loop does not sleep, and no thread is needed.
static PAUSE: types::Timespec = types::Timespec::new().nsec(10_000_000);
/// Longest time in which each write of a batch may be refused. Then the batch fails.
const REFUSED_MAX: Duration = Duration::from_secs(5);
/// User data of a pause; that of a write is the number of its slot.
const PAUSE_DATA: u64 = u64::MAX;
/// Maximum number of repetitions of a submission that was interrupted, or refused for the moment.
const SUBMIT_TRIES: usize = 1000;

/// Writes blocks of an image to a file, one batch at a time.
pub(crate) struct RingWriter {
    ring: ManuallyDrop<IoUring>,
    staging: ManuallyDrop<MmapMut>,
    /// Bytes that each slot is writing; an empty range for a free slot.
    slots: [Range<usize>; SLOTS],
    queue: VecDeque<Range<usize>>,
    in_flight: usize,
    /// Error of a write that waits in the queue to be repeated.
    refused: Option<io::Error>,
    /// Whether a pause is in progress. No write is submitted before its end.
    pauses: bool,
    /// Time of the first refusal after the last write that succeeded.
    refused_since: Option<Instant>,
    started: Instant,
    fd: RawFd,
}

impl std::fmt::Debug for RingWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RingWriter")
            .field("in_flight", &self.in_flight)
            .field("queued", &self.queue.len())
            .finish()
    }
}

/// Checks whether this process may use io_uring. It tries an operation, because a rule of seccomp cannot be read from
/// any file.
///
/// # Errors
/// The kernel's error.
pub fn io_uring_works() -> io::Result<()> {
    let mut ring = IoUring::new(1)?;
    // SAFETY: an operation that does nothing refers to no memory and no file.
    unsafe { ring.submission().push(&opcode::Nop::new().build()) }.map_err(io::Error::other)?;
    ring.submit_and_wait(1).map(drop)
}

impl RingWriter {
    /// Returns a writer to `file`, which its owner keeps open for as long as the writer lives.
    pub(crate) fn new(file: &File) -> io::Result<RingWriter> {
        Ok(RingWriter {
            ring: ManuallyDrop::new(IoUring::new(DEPTH)?),
            staging: ManuallyDrop::new(MmapMut::map_anon(SLOTS * SLOT_BYTES)?),
            slots: std::array::from_fn(|_| 0..0),
            queue: VecDeque::new(),
            in_flight: 0,
            refused: None,
            pauses: false,
            refused_since: None,
            started: Instant::now(),
            fd: file.as_raw_fd(),
        })
    }

    /// Returns a descriptor that is readable while completions wait.
    pub(crate) fn fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    /// Begins to write these `blocks` of `image`, which are aligned to 4 KiB. The last batch must be complete.
    pub(crate) fn start(&mut self, blocks: &[Range<usize>], image: &Memory) -> io::Result<()> {
        debug_assert!(
            self.in_flight == 0 && self.queue.is_empty() && !self.pauses,
            "one batch at a time"
        );
        self.refused_since = None;
        self.started = Instant::now();
        for block in blocks {
            let mut at = block.start;
            while at < block.end {
                let end = block.end.min(at + SLOT_BYTES);
                self.queue.push_back(at..end);
                at = end;
            }
        }
        self.submit(image)
    }

    /// Processes completions and submits waiting pieces. Returns true when the batch is complete. With `wait` it blocks
    /// until the batch is complete, or until the deadline ([`io::ErrorKind::TimedOut`]).
    pub(crate) fn poll(&mut self, image: &Memory, wait: bool) -> io::Result<bool> {
        let deadline = self.started + Duration::from_secs(PERSIST_SECONDS_MAX);
        loop {
            if self.reap()? && !self.queue.is_empty() && !self.pauses {
                match self.refused.take() {
                    Some(error) => self.pause(error)?,
                    None => self.submit(image)?,
                }
            }
            if self.in_flight == 0 && self.queue.is_empty() {
                return Ok(true);
            }
            if wait {
                if !sys::wait_readable(self.fd(), deadline)? {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            } else if Instant::now() >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            } else {
                return Ok(false);
            }
        }
    }

    /// Processes all available completions. Returns true if there were any.
    fn reap(&mut self) -> io::Result<bool> {
        let mut any = false;
        let mut result = Ok(());
        for completion in self.ring.completion() {
            any = true;
            if completion.user_data() == PAUSE_DATA {
                self.pauses = false;
                continue;
            }
            self.in_flight -= 1;
            let slot = usize::try_from(completion.user_data()).expect("user data is a slot number");
            let wanted = std::mem::replace(&mut self.slots[slot], 0..0);
            match usize::try_from(completion.result()) {
                Ok(written) if written == wanted.len() => self.refused_since = None,
                // After a short write of at least one block, the rest is written again, from a block boundary.
                Ok(written) if written >= BLOCK => {
                    self.queue
                        .push_back(wanted.start + written / BLOCK * BLOCK..wanted.end);
                }
                Ok(_) => result = Err(io::ErrorKind::WriteZero.into()),
                Err(_) => {
                    let error = io::Error::from_raw_os_error(-completion.result());
                    if is_for_the_moment(&error) {
                        self.queue.push_back(wanted);
                        self.refused = Some(error);
                    } else {
                        result = Err(error);
                    }
                }
            }
        }
        result.map(|()| any)
    }

    /// Begins a pause, after which the queued pieces are submitted. `why`: the error of a refused write.
    ///
    /// A repetition weakens no promise. The batch is complete only when each of its pieces has been written with
    /// success, and each such write is durable by itself (`O_DSYNC`), so their order does not matter. A refused write
    /// has completed: the kernel no longer uses its slot. The repetition goes to the same place. If a store has changed
    /// these bytes since, the newer bytes are written, as in a piece that had to wait for a slot.
    ///
    /// # Errors
    /// `why`, if each write has been refused for [`REFUSED_MAX`].
    fn pause(&mut self, why: io::Error) -> io::Result<()> {
        let now = Instant::now();
        if now - *self.refused_since.get_or_insert(now) >= REFUSED_MAX {
            return Err(why);
        }
        self.pauses = true;
        let entry = opcode::Timeout::new(&raw const PAUSE).build();
        // SAFETY: the time is a constant that lives as long as the process.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(PAUSE_DATA)) };
        pushed.expect("the submission queue is empty after each submission");
        self.enter()
    }

    /// Submits queued pieces to the kernel, up to the number of free slots.
    fn submit(&mut self, image: &Memory) -> io::Result<()> {
        for slot in 0..SLOTS {
            if !self.slots[slot].is_empty() {
                continue;
            }
            let Some(piece) = self.queue.pop_front() else {
                break;
            };
            let staged = &mut self.staging[slot * SLOT_BYTES..slot * SLOT_BYTES + piece.len()];
            staged.copy_from_slice(image.part(piece.clone()));
            let len = u32::try_from(piece.len()).expect("at most SLOT_BYTES");
            let entry = opcode::Write::new(types::Fd(self.fd), staged.as_ptr(), len)
                .offset(offset(piece.start))
                .build()
                .user_data(offset(slot));
            // SAFETY: the buffer is in `staging`, which lives until `drop` has seen every completion
            // (or is leaked), and the slot is not touched again before its completion. The
            // descriptor is open: its owner drops the writer first.
            let pushed = unsafe { self.ring.submission().push(&entry) };
            pushed.expect("the submission queue has as many places as there are slots");
            self.slots[slot] = piece;
            self.in_flight += 1;
        }
        self.enter()
    }

    /// Gives the entries of the submission queue to the kernel.
    fn enter(&mut self) -> io::Result<()> {
        for _try in 0..SUBMIT_TRIES {
            match self.ring.submit() {
                Ok(_) => return Ok(()),
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted
                    | io::ErrorKind::WouldBlock
                    | io::ErrorKind::ResourceBusy => {
                        std::thread::yield_now();
                    }
                    _ => return Err(error),
                },
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }
}

/// Returns whether a write with this error may succeed if it is repeated. The kernel cancels a write if it cannot create
/// a thread for it (`ECANCELED`).
pub(crate) fn is_for_the_moment(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ECANCELED)
        || matches!(
            error.kind(),
            io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
        )
}

impl Drop for RingWriter {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(PERSIST_SECONDS_MAX);
        self.queue.clear();
        while self.in_flight > 0 {
            // Failed writes no longer matter. This code only waits until the kernel does not use the buffers any more.
            let _failed_anyway = self.reap();
            self.queue.clear();
            if self.in_flight > 0 && !matches!(sys::wait_readable(self.fd(), deadline), Ok(true)) {
                tracing::error!(
                    "PM1219 writes to the log did not end in time; their buffers are kept"
                );
                return;
            }
        }
        // SAFETY: no write is in flight, and both values are dropped once, in this place.
        unsafe {
            ManuallyDrop::drop(&mut self.ring);
            ManuallyDrop::drop(&mut self.staging);
        }
    }
}
