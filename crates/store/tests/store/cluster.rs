//! A real Redis Cluster of two masters as the store (`docs/spec/sharding.md`, §5). Effects and records are one step in
//! all slots, even while a slot is being moved, or after it has moved.

use std::time::{Duration, Instant};

use bytes::Bytes;
use pmnet_server::{Store, StoreError};
use pmnet_wire::command::{Form, Protocol};
use pmnet_wire::slots::slot_of;

use crate::support::claims::Port;
use crate::support::{
    Redis, arguments, batch, change, load, payload, read, script, single, watermark,
};

const WAIT: Duration = Duration::from_secs(20);
/// Keys of three slots of the first master (449, 3300 and 5061), and a key of the second master.
const OWN: [&str; 3] = ["k2", "b", "bar"];
const OTHER: &str = "foo";
/// The slots of the first master.
const SLOTS: &str = "0-8191";

/// Two masters.
struct Pair {
    nodes: [Redis; 2],
    ids: [String; 2],
}

impl Pair {
    fn start() -> Option<Pair> {
        let node = || {
            let claim = Port::claim().unwrap();
            let bus = claim.number().to_string();
            Redis::start(&["--cluster-enabled", "yes", "--cluster-port", &bus])
                .map(|redis| (redis, bus))
        };
        let (first, _) = node()?;
        let (second, bus) = node()?;
        first.call(&["CLUSTER", "ADDSLOTSRANGE", "0", "8191"]);
        second.call(&["CLUSTER", "ADDSLOTSRANGE", "8192", "16383"]);
        second.call(&["CLUSTER", "SET-CONFIG-EPOCH", "2"]);
        let port = second.port.to_string();
        first.call(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
        let nodes = [first, second];
        let until = Instant::now() + WAIT;
        for node in &nodes {
            while !(node.call(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
                && node.call(&["CLUSTER", "SLOTS"]).starts_with("*2\r\n"))
            {
                assert!(Instant::now() < until, "the cluster forms");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let id = |node: &Redis| crate::support::bulk(&node.call(&["CLUSTER", "MYID"])).unwrap();
        let ids = [id(&nodes[0]), id(&nodes[1])];
        Some(Pair { nodes, ids })
    }

    fn url(&self, slots: &str) -> String {
        let [first, second] = &self.nodes;
        format!(
            "redis+cluster://127.0.0.1:{},127.0.0.1:{}/{slots}",
            first.port, second.port
        )
    }

    fn store(&self) -> Box<dyn Store> {
        pmnet_store::open(&self.url(SLOTS), 0).unwrap()
    }

    /// Prepares the move of a key's slot to the other node.
    fn begin_move(&self, key: &str, from: usize) {
        let slot = slot_of(key.as_bytes()).to_string();
        let (node, target) = (&self.nodes[from], &self.nodes[1 - from]);
        let said = target.call(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.ids[from]]);
        assert_eq!(said, "+OK\r\n");
        let said = node.call(&[
            "CLUSTER",
            "SETSLOT",
            &slot,
            "MIGRATING",
            &self.ids[1 - from],
        ]);
        assert_eq!(said, "+OK\r\n");
    }

    fn end_move(&self, key: &str, from: usize) {
        let slot = slot_of(key.as_bytes()).to_string();
        let port = self.nodes[1 - from].port.to_string();
        let keys = self.nodes[from].call(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
        for key in keys.split("\r\n").filter(|line| line.contains(key)) {
            let moved = ["MIGRATE", "127.0.0.1", &port, key, "0", "5000"];
            assert_eq!(self.nodes[from].call(&moved), "+OK\r\n");
        }
        for node in [1 - from, from] {
            let said =
                self.nodes[node].call(&["CLUSTER", "SETSLOT", &slot, "NODE", &self.ids[1 - from]]);
            assert_eq!(said, "+OK\r\n");
        }
    }

    fn get(&self, key: &str) -> Option<String> {
        self.nodes[0].get(key)
    }
}

fn retry(result: Result<u64, StoreError>, says: &str) {
    let Err(StoreError::Retry(text)) = result else {
        panic!("{result:?}")
    };
    assert!(text.contains(says), "{text}");
}

/// Returns the reply to a request that changes the store.
fn asked(store: &mut dyn Store, payload: Bytes) -> String {
    change(store, payload)
}

#[test]
fn a_batch_over_many_slots_is_one_step() {
    let Some(pair) = Pair::start() else { return };
    let mut store = pair.store();
    assert_eq!(load(&mut *store), []);
    let mut effects: Vec<Bytes> = Vec::new();
    for key in OWN {
        effects.push(single(&format!("SET {key} 1")));
        effects.push(single(&format!("SETEX {{{key}}}e 1000 v")));
        let both = [format!("SET {{{key}}}t 1"), format!("SET {{{key}}}u 2")];
        let both = both.each_ref().map(String::as_str);
        effects.push(payload(Form::Transaction, Protocol::Resp2, 0, &both));
    }
    // This command has more arguments than a script can pass to one command.
    let mut long: Vec<Vec<u8>> = vec![b"MSET".to_vec()];
    for number in 0..6000 {
        long.extend([format!("{{b}}{number}").into_bytes(), b"v".to_vec()]);
    }
    let long: Vec<&[u8]> = long.iter().map(Vec::as_slice).collect();
    effects.push(arguments(&long));
    assert_eq!(store.apply(&batch(&effects, 7)), Ok(0));
    assert_eq!(watermark(&load(&mut *store)), 7);
    for key in OWN {
        assert_eq!(pair.get(key).as_deref(), Some("1"));
        assert_eq!(pair.get(&format!("{{{key}}}u")).as_deref(), Some("2"));
    }
    assert_eq!(pair.get("{b}5999").as_deref(), Some("v"));
    // In a batch with a command that fails, only this command fails.
    let effects = [single("HSET bar f v"), single("SET b 2")];
    assert_eq!(store.apply(&batch(&effects, 8)), Ok(1));
    assert_eq!(pair.get("b").as_deref(), Some("2"));
    // FLUSHALL keeps the records, and clients do not see them.
    assert_eq!(store.apply(&batch(&[single("FLUSHALL")], 9)), Ok(0));
    assert_eq!(watermark(&load(&mut *store)), 9);
    assert_eq!(read(&mut *store, single("DBSIZE")), ":0\r\n");
    // After the process has ended, another process finds the same data.
    let mut later = pair.store();
    assert_eq!(watermark(&load(&mut *later)), 9);
}

/// Requests of all kinds have a record, even if they use other slots than the records. The requests run in a script or
/// in a transaction.
#[test]
fn requests_in_any_slot_have_their_record() {
    let Some(pair) = Pair::start() else { return };
    let mut store = pair.store();
    load(&mut *store);
    let library = "#!lua name=lib\nredis.register_function('put', function(keys, args) redis.call('SET', keys[1], args[1]) return args[1] end)";
    for node in &pair.nodes {
        assert_eq!(node.call(&["FUNCTION", "LOAD", library]), "$3\r\nlib\r\n");
    }
    for key in OWN {
        assert_eq!(
            asked(&mut *store, single(&format!("INCR {{{key}}}n"))),
            ":1\r\n"
        );
        assert_eq!(
            asked(&mut *store, single(&format!("RPUSH {{{key}}}l a b"))),
            ":2\r\n"
        );
        // These commands need a MULTI.
        assert_eq!(
            asked(&mut *store, single(&format!("BLPOP {{{key}}}l 0"))),
            format!("*2\r\n${}\r\n{{{key}}}l\r\n$1\r\na\r\n", key.len() + 3)
        );
        assert_eq!(
            asked(&mut *store, single(&format!("FCALL put 1 {key} hello"))),
            "$5\r\nhello\r\n"
        );
        assert_eq!(pair.get(key).as_deref(), Some("hello"));
        let exec = [
            format!("HSET {{{key}}}h f v"),
            format!("HGETALL {{{key}}}h"),
        ];
        let exec = exec.each_ref().map(String::as_str);
        let exec = payload(Form::Transaction, Protocol::Resp3, 0, &exec);
        assert_eq!(
            asked(&mut *store, exec),
            "*2\r\n:1\r\n%1\r\n$1\r\nf\r\n$1\r\nv\r\n"
        );
        let eval = script(
            Protocol::Resp2,
            &[
                "EVAL",
                "return redis.call('SET', KEYS[1], ARGV[1])",
                "1",
                key,
                "x",
            ],
        );
        assert_eq!(asked(&mut *store, eval), "+OK\r\n");
        assert_eq!(
            read(&mut *store, single(&format!("GET {key}"))),
            "$1\r\nx\r\n"
        );
    }
    // The pack has keys in all these slots, and in the middle a command that cannot run in a script. The first part
    // runs, and the rest is sent again.
    let pack = |commands: &[&str]| payload(Form::Pack, Protocol::Resp2, 0, commands);
    let reply = asked(
        &mut *store,
        pack(&["INCR {k2}n", "INCR {b}n", "BLPOP {b}l 0", "INCR {bar}n"]),
    );
    assert_eq!(reply, "*2\r\n:2\r\n:2\r\n");
    let reply = asked(&mut *store, pack(&["BLPOP {b}l 0", "INCR {bar}n"]));
    assert!(reply.starts_with("*1\r\n*2\r\n"), "{reply}");
    let reply = asked(&mut *store, pack(&["INCR {bar}n"]));
    assert_eq!(reply, "*1\r\n:2\r\n");
    // These commands concern the whole node.
    assert_eq!(asked(&mut *store, single("CONFIG SET hz 20")), "+OK\r\n");
    assert_eq!(asked(&mut *store, single("SCRIPT FLUSH")), "+OK\r\n");
    load(&mut *store);
    // The keys are in several slots, one of which belongs to the other node.
    let cross = "-CROSSSLOT Keys in request don't hash to the same slot\r\n";
    let exec = payload(
        Form::Transaction,
        Protocol::Resp2,
        0,
        &["BLPOP {b}l 0", "INCR {bar}n"],
    );
    assert_eq!(asked(&mut *store, exec), cross);
    let elsewhere = format!("FCALL put 1 {OTHER} hello");
    let reply = asked(&mut *store, single(&elsewhere));
    assert!(reply.starts_with("-TRYAGAIN pmnet: slot 12182 "), "{reply}");
    let reply = asked(&mut *store, single(&format!("INCR {OTHER}")));
    assert!(reply.starts_with("-TRYAGAIN pmnet: slot 12182 "), "{reply}");
    let reply = read(&mut *store, single(&format!("GET {OTHER}")));
    assert!(
        reply.starts_with("-TRYAGAIN pmnet: the slot of its keys"),
        "{reply}"
    );
    assert_eq!(pair.nodes[1].get(OTHER), None);
    let reply = asked(&mut *store, single("SELECT 1"));
    assert!(reply.starts_with("-ERR"), "{reply}");
}

/// Found: after an update for another shard's slot, the shard waited for the end of a move of slots. No slot was being
/// moved, so the shard waited without end.
#[test]
fn an_update_for_a_slot_of_another_shard_is_dropped() {
    let Some(pair) = Pair::start() else { return };
    let mut store = pair.store();
    load(&mut *store);
    let effects = [
        single("SET foo x"),
        payload(
            Form::Transaction,
            Protocol::Resp2,
            0,
            &["SET b half", "SET foo x"],
        ),
        single("MSET k2 half foo x"),
        // This node has both slots, but Redis accepts no command with keys in two slots. Found: such a command stopped
        // the shard.
        single("MSET k2 half b half"),
        single("SET bar new"),
    ];
    assert_eq!(store.apply(&batch(&effects, 1)), Ok(4));
    assert_eq!(pair.get("bar").as_deref(), Some("new"));
    assert_eq!(pair.get("b"), None);
    assert_eq!(pair.get("k2"), None);
    assert_eq!(watermark(&load(&mut *store)), 1);
}

/// If a command needs a slot that is being moved, or has moved, the command takes effect as a whole or not at all.
#[test]
fn what_meets_a_slot_that_moves_waits_as_a_whole() {
    let Some(pair) = Pair::start() else { return };
    let mut store = pair.store();
    load(&mut *store);
    let first = [
        single("SET b old"),
        single("SET bar old"),
        single("SET k2 old"),
    ];
    assert_eq!(store.apply(&batch(&first, 1)), Ok(0));
    let effects = [
        single("SET k2 new"),
        // The slot moves away while the update is on its way to Redis: the update's next command does not find the slot
        // at this node.
        payload(
            Form::Transaction,
            Protocol::Resp2,
            0,
            &["SET b new", "SET {b}fresh new"],
        ),
        single("SET bar new"),
    ];
    let nothing_ran = |store: &mut Box<dyn Store>| {
        for key in ["k2", "bar"] {
            assert_eq!(pair.get(key).as_deref(), Some("old"), "{key}");
        }
        assert_eq!(watermark(&load(&mut **store)), 1);
    };
    pair.begin_move("b", 0);
    retry(
        store.apply(&batch(&effects, 2)),
        "slot 3300 is not with this shard's master",
    );
    nothing_ran(&mut store);
    assert_eq!(pair.get("b").as_deref(), Some("old"));
    // Requests for this slot get an error, and other requests are executed.
    let reply = asked(&mut *store, single("INCR {b}n"));
    assert!(reply.starts_with("-TRYAGAIN pmnet: slot 3300 "), "{reply}");
    let reply = asked(&mut *store, single("BLPOP {b}l 0"));
    assert!(reply.starts_with("-TRYAGAIN pmnet: slot 3300 "), "{reply}");
    let both = payload(
        Form::Pack,
        Protocol::Resp2,
        0,
        &["INCR {bar}n", "INCR {b}n"],
    );
    let reply = asked(&mut *store, both);
    assert!(reply.starts_with("-TRYAGAIN pmnet: slot 3300 "), "{reply}");
    assert_eq!(asked(&mut *store, single("INCR {bar}n")), ":1\r\n");
    assert_eq!(read(&mut *store, single("GET b")), "$3\r\nold\r\n");
    let reply = read(&mut *store, single("GET {b}none"));
    assert!(reply.starts_with("-TRYAGAIN pmnet: "), "{reply}");
    pair.end_move("b", 0);
    retry(
        store.apply(&batch(&effects, 2)),
        "slot 3300 is not with this shard's master",
    );
    nothing_ran(&mut store);
    assert_eq!(pair.nodes[1].get("b").as_deref(), Some("old"));
    let reply = read(&mut *store, single("GET b"));
    assert!(reply.starts_with("-TRYAGAIN pmnet: "), "{reply}");
    // The slot and its key move back.
    pair.begin_move("b", 1);
    retry(
        store.apply(&batch(&effects, 2)),
        "slot 3300 is not with this shard's master",
    );
    nothing_ran(&mut store);
    pair.end_move("b", 1);
    assert_eq!(store.apply(&batch(&effects, 2)), Ok(0));
    for key in ["k2", "bar", "b", "{b}fresh"] {
        assert_eq!(pair.get(key).as_deref(), Some("new"), "{key}");
    }
    assert_eq!(watermark(&load(&mut *store)), 2);
}

#[test]
fn a_server_starts_only_where_its_slots_are() {
    let Some(pair) = Pair::start() else { return };
    let refused = |url: &str, says: &str| {
        let mut store = pmnet_store::open(url, 0).unwrap();
        let until = Instant::now() + WAIT;
        loop {
            match store.load() {
                Err(StoreError::Fatal(text)) => return assert!(text.contains(says), "{text}"),
                Err(StoreError::Retry(_)) if Instant::now() < until => {}
                other => panic!("{other:?}"),
            }
        }
    };
    refused(
        &pair.url("0-9000"),
        "it lacks 809 slot(s), the first is 8192, served by 127.0.0.1:",
    );
    let lone = Redis::start(&[]).unwrap();
    let url = format!("redis+cluster://127.0.0.1:{}/0-9", lone.port);
    let error = pmnet_store::open(&url, 0).unwrap().load().unwrap_err();
    assert!(
        error.to_string().contains("cluster support disabled"),
        "{error}"
    );
    // Two shards have the same number in different masters of one cluster. Their records are separate.
    let mut stores =
        ["0-8191", "8192-16383"].map(|slots| pmnet_store::open(&pair.url(slots), 0).unwrap());
    for (store, order) in stores.iter_mut().zip([3, 4]) {
        load(&mut **store);
        assert_eq!(store.apply(&batch(&[], order)), Ok(0));
    }
    for (store, order) in stores.iter_mut().zip([3, 4]) {
        assert_eq!(watermark(&load(&mut **store)), order);
    }
    // The slot of the records is moved away. All requests wait until it has moved back.
    let home = pair.nodes[0].call(&["CLUSTER", "GETKEYSINSLOT", "0", "9"]);
    assert!(home.contains("pmnet:{0-"), "{home}");
    let key = home
        .split("\r\n")
        .find(|line| line.starts_with("pmnet:"))
        .unwrap();
    pair.begin_move(key, 0);
    retry(
        stores[0].apply(&batch(&[single("SET b 1")], 5)),
        "slot 0 is not with",
    );
    let error = stores[0].load().unwrap_err().to_string();
    assert!(
        error.contains("slot 0, where pmnet's records of this shard are, is being moved"),
        "{error}"
    );
    for node in &pair.nodes {
        assert_eq!(node.call(&["CLUSTER", "SETSLOT", "0", "STABLE"]), "+OK\r\n");
    }
    load(&mut *stores[0]);
    assert_eq!(stores[0].apply(&batch(&[single("SET b 1")], 5)), Ok(0));
    assert_eq!(pair.get("b").as_deref(), Some("1"));
}
