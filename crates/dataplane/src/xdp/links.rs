//! Pinned links: detaches a link at once, and finds out whether a link's interface still exists. The library does not
//! have these system calls.
//!
//! This module must not know the device of a link.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Commands of the system call (linux/bpf.h).
const BPF_OBJ_GET: libc::c_int = 7;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const BPF_LINK_DETACH: libc::c_int = 34;
/// Length of the part of `struct bpf_link_info` (linux/bpf.h) that is read, in words of four bytes (`INFO_WORDS`), and
/// index of the word with the interface (`INFO_INTERFACE`).
const INFO_WORDS: usize = 6;
const INFO_INTERFACE: usize = 4;

/// Detaches the program of a pinned link from its interface at once. When the last reference to the link is gone, the
/// kernel detaches the program, too, but some time later. Before Linux 5.9 only the kernel can do it.
pub(super) fn detach(link: &Path) {
    if let Some(fd) = open(link) {
        let fd = u64::from(fd.as_raw_fd().unsigned_abs());
        bpf(BPF_LINK_DETACH, [fd, 0]);
    }
}

/// Returns whether the interface of the link that is pinned at this path no longer exists. If the link cannot be read,
/// the result is false.
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

/// Makes the system call bpf(2). `words`: the first two words of its attributes. The other words are zero.
fn bpf(command: libc::c_int, words: [u64; 2]) -> libc::c_long {
    let mut attributes = [0; 16];
    attributes[..2].copy_from_slice(&words);
    // SAFETY: the call reads only the stated number of bytes of attributes. The attributes point to a path, which is a
    // C string, or to memory of the stated length. The caller keeps both alive, and the kernel writes only to this
    // memory.
    unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            attributes.as_ptr(),
            size_of_val(&attributes),
        )
    }
}
