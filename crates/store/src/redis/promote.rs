//! Makes a replica of a shard's Redis the master when an operator asks for it (`docs/operate/redis-failover.md`,
//! another Redis for a shard).
//!
//! Three cases:
//!
//! - If Sentinels watch the master, they are told to fail over.
//!
//! - The master runs. The master hands over on command (`FAILOVER`): it accepts no more writes, and waits until the
//!   replica has all data. Then both servers change their roles, so no data is lost.
//!
//! - The master is stopped for good. Only a person can know this. The replica that has applied most updates is
//!   promoted, and the other replicas follow it.
//!
//! The server of the shard begins a new epoch at the new master, and the command waits for that epoch.

use std::time::{Duration, Instant};

use pmnet_resp::read;
use pmnet_server::StoreError;

use super::config::parse_info;
use super::connection::Connection;
use super::masters::{ASKED_MAX, Guides, Wanted, choose, endpoint};
use super::url::RedisUrl;
use super::{WATERMARK, cluster, records_name, sentinel};
use crate::Passwords;

/// Host and port of a Redis or Sentinel.
type Place = (String, u16);

/// Milliseconds for which a master that hands over waits for its replica. If the replica does not have all data by
/// then, the old master remains the master.
const HAND_OVER_MILLISECONDS: u64 = 10_000;
/// Longest time until the master counts a replica that follows it as online.
const ONLINE_MAX: Duration = Duration::from_secs(5);
const ONLINE_LOOK: Duration = Duration::from_millis(100);

/// The state of a replica or of the master, as the server describes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    place: Place,
    is_master: bool,
    /// For a replica: whether the replica is connected to its master and has completed its first synchronisation.
    follows: bool,
    /// Bytes of the replication stream that the replica has received.
    offset: i64,
    /// Highest order that is applied at this Redis; 0: no order is applied.
    applied: u64,
    /// Name of the last load that claimed the records; empty: no load has claimed them.
    owner: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Way {
    /// This Sentinel is asked to fail over. It is one of those that know the master by `name`.
    Sentinels {
        guides: Guides,
        name: String,
        told: Place,
    },
    /// The master hands over to this replica.
    HandOver(Seen),
    /// The master is stopped. This replica takes the master's place, and the other replicas follow this replica.
    Stopped { to: Seen, others: Vec<Place> },
}

/// A planned promotion, and the state that shows its success.
pub struct Promotion {
    url: RedisUrl,
    hash: String,
    way: Way,
    /// The master before the promotion.
    from: Place,
    /// Owner of the records before the promotion.
    owner: Vec<u8>,
}

/// Progress of the promotion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The promotion is still under way. The sentence says what is missing.
    Waits(String),
    /// This Redis is the master, and a server serves the shard with it.
    Served(String),
}

impl Promotion {
    /// Reads the state of all processes, and plans the promotion. `url` is the server's `--store`; `password` takes the
    /// place of a password in `url`. `to`: the replicas that may become the master, as HOST:PORT, at most 16. The list
    /// is empty with Sentinels, which choose the replica themselves. `is_stopped`: whether the operator knows that the
    /// master is stopped for good.
    ///
    /// # Errors
    /// A sentence that says why the promotion is not possible, and what the operator can do.
    pub fn plan(
        url: &str,
        passwords: &Passwords,
        shard: u32,
        to: &[String],
        is_stopped: bool,
    ) -> Result<Promotion, String> {
        let url = RedisUrl::read(url, passwords).map_err(|error| error.to_string())?;
        let url = url.ok_or("only Redis has replicas: give --store as the server has it, redis://… or redis+sentinel://…")?;
        if url
            .guides
            .as_ref()
            .is_some_and(|guides| guides.home().is_some())
        {
            return Err(
                "in a Redis Cluster the replica itself is told: redis-cli -h REPLICA CLUSTER FAILOVER, which loses nothing; \
                 the server follows"
                    .into(),
            );
        }
        if to.len() > ASKED_MAX {
            return Err(format!(
                "{} replicas are named: at most {ASKED_MAX}",
                to.len()
            ));
        }
        let hash = records_name(shard, None);
        match url.guides.clone() {
            Some(guides) if to.is_empty() && !is_stopped => by_sentinels(url, hash, guides),
            Some(_) => Err(
                "the Sentinels choose the replica, and know whether the master runs: leave out --to and --is-stopped"
                    .into(),
            ),
            None if to.is_empty() => Err(
                "which replica is to be the master? Give --to HOST:PORT (with --is-stopped all that are left, with commas: \
                 the one that has most is taken)"
                    .into(),
            ),
            None if is_stopped => of_a_stopped_master(url, hash, to),
            None => hand_over(url, hash, to),
        }
    }

    /// Returns a sentence for the operator. The sentence names the planned steps, and says which failures an
    /// acknowledged write survives during these steps.
    #[must_use]
    pub fn text(&self) -> String {
        let from = endpoint(&self.from);
        let kept = "Updates that were acknowledged and are missing at the new master are applied there again, out of the devices' logs";
        match &self.way {
            Way::HandOver(to) => format!(
                "the master {from} stops taking writes, waits until {} has everything, and they change places; nothing is lost. \
                 Acknowledged writes stay in the devices' logs meanwhile",
                endpoint(&to.place)
            ),
            Way::Stopped { to, others } => format!(
                "{} becomes the master in place of {from}, which is said to be stopped. It has applied everything up to order {}; {} other \
                 replica(s) follow it. {kept}; what only Redis executed, and no replica had, is lost",
                endpoint(&to.place),
                to.applied,
                others.len()
            ),
            Way::Sentinels { told, .. } => format!(
                "the Sentinel at {} makes a replica the master in place of {from}. {kept}; what only Redis executed, and wait_replicas had \
                 not confirmed, can be lost",
                endpoint(told)
            ),
        }
    }

    /// Returns the replica that becomes the master; `None` if the Sentinels choose.
    fn to(&self) -> Option<&Place> {
        match &self.way {
            Way::Sentinels { .. } => None,
            Way::HandOver(to) | Way::Stopped { to, .. } => Some(&to.place),
        }
    }

    /// Returns the address of the old master, and that of the new master if it is known.
    #[must_use]
    pub fn places(&self) -> (String, Option<String>) {
        (endpoint(&self.from), self.to().map(endpoint))
    }

    /// Returns advice for the operator in case the server does not find the new master.
    #[must_use]
    pub fn then(&self) -> Option<String> {
        let to = self.to()?;
        let scheme = if self.url.tls.is_some() {
            "rediss"
        } else {
            "redis"
        };
        Some(format!(
            "start the server again with --store {scheme}://…{}, and what else it had there; fronts follow",
            endpoint(to)
        ))
    }

    /// Begins the promotion.
    ///
    /// # Errors
    /// A sentence which says that the promotion was refused, or that it is not known whether the promotion has begun.
    pub fn begin(&self) -> Result<(), String> {
        match &self.way {
            Way::Sentinels { name, told, .. } => {
                let mut link = sentinel::open(told, &self.url)?;
                ask(
                    &mut link,
                    told,
                    &[b"SENTINEL", b"FAILOVER", name.as_bytes()],
                )?;
            }
            Way::HandOver(to) => {
                let mut link = cluster::open(&self.from, &self.url)?;
                let (port, timeout) = (to.place.1.to_string(), HAND_OVER_MILLISECONDS.to_string());
                let (host, port) = (to.place.0.as_bytes(), port.as_bytes());
                let command: [&[u8]; 6] = [
                    b"FAILOVER",
                    b"TO",
                    host,
                    port,
                    b"TIMEOUT",
                    timeout.as_bytes(),
                ];
                let until = Instant::now() + ONLINE_MAX;
                // When a replica has received all data, the master counts it as online only after the replica's next
                // message.
                while let Err(text) = ask(&mut link, &self.from, &command) {
                    if !text.contains("is not online") || Instant::now() >= until {
                        return Err(text);
                    }
                    std::thread::sleep(ONLINE_LOOK);
                }
            }
            Way::Stopped { to, others } => {
                let mut link = cluster::open(&to.place, &self.url)?;
                ask(&mut link, &to.place, &[b"REPLICAOF", b"NO", b"ONE"])?;
                let port = to.place.1.to_string();
                for other in others {
                    let mut link = cluster::open(other, &self.url)?;
                    let command: [&[u8]; 3] =
                        [b"REPLICAOF", to.place.0.as_bytes(), port.as_bytes()];
                    ask(&mut link, other, &command)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the progress of the promotion.
    ///
    /// # Errors
    /// A sentence that says why the promotion has failed.
    pub fn look(&self) -> Result<Progress, String> {
        let place = match &self.way {
            Way::Sentinels { guides, name, .. } => match named(guides, name, &self.url) {
                Ok((_, place)) if place != self.from => place,
                Ok(_) => {
                    return Ok(Progress::Waits(
                        "the Sentinels name no other master yet".into(),
                    ));
                }
                Err(why) => return Ok(Progress::Waits(why)),
            },
            Way::Stopped { to, .. } => to.place.clone(),
            Way::HandOver(to) => {
                if let Some(state) = self.hands_over() {
                    return match state.as_str() {
                        "no-failover" => Err(format!(
                            "PM5201 {} did not get everything within {} s, and {} goes on as the master: nothing has changed",
                            endpoint(&to.place),
                            HAND_OVER_MILLISECONDS / 1000,
                            endpoint(&self.from)
                        )),
                        state => Ok(Progress::Waits(format!("the master hands over ({state})"))),
                    };
                }
                to.place.clone()
            }
        };
        let seen = match see(&place, &self.url, &self.hash) {
            Ok(seen) => seen,
            Err(why) => return Ok(Progress::Waits(why)),
        };
        Ok(if !seen.is_master {
            Progress::Waits(format!("{} is no master yet", endpoint(&place)))
        } else if seen.owner == self.owner {
            Progress::Waits(format!(
                "{} is the master; no server has taken the shard over there yet",
                endpoint(&place)
            ))
        } else {
            Progress::Served(endpoint(&place))
        })
    }

    /// Returns Redis's name for the state of the hand-over, while the old master is still a master. Returns `None` if
    /// the old master is a replica by now, or does not answer.
    fn hands_over(&self) -> Option<String> {
        let mut link = cluster::open(&self.from, &self.url).ok()?;
        let info = ask(&mut link, &self.from, &[b"INFO", b"replication"]).ok()?;
        let info = parse_info(read::text(&info)?);
        let state = info.get("master_failover_state").unwrap_or(&"no-failover");
        (info.get("role") == Some(&"master")).then(|| (*state).to_owned())
    }
}

fn by_sentinels(url: RedisUrl, hash: String, guides: Guides) -> Result<Promotion, String> {
    let Wanted::Named(name) = guides.wanted.clone() else {
        return Err("Sentinels are asked for a name".into());
    };
    let (told, from) = named(&guides, &name, &url)?;
    let master = see(&from, &url, &hash)
        .map_err(|why| format!("{why}. If it is lost, the Sentinels fail over by themselves"))?;
    if !master.is_master {
        return Err(format!(
            "PM5202 the Sentinels name {}, which is no master: they are in the middle of a failover",
            endpoint(&from)
        ));
    }
    Ok(Promotion {
        way: Way::Sentinels { guides, name, told },
        owner: master.owner,
        url,
        hash,
        from,
    })
}

fn hand_over(url: RedisUrl, hash: String, to: &[String]) -> Result<Promotion, String> {
    let from = (url.host.clone(), url.port);
    let [to] = to else {
        return Err(
            "one replica is to be the master: several can be named with --is-stopped only".into(),
        );
    };
    let place = place(to)?;
    let master = see(&from, &url, &hash).map_err(|why| {
        format!(
            "PM5203 {why}. If it is certain that this process is stopped for good, and will not come back as a master: --is-stopped. A machine \
             that is only cut off goes on writing"
        )
    })?;
    if !master.is_master {
        return Err(format!(
            "PM5204 {} is no master: is --store the server's?",
            endpoint(&from)
        ));
    }
    let replica = follower(&place, &url, &hash)?;
    if replica.offset > master.offset || !replica.follows {
        return Err(format!(
            "PM5205 {} does not follow its master now (master_link_status): wait until it does",
            endpoint(&place)
        ));
    }
    Ok(Promotion {
        way: Way::HandOver(replica),
        owner: master.owner,
        url,
        hash,
        from,
    })
}

fn of_a_stopped_master(url: RedisUrl, hash: String, to: &[String]) -> Result<Promotion, String> {
    let from = (url.host.clone(), url.port);
    if let Ok(master) = see(&from, &url, &hash)
        && master.is_master
    {
        return Err(format!(
            "PM5206 {} answers, as a master: it is not stopped. Without --is-stopped it hands over, and nothing is lost",
            endpoint(&from)
        ));
    }
    let mut replicas = Vec::new();
    for place in to {
        replicas.push(follower(&self::place(place)?, &url, &hash)?);
    }
    let best = best(&replicas).ok_or("no replica is named")?.clone();
    let others = replicas
        .iter()
        .filter(|one| one.place != best.place)
        .map(|one| one.place.clone())
        .collect();
    Ok(Promotion {
        owner: best.owner.clone(),
        way: Way::Stopped { to: best, others },
        url,
        hash,
        from,
    })
}

/// Returns the replica that has applied most updates. Among replicas with equal updates, returns the replica that has
/// received most of the replication stream.
fn best(replicas: &[Seen]) -> Option<&Seen> {
    replicas.iter().max_by_key(|one| (one.applied, one.offset))
}

/// Returns the state of a Redis, which must be a replica with this shard's records.
fn follower(place: &Place, url: &RedisUrl, hash: &str) -> Result<Seen, String> {
    let seen = see(place, url, hash)?;
    if seen.is_master {
        return Err(format!(
            "PM5208 {} is a master, no replica",
            endpoint(place)
        ));
    }
    if seen.owner.is_empty() {
        return Err(format!(
            "PM5207 {} has no records of this shard ({hash}): it is another one's replica, or --shard is wrong",
            endpoint(place)
        ));
    }
    Ok(seen)
}

/// Returns a Sentinel that names the latest master, and the address of this master.
fn named(guides: &Guides, name: &str, url: &RedisUrl) -> Result<(Place, Place), String> {
    let places = guides.places.iter();
    let answers: Vec<_> = places
        .map(|place| sentinel::ask(place, name, url, &mut None))
        .collect();
    let master = choose(guides, answers.clone())?;
    let told = guides.places.iter().zip(&answers);
    let told = told.filter(|(_, answer)| answer.as_ref() == Ok(&master));
    let told = told.map(|(place, _)| place.clone()).next();
    let told = told.ok_or("no Sentinel answers")?;
    Ok((told, (master.host, master.port)))
}

/// Reads `HOST:PORT`, with brackets around an IPv6 address.
fn place(text: &str) -> Result<Place, String> {
    let url = RedisUrl::parse(text.trim(), false).map_err(|error| error.to_string())?;
    match url.password {
        None => Ok((url.host, url.port)),
        Some(_) => Err("--to wants HOST:PORT: user and password are those of --store".into()),
    }
}

fn see(place: &Place, url: &RedisUrl, hash: &str) -> Result<Seen, String> {
    let at = |why: String| format!("Redis at {}: {why}", endpoint(place));
    let mut link = cluster::open(place, url).map_err(at)?;
    let info = ask(&mut link, place, &[b"INFO", b"replication"])?;
    let info = parse_info(read::text(&info).unwrap_or_default());
    let field = |name: &str| info.get(name).copied();
    let records = ask(
        &mut link,
        place,
        &[b"HMGET", hash.as_bytes(), b"owner", WATERMARK],
    )?;
    let value = |at: usize| {
        let fields = read::elements(&records)?;
        fields
            .get(at)
            .and_then(|field| read::text(field))
            .map(<[u8]>::to_vec)
    };
    let is_master = match field("role") {
        Some("master") => true,
        Some("slave") => false,
        _ => return Err(at("it does not say whether it is a master".into())),
    };
    let offset = if is_master {
        "master_repl_offset"
    } else {
        "slave_repl_offset"
    };
    Ok(Seen {
        place: place.clone(),
        is_master,
        follows: field("master_link_status") == Some("up"),
        offset: field(offset)
            .and_then(|text| text.parse().ok())
            .unwrap_or(0),
        applied: value(1)
            .and_then(|bytes| bytes.try_into().ok())
            .map_or(0, u64::from_be_bytes),
        owner: value(0).unwrap_or_default(),
    })
}

/// Sends one command, and returns its reply if the reply is not an error.
fn ask(link: &mut Connection, place: &Place, command: &[&[u8]]) -> Result<bytes::Bytes, String> {
    let reply = link.call(command);
    let reply = reply.map_err(StoreError::into_text)?;
    match read::error(&reply) {
        None => Ok(reply),
        Some(error) => Err(format!(
            "Redis at {} says to {}: {error}",
            endpoint(place),
            String::from_utf8_lossy(command[0])
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_replica_that_has_applied_most_is_taken() {
        let seen = |port, applied, offset| Seen {
            place: ("h".into(), port),
            is_master: false,
            follows: false,
            offset,
            applied,
            owner: b"o".to_vec(),
        };
        let all = [
            seen(1, 7, 900),
            seen(2, 9, 100),
            seen(3, 9, 200),
            seen(4, 0, 999),
        ];
        assert_eq!(best(&all).map(|one| one.place.1), Some(3));
        assert_eq!(best(&[]), None);
    }

    #[test]
    fn what_cannot_be_is_refused_before_anything_is_asked() {
        let no = |url: &str, to: &[&str], is_stopped: bool| {
            let to: Vec<String> = to.iter().map(|&one| one.to_owned()).collect();
            Promotion::plan(url, &Passwords::default(), 0, &to, is_stopped)
                .err()
                .expect("refused")
        };
        assert!(no("redis://h", &[], false).contains("--to"));
        assert!(no("redis://127.0.0.1:1", &["a", "b"], false).contains("one replica"));
        assert!(no("redis+cluster://h/0-5", &["a"], false).contains("CLUSTER FAILOVER"));
        assert!(no("redis+sentinel://h/m", &["a"], false).contains("leave out"));
        assert!(no("redis+sentinel://h/m", &[], true).contains("leave out"));
        assert!(no("packet:x", &["a"], false).contains("only Redis"));
        assert!(no("redis://h", &["u:p@a"], true).contains("HOST:PORT"));
        assert!(no("redis://127.0.0.1:1", &["a"], false).contains("--is-stopped"));
        assert!(no("redis://h", &vec!["a"; 17], true).contains("at most 16"));
    }
}
