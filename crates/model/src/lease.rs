//! Leases of devices (protocol.md §14): until when a device answers, and when a controller may declare the device
//! stopped.
//!
//! The model has no time. The guarantee about clocks is modelled by one condition: when a lease has disappeared from
//! the lease store and the margin has passed, the lease is also over by its device's own clock ([`Rule::LeaseWaited`]).

use crate::configuration::{Chain, DEVICES};
use crate::protocol::{Action, Protocol};
use crate::rule::Rule;
use crate::state::{Device, Phase, STOPPED, State};

impl Protocol {
    /// Whether the device answers nothing because its lease is over, or because it has none yet.
    pub(crate) fn is_silent(&self, device: &Device) -> bool {
        self.configuration.leased && !device.leased && self.on(Rule::LeaseDeadline)
    }

    /// Adds all steps of leases that may have an effect.
    pub(crate) fn lease_steps(&self, state: &State, actions: &mut Vec<Action>) {
        if !self.configuration.leased {
            return;
        }
        let chain = self.chain(state.record.epoch);
        for (id, device) in (0u8..).zip(&state.devices) {
            let (kept, stopped) = self.lease(state, id);
            let allowed = device.epoch > stopped || !self.on(Rule::StoppedForGood);
            let serves = device.phase == Phase::Serving && device.epoch > 0;
            if serves && allowed && !(kept && device.leased) {
                actions.push(Action::Renew(id));
            }
            if device.leased {
                actions.push(Action::Silent(id));
            }
            if kept {
                actions.push(Action::Lapse(id));
            }
            let over = !device.leased || !self.on(Rule::LeaseWaited);
            if chain.has(id) && !kept && over && stopped != STOPPED {
                actions.push(Action::Declare(id));
            }
        }
    }

    fn lease(&self, state: &State, id: u8) -> (bool, u8) {
        let at = usize::from(id);
        (state.record.kept[at], state.record.stopped[at])
    }

    pub(crate) fn renew(&self, state: &mut State, id: u8) -> bool {
        state.record.kept[usize::from(id)] = true;
        state.devices[usize::from(id)].leased = true;
        true
    }

    /// Whether all members that the next change leaves out were declared stopped.
    pub(crate) fn may_leave_out(&self, state: &State) -> bool {
        let epoch = state.record.epoch;
        let gone = |id| state.record.stopped[usize::from(id)] == STOPPED;
        !self.configuration.leased || self.going(epoch + 1).all(gone)
    }

    /// Notes that the members of which the lease store said "stopped" are left out now. From now on this statement only
    /// refuses them leases of this epoch and of earlier epochs.
    pub(crate) fn left_out(&self, state: &mut State) {
        let epoch = state.record.epoch;
        if self.configuration.leased {
            for id in self.going(epoch) {
                state.record.stopped[usize::from(id)] = epoch;
            }
        }
    }

    /// Returns the members that this epoch leaves out.
    fn going(&self, epoch: u8) -> impl Iterator<Item = u8> + use<> {
        let [old, new]: [Chain; 2] = [self.chain(epoch - 1), self.chain(epoch)];
        (0u8..)
            .take(DEVICES)
            .filter(move |id| old.has(*id) && !new.has(*id))
    }
}
