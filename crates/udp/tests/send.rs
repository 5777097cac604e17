//! What a socket does with packets that cannot be sent.

use pmnet_proto::Outbox;
use pmnet_udp::Socket;
use std::time::Duration;

/// One datagram from port 0 made a device answer there, and ended it.
#[test]
fn an_answer_to_nowhere_is_counted_and_the_next_one_is_sent() {
    let mut socket = Socket::bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
    let receiver = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    receiver
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    let mut out = Outbox::new();
    out.send_raw("127.0.0.1:0".parse().unwrap(), b"to nowhere");
    out.send_raw(receiver.local_addr().unwrap(), b"to somebody");
    socket.send(&out);
    let mut buffer = [0; 64];
    let length = receiver.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"to somebody");
    assert_eq!(socket.counters().send_errors, 1);
}
