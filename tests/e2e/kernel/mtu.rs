//! Networks with an MTU below and above 1500 bytes (`docs/spec/protocol.md` §7). All updates must be acknowledged,
//! applied and read back, and no packet may become IP fragments. If the MTU of a path shrinks, the roles must notice
//! and report the change.

use std::process::Command;
use std::time::{Duration, Instant};

use pmnet_lab::resp::{Client, Reply};

use super::world::{Place, Plan, World};
use crate::support::{bulk, eventually, ok};

/// Deadline of a front's command in milliseconds.
const DEADLINE_MS: u32 = 5_000;
/// Longest wait of a client.
const CALL_MAX: Duration = Duration::from_secs(30);

/// Sizes of values: some near the size of one fragment, and some of many fragments.
const SIZES: [usize; 12] = [
    1,
    100,
    1_100,
    1_144,
    1_200,
    1_280,
    1_300,
    1_344,
    2_000,
    5_000,
    65_536,
    1 << 20,
];

fn value(bytes: usize) -> Vec<u8> {
    (0u8..=250).cycle().skip(bytes % 7).take(bytes).collect()
}

fn relay(followers: usize) -> Plan {
    Plan {
        relay: true,
        followers,
        ..Plan::new(Place::Router)
    }
}

fn direct() -> Plan {
    Plan {
        direct: Some("dram"),
        ..Plan::new(Place::Nic)
    }
}

fn chain_in_kernel() -> Plan {
    Plan {
        followers: 1,
        followers_in_kernel: true,
        ..Plan::new(Place::Router)
    }
}

/// Returns the number of packets, on all machines, that became IP fragments or would have had to.
fn ip_fragments(world: &World) -> u64 {
    let network = world.network();
    let nodes = network.layout().nodes.iter();
    let counted = nodes.map(|node| {
        network
            .inside(&node.name, || {
                // The file describes the network namespace of the calling thread.
                let v4 = std::fs::read_to_string("/proc/thread-self/net/snmp")?;
                let v6 = std::fs::read_to_string("/proc/thread-self/net/snmp6").unwrap_or_default();
                Ok(of_ipv4(&v4) + of_ipv6(&v6))
            })
            .unwrap()
    });
    counted.sum()
}

const COUNTED: [&str; 3] = ["FragOKs", "FragFails", "FragCreates"];

fn of_ipv4(text: &str) -> u64 {
    let mut lines = text.lines().filter(|line| line.starts_with("Ip: "));
    let (names, numbers) = (lines.next().unwrap(), lines.next().unwrap());
    let both = names.split(' ').zip(numbers.split(' '));
    both.filter(|(name, _)| COUNTED.contains(name))
        .map(|(_, number)| number.parse::<u64>().unwrap())
        .sum()
}

fn of_ipv6(text: &str) -> u64 {
    let lines = text.lines().filter_map(|line| line.strip_prefix("Ip6"));
    let words = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    words
        .filter(|words| COUNTED.contains(&words[0]))
        .map(|words| words[1].parse::<u64>().unwrap())
        .sum()
}

/// Returns a client of the front. The client is on the clients' machine.
fn client(world: &World, front: std::net::SocketAddr) -> Client {
    world.inside("client1", || Client::connect(front, CALL_MAX).unwrap())
}

/// Checks that values of all sizes are acknowledged, applied and read back. Some values are sent together.
fn all_sizes(world: &World, client: &mut Client, name: &str) {
    for bytes in SIZES {
        let (key, value) = (format!("{name}:{bytes}"), value(bytes));
        let begun = Instant::now();
        let set = client.call(&[b"SET", key.as_bytes(), &value]).unwrap();
        assert_eq!(set, ok(), "{bytes} bytes, after {:?}", begun.elapsed());
        let get = client.call(&[b"GET", key.as_bytes()]).unwrap();
        assert!(get == bulk(&value), "{bytes} bytes: {}", short(&get));
        // The command goes to the server, and its reply has the length of the value.
        let old = client.call(&[b"GETSET", key.as_bytes(), &value]).unwrap();
        assert!(old == bulk(&value), "{bytes} bytes: {}", short(&old));
    }
    let mut redis = world.redis();
    for bytes in SIZES {
        let key = format!("{name}:{bytes}");
        let found = redis.call(&["GET", &key]).unwrap();
        assert!(found == bulk(value(bytes)), "{bytes}: {}", short(&found));
    }
}

fn short(reply: &Reply) -> String {
    format!("{reply:?}").chars().take(120).collect()
}

/// Returns the number of message bytes in a packet, which the device's ready line states.
fn fragment(world: &mut World) -> usize {
    let said = world.process("device").stdout();
    let size = said.split("fragment=").nth(1);
    let size = size.and_then(|rest| rest.split_whitespace().next());
    size.unwrap_or_else(|| panic!("no size: {said}"))
        .parse()
        .unwrap()
}

/// Checks that values of all sizes pass through a network with this MTU.
fn goes_through(plan: Plan, mtu: u16, ipv6: bool) -> bool {
    let begun = Instant::now();
    let what = format!(
        "{:?} {mtu} {}",
        plan.place,
        if ipv6 { "IPv6" } else { "IPv4" }
    );
    let plan = Plan {
        mtu: Some(mtu),
        ipv6,
        ..plan
    };
    let Some(mut world) = World::start(plan) else {
        return false;
    };
    let front = world.start_front_with(DEADLINE_MS, "");
    let mut client = client(&world, front);
    all_sizes(&world, &mut client, "k");
    let header = if ipv6 { 40 } else { 20 };
    let fits = (usize::from(mtu) - header - 8 - 88) / 8 * 8;
    assert_eq!(fragment(&mut world), fits.min(1_344), "{what}");
    assert_eq!(ip_fragments(&world), 0, "{what}");
    println!("{what}: {:?}", begun.elapsed());
    true
}

#[test]
fn by_relays() {
    for (mtu, ipv6) in [
        (1_280, false),
        (1_280, true),
        (1_420, true),
        (1_450, false),
        (1_460, true),
        (9_001, false),
    ] {
        if !goes_through(relay(1), mtu, ipv6) {
            return;
        }
    }
}

#[test]
fn by_devices_in_the_kernel() {
    let nic = Plan::new(Place::Nic);
    let switch = Plan::new(Place::Switch);
    for (plan, mtu, ipv6) in [
        (nic.clone(), 1_280, true),
        (nic, 1_450, false),
        (chain_in_kernel(), 1_280, false),
        (chain_in_kernel(), 1_420, true),
        (switch, 1_460, false),
    ] {
        if !goes_through(plan, mtu, ipv6) {
            return;
        }
    }
}

#[test]
fn by_devices_past_the_stack() {
    for (mtu, ipv6) in [(1_280, false), (1_450, true)] {
        if !goes_through(direct(), mtu, ipv6) {
            return;
        }
    }
}

/// Checks that the database applies all acknowledged updates.
fn all_there(world: &World, written: u32, bytes: usize) {
    let mut redis = world.redis();
    let last = format!("w:{}", written - 1);
    eventually("all of it is applied", CALL_MAX, || {
        redis.call(&["EXISTS", &last]).unwrap() == Reply::Integer(1)
    });
    for number in 0..written {
        let found = redis.call(&["GET", &format!("w:{number}")]).unwrap();
        assert!(found == bulk(value(bytes)), "{number}: {}", short(&found));
    }
}

/// The MTU of a path shrinks while clients write. Messages that were split before must still arrive. The change must be
/// reported, and later messages must be split into smaller packets, without IP fragments.
fn shrinks(plan: Plan, ipv6: bool, who_says: &[&str]) {
    const BYTES: usize = 40_000;
    let begun = Instant::now();
    let what = format!("{:?} {}", plan.place, if ipv6 { "IPv6" } else { "IPv4" });
    let plan = Plan { ipv6, ..plan };
    let Some(mut world) = World::start(plan) else {
        return;
    };
    let front = world.start_front_with(DEADLINE_MS, "");
    let mut client = client(&world, front);
    let mut written = 0;
    let mut write = |times: u32| {
        for _ in 0..times {
            let key = format!("w:{written}");
            let begun = Instant::now();
            let set = client
                .call(&[b"SET", key.as_bytes(), &value(BYTES)])
                .unwrap();
            assert_eq!(set, ok(), "{key} after {:?}", begun.elapsed());
            written += 1;
        }
        written
    };
    write(20);
    assert_eq!(ip_fragments(&world), 0);
    world.network().set_mtu(1_280).unwrap();
    write(20);
    for (name, text) in who_says
        .iter()
        .map(|name| (*name, "carries less than before"))
        .chain([("server", "From now on a message is cut")])
    {
        let process = world.process(name);
        eventually(name, CALL_MAX, || {
            write(1);
            process.stderr().contains(text)
        });
    }
    // Processes that do not know the change yet learn of it now, and entries that were split before may be sent again
    // for some time. After this, twenty writes must not cause a fragment.
    let mut before = 0;
    eventually(&format!("{what}: it is over"), CALL_MAX, || {
        before = ip_fragments(&world);
        write(20);
        ip_fragments(&world) == before
    });
    let written = write(1);
    all_there(&world, written, BYTES);
    println!("{what}: {before} IP fragments, {:?}", begun.elapsed());
}

#[test]
fn an_operator_may_say_that_it_carries_less() {
    let plan = Plan {
        args: ["--mtu", "1280"].map(String::from).to_vec(),
        ..relay(0)
    };
    let Some(mut world) = World::start(plan) else {
        return;
    };
    assert_eq!(fragment(&mut world), 1_160);
    let front = world.start_front_with(DEADLINE_MS, "--mtu 1400");
    let mut client = client(&world, front);
    all_sizes(&world, &mut client, "k");
    let (good, said) = world.device_with(&["--mtu", "1279"]);
    assert!(
        !good && said.contains("--mtu 1279: at least 1280"),
        "{said}"
    );
}

/// The two ends of a link have different MTUs. Longer packets are lost, and no system notices the loss.
#[test]
fn large_packets_that_vanish_are_noticed_by_the_front() {
    const BYTES: usize = 40_000;
    let Some(mut world) = World::start(relay(0)) else {
        return;
    };
    let front = world.start_front_with(DEADLINE_MS, "");
    let mut client = client(&world, front);
    let mut set = |key: &str| {
        let set = client
            .call(&[b"SET", key.as_bytes(), &value(BYTES)])
            .unwrap();
        assert_eq!(set, ok(), "{key}");
    };
    set("before");
    // The bridge's own MTU is set explicitly first, because otherwise it would follow the MTU of the bridge's ports.
    for link in ["br0 mtu 1499", "br0 mtu 1500", "client1 mtu 1280"] {
        let args: Vec<&str> = "link set".split(' ').chain(link.split(' ')).collect();
        let status = world.inside("device1", || {
            Command::new("ip").args(args).status().unwrap()
        });
        assert!(status.success());
    }
    set("behind");
    let said = world.process("front").stderr();
    assert!(
        said.contains("large packets to the device do not arrive"),
        "{said}"
    );
    set("more");
    for key in ["before", "behind", "more"] {
        let get = client.call(&["GET", key]).unwrap();
        assert!(get == bulk(value(BYTES)), "{key}: {}", short(&get));
    }
    assert_eq!(ip_fragments(&world), 0);
}

#[test]
fn a_path_that_shrinks_is_noticed_by_relays() {
    shrinks(relay(1), false, &["front", "device", "follower", "server"]);
    shrinks(relay(1), true, &["front", "device", "follower", "server"]);
}

#[test]
fn a_path_that_shrinks_is_noticed_by_devices_in_the_kernel_and_past_it() {
    shrinks(
        chain_in_kernel(),
        false,
        &["front", "device", "follower", "server"],
    );
    shrinks(direct(), false, &["front", "device"]);
}
