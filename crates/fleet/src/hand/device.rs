//! The door of a device, for `pmnet ctl`: the device reports its state, takes a new next hop, or ends.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use pmnet_udp::LeaseWords;

use pmnet_proto::keys::ClusterKeys;
use pmnet_udp::Latest;

use super::door::{Door, END_MAX};
use super::memory::{Memory, unfit};
use super::{Answered, Asked, DeviceSaid, Meant, process};
use crate::plan::Order;

/// Settings of a device's door.
#[derive(Clone, Debug)]
pub struct DeviceDoorConfig {
    /// TCP address of the door: the address of the device itself.
    pub listen: SocketAddr,
    /// Number of the shard.
    pub shard: u32,
    /// Id of the device.
    pub id: u32,
    /// The next hop that the command line gives.
    pub next: SocketAddr,
    /// The id of the next hop, if the command line gives it.
    pub next_id: Option<u32>,
    /// The device's flags (`--shrink-chain`, `--declare-data-loss`) decide how it starts. These flags take precedence
    /// over the stored next hop.
    pub by_hand: bool,
    /// The device starts with `--join`.
    pub joins: bool,
    /// The device admits updates in the kernel.
    pub in_kernel: bool,
    /// Keys of the device's cluster. If keys are configured, the door answers only callers that have one of them.
    pub keys: Option<Latest<ClusterKeys>>,
    /// File that stores the device's last next hop; `None`: it is not stored.
    pub memory: Option<PathBuf>,
}

/// One run of the device's loop.
#[derive(Debug)]
struct Run {
    words: Arc<LeaseWords>,
    order: Order,
}

#[derive(Debug, Default)]
struct State {
    run: Option<Run>,
    /// The last order of an operator, if there is one.
    order: Option<Order>,
    /// The order was given to an earlier process of the device, and was read from the file.
    remembered: bool,
    leaves: bool,
    /// The device has ended.
    left: bool,
}

#[derive(Debug)]
struct Shared {
    config: DeviceDoorConfig,
    memory: Memory,
    process: String,
    state: Mutex<State>,
    left: Condvar,
}

/// The door of a device. The door closes when this value is dropped.
#[derive(Debug)]
pub struct DeviceDoor {
    shared: Arc<Shared>,
    _door: Door,
}

impl DeviceDoor {
    /// Opens the door.
    ///
    /// # Errors
    /// Another process listens at the address, or the operating system cannot start a thread or gives no random
    /// numbers.
    pub fn open(config: DeviceDoorConfig) -> std::io::Result<DeviceDoor> {
        let memory = Memory {
            path: config.memory.clone(),
            shard: config.shard,
            id: config.id,
            flag: (config.next, config.next_id),
            listen: config.listen,
            joins: config.joins,
        };
        let listen = config.listen;
        let by_hand = config.by_hand;
        let keys = config.keys.clone();
        let shared = Arc::new(Shared {
            config,
            memory,
            process: process()?,
            state: Mutex::default(),
            left: Condvar::new(),
        });
        let answers = shared.clone();
        let door = Door::open(listen, keys, move |asked| answers.answer(asked))?;
        let next = shared.memory.recall(by_hand);
        let mut state = shared.state();
        state.order = next.map(|(next, next_id)| Order {
            next,
            next_id,
            shrink: None,
        });
        state.remembered = next.is_some();
        drop(state);
        Ok(DeviceDoor {
            shared,
            _door: door,
        })
    }

    /// Returns the next hop and the statement that an operator has ordered; `None`: there is no order.
    #[must_use]
    pub fn order(&self) -> Option<Order> {
        self.shared.state().order
    }

    /// Notes that the device runs with this next hop. `words`: the messages to the loop of this run. With such a
    /// message the door ends the run when the device must get another next hop, or must end.
    pub fn attend(&self, words: Arc<LeaseWords>, order: Order) {
        let mut state = self.shared.state();
        let stale = state.order.is_some_and(|wanted| wanted != order) || state.leaves;
        if stale {
            // The order came after the last run had ended and before this run began.
            words.end();
        }
        state.run = Some(Run { words, order });
    }

    /// Returns whether an operator wants the device to end.
    #[must_use]
    pub fn leaves(&self) -> bool {
        self.shared.state().leaves
    }

    /// Forgets the next hop if it was ordered in an earlier run of the process. Returns whether a next hop was
    /// forgotten.
    #[must_use]
    pub fn forget_remembered(&self) -> bool {
        let mut state = self.shared.state();
        if !std::mem::take(&mut state.remembered) {
            return false;
        }
        self.shared.memory.forget_all();
        (state.order, state.run) = (None, None);
        true
    }

    /// Notes that **the device has ended**: it acknowledges nothing any more. The caller that ordered the end now gets
    /// its answer.
    pub fn left(self) {
        // The device stays on record until the other devices send past it, so its next hop is kept. If the device
        // starts again as a spare, the kept next hop does not count.
        let order = self.shared.state().order;
        if let Some(Order { next, next_id, .. }) = order
            && let Err(error) = self.shared.memory.keep((next, next_id), true)
        {
            tracing::warn!(%error, "PM1513 this device cannot remember how it was wired when it ended");
        }
        self.shared.state().left = true;
        self.shared.left.notify_all();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn who(&self) -> Meant {
        Meant {
            shard: self.config.shard,
            id: self.config.id,
            process: self.process.clone(),
        }
    }

    fn answer(&self, asked: Asked) -> Answered {
        match asked {
            Asked::Who => Answered::Device(Box::new(self.says())),
            Asked::Wire { to, .. } | Asked::Leave { to } if to != self.who() => {
                Answered::Refused(format!(
                    "this is device {} of shard {}, in another life than the one that is meant",
                    self.config.id, self.config.shard
                ))
            }
            Asked::Wire {
                next,
                next_id,
                shrink,
                ..
            } => self.wire(Order {
                next,
                next_id,
                shrink,
            }),
            Asked::Leave { .. } => self.leave(),
        }
    }

    fn says(&self) -> DeviceSaid {
        let state = self.state();
        let config = &self.config;
        let order = state.run.as_ref().map_or(
            Order {
                next: config.next,
                next_id: config.next_id,
                shrink: None,
            },
            |run| run.order,
        );
        let standing = state.run.as_ref().map(|run| run.words.standing());
        let standing = standing.unwrap_or_default();
        DeviceSaid {
            who: self.who(),
            listen: config.listen,
            flag: config.next,
            next: order.next,
            next_id: order.next_id,
            shrink: order.shrink,
            ends: state.run.as_ref().is_none_or(|run| run.words.is_to_end()),
            epoch: standing.epoch,
            chain: standing.chain,
            whole: standing.whole,
            joins: standing.joins,
            waits: standing.waits,
            in_kernel: config.in_kernel,
        }
    }

    fn wire(&self, order: Order) -> Answered {
        let config = &self.config;
        let refused = |text: String| Answered::Refused(text);
        if let Some(why) = unfit(order.next, config.listen) {
            return refused(format!("it is to send to {}, and {why}", order.next));
        }
        let mut state = self.state();
        if state.leaves {
            return refused("this device is about to end".into());
        }
        match self.memory.keep((order.next, order.next_id), false) {
            Ok(true) => {}
            Ok(false) => tracing::warn!(
                "PM1514 this device does not remember how it is wired: write {} into its unit file",
                self.memory.flags_of((order.next, order.next_id))
            ),
            Err(error) => {
                return refused(format!(
                    "this device cannot remember how it is wired: {error}"
                ));
            }
        }
        let Order { next, shrink, .. } = order;
        tracing::warn!(%next, shrink, "PM1515 `pmnet ctl` says how this device is wired: it begins anew");
        (state.order, state.remembered) = (Some(order), false);
        if let Some(run) = &state.run {
            run.words.end();
        }
        Answered::Done
    }

    fn leave(&self) -> Answered {
        if self.config.in_kernel {
            return Answered::Refused(
                "this device is in the kernel, where it answers on without its process: take it out with --detach".into(),
            );
        }
        let mut state = self.state();
        state.leaves = true;
        if let Some(run) = &state.run {
            run.words.end();
        }
        let waited = self
            .left
            .wait_timeout_while(state, END_MAX, |state| !state.left);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.left {
            Answered::Done
        } else {
            Answered::Refused(format!(
                "it has not ended within {} s: look at its log",
                END_MAX.as_secs()
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hand::ask;

    #[test]
    fn a_device_is_wired_anew_and_ends_when_it_has_ended() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let listen = free.local_addr().unwrap();
        drop(free);
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let door = DeviceDoor::open(DeviceDoorConfig {
            listen,
            shard: 2,
            id: 7,
            next: at(1),
            next_id: None,
            by_hand: false,
            joins: false,
            in_kernel: false,
            keys: None,
            memory: None,
        })
        .unwrap();
        let says = || match ask(listen, &Asked::Who, None) {
            Ok(Answered::Device(said)) => *said,
            other => panic!("{other:?}"),
        };
        let order = |port, shrink| Order {
            next: at(port),
            next_id: None,
            shrink,
        };
        let words = Arc::new(LeaseWords::default());
        assert!(says().ends, "it does not run yet");
        door.attend(words.clone(), order(1, None));
        let who = says().who;
        assert_eq!((who.shard, who.id, says().next), (2, 7, at(1)));
        let wire = |to: &Meant, next: SocketAddr| {
            let asked = Asked::Wire {
                to: to.clone(),
                next,
                next_id: None,
                shrink: Some(4),
            };
            ask(listen, &asked, None).unwrap()
        };
        // The door refuses orders that name another run of the process, and next hops that are impossible.
        let other = Meant {
            process: "x".into(),
            ..who.clone()
        };
        assert!(
            matches!(wire(&other, at(2)), Answered::Refused(text) if text.contains("another life"))
        );
        assert!(matches!(wire(&who, listen), Answered::Refused(text) if text.contains("itself")));
        let v6 = SocketAddr::from(([0; 8], 2));
        assert!(matches!(wire(&who, v6), Answered::Refused(text) if text.contains("next hop")));
        assert!(!words.is_to_end());
        assert_eq!(wire(&who, at(2)), Answered::Done);
        assert!(words.is_to_end() && says().ends);
        assert_eq!(door.order(), Some(order(2, Some(4))));
        let words = Arc::new(LeaseWords::default());
        door.attend(words.clone(), order(2, Some(4)));
        assert!(!says().ends && !words.is_to_end());
        assert_eq!((says().next, says().shrink), (at(2), Some(4)));
        // An order that arrives between two runs ends the next run, because that run does not know the order.
        let late = Arc::new(LeaseWords::default());
        door.attend(late.clone(), order(1, None));
        assert!(late.is_to_end());
        door.attend(words.clone(), order(2, Some(4)));

        let leaver = std::thread::spawn(move || ask(listen, &Asked::Leave { to: who }, None));
        while !door.leaves() {
            std::thread::yield_now();
        }
        assert!(words.is_to_end() && !leaver.is_finished());
        door.left();
        assert_eq!(leaver.join().unwrap(), Ok(Answered::Done));
    }
}
