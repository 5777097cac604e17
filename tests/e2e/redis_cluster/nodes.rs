//! A real Redis Cluster of three masters, each with a replica, and the actions of an operator on
//! it.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use pmnet_lab::harness::{Process, Ready, Spec, find_program, free_port, slots_of};
use pmnet_lab::resp::{Client, Reply};

use crate::common::binaries;
use crate::failover::call;
use crate::support::{CALL_MAX, connect, eventually, ok};

pub const MASTERS: usize = 3;
/// Longest wait for the result of an action.
const WAIT: Duration = Duration::from_secs(60);

pub struct Node {
    process: Process,
    pub address: SocketAddr,
    pub id: String,
    bus: u16,
}

pub struct Nodes {
    /// All nodes of the cluster. The first three were masters at the start.
    pub all: Vec<Node>,
}

fn text(reply: &Reply) -> String {
    reply.text().unwrap_or_default()
}

fn launch(folder: &Path, number: usize) -> Node {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()));
    let bus = free_port().unwrap();
    let folder = folder.join(format!("node{number}"));
    std::fs::create_dir_all(&folder).unwrap();
    let args = [
        ("--bind", "127.0.0.1"),
        ("--port", &address.port().to_string()),
        ("--cluster-enabled", "yes"),
        ("--cluster-port", &bus.to_string()),
        ("--cluster-node-timeout", "1500"),
        ("--cluster-require-full-coverage", "no"),
        ("--cluster-replica-validity-factor", "0"),
        ("--repl-diskless-sync-delay", "0"),
        ("--appendonly", "yes"),
        ("--appendfsync", "always"),
        ("--save", ""),
        ("--dir", folder.to_str().unwrap()),
    ];
    let args = args
        .iter()
        .flat_map(|(flag, value)| [flag.into(), value.into()]);
    let spec = Spec {
        name: format!("node{number}"),
        binaries: binaries().clone(),
        program: find_program("redis-server"),
        args: args.collect(),
        ready: Ready::Redis(address),
    };
    let process = Process::start(spec, &folder, CALL_MAX).unwrap();
    let id = text(&call(&mut connect(address), "CLUSTER MYID"));
    Node {
        process,
        address,
        id,
        bus,
    }
}

impl Nodes {
    pub fn start(folder: &Path) -> Nodes {
        let all: Vec<Node> = (0..2 * MASTERS)
            .map(|number| launch(folder, number))
            .collect();
        let nodes = Nodes { all };
        for (number, node) in nodes.all.iter().enumerate() {
            let mut client = nodes.client(number);
            if number < MASTERS {
                let slots = slots_of(number, MASTERS).replace('-', " ");
                assert_eq!(
                    call(&mut client, &format!("CLUSTER ADDSLOTSRANGE {slots}")),
                    ok()
                );
            }
            let epoch = format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1);
            assert_eq!(call(&mut client, &epoch), ok());
            let port = node.address.port();
            let meet = format!("CLUSTER MEET 127.0.0.1 {port} {}", node.bus);
            assert_eq!(call(&mut nodes.client(0), &meet), ok());
        }
        for number in 0..2 * MASTERS {
            eventually("the nodes know each other", WAIT, || {
                let known = text(&call(&mut nodes.client(number), "CLUSTER NODES"));
                known.lines().count() == 2 * MASTERS && !known.contains("handshake")
            });
        }
        for number in 0..MASTERS {
            let replicate = format!("CLUSTER REPLICATE {}", nodes.all[number].id);
            assert_eq!(call(&mut nodes.client(MASTERS + number), &replicate), ok());
        }
        nodes.wait_whole();
        nodes
    }

    pub fn client(&self, number: usize) -> Client {
        connect(self.all[number].address)
    }

    /// Returns the store's URL for the server of this shard.
    pub fn url(&self, slots: &str) -> String {
        let all: Vec<String> = self
            .all
            .iter()
            .map(|node| node.address.to_string())
            .collect();
        format!("redis+cluster://{}/{slots}?wait_replicas=1", all.join(","))
    }

    /// Waits until all slots are served, and each master has a replica with all data.
    pub fn wait_whole(&self) {
        eventually("all masters have a replica", WAIT, || {
            (0..self.all.len()).all(|number| {
                let mut client = self.client(number);
                let info = text(&call(&mut client, "CLUSTER INFO"));
                let is_ok = info.contains("cluster_state:ok")
                    && info.contains("cluster_slots_ok:16384\r\n")
                    && info.contains(&format!("cluster_size:{MASTERS}\r\n"));
                let replication = text(&call(&mut client, "INFO replication"));
                let synced = replication.contains("state=online")
                    || replication.contains("master_link_status:up");
                is_ok && synced
            })
        });
    }

    /// Returns the node that serves a slot, according to most of the other nodes.
    pub fn master_of(&self, slot: u16) -> usize {
        let mut votes = vec![0; self.all.len()];
        for node in &self.all {
            let Ok(mut client) = Client::connect(node.address, CALL_MAX) else {
                continue;
            };
            let Ok(Reply::Array(ranges)) = client.call(&["CLUSTER", "SLOTS"]) else {
                continue;
            };
            for range in ranges {
                let Reply::Array(parts) = range else { continue };
                let [
                    Reply::Integer(first),
                    Reply::Integer(last),
                    Reply::Array(server),
                    ..,
                ] = &parts[..]
                else {
                    continue;
                };
                if (*first..=*last).contains(&i64::from(slot)) {
                    let id = text(&server[2]);
                    let number = self.all.iter().position(|node| node.id == id).unwrap();
                    votes[number] += 1;
                }
            }
        }
        let most = votes.iter().max().copied().unwrap();
        votes.iter().position(|count| *count == most).unwrap()
    }

    /// Kills the master of a slot, waits until its replica has taken over, and starts the old
    /// master again. Returns the old and the new address.
    pub fn fail_over(&mut self, slot: u16) -> (SocketAddr, SocketAddr) {
        let old = self.master_of(slot);
        self.all[old].process.kill().unwrap();
        eventually("the replica takes over", WAIT, || {
            self.master_of(slot) != old
        });
        let new = self.master_of(slot);
        let process = &mut self.all[old].process;
        process.relaunch().unwrap();
        process.wait_ready(CALL_MAX).unwrap();
        (self.all[old].address, self.all[new].address)
    }

    /// Moves a slot with its keys, as the guide describes.
    pub fn move_slot(&self, slot: u16, to: usize) {
        let from = self.master_of(slot);
        let (ids, port) = (
            [&self.all[from].id, &self.all[to].id],
            self.all[to].address.port(),
        );
        let [mut source, mut target] = [self.client(from), self.client(to)];
        let set = |client: &mut Client, what: &str, id: &str| {
            assert_eq!(
                call(client, &format!("CLUSTER SETSLOT {slot} {what} {id}")),
                ok()
            );
        };
        set(&mut target, "IMPORTING", ids[0]);
        set(&mut source, "MIGRATING", ids[1]);
        loop {
            let keys = call(&mut source, &format!("CLUSTER GETKEYSINSLOT {slot} 100"));
            let Reply::Array(keys) = keys else {
                panic!("{keys:?}")
            };
            if keys.is_empty() {
                break;
            }
            let mut words: Vec<String> = format!("MIGRATE 127.0.0.1 {port}")
                .split(' ')
                .map(str::to_owned)
                .collect();
            words.extend(["", "0", "5000", "KEYS"].map(str::to_owned));
            words.extend(keys.iter().map(text));
            assert_eq!(source.call(&words).unwrap(), ok());
        }
        set(&mut target, "NODE", ids[1]);
        set(&mut source, "NODE", ids[1]);
        eventually("all know of it", WAIT, || {
            let knows = |number: &usize| {
                let nodes = text(&call(&mut self.client(*number), "CLUSTER NODES"));
                let mine = nodes.lines().find(|line| line.starts_with(ids[1])).unwrap();
                mine.split(' ').skip(8).any(|range| {
                    let (first, last) = range.split_once('-').unwrap_or((range, range));
                    let number = |text: &str| text.parse::<u16>().unwrap();
                    !range.starts_with('[') && (number(first)..=number(last)).contains(&slot)
                })
            };
            (0..self.all.len()).all(|number| knows(&number))
        });
    }
}
