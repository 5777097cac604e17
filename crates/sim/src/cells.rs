//! The failure matrix (`docs/spec/protocol.md` §9). A row is a moment in the life of an update, and a column is a
//! fault. If a fault happens while some update is at a moment, the cell of this moment and this fault counts a hit.
//!
//! | moment | when it is |
//! |---|---|
//! | before-persist | a device has taken an entry in and not made it durable; or the packet that the fault hits is an update which the head has not admitted |
//! | durable-not-acked | a device holds an entry durably that is not committed |
//! | acked-not-forwarded | the head has committed an entry that was not sent to the server |
//! | forwarded-not-applied | an entry was sent to the server, which has not applied it |
//! | applied-not-reclaimed | a device holds an entry that the server has applied |
//! | reclaim-lost | a device holds an entry that the server has applied, and a packet that reported this to the device was lost |
//! | recovering | a device, or the server, runs and does not serve yet |
//! | log-full | a log has no room for a full-size packet |

use crate::world::{World, address};
use pmnet_proto::Peer;
use pmnet_wire::{Kind, Packet};
use std::fmt;
use std::str::FromStr;

/// A log with less frame space than this cannot take a full-size packet.
const FULL_SIZE_PACKET: u64 = 1600;

macro_rules! names {
    ($(#[$doc:meta])* $type:ident, $($(#[$vdoc:meta])* $variant:ident = $name:literal),* $(,)?) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $type { $($(#[$vdoc])* $variant),* }
        impl $type {
            /// All values, in the order of the matrix.
            pub const ALL: &[$type] = &[$($type::$variant),*];
            /// The name on the command line and in reports.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $($type::$variant => $name),* }
            }
        }
    };
}

names! {
    /// A row of the matrix: a moment in the life of an update.
    Moment,
    /// A device has received the update, and the update is not durable there yet.
    BeforePersist = "before-persist",
    /// The update is durable in a device, and not committed yet.
    DurableNotAcked = "durable-not-acked",
    /// The update is committed, and not sent to the server yet.
    AckedNotForwarded = "acked-not-forwarded",
    /// The update was sent to the server, and is not applied yet.
    ForwardedNotApplied = "forwarded-not-applied",
    /// The update is applied, and still lies in a log.
    AppliedNotReclaimed = "applied-not-reclaimed",
    /// The update is applied, and the APPLIED packet was lost.
    ReclaimLost = "reclaim-lost",
    /// A device or the server runs, and does not serve yet.
    Recovering = "recovering",
    /// A log has no room for a full-size packet.
    LogFull = "log-full",
}

names! {
    /// A column of the matrix: a kind of fault.
    Fault,
    /// A device dies, perhaps in the middle of a persist.
    DeviceCrash = "device-crash",
    /// A device is lost permanently: with its log, or because it is cut off.
    DeviceLost = "device-lost",
    /// A device that was lost is back with its old log.
    OldMedium = "old-medium",
    /// The server dies.
    ServerCrash = "server-crash",
    /// A client dies.
    ClientDies = "client-dies",
    /// A packet is lost, or a path is cut.
    Loss = "loss",
    /// A packet is duplicated, or very late.
    Disorder = "disorder",
    /// A packet, or a medium, is damaged.
    Corruption = "corruption",
    /// The store's replica is promoted.
    Failover = "failover",
    /// A device joins the chain as its last member.
    Join = "join",
}

/// One cell of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// The row.
    pub moment: Moment,
    /// The column.
    pub fault: Fault,
}

impl Cell {
    /// Returns how often this cell was hit.
    #[must_use]
    pub const fn of(self, hits: &Hits) -> u64 {
        hits[self.moment as usize][self.fault as usize]
    }

    /// Every cell, row by row.
    pub fn all() -> impl Iterator<Item = Cell> {
        Moment::ALL
            .iter()
            .flat_map(|&moment| Fault::ALL.iter().map(move |&fault| Cell { moment, fault }))
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.moment.name(), self.fault.name())
    }
}

impl FromStr for Cell {
    type Err = String;
    fn from_str(text: &str) -> Result<Cell, String> {
        Cell::all()
            .find(|cell| cell.to_string() == text)
            .ok_or_else(|| {
                let names = |list: Vec<&str>| list.join(", ");
                format!(
                    "no such cell: say MOMENT/FAULT; moments: {}; faults: {}",
                    names(Moment::ALL.iter().map(|m| m.name()).collect()),
                    names(Fault::ALL.iter().map(|f| f.name()).collect())
                )
            })
    }
}

/// How often each cell was hit: a row for each moment, a column for each fault.
pub type Hits = [[u64; 10]; 8];

/// A set of moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moments(u8);

impl Moments {
    pub(crate) fn add(&mut self, moment: Moment, is_now: bool) {
        if is_now {
            self.0 |= 1 << moment as u8;
        }
    }
    pub(crate) const fn with(self, other: Moments) -> Moments {
        Moments(self.0 | other.0)
    }
    pub(crate) const fn has(self, moment: Moment) -> bool {
        self.0 & (1 << moment as u8) != 0
    }
}

impl World {
    /// Returns the moments at which updates are now, as this device's state shows them.
    pub(crate) fn moments_at(&self, node: usize) -> Moments {
        let mut moments = Moments::default();
        let Some(running) = self.devices.get(node).and_then(|d| d.running.as_ref()) else {
            return moments;
        };
        let machine = running.machine();
        if !machine.is_serving() {
            moments.add(Moment::Recovering, true);
            return moments;
        }
        let (last, persisted, committed, applied) = machine.cursors();
        let serving = |at: usize| {
            let running = self.devices[at].running.as_ref();
            running.map(|p| p.machine()).filter(|m| m.is_serving())
        };
        let acked = serving(self.head()).map_or(committed, |head| head.cursors().2);
        let tail = self.order.last().copied();
        let sent = tail
            .and_then(serving)
            .map_or(acked, |tail| tail.forwarded());
        let room = running.log().room();
        moments.add(Moment::BeforePersist, last > persisted);
        moments.add(Moment::DurableNotAcked, persisted > acked);
        moments.add(Moment::AckedNotForwarded, acked > sent);
        moments.add(Moment::ForwardedNotApplied, sent > self.watermark);
        moments.add(Moment::AppliedNotReclaimed, self.watermark > applied);
        moments.add(Moment::ReclaimLost, self.reclaim_lost[node] > applied);
        moments.add(
            Moment::LogFull,
            room.entries == 0 || room.frame_bytes < FULL_SIZE_PACKET,
        );
        moments
    }

    /// Returns the moments at which updates are now, anywhere in the world.
    pub(crate) fn moments(&self) -> Moments {
        let mut moments = Moments::default();
        for node in 0..self.config.devices {
            moments = moments.with(self.moments_at(node));
        }
        let loading = self.server.running.is_some() && !self.server.is_loaded;
        moments.add(Moment::Recovering, loading);
        moments
    }

    /// Counts a fault that happens while there are updates at each of these moments.
    pub(crate) fn hit(&mut self, fault: Fault, moments: Moments) {
        for &moment in Moment::ALL {
            if moments.has(moment) {
                self.report.cells[moment as usize][fault as usize] += 1;
            }
        }
    }

    /// Counts a fault of a packet. The moments are those of the devices at the packet's two ends. If neither end is a
    /// device, the moments of the head count.
    pub(crate) fn hit_packet(&mut self, fault: Fault, from: Peer, to: Peer, bytes: &[u8]) {
        let end = |peer| (0..self.config.devices).find(|&node| address(node) == peer);
        let ends = [end(from), end(to)];
        let mut moments = match ends {
            [None, None] => self.moments_at(self.head()),
            _ => ends
                .into_iter()
                .flatten()
                .map(|node| self.moments_at(node))
                .fold(Moments::default(), Moments::with),
        };
        if let Ok(packet) = Packet::parse(bytes) {
            let header = &packet.header;
            if header.kind == Kind::Update {
                let head = self.devices[self.head()].running.as_ref();
                let admitted = head.and_then(|p| p.machine().admitted(header.session));
                moments.add(
                    Moment::BeforePersist,
                    admitted.is_some_and(|last| header.seq > last),
                );
            }
            if header.kind == Kind::Applied
                && fault != Fault::Disorder
                && let Some(node) = ends[1]
            {
                let lost = &mut self.reclaim_lost[node];
                *lost = header.order.max(*lost);
            }
        }
        self.hit(fault, moments);
    }
}
