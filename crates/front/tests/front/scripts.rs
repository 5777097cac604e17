//! Scripts that run long: the replies to other clients, and the ways to end such a script.

use std::time::Duration;

use crate::common::{Client, Knobs, Redis, Running, command, eventually};
use pmnet_front::upstream::ReadAnswer;
use pmnet_front::{Access, Cache};

const BUSY: &str = "-BUSY Redis is busy running a script.";
const ABORTED: &str =
    "-EXECABORT Transaction discarded because of: BUSY Redis is busy running a script.";
const HANGS: &str = "while true do end";

/// Starts a Redis that soon reports a running script as busy.
fn redis() -> Option<Redis> {
    Redis::start_with(&["--busy-reply-threshold", "50"])
}

/// Sends an endless script to Redis itself, not through the front.
fn hang(redis: &Redis, login: Option<&str>, body: &str) -> Client {
    let mut client = redis.client();
    if let Some(login) = login {
        assert_eq!(client.ask(&format!("AUTH {login}")), "+OK\r\n");
    }
    let mut frame = Vec::new();
    pmnet_resp::write_command(&mut frame, &["EVAL", body, "0"]);
    client.send(&frame);
    // Redis sends BUSY only to users with rights. A connection that was made before has such a user.
    let mut other = redis.client();
    if let Some(login) = login {
        eventually("it takes a login", || {
            other.ask(&format!("AUTH {login}")) == "+OK\r\n"
        });
    }
    eventually("Redis is busy", || other.ask("GET x").starts_with(BUSY));
    client
}

fn killed(mut client: Client) {
    let text = client.text();
    assert!(text.contains("Script killed by user"), "{text}");
}

#[test]
fn a_script_is_killed_through_the_front() {
    let Some(redis) = redis() else { return };
    let front = Running::start(&redis);
    let mut client = front.client();
    for command in ["SCRIPT KILL", "FUNCTION KILL"] {
        let text = client.ask(command);
        assert_eq!(
            text, "-NOTBUSY No scripts in execution right now.\r\n",
            "{command}"
        );
    }
    // SCRIPT KILL works on an existing connection of the client, and on a new connection.
    client.ask("BLPOP none 0.01");
    for mut client in [client, front.client()] {
        let hanging = hang(&redis, None, HANGS);
        assert!(client.ask("FUNCTION KILL").starts_with(BUSY));
        assert_eq!(client.ask("SCRIPT KILL"), "+OK\r\n");
        killed(hanging);
        eventually("Redis answers", || client.ask("INCR n").starts_with(':'));
        // The connection serves all commands again after the kill.
        assert_eq!(client.ask("BLPOP none 0.01"), "*-1\r\n");
    }
    // In a transaction, SCRIPT KILL does not end the script, either.
    let mut client = front.client();
    client.ask("MULTI");
    assert!(client.ask("SCRIPT KILL").starts_with("-ERR pmnet: "));
    assert!(client.ask("EXEC").starts_with("-EXECABORT"));
    assert!(client.ask("SCRIPT KILL x").starts_with("-ERR wrong number"));
}

#[test]
fn a_script_that_has_written_is_not_killed() {
    let Some(redis) = redis() else { return };
    let front = Running::start(&redis);
    let mut client = front.client();
    // The script ends by itself after some time, because otherwise only a kill of Redis could end it.
    let body = "redis.call('SET', 'k', 'v') local t = redis.call('TIME')[1] while redis.call('TIME')[1] - t < 3 do end";
    let mut hanging = hang(&redis, None, body);
    assert!(client.ask("SCRIPT KILL").starts_with("-UNKILLABLE "));
    assert_eq!(hanging.text(), "$-1\r\n");
}

#[test]
fn while_a_script_runs_others_are_told_so() {
    let Some(redis) = redis() else { return };
    let head = Knobs {
        reads_allowed: true,
        answer: Some(|_, _| ReadAnswer::Miss {
            epoch: 1,
            need: 0,
            version: 1,
            replicas: 0,
        }),
        ..Knobs::default()
    };
    let front = Running::start_as(&redis, head, |_| {});
    let mut client = front.client();
    let mut transaction = front.client();
    transaction.ask("MULTI");
    transaction.ask("INCR n");
    // The front knows the address of Redis.
    client.ask("BLPOP none 0.01");
    let hanging = hang(&redis, None, HANGS);
    front.knobs().hold_bypasses = true;
    // By the reply to a read, the front notices that Redis is busy.
    assert!(client.ask("GET k").starts_with(BUSY));
    front.knobs().bypasses.clear();
    for line in [
        "GET k",
        "INCR n",
        "EVAL_RO x 0",
        "EVAL x 0",
        "KEYS *",
        "BLPOP l 0",
        "SUBSCRIBE c",
        "WATCH k",
    ] {
        let text = client.ask(line);
        assert!(text.starts_with(BUSY), "{line}: {text}");
    }
    // As in Redis, the transaction is over.
    assert!(transaction.ask("EXEC").starts_with(ABORTED));
    assert_eq!(transaction.ask("EXEC"), "-ERR EXEC without MULTI\r\n");
    assert_eq!(client.ask("PING"), "+PONG\r\n");
    assert_eq!(client.ask("GET"), arity("get"));
    assert!(front.knobs().bypasses.is_empty(), "nothing was sent");
    front.knobs().hold_bypasses = false;
    assert_eq!(client.ask("SCRIPT KILL"), "+OK\r\n");
    killed(hanging);
    eventually("Redis answers", || client.ask("INCR n") == ":1\r\n");
}

fn arity(name: &str) -> String {
    format!("-ERR wrong number of arguments for '{name}' command\r\n")
}

/// No client sends a read that would show this: the front asks by itself.
#[test]
fn who_waits_already_is_told_if_he_only_reads() {
    let Some(redis) = redis() else { return };
    let front = Running::start(&redis);
    front.client().ask("BLPOP none 0.01");
    let hanging = hang(&redis, None, HANGS);
    front.knobs().hold_bypasses = true;
    let mut readers = [front.client(), front.client()];
    readers[0].send(&[command("GET a"), command("GET b"), command("PING")].concat());
    readers[1].send(&command("STRLEN a"));
    let (mut writer, mut script) = (front.client(), front.client());
    writer.send(&command("INCR n"));
    script.send(&command("EVAL_RO return(1) 0"));
    for reply in 0..2 {
        assert!(readers[0].text().starts_with(BUSY), "{reply}");
    }
    assert_eq!(readers[0].text(), "+PONG\r\n");
    assert!(readers[1].text().starts_with(BUSY));
    // A write that is acknowledged early is not delayed.
    let mut early = front.client();
    eventually("it is known", || early.ask("INCR n").starts_with(BUSY));
    let held = front.knobs().bypasses.len();
    assert_eq!(early.ask("SCRIPT KILL"), "+OK\r\n");
    killed(hanging);
    front.knobs().hold_bypasses = false;
    // A command that may have been executed, or that may be the long script, gets its own reply.
    assert_eq!(writer.text(), ":1\r\n");
    assert_eq!(script.text(), ":1\r\n");
    // The late replies to the readers' commands are given to no client.
    assert_eq!(readers[1].ask("STRLEN a"), ":0\r\n");
    assert_eq!(readers[0].ask("GET a"), "$-1\r\n");
    assert!(held >= 4, "{held}");
}

#[test]
fn rights_to_kill_are_those_of_the_client() {
    let Some(redis) = redis() else { return };
    let mut own = redis.client();
    for user in [
        "front on >front ~* &* +@all",
        "may on >pw -@all +script|kill +auth +get ~*",
        "none on >pw -@all +get ~*",
        "all on >pw ~* &* +@all",
        "default >secret",
    ] {
        assert_eq!(own.ask(&format!("ACL SETUSER {user}")), "+OK\r\n");
    }
    let direct = format!("redis://front:front@{}", redis.address);
    let front = Running::start_as(&redis, Knobs::logged_in("front front"), |config| {
        config.cache = Cache::Off;
        config.access = Access::Redis;
        config.direct = Some(direct);
        // With this timeout the front forgets the users' rights within the test.
        config.call_timeout = Duration::from_secs(2);
    });
    let mut clients = ["may", "none", "all"].map(|user| {
        let mut client = front.client();
        assert_eq!(client.ask(&format!("AUTH {user} pw")), "+OK\r\n");
        client
    });
    let hanging = hang(&redis, Some("default secret"), HANGS);
    // This error is Redis's own error for this user.
    let text = clients[1].ask("SCRIPT KILL");
    assert!(text.starts_with("-NOPERM "), "{text}");
    let text = front.client().ask("SCRIPT KILL");
    assert!(text.starts_with("-NOAUTH "), "{text}");
    std::thread::sleep(Duration::from_secs(3));
    // The user's rights are no longer known.
    let text = clients[2].ask("SET k v");
    assert!(text.starts_with(BUSY), "{text}");
    let text = clients[1].ask("SCRIPT KILL");
    assert!(text.starts_with("-NOPERM "), "{text}");
    assert_eq!(clients[0].ask("SCRIPT KILL"), "+OK\r\n");
    killed(hanging);
    let hanging = hang(&redis, Some("default secret"), HANGS);
    assert_eq!(clients[2].ask("SCRIPT KILL"), "+OK\r\n");
    killed(hanging);
}
