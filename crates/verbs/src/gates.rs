//! The order in which a client may send on one connection (`docs/spec/verbs.md` §3, 6).
//!
//! A NIC acknowledges whatever it has a slot for, also an update whose predecessor was lost with an earlier connection. The device would drop that update,
//! as one that came out of order, and its client would take it for done. So *s* + 1 is sent on a connection only after *s*, or when *s* is acknowledged. The device
//! must know the session, too: until it has said so, packets wait.

use pmnet_wire::{Header, Kind};
use rustc_hash::FxHashMap;

/// Packets of a session that wait for the device's word, at most.
const WAITING_MAX: usize = 4096;

#[derive(Debug)]
enum Gate {
    /// The device was asked whether it knows the session; these wait. Everything up to this seq was acknowledged when the first of them was offered.
    Asked(u64, Vec<(Header, Vec<u8>)>),
    /// Everything up to this seq was sent here, or acknowledged before.
    Open(u64),
    /// The device does not know it.
    Closed,
}

/// The decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// It waits, and the device is to be asked about its session.
    Ask,
    /// It waits.
    Wait,
    /// It is to be sent now, after all before it.
    Send,
    /// It is dropped; timers send it again.
    Drop,
}

/// The sessions of one connection.
#[derive(Debug, Default)]
pub struct Gates(FxHashMap<u64, Gate>);

impl Gates {
    /// Decides about a packet. `acknowledged`: the last seq of its session that is acknowledged.
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

    /// The device knows the session: returns the packets that are to be sent now, in this order.
    pub fn open(&mut self, session: u64) -> Vec<(Header, Vec<u8>)> {
        let Some(Gate::Asked(upto, waiting)) = self.0.get_mut(&session) else {
            return Vec::new();
        };
        let (upto, mut waiting) = (*upto, std::mem::take(waiting));
        self.0.insert(session, Gate::Open(upto));
        waiting.retain(|(header, packet)| self.offer(header, packet, upto) == Offer::Send);
        waiting
    }

    /// The device does not know the session: its packets are dropped.
    pub fn close(&mut self, session: u64) {
        self.0.insert(session, Gate::Closed);
    }
}

/// Whether a packet takes a seq of its session.
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

    /// A client had sent 5 to 7 on the connection before, and 8 first on the new one: the NIC acknowledged 8, and the device had to drop it.
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
        gates.close(SESSION);
        assert_eq!(offer(&mut gates, 3, 0), Offer::Drop);
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut gates = Gates::default();
        offer(&mut gates, 1, 0);
        let offers = (0..WAITING_MAX).map(|_| offer(&mut gates, 2, 0));
        assert_eq!(offers.last(), Some(Offer::Drop));
    }
}
