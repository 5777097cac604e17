//! The few system calls that the standard library does not offer.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

/// Number of tries to reserve space. On Linux 6.1, a signal interrupts a reservation on tmpfs, and so does the kernel's
/// own work for an `io_uring`.
const RESERVE_TRIES: u32 = 1000;

/// Reserves `bytes` of space for the file, which then has that length.
pub(crate) fn reserve(file: &File, bytes: usize) -> io::Result<()> {
    let len = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
    uninterrupted(|| {
        // SAFETY: fallocate takes no pointers; the descriptor is open for as long as `file` is borrowed.
        match unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    })
}

/// Makes an attempt again and again as long as it is interrupted, up to [`RESERVE_TRIES`] times.
fn uninterrupted(mut attempt: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    for _ in 1..RESERVE_TRIES {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
    attempt()
}

/// Returns the parts of the file below `bytes` that were written, in order. The other parts are durably zero, because
/// no file system turns written blocks into unwritten ones. If the file system cannot tell the parts apart, this is the
/// whole range.
pub(crate) fn written(file: &File, bytes: usize) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    let mut at = 0;
    while at < bytes {
        let Some(start) = seek(file, at, libc::SEEK_DATA) else {
            // ENXIO: no written part follows this offset. With other errors, the file system cannot tell the parts
            // apart.
            if io::Error::last_os_error().raw_os_error() != Some(libc::ENXIO) {
                return std::iter::once(0..bytes).collect();
            }
            break;
        };
        let end = seek(file, start, libc::SEEK_HOLE).filter(|end| *end > start);
        let Some(end) = end else {
            return std::iter::once(0..bytes).collect();
        };
        if start < bytes {
            found.push(start..end.min(bytes));
        }
        at = end;
    }
    found
}

fn seek(file: &File, from: usize, whence: libc::c_int) -> Option<usize> {
    let from = libc::off_t::try_from(from).ok()?;
    // SAFETY: lseek takes no pointers; the descriptor is open as long as `file` is borrowed. No code depends on the
    // position in the file.
    let found = unsafe { libc::lseek(file.as_raw_fd(), from, whence) };
    usize::try_from(found).ok()
}

/// Facts about the file system of an open file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileSystem {
    /// Whether the file system is in memory: tmpfs, hugetlbfs, ramfs.
    pub memory: bool,
    /// Whether it is hugetlbfs.
    pub huge: bool,
    /// Unit in which a file can be mapped, in bytes (on hugetlbfs the size of a huge page).
    pub unit: usize,
}

/// Looks up the file system of `file`.
pub(crate) fn file_system(file: &File) -> io::Result<FileSystem> {
    let mut buffer = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the pointer is to memory for a whole `statfs`, which the kernel fills when it returns 0.
    let result = unsafe { libc::fstatfs(file.as_raw_fd(), buffer.as_mut_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fstatfs returned 0, so it filled the buffer.
    let found = unsafe { buffer.assume_init() };
    let (tmpfs, huge, ramfs) = (libc::TMPFS_MAGIC, libc::HUGETLBFS_MAGIC, 0x8584_58f6);
    let unit = if found.f_type == huge {
        usize::try_from(found.f_bsize).unwrap_or(4096)
    } else {
        4096
    };
    Ok(FileSystem {
        memory: [tmpfs, huge, ramfs].contains(&found.f_type),
        huge: found.f_type == huge,
        unit,
    })
}

/// Waits until `fd` is readable or the deadline has passed. Returns whether `fd` is readable.
pub(crate) fn wait_readable(fd: RawFd, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline
            .saturating_duration_since(Instant::now())
            .min(Duration::from_secs(60));
        // This is rounded up, so that the thread sleeps in the last millisecond and does not spin.
        let millis = libc::c_int::try_from(left.as_millis() + 1).expect("at most a minute");
        let mut entry = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: there is one pollfd, and the count is one.
        let result = unsafe { libc::poll(&raw mut entry, 1, millis) };
        match result {
            0 if Instant::now() >= deadline => return Ok(false),
            0 => {}
            1.. => return Ok(true),
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// Message about a SIGBUS.
const SIGBUS_SAYS: &[u8] = b"pmnet: PM1313 SIGBUS: memory of a log is gone. Another program has truncated its file (logrotate?), or a \
line of persistent memory went bad. This process ends here, and acknowledges nothing more. Treat the device as lost; give the log \
a name and a folder without rotation\n";

/// Lets a SIGBUS print an explanation to stderr before it ends this process.
pub(crate) fn say_why_sigbus() {
    extern "C" fn say(_: libc::c_int) {
        let mut room = libc::pollfd {
            fd: libc::STDERR_FILENO,
            events: libc::POLLOUT,
            revents: 0,
        };
        // SAFETY: a signal handler may call poll and write; there is one pollfd, and the count is one; the text is
        // static, and its length is given. The handler waits for nothing. The kernel removed the handler when it called
        // it. So when the handler returns, the access is tried again, and ends the process.
        unsafe {
            if libc::poll(&raw mut room, 1, 0) == 1 {
                libc::write(
                    libc::STDERR_FILENO,
                    SIGBUS_SAYS.as_ptr().cast(),
                    SIGBUS_SAYS.len(),
                );
            }
        }
    }
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let handler: extern "C" fn(libc::c_int) = say;
        // SAFETY: zeros are valid for this structure of integers (no flags, an empty mask). The handler is a function,
        // so it exists as long as the process, and it calls only functions that a handler may call.
        unsafe {
            let mut action = std::mem::zeroed::<libc::sigaction>();
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_RESETHAND;
            // If the system refuses this, the process ends without the message.
            libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of tries and the outcome if `interrupted` tries are interrupted before `then`.
    fn tried(
        interrupted: u32,
        then: Result<(), io::ErrorKind>,
    ) -> (u32, Result<(), io::ErrorKind>) {
        let mut tries = 0;
        let outcome = uninterrupted(|| {
            tries += 1;
            if tries <= interrupted {
                return Err(io::ErrorKind::Interrupted.into());
            }
            then.map_err(Into::into)
        });
        (tries, outcome.map_err(|error| error.kind()))
    }

    /// Regression: on Linux 6.1, `pmnet doctor --verbs` failed with "PM1311 /dev/shm/…: cannot reserve the memory:
    /// Interrupted system call".
    #[test]
    fn a_reservation_that_is_interrupted_is_made_again() {
        let full = io::ErrorKind::StorageFull;
        assert_eq!(tried(0, Ok(())), (1, Ok(())));
        assert_eq!(tried(2, Ok(())), (3, Ok(())));
        assert_eq!(tried(1, Err(full)), (2, Err(full)));
        let bounded = (RESERVE_TRIES, Err(io::ErrorKind::Interrupted));
        assert_eq!(tried(u32::MAX, Ok(())), bounded);
    }
}
