//! Redis Sentinel: which Redis is the master now.
//!
//! A thread of its own asks all Sentinels, again and again. What counts is what a majority of them has answered lately, and of
//! their answers the one with the highest configuration epoch: that is the outcome of the latest failover. An answer is
//! an address and nothing more. Whether what runs there may be written to, and has everything that was confirmed, the store finds out as with
//! any Redis: its role, its records, its owner (`super::owner`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pmnet_resp::read;
use pmnet_server::StoreError;

use super::connection::Connection;
use super::url::RedisUrl;
use crate::OpenError;

/// Sentinels that an address may name, at most.
pub const SENTINELS_MAX: usize = 16;
/// Pause between two rounds of questions.
const PAUSE: Duration = Duration::from_millis(250);
/// One question to one Sentinel, in seconds.
const ASK_SECONDS: u64 = 1;
/// How long a store waits for the first answers before it says that there are none.
const FIRST_ANSWER: Duration = Duration::from_secs(2);

/// What an address of a store says of Sentinels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentinelSet {
    /// Each with a port.
    pub places: Vec<(String, u16)>,
    /// The master's name there.
    pub name: String,
}

impl SentinelSet {
    /// `host:port, host:port` as people write them.
    pub fn places_text(&self) -> String {
        let all: Vec<String> = self.places.iter().map(endpoint).collect();
        all.join(",")
    }
}

fn endpoint((host, port): &(String, u16)) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// A master, as one Sentinel names it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Master {
    host: String,
    port: u16,
    /// Each failover has a higher one.
    epoch: u64,
}

#[derive(Default)]
struct State {
    /// What a majority said in the last round; or why there was none.
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

/// The Sentinels of one master, asked by a thread of its own until this is dropped.
pub struct Sentinels {
    shared: Arc<Shared>,
}

impl Sentinels {
    /// Begins to ask.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(set: SentinelSet) -> Result<Sentinels, OpenError> {
        let shared = Arc::new(Shared::default());
        let asks = shared.clone();
        std::thread::Builder::new()
            .name("sentinels".into())
            .spawn(move || ask_until_over(&set, &asks))
            .map_err(|error| OpenError::Url {
                why: format!(
                    "the system gives no thread for the questions to the Sentinels: {error}"
                ),
            })?;
        Ok(Sentinels { shared })
    }

    /// The master's address now, which the store is going to use.
    ///
    /// # Errors
    /// `Retry`: no majority of the Sentinels names one.
    pub fn master(&self) -> Result<(String, u16), StoreError> {
        let deadline = Instant::now() + FIRST_ANSWER;
        let mut state = self.shared.state();
        while state.known.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(StoreError::Retry("no Sentinel has answered yet".into()));
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
            None => Err(StoreError::Retry("no Sentinel has answered yet".into())),
        }
    }

    /// Whether the master is another one than [`Sentinels::master`] said last.
    pub fn has_moved(&self) -> bool {
        self.shared.moved.load(Ordering::Acquire)
    }

    /// This is called when [`Sentinels::has_moved`] has become true.
    pub fn attend(&self, wake: Box<dyn Fn() + Send>) {
        self.shared.state().wake = Some(wake);
    }
}

impl Drop for Sentinels {
    fn drop(&mut self) {
        // It may be in the middle of a question, and ends behind it.
        self.shared.over.store(true, Ordering::Release);
    }
}

fn ask_until_over(set: &SentinelSet, shared: &Shared) {
    let mut links: Vec<Option<Connection>> = set.places.iter().map(|_| None).collect();
    while !shared.over.load(Ordering::Acquire) {
        let mut answers = Vec::new();
        for (place, link) in set.places.iter().zip(&mut links) {
            let answer = ask(place, &set.name, link);
            if answer.is_err() {
                *link = None;
            }
            answers.push(answer);
        }
        take(shared, choose(set, answers));
        std::thread::sleep(PAUSE);
    }
}

/// Takes note of what a round of questions brought.
fn take(shared: &Shared, found: Result<Master, String>) {
    let mut state = shared.state();
    let found = match (found, &state.latest) {
        // Who answered has not heard yet of the failover that others had told.
        (Ok(master), Some(latest)) if master.epoch < latest.epoch => Err(format!(
            "the Sentinels that answer name {} as the master of epoch {}, and epoch {} was known before",
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
                "the Sentinels name another master"
            );
            if let Some(wake) = &state.wake {
                wake();
            }
        }
    }
    state.known = Some(found);
    shared.answered.notify_all();
}

/// The latest of what a majority answers.
fn choose(set: &SentinelSet, answers: Vec<Result<Master, String>>) -> Result<Master, String> {
    let all = answers.len();
    let mut masters = Vec::new();
    let mut last = String::new();
    for (place, answer) in set.places.iter().zip(answers) {
        match answer {
            Ok(master) => masters.push(master),
            Err(text) => last = format!("{}: {text}", endpoint(place)),
        }
    }
    let named = masters.len();
    match masters.into_iter().max_by_key(|master| master.epoch) {
        Some(master) if named * 2 > all => Ok(master),
        _ => Err(format!(
            "only {named} of {all} Sentinels say where the master {:?} is, which is no majority ({last})",
            set.name
        )),
    }
}

fn ask(
    (host, port): &(String, u16),
    name: &str,
    link: &mut Option<Connection>,
) -> Result<Master, String> {
    let link = match link {
        Some(link) => link,
        None => link.insert(
            Connection::open_within(&RedisUrl::plain(host, *port), ASK_SECONDS)
                .map_err(|error| error.to_string())?,
        ),
    };
    let reply = link.call(&[b"SENTINEL", b"MASTER", name.as_bytes()]);
    let reply = reply.map_err(|error| error.to_string())?;
    if let Some(error) = read::error(&reply) {
        return Err(error.to_owned());
    }
    parse(&reply).ok_or_else(|| "its answer is not understood".into())
}

/// Reads names and values in turn.
fn parse(reply: &[u8]) -> Option<Master> {
    let fields = read::elements(reply)?;
    let value = |name: &str| {
        let pairs = fields.chunks_exact(2);
        let texts = pairs.map(|pair| Some((read::text(pair[0])?, read::text(pair[1])?)));
        let found = texts.flatten().find(|(key, _)| *key == name.as_bytes());
        found.and_then(|(_, value)| std::str::from_utf8(value).ok())
    };
    Some(Master {
        host: value("ip").filter(|host| !host.is_empty())?.to_owned(),
        port: value("port")?.parse().ok().filter(|port| *port != 0)?,
        epoch: value("config-epoch")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(count: u16) -> SentinelSet {
        SentinelSet {
            places: (1..=count).map(|at| ("10.0.0.1".to_owned(), at)).collect(),
            name: "m".into(),
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
        let choose = |answers: Vec<_>| super::choose(&set(3), answers);
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
        let sentinels = Sentinels {
            shared: shared.clone(),
        };
        let woken = Arc::new(Mutex::new(0));
        let counts = woken.clone();
        sentinels.attend(Box::new(move || *counts.lock().unwrap() += 1));
        take(&shared, Ok(master(1, 3)));
        assert!(!sentinels.has_moved(), "nobody uses one yet");
        assert_eq!(sentinels.master().unwrap().1, 1);
        take(&shared, Ok(master(1, 3)));
        assert!(!sentinels.has_moved());
        for _ in 0..2 {
            take(&shared, Ok(master(2, 4)));
            assert!(sentinels.has_moved());
        }
        assert_eq!(
            (sentinels.master().unwrap().1, *woken.lock().unwrap()),
            (2, 1)
        );
        take(&shared, Ok(master(1, 3)));
        assert!(!sentinels.has_moved());
        let StoreError::Retry(text) = sentinels.master().unwrap_err() else {
            panic!("it may pass");
        };
        assert!(text.contains("epoch 4 was known"), "{text}");
        take(&shared, silent());
        assert!(matches!(sentinels.master(), Err(StoreError::Retry(_))));
    }

    #[test]
    fn an_answer_is_read_and_what_is_none_is_not() {
        let reply = |pairs: &[(&str, &str)]| {
            let mut text = format!("*{}\r\n", pairs.len() * 2);
            for word in pairs.iter().flat_map(|(name, value)| [name, value]) {
                text += &format!("${}\r\n{word}\r\n", word.len());
            }
            text.into_bytes()
        };
        let whole = [
            ("name", "m"),
            ("ip", "10.0.0.2"),
            ("port", "6379"),
            ("flags", "master"),
            ("config-epoch", "7"),
        ];
        assert_eq!(parse(&reply(&whole)), Some(master(6379, 7)));
        for (at, bad) in [(1, ""), (2, "0"), (2, "70000"), (4, "x")] {
            let mut pairs = whole;
            pairs[at].1 = bad;
            assert_eq!(parse(&reply(&pairs)), None, "{bad}");
        }
        for foreign in [&b"+OK\r\n"[..], b"*0\r\n", b"*1\r\n$1\r\nx\r\n"] {
            assert_eq!(parse(foreign), None);
        }
    }
}
