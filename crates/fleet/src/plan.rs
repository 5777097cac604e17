//! The chain as it shall be: the record that controllers write, and the order that follows from it for each
//! device (`docs/spec/protocol.md` §14).

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// Maximum number of devices in a chain.
pub(crate) const CHAIN_MAX: usize = 8;

/// A device of the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Id of the device.
    pub id: u32,
    /// Address to which the device before this one sends.
    pub at: SocketAddr,
    /// The device was seen to hold everything that a head must hold.
    pub whole: bool,
}

/// The chain as it shall be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The epoch of the chain from which this plan was made.
    pub epoch: u32,
    /// The epoch about which the head states (SHRINK) that all members of its chain that are not in this plan are
    /// stopped. The epoch is `epoch` or the next epoch. `None`: the head states nothing.
    pub says: Option<u32>,
    /// The devices, head first.
    pub places: Vec<Place>,
    /// The last device of `places` is not a member of the chain of `epoch`: it is about to join.
    pub joins: bool,
    /// Address to which the last device sends.
    pub server: SocketAddr,
    /// Length of the longest chain so far. Spares join until the chain has this length.
    pub copies: usize,
}

/// The next hop of a device, and its statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// The device's next hop.
    pub next: SocketAddr,
    /// The id of the next hop, 0 for the server (`docs/spec/keys.md` §5); `None`: the sender of the order does not know
    /// the id.
    pub next_id: Option<u32>,
    /// The epoch for which the device states that the members of its chain that are not on the device's path are
    /// stopped.
    pub shrink: Option<u32>,
}

impl Order {
    /// Returns whether a device that runs with this order must start again to follow `other`. A statement that `other`
    /// does not repeat needs no restart, because statements expire with their epoch.
    #[must_use]
    pub fn is_to_become(self, other: Order) -> bool {
        let other_hop = self
            .next_id
            .zip(other.next_id)
            .is_some_and(|(own, other)| own != other);
        self.next != other.next
            || other_hop
            || other.shrink.is_some_and(|_| other.shrink != self.shrink)
    }
}

impl Plan {
    /// Returns the ids of the devices, head first.
    #[must_use]
    pub fn ids(&self) -> Vec<u32> {
        self.places.iter().map(|place| place.id).collect()
    }

    /// Returns the device that is to join.
    #[must_use]
    pub fn joiner(&self) -> Option<u32> {
        let last = self.places.last().filter(|_| self.joins);
        last.map(|place| place.id)
    }

    /// Returns the order for this device; `None`: the device is not in this plan.
    #[must_use]
    pub fn order(&self, id: u32) -> Option<Order> {
        let at = self.places.iter().position(|place| place.id == id)?;
        let next = self.places.get(at + 1);
        Some(Order {
            next: next.map_or(self.server, |place| place.at),
            next_id: Some(next.map_or(0, |place| place.id)),
            shrink: self.says.filter(|_| at == 0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        let place = |id: u16| Place {
            id: id.into(),
            at: SocketAddr::from(([10, 0, 0, 1], id)),
            whole: true,
        };
        Plan {
            epoch: 4,
            says: Some(4),
            places: vec![place(7), place(8)],
            joins: true,
            server: SocketAddr::from(([10, 0, 0, 1], 99)),
            copies: 2,
        }
    }

    #[test]
    fn each_device_gets_its_order_and_the_head_alone_states_something() {
        let plan = plan();
        let order = |id, port, shrink| {
            let next = SocketAddr::from(([10, 0, 0, 1], port));
            // In this test the server has port 99, and the port of each device is the device's id.
            let next_id = Some(u32::from(port) % 99);
            let wanted = Order {
                next,
                next_id,
                shrink,
            };
            assert_eq!(plan.order(id), Some(wanted));
        };
        order(7, 8, Some(4));
        order(8, 99, None);
        assert_eq!(plan.order(9), None);
        assert_eq!((plan.joiner(), plan.ids()), (Some(8), vec![7, 8]));
    }

    #[test]
    fn a_device_starts_again_for_another_hop_or_a_new_statement_only() {
        let plan = plan();
        let (head, tail) = (plan.order(7).unwrap(), plan.order(8).unwrap());
        assert!(head.is_to_become(tail) && !head.is_to_become(head));
        let silent = Order {
            shrink: None,
            ..head
        };
        let later = Order {
            shrink: Some(5),
            ..head
        };
        assert!(silent.is_to_become(head) && head.is_to_become(later));
        assert!(!head.is_to_become(silent), "that epoch is over");
    }

    #[test]
    fn a_plan_is_read_as_it_was_written() {
        let bytes = crate::record::bytes(&plan());
        assert_eq!(serde_json::from_slice::<Plan>(&bytes).unwrap(), plan());
    }
}
