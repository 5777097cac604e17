//! The view of the queue through which an RDMA NIC hands messages to a device (--mode verbs).

use pmnet_status::{Board, Sample, numbers};
use pmnet_verbs::{ConnectionCounters, QueueCounters};

numbers! {
    /// Numbers of a queue.
    pub(crate) struct VerbsNumbers {
        Counter "pmnet_verbs_messages" ["event"] "Events of messages and their slots, by event." {
            /// Messages that were taken from their slots, in order.
            taken,
            /// Slots that held an error instead of a message.
            hole,
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
            /// Connections that were closed because the client sent nothing in time, or did not read.
            silent,
            /// Connections that the device broke, because the oldest slot stayed open or because the device no longer
            /// serves.
            broken,
            /// Broken connections whose NIC did not report in time that they had taken their last slot.
            unsaid,
        }
    }
}

/// Numbers that a device publishes of its queue.
#[derive(Debug, Default)]
pub(crate) struct VerbsBoard(Board<{ VerbsNumbers::METRICS.len() }>);

impl VerbsBoard {
    /// Publishes a turn. All counters are named, so that none is forgotten.
    pub(crate) fn turn(&self, queue: QueueCounters, connections: ConnectionCounters) {
        let QueueCounters {
            messages,
            holes,
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
            broken,
            unsaid,
        } = connections;
        let numbers = VerbsNumbers {
            taken: messages,
            hole: holes,
            waited: waits,
            overtaken,
            recovered,
            outside,
            made,
            refused,
            garbage,
            silent,
            broken,
            unsaid,
        };
        self.0.publish(numbers.words());
    }

    pub(super) fn samples(&self) -> Vec<Sample> {
        VerbsNumbers::of(self.0.read()).samples()
    }
}
