//! Redis Cluster as the store: the slots that each node serves, and the commands that a node accepts
//! (`docs/spec/sharding.md`, §5).
//!
//! The store writes to one master of the cluster, in all slots that this master serves. A script that does not declare
//! its keys may write in several slots in one atomic step. A transaction may write in only one slot. But Redis checks
//! each command of a script separately. If another node serves the slot of a command, or the slot is being moved, the
//! command fails, while the effects of the script's earlier commands stay. So each script first asks for a key that
//! does not exist, in each slot that the script needs. Only a node that has the slot, and is not moving it, answers
//! without an error. No slot can move while a script runs.

use std::ops::RangeInclusive;

use pmnet_resp::read;
use pmnet_server::StoreError;
use pmnet_wire::slots::{parse_slots, shown, slot_of, tag_of};

use super::config::refused;
use super::connection::Connection;
use super::masters::{ASK_SECONDS, Master, Wanted, endpoint};
use super::plan::Plan;
use super::url::RedisUrl;
use super::{Link, RedisStore};

/// First words of the errors by which Redis reports that the keys of a command are, or may be, at another node.
const ELSEWHERE: [&str; 5] = ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "CROSSSLOT"];

/// Redis Cluster's reply to a transaction whose keys are in several slots.
const CROSSSLOT: &[u8] = b"-CROSSSLOT Keys in request don't hash to the same slot\r\n";
/// Returns the name of pmnet's records for a shard, in this slot.
pub fn records_name(shard: u32, slot: u16) -> String {
    let fits = |number: &u32| slot_of(format!("{shard}-{number}").as_bytes()) == slot;
    let number = (0_u32..).find(fits).unwrap_or_default();
    format!("pmnet:{{{shard}-{number}}}")
}

/// Returns a key for `name` in this slot.
pub fn in_slot(slot: u16, name: &str) -> String {
    format!("{{{}}}{name}", tag_of(slot))
}

/// Returns a key in this slot that never exists.
pub fn probe(slot: u16) -> Vec<u8> {
    format!("pmnet:{}", in_slot(slot, ":none")).into_bytes()
}

/// Returns whether the error reports that keys are at another node.
pub fn is_elsewhere(error: &str) -> bool {
    let code = error.split(' ').next().unwrap_or("");
    ELSEWHERE.contains(&code)
}

/// Error for a client if another node serves the slot of its keys and pmnet does not know which slot it is. The
/// client's command was not executed.
pub const ELSEWHERE_TEXT: &str = "TRYAGAIN pmnet: the slot of its keys is not with the master of its shard, or is being moved; the \
                                  command was not executed";

/// Returns the slot that a script of pmnet did not find at its node, and Redis's reason (`slots.lua`). `slots`: the
/// slots of the script.
pub fn elsewhere<'a>(error: &'a str, slots: &[u16]) -> Option<(u16, &'a str)> {
    let (number, why) = error.strip_prefix("ELSEWHERE ")?.split_once(' ')?;
    let slot = slots.get(number.parse::<usize>().ok()?)?;
    Some((*slot, why))
}

/// Returns the error for a client if the master of its shard does not serve the slot of its keys. The client's command
/// was not executed.
pub fn elsewhere_reply(slot: u16) -> Vec<u8> {
    pmnet_resp::reply::error(&format!(
        "TRYAGAIN pmnet: slot {slot} is not with the master of its shard, or is being moved; the command was not executed"
    ))
    .into()
}

/// Returns the message about writes that wait because of a slot.
pub fn waits_for(slot: u16, why: &str) -> String {
    format!(
        "PM2510 slot {slot} is not with this shard's master, or is being moved ({why}). What was acknowledged for its keys waits, and so does \
         everything after it; the devices keep it. Tell all fronts first that the slot is moving, then move it back (redis-cli --cluster reshard, or \
         CLUSTER SETSLOT {slot} STABLE at both nodes), as docs/use/sharding.md says"
    )
}

/// If the store is a Redis Cluster, returns the slot of the keys that a transaction names; `None` if it names no keys.
/// The inner error is the client's reply if the keys are in several slots, or in a slot of another node.
///
/// # Errors
/// `Retry`: Redis does not name the slot's node.
pub fn one_slot(
    link: &mut Link,
    plan: &Plan<'_>,
) -> Result<Result<Option<u16>, Vec<u8>>, StoreError> {
    let slots = plan.slots(&link.commands);
    if slots.len() > 1 {
        return Ok(Err(CROSSSLOT.to_vec()));
    }
    let Some(slot) = slots.first().copied() else {
        return Ok(Ok(None));
    };
    let reply = link.connection.call(&[b"EXISTS", &probe(slot)])?;
    Ok(match read::error(&reply) {
        Some(error) if is_elsewhere(error) => Err(elsewhere_reply(slot)),
        Some(error) => return Err(StoreError::Retry(error.to_owned())),
        None => Ok(Some(slot)),
    })
}

/// Asks a node for the master that serves this slot.
///
/// # Errors
/// The reason why there is no answer.
pub fn ask(
    place: &(String, u16),
    slot: u16,
    url: &RedisUrl,
    link: &mut Option<Connection>,
) -> Result<Master, String> {
    let link = match link {
        Some(link) => link,
        None => link.insert(open(place, url)?),
    };
    let nodes = nodes(link)?;
    let node = nodes.iter().find(|node| node.serves(slot));
    let node = node.ok_or_else(|| format!("it knows nobody who serves slot {slot}"))?;
    Ok(Master {
        // A node that has never met another node does not know its own address.
        host: if node.host.is_empty() {
            place.0.clone()
        } else {
            node.host.clone()
        },
        port: node.port,
        epoch: node.epoch,
    })
}

/// Connects, and logs in as `url` requires.
///
/// # Errors
/// The reason why there is no connection.
pub fn open((host, port): &(String, u16), url: &RedisUrl) -> Result<Connection, String> {
    log_in(&url.at(host, *port)?)
}

/// Connects to the Redis that `url` names itself, and logs in.
///
/// # Errors
/// The reason why there is no connection.
pub fn log_in(url: &RedisUrl) -> Result<Connection, String> {
    let mut link = Connection::open_within(url, ASK_SECONDS).map_err(StoreError::into_text)?;
    let reply = link.log_in(url).map_err(StoreError::into_text)?;
    match reply.as_deref().and_then(read::error) {
        Some(error) => Err(error.to_owned()),
        None => Ok(link),
    }
}

fn nodes(link: &mut Connection) -> Result<Vec<Node>, String> {
    let reply = link.call(&[b"CLUSTER", b"NODES"]);
    let reply = reply.map_err(StoreError::into_text)?;
    if let Some(error) = read::error(&reply) {
        return Err(error.to_owned());
    }
    let text = read::text(&reply).and_then(|text| std::str::from_utf8(text).ok());
    let nodes = text.and_then(|text| text.lines().map(Node::parse).collect());
    nodes.ok_or_else(|| "its answer to CLUSTER NODES is not understood".into())
}

/// A node of the cluster, from its own description or from that of another node.
#[derive(Debug, PartialEq, Eq)]
struct Node {
    host: String,
    port: u16,
    myself: bool,
    epoch: u64,
    slots: Vec<RangeInclusive<u16>>,
    /// Slots that the node is moving to or from another node.
    open: Vec<u16>,
}

impl Node {
    /// Reads a line of `CLUSTER NODES`: id, `host:port@bus[,name]`, flags, master, two times, epoch, state of the link,
    /// slots.
    fn parse(line: &str) -> Option<Node> {
        let mut words = line.split(' ');
        let (_id, address, flags) = (words.next()?, words.next()?, words.next()?);
        let (place, _bus) = address.split_once('@')?;
        let (host, port) = place.rsplit_once(':')?;
        let epoch = words.nth(3)?.parse().ok()?;
        let _link = words.next()?;
        let (mut slots, mut open) = (Vec::new(), Vec::new());
        for word in words.filter(|word| !word.is_empty()) {
            match word.strip_prefix('[') {
                Some(moving) => open.push(moving.split('-').next()?.parse().ok()?),
                None => slots.extend(parse_slots(word).ok()?),
            }
        }
        Some(Node {
            host: host.to_owned(),
            port: port.parse().ok()?,
            myself: flags.split(',').any(|flag| flag == "myself"),
            epoch,
            slots,
            open,
        })
    }

    fn serves(&self, slot: u16) -> bool {
        self.slots.iter().any(|range| range.contains(&slot))
    }
}

impl RedisStore {
    /// Returns whether the slot does not belong to this shard, and the master did not serve it when it was connected.
    pub(super) fn is_foreign(&self, slot: u16) -> bool {
        let guides = self.url.guides.as_ref().map(|guides| &guides.wanted);
        let Some(Wanted::Slots(wanted)) = guides else {
            return false;
        };
        let has = |ranges: &[RangeInclusive<u16>]| ranges.iter().any(|range| range.contains(&slot));
        !has(wanted) && !has(&self.served_slots)
    }

    /// Checks whether the node serves the slots of its shard. If the node does not serve them, a server that is
    /// starting refuses this master. A running server continues. Commands that need a missing slot then wait.
    pub(super) fn check_slots(&mut self, link: &mut Connection) -> Result<(), StoreError> {
        let Some(Wanted::Slots(wanted)) = self.url.guides.as_ref().map(|guides| &guides.wanted)
        else {
            return Ok(());
        };
        let all = match nodes(link) {
            Ok(all) => all,
            Err(error) if error.starts_with("NOPERM") => return Err(refused(&error, "CLUSTER")),
            Err(error) => return Err(StoreError::Retry(format!("PM2504 CLUSTER NODES: {error}"))),
        };
        let Some(own) = all.iter().find(|node| node.myself) else {
            return Err(StoreError::Retry(
                "PM2505 CLUSTER NODES names no node as its own".into(),
            ));
        };
        self.served_slots.clone_from(&own.slots);
        if let Some(home) = self.home.filter(|home| own.open.contains(home)) {
            return Err(StoreError::Retry(format!(
                "PM2501 slot {home}, where pmnet's records of this shard are, is being moved, and must stay: CLUSTER SETSLOT {home} STABLE at \
                 both nodes. Until then the devices keep what was acknowledged"
            )));
        }
        let of_shard = || wanted.iter().cloned().flatten();
        let missing: Vec<u16> = of_shard().filter(|slot| !own.serves(*slot)).collect();
        let moving: Vec<u16> = of_shard().filter(|slot| own.open.contains(slot)).collect();
        let of = |slots: &[u16]| {
            let first = slots.first().copied().unwrap_or_default();
            let server = all.iter().find(|node| node.serves(first));
            let server = server.map_or_else(
                || "nobody".to_owned(),
                |node| endpoint(&(node.host.clone(), node.port)),
            );
            format!(
                "{} slot(s), the first is {first}, served by {server}",
                slots.len()
            )
        };
        let text = match (missing.is_empty(), moving.is_empty()) {
            (true, true) => {
                self.unfit_slots = None;
                return Ok(());
            }
            (false, _) => format!(
                "the master {} of slot {} does not serve all of {}: it lacks {}",
                self.url.endpoint(),
                self.home.unwrap_or_default(),
                shown(wanted, ","),
                of(&missing)
            ),
            (true, false) => format!(
                "the master {} is moving {}",
                self.url.endpoint(),
                of(&moving)
            ),
        };
        if !missing.is_empty() && !self.served {
            return Err(StoreError::Fatal(format!(
                "PM2502 {text}. Give the server the slots that its master has (--store redis+cluster://…/SLOTS), or move them there"
            )));
        }
        if self.unfit_slots.as_ref() != Some(&text) {
            tracing::warn!(
                "PM2503 {text}. Commands for their keys are refused, and what was acknowledged for them waits"
            );
            self.unfit_slots = Some(text);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_nodes_are_read() {
        let line = "07c3 127.0.0.1:7000@17000,name myself,master - 0 1426238317239 4 connected 0-5460 6000 [93-<-ab] [77->-cd]";
        let node = Node::parse(line).unwrap();
        assert_eq!(
            (node.host.as_str(), node.port, node.epoch),
            ("127.0.0.1", 7000, 4)
        );
        assert!(node.myself && node.serves(5460) && node.serves(6000) && !node.serves(5461));
        assert_eq!(node.open, [93, 77]);
        let v6 = Node::parse("a fe80::1:7001@17001 slave b 0 0 3 connected").unwrap();
        assert_eq!(
            (v6.host.as_str(), v6.port, v6.myself),
            ("fe80::1", 7001, false)
        );
        let unmet = Node::parse("a :7000@17000 myself,master - 0 0 0 connected 1").unwrap();
        assert_eq!(unmet.host, "");
        for bad in [
            "",
            "a",
            "a b:1@2 master - 0 0 x connected",
            "a b:x@2 master - 0 0 1 connected",
            "a b:1 master - 0 0 1 connected",
            "a b:1@2 master - 0 0 1 connected 5-x",
        ] {
            assert_eq!(Node::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn names_fall_into_their_slots() {
        for (shard, slot) in [(0, 0), (0, 5460), (7, 16_383)] {
            assert_eq!(slot_of(records_name(shard, slot).as_bytes()), slot);
            let scripts = records_name(shard, slot) + ":scripts";
            assert_eq!(slot_of(scripts.as_bytes()), slot);
            assert_eq!(slot_of(&probe(slot)), slot);
        }
        assert_ne!(records_name(1, 9), records_name(0, 9));
    }
}
