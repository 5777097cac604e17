//! Exclusive resources of a machine: ports for the processes that tests and the demo start, and named locks (turns).
//! The module uses only the standard library, because the tests of several crates include the file by its path.
//!
//! A port that was just found free may be taken before it is used. So a process first *claims* the number. The claim
//! excludes all other processes of the network namespace, which is usually the machine. The claim is an abstract Unix
//! socket whose name contains the number. The claim lasts as long as [`Port`] exists. If the owner of the socket is
//! killed, the kernel removes the socket. The numbers are below the range from which the kernel assigns ports
//! automatically. Otherwise a client's socket could take the port of a process that is killed and restarted.
//!
//! A claim excludes only processes that use claims. So a process that waits for a server must still check that it
//! reaches the server that it started.

use std::io::{Error, ErrorKind};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// The first port number that can be claimed.
const FIRST: u16 = 10_000;
/// The end of the range. By default Linux assigns no number below this end automatically.
const END: u16 = 32_000;
/// If fewer numbers than this can be claimed, the numbers of the kernel's own range are also used.
const RANGE_MIN: u16 = 1_000;

/// Interval at which a waiting process checks whether its turn has come.
const LOOK: Duration = Duration::from_millis(50);

/// Takes a name in the kernel that can have only one owner.
fn own(name: &str) -> std::io::Result<UnixDatagram> {
    UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

/// The exclusive right to a resource of the machine.
#[derive(Debug)]
pub struct Turn {
    _claim: UnixDatagram,
}

impl Turn {
    /// Waits until no other process has this turn, and takes it.
    ///
    /// # Errors
    /// Fails if another process has the turn during the whole time `wait`.
    pub fn wait(name: &str, wait: Duration) -> std::io::Result<Turn> {
        let until = Instant::now() + wait;
        loop {
            match own(&format!("pmnet-turn-{name}")) {
                Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < until => {
                    std::thread::sleep(LOOK);
                }
                claimed => return claimed.map(|claim| Turn { _claim: claim }),
            }
        }
    }
}

/// A port number of 127.0.0.1, for TCP and UDP. While this value exists, no other process can claim the number.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _claim: UnixDatagram,
}

impl Port {
    /// Claims a port that no process uses.
    ///
    /// # Errors
    /// Fails if all ports are claimed or in use.
    pub fn claim() -> std::io::Result<Port> {
        /// Number of ports that this process has tried. The count makes the process try other numbers before it tries a
        /// number again.
        static TRIED: AtomicU16 = AtomicU16::new(0);
        let range = range();
        let count = range.end - range.start;
        // Each process begins the search at another number.
        let start = std::process::id().wrapping_mul(1_009) % u32::from(count);
        let start = u16::try_from(start).unwrap_or(0);
        (0..count)
            .map(|_| TRIED.fetch_add(1, Ordering::Relaxed) % count)
            .map(|tried| range.start + (start + tried) % count)
            .find_map(Port::take)
            .ok_or_else(|| {
                let why = format!("no free port from {} to {}", range.start, range.end - 1);
                Error::new(ErrorKind::AddrInUse, why)
            })
    }

    /// Returns the port number.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    fn take(number: u16) -> Option<Port> {
        let claim = own(&format!("pmnet-port-{number}")).ok()?;
        // A process without claims uses the port, or a server that outlived its test.
        let place = (Ipv4Addr::LOCALHOST, number);
        let free = UdpSocket::bind(place).is_ok() && TcpListener::bind(place).is_ok();
        free.then_some(Port {
            number,
            _claim: claim,
        })
    }
}

/// Returns a port that stays claimed until this process ends.
///
/// # Errors
/// Fails if all ports are claimed or in use, as for [`Port::claim`].
pub fn lasting() -> std::io::Result<u16> {
    static CLAIMED: Mutex<Vec<Port>> = Mutex::new(Vec::new());
    let port = Port::claim()?;
    let number = port.number();
    let mut claimed = CLAIMED.lock().unwrap_or_else(|poison| poison.into_inner());
    claimed.push(port);
    Ok(number)
}

/// Returns the range of numbers that the kernel does not assign automatically.
fn range() -> Range<u16> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let kernels = text.ok().and_then(|text| {
        let first = text.split_whitespace().next()?;
        first.parse::<u16>().ok()
    });
    let end = kernels.map_or(END, |first| first.min(END));
    if end >= FIRST + RANGE_MIN {
        FIRST..end
    } else {
        FIRST..END
    }
}
