//! The warnings of the library's loops. No function returns warnings.

use std::ffi::c_int;
use std::io::{self, Write};
use std::sync::atomic::{AtomicI32, Ordering};

/// File descriptor for warnings. If negative, warnings are dropped.
static FD: AtomicI32 = AtomicI32::new(2);

/// Sets the file descriptor to which the library writes its warnings, one warning a line. The default is 2 (stderr).
/// With -1, warnings are dropped. The library does not close the descriptor. May be called at any time, by any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pmnet_log_to(fd: c_int) {
    FD.store(fd, Ordering::Relaxed);
}

struct Line;

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let fd = FD.load(Ordering::Relaxed);
        if fd >= 0 {
            // SAFETY: the bytes can be read for their whole length. The kernel checks the descriptor.
            unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
        }
        // A warning that cannot be written is dropped, because it cannot be reported anywhere else.
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Begins to collect the loops' warnings.
pub(crate) fn begin() {
    pmnet_bindings::warnings_to(|| Line);
}
