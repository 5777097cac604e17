//! Encodes the commands of a batch for the batch script, as runs of similar neighbours.
//!
//! Every value passed to a script and every command that the script calls has a cost. So values that all commands of a
//! run share are passed once, and a run of plain SETs is executed as one MSET. The order of the commands is kept. This
//! module does not check the commands, because [`super::plan`] has checked them.

use pmnet_wire::command::Arguments;
use pmnet_wire::promise::is_promised;

use pmnet_resp::write_bulk;

use super::commands::SCRIPT_ARGUMENTS_MAX;
use super::promise::is_assumable;

/// The kind of a command, as far as the script needs to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// `SET key value`, which MSET can execute, too.
    Plain,
    /// Another command in a form that is acknowledged early.
    Promised,
    /// FLUSHALL, FLUSHDB.
    Flush,
    /// Another command for which clients may have been told OK, because of `--assume-ok`.
    Assumed,
    Other,
}

impl Kind {
    fn of(name: &[u8], arguments: &[&[u8]]) -> Kind {
        let is = |word: &str| name.eq_ignore_ascii_case(word.as_bytes());
        if is("SET") && arguments.len() == 2 {
            Kind::Plain
        } else if is("FLUSHALL") || is("FLUSHDB") {
            Kind::Flush
        } else if is_promised(1 + arguments.len(), |i| {
            if i == 0 { name } else { arguments[i - 1] }
        }) {
            Kind::Promised
        } else if is_assumable(name) {
            Kind::Assumed
        } else {
            Kind::Other
        }
    }

    /// Returns the name of this kind in `apply.lua`.
    fn word(self) -> &'static str {
        match self {
            Kind::Plain => "plain",
            Kind::Promised => "promised",
            Kind::Flush => "flush",
            Kind::Assumed => "assumed",
            Kind::Other => "other",
        }
    }
}

/// A run of similar commands that follow each other directly.
#[derive(Debug)]
struct Run<'a> {
    kind: Kind,
    database: u32,
    name: &'a [u8],
    /// Number of arguments of each command, without its name.
    width: usize,
    commands: usize,
}

/// Number of values that describe a run: the facts that its commands share, and the number of commands.
const RUN_HEADER: usize = 2;

/// If a command is too long for a script, it is divided into pieces. A piece has at most this number of arguments,
/// without the name and the arguments that every piece repeats.
const PIECE: usize = 2000;

/// Returns the number of arguments that each piece of this command repeats, if the command can be divided. The other
/// arguments are divided into pairs.
fn piece_head(name: &[u8]) -> Option<usize> {
    let is = |word: &str| name.eq_ignore_ascii_case(word.as_bytes());
    if is("MSET") {
        Some(0)
    } else {
        (is("HMSET") || is("PFMERGE")).then_some(1)
    }
}

/// Returns whether a command that is too long for one script call can be divided into several commands.
pub fn splits(name: &[u8]) -> bool {
    piece_head(name).is_some()
}

/// All commands of a batch, in their order, as runs.
#[derive(Debug, Default)]
pub struct Runs<'a> {
    /// Whether the store is a Redis Cluster, where commands with keys in several slots must not be put into one call.
    /// In a Redis Cluster, a command that is too long for a script is divided, because a MULTI has keys of only one
    /// slot.
    by_slots: bool,
    runs: Vec<Run<'a>>,
    /// Arguments of all commands, without their names.
    arguments: Vec<&'a [u8]>,
    /// Number of the effect to which each command belongs.
    effects: Vec<usize>,
}

impl<'a> Runs<'a> {
    /// Returns an empty list of runs. `by_slots`: whether the store is a Redis Cluster.
    pub fn new(by_slots: bool) -> Runs<'a> {
        Runs {
            by_slots,
            ..Runs::default()
        }
    }

    /// Adds the next command, which belongs to the effect with this number.
    pub fn add(&mut self, effect: usize, database: u32, mut command: Arguments<'a>) {
        let Some(name) = command.next() else { return };
        let arguments: Vec<&[u8]> = command.collect();
        match piece_head(name) {
            Some(head) if self.by_slots && arguments.len() >= SCRIPT_ARGUMENTS_MAX => {
                let (all, rest) = arguments.split_at(head);
                for piece in rest.chunks(PIECE) {
                    self.push(effect, database, name, &[all, piece].concat());
                }
            }
            _ => self.push(effect, database, name, &arguments),
        }
    }

    fn push(&mut self, effect: usize, database: u32, name: &'a [u8], arguments: &[&'a [u8]]) {
        self.arguments.extend(arguments);
        self.effects.push(effect);
        let kind = match Kind::of(name, arguments) {
            Kind::Plain if self.by_slots => Kind::Promised,
            kind => kind,
        };
        let width = arguments.len();
        match self.runs.last_mut() {
            Some(run)
                if (run.kind, run.database, run.name, run.width)
                    == (kind, database, name, width) =>
            {
                run.commands += 1;
            }
            _ => self.runs.push(Run {
                kind,
                database,
                name,
                width,
                commands: 1,
            }),
        }
    }

    /// Returns the number of the effect to which a command belongs; commands count from 0.
    pub fn effect_of(&self, command: usize) -> Option<usize> {
        self.effects.get(command).copied()
    }

    /// Returns the number of values that [`Runs::write`] writes.
    pub fn values(&self) -> usize {
        RUN_HEADER * self.runs.len() + self.arguments.len()
    }

    /// Writes all runs. Each run begins with the facts about it that the script needs.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut arguments = self.arguments.iter();
        for run in &self.runs {
            let Run {
                kind,
                database,
                name,
                width,
                commands,
            } = run;
            let mut in_common = format!("{} {database} {width} ", kind.word()).into_bytes();
            in_common.extend_from_slice(name);
            write_bulk(out, &in_common);
            write_bulk(out, commands.to_string().as_bytes());
            for argument in arguments.by_ref().take(width * commands) {
                write_bulk(out, argument);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pmnet_wire::command::{Commands, single};

    use super::*;
    use pmnet_resp::read::{elements, text};
    use pmnet_resp::write_header;

    /// Returns the text that is written for these commands, each with its database.
    fn written(commands: &[(u32, &str)]) -> String {
        written_by(false, commands)
    }

    fn written_by(by_slots: bool, commands: &[(u32, &str)]) -> String {
        let payloads: Vec<(u32, Bytes)> = commands
            .iter()
            .map(|(database, line)| {
                let words: Vec<&str> = line.split(' ').collect();
                (*database, single(&words).into())
            })
            .collect();
        let mut runs = Runs::new(by_slots);
        for (effect, (database, payload)) in payloads.iter().enumerate() {
            for command in Commands::parse(payload).unwrap().iter() {
                runs.add(effect, *database, command);
            }
        }
        for command in 0..commands.len() {
            assert_eq!(runs.effect_of(command), Some(command));
        }
        assert_eq!(runs.effect_of(commands.len()), None);
        let mut out = Vec::new();
        write_header(&mut out, runs.values());
        runs.write(&mut out);
        let words: Vec<String> = elements(&out)
            .expect("as many as announced")
            .into_iter()
            .map(|word| String::from_utf8_lossy(text(word).unwrap()).into_owned())
            .collect();
        words.join(", ")
    }

    #[test]
    fn neighbours_alike_are_one_run_in_their_order() {
        assert_eq!(
            written(&[(0, "SET a 1"), (0, "SET b 2"), (0, "SET a 3")]),
            "plain 0 2 SET, 3, a, 1, b, 2, a, 3"
        );
        assert_eq!(
            written(&[(0, "SET a 1"), (0, "DEL a"), (0, "SET a 2")]),
            "plain 0 2 SET, 1, a, 1, other 0 1 DEL, 1, a, plain 0 2 SET, 1, a, 2"
        );
        assert_eq!(
            written(&[(0, "SET a 1"), (7, "SET a 2"), (7, "set a 3")]),
            "plain 0 2 SET, 1, a, 1, plain 7 2 SET, 1, a, 2, plain 7 2 set, 1, a, 3"
        );
    }

    #[test]
    fn in_a_cluster_nothing_is_put_together_and_what_is_long_is_split() {
        assert_eq!(
            written_by(true, &[(0, "SET a 1"), (0, "SET b 2")]),
            "promised 0 2 SET, 2, a, 1, b, 2"
        );
        let pairs: Vec<String> = (0..2001).map(|n| format!("k{n} v")).collect();
        for (line, pieces) in [
            (
                format!("MSET {}", pairs.join(" ")),
                [
                    "promised 0 2000 MSET, 2, k0, v",
                    "promised 0 2 MSET, 1, k2000, v",
                ],
            ),
            (
                format!("HMSET h {}", pairs.join(" ")),
                [
                    "assumed 0 2001 HMSET, 2, h, k0, v",
                    "assumed 0 3 HMSET, 1, h, k2000, v",
                ],
            ),
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            let payload: Bytes = single(&words).into();
            let mut runs = Runs::new(true);
            for command in Commands::parse(&payload).unwrap().iter() {
                runs.add(7, 0, command);
            }
            assert_eq!(
                (0..4)
                    .map(|piece| runs.effect_of(piece))
                    .collect::<Vec<_>>(),
                [Some(7), Some(7), Some(7), None]
            );
            let mut out = Vec::new();
            write_header(&mut out, runs.values());
            runs.write(&mut out);
            let words: Vec<String> = elements(&out)
                .unwrap()
                .into_iter()
                .map(|word| String::from_utf8_lossy(text(word).unwrap()).into_owned())
                .collect();
            let all = words.join(", ");
            assert!(
                all.starts_with(pieces[0]) && all.ends_with(pieces[1]),
                "{all}"
            );
            assert!(all.contains("k999, v, ") && all.contains("k1000, v, "));
        }
    }

    #[test]
    fn what_is_no_plain_set_is_none() {
        assert_eq!(
            written(&[(0, "SET a 1 KEEPTTL"), (0, "SET a 1 NX"), (0, "SET a")]),
            "promised 0 3 SET, 1, a, 1, KEEPTTL, other 0 3 SET, 1, a, 1, NX, other 0 1 SET, 1, a"
        );
        assert_eq!(
            written(&[
                (0, "MSET a 1"),
                (0, "SETEX a 9 1"),
                (0, "FlushAll"),
                (0, "FlushAll")
            ]),
            "promised 0 2 MSET, 1, a, 1, promised 0 3 SETEX, 1, a, 9, 1, flush 0 0 FlushAll, 2"
        );
    }
}
