//! The measurement of one long pipeline. A connection writes pairs of `SET` and `GET` of one key, without waiting for
//! replies. The measured time ends with the last reply. Every pair writes another value, and the value that `GET`
//! returns is compared with the written value.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde::Serialize;

use super::measure::{Cpu, median, order};
use super::plan::{PREFIX, Plan, Row};
use super::stand::{Stand, is_ok};
use crate::demo::view::View;
use crate::resp::{Reply, parse, write_command};

/// Time after which a pipeline is given up. The figure of the pipeline is then this time.
const PIPELINE_MAX: Duration = Duration::from_secs(60);
/// Interval at which the reading thread checks for the end while no reply arrives.
const LOOK: Duration = Duration::from_millis(200);
/// Number of bytes that one call reads.
const READ_BYTES: usize = 64 * 1024;

/// The results of one row.
#[derive(Clone, Debug, Serialize)]
pub struct PairsCell {
    /// The set-up.
    pub row: Row,
    /// Name of the set-up, with medium and R.
    pub title: String,
    /// Number of pairs in one pipeline.
    pub pairs: usize,
    /// Time in milliseconds from the first byte sent to the last reply, median over the rounds.
    pub ms: f64,
    /// Time of each round in milliseconds, in the order of the rounds.
    pub rounds_ms: Vec<f64>,
    /// Number of rounds that were given up after a minute. Each such round counts as one minute.
    pub unfinished: usize,
    /// Number of error replies in all rounds.
    pub errors: u64,
    /// Text of one of the error replies.
    pub first_error: Option<String>,
    /// CPU time per operation in microseconds, over all rounds, by process. The processes on the client's side come
    /// first, and the load generator is not included.
    pub cpu_us: Vec<(String, f64)>,
}

impl PairsCell {
    /// Returns the pairs per second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        let pairs = u32::try_from(self.pairs).unwrap_or(u32::MAX);
        f64::from(pairs) * 1e3 / self.ms.max(1e-6)
    }
}

#[derive(Default)]
struct Rounds {
    millis: Vec<f64>,
    unfinished: usize,
    errors: u64,
    first_error: Option<String>,
    cpu: Cpu,
}

/// The bytes to send, and the values that the `GET`s must return.
struct Pipeline {
    commands: Vec<u8>,
    values: Vec<Vec<u8>>,
    /// Number of replicas for which a final `WAIT` waits; 0: no `WAIT`.
    replicas: u8,
}

/// Measures all rows of the plan.
pub fn all(
    plan: &Plan,
    stands: &[Stand],
    stop: &AtomicBool,
    view: &View,
) -> anyhow::Result<Vec<PairsCell>> {
    if plan.pairs == 0 {
        return Ok(Vec::new());
    }
    let mut rounds: Vec<Rounds> = stands.iter().map(|_| Rounds::default()).collect();
    for round in 0..plan.rounds {
        for index in order(stands.len(), round) {
            let stand = &stands[index];
            let text = format!(
                "a pipeline of {} pairs, round {} of {}: {}",
                plan.pairs,
                round + 1,
                plan.rounds,
                stand.row.name()
            );
            view.step(&text, 1);
            one(plan, round, stand, &mut rounds[index], stop)
                .with_context(|| format!("{}: a pipeline of pairs", stand.row.name()))?;
        }
    }
    let operations = u64::try_from(2 * plan.pairs * plan.rounds).unwrap_or(u64::MAX);
    let cells = stands.iter().zip(rounds);
    let cells = cells.map(|(stand, rounds)| PairsCell {
        row: stand.row,
        title: stand.row.title(plan.medium),
        pairs: plan.pairs,
        ms: median(rounds.millis.clone()),
        rounds_ms: rounds.millis,
        unfinished: rounds.unfinished,
        errors: rounds.errors,
        first_error: rounds.first_error,
        cpu_us: rounds.cpu.per_operation(operations),
    });
    Ok(cells.collect())
}

fn one(
    plan: &Plan,
    round: usize,
    stand: &Stand,
    rounds: &mut Rounds,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let pipeline = Pipeline::new(plan, round, stand.row.replicas());
    let before = Cpu::of(stand);
    let endpoint = stand.running.endpoint()?;
    let keeps_data = stand.row.keeps_data();
    let replies = stand
        .running
        .inside(|| pipeline.run(endpoint, keeps_data, stop))?;
    stand.running.settle()?;
    rounds.cpu.add(&before, Cpu::of(stand));
    rounds.millis.push(replies.taken.as_secs_f64() * 1e3);
    rounds.unfinished += usize::from(!replies.all);
    rounds.errors += u64::try_from(replies.errors.len()).unwrap_or(u64::MAX);
    if rounds.first_error.is_none() {
        rounds.first_error = replies.errors.into_iter().next();
    }
    Ok(())
}

/// The received replies.
struct Replies {
    taken: Duration,
    /// Set if all replies have arrived.
    all: bool,
    errors: Vec<String>,
}

impl Pipeline {
    fn new(plan: &Plan, round: usize, replicas: u8) -> Pipeline {
        let mut random = fastrand::Rng::with_seed(u64::try_from(round).unwrap_or(0) + 1);
        let mut commands = Vec::new();
        let mut values = Vec::new();
        for number in 0..plan.pairs {
            let key = format!("{PREFIX}{}", random.u64(0..plan.keys));
            let mut value = format!("{round}:{number}:").into_bytes();
            let padded = value.len().max(plan.value_bytes);
            value.resize(padded, b'x');
            write_command(&mut commands, &[b"SET", key.as_bytes(), &value]);
            write_command(&mut commands, &["GET", &key]);
            values.push(value);
        }
        if replicas > 0 {
            let limit = PIPELINE_MAX.as_millis().to_string();
            write_command(&mut commands, &["WAIT", &replicas.to_string(), &limit]);
        }
        Pipeline {
            commands,
            values,
            replicas,
        }
    }

    /// Sends all commands, and receives all replies.
    fn run(
        &self,
        endpoint: SocketAddr,
        keeps_data: bool,
        stop: &AtomicBool,
    ) -> anyhow::Result<Replies> {
        let stream = TcpStream::connect_timeout(&endpoint, PIPELINE_MAX)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LOOK))?;
        stream.set_write_timeout(Some(PIPELINE_MAX))?;
        let start = Instant::now();
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| (&stream).write_all(&self.commands));
            let replies = self.replies(&stream, keeps_data, start, stop);
            let all = replies.as_ref().is_ok_and(|replies| replies.all);
            if !all {
                // The shutdown also ends the thread that writes.
                let _ = stream.shutdown(Shutdown::Both);
            }
            let written = writing
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let replies = replies?;
            if all {
                written.context("cannot send")?;
            }
            Ok(replies)
        })
    }

    fn replies(
        &self,
        mut stream: &TcpStream,
        keeps_data: bool,
        start: Instant,
        stop: &AtomicBool,
    ) -> anyhow::Result<Replies> {
        let wanted = 2 * self.values.len() + usize::from(self.replicas > 0);
        let (mut count, mut errors) = (0, Vec::new());
        let (mut input, mut scratch) = (Vec::new(), vec![0; READ_BYTES]);
        while count < wanted && start.elapsed() < PIPELINE_MAX {
            ensure!(!stop.load(Ordering::Relaxed), "interrupted");
            match stream.read(&mut scratch) {
                Ok(0) => bail!("connection closed after {count} of {wanted} replies"),
                Ok(got) => input.extend_from_slice(&scratch[..got]),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error).context("cannot receive"),
            }
            let mut at = 0;
            while let Some((reply, length)) = parse(&input[at..])? {
                at += length;
                self.judge(count, reply, keeps_data, &mut errors)?;
                count += 1;
            }
            input.drain(..at);
        }
        Ok(Replies {
            taken: start.elapsed(),
            all: count == wanted,
            errors,
        })
    }

    /// Checks reply number `index`. An error reply is counted. If a value differs from the value of the `SET` before,
    /// the run fails.
    fn judge(
        &self,
        index: usize,
        reply: Reply,
        keeps_data: bool,
        errors: &mut Vec<String>,
    ) -> anyhow::Result<()> {
        let value = self.values.get(index / 2);
        let good = match (&reply, value) {
            (Reply::Error(_), _) => {
                if let Reply::Error(text) = reply {
                    errors.push(text);
                }
                return Ok(());
            }
            (Reply::Integer(count), None) => *count >= i64::from(self.replicas),
            (_, None) => false,
            (reply, Some(_)) if index.is_multiple_of(2) => is_ok(reply),
            (Reply::Bulk(read), Some(value)) => !keeps_data || read == value,
            _ => false,
        };
        // If a SET has failed, its GET may return any value.
        ensure!(
            good || !errors.is_empty(),
            "reply {index} of a pipeline of SET and GET of the same key is {reply:?}"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::redis::Reads;
    use crate::harness::Medium;

    fn pipeline() -> Pipeline {
        let plan = Plan {
            rows: vec![Row::Direct],
            reads: vec![Reads::Alternate],
            clients: vec![1],
            pipeline: 1,
            keys: 2,
            zipf: None,
            beside: 0,
            value_bytes: 20,
            medium: Medium::Dram,
            duration: Duration::from_secs(1),
            warmup: Duration::ZERO,
            rounds: 1,
            pairs: 3,
        };
        Pipeline::new(&plan, 4, 2)
    }

    #[test]
    fn every_value_is_another_one_and_as_long_as_it_should_be() {
        let values = pipeline().values;
        assert_eq!(values[2], b"4:2:xxxxxxxxxxxxxxxx");
        assert!(values.iter().all(|value| value.len() == 20));
        assert!(values[0] != values[1] && values[1] != values[2]);
    }

    #[test]
    fn a_reply_that_is_wrong_ends_it() {
        let pipeline = pipeline();
        let ok = || Reply::Status(b"OK".to_vec());
        let read = |pair: usize| Reply::Bulk(pipeline.values[pair].clone());
        let judge = |index, reply, keeps_data| {
            let mut errors = Vec::new();
            let judged = pipeline.judge(index, reply, keeps_data, &mut errors);
            judged.map(|()| errors)
        };
        for (index, reply) in [(2, ok()), (3, read(1)), (6, Reply::Integer(2))] {
            assert!(judge(index, reply, true).unwrap().is_empty());
        }
        for (index, reply) in [
            (2, read(1)),
            (3, ok()),
            (3, read(0)),
            (3, Reply::Nil),
            (6, Reply::Integer(1)),
            (6, ok()),
        ] {
            let text = format!("{reply:?}");
            assert!(judge(index, reply, true).is_err(), "{index}: {text}");
        }
        // The upper bound (`resp-limit`) answers every read with the same value.
        assert!(judge(3, read(0), false).is_ok());
        let refused = judge(2, Reply::Error("ERR no".into()), true).unwrap();
        assert_eq!(refused, ["ERR no"]);
    }
}
