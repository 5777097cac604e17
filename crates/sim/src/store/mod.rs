//! A simulated store of lists, which behaves like Redis with pmnet's adaptor.
//!
//! Fault model: the documentation of `trouble` lists the faults of one call, step by step. Each of these faults may
//! also last for a while. A command on an abandoned connection may be executed later, even after its server process has
//! died. The store's data survives the death of the server process. A replica may be promoted. If the replica lacks
//! data that was reported as durable, the shard must stop. The old master keeps running, and old connections to it
//! still work. Code that never ends blocks all connections until a client kills it.
//!
//! In a plain store, which some regression tests use, a step can fail only before or after it happens. A packet store
//! keeps its contents in an image, and has only the faults of its medium (`packets`).

mod operation;
mod packets;
mod redis;
mod state;
mod trouble;

pub use operation::{Act, OPERATION_BYTES, Operation, Reply};
pub use redis::Story;
pub use state::Asked;

use crate::without::Place;
use bytes::Bytes;
use packets::Packets;
use pmnet_proto::Time;
use pmnet_server::{Batch, RecordKey, Request, Store, StoreError};
use redis::{Changed, Data, Instance};
use state::{Link, State, retry};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use trouble::Spell;

/// The properties of a store.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreConfig {
    /// One in this number of steps fails; 0: no step fails.
    pub trouble: u64,
    /// Maximum number of bytes to which a reply is padded.
    pub reply_max: usize,
    /// True: the store can fail at every step, as Redis can. False: the store fails only before or after an operation.
    pub steps: bool,
    /// Whether the store waits for its replica before it reports a write as durable.
    pub wait: bool,
    /// Whether the store is a packet store.
    pub packets: bool,
    /// Whether the store sometimes reports that it is short of space.
    pub short: bool,
    /// Whether several server processes may use the store at once.
    pub standby: bool,
}

/// Number of steps after which a store begins to be short of space, or stops being so.
const SHORT_STEPS: u64 = 12;

/// The text with which the store finally refuses a process.
pub(crate) const TOOK_OVER: &str = "another process took over";

/// A list that a client has read directly, and the state of the store at this moment.
#[derive(Clone, Debug)]
pub struct Fresh {
    /// Epoch of the chain record.
    pub epoch: u32,
    /// A.
    pub applied: u64,
    /// The list.
    pub list: Vec<u64>,
}

/// One in this number of reads from a replica first updates the replica to the master's state.
const REPLICA_SYNCS_EVERY: u64 = 2;
/// One in this number of reads from a replica goes to a replica of a master that was replaced.
const REPLICA_OLD_EVERY: u64 = 8;

impl Fresh {
    fn of(data: &Data, key: u8) -> Option<Fresh> {
        let chain = data.records.get(&b"chain"[..])?;
        Some(Fresh {
            epoch: u32::from_be_bytes(*chain.first_chunk()?),
            applied: data.watermark(),
            list: data.list(key).to_vec(),
        })
    }
}

/// The connection of a server process to the store's durable state, which outlives the process.
#[derive(Debug, Default)]
pub struct SimStore {
    state: Arc<Mutex<State>>,
    link: Option<Link>,
    process: u64,
    /// This process knows that it once owned the records. So any other owner must have come later.
    was: bool,
}

impl SimStore {
    /// Returns an empty store.
    #[must_use]
    pub fn new(seed: u64, config: StoreConfig) -> SimStore {
        let mut master = Instance::default();
        master.data.changed = config.packets.then(Changed::default);
        let state = State {
            random: seed,
            config,
            instances: vec![master],
            packets: config.packets.then(|| Packets::new(seed)),
            ..State::default()
        };
        SimStore {
            state: Arc::new(Mutex::new(state)),
            link: None,
            process: 0,
            was: false,
        }
    }

    /// Returns a connection for another server process.
    #[must_use]
    pub fn handle(&self) -> SimStore {
        let mut state = self.lock();
        state.processes += 1;
        SimStore {
            state: Arc::clone(&self.state),
            link: None,
            process: state.processes,
            was: false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on this rule is broken, if it is a rule of the store.
    pub fn set_broken(&self, place: Option<Place>) {
        self.lock().broken = place;
    }

    /// Sets the present time.
    pub fn set_now(&self, now: Time) {
        self.lock().now = now;
    }

    /// Begins or ends a period in which every step fails.
    pub fn set_storm(&self, storm: bool) {
        let mut state = self.lock();
        state.spell = match (storm, state.config.steps) {
            (false, _) => None,
            (true, false) => Some(Spell::Storm),
            (true, true) => Some(Spell::any(state.draw())),
        };
    }

    /// Ends all faults: from now on no step fails.
    pub fn calm(&self) {
        let mut state = self.lock();
        (state.spell, state.config.trouble, state.link_down) = (None, 0, false);
    }

    /// Whether the store has never applied an effect.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.lock().data().story.applied_in.is_empty()
    }

    /// Returns the ids whose effects are certain and lasting, each with its step. If a packet store has not reported
    /// the end of a transaction, the transaction may be undone when the store is opened.
    #[must_use]
    pub fn certainly_applied(&self) -> BTreeMap<u64, u64> {
        let state = self.lock();
        let before = state.packets.as_ref().and_then(Packets::before);
        let data = before.unwrap_or(state.data());
        data.story.applied_in.clone()
    }

    /// Returns the effects and refusals so far.
    #[must_use]
    pub fn story(&self) -> Story {
        let state = self.lock();
        let mut story = state.data().story.clone();
        story.records = state.data().records.keys().cloned().collect();
        story.malformed = state.malformed;
        for instance in &state.instances {
            for (&id, &times) in &instance.data.story.delivered {
                let most = story.delivered.entry(id).or_default();
                *most = times.max(*most);
            }
            story.refused.extend(&instance.data.story.refused);
        }
        story
    }

    /// Returns the number of times that each fault has happened.
    #[must_use]
    pub fn happened(&self) -> BTreeMap<&'static str, u64> {
        self.lock().happened.clone()
    }

    /// Returns the violations that were found since the last call of this method.
    pub fn take_wrong(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().wrong)
    }

    /// Returns the requests that the store was asked to execute since the last call of this method.
    pub fn take_asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.lock().asked)
    }
}

/// Actions of operators, and of clients with their own connections.
impl SimStore {
    /// The connection between the store and its replica is cut.
    pub fn cut_replica(&self) {
        let mut state = self.lock();
        if !state.link_down {
            state.link_down = true;
            let data = state.data().clone();
            state.master().behind.get_or_insert(data);
        }
    }

    /// Whether the replica, if it were promoted now, would lack confirmed data: updates up to `watermark`, or one of
    /// `requests`, which has the last request of each session. A session may have ended meanwhile.
    pub fn would_lack(
        &self,
        watermark: u64,
        mut requests: impl Iterator<Item = (u64, u64)>,
    ) -> bool {
        let state = self.lock();
        let instance = &state.instances[state.address];
        let data = instance.behind.as_ref().unwrap_or(&instance.data);
        watermark > data.watermark()
            || requests.any(|(id, last)| {
                last > data.request_of(id) && last <= instance.data.request_of(id)
            })
    }

    /// Promotes the replica. With `close`, the server's connections to the old master are closed. The old master keeps
    /// running in any case. Without `lagging`, the operator makes sure that the replica has all data.
    pub fn promote(&self, close: bool, lagging: bool) {
        let mut state = self.lock();
        let (wait, down) = (state.config.wait, state.link_down);
        let master = state.master();
        let mut data = match master.behind.take() {
            Some(behind) if wait || lagging || !down => behind,
            _ => master.data.clone(),
        };
        let delivered = std::mem::take(&mut data.story.delivered);
        data.delivered_before.extend(delivered.into_keys());
        if state.stops_writes {
            let before = state.address;
            state.instances[before].late.clear();
        }
        state.names += 1;
        let name = state.names;
        state.instances.push(Instance {
            data,
            name,
            ..Instance::default()
        });
        state.stuck_until = Time(0);
        state.address = state.instances.len() - 1;
        (state.closed, state.lagging, state.link_down) = (close, lagging, false);
    }

    /// Whether the promoted replica lacks data.
    #[must_use]
    pub fn is_lagging(&self) -> bool {
        self.lock().lagging
    }

    /// The operator goes back to the previous master, which has all data.
    pub fn go_back(&self) {
        let mut state = self.lock();
        state.instances.pop();
        state.address = state.instances.len() - 1;
        state.lagging = false;
    }

    /// From now on, a master that is replaced takes no more writes, and only answers reads. The operator ensures this
    /// before the replica is promoted.
    pub fn set_stopping_writes(&self) {
        self.lock().stops_writes = true;
    }

    /// Reads a list for a client, in one transaction with the shard's records, from the store with this name.
    #[must_use]
    pub fn read(&self, name: u64, key: u8, now: Time) -> Option<Fresh> {
        let state = self.lock();
        let at = state.instances.iter().position(|i| i.name == name)?;
        if now < state.stuck_until && at == state.address {
            return None;
        }
        Fresh::of(&state.instances[at].data, key)
    }

    /// Reads a list for a client from a replica: usually a replica of the present master, sometimes of a replaced
    /// master. The replica has the present or an earlier state of its master.
    #[must_use]
    pub fn read_replica(&self, key: u8) -> Option<Fresh> {
        let mut state = self.lock();
        let drawn = state.draw();
        let older = (drawn / REPLICA_SYNCS_EVERY).is_multiple_of(REPLICA_OLD_EVERY);
        let at = state.address.saturating_sub(usize::from(older));
        let instance = &mut state.instances[at];
        if instance.apart.is_none() || drawn.is_multiple_of(REPLICA_SYNCS_EVERY) {
            instance.apart = Some(Box::new(instance.data.clone()));
        }
        Fresh::of(instance.apart.as_ref()?, key)
    }

    /// Executes an operation on a client's own connection to the store with this name. Returns the reply, if there is
    /// one, and whether this store is no longer the master.
    pub fn direct(&self, name: u64, operation: Operation, now: Time) -> (Option<Reply>, bool) {
        let mut state = self.lock();
        let Some(at) = state.instances.iter().position(|i| i.name == name) else {
            return (None, true);
        };
        let is_old = at != state.address;
        if is_old && state.stops_writes {
            return (None, true);
        }
        if now < state.stuck_until && !is_old {
            return (None, false);
        }
        state.step += 1;
        let step = state.step;
        let thaw = !state.link_down && !state.breaks(Place::Replicas);
        let instance = &mut state.instances[at];
        instance.data.effect(operation, step);
        if thaw {
            instance.behind = None;
        }
        (Some(instance.reply(operation)), is_old)
    }
}

impl Store for SimStore {
    fn load(&mut self) -> Result<Vec<(RecordKey, Bytes)>, StoreError> {
        self.link = None;
        let (link, records) = {
            let mut state = self.lock();
            state.run_late();
            let later = state.config.standby && self.was && !state.is_of(self.process);
            if later && !state.breaks(Place::OneServer) {
                return Err(StoreError::Fatal(TOOK_OVER.to_owned()));
            }
            state.load(self.process, self.was)?
        };
        self.was |= link.owns;
        self.link = Some(link);
        Ok(records)
    }

    fn apply(&mut self, batch: &Batch) -> Result<u64, StoreError> {
        let link = self.link.take();
        let link = {
            let mut state = self.lock();
            state.run_late();
            let mut link = state.reach(link)?;
            if !link.owns {
                return Err(retry("Redis takes no writes"));
            }
            let broken = state.breaks(Place::OneServer);
            if !broken && !link.guard.admits(&state.instances[link.at].data) {
                if state.config.standby && !state.is_of(self.process) {
                    return Err(StoreError::Fatal(TOOK_OVER.to_owned()));
                }
                return Err(retry("the records were changed"));
            }
            state.apply(&mut link, batch)?;
            link
        };
        self.link = Some(link);
        Ok(0)
    }

    fn execute(
        &mut self,
        requests: &[Request],
        replies: &mut Vec<Bytes>,
    ) -> Result<(), StoreError> {
        let link = self.link.take();
        let link = {
            let mut state = self.lock();
            state.run_late();
            let link = state.reach(link)?;
            if !link.owns && requests.iter().any(|request| request.record.is_some()) {
                return Err(retry("Redis takes no writes"));
            }
            let result = state.execute(link, requests, replies);
            if result.is_err() {
                let rest = requests[replies.len()..].iter();
                let failed =
                    rest.filter_map(|r| Some(Asked::Failed(Operation::peek(&r.payload)?.id)));
                state.asked.extend(failed);
            }
            result?;
            link
        };
        self.link = Some(link);
        Ok(())
    }

    fn identity(&self) -> Option<Bytes> {
        let state = self.lock();
        let at = self.link.as_ref().filter(|link| link.owns)?.at;
        Some(format!("store {}", state.instances[at].name).into())
    }

    fn is_short(&self) -> bool {
        let mut state = self.lock();
        let short = state.config.short && state.step / SHORT_STEPS % 3 == 1;
        if short {
            *state.happened.entry("store: short of room").or_default() += 1;
        }
        short
    }

    fn durability(&self) -> String {
        "simulated".to_owned()
    }
}
