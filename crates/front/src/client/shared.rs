//! State that the connections of one front share.

use std::collections::BTreeSet;

use pmnet_wire::StoreName;
use pmnet_wire::command::Protocol;
use rustc_hash::{FxHashMap, FxHashSet};

use super::about::About;
use super::back::own_write::OwnWrites;
use super::back::read_before::Heard;
use super::{Busy, Pause, ReadFrom, ReplicaReads};
use crate::shell::Cache;
use crate::store::StoreAddress;
use crate::table::{Learned, Table};
use crate::tracking::Tracking;
use crate::upstream::Time;
use crate::users::{Access, Users};

/// Reason in an error: the server has not named the address of Redis yet, so Redis cannot be asked.
const UNNAMED: &str = "the pmnet server has not said yet where its store is: does it run, and does its device reach it?";

/// Maximum number of remembered names of commands that the table does not have. Names that the store does not know
/// count, too.
const PROBED_MAX: usize = 1024;

/// Numbers of reads by their source, and of closed clients, since the start of the front.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads answered with a value that the same pipeline had just set.
    pub own_writes: u64,
    /// Reads answered by the head device.
    pub hits: u64,
    /// Reads answered by the store, read directly.
    pub direct_reads: u64,
    /// Direct reads for which the front asked the head and the store at the same time. `direct_reads` counts these
    /// reads, too.
    pub reads_at_once: u64,
    /// Direct reads that a replica of the store answered. `direct_reads` counts these reads, too.
    pub replica_reads: u64,
    /// Reads that were sent to the store as bypasses. Transactions are not counted.
    pub bypassed_reads: u64,
    /// Connections that were closed because too many replies were unread.
    pub closed_unread: u64,
    /// Logins with a wrong password.
    pub failed_logins: u64,
    /// Clients whose TLS handshake failed.
    pub tls_failed: u64,
}

/// Time for which the front does not ask the head after a READ had no answer, in nanoseconds.
const SILENT_PAUSE: Time = 100_000_000;

/// The changes of subscriptions, of all clients, that the store has not answered yet. The event loop numbers these
/// changes (`shell/subscribing.rs`). As with a single Redis, a PUBLISH or PUBSUB of another client waits for all
/// changes that were taken from clients before it (`Hold::come_behind`).
#[derive(Debug, Default)]
pub struct Subscribing {
    /// Number of changes that have begun since the start.
    begun: u64,
    /// Numbers of the changes that are under way.
    open: BTreeSet<u64>,
}

impl Subscribing {
    /// Begins a change and returns its number.
    pub fn begin(&mut self) -> u64 {
        self.begun += 1;
        self.open.insert(self.begun);
        self.begun
    }

    /// Ends the change with this number.
    pub fn end(&mut self, number: u64) {
        self.open.remove(&number);
    }

    /// Returns the number of changes that have begun since the start.
    pub(super) fn begun(&self) -> u64 {
        self.begun
    }

    /// Whether the first `count` changes are over.
    pub(super) fn are_over(&self, count: u64) -> bool {
        self.open.first().is_none_or(|first| *first > count)
    }
}

/// Index of a RESP version in [`Shared::store_reads`].
#[must_use]
pub fn lane(protocol: Protocol) -> usize {
    usize::from(protocol == Protocol::Resp3)
}

/// Whether the store knows a command that is not in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probed {
    Known,
    Unknown,
}

/// State that the connections of one front share.
pub struct Shared {
    /// The users and their rights.
    pub(crate) users: Users,
    /// The command matrix. The matrix is replaced when the store has named its commands.
    pub table: Table,
    /// Run id of the store process that has named the table's commands.
    commands_of: Option<String>,
    /// The clients that must be told of changed keys.
    pub(crate) tracking: Tracking,
    /// Time of this turn of the event loop.
    pub now: Time,
    /// Time that a call may take, in nanoseconds.
    pub call_timeout: Time,
    /// Address of the store, once known. Pass-through connections go to this address.
    pub store: Option<StoreAddress>,
    /// Whether `store` was given by the operator. Of such a store, only its identity is compared with the identity that
    /// the server names.
    store_fixed: bool,
    /// Whether the store is known to be no Redis.
    pub(super) embedded: bool,
    /// The store that the server named last.
    pub name: Option<StoreName>,
    /// Run id of the store process that last gave a sign of life, and the time of this sign.
    pub alive: Option<(String, Time)>,
    /// Counts of events.
    pub counters: Counters,
    /// Whether Redis is busy with a script.
    pub busy: Busy,
    /// The state of CLIENT PAUSE.
    pub pause: Pause,
    /// Whether every device of the chain knows of the front's mark, so that commands that change the store
    /// may pass.
    pub mark_open: bool,
    /// Changes of subscriptions that are under way.
    pub subscribing: Subscribing,
    /// Bytes of replies that one client may leave unread.
    pub unread_client_max: usize,
    /// Whether all clients together have left too many bytes unread.
    pub unread_over: bool,
    /// The sources that may answer reads.
    cache: Cache,
    /// Until this time the head is not asked.
    ask_head_after: Time,
    /// Facts that the front has learned from the head's answers to READs.
    pub(super) heard: Heard,
    /// Whether reads may go to replicas of the store.
    pub replicas: ReplicaReads,
    /// Whether the store may be read from directly, in RESP2 and in RESP3.
    pub store_reads: [bool; 2],
    /// The last value that was set in this turn by the connection from which commands are taken now.
    pub(super) own_writes: OwnWrites,
    /// Until this time no listing of keys is read from the store.
    pub(super) listing_after: Time,
    /// Databases that exist according to the store.
    pub(super) databases: FxHashSet<u32>,
    /// The fields that the store shows of its clients, in the store's order; `None`: the store has not named them yet.
    pub(super) client_fields: Option<Vec<String>>,
    /// The store's facts, for HELLO.
    pub(super) about: About,
    /// The store's value of the field `multi` for a client outside MULTI.
    pub(super) no_multi: String,
    /// Commands that the table does not have, and whether the store knows them.
    pub(super) probed: FxHashMap<Vec<u8>, Probed>,
}

impl Shared {
    /// Makes the state of a new front. `store`: address for pass-through connections, if the operator gave
    /// one. `unread_client_max`: bytes of replies that one client may leave unread.
    #[must_use]
    pub fn new(
        table: Table,
        call_timeout: Time,
        store: Option<StoreAddress>,
        cache: Cache,
        read_from: ReadFrom,
        unread_client_max: usize,
    ) -> Shared {
        let store_fixed = store.is_some();
        // Every store has database 0.
        let databases = FxHashSet::from_iter([0]);
        Shared {
            // The event loop, which accepts connections, sets who may connect.
            users: Users::new(Access::Anyone),
            table,
            commands_of: None,
            tracking: Tracking::default(),
            now: 0,
            call_timeout,
            store,
            store_fixed,
            embedded: false,
            name: None,
            alive: None,
            counters: Counters::default(),
            busy: Busy::default(),
            pause: Pause::default(),
            mark_open: false,
            subscribing: Subscribing::default(),
            unread_client_max,
            unread_over: false,
            cache,
            ask_head_after: 0,
            heard: Heard::default(),
            replicas: ReplicaReads::new(read_from),
            store_reads: [false; 2],
            own_writes: OwnWrites::default(),
            listing_after: 0,
            databases,
            client_fields: None,
            about: About::default(),
            no_multi: super::client_command::NO_MULTI.to_owned(),
            probed: FxHashMap::default(),
        }
    }

    /// Notes that the server has named the store on which it works.
    pub fn store_named(&mut self, name: &StoreName) {
        self.embedded = false;
        if self.name.as_ref() == Some(name) {
            return;
        }
        if let Some(before) = &self.name
            && !before.same_process(name)
        {
            tracing::info!(from = %before.address, to = %name.address, "the pmnet server uses another Redis process");
            // The following facts are about the previous store.
            self.databases = FxHashSet::from_iter([0]);
            self.probed.clear();
            self.client_fields = None;
            if self.commands_of.take().is_some() {
                self.table = self.table.forgotten();
            }
            self.about.is_another();
            self.users.forget();
            self.busy.over(self.now);
        }
        if self.users.has_none() {
            self.users.forget();
        }
        if !self.store_fixed {
            self.store = Some(StoreAddress::of(name));
        }
        self.name = Some(name.clone());
    }

    /// Returns the reason why Redis could not be asked about its users, as far as the reason is known.
    pub(super) fn why_users_are_unknown(&self) -> &str {
        let trouble = &self.users.trouble;
        if trouble.is_empty() && self.name.is_none() {
            return UNNAMED;
        }
        trouble
    }

    /// Notes that the server did not name its store in time.
    pub(crate) fn store_not_named(&mut self) {
        if self.users.are_asked_for() && !self.users.is_known() {
            self.users.cannot_be_asked(UNNAMED);
        }
    }

    /// Whether the server's store has not named its commands yet.
    pub(crate) fn has_to_learn(&self) -> bool {
        let name = self.name.as_ref();
        name.is_some_and(|name| self.commands_of.as_ref() != Some(&name.run_id))
    }

    /// Takes the commands that the store process with this run id has named. Returns false if the server works on
    /// another store.
    pub(crate) fn learn_commands(&mut self, run_id: &str, learned: &Learned) -> bool {
        if self.name.as_ref().is_none_or(|name| name.run_id != run_id) {
            return false;
        }
        self.table = self.table.with(learned);
        self.commands_of = Some(run_id.to_owned());
        self.probed.clear();
        true
    }

    /// Returns the bytes of unread replies above which no further command is taken from a client. If all clients
    /// together have too many unread bytes, commands are taken only from clients that have read everything.
    pub(super) fn unread_max(&self) -> usize {
        if self.unread_over {
            0
        } else {
            self.unread_client_max
        }
    }

    /// Returns the deadline of a command whose time began at `begun`.
    pub(super) fn deadline(&self, begun: Time) -> Time {
        begun.saturating_add(self.call_timeout)
    }

    /// Whether the head is asked how fresh the store must be.
    pub(super) fn asks_head(&self) -> bool {
        self.cache != Cache::Off && self.now >= self.ask_head_after
    }

    /// Notes that a READ was not answered, or could not be submitted.
    pub(super) fn head_is_silent(&mut self) {
        self.ask_head_after = self.now.saturating_add(SILENT_PAUSE);
    }

    /// Whether the store may be read from directly.
    pub(super) fn reads_from_store(&self, protocol: Protocol) -> bool {
        self.store_reads[lane(protocol)]
    }

    pub(super) fn remember_probe(&mut self, name: Vec<u8>, probed: Probed) {
        if self.probed.len() >= PROBED_MAX {
            self.probed.clear();
        }
        self.probed.insert(name, probed);
    }
}
