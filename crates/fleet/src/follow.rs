//! Finds the addresses of a shard's devices for its clients. A thread reads the addresses from etcd at intervals.
//!
//! The addresses are only a hint: a client asks each device at its address, and the epoch in the device's answer
//! decides.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::etcd::{Etcd, Members};
use crate::heal::present;
use crate::plan::CHAIN_MAX;
use crate::record::Names;
use crate::shard::Shard;

/// Pause between two reads.
const PAUSE: Duration = Duration::from_millis(400);
/// Longest time for one call to etcd.
const CALL_MAX: Duration = Duration::from_secs(1);
/// Time after which a message about a lasting state is repeated.
const PATIENCE: Duration = Duration::from_secs(30);

/// Settings of a follower.
#[derive(Clone, Debug)]
pub struct FollowConfig {
    /// The members of the etcd cluster.
    pub members: Members,
    /// Names of the shard's keys in etcd.
    pub names: Names,
}

/// Returns the addresses of a shard's devices. First come the devices of the wanted chain, head first, then the other
/// devices that have a lease (spares). The list has at most as many addresses as a chain can have devices. All
/// addresses are of the same family as the first address.
#[must_use]
pub fn whereabouts(shard: &Shard) -> Vec<SocketAddr> {
    let mut found: Vec<SocketAddr> = Vec::new();
    for place in shard.plan.iter().flat_map(|plan| &plan.places) {
        // A device that was restarted at another address registers the new address.
        let record = shard
            .rows
            .get(&place.id)
            .and_then(|row| row.record.as_ref());
        found.push(record.map_or(place.at, |record| record.address));
    }
    let there = shard.rows.iter().filter(|(_, row)| row.is_there());
    let mut others: Vec<_> = there
        .filter_map(|(id, row)| Some((id, row.record.as_ref()?)))
        .collect();
    // Without a chain in etcd, the head of the chain that is served comes first.
    let served = present(shard);
    let head = served.as_ref().and_then(|served| served.chain.first());
    others.sort_by_key(|(id, record)| (Some(*id) != head, record.chain.is_empty()));
    found.extend(others.iter().map(|(_, record)| record.address));
    let mut all: Vec<SocketAddr> = Vec::new();
    for at in found {
        let fits = all
            .first()
            .is_none_or(|first| first.is_ipv4() == at.is_ipv4());
        if fits && !all.contains(&at) && all.len() < CHAIN_MAX {
            all.push(at);
        }
    }
    all
}

/// A thread that reads the devices' addresses until this value is dropped.
#[derive(Debug)]
pub struct Follower {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// Waits until an address is known, or `stop` is set.
    ///
    /// # Errors
    /// A text: no address became known before `stop` was set or `wait` was over.
    pub fn first(
        config: &FollowConfig,
        wait: Duration,
        stop: &AtomicBool,
    ) -> Result<Vec<SocketAddr>, String> {
        let mut etcd = Etcd::new(config.members.clone(), CALL_MAX);
        let deadline = Instant::now() + wait;
        let mut said = false;
        loop {
            let why = match Shard::read(&mut etcd, &config.names).map(|shard| whereabouts(&shard)) {
                Ok(found) if !found.is_empty() => return Ok(found),
                Ok(_) => {
                    "PM3007 no device of this fleet and shard has registered in etcd".to_owned()
                }
                Err(text) => format!("etcd: {text}"),
            };
            if Instant::now() >= deadline || stop.load(Ordering::Relaxed) {
                return Err(why);
            }
            if !std::mem::replace(&mut said, true) {
                tracing::warn!(
                    "PM3005 {why}: this process waits for {} s at most",
                    wait.as_secs()
                );
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Starts the follower. `known` is the list that the client has now. The follower calls `tell` whenever the list
    /// changes.
    ///
    /// # Errors
    /// The operating system cannot start a thread.
    pub fn start(
        config: FollowConfig,
        known: Vec<SocketAddr>,
        tell: impl Fn(Vec<SocketAddr>) + Send + 'static,
    ) -> std::io::Result<Follower> {
        let over = Arc::new(AtomicBool::new(false));
        let ends = over.clone();
        let thread = std::thread::Builder::new()
            .name("devices".into())
            .spawn(move || look(config, known, &ends, tell))?;
        Ok(Follower {
            over,
            thread: Some(thread),
        })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread's panic message was already printed.
            let _ = thread.join();
        }
    }
}

fn look(
    config: FollowConfig,
    mut known: Vec<SocketAddr>,
    over: &AtomicBool,
    tell: impl Fn(Vec<SocketAddr>),
) {
    let mut etcd = Etcd::new(config.members, CALL_MAX);
    let mut said: Option<Instant> = None;
    while !over.load(Ordering::Acquire) {
        match Shard::read(&mut etcd, &config.names) {
            Ok(shard) => {
                if said.take().is_some() {
                    tracing::info!("etcd says again where the devices are");
                }
                let found = whereabouts(&shard);
                // All addresses of a list are of one family, because the client's socket has the family of the first
                // list.
                let family = |list: &[SocketAddr]| list.first().map(SocketAddr::is_ipv4);
                if found != known && family(&found) == family(&known) {
                    tracing::info!(devices = ?found, "the devices are here now");
                    known.clone_from(&found);
                    tell(found);
                }
            }
            Err(text) if said.is_none_or(|at| at.elapsed() >= PATIENCE) => {
                tracing::warn!(
                    "PM3006 etcd: {text}. The front goes on with the devices that it knows"
                );
                said = Some(Instant::now());
            }
            Err(_) => {}
        }
        std::thread::park_timeout(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Place, Plan};
    use crate::record::MemberRecord;
    use crate::shard::Row;

    use pmnet_proto::lease::Word;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    fn row(address: SocketAddr, chain: &[u32], spare: bool) -> Row {
        Row {
            record: Some(MemberRecord {
                address,
                log: "0".into(),
                incarnation: 1,
                epoch: 1,
                seconds: 3,
                next: None,
                chain: chain.to_vec(),
                whole: true,
                spare,
                joins: 0,
                status: None,
            }),
            alive: 1,
            lease: 1,
            ..Row::default()
        }
    }

    #[test]
    fn the_chain_as_it_shall_be_comes_first_and_then_who_is_there() {
        let places = [2, 1].map(|id: u16| Place {
            id: id.into(),
            at: at(id),
            whole: true,
        });
        let mut shard = Shard {
            plan: Some(Plan {
                epoch: 3,
                says: None,
                places: places.to_vec(),
                joins: false,
                server: at(99),
                copies: 2,
            }),
            ..Shard::default()
        };
        // The device was restarted at another address.
        shard.rows.insert(1, row(at(11), &[2, 1], false));
        shard.rows.insert(5, row(at(5), &[], true));
        shard
            .rows
            .insert(6, row("[::1]:6".parse().unwrap(), &[], true));
        let mut stopped = row(at(7), &[], true);
        stopped.word = Word::Stopped;
        shard.rows.insert(7, stopped);
        let mut gone = row(at(8), &[], true);
        gone.alive = 0;
        shard.rows.insert(8, gone);
        assert_eq!(whereabouts(&shard), [at(2), at(11), at(5)]);
        for id in 20..40 {
            shard.rows.insert(id.into(), row(at(id), &[], true));
        }
        assert_eq!(whereabouts(&shard).len(), CHAIN_MAX);
    }

    #[test]
    fn without_a_chain_in_etcd_the_head_of_the_chain_that_is_served_comes_first() {
        let mut shard = Shard::default();
        assert_eq!(whereabouts(&shard), []);
        shard.rows.insert(1, row(at(1), &[], true));
        shard.rows.insert(2, row(at(2), &[3, 2], false));
        shard.rows.insert(3, row(at(3), &[3, 2], false));
        assert_eq!(whereabouts(&shard), [at(3), at(2), at(1)]);
    }
}
