//! Redis's users through the front: the logins, and the rights of each user.

use std::time::{Duration, Instant};

use crate::common::{Client, DEADLINE, Knobs, Redis, Running, command, eventually};
use pmnet_front::{Access, Cache, FrontConfig, Secret};
use pmnet_wire::command::Form;

const NOAUTH: &str = "-NOAUTH Authentication required.\r\n";
const WRONGPASS: &str = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
const NO_KEY: &str =
    "-NOPERM this user has no permissions to access one of the keys used as arguments\r\n";
/// The user as which the front itself logs in.
const FRONT: &str = "front on >front ~* &* +@all";

fn no_command(name: &str) -> String {
    format!("-NOPERM this user has no permissions to run the '{name}' command\r\n")
}

/// Starts a Redis with these users and with the front's own user. The default user of this Redis has the password
/// `secret`.
fn redis_with(users: &[&str]) -> Option<Redis> {
    let redis = Redis::start()?;
    set_users(&redis, &[FRONT]);
    set_users(&redis, users);
    set_users(&redis, &["default >secret"]);
    Some(redis)
}

fn set_users(redis: &Redis, users: &[&str]) {
    let mut client = redis.client();
    // While the first user is made, this login does not exist yet.
    client.ask("AUTH front front");
    for user in users {
        assert_eq!(client.ask(&format!("ACL SETUSER {user}")), "+OK\r\n");
    }
}

/// Starts a front that serves Redis's users, and logs in to Redis as `front`.
pub fn front(redis: &Redis) -> Running {
    front_with(redis, |_| {})
}

/// Starts a front like [`front`], with a changed configuration.
pub fn front_with(redis: &Redis, change: impl FnOnce(&mut FrontConfig)) -> Running {
    let direct = format!("redis://front:front@{}", redis.address);
    Running::start_as(redis, Knobs::logged_in("front front"), |config| {
        config.cache = Cache::Off;
        config.access = Access::Redis;
        config.direct = Some(direct);
        change(config);
    })
}

fn login(front: &Running, user: &str) -> Client {
    let mut client = front.client();
    assert_eq!(client.ask(&format!("AUTH {user}")), "+OK\r\n");
    client
}

#[test]
fn nobody_is_let_in_without_his_password() {
    let Some(redis) = redis_with(&["bob on >pw ~* &* +@all", "carl off >pw ~* &* +@all"]) else {
        return;
    };
    let front = front(&redis);
    let mut client = front.client();
    for line in [
        "PING",
        "SET k v",
        "GET k",
        "SUBSCRIBE c",
        "WATCH k",
        "MULTI",
        "SELECT 1",
        "ACL WHOAMI",
        "CLIENT ID",
    ] {
        assert_eq!(client.ask(line), NOAUTH, "{line}");
    }
    assert!(
        client
            .ask("HELLO 3")
            .starts_with("-NOAUTH HELLO must be called")
    );
    // As in Redis, the number of arguments is checked before the login.
    assert_eq!(
        client.ask("GET"),
        "-ERR wrong number of arguments for 'get' command\r\n"
    );
    for line in [
        "AUTH bob no",
        "AUTH no pw",
        "AUTH no",
        "AUTH carl pw",
        "HELLO 3 AUTH bob no",
    ] {
        assert_eq!(client.ask(line), WRONGPASS, "{line}");
    }
    assert_eq!(client.ask("AUTH a b c"), "-ERR syntax error\r\n");
    // Like Redis, the front handles one option after the other.
    assert_eq!(client.ask("HELLO 3 AUTH bob no oops"), WRONGPASS);
    let oops = "-ERR Syntax error in HELLO option 'oops'\r\n";
    assert_eq!(client.ask("HELLO 3 oops AUTH bob no"), oops);
    assert_eq!(client.ask("HELLO 3 oops"), oops);
    assert_eq!(client.ask("PING"), NOAUTH);
    let own = |bypass: &(bool, Form, usize)| bypass.1 == Form::Barrier;
    assert!(front.knobs().updates.is_empty() && front.knobs().bypasses.iter().all(own));
    assert_eq!(client.ask("AUTH bob pw"), "+OK\r\n");
    assert_eq!(client.ask("SET k v"), "+OK\r\n");
    assert_eq!(client.ask("ACL WHOAMI"), "$3\r\nbob\r\n");
    for line in ["MULTI", "ACL WHOAMI", "GET k", "ACL WHOAMI"] {
        client.ask(line);
    }
    let executed = "*3\r\n$3\r\nbob\r\n$1\r\nv\r\n$3\r\nbob\r\n";
    assert_eq!(client.ask("EXEC"), executed);
    // A failed login changes nothing.
    assert_eq!(client.ask("AUTH bob no"), WRONGPASS);
    assert_eq!(client.ask("ACL WHOAMI"), "$3\r\nbob\r\n");
    assert_eq!(client.ask("AUTH secret"), "+OK\r\n");
    assert_eq!(client.ask("ACL WHOAMI"), "$7\r\ndefault\r\n");
    assert_eq!(client.ask("RESET"), "+RESET\r\n");
    assert_eq!(client.ask("PING"), NOAUTH);
    let mut other = front.client();
    assert!(
        other
            .ask("HELLO 3 AUTH bob pw SETNAME x")
            .starts_with("%7\r\n")
    );
    assert!(other.ask("CLIENT INFO").contains(" user=bob"));
    let mut third = front.client();
    assert_eq!(third.ask("HELLO 3 AUTH bob pw oops"), oops);
    assert_eq!(third.ask("ACL WHOAMI"), "$3\r\nbob\r\n");
    drop((client, other, third));
    assert_eq!(front.stop().failed_logins, 7);
}

#[test]
fn who_has_still_to_log_in_can_send_little() {
    let Some(redis) = redis_with(&["bob on >pw ~* &* +@all"]) else {
        return;
    };
    let front = front(&redis);
    let large = "x".repeat(16 * 1024 + 1);
    for (input, ends) in [
        ("*11\r\n".to_owned(), true),
        ("*2147483647\r\n".to_owned(), true),
        ("*2147483648\r\n".to_owned(), true),
        ("*2\r\n$4\r\nECHO\r\n$16385\r\n".to_owned(), true),
        ("*1\r\n$536870912\r\n".to_owned(), true),
        ("*1\r\n$536870913\r\n".to_owned(), true),
        (format!("ECHO {large}\r\n"), false),
        (
            format!("*2\r\n$4\r\nECHO\r\n$16384\r\n{}\r\n", &large[1..]),
            false,
        ),
        (
            format!("AUTH bob pw\r\n*2\r\n$4\r\nECHO\r\n$16385\r\n{large}\r\n"),
            false,
        ),
        (
            format!("AUTH bob no\r\n*2\r\n$4\r\nECHO\r\n$16385\r\n{large}\r\n"),
            true,
        ),
    ] {
        let said = [redis.address, front.address].map(|address| {
            let mut client = Client::connect(address);
            client.send(input.as_bytes());
            let mut said = vec![client.text()];
            if input.starts_with("AUTH") {
                said.push(client.text());
            }
            if ends {
                assert_eq!(client.next(), None, "{address}: {input:.60}");
            }
            said
        });
        assert_eq!(said[0], said[1], "{input:.60}");
    }
    // A client that needs no login may send large commands.
    let mut direct = redis.client();
    direct.ask("AUTH front front");
    assert_eq!(direct.ask("ACL SETUSER default nopass"), "+OK\r\n");
    eventually("the front knows", || {
        let mut client = front.client();
        client.send(format!("*2\r\n$4\r\nECHO\r\n$16385\r\n{large}\r\n").as_bytes());
        client.text() == format!("$16385\r\n{large}\r\n")
    });
}

#[test]
fn all_who_have_still_to_log_in_can_send_little_together() {
    let Some(redis) = redis_with(&["bob on >pw ~* &* +@all"]) else {
        return;
    };
    let front = front(&redis);
    let mut first = front.client();
    assert_eq!(first.ask("PING"), NOAUTH);
    // Of the ten announced arguments, nine are sent.
    let argument = format!("$16384\r\n{}\r\n", "x".repeat(16 * 1024));
    let input = format!("*10\r\n{}", argument.repeat(9));
    let mut clients: Vec<Client> = (0..300).map(|_| front.client()).collect();
    for client in &mut clients {
        // Some clients are closed while they send.
        let _ = std::io::Write::write_all(&mut client.stream, input.as_bytes());
    }
    let error = "-ERR pmnet: closing: clients that have not logged in have sent too much";
    // The order in which the front reads the connections decides which connections are closed.
    let mut closed = 0;
    let mut open = None;
    for (at, client) in clients.iter_mut().enumerate() {
        let briefly = std::time::Duration::from_millis(20);
        client.stream.set_read_timeout(Some(briefly)).unwrap();
        let mut byte = [0; 1];
        match client.stream.peek(&mut byte) {
            Ok(1) => {
                assert!(client.text().starts_with(error));
                closed += 1;
            }
            Ok(_) => closed += 1,
            Err(_) => open = Some(at),
        }
    }
    assert!(closed > 10, "{closed} of 300");
    assert_eq!(first.ask("AUTH bob pw"), "+OK\r\n");
    // A client that is within its bound continues.
    let goes_on = &mut clients[open.expect("not all of them")];
    let long = std::time::Duration::from_secs(20);
    goes_on.stream.set_read_timeout(Some(long)).unwrap();
    goes_on.send(b"$1\r\nx\r\n");
    assert_eq!(goes_on.text(), NOAUTH);
}

#[test]
fn what_redis_would_refuse_reaches_neither_log_nor_store() {
    let users = [
        "reader on >pw ~* &* +@all -set -@dangerous",
        "some on >pw ~a:* %R~r:* &news +@all",
        "few on >pw ~* &* +get +ping +config|get",
    ];
    let Some(redis) = redis_with(&users) else {
        return;
    };
    let front = front(&redis);
    let mut reader = login(&front, "reader pw");
    assert_eq!(reader.ask("SET k v"), no_command("set"));
    assert_eq!(reader.ask("FLUSHALL"), no_command("flushall"));
    assert_eq!(reader.ask("GET k"), "$-1\r\n");
    assert_eq!(reader.ask("SETEX k 100 v"), "+OK\r\n");
    let mut some = login(&front, "some pw");
    for line in [
        "SET b v",
        "SET r:1 v",
        "SETEX b 9 v",
        "MSET a:1 v b v",
        "INCR b",
        "GET b",
        "DEL a:1 b",
        "ZUNION 2 a:1 b",
    ] {
        assert_eq!(some.ask(line), NO_KEY, "{line}");
    }
    let news =
        "-NOPERM this user has no permissions to access one of the channels used as arguments\r\n";
    assert_eq!(some.ask("PUBLISH other x"), news);
    assert_eq!(some.ask("PUBLISH news x"), ":0\r\n");
    assert_eq!(some.ask("SET a:1 v"), "+OK\r\n");
    assert_eq!(some.ask("MSET a:1 v a:2 v"), "+OK\r\n");
    assert_eq!(some.ask("GET r:1"), "$-1\r\n");
    let mut few = login(&front, "few pw");
    for (line, name) in [
        ("SET k v", "set"),
        ("ECHO x", "echo"),
        ("SELECT 1", "select"),
        ("MULTI", "multi"),
        ("CLIENT ID", "client|id"),
        ("CONFIG SET hz 10", "config|set"),
        ("ACL LIST", "acl|list"),
        ("ACL WHOAMI", "acl|whoami"),
        ("SHUTDOWN", "shutdown"),
    ] {
        assert_eq!(few.ask(line), no_command(name), "{line}");
    }
    assert_eq!(few.ask("PING"), "+PONG\r\n");
    assert!(few.ask("CONFIG GET hz").contains("hz"));
    assert!(
        few.ask("NOSUCH x")
            .starts_with("-ERR unknown command 'NOSUCH'")
    );
    assert!(
        few.ask("CONFIG GET")
            .starts_with("-ERR wrong number of arguments")
    );
    let updates = front.knobs().updates.clone();
    assert_eq!(updates.len(), 3, "{updates:?}");
    let mut direct = redis.client();
    direct.ask("AUTH front front");
    assert_eq!(direct.ask("EXISTS b r:1"), ":0\r\n");
}

#[test]
fn a_user_of_some_keys_cannot_reach_others_by_a_detour() {
    let users = [
        "some on >pw ~a:* &* +@all",
        "all on >pw ~* &* +@all -flushall",
    ];
    let Some(redis) = redis_with(&users) else {
        return;
    };
    let front = front(&redis);
    let mut some = login(&front, "some pw");
    for line in [
        "EVAL return{redis.call('GET','b')} 0",
        "EVAL_RO return{1} 0",
        "EVALSHA ff 0",
        "EVALSHA_RO ff 0",
        "FCALL f 0",
        "FCALL_RO f 0",
    ] {
        assert!(
            some.ask(line)
                .contains("is possible only for a user that may do everything"),
            "{line}"
        );
    }
    assert_eq!(
        some.ask("SORT a:1 BY b*"),
        "-ERR BY option of SORT denied due to insufficient ACL permissions.\r\n"
    );
    assert_eq!(
        some.ask("SORT_RO a:1 GET b*"),
        "-ERR GET option of SORT denied due to insufficient ACL permissions.\r\n"
    );
    assert_eq!(some.ask("SORT a:1 DESC"), "*0\r\n");
    let mut all = login(&front, "all pw");
    assert!(
        all.ask("EVAL redis.call('FLUSHALL') 0")
            .contains("may do everything")
    );
    assert_eq!(all.ask("SORT l BY b* GET c*"), "*0\r\n");
    // In a transaction, these commands are refused, too.
    for client in [&mut some, &mut all] {
        assert_eq!(client.ask("MULTI"), "+OK\r\n");
        assert!(client.ask("EVAL return{1} 0").contains("may do everything"));
        assert!(client.ask("EXEC").starts_with("-EXECABORT"));
    }
    assert_eq!(some.ask("MULTI"), "+OK\r\n");
    assert_eq!(some.ask("SET a:1 v"), "+QUEUED\r\n");
    assert_eq!(some.ask("BLPOP b 1"), NO_KEY);
    assert!(some.ask("EXEC").starts_with("-EXECABORT"));
    assert!(front.knobs().updates.is_empty());
}

#[test]
fn what_passes_through_runs_as_its_user() {
    let users = ["some on >pw ~a:* resetchannels &news +@all -blpop -select -flushall"];
    let Some(redis) = redis_with(&users) else {
        return;
    };
    let front = front(&redis);
    let mut some = login(&front, "some pw");
    assert_eq!(some.ask("BLPOP a:1 1"), no_command("blpop"));
    assert_eq!(some.ask("BRPOP b 1"), NO_KEY);
    assert_eq!(some.ask("WATCH b"), NO_KEY);
    // The front may use SELECT even if its client may not. The front needs SELECT for WAIT.
    assert_eq!(some.ask("WAIT 0 1"), ":0\r\n");
    assert_eq!(some.ask("WATCH a:1"), "+OK\r\n");
    assert_eq!(some.ask("SET b v"), NO_KEY);
    assert_eq!(
        some.ask("EVAL_RO return{redis.call('GET',KEYS[1])} 1 b"),
        NO_KEY
    );
    assert_eq!(some.ask("MULTI"), "+OK\r\n");
    assert_eq!(some.ask("GET a:1"), "+QUEUED\r\n");
    assert_eq!(some.ask("EXEC"), "*1\r\n$-1\r\n");
    // The server runs this command, even while the client watches keys.
    assert_eq!(some.ask("WATCH a:1"), "+OK\r\n");
    assert_eq!(some.ask("FLUSHALL"), no_command("flushall"));
    assert_eq!(some.ask("UNWATCH"), "+OK\r\n");
    let mut subscriber = login(&front, "some pw");
    assert!(subscriber.ask("SUBSCRIBE other").starts_with("-NOPERM"));
    assert!(subscriber.ask("SUBSCRIBE news").contains("subscribe"));
    let mut direct = redis.client();
    direct.ask("AUTH front front");
    assert!(direct.ask("CLIENT LIST TYPE pubsub").contains("user=some"));
    // If the client logs in as another user, it gets another connection to Redis.
    set_users(&redis, &["other on >pw ~b* &* +@all"]);
    assert_eq!(some.ask("AUTH other pw"), "+OK\r\n");
    assert_eq!(some.ask("WATCH a:1"), NO_KEY);
    assert_eq!(some.ask("WATCH b"), "+OK\r\n");
}

#[test]
fn a_subscriber_needs_no_other_right() {
    let users =
        ["some on >pw ~* resetchannels &a -@all +subscribe +unsubscribe +publish +psubscribe"];
    let Some(redis) = redis_with(&users) else {
        return;
    };
    let front = front(&redis);
    for protocol in [2, 3] {
        let mut lines = vec!["SUBSCRIBE a", "PSUBSCRIBE b", "SSUBSCRIBE a"];
        if protocol == 2 {
            lines.extend(["PING", "PING x", "pmnet-end"]);
        } else {
            lines.extend(["PUBLISH a x", "PUBLISH b x", "PING"]);
        }
        lines.extend(["UNSUBSCRIBE a", "SUBSCRIBE a", "UNSUBSCRIBE"]);
        let said = [redis.address, front.address].map(|address| {
            let mut client = Client::connect(address);
            client.ask(&format!("HELLO {protocol} AUTH some pw"));
            for line in &lines {
                client.send(&command(line));
            }
            // With RESP3 there is one more message.
            let count = lines.len() + usize::from(protocol == 3);
            (0..count).map(|_| client.text()).collect::<Vec<_>>()
        });
        assert_eq!(said[0], said[1], "RESP{protocol}");
    }
}

/// As in Redis, a client continues after its user's password was changed or its user was disabled.
#[test]
fn what_passes_through_after_a_new_password_never_runs_as_somebody_else() {
    let Some(redis) = redis_with(&["some on >pw ~a:* &* +@all"]) else {
        return;
    };
    let front = front(&redis);
    let mut direct = redis.client();
    direct.ask("AUTH front front");
    for line in ["RPUSH b 1", "RPUSH a:1 1 2 3"] {
        direct.ask(line);
    }
    let mut some = login(&front, "some pw");
    let mut connected = login(&front, "some pw");
    assert_eq!(connected.ask("WATCH a:1"), "+OK\r\n");
    assert_eq!(connected.ask("UNWATCH"), "+OK\r\n");
    set_users(&redis, &["some resetpass >new"]);
    assert_eq!(some.ask("SET a:2 v"), "+OK\r\n");
    let refused = |reply: &str, name: &str| {
        let begin =
            format!("-ERR pmnet: {name} runs in Redis itself, which does not take the password");
        let end = "log in again (AUTH), or switch the user on; the command was not executed\r\n";
        assert!(reply.starts_with(&begin) && reply.ends_with(end), "{reply}");
    };
    for line in ["BLPOP b 1", "BLPOP a:1 1", "WATCH a:1", "SUBSCRIBE c"] {
        let name = line.split(' ').next().expect("a name");
        refused(&some.ask(line), name);
    }
    assert_eq!(direct.ask("LLEN b"), ":1\r\n");
    let popped = |element: u8| format!("*2\r\n$3\r\na:1\r\n$1\r\n{element}\r\n");
    // The client's connection to Redis is still logged in, so the client's commands run.
    assert_eq!(connected.ask("BLPOP a:1 1"), popped(1));
    // Another client has logged in with the new password.
    let mut new = login(&front, "some new");
    assert_eq!(some.ask("BLPOP a:1 1"), popped(2));
    assert_eq!(some.ask("BLPOP b 1"), NO_KEY);
    assert_eq!(connected.ask("WAIT 0 1"), ":0\r\n");
    set_users(&redis, &["some off"]);
    assert_eq!(some.ask("BLPOP a:1 1"), popped(3));
    refused(&some.ask("WAIT 0 1"), "WAIT");
    refused(&new.ask("WATCH a:1"), "WATCH");
    assert_eq!(new.ask("SET a:2 v"), "+OK\r\n");
}

#[test]
fn what_is_answered_here_is_checked_while_keys_are_watched_too() {
    let few =
        "few on >pw ~* &* -@all +get +set +watch +unwatch +multi +exec +client|getname +config|get";
    let Some(redis) = redis_with(&[few]) else {
        return;
    };
    let front = front(&redis);
    let watched = ["CLIENT ID", "CLIENT GETNAME", "CLIENT SETNAME x", "CLIENT"];
    let lines = ["WATCH k"].into_iter().chain(watched).chain(["UNWATCH"]);
    let in_multi = [
        "CLIENT ID",
        "CONFIG SET hz 10",
        "CONFIG NOSUCH",
        "CONFIG SET",
        "XGROUP CREATE k g 0",
        "ACL WHOAMI",
    ];
    let in_multi = in_multi.into_iter().flat_map(|line| {
        let plain = ["MULTI", line, "SET k v", "EXEC"];
        [&plain[..], &["WATCH k"], &plain].concat()
    });
    let lines: Vec<&str> = lines.chain(in_multi).collect();
    let said = [redis.address, front.address].map(|address| {
        let mut client = Client::connect(address);
        client.ask("AUTH few pw");
        lines
            .iter()
            .map(|line| client.ask(line))
            .collect::<Vec<_>>()
    });
    assert_eq!(said[0], said[1], "{lines:#?}");
}

#[test]
fn rights_that_are_taken_away_count_within_a_second() {
    let Some(redis) = redis_with(&["bob on >pw ~* &* +@all", "eve on >pw ~* &* +@all"]) else {
        return;
    };
    let front = front(&redis);
    let mut bob = login(&front, "bob pw");
    let mut eve = login(&front, "eve pw");
    assert_eq!(bob.ask("SET k v"), "+OK\r\n");
    assert_eq!(eve.ask("SET k v"), "+OK\r\n");
    assert_eq!(bob.ask("MULTI"), "+OK\r\n");
    assert_eq!(bob.ask("SET k w"), "+QUEUED\r\n");
    let taken = |client: &mut Client, line: &str, error: &str| {
        let start = Instant::now();
        loop {
            let reply = client.ask(line);
            if reply == error {
                return;
            }
            assert_eq!(reply, "+OK\r\n");
            assert!(start.elapsed() < DEADLINE, "{line}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    set_users(&redis, &["bob -set", "eve resetkeys ~a"]);
    taken(&mut eve, "SET k v", NO_KEY);
    assert!(
        bob.ask("EXEC")
            .starts_with("*1\r\n-NOPERM ACLs rules changed")
    );
    assert_eq!(bob.ask("SET k v"), no_command("set"));
    assert_eq!(eve.ask("SET a v"), "+OK\r\n");
    // The right is given back and counts at once: no client gets an error for a command that it may run now.
    for _ in 0..5 {
        set_users(&redis, &["bob -set"]);
        eventually("bob may not write", || {
            bob.ask("SET k v") == no_command("set")
        });
        set_users(&redis, &["bob +set"]);
        assert_eq!(bob.ask("SET k v"), "+OK\r\n");
    }
    // The connections of a deleted user are closed.
    let mut direct = redis.client();
    direct.ask("AUTH front front");
    assert_eq!(direct.ask("ACL DELUSER eve"), ":1\r\n");
    assert_eq!(eve.next(), None);
    assert_eq!(bob.ask("PING"), "+PONG\r\n");
}

/// The list of users is the same before and after the deletion.
#[test]
fn who_is_deleted_and_made_again_at_once_loses_its_connections() {
    let eve = "eve on >pw ~* &* +@all";
    let Some(redis) = redis_with(&["bob on >pw ~* &* +@all", eve]) else {
        return;
    };
    let front = front(&redis);
    let mut direct = redis.client();
    direct.ask("AUTH front front");
    let mut bob = login(&front, "bob pw");
    let seen = |direct: &mut Client, user: &str| {
        let clients = direct.ask("CLIENT LIST");
        clients.matches(&format!(" user={user} ")).count()
    };
    for _ in 0..3 {
        let mut first = login(&front, "eve pw");
        let mut second = login(&front, "eve pw");
        // One of these connections is the connection on which the front checks passwords.
        eventually("the front is logged in as eve", || {
            seen(&mut direct, "eve") == 2
        });
        let again = [
            command("ACL DELUSER eve"),
            command(&format!("ACL SETUSER {eve}")),
        ];
        direct.send(&again.concat());
        assert_eq!(
            (direct.text(), direct.text()),
            (":1\r\n".into(), "+OK\r\n".into())
        );
        assert_eq!((first.next(), second.next()), (None, None));
        let mut new = login(&front, "eve pw");
        assert_eq!(new.ask("SET k v"), "+OK\r\n");
        assert_eq!(bob.ask("SET k v"), "+OK\r\n");
    }
    // Now no client is logged in as eve.
    eventually("the front is not either", || seen(&mut direct, "eve") == 1);
    assert_eq!(seen(&mut direct, "bob"), 1);
}

#[test]
fn a_redis_that_closes_idle_connections_closes_none_of_clients() {
    let Some(redis) = redis_with(&["bob on >pw ~* &* +@all"]) else {
        return;
    };
    let mut direct = redis.client();
    direct.ask("AUTH front front");
    assert_eq!(direct.ask("CONFIG SET timeout 1"), "+OK\r\n");
    let front = front(&redis);
    let mut bob = login(&front, "bob pw");
    let until = Instant::now() + Duration::from_secs(4);
    while Instant::now() < until {
        assert_eq!(bob.ask("SET k v"), "+OK\r\n");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// The front checks passwords on a connection that was logged in as an earlier user. Redis closes the
/// connection when that user is deleted.
#[test]
fn a_login_does_not_fail_because_another_user_is_deleted() {
    let Some(redis) = redis_with(&["bob on >pw ~* &* +@all", "eve on >pw ~* &* +@all"]) else {
        return;
    };
    let front = front(&redis);
    let mut direct = redis.client();
    direct.ask("AUTH front front");
    for _ in 0..5 {
        let mut bob = front.client();
        drop(login(&front, "eve pw"));
        // Redis is suspended. When Redis continues, it executes both commands together, the deletion first. The front's
        // new login comes after the deletion of the user.
        redis.signal("-STOP");
        direct.send(&command("ACL DELUSER eve"));
        std::thread::sleep(Duration::from_millis(20));
        bob.send(&command("AUTH bob pw"));
        std::thread::sleep(Duration::from_millis(50));
        redis.signal("-CONT");
        assert_eq!(bob.text(), "+OK\r\n");
        assert_eq!(direct.text(), ":1\r\n");
        assert_eq!(bob.ask("ACL WHOAMI"), "$3\r\nbob\r\n");
        set_users(&redis, &["eve on >pw ~* &* +@all"]);
    }
}

/// Rights that are given and taken away again between two lists of users. Both lists are then equal.
#[test]
fn rights_that_were_given_for_a_moment_are_gone_too() {
    let eve = "eve reset on >pw ~* &* -@all +get";
    let Some(redis) = redis_with(&[eve]) else {
        return;
    };
    let front = front(&redis);
    let mut client = login(&front, "eve pw");
    for name in ["append", "lpush", "sadd"] {
        set_users(&redis, &[&format!("eve +{name}")]);
        client.ask(&format!("{name} {name} 1"));
        set_users(&redis, &[eve]);
        eventually("the right is gone", || {
            client.ask(&format!("{name} {name} 1")) == no_command(name)
        });
    }
    // For a time there were no clients. A new client must not have to wait for the next list for this reason.
    drop(client);
    assert_eq!(login(&front, "eve pw").ask("GET k"), "$-1\r\n");
}

/// The list of users alone decides some of these rights.
#[test]
fn a_right_to_run_code_counts_as_soon_as_it_is_given() {
    let some = "eve reset on >pw ~k* &* +@all";
    let Some(redis) = redis_with(&[some]) else {
        return;
    };
    let front = front(&redis);
    let mut client = login(&front, "eve pw");
    for _ in 0..4 {
        for (line, reply) in [
            ("EVAL return{1} 0", "*1\r\n:1\r\n"),
            ("SORT k BY x_*", "*0\r\n"),
        ] {
            let refused = client.ask(line);
            assert!(refused.starts_with("-ERR "), "{line}: {refused}");
            set_users(&redis, &["eve allkeys"]);
            assert_eq!(client.ask(line), reply);
            set_users(&redis, &[some]);
            eventually("the right is gone", || client.ask(line) != reply);
        }
        for line in ["MULTI", "EVAL return{1} 0"] {
            client.ask(line);
        }
        assert!(client.ask("EXEC").starts_with("-EXECABORT"));
    }
}

#[test]
fn who_needs_no_login_has_the_rights_of_the_default_user() {
    let Some(redis) = Redis::start() else { return };
    set_users(&redis, &[FRONT]);
    let front = front(&redis);
    let mut client = front.client();
    assert_eq!(client.ask("SET k v"), "+OK\r\n");
    assert_eq!(client.ask("ACL WHOAMI"), "$7\r\ndefault\r\n");
    assert!(
        client
            .ask("AUTH x")
            .starts_with("-ERR AUTH <password> called without any password")
    );
    assert_eq!(client.ask("AUTH default x"), "+OK\r\n");
    assert_eq!(client.ask("BLPOP none 0.01"), "*-1\r\n");
    let mut fresh = front.client();
    assert_eq!(fresh.ask("EVAL return{1} 0"), "*1\r\n:1\r\n");
    let mut direct = redis.client();
    assert_eq!(direct.ask("ACL SETUSER default resetkeys ~a"), "+OK\r\n");
    eventually("the rights are less", || fresh.ask("SET k v") == NO_KEY);
    assert_eq!(fresh.ask("SET a v"), "+OK\r\n");
    assert_eq!(fresh.ask("BLPOP k 1"), NO_KEY);
    assert_eq!(direct.ask("ACL SETUSER default allkeys"), "+OK\r\n");
}

#[test]
fn nothing_is_allowed_while_redis_cannot_be_asked() {
    let Some(redis) = redis_with(&["bob on >pw ~* &* +@all"]) else {
        return;
    };
    // This front cannot ask about rights, because it has no password.
    let blind = front_with(&redis, |config| {
        config.direct = Some(redis.address.to_string());
        config.call_timeout = Duration::from_millis(300);
    });
    let mut client = blind.client();
    let error = client.ask("AUTH bob pw");
    assert!(
        error.starts_with("-ERR pmnet: the front cannot ask Redis") && error.contains("NOAUTH"),
        "{error}"
    );
    let error = client.ask("SET k v");
    assert!(
        error.starts_with("-ERR pmnet: it is not known what this client may do"),
        "{error}"
    );
    assert!(blind.knobs().updates.is_empty());
    drop(blind);
    // Redis is suspended. The known rights then count for as long as a command may take.
    let front = front_with(&redis, |config| {
        config.call_timeout = Duration::from_millis(500)
    });
    let mut bob = login(&front, "bob pw");
    assert_eq!(bob.ask("SET k v"), "+OK\r\n");
    front.knobs().outcome = Some(pmnet_front::upstream::Outcome::Committed { copies: 1 });
    redis.signal("-STOP");
    eventually("the rights are too old", || {
        bob.ask("SET k v")
            .starts_with("-ERR pmnet: it is not known")
    });
    redis.signal("-CONT");
    front.knobs().outcome = None;
    eventually("they are known again", || bob.ask("SET k v") == "+OK\r\n");
}

#[test]
fn a_redis_that_does_not_run_takes_no_rights_away() {
    let Some(mut redis) = redis_with(&["bob on >pw ~a:* &* +@all"]) else {
        return;
    };
    let front = front_with(&redis, |config| {
        config.call_timeout = Duration::from_millis(300)
    });
    let mut bob = login(&front, "bob pw");
    assert_eq!(bob.ask("SET a:1 v"), "+OK\r\n");
    front.knobs().outcome = Some(pmnet_front::upstream::Outcome::Committed { copies: 1 });
    redis.kill();
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        assert_eq!(bob.ask("SET a:1 w"), "+OK\r\n");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn one_password_for_everybody() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start_with(&redis, |config| {
        config.access = Access::Password(Secret::new(b"s3cret"));
    });
    let mut client = front.client();
    assert_eq!(client.ask("SET k v"), NOAUTH);
    for line in ["AUTH s3cre", "AUTH bob s3cret", "HELLO 2 AUTH default x"] {
        assert_eq!(client.ask(line), WRONGPASS, "{line}");
    }
    assert_eq!(client.ask("AUTH s3cret"), "+OK\r\n");
    assert_eq!(client.ask("SET k v"), "+OK\r\n");
    assert_eq!(client.ask("ACL WHOAMI"), "$7\r\ndefault\r\n");
    assert_eq!(client.ask("BLPOP none 0.01"), "*-1\r\n");
    assert!(
        front
            .client()
            .ask("HELLO 3 AUTH default s3cret")
            .starts_with("%7")
    );
}

#[test]
fn guessing_is_slow() {
    let Some(redis) = Redis::start() else { return };
    let front = Running::start_with(&redis, |config| {
        config.access = Access::Password(Secret::new(b"s3cret"));
    });
    let mut guesser = front.client();
    guesser.send(&command("AUTH x").repeat(40));
    let said: Vec<String> = (0..40).map(|_| guesser.text()).collect();
    assert_eq!(said.iter().filter(|&text| text == WRONGPASS).count(), 20);
    assert!(said[39].contains("too many failed logins from this address"));
    // A login with the right password has to wait, too. A client that has logged in does not wait.
    eventually("the second is over", || {
        guesser.ask("AUTH s3cret") == "+OK\r\n"
    });
}

#[test]
fn a_pipeline_stops_at_what_has_to_be_asked_and_goes_on_in_order() {
    let Some(redis) = redis_with(&["some on >pw ~a:* &* +@all"]) else {
        return;
    };
    let front = front(&redis);
    let mut some = front.client();
    let mut all = command("AUTH some pw");
    for number in 0..50 {
        for line in [
            format!("SET a:{number} {number}"),
            format!("SET b:{number} x"),
            format!("INCR a:{number}"),
            format!("GET a:{number}"),
        ] {
            all.extend(command(&line));
        }
    }
    some.send(&all);
    assert_eq!(some.text(), "+OK\r\n");
    for number in 0..50 {
        assert_eq!(some.text(), "+OK\r\n");
        assert_eq!(some.text(), NO_KEY);
        assert_eq!(some.text(), format!(":{}\r\n", number + 1));
        let text = (number + 1).to_string();
        assert_eq!(some.text(), format!("${}\r\n{text}\r\n", text.len()));
    }
}
