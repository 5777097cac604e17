//! Several shards in each process of a fleet. Each shard has leases, a chain and a controller of its own.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use pmnet_lab::harness::{Process, Scratch, free_port};
use pmnet_lab::resp::Reply;

use super::etcd::Etcds;
use super::heal::{HEALED_MAX, tell};
use crate::common;
use crate::promote::said;
use crate::support::{Acknowledged, Caller, SetOnDrop, eventually, launch, write_until};

/// Number of shards of each device process.
const SHARDS: u16 = 2;

/// Returns the first of several consecutive free ports.
fn ports() -> u16 {
    for _ in 0..100 {
        let all: Vec<u16> = (0..SHARDS).map(|_| free_port().unwrap()).collect();
        if all
            .windows(2)
            .all(|pair| pair[0].checked_add(1) == Some(pair[1]))
        {
            return all[0];
        }
    }
    panic!("no ports that follow each other");
}

/// Devices that serve both shards. Each shard has a server, a controller and a front of its own.
struct World {
    devices: Vec<Process>,
    servers: Vec<Process>,
    controllers: Vec<Process>,
    fronts: Vec<(Process, SocketAddr)>,
    flags: Vec<String>,
    server: u16,
    // The last field, so that etcd ends last.
    _etcds: Etcds,
    scratch: Scratch,
}

impl World {
    /// Starts a chain of two devices for each shard.
    fn start() -> Option<World> {
        let etcds = Etcds::start("shards", 1)?;
        let mut world = World {
            devices: Vec::new(),
            servers: Vec::new(),
            controllers: Vec::new(),
            fronts: Vec::new(),
            flags: etcds.flags(),
            server: ports(),
            _etcds: etcds,
            scratch: Scratch::new(common::folder(), "fleet-shards").expect("a folder"),
        };
        for shard in 0..SHARDS {
            let listen = format!("127.0.0.1:{}", world.server + shard);
            let store = world.scratch.disk().join(format!("store-{shard}"));
            let store = format!("packet:{}?size=64M", store.display());
            let args = ["server", "--listen", &listen, "--store", &store];
            let server = world.launch(&format!("server-{shard}"), shard, &args);
            world.servers.push(server);
        }
        let (first, second) = (ports(), ports());
        for (id, listen, next) in [(2, second, world.server), (1, first, second)] {
            let device = world.device(id, listen, next, &[]);
            world.devices.push(device);
        }
        // The test waits until the chain of each shard has formed. Otherwise a front might write the first entry to a
        // chain of one device.
        for device in &world.devices {
            eventually("all its shards are served", HEALED_MAX, || {
                device.stdout().matches("ready device").count() >= usize::from(SHARDS)
            });
        }
        for shard in 0..SHARDS {
            let controller = world.launch(
                &format!("controller-{shard}"),
                shard,
                &["controller", "--json"],
            );
            world.controllers.push(controller);
            let address = SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()));
            let listen = address.to_string();
            let args = [
                "redis",
                "--anyone-may-connect",
                "--deadline-ms",
                "60000",
                "--listen",
            ];
            let args = [&args[..], &[&listen]].concat();
            let front = world.launch(&format!("front-{shard}"), shard, &args);
            world.fronts.push((front, address));
        }
        for (front, _) in &mut world.fronts {
            front.wait_ready(HEALED_MAX).unwrap();
        }
        for shard in 0..SHARDS {
            world.until(shard, r#""copies_wanted":2,"#, 1);
        }
        Some(world)
    }

    fn launch(&self, name: &str, shard: u16, args: &[&str]) -> Process {
        let shard = shard.to_string();
        let mut all = [args, &["--shard", &shard]].concat();
        all.extend(self.flags.iter().map(String::as_str));
        launch(name, self.scratch.disk(), &all)
    }

    fn device(&self, id: u32, listen: u16, next: u16, more: &[&str]) -> Process {
        let [listen, next] = [listen, next].map(|port| format!("127.0.0.1:{port}"));
        let (log, id) = (
            self.scratch.memory().join(format!("{id}.log")),
            id.to_string(),
        );
        let shards = SHARDS.to_string();
        let mut args = vec!["device", "--listen", &listen, "--next", &next, "--id", &id];
        args.extend(["--media", "dram", "--log", log.to_str().unwrap()]);
        args.extend(["--shards", &shards]);
        args.extend(more);
        args.extend(self.flags.iter().map(String::as_str));
        launch(&format!("device-{id}"), self.scratch.disk(), &args)
    }

    /// Waits until the shard's controller has reported this step `times` times.
    fn until(&self, shard: u16, what: &str, times: usize) {
        let controller = &self.controllers[usize::from(shard)];
        eventually(what, HEALED_MAX, || {
            controller.stdout().matches(what).count() >= times
        });
    }

    /// Runs clients on both shards while `accident` runs. Returns the acknowledged updates of each shard.
    fn under_load(&mut self, name: &str, accident: impl FnOnce(&mut World)) -> Vec<Acknowledged> {
        let end = AtomicBool::new(false);
        let addresses: Vec<SocketAddr> = self.fronts.iter().map(|front| front.1).collect();
        std::thread::scope(|scope| {
            let _ends = SetOnDrop(&end);
            let end = &end;
            let writers: Vec<_> = addresses
                .into_iter()
                .map(|address| scope.spawn(move || write_until(end, address, name)))
                .collect();
            std::thread::sleep(std::time::Duration::from_secs(1));
            accident(self);
            std::thread::sleep(std::time::Duration::from_secs(1));
            end.store(true, Ordering::Relaxed);
            let ended = writers.into_iter().map(|writer| writer.join().unwrap());
            ended.collect()
        })
    }
}

#[test]
fn both_shards_of_a_process_that_is_lost_are_healed_and_those_of_another_take_its_place() {
    let Some(mut world) = World::start() else {
        return;
    };
    let mut spare = world.device(3, ports(), world.server, &["--join"]);
    eventually("the spare is ready", HEALED_MAX, || {
        spare.stderr().matches("is ready to join").count() >= usize::from(SHARDS)
    });
    let mut lost = Instant::now();
    let first = world.under_load("a", |world| {
        lost = Instant::now();
        world.devices[1].kill().unwrap();
        for shard in 0..SHARDS {
            world.until(shard, r#""step":"left-out""#, 1);
        }
        eventually("both have two devices again", HEALED_MAX, || {
            spare.stdout().matches("copies=2").count() >= usize::from(SHARDS)
        });
    });
    for (shard, all) in first.iter().enumerate() {
        tell(&format!("shard {shard}: its head lost"), all, lost);
    }
    // A question about one shard must be answered for this shard.
    for shard in 0..SHARDS {
        let mut command = std::process::Command::new(common::pmnet());
        command.args(["ctl", "--shard", &shard.to_string()]);
        command.args(&world.flags).args(["drain", "--wait", "10"]);
        said(&command.output().unwrap(), 0);
    }
    // The remaining device must have all updates.
    let second = world.under_load("b", |world| {
        lost = Instant::now();
        world.devices[0].kill().unwrap();
        for shard in 0..SHARDS {
            world.until(shard, r#""step":"left-out""#, 2);
        }
    });
    for (shard, all) in second.iter().enumerate() {
        tell(&format!("shard {shard}: its next head lost"), all, lost);
    }
    for (shard, all) in first.into_iter().chain(second).enumerate() {
        let (_, address) = world.fronts[shard % usize::from(SHARDS)];
        let mut caller = Caller::new(address);
        for (key, _) in &all {
            let found = caller.read(&["GET", key]);
            assert_eq!(found, Reply::Bulk(key.clone().into_bytes()), "{key}");
        }
        println!("{} writes acknowledged, none lost", all.len());
    }
    // No process of the fleet may return the lease of another shard.
    assert!(spare.stop().unwrap(), "{}", spare.stderr());
}
