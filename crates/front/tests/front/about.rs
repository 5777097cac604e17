//! HELLO names the store as the store names itself.

use std::time::{Duration, Instant};

use crate::common::{Client, Redis, Running};

/// The reply to HELLO, without the number of the connection.
fn greeting(client: &mut Client, words: &str) -> String {
    let said = client.ask(words);
    let (before, rest) = said.split_once("$2\r\nid\r\n:").expect("a number");
    let (_, after) = rest.split_once("\r\n").expect("an end");
    format!("{before}{after}")
}

#[test]
fn hello_names_the_store_that_there_is() {
    let mut said = Vec::new();
    for name in ["redis-8.2", "valkey-9.1"] {
        let Some(redis) = Redis::start_named(name) else {
            return;
        };
        let front = Running::start(&redis);
        let mut client = front.client();
        let mut direct = redis.client();
        for words in ["HELLO 3 SETNAME n", "HELLO 2", "HELLO"] {
            let wanted = greeting(&mut direct, words);
            assert_eq!(greeting(&mut client, words), wanted, "{name}: {words}");
        }
        assert_eq!(client.ask("CLIENT GETNAME"), "$1\r\nn\r\n");
        assert_eq!(front.knobs().greetings, 1, "it is asked once");
        // In a transaction the store cannot be asked, and need not be.
        assert!(front.client().ask("HELLO 3").starts_with('%'));
        said.push(greeting(&mut client, "HELLO"));
    }
    assert!(
        said[0].contains("8.2.3") && said[0].contains("vectorset"),
        "{}",
        said[0]
    );
    assert!(
        said[1].contains("valkey\r\n") && said[1].contains("9.1.2"),
        "{}",
        said[1]
    );
}

#[test]
fn a_store_that_does_not_answer_keeps_nobody_for_long() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    front.knobs().hold = true;
    let start = Instant::now();
    let mut client = front.client();
    assert!(client.ask("HELLO 3").contains("\r\n6.2.0\r\n"));
    // A client that comes now does not wait at all.
    assert!(front.client().ask("HELLO 3").contains("\r\n6.2.0\r\n"));
    let waited = start.elapsed();
    assert!(waited < Duration::from_secs(3), "{waited:?}");
}
