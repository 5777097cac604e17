//! A change of a chain without a fleet: whether the change is possible now, and its next step. The functions depend
//! only on the answers of devices and server.
//!
//! The chain that the server's store has on record is authoritative, and only the server changes it. This module
//! decides which next hop each device must get, and when the head states that a device is stopped. The module keeps no
//! progress of its own: it decides each step from the present answers. So an interrupted change can be resumed at any
//! point.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::{DeviceSaid, Looked, Meant, ServerSaid};
use crate::plan::{CHAIN_MAX, Order, Place, Plan};

/// A change that an operator wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandWant {
    /// The chain gets one more device.
    Add,
    /// The chain continues without these devices.
    Remove {
        /// Ids of the devices that leave. Several devices may leave together only if all of them are stopped.
        devices: Vec<u32>,
        /// The removal is allowed even if only one copy is left.
        to_one: bool,
    },
    /// A spare takes the place of this device.
    Replace(u32),
    /// Each device gets the next hop that the chain on record requires, because a change was interrupted.
    Wire,
}

/// A change that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The chain before the change, head first.
    pub now: Vec<u32>,
    /// Ids of the devices that will leave the chain.
    pub leaves: Vec<u32>,
    /// Id of the spare that will join the chain.
    pub joins: Option<u32>,
    /// The operator knows that the leaving devices are stopped for good.
    pub is_stopped: bool,
    /// Ids of the devices that have reported their end.
    ended: BTreeSet<u32>,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandStep {
    /// Order this device to use this next hop.
    Wire(Doing, Order),
    /// Order this device to end.
    Leave(Doing),
    /// The change waits for the event that the text names.
    Wait(String),
    /// The change is done.
    Done,
}

/// The device that gets an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doing {
    /// Address of the device's door, to which the order is sent.
    pub at: SocketAddr,
    /// The device, and the run of its process for which the order is meant.
    pub to: Meant,
}

impl Change {
    /// Checks whether this change is possible now. Returns the plan of the change.
    ///
    /// # Errors
    /// A text with the reason why the change is impossible, and with advice.
    pub fn plan(looked: &Looked, want: &HandWant, is_stopped: bool) -> Result<Change, String> {
        let server = server(looked)?;
        let now = server.chain.clone();
        let leaves = match want {
            HandWant::Add | HandWant::Wire => Vec::new(),
            HandWant::Remove { devices, .. } => devices.clone(),
            HandWant::Replace(device) => vec![*device],
        };
        if is_stopped && leaves.is_empty() {
            return Err("--is-stopped is about a device that leaves".into());
        }
        let joins_wanted = matches!(want, HandWant::Add | HandWant::Replace(_));
        let stays: Vec<u32> = now
            .iter()
            .copied()
            .filter(|id| !leaves.contains(id))
            .collect();
        for id in &leaves {
            leaver(looked, &now, *id, is_stopped)?;
        }
        if leaves.iter().collect::<BTreeSet<_>>().len() != leaves.len() {
            return Err("the same device is named twice".into());
        }
        if leaves.len() > 1 && !is_stopped {
            return Err("one device at a time leaves a chain while it lives".into());
        }
        if stays.is_empty() && !leaves.is_empty() && (is_stopped || !joins_wanted) {
            return Err(match is_stopped {
                false => format!(
                    "PM5113 device {} is the only one: what is not applied is there alone. Let another one join first (pmnet ctl add)",
                    leaves[0]
                ),
                true => format!(
                    "PM5114 no device of the chain {now:?} would be left: what was acknowledged and is not applied is gone with it. Start one \
                     of its devices again; if there is none, that is a loss to be declared (--declare-data-loss)"
                ),
            });
        }
        if let HandWant::Remove { to_one: false, .. } = want
            && stays.len() == 1
        {
            return Err(
                "PM5115 one copy would be left: an acknowledgement would survive the loss of no device. If that is meant: --to-one; to \
                 keep as many as there are: pmnet ctl replace"
                    .into(),
            );
        }
        all_answer(looked, &stays, &leaves)?;
        if !is_stopped && *want != HandWant::Wire {
            settled(looked, server)?;
        }
        let joins = joins_wanted
            .then(|| spare(looked, server))
            .transpose()?
            .map(|said| said.who.id);
        let most = if is_stopped { stays.len() } else { now.len() };
        if joins.is_some() && most >= CHAIN_MAX {
            return Err(format!("a chain has at most {CHAIN_MAX} devices"));
        }
        of_one_kind(looked, server, stays.iter().copied().chain(joins))?;
        Ok(Change {
            now,
            leaves,
            joins,
            is_stopped,
            ended: BTreeSet::new(),
        })
    }

    /// Returns the number of devices in the final chain.
    #[must_use]
    pub fn copies(&self) -> usize {
        self.now.len() - self.leaves.len() + usize::from(self.joins.is_some())
    }

    /// Returns the least number of copies of an acknowledged update during the change.
    #[must_use]
    pub fn copies_meanwhile(&self) -> usize {
        if self.joins_first() {
            self.now.len()
        } else {
            self.now.len() - self.leaves.len()
        }
    }

    /// Returns whether a spare joins first. If a spare joins first, no device leaves before the spare holds everything.
    const fn joins_first(&self) -> bool {
        self.joins.is_some() && !self.is_stopped
    }

    /// Notes that the device with this id has reported its end.
    pub fn has_ended(&mut self, id: u32) {
        self.ended.insert(id);
    }

    /// Returns the next step.
    ///
    /// # Errors
    /// A text with the reason why the change cannot continue.
    pub fn next(&self, looked: &Looked) -> Result<HandStep, String> {
        let Ok(server) = server(looked) else {
            return Ok(HandStep::Wait("the server does not answer".into()));
        };
        let chain = &server.chain;
        let joined = self.joins.is_none_or(|id| chain.contains(&id));
        let gone = !self.leaves.iter().any(|id| chain.contains(id));
        let mut expected: Vec<u32> = self.now.clone();
        expected.retain(|id| !(gone && self.leaves.contains(id)));
        expected.extend(self.joins.filter(|_| joined));
        if *chain != expected {
            return Err(format!(
                "PM5101 the chain is {chain:?} now: another command changes it. Look (pmnet ctl status), and run this one again"
            ));
        }
        if joined && gone {
            return Ok(match settled(looked, server) {
                Ok(()) => HandStep::Done,
                Err(text) => as_on_record(looked, server).unwrap_or(HandStep::Wait(text)),
            });
        }
        if gone || (self.joins_first() && !joined) {
            Ok(self.join(looked, server))
        } else {
            self.leave(looked, server)
        }
    }

    /// Returns the step for a device that joins: the tail of the chain gets this device as its next hop.
    fn join(&self, looked: &Looked, server: &ServerSaid) -> HandStep {
        let Some(joiner) = self.joins.and_then(|id| looked.devices.get(&id)) else {
            return HandStep::Wait("the device that is to join does not answer".into());
        };
        let tail = match server.chain.last().map(|id| device(looked, *id)) {
            Some(Ok(tail)) => tail,
            _ => return HandStep::Wait("the chain's last device does not answer".into()),
        };
        let order = Order {
            next: joiner.listen,
            next_id: Some(joiner.who.id),
            shrink: None,
        };
        if is_wired(tail, order) {
            return HandStep::Wait(format!(
                "device {} is to join behind device {}{}",
                joiner.who.id,
                tail.who.id,
                waits(tail)
            ));
        }
        if let Err(text) = settled(looked, server) {
            return HandStep::Wait(text);
        }
        if joiner.joins != server.epoch {
            return HandStep::Wait(format!(
                "device {} is not ready to join in epoch {} yet{}",
                joiner.who.id,
                server.epoch,
                waits(joiner)
            ));
        }
        HandStep::Wire(doing(tail), order)
    }

    /// Returns the step for a device that leaves: first this device ends. Then the other devices get next hops that
    /// skip it. The head gets its new next hop last, because with the new next hop the head also states that the device
    /// is stopped.
    fn leave(&self, looked: &Looked, server: &ServerSaid) -> Result<HandStep, String> {
        for id in &self.leaves {
            match (looked.devices.get(id), self.is_stopped) {
                (Some(said), true) => return Err(answers(said)),
                (Some(said), false) if self.ended.contains(id) => {
                    return Err(format!(
                        "PM5102 device {id} had ended, and was started again, at {}. The removal may still complete: look with pmnet ctl \
                         status before you repeat the command. If the device is still in the chain, disable its service, stop it, and run \
                         the command again with --is-stopped",
                        said.listen
                    ));
                }
                (Some(said), false) => {
                    return Ok(match settled(looked, server) {
                        Ok(()) => HandStep::Leave(doing(said)),
                        Err(text) => HandStep::Wait(text),
                    });
                }
                (None, false) if !self.ended.contains(id) => {
                    return Err(format!(
                        "PM5103 device {id} does not answer any more, and has not said that it has ended: start it again; or, if it is \
                         stopped for good, run the command again with --is-stopped"
                    ));
                }
                (None, _) => {}
            }
        }
        let mut places = Vec::new();
        for id in server.chain.iter().filter(|id| !self.leaves.contains(id)) {
            match device(looked, *id) {
                Ok(said) => places.push(Place {
                    id: *id,
                    at: said.listen,
                    whole: said.whole,
                }),
                Err(text) => return Ok(HandStep::Wait(text)),
            }
        }
        let plan = Plan {
            epoch: server.epoch,
            says: Some(server.epoch),
            places,
            joins: false,
            server: server.listen,
            copies: self.copies(),
        };
        let ids = plan.ids();
        let Some(head) = ids.first() else {
            return Err("nobody is left".into());
        };
        for id in ids.iter().rev() {
            let (said, order) = (&looked.devices[id], plan.order(*id));
            let Some(order) = order else { continue };
            if said.ends {
                return Ok(HandStep::Wait(format!("device {id} begins anew")));
            }
            // The server rejected the head's statement, because another device still had its old next hop. So the
            // head's path still led through a device that is left out.
            let unheard = id == head
                && said.epoch == server.epoch
                && said.shrink == order.shrink
                && said.chain == server.chain;
            if !is_wired(said, order) || unheard {
                return Ok(HandStep::Wire(doing(said), order));
            }
        }
        Ok(HandStep::Wait(format!(
            "the server is to write that the chain is {ids:?}{}",
            waits(&looked.devices[head])
        )))
    }

    /// Returns whether the chain's last device sends to a joining device that does not answer. In this state no update
    /// is acknowledged.
    #[must_use]
    pub fn joiner_is_lost(&self, looked: &Looked) -> bool {
        let answers = self.joins.is_none_or(|id| looked.devices.contains_key(&id));
        !answers && self.undo(looked).is_some()
    }

    /// Returns the order that undoes the change if the change takes too long. The chain's last device sends to a device
    /// that has not joined, and must send to its previous next hop again.
    #[must_use]
    pub fn undo(&self, looked: &Looked) -> Option<HandStep> {
        let server = server(looked).ok()?;
        let joiner = self.joins.filter(|id| !server.chain.contains(id))?;
        let tail = looked.devices.get(server.chain.last()?)?;
        let order = Order {
            next: server.listen,
            next_id: Some(0),
            shrink: None,
        };
        let leads_there = looked
            .devices
            .get(&joiner)
            .map_or(tail.next != order.next, |said| tail.next == said.listen);
        leads_there.then(|| HandStep::Wire(doing(tail), order))
    }
}

/// Returns the step for a device that does not serve, and whose next hop differs from the chain on record. In this step
/// the device gets the next hop on record. In this step no device states that another device is stopped.
fn as_on_record(looked: &Looked, server: &ServerSaid) -> Option<HandStep> {
    let (mut next, mut next_id) = (server.listen, 0);
    for id in server.chain.iter().rev() {
        let said = looked.devices.get(id)?;
        let order = Order {
            next,
            next_id: Some(next_id),
            shrink: None,
        };
        if said.epoch != server.epoch && said.next != next && !said.ends {
            return Some(HandStep::Wire(doing(said), order));
        }
        (next, next_id) = (said.listen, *id);
    }
    None
}

fn doing(said: &DeviceSaid) -> Doing {
    Doing {
        at: said.listen,
        to: said.who.clone(),
    }
}

/// Returns the device's present next hop and statement.
const fn wiring(said: &DeviceSaid) -> Order {
    Order {
        next: said.next,
        next_id: said.next_id,
        shrink: said.shrink,
    }
}

fn is_wired(said: &DeviceSaid, order: Order) -> bool {
    !wiring(said).is_to_become(order)
}

/// Returns a text with the event that the device waits for. If the device only waits for this command, the text is
/// empty.
fn waits(said: &DeviceSaid) -> String {
    let text = said.waits.as_ref().filter(|_| said.joins == 0);
    text.map_or_else(String::new, |text| {
        format!(". Device {} waits: {text}", said.who.id)
    })
}

/// Returns the server's answer, if it has a chain on record.
fn server(looked: &Looked) -> Result<&ServerSaid, String> {
    match &looked.server {
        Some(server) if server.epoch > 0 && !server.chain.is_empty() => Ok(server),
        Some(server) => Err(format!(
            "PM5104 the server at {} has no chain on record, or has not read its store yet (its log says why): nothing can be changed now",
            server.listen
        )),
        None => Err(format!(
            "PM5105 no server answers{}: nothing can be changed without it. Where is it? --server HOST:PORT",
            because(looked)
        )),
    }
}

fn because(looked: &Looked) -> String {
    if looked.silent.is_empty() {
        String::new()
    } else {
        format!(" ({})", looked.silent.join("; "))
    }
}

/// Returns the answer of this device of the chain; an error if it has not answered.
fn device(looked: &Looked, id: u32) -> Result<&DeviceSaid, String> {
    looked.devices.get(&id).ok_or_else(|| {
        format!(
            "PM5117 device {id} of the chain does not answer{}: is its address in --via? If it is gone, too: pmnet ctl remove it with \
             --is-stopped",
            because(looked)
        )
    })
}

/// Checks whether every device that remains in the chain has answered. If not, the error names all missing devices together, because they can
/// only be left out together.
fn all_answer(looked: &Looked, stays: &[u32], leaves: &[u32]) -> Result<(), String> {
    let silent = |ids: &[u32]| {
        let ids = ids.iter().filter(|id| !looked.devices.contains_key(id));
        ids.map(u32::to_string).collect::<Vec<_>>()
    };
    let away = silent(stays);
    let gone = [silent(leaves), away.clone()].concat();
    match (&away[..], gone.len()) {
        ([], _) => Ok(()),
        (_, 1) => stays
            .iter()
            .try_for_each(|id| device(looked, *id).map(drop)),
        _ => Err(format!(
            "PM5106 devices {} of the chain do not answer either{}: are their addresses in --via? If they are gone for good, remove them all \
             together: pmnet ctl remove {} --is-stopped",
            away.join(", "),
            because(looked),
            gone.join(" "),
        )),
    }
}

fn answers(said: &DeviceSaid) -> String {
    format!(
        "PM5118 device {} is not stopped: it answers at {}. Leave --is-stopped out: it ends by itself",
        said.who.id, said.listen
    )
}

/// Checks whether this device may leave.
fn leaver(looked: &Looked, now: &[u32], id: u32, is_stopped: bool) -> Result<(), String> {
    if !now.contains(&id) {
        return Err(format!("PM5116 device {id} is not in the chain {now:?}"));
    }
    match (looked.devices.get(&id), is_stopped) {
        (Some(said), true) => Err(answers(said)),
        (None, false) => Err(format!(
            "PM5107 device {id} does not answer{}. One that is only cut off could go on acknowledging. If you know that it is stopped for \
             good: --is-stopped",
            because(looked)
        )),
        (Some(said), false) if said.in_kernel => Err(format!(
            "PM5108 device {id} is in the kernel, where it answers on without its process: take it out there (pmnet device … --detach), \
             then say --is-stopped"
        )),
        _ => Ok(()),
    }
}

/// Checks whether the devices serve the chain on record, and all of them hold everything.
fn settled(looked: &Looked, server: &ServerSaid) -> Result<(), String> {
    for id in &server.chain {
        let said = device(looked, *id)?;
        let serves = said.epoch == server.epoch && said.chain == server.chain && !said.ends;
        if !serves {
            return Err(format!(
                "PM5109 device {id} does not serve the chain {:?} of epoch {} yet{}{}",
                server.chain,
                server.epoch,
                strays(looked, server, said),
                waits(said)
            ));
        }
        if !said.whole {
            return Err(format!(
                "PM5110 device {id} has joined and does not hold everything yet"
            ));
        }
    }
    Ok(())
}

/// Returns advice about a device whose next hop is not the next device of the chain on record.
fn strays(looked: &Looked, server: &ServerSaid, said: &DeviceSaid) -> String {
    let place = server.chain.iter().position(|id| *id == said.who.id);
    let behind = place.and_then(|at| server.chain.get(at + 1));
    let next = match behind {
        Some(id) => looked.devices.get(id).map(|said| said.listen),
        None => Some(server.listen),
    };
    match next {
        Some(next) if next != said.next => format!(
            ": it sends to {}, and the chain on record has {next} there. If a change was broken off: pmnet ctl wire",
            said.next
        ),
        _ => String::new(),
    }
}

/// Returns a spare that is ready to join.
fn spare<'a>(looked: &'a Looked, server: &ServerSaid) -> Result<&'a DeviceSaid, String> {
    let others = || {
        let all = looked.devices.values();
        all.filter(|said| !server.chain.contains(&said.who.id))
    };
    if let Some(said) = others().find(|said| said.joins == server.epoch) {
        return Ok(said);
    }
    let waiting: String = others().map(waits).collect();
    Err(format!(
        "PM5111 no spare is ready to join: start a device with --join, with --next to the server and an empty log, wait until it says that it \
         is ready, and name it in --via{waiting}{}",
        because(looked)
    ))
}

/// Checks whether devices can use each other's addresses: either all are on this machine, or each has an address that
/// other machines can reach.
fn of_one_kind(
    looked: &Looked,
    server: &ServerSaid,
    ids: impl Iterator<Item = u32>,
) -> Result<(), String> {
    let mut all: Vec<SocketAddr> = ids
        .filter_map(|id| Some(looked.devices.get(&id)?.listen))
        .collect();
    all.push(server.listen);
    let here = |at: &&SocketAddr| at.ip().is_loopback();
    let lonely = all.iter().find(here);
    let elsewhere = all.iter().find(|at| !here(at));
    match (lonely, elsewhere) {
        (Some(here), Some(there)) => Err(format!(
            "PM5112 {here} is an address on this machine, and {there} is not: name all of them (--via, --server) by addresses at which \
             the others reach them"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
