//! Unions, intersections and differences of sorted sets and sets.

use std::collections::HashMap;

use super::Call;
use super::arguments::{Options, Outcome, SYNTAX, Stop, WRONG_TYPE, at_least, error, integer, is};
use super::float;
use super::layout::{Head, Kind, Part};
use super::members::stored_score;
use super::sorted_sets::{Scored, is_large, ranked};

/// The operation that combines sets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Union,
    Intersection,
    Difference,
}

/// Rule by which the scores of a member in several sets become one score.
#[derive(Clone, Copy)]
enum Aggregate {
    Sum,
    Min,
    Max,
}

impl Aggregate {
    fn join(self, target: f64, value: f64) -> f64 {
        match self {
            Aggregate::Sum => {
                let sum = target + value;
                // Redis defines the sum of inf and -inf as 0.
                if sum.is_nan() { 0.0 } else { sum }
            }
            Aggregate::Min if value < target => value,
            Aggregate::Max if value > target => value,
            Aggregate::Min | Aggregate::Max => target,
        }
    }
}

/// One of the sets that are combined.
#[derive(Clone, Copy)]
struct Source {
    head: Option<Head>,
    weight: f64,
}

impl Source {
    fn count(&self) -> u64 {
        self.head.map_or(0, |head| head.count)
    }

    fn weighted(&self, score: f64) -> f64 {
        let score = self.weight * score;
        if score.is_nan() { 0.0 } else { score }
    }

    /// Returns the members with their scores, in the order of the members. Members of a plain set have the score 1.
    fn members(&self, call: &Call<'_, '_>) -> Outcome<Vec<Scored>> {
        let Some(head) = &self.head else {
            return Ok(Vec::new());
        };
        let scored = head.kind == Kind::SortedSet;
        let with_score = |(member, value): (Vec<u8>, Vec<u8>)| {
            let score = if scored { stored_score(&value) } else { 1.0 };
            (member, score)
        };
        Ok(call.all(head)?.into_iter().map(with_score).collect())
    }

    fn score(&self, call: &Call<'_, '_>, member: &[u8]) -> Outcome<Option<f64>> {
        match &self.head {
            Some(head) if head.kind == Kind::SortedSet => call.score(head, member),
            Some(head) => {
                let has = call.keys.has(head.id, Part::Members, member)?;
                Ok(has.then_some(1.0))
            }
            None => Ok(None),
        }
    }
}

/// The parsed arguments of a command.
struct Question {
    sources: Vec<Source>,
    aggregate: Aggregate,
    with_scores: bool,
    limit: usize,
}

/// Which options a command may have besides its keys.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// The command may have WITHSCORES.
    Show,
    /// The command stores its result, and may have neither WITHSCORES nor LIMIT.
    Store,
    /// The command may have LIMIT.
    Count,
}

impl Question {
    fn parse(
        call: &Call<'_, '_>,
        arguments: &[&[u8]],
        operation: Operation,
        form: Form,
    ) -> Outcome<Question> {
        let [number, rest @ ..] = arguments else {
            return Err(SYNTAX);
        };
        let number = integer(number)?;
        if number < 1 {
            let text = format!(
                "ERR at least 1 input key is needed for '{}' command",
                call.name
            );
            return Err(Stop::Error(text.into_bytes().into()));
        }
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        if number > rest.len() {
            return Err(SYNTAX);
        }
        let (keys, rest) = rest.split_at(number);
        let mut question = Question {
            sources: Vec::with_capacity(number),
            aggregate: Aggregate::Sum,
            with_scores: false,
            limit: usize::MAX,
        };
        for key in keys {
            let head = call.head(key)?;
            if head.is_some_and(|head| !matches!(head.kind, Kind::Set | Kind::SortedSet)) {
                return Err(WRONG_TYPE);
            }
            question.sources.push(Source { head, weight: 1.0 });
        }
        question.options(rest, operation, form)?;
        Ok(question)
    }

    fn options(&mut self, rest: &[&[u8]], operation: Operation, form: Form) -> Outcome {
        let scores_matter = operation != Operation::Difference && form != Form::Count;
        let mut options = Options::new(rest);
        while let Some(option) = options.next() {
            let left = options.left().len();
            if scores_matter && is(option, "WEIGHTS") && left >= self.sources.len() {
                for source in &mut self.sources {
                    source.weight = float::double(options.value()?)
                        .ok_or(error("ERR weight value is not a float"))?;
                }
            } else if scores_matter && is(option, "AGGREGATE") && left >= 1 {
                let how = options.value()?;
                self.aggregate = match () {
                    () if is(how, "SUM") => Aggregate::Sum,
                    () if is(how, "MIN") => Aggregate::Min,
                    () if is(how, "MAX") => Aggregate::Max,
                    () => return Err(SYNTAX),
                };
            } else if form == Form::Show && is(option, "WITHSCORES") {
                self.with_scores = true;
            } else if form == Form::Count && is(option, "LIMIT") && left >= 1 {
                let limit = at_least(options.value()?, 0, "ERR LIMIT can't be negative")?;
                self.limit = match usize::try_from(limit) {
                    Ok(0) | Err(_) => usize::MAX,
                    Ok(limit) => limit,
                };
            } else {
                return Err(SYNTAX);
            }
        }
        Ok(())
    }

    /// Returns the combined members in the order of their scores.
    fn answer(mut self, call: &Call<'_, '_>, operation: Operation) -> Outcome<Vec<Scored>> {
        if operation != Operation::Difference {
            self.sources.sort_by_key(Source::count);
        }
        let mut found = match operation {
            Operation::Union => self.union(call)?,
            Operation::Intersection => self.intersection(call)?,
            Operation::Difference => self.difference(call)?,
        };
        found.sort_by_cached_key(|(member, score)| ranked(*score, member));
        Ok(found)
    }

    fn union(&self, call: &Call<'_, '_>) -> Outcome<Vec<Scored>> {
        let mut scores: HashMap<Vec<u8>, f64> = HashMap::new();
        for source in &self.sources {
            for (member, score) in source.members(call)? {
                let score = source.weighted(score);
                scores
                    .entry(member)
                    .and_modify(|target| *target = self.aggregate.join(*target, score))
                    .or_insert(score);
            }
        }
        Ok(scores.into_iter().collect())
    }

    fn intersection(&self, call: &Call<'_, '_>) -> Outcome<Vec<Scored>> {
        let Some((first, others)) = self.sources.split_first() else {
            return Ok(Vec::new());
        };
        let mut found = Vec::new();
        for (member, score) in first.members(call)? {
            let mut sum = Some(first.weighted(score));
            for other in others {
                let value = other.score(call, &member)?;
                sum = sum
                    .zip(value)
                    .map(|(sum, value)| self.aggregate.join(sum, value * other.weight));
                if sum.is_none() {
                    break;
                }
            }
            found.extend(sum.map(|sum| (member, sum)));
            if found.len() >= self.limit {
                break;
            }
        }
        Ok(found)
    }

    fn difference(&self, call: &Call<'_, '_>) -> Outcome<Vec<Scored>> {
        let Some((first, others)) = self.sources.split_first() else {
            return Ok(Vec::new());
        };
        let mut found = Vec::new();
        for (member, score) in first.members(call)? {
            let mut elsewhere = false;
            for other in others {
                elsewhere = elsewhere || other.score(call, &member)?.is_some();
            }
            if !elsewhere {
                found.push((member, score));
            }
        }
        Ok(found)
    }
}

fn show(call: &mut Call<'_, '_>, operation: Operation) -> Outcome {
    let question = Question::parse(call, call.arguments, operation, Form::Show)?;
    let with_scores = question.with_scores;
    let found = question.answer(call, operation)?;
    call.reply_scored(&found, with_scores);
    Ok(())
}

fn store(call: &mut Call<'_, '_>, operation: Operation) -> Outcome {
    let [target, rest @ ..] = call.arguments else {
        return Err(SYNTAX);
    };
    let found = Question::parse(call, rest, operation, Form::Store)?.answer(call, operation)?;
    let longest = found.iter().map(|(member, _)| member.len()).max();
    let large = is_large(found.len(), longest.unwrap_or(0));
    call.store_scored(target, &found, large)
}

pub fn zunion(call: &mut Call<'_, '_>) -> Outcome {
    show(call, Operation::Union)
}

pub fn zinter(call: &mut Call<'_, '_>) -> Outcome {
    show(call, Operation::Intersection)
}

pub fn zdiff(call: &mut Call<'_, '_>) -> Outcome {
    show(call, Operation::Difference)
}

pub fn zunionstore(call: &mut Call<'_, '_>) -> Outcome {
    store(call, Operation::Union)
}

pub fn zinterstore(call: &mut Call<'_, '_>) -> Outcome {
    store(call, Operation::Intersection)
}

pub fn zdiffstore(call: &mut Call<'_, '_>) -> Outcome {
    store(call, Operation::Difference)
}

pub fn zintercard(call: &mut Call<'_, '_>) -> Outcome {
    let operation = Operation::Intersection;
    let question = Question::parse(call, call.arguments, operation, Form::Count)?;
    let found = question.answer(call, operation)?.len();
    call.reply.count(u64::try_from(found).unwrap_or(u64::MAX));
    Ok(())
}
