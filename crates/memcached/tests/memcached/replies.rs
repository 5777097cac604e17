//! Answers that the front gives without the store, and answers that differ from those of memcached.

use pmnet_client::{Closed, Outcome};
use pmnet_memcached::connection::{Dialect, Store as Known, Way};

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
    assert_eq!(ways, [Way::Read, Way::Change, Way::Read]);
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
}

const SET: &[u8] = b"set k 0 0 1\r\nv\r\n";

fn reply(text: &[u8]) -> Outcome {
    Outcome::Reply(text.to_vec().into())
}

#[test]
fn nothing_is_promised_to_a_store_that_does_not_serve() {
    const FOREIGN: &str = "ERR pmnet: a program of its own serves here";
    const NO_DATABASE: &str = "ERR DB index is out of range";
    let mut bench = Bench::fresh();
    bench.shared.database = 5;
    let name = &b"$4\r\nname\r\n"[..];
    let no_address = b"-ERR pmnet: this store has no address of its own\r\n";
    for (answers, dialect, error) in [
        (vec![format!("-{FOREIGN}\r\n")], None, FOREIGN),
        (
            vec!["$4\r\nname\r\n".into(), format!("-{NO_DATABASE}\r\n")],
            Some(Dialect::Redis),
            NO_DATABASE,
        ),
        (vec!["+OK\r\n".into()], None, "the store has answered"),
    ] {
        bench.calls.clear();
        bench.connection.receive(SET);
        bench.advance();
        for (number, answer) in (1..).zip(&answers) {
            assert_eq!(bench.calls.len(), number, "one question after the other");
            assert!(bench.connection.unwritten().is_empty(), "it waits");
            bench.end(&reply(answer.as_bytes()));
            if number < answers.len() {
                assert_eq!(bench.shared.store(), &Known::Is(dialect.unwrap()));
            }
            bench.advance();
        }
        let said = String::from_utf8(bench.take()).unwrap();
        assert!(said.starts_with(&format!("SERVER_ERROR {error}")), "{said}");
        assert!(bench.calls.iter().all(|call| call.way == Way::Read));
        // The front does not ask the store again for each command, but only after a second. Changes are refused, too.
        bench.calls.clear();
        bench.shared.unix_millis += 999;
        for command in [SET, b"incr k 1\r\n"] {
            let said = bench.say(command);
            assert!(said.starts_with(b"SERVER_ERROR "), "{said:?}");
        }
        assert_eq!(bench.calls.len(), 0);
        bench.shared.unix_millis += 1;
    }
    // From now on the store serves the front. A list at the key is no reason to refuse.
    bench.connection.receive(&SET.repeat(2));
    bench.advance();
    bench.end(&reply(name));
    bench.advance();
    let question = bench.calls.last().unwrap();
    let commands = pmnet_wire::command::Commands::parse(&question.payload).unwrap();
    let words: Vec<&[u8]> = commands.iter().next().unwrap().collect();
    assert_eq!(
        (commands.database, &words[..]),
        (5, &[&b"GET"[..], b"k"][..])
    );
    bench.end(&reply(b"-WRONGTYPE Operation against a key\r\n"));
    bench.calls.clear();
    bench.advance();
    assert!(bench.calls.len() == 2 && bench.calls.iter().all(|call| call.way == Way::Update));
    bench.end(&Outcome::Committed { copies: 1 });
    assert_eq!(bench.say(b""), b"STORED\r\nSTORED\r\n");
    assert_eq!(bench.shared.store(), &Known::Serves(Dialect::Redis));
    // Another store may serve a later session. An answer of the previous store then does not count.
    bench.shared.forget_store();
    bench.connection.receive(SET);
    bench.advance();
    bench.shared.forget_store();
    bench.end(&reply(name));
    assert_eq!(bench.shared.store(), &Known::Unknown);
    bench.advance();
    bench.end(&reply(no_address));
    assert_eq!(bench.shared.store(), &Known::Is(Dialect::Packet));
    assert_eq!(
        bench.say(b""),
        b"STORED\r\n",
        "the store of the bench serves"
    );
}

#[test]
fn sets_wait_for_the_store_until_their_deadline() {
    for (outcome, says) in [
        (Outcome::Failed("why"), "pmnet: why"),
        (Outcome::Unknown, "pmnet: the store has not answered"),
    ] {
        let mut bench = Bench::fresh();
        bench.connection.receive(&SET.repeat(3));
        bench.connection.receive(b"get k\r\n");
        bench.connection.receive(SET);
        bench.advance();
        assert_eq!(bench.calls.len(), 1);
        bench.end(&outcome);
        let said = String::from_utf8(bench.say(b"")).unwrap();
        let lines: Vec<&str> = said.split_terminator("\r\n").collect();
        assert!(
            lines.len() == 5
                && lines[..3]
                    .iter()
                    .all(|line| line.starts_with(&format!("SERVER_ERROR {says}"))),
            "{said}"
        );
        assert_eq!(lines[3..], ["END", "STORED"]);
    }
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

#[test]
fn no_answer_is_answered_over_udp() {
    const ROOM: usize = 10_000;
    let mut bench = Bench::new();
    // The data of one item looks like a command, but is not executed.
    let mut answers: Vec<Vec<u8>> = [
        "set k 0 0 10\r\nget k\r\nmn\r\r\n",
        "get k\r\n",
        "gets k none\r\n",
        "get none\r\n",
        "add k 0 0 1\r\nv\r\n",
        "cas k 0 0 1 5\r\nv\r\n",
        "mg k v\r\n",
        "mg none\r\n",
        "mg k s\r\n",
        "me k\r\n",
        "ms k 1 C5\r\nv\r\n",
        "ms k 1 MA C0\r\nv\r\n",
        "md none\r\n",
        "ms n 1\r\n7\r\n",
        "incr n 1\r\n",
        "incr n 100\r\n",
        "incr k 1\r\n",
        "ma n v\r\n",
        "touch n 0\r\n",
        "gat 0 n\r\n",
        "delete n\r\n",
        "delete n\r\n",
        "mn\r\n",
        "version\r\n",
        "verbosity 1\r\n",
        "stats\r\n",
        "stats settings\r\n",
        "stats reset\r\n",
        "shutdown\r\n",
        "flush_all\r\n",
        "get\r\n",
        "mg k v v\r\n",
        "get pmnet:{0}\r\n",
    ]
    .map(|command| bench.say(command.as_bytes()))
    .into();
    answers.push(pmnet_memcached::datagram::IN_PIECES.to_vec());
    answers.push(pmnet_memcached::datagram::TOO_LONG.to_vec());
    answers.push(b"ERROR\r\n".to_vec());
    bench.shared.counters.datagrams_dropped = 0;
    bench.calls.clear();
    for (number, answer) in (1..).zip(&answers) {
        assert!(!answer.is_empty(), "{number}");
        bench.ask_once(answer, ROOM);
        let text = answer.escape_ascii();
        assert_eq!(bench.say(b""), b"", "{text}");
        assert!(bench.connection.is_finished() && !bench.connection.is_within());
        assert_eq!(bench.shared.counters.datagrams_dropped, number, "{text}");
    }
    assert_eq!(bench.calls.len(), 0);
    // The commands before the unknown command are answered.
    bench.ask_once(b"mn\r\nfoo\r\nmn\r\n", ROOM);
    assert_eq!(bench.say(b""), b"MN\r\n");
}
