//! A client's direct reads (`docs/spec/reads.md`): like a front, the client asks the head how fresh the store must be,
//! and then reads from the store itself or from a replica.
//!
//! Fault model: the client's connection leads to the last store that a barrier named, even if this is an old master.
//! The store's answer may be lost. If an answer cannot be used, the client reads by an ordinary bypass.

use crate::check::Result as Seen;
use crate::client::ClientHost;
use crate::config::WorldConfig;
use crate::store::{Act, Fresh, OPERATION_BYTES, Operation};
use crate::without::{Place, Without};
use pmnet_proto::Time;
use pmnet_proto::client::{CallId, Event, ReadAnswer, SessionHandle};
use pmnet_proto::time::MILLISECOND;

/// Longest time until an answer on the client's own connection.
const STORE_MAX: u64 = 4 * MILLISECOND;
/// One in this number of answers of the store is lost.
const LOST_EVERY: u64 = 16;

/// Returns the hash of a key, as every client of a world computes it. Each hash belongs to two keys.
pub(crate) fn hash(key: u8) -> u64 {
    u64::from(key / 2) + 1
}

/// A read under way.
#[derive(Debug)]
pub(crate) struct Reading {
    key: u8,
    /// Index of its entry in the history.
    observed: usize,
    stage: Stage,
    before: Before,
}

/// The state of a question to a store that does not wait for the head's answer.
#[derive(Debug)]
enum Before {
    Nothing,
    /// The store will be asked at this time.
    Due(Time, Ahead),
    /// The store has answered.
    Read(Fresh, Ahead),
}

/// The store that is asked without waiting for the head's answer.
#[derive(Clone, Copy, Debug)]
enum Ahead {
    /// The master. The numbers are the last known epoch and version of the head's index.
    Master((u32, u64)),
    /// A replica.
    Replica,
}

#[derive(Debug)]
enum Stage {
    /// The head was asked, and has not answered yet.
    Head(CallId),
    /// The store is asked at the time `at`. Its record must name `epoch`, and it must have applied `need`. If
    /// `replicas` is not 0, a replica is asked first, which must have applied `replicas`.
    Store {
        at: Time,
        epoch: u32,
        need: u64,
        replicas: u64,
    },
    /// The read is sent as a bypass, as soon as a bypass can be called.
    Bypass,
}

/// Whether the answer of a store in this state may be given to the caller.
fn is_fresh(found: &Fresh, epoch: u32, need: u64, config: &WorldConfig) -> bool {
    let epoch_fits = found.epoch == epoch || Without::breaks(config.without, Place::ReadEpoch);
    let is_fresh = found.applied >= need || Without::breaks(config.without, Place::ReadNeed);
    epoch_fits && is_fresh
}

/// Whether the answer of a replica in this state may be given to the caller. `need`: the order that the replica must
/// have applied; 0: no replica may be read.
fn is_fresh_replica(found: &Fresh, epoch: u32, need: u64, config: &WorldConfig) -> bool {
    let is_fresh = found.applied >= need || Without::breaks(config.without, Place::ReplicaNeed);
    need > 0 && found.epoch == epoch && is_fresh
}

/// The state of the session's mark, which is open while an operation passes no device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    session: SessionHandle,
    pub(crate) is_open: bool,
}

impl ClientHost {
    /// Whether all calls of the session are answered, and no call since the last answered bypass has an unknown
    /// outcome.
    fn is_clean(&self) -> bool {
        !self.doubtful && self.calls.is_empty()
    }

    /// Begins a direct read of this key. Returns false if the read must be sent as a bypass.
    pub(crate) fn begin_read(
        &mut self,
        key: u8,
        now: Time,
        deadline: Time,
        config: &WorldConfig,
    ) -> bool {
        if !config.reads || !self.is_clean() {
            return false;
        }
        let replicas = config.replicas > 0 && self.random.next_u64() % 4 < config.replicas;
        let Ok(call) = self.machine.read(now, &[hash(key)], replicas, deadline) else {
            return false;
        };
        let ahead = if replicas {
            Some(Ahead::Replica)
        } else {
            self.version.map(Ahead::Master)
        };
        let before = match ahead {
            Some(ahead) if !self.random.next_u64().is_multiple_of(4) => {
                Before::Due(now + self.random.next_u64() % STORE_MAX, ahead)
            }
            _ => Before::Nothing,
        };
        self.reading = Some(Reading {
            key,
            observed: self.observed.len(),
            stage: Stage::Head(call),
            before,
        });
        true
    }

    /// Takes the head's answer.
    pub(crate) fn read_answered(
        &mut self,
        call: CallId,
        answer: &ReadAnswer,
        now: Time,
        world: Time,
        config: &WorldConfig,
    ) {
        let Some(reading) = &mut self.reading else {
            return;
        };
        if !matches!(reading.stage, Stage::Head(mine) if mine == call) {
            return;
        }
        let at = now + self.random.next_u64() % STORE_MAX;
        reading.stage = match answer {
            ReadAnswer::Hit {
                epoch,
                order,
                payload,
            } => match Operation::peek(payload) {
                Some(shown) if shown.key == reading.key => {
                    let whole = shown.payload(payload.len()) == *payload;
                    let (observed, _) = &mut self.observed[reading.observed];
                    observed.result = match whole && shown.act == Act::Append {
                        true => Seen::Newest(shown.id),
                        false => Seen::Garbled,
                    };
                    observed.returned = Some(world);
                    self.hits += 1;
                    self.reading = None;
                    return;
                }
                // The HIT shows an update of another key with the same hash. The store must have applied this update,
                // too.
                _ => Stage::Store {
                    at,
                    epoch: *epoch,
                    need: *order,
                    replicas: 0,
                },
            },
            ReadAnswer::Miss {
                epoch,
                need,
                version,
                replicas,
            } => {
                self.version = Some((*epoch, *version));
                match std::mem::replace(&mut reading.before, Before::Nothing) {
                    Before::Read(found, ahead)
                        if match ahead {
                            Ahead::Master(known) => {
                                Some(known) == self.version
                                    && is_fresh(&found, *epoch, *need, config)
                            }
                            Ahead::Replica => is_fresh_replica(&found, *epoch, *replicas, config),
                        } =>
                    {
                        self.replica_reads += u64::from(matches!(ahead, Ahead::Replica));
                        let (observed, _) = &mut self.observed[reading.observed];
                        observed.result = Seen::Read(found.list);
                        observed.returned = Some(world);
                        self.direct_reads += 1;
                        self.reads_at_once += 1;
                        self.reading = None;
                        return;
                    }
                    _ => Stage::Store {
                        at,
                        epoch: *epoch,
                        need: *need,
                        replicas: *replicas,
                    },
                }
            }
            ReadAnswer::None => Stage::Bypass,
        };
    }

    /// Continues a direct read that waits for the store or for its turn as a bypass.
    pub(crate) fn go_on_reading(&mut self, now: Time, world: Time, config: &WorldConfig) {
        let Some(reading) = &mut self.reading else {
            return;
        };
        if let Before::Due(at, ahead) = reading.before
            && now >= at
        {
            let found = match ahead {
                Ahead::Master(_) => self.store.read(self.named, reading.key, world),
                Ahead::Replica => self.store.read_replica(reading.key),
            };
            reading.before = match found {
                Some(found) if !self.random.next_u64().is_multiple_of(LOST_EVERY) => {
                    Before::Read(found, ahead)
                }
                _ => Before::Nothing,
            };
        }
        if let Stage::Store {
            at,
            epoch,
            need,
            replicas,
        } = reading.stage
            && now >= at
        {
            let found = match replicas {
                0 => self.store.read(self.named, reading.key, world),
                _ => self.store.read_replica(reading.key),
            };
            let found = found.filter(|_| !self.random.next_u64().is_multiple_of(LOST_EVERY));
            let fresh = found.filter(|found| match replicas {
                0 => is_fresh(found, epoch, need, config),
                _ => is_fresh_replica(found, epoch, replicas, config),
            });
            let (observed, deadline) = &mut self.observed[reading.observed];
            match fresh {
                Some(fresh) if now <= *deadline => {
                    observed.result = Seen::Read(fresh.list);
                    observed.returned = Some(world);
                    self.direct_reads += 1;
                    self.replica_reads += u64::from(replicas > 0);
                    self.reading = None;
                    return;
                }
                _ if replicas > 0 => {
                    reading.stage = Stage::Store {
                        at: now + self.random.next_u64() % STORE_MAX,
                        epoch,
                        need,
                        replicas: 0,
                    };
                }
                _ => reading.stage = Stage::Bypass,
            }
        }
        if matches!(reading.stage, Stage::Bypass) {
            let (key, at) = (reading.key, reading.observed);
            let deadline = self.observed[at].1;
            self.reading = None;
            let id = self.next_id;
            self.next_id += 1;
            self.called.push((id, deadline));
            let operation = Operation {
                act: Act::Read,
                key,
                id,
            };
            let payload = operation.payload(OPERATION_BYTES);
            let asked = self.session.and_then(|session| {
                self.machine
                    .bypass(session, payload, hash(key), true, deadline)
                    .ok()
            });
            match asked {
                Some(call) => {
                    self.calls.insert(call, at);
                }
                None => self.observed[at].0.result = Seen::Failed,
            }
        }
    }

    /// Returns the next time at which a direct read must continue.
    pub(crate) fn reading_due(&self, now: Time) -> Option<Time> {
        let reading = self.reading.as_ref()?;
        match (&reading.stage, &reading.before) {
            (Stage::Store { at, .. }, _) | (Stage::Head(_), Before::Due(at, _)) => {
                Some((*at).max(now + 1))
            }
            (Stage::Bypass, _) => Some(now + 1),
            (Stage::Head(_), _) => None,
        }
    }

    /// Opens the mark before an operation that passes no device. Returns whether the whole chain
    /// knows the mark.
    pub(crate) fn mark(&mut self, now: Time, config: &WorldConfig) -> bool {
        if !config.reads {
            return true;
        }
        if self.mark.is_none() {
            let session = self.machine.open_mark(now).ok();
            self.mark = session.map(|session| Mark {
                session,
                is_open: false,
            });
        }
        self.mark.is_some_and(|mark| mark.is_open)
    }

    /// Closes the mark: no operation that passes no device is under way any more.
    pub(crate) fn unmark(&mut self, deadline: Time) {
        if let Some(mark) = self.mark.take() {
            self.machine.end(mark.session, deadline);
        }
    }

    /// Takes an event of the client machine about reads and marks.
    pub(crate) fn read_event(
        &mut self,
        event: &Event,
        now: Time,
        world: Time,
        config: &WorldConfig,
    ) {
        match event {
            Event::Read { call, answer } => {
                self.read_answered(*call, answer, now, world, config);
            }
            Event::Marked { session } => {
                if let Some(mark) = self.mark.as_mut().filter(|mark| mark.session == *session) {
                    mark.is_open = true;
                }
            }
            Event::SessionClosed { session, .. } => {
                self.mark = self.mark.filter(|mark| mark.session != *session);
            }
            Event::Done { .. } => {}
        }
    }
}
