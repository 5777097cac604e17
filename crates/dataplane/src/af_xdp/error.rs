//! Reasons why an AF_XDP socket cannot be opened or used, with advice.

use std::io;

/// Reason why an AF_XDP socket could not be set up, or failed later.
#[derive(Debug, thiserror::Error)]
pub enum AfXdpError {
    /// The kernel does not accept the sizes.
    #[error("AF_XDP: {0}")]
    Config(String),
    /// A step of the set-up failed.
    #[error("PM1449 AF_XDP, {step}: {source}{}", hint(source))]
    SetUp {
        /// The operation that failed.
        step: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// Another socket has the queue, and has not released it within [`Queue::bind`](super::Queue::bind)'s wait.
    #[error(
        "PM1440 AF_XDP: queue {queue} of {interface} belongs to another socket: end the program that has it, or choose another queue"
    )]
    QueueInUse {
        /// Name of the interface.
        interface: String,
        /// Number of its queue.
        queue: u32,
    },
    /// The kernel is too old for busy polling, or was built without it.
    #[error(
        "PM1441 AF_XDP: this kernel has no SO_PREFER_BUSY_POLL (Linux 5.11 or later, with CONFIG_NET_RX_BUSY_POLL): go without busy \
         polling"
    )]
    NoBusyPoll,
    /// The kernel returned a frame that it did not have. The socket must not be used any more.
    #[error(
        "PM1451 AF_XDP: the kernel handed back what it did not have: address {address}, {bytes} bytes"
    )]
    Descriptor {
        /// Offset of the frame in the memory.
        address: u64,
        /// Length of the packet in bytes.
        bytes: u32,
    },
    /// A counter of the kernel in a ring has an impossible value. The socket must not be used any more.
    #[error("PM1452 AF_XDP: a ring of {size} places says that {used} are in use")]
    Ring {
        /// Number of entries in the ring.
        size: u32,
        /// Number of entries in use, by the ring's counters.
        used: u32,
    },
    /// A wake-up of the kernel failed with an error that is not temporary.
    #[error("PM1450 AF_XDP, sending: {0} (is the interface up?)")]
    Wake(io::Error),
}

impl AfXdpError {
    pub(super) fn step(step: &'static str) -> impl FnOnce(rustix::io::Errno) -> AfXdpError {
        move |error| AfXdpError::SetUp {
            step,
            source: error.into(),
        }
    }
}

fn hint(error: &io::Error) -> &'static str {
    use rustix::io::Errno;
    let Some(errno) = Errno::from_io_error(error) else {
        return "";
    };
    match errno {
        Errno::PERM | Errno::ACCESS => " (it needs root, or CAP_NET_RAW and CAP_NET_ADMIN)",
        Errno::AFNOSUPPORT => {
            " (a filter forbids AF_XDP, as RestrictAddressFamilies= of systemd does, or this kernel was built without CONFIG_XDP_SOCKETS)"
        }
        Errno::NODEV => " (no such interface in this network namespace)",
        Errno::NOBUFS => " (more memory must be lockable: ulimit -l unlimited)",
        Errno::OPNOTSUPP => " (memory of this kind cannot be used, or the driver has no such mode)",
        Errno::FAULT => " (memory of this kind cannot be used: files in the page cache cannot)",
        Errno::INVAL => " (has the interface such a queue? is it up?)",
        _ => "",
    }
}
