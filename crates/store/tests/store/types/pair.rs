//! The two stores, and the comparison of their replies.

use std::collections::BTreeSet;

use pmnet_wire::command::Protocol;

use super::grammar::Command;
use super::random::Random;
use super::replies;
use super::sides::{Ours, Side, Theirs};

/// Number of databases that are used.
pub const DATABASES: u64 = 3;
/// Number of earlier commands that are shown with a difference.
const SHOWN_BEFORE: usize = 15;

pub fn shown(command: &[Vec<u8>]) -> String {
    let words: Vec<String> = command
        .iter()
        .map(|word| format!("\"{}\"", word.escape_ascii()))
        .collect();
    words.join(" ")
}

/// An embedded store and a real Redis, which get the same commands.
pub struct Pair {
    pub ours: Ours,
    theirs: Theirs,
    /// Number of commands that were run.
    pub run: usize,
    /// Names of commands that got at least one reply other than an error.
    pub answered: BTreeSet<Vec<u8>>,
    /// Commands that changed something since both stores were last empty, each with its database.
    history: Vec<(u32, Command)>,
    /// Number of transactions of clients that watched a key.
    pub watched: usize,
    /// Number of those transactions that did not run.
    pub aborted: usize,
    /// Texts of the differences that were found.
    pub differences: Vec<String>,
}

impl Pair {
    pub fn new(scheme: &str) -> Option<Pair> {
        Some(Pair {
            theirs: Theirs::new()?,
            ours: Ours::new(scheme),
            run: 0,
            answered: BTreeSet::new(),
            history: Vec::new(),
            watched: 0,
            aborted: 0,
            differences: Vec::new(),
        })
    }

    /// Returns whether the command asks for a range by members of a sorted set whose scores differ, or for elements of
    /// a set without sorting them. Redis does not specify the replies to such commands.
    fn is_unspecified(&mut self, database: u32, command: &[Vec<u8>]) -> bool {
        if is_sort(command) {
            let look = [vec![b"TYPE".to_vec(), command[1].clone()]];
            return self.theirs.run(Protocol::Resp2, database, &look)[0] == b"+set\r\n"[..];
        }
        command.iter().skip(1).take(2).any(|key| {
            let words = [&b"ZRANGE"[..], key, b"0", b"-1", b"WITHSCORES"];
            let look = vec![words.map(<[u8]>::to_vec).to_vec()];
            let reply = self.theirs.run(Protocol::Resp2, database, &look).remove(0);
            let scores: BTreeSet<_> = match replies::parse(&reply).0 {
                replies::Node::Branch(_, parts) => parts.into_iter().skip(1).step_by(2).collect(),
                replies::Node::Leaf(_) => return false,
            };
            scores.len() > 1
        })
    }

    /// Runs commands on both stores and compares their replies. Only the last command may have a reply that depends on
    /// chance.
    pub fn compare(
        &mut self,
        protocol: Protocol,
        database: u32,
        commands: &[Command],
        reads: bool,
    ) {
        if let Some((last, before)) = commands.split_last()
            && may_be_chance(last)
        {
            if !before.is_empty() {
                self.compare(protocol, database, before, reads);
            }
            if self.is_unspecified(database, last) {
                return;
            }
            return self.compare_specified(protocol, database, std::slice::from_ref(last), reads);
        }
        self.compare_specified(protocol, database, commands, reads);
    }

    fn compare_specified(
        &mut self,
        protocol: Protocol,
        database: u32,
        commands: &[Command],
        reads: bool,
    ) {
        let theirs = self.theirs.run(protocol, database, commands);
        let ours = if reads {
            self.ours.read(protocol, database, commands)
        } else {
            self.ours.run(protocol, database, commands)
        };
        self.run += commands.len();
        assert_eq!(theirs.len(), commands.len());
        if ours.len() != commands.len() {
            self.differences.push(format!(
                "{} replies to {} commands: {}",
                ours.len(),
                commands.len(),
                ours[0].escape_ascii()
            ));
            return self.start_over();
        }
        for (command, (ours, theirs)) in commands.iter().zip(ours.iter().zip(&theirs)) {
            if !replies::same(&command[0], ours, theirs) {
                let before = self.before(command, database);
                self.differences.push(format!(
                    "{before}    {}\n  ours:   {}\n  theirs: {}\n  in {protocol:?}, database {database}",
                    shown(command),
                    ours.escape_ascii(),
                    theirs.escape_ascii(),
                ));
                return self.start_over();
            }
            if !ours.starts_with(b"-") {
                self.answered.insert(command[0].to_ascii_uppercase());
            }
            if !reads {
                self.history.push((database, command.clone()));
            }
        }
    }

    /// Runs commands as one transaction on both stores.
    pub fn transact(&mut self, protocol: Protocol, database: u32, commands: &[Command]) {
        if commands.iter().any(|command| may_be_chance(command)) {
            return;
        }
        let theirs = self.theirs.transact(protocol, database, commands);
        let ours = self.ours.transact(protocol, database, commands);
        self.run += commands.len();
        let same = match (replies::parts(&ours), replies::parts(&theirs)) {
            (Some(ours), Some(theirs)) => {
                ours.len() == theirs.len()
                    && commands
                        .iter()
                        .zip(ours.iter().zip(&theirs))
                        .all(|(command, (ours, theirs))| replies::same(&command[0], ours, theirs))
            }
            _ => ours == theirs,
        };
        if same {
            self.history
                .extend(commands.iter().map(|command| (database, command.clone())));
            return;
        }
        let lines: Vec<String> = commands.iter().map(|command| shown(command)).collect();
        self.differences.push(format!(
            "MULTI\n    {}\n  ours:   {}\n  theirs: {}\n  in {protocol:?}, database {database}",
            lines.join("\n    "),
            ours.escape_ascii(),
            theirs.escape_ascii(),
        ));
        self.start_over();
    }

    /// Watches a key, runs a command, and then a transaction. Returns whether the transaction ran.
    pub fn watch(&mut self, random: &mut Random, database: u32, command: &Command) {
        let name = command[0].to_ascii_uppercase();
        if name == b"SPOP" || name == b"MOVE" || may_be_chance(command) {
            return;
        }
        let arguments = command.len() - 1;
        let key = match arguments {
            0 => b"s1".to_vec(),
            _ => command[1 + random.below(arguments.min(3))].clone(),
        };
        let words =
            |words: &[&[u8]]| -> Command { words.iter().map(|word| word.to_vec()).collect() };
        let all = [
            words(&[b"WATCH", &key]),
            command.clone(),
            words(&[b"MULTI"]),
            words(&[b"PING"]),
            words(&[b"EXEC"]),
        ];
        let theirs = self.theirs.run(Protocol::Resp2, database, &all);
        let ours = self
            .ours
            .run(Protocol::Resp2, database, &[words(&[b"PMNET.WATCH", &key])]);
        let known = replies::parts(&ours[0]).expect("start and version");
        let number = |part: &[u8]| part[1..part.len() - 2].to_vec();
        let (start, version) = (number(&known[0]), number(&known[1]));
        let answered = self
            .ours
            .run(Protocol::Resp2, database, std::slice::from_ref(command));
        let place = database.to_string().into_bytes();
        let unchanged = words(&[b"PMNET.UNCHANGED", &start, &place, &version, &key]);
        let ours = self
            .ours
            .transact(Protocol::Resp2, database, &[unchanged, words(&[b"PING"])]);
        self.run += 1;
        self.history.push((database, command.clone()));
        self.watched += 1;
        if !replies::same(&command[0], &answered[0], &theirs[1]) || ours != theirs[4] {
            self.differences.push(format!(
                "WATCH \"{}\"\n    {}\n  ours:   {}, EXEC {}\n  theirs: {}, EXEC {}",
                key.escape_ascii(),
                shown(command),
                answered[0].escape_ascii(),
                ours.escape_ascii(),
                theirs[1].escape_ascii(),
                theirs[4].escape_ascii(),
            ));
            return self.start_over();
        }
        self.aborted += usize::from(ours == b"*-1\r\n");
    }

    /// Returns the last commands that used the same key.
    fn before(&self, command: &[Vec<u8>], database: u32) -> String {
        let Some(key) = command.get(1) else {
            return String::new();
        };
        let with_key = |(place, command): &&(u32, Command)| {
            (*place == database && command[1..].contains(key))
                || command[0] == b"COPY"
                || command[0] == b"MOVE"
        };
        let found = self
            .history
            .iter()
            .rev()
            .filter(with_key)
            .take(SHOWN_BEFORE);
        let lines: Vec<String> = found
            .map(|(_, command)| format!("    {}\n", shown(command)))
            .collect();
        lines.into_iter().rev().collect()
    }

    /// Empties both stores, so that one difference does not cause further differences.
    fn start_over(&mut self) {
        self.history.clear();
        let flush = [vec![b"FLUSHALL".to_vec()]];
        self.theirs.run(Protocol::Resp2, 0, &flush);
        self.ours.run(Protocol::Resp2, 0, &flush);
    }

    /// Compares the content of all keys.
    pub fn look(&mut self) {
        for database in 0..u32::try_from(DATABASES).unwrap() {
            let found = self.theirs.run(
                Protocol::Resp2,
                database,
                &[vec![b"KEYS".to_vec(), b"*".to_vec()]],
            );
            let replies::Node::Branch(_, keys) = replies::parse(&found[0]).0 else {
                panic!("KEYS answers no array");
            };
            let mut commands = vec![
                vec![b"KEYS".to_vec(), b"*".to_vec()],
                vec![b"DBSIZE".to_vec()],
            ];
            for key in keys {
                let replies::Node::Leaf(key) = key else {
                    continue;
                };
                let start = key.iter().position(|byte| *byte == b'\n').unwrap() + 1;
                let key = key[start..key.len() - 2].to_vec();
                for words in [
                    "TYPE",
                    "PTTL",
                    "GET",
                    "HGETALL",
                    "SMEMBERS",
                    "LRANGE 0 -1",
                    "ZRANGE 0 -1 WITHSCORES",
                    "ZRANGEBYLEX - +",
                    "HLEN",
                    "LLEN",
                    "SCARD",
                    "ZCARD",
                ] {
                    let mut words = words.split(' ').map(|word| word.as_bytes().to_vec());
                    let name = words.next().unwrap();
                    commands.push([name, key.clone()].into_iter().chain(words).collect());
                }
            }
            for protocol in [Protocol::Resp2, Protocol::Resp3] {
                self.compare(protocol, database, &commands, true);
            }
        }
    }

    /// Compares whole iterations.
    pub fn iterate(&mut self, random: &mut Random, database: u32) {
        let name = random.pick(&["SCAN", "HSCAN", "SSCAN", "ZSCAN"]);
        let key = match name {
            "SCAN" => vec![],
            "HSCAN" => vec![format!("h{}", random.below(3)).into_bytes()],
            "SSCAN" => vec![format!("t{}", random.below(3)).into_bytes()],
            _ => vec![format!("z{}", random.below(3)).into_bytes()],
        };
        let options = random.pick(&[
            "",
            "MATCH *",
            "MATCH *1*",
            "COUNT 1",
            "COUNT 3",
            "MATCH [a-z]* COUNT 2",
        ]);
        let options: Vec<Vec<u8>> = options
            .split_whitespace()
            .map(|word| word.as_bytes().to_vec())
            .collect();
        let run = |side: &mut dyn Side| {
            let (mut cursor, mut found) = (b"0".to_vec(), BTreeSet::new());
            loop {
                let command = [
                    &[name.as_bytes().to_vec()],
                    &key[..],
                    &[cursor],
                    &options[..],
                ]
                .concat();
                let reply = side.run(Protocol::Resp2, database, &[command]).remove(0);
                let replies::Node::Branch(_, parts) = replies::parse(&reply).0 else {
                    return Err(reply);
                };
                let (replies::Node::Leaf(next), replies::Node::Branch(_, page)) =
                    (&parts[0], &parts[1])
                else {
                    return Err(reply);
                };
                let pairs = if name == "HSCAN" || name == "ZSCAN" {
                    2
                } else {
                    1
                };
                found.extend(page.chunks(pairs).map(<[replies::Node]>::to_vec));
                let digits = next.iter().position(|byte| *byte == b'\n').unwrap() + 1;
                cursor = next[digits..next.len() - 2].to_vec();
                if cursor == b"0" {
                    return Ok(found);
                }
            }
        };
        let (ours, theirs) = (run(&mut self.ours), run(&mut self.theirs));
        if ours != theirs {
            self.differences.push(format!(
                "{name} {:?} {:?}: {ours:?} instead of {theirs:?}",
                key, options
            ));
            self.start_over();
        }
    }
}

fn is_sort(command: &[Vec<u8>]) -> bool {
    command.len() > 1 && command[0].to_ascii_uppercase().starts_with(b"SORT")
}

/// Returns whether it depends on the data if the command's reply is specified: a range by members, or a SORT by equal
/// values.
pub fn may_be_chance(command: &[Vec<u8>]) -> bool {
    let name = command[0].to_ascii_uppercase();
    let is_by_nothing =
        |words: &[Vec<u8>]| words[0].eq_ignore_ascii_case(b"BY") && !words[1].contains(&b'*');
    name.windows(3).any(|part| part == b"LEX")
        || is_sort(command) && command.windows(2).any(is_by_nothing)
        || command
            .iter()
            .any(|word| word.eq_ignore_ascii_case(b"BYLEX"))
}
