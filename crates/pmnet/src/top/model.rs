//! The contents of `pmnet top`: sentences about problems, and tables with a row for each loop. This module uses no
//! terminal and no clock.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::columns::{Column, TABLES, Table};
use crate::ask::{named, text};

/// A process, with its last answers.
#[derive(Clone, Debug)]
pub struct Process {
    /// Address of the process's status port.
    pub place: String,
    /// The last two answers, newest first.
    looks: Vec<Look>,
    /// The reason why the process does not answer, and the time of the first failed question.
    silent: Option<(String, Instant)>,
}

/// An answer of the process, with its time of arrival.
#[derive(Clone, Debug)]
struct Look {
    at: Instant,
    state: Value,
}

impl Process {
    /// Makes the state of a process that has not been asked yet.
    pub const fn new(place: String) -> Process {
        Process {
            place,
            looks: Vec::new(),
            silent: None,
        }
    }

    /// Notes the answer of the process, or the reason why it did not answer.
    pub fn note(&mut self, answer: Result<Value, String>, now: Instant) {
        match answer {
            Ok(state) => {
                self.silent = None;
                // Answers of an earlier process at this address are dropped, because the counters of the new process
                // begin at zero.
                self.looks.retain(|look| look.state["pid"] == state["pid"]);
                self.looks.insert(0, Look { at: now, state });
                self.looks.truncate(2);
            }
            Err(why) => {
                let since = self.silent.take().map_or(now, |(_, since)| since);
                self.silent = Some((why, since));
            }
        }
    }

    /// Returns whether the process has been asked, and has answered or failed to answer.
    pub const fn was_asked(&self) -> bool {
        self.silent.is_some() || !self.looks.is_empty()
    }

    /// Returns whether the process answers and is ready.
    pub fn is_ready(&self) -> bool {
        self.state().is_some_and(|state| state["ready"] == true)
    }

    fn state(&self) -> Option<&Value> {
        let answers = self.silent.is_none();
        self.looks
            .first()
            .filter(|_| answers)
            .map(|look| &look.state)
    }

    fn loops(&self) -> Vec<Loop<'_>> {
        let Some(now) = self.looks.first().filter(|_| self.silent.is_none()) else {
            return Vec::new();
        };
        let before = self.looks.get(1);
        let all = now.state["loops"].as_array().into_iter().flatten();
        all.map(|one| {
            let same = |other: &&Value| other["labels"] == one["labels"];
            let old = before.and_then(|look| {
                let loops = look.state["loops"].as_array()?;
                let took = now.at.saturating_duration_since(look.at);
                Some((&loops.iter().find(same)?["metrics"], took))
            });
            Loop {
                place: &self.place,
                one,
                before: old,
            }
        })
        .collect()
    }

    /// Returns the role and the labels of the process, from its last answer, as text.
    fn was(&self) -> String {
        let Some(look) = self.looks.first() else {
            return String::new();
        };
        let mut names = Vec::new();
        for one in look.state["loops"].as_array().into_iter().flatten() {
            names.push(named(&one["labels"]));
        }
        format!(" ({}: {})", text(&look.state["role"]), names.join("; "))
    }
}

/// One loop of a process, with its state in the last answer and in the answer before.
pub struct Loop<'a> {
    pub place: &'a str,
    one: &'a Value,
    before: Option<(&'a Value, Duration)>,
}

impl Loop<'_> {
    /// Returns the value of a label; empty if the loop has no such label.
    pub fn label(&self, name: &str) -> String {
        self.one["labels"][name]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    pub fn facts(&self) -> &Value {
        &self.one["facts"]
    }

    pub fn is_ready(&self) -> bool {
        self.one["ready"] == true
    }

    pub fn is_alive(&self) -> bool {
        self.one["alive"] == true
    }

    pub fn has(&self, metric: &str) -> bool {
        self.one["metrics"].get(metric).is_some()
    }

    /// Returns the value of a metric. `part`: the value of the metric's label. If `part` is empty, returns the sum of
    /// all parts.
    pub fn number(&self, metric: &str, part: &str) -> Option<f64> {
        number(&self.one["metrics"], metric, part)
    }

    /// Returns the name of a part of the metric that is not `other` and whose value is not zero.
    pub fn part_other_than(&self, metric: &str, other: &str) -> Option<String> {
        let parts = self.one["metrics"][metric].as_object()?;
        let mut set = parts
            .iter()
            .filter(|(name, value)| value.as_f64() > Some(0.0) && *name != other);
        set.next().map(|(name, _)| name.clone())
    }

    /// Returns the growth of the metric per second.
    pub fn rate(&self, metric: &str, part: &str) -> Option<f64> {
        self.per_second(|metrics| number(metrics, metric, part))
    }

    /// Returns the number of values that a histogram gets per second.
    pub fn calls(&self, metric: &str, part: &str) -> Option<f64> {
        self.per_second(|metrics| histogram(metrics, metric, part)["count"].as_f64())
    }

    fn per_second(&self, read: impl Fn(&Value) -> Option<f64>) -> Option<f64> {
        let (before, took) = self.before?;
        let grown = read(&self.one["metrics"])? - read(before)?;
        (grown >= 0.0 && !took.is_zero()).then(|| grown / took.as_secs_f64())
    }

    /// Returns a quantile, in seconds, of the times that were recorded since the answer before. The result is the upper
    /// bound of the bucket in which the quantile lies.
    pub fn quantile(&self, metric: &str, part: &str, share: f64) -> Option<f64> {
        let (before, _) = self.before?;
        let old = buckets(histogram(before, metric, part));
        let mut came = buckets(histogram(&self.one["metrics"], metric, part));
        for (bound, count) in &mut came {
            let same = old.iter().find(|(other, _)| other == bound);
            *count -= same.map_or(0.0, |(_, count)| *count);
        }
        let all: f64 = came.iter().map(|(_, count)| count).sum();
        let mut seen = 0.0;
        for (bound, count) in came {
            seen += count;
            if count > 0.0 && seen >= share * all {
                return bound;
            }
        }
        None
    }
}

fn number(metrics: &Value, name: &str, part: &str) -> Option<f64> {
    match &metrics[name] {
        Value::Object(parts) if part.is_empty() => {
            let numbers: Option<Vec<f64>> = parts.values().map(Value::as_f64).collect();
            numbers.map(|numbers| numbers.iter().sum())
        }
        Value::Object(parts) => parts.get(part)?.as_f64(),
        one => one.as_f64(),
    }
}

fn histogram<'a>(metrics: &'a Value, name: &str, part: &str) -> &'a Value {
    let found = &metrics[name];
    if part.is_empty() { found } else { &found[part] }
}

/// Returns the upper bound and the count of each bucket. `None`: the bucket has no bound.
fn buckets(histogram: &Value) -> Vec<(Option<f64>, f64)> {
    let all = histogram["buckets"].as_array().into_iter().flatten();
    all.map(|pair| (pair[0].as_f64(), pair[1].as_f64().unwrap_or(0.0)))
        .collect()
}

/// Order of the rows of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// Rows with problems first.
    #[default]
    Trouble,
    /// In the order of the command line.
    Place,
    /// Highest rate first.
    Rate,
    /// Longest p99 first.
    Latency,
    /// Largest lag of the store first.
    Behind,
}

/// Style of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Plain,
    /// Name of a table.
    Title,
    /// Names of columns.
    Head,
    /// A text about a problem.
    Bad,
}

/// A line of text, with its style.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub style: Style,
    pub text: String,
}

fn line(style: Style, text: impl Into<String>) -> Line {
    Line {
        style,
        text: text.into(),
    }
}

/// Returns a line with three numbers: all processes, those that are ready, and those that do not answer.
pub fn summary(processes: &[Process]) -> String {
    let count = |is: fn(&Process) -> bool| processes.iter().filter(|one| is(one)).count();
    let silent = count(|process| process.silent.is_some());
    let mut text = format!(
        "{} processes, {} ready",
        processes.len(),
        count(Process::is_ready)
    );
    if silent > 0 {
        text += &format!(", {silent} not answering");
    }
    text
}

/// Returns the lines that show these processes, each with at most `width` characters. Problems come first, then a table
/// for each role.
pub fn lines(processes: &[Process], order: Order, now: Instant, width: usize) -> Vec<Line> {
    let mut all = Vec::new();
    for text in troubles(processes, now) {
        all.extend(wrapped(&text, width).map(|text| line(Style::Bad, text)));
    }
    let loops: Vec<Loop<'_>> = processes.iter().flat_map(Process::loops).collect();
    for table in TABLES {
        let of_role: Vec<&Loop<'_>> = loops.iter().filter(|one| one.has(table.has)).collect();
        if !of_role.is_empty() {
            all.extend(drawn(table, of_role, order, width));
        }
    }
    all
}

/// Returns a sentence for each problem.
fn troubles(processes: &[Process], now: Instant) -> Vec<String> {
    let mut all = Vec::new();
    for process in processes {
        if let Some((why, since)) = &process.silent {
            let seconds = now.saturating_duration_since(*since).as_secs();
            all.push(format!(
                "{}{} does not answer, for {seconds} s: {why}. What to do: PmnetDown",
                process.place,
                process.was()
            ));
        }
    }
    all.extend(lost(processes));
    for process in processes {
        let Some(state) = process.state() else {
            continue;
        };
        for one in state["loops"].as_array().into_iter().flatten() {
            let who = format!("{} {}", process.place, named(&one["labels"]));
            for advice in one["advice"].as_array().into_iter().flatten() {
                let (what, alert) = (text(&advice["text"]), text(&advice["alert"]));
                all.push(format!("{who}: {what} What to do: {alert}"));
            }
            for reason in one["reasons"].as_array().into_iter().flatten() {
                all.push(format!("{who}: not ready: {}", text(reason)));
            }
        }
    }
    all
}

/// Returns a sentence for each device of a chain that none of these processes contains.
fn lost(processes: &[Process]) -> Vec<String> {
    // For each shard: the epoch and the ids of the newest chain, and the devices that answer.
    let mut shards: BTreeMap<String, (u64, Vec<String>, Vec<String>)> = BTreeMap::new();
    for state in processes.iter().filter_map(Process::state) {
        for one in state["loops"].as_array().into_iter().flatten() {
            let Some(id) = one["labels"]["device"].as_str() else {
                continue;
            };
            let (newest, chain, there) = shards.entry(text(&one["labels"]["shard"])).or_default();
            there.push(id.to_owned());
            let epoch = one["metrics"]["pmnet_device_epoch"].as_u64().unwrap_or(0);
            let ids = one["facts"]["chain"].as_array().into_iter().flatten();
            let ids: Vec<String> = ids.map(ToString::to_string).collect();
            if (epoch, ids.len()) > (*newest, chain.len()) {
                (*newest, *chain) = (epoch, ids);
            }
        }
    }
    let mut all = Vec::new();
    for (shard, (_, chain, there)) in &shards {
        for id in chain.iter().filter(|id| !there.contains(id)) {
            all.push(format!(
                "device {id} of the chain of shard {shard} is lost, or is none of the processes that are watched here"
            ));
        }
    }
    all
}

/// Returns the text in lines of at most this many characters. Lines are broken between words where possible.
fn wrapped(text: &str, width: usize) -> impl Iterator<Item = String> {
    let (mut all, mut rest) = (Vec::new(), text.to_owned());
    let width = width.max(8);
    while let Some((at, _)) = rest.char_indices().nth(width) {
        let cut = rest[..at].rfind(' ').filter(|cut| *cut > 2).unwrap_or(at);
        let after = rest.split_off(cut);
        all.push(std::mem::replace(
            &mut rest,
            format!("  {}", after.trim_start()),
        ));
    }
    all.push(rest);
    all.into_iter()
}

/// Number of spaces between two columns.
const GAP: usize = 2;

/// Returns a table, in lines of at most `width` characters. If not all columns fit, the least important ones are left
/// out.
fn drawn(table: &Table, mut loops: Vec<&Loop<'_>>, order: Order, width: usize) -> Vec<Line> {
    let key = |one: &Loop<'_>| match order {
        Order::Place => 0.0,
        Order::Trouble => f64::from(u8::from(!one.is_ready())),
        Order::Rate => (table.rate)(one).unwrap_or(0.0),
        Order::Latency => (table.latency)(one).unwrap_or(0.0),
        Order::Behind => (table.behind)(one).unwrap_or(0.0),
    };
    // The sort is stable, so rows with equal keys keep the order of the command line.
    loops.sort_by(|a, b| key(b).total_cmp(&key(a)));
    let mut columns: Vec<(&Column, Vec<String>, usize)> = table
        .columns
        .iter()
        .map(|column| {
            let cells: Vec<String> = loops.iter().map(|one| (column.cell)(one)).collect();
            let longest = cells.iter().map(|cell| cell.chars().count()).max();
            let width = longest.unwrap_or(0).max(column.title.chars().count());
            (column, cells, width)
        })
        .filter(|(column, cells, _)| {
            !column.may_be_missing || cells.iter().any(|cell| !cell.is_empty())
        })
        .collect();
    let total = |columns: &[(&Column, Vec<String>, usize)]| {
        columns
            .iter()
            .map(|(_, _, width)| width + GAP)
            .sum::<usize>()
    };
    while total(&columns) > width + GAP && columns.len() > 1 {
        let least = columns.iter().map(|(column, ..)| column.rank).max();
        let at = columns
            .iter()
            .rposition(|(column, ..)| Some(column.rank) == least);
        columns.remove(at.unwrap_or(0));
    }
    let row = |cell: &dyn Fn(usize) -> String| {
        let cells = columns.iter().enumerate().map(|(at, (column, _, width))| {
            let width = *width;
            if column.is_text {
                format!("{:<width$}", cell(at))
            } else {
                format!("{:>width$}", cell(at))
            }
        });
        let cells: Vec<String> = cells.collect();
        cells.join(&" ".repeat(GAP)).trim_end().to_owned()
    };
    let mut all = vec![
        line(Style::Title, table.title),
        line(Style::Head, row(&|at| columns[at].0.title.to_owned())),
    ];
    for (place, one) in loops.iter().enumerate() {
        let is_well = one.is_ready() && one.is_alive();
        let style = if is_well { Style::Plain } else { Style::Bad };
        all.push(line(style, row(&|at| columns[at].1[place].clone())));
    }
    all
}

/// Returns the state of a process with these loops, for tests of columns.
#[cfg(test)]
pub fn state(pid: u32, loops: &[(Value, Value)]) -> Value {
    let loops: Vec<Value> = loops
        .iter()
        .map(|(labels, metrics)| {
            serde_json::json!({
                "labels": labels, "alive": true, "ready": true, "reasons": [], "advice": [], "facts": {}, "metrics": metrics,
            })
        })
        .collect();
    serde_json::json!({ "role": "device", "pid": pid, "ready": true, "loops": loops })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn device(id: u32, acks: u32, chain: &[u32]) -> Value {
        let metrics = json!({
            "pmnet_device_serving": 1, "pmnet_device_head": 1, "pmnet_device_copies": 2, "pmnet_device_copies_wanted": 3,
            "pmnet_device_epoch": 4, "pmnet_device_acks_total": acks, "pmnet_device_order": { "last": acks },
            "pmnet_device_log_entries_used": 10, "pmnet_device_log_entries_capacity": 100,
            "pmnet_device_oldest_unapplied_seconds": 0.5, "pmnet_device_unapplied_orders": 3,
            "pmnet_device_acknowledged_seconds": { "count": acks, "sum": 1.0, "buckets": [[0.001, acks], [null, 0]] },
        });
        let mut state = state(
            1,
            &[(json!({ "shard": "0", "device": id.to_string() }), metrics)],
        );
        state["loops"][0]["facts"]["chain"] = json!(chain);
        state
    }

    fn texts(processes: &[Process], now: Instant, width: usize) -> Vec<String> {
        let lines = lines(processes, Order::default(), now, width);
        lines.into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn rates_are_of_two_looks_at_the_same_process() {
        let begin = Instant::now();
        let mut process = Process::new("127.0.0.1:1".into());
        process.note(Ok(device(7, 100, &[7])), begin);
        let row = |process: &Process| {
            texts(std::slice::from_ref(process), begin, 200)
                .pop()
                .unwrap()
        };
        assert!(!row(&process).contains("150"), "{}", row(&process));
        process.note(Ok(device(7, 400, &[7])), begin + 2 * SECOND);
        assert!(row(&process).contains(" 150 "), "{}", row(&process));
        assert!(row(&process).contains("1.0ms"), "{}", row(&process));
        let mut other = device(7, 1_000, &[7]);
        other["pid"] = json!(2);
        process.note(Ok(other), begin + 3 * SECOND);
        assert_eq!(process.looks.len(), 1, "another process");
    }

    #[test]
    fn who_does_not_answer_and_who_is_lost_is_said() {
        let begin = Instant::now();
        let mut there = Process::new("127.0.0.1:1".into());
        let mut gone = Process::new("127.0.0.1:2".into());
        there.note(Ok(device(7, 1, &[7, 8])), begin);
        gone.note(Ok(device(8, 1, &[7, 8])), begin);
        let mut both = [there, gone];
        assert_eq!(summary(&both), "2 processes, 2 ready");
        assert_eq!(troubles(&both, begin), [""; 0]);
        both[1].note(Err("refused".into()), begin + SECOND);
        both[1].note(Err("refused".into()), begin + 2 * SECOND);
        assert_eq!(summary(&both), "2 processes, 1 ready, 1 not answering");
        assert_eq!(
            troubles(&both, begin + 6 * SECOND),
            [
                "127.0.0.1:2 (device: device 8, shard 0) does not answer, for 5 s: refused. What to do: PmnetDown",
                "device 8 of the chain of shard 0 is lost, or is none of the processes that are watched here",
            ]
        );
        let shown = texts(&both, begin, 200);
        assert!(
            !shown
                .iter()
                .any(|line| line.starts_with("127.0.0.1:2 ") && line.contains("ready"))
        );
    }

    #[test]
    fn no_line_is_wider_than_the_terminal_and_the_first_column_stays() {
        let begin = Instant::now();
        let mut process = Process::new("unix:/run/pmnet/a-long-name.sock".into());
        process.note(Ok(device(7, 100, &[7, 8])), begin);
        process.note(Ok(device(7, 400, &[7, 8])), begin + SECOND);
        let mut before = 0;
        for width in [40, 60, 80, 120, 200] {
            let all = texts(std::slice::from_ref(&process), begin, width);
            assert!(
                all.iter().all(|line| line.chars().count() <= width),
                "{width}: {all:#?}"
            );
            let head = all.iter().find(|line| line.starts_with("at ")).unwrap();
            let columns = head.split_whitespace().count();
            assert!(columns >= before, "{width}: {head}");
            before = columns;
        }
        // The texts fit every width, even a very small one.
        for width in 0..40 {
            assert!(texts(std::slice::from_ref(&process), begin, width).len() > 2);
        }
    }

    #[test]
    fn long_sentences_are_broken_between_words() {
        let all: Vec<String> = wrapped("one two three four", 9).collect();
        assert_eq!(all, ["one two", "  three", "  four"]);
        let all: Vec<String> = wrapped("äääääääääääää", 10).collect();
        assert_eq!(all.len(), 2);
    }

    #[test]
    fn rows_are_sorted_by_what_is_asked_for() {
        let begin = Instant::now();
        let of = |id: u32, acks: u32, ready: bool| {
            let mut process = Process::new(format!("127.0.0.1:{id}"));
            process.note(Ok(device(id, 0, &[1])), begin);
            let mut state = device(id, acks, &[1]);
            state["loops"][0]["ready"] = json!(ready);
            process.note(Ok(state), begin + SECOND);
            process
        };
        let all = [of(1, 5, true), of(2, 9, true), of(3, 1, false)];
        let sorted = |order| {
            let lines = lines(&all, order, begin, 200);
            let rows = lines
                .into_iter()
                .filter(|line| line.text.starts_with("127.0.0.1:") && !line.text.contains(": "));
            rows.map(|row| row.text.as_bytes()[10] - b'0')
                .collect::<Vec<u8>>()
        };
        assert_eq!(sorted(Order::Place), [1, 2, 3]);
        assert_eq!(sorted(Order::Trouble), [3, 1, 2]);
        assert_eq!(sorted(Order::Rate), [2, 1, 3]);
    }
}
