//! Finds the address of the master: a thread asks Sentinels or nodes for the address at regular intervals.
//!
//! Sentinels are asked for the master that has a name (`super::sentinel`). Nodes of a Redis Cluster are asked for the
//! master that serves a slot (`super::cluster`). A majority of the processes that are asked must have answered lately.
//! The answer with the highest configuration epoch counts, because it is the outcome of the latest failover. The answer
//! is only an address. As with any Redis, the store itself checks role, records and owner (`super::owner`): whether it
//! may write at this address, and whether all confirmed effects are present.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pmnet_server::StoreError;
use pmnet_tls::Secret;
use pmnet_wire::slots::shown;

use super::connection::Connection;
use super::url::RedisUrl;
use super::{cluster, sentinel};
use crate::OpenError;

/// Maximum number of Sentinels or nodes that a URL may name.
pub const ASKED_MAX: usize = 16;
/// Pause between two rounds of questions.
const PAUSE: Duration = Duration::from_millis(250);
/// Longest time of one question to a Sentinel or node, in seconds.
pub const ASK_SECONDS: u64 = 1;
/// Time for which a store waits for the first answers before it reports that they have not come.
const FIRST_ANSWER: Duration = Duration::from_secs(2);

/// The master to find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The master that Sentinels know by this name.
    Named(String),
    /// The master that serves these slots of a Redis Cluster. The first of these slots has pmnet's records.
    Slots(Vec<RangeInclusive<u16>>),
}

/// The processes that are asked for a master, and the name of the master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guides {
    /// Hosts and ports of the Sentinels or nodes.
    pub places: Vec<(String, u16)>,
    /// The master to find.
    pub wanted: Wanted,
    /// User for the Sentinels. Sentinels have users of their own.
    pub user: Option<String>,
    /// Password for Sentinels.
    pub password: Option<Secret>,
}

impl Guides {
    /// Returns the first slot if the master is found by its slots. This slot has pmnet's records.
    pub fn home(&self) -> Option<u16> {
        match &self.wanted {
            Wanted::Named(_) => None,
            Wanted::Slots(ranges) => ranges.first().map(|range| *range.start()),
        }
    }

    /// Returns the name of the kind of process that is asked, for messages.
    fn kind(&self) -> &'static str {
        match self.wanted {
            Wanted::Named(_) => "Sentinels",
            Wanted::Slots(_) => "nodes of the Redis Cluster",
        }
    }

    /// Returns a text for messages that names the master to find.
    fn wanted_text(&self) -> String {
        match &self.wanted {
            Wanted::Named(name) => format!("the master {name:?}"),
            Wanted::Slots(ranges) => format!("the master of slots {}", shown(ranges, ",")),
        }
    }

    /// Returns a text for operators with the asked processes and the master.
    pub fn text(&self) -> String {
        format!(
            "{} of the {} at {}",
            self.wanted_text(),
            self.kind(),
            self.places_text()
        )
    }

    /// Returns all places in the form `host:port, host:port`.
    pub fn places_text(&self) -> String {
        let all: Vec<String> = self.places.iter().map(endpoint).collect();
        all.join(",")
    }
}

/// Returns a place in the form `host:port`, with brackets around an IPv6 address.
pub fn endpoint((host, port): &(String, u16)) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// A master, as a Sentinel or node names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    /// The master's host name or address.
    pub host: String,
    /// The master's TCP port.
    pub port: u16,
    /// Configuration epoch, which is higher after each failover.
    pub epoch: u64,
}

#[derive(Default)]
struct State {
    /// Answer of the majority in the last round, or the reason why a majority did not answer.
    known: Option<Result<Master, String>>,
    /// The master with the latest epoch of all that were ever named.
    latest: Option<Master>,
    /// Host and port that the store uses.
    used: Option<(String, u16)>,
    wake: Option<Box<dyn Fn() + Send>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    answered: Condvar,
    moved: AtomicBool,
    over: AtomicBool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The processes that know where a master is. A thread asks these processes until this value is dropped.
pub struct Masters {
    shared: Arc<Shared>,
    kind: &'static str,
}

impl Masters {
    /// Starts asking, with the connection settings of `url` ([`RedisUrl::guide`]).
    ///
    /// # Errors
    /// The system could not start a thread.
    pub fn start(guides: Guides, url: RedisUrl) -> Result<Masters, OpenError> {
        let shared = Arc::new(Shared::default());
        let (asks, kind) = (shared.clone(), guides.kind());
        std::thread::Builder::new()
            .name("masters".into())
            .spawn(move || ask_until_over(&guides, &url, &asks))
            .map_err(|error| OpenError::Url {
                why: format!("the system gives no thread for the questions to the {kind}: {error}"),
            })?;
        Ok(Masters { shared, kind })
    }

    fn no_answer(&self) -> StoreError {
        StoreError::Retry(format!("PM2509 none of the {} has answered yet", self.kind))
    }

    /// Returns the current address of the master. From now on, this address counts as the address that the store uses.
    ///
    /// # Errors
    /// `Retry`: no majority names a master.
    pub fn master(&self) -> Result<(String, u16), StoreError> {
        let deadline = Instant::now() + FIRST_ANSWER;
        let mut state = self.shared.state();
        while state.known.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.no_answer());
            }
            let waited = self.shared.answered.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        // If the master moves again, the next round of questions sets the flag again.
        self.shared.moved.store(false, Ordering::Release);
        match &state.known {
            Some(Ok(master)) => {
                let used = (master.host.clone(), master.port);
                state.used = Some(used.clone());
                Ok(used)
            }
            Some(Err(text)) => Err(StoreError::Retry(text.clone())),
            None => Err(self.no_answer()),
        }
    }

    /// Returns whether the master has changed since the last call of [`Masters::master`].
    pub fn has_moved(&self) -> bool {
        self.shared.moved.load(Ordering::Acquire)
    }

    /// Sets the function that is called when [`Masters::has_moved`] becomes true.
    pub fn attend(&self, wake: Box<dyn Fn() + Send>) {
        self.shared.state().wake = Some(wake);
    }
}

impl Drop for Masters {
    fn drop(&mut self) {
        // The thread may be waiting for an answer. The thread ends when the answer has come.
        self.shared.over.store(true, Ordering::Release);
    }
}

fn ask_until_over(guides: &Guides, url: &RedisUrl, shared: &Shared) {
    let mut links: Vec<Option<Connection>> = guides.places.iter().map(|_| None).collect();
    while !shared.over.load(Ordering::Acquire) {
        let mut answers = Vec::new();
        for (place, link) in guides.places.iter().zip(&mut links) {
            let answer = match &guides.wanted {
                Wanted::Named(name) => sentinel::ask(place, name, url, link),
                Wanted::Slots(_) => {
                    cluster::ask(place, guides.home().unwrap_or_default(), url, link)
                }
            };
            if answer.is_err() {
                *link = None;
            }
            answers.push(answer);
        }
        take(shared, guides.kind(), choose(guides, answers));
        std::thread::sleep(PAUSE);
    }
}

/// Stores the result of a round of questions.
fn take(shared: &Shared, kind: &str, found: Result<Master, String>) {
    let mut state = shared.state();
    let found = match (found, &state.latest) {
        // Other processes have reported a later failover, of which the processes that answered do not know.
        (Ok(master), Some(latest)) if master.epoch < latest.epoch => Err(format!(
            "PM2506 the {kind} that answer name {} as the master of epoch {}, and epoch {} was known before",
            endpoint(&(master.host, master.port)),
            master.epoch,
            latest.epoch
        )),
        (found, _) => found,
    };
    if let Ok(master) = &found {
        state.latest = Some(master.clone());
        let used = state.used.as_ref();
        let other = used.is_some_and(|(host, port)| (host, port) != (&master.host, &master.port));
        if other && !shared.moved.swap(true, Ordering::AcqRel) {
            tracing::warn!(
                master = endpoint(&(master.host.clone(), master.port)),
                epoch = master.epoch,
                "PM2507 the {kind} name another master"
            );
            if let Some(wake) = &state.wake {
                wake();
            }
        }
    }
    state.known = Some(found);
    shared.answered.notify_all();
}

/// Returns the answer with the latest epoch, if a majority has answered.
pub fn choose(guides: &Guides, answers: Vec<Result<Master, String>>) -> Result<Master, String> {
    let all = answers.len();
    let mut masters = Vec::new();
    let mut last = String::new();
    for (place, answer) in guides.places.iter().zip(answers) {
        match answer {
            Ok(master) => masters.push(master),
            Err(text) => last = format!("{}: {text}", endpoint(place)),
        }
    }
    let named = masters.len();
    match masters.into_iter().max_by_key(|master| master.epoch) {
        Some(master) if named * 2 > all => Ok(master),
        _ => Err(format!(
            "PM2508 only {named} of {all} {} say where {} is, which is no majority ({last})",
            guides.kind(),
            guides.wanted_text()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guides(count: u16) -> Guides {
        Guides {
            places: (1..=count).map(|at| ("10.0.0.1".to_owned(), at)).collect(),
            wanted: Wanted::Named("m".into()),
            user: None,
            password: None,
        }
    }

    fn master(port: u16, epoch: u64) -> Master {
        Master {
            host: "10.0.0.2".into(),
            port,
            epoch,
        }
    }

    fn silent() -> Result<Master, String> {
        Err("refused".into())
    }

    #[test]
    fn the_latest_failover_counts_if_a_majority_answers() {
        let choose = |answers: Vec<_>| super::choose(&guides(3), answers);
        let (old, new) = (master(1, 3), master(2, 4));
        let all = vec![Ok(old.clone()), Ok(new.clone()), Ok(old.clone())];
        assert_eq!(choose(all), Ok(new.clone()));
        let two = vec![Ok(old.clone()), silent(), Ok(old.clone())];
        assert_eq!(choose(two), Ok(old));
        let one = choose(vec![silent(), silent(), Ok(new)]).unwrap_err();
        assert!(one.contains("1 of 3") && one.contains("refused"), "{one}");
    }

    #[test]
    fn a_store_is_told_of_another_master_once_and_never_of_an_older_one() {
        let shared = Arc::new(Shared::default());
        let masters = Masters {
            shared: shared.clone(),
            kind: "Sentinels",
        };
        let woken = Arc::new(Mutex::new(0));
        let counts = woken.clone();
        masters.attend(Box::new(move || *counts.lock().unwrap() += 1));
        take(&shared, "Sentinels", Ok(master(1, 3)));
        assert!(!masters.has_moved(), "nobody uses one yet");
        assert_eq!(masters.master().unwrap().1, 1);
        take(&shared, "Sentinels", Ok(master(1, 3)));
        assert!(!masters.has_moved());
        for _ in 0..2 {
            take(&shared, "Sentinels", Ok(master(2, 4)));
            assert!(masters.has_moved());
        }
        assert_eq!(
            (masters.master().unwrap().1, *woken.lock().unwrap()),
            (2, 1)
        );
        take(&shared, "Sentinels", Ok(master(1, 3)));
        assert!(!masters.has_moved());
        let StoreError::Retry(text) = masters.master().unwrap_err() else {
            panic!("it may pass");
        };
        assert!(text.contains("epoch 4 was known"), "{text}");
        take(&shared, "Sentinels", silent());
        assert!(matches!(masters.master(), Err(StoreError::Retry(_))));
    }
}
