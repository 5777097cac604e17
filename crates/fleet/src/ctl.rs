//! Wishes of an operator about a shard's chain, and the check whether a wish can be met now. The functions depend only
//! on the state in etcd (`docs/spec/protocol.md` §14).
//!
//! `pmnet ctl` writes the wish into etcd. A wish overrides no rule: the device returns its lease by itself, and
//! controllers treat it like any other device without a lease.

use crate::etcd::{Etcd, Put};
use crate::heal::{is_settled, may_leave};
use crate::plan::{CHAIN_MAX, Plan};
use crate::record::{Names, Wish, bytes};
use crate::shard::{Row, Shard};

use pmnet_proto::lease::Word;

/// A change that an operator wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// The chain gets one more device.
    Add,
    /// This device, which an operator had ordered to leave, may be used as a spare again.
    TakeBack(u32),
    /// This device leaves the chain, and the wanted length becomes one less.
    Remove {
        /// Id of the device.
        device: u32,
        /// The removal is allowed even if only one copy is left.
        to_one: bool,
    },
    /// A spare takes the place of this device.
    Replace(u32),
}

/// A planned change, and the state to wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// The wanted change.
    pub want: Want,
    /// The devices of the present chain, head first.
    pub now: Vec<u32>,
    /// The device that will leave the chain.
    pub leaves: Option<u32>,
    /// The spare that is expected to join. Another spare may be faster.
    pub joins: Option<u32>,
    /// Number of devices in the final chain.
    pub copies: usize,
    puts: Vec<(String, u64, Put)>,
}

impl Intent {
    /// Returns the number of copies of an acknowledged update during the change.
    #[must_use]
    pub fn copies_meanwhile(&self) -> usize {
        self.now.len() - usize::from(self.leaves.is_some())
    }

    /// Writes the wish, if the state from which it was decided is unchanged. Returns whether the wish was written.
    ///
    /// # Errors
    /// A text: etcd does not answer. The wish may have been written.
    pub fn put(&self, etcd: &mut Etcd) -> Result<bool, String> {
        let are: Vec<(String, u64)> = self
            .puts
            .iter()
            .map(|(key, revision, _)| (key.clone(), *revision))
            .collect();
        let puts: Vec<Put> = self.puts.iter().map(|(_, _, put)| put.clone()).collect();
        etcd.put_if(&are, &puts).map_err(|error| error.to_string())
    }

    /// Checks whether the wish is met: the served chain has the wanted length, the device that was to leave is not in
    /// it, and all its devices hold everything. Otherwise returns a text with the missing condition.
    ///
    /// # Errors
    /// A text with the condition that is not met yet.
    pub fn is_done(&self, shard: &Shard) -> Result<(), String> {
        if let Want::TakeBack(device) = self.want {
            let row = shard.row(device);
            let taken = is_member(shard, device);
            return match row.record.filter(|_| row.alive != 0) {
                Some(record) if record.spare || taken => Ok(()),
                Some(_) => Err(format!(
                    "device {device} is there, and has not heard of it yet"
                )),
                None => Err(format!(
                    "device {device} does not run, or does not reach etcd"
                )),
            };
        }
        if let Some(device) = self.leaves {
            let row = shard.row(device);
            let is_member = is_member(shard, device);
            if row.word == Word::Stopped {
                return Err(format!(
                    "device {device} is declared stopped; the others are wired anew"
                ));
            }
            if is_member && row.alive != 0 {
                return Err(format!("device {device} has its lease yet"));
            }
            if is_member {
                return Err(format!(
                    "device {device} has ended, and no controller has said yet that it is stopped"
                ));
            }
        }
        let plan = settled(shard)?;
        match plan.places.len() {
            length if length >= self.copies => Ok(()),
            length => Err(format!(
                "the chain has {length} of {} devices; a spare is to join",
                self.copies
            )),
        }
    }

    /// Returns a plan that takes back the wish to remove a device, after no device or controller has acted on it in
    /// time. `None`: the wish is met, or there was no wish.
    #[must_use]
    pub fn taken_back(&self, names: &Names, shard: &Shard) -> Option<Intent> {
        let device = self.leaves?;
        let row = shard.row(device);
        let nobody_acted = row.word != Word::Stopped && is_member(shard, device);
        (nobody_acted && row.wish.leaves).then(|| Intent {
            puts: vec![
                copies(names, shard, self.now.len()),
                wish(names, &row, device, false),
            ],
            ..self.clone()
        })
    }
}

/// Returns the plan for this wish, or the reason why the wish cannot be met now.
///
/// # Errors
/// The text of the reason.
pub fn intend(names: &Names, shard: &Shard, want: Want) -> Result<Intent, String> {
    if let Want::TakeBack(device) = want {
        return take_back(names, shard, want, device);
    }
    let plan = settled(shard)?;
    let now = plan.ids();
    if shard.server.is_some() && !shard.has_server() {
        return Err(
            "PM5017 the server is gone, or does not reach etcd: no chain changes without it. Start it first".into(),
        );
    }
    let leaves = match want {
        Want::Remove { device, .. } | Want::Replace(device) => Some(device),
        Want::Add | Want::TakeBack(_) => None,
    };
    if let Some(device) = leaves {
        leaver(shard, &now, device)?;
    }
    let copies = match want {
        Want::Add => now.len() + 1,
        Want::Remove { .. } => now.len() - 1,
        Want::Replace(_) | Want::TakeBack(_) => now.len(),
    };
    if copies > CHAIN_MAX {
        return Err(format!("a chain has at most {CHAIN_MAX} devices"));
    }
    if let Want::Remove { to_one: false, .. } = want
        && copies == 1
    {
        return Err(
            "PM5018 one copy would be left: an acknowledgement would survive the loss of no device. If that is meant: --to-one; to \
             keep as many as there are: pmnet ctl replace"
                .into(),
        );
    }
    let joins = match want {
        Want::Add | Want::Replace(_) => Some(spare(shard, plan)?),
        Want::Remove { .. } | Want::TakeBack(_) => None,
    };
    let mut puts = vec![self::copies(names, shard, copies)];
    puts.extend(leaves.map(|device| wish(names, &shard.row(device), device, true)));
    Ok(Intent {
        want,
        now,
        leaves,
        joins,
        copies,
        puts,
    })
}

/// Returns the plan, if the served chain equals it and all its devices hold everything and have a lease.
fn settled(shard: &Shard) -> Result<&Plan, String> {
    let Some(plan) = &shard.plan else {
        return Err(
            "PM5010 no controller has seen the chain yet: start one (pmnet controller)".into(),
        );
    };
    let away = plan
        .places
        .iter()
        .find(|place| !shard.row(place.id).is_there());
    match away {
        Some(place) => Err(format!(
            "PM5011 device {} of the chain {:?} has no lease: the controllers leave it out, or it comes back by itself. Wait for that",
            place.id,
            plan.ids()
        )),
        None if !is_settled(shard, plan) => Err(format!(
            "PM5012 the chain is to become {:?}, and is not yet: wait for that (pmnet ctl status)",
            plan.ids()
        )),
        None => match plan.places.iter().find(|place| !place.whole) {
            Some(place) => Err(format!(
                "PM5013 device {} has joined and does not hold everything yet: wait for that",
                place.id
            )),
            None => Ok(plan),
        },
    }
}

fn is_member(shard: &Shard, device: u32) -> bool {
    let plan = shard.plan.as_ref();
    plan.is_some_and(|plan| plan.ids().contains(&device))
}

fn leaver(shard: &Shard, now: &[u32], device: u32) -> Result<(), String> {
    if !now.contains(&device) {
        return Err(format!(
            "PM5019 device {device} is not in the chain {now:?}"
        ));
    }
    if now.len() == 1 {
        return Err(format!(
            "PM5014 device {device} is the only one: what is not applied is there alone. Let another one join first (pmnet ctl add)"
        ));
    }
    if may_leave(shard, device) {
        return Ok(());
    }
    Err(format!(
        "PM5015 device {device} cannot leave now: no other member that is to stay holds everything and has a lease"
    ))
}

/// Returns a spare that is ready to join.
fn spare(shard: &Shard, plan: &Plan) -> Result<u32, String> {
    let ready = |(id, row): &(&u32, &Row)| {
        let record = row.record.as_ref().filter(|_| row.is_there());
        record.is_some_and(|record| record.spare && record.joins == plan.epoch)
            && !row.wish.leaves
            && !plan.ids().contains(id)
    };
    let found = shard.rows.iter().find(ready).map(|(id, _)| *id);
    found.ok_or_else(|| {
        "PM5020 no spare is ready to join: start a device with --join, --fleet and an empty log, and wait until it says that it is \
         ready. One that was removed: pmnet ctl add --device ID"
            .into()
    })
}

fn take_back(names: &Names, shard: &Shard, want: Want, device: u32) -> Result<Intent, String> {
    let Some(row) = shard.rows.get(&device).filter(|row| row.wish.leaves) else {
        return Err(format!(
            "PM5016 device {device} was not removed with pmnet ctl: there is nothing to take back"
        ));
    };
    let plan = shard.plan.as_ref();
    let now = plan.map(Plan::ids).unwrap_or_default();
    Ok(Intent {
        want,
        copies: shard.copies.unwrap_or(now.len()),
        now,
        leaves: None,
        joins: None,
        puts: vec![wish(names, row, device, false)],
    })
}

fn copies(names: &Names, shard: &Shard, copies: usize) -> (String, u64, Put) {
    let key = names.copies();
    let put = Put {
        key: key.clone(),
        value: bytes(&copies),
        lease: 0,
    };
    (key, shard.copies_at, put)
}

fn wish(names: &Names, row: &Row, device: u32, leaves: bool) -> (String, u64, Put) {
    let key = names.wish(device);
    let put = Put {
        key: key.clone(),
        value: bytes(&Wish { leaves }),
        lease: 0,
    };
    (key, row.wishes, put)
}

#[cfg(test)]
mod tests;
