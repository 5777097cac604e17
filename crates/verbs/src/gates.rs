//! The order in which a client may send on one connection (`docs/spec/verbs.md` §3, 6).
//!
//! A NIC acknowledges every message for which it has a slot, even an update whose predecessor was lost with an earlier
//! connection. The device would drop such an update as out of order, but the client would take it for durable. So
//! update *s* + 1 is sent on a connection only after update *s*, or if *s* is already acknowledged. The device must
//! also know the session. Packets of the session wait until the device has confirmed that.

use pmnet_wire::{Header, Kind};
use rustc_hash::FxHashMap;

/// Maximum number of packets of a session that wait until the device has confirmed the session.
const WAITING_MAX: usize = 4096;

#[derive(Debug)]
enum Gate {
    /// The device was asked whether it knows the session, and these packets wait. All updates up to this seq were
    /// acknowledged when the first of the packets was offered.
    Asked(u64, Vec<(Header, Vec<u8>)>),
    /// All updates up to this seq were sent on this connection, or acknowledged before.
    Open(u64),
    /// The device does not know the session.
    Closed,
}

/// The decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// The packet waits, and the device must be asked about the session.
    Ask,
    /// The packet waits.
    Wait,
    /// The packet must be sent now, after all earlier ones.
    Send,
    /// The packet is dropped; the client's timers send it again.
    Drop,
}

/// The sessions of one connection.
#[derive(Debug, Default)]
pub struct Gates(FxHashMap<u64, Gate>);

impl Gates {
    /// Decides about a packet. `acknowledged`: last acknowledged seq of the packet's session.
    pub fn offer(&mut self, header: &Header, packet: &[u8], acknowledged: u64) -> Offer {
        match self.0.get_mut(&header.session) {
            None => {
                let waiting = vec![(*header, packet.to_vec())];
                let gate = Gate::Asked(acknowledged, waiting);
                self.0.insert(header.session, gate);
                Offer::Ask
            }
            Some(Gate::Closed) => Offer::Drop,
            Some(Gate::Asked(_, waiting)) if waiting.len() >= WAITING_MAX => Offer::Drop,
            Some(Gate::Asked(_, waiting)) => {
                waiting.push((*header, packet.to_vec()));
                Offer::Wait
            }
            Some(Gate::Open(upto)) => {
                let first = acknowledged.max(*upto);
                if !takes_seq(header) {
                    return Offer::Send;
                }
                if header.seq > first + 1 {
                    return Offer::Drop;
                }
                *upto = first.max(header.seq);
                Offer::Send
            }
        }
    }

    /// Notes that the device knows the session. Returns the packets that must be sent now, in this order.
    pub fn open(&mut self, session: u64) -> Vec<(Header, Vec<u8>)> {
        let Some(Gate::Asked(upto, waiting)) = self.0.get_mut(&session) else {
            return Vec::new();
        };
        let (upto, mut waiting) = (*upto, std::mem::take(waiting));
        self.0.insert(session, Gate::Open(upto));
        waiting.retain(|(header, packet)| self.offer(header, packet, upto) == Offer::Send);
        waiting
    }

    /// Notes that the device does not know the session, and drops the session's packets. Returns false if the device
    /// was not asked about the session.
    #[must_use]
    pub fn close(&mut self, session: u64) -> bool {
        let asked = matches!(self.0.get(&session), Some(Gate::Asked(..)));
        if asked {
            self.0.insert(session, Gate::Closed);
        }
        asked
    }
}

/// Returns whether a packet takes a seq of its session.
pub fn takes_seq(header: &Header) -> bool {
    matches!(header.kind, Kind::Update | Kind::End)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: u64 = 7;

    fn packet(kind: Kind, seq: u64) -> (Header, Vec<u8>) {
        let header = Header {
            session: SESSION,
            seq,
            ..Header::new(kind)
        };
        (header, vec![u8::try_from(seq).unwrap()])
    }

    fn offer(gates: &mut Gates, seq: u64, acknowledged: u64) -> Offer {
        let (header, bytes) = packet(Kind::Update, seq);
        gates.offer(&header, &bytes, acknowledged)
    }

    /// Regression: on the old connection the client had sent 5 to 7. On the new one it sent 8 first. The NIC
    /// acknowledged 8, but the device had to drop it.
    #[test]
    fn an_update_is_not_sent_before_the_one_before_it() {
        let mut gates = Gates::default();
        assert_eq!(offer(&mut gates, 8, 4), Offer::Ask);
        assert_eq!(gates.open(SESSION), []);
        assert_eq!(offer(&mut gates, 6, 4), Offer::Drop);
        assert_eq!(offer(&mut gates, 5, 4), Offer::Send);
        assert_eq!(offer(&mut gates, 7, 4), Offer::Drop);
        assert_eq!(offer(&mut gates, 6, 4), Offer::Send);
        assert_eq!(offer(&mut gates, 5, 4), Offer::Send, "again");
        assert_eq!(offer(&mut gates, 8, 4), Offer::Drop);
        assert_eq!(offer(&mut gates, 8, 7), Offer::Send, "acknowledged by UDP");
        assert_eq!(offer(&mut gates, 9, 7), Offer::Send);
    }

    #[test]
    fn packets_wait_for_the_devices_word_and_keep_their_order() {
        let mut gates = Gates::default();
        assert_eq!(offer(&mut gates, 1, 0), Offer::Ask);
        let (header, bytes) = packet(Kind::Bypass, 1);
        assert_eq!(gates.offer(&header, &bytes, 0), Offer::Wait);
        assert_eq!(offer(&mut gates, 3, 0), Offer::Wait);
        assert_eq!(offer(&mut gates, 2, 0), Offer::Wait);
        let wanted = [(Kind::Update, 1), (Kind::Bypass, 1), (Kind::Update, 2)];
        assert_eq!(
            gates.open(SESSION),
            wanted.map(|(kind, seq)| packet(kind, seq))
        );
        assert_eq!(gates.open(SESSION), [], "once");
        assert!(!gates.close(SESSION), "the device was not asked");
        assert_eq!(offer(&mut gates, 3, 0), Offer::Send);
    }

    #[test]
    fn packets_of_a_session_that_the_device_does_not_know_are_dropped() {
        let mut gates = Gates::default();
        assert!(!gates.close(SESSION), "the device was not asked");
        assert_eq!(offer(&mut gates, 1, 0), Offer::Ask);
        assert!(gates.close(SESSION));
        assert_eq!(offer(&mut gates, 1, 0), Offer::Drop);
        assert!(!gates.close(SESSION), "once");
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut gates = Gates::default();
        offer(&mut gates, 1, 0);
        let offers = (0..WAITING_MAX).map(|_| offer(&mut gates, 2, 0));
        assert_eq!(offers.last(), Some(Offer::Drop));
    }
}
