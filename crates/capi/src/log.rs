//! Warnings of the library's loops: no function returns them.

use std::ffi::c_int;
use std::io::{self, Write};
use std::sync::atomic::{AtomicI32, Ordering};

/// Where warnings go; negative: nowhere.
static FD: AtomicI32 = AtomicI32::new(2);

/// Says where the library's warnings go: the descriptor of a file, 2 (stderr) if this function is not called, or -1 for nowhere. Each is one line.
/// The library does not close the descriptor. May be called at any time, by any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pmnet_log_to(fd: c_int) {
    FD.store(fd, Ordering::Relaxed);
}

struct Line;

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let fd = FD.load(Ordering::Relaxed);
        if fd >= 0 {
            // SAFETY: the bytes can be read for their whole length; the kernel checks the descriptor.
            unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
        }
        // A warning that cannot be written is dropped: there is no other place for it.
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Begins to listen to the loops.
pub(crate) fn begin() {
    pmnet_bindings::warnings_to(|| Line);
}
