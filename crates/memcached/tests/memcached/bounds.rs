//! What a client can make the front keep.

use pmnet_memcached::connection::{FLIGHT_BYTES_MAX, SLOTS_MAX, UNREAD_BYTES_MAX};

use crate::bench::Bench;

#[test]
fn a_flood_of_commands_without_answers_is_bounded() {
    let mut bench = Bench::new();
    let flood = b"set k 0 0 1 noreply\r\nv\r\n".repeat(100_000);
    let mut sent = 0;
    while bench.connection.wants_input() {
        bench.connection.receive(&flood[sent..sent + 4096]);
        sent += 4096;
        bench.advance();
    }
    assert!(
        bench.calls.len() <= SLOTS_MAX && sent < 200_000,
        "{} {sent}",
        bench.calls.len()
    );
    // It goes on when the devices have answered.
    assert!(bench.execute());
    bench.advance();
    assert!(bench.calls.len() > SLOTS_MAX);
}

#[test]
fn large_commands_are_not_all_taken_at_once() {
    let mut bench = Bench::new();
    let large = [
        &b"set k 0 0 1000000\r\n"[..],
        &vec![b'x'; 1_000_000],
        b"\r\n",
    ]
    .concat();
    for _ in 0..20 {
        bench.connection.receive(&large);
    }
    bench.advance();
    let bytes: usize = bench.calls.iter().map(|call| call.payload.len()).sum();
    assert!(bytes < FLIGHT_BYTES_MAX + 1_100_000, "{bytes}");
    assert!(!bench.connection.wants_input());
}

#[test]
fn a_client_that_reads_nothing_is_not_served_for_ever() {
    let mut bench = Bench::new();
    let large = [&b"set k 0 0 100000\r\n"[..], &vec![b'x'; 100_000], b"\r\n"].concat();
    bench.say(&large);
    bench.connection.receive(&b"get k\r\n".repeat(5000));
    loop {
        bench.advance();
        if !bench.execute() {
            break;
        }
    }
    let unread = bench.connection.unwritten().len();
    assert!((UNREAD_BYTES_MAX..20_000_000).contains(&unread), "{unread}");
    // Whoever reads is served again.
    bench.take();
    assert!(bench.connection.has_more());
}

#[test]
fn many_keys_go_in_several_calls() {
    let mut bench = Bench::new();
    let keys: Vec<String> = (0..1000).map(|number| format!("key{number}")).collect();
    for key in &keys {
        bench.say(format!("set {key} 0 0 1\r\nv\r\n").as_bytes());
    }
    bench.calls.clear();
    let answer = bench.say(format!("get {}\r\n", keys.join(" ")).as_bytes());
    assert_eq!(
        String::from_utf8(answer).unwrap().matches("VALUE ").count(),
        1000
    );
    assert_eq!(
        bench.calls.len(),
        1000usize.div_ceil(15),
        "their values might all be as large as they may be"
    );
}
