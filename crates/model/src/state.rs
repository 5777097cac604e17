//! The state of the whole system. The state is small, because a search stores and hashes millions of states.

use std::hash::{Hash, Hasher};

use crate::configuration::{CLIENTS, DEVICES, KEYS, SESSIONS, STEPS};
use crate::history::{Answer, History};
use crate::network::Network;
use crate::rollover::Keys;

/// Maximum number of orders of a log.
pub const ORDERS: usize = 8;
/// A logged step of a client: 1 + client · 4 + index; 0: none. The number is also the value that the step writes.
pub type Op = u8;
/// Set in an entry that a crash has torn.
pub const TORN: Op = 0x10;

/// Bit in [`Client::named`]: the operation itself is done, but its second barrier is not answered.
pub const PASSED: u8 = 0x10;

/// Value in [`Record::stopped`]: declared stopped, and still a member.
pub const STOPPED: u8 = u8::MAX;

/// A number for each session: first for each client's own session, then for each client's mark session.
pub type Table = [u8; SESSIONS];

/// Returns the op of a step.
#[must_use]
pub fn op_of(client: u8, index: u8) -> Op {
    1 + client * 4 + index
}

/// Returns client and index of an op, torn or not.
#[must_use]
pub fn step_of(op: Op) -> (u8, u8) {
    let plain = (op & !TORN) - 1;
    (plain / 4, plain % 4)
}

const _: () = assert!(STEPS == 4, "an op is client · 4 + index");

/// The store's reply to a read that came before the head's answer (docs/spec/reads.md §3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ahead {
    /// Epoch of the store's record; 0: the store was not asked.
    pub epoch: u8,
    /// A of the store.
    pub applied: u8,
    /// Whether the version of this epoch's head has changed since.
    pub changed: bool,
    /// Answer to the read.
    pub answer: Answer,
}

/// A client and its session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// Number of steps that the client has called.
    pub invoked: u8,
    /// Steps that have ended, as bits by index.
    pub done: u8,
    /// Bypasses that the client has abandoned, as bits by index. They are also in `done`.
    pub unknown: u8,
    /// Acks counted for the oldest update under way (only without [`crate::Rule::OneAckForAll`]).
    pub acks: u8,
    /// 1 + index of the update that has fallen back.
    pub fallback: u8,
    /// 1 + the store that the barrier named for the operation under way on the client's own connection. With
    /// [`PASSED`]: this store has executed the operation.
    pub named: u8,
    /// 1 + the store of the client's own connection, while an operation that needs a mark is under way on this
    /// connection.
    pub connected: u8,
    /// Reply that the store has already given to the read under way.
    pub ahead: Ahead,
}

/// Phase of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The device serves its epoch.
    #[default]
    Serving,
    /// The device waits for the recover-reply, and answers nothing.
    Asking,
    /// The device is stopped, and never starts again.
    Gone,
}

/// The entry of a head's index for the keys that share a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Order of the newest update of these keys; 0: there is no update above the floor.
    pub order: u8,
    /// Op of the newest update, as long as a HIT may show it; otherwise 0.
    pub op: Op,
}

/// Outstanding requests of a session that may change state, as in the session's row at the head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outstanding {
    /// 1 + index of the newest bypass; 0: none.
    pub bypass: u8,
    /// 1 + index of the newest update that fell back; 0: none.
    pub fallback: u8,
    /// The keys of all these requests.
    pub keys: u8,
}

/// A head's index of its log (docs/spec/reads.md). A crash loses the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Index {
    /// The buckets.
    pub buckets: [Bucket; KEYS],
    /// The index may be incomplete at or below this order.
    pub floor: u8,
    /// Last order of the log at the recover-reply, while this order is above the committed order; otherwise 0.
    pub began: u8,
    /// Whether the head's version changes in this step: a request that changed state without an order is no longer
    /// outstanding, or the index was created anew. No version occurs twice, so its value is not needed.
    pub changed: bool,
    /// For each bucket: all answered requests without an order for its keys are executed before an entry with this
    /// order or a later order is applied. Used only if replicas are read.
    pub behind: [u8; KEYS],
    /// Outstanding requests of each client's own session.
    pub outstanding: [Outstanding; CLIENTS],
}

/// A device. All fields except epoch, incarnation, the log up to `durable`, and `applied` are volatile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Phase of the device.
    pub phase: Phase,
    /// Epoch of the device, durable.
    pub epoch: u8,
    /// Incarnation of the device, durable.
    pub incarnation: u8,
    /// Last order of the device's log.
    pub last: u8,
    /// Last order that is durable.
    pub durable: u8,
    /// Last order that is committed, as the head knows it.
    pub committed: u8,
    /// Last order that is applied and freed.
    pub applied: u8,
    /// Last order that is durable in the next device, as the head knows it.
    pub below: u8,
    /// Head: last admitted seq by session.
    pub table: Table,
    /// Head: last committed seq by session.
    pub answered: Table,
    /// Entries by order − 1; a freed entry is 0.
    pub log: [Op; ORDERS],
    /// Head: the index of its log.
    pub index: Index,
    /// The device has a lease that is not over by its own clock, so the device may answer.
    pub leased: bool,
}

/// A server's store. It is durable, and changes in atomic steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Store {
    /// A, the last applied order.
    pub applied: u8,
    /// Last applied seq by session.
    pub table: Table,
    /// Values of the keys.
    pub values: [Op; KEYS],
    /// Ghost: the ops that have taken effect.
    pub effects: u8,
    /// Orders above A that are already applied (only without [`crate::Rule::OneOrder`]), as bits by order − 1.
    pub ahead: u8,
    /// For each session, its last bypass that changed state, and the answer.
    pub replies: [(Op, Answer); CLIENTS],
    /// Incarnation of this epoch's head to which the server last sent a recover-reply.
    pub heard: u8,
}

/// A server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Server {
    /// Epoch of the server, durable.
    pub epoch: u8,
    /// Store of the server.
    pub store: Store,
    /// The effect of order A + 1 is done, but its records are not written (only without
    /// [`crate::Rule::ApplyAtomically`]).
    pub half: bool,
}

/// The statements that the operator or the fleet's lease store has recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The present epoch.
    pub epoch: u8,
    /// 1 + the order up to which the joined device must hold all entries; 0: no device has joined.
    pub needs: u8,
    /// A loss was declared.
    pub declared: bool,
    /// The old head's lease is over.
    pub lease_over: bool,
    /// For each device: the lease store has a lease of the device.
    pub kept: [bool; DEVICES],
    /// For each device: it gets leases only in epochs above this epoch. [`STOPPED`]: it gets no lease, because it was
    /// declared stopped.
    pub stopped: [u8; DEVICES],
}

/// The kind of violation, if there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Bad {
    /// No violation.
    #[default]
    No,
    /// An acknowledged update can never be applied any more.
    Lost,
    /// An update took effect twice.
    Twice,
    /// A session's effects are out of order.
    Disorder,
    /// The clients' history is not linearizable in session order.
    History,
    /// An update of an ended session took effect after the session's END.
    Ended,
    /// An update took effect that no client sent.
    Garbage,
    /// One order has two identities.
    Fork,
    /// The store has applied an order that a device of its epoch does not have.
    Ahead,
    /// A process rejects genuine packets of another process because of a key.
    Unheard,
}

/// State of the whole system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The clients.
    pub clients: [Client; CLIENTS],
    /// D1 and D2.
    pub devices: [Device; DEVICES],
    /// The server and its replica.
    pub servers: [Server; 2],
    /// The configuration record.
    pub record: Record,
    /// The keys of all processes, while the cluster's key changes.
    pub keys: Keys,
    /// Packets that may still arrive.
    pub network: Network,
    /// Only for the checks, invisible to the protocol: all sequential executions that could have given the replies which
    /// the clients have received.
    pub history: History,
    /// Only for the checks: the first violation.
    pub bad: Bad,
}

/// Hashing takes a large part of the time of a search. So each part of the state is hashed in one call, and not field
/// by field.
impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        for client in &self.clients {
            hasher.write(&client.bytes());
        }
        for device in &self.devices {
            hasher.write(&device.bytes());
            hasher.write(&device.log);
        }
        for server in &self.servers {
            hasher.write(&server.bytes());
        }
        hasher.write(&self.record.bytes());
        hasher.write(&self.keys.bytes());
        self.network.hash(hasher);
        self.history.hash(hasher);
        self.bad.hash(hasher);
    }
}

impl Client {
    fn bytes(&self) -> [u8; 11] {
        let Self {
            invoked,
            done,
            unknown,
            acks,
            fallback,
            named,
            connected,
            ahead,
        } = *self;
        [
            invoked,
            done,
            unknown,
            acks,
            fallback,
            named,
            connected,
            ahead.epoch,
            ahead.applied,
            u8::from(ahead.changed),
            ahead.answer,
        ]
    }
}

impl Device {
    /// Returns the bytes of all fields except the log.
    fn bytes(&self) -> [u8; 31] {
        let Self {
            phase,
            epoch,
            incarnation,
            last,
            durable,
            committed,
            applied,
            below,
            table: [t0, t1, t2, t3],
            answered: [a0, a1, a2, a3],
            log: _,
            index,
            leased,
        } = *self;
        let Index {
            buckets: [first, second],
            floor,
            began,
            // This field is set only during a step, so it does not distinguish states.
            changed: _,
            behind: [behind, other],
            outstanding: [one, two],
        } = index;
        let phase = match phase {
            Phase::Serving => 0,
            Phase::Asking => 1,
            Phase::Gone => 2,
        };
        let [head, entries] = [
            [
                phase,
                epoch,
                incarnation,
                last,
                durable,
                committed,
                applied,
                below,
            ],
            [t0, t1, t2, t3, a0, a1, a2, a3],
        ];
        let index = [
            first.order,
            first.op,
            second.order,
            second.op,
            floor,
            began,
            u8::from(leased),
            behind,
            other,
            one.bypass,
            one.fallback,
            one.keys,
            two.bypass,
            two.fallback,
            two.keys,
        ];
        let mut bytes = [0; 31];
        let all = head.into_iter().chain(entries).chain(index);
        for (to, from) in bytes.iter_mut().zip(all) {
            *to = from;
        }
        bytes
    }
}

impl Server {
    fn bytes(&self) -> [u8; 16] {
        let Self { epoch, half, .. } = *self;
        let Store {
            applied,
            table: [t0, t1, t2, t3],
            values,
            effects,
            ahead,
            replies,
            heard,
        } = self.store;
        [
            epoch,
            u8::from(half),
            applied,
            t0,
            t1,
            t2,
            t3,
            values[0],
            values[1],
            effects,
            ahead,
            replies[0].0,
            replies[0].1,
            replies[1].0,
            replies[1].1,
            heard,
        ]
    }
}

impl Record {
    fn bytes(&self) -> [u8; 8] {
        let Self {
            epoch,
            needs,
            declared,
            lease_over,
            kept: [first, second],
            stopped: [one, two],
        } = *self;
        [
            epoch,
            needs,
            u8::from(declared),
            u8::from(lease_over),
            u8::from(first),
            u8::from(second),
            one,
            two,
        ]
    }
}
