//! The port of a device whose log is packet buffers (`docs/spec/packet-buffers.md` §2): it receives
//! into buffers that the log lends.
//!
//! Invariants: a full log leaves buffers for receiving, only the log stores into a buffer that it
//! has taken over, and it returns each of these.

use std::collections::VecDeque;

use pmnet_device::{Buffers, DeviceError, DeviceNode, Taken};
use pmnet_log::Parameters;
use pmnet_proto::{Peer, Time};

use crate::medium::Forgetful;

/// Size of a buffer in bytes.
const BUFFER: usize = 2048;
/// Number of buffers of the log.
const COUNT: u64 = 64;
/// The log has as many entries as buffers.
pub(super) const PARAMETERS: Parameters = Parameters::buffers(64, COUNT * 2048, 2048);
/// Number of buffers that the log must leave, besides those for copies.
const LEFT: u64 = 8;
/// Offsets at which a datagram may begin in its buffer: after IPv4 or IPv6 headers, at a cache line
/// or not.
const OFFSETS: [usize; 4] = [320, 340, 321, 500];
/// One datagram in N arrives through the system's stack.
const STACK_EVERY: usize = 5;
/// The hop limit of packets from neighbours.
const HOPS: u8 = 64;

/// The state of the port.
#[derive(Debug, Default)]
pub(super) struct Port {
    lent: VecDeque<u32>,
    came: usize,
}

impl Port {
    /// Opens the port of a device that has just started.
    pub(super) fn open(device: &mut DeviceNode<Forgetful>) -> Port {
        let mut port = Port::default();
        let buffers = device.buffers();
        while let Some(number) = buffers.lend() {
            port.lent.push_back(number);
        }
        port
    }

    /// Receives a datagram.
    pub(super) fn receive(
        &mut self,
        device: &mut DeviceNode<Forgetful>,
        now: Time,
        from: Peer,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        self.came += 1;
        let offset = OFFSETS[self.came % OFFSETS.len()];
        if self.came.is_multiple_of(STACK_EVERY) || offset + bytes.len() > BUFFER {
            return device.receive(now, from, bytes);
        }
        let number = self.lent.pop_front();
        let number = number.expect("a full log leaves buffers to receive into");
        let start = usize::try_from(number).expect("few") * BUFFER + offset;
        let place = start..start + bytes.len();
        device.buffers().deposit(start, bytes);
        let before = device.log().last();
        let taken = device.receive_in_place(now, from, HOPS, &place);
        let kept = matches!(taken, Ok(Taken::Kept));
        if kept {
            assert_eq!(device.log().last(), before + 1, "kept is appended");
        } else {
            assert_eq!(device.log().lent(&place), bytes, "only read");
            self.lent.push_back(number);
        }
        taken.map(drop)
    }

    /// Ends the turn, after the sent packets have left.
    pub(super) fn exchange(&mut self, device: &mut DeviceNode<Forgetful>) {
        let log = device.log();
        let live = log.last() - log.applied();
        let buffers = device.buffers();
        while let Some(number) = buffers.poll_released() {
            assert!(!self.lent.contains(&number), "released once");
            self.lent.push_back(number);
        }
        while buffers.wants() {
            let number = self.lent.pop_front();
            buffers.give_back(number.expect("a full log leaves more than it wants"));
        }
        assert!(!self.lent.is_empty(), "reception goes on");
        let lent = u64::try_from(self.lent.len()).expect("few");
        assert!(lent + live <= COUNT, "{lent} lent, {live} in the log");
    }
}

/// Starts a device with packet buffers.
pub(super) fn started(
    mut log: pmnet_log::Log<Forgetful>,
    make: impl FnOnce(pmnet_log::Log<Forgetful>) -> DeviceNode<Forgetful>,
) -> (DeviceNode<Forgetful>, Port) {
    log.leave_buffers(LEFT);
    let mut device = make(log).with_packet_buffers();
    let port = Port::open(&mut device);
    (device, port)
}
