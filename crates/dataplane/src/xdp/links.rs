//! Pinned links: detaches a link at once, and finds the interface of a link. The library lacks these system calls.
//!
//! May not: know the device of a link.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Commands of the system call (linux/bpf.h).
const BPF_OBJ_GET: libc::c_int = 7;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const BPF_LINK_DETACH: libc::c_int = 34;
/// `struct bpf_link_info` (linux/bpf.h), as far as it is read, in words of four bytes; then the index of the word with
/// the interface.
const INFO_WORDS: usize = 6;
const INFO_INTERFACE: usize = 4;

/// Detaches the program of a pinned link from its interface, now. The kernel also does this when the last reference to
/// the link is gone, but some time later. Before Linux 5.9 only the kernel does it.
pub(super) fn detach(link: &Path) {
    if let Some(fd) = open(link) {
        let fd = u64::from(fd.as_raw_fd().unsigned_abs());
        bpf(BPF_LINK_DETACH, [fd, 0]);
    }
}

/// Returns whether the link that is pinned at this path had an interface that is gone. A link that cannot be read
/// counts as not severed.
pub(super) fn is_severed(link: &Path) -> bool {
    let Some(fd) = open(link) else {
        return false;
    };
    let mut info = [0u32; INFO_WORDS];
    let fd = u64::from(fd.as_raw_fd().unsigned_abs());
    let length = size_of_val(&info) as u64;
    let at = info.as_mut_ptr().expose_provenance() as u64;
    // The first word is the descriptor and, in its upper half, the length.
    bpf(BPF_OBJ_GET_INFO_BY_FD, [fd | length << 32, at]) == 0 && info[INFO_INTERFACE] == 0
}

fn open(link: &Path) -> Option<OwnedFd> {
    let name = CString::new(link.as_os_str().as_bytes()).ok()?;
    let at = name.as_ptr().expose_provenance() as u64;
    let fd = RawFd::try_from(bpf(BPF_OBJ_GET, [at, 0])).ok()?;
    // SAFETY: the call has just opened the descriptor, and nothing else owns it.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes the system call bpf(2) with the first two words of its attributes; the rest are zero.
fn bpf(command: libc::c_int, words: [u64; 2]) -> libc::c_long {
    let mut attributes = [0; 16];
    attributes[..2].copy_from_slice(&words);
    // SAFETY: the call reads as many bytes of attributes as it is told. The caller keeps alive what they point to: a
    // path, which is a C string, or memory of the stated length. The kernel writes to this memory only.
    unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            attributes.as_ptr(),
            size_of_val(&attributes),
        )
    }
}
