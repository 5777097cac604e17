//! `pmnet ctl shards`: checks a map of shards, and lists the steps from this map to a new map.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::Args;
use pmnet_cli::tell;
use pmnet_client::{Session, SessionError};
use pmnet_proto::keys::FrontKey;
use pmnet_wire::StoreName;
use pmnet_wire::command::{Form, Protocol, preamble};
use pmnet_wire::slots::shown;
use serde_json::{Value, json};

use super::CtlArgs;
use crate::cli::redis::{Settings, Shards, is_same, located, look};

/// Longest wait for one shard, even if --wait is longer, so that all other shards are also checked.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Name of the map.
#[derive(Debug, Args)]
pub(super) struct ShardsArgs {
    /// The file, as `pmnet redis --shards` has it.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// A new version of the file. The command says which slots it moves, and how to move them.
    #[arg(long, value_name = "FILE")]
    new: Option<PathBuf>,
}

/// Identity of a shard's Redis, or the reason why it is unknown.
type Answer = Result<StoreName, String>;

/// Checks the map. Returns false if a shard does not answer, or if two shards have the same Redis.
pub(super) fn of(args: &ShardsArgs, ctl: &CtlArgs) -> anyhow::Result<bool> {
    let map = look(&args.file)?;
    let new = args.new.as_ref().map(|path| look(path)).transpose()?;
    let key = ctl.front_key()?;
    let answers: Vec<Option<Answer>> = if ctl.dry_run {
        map.settings.iter().map(|_| None).collect()
    } else {
        let wait = Duration::from_secs(ctl.wait).min(ANSWER_MAX);
        map.settings
            .iter()
            .map(|shard| Some(ask(shard, key, wait)))
            .collect()
    };
    let same = same_redis(&answers);
    let moves = new.as_ref().map(|new| moves(&map, new)).transpose()?;
    if ctl.json {
        tell(format_args!(
            "{}",
            as_json(&map, &answers, &same, moves.as_deref())
        ));
    } else {
        show(&map, &answers, &same, moves.as_deref());
    }
    let silent = answers.iter().flatten().any(Result::is_err);
    Ok(!silent && same.is_empty())
}

/// Asks the server of a shard for the identity of its Redis. The question goes through the shard's
/// devices.
fn ask(shard: &Settings, key: Option<FrontKey>, wait: Duration) -> Answer {
    let until = Instant::now() + wait;
    let mut client = shard.client.clone();
    client.keys = client.keys.or(key);
    let client = located(client, shard.follow.as_ref(), wait, &AtomicBool::new(false))?;
    let left = until.saturating_duration_since(Instant::now());
    let reply = || -> Result<String, SessionError> {
        let mut session = Session::start(client, left)?;
        let question = preamble(Form::StoreAddress, Protocol::Resp2, 0).to_vec();
        let reply = session.bypass(question.into(), 0, true)?;
        // If the session cannot be ended properly, it expires at the devices.
        let _ = session.end();
        Ok(String::from_utf8_lossy(&reply).trim_end().to_owned())
    };
    let reply =
        reply().map_err(|error| format!("no answer within {} s: {error}", wait.as_secs()))?;
    match reply.split_once("\r\n") {
        Some((length, name)) if length.starts_with('$') => {
            StoreName::parse(name.as_bytes()).map_err(|error| format!("{name:?} is {error}"))
        }
        _ => Err(reply.trim_start_matches("-ERR ").to_owned()),
    }
}

/// Returns each pair of shards that have the same Redis. Shards are counted from 1.
fn same_redis(answers: &[Option<Answer>]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let name = |at: usize| answers[at].as_ref().and_then(|answer| answer.as_ref().ok());
    for second in 0..answers.len() {
        for first in 0..second {
            if let (Some(one), Some(other)) = (name(first), name(second))
                && one.same_process(other)
            {
                found.push((first + 1, second + 1));
            }
        }
    }
    found
}

/// Returns a sentence for each move of slots from one shard to another.
fn moves(map: &Shards, new: &Shards) -> anyhow::Result<Vec<String>> {
    if let Some(at) = (0..map.settings.len()).find(|&at| {
        !new.settings
            .get(at)
            .is_some_and(|other| is_same(&map.settings[at], other))
    }) {
        return Err(anyhow!(
            "shard {} is another one in the new file, or is missing: shards keep their place in the file, and new ones come behind them",
            at + 1
        ));
    }
    let mut said = Vec::new();
    let who =
        |shard: Option<usize>| shard.map_or("nobody".to_owned(), |at| format!("shard {}", at + 1));
    let shards = || (0..new.settings.len()).map(Some).chain([None]);
    for from in shards() {
        for to in shards().filter(|to| *to != from) {
            if let Some(slots) = map.map.moved(&new.map, from, to) {
                said.push(format!("slots {slots}: from {} to {}", who(from), who(to)));
            }
        }
    }
    if new.settings.len() > map.settings.len() {
        said.push("fronts must be started again: shards cannot be added to one that runs".into());
    }
    if !said.is_empty() {
        said.push("in this order: the slots as `moving` in the file of all fronts, and SIGHUP; DBSIZE through one of them; the keys; the new \
                   file, and SIGHUP (docs/use/sharding.md, moving a slot)".into());
    }
    Ok(said)
}

/// Returns the slots of shard number `at`, as the map file writes them.
fn slots_of(map: &Shards, at: usize) -> String {
    shown(&map.map.ranges(Some(at)), ",")
}

fn show(
    map: &Shards,
    answers: &[Option<Answer>],
    same: &[(usize, usize)],
    moves: Option<&[String]>,
) {
    tell(format_args!(
        "{:<6} {:<24} {:<6} {:<32} Redis",
        "shard", "slots", "number", "devices"
    ));
    for (at, (shard, answer)) in map.settings.iter().zip(answers).enumerate() {
        let redis = match answer {
            None => "not asked".to_owned(),
            Some(Ok(name)) => name.address.to_string(),
            Some(Err(why)) => why.clone(),
        };
        let slots = slots_of(map, at);
        let number = shard.client.shard;
        tell(format_args!(
            "{:<6} {slots:<24} {number:<6} {:<32} {redis}",
            at + 1,
            shard.devices()
        ));
    }
    if let Some(slots) = map.map.moving() {
        tell(format_args!("being moved: {slots}"));
    }
    if let Some(slots) = map.map.gaps() {
        tell(format_args!(
            "nobody serves {slots}: commands for their keys get CLUSTERDOWN"
        ));
    }
    for (first, second) in same {
        tell(format_args!(
            "shards {first} and {second} have the same Redis: each shows, counts and flushes the keys of both. Give one of them another Redis"
        ));
    }
    for text in moves.unwrap_or_default() {
        tell(format_args!("{text}"));
    }
    if moves.is_some_and(<[String]>::is_empty) {
        tell(format_args!("the new file moves nothing"));
    }
}

fn as_json(
    map: &Shards,
    answers: &[Option<Answer>],
    same: &[(usize, usize)],
    moves: Option<&[String]>,
) -> Value {
    let shards: Vec<Value> = map
        .settings
        .iter()
        .zip(answers)
        .enumerate()
        .map(|(at, (shard, answer))| {
            let name = answer.as_ref().and_then(|answer| answer.as_ref().ok());
            json!({
                "slots": slots_of(map, at),
                "number": shard.client.shard,
                "devices": shard.devices(),
                "redis": name.map(|name| name.address.to_string()),
                "run_id": name.map(|name| name.run_id.clone()),
                "error": answer.as_ref().and_then(|answer| answer.as_ref().err()),
            })
        })
        .collect();
    json!({
        "shards": shards,
        "cluster": map.cluster,
        "moving": map.map.moving(),
        "unserved": map.map.gaps(),
        "same_redis": same,
        "moves": moves,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::redis::look_at;

    fn named(run_id: &str) -> Option<Answer> {
        Some(Ok(StoreName {
            address: "127.0.0.1:6379".parse().unwrap(),
            run_id: run_id.into(),
            records: "pmnet:{0}".into(),
            owner: String::new(),
            reads: false,
        }))
    }

    #[test]
    fn two_shards_with_one_redis_are_found_whatever_their_addresses_are() {
        let answers = [
            named("a"),
            named("b"),
            None,
            named("a"),
            Some(Err("away".into())),
        ];
        assert_eq!(same_redis(&answers), [(1, 4)]);
    }

    #[test]
    fn what_another_map_moves_is_said_and_another_order_of_shards_is_refused() {
        let map = |entries: &[(&str, u16)]| {
            let entry = |(slots, port): &(&str, u16)| {
                format!("[[shard]]\nslots = \"{slots}\"\nvia = \"127.0.0.1:{port}\"\n")
            };
            look_at(&entries.iter().map(entry).collect::<String>()).unwrap()
        };
        let before = map(&[("0-99", 51000), ("100-199", 51001)]);
        assert_eq!(moves(&before, &before).unwrap(), [""; 0]);
        let after = map(&[("0-89", 51000), ("90-199,300", 51001)]);
        let said = moves(&before, &after).unwrap();
        assert_eq!(
            said[..2],
            [
                "slots 90-99: from shard 1 to shard 2",
                "slots 300: from nobody to shard 2"
            ]
        );
        assert!(said[2].contains("moving"), "{said:?}");
        let third = map(&[("0-99", 51000), ("100-149", 51001), ("150-199", 51002)]);
        let said = moves(&before, &third).unwrap();
        assert_eq!(said[0], "slots 150-199: from shard 2 to shard 3");
        assert!(said[1].contains("started again"), "{said:?}");
        let other = map(&[("100-199", 51001), ("0-99", 51000)]);
        let error = moves(&before, &other).unwrap_err().to_string();
        assert!(error.contains("shard 1 is another one"), "{error}");
    }
}
