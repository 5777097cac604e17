//! Follows the guide `three-boxes.md`, command by command, with three machines (network namespaces). One machine is
//! lost, and later another one.

mod page;

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pmnet_lab::harness::{Namespaces, Process, Ready, Scratch, Spec, drained, find_program};
use pmnet_lab::resp::{Client, Reply};

use self::page::{Block, blocks};
use crate::common;
use crate::support::{Answer, Caller, SetOnDrop, connect, eventually, ok};

/// Names of the machines, and their addresses on the page.
const BOXES: [(&str, &str); 3] = [("A", "10.0.0.1"), ("B", "10.0.0.2"), ("C", "10.0.0.3")];
/// The folder in which the page puts all files.
const FOLDER: &str = "/var/lib/pmnet";
/// Longest wait until a command prints the expected text.
const EXPECT_MAX: Duration = Duration::from_secs(60);
/// Port of every front, and port of every Redis.
const FRONT_PORT: u16 = 6380;
const REDIS_PORT: u16 = 6379;
/// Number of operations that must be acknowledged before a machine is lost, and again after it.
const WRITES: usize = 100;

/// A service on a machine of the guide.
struct Service {
    at: usize,
    process: Process,
}

struct World {
    services: Vec<Service>,
    namespaces: Namespaces,
    scratch: Scratch,
}

impl World {
    /// Returns a text of the page, adapted to this machine.
    fn text(&self, at: usize, text: &str) -> String {
        let folder = self.folder(at);
        let mut text = text.replace(FOLDER, folder.to_str().unwrap());
        for (index, (_, address)) in BOXES.iter().enumerate() {
            text = text.replace(address, &self.namespaces.address(index).to_string());
        }
        text
    }

    fn folder(&self, at: usize) -> std::path::PathBuf {
        self.scratch.disk().join(BOXES[at].0)
    }

    fn front(&self, at: usize) -> SocketAddr {
        SocketAddr::from((self.namespaces.address(at), FRONT_PORT))
    }

    /// Runs one command of the page. Returns whether the command succeeded, and the output of the command.
    fn run(&self, at: usize, text: &str) -> (bool, String) {
        let args = vec!["-euc".into(), self.text(at, text).into()];
        let shell = find_program("bash").unwrap();
        let (program, args) = self.namespaces.inside(at, &shell, args).unwrap();
        let output = Command::new(program)
            .args(args)
            .env("PATH", path())
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        (output.status.success(), said)
    }

    /// Runs the commands of a block on each machine that the block names.
    fn follow(&mut self, block: &Block) {
        if let Some(file) = &block.copies {
            // SSH does not work between namespaces, so the test copies the file.
            let from = self.folder(0).join(file);
            for at in 1..BOXES.len() {
                std::fs::copy(&from, self.folder(at).join(file)).unwrap();
            }
            return;
        }
        for (at, (name, _)) in BOXES.iter().enumerate() {
            if !block.is_on(name) {
                continue;
            }
            if let Some(service) = &block.service {
                self.start(at, service, &block.text);
                if let Some(first) = block.first.as_ref().filter(|_| at == 0) {
                    let process = &self.services.last().unwrap().process;
                    eventually("the first one serves", EXPECT_MAX, || {
                        process.stdout().contains(first)
                    });
                }
                continue;
            }
            let expected = block.expect.as_deref().unwrap_or_default();
            let mut said = String::new();
            let begun = Instant::now();
            loop {
                let (done, now) = self.run(at, &block.text);
                if done && now.contains(expected) {
                    break;
                }
                said.clone_from(&now);
                // The output may contain the expected text only after a moment. A command without an expected text must
                // succeed at once.
                assert!(
                    !expected.is_empty() && begun.elapsed() < EXPECT_MAX,
                    "on {name}, {expected:?} is expected:\n{}\n{said}",
                    block.text
                );
                self.tend();
                std::thread::sleep(Duration::from_millis(200));
            }
        }
    }

    fn start(&mut self, at: usize, name: &str, text: &str) {
        let text = format!("export PATH='{}'\n{}", path(), self.text(at, text));
        let args = vec!["-euc".into(), text.into()];
        let shell = find_program("bash").unwrap();
        let (program, args) = self.namespaces.inside(at, &shell, args).unwrap();
        let spec = Spec {
            name: format!("{}-{name}", BOXES[at].0),
            binaries: common::binaries().clone(),
            program: Some(program),
            args,
            ready: Ready::Line,
        };
        let process = Process::launch(spec, self.scratch.disk()).unwrap();
        self.services.push(Service { at, process });
    }

    /// Restarts services that have ended, as a service manager does.
    fn tend(&mut self) {
        for service in &mut self.services {
            if service.process.exited().unwrap().is_some() {
                let said = service.process.stderr();
                assert!(!said.contains("panicked"), "{said}");
                service.process.relaunch().unwrap();
            }
        }
    }

    /// Kills all processes of a machine, and takes its link down.
    fn lose(&mut self, at: usize) {
        self.namespaces.link_down(at).unwrap();
        for service in self.services.iter_mut().filter(|one| one.at == at) {
            service.process.kill().unwrap();
        }
    }

    fn comes_back(&mut self, at: usize) {
        self.namespaces.link_up(at).unwrap();
        for service in self.services.iter_mut().filter(|one| one.at == at) {
            service.process.relaunch().unwrap();
        }
    }

    /// Returns the output of `pmnet status --json` on this machine.
    fn status(&self, at: usize) -> String {
        let text = format!(". {FOLDER}/env\npmnet status $FLEET --json");
        self.run(at, &text).1
    }

    /// Returns whether this number of devices serve in one chain and hold everything.
    fn serves(&self, at: usize, copies: usize) -> bool {
        let status = self.status(at);
        let whole = format!(r#""places":{copies},"#);
        let rows = status.split("},{").filter(|row| row.contains(&whole));
        let whole = rows.filter(|row| {
            row.contains(r#""holds_everything":true"#) && row.contains(r#""lease_held":true"#)
        });
        whole.count() == copies
    }

    /// Connects to the Redis on these machines that is the master.
    fn master(&self) -> Client {
        let mut found = None;
        eventually("there is one master", EXPECT_MAX, || {
            let masters = (0..BOXES.len()).filter_map(|at| {
                let address = SocketAddr::from((self.namespaces.address(at), REDIS_PORT));
                let mut client = Client::connect(address, Duration::from_secs(2)).ok()?;
                let info = client.call(&["INFO", "replication"]).ok()?.text()?;
                info.contains("role:master").then_some(address)
            });
            let all: Vec<SocketAddr> = masters.collect();
            found = all.first().copied();
            all.len() == 1
        });
        connect(found.unwrap())
    }
}

/// Returns a PATH in which `pmnet` is the product under test.
fn path() -> String {
    let folder = common::pmnet().parent().unwrap();
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
}

/// Writes new keys, and increments a counter, until `end` is set. Returns the acknowledged operations.
fn write_until(end: &AtomicBool, front: SocketAddr, name: &str, done: &Acknowledged) {
    let mut caller = Caller::new(front);
    let mut number = 0;
    while !end.load(Ordering::Relaxed) {
        number += 1;
        let key = format!("{name}:{number}");
        if caller.call(&["SET", &key, &key]) == Answer::Reply(ok()) {
            done.keys.lock().unwrap().push((key, Instant::now()));
        }
        if number % 10 == 0
            && matches!(
                caller.call(&["INCR", "count"]),
                Answer::Reply(Reply::Integer(_))
            )
        {
            done.counted.lock().unwrap().push(Instant::now());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    *done.unknown.lock().unwrap() += caller.unknown;
}

#[derive(Default)]
struct Acknowledged {
    keys: std::sync::Mutex<Vec<(String, Instant)>>,
    counted: std::sync::Mutex<Vec<Instant>>,
    unknown: std::sync::Mutex<u64>,
}

impl Acknowledged {
    /// Returns the numbers of keys and of increments that were acknowledged after `then`.
    fn since(&self, then: Instant) -> (usize, usize) {
        let keys = self.keys.lock().unwrap();
        let counted = self.counted.lock().unwrap();
        let keys = keys.iter().filter(|(_, at)| *at >= then).count();
        (keys, counted.iter().filter(|at| **at >= then).count())
    }
}

/// Loses a machine under load, and brings it back. Runs the blocks of the page that belong to these moments.
fn loses_a_box(world: &mut World, at: usize, page: &[Block], done: &Acknowledged) {
    let other = (at + 1) % BOXES.len();
    let fronts: Vec<SocketAddr> = (0..BOXES.len())
        .filter(|box_| *box_ != at)
        .map(|box_| world.front(box_))
        .collect();
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = SetOnDrop(&end);
        for (index, front) in fronts.iter().enumerate() {
            let (end, name) = (&end, format!("{}{index}", BOXES[at].0));
            scope.spawn(move || write_until(end, *front, &name, done));
        }
        let begun = Instant::now();
        eventually("writes are acknowledged", EXPECT_MAX, || {
            done.since(begun).0 > WRITES
        });
        world.lose(at);
        let lost = Instant::now();
        eventually("the chain goes on without it", 2 * EXPECT_MAX, || {
            world.tend_all_but(at);
            world.serves(other, 2)
        });
        let healed = Instant::now();
        eventually("service goes on", EXPECT_MAX, || {
            world.tend_all_but(at);
            let (set, counted) = done.since(healed);
            set > WRITES && counted > WRITES / 20
        });
        println!(
            "box {} lost: two copies after {:?}, service seen after {:?}",
            BOXES[at].0,
            healed - lost,
            lost.elapsed()
        );
        let moment = |when: &str| format!("{}-{when}", BOXES[at].0);
        follow_when(world, page, &moment("lost"));
        world.comes_back(at);
        let back = Instant::now();
        eventually("there are three copies again", 2 * EXPECT_MAX, || {
            world.tend();
            world.serves(other, 3)
        });
        println!("it is back: three copies after {:?}", back.elapsed());
        follow_when(world, page, &moment("back"));
    });
}

fn follow_when(world: &mut World, page: &[Block], when: &str) {
    for block in page
        .iter()
        .filter(|block| block.when.as_deref() == Some(when))
    {
        world.follow(block);
    }
}

impl World {
    fn tend_all_but(&mut self, lost: usize) {
        for service in self.services.iter_mut().filter(|one| one.at != lost) {
            if service.process.exited().unwrap().is_some() {
                service.process.relaunch().unwrap();
            }
        }
    }
}

/// Returns the reason why this machine cannot test the guide; `None` if it can.
fn missing() -> Option<String> {
    let absent = ["etcd", "redis-server", "redis-cli", "bash", "sed"];
    let absent = absent.into_iter().find(|name| find_program(name).is_none());
    Namespaces::refusal().or_else(|| absent.map(|name| format!("{name} is not installed")))
}

#[test]
fn the_guide_is_followed_and_two_boxes_are_lost_one_after_the_other() {
    if let Some(reason) = missing() {
        common::skip(&reason);
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operate/three-boxes.md");
    let page = blocks(&std::fs::read_to_string(root).unwrap());
    let names = BOXES.map(|(name, _)| name.to_owned());
    let namespaces = Namespaces::create(&names).unwrap();
    namespaces.enter_hub().unwrap();
    let mut world = World {
        services: Vec::new(),
        namespaces,
        scratch: Scratch::new(common::folder(), "boxes").unwrap(),
    };
    for block in page.iter().filter(|block| block.when.is_none()) {
        world.follow(block);
    }
    eventually("all is there", EXPECT_MAX, || {
        world.tend();
        world.serves(0, 3)
    });
    let done = Acknowledged::default();
    loses_a_box(&mut world, 0, &page, &done);
    loses_a_box(&mut world, 1, &page, &done);

    drained(world.front(2)).unwrap();
    let mut master = world.master();
    let keys = done.keys.into_inner().unwrap();
    for (key, _) in &keys {
        let reply = master.call(&["GET", key]).unwrap();
        assert_eq!(reply, Reply::Bulk(key.clone().into_bytes()), "{key}");
    }
    let counted = done.counted.into_inner().unwrap().len();
    let unknown = done.unknown.into_inner().unwrap();
    let count = master.call(&["GET", "count"]).unwrap().text().unwrap();
    let count: u64 = count.parse().unwrap();
    let least = u64::try_from(counted).unwrap();
    assert!(
        (least..=least + unknown).contains(&count),
        "{counted} INCR acknowledged, {unknown} calls unknown, the counter says {count}"
    );
    println!(
        "{} SET and {counted} INCR acknowledged, {unknown} calls unknown: none lost, none twice",
        keys.len()
    );
}
