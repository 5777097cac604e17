//! The status port's view of the queue from which a device takes the messages of an RDMA NIC (--mode verbs).

use pmnet_status::{Board, Sample, numbers};
use pmnet_verbs::{ConnectionCounters, QueueCounters};

numbers! {
    /// Counters of a queue.
    pub(crate) struct VerbsNumbers {
        Counter "pmnet_verbs_messages" ["event"] "Events of messages and their slots, by event." {
            /// Messages that were taken from their slots, in order.
            taken,
            /// Slots with an error instead of a message.
            hole,
            /// With keys: messages without a valid MAC, which count as holes.
            forged,
            /// Turns that ended because the log had no room for an update.
            waited,
            /// Messages that completed while an earlier slot was open.
            overtaken,
            /// Updates that the recovery found only in slots.
            recovered,
            /// Datagrams of clients that came by UDP instead of RDMA, and were dropped.
            outside,
        }
        Counter "pmnet_verbs_connections" ["event"] "Connections of clients, by event." {
            /// Connections that were made.
            made,
            /// Connections that were refused: the device did not serve, the client had another epoch or shard, or there
            /// were too many clients.
            refused,
            /// Connections that were closed because the client sent bytes that are no message.
            garbage,
            /// Connections that were closed because the client sent nothing in time or did not read, or gave its place to another client
            /// before the connection was made.
            silent,
            /// Connections that were refused because the client did not prove that it has a valid key, or because the client has a key and the device has none.
            unproven,
            /// Connections that the device broke: because of the oldest slot, a removed key or a forged message, or because the device no longer serves.
            broken,
            /// Broken connections whose NIC did not report in time that they had taken their last slot.
            unsaid,
        }
    }
}

/// The counters that a device publishes about its queue.
#[derive(Debug, Default)]
pub(crate) struct VerbsBoard(Board<{ VerbsNumbers::METRICS.len() }>);

impl VerbsBoard {
    /// Publishes a turn. The code names each counter, so that none is forgotten.
    pub(crate) fn turn(&self, queue: QueueCounters, connections: ConnectionCounters) {
        let QueueCounters {
            messages,
            holes,
            forged,
            waits,
            overtaken,
            recovered,
            outside,
        } = queue;
        let ConnectionCounters {
            made,
            refused,
            garbage,
            silent,
            unproven,
            broken,
            unsaid,
        } = connections;
        let numbers = VerbsNumbers {
            taken: messages,
            hole: holes,
            forged,
            waited: waits,
            overtaken,
            recovered,
            outside,
            made,
            refused,
            garbage,
            silent,
            unproven,
            broken,
            unsaid,
        };
        self.0.publish(numbers.words());
    }

    pub(super) fn samples(&self) -> Vec<Sample> {
        VerbsNumbers::of(self.0.read()).samples()
    }
}
