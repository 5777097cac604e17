//! The state of the whole world, kept small: it is stored and hashed millions of times.

use std::hash::{Hash, Hasher};

use crate::configuration::{CLIENTS, DEVICES, KEYS, SESSIONS, STEPS};
use crate::history::{Answer, History};
use crate::network::Network;
use crate::rollover::Keys;

/// Orders that a log can have given out.
pub const ORDERS: usize = 8;
/// A logged step of a client: 1 + client · 4 + index; 0: none. Also the value that it writes.
pub type Op = u8;
/// Set in an entry that a crash has torn.
pub const TORN: Op = 0x10;

/// Set in [`Client::named`] when the operation itself is done, and its second barrier is not.
pub const PASSED: u8 = 0x10;

/// In [`Record::stopped`]: declared stopped, and still a member.
pub const STOPPED: u8 = u8::MAX;

/// A number by session: each client's own, then each client's mark.
pub type Table = [u8; SESSIONS];

/// The op of a step.
#[must_use]
pub fn op_of(client: u8, index: u8) -> Op {
    1 + client * 4 + index
}

/// Client and index of an op, torn or not.
#[must_use]
pub fn step_of(op: Op) -> (u8, u8) {
    let plain = (op & !TORN) - 1;
    (plain / 4, plain % 4)
}

const _: () = assert!(STEPS == 4, "an op is client · 4 + index");

/// What a store has said to a read before the head has answered it (docs/spec/reads.md §3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ahead {
    /// The epoch of the store's record; 0: it was not asked.
    pub epoch: u8,
    /// What the store had applied.
    pub applied: u8,
    /// Whether the version of this epoch's head is another one since.
    pub changed: bool,
    /// What the read says.
    pub answer: Answer,
}

/// A client and its session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// Steps that it has called.
    pub invoked: u8,
    /// Steps that have ended: bit by index.
    pub done: u8,
    /// Bypasses that it no longer waits for: bit by index, also in `done`.
    pub unknown: u8,
    /// Acks counted for the oldest update under way (only without [`crate::Rule::OneAckForAll`]).
    pub acks: u8,
    /// 1 + index of the update that has fallen back.
    pub fallback: u8,
    /// 1 + the store that the barrier of the passed-through operation under way named; with [`PASSED`], the
    /// operation has been there.
    pub named: u8,
    /// 1 + the store that the client's own connection leads to, while an operation that needs a mark is in it.
    pub connected: u8,
    /// What a store has said already to the read under way.
    pub ahead: Ahead,
}

/// What a device is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Serves its epoch.
    #[default]
    Serving,
    /// Waits for the recover-reply, answers nothing.
    Asking,
    /// Stopped for good.
    Gone,
}

/// What a head's index knows of the keys that share a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Order of the newest update that fell into it; 0: none above the floor.
    pub order: u8,
    /// That update, while it may be shown; otherwise 0.
    pub op: Op,
}

/// What a session has outstanding that may change state, as its row at the head has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outstanding {
    /// 1 + index of the newest bypass; 0: none.
    pub bypass: u8,
    /// 1 + index of the newest update that fell back; 0: none.
    pub fallback: u8,
    /// The keys of all of it.
    pub keys: u8,
}

/// A head's index of its log (docs/spec/reads.md). Volatile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Index {
    /// By bucket.
    pub buckets: [Bucket; KEYS],
    /// At or below this order the index may be incomplete.
    pub floor: u8,
    /// Last order at the recover-reply, while it is above what is committed; otherwise 0.
    pub began: u8,
    /// In this step, something that changed state without an order has left the rows, or the index has begun anew: its
    /// version is another one. (A version never comes again, so that is all that need be known of it.)
    pub changed: bool,
    /// By bucket: what changed it without an order and was answered was executed before whatever is applied with this order or a
    /// later one (only where replicas are read from).
    pub behind: [u8; KEYS],
    /// What each client's own session has outstanding.
    pub outstanding: [Outstanding; CLIENTS],
}

/// A device. Everything but epoch, incarnation, log up to `durable` and `applied` is volatile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// What it is doing.
    pub phase: Phase,
    /// Its epoch, durable.
    pub epoch: u8,
    /// Its incarnation, durable.
    pub incarnation: u8,
    /// Last order of its log.
    pub last: u8,
    /// Its log is durable up to here.
    pub durable: u8,
    /// Committed, as the head knows it.
    pub committed: u8,
    /// Applied and freed up to here.
    pub applied: u8,
    /// What the next device holds durably, as the head knows it.
    pub below: u8,
    /// Head: last admitted seq by session.
    pub table: Table,
    /// Head: last committed seq by session.
    pub answered: Table,
    /// Entries by order − 1; freed ones are 0.
    pub log: [Op; ORDERS],
    /// Head: the index.
    pub index: Index,
    /// By its own clock its lease is not over: it may answer.
    pub leased: bool,
}

/// A server's store: all of it durable, changed in atomic steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Store {
    /// A: applied up to here.
    pub applied: u8,
    /// Last applied seq by session.
    pub table: Table,
    /// The keys' values.
    pub values: [Op; KEYS],
    /// Ghost: which ops have taken effect.
    pub effects: u8,
    /// Orders above A that were applied already (only without [`crate::Rule::OneOrder`]): bit by order − 1.
    pub ahead: u8,
    /// The last state-changing bypass of each session, and its answer.
    pub replies: [(Op, Answer); CLIENTS],
    /// The incarnation of this epoch's head that was answered last.
    pub heard: u8,
}

/// A server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Server {
    /// Its epoch, durable.
    pub epoch: u8,
    /// Its store.
    pub store: Store,
    /// The effect of A + 1 is done, its records are not (only without [`crate::Rule::ApplyAtomically`]).
    pub half: bool,
}

/// What the operator, or a configuration store of the fleet, knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The epoch.
    pub epoch: u8,
    /// One more than the order up to which the device that joined must hold everything; 0: none has.
    pub needs: u8,
    /// A loss has been declared.
    pub declared: bool,
    /// The old head's lease is over.
    pub lease_over: bool,
    /// The lease store has a lease of this device.
    pub kept: [bool; DEVICES],
    /// The device gets leases of later epochs only; [`STOPPED`]: of none, it was declared stopped.
    pub stopped: [u8; DEVICES],
}

/// What has gone wrong, if something has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Bad {
    /// Nothing.
    #[default]
    No,
    /// Something acknowledged can never be applied any more.
    Lost,
    /// Something took effect twice.
    Twice,
    /// A session's effects are out of order.
    Disorder,
    /// The clients' history is not linearizable in session order.
    History,
    /// Something of an ended session took effect.
    Ended,
    /// Something that nobody sent took effect.
    Garbage,
    /// One order has two identities.
    Fork,
    /// The store has an order that a device of its epoch does not have.
    Ahead,
    /// A process is not heard because of its key.
    Unheard,
}

/// The world.
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
    /// The keys that each process has, while the cluster's key changes.
    pub keys: Keys,
    /// Packets that may still arrive.
    pub network: Network,
    /// Ghost: what the clients may have seen.
    pub history: History,
    /// Ghost: the first violation.
    pub bad: Bad,
}

/// Hashing takes a large part of a search: one write for each part instead of one for each field.
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
    /// All but the log.
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
            // Only within a step.
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
