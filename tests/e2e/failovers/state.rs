//! The state of a fleet's devices, which `pmnet status` reads from etcd.

use serde_json::Value;

/// The state of a device in the output of `pmnet status --json`.
#[derive(Clone, Debug)]
pub struct DeviceState {
    index: usize,
    epoch: u64,
    place: Option<u64>,
    places: Option<u64>,
    has_lease: bool,
    whole: bool,
    ready: u64,
}

impl DeviceState {
    pub fn waits(&self, epoch: u64) -> bool {
        self.place.is_none() && self.has_lease && self.ready == epoch
    }
}

/// The devices in the order of `pmnet status`.
#[derive(Clone, Debug)]
pub struct State {
    pub devices: Vec<DeviceState>,
}

impl State {
    pub fn read(rows: &Value) -> State {
        let device = |row: &Value| {
            let index = usize::try_from(row["device"].as_u64()?)
                .ok()?
                .checked_sub(1)?;
            Some(DeviceState {
                index,
                epoch: row["epoch"].as_u64().unwrap_or(0),
                place: row["place"].as_u64(),
                places: row["places"].as_u64(),
                has_lease: row["lease_held"] == true,
                whole: row["holds_everything"] == true,
                ready: row["ready_to_join"].as_u64().unwrap_or(0),
            })
        };
        let rows = rows.as_array().cloned().unwrap_or_default();
        State {
            devices: rows.iter().filter_map(device).collect(),
        }
    }

    /// Returns the indices of the devices in the wanted chain, head first.
    pub fn chain(&self) -> Vec<usize> {
        let mut chain: Vec<&DeviceState> = self
            .devices
            .iter()
            .filter(|one| one.place.is_some())
            .collect();
        chain.sort_by_key(|one| one.place);
        chain.iter().map(|one| one.index).collect()
    }

    pub fn epoch(&self) -> u64 {
        let members = self.devices.iter().filter(|one| one.place.is_some());
        members.map(|one| one.epoch).max().unwrap_or(0)
    }

    /// Returns whether all devices of the chain serve it and hold everything.
    pub fn is_formed(&self) -> bool {
        let members: Vec<_> = self
            .devices
            .iter()
            .filter(|one| one.place.is_some())
            .collect();
        let all = u64::try_from(members.len()).ok();
        let serves = |one: &&DeviceState| {
            one.has_lease && one.whole && one.epoch == self.epoch() && one.places == all
        };
        self.epoch() > 0 && members.iter().all(serves)
    }
}
