//! The users of Redis as the front knows them, and the rights of each.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use pmnet_resp::{Arguments, read, reply, write_bulk, write_header};
use rustc_hash::{FxHashMap, FxHashSet};

use super::failures::Failures;
use super::list::{PROBE_KEY, Reads, Rules, parse};
use super::{Access, Credentials, DEFAULT};
use crate::store::rights::About;
use crate::table::{Facts, MODULE, MOVABLEKEYS, PUBSUB};
use crate::upstream::Time;

/// Maximum number of remembered answers of one user, for commands with their keys. When more answers than this are
/// remembered, the front forgets all of the user's answers.
const RULINGS_MAX: usize = 4096;
/// Length of a command, without its values, above which its answer is not remembered, in bytes.
const RULING_BYTES_MAX: usize = 512;
/// Shortest time for which rights count while Redis does not answer, in nanoseconds: several polls.
const KEPT_MIN: Time = 2_000_000_000;
/// The first Redis version with ACL DRYRUN, which tells what a user may do.
const DRYRUN_VERSION: (u32, u32) = (7, 0);

/// Whether a user may run a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ruling {
    Allowed,
    /// Redis's error.
    Denied(Bytes),
}

/// A user of Redis.
pub(crate) struct User {
    pub(crate) name: Box<[u8]>,
    rules: Rules,
    /// Number of the first list in which the user had these rights.
    pub(crate) changed: u64,
    /// The commands that Redis has allowed since the last list, whatever their arguments are. A refusal is not
    /// remembered, because the right may have been given in the meantime.
    by_name: FxHashSet<&'static str>,
    /// The commands that Redis has allowed since the last list with exactly these arguments.
    by_arguments: FxHashSet<Vec<u8>>,
}

/// The key under which the answer to a question is remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Name(&'static str),
    Arguments(Vec<u8>),
    Nowhere,
}

/// The users and their rights.
#[derive(Default)]
pub(crate) struct Users {
    pub(crate) access: Access,
    users: Vec<User>,
    by_name: FxHashMap<Box<[u8]>, usize>,
    /// The list of users in Redis's form, from which the users were read. `None`: the list is not known, and no client
    /// may do anything.
    list: Option<Bytes>,
    /// Incremented whenever the places in `users` change.
    pub(crate) generation: u64,
    /// Number of requests for the list of users.
    pub(crate) asked: u64,
    /// Number of the last request for the list that was answered.
    pub(crate) answered: u64,
    /// Incremented when the users may have become those of another Redis.
    pub(crate) of_store: u64,
    /// The newest run of consecutive lists in which the default user needed no password: the numbers of the run's first
    /// and last list.
    open: Option<(u64, u64)>,
    /// Whether the default user needs no password in the present list.
    is_open: bool,
    /// The time when the list was last known to be equal to Redis's own list.
    confirmed: Time,
    /// Whether the store has no users.
    without: bool,
    version: (u32, u32),
    /// Number of logins as users of Redis.
    pub(crate) logins: u64,
    /// The logins since the front last took them from this list.
    pub(crate) logged_in: Vec<Arc<Credentials>>,
    /// The newest login of each user that has clients, and of some users that had clients before.
    newest: FxHashMap<Box<[u8]>, Arc<Credentials>>,
    failures: Failures,
    /// Whether a client needs a newer list at once.
    pub(crate) wanted: bool,
    /// Whether a client waits for an answer.
    pub(crate) awaited: bool,
    /// Whether the list has changed, or a client waited for the list.
    pub(crate) news: bool,
    /// Why Redis cannot be asked.
    pub(crate) trouble: String,
}

impl User {
    /// Whether a client that has not logged in may be this user.
    pub(crate) fn is_open(&self) -> bool {
        self.rules.on && self.rules.nopass
    }

    pub(crate) fn needs_no_password(&self) -> bool {
        self.rules.nopass
    }

    pub(crate) fn may_everything(&self) -> bool {
        self.rules.full
    }

    /// Whether the user may read every key with the commands that it may run. If a user has selectors, the front also
    /// asks Redis about the SORT with another key ([`Self::unknown`]), so that only selectors with the right to read
    /// every key count.
    pub(crate) fn reads(&self) -> Reads {
        self.rules.reads
    }

    /// Returns the question to Redis whether the user may run this command in this database. `None`: the user is known
    /// to have the right. `others`: the question is about all keys instead of the SORT's key.
    pub(crate) fn unknown(
        &self,
        facts: Option<&'static Facts>,
        arguments: &Arguments<'_>,
        database: u32,
        others: bool,
    ) -> Option<About> {
        let place = self.place(facts, arguments, database, others);
        (!self.may(&place)).then(|| About::May {
            user: self.name.clone(),
            // Without rules about databases, the answer is the same for each database.
            database: if self.rules.odd { database } else { 0 },
            question: self.question(facts, arguments, others),
            place,
        })
    }

    /// Returns the key under which the answer for this command is remembered.
    fn place(
        &self,
        facts: Option<&'static Facts>,
        arguments: &Arguments<'_>,
        database: u32,
        others: bool,
    ) -> Place {
        let Some(facts) = facts else {
            return Place::Nowhere;
        };
        let first = |name: &Vec<u8>| name == facts.name.as_bytes();
        // A command whose first argument is a key has no subcommands. The channel of SPUBLISH stands at the position of
        // a key, and rules depend on the channel. A module does not say whether a command has channels.
        if self.rules.keyless
            && facts.first_key == 1
            && !facts.has(MOVABLEKEYS)
            && !facts.has(PUBSUB)
            && !facts.has(MODULE)
            && !self.rules.first_argument.iter().any(first)
        {
            return Place::Name(facts.name);
        }
        let mut place = Vec::new();
        if self.rules.odd {
            write_bulk(&mut place, database.to_string().as_bytes());
        }
        for at in 0..arguments.len() {
            let argument = shown(facts, at, arguments, others);
            if place.len() + argument.len() > RULING_BYTES_MAX {
                return Place::Nowhere;
            }
            write_bulk(&mut place, argument);
        }
        if place.len() > RULING_BYTES_MAX {
            return Place::Nowhere;
        }
        Place::Arguments(place)
    }

    /// Whether it is known that the user may run the command that is remembered under this key.
    fn may(&self, place: &Place) -> bool {
        match place {
            Place::Name(name) => self.by_name.contains(name),
            Place::Arguments(arguments) => self.by_arguments.contains(arguments),
            Place::Nowhere => false,
        }
    }

    fn remember(&mut self, place: Place) {
        match place {
            Place::Name(name) => {
                self.by_name.insert(name);
            }
            Place::Arguments(arguments) => {
                if self.by_arguments.len() >= RULINGS_MAX {
                    self.by_arguments.clear();
                }
                self.by_arguments.insert(arguments);
            }
            Place::Nowhere => {}
        }
    }

    /// Returns the question whether the user may run this command.
    fn question(
        &self,
        facts: Option<&'static Facts>,
        arguments: &Arguments<'_>,
        others: bool,
    ) -> Vec<u8> {
        let mut out = Vec::new();
        write_header(&mut out, 3 + arguments.len());
        for word in [&b"ACL"[..], b"DRYRUN", &self.name] {
            write_bulk(&mut out, word);
        }
        for at in 0..arguments.len() {
            let argument = facts.map_or_else(
                || arguments.get(at),
                |facts| shown(facts, at, arguments, others),
            );
            write_bulk(&mut out, argument);
        }
        out
    }
}

/// Returns the argument for the question to Redis. Values are left out, because a user that may write `k v` may also
/// write `k w`.
fn shown<'a>(facts: &Facts, at: usize, arguments: &Arguments<'a>, others: bool) -> &'a [u8] {
    match at {
        _ if is_value(facts, at, arguments) => b"",
        1 if others => PROBE_KEY,
        _ => arguments.get(at),
    }
}

/// Whether an argument is a value on which no rule depends.
fn is_value(facts: &Facts, at: usize, arguments: &Arguments<'_>) -> bool {
    match (facts.name, arguments.len()) {
        ("SET", 3) => at == 2,
        ("SETEX" | "PSETEX", 4) => at == 3,
        ("MSET", _) => at > 0 && at.is_multiple_of(2),
        _ => false,
    }
}

impl Users {
    pub(crate) fn new(access: Access) -> Users {
        Users {
            access,
            ..Users::default()
        }
    }

    /// Whether the users are the users of a store, which the front must ask.
    pub(crate) fn are_asked_for(&self) -> bool {
        matches!(self.access, Access::Redis)
    }

    /// Notes that the store has no users.
    pub(crate) fn store_has_none(&mut self) {
        self.news |= !self.without;
        self.without = true;
    }

    pub(crate) fn has_none(&self) -> bool {
        self.without
    }

    /// Forgets all users, because Redis may be another process now, or was not asked for some time.
    pub(crate) fn forget(&mut self) {
        self.list = None;
        self.users.clear();
        self.by_name.clear();
        self.without = false;
        self.generation += 1;
        self.of_store += 1;
        (self.open, self.is_open) = (None, false);
    }

    pub(crate) fn is_known(&self) -> bool {
        self.list.is_some()
    }

    /// Whether more than `timeout` has passed since the list was last known to be Redis's present list.
    pub(crate) fn is_stale(&self, now: Time, timeout: Time) -> bool {
        now >= self.confirmed.saturating_add(timeout.max(KEPT_MIN))
    }

    /// Notes that no user can have changed, because Redis does not run.
    pub(crate) fn confirm(&mut self, now: Time) {
        self.confirmed = self.confirmed.max(now);
        self.news |= std::mem::take(&mut self.awaited);
    }

    /// Notes why Redis did not answer.
    pub(crate) fn cannot_be_asked(&mut self, why: &str) {
        if self.trouble != why {
            tracing::warn!(why, "PM3210 cannot ask Redis about its users");
            why.clone_into(&mut self.trouble);
        }
    }

    pub(crate) fn find(&self, name: &[u8]) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Whether a user of this name is known.
    pub(crate) fn has(&self, name: &[u8]) -> bool {
        let asked = self.are_asked_for() && !self.without;
        if asked {
            self.find(name).is_some()
        } else {
            name == DEFAULT
        }
    }

    /// Returns whether the default user needed no password when the front had requested `asked` lists; `None`: not
    /// known yet.
    pub(crate) fn was_open(&self, asked: u64) -> Option<bool> {
        let run = self
            .open
            .is_some_and(|(first, last)| first <= asked + 1 && asked < last);
        (self.answered > asked).then_some(run)
    }

    /// Notes whether the default user needs no password in the list `number`.
    fn note_open(&mut self, number: u64) {
        let open = self
            .default_user()
            .and_then(|at| self.user(at))
            .is_some_and(User::is_open);
        let before = std::mem::replace(&mut self.is_open, open);
        self.open = match self.open {
            Some((first, _)) if open && before => Some((first, number)),
            _ if open => Some((number, number)),
            run => run,
        };
    }

    pub(crate) fn default_user(&self) -> Option<usize> {
        self.find(DEFAULT)
    }

    pub(crate) fn user(&self, at: usize) -> Option<&User> {
        self.users.get(at)
    }

    /// Notes the version from `INFO server`.
    pub(crate) fn found_version(&mut self, version: (u32, u32)) {
        self.version = version;
    }

    /// Whether Redis can tell what a user may do. Fails with Redis's version if Redis cannot tell.
    pub(crate) fn can_be_asked(&self) -> Result<(), (u32, u32)> {
        if self.version >= DRYRUN_VERSION {
            Ok(())
        } else {
            Err(self.version)
        }
    }

    /// Takes the answer to question `number` for the list, which was sent at `asked`.
    ///
    /// # Errors
    /// The answer is not a list.
    pub(crate) fn take_list(
        &mut self,
        number: u64,
        asked: Time,
        list: &Bytes,
    ) -> Result<(), String> {
        if let Some(error) = read::error(list) {
            return Err(format!("the front may not list its users: {error}"));
        }
        self.answered = number;
        self.confirm(asked);
        self.trouble.clear();
        if self.list.as_ref() == Some(list) {
            // While the answers were given, the rights may have been other than in both lists.
            for user in &mut self.users {
                user.by_name.clear();
                user.by_arguments.clear();
            }
            self.note_open(number);
            return Ok(());
        }
        let lines = read::elements(list).ok_or("it sent no list of users")?;
        let before = std::mem::take(&mut self.users);
        let places = std::mem::take(&mut self.by_name);
        for line in lines {
            let line = read::bulk(line).ok_or("it sent no list of users")?;
            let (name, rules) = parse(line).ok_or("it sent a user that is not understood")?;
            let old = places.get(name).and_then(|&at| before.get(at));
            let same = old.filter(|old| old.rules.rights == rules.rights);
            let user = User {
                name: name.into(),
                rules,
                changed: same.map_or(number, |same| same.changed),
                by_name: FxHashSet::default(),
                by_arguments: FxHashSet::default(),
            };
            self.by_name.insert(name.into(), self.users.len());
            self.users.push(user);
        }
        self.note_open(number);
        self.generation += 1;
        self.news = true;
        self.list = Some(list.clone());
        Ok(())
    }

    /// Takes Redis's answer to [`User::question`] about the user of this name.
    pub(crate) fn take_ruling(&mut self, name: &[u8], place: Place, answer: &Bytes) -> Ruling {
        let ruling = match read::text(answer) {
            Some(b"OK") => Ruling::Allowed,
            Some(text) => Ruling::Denied(reply::error(&noperm(&String::from_utf8_lossy(text)))),
            // This answer is not a decision about rights. It is an error that the command itself would get, for example
            // for a wrong number of arguments.
            None if answer.starts_with(b"-") => return Ruling::Denied(one_line(answer)),
            None => {
                return Ruling::Denied(reply::error(
                    "ERR pmnet: Redis does not say whether this is allowed",
                ));
            }
        };
        if ruling == Ruling::Allowed
            && let Some(at) = self.find(name)
            && let Some(user) = self.users.get_mut(at)
        {
            user.remember(place);
        }
        ruling
    }

    /// Notes that a client has logged in as this user. Returns the number of the login.
    pub(crate) fn note_login(&mut self, user: &Arc<Credentials>) -> u64 {
        if self.are_asked_for() && !self.has_none() {
            self.logins += 1;
            self.logged_in.push(Arc::clone(user));
            self.newest.insert(user.user.clone(), Arc::clone(user));
        }
        self.logins
    }

    /// Returns the newest login as the user of this name.
    pub(crate) fn newest_login(&self, name: &[u8]) -> Option<&Arc<Credentials>> {
        self.newest.get(name)
    }

    /// Forgets the logins of all users except these, because only these users have clients.
    pub(crate) fn keep_logins(&mut self, names: &BTreeSet<&[u8]>) {
        self.newest.retain(|name, _| names.contains(&**name));
    }

    pub(crate) fn login_failed(&mut self, address: IpAddr, now: Time) {
        self.failures.note(address, now);
    }

    /// Whether logins from this address must wait.
    pub(crate) fn holds_logins(&self, address: IpAddr, now: Time) -> bool {
        self.failures.holds(address, now)
    }

    pub(crate) fn failed_logins(&self) -> u64 {
        self.failures.total()
    }
}

/// DRYRUN's error text ends with an additional empty line, which a RESP error must not have.
fn one_line(answer: &[u8]) -> Bytes {
    let text = String::from_utf8_lossy(answer.strip_prefix(b"-").unwrap_or(answer));
    reply::error(text.trim_end())
}

/// Makes the error for a command from the text of DRYRUN.
fn noperm(text: &str) -> String {
    let names = |what: &str| text.contains(" to access the '") && text.ends_with(what);
    // The text of Redis 7.0.
    if let Some(rest) = text.strip_prefix("This user has no permissions ") {
        return match rest {
            _ if names("' key") => {
                "NOPERM this user has no permissions to access one of the keys used as arguments".into()
            }
            _ if names("' channel") => {
                "NOPERM this user has no permissions to access one of the channels used as arguments".into()
            }
            _ => format!("NOPERM this user has no permissions {rest}"),
        };
    }
    // The texts of Redis 7.2 and newer.
    match text {
        _ if text.contains(" has no permissions to access database ") => {
            "NOPERM No permissions to access database".into()
        }
        _ if names("' key") => "NOPERM No permissions to access a key".into(),
        _ if names("' channel") => "NOPERM No permissions to access a channel".into(),
        _ => format!("NOPERM {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::REQUESTS;
    use crate::table::Table;
    use pmnet_resp::{Parser, Status};

    fn list(lines: &[&str]) -> Bytes {
        let mut out = Vec::new();
        write_header(&mut out, lines.len());
        for line in lines {
            write_bulk(&mut out, line.as_bytes());
        }
        Bytes::from(out)
    }

    fn place(user: &User, line: &str) -> Place {
        let input = format!("{line}\r\n");
        let mut parser = Parser::new(REQUESTS);
        assert_eq!(parser.poll(input.as_bytes()), Ok(Status::Complete));
        let arguments = parser.arguments(input.as_bytes());
        let table = Table::new::<&str>(&[]).unwrap();
        user.place(table.verdict(&arguments).facts, &arguments, 0, false)
    }

    /// If a right is given and taken away again between two lists, both lists are equal.
    #[test]
    fn answers_are_kept_until_the_next_list() {
        let mut users = Users::new(Access::Redis);
        let two = ["user a on ~* &* +@all -flushall", "user b on ~x &* +get"];
        users.take_list(1, 5, &list(&two)).unwrap();
        let get = |users: &Users, name: &str| {
            let user = users.user(users.find(name.as_bytes()).unwrap()).unwrap();
            user.may(&place(user, "GET x"))
        };
        let ok = Bytes::from_static(b"+OK\r\n");
        for name in ["a", "b"] {
            assert!(!get(&users, name));
            let at = users.find(name.as_bytes()).unwrap();
            let place = place(users.user(at).unwrap(), "GET x");
            let no = Bytes::from_static(b"$2\r\nno\r\n");
            let refused = users.take_ruling(name.as_bytes(), place.clone(), &no);
            assert!(matches!(refused, Ruling::Denied(_)) && !get(&users, name));
            let allowed = users.take_ruling(name.as_bytes(), place, &ok);
            assert!(allowed == Ruling::Allowed && get(&users, name));
        }
        users.take_list(2, 5, &list(&two)).unwrap();
        assert!(!get(&users, "a") && !get(&users, "b"));
        let changed = ["user new on", two[0], "user b on ~x &* +set"];
        users.take_list(2, 6, &list(&changed)).unwrap();
        assert!(!get(&users, "a") && !get(&users, "b"));
        users.take_list(3, 7, &list(&[two[1]])).unwrap();
        assert_eq!(users.find(b"a"), None);
        assert!(
            users
                .take_list(4, 8, &Bytes::from_static(b"-NOPERM x\r\n"))
                .is_err()
        );
        let timeout = 2 * KEPT_MIN;
        assert!(!users.is_stale(6 + timeout, timeout) && users.is_stale(7 + timeout, timeout));
    }

    #[test]
    fn what_is_remembered_holds_for_everything_that_has_the_same_place() {
        let mut users = Users::new(Access::Redis);
        let lines = [
            "user all on ~* &* -@all +set +get +config|get",
            "user some on ~a* &* +@all",
            "user first on ~* &* -@all +get|x +config|get",
        ];
        users.take_list(1, 0, &list(&lines)).unwrap();
        let [all, some, first] = [0, 1, 2].map(|at| users.user(at).unwrap());
        assert_eq!(place(all, "GET a"), Place::Name("GET"));
        assert_eq!(place(all, "set a v"), Place::Name("SET"));
        // The right to these commands depends on subcommands, or on the places of their keys.
        for line in ["CONFIG GET x", "SORT a BY b", "EVAL x 1 a", "PING"] {
            assert!(matches!(place(all, line), Place::Arguments(_)), "{line}");
        }
        assert!(matches!(place(first, "GET a"), Place::Arguments(_)));
        assert_eq!(place(all, "NOSUCH a"), Place::Nowhere);
        // Commands that differ only in values have the same place. Commands with different options have different
        // places.
        assert_eq!(place(some, "SET a v"), place(some, "SET a w"));
        assert_ne!(place(some, "SET a v"), place(some, "SET b v"));
        assert_ne!(place(some, "SET a v"), place(some, "SET a v GET"));
        assert_eq!(place(some, "MSET a 1 b 2"), place(some, "MSET a 3 b 4"));
        assert_ne!(place(some, "MSET a 1 b 2"), place(some, "MSET a 1 c 2"));
        let long = "x".repeat(RULING_BYTES_MAX);
        assert_eq!(place(some, &format!("GET {long}")), Place::Nowhere);
        assert_eq!(
            place(some, &format!("SET a {long}")),
            place(some, "SET a b")
        );
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut users = Users::new(Access::Redis);
        users
            .take_list(1, 0, &list(&["user a on ~a* &* +@all"]))
            .unwrap();
        let ok = Bytes::from_static(b"+OK\r\n");
        for number in 0..3 * RULINGS_MAX {
            let place = place(users.user(0).unwrap(), &format!("GET {number}"));
            users.take_ruling(b"a", place, &ok);
            assert!(users.users[0].by_arguments.len() <= RULINGS_MAX);
        }
    }

    #[test]
    fn errors_are_those_of_the_command() {
        for (said, error) in [
            (
                "This user has no permissions to run the 'config|set' command",
                "NOPERM this user has no permissions to run the 'config|set' command",
            ),
            (
                "This user has no permissions to access the 'it's a' key",
                "NOPERM this user has no permissions to access one of the keys used as arguments",
            ),
            (
                "This user has no permissions to access the 'c' channel",
                "NOPERM this user has no permissions to access one of the channels used as arguments",
            ),
            (
                "User bob has no permissions to run the 'set' command",
                "NOPERM User bob has no permissions to run the 'set' command",
            ),
            (
                "User bob has no permissions to access the 'k' key",
                "NOPERM No permissions to access a key",
            ),
            (
                "User bob has no permissions to access the 'k' channel",
                "NOPERM No permissions to access a channel",
            ),
        ] {
            assert_eq!(noperm(said), error);
        }
    }
}
