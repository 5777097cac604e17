//! The ideal request handler: it acknowledges each update at once and does no other work.

use std::io::ErrorKind;
use std::net::{SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use pmnet_wire::{DATAGRAM_BYTES_MAX, Header, Kind, Packet};

use super::plan::{Handler, cores};

/// Interval at which a sleeping handler checks whether it must end.
const LOOK: Duration = Duration::from_millis(20);

/// The ideal handler, with its bound socket.
pub struct Ideal {
    socket: UdpSocket,
    spins: bool,
}

impl Ideal {
    /// Binds the socket in the calling thread's network namespace.
    pub fn bind(address: SocketAddrV4, handler: Handler) -> anyhow::Result<Ideal> {
        let socket = UdpSocket::bind(address)
            .with_context(|| format!("the ideal handler cannot listen on {address}"))?;
        let spins = handler == Handler::Spins;
        socket.set_nonblocking(spins)?;
        if !spins {
            socket.set_read_timeout(Some(LOOK))?;
        }
        Ok(Ideal { socket, spins })
    }

    /// Answers updates until `stop` is set.
    pub fn serve(&self, stop: &AtomicBool) -> anyhow::Result<()> {
        let mut buffer = [0; DATAGRAM_BYTES_MAX + 1];
        let alone = cores() < 2;
        while !stop.load(Ordering::Relaxed) {
            match self.socket.recv_from(&mut buffer) {
                Ok((length, from)) => {
                    if let Some(answer) = answer(&buffer[..length]) {
                        // If the answer is lost, the client sends the update again, and counts the
                        // resend.
                        let _ = self.socket.send_to(&answer, from);
                    }
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock if self.spins && alone => std::thread::yield_now(),
                    ErrorKind::WouldBlock | ErrorKind::Interrupted => {}
                    // The client has closed its socket, and no longer waits for the answer.
                    ErrorKind::ConnectionRefused => {}
                    _ => return Err(error).context("the ideal handler cannot receive"),
                },
            }
        }
        Ok(())
    }
}

/// Returns the acknowledgement of an update, and `None` for other packets. The number of copies in
/// the acknowledgement is 0, because no device logged the update.
fn answer(datagram: &[u8]) -> Option<[u8; pmnet_wire::HEADER_LEN]> {
    let packet = Packet::parse(datagram).ok()?;
    (packet.header.kind == Kind::Update).then(|| {
        Header {
            session: packet.header.session,
            seq: packet.header.seq,
            tag: packet.header.tag,
            ..Header::new(Kind::Ack)
        }
        .emit()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_updates_only() {
        let header = Header {
            session: 7,
            seq: 9,
            tag: 11,
            ..Header::new(Kind::Update)
        };
        let mut bytes = Vec::new();
        header.write(b"hello", &mut bytes);
        let acknowledgement = answer(&bytes).unwrap();
        let parsed = Packet::parse(&acknowledgement).unwrap().header;
        assert_eq!(
            (parsed.kind, parsed.session, parsed.seq, parsed.tag),
            (Kind::Ack, 7, 9, 11)
        );
        bytes[60] ^= 1;
        assert_eq!(answer(&bytes), None);
        assert_eq!(answer(&acknowledgement), None);
    }
}
