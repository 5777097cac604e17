//! For the operations on one key, checks the value that the database shows. The functions have no side effects, so that
//! every finding can be tested.

use super::Verdict;
use crate::load::Outcome;

/// The SETs of increasing numbers to one key.
#[derive(Clone, Debug, Default)]
pub struct SetSeries {
    acknowledged: u64,
    /// The numbers with unknown outcome after the last acknowledged number.
    open: Vec<u64>,
}

impl SetSeries {
    pub fn add(&mut self, number: u64, outcome: Outcome) {
        match outcome {
            Outcome::Ok => {
                self.acknowledged = self.acknowledged.max(number);
                self.open.retain(|open| *open > number);
            }
            Outcome::Unknown => self.open.push(number),
            Outcome::Failed => {}
        }
    }

    /// Checks the key. `found`: the number in the database; 0 if the key does not exist, `None` if no client wrote the
    /// value.
    pub fn check(&self, key: &str, found: Option<u64>, verdict: &mut Verdict) {
        let expected = self.acknowledged;
        match found {
            Some(number) if number == expected || self.open.contains(&number) => {}
            Some(number) if number < expected => {
                verdict.lost += 1;
                verdict.detail(|| {
                    format!("lost: {key} holds {number}, but {expected} was acknowledged")
                });
            }
            other => {
                verdict.invented += 1;
                verdict.detail(|| {
                    format!("invented: {key} holds {other:?}, acknowledged was {expected}")
                });
            }
        }
    }
}

/// The RPUSHes of unique, increasing numbers to one list.
#[derive(Clone, Debug, Default)]
pub struct ListSeries {
    acknowledged: Vec<u64>,
    open: Vec<u64>,
}

impl ListSeries {
    pub fn add(&mut self, number: u64, outcome: Outcome) {
        match outcome {
            Outcome::Ok => self.acknowledged.push(number),
            Outcome::Unknown => self.open.push(number),
            Outcome::Failed => {}
        }
    }

    pub fn check(&self, key: &str, found: &[Option<u64>], verdict: &mut Verdict) {
        let mut seen = std::collections::BTreeSet::new();
        let mut last = 0;
        for item in found {
            let known = item.filter(|number| {
                // Both lists are sorted, because the client issued increasing numbers.
                self.acknowledged.binary_search(number).is_ok()
                    || self.open.binary_search(number).is_ok()
            });
            let Some(number) = known else {
                verdict.invented += 1;
                verdict.detail(|| format!("invented: {key} contains {item:?}"));
                continue;
            };
            if !seen.insert(number) {
                verdict.twice += 1;
                verdict.detail(|| format!("twice: {key} contains {number} again"));
                continue;
            }
            if number < last {
                verdict.out_of_order += 1;
                verdict.detail(|| format!("out of order: {key} has {number} after {last}"));
            }
            last = last.max(number);
        }
        for number in &self.acknowledged {
            if !seen.contains(number) {
                verdict.lost += 1;
                verdict.detail(|| format!("lost: {key} lacks the acknowledged {number}"));
            }
        }
    }
}

/// The INCRs of one counter by one client.
#[derive(Clone, Debug, Default)]
pub struct CounterSeries {
    /// Replies of the acknowledged INCRs. Each has the number of INCRs with unknown outcome since the reply before.
    replies: Vec<(Option<u64>, u64)>,
    open: u64,
}

impl CounterSeries {
    pub fn add(&mut self, reply: Option<u64>, outcome: Outcome) {
        match outcome {
            Outcome::Ok => self.replies.push((reply, std::mem::take(&mut self.open))),
            Outcome::Unknown => self.open += 1,
            Outcome::Failed => {}
        }
    }

    /// Checks the counter. `found`: its final value; 0 if the key does not exist, `None` if the value is not a number.
    pub fn check(&self, key: &str, found: Option<u64>, verdict: &mut Verdict) {
        let mut last = 0;
        for (reply, open) in &self.replies {
            last = Self::step(key, last, *reply, 1, 1 + open, verdict);
        }
        Self::step(key, last, found, 0, self.open, verdict);
    }

    /// Checks that `now` is between `least` and `most` greater than `last`.
    fn step(
        key: &str,
        last: u64,
        now: Option<u64>,
        least: u64,
        most: u64,
        verdict: &mut Verdict,
    ) -> u64 {
        let Some(now) = now else {
            verdict.invented += 1;
            verdict.detail(|| format!("invented: {key} is no number after {last}"));
            return last;
        };
        if now < last + least {
            verdict.lost += last + least - now;
            verdict.detail(|| format!("lost: {key} went from {last} to {now}"));
        } else if now > last + most {
            verdict.twice += now - last - most;
            verdict.detail(|| {
                format!("twice: {key} went from {last} to {now}, at most {most} were asked for")
            });
        }
        now
    }
}

/// The attempts of clients to take one lock with SET NX.
#[derive(Clone, Debug, Default)]
pub struct LockSeries {
    winners: Vec<u64>,
    losers: Vec<u64>,
    open: Vec<u64>,
}

impl LockSeries {
    pub fn add(&mut self, attempt: u64, won: bool, outcome: Outcome) {
        match outcome {
            Outcome::Ok if won => self.winners.push(attempt),
            Outcome::Ok => self.losers.push(attempt),
            Outcome::Unknown => self.open.push(attempt),
            Outcome::Failed => {}
        }
    }

    /// Checks the lock. `holder`: the attempt that the database names as holder; `None`: the lock is free;
    /// `Some(None)`: the value in the database is not an attempt.
    pub fn check(&self, key: &str, holder: Option<Option<u64>>, verdict: &mut Verdict) {
        if self.winners.len() > 1 {
            verdict.shared_locks += 1;
            verdict.detail(|| format!("shared: {key} was given to {:?}", self.winners));
            return;
        }
        match holder {
            Some(Some(attempt)) if self.losers.contains(&attempt) => {
                verdict.twice += 1;
                verdict
                    .detail(|| format!("twice: {attempt} holds {key} but was told that it failed"));
            }
            Some(Some(attempt)) if self.winners.contains(&attempt) => {}
            Some(Some(attempt)) if self.winners.is_empty() && self.open.contains(&attempt) => {}
            None if self.winners.is_empty() && self.losers.is_empty() => {}
            None => {
                verdict.lost += 1;
                verdict.detail(|| format!("lost: nobody holds {key}"));
            }
            Some(other) if self.winners.is_empty() => {
                verdict.invented += 1;
                verdict.detail(|| format!("invented: {other:?} holds {key}"));
            }
            Some(other) => {
                verdict.shared_locks += 1;
                verdict.detail(|| {
                    format!(
                        "shared: {key} was given to {:?}, {other:?} holds it",
                        self.winners
                    )
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Outcome::{Failed, Ok as Acked, Unknown};

    fn numbers(verdict: &Verdict) -> (u64, u64, u64, u64, u64) {
        (
            verdict.lost,
            verdict.twice,
            verdict.out_of_order,
            verdict.invented,
            verdict.shared_locks,
        )
    }

    #[test]
    fn sets() {
        let mut series = SetSeries::default();
        for (number, outcome) in [(1, Unknown), (2, Acked), (3, Failed), (4, Unknown)] {
            series.add(number, outcome);
        }
        for (found, expected) in [
            (Some(2), (0, 0, 0, 0, 0)),
            (Some(4), (0, 0, 0, 0, 0)),
            (Some(1), (1, 0, 0, 0, 0)),
            (Some(0), (1, 0, 0, 0, 0)),
            (Some(3), (0, 0, 0, 1, 0)),
            (Some(9), (0, 0, 0, 1, 0)),
            (None, (0, 0, 0, 1, 0)),
        ] {
            let mut verdict = Verdict::default();
            series.check("k", found, &mut verdict);
            assert_eq!(numbers(&verdict), expected, "{found:?}");
        }
    }

    #[test]
    fn lists() {
        let mut series = ListSeries::default();
        for (number, outcome) in [(1, Acked), (2, Failed), (3, Acked), (4, Unknown)] {
            series.add(number, outcome);
        }
        let cases: [(&[u64], _); 7] = [
            (&[1, 3], (0, 0, 0, 0, 0)),
            (&[1, 3, 4], (0, 0, 0, 0, 0)),
            (&[1], (1, 0, 0, 0, 0)),
            (&[1, 3, 3], (0, 1, 0, 0, 0)),
            (&[3, 1], (0, 0, 1, 0, 0)),
            (&[1, 2, 3], (0, 0, 0, 1, 0)),
            (&[], (2, 0, 0, 0, 0)),
        ];
        for (found, expected) in cases {
            let mut verdict = Verdict::default();
            let found: Vec<_> = found.iter().copied().map(Some).collect();
            series.check("k", &found, &mut verdict);
            assert_eq!(numbers(&verdict), expected, "{found:?}");
        }
    }

    #[test]
    fn counters() {
        let mut series = CounterSeries::default();
        series.add(Some(1), Acked);
        series.add(None, Unknown);
        series.add(Some(3), Acked);
        series.add(None, Unknown);
        for (found, expected) in [
            (Some(3), (0, 0, 0, 0, 0)),
            (Some(4), (0, 0, 0, 0, 0)),
            (Some(5), (0, 1, 0, 0, 0)),
            (Some(2), (1, 0, 0, 0, 0)),
            (None, (0, 0, 0, 1, 0)),
        ] {
            let mut verdict = Verdict::default();
            series.check("k", found, &mut verdict);
            assert_eq!(numbers(&verdict), expected, "{found:?}");
        }
        series.add(Some(6), Acked);
        let mut verdict = Verdict::default();
        series.check("k", Some(6), &mut verdict);
        assert_eq!(numbers(&verdict), (0, 1, 0, 0, 0), "a reply skipped one");
    }

    #[test]
    fn locks() {
        let series = |winners: &[u64], losers: &[u64], open: &[u64]| LockSeries {
            winners: winners.to_vec(),
            losers: losers.to_vec(),
            open: open.to_vec(),
        };
        let cases = [
            (series(&[1], &[2], &[3]), Some(Some(1)), (0, 0, 0, 0, 0)),
            (series(&[], &[2], &[3]), Some(Some(3)), (0, 0, 0, 0, 0)),
            (series(&[], &[], &[3]), None, (0, 0, 0, 0, 0)),
            (series(&[], &[], &[3]), Some(Some(3)), (0, 0, 0, 0, 0)),
            (series(&[], &[2], &[3]), Some(Some(2)), (0, 1, 0, 0, 0)),
            (series(&[1], &[], &[]), None, (1, 0, 0, 0, 0)),
            (series(&[], &[2], &[]), None, (1, 0, 0, 0, 0)),
            (series(&[1, 2], &[], &[]), Some(Some(1)), (0, 0, 0, 0, 1)),
            (series(&[1], &[], &[3]), Some(Some(3)), (0, 0, 0, 0, 1)),
            (series(&[], &[], &[3]), Some(None), (0, 0, 0, 1, 0)),
        ];
        for (lock, holder, expected) in cases {
            let mut verdict = Verdict::default();
            lock.check("k", holder, &mut verdict);
            assert_eq!(numbers(&verdict), expected, "{lock:?} {holder:?}");
        }
    }
}
