//! The answers to CLUSTER. The answers describe a cluster of one node, the router, which serves the slots of all
//! shards. A client for clusters is never redirected to another node.

use std::net::SocketAddr;

use bytes::Bytes;
use pmnet_resp::{Arguments, reply, write_bulk, write_header, write_integer, write_map};

use pmnet_wire::slots::shown;

use super::slot::{SLOTS, SlotMap, slot_of};

/// Returns the answer to a CLUSTER command whose number of arguments is right.
pub(super) fn answer(
    arguments: &Arguments<'_>,
    map: &SlotMap,
    at: SocketAddr,
    resp3: bool,
) -> Bytes {
    let is = |word| arguments.is(1, word);
    if is("KEYSLOT") {
        return reply::integer(i64::from(slot_of(arguments.get(2))));
    }
    let id = id(at);
    let ranges = map.served();
    let mut out = Vec::new();
    if is("MYID") {
        return reply::bulk(id.as_bytes());
    } else if is("INFO") {
        let assigned: usize = ranges.iter().map(ExactSizeIterator::len).sum();
        let state = if assigned == usize::from(SLOTS) {
            "ok"
        } else {
            "fail"
        };
        let text = format!(
            "cluster_state:{state}\r\ncluster_slots_assigned:{assigned}\r\ncluster_slots_ok:{assigned}\r\n\
             cluster_slots_pfail:0\r\ncluster_slots_fail:0\r\ncluster_known_nodes:1\r\ncluster_size:1\r\n\
             cluster_current_epoch:1\r\ncluster_my_epoch:1\r\n"
        );
        return reply::bulk(text.as_bytes());
    } else if is("NODES") {
        let text = format!(
            "{id} {at}@{port} myself,master - 0 0 1 connected {slots}\n",
            port = at.port(),
            slots = shown(&ranges, " ")
        );
        return reply::bulk(text.as_bytes());
    } else if is("SLOTS") {
        write_header(&mut out, ranges.len());
        for range in &ranges {
            write_header(&mut out, 3);
            write_integer(&mut out, i64::from(*range.start()));
            write_integer(&mut out, i64::from(*range.end()));
            write_header(&mut out, 4);
            write_bulk(&mut out, at.ip().to_string().as_bytes());
            write_integer(&mut out, i64::from(at.port()));
            write_bulk(&mut out, id.as_bytes());
            write_header(&mut out, 0);
        }
    } else if is("SHARDS") {
        write_header(&mut out, 1);
        write_map(&mut out, 2, resp3);
        write_bulk(&mut out, b"slots");
        write_header(&mut out, 2 * ranges.len());
        for range in &ranges {
            write_integer(&mut out, i64::from(*range.start()));
            write_integer(&mut out, i64::from(*range.end()));
        }
        write_bulk(&mut out, b"nodes");
        write_header(&mut out, 1);
        let ip = at.ip().to_string();
        let texts: [(&str, &str); 5] = [
            ("id", &id),
            ("ip", &ip),
            ("endpoint", &ip),
            ("role", "master"),
            ("health", "online"),
        ];
        write_map(&mut out, texts.len() + 2, resp3);
        for (name, text) in texts {
            write_bulk(&mut out, name.as_bytes());
            write_bulk(&mut out, text.as_bytes());
        }
        for (name, number) in [("port", i64::from(at.port())), ("replication-offset", 0)] {
            write_bulk(&mut out, name.as_bytes());
            write_integer(&mut out, number);
        }
    } else {
        return reply::error(
            "ERR pmnet: of CLUSTER only INFO, KEYSLOT, MYID, NODES, SHARDS and SLOTS are possible here: the shards are given \
             by a file, and keys are not listed by slot",
        );
    }
    out.into()
}

/// Returns the node's name, which depends on the address alone. Like the names in Redis, it has 40 digits.
fn id(at: SocketAddr) -> String {
    (0..10)
        .map(|part| format!("{:04x}", slot_of(format!("{part} {at}").as_bytes())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::REQUESTS;
    use crate::shards::slot::parse_slots;
    use pmnet_resp::{Parser, Status, read};

    fn ask(words: &[&str], resp3: bool) -> Bytes {
        let mut frame = Vec::new();
        pmnet_resp::write_command(&mut frame, words);
        let mut parser = Parser::new(REQUESTS);
        assert!(matches!(parser.poll(&frame), Ok(Status::Complete)));
        let lists = ["0-99", "100-199,300"].map(|text| parse_slots(text).unwrap());
        let map = SlotMap::new(&lists).unwrap();
        let at = ([127, 0, 0, 1], 7000).into();
        answer(&parser.arguments(&frame), &map, at, resp3)
    }

    #[test]
    fn it_is_a_cluster_of_one_node() {
        assert_eq!(
            &ask(&["CLUSTER", "KEYSLOT", "foo"], false)[..],
            b":12182\r\n"
        );
        let id = ask(&["CLUSTER", "MYID"], false);
        let id = String::from_utf8(read::bulk(&id).unwrap().to_vec()).unwrap();
        assert_eq!(id.len(), 40);
        let nodes = ask(&["cluster", "nodes"], false);
        let expected =
            format!("{id} 127.0.0.1:7000@7000 myself,master - 0 0 1 connected 0-199 300\n");
        assert_eq!(read::bulk(&nodes).unwrap(), expected.as_bytes());
        let slots = ask(&["CLUSTER", "SLOTS"], false);
        let slots = read::elements(&slots).unwrap();
        assert_eq!(slots.len(), 2);
        assert!(
            slots[0].starts_with(b"*3\r\n:0\r\n:199\r\n*4\r\n$9\r\n127.0.0.1\r\n:7000\r\n$40\r\n")
        );
        for resp3 in [false, true] {
            let shards = ask(&["CLUSTER", "SHARDS"], resp3);
            let shards = read::elements(&shards).unwrap();
            assert_eq!(shards.len(), 1);
            assert_eq!(read::elements(shards[0]).unwrap().len(), 4);
        }
        let info = ask(&["CLUSTER", "INFO"], false);
        let info = String::from_utf8_lossy(&info).into_owned();
        assert!(
            info.contains("cluster_state:fail\r\ncluster_slots_assigned:201\r\n"),
            "{info}"
        );
        assert!(ask(&["CLUSTER", "FAILOVER"], false).starts_with(b"-ERR pmnet: of CLUSTER"));
    }
}
