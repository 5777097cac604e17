//! The address of the master: a thread of its own asks the Sentinels or nodes, again and again.
//!
//! Whom, and what: Sentinels for the master of a name (`super::sentinel`), or nodes of a Redis Cluster for the master that serves a slot
//! (`super::cluster`). A majority of them must have answered lately. Of
//! their answers the one with the highest configuration epoch counts: it is the outcome of the latest failover. An answer is
//! an address and nothing more. The store finds out as with any Redis whether it may write there, and whether
//! everything that was confirmed is there: its role, its records, its owner (`super::owner`).

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pmnet_server::StoreError;
use pmnet_wire::slots::shown;

use super::connection::Connection;
use super::url::RedisUrl;
use super::{cluster, sentinel};
use crate::OpenError;

/// How many may be asked, at most.
pub const ASKED_MAX: usize = 16;
/// Pause between two rounds of questions.
const PAUSE: Duration = Duration::from_millis(250);
/// Time for one question to one of them, in seconds.
pub const ASK_SECONDS: u64 = 1;
/// How long a store waits for the first answers before it says that there are none.
const FIRST_ANSWER: Duration = Duration::from_secs(2);

/// The wanted master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Sentinels know it by this name.
    Named(String),
    /// Nodes of a Redis Cluster know who serves these slots. It is that of the first one, where pmnet's records are.
    Slots(Vec<RangeInclusive<u16>>),
}

/// Processes to ask for a master, and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guides {
    /// Their hosts and ports.
    pub places: Vec<(String, u16)>,
    /// The master.
    pub wanted: Wanted,
    /// User for Sentinels; they have no users of Redis's.
    pub user: Option<String>,
    /// Password for Sentinels.
    pub password: Option<String>,
}

impl Guides {
    /// Returns the first slot, if it is about slots: pmnet's records are there.
    pub fn home(&self) -> Option<u16> {
        match &self.wanted {
            Wanted::Named(_) => None,
            Wanted::Slots(ranges) => ranges.first().map(|range| *range.start()),
        }
    }

    /// Returns the kind of the processes that are asked.
    fn kind(&self) -> &'static str {
        match self.wanted {
            Wanted::Named(_) => "Sentinels",
            Wanted::Slots(_) => "nodes of the Redis Cluster",
        }
    }

    /// Returns the master, for people.
    fn wanted_text(&self) -> String {
        match &self.wanted {
            Wanted::Named(name) => format!("the master {name:?}"),
            Wanted::Slots(ranges) => format!("the master of slots {}", shown(ranges, ",")),
        }
    }

    /// Returns all of it as a text for operators.
    pub fn text(&self) -> String {
        format!(
            "{} of the {} at {}",
            self.wanted_text(),
            self.kind(),
            self.places_text()
        )
    }

    /// `host:port, host:port` as people write them.
    pub fn places_text(&self) -> String {
        let all: Vec<String> = self.places.iter().map(endpoint).collect();
        all.join(",")
    }
}

/// `host:port`, brackets around IPv6.
pub fn endpoint((host, port): &(String, u16)) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// A master, as one of those who are asked names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    /// Its address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Each failover has a higher one.
    pub epoch: u64,
}

#[derive(Default)]
struct State {
    /// Answer of the majority in the last round, or the reason why there was none.
    known: Option<Result<Master, String>>,
    /// The latest that was ever known.
    latest: Option<Master>,
    /// The one that the store uses.
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

/// The processes that know one master; a thread of its own asks them until this is dropped.
pub struct Masters {
    shared: Arc<Shared>,
    kind: &'static str,
}

impl Masters {
    /// Begins to ask, as `url` says ([`RedisUrl::guide`]).
    ///
    /// # Errors
    /// The system gives no thread.
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

    /// Returns the master's address now, which the store is going to use.
    ///
    /// # Errors
    /// `Retry`: no majority names one.
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
        // If it moves again, or is named again, the next round says so.
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

    /// Returns whether the master is another one than [`Masters::master`] said last.
    pub fn has_moved(&self) -> bool {
        self.shared.moved.load(Ordering::Acquire)
    }

    /// This is called when [`Masters::has_moved`] has become true.
    pub fn attend(&self, wake: Box<dyn Fn() + Send>) {
        self.shared.state().wake = Some(wake);
    }
}

impl Drop for Masters {
    fn drop(&mut self) {
        // It may be in the middle of a question, and ends after it.
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

/// Takes note of what a round of questions brought.
fn take(shared: &Shared, kind: &str, found: Result<Master, String>) {
    let mut state = shared.state();
    let found = match (found, &state.latest) {
        // Those that answered have not heard yet of the failover that others had told.
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

/// Returns the latest of what a majority answers.
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
