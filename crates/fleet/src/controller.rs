//! A controller reads the state of one shard in etcd, and takes the next step (`docs/spec/protocol.md` §14).
//!
//! A controller keeps only one kind of state: the times at which it saw leases disappear. Any number of controllers may
//! run. Each step is one transaction, which fails if the state from which the step was decided has changed.

use std::time::Duration;

use pmnet_proto::lease::{Seen, Watch, Word};
use pmnet_proto::time::Nanos;
use pmnet_udp::Clock;

use crate::etcd::{Etcd, Members, Put};
use crate::heal::{Advice, Step, advise};
use crate::history::History;
use crate::plan::Plan;
use crate::record::{Names, WordRecord, bytes};
use crate::shard::Shard;

/// Number of times that the controller reads the shard's state within the length of a lease.
const LOOKS: u64 = 24;
/// Divisor of a lease's length. The quotient is the longest time for a call to etcd.
const CALLS: u64 = 3;

/// Settings of a controller.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    /// The members of the etcd cluster.
    pub members: Members,
    /// Names of the shard's keys in etcd.
    pub names: Names,
    /// Wanted number of devices in the chain, as far as there are spares. A number that an operator sets in etcd takes
    /// precedence over this setting. `None`: the length of the longest chain so far.
    pub copies: Option<usize>,
    /// The controller compacts etcd, so that etcd keeps only the history of the last minutes. The compaction affects
    /// all users of this etcd.
    pub compacts: bool,
}

/// A controller of one shard.
#[derive(Debug)]
pub struct Controller {
    etcd: Etcd,
    names: Names,
    copies: Option<usize>,
    clock: Clock,
    /// The longest lease that the controller has seen, in nanoseconds.
    longest: Nanos,
    watch: Watch,
    /// A lease has ended, and its margin has not passed yet.
    waits: bool,
    history: History,
}

impl Controller {
    /// Makes a controller without observations.
    #[must_use]
    pub fn new(config: ControllerConfig) -> Controller {
        let longest = crate::length(crate::LEASE_SECONDS_USUAL);
        Controller {
            etcd: Etcd::new(config.members, Duration::from_nanos(longest / CALLS)),
            names: config.names,
            copies: config.copies,
            clock: Clock::boottime(),
            longest,
            watch: Watch::new(longest),
            waits: false,
            history: History::new(config.compacts),
        }
    }

    /// Checks etcd's history, if a check is due. Must be called after each turn. Returns a text for the operator, if
    /// there is something to report.
    pub fn look_after_etcd(&mut self) -> Option<String> {
        self.history.turn(self.clock.now(), &mut self.etcd)
    }

    /// Returns the pause before the next turn.
    #[must_use]
    pub fn pause(&self) -> Duration {
        let usual = self.longest / LOOKS;
        Duration::from_nanos(if self.waits {
            usual.min(pmnet_proto::lease::margin(self.longest))
        } else {
            usual
        })
    }

    /// Reads the state, and takes at most one step. [`Advice::Do`] is a step that was taken. If another controller was
    /// faster, the result is [`Advice::Well`].
    ///
    /// # Errors
    /// A text: etcd does not answer, or a key has an unexpected value. Nevertheless the step may have been taken.
    pub fn turn(&mut self) -> Result<Advice, String> {
        let shard = Shard::read(&mut self.etcd, &self.names)?;
        let now = self.clock.now();
        let records = shard.rows.values().filter_map(|row| row.record.as_ref());
        let longest = records.map(|record| crate::length(record.seconds)).max();
        if let Some(longest) = longest.filter(|&longest| longest > self.longest) {
            // The earlier observations assumed a shorter margin, so the controller observes all leases again from the
            // beginning.
            self.longest = longest;
            self.watch = Watch::new(longest);
        }
        let seen: Vec<Seen> = shard
            .rows
            .iter()
            .map(|(&device, row)| Seen {
                device,
                lease: row.lease,
                held: row.alive != 0,
            })
            .collect();
        self.watch.look(now, &seen);
        let now = self.clock.now();
        self.waits = shard.rows.iter().any(|(&device, row)| {
            let gone = row.lease > 0 && row.alive == 0 && row.word == Word::None;
            gone && self.watch.may_stop(now, device).is_none()
        });
        let copies = shard.copies.or(self.copies);
        let advice = advise(&shard, |id| self.watch.may_stop(now, id), copies);
        let Advice::Do(step) = &advice else {
            return Ok(advice);
        };
        let done = self.act(&shard, step)?;
        Ok(if done { advice } else { Advice::Well })
    }

    /// Takes one step in etcd, if the state from which it was decided is unchanged. Returns whether the step was taken.
    fn act(&mut self, shard: &Shard, step: &Step) -> Result<bool, String> {
        let (are, put) = transaction(&self.names, shard, step);
        let done = self.etcd.put_if(&are, &[put]);
        done.map_err(|error| error.to_string())
    }
}

/// Returns the transaction of a step: the keys that must be unchanged, with their revisions, and the key to put.
fn transaction(names: &Names, shard: &Shard, step: &Step) -> (Vec<(String, u64)>, Put) {
    let mut are = vec![(names.chain(), shard.plans)];
    let put = match step {
        Step::Adopt(plan) | Step::Wire(plan) => {
            // The condition covers the words about all devices that the plan leaves out: each was declared stopped, and
            // has no later word.
            for (id, row) in &shard.rows {
                if row.word == Word::Stopped {
                    are.push((names.word(*id), row.words));
                }
            }
            // If the plan sends to another server, the server's record must be unchanged.
            let says = shard.server.as_ref().map(|record| record.address);
            let before = shard.plan.as_ref().map(|plan| plan.server);
            if says == Some(plan.server) && before.is_some_and(|before| before != plan.server) {
                are.push((names.server(), shard.servers));
            }
            chain(names, plan)
        }
        Step::Stop {
            device,
            lease,
            beside,
        } => {
            let (gone, stays) = (shard.row(*device), shard.row(*beside));
            are.extend([
                (names.alive(*device), 0),
                (names.member(*device), *lease),
                (names.word(*device), gone.words),
                (names.alive(*beside), stays.alive),
                (names.word(*beside), stays.words),
            ]);
            word(names, *device, WordRecord::Stopped)
        }
        Step::LeftOut { device, epoch } => {
            are.push((names.word(*device), shard.row(*device).words));
            word(names, *device, WordRecord::LeftOut(*epoch))
        }
    };
    (are, put)
}

fn chain(names: &Names, plan: &Plan) -> Put {
    Put {
        key: names.chain(),
        value: bytes(plan),
        lease: 0,
    }
}

fn word(names: &Names, device: u32, word: WordRecord) -> Put {
    Put {
        key: names.word(device),
        value: bytes(&word),
        lease: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_asks_for_all_that_it_was_decided_from() {
        let names = Names::new("f", 0).unwrap();
        let mut shard = Shard {
            plans: 5,
            ..Shard::default()
        };
        let row = |lease, alive, word, words| crate::Row {
            lease,
            alive,
            word,
            words,
            ..crate::Row::default()
        };
        shard.rows.insert(1, row(11, 0, Word::LeftOut(2), 12));
        shard.rows.insert(2, row(21, 22, Word::None, 0));
        shard.rows.insert(3, row(31, 0, Word::Stopped, 32));
        let asks = |step: &Step| {
            let (are, put) = transaction(&names, &shard, step);
            let short = |(key, revision): (String, u64)| {
                format!("{}={revision}", key.trim_start_matches("/pmnet/f/0/"))
            };
            let all: Vec<String> = are.into_iter().map(short).collect();
            let value = String::from_utf8(put.value).unwrap();
            (all.join(" "), put.key.replace("/pmnet/f/0/", ""), value)
        };
        let stop = Step::Stop {
            device: 1,
            lease: 11,
            beside: 2,
        };
        assert_eq!(
            asks(&stop),
            (
                "chain=5 alive/1=0 members/1=11 words/1=12 alive/2=22 words/2=0".into(),
                "words/1".into(),
                r#""stopped""#.into()
            )
        );
        let left_out = Step::LeftOut {
            device: 3,
            epoch: 9,
        };
        assert_eq!(
            asks(&left_out),
            (
                "chain=5 words/3=32".into(),
                "words/3".into(),
                r#"{"left-out":9}"#.into()
            )
        );
        let plan = Plan {
            epoch: 1,
            says: None,
            places: Vec::new(),
            joins: false,
            server: "10.0.0.9:1".parse().unwrap(),
            copies: 1,
        };
        let (asked, put, _) = asks(&Step::Wire(plan));
        assert_eq!(
            (asked.as_str(), put.as_str()),
            ("chain=5 words/3=32", "chain")
        );
    }

    #[test]
    fn a_step_to_another_server_asks_whether_that_one_still_serves() {
        let names = Names::new("f", 0).unwrap();
        let at = |port| std::net::SocketAddr::from(([10, 0, 0, 9], port));
        let plan = |port| Plan {
            epoch: 1,
            says: None,
            places: Vec::new(),
            joins: false,
            server: at(port),
            copies: 1,
        };
        let shard = Shard {
            plan: Some(plan(1)),
            plans: 5,
            server: Some(crate::ServerRecord {
                address: at(2),
                epoch: 1,
                chain: Vec::new(),
                seconds: 3,
                standby: true,
                status: None,
            }),
            servers: 7,
            ..Shard::default()
        };
        let (are, _) = transaction(&names, &shard, &Step::Wire(plan(2)));
        assert_eq!(are, [(names.chain(), 5), (names.server(), 7)]);
        let (are, _) = transaction(&names, &shard, &Step::Wire(plan(1)));
        assert_eq!(are, [(names.chain(), 5)]);
    }
}
