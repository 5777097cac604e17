//! Sockets with packets that cannot be sent.

use pmnet_proto::Outbox;
use pmnet_udp::Socket;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Regression: a datagram from port 0 made a device answer to that port, and the error ended the device.
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

/// A socket that is bound to all addresses answers from the address to which the request was sent, because a client
/// drops answers from another address.
#[test]
fn an_answer_carries_the_address_that_was_asked() {
    for (bind, asked) in [
        ("0.0.0.0:0", ["127.0.0.1", "127.0.0.2", "127.0.0.9"]),
        // This socket serves IPv4 and IPv6.
        ("[::]:0", ["127.0.0.1", "127.0.0.2", "::1"]),
    ] {
        let mut socket = Socket::bind(bind.parse().unwrap(), false).unwrap();
        let port = socket.local_address().unwrap().port();
        let clients = asked.map(|address| {
            let asked = SocketAddr::new(address.parse().unwrap(), port);
            let own = if asked.is_ipv4() {
                "127.0.0.1:0"
            } else {
                "[::1]:0"
            };
            let client = std::net::UdpSocket::bind(own).unwrap();
            client
                .set_read_timeout(Some(Duration::from_secs(5)))
                .unwrap();
            client.send_to(b"who", asked).unwrap();
            (client, asked)
        });
        let (mut out, mut heard) = (Outbox::new(), 0);
        let deadline = Instant::now() + Duration::from_secs(5);
        while heard < clients.len() {
            assert!(Instant::now() < deadline, "{heard}");
            socket
                .receive(|from, bytes| {
                    heard += 1;
                    // Two datagrams of one size, which are sent with one call.
                    out.send_raw(from, bytes);
                    out.send_raw(from, bytes);
                })
                .unwrap();
        }
        socket.send(&out);
        for (client, asked) in clients {
            for _ in 0..2 {
                let (_, from) = client.recv_from(&mut [0; 8]).unwrap();
                assert_eq!(from, asked);
            }
        }
    }
}

/// A port that the kernel chooses is never a device's port, although the kernel's range includes such ports.
#[test]
fn a_port_that_is_drawn_is_none_of_a_device() {
    for _ in 0..500 {
        let socket = Socket::bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let port = socket.local_address().unwrap().port();
        assert!(!(51_000..=51_999).contains(&port), "{port}");
    }
}
