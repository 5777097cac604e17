//! Compares the data types of the packet store with those of a real Redis 7.0. The same commands must get the same
//! replies. The random commands use few keys, so that the commands affect each other: keys of right and wrong types,
//! odd arguments, binary names. If the test fails, its message has the seed. `PMNET_TYPES_SEED` runs a seed again, and
//! `PMNET_TYPES_COMMANDS` sets the number of commands (`make types-diff`).

mod cases;
mod grammar;
mod items;
mod pair;
mod random;
mod replies;
mod sides;

use pmnet_wire::command::Protocol;

use grammar::{BLOCKING, Command, Grammar, RARE, READS, WRITES};
use pair::{DATABASES, Pair, may_be_chance};
use random::Random;

/// The packet store in a file of its own, and in a device's region beside the log.
const SCHEMES: [&str; 2] = ["packet", "region"];
/// Number of commands in the short form of the test.
const COMMANDS: usize = 20_000;
/// Number of commands that are sent together.
const BATCH: usize = 50;
/// Maximum number of commands of a transaction.
const TOGETHER: usize = 4;
/// Number of batches between two comparisons of all keys.
const BETWEEN_LOOKS: usize = 40;
/// Number of differences after which the test ends.
const DIFFERENCES_MAX: usize = 20;

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

fn batch(random: &mut Random, grammar: Grammar, reads: bool) -> Vec<Command> {
    let mut commands = Vec::new();
    while commands.len() < BATCH {
        let templates = match random.below(400) {
            0 if !reads && !grammar.wide => RARE,
            n if reads || n % 5 < 2 => READS,
            _ => WRITES,
        };
        let mut command = grammar.command(random, templates);
        if let Some(value) = sides::plain_set(&command).then(|| &mut command[2])
            && random.below(3) > 0
        {
            // The value is long enough to stay in the packet in which it arrived, if the store keeps packets.
            value.resize(450 + random.below(800), b'l');
        }
        let popped = command[0]
            .eq_ignore_ascii_case(b"SPOP")
            .then(|| command.get(1).cloned());
        // Redis counts this key until it notices that the key has expired.
        let over = command
            .iter()
            .any(|word| word.eq_ignore_ascii_case(b"EXAT") || word.eq_ignore_ascii_case(b"PXAT"));
        let touched = command.get(1).cloned();
        let last = may_be_chance(&command);
        commands.push(command);
        if last {
            break;
        }
        if let Some(Some(key)) = popped {
            // The two stores have chosen different random members, so the key is deleted.
            commands.push(vec![b"DEL".to_vec(), key]);
        } else if let (true, Some(key)) = (over, touched) {
            commands.push(vec![b"EXISTS".to_vec(), key]);
        }
    }
    commands
}

#[test]
fn random_commands_are_answered_as_by_redis() {
    for scheme in SCHEMES {
        compare(scheme);
    }
}

fn compare(scheme: &str) {
    let Some(mut pair) = Pair::new(scheme) else {
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
        let grammar = Grammar {
            wide: batches / BETWEEN_LOOKS % 3 == 2,
        };
        let commands = batch(&mut random, grammar, reads);
        pair.compare(protocol, database, &commands, reads);
        let mut commands = batch(&mut random, grammar, false);
        commands.retain(|command| !command[0].eq_ignore_ascii_case(b"SPOP"));
        commands.truncate(TOGETHER);
        let waiting = random.below(commands.len() + 1);
        commands.insert(waiting, grammar.command(&mut random, BLOCKING));
        pair.transact(protocol, database, &commands);
        let watched = grammar.command(&mut random, WRITES);
        pair.watch(&mut random, database, &watched);
        pair.iterate(&mut random, database);
        batches += 1;
        if batches % BETWEEN_LOOKS == 0 {
            pair.look();
            pair.ours.reopen();
            pair.look();
        }
    }
    let ran = pair.watched - pair.aborted;
    assert!(
        pair.aborted > 10 && ran > 10,
        "{} of {} watched transactions were aborted",
        pair.aborted,
        pair.watched
    );
    let [linked, copied] = pair.ours.counts();
    assert!(
        scheme != "region" || linked > 50 && copied > 20,
        "{linked} {copied}"
    );
    println!(
        "{scheme}: seed {seed}: {} commands, {} differences",
        pair.run,
        pair.differences.len()
    );
    assert!(
        pair.differences.is_empty(),
        "{scheme}: seed {seed}: {} differences in {} commands:\n{}",
        pair.differences.len(),
        pair.run,
        pair.differences.join("\n\n")
    );
}
