//! The next step of a controller, which depends only on a shard's state in etcd (`docs/spec/protocol.md` §14).
//!
//! A controller takes one step at a time. Each step names the state from which it was decided, and the transaction in
//! etcd fails if that state has changed. Another controller may have acted since the state was read.

use std::collections::BTreeSet;

use pmnet_proto::lease::Word;

use crate::plan::{CHAIN_MAX, Place, Plan};
use crate::record::MemberRecord;
use crate::shard::{Row, Shard};

/// One step in etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The chain that the devices serve becomes the plan in etcd.
    Adopt(Plan),
    /// Writes the word *stopped* about a device, if this lease is still the device's last lease. `beside`: the device
    /// that continues.
    Stop {
        /// Id of the device.
        device: u32,
        /// Number of the device's last lease.
        lease: u64,
        /// Id of a device that holds everything and has a lease.
        beside: u32,
    },
    /// The remaining devices get new next hops. If the plan has a spare, the spare is the last device.
    Wire(Plan),
    /// Writes the word *left out* about a device that was stopped.
    LeftOut {
        /// Id of the device.
        device: u32,
        /// The epoch of a served chain that does not contain the device.
        epoch: u32,
    },
}

/// Result of the search for the next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advice {
    /// The step that must be taken.
    Do(Step),
    /// The controller must wait for the event that the text names.
    Wait(String),
    /// Nothing needs to be done.
    Well,
}

/// The chain that the devices serve.
pub(crate) struct Present<'a> {
    epoch: u32,
    pub(crate) chain: &'a [u32],
}

/// Returns the record of a device that has a lease now.
fn alive(row: &Row) -> Option<&MemberRecord> {
    row.record.as_ref().filter(|_| row.alive != 0)
}

fn is_stopped(shard: &Shard, id: u32) -> bool {
    shard
        .rows
        .get(&id)
        .is_some_and(|row| row.word == Word::Stopped)
}

/// Returns the chain of the latest epoch that is known. A device with a lease reports the epoch that it serves, and the
/// server reports the epoch that its store has on record. The chain of an epoch never changes. Until etcd has a plan,
/// only the devices' reports count, because only devices know their next hops.
pub(crate) fn present(shard: &Shard) -> Option<Present<'_>> {
    let records = shard.rows.values().filter_map(alive);
    let served = records.map(|record| (record.epoch, &record.chain));
    let server = shard.server.as_ref().filter(|_| shard.plan.is_some());
    let on_record = server.map(|record| (record.epoch, &record.chain));
    let known = served.chain(on_record);
    let known = known.filter(|(epoch, chain)| *epoch > 0 && !chain.is_empty());
    let (epoch, chain) = known.max_by_key(|(epoch, _)| *epoch)?;
    Some(Present { epoch, chain })
}

/// Returns the next step. `may_stop` returns the number of the device's last lease, if that lease ended long enough
/// ago. `copies`: the wanted length of the chain, if an operator has set one.
pub fn advise(
    shard: &Shard,
    may_stop: impl Fn(u32) -> Option<u64>,
    copies: Option<usize>,
) -> Advice {
    let present = present(shard);
    let Some(plan) = &shard.plan else {
        return present.map_or(Advice::Well, |present| adopt(shard, None, &present));
    };
    if let Some(later) = present.as_ref().filter(|now| now.epoch > plan.epoch) {
        return adopt(shard, Some(plan), later);
    }
    if let Some(step) = server_moved(shard, plan) {
        return Advice::Do(step);
    }
    let same = present.as_ref().filter(|now| now.epoch == plan.epoch);
    if let Some(present) = same
        && let Some(step) = left_out(shard, plan, present).or_else(|| noted(shard, plan))
    {
        return Advice::Do(step);
    }
    let members = same.map_or_else(|| plan.ids(), |present| present.chain.to_vec());
    if let Some(advice) = stop(shard, plan, &members, may_stop) {
        return advice;
    }
    if let Some(advice) = wire(shard, plan, &members, same.is_some()) {
        return advice;
    }
    if let Some(step) = same.and_then(|present| join(shard, plan, present, copies)) {
        return Advice::Do(step);
    }
    match present {
        Some(present) if present.epoch < plan.epoch => Advice::Wait(format!(
            "PM4010 the devices serve epoch {}, and etcd knows that there was epoch {}: unless this is over in a moment, the server's \
             store is another one, or an old copy. Restore it, or give the fleet another name",
            present.epoch, plan.epoch
        )),
        _ => Advice::Well,
    }
}

/// Returns the plan for a new chain that is served. The devices formed this chain by themselves, an operator made it,
/// or the last plan required it.
fn adopt(shard: &Shard, before: Option<&Plan>, present: &Present<'_>) -> Advice {
    let record = |id: &u32| shard.rows.get(id)?.record.as_ref();
    let serving = |id: &u32| record(id).filter(|record| record.epoch == present.epoch);
    let known = |id: &u32| before?.places.iter().find(|place| place.id == *id);
    let mut places = Vec::new();
    let mut reached = None;
    for id in present.chain {
        let own = || record(id).map(|record| record.address);
        let Some(at) = reached
            .or_else(|| known(id).map(|place| place.at))
            .or_else(own)
        else {
            return Advice::Wait(format!(
                "PM4011 device {id} is a member of the chain of epoch {}, and has never registered in etcd: does it run with \
                 --fleet? All devices of a shard need leases, or none",
                present.epoch
            ));
        };
        let joined = before.and_then(Plan::joiner) == Some(*id);
        let whole = match serving(id) {
            Some(record) => record.whole,
            None => !joined && known(id).is_some_and(|place| place.whole),
        };
        places.push(Place { id: *id, at, whole });
        reached = serving(id).and_then(|record| record.next);
    }
    let Some(server) = reached.or_else(|| before.map(|plan| plan.server)) else {
        return Advice::Wait(format!(
            "PM4012 the last device of the chain of epoch {} has no lease, so it is not known where the server is",
            present.epoch
        ));
    };
    Advice::Do(Step::Adopt(Plan {
        epoch: present.epoch,
        says: None,
        copies: before.map_or(0, |plan| plan.copies).max(places.len()),
        places,
        joins: false,
        server,
    }))
}

/// Returns the step after another server has begun to serve: the last device must send to that server. The members and
/// the statement of the plan stay unchanged.
fn server_moved(shard: &Shard, plan: &Plan) -> Option<Step> {
    let there = shard.server.as_ref().filter(|_| shard.has_server());
    let moved = there.filter(|record| record.standby && record.address != plan.server)?;
    Some(Step::Wire(Plan {
        server: moved.address,
        ..plan.clone()
    }))
}

/// Returns the step for a device that was stopped and is not in the served chain. The plan must have no statement. If
/// the plan has no statement, no statement about the device is awaited, and an old statement does not count in a later
/// epoch.
fn left_out(shard: &Shard, plan: &Plan, present: &Present<'_>) -> Option<Step> {
    let stopped = shard
        .rows
        .iter()
        .filter(|(_, row)| row.word == Word::Stopped);
    let gone = |id: &u32| !present.chain.contains(id) && !plan.ids().contains(id);
    let device = stopped.map(|(id, _)| *id).find(gone)?;
    plan.says.is_none().then_some(Step::LeftOut {
        device,
        epoch: present.epoch,
    })
}

/// If a device that joined now holds everything, returns the step that notes this in the plan.
fn noted(shard: &Shard, plan: &Plan) -> Option<Step> {
    let mut noted = plan.clone();
    for place in &mut noted.places {
        let record = shard.rows.get(&place.id).and_then(alive);
        place.whole |= record.is_some_and(|record| record.epoch == plan.epoch && record.whole);
    }
    (noted != *plan).then_some(Step::Adopt(noted))
}

/// Returns whether the chain of this plan is served, and no device is joining or leaving.
pub(crate) fn is_settled(shard: &Shard, plan: &Plan) -> bool {
    let served = present(shard);
    let served = served.is_some_and(|now| now.epoch == plan.epoch && now.chain == plan.ids());
    served && plan.says.is_none() && !plan.joins
}

/// Returns whether the chain can probably continue without this device: the device is a member, no other device is
/// joining or leaving, and another member that holds everything has a lease. This check only avoids a useless pause: a
/// controller decides later whether the device is left out.
pub(crate) fn may_leave(shard: &Shard, device: u32) -> bool {
    let goes_on = |place: &Place| {
        let row = shard.rows.get(&place.id);
        let there = row.is_some_and(|row| row.is_there() && !row.wish.leaves);
        place.id != device && place.whole && there
    };
    shard.plan.as_ref().is_some_and(|plan| {
        let is_member = plan.ids().contains(&device);
        is_settled(shard, plan) && is_member && plan.places.iter().any(goes_on)
    })
}

/// Returns the step for a device without a lease, if another member holds everything and has a lease.
fn stop(
    shard: &Shard,
    plan: &Plan,
    members: &[u32],
    may_stop: impl Fn(u32) -> Option<u64>,
) -> Option<Advice> {
    let all: BTreeSet<u32> = members.iter().copied().chain(plan.ids()).collect();
    let gone = |id: u32| may_stop(id).map(|lease| (id, lease));
    let (device, lease) = all
        .into_iter()
        .filter(|id| !is_stopped(shard, *id))
        .find_map(gone)?;
    let goes_on = |place: &&Place| {
        let row = shard.rows.get(&place.id);
        let there = row.is_some_and(Row::is_there);
        place.id != device && place.whole && there && members.contains(&place.id)
    };
    Some(match plan.places.iter().find(goes_on) {
        Some(place) => Advice::Do(Step::Stop {
            device,
            lease,
            beside: place.id,
        }),
        None => Advice::Wait(format!(
            "PM4013 device {device} has no lease, and no other member that holds everything has one: no device may be left out. Start \
             a device of the chain again. If all are gone for good with their logs: --declare-data-loss"
        )),
    })
}

/// Returns a plan with the remaining devices, if a device of the plan was declared stopped. `seen`: the chain of the
/// plan's epoch is served.
fn wire(shard: &Shard, plan: &Plan, members: &[u32], seen: bool) -> Option<Advice> {
    let stays = |place: &&Place| !is_stopped(shard, place.id);
    let places: Vec<Place> = plan.places.iter().filter(stays).cloned().collect();
    if places.len() == plan.places.len() {
        return None;
    }
    let kept = |id: &u32| places.iter().any(|place| place.id == *id);
    let unstopped = |id: &&u32| !kept(id) && !is_stopped(shard, **id);
    if places.is_empty() || members.iter().any(|id| unstopped(&id)) {
        return Some(Advice::Wait(
            "PM4014 the record of the chain in etcd is not that of the chain that is served: one of them was changed by \
             hand. Start the devices as they shall be, with --shrink-chain at the head"
                .into(),
        ));
    }
    let joiner = plan.joiner();
    let joins = joiner.is_some_and(|id| kept(&id));
    let says = if joiner.is_some() && !joins {
        // It is unknown whether the device has joined. If the device has joined, the next epoch has begun. If the
        // device has not joined, no device has to be left out.
        plan.epoch + 1
    } else if seen {
        plan.epoch
    } else {
        plan.says.unwrap_or(plan.epoch)
    };
    Some(Advice::Do(Step::Wire(Plan {
        says: Some(says),
        places,
        joins,
        ..plan.clone()
    })))
}

/// Returns the step that adds a spare that is ready, if all devices of the chain have leases and the chain is shorter
/// than wanted.
fn join(shard: &Shard, plan: &Plan, present: &Present<'_>, copies: Option<usize>) -> Option<Step> {
    let wanted = copies.unwrap_or(plan.copies).min(CHAIN_MAX);
    let serves = |place: &Place| {
        let record = shard.rows.get(&place.id).and_then(alive);
        record.is_some_and(|record| record.epoch == present.epoch && record.whole)
    };
    let whole = plan.places.iter().all(serves) && plan.ids() == present.chain;
    if !whole || plan.joins || plan.places.len() >= wanted {
        return None;
    }
    let ready = |(id, row): (&u32, &Row)| {
        let record = alive(row)?;
        let fits = record.address.is_ipv4() == plan.server.is_ipv4();
        let new = row.word != Word::Stopped && !plan.ids().contains(id);
        (new && fits && record.spare && record.joins == present.epoch).then_some(Place {
            id: *id,
            at: record.address,
            whole: false,
        })
    };
    let spare = shard.rows.iter().find_map(ready)?;
    let mut places = plan.places.clone();
    places.push(spare);
    Some(Step::Wire(Plan {
        places,
        joins: true,
        ..plan.clone()
    }))
}

#[cfg(test)]
mod tests;
