//! One client: a connected socket, real packets, one update at a time, every answer checked.

use std::io::{self, ErrorKind};
use std::net::{SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use pmnet_wire::{DATAGRAM_BYTES_MAX, FRAGMENT_BYTES, Flags, Header, Kind, Packet, command};

use super::payload::payload;
use super::system::Answers;
use super::troubles::Troubles;

/// An update without an answer is sent again after so long.
const RESEND: Duration = Duration::from_millis(10);
/// An update without an answer for so long ends the measurement.
const PATIENCE: Duration = Duration::from_secs(5);
/// An OPEN, a barrier or an END is sent again after so long.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// Datagrams taken in at once.
const BURST_MAX: usize = 64;

/// See the module's text.
pub struct Session {
    socket: UdpSocket,
    answers: Answers,
    /// Session, token and epoch of every packet; `seq` is the last one given out.
    stamp: Header,
    /// Header without seq, and its part of the payload.
    fragments: Vec<(Header, Vec<u8>)>,
    /// The update on its way, as it was sent.
    packets: Vec<Vec<u8>>,
    /// Which of them came back by themselves.
    back: Vec<bool>,
    begun: Instant,
    sent: Instant,
    busy: bool,
    /// Devices that held every update so far.
    copies: Option<u8>,
    /// What did not go smoothly.
    pub troubles: Troubles,
}

impl Session {
    /// A socket in the calling thread's network namespace, and a session of the device if one
    /// answers. `number` makes keys differ.
    pub fn open(
        target: SocketAddrV4,
        answers: Answers,
        payload_bytes: usize,
        number: usize,
    ) -> anyhow::Result<Session> {
        let socket = UdpSocket::bind("0.0.0.0:0").context("no socket")?;
        socket.connect(target).context("no way to the system")?;
        let token = fastrand::u64(1..);
        let stamp = Header {
            session: fastrand::u64(1..),
            tag: token,
            ..Header::new(Kind::Update)
        };
        let now = Instant::now();
        let mut session = Session {
            socket,
            answers,
            stamp,
            fragments: Vec::new(),
            packets: Vec::new(),
            back: Vec::new(),
            begun: now,
            sent: now,
            busy: false,
            copies: None,
            troubles: Troubles::default(),
        };
        if answers == Answers::Device {
            let open = Header {
                tag: token,
                ..Header::new(Kind::Open)
            };
            let reply = session.ask(&open, &token.to_be_bytes(), "OPEN", |packet| {
                (packet.header.kind == Kind::OpenReply).then_some(packet.header)
            })?;
            session.stamp.session = reply.session;
            session.stamp.epoch = reply.epoch;
        }
        session.socket.set_nonblocking(true)?;
        session.split(&payload(payload_bytes, number)?)?;
        Ok(session)
    }

    /// The socket, to be polled.
    pub const fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Whether an update is on its way.
    pub const fn busy(&self) -> bool {
        self.busy
    }

    /// Devices that held every update; 0 if nobody claims to.
    pub fn copies(&self) -> u8 {
        self.copies.unwrap_or(0)
    }

    fn split(&mut self, payload: &[u8]) -> anyhow::Result<()> {
        let parts = payload.chunks(FRAGMENT_BYTES);
        let count = u16::try_from(parts.len()).context("too many fragments")?;
        for (index, part) in (0..).zip(parts) {
            let header = Header {
                fragment_index: index,
                fragment_count: count,
                ..self.stamp
            };
            self.fragments
                .push((header.for_payload(part), part.to_vec()));
        }
        self.packets = vec![Vec::new(); self.fragments.len()];
        self.back = vec![false; self.fragments.len()];
        Ok(())
    }

    /// Sends the next update. Its time begins when its packets are ready.
    pub fn begin(&mut self) -> anyhow::Result<()> {
        for ((header, part), packet) in self.fragments.iter().zip(&mut self.packets) {
            self.stamp.seq += 1;
            packet.clear();
            let header = Header {
                seq: self.stamp.seq,
                epoch: self.stamp.epoch,
                ..*header
            };
            packet.extend_from_slice(&header.emit());
            packet.extend_from_slice(part);
        }
        self.back.fill(false);
        self.busy = true;
        self.begun = Instant::now();
        self.sent = self.begun;
        self.transmit()
    }

    fn transmit(&mut self) -> anyhow::Result<()> {
        for packet in &self.packets {
            if let Err(error) = self.socket.send(packet) {
                ensure!(is_passing(&error), "cannot send: {error}");
                self.troubles.not_sent += 1;
            }
        }
        Ok(())
    }

    /// Takes in what is there. Gives begin and end of the update, when it is complete.
    pub fn receive(&mut self) -> anyhow::Result<Option<(Instant, Instant)>> {
        let mut buffer = [0; DATAGRAM_BYTES_MAX + 1];
        for _ in 0..BURST_MAX {
            let length = match self.socket.recv(&mut buffer) {
                Ok(length) => length,
                Err(error) if is_passing(&error) => return Ok(None),
                Err(error) => return Err(error).context("cannot receive"),
            };
            let now = Instant::now();
            if self.take(&buffer[..length])? {
                self.busy = false;
                return Ok(Some((self.begun, now)));
            }
        }
        Ok(None)
    }

    /// Checks an answer. True: the update on its way is complete with it.
    fn take(&mut self, datagram: &[u8]) -> anyhow::Result<bool> {
        let packet = Packet::parse(datagram)
            .map_err(|reason| anyhow::anyhow!("an answer is damaged: {reason}"))?;
        let header = &packet.header;
        ensure!(
            header.session == self.stamp.session && header.tag == self.stamp.tag,
            "an answer is of another session: {header}"
        );
        ensure!(
            header.seq <= self.stamp.seq || header.kind == Kind::Nack,
            "an answer is ahead of what was sent ({}): {header}",
            self.stamp.seq
        );
        match (header.kind, self.answers) {
            (Kind::Update, Answers::Itself) => {
                let mut own = self.packets.iter().zip(&mut self.back);
                match own.find(|(packet, back)| !**back && **packet == datagram) {
                    Some((_, back)) if self.busy => *back = true,
                    _ => self.troubles.stale += 1,
                }
                Ok(self.busy && self.back.iter().all(|back| *back))
            }
            (Kind::Ack, Answers::Handler | Answers::Device) => {
                if !self.busy || header.seq < self.stamp.seq {
                    // Of a fragment before the last, or again.
                    self.troubles.stale += u64::from(self.fragments.len() == 1);
                    return Ok(false);
                }
                ensure!(
                    self.answers == Answers::Handler || header.copies > 0,
                    "acknowledged without a copy: {header}"
                );
                self.stamp.epoch = self.stamp.epoch.max(header.epoch);
                self.copies = Some(self.copies.map_or(header.copies, |c| c.min(header.copies)));
                Ok(true)
            }
            (Kind::OpenReply, Answers::Device) => {
                // An OPEN that was sent twice is answered twice.
                self.troubles.stale += 1;
                Ok(false)
            }
            (Kind::NotLogged, Answers::Device) => {
                self.troubles.not_logged += 1;
                Ok(false)
            }
            (Kind::Nack, Answers::Device) if !header.flags.has(Flags::UNKNOWN_SESSION) => {
                self.troubles.nacks += 1;
                Ok(false)
            }
            _ => bail!("an answer that does not belong here: {header}"),
        }
    }

    /// Sends again what is without an answer for too long.
    pub fn look(&mut self, now: Instant) -> anyhow::Result<()> {
        if !self.busy || now.saturating_duration_since(self.sent) < RESEND {
            return Ok(());
        }
        ensure!(
            now.saturating_duration_since(self.begun) < PATIENCE,
            "an update is without an answer for {} s ({:?})",
            PATIENCE.as_secs(),
            self.troubles
        );
        self.troubles.resends += 1;
        self.sent = now;
        self.transmit()
    }

    /// Waits until the server has applied everything that was sent before.
    pub fn settle(&mut self) -> anyhow::Result<()> {
        let barrier = Header {
            flags: Flags::READ_ONLY,
            request: 1,
            kind: Kind::Bypass,
            ..self.stamp
        };
        self.ask(&barrier, &command::barrier(), "barrier", |packet| {
            (packet.header.kind == Kind::Response && packet.header.request == 1).then_some(())
        })
    }

    /// Ends the session at the device.
    pub fn end(&mut self) -> anyhow::Result<()> {
        if self.answers != Answers::Device {
            return Ok(());
        }
        let end = Header {
            kind: Kind::End,
            seq: self.stamp.seq + 1,
            ..self.stamp
        };
        self.ask(&end, &[], "END", |packet| {
            (packet.header.kind == Kind::Ack && packet.header.seq == end.seq).then_some(())
        })
    }

    fn ask<T>(
        &mut self,
        header: &Header,
        payload: &[u8],
        name: &str,
        accept: impl Fn(&Packet<'_>) -> Option<T>,
    ) -> anyhow::Result<T> {
        let mut question = Vec::new();
        header.write(payload, &mut question);
        self.socket.set_nonblocking(false)?;
        self.socket.set_read_timeout(Some(ASK_AGAIN))?;
        let mut buffer = [0; DATAGRAM_BYTES_MAX + 1];
        let begun = Instant::now();
        let mut asked: Option<Instant> = None;
        while begun.elapsed() < PATIENCE {
            if asked.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN) {
                asked = Some(Instant::now());
                if let Err(error) = self.socket.send(&question) {
                    ensure!(is_passing(&error), "cannot send: {error}");
                }
            }
            let length = match self.socket.recv(&mut buffer) {
                Ok(length) => length,
                Err(error) if is_passing(&error) => continue,
                Err(error) => return Err(error).context("cannot receive"),
            };
            let answer = Packet::parse(&buffer[..length]).ok();
            let own = answer.filter(|packet| packet.header.tag == self.stamp.tag);
            if let Some(answer) = own.as_ref().and_then(&accept) {
                self.socket.set_nonblocking(true)?;
                return Ok(answer);
            }
        }
        bail!("no answer to {name} within {} s", PATIENCE.as_secs())
    }
}

/// Nothing there, or about a datagram that was lost: both pass.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock
            | ErrorKind::Interrupted
            | ErrorKind::ConnectionRefused
            | ErrorKind::OutOfMemory
    ) || error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(answers: Answers, bytes: usize) -> (Session, UdpSocket) {
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        let std::net::SocketAddr::V4(address) = far.local_addr().unwrap() else {
            panic!("an IPv4 socket");
        };
        (Session::open(address, answers, bytes, 0).unwrap(), far)
    }

    fn ack(session: &Session, seq: u64) -> Vec<u8> {
        let header = Header {
            kind: Kind::Ack,
            seq,
            ..session.stamp
        };
        header.for_payload(&[]).emit().to_vec()
    }

    #[test]
    fn an_update_of_two_packets_is_complete_with_both() {
        let (mut session, _far) = pair(Answers::Itself, 1400);
        session.begin().unwrap();
        let packets = session.packets.clone();
        assert_eq!(packets.len(), 2);
        assert!(!session.take(&packets[1]).unwrap());
        assert!(!session.take(&packets[1]).unwrap());
        assert_eq!(session.troubles.stale, 1);
        assert!(session.take(&packets[0]).unwrap());

        let (mut session, _far) = pair(Answers::Handler, 1400);
        session.begin().unwrap();
        assert!(!session.take(&ack(&session, 1)).unwrap());
        assert!(session.take(&ack(&session, 2)).unwrap());
    }

    #[test]
    fn wrong_answers_end_the_measurement() {
        let (mut session, _far) = pair(Answers::Handler, 50);
        session.begin().unwrap();
        let good = ack(&session, 1);
        let mut damaged = good.clone();
        damaged[35] ^= 1;
        assert!(session.take(&damaged).is_err());
        assert!(session.take(&ack(&session, 2)).is_err());
        let own = session.packets[0].clone();
        assert!(session.take(&own).is_err());
        session.stamp.tag += 1;
        assert!(session.take(&good).is_err());
        session.stamp.tag -= 1;
        assert!(session.take(&good).unwrap());
        // An OPEN that was asked twice is answered twice, by a device.
        let mut late = Vec::new();
        let reply = Header {
            kind: Kind::OpenReply,
            seq: 0,
            ..session.stamp
        };
        reply.write(&[], &mut late);
        assert!(session.take(&late).is_err());
        session.answers = Answers::Device;
        assert!(!session.take(&late).unwrap());
        // A device that claims no copy has acknowledged nothing.
        assert!(session.take(&good).is_err());
    }

    #[test]
    fn what_is_not_answered_is_sent_again_the_same() {
        let (mut session, far) = pair(Answers::Handler, 50);
        session.begin().unwrap();
        session.look(session.begun).unwrap();
        assert_eq!(session.troubles.resends, 0);
        session.look(session.begun + RESEND).unwrap();
        assert_eq!(session.troubles.resends, 1);
        let mut buffers = [[0; 2000]; 2];
        let lengths = buffers.each_mut().map(|buffer| far.recv(buffer).unwrap());
        assert_eq!(lengths[0], 88 + 50);
        assert_eq!(buffers[0], buffers[1]);
        assert!(session.look(session.begun + PATIENCE).is_err());
    }
}
