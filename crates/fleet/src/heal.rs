//! The next step of a controller: a pure function of a shard's state in etcd (`docs/spec/protocol.md` §14).
//!
//! One step at a time. Each one names what it was decided from, so that the step in etcd can ask for exactly that: between the look
//! and the step another controller may have acted.

use std::collections::BTreeSet;

use pmnet_proto::lease::Word;

use crate::plan::{CHAIN_MAX, Place, Plan};
use crate::record::MemberRecord;
use crate::shard::{Row, Shard};

/// One step in etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The chain that serves becomes the record.
    Adopt(Plan),
    /// The word *stopped* about a device whose last lease is this; `beside`: the member that goes on.
    Stop {
        /// Device id.
        device: u32,
        /// Number of its last lease.
        lease: u64,
        /// The device that holds everything and has a lease.
        beside: u32,
    },
    /// The devices that are left, or a spare with them, are wired anew.
    Wire(Plan),
    /// The word *left out* about a device that was stopped.
    LeftOut {
        /// Device id.
        device: u32,
        /// The epoch of a chain without it.
        epoch: u32,
    },
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advice {
    /// This step.
    Do(Step),
    /// Nothing can be done before something else happens: a sentence.
    Wait(String),
    /// Nothing.
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

/// Returns the latest epoch that a device with a lease serves, or that the server has said it has on record. The chain of an epoch never
/// changes. Until the chain is in etcd only the devices count: they know where they send to.
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

/// Returns the next step. `may_stop` gives the number of a lease that is gone for long enough; `copies`: how long the chain shall be, if
/// that was said.
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

/// Returns the record follows a chain that was made by devices that formed it, by a person, or as the record before said.
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

/// Another one of several servers serves now: the last device sends there. The members and the statement stay as they are.
fn server_moved(shard: &Shard, plan: &Plan) -> Option<Step> {
    let there = shard.server.as_ref().filter(|_| shard.has_server());
    let moved = there.filter(|record| record.standby && record.address != plan.server)?;
    Some(Step::Wire(Plan {
        server: moved.address,
        ..plan.clone()
    }))
}

/// Returns a device that was stopped, and is not in the chain that is served. The record may not leave a device out of that chain any more:
/// then no statement about this device is to come, and none counts in a later epoch.
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

/// Notes that a device that had joined has everything now.
fn noted(shard: &Shard, plan: &Plan) -> Option<Step> {
    let mut noted = plan.clone();
    for place in &mut noted.places {
        let record = shard.rows.get(&place.id).and_then(alive);
        place.whole |= record.is_some_and(|record| record.epoch == plan.epoch && record.whole);
    }
    (noted != *plan).then_some(Step::Adopt(noted))
}

/// Returns whether the chain of this record is served, and no device is about to join or leave.
pub(crate) fn is_settled(shard: &Shard, plan: &Plan) -> bool {
    let served = present(shard);
    let served = served.is_some_and(|now| now.epoch == plan.epoch && now.chain == plan.ids());
    served && plan.says.is_none() && !plan.joins
}

/// Returns whether the chain can go on without this device, as far as is known: it is a member, no other device is about to join or leave, and
/// another member that holds everything has a lease. Only to avoid a pause for nothing: whether it is left out, a controller decides
/// as always.
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

/// Returns a device whose lease is gone, beside one that holds everything.
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

/// Plans a chain of the devices that are left, if a device of the record was stopped. `seen`: the chain of the record's epoch is served.
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
        // Whether it has joined is not known: if so, that is the next epoch. If not, no device is left out.
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

/// Returns a spare that is ready, if the chain is whole and shorter than it shall be.
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
