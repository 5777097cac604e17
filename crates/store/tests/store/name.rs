//! The store's name in the reply to a barrier is enough to recognize the store on another connection.

use crate::support::{Redis, bulk, read};
use pmnet_server::Store;
use pmnet_wire::StoreName;
use pmnet_wire::command::barrier;

fn named(store: &mut dyn Store) -> StoreName {
    let reply = read(store, barrier().into());
    let text = bulk(&reply).unwrap_or_else(|| panic!("{reply:?} is no name"));
    StoreName::parse(text.as_bytes()).expect("the name of a store")
}

/// Returns the run id and the owner that another connection finds.
fn found(redis: &Redis, records: &str) -> (String, String) {
    let info = redis.call(&["INFO", "server"]);
    let run_id = info
        .lines()
        .find_map(|line| line.strip_prefix("run_id:"))
        .expect("a run id");
    let owner = bulk(&redis.call(&["HGET", records, "owner"])).expect("an owner");
    (run_id.to_owned(), owner)
}

#[test]
fn a_barrier_names_the_process_and_who_owns_the_records_there() {
    let Some(mut redis) = Redis::start(&["--appendonly", "yes", "--appendfsync", "always"]) else {
        return;
    };
    let mut store = redis.store();
    store.load().unwrap();
    let first = named(&mut *store);
    assert_eq!(first.address.port(), redis.port);
    assert!(first.reads, "a plain read shows only what is synced");
    let expected = (first.run_id.clone(), first.owner.clone());
    assert_eq!(found(&redis, &first.records), expected);
    // The records are loaded again from the same Redis process.
    store.load().unwrap();
    let second = named(&mut *store);
    assert!(second.same_process(&first));
    assert_ne!(second.owner, first.owner);
    assert_eq!(found(&redis, &second.records).1, second.owner);
    // Now another process serves at this address.
    redis.kill();
    redis.restart();
    store.load().unwrap();
    let third = named(&mut *store);
    assert_eq!(third.address, first.address);
    assert!(!third.same_process(&second));
    assert_eq!(found(&redis, &third.records), (third.run_id, third.owner));
}
