//! Makes operations: writes the RESP bytes of each operation, and keeps what a history needs to know about it.

use super::history::Op;
use super::keys::Keys;
use super::options::{CheckedOptions, Workload};
use crate::resp::write_command;

/// Number of keys of one MSET.
const MSET_KEYS: usize = 10;

/// An operation that has been written to a connection's output.
#[derive(Clone, Debug)]
pub struct Issued {
    pub op: Op,
    /// Key and value of the operation, if the history needs them.
    pub label: Option<(String, String)>,
}

/// The counters of one logical client. The numbers that the client writes only increase.
#[derive(Clone, Debug, Default)]
pub struct Lane {
    turn: u64,
    /// Number of the last key that the client used.
    key: u64,
    set: u64,
    overwrite: u64,
    push: u64,
}

/// The source of operations of one run.
#[derive(Debug)]
pub struct Generator {
    workload: Workload,
    keys: Keys,
    random: fastrand::Rng,
    filler: Vec<u8>,
    labels: bool,
    clients: u64,
    locks: u64,
}

impl Generator {
    /// Makes a generator. `labels`: the history needs keys and values.
    pub fn new(workload: Workload, seed: u64, clients: usize, labels: bool) -> Generator {
        let (filler, keys) = match &workload {
            Workload::Mix {
                value_bytes,
                keys,
                zipf,
                ..
            } => (vec![b'x'; *value_bytes], Keys::new(*keys, *zipf)),
            // In the checked workload, keys belong to clients, and each client uses its keys in turn.
            Workload::Checked(checked) => (vec![b'.'; checked.value_bytes], Keys::new(1, None)),
        };
        Generator {
            workload,
            keys,
            random: fastrand::Rng::with_seed(seed),
            filler,
            labels,
            clients: u64::try_from(clients).unwrap_or(u64::MAX).max(1),
            locks: 0,
        }
    }

    /// Appends the next operation of a client to `out`.
    pub fn issue(&mut self, client: u64, lane: &mut Lane, out: &mut Vec<u8>) -> Issued {
        match &self.workload {
            Workload::Mix { mix, prefix, .. } => {
                let (op, again) = mix.next(lane.turn, &mut self.random);
                lane.turn += 1;
                if !again {
                    lane.key = self.keys.draw(&mut self.random);
                }
                let mut key = format!("{prefix}{}", lane.key);
                // Counters and lists have keys of their own, because these operations fail on a key with another type
                // of value.
                match op {
                    Op::Incr => key.push_str(":n"),
                    Op::Lpush | Op::Rpush => key.push_str(":l"),
                    _ => {}
                }
                let filler = &self.filler;
                match op {
                    Op::Set => write_command(out, &[b"SET", key.as_bytes(), filler]),
                    Op::Get => write_command(out, &[b"GET", key.as_bytes()]),
                    Op::Incr => write_command(out, &[b"INCR", key.as_bytes()]),
                    Op::Lpush => write_command(out, &[b"LPUSH", key.as_bytes(), filler]),
                    Op::Rpush => write_command(out, &[b"RPUSH", key.as_bytes(), filler]),
                    Op::Setnx => write_command(out, &[b"SET", key.as_bytes(), filler, b"NX"]),
                    Op::Ping => write_command(out, &[b"PING"]),
                    Op::Mset => {
                        let mut arguments = vec![b"MSET".to_vec(), key.clone().into_bytes()];
                        arguments.push(filler.clone());
                        for _ in 1..MSET_KEYS {
                            let other = format!("{prefix}{}", self.keys.draw(&mut self.random));
                            arguments.push(other.into_bytes());
                            arguments.push(filler.clone());
                        }
                        write_command(out, &arguments);
                    }
                }
                Issued {
                    op,
                    label: self.labels.then(|| (key, String::new())),
                }
            }
            Workload::Checked(checked) => {
                let (op, key, value) = checked_next(checked, client, lane);
                let (key, value) = match op {
                    Op::Setnx => {
                        // All clients try to get one lock before they try the next lock.
                        let round = self.locks / self.clients;
                        // Every attempt has a number of its own, because a client may try one lock twice.
                        self.locks += 1;
                        (
                            format!("{}lock:{round}", checked.prefix),
                            self.locks.to_string(),
                        )
                    }
                    _ => (key, value),
                };
                match op {
                    Op::Set => {
                        let mut padded = value.clone().into_bytes();
                        padded.extend(self.filler.iter().skip(padded.len()));
                        write_command(out, &[b"SET", key.as_bytes(), &padded]);
                    }
                    Op::Rpush => {
                        write_command(out, &[b"RPUSH", key.as_bytes(), value.as_bytes()]);
                    }
                    Op::Incr => write_command(out, &[b"INCR", key.as_bytes()]),
                    _ => write_command(out, &[b"SET", key.as_bytes(), value.as_bytes(), b"NX"]),
                }
                Issued {
                    op,
                    label: Some((key, value)),
                }
            }
        }
    }
}

/// Every ten operations of a client are: five SETs of new keys, one SET of a key that is overwritten, two RPUSHes
/// (INCRs if lists are excluded), one INCR and one attempt to get a lock.
fn checked_next(checked: &CheckedOptions, client: u64, lane: &mut Lane) -> (Op, String, String) {
    let prefix = &checked.prefix;
    let turn = lane.turn % 10;
    lane.turn += 1;
    match turn {
        0 | 2 | 4 | 6 | 8 => {
            let slot = lane.set % checked.ring;
            lane.set += 1;
            (
                Op::Set,
                format!("{prefix}c:{client}:{slot}"),
                lane.set.to_string(),
            )
        }
        1 => {
            lane.overwrite += 1;
            (
                Op::Set,
                format!("{prefix}o:{client}"),
                lane.overwrite.to_string(),
            )
        }
        3 | 7 if checked.lists => {
            lane.push += 1;
            (
                Op::Rpush,
                format!("{prefix}l:{client}"),
                lane.push.to_string(),
            )
        }
        9 => (Op::Setnx, String::new(), String::new()),
        _ => (Op::Incr, format!("{prefix}i:{client}"), String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp;

    #[test]
    fn alternate_names_the_key_that_was_written() {
        let workload = Workload::Mix {
            mix: crate::load::Mix::alternate(),
            keys: 1_000,
            zipf: Some(0.99),
            value_bytes: 3,
            prefix: "a:".into(),
        };
        let mut generator = Generator::new(workload, 1, 2, true);
        let mut lanes = [Lane::default(), Lane::default()];
        let mut written = [String::new(), String::new()];
        let mut different = std::collections::HashSet::new();
        for step in 0..100_usize {
            let client = step % 2;
            let lane = &mut lanes[client];
            let issued = generator.issue(client.try_into().unwrap(), lane, &mut Vec::new());
            let (key, _) = issued.label.unwrap();
            if step % 4 < 2 {
                assert_eq!(issued.op, Op::Set);
                different.insert(key.clone());
                written[client] = key;
            } else {
                assert_eq!((issued.op, &key), (Op::Get, &written[client]));
            }
        }
        assert!(different.len() > 10, "{different:?}");
    }

    #[test]
    fn checked_numbers_only_grow_and_every_command_is_well_formed() {
        let checked = CheckedOptions {
            prefix: "t:".into(),
            ring: 7,
            lists: true,
            value_bytes: 20,
        };
        let mut generator = Generator::new(Workload::Checked(checked), 1, 2, true);
        let mut lanes = [Lane::default(), Lane::default()];
        let mut last = std::collections::HashMap::new();
        let mut locks = std::collections::HashMap::<String, u32>::new();
        for step in 0..400_u64 {
            let client = step % 2;
            let mut out = Vec::new();
            let lane = &mut lanes[usize::try_from(client).unwrap()];
            let issued = generator.issue(client, lane, &mut out);
            let (key, value) = issued.label.unwrap();
            let (_, used) = resp::parse(&out).unwrap().unwrap();
            assert_eq!(used, out.len());
            match issued.op {
                Op::Setnx => *locks.entry(key).or_default() += 1,
                Op::Incr => assert!(value.is_empty()),
                _ => {
                    let number: u64 = value.parse().unwrap();
                    assert!(last.insert(key, number).unwrap_or(0) < number);
                }
            }
        }
        assert!(
            locks.values().all(|tries| *tries == 2),
            "each lock is fought for by all"
        );
    }
}
