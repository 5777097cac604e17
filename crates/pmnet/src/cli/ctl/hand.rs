//! `pmnet ctl --via`: changes the chain of a shard without a fleet. The command asks the devices and the server
//! directly.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use pmnet_cli::tell;
use pmnet_fleet::Order;
use pmnet_fleet::hand::{
    Answered, Asked, Change, DeviceSaid, Doing, HandStep, HandWant, Looked, ask, look, next_flags,
};
use pmnet_proto::keys::ClusterKey;
use serde_json::json;

use super::{CtlArgs, Word, copies_text, drain, until};
use crate::cli::common::hop_address;

/// Longest time in which the command tries to undo its last change of a next hop, in seconds. If the attempt fails, the
/// operator must undo the change.
const UNDO_SECONDS: u64 = 15;
/// Interval at which the command reads the state of the chain. The interval is short, because no write is acknowledged
/// while next hops are being changed.
const LOOK: Duration = Duration::from_millis(25);
/// Time without an answer after which the command gives up a device that is to join.
const LOST: Duration = Duration::from_secs(3);
/// Longest time for a connection to a process before the change begins. During the change, the limit is
/// [`PATIENCE_THEN`].
const PATIENCE: Duration = Duration::from_secs(2);
const PATIENCE_THEN: Duration = Duration::from_millis(250);

/// The command line, and the key with which the command asks the processes.
struct Asks<'a> {
    args: &'a CtlArgs,
    key: Option<ClusterKey>,
}

/// Runs the command. Returns false if the change was not complete in time.
pub(super) fn of(args: &CtlArgs) -> anyhow::Result<bool> {
    let Some(via) = &args.via else {
        return Err(anyhow!(
            "where is the shard? In a fleet --fleet and --etcd; without one --via HOST:PORT,…, its devices (promote and shards \
             need neither)"
        ));
    };
    if let Word::Drain = args.word {
        let wait = Duration::from_secs(args.wait);
        return drain::of(&drain::via(via, args.shard)?, wait, args);
    }
    let asks = Asks {
        args,
        key: args.key()?,
    };
    let (want, is_stopped) = match &args.word {
        Word::Add { device: None } => (HandWant::Add, false),
        Word::Add { device: Some(_) } => {
            return Err(anyhow!(
                "--device is for a fleet: without one, start the device with --join, and name it in --via"
            ));
        }
        Word::Remove {
            ids,
            to_one,
            is_stopped,
        } => {
            let want = HandWant::Remove {
                devices: ids.clone(),
                to_one: *to_one,
            };
            (want, *is_stopped)
        }
        Word::Replace { id, is_stopped } => (HandWant::Replace(*id), *is_stopped),
        Word::Wire => (HandWant::Wire, false),
        Word::Status => return status(&asks, via),
        // Other modules handle these commands.
        Word::Drain | Word::Promote(_) | Word::Shards(_) => return Ok(false),
    };
    let at = addresses(args, via)?;
    let looked = see(&at, &asks, PATIENCE)?;
    let mut change = Change::plan(&looked, &want, is_stopped).map_err(|text| anyhow!(text))?;
    say(&change, &want, args.json);
    if args.dry_run {
        return Ok(true);
    }
    // A device that has answered once is asked again, even if no other device sends to it now.
    let mut known = at.clone();
    known.extend(looked.devices.values().map(|said| said.listen));
    known.extend(looked.server.iter().map(|said| said.listen));
    let mut lost: Option<Instant> = None;
    let done = until(args.wait, LOOK, || {
        let looked = see(&known, &asks, PATIENCE_THEN)?;
        let is_lost = change.joiner_is_lost(&looked);
        lost = lost
            .or_else(|| is_lost.then(Instant::now))
            .filter(|_| is_lost);
        if lost.is_some_and(|since| since.elapsed() >= LOST) {
            return Ok(Ok(None));
        }
        match change.next(&looked).map_err(|text| anyhow!(text))? {
            HandStep::Done => Ok(Ok(Some(looked))),
            HandStep::Wait(text) => Ok(Err(text)),
            HandStep::Wire(doing, order) => Ok(Err(wire(&doing, order, asks.key.as_ref()))),
            HandStep::Leave(doing) => match ask(
                doing.at,
                &Asked::Leave {
                    to: doing.to.clone(),
                },
                asks.key.as_ref(),
            ) {
                Ok(Answered::Done) => {
                    change.has_ended(doing.to.id);
                    Ok(Err(format!("device {} has ended", doing.to.id)))
                }
                Ok(other) => Ok(Err(refused(&doing, &other))),
                Err(text) => Ok(Err(text)),
            },
        }
    });
    match done? {
        Ok(Some(looked)) => {
            end(&looked, true, "done", &asks);
            Ok(true)
        }
        Ok(None) => not_done(
            "the device that was to join is lost",
            &change,
            &known,
            &asks,
        ),
        Err(waits) => not_done(
            &format!("not done in time: {waits}"),
            &change,
            &known,
            &asks,
        ),
    }
}

/// Undoes a change that was not complete in time, and reports the result.
fn not_done(
    why: &str,
    change: &Change,
    known: &[SocketAddr],
    asks: &Asks<'_>,
) -> anyhow::Result<bool> {
    let what = undo(change, known, asks)?;
    let looked = see(known, asks, PATIENCE_THEN)?;
    end(&looked, false, &format!("{why}{what}"), asks);
    Ok(false)
}

/// Returns the addresses of `--via` and `--server`.
fn addresses(args: &CtlArgs, via: &str) -> anyhow::Result<Vec<SocketAddr>> {
    let mut at = Vec::new();
    for address in via.split(',') {
        at.push(hop_address("--via", address.trim())?);
    }
    if let Some(server) = &args.server {
        at.push(hop_address("--server", server.trim())?);
    }
    Ok(at)
}

fn see(at: &[SocketAddr], asks: &Asks<'_>, patience: Duration) -> anyhow::Result<Looked> {
    look(at, asks.args.shard, asks.key.as_ref(), patience).map_err(|text| anyhow!(text))
}

/// Orders a device to use another next hop. Returns a sentence that says what the change waits for.
fn wire(doing: &Doing, order: Order, key: Option<&ClusterKey>) -> String {
    let Order {
        next,
        next_id,
        shrink,
    } = order;
    let asked = Asked::Wire {
        to: doing.to.clone(),
        next,
        next_id,
        shrink,
    };
    match ask(doing.at, &asked, key) {
        Ok(Answered::Done) if shrink.is_some() => format!(
            "device {} sends to {next}, and states that nobody else is in the chain",
            doing.to.id
        ),
        Ok(Answered::Done) => format!("device {} sends to {next}", doing.to.id),
        Ok(other) => refused(doing, &other),
        Err(text) => text,
    }
}

fn refused(doing: &Doing, answer: &Answered) -> String {
    match answer {
        Answered::Refused(text) => format!("device {}: {text}", doing.to.id),
        other => format!("device {} says {other:?}", doing.to.id),
    }
}

/// Makes sure that no device sends to a device that has not joined the chain. Returns a sentence with the result.
fn undo(change: &Change, known: &[SocketAddr], asks: &Asks<'_>) -> anyhow::Result<&'static str> {
    if change.undo(&see(known, asks, PATIENCE_THEN)?).is_none() {
        return Ok(". What was begun goes on by itself, or is begun again by the same command");
    }
    let undone = until(UNDO_SECONDS, LOOK, || {
        Ok(match change.undo(&see(known, asks, PATIENCE_THEN)?) {
            Some(HandStep::Wire(doing, order)) => Err(wire(&doing, order, asks.key.as_ref())),
            _ => Ok(()),
        })
    })?;
    Ok(match undone {
        Ok(()) => {
            ". Nobody sends to the device that was to join any more; should the chain have it all the same in a moment: pmnet ctl \
             remove it, with --is-stopped"
        }
        Err(_) => {
            ". The chain's last device sends to the one that was to join, and could not be told otherwise: start it again, with \
             --next to the server"
        }
    })
}

fn say(change: &Change, want: &HandWant, json: bool) {
    let Change {
        now,
        leaves,
        joins,
        is_stopped,
        ..
    } = change;
    if json {
        let wants = match want {
            HandWant::Add => "add",
            HandWant::Remove { .. } => "remove",
            HandWant::Replace(_) => "replace",
            HandWant::Wire => "wire",
        };
        tell(format_args!(
            "{}",
            json!({
                "wants": wants,
                "chain": now,
                "leaves": leaves,
                "joins": joins,
                "is_stopped": is_stopped,
                "copies_meanwhile": change.copies_meanwhile(),
                "copies": change.copies(),
            })
        ));
        return;
    }
    let gone: Vec<String> = leaves.iter().map(u32::to_string).collect();
    let gone = gone.join(", ");
    let text = match (&leaves[..], joins, is_stopped) {
        ([], None, _) => format!("the devices are wired as the chain on record says, {now:?}"),
        ([], Some(joins), _) => format!("device {joins} joins the chain {now:?}"),
        (_, None, false) => format!("device {gone} leaves the chain {now:?}, and its process ends"),
        (_, None, true) => {
            format!("device {gone}, which is said to be stopped, is left out of the chain {now:?}")
        }
        (_, Some(joins), false) => format!(
            "device {joins} joins the chain {now:?}; when it has everything, device {gone} leaves it, and its process ends"
        ),
        (_, Some(joins), true) => format!(
            "device {gone}, which is said to be stopped, is left out of the chain {now:?}; then device {joins} joins it"
        ),
    };
    tell(format_args!(
        "{text}{}",
        copies_text(change.copies_meanwhile(), change.copies())
    ));
}

/// Reports the result of the change, and which flags of the devices are now outdated.
fn end(looked: &Looked, done: bool, what: &str, asks: &Asks<'_>) {
    let chain = looked.server.as_ref().map(|server| server.chain.clone());
    let chain = chain.unwrap_or_default();
    let members = looked.devices.values();
    let members = members.filter(|said| chain.contains(&said.who.id));
    let old: BTreeMap<u32, &DeviceSaid> = members
        .filter(|said| said.next != said.flag)
        .map(|said| (said.who.id, said))
        .collect();
    // A device without keys refuses --next-id.
    let next_id = |said: &DeviceSaid| said.next_id.filter(|_| asks.key.is_some());
    if asks.args.json {
        let next: BTreeMap<String, String> = old
            .iter()
            .map(|(id, said)| (id.to_string(), said.next.to_string()))
            .collect();
        let ids: BTreeMap<String, u32> = old
            .iter()
            .filter_map(|(id, said)| Some((id.to_string(), next_id(said)?)))
            .collect();
        tell(format_args!(
            "{}",
            json!({ "done": done, "chain": chain, "says": what, "next_is_now": next, "next_id_is_now": ids })
        ));
        return;
    }
    tell(format_args!("{what}; the chain is {chain:?}"));
    for (id, said) in old {
        tell(format_args!(
            "device {id} was started with --next {}, and sends to {} now: write {} into its unit file",
            said.flag,
            said.next,
            next_flags(said.next, next_id(said))
        ));
    }
}

/// Prints the state of each process that answers. Returns false if no chain is served.
fn status(asks: &Asks<'_>, via: &str) -> anyhow::Result<bool> {
    let looked = see(&addresses(asks.args, via)?, asks, PATIENCE)?;
    let chain = looked.server.as_ref().map(|server| &server.chain);
    let place = |id: u32| chain.and_then(|chain| chain.iter().position(|one| *one == id));
    if asks.args.json {
        let devices: Vec<_> = looked.devices.values().collect();
        tell(format_args!(
            "{}",
            json!({ "server": looked.server, "devices": devices, "silent": looked.silent })
        ));
    } else {
        match &looked.server {
            Some(server) if server.epoch == 0 => tell(format_args!(
                "server at {}: it has no chain on record, or has not read its store yet",
                server.listen
            )),
            Some(server) => tell(format_args!(
                "server at {}: epoch {}, the chain is {:?}",
                server.listen, server.epoch, server.chain
            )),
            None => tell(format_args!("no server answers")),
        }
        for (id, said) in &looked.devices {
            let place = place(*id).map_or_else(String::new, |at| {
                format!(
                    " ({} of {} in the chain)",
                    at + 1,
                    chain.map_or(0, Vec::len)
                )
            });
            let is = match (said.epoch, said.joins, &said.waits) {
                (0, 0, Some(waits)) => format!("it waits: {waits}"),
                (0, 0, None) => "it does not serve".to_owned(),
                (0, joins, _) => format!("it is ready to join in epoch {joins}"),
                (epoch, ..) => format!("it serves epoch {epoch}, with {} copies", said.chain.len()),
            };
            tell(format_args!(
                "device {id}{place} at {}, next {}: {is}",
                said.listen, said.next
            ));
        }
        for text in &looked.silent {
            tell(format_args!("{text}"));
        }
    }
    let served = looked.server.as_ref().is_some_and(|server| {
        let serves = |id: &u32| {
            let said = looked.devices.get(id);
            said.is_some_and(|said| said.epoch == server.epoch)
        };
        server.epoch > 0 && server.chain.iter().all(serves)
    });
    Ok(served)
}
