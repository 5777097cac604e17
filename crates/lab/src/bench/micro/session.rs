//! One client. The client sends real packets, has at most one update in flight, and checks every answer.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use pmnet_wire::packet::{Ack, Bypass, Fragment, Identity, Response, Stamp, TimeLeft};
use pmnet_wire::{FRAGMENT_BYTES, Flags, FrontKey, Header, Kind, Packet, SessionKeys, command};

use super::carrier::{Buffer, Carrier};
use super::payload::payload;
use super::system::Answers;
use super::troubles::Troubles;

/// Time after which an update without an answer is sent again.
const RESEND: Duration = Duration::from_millis(10);
/// Time after which the measurement ends if an update has no answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time after which an OPEN, a bypass or an END without an answer is sent again.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// Interval at which the client checks for the answer to an OPEN, a bypass or an END.
const ASK_LOOK: Duration = Duration::from_micros(50);

/// One client, with at most one update in flight.
pub struct Session {
    /// The number by which the carrier knows the client.
    client: usize,
    answers: Answers,
    /// Keys of the session, if the shard has keys.
    keys: Option<SessionKeys>,
    /// Header with session, token and epoch for every packet. The header's `seq` is the last used number.
    stamp: Header,
    /// For each fragment, a header without seq, and the fragment's part of the payload.
    fragments: Vec<(Header, Vec<u8>)>,
    /// The packets of the update in flight, as they were sent.
    packets: Vec<Vec<u8>>,
    /// For each packet, whether the reflected packet has arrived.
    back: Vec<bool>,
    begun: Instant,
    sent: Instant,
    busy: bool,
    /// The smallest number of copies of any update so far.
    copies: Option<u8>,
    /// Numbers of resends and other irregularities.
    pub troubles: Troubles,
}

impl Session {
    /// Opens a session, if the system under test has a device. `client` is the number by which the carrier knows the
    /// client. This number also makes this client's keys differ from those of other clients.
    pub fn open<C: Carrier>(
        carrier: &mut C,
        answers: Answers,
        key: Option<FrontKey>,
        payload_bytes: usize,
        client: usize,
    ) -> anyhow::Result<Session> {
        // The token is even. An odd token would make the session a mark.
        let token = fastrand::u64(1..1 << 60) << 1;
        let stamp = Header {
            session: fastrand::u64(1..),
            tag: token,
            ..Header::new(Kind::Update)
        };
        let now = Instant::now();
        let mut session = Session {
            client,
            answers,
            keys: key.map(|key| key.session(stamp.shard, token)),
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
            let front = key.map(|key| key.id());
            let identity = Identity { token, front }.write();
            let reply = session.ask(carrier, &open, &identity, "OPEN", |packet| {
                (packet.header.kind == Kind::OpenReply).then_some(packet.header)
            })?;
            session.stamp.session = reply.session;
            session.stamp.epoch = reply.epoch;
        }
        session.split(&payload(payload_bytes, client)?)?;
        Ok(session)
    }

    /// Returns the number of devices that held every update; 0 if acknowledgements state no copies.
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

    /// Sends the next update. The round trip of the update is measured from the moment at which its packets are ready.
    pub fn begin<C: Carrier>(&mut self, carrier: &mut C) -> anyhow::Result<()> {
        for ((header, part), packet) in self.fragments.iter().zip(&mut self.packets) {
            self.stamp.seq += 1;
            packet.clear();
            let header = Header {
                seq: self.stamp.seq,
                epoch: self.stamp.epoch,
                ..*header
            };
            packet.extend_from_slice(&sealed(self.keys, header, part).emit());
            packet.extend_from_slice(part);
        }
        self.back.fill(false);
        self.busy = true;
        carrier.prepare(self.client, &self.packets)?;
        self.begun = Instant::now();
        self.sent = self.begun;
        self.troubles.not_sent += carrier.send(self.client, &self.packets)?;
        Ok(())
    }

    /// Handles an answer. If the answer completes the update, returns the time at which the update began.
    pub fn receive(&mut self, datagram: &[u8]) -> anyhow::Result<Option<Instant>> {
        let complete = self.take(datagram)?;
        self.busy &= !complete;
        Ok(complete.then_some(self.begun))
    }

    /// Returns whether the answer has the session's token, or a valid MAC of the head.
    fn is_own(&self, packet: &Packet<'_>) -> bool {
        self.keys
            .map_or(packet.header.tag == self.stamp.tag, |keys| {
                keys.to_client.verifies(packet)
            })
    }

    /// Checks an answer. Returns whether the answer completes the update in flight.
    fn take(&mut self, datagram: &[u8]) -> anyhow::Result<bool> {
        let packet = Packet::parse(datagram)
            .map_err(|reason| anyhow::anyhow!("an answer is damaged: {reason}"))?;
        let header = &packet.header;
        ensure!(
            header.session == self.stamp.session && self.is_own(&packet),
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
                    // The answer belongs to an earlier fragment, or was received before.
                    self.troubles.stale += u64::from(self.fragments.len() == 1);
                    return Ok(false);
                }
                let copies = Ack::read(header).copies;
                ensure!(
                    self.answers == Answers::Handler || copies > 0,
                    "acknowledged without a copy: {header}"
                );
                self.stamp.epoch = self.stamp.epoch.max(header.epoch);
                self.copies = Some(self.copies.map_or(copies, |c| c.min(copies)));
                Ok(true)
            }
            (Kind::OpenReply, Answers::Device) => {
                // The client sent the OPEN twice, so a second answer arrives.
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

    /// Sends an update again if its answer is overdue.
    pub fn look<C: Carrier>(&mut self, carrier: &mut C, now: Instant) -> anyhow::Result<()> {
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
        carrier.prepare(self.client, &self.packets)?;
        self.troubles.not_sent += carrier.send(self.client, &self.packets)?;
        Ok(())
    }

    /// Waits until the server has applied all earlier updates.
    pub fn settle<C: Carrier>(&mut self, carrier: &mut C) -> anyhow::Result<()> {
        let barrier = Bypass {
            session: self.stamp.session,
            last_seq: self.stamp.seq,
            barrier: 0,
            request: 1,
            key_hash: 0,
            left: TimeLeft::NO_LIMIT,
            fragment: Fragment::WHOLE,
            read_only: true,
            more: false,
        };
        let barrier = barrier.header(&Stamp::of(&self.stamp));
        self.ask(
            carrier,
            &barrier,
            &command::barrier(),
            "barrier",
            |packet| {
                let ours = packet.header.kind == Kind::Response
                    && Response::read(&packet.header).request == 1;
                ours.then_some(())
            },
        )
    }

    /// Ends the session at the head.
    pub fn end<C: Carrier>(&mut self, carrier: &mut C) -> anyhow::Result<()> {
        if self.answers != Answers::Device {
            return Ok(());
        }
        let end = Header {
            kind: Kind::End,
            seq: self.stamp.seq + 1,
            ..self.stamp
        };
        self.ask(carrier, &end, &[], "END", |packet| {
            (packet.header.kind == Kind::Ack && packet.header.seq == end.seq).then_some(())
        })
    }

    fn ask<C: Carrier, T>(
        &mut self,
        carrier: &mut C,
        header: &Header,
        payload: &[u8],
        name: &str,
        accept: impl Fn(&Packet<'_>) -> Option<T>,
    ) -> anyhow::Result<T> {
        let mut question = Vec::new();
        sealed(self.keys, header.for_payload(payload), payload).write(payload, &mut question);
        let question = [question];
        let mut buffer: Buffer = [0; _];
        let begun = Instant::now();
        let mut asked: Option<Instant> = None;
        while begun.elapsed() < PATIENCE {
            if asked.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN) {
                asked = Some(Instant::now());
                carrier.prepare(self.client, &question)?;
                // If the request cannot be sent now, a later turn of the loop sends it again.
                carrier.send(self.client, &question)?;
            }
            let Some(arrived) = carrier.receive(&mut buffer)? else {
                std::thread::sleep(ASK_LOOK);
                continue;
            };
            let answer = Packet::parse(&buffer[..arrived.length]).ok();
            let own = answer.filter(|packet| arrived.client == self.client && self.is_own(packet));
            if let Some(answer) = own.as_ref().and_then(&accept) {
                return Ok(answer);
            }
            carrier.unfinished(arrived.client);
        }
        bail!("no answer to {name} within {} s", PATIENCE.as_secs())
    }
}

/// Returns the header with length and checksum of the payload. If there are keys, the header also has its MAC.
fn sealed(keys: Option<SessionKeys>, header: Header, payload: &[u8]) -> Header {
    keys.map_or(header, |keys| keys.to_head.seal(&header, payload))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::micro::carrier::Arrived;

    /// A carrier that keeps the sent datagrams.
    #[derive(Default)]
    struct Sent {
        prepared: Vec<Vec<u8>>,
        sent: Vec<Vec<Vec<u8>>>,
    }

    impl Carrier for Sent {
        fn prepare(&mut self, client: usize, datagrams: &[Vec<u8>]) -> anyhow::Result<()> {
            assert_eq!(client, 3);
            self.prepared = datagrams.to_vec();
            Ok(())
        }
        fn send(&mut self, client: usize, datagrams: &[Vec<u8>]) -> anyhow::Result<u64> {
            assert_eq!((client, &*self.prepared), (3, datagrams));
            self.sent.push(std::mem::take(&mut self.prepared));
            Ok(0)
        }
        fn receive(&mut self, _buffer: &mut Buffer) -> anyhow::Result<Option<Arrived>> {
            Ok(None)
        }
        fn unfinished(&mut self, _client: usize) {}
    }

    fn pair(answers: Answers, bytes: usize) -> (Session, Sent) {
        let mut sent = Sent::default();
        (
            Session::open(&mut sent, answers, None, bytes, 3).unwrap(),
            sent,
        )
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
        let (mut session, mut sent) = pair(Answers::Itself, 1400);
        session.begin(&mut sent).unwrap();
        let packets = session.packets.clone();
        assert_eq!(packets.len(), 2);
        assert!(!session.take(&packets[1]).unwrap());
        assert!(!session.take(&packets[1]).unwrap());
        assert_eq!(session.troubles.stale, 1);
        assert!(session.take(&packets[0]).unwrap());

        let (mut session, mut sent) = pair(Answers::Handler, 1400);
        session.begin(&mut sent).unwrap();
        assert!(!session.take(&ack(&session, 1)).unwrap());
        assert!(session.take(&ack(&session, 2)).unwrap());
    }

    #[test]
    fn wrong_answers_end_the_measurement() {
        let (mut session, mut sent) = pair(Answers::Handler, 50);
        session.begin(&mut sent).unwrap();
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
        // The client sent its OPEN twice, so the device answers twice.
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
        // An acknowledgement with 0 copies acknowledges nothing.
        assert!(session.take(&good).is_err());
    }

    #[test]
    fn what_is_not_answered_is_sent_again_the_same() {
        let (mut session, mut sent) = pair(Answers::Handler, 50);
        session.begin(&mut sent).unwrap();
        session.look(&mut sent, session.begun).unwrap();
        assert_eq!((session.troubles.resends, sent.sent.len()), (0, 1));
        session.look(&mut sent, session.begun + RESEND).unwrap();
        assert_eq!((session.troubles.resends, sent.sent.len()), (1, 2));
        assert_eq!(sent.sent[0][0].len(), 88 + 50);
        assert_eq!(sent.sent[0], sent.sent[1]);
        assert!(session.look(&mut sent, session.begun + PATIENCE).is_err());
    }
}
