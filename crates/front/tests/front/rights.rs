//! The rights of Redis's users: Redis itself and the front must give the same answers.

use std::time::{Duration, Instant};

use crate::common::{Client, Redis, Running, command};
use crate::users::{front, front_with};

/// Time after which the front has certainly noticed that rights have changed.
const SEEN: Duration = Duration::from_millis(1300);

/// Starts a Redis with the front's own user.
fn redis() -> Option<Redis> {
    let redis = Redis::start()?;
    admin(&redis, &["ACL SETUSER front on >front ~* &* +@all"]);
    Some(redis)
}

/// Sends each line to Redis, from a client with all rights.
fn admin(redis: &Redis, lines: &[&str]) {
    let mut client = redis.client();
    client.ask("AUTH front front");
    for line in lines {
        let said = client.ask(line);
        assert!(
            said.starts_with("+OK") || said == ":1\r\n",
            "{line}: {said}"
        );
    }
}

/// Returns the reply to this line, or the text that the connection has ended.
fn said(client: &mut Client, line: &str) -> String {
    use std::io::Write;
    let ended = || "(the connection has ended)".to_owned();
    if client.stream.write_all(&command(line)).is_err() {
        return ended();
    }
    let reply = client.next();
    reply.map_or_else(ended, |reply| String::from_utf8_lossy(&reply).into_owned())
}

/// A client of the front and a client of Redis, which send the same commands.
struct Both {
    what: String,
    front: Client,
    redis: Client,
}

impl Both {
    fn new(what: &str, front: &Running, redis: &Redis) -> Both {
        Both {
            what: what.to_owned(),
            front: front.client(),
            redis: redis.client(),
        }
    }

    /// Sends the line to Redis and to the front, and checks that both give the same reply. Returns the reply.
    fn ask(&mut self, line: &str) -> String {
        let right = said(&mut self.redis, line);
        let ours = said(&mut self.front, line);
        assert_eq!(ours, right, "{}: {line}: on the left the front", self.what);
        right
    }
}

/// After a DISCARD without the right, the transaction stays open and cannot be executed.
#[test]
fn a_discard_that_is_not_allowed_ends_nothing() {
    let Some(redis) = redis() else { return };
    admin(
        &redis,
        &["ACL SETUSER eve on >pw ~* &* +@all -discard -unwatch"],
    );
    let front = front(&redis);
    let mut both = Both::new("-discard -unwatch", &front, &redis);
    for line in [
        "AUTH eve pw",
        "WATCH k",
        "UNWATCH",
        "MULTI",
        "SET k 1",
        "DISCARD",
        "PING",
        "GET k",
        "EXEC",
        "GET k",
        "MULTI",
        "SET k 1",
        "DISCARD",
        "GET k",
        "EXEC",
        "GET k",
        "BLPOP none 0.01",
    ] {
        both.ask(line);
    }
}

/// If a user's rights have changed before EXEC, Redis checks each command of the MULTI again, one by one.
#[test]
fn a_change_of_rights_means_for_an_open_multi_what_it_means_in_redis() {
    let Some(redis) = redis() else { return };
    let bases = ["~* &* +@all", "~a* ~b* &* +@all", "~* &c +@all -flushall"];
    let changes = [
        ">new",
        "off",
        "resetpass",
        "nopass",
        "reset",
        "resetkeys",
        "%R~*",
        "-@all",
        "-exec",
        "-multi",
        "-set",
        "-get",
        "-publish",
        "resetchannels",
        "-sort",
        "-client",
        "-client|setname",
        "-select",
        "resetkeys ~b*",
        "resetkeys %R~*",
        "sanitize-payload",
        "+@all",
        "(~x +@all)",
        "clearselectors",
        "allkeys allchannels +@all",
    ];
    let front = front(&redis);
    let mut all = Vec::new();
    for (at, base) in bases.iter().enumerate() {
        for (number, change) in changes.iter().enumerate() {
            let name = format!("u{at}x{number}");
            admin(&redis, &[&format!("ACL SETUSER {name} on >pw {base}")]);
            let mut both = Both::new(&format!("{base}, then {change}"), &front, &redis);
            assert_eq!(both.ask(&format!("AUTH {name} pw")), "+OK\r\n");
            for line in [
                "MULTI",
                "SET a 1",
                "GET b",
                "PUBLISH c x",
                "CLIENT SETNAME me",
                "SORT_RO blist BY nosort",
                "SELECT 0",
                "GET a",
                "PING",
            ] {
                both.ask(line);
            }
            all.push((name, *change, both));
        }
    }
    for (name, change, _) in &all {
        // Some of the changes are not possible for this user, so the reply is not checked.
        let mut client = redis.client();
        client.ask(&format!("ACL SETUSER {name} {change}"));
    }
    std::thread::sleep(SEEN);
    for (_, _, both) in &mut all {
        for line in ["EXEC", "GET a", "SET b 2", "EXEC", "DISCARD", "PING"] {
            both.ask(line);
        }
    }
}

/// As in Redis, a MULTI ends if one of its commands is refused when it is queued, or if its user is deleted.
#[test]
fn a_multi_that_goes_on_behind_a_change_is_as_in_redis() {
    let Some(redis) = redis() else { return };
    let front = front(&redis);
    let changes = [">new", "off", "-get", "resetkeys", "-@all", "-exec"];
    let mut all = Vec::new();
    for (number, change) in changes.iter().enumerate() {
        let name = format!("v{number}");
        admin(&redis, &[&format!("ACL SETUSER {name} on >pw ~* &* +@all")]);
        let mut both = Both::new(change, &front, &redis);
        for line in [&format!("AUTH {name} pw"), "MULTI", "SET a 1"] {
            both.ask(line);
        }
        admin(&redis, &[&format!("ACL SETUSER {name} {change}")]);
        all.push((name, both));
    }
    let gone = ["w1", "w2"].map(|name| {
        admin(&redis, &[&format!("ACL SETUSER {name} on >pw ~* &* +@all")]);
        let mut both = Both::new(name, &front, &redis);
        for line in [&format!("AUTH {name} pw"), "MULTI", "SET a 1"] {
            both.ask(line);
        }
        both
    });
    // Meanwhile the front makes its own connections for these users.
    std::thread::sleep(SEEN);
    admin(
        &redis,
        &[
            "ACL DELUSER w1",
            "ACL DELUSER w2",
            "ACL SETUSER w2 on >pw ~* &* +@all",
        ],
    );
    std::thread::sleep(SEEN);
    for (_, both) in &mut all {
        for line in ["GET a", "EXEC", "GET a", "EXEC", "DISCARD", "PING"] {
            both.ask(line);
        }
    }
    for mut both in gone {
        assert!(both.ask("EXEC").contains("has ended"));
    }
}

#[test]
fn an_exec_that_is_refused_says_execabort_with_and_without_multi() {
    let Some(redis) = redis() else { return };
    admin(
        &redis,
        &[
            "ACL SETUSER none on >pw ~* &* +@all -exec",
            "ACL SETUSER default >secret",
        ],
    );
    let front = front(&redis);
    let mut stranger = Both::new("not logged in", &front, &redis);
    for line in ["EXEC", "MULTI", "EXEC", "DISCARD"] {
        stranger.ask(line);
    }
    let mut both = Both::new("without EXEC", &front, &redis);
    for line in [
        "AUTH none pw",
        "EXEC",
        "EXEC x",
        "MULTI",
        "SET k v",
        "EXEC",
        "GET k",
        "EXEC",
        "DISCARD",
        "MULTI",
        "EXEC x",
        "DISCARD",
    ] {
        both.ask(line);
    }
}

#[test]
fn sort_by_other_keys_is_for_those_who_may_read_all_keys() {
    let Some(redis) = redis() else { return };
    admin(&redis, &["SET w_1 1"]);
    redis.client().ask("RPUSH l 1 2");
    let rules = [
        "~* &c +@all",
        "%R~* &c +@all",
        "%R~* %W~x &* +@all",
        "%W~* ~l* &* +@all",
        "~* resetchannels +@all -flushall",
        "~l* &* +@all",
        "~l* +@all (%R~* -@all +sort)",
        "~l* +@all (~* -@all +get)",
        "~* -@all +get (~l* +@all)",
        "~* -@all +sort +select|0 (~* +@all)",
        "~* +@all (~* -@all +get)",
        "~l* -@all (%R~* -@all +sort_ro)",
        "~l* -@all (~z* -@all +get) (%R~* -@all +sort_ro)",
        "resetkeys +@all",
        "~* -@all",
    ];
    let front = front(&redis);
    for (number, rules) in rules.iter().enumerate() {
        let name = format!("u{number}");
        admin(&redis, &[&format!("ACL SETUSER {name} on >pw {rules}")]);
        let mut both = Both::new(rules, &front, &redis);
        both.ask(&format!("AUTH {name} pw"));
        for line in [
            "SORT l BY w_*",
            "SORT l BY nosort",
            "SORT l GET # BY w_*",
            "SORT l BY nosort GET #",
            "SORT l LIMIT 0 5 GET w_*",
            "SORT l LIMIT 0 GET",
            "SORT l STORE lx",
            "SORT l BY w_* STORE lx",
            "SORT_RO l BY w_*",
            "SORT_RO l GET w_*",
            "SORT by",
            "SORT l DESC ALPHA",
        ] {
            both.ask(line);
        }
        both.ask("SORT m BY w_*");
        // In a MULTI each command is queued, and gets its error when it runs.
        for line in [
            "MULTI",
            "SORT l BY w_*",
            "SORT_RO m GET w_*",
            "PING",
            "EXEC",
        ] {
            both.ask(line);
        }
    }
}

/// As in Redis, clients that connected when no password was needed stay connected. Later clients must log in.
#[test]
fn who_was_let_in_stays_when_the_default_user_gets_a_password() {
    let Some(redis) = redis() else { return };
    let front = front(&redis);
    let (mut used, mut idle) = (
        Both::new("used", &front, &redis),
        Both::new("idle", &front, &redis),
    );
    assert_eq!(used.ask("SET k v"), "+OK\r\n");
    std::thread::sleep(SEEN);
    admin(&redis, &["ACL SETUSER default >secret"]);
    std::thread::sleep(SEEN);
    for both in [&mut used, &mut idle] {
        for line in ["GET k", "MULTI", "SET k w", "EXEC", "ACL WHOAMI"] {
            assert!(!both.ask(line).contains("NOAUTH"));
        }
    }
    let mut late = Both::new("late", &front, &redis);
    assert!(late.ask("GET k").contains("NOAUTH"));
    assert_eq!(used.ask("RESET"), "+RESET\r\n");
    assert!(used.ask("GET k").contains("NOAUTH"));
    admin(&redis, &["ACL SETUSER default nopass off"]);
    std::thread::sleep(SEEN);
    for both in [&mut used, &mut idle, &mut late] {
        both.ask("GET k");
    }
    admin(&redis, &["ACL SETUSER default on"]);
    std::thread::sleep(SEEN);
    for both in [&mut used, &mut idle, &mut late] {
        assert_eq!(both.ask("GET k"), "$1\r\nw\r\n");
    }
}

/// While the front asks Redis about one command of a user, the user gets all rights for a moment. This permission must
/// not count for the next command.
#[test]
fn the_answer_about_one_command_is_not_taken_for_another() {
    let Some(redis) = Redis::start_with(&["--enable-debug-command", "yes"]) else {
        return;
    };
    admin(&redis, &["ACL SETUSER front on >front ~* &* +@all"]);
    let front = front(&redis);
    for round in 0..3 {
        let limited = "ACL SETUSER bob reset on >pw ~a &* +@all -flushall";
        admin(&redis, &[limited]);
        let mut bob = front.client();
        assert_eq!(bob.ask("AUTH bob pw"), "+OK\r\n");
        assert_eq!(bob.ask("SET a 1"), "+OK\r\n");
        // Redis is suspended, and then executes the change of rights before it answers the questions that
        // have arrived.
        let mut admin_client = redis.client();
        admin_client.ask("AUTH front front");
        let mut lines = command("DEBUG SLEEP 0.75");
        lines.extend(command("ACL SETUSER bob ~* +@all"));
        admin_client.send(&lines);
        std::thread::sleep(Duration::from_millis(50));
        let start = Instant::now();
        bob.ask("APPEND zz x");
        assert!(
            start.elapsed() > Duration::from_millis(200),
            "it was not asked"
        );
        admin_client.text();
        admin_client.text();
        admin(&redis, &[limited]);
        std::thread::sleep(SEEN);
        assert!(bob.ask("FLUSHALL").starts_with("-NOPERM"), "round {round}");
    }
}

#[test]
fn hello_says_that_redis_cannot_be_asked_and_not_that_a_password_is_missing() {
    let Some(redis) = redis() else { return };
    for line in ["HELLO 3", "HELLO", "HELLO 2 SETNAME x"] {
        let front = front_with(&redis, |config| {
            config.call_timeout = Duration::from_millis(2500);
        });
        redis.signal("-STOP");
        let mut client = front.client();
        let start = Instant::now();
        let error = client.ask(line);
        let took = start.elapsed();
        redis.signal("-CONT");
        assert!(
            error.starts_with(
                "-ERR pmnet: it is not known what this client may do: the front could not ask Redis"
            ),
            "{line}: {error}"
        );
        assert!(
            took > Duration::from_secs(2) && took < Duration::from_secs(4),
            "{took:?}"
        );
        drop(front);
        // The command waits until its own deadline.
        let front = front_with(&redis, |_| {});
        redis.signal("-STOP");
        let mut client = front.client();
        client.send(&command(line));
        std::thread::sleep(Duration::from_millis(2500));
        redis.signal("-CONT");
        let said = client.text();
        assert!(
            said.starts_with('%') || said.starts_with("*14"),
            "{line}: {said}"
        );
    }
}

/// Valkey 9.1 has rules about databases. `PMNET_TEST_REDIS` must name a Valkey 9.1 or later for this test.
#[test]
fn rules_about_databases_hold_in_each_database() {
    let Some(redis) = redis() else { return };
    let mut client = redis.client();
    let made = client.ask("ACL SETUSER b0 on >pw ~* &* +@all db=1");
    if made != "+OK\r\n" {
        // Only Valkey 9.1 has such rules; every other server refuses the user.
        return assert!(
            made.starts_with("-ERR Error in ACL SETUSER modifier"),
            "{made}"
        );
    }
    let front = front(&redis);
    let users = [
        "~* &* +@all db=1",
        "~* &* +@all -flushall db=1,2",
        "~a* &* +@all db=0 (%R~* +@all db=2)",
        "~* &* +@all db=1 (~a +get +select +multi +exec db=3)",
        "~* &* +@all",
    ];
    for (number, rules) in users.iter().enumerate() {
        let name = format!("u{number}");
        admin(&redis, &[&format!("ACL SETUSER {name} on >pw {rules}")]);
        let mut both = Both::new(rules, &front, &redis);
        both.ask(&format!("AUTH {name} pw"));
        for database in ["0", "1", "2", "3", "1", "0"] {
            both.ask(&format!("SELECT {database}"));
            for line in [
                "SET a 1",
                "GET a",
                "SET b 1",
                "GET b",
                "PING",
                "DBSIZE",
                "INCR n",
                "COPY a b DB 2",
                "MOVE a 3",
                "FLUSHDB",
                "FLUSHALL",
                "EXISTS a b",
                "RPUSH l 1",
                "BLPOP l 0.01",
                "DEL l",
            ] {
                // Both clients write to the same keys, so their replies differ and only errors about rights are
                // compared.
                let right = said(&mut both.redis, line);
                let ours = said(&mut both.front, line);
                if right.starts_with("-NOPERM") || ours.starts_with("-NOPERM") {
                    assert_eq!(ours, right, "{rules}: database {database}: {line}");
                }
            }
        }
        // The commands of the transaction are allowed in the database where it begins, but not in the database where
        // they run. Valkey refuses such a transaction at EXEC, and the front refuses it at once.
        let begins = if number == 3 { "SELECT 1" } else { "SELECT 0" };
        both.ask(begins);
        for client in [&mut both.front, &mut both.redis] {
            for line in ["MULTI", "SELECT 3", "SET forbidden x", "EXEC"] {
                said_of(client, line);
            }
        }
        client.ask("SELECT 3");
        let expected = if number == 4 { ":1\r\n" } else { ":0\r\n" };
        assert_eq!(client.ask("EXISTS forbidden"), expected, "{rules}");
        client.ask("DEL forbidden");
    }
    // The SELECT of a failed transaction has no effect.
    let rules = "~b* -@all +@connection +@transaction +get db=1";
    admin(&redis, &[&format!("ACL SETUSER v on >pw {rules}")]);
    let mut both = Both::new(rules, &front, &redis);
    both.ask("AUTH v pw");
    for line in ["MULTI", "SELECT 1", "GET b", "SET b w", "GET b", "EXEC"] {
        both.ask(line);
    }
}

fn said_of(client: &mut Client, line: &str) {
    said(client, line);
}

/// The channel of SPUBLISH stands at the place where other commands have a key. A user with rights to all keys does not
/// have rights to all channels.
#[test]
fn whoever_may_publish_in_one_shard_channel_may_not_in_others() {
    let Some(redis) = redis() else { return };
    admin(
        &redis,
        &["ACL SETUSER bob on >pw ~* resetchannels &a +@all"],
    );
    let front = front(&redis);
    let mut both = Both::new("one channel", &front, &redis);
    both.ask("AUTH bob pw");
    for line in ["SPUBLISH a x", "SPUBLISH b x", "PUBLISH a x", "PUBLISH b x"] {
        both.ask(line);
    }
    let mut multi = ["MULTI", "SPUBLISH a x", "SPUBLISH b x", "EXEC"].map(|line| both.ask(line));
    assert!(multi[3].starts_with("-EXECABORT"), "{multi:?}");
    multi = ["MULTI", "SPUBLISH a x", "PING", "EXEC"].map(|line| both.ask(line));
    assert!(multi[3].starts_with("*2"), "{multi:?}");
}

/// Redis 7.2 to 8.6 give no answer to a wrong password if an earlier answer has not been sent yet. The answer to
/// another client's login must not be taken for the missing answer.
#[test]
fn a_wrong_password_among_right_ones_is_wrong() {
    let Some(redis) = redis() else { return };
    admin(
        &redis,
        &[
            "ACL SETUSER bob on >pw ~* &* +@all",
            "ACL SETUSER root on >secret ~* &* +@all",
        ],
    );
    let front = front(&redis);
    let mut first = front.client();
    assert_eq!(first.ask("AUTH bob pw"), "+OK\r\n");
    for round in 0..3 {
        let mut clients: Vec<Client> = (0..9).map(|_| front.client()).collect();
        for client in &mut clients {
            client.ask("CLIENT ID");
        }
        // All questions arrive at Redis together.
        redis.signal("-STOP");
        for (number, client) in clients.iter_mut().enumerate() {
            let line = if number % 3 == 1 {
                "AUTH root no"
            } else {
                "AUTH bob pw"
            };
            client.send(&command(line));
            std::thread::sleep(Duration::from_millis(20));
        }
        redis.signal("-CONT");
        for (number, client) in clients.iter_mut().enumerate() {
            let expected = if number % 3 == 1 { "-WRONGPASS" } else { "+OK" };
            let said = client.text();
            assert!(
                said.starts_with(expected),
                "round {round}, client {number}: {said}"
            );
        }
        for (number, client) in clients.iter_mut().enumerate() {
            let name = if number % 3 == 1 { "default" } else { "bob" };
            assert!(client.ask("ACL WHOAMI").contains(name), "client {number}");
        }
    }
}

/// Tests a login on a client's own connection, which follows another command: Redis may give no answer to its wrong
/// password.
#[test]
fn a_password_that_is_wrong_by_now_is_told_on_a_connection_of_its_own() {
    let Some(redis) = redis() else { return };
    admin(&redis, &["ACL SETUSER bob on >pw ~* &* +@all"]);
    let front = front(&redis);
    let mut bob = front.client();
    assert_eq!(bob.ask("AUTH bob pw"), "+OK\r\n");
    assert_eq!(bob.ask("SELECT 3"), "+OK\r\n");
    admin(&redis, &["ACL SETUSER bob resetpass >new"]);
    let start = Instant::now();
    let said = bob.ask("BLPOP l 1");
    assert!(
        said.contains("does not take the password any more"),
        "{said}"
    );
    assert!(
        start.elapsed() < Duration::from_secs(3),
        "{:?}",
        start.elapsed()
    );
}
