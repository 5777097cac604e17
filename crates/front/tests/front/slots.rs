//! Compares the slots that the front computes for keys with those of a real redis-server in cluster mode (`CLUSTER
//! KEYSLOT`).

use crate::common::Redis;
use crate::common::claims::Port;
use pmnet_front::shards::slot::slot_of;
use pmnet_resp::{read, write_command};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

/// Keys of any bytes, with complete hash tags, with broken ones, and without.
fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        prop::collection::vec(prop::sample::select(b"ab{}\0\r\n".to_vec()), 0..12),
        ("[a-z]{0,8}", "[a-z0-9]{0,8}", "[a-z]{0,8}")
            .prop_map(|(before, tag, behind)| format!("{before}{{{tag}}}{behind}").into_bytes()),
    ]
}

#[test]
fn slots_are_those_of_redis_cluster() {
    // The default port of the server's bus, which is 10,000 higher, may be in use by another process.
    let bus = Port::claim().expect("a port");
    let bus = bus.number().to_string();
    let options = ["--cluster-enabled", "yes", "--cluster-port", &bus];
    let Some(redis) = Redis::start_with(&options) else {
        return;
    };
    let mut client = redis.client();
    let mut runner = TestRunner::default();
    for _ in 0..100 {
        let keys: Vec<Vec<u8>> = (0..100)
            .map(|_| key().new_tree(&mut runner).expect("a key").current())
            .collect();
        let mut frames = Vec::new();
        for key in &keys {
            write_command(&mut frames, &[&b"CLUSTER"[..], b"KEYSLOT", key]);
        }
        client.send(&frames);
        for key in keys {
            let reply = client.next().expect("a reply");
            assert_eq!(
                read::integer(&reply),
                Some(i64::from(slot_of(&key))),
                "{key:?}"
            );
        }
    }
}
