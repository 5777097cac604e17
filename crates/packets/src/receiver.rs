//! The sockets of a region. This module does not depend on how the region's buffers are used.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use pmnet_dataplane::direct::{Arrived, BufferSpace, Mode, Part, Places, Sockets, SocketsConfig};
use pmnet_device::{Buffers, Taken};
use pmnet_udp::Clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{Error, Options, Packet};

pub(crate) struct Receiver {
    sockets: Sockets,
    clock: Clock,
    arrived: Vec<Arrived>,
}

impl Receiver {
    /// Binds to every queue of the interfaces.
    pub fn open(options: &Options, space: BufferSpace) -> Result<Receiver, Error> {
        let config = SocketsConfig {
            interfaces: options.interfaces.clone(),
            listen: options.listen,
            transport: options.transport,
            mode: Mode::PreferZeroCopy,
            magic: None,
            busy_poll: None,
            part: Part::alone(),
        };
        Ok(Receiver {
            sockets: Sockets::open(&config, space)?,
            clock: Clock::start(),
            arrived: Vec::new(),
        })
    }

    pub fn never_live(&self) -> u64 {
        self.sockets.never_live()
    }

    pub fn is_zero_copy(&self) -> bool {
        self.sockets.bound().iter().all(|socket| socket.zero_copy)
    }

    pub fn places(&self) -> Places {
        self.sockets.places()
    }

    /// Exchanges buffers with the log, so that packets can be received into released buffers.
    pub fn turn(&mut self, log: &mut dyn Buffers) -> Result<(), Error> {
        self.sockets.flush()?;
        Ok(self.sockets.exchange(log)?)
    }

    /// Waits for packets for at most `wait`. Adds the packets that have arrived to `burst`.
    pub fn receive(
        &mut self,
        log: &mut dyn Buffers,
        wait: Duration,
        burst: &mut Vec<Packet>,
    ) -> Result<usize, Error> {
        self.turn(log)?;
        if self.take(burst)? > 0 || wait.is_zero() {
            return Ok(burst.len());
        }
        {
            let descriptors: Vec<BorrowedFd<'_>> = self.sockets.descriptors().collect();
            let mut polled: Vec<PollFd<'_>> = descriptors
                .iter()
                .map(|fd| PollFd::new(fd, PollFlags::IN))
                .collect();
            let until = Timespec::try_from(wait).unwrap_or(Timespec {
                tv_sec: i64::MAX,
                tv_nsec: 0,
            });
            match poll(&mut polled, Some(&until)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Error::System(error.into())),
            }
        }
        self.take(burst)
    }

    fn take(&mut self, burst: &mut Vec<Packet>) -> Result<usize, Error> {
        let received = self.sockets.receive(&mut self.arrived);
        let before = burst.len();
        burst.extend(self.arrived.drain(..).map(Packet));
        received?;
        Ok(burst.len() - before)
    }

    /// Notes that a packet was kept or released.
    pub fn done(&mut self, packet: Packet, taken: Taken) {
        self.sockets.done(self.clock.now(), packet.0, taken);
    }

    pub fn heard(&mut self, packet: &Packet) {
        self.sockets.heard(self.clock.now(), &packet.0);
    }

    pub fn send(&mut self, to: SocketAddr, datagram: &[u8]) -> Result<bool, Error> {
        Ok(self.sockets.send(self.clock.now(), to, datagram)?)
    }

    pub fn send_logged(
        &mut self,
        to: SocketAddr,
        place: &std::ops::Range<usize>,
    ) -> Result<bool, Error> {
        Ok(self.sockets.send_logged(self.clock.now(), to, place)?)
    }

    pub fn flush(&mut self) -> Result<(), Error> {
        Ok(self.sockets.flush()?)
    }
}
