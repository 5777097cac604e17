//! A router with its shards. Each shard is a real redis-server with a complete front of its own.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use pmnet_front::shards::slot::{SlotMap, parse_slots};
use pmnet_front::shards::{MapChanger, Router, RouterConfig};
use pmnet_front::{Access, Front, FrontConfig, Stopper};

use crate::common::{Client, Executor, Knobs, Redis, eventually};

pub struct Sharded {
    pub address: SocketAddr,
    pub stores: Vec<Redis>,
    pub knobs: Vec<Arc<Mutex<Knobs>>>,
    pub changer: MapChanger,
    stoppers: Vec<Stopper>,
    threads: Vec<JoinHandle<()>>,
}

/// Starts shards with these slots; returns `None` if there is no redis-server.
pub fn start(slots: &[&str]) -> Option<Sharded> {
    start_with(slots, &[], |_| {}, |_| {})
}

pub fn start_with(
    slots: &[&str],
    redis: &[&str],
    change: impl Fn(&mut FrontConfig),
    change_router: impl FnOnce(&mut RouterConfig),
) -> Option<Sharded> {
    let ranges: Vec<_> = slots
        .iter()
        .map(|text| parse_slots(text).expect("slots"))
        .collect();
    let map = SlotMap::new(&ranges).expect("a map");
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut config = FrontConfig::new(listen);
    config.access = Access::Anyone;
    change(&mut config);
    let (mut stores, mut knobs) = (Vec::new(), Vec::new());
    let (mut stoppers, mut threads, mut entrances) = (Vec::new(), Vec::new(), Vec::new());
    for shard in 0..map.shards() {
        let store = Redis::start_with(redis)?;
        let own = Arc::new(Mutex::new(Knobs::default()));
        let executor = Executor::new(store.address, own.clone());
        let (front, entrance) = Front::behind_router(&config, executor).expect("a front");
        stoppers.push(front.stopper());
        entrances.push(entrance);
        threads.push(
            std::thread::Builder::new()
                .name(format!("front-{shard}"))
                .spawn(move || {
                    front.run().expect("front");
                })
                .expect("thread"),
        );
        eventually("the front has asked", || {
            own.lock().expect("knobs").sessions == (1, 1)
        });
        stores.push(store);
        knobs.push(own);
    }
    let mut router_config = RouterConfig {
        listen,
        connections_max: 100,
        spin_micros: config.spin_micros,
        tls: None,
        keepalive: Some(std::time::Duration::from_secs(300)),
        anyone: matches!(config.access, Access::Anyone),
        map,
        cluster: false,
        pulse: std::sync::Arc::default(),
    };
    change_router(&mut router_config);
    let router = Router::bind(&router_config, entrances).expect("router");
    let changer = router.map_changer();
    let address = router.local_addr().expect("address");
    stoppers.push(router.stopper());
    threads.push(
        std::thread::Builder::new()
            .name("router".into())
            .spawn(move || {
                router.run().expect("router");
            })
            .expect("thread"),
    );
    Some(Sharded {
        address,
        stores,
        knobs,
        changer,
        stoppers,
        threads,
    })
}

impl Sharded {
    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Gives the router another map: the slots of each shard, and the slots that are being moved.
    pub fn change_map(&self, slots: &[&str], moving: Option<&str>) {
        let parse = |text: &&str| parse_slots(text).expect("slots");
        let ranges: Vec<_> = slots.iter().map(parse).collect();
        let moving = moving.iter().flat_map(parse).collect::<Vec<_>>();
        let map = SlotMap::new(&ranges).and_then(|map| map.with_moving(&moving));
        self.changer.change(map.expect("a map"));
    }

    pub fn knobs(&self, shard: usize) -> std::sync::MutexGuard<'_, Knobs> {
        self.knobs[shard].lock().expect("knobs")
    }
}

impl Drop for Sharded {
    fn drop(&mut self) {
        for stopper in &self.stoppers {
            stopper.stop();
        }
        for thread in self.threads.drain(..) {
            assert!(
                thread.join().is_ok() || std::thread::panicking(),
                "a thread panicked"
            );
        }
    }
}
