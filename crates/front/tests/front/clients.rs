//! CLIENT: its replies and effects. The tests compare replies and effects with those of Redis where both have the same
//! clients.

use crate::common::{Client, Redis, Running, command, eventually};

fn id(client: &mut Client) -> String {
    let id = client.ask("CLIENT ID");
    id.trim_matches(|letter: char| !letter.is_ascii_digit())
        .to_owned()
}

/// A line of CLIENT INFO or LIST: names and values.
fn fields(line: &str) -> Vec<(String, String)> {
    let pair = |word: &str| {
        let (name, value) = word.split_once('=').expect("a field");
        (name.to_owned(), value.to_owned())
    };
    line.trim().split(' ').map(pair).collect()
}

/// The text of a bulk or verbatim reply.
fn text(reply: &str) -> &str {
    let (_, text) = reply.split_once("\r\n").expect("a bulk string");
    text.strip_prefix("txt:").unwrap_or(text)
}

#[test]
fn errors_are_those_of_redis() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let (mut direct, mut through) = (redis.client(), front.client());
    for protocol in ["HELLO 2", "HELLO 3"] {
        direct.ask(protocol);
        through.ask(protocol);
        for line in [
            "CLIENT",
            "CLIENT NOSUCH",
            "CLIENT KILL",
            "CLIENT KILL x",
            "CLIENT KILL 1.1.1.1:1",
            "CLIENT KILL ID",
            "CLIENT KILL ID x",
            "CLIENT KILL ID 0",
            "CLIENT KILL ID -1",
            "CLIENT KILL ID 999",
            "CLIENT KILL TYPE x",
            "CLIENT KILL TYPE replica",
            "CLIENT KILL TYPE master",
            "CLIENT KILL USER nope",
            "CLIENT KILL USER default SKIPME x",
            "CLIENT KILL ADDR 1.1.1.1:1",
            "CLIENT KILL LADDR 1.1.1.1:1",
            "CLIENT KILL FOO x",
            "CLIENT KILL ID 999 ID",
            "CLIENT KILL ID 999 ID 998",
            "CLIENT LIST TYPE",
            "CLIENT LIST TYPE x",
            "CLIENT LIST TYPE master",
            "CLIENT LIST TYPE slave",
            "CLIENT LIST TYPE pubsub",
            "CLIENT LIST ID",
            "CLIENT LIST ID x",
            "CLIENT LIST ID 999",
            "CLIENT LIST ID 999 x",
            "CLIENT LIST FOO",
            "CLIENT LIST FOO x",
            "CLIENT LIST TYPE normal x",
            "CLIENT PAUSE x",
            "CLIENT PAUSE -1",
            "CLIENT PAUSE 0",
            "CLIENT PAUSE 1 FOO",
            "CLIENT PAUSE 99999999999999999999",
            "CLIENT UNPAUSE",
            "CLIENT UNBLOCK x",
            "CLIENT UNBLOCK 999",
            "CLIENT UNBLOCK 999 FOO",
            "CLIENT UNBLOCK 999 TIMEOUT x",
            "CLIENT UNBLOCK -5",
            "CLIENT REPLY FOO",
            "CLIENT REPLY on",
            "CLIENT NO-EVICT x",
            "CLIENT NO-EVICT on",
            "CLIENT NO-TOUCH on",
            "CLIENT NO-TOUCH x",
            "CLIENT NO-TOUCH",
            "CLIENT CAPA redirect",
            "CLIENT CAPA nosuch",
            "CLIENT CAPA",
            "CLIENT IMPORT-SOURCE",
            "CLIENT KILL MAXAGE 1000000",
            "CLIENT KILL MAXAGE x",
            "CLIENT KILL MAXAGE",
            "CLIENT KILL ID 998 999",
            "CLIENT KILL ID 998 999 x",
            "CLIENT KILL ID 998 MAXAGE 1000000 SKIPME yes",
            "CLIENT KILL NOT-ID 998 LADDR 1.1.1.1:1",
            "CLIENT KILL NAME nosuch",
            "CLIENT KILL IDLE 1000000 DB 7",
            "CLIENT KILL FLAGS t CAPA r",
            "CLIENT KILL LIB-NAME x NOT-LIB-VER 1 NOT-TYPE pubsub",
            "CLIENT KILL IP 10.9.9.9",
            "CLIENT KILL TYPE primary",
            "CLIENT LIST NAME nosuch",
            "CLIENT LIST USER default ID 999",
            "CLIENT LIST TYPE pubsub SKIPME x",
            "CLIENT LIST MAXAGE 1000000",
            "CLIENT LIST NOT-TYPE normal NOT-FLAGS N",
            "CLIENT LIST ID 998 999 LADDR 1.1.1.1:1",
            "CLIENT GETREDIR",
            "CLIENT TRACKINGINFO",
            "CLIENT CACHING yes",
            "CLIENT TRACKING off",
            "CLIENT TRACKING x",
            "CLIENT SETNAME",
            "CLIENT HELP",
            "CLIENT INFO x",
            "CLIENT GETNAME",
        ] {
            assert_eq!(through.ask(line), direct.ask(line), "{protocol}: {line}");
        }
    }
}

#[test]
fn what_is_said_of_clients_has_the_fields_of_redis() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    for protocol in ["HELLO 2", "HELLO 3"] {
        let [direct, through] = [redis.client(), front.client()].map(|mut client| {
            for line in [
                protocol,
                "CLIENT NO-EVICT ON",
                "CLIENT SETNAME me",
                "SELECT 3",
            ] {
                client.ask(line);
            }
            let info = client.ask("CLIENT INFO");
            assert_eq!(info.starts_with("="), protocol == "HELLO 3", "{info}");
            fields(text(&info))
        });
        let names =
            |all: &[(String, String)]| all.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&through), names(&direct));
        for ((name, value), (_, expected)) in through.iter().zip(&direct) {
            let seconds = ["age", "idle"];
            if seconds.contains(&name.as_str()) {
                // Ages may differ a little, because the two servers were asked at different times.
                let [a, b] = [value, expected].map(|text| text.parse::<u64>().unwrap());
                assert!(a.abs_diff(b) <= 1, "{name}: {a}, {b}");
            }
            let same = [
                "name", "flags", "db", "sub", "psub", "ssub", "multi", "cmd", "user", "redir",
                "resp",
            ];
            if same.contains(&name.as_str()) {
                assert_eq!(value, expected, "{name}");
            }
        }
        assert!(through[1].1.starts_with("127.0.0.1:"), "{through:?}");
        assert_eq!(through[2].1, front.address.to_string());
    }
    let mut one = front.client();
    let mut two = front.client();
    let [first, second] = [&mut one, &mut two].map(id);
    two.ask("PSUBSCRIBE p*");
    two.ask("SUBSCRIBE a");
    let list = one.ask("CLIENT LIST TYPE pubsub");
    let found = fields(text(&list));
    assert_eq!(found[0], ("id".to_owned(), second.clone()));
    for (name, value) in [
        ("flags", "P"),
        ("sub", "1"),
        ("psub", "1"),
        ("cmd", "subscribe"),
    ] {
        assert!(
            found.contains(&(name.to_owned(), value.to_owned())),
            "{name}: {list}"
        );
    }
    let both = one.ask(&format!("CLIENT LIST ID {second} {first} 77"));
    let lines: Vec<&str> = text(&both).trim().lines().collect();
    assert!(
        lines[0].starts_with(&format!("id={first} "))
            && lines[1].starts_with(&format!("id={second} "))
    );
    assert_eq!(lines.len(), 2, "{both}");
}

#[test]
fn clients_are_killed_by_what_they_are() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut own = front.client();
    own.ask("PING");
    let fresh = || {
        let mut client = front.client();
        client.ask("PING");
        client
    };
    let mut victim = fresh();
    let address = victim.stream.local_addr().expect("an address");
    assert_eq!(own.ask(&format!("CLIENT KILL {address}")), "+OK\r\n");
    assert_eq!(victim.next(), None);
    let mut victim = fresh();
    let number = id(&mut victim);
    assert_eq!(
        own.ask(&format!("CLIENT KILL ID {number} TYPE pubsub")),
        ":0\r\n"
    );
    assert_eq!(own.ask(&format!("CLIENT KILL ID {number}")), ":1\r\n");
    assert_eq!(victim.next(), None);
    let (mut subscriber, mut other) = (fresh(), fresh());
    subscriber.ask("SUBSCRIBE c");
    assert_eq!(own.ask("CLIENT KILL TYPE pubsub"), ":1\r\n");
    assert_eq!(subscriber.next(), None);
    assert_eq!(other.ask("PING"), "+PONG\r\n");
    let local = front.address;
    assert_eq!(
        own.ask(&format!("CLIENT KILL LADDR {local} USER default")),
        ":1\r\n"
    );
    assert_eq!(other.next(), None);
    // The client kills itself after its reply. The rest of its pipeline is not executed.
    own.send(
        &[
            command("CLIENT KILL SKIPME no TYPE normal"),
            command("SET k v"),
        ]
        .concat(),
    );
    assert_eq!(own.text(), ":1\r\n");
    assert_eq!(own.next(), None);
    assert_eq!(fresh().ask("GET k"), "$-1\r\n");
}

#[test]
fn a_client_can_do_without_replies() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let script = [
        "CLIENT REPLY SKIP",
        "SET a 1",
        "GET a",
        "CLIENT REPLY OFF",
        "SET a 2",
        "INCR n",
        "GET a",
        "PING",
        "NOSUCH",
        "CLIENT REPLY SKIP",
        "ECHO no",
        "CLIENT REPLY ON",
        "GET a",
        "CLIENT REPLY SKIP",
        "CLIENT REPLY SKIP",
        "GET a",
        "GET n",
        "CLIENT REPLY SKIP",
        "MULTI",
        "INCR n",
        "EXEC",
        "CLIENT REPLY SKIP",
        "CLIENT REPLY ON",
        "INCR n",
        "CLIENT REPLY SKIP",
        "INCR n",
        "INCR n",
        "BLPOP none 0.01",
        "CLIENT REPLY SKIP",
        "BLPOP none 0.01",
        "GET n",
        "CLIENT REPLY OFF",
        "SUBSCRIBE a",
        "UNSUBSCRIBE a",
        "CLIENT REPLY ON",
        "ECHO the-end",
    ];
    for protocol in [2, 3] {
        let [direct, through] = [redis.client(), front.client()].map(|mut client| {
            client.ask("FLUSHALL");
            client.ask(&format!("HELLO {protocol}"));
            let mut said = Vec::new();
            let all: Vec<u8> = script.iter().flat_map(|line| command(line)).collect();
            client.send(&all);
            while said
                .last()
                .is_none_or(|last: &String| !last.ends_with("the-end\r\n"))
            {
                said.push(client.text());
            }
            said
        });
        assert_eq!(through, direct, "RESP{protocol}");
    }
}

#[test]
fn who_waits_for_others_can_be_unblocked() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let mut own = front.client();
    let mut waits = front.client();
    let number = id(&mut waits);
    for (how, answer) in [
        ("", "*-1\r\n"),
        (" TIMEOUT", "*-1\r\n"),
        (
            " ERROR",
            "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n",
        ),
    ] {
        waits.send(&command("BLPOP none 0"));
        eventually("it waits", || {
            own.ask(&format!("CLIENT UNBLOCK {number}{how}")) == ":1\r\n"
        });
        assert_eq!(waits.text(), answer);
        assert_eq!(own.ask(&format!("CLIENT UNBLOCK {number}{how}")), ":0\r\n");
    }
    assert_eq!(waits.ask("PING"), "+PONG\r\n");
}

#[test]
fn a_pause_holds_back_what_it_is_for_and_ends() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let (mut own, mut other) = (front.client(), front.client());
    assert_eq!(own.ask("CLIENT PAUSE 100000 WRITE"), "+OK\r\n");
    assert_eq!(other.ask("GET k"), "$-1\r\n");
    assert!(other.ask("SET").starts_with("-ERR wrong number"));
    other.send(&[command("SET k 1"), command("GET k")].concat());
    let mut third = front.client();
    assert_eq!(third.ask("MULTI"), "+OK\r\n");
    assert_eq!(third.ask("GET k"), "+QUEUED\r\n");
    assert_eq!(third.ask("EXEC"), "*1\r\n$-1\r\n");
    assert_eq!(own.ask("CLIENT UNPAUSE"), "+OK\r\n");
    assert_eq!(other.text(), "+OK\r\n");
    assert_eq!(other.text(), "$1\r\n1\r\n");
    // A pause for all commands of all clients. The pause ends although no command is sent.
    assert_eq!(own.ask("CLIENT PAUSE 300"), "+OK\r\n");
    assert_eq!(redis.client().ask("SET k 2"), "+OK\r\n");
    assert_eq!(other.ask("GET k"), "$1\r\n2\r\n");
    assert_eq!(own.ask("PING"), "+PONG\r\n");
}

/// Returns the kernel's timer for the front's side of this client's connection: its kind, and the hundredths of a
/// second until it fires.
fn timer(client: &Client) -> (u8, u64) {
    let port = |address: std::net::SocketAddr| format!(":{:04X} ", address.port());
    let (front, own) = (
        port(client.stream.peer_addr().unwrap()),
        port(client.stream.local_addr().unwrap()),
    );
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let line = table.lines().find(|line| {
        let at = |text: &str| line.find(text).unwrap_or(usize::MAX);
        at(&front) < at(&own) && at(&own) < usize::MAX
    });
    let words: Vec<&str> = line.expect("the connection").split_whitespace().collect();
    let (kind, due) = words[5].split_once(':').expect("a timer");
    let number = |text| u64::from_str_radix(text, 16).unwrap();
    (u8::try_from(number(kind)).unwrap(), number(due))
}

#[test]
fn silent_clients_are_checked_after_the_time_that_is_set() {
    let Some(redis) = Redis::start() else { return };
    let seconds = std::time::Duration::from_secs;
    for after in [Some(300), Some(60), None] {
        let front = Running::start_with(&redis, |config| {
            if after != Some(300) {
                config.keepalive = after.map(seconds);
            }
        });
        let mut client = front.client();
        assert_eq!(client.ask("PING"), "+PONG\r\n");
        // Kind 2 means that the kernel waits for silence. (While a reply is not acknowledged, the timer has
        // another kind.)
        eventually("the timer is as set", || match (timer(&client), after) {
            ((2, due), Some(after)) => due <= 100 * after && due > 100 * after - 2000,
            ((kind, _), None) => kind == 0,
            _ => false,
        });
    }
}

#[test]
fn a_router_checks_silent_clients_too() {
    let Some(sharded) = crate::common::sharded::start(&["0-16383"]) else {
        return;
    };
    let mut client = sharded.client();
    assert_eq!(client.ask("PING"), "+PONG\r\n");
    eventually(
        "the timer is as set",
        || matches!(timer(&client), (2, due) if due > 28_000 && due <= 30_000),
    );
}

/// The store decides which subcommands about libraries, and which subcommands of newer servers, exist.
#[test]
fn what_a_client_says_of_itself_is_shown_as_by_the_store() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let (mut direct, mut through) = (redis.client(), front.client());
    let shown = ["name", "flags", "lib-name", "lib-ver", "capa"];
    for line in [
        "CLIENT SETNAME me",
        "CLIENT SETINFO lib-ver 1.2",
        "CLIENT SETINFO LIB-NAME lib(x_v1)",
        "CLIENT SETINFO lib-name a\u{1}",
        "CLIENT SETINFO nosuch x",
        "CLIENT SETINFO lib-name",
        "CLIENT NO-TOUCH ON",
        "CLIENT CAPA redirect",
        "CLIENT NO-TOUCH OFF",
        "MULTI",
        "CLIENT SETINFO lib-ver 1.3",
        "CLIENT NO-TOUCH ON",
        "CLIENT CAPA redirect",
        "CLIENT GETNAME",
        "EXEC",
        "RESET",
    ] {
        let (right, ours) = (direct.ask(line), through.ask(line));
        let is_old = right.contains("unknown subcommand");
        if is_old && line.starts_with("CLIENT SETINFO") && line.split(' ').count() == 4 {
            // Libraries send this subcommand to older servers, too. Users of these libraries must not get an error.
            through.ask("DISCARD");
            direct.ask("DISCARD");
            continue;
        }
        assert_eq!(ours, right, "{line}");
        if line == "MULTI" || line.starts_with("CLIENT") && right == "+QUEUED\r\n" {
            continue;
        }
        let of = |client: &mut Client| {
            let mut all = fields(text(&client.ask("CLIENT INFO")));
            all.retain(|(name, _)| shown.contains(&name.as_str()));
            all
        };
        if !is_old || !right.starts_with('-') {
            assert_eq!(of(&mut through), of(&mut direct), "{line}");
        }
    }
}

/// The conditions of newer servers find the same clients as those servers find.
#[test]
fn the_conditions_of_the_store_find_whom_they_find_there() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start(&redis);
    let find = |mut one: Client, mut two: Client, line: &str| {
        one.ask("CLIENT SETNAME one");
        two.ask("CLIENT SETNAME two");
        two.ask("CLIENT SETINFO lib-name lib");
        two.ask("SELECT 3");
        let mut three = Client::connect(two.stream.peer_addr().unwrap());
        three.ask("CLIENT SETNAME three");
        three.ask("SUBSCRIBE c");
        let ids = [&mut one, &mut two].map(id);
        let line = line.replace("{1}", &ids[0]).replace("{2}", &ids[1]);
        let list = one.ask(&line);
        if !line.starts_with("CLIENT LIST") {
            let lives = |client: &mut Client| {
                client
                    .stream
                    .set_read_timeout(Some(std::time::Duration::from_millis(300)))
                    .unwrap();
                let mut byte = [0; 1];
                std::io::Write::write_all(&mut client.stream, &command("PING")).is_ok()
                    && client.stream.peek(&mut byte).is_ok_and(|count| count > 0)
            };
            return format!(
                "{list} {} {} {}",
                lives(&mut one),
                lives(&mut two),
                lives(&mut three)
            );
        }
        if list.starts_with('-') {
            return list;
        }
        let mut names: Vec<String> = text(&list)
            .lines()
            .filter(|line| !line.is_empty())
            .map(|line| {
                let name = fields(line).into_iter().find(|(field, _)| field == "name");
                name.expect("its name").1
            })
            .filter(|name| !name.is_empty())
            .collect();
        names.sort();
        names.join(" ")
    };
    for line in [
        "CLIENT LIST",
        "CLIENT LIST ID {1} {2}",
        "CLIENT LIST TYPE pubsub",
        "CLIENT LIST TYPE normal NAME one",
        "CLIENT LIST NAME two",
        "CLIENT LIST NOT-NAME two NAME one",
        "CLIENT LIST DB 3",
        "CLIENT LIST LIB-NAME lib",
        "CLIENT LIST FLAGS P",
        "CLIENT LIST IP 127.0.0.1 NAME one",
        "CLIENT LIST NAME one SKIPME yes",
        "CLIENT LIST SKIPME no NAME one",
        "CLIENT LIST IDLE 1000",
        "CLIENT LIST NOT-TYPE normal",
        "CLIENT LIST NOT-ID {1} NAME one",
        "CLIENT KILL ID {2}",
        "CLIENT KILL ID {1} {2}",
        "CLIENT KILL ID {1} {2} SKIPME no",
        "CLIENT KILL TYPE pubsub MAXAGE 1000",
        "CLIENT KILL TYPE pubsub MAXAGE 0",
        "CLIENT KILL NAME two",
        "CLIENT KILL DB 3 NOT-NAME one",
    ] {
        let (direct, through) = (redis.client(), front.client());
        let right = find(direct, redis.client(), line);
        let ours = find(through, front.client(), line);
        assert_eq!(ours, right, "{line}");
    }
    // pmnet's own connections are not among the clients.
    assert_eq!(front.client().ask("SET k v"), "+OK\r\n");
}
