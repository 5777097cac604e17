//! Bounds of the memory that one client can make the front use.

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
    // When the devices have answered, the client is served again.
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

/// Maximum number of bytes of the answers to one call.
const CALL_BYTES_MAX: usize = 15 << 20;
const LARGE: usize = 1_000_000;

/// Makes a store that has an item of this size at `k`.
fn with_item(size: usize) -> Bench {
    let mut bench = Bench::new();
    let head = format!("set k 0 0 {size}\r\n");
    bench.say(&[head.as_bytes(), &vec![b'x'; size], b"\r\n"].concat());
    bench.calls.clear();
    bench
}

/// Serves a client that reads nothing, until nothing more can be done. Returns the largest number of bytes that were
/// kept at a time.
fn serve_unread(bench: &mut Bench) -> usize {
    let mut most = 0;
    loop {
        bench.advance();
        most = most.max(bench.connection.kept());
        if !bench.execute() {
            return most;
        }
    }
}

/// Reads the answers in pieces until all commands are answered. Returns the number of bytes that were read.
fn read_all(bench: &mut Bench) -> usize {
    let mut read = 0;
    loop {
        bench.advance();
        assert!(bench.connection.kept() <= UNREAD_BYTES_MAX + CALL_BYTES_MAX);
        let count = bench.connection.unwritten().len().min(300_000);
        bench.connection.wrote(count);
        read += count;
        if !bench.execute() && count == 0 && !bench.connection.has_more() {
            return read;
        }
    }
}

#[test]
fn a_client_that_reads_nothing_is_not_served_for_ever() {
    let mut bench = with_item(100_000);
    bench.connection.receive(&b"get k\r\n".repeat(5000));
    serve_unread(&mut bench);
    let unread = bench.connection.unwritten().len();
    assert!((UNREAD_BYTES_MAX..20_000_000).contains(&unread), "{unread}");
    // When the client has read its answers, it is served again.
    bench.take();
    assert!(bench.connection.has_more());
}

#[test]
fn a_get_of_one_key_many_times_keeps_no_more_than_one_call_brings() {
    const KEYS: usize = 200;
    let mut bench = with_item(LARGE);
    let command = format!("get{}\r\nversion\r\n", " k".repeat(KEYS));
    bench.connection.receive(command.as_bytes());
    let most = serve_unread(&mut bench);
    assert!(
        (LARGE..=UNREAD_BYTES_MAX + CALL_BYTES_MAX).contains(&most),
        "{most}"
    );
    assert_eq!(bench.calls.len(), 1, "nothing is asked until it has read");
    // Every key is answered, and so are the commands after the retrieval.
    let item = format!("VALUE k 0 {LARGE}\r\n\r\n").len() + LARGE;
    let ends = "END\r\nVERSION 1.6.18-pmnet\r\n".len();
    assert_eq!(read_all(&mut bench), KEYS * item + ends);
}

#[test]
fn neither_do_many_gets_nor_what_waits_for_an_answer_before_it() {
    let mut bench = with_item(LARGE);
    let touches = "gat 0 k\r\nmg k v\r\n".repeat(20);
    let command = format!("{}{touches}", "get k\r\n".repeat(60));
    bench.connection.receive(command.as_bytes());
    let most = serve_unread(&mut bench);
    assert!(most <= UNREAD_BYTES_MAX + CALL_BYTES_MAX, "{most}");
    assert!(read_all(&mut bench) > 100 * LARGE);
    // The update has no answer yet, so later answers wait.
    bench.connection.receive(b"set a 0 0 1\r\nv\r\n");
    bench.connection.receive(&b"get k\r\n".repeat(60));
    bench.advance();
    let update = bench.hold();
    let most = serve_unread(&mut bench);
    assert!(
        (LARGE..=UNREAD_BYTES_MAX + CALL_BYTES_MAX).contains(&most),
        "{most}"
    );
    assert!(bench.connection.unwritten().is_empty());
    bench.release(update);
    assert!(read_all(&mut bench) > 60 * LARGE);
}

#[test]
fn a_request_over_udp_asks_for_no_more_than_can_be_sent() {
    const ROOM: usize = 2 << 20;
    let mut bench = with_item(LARGE);
    let command = format!("get{}\r\nset b 0 0 1\r\nv\r\n", " k".repeat(30_000));
    bench.ask_once(command.as_bytes(), ROOM);
    let answer = bench.say(b"");
    assert_eq!(
        answer.len(),
        ROOM,
        "so much that it is known to be too long"
    );
    assert!(bench.calls.len() <= 3, "{}", bench.calls.len());
    assert!(bench.connection.is_finished());
    bench.ask_once(b"get b\r\n", ROOM);
    assert_eq!(
        bench.say(b""),
        b"VALUE b 0 1\r\nv\r\nEND\r\n",
        "what changes something is done all the same"
    );
    bench.ask_once(&b"stats\r\n".repeat(5000), ROOM);
    assert_eq!(bench.say(b"").len(), ROOM);
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
