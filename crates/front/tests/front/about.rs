//! The reply to HELLO names the store as the store names itself.

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
        // In a transaction the front cannot ask the store, and HELLO's reply does not need the version.
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

/// The section of the front comes after the store's sections, in the form of the client's protocol. The other
/// sections are unchanged.
#[test]
fn info_has_a_section_of_the_front() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut client = front.client();
    let own = client.ask("INFO pmnet");
    assert!(
        own.starts_with('$') && own.contains("\r\n# Pmnet\r\npmnet_version:"),
        "{own}"
    );
    assert!(!own.contains("# Server"), "{own}");
    for line in [
        "INFO",
        "INFO all",
        "info Everything",
        "INFO server pmnet",
        "INFO default",
    ] {
        let said = client.ask(line);
        assert_eq!(said.matches("# Pmnet\r\n").count(), 1, "{line}: {said}");
        assert!(said.contains("\r\n\r\n# Pmnet\r\n"), "{line}: {said}");
        let server = said.find("redis_version:");
        assert!(server < said.find("# Pmnet"), "{line}: {said}");
    }
    for line in ["INFO server", "INFO nosuch"] {
        assert!(!client.ask(line).contains("Pmnet"), "{line}");
    }
    assert!(client.ask("HELLO 3").starts_with('%'));
    let said = client.ask("INFO pmnet");
    assert!(
        said.starts_with('=') && said.contains("\r\ntxt:# Pmnet\r\n"),
        "{said}"
    );
    // INFO keeps its place among other commands.
    client.send(b"SET a 1\r\nINFO pmnet\r\nINCR a\r\nGET a\r\n");
    let all: Vec<String> = (0..4).map(|_| client.text()).collect();
    assert!(all[1].contains("txt:# Pmnet"), "{all:?}");
    assert_eq!(
        [&all[0], &all[2], &all[3]],
        ["+OK\r\n", ":2\r\n", "$1\r\n2\r\n"]
    );
    // In a transaction INFO has only the store's sections.
    for (line, wanted) in [
        ("MULTI", "+OK"),
        ("INFO pmnet", "+QUEUED"),
        ("EXEC", "*1\r\n=4\r\ntxt:\r\n"),
    ] {
        let said = client.ask(line);
        assert!(said.starts_with(wanted), "{line}: {said}");
    }
}

#[test]
fn a_store_that_does_not_answer_keeps_nobody_for_long() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    front.knobs().hold = true;
    let start = Instant::now();
    let mut client = front.client();
    assert!(client.ask("HELLO 3").contains("\r\n6.2.0\r\n"));
    // A client that connects now gets its reply without waiting.
    assert!(front.client().ask("HELLO 3").contains("\r\n6.2.0\r\n"));
    let waited = start.elapsed();
    assert!(waited < Duration::from_secs(3), "{waited:?}");
}
