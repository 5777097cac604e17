//! The shards of one process that receive through the same interfaces: each interface has one program for all shards,
//! and each shard has its own queues.
//!
//! A socket gets only packets that its own queue has received, and its memory is the log of one shard. So the queues of
//! an interface are divided: shard i of n has the queues i, i + n, i + 2n, …. If a queue receives a packet for a shard
//! to which the queue does not belong, the packet reaches the shard's UDP socket through the kernel's stack. This
//! module must not know logs.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::sockets::SocketsConfig;
use super::{DirectError, interface};
use crate::af_xdp::{Only, QUEUES_MAX, Redirect};

/// Minimum number of buffers that a log must have for each queue.
const BUFFERS_PER_QUEUE: u64 = 256;

/// The programs, by the names of their interfaces.
type Programs = BTreeMap<String, Redirect>;

/// The share of one shard in the interfaces of its process. The shard's sockets own the part. When the last part is
/// dropped, the programs are detached.
#[derive(Clone)]
pub struct Part {
    index: u16,
    count: u16,
    /// The programs. Each program is attached when the first shard needs it.
    programs: Arc<Mutex<Programs>>,
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.index, self.count)
    }
}

impl Default for Part {
    fn default() -> Part {
        Part::alone()
    }
}

impl Part {
    /// Returns the part of a shard that is the only shard of its process.
    #[must_use]
    pub fn alone() -> Part {
        Part {
            index: 0,
            count: 1,
            programs: Arc::default(),
        }
    }

    /// Returns the parts of `count` shards, which have consecutive ports.
    ///
    /// # Errors
    /// [`DirectError::Unfit`]: an interface has fewer queues than there are shards.
    pub fn all(count: u16, interfaces: &[String]) -> Result<Vec<Part>, DirectError> {
        for name in interfaces {
            // The call fails if there is no such interface.
            interface::mtu(name).map_err(|error| DirectError::interface(name, &error))?;
            let queues = queues_of(name);
            if queues < u32::from(count) {
                return Err(DirectError::Unfit(format!(
                    "PM1445 {name} has {queues} receive queue(s), and each of {count} shards needs one of its own: give it more \
                     (ethtool -L {name} combined {count}; on a veth rx {count}), or start fewer shards"
                )));
            }
        }
        let programs = Arc::default();
        let part = |index| Part {
            index,
            count,
            programs: Arc::clone(&programs),
        };
        Ok((0..count).map(part).collect())
    }

    /// Returns the shard's queues of an interface.
    pub(super) fn queues(&self, interface: &str) -> impl Iterator<Item = u32> + use<> {
        let step = usize::from(self.count);
        (u32::from(self.index)..queues_of(interface)).step_by(step)
    }

    /// Returns the minimum number of packet buffers that the shard's log needs to receive from the shard's queues of
    /// these interfaces.
    #[must_use]
    pub fn buffers_needed(&self, interfaces: &[String]) -> u64 {
        let queues = interfaces.iter().map(|name| self.queues(name).count());
        u64::try_from(queues.sum::<usize>()).expect("few") * BUFFERS_PER_QUEUE
    }

    fn programs(&self) -> MutexGuard<'_, Programs> {
        self.programs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attaches the program to an interface, if no other shard has attached it.
    pub(super) fn attach(
        &self,
        interface: &str,
        config: &SocketsConfig,
    ) -> Result<(), DirectError> {
        let mut programs = self.programs();
        if programs.contains_key(interface) {
            return Ok(());
        }
        let mut to = config.listen;
        to.set_port(to.port().saturating_sub(self.index));
        let only = Only {
            to,
            ports: self.count,
            transport: config.transport,
            magic: config.magic,
        };
        programs.insert(
            interface.to_owned(),
            Redirect::attach_for(interface, &only)?,
        );
        Ok(())
    }

    /// Redirects the packets for this shard in this queue to this socket.
    pub(super) fn serve(
        &self,
        interface: &str,
        queue: u32,
        socket: &impl AsFd,
    ) -> Result<(), DirectError> {
        let mut programs = self.programs();
        let program = programs.get_mut(interface).expect("it was attached before");
        Ok(program.serve_port(self.index, queue, socket)?)
    }
}

/// Returns the number of receive queues of an interface that can have sockets. Packets in further queues reach the
/// device's UDP socket through the kernel's stack.
fn queues_of(interface: &str) -> u32 {
    interface::receive_queues(interface).min(QUEUES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_shard_has_all_queues() {
        let part = Part::alone();
        assert_eq!(part.queues("lo").collect::<Vec<_>>(), [0]);
        assert_eq!(part.buffers_needed(&["lo".into(), "lo".into()]), 512);
    }

    #[test]
    fn fewer_queues_than_shards_are_refused() {
        let refused = Part::all(2, &["lo".into()]).unwrap_err().to_string();
        let said = "PM1445 lo has 1 receive queue(s), and each of 2 shards needs one of its own";
        assert!(refused.starts_with(said), "{refused}");
        let refused = Part::all(2, &["nothing0".into()]).unwrap_err().to_string();
        assert!(refused.starts_with("interface nothing0: "), "{refused}");
        assert_eq!(Part::all(1, &["lo".into()]).unwrap().len(), 1);
    }
}
