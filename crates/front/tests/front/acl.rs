//! Random users send the same random commands to a Redis, and to a front whose store is another Redis. The replies must
//! be the same, so a user has exactly the same rights on both sides. From time to time the rights of a connected user
//! change.
//!
//! `make rights COMMANDS=… STORE=…` runs this test with more commands, and with other servers.

mod words;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;

use crate::common::{Client, Redis, Running, eventually};
use crate::users::front;
use pmnet_resp::write_command;
use words::{Random, Server, filled, is_loose};

/// Number of commands of one user.
const OF_ONE: usize = 60;
/// Number of commands in the short form of the test.
const COMMANDS: usize = 2500;
/// Percentage of the steps that begin with a change of a user's rights.
const CHANGES_PERCENT: usize = 2;
/// Number of lines of a conversation that are shown on failure.
const SHOWN: usize = 70;
/// Number of differences after which the test stops.
const FAILURES_MAX: usize = 12;

/// A Redis, and a Redis with a front. The two Redis servers have the same users and the same data.
struct Twins {
    there: Redis,
    _here: Redis,
    front: Running,
    /// Clients of the two Redis servers, with all rights.
    admins: [Client; 2],
    server: Server,
    /// Number of times that the test has waited until the front knew of a right that was taken away.
    canaries: usize,
}

impl Twins {
    fn start() -> Option<Twins> {
        let options = ["--enable-debug-command", "yes", "--databases", "4"];
        let (there, here) = (Redis::start_with(&options)?, Redis::start_with(&options)?);
        let mut admins = [there.client(), here.client()];
        for admin in &mut admins {
            admin.ask("ACL SETUSER front on >front ~* &* +@all");
            assert_eq!(admin.ask("AUTH front front"), "+OK\r\n");
        }
        let server = Server::learn(&mut admins[0]);
        Some(Twins {
            front: front(&here),
            there,
            _here: here,
            admins,
            server,
            canaries: 0,
        })
    }

    /// Sends this command as both admins. If both replies are equal, returns the reply. If the replies differ, the
    /// error states both replies.
    fn admin(&mut self, line: &str) -> Result<String, String> {
        let [there, here] = self.admins.each_mut().map(|admin| admin.ask(line));
        if there == here {
            Ok(there)
        } else {
            Err(format!(
                "{line}: {there:?}, and in the store of the front {here:?}"
            ))
        }
    }

    /// Changes the rights of this user. Returns the words that were added to its rules. If a right was taken away,
    /// waits until the front knows of the change. A later command that needs the right and succeeds is then a leak. A
    /// right that was given counts at once.
    fn change(&mut self, user: &str, random: &mut Random) -> String {
        let change = self.server.change(random);
        let made = self.admin(&format!("ACL SETUSER {user} {}", change.words));
        // Both sides must refuse contradictory rules without any change.
        let made = made.unwrap_or_else(|why| panic!("{why}"));
        if made == "+OK\r\n" && !change.gives_only {
            self.front_follows();
        }
        format!("(now ACL SETUSER {user} {}: {})", change.words, made.trim())
    }

    /// Waits until the front has a list of users that Redis made after this call. Only such a list takes a right away
    /// from a user with all rights, because the front never asks Redis about the commands of such a user.
    fn front_follows(&mut self) {
        self.canaries += 1;
        let canary = format!("canary{}", self.canaries);
        let mut admin = |rules: &str| self.admins[1].ask(&format!("ACL {rules}"));
        assert_eq!(
            admin(&format!("SETUSER {canary} on >pw ~* &* +@all")),
            "+OK\r\n"
        );
        let mut client = self.front.client();
        assert_eq!(client.ask(&format!("AUTH {canary} pw")), "+OK\r\n");
        assert_eq!(client.ask("STRLEN canary"), ":0\r\n");
        assert_eq!(admin(&format!("SETUSER {canary} -strlen")), "+OK\r\n");
        eventually("the front has the new rights", || {
            client.ask("STRLEN canary").starts_with("-NOPERM")
        });
        assert_eq!(admin(&format!("DELUSER {canary}")), ":1\r\n");
    }

    /// Writes the same data to both sides, in two databases.
    fn fill(&mut self) {
        for line in [
            "FLUSHALL",
            "FUNCTION FLUSH",
            "SCRIPT FLUSH",
            "CONFIG SET hz 10",
        ] {
            self.admin(line).expect(line);
        }
        for database in ["1", "0"] {
            self.admin(&format!("SELECT {database}"))
                .expect("a database");
            for owner in ["a", "b", "c"] {
                for line in [
                    "SET {o}s 5",
                    "RPUSH {o}l 3 1 2",
                    "HSET {o}h m1 1 f 2",
                    "ZADD {o}z 1 m1 2.5 m2",
                    "SADD {o}t m1",
                ] {
                    let line = line.replace("{o}", owner);
                    self.admin(&line).expect("the same");
                }
                let line = format!("XADD {owner}x 1-1 f 1");
                self.admin(&line).expect("the same");
            }
        }
    }
}

/// A user, connected to both sides.
struct Session {
    /// The user's connection to Redis, and its connection to the front.
    clients: [Client; 2],
    /// The user's rules, and the commands that it has sent.
    story: Vec<String>,
    queues: bool,
    watches: bool,
    subscribed: bool,
    /// Whether the user has used WATCH or a subscription.
    has_passed: bool,
    syncs: usize,
    explained: Vec<&'static str>,
}

impl Drop for Session {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.story.join("\n    "));
        }
    }
}

/// Result of the comparison of a user.
enum End {
    /// All replies were the same on both sides.
    Same,
    /// A reply differed for a known reason. The user's later replies cannot be compared.
    Explained(&'static str),
    Different(String),
}

impl Session {
    fn new(twins: &Twins, story: String) -> Session {
        Session {
            clients: [twins.there.client(), twins.front.client()],
            story: vec![story],
            queues: false,
            watches: false,
            subscribed: false,
            has_passed: false,
            syncs: 0,
            explained: Vec::new(),
        }
    }

    /// Sends these commands in one write, and compares the replies.
    fn step(&mut self, lines: &[Vec<String>]) -> Option<End> {
        let mut input = Vec::new();
        for words in lines {
            write_command(&mut input, words);
            self.story.push(words.join(" "));
        }
        let mut count = lines.len();
        // A message that has not arrived by this time will not arrive.
        if self.subscribed && !self.queues {
            self.syncs += 1;
            write_command(&mut input, &[format!("sync-{}", self.syncs)]);
            count += 1;
        }
        let [there, here] = self
            .clients
            .each_mut()
            .map(|client| answers(client, &input, count));
        let resets = lines.iter().any(|words| words[0] == "RESET");
        for (at, ours) in here.iter().enumerate().take(lines.len()) {
            let right = there.get(at).map_or("", String::as_str);
            let Some(words) = lines.get(at) else { break };
            if resets && right != ours && words[0].eq_ignore_ascii_case("PUBSUB") {
                return Some(End::Explained("PUBSUB before RESET in a pipeline"));
            }
            match self.compare(words, right, ours) {
                None => {}
                // This difference has no effect on later commands.
                Some(End::Explained(why)) if lines.len() == 1 && !self.queues && !self.watches => {
                    self.explained.push(why);
                    return None;
                }
                end => return end,
            }
            if is_message(ours) || is_message(right) {
                // From this point the replies no longer belong to the same commands.
                break;
            }
        }
        let loose = lines
            .iter()
            .any(|words| is_loose(words) || words[0] == "EXEC");
        if loose || there == here {
            return None;
        }
        if here.iter().any(|ours| ours.starts_with("-ERR pmnet: ")) {
            return Some(End::Explained("refused in a pipeline with messages"));
        }
        Some(self.different(&format!("{there:?}"), &format!("{here:?}")))
    }

    fn compare(&mut self, words: &[String], right: &str, ours: &str) -> Option<End> {
        let is_refused = |reply: &str| {
            ["-NOPERM", "-NOAUTH", "-WRONGPASS"]
                .iter()
                .any(|error| reply.contains(error))
        };
        if right == ours
            || (is_loose(words)
                && is_refused(right) == is_refused(ours)
                && !ours.starts_with("-ERR pmnet"))
        {
            return None;
        }
        // The reply to a queued command may depend on the moment at which it runs.
        if words[0] == "EXEC"
            && right.starts_with('*')
            && ours.starts_with('*')
            && is_refused(right) == is_refused(ours)
        {
            let queued = self
                .story
                .iter()
                .rev()
                .take(OF_ONE)
                .map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>());
            if queued.into_iter().any(|words| is_loose(&words)) {
                return None;
            }
        }
        // An older Redis does not know CLIENT SETINFO and aborts the transaction; the front accepts CLIENT SETINFO from
        // every client's library.
        let multi = |line: &String| line.eq_ignore_ascii_case("MULTI");
        let names_library = |line: &String| line.to_ascii_uppercase().starts_with("CLIENT SETINFO");
        if words[0] == "EXEC"
            && right.starts_with("-EXECABORT")
            && let Some(begun) = self.story.iter().rposition(multi)
            && self.story[begun..].iter().any(names_library)
        {
            return Some(End::Explained("CLIENT SETINFO inside MULTI"));
        }
        if let Some(why) = explained(words, right, ours, self.has_passed) {
            return Some(End::Explained(why));
        }
        Some(self.different(right, ours))
    }

    fn different(&self, right: &str, ours: &str) -> End {
        let from = self.story.len().saturating_sub(SHOWN).max(1);
        End::Different(format!(
            "{}\n    …\n    {}\n  Redis: {right}\n  front: {ours}",
            self.story[0],
            self.story[from..].join("\n    ")
        ))
    }

    /// Returns a random part of a conversation.
    fn next(&mut self, server: &Server, random: &mut Random) -> Vec<Vec<String>> {
        let mut lines = Vec::new();
        let count = if random.percent(30) {
            1 + random.below(6)
        } else {
            1
        };
        for at in 0..count {
            let line = self.line(server, random);
            // Without an answer to the login, the other answers could not be assigned to their commands.
            if at == 0 || server.answers || line.join(" ") != "AUTH other no" {
                lines.push(line);
            }
        }
        lines
    }

    fn line(&mut self, server: &Server, random: &mut Random) -> Vec<String> {
        let is = |line: &str, random: &mut Random| filled(line, random);
        match random.below(100) {
            0..8 if !self.queues => {
                self.queues = true;
                is("MULTI", random)
            }
            0..20 if self.queues => {
                (self.queues, self.watches) = (false, false);
                is(random.of(&["EXEC", "EXEC", "EXEC", "DISCARD"]), random)
            }
            20..23 if !self.queues && !self.subscribed => {
                (self.watches, self.has_passed) = (true, true);
                is("WATCH {k}", random)
            }
            23..25 if self.watches && !self.queues => {
                self.watches = false;
                is("UNWATCH", random)
            }
            25..28 if !self.queues && !self.watches => {
                (self.subscribed, self.has_passed) = (true, true);
                is(
                    random.of(&[
                        "SUBSCRIBE {c}",
                        "PSUBSCRIBE c*",
                        "SSUBSCRIBE {c}",
                        "UNSUBSCRIBE {c}",
                        "PUNSUBSCRIBE c*",
                    ]),
                    random,
                )
            }
            28 if !self.queues && !self.watches && !self.subscribed => {
                is(random.of(&["HELLO 3", "HELLO 2"]), random)
            }
            29 if !self.queues && !self.watches && !self.subscribed => {
                let all = [
                    "AUTH other pw",
                    "AUTH other no",
                    "HELLO 3 AUTH other pw",
                    "AUTH pw",
                ];
                is(random.of(&all), random)
            }
            30 => {
                (self.queues, self.watches, self.subscribed) = (false, false, false);
                is("RESET", random)
            }
            _ => server.command(random),
        }
    }
}

/// Sends `input` and reads `count` replies, with the messages that come before the last reply. If the connection ends
/// earlier, returns the replies before its end.
fn answers(client: &mut Client, input: &[u8], count: usize) -> Vec<String> {
    let mut all = Vec::new();
    if client.stream.write_all(input).is_err() {
        return vec!["(the end)".to_owned()];
    }
    let mut left = count;
    while left > 0 {
        let Some(reply) = client.next() else {
            all.push("(the end)".to_owned());
            break;
        };
        let reply = String::from_utf8_lossy(&reply).into_owned();
        left -= usize::from(!is_message(&reply));
        all.push(reply);
    }
    all
}

fn is_message(reply: &str) -> bool {
    let kinds = [
        "3\r\n$7\r\nmessage\r\n",
        "3\r\n$8\r\nsmessage\r\n",
        "4\r\n$8\r\npmessage\r\n",
    ];
    let rest = reply.strip_prefix(['*', '>']).unwrap_or_default();
    kinds.iter().any(|kind| rest.starts_with(kind))
}

/// Returns the reason why the front's reply may differ from Redis's in this way.
fn explained(words: &[String], right: &str, ours: &str, passes: bool) -> Option<&'static str> {
    let refused = ours.strip_prefix("-ERR pmnet: ")?;
    let passes = passes
        || refused.contains("while WATCHing")
        || refused.contains("finish WATCH")
        || refused.contains("behind WATCH");
    // The front refuses a command that passes through before Redis checks rights.
    if (right.starts_with("-NOPERM") || right.starts_with("-NOAUTH")) && !passes {
        return None;
    }
    let name = words[0].to_ascii_uppercase();
    [
        (
            "is possible only for a user that may do everything",
            "code of users with some rights",
        ),
        (
            "it is not supported inside MULTI",
            "not supported inside MULTI",
        ),
        ("it is state of a connection", "state of a connection"),
        ("while WATCHing", "refused while keys are watched"),
        ("finish WATCH", "refused while keys are watched"),
        (
            "behind WATCH it would remove",
            "refused while keys are watched",
        ),
        (
            "behind a HELLO that changes the protocol",
            "HELLO inside MULTI",
        ),
        ("would move pmnet's own records", "SWAPDB"),
        (
            "unsubscribe before logging in",
            "logging in of a subscriber",
        ),
    ]
    .into_iter()
    .find(|(text, _)| refused.contains(text))
    .map(|(_, why)| why)
    .filter(|why| *why != "SWAPDB" || name == "SWAPDB")
}

/// Compares this many commands of random users.
fn compare(commands: usize, seed: u64) {
    let Some(mut twins) = Twins::start() else {
        return;
    };
    let mut random = Random(seed);
    let (mut sent, mut users, mut changes) = (0, 0, 0);
    let (mut explained, mut failures) = (BTreeMap::<&str, usize>::new(), Vec::new());
    while sent < commands && failures.len() < FAILURES_MAX {
        users += 1;
        let name = format!("u{users}");
        let (rules, others) = (
            twins.server.rules(&mut random),
            twins.server.rules(&mut random),
        );
        twins.fill();
        let made = twins.admin(&format!("ACL SETUSER {name} on >pw {rules}"));
        if made.is_ok_and(|said| said != "+OK\r\n") {
            // The rules contradict each other.
            continue;
        }
        let _ = twins.admin(&format!("ACL SETUSER other reset on >pw {others}"));
        let mut session = Session::new(&twins, format!("user {users}: {rules}; other: {others}"));
        let login = random.of(&[
            "AUTH {u} pw",
            "AUTH {u} pw",
            "HELLO 3 AUTH {u} pw",
            "HELLO 2 AUTH {u} pw SETNAME x",
        ]);
        let login = login.replace("{u}", &name);
        let mut end = session.step(&[filled(&login, &mut random)]);
        let until = sent + OF_ONE;
        while end.is_none() && sent < until {
            if random.percent(CHANGES_PERCENT) {
                let user = random.of(&[name.as_str(), &name, "other"]).to_owned();
                session.story.push(twins.change(&user, &mut random));
                changes += 1;
            }
            let lines = session.next(&twins.server, &mut random);
            sent += lines.len();
            end = session.step(&lines);
        }
        for why in &session.explained {
            *explained.entry(why).or_default() += 1;
        }
        match end.unwrap_or(End::Same) {
            End::Same => {
                if let Err(why) = twins.admin("DEBUG DIGEST") {
                    failures.push(format!("{}: {why}", session.story.join("\n    ")));
                }
            }
            End::Explained(why) => *explained.entry(why).or_default() += 1,
            End::Different(what) => failures.push(what),
        }
        drop(session);
        twins
            .admin(&format!("ACL DELUSER {name}"))
            .expect("deleted");
    }
    let mut said = format!(
        "seed {seed}: {sent} commands of {users} users, whose rights changed {changes} times"
    );
    for (why, count) in &explained {
        let _ = write!(said, "; {why}: {count}");
    }
    println!("{said}");
    assert!(failures.is_empty(), "{said}\n{}", failures.join("\n\n"));
}

fn number(name: &str, or: u64) -> u64 {
    let set = std::env::var(name).ok();
    set.map_or(or, |text| text.parse().expect("a number"))
}

#[test]
fn random_users_may_through_the_front_what_they_may_in_redis() {
    let commands = number("PMNET_RIGHTS_COMMANDS", COMMANDS as u64);
    compare(
        usize::try_from(commands).expect("so many"),
        number("PMNET_TEST_SEED", 1),
    );
}
