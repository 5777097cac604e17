//! Answers of the front alone: what it does not have from the store, and what memcached answers in another way.

use pmnet_client::{Closed, Outcome};
use pmnet_memcached::connection::Way;

use crate::bench::Bench;

#[test]
fn only_a_plain_set_is_acknowledged_early() {
    for (command, way) in [
        ("set k 0 0 1\r\nv\r\n", Way::Update),
        ("set k 0 100 1\r\nv\r\n", Way::Update),
        ("set k 0 -1 1 noreply\r\nv\r\n", Way::Update),
        ("ms k 1\r\nv\r\n", Way::Update),
        ("ms k 1 T5 F7 c k\r\nv\r\n", Way::Update),
        ("ms k 1 MS I\r\nv\r\n", Way::Update),
        ("ms k 1 C5\r\nv\r\n", Way::Change),
        ("ms k 1 ME\r\nv\r\n", Way::Change),
        ("add k 0 0 1\r\nv\r\n", Way::Change),
        ("replace k 0 0 1\r\nv\r\n", Way::Change),
        ("append k 0 0 1\r\nv\r\n", Way::Change),
        ("cas k 0 0 1 5\r\nv\r\n", Way::Change),
        ("incr k 1\r\n", Way::Change),
        ("touch k 5\r\n", Way::Change),
        ("gat 5 k\r\n", Way::Change),
        ("delete k\r\n", Way::Change),
        ("flush_all\r\n", Way::Change),
        ("mg k v N5\r\n", Way::Change),
        ("get k l\r\n", Way::Read),
        ("mg k t\r\n", Way::Read),
        ("me k\r\n", Way::Read),
    ] {
        let mut bench = Bench::new();
        bench.say(b"incr none 1\r\n");
        bench.calls.clear();
        bench.say(command.as_bytes());
        let ways: Vec<Way> = bench.calls.iter().map(|call| call.way).collect();
        assert_eq!(ways, [way], "{command:?}");
        if way == Way::Update {
            let commands = pmnet_wire::command::Commands::parse(&bench.calls[0].payload).unwrap();
            let words: Vec<&[u8]> = commands.iter().next().unwrap().collect();
            assert!(
                pmnet_wire::promise::is_promised(words.len(), |at| words[at]),
                "{command:?}"
            );
        }
    }
}

#[test]
fn what_goes_together_goes_in_one_call() {
    let mut bench = Bench::new();
    bench.say(b"set a 1 0 1\r\n1\r\nset b 2 0 1\r\n2\r\n");
    bench.calls.clear();
    let text = bench.text("get a\r\nget b none\r\nmg a v\r\nincr a 1\r\nincr b 1\r\nget a b\r\n");
    assert_eq!(
        text,
        "VALUE a 1 1\n1 bytes: 1\nEND\nVALUE b 2 1\n1 bytes: 2\nEND\nVA 1\n1 bytes: 1\n2\n3\n\
         VALUE a 1 1\n1 bytes: 2\nVALUE b 2 1\n1 bytes: 3\nEND\n"
    );
    let ways: Vec<Way> = bench.calls.iter().map(|call| call.way).collect();
    // The second is the question what the store is.
    assert_eq!(ways, [Way::Read, Way::Read, Way::Change, Way::Read]);
}

#[test]
fn a_get_comes_after_the_sets_before_it() {
    let mut bench = Bench::new();
    bench
        .connection
        .receive(b"set k 0 0 1\r\n1\r\nset k 0 0 1\r\n2\r\nget k\r\nset k 0 0 1\r\n3\r\nget k\r\n");
    bench.advance();
    let ways: Vec<Way> = bench.calls.iter().map(|call| call.way).collect();
    assert_eq!(
        ways,
        [Way::Update, Way::Update, Way::Read],
        "nothing is submitted behind what the store answers"
    );
    let answer = bench.say(b"");
    assert_eq!(
        answer,
        b"STORED\r\nSTORED\r\nVALUE k 0 1\r\n2\r\nEND\r\nSTORED\r\nVALUE k 0 1\r\n3\r\nEND\r\n"
    );
}

#[test]
fn a_stale_item_is_promised_to_one() {
    let mut bench = Bench::new();
    assert_eq!(bench.text("ms k 1\r\nv\r\nmd k I T30\r\n"), "HD\nHD\n");
    assert_eq!(
        bench.text("mg k v\r\nmg k v\r\nmg k v t\r\nget k\r\n"),
        "VA 1 X W\n1 bytes: v\nVA 1 Z X\n1 bytes: v\nVA 1 tN Z X\n1 bytes: v\nVALUE k 0 1\n1 bytes: v\nEND\n"
    );
    assert_eq!(
        bench.text("ms k 1\r\nw\r\nmg k v\r\n"),
        "HD\nVA 1\n1 bytes: w\n"
    );
}

#[test]
fn what_the_store_could_not_do_is_said() {
    let mut bench = Bench::new();
    for (command, outcome, says) in [
        (
            "set k 0 0 1\r\nv\r\n",
            Outcome::Failed("why"),
            "SERVER_ERROR pmnet: why\r\n",
        ),
        (
            "get k\r\n",
            Outcome::Unknown,
            "SERVER_ERROR pmnet: outcome unknown",
        ),
        (
            "get k\r\n",
            Outcome::Reply((&b"-OOM no\r\n"[..]).into()),
            "SERVER_ERROR OOM no\r\n",
        ),
        (
            "get k\r\n",
            Outcome::Reply((&b":5\r\n"[..]).into()),
            "SERVER_ERROR the store has answered in another form",
        ),
        (
            "get k\r\n",
            Outcome::Reply((&b"$3\r\nabc\r\n"[..]).into()),
            "SERVER_ERROR ERR pmnet: the key holds something",
        ),
        (
            "get k l\r\n",
            Outcome::Reply((&b"-ERR x\r\n"[..]).into()),
            "SERVER_ERROR ERR x\r\n",
        ),
        (
            "add k 0 0 1\r\nv\r\n",
            Outcome::Failed("why"),
            "SERVER_ERROR pmnet: why\r\n",
        ),
        ("add k 0 0 1 noreply\r\nv\r\n", Outcome::Failed("why"), ""),
        (
            "ms k 1 q\r\nv\r\n",
            Outcome::Unknown,
            "SERVER_ERROR pmnet: outcome unknown",
        ),
    ] {
        bench.connection.receive(command.as_bytes());
        bench.advance();
        bench.end(&outcome);
        bench.advance();
        let answer = String::from_utf8(bench.take()).unwrap();
        assert!(
            answer.starts_with(says) && answer.is_empty() == says.is_empty(),
            "{command:?}: {answer:?}"
        );
    }
    // The question what the store is fails, and the next one is answered.
    bench.connection.receive(b"incr a 1\r\nincr a 1\r\n");
    bench.advance();
    bench.end(&Outcome::Failed("why"));
    assert_eq!(bench.say(b""), b"SERVER_ERROR pmnet: why\r\nNOT_FOUND\r\n");
}

#[test]
fn after_a_loss_the_next_command_is_the_last() {
    let mut bench = Bench::new();
    bench
        .connection
        .session_closed(Closed::DataLoss { from: 3, to: 5 });
    let answer = String::from_utf8(bench.say(b"get k\r\nget k\r\n")).unwrap();
    assert!(
        answer.starts_with("SERVER_ERROR pmnet: closing: DATA_LOSS"),
        "{answer}"
    );
    assert_eq!(answer.matches("\r\n").count(), 1);
    assert!(bench.connection.is_finished());
}

#[test]
fn the_records_of_pmnet_are_out_of_reach() {
    let mut bench = Bench::new();
    for command in [
        "get pmnet:{0}",
        "set pmnet:{0} 0 0 1\r\nv",
        "mg cG1uZXQ6ezB9 b v",
        "delete pmnet:{x}",
    ] {
        let answer = bench.text(&format!("{command}\r\n"));
        assert_eq!(
            answer, "CLIENT_ERROR pmnet: keys that begin with pmnet:{ are reserved\n",
            "{command}"
        );
    }
}

#[test]
fn statistics_say_what_was_done() {
    let mut bench = Bench::new();
    bench.say(b"set a 0 0 1\r\n1\r\nget a b\r\nincr a 1\r\ndecr b 1\r\ntouch a 5\r\ndelete a\r\ndelete a\r\n");
    let text = bench.text("stats\r\n");
    for (name, value) in [
        ("cmd_set", 1),
        ("get_hits", 1),
        ("get_misses", 1),
        ("incr_hits", 1),
        ("decr_misses", 1),
        ("touch_hits", 1),
        ("delete_hits", 1),
        ("delete_misses", 1),
        ("threads", 1),
    ] {
        assert!(
            text.contains(&format!("STAT {name} {value}\n")),
            "{name}: {text}"
        );
    }
    assert!(text.contains("STAT version 1.6.18-pmnet\n") && text.ends_with("END\n"));
    assert_eq!(bench.text("stats reset\r\n"), "RESET\n");
    assert!(bench.text("stats\r\n").contains("STAT cmd_set 0\n"));
    assert!(
        bench
            .text("stats settings\r\n")
            .contains("STAT item_size_max 1048576\n")
    );
    assert_eq!(bench.text("stats items\r\n"), "END\n");
}

#[test]
fn a_flush_can_be_put_off() {
    let mut bench = Bench::new();
    assert_eq!(
        bench.text("set a 0 0 1\r\n1\r\nflush_all 10\r\nget a\r\n"),
        "STORED\nOK\nVALUE a 0 1\n1 bytes: 1\nEND\n"
    );
    assert_eq!(
        bench.shared.flush_at,
        Some(bench.shared.unix_millis + 10_000)
    );
    assert_eq!(bench.text("flush_all noreply\r\nget a\r\n"), "END\n");
    assert_eq!(bench.shared.flush_at, None, "the later one counts");
}
