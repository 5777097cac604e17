//! The data types of the embedded store beside those of a real Redis 7.0: the same commands, the same replies.
//!
//! Random commands over few keys, so that they meet: right and wrong types, odd arguments, binary names. What fails says its
//! seed; `PMNET_TYPES_SEED` runs it again, `PMNET_TYPES_COMMANDS` says how many commands
//! (`make types-diff`).

mod cases;
mod grammar;
mod random;
mod replies;
mod sides;

use pmnet_wire::command::Protocol;

use grammar::{Command, Grammar, RARE, READS, WRITES};
use random::Random;
use sides::{Ours, Side, Theirs};

/// Commands of the short form.
const COMMANDS: usize = 20_000;
/// Commands that are sent together.
const BATCH: usize = 50;
/// Batches between two looks at everything.
const BETWEEN_LOOKS: usize = 40;
/// Databases that are used.
const DATABASES: u64 = 3;
/// Commands that are shown with a difference.
const SHOWN_BEFORE: usize = 15;
/// Differences after which it ends.
const DIFFERENCES_MAX: usize = 20;

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

pub fn shown(command: &[Vec<u8>]) -> String {
    let words: Vec<String> = command
        .iter()
        .map(|word| format!("\"{}\"", word.escape_ascii()))
        .collect();
    words.join(" ")
}

struct Pair {
    ours: Ours,
    theirs: Theirs,
    run: usize,
    /// What changed something since both were empty, with its database.
    history: Vec<(u32, Command)>,
    differences: Vec<String>,
}

impl Pair {
    fn new() -> Option<Pair> {
        Some(Pair {
            theirs: Theirs::new()?,
            ours: Ours::new(),
            run: 0,
            history: Vec::new(),
            differences: Vec::new(),
        })
    }

    /// Whether this asks for a range of members of a set whose scores differ: what Redis answers then is not specified, and
    /// depends on chance.
    fn is_unspecified(&mut self, database: u32, command: &[Vec<u8>]) -> bool {
        if !asks_for_members(command) {
            return false;
        }
        command.iter().skip(1).take(2).any(|key| {
            let words = [&b"ZRANGE"[..], key, b"0", b"-1", b"WITHSCORES"];
            let look = vec![words.map(<[u8]>::to_vec).to_vec()];
            let reply = self.theirs.run(Protocol::Resp2, database, &look).remove(0);
            let scores: std::collections::BTreeSet<_> = match replies::parse(&reply).0 {
                replies::Node::Branch(_, parts) => parts.into_iter().skip(1).step_by(2).collect(),
                replies::Node::Leaf(_) => return false,
            };
            scores.len() > 1
        })
    }

    /// Runs commands on both sides and compares their replies; a range of members can only be the last.
    fn compare(&mut self, protocol: Protocol, database: u32, commands: &[Command], reads: bool) {
        if let Some((last, before)) = commands.split_last()
            && asks_for_members(last)
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
            if !reads {
                self.history.push((database, command.clone()));
            }
        }
    }

    /// The last commands with the same key.
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

    /// Empties both, so that one difference does not make others.
    fn start_over(&mut self) {
        self.history.clear();
        let flush = [vec![b"FLUSHALL".to_vec()]];
        self.theirs.run(Protocol::Resp2, 0, &flush);
        self.ours.run(Protocol::Resp2, 0, &flush);
    }

    /// Compares the content of all keys.
    fn look(&mut self) {
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
    fn iterate(&mut self, random: &mut Random, database: u32) {
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
            let (mut cursor, mut found) = (b"0".to_vec(), std::collections::BTreeSet::new());
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

/// Whether it is about a range of members.
fn asks_for_members(command: &[Vec<u8>]) -> bool {
    let name = command[0].to_ascii_uppercase();
    name.windows(3).any(|part| part == b"LEX")
        || command
            .iter()
            .any(|word| word.eq_ignore_ascii_case(b"BYLEX"))
}

fn batch(random: &mut Random, reads: bool) -> Vec<Command> {
    let mut commands = Vec::new();
    while commands.len() < BATCH {
        let templates = match random.below(400) {
            0 if !reads => RARE,
            n if reads || n % 5 < 2 => READS,
            _ => WRITES,
        };
        let command = Grammar::command(random, templates);
        let popped = command[0]
            .eq_ignore_ascii_case(b"SPOP")
            .then(|| command.get(1).cloned());
        // What Redis counts until it notices that its time is over.
        let over = command
            .iter()
            .any(|word| word.eq_ignore_ascii_case(b"EXAT") || word.eq_ignore_ascii_case(b"PXAT"));
        let touched = command.get(1).cloned();
        let last = asks_for_members(&command);
        commands.push(command);
        if last {
            break;
        }
        if let Some(Some(key)) = popped {
            // Both have drawn something else.
            commands.push(vec![b"DEL".to_vec(), key]);
        } else if let (true, Some(key)) = (over, touched) {
            commands.push(vec![b"EXISTS".to_vec(), key]);
        }
    }
    commands
}

#[test]
fn random_commands_are_answered_as_by_redis() {
    let Some(mut pair) = Pair::new() else {
        return;
    };
    let wanted = setting("PMNET_TYPES_COMMANDS").map_or(COMMANDS, |n| usize::try_from(n).unwrap());
    let seed = setting("PMNET_TYPES_SEED").unwrap_or(1);
    let mut random = Random::new(seed);
    let mut batches = 0;
    while pair.run < wanted && pair.differences.len() < DIFFERENCES_MAX {
        let protocol = if random.below(2) == 0 {
            Protocol::Resp2
        } else {
            Protocol::Resp3
        };
        let database = u32::try_from(random.below_u64(DATABASES)).unwrap();
        let reads = random.below(8) == 0;
        let commands = batch(&mut random, reads);
        pair.compare(protocol, database, &commands, reads);
        pair.iterate(&mut random, database);
        batches += 1;
        if batches % BETWEEN_LOOKS == 0 {
            pair.look();
            pair.ours.reopen();
            pair.look();
        }
    }
    println!(
        "seed {seed}: {} commands, {} differences",
        pair.run,
        pair.differences.len()
    );
    assert!(
        pair.differences.is_empty(),
        "seed {seed}: {} differences in {} commands:\n{}",
        pair.differences.len(),
        pair.run,
        pair.differences.join("\n\n")
    );
}
