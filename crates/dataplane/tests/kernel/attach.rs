//! Devices attach to a real interface and detach from it, in every order, and their processes are killed between any
//! two steps. Every attached device gets its packets, and no other device gets packets.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pmnet_dataplane::af_xdp::Redirect;
use pmnet_dataplane::xdp::{DEVICES_MAX, Kernel, Status};

use crate::link::{FAR, Link, NEAR};
use crate::world::{IDENTITY, PARAMETERS, Scratch, Words, config, skipped};

const INTERFACE: &str = "veth0";
const PORT: u16 = 52_000;
/// A port that no device uses.
const OTHER: u16 = 52_500;
/// Time within which a datagram arrives.
const ARRIVES: Duration = Duration::from_secs(10);
/// A number greater than the number of steps of any attaching or detaching.
const STEPS_MAX: usize = 64;

/// A device with a loaded pipeline. The test acts as its process.
struct Device {
    kernel: Mutex<Kernel>,
    port: u16,
    scratch: Scratch,
}

/// The panic that stands for the death of a device's process.
struct Killed;

impl Device {
    /// Returns the device with a next process that has another port.
    fn moved(mut self, port: u16) -> Device {
        let address = SocketAddr::from((NEAR, port));
        let (kernel, _) = Kernel::load(&config(address), self.scratch.0.clone()).unwrap();
        self.kernel = Mutex::new(kernel);
        self.port = port;
        self
    }

    fn new(port: u16) -> Device {
        let scratch = Scratch::new();
        let address = SocketAddr::from((NEAR, port));
        let (kernel, mut media) = Kernel::load(&config(address), scratch.0.clone()).unwrap();
        pmnet_log::format(&mut media, &IDENTITY, &PARAMETERS).unwrap();
        // `open` marks the maps of a complete device in the same way.
        let words = Words::of(&scratch.0);
        words.shard().stage.store(1, Ordering::SeqCst);
        Device {
            kernel: Mutex::new(kernel),
            port,
            scratch,
        }
    }

    fn name(&self) -> String {
        let name = self.scratch.0.folder().file_name().unwrap();
        name.to_string_lossy().into_owned()
    }

    fn status(&self) -> Status {
        Status::read(&self.name()).unwrap()
    }

    /// Returns the number of packets for the device that its pipeline has seen.
    fn packets(&self) -> u64 {
        let counters = self.status().counters;
        counters
            .iter()
            .find(|(name, _)| *name == "packets")
            .unwrap()
            .1
    }

    /// Attaches the device to these interfaces and detaches it from all others. The process is killed before the step
    /// with the number `die`, counted from 0. Returns whether the process was killed.
    fn attach_or_die(&self, link: &Link, names: &[&str], die: Option<usize>) -> bool {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut number = 0;
        let mut step = |_: &'static str| {
            if Some(number) == die {
                resume_unwind(Box::new(Killed));
            }
            number += 1;
        };
        let done = link.near(|| {
            catch_unwind(AssertUnwindSafe(|| {
                let mut kernel = self
                    .kernel
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
                kernel.attach_by_steps(&names, true, &mut step)
            }))
        });
        match done {
            Ok(done) => {
                done.unwrap();
                false
            }
            Err(panic) if panic.is::<Killed>() => true,
            Err(panic) => resume_unwind(panic),
        }
    }

    fn come(&self, link: &Link) {
        assert!(!self.attach_or_die(link, &[INTERFACE], None));
    }

    fn go(&self, link: &Link) {
        assert!(!self.attach_or_die(link, &[], None));
    }

    /// Returns the reason why the device cannot be attached.
    fn refused(&self, link: &Link, native: bool) -> String {
        let names = [INTERFACE.to_owned()];
        let done = link.near(|| self.kernel.lock().unwrap().attach(&names, native));
        done.unwrap_err().to_string()
    }
}

/// Two machines: the far one sends datagrams to the near one.
struct Net {
    link: Link,
    far: UdpSocket,
    near: UdpSocket,
}

impl Net {
    fn new() -> Net {
        let link = Link::new();
        let bind = |address: Ipv4Addr, port| {
            let socket = UdpSocket::bind((address, port)).unwrap();
            socket.set_read_timeout(Some(ARRIVES)).unwrap();
            socket
        };
        let far = link.far(|| bind(FAR, 0));
        let near = link.near(|| bind(NEAR, OTHER));
        Net { link, far, near }
    }

    /// Sends a datagram that no pipeline takes, and waits until it arrives. All datagrams that were sent before it have
    /// then arrived.
    fn flush(&self) {
        let word = fastrand::u64(..).to_ne_bytes();
        self.far.send_to(&word, (NEAR, OTHER)).unwrap();
        let mut buffer = [0; 64];
        let (length, _) = self.near.recv_from(&mut buffer).expect("it passes");
        assert_eq!(buffer[..length], word);
    }

    /// Checks that exactly the devices that are listed with `true` get their packets.
    fn check<'a>(&self, devices: impl IntoIterator<Item = (&'a Device, bool)>) {
        let devices: Vec<(&Device, bool)> = devices.into_iter().collect();
        // Without this call the first datagram would wait for the resolution of the neighbour's address.
        self.flush();
        let before: Vec<u64> = devices.iter().map(|(device, _)| device.packets()).collect();
        for (number, (device, _)) in devices.iter().enumerate() {
            for _ in 0..=number {
                self.far
                    .send_to(b"a datagram", (NEAR, device.port))
                    .unwrap();
            }
        }
        self.flush();
        for (number, ((device, is_there), before)) in devices.iter().zip(before).enumerate() {
            let sent = u64::try_from(number + 1).unwrap();
            let expected = if *is_there { sent } else { 0 };
            // A packet in another receive queue may arrive later.
            let until = Instant::now() + ARRIVES;
            while device.packets() - before < expected && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(device.packets() - before, expected, "device {number}");
        }
    }

    fn check_status<'a>(devices: impl IntoIterator<Item = (&'a Device, bool)>) {
        for (device, is_there) in devices {
            let expected = if is_there { vec![INTERFACE] } else { vec![] };
            assert_eq!(device.status().interfaces, expected, "port {}", device.port);
        }
    }
}

/// Returns the number of interfaces whose folder of pins has an entry of one of these devices.
fn folders<'a>(devices: impl IntoIterator<Item = &'a Device>) -> usize {
    let names: Vec<String> = devices.into_iter().map(Device::name).collect();
    let all = std::fs::read_dir("/sys/fs/bpf/pmnet-at")
        .into_iter()
        .flatten();
    let has = |folder: &Path| {
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
        files.into_iter().any(|file| {
            let file = file.file_name().to_string_lossy().into_owned();
            names.iter().any(|name| file.ends_with(name))
        })
    };
    all.flatten().filter(|folder| has(&folder.path())).count()
}

fn orders(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![vec![]];
    }
    let mut all = Vec::new();
    for order in orders(count - 1) {
        for at in 0..count {
            let mut more = order.clone();
            more.insert(at, count - 1);
            all.push(more);
        }
    }
    all
}

fn devices(count: u16) -> Vec<Device> {
    (0..count)
        .map(|number| Device::new(PORT + number))
        .collect()
}

#[test]
fn they_come_and_go_in_every_order() {
    if skipped() || crate::link::skipped() {
        return;
    }
    let net = Net::new();
    let devices = devices(3);
    let mut there = [false; 3];
    let state = |there: &[bool; 3]| {
        let there = *there;
        devices.iter().zip(there).collect::<Vec<_>>()
    };
    net.check(state(&there));
    for coming in orders(3) {
        for going in orders(3) {
            for &at in &coming {
                devices[at].come(&net.link);
                there[at] = true;
                net.check(state(&there));
            }
            Net::check_status(state(&there));
            for &at in &going {
                devices[at].go(&net.link);
                there[at] = false;
                net.check(state(&there));
            }
            Net::check_status(state(&there));
            assert_eq!(folders(&devices), 0, "something is left");
        }
    }
}

/// The change that a device is making when its process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Coming,
    /// The device attaches a new program.
    Replacing,
    Going,
}

/// The process that completes a change that was left half done.
#[derive(Clone, Copy, Debug)]
enum Mender {
    Itself,
    /// Another device, if there is one.
    Another,
    /// The device itself, which detaches right after that.
    Leaves,
}

#[test]
fn killed_between_any_two_steps() {
    if skipped() || crate::link::skipped() {
        return;
    }
    let net = Net::new();
    let devices = devices(3);
    let (victim, others) = devices.split_first().unwrap();
    let mut kills = 0;
    for count in 0..=others.len() {
        let others = &others[..count];
        let rest = || others.iter().map(|other| (other, true));
        for doing in [Doing::Coming, Doing::Replacing, Doing::Going] {
            for mender in [Mender::Itself, Mender::Another, Mender::Leaves] {
                for number in 0.. {
                    assert!(number < STEPS_MAX, "it goes on for ever");
                    for other in others {
                        other.come(&net.link);
                    }
                    if doing != Doing::Coming {
                        victim.come(&net.link);
                    }
                    let names: &[&str] = if doing == Doing::Going {
                        &[]
                    } else {
                        &[INTERFACE]
                    };
                    let killed = victim.attach_or_die(&net.link, names, Some(number));
                    // All other devices get their packets. A device that was only replacing its program gets its
                    // packets too.
                    net.check(rest());
                    if doing == Doing::Replacing {
                        net.check(rest().chain([(victim, true)]));
                    }
                    if let (Mender::Another, Some(other)) = (mender, others.first()) {
                        other.come(&net.link);
                        // The repair did not detach the device that made it. The killed device gets its packets if its
                        // attachment was complete.
                        net.check(rest());
                        Net::check_status(rest());
                        let is_there = victim.status().interfaces == [INTERFACE];
                        net.check([(victim, is_there)]);
                    }
                    if let Mender::Leaves = mender {
                        victim.go(&net.link);
                        net.check(rest().chain([(victim, false)]));
                    }
                    assert!(!victim.attach_or_die(&net.link, names, None));
                    net.check(rest().chain([(victim, doing != Doing::Going)]));
                    victim.go(&net.link);
                    net.check(rest().chain([(victim, false)]));
                    for other in others {
                        other.go(&net.link);
                    }
                    assert_eq!(folders(&devices), 0, "{doing:?}, {count}, step {number}");
                    if !killed {
                        break;
                    }
                    kills += 1;
                }
            }
        }
    }
    println!("{kills} kills");
    assert!(kills > 60, "{kills} kills");
}

#[test]
fn what_cannot_be_together_is_refused_and_leaves_the_others_alone() {
    if skipped() || crate::link::skipped() {
        return;
    }
    let net = Net::new();
    let devices = devices(2);
    for device in &devices {
        device.come(&net.link);
    }
    let all = || devices.iter().map(|device| (device, true));
    let twin = Device::new(PORT);
    let said = twin.refused(&net.link, true);
    let port = format!("the device {} has port {PORT} at veth0", devices[0].name());
    assert!(said.contains(&port), "{said}");
    let third = Device::new(PORT + 9);
    let said = third.refused(&net.link, false);
    assert!(said.contains("--xdp-generic"), "{said}");
    net.check(all().chain([(&third, false)]));
    assert_eq!(folders([&twin, &third]), 0);
    let more: Vec<Device> = (2..u16::try_from(DEVICES_MAX).unwrap())
        .map(|number| Device::new(PORT + number))
        .collect();
    for device in &more {
        device.come(&net.link);
    }
    let one_too_many = Device::new(PORT + 100);
    let said = one_too_many.refused(&net.link, true);
    assert!(said.contains("16 devices are at veth0"), "{said}");
    let all = all().chain(more.iter().map(|device| (device, true)));
    net.check(all.chain([(&one_too_many, false)]));
    // When a device has left, another device can take its place.
    more[3].go(&net.link);
    one_too_many.come(&net.link);
    net.check([(&one_too_many, true), (&more[3], false), (&more[0], true)]);
}

#[test]
fn where_something_else_is_attached_nothing_is_left_behind() {
    if skipped() || crate::link::skipped() {
        return;
    }
    let net = Net::new();
    let foreign = net
        .link
        .near(|| Redirect::attach(INTERFACE, 40_000..=40_000).unwrap());
    let devices = devices(1);
    let said = devices[0].refused(&net.link, true);
    assert!(said.contains("another XDP program"), "{said}");
    assert_eq!(folders(&devices), 0);
    Net::check_status([(&devices[0], false)]);
    drop(foreign);
    devices[0].come(&net.link);
    net.check([(&devices[0], true)]);
}

#[test]
fn an_interface_that_is_made_again_is_another_one() {
    if skipped() || crate::link::skipped() {
        return;
    }
    let devices = devices(2);
    let net = Net::new();
    for device in &devices {
        device.come(&net.link);
    }
    drop(net);
    let net = Net::new();
    // The kernel removes a namespace only some time after the command has ended.
    let until = Instant::now() + ARRIVES;
    while devices[0].status().interfaces == [INTERFACE] && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    Net::check_status(devices.iter().map(|device| (device, false)));
    for device in &devices {
        device.come(&net.link);
    }
    net.check(devices.iter().map(|device| (device, true)));
    Net::check_status(devices.iter().map(|device| (device, true)));
    for device in &devices {
        device.go(&net.link);
    }
    assert_eq!(folders(&devices), 0);
}

#[test]
fn names_with_a_dot_are_names_of_their_own() {
    if skipped() || crate::link::skipped() {
        return;
    }
    let net = Net::new();
    let names = ["pm.1", "pm_1"];
    net.link.near(|| {
        for (number, name) in names.iter().enumerate() {
            let peer = format!("peer{number}");
            let made = Command::new("ip")
                .args(["link", "add", name, "type", "veth", "peer", "name", &peer])
                .status();
            assert!(made.unwrap().success());
        }
    });
    let device = Device::new(PORT);
    assert!(!device.attach_or_die(&net.link, &names, None));
    assert_eq!(device.status().interfaces, names);
    assert!(!device.attach_or_die(&net.link, &names[1..], None));
    assert_eq!(device.status().interfaces, names[1..]);
    assert!(!device.attach_or_die(&net.link, &names[..1], None));
    assert_eq!(device.status().interfaces, names[..1]);
}

#[test]
fn who_comes_back_with_another_port_is_there_once() {
    if skipped() || crate::link::skipped() {
        return;
    }
    let net = Net::new();
    for others in [0, 1] {
        let others = devices(others);
        for other in &others {
            other.come(&net.link);
        }
        let device = Device::new(PORT + 20);
        device.come(&net.link);
        let device = device.moved(PORT + 21);
        device.come(&net.link);
        let all = || others.iter().chain([&device]).map(|device| (device, true));
        net.check(all());
        let before = device.packets();
        net.far.send_to(b"a datagram", (NEAR, PORT + 20)).unwrap();
        net.flush();
        assert_eq!(device.packets(), before, "it is at its old port too");
        // The port of the removed device is free.
        let next = Device::new(PORT + 20);
        next.come(&net.link);
        net.check(all().chain([(&next, true)]));
    }
}

/// The pins of a device were removed by hand.
#[test]
fn whose_maps_are_gone_is_nobody() {
    if skipped() || crate::link::skipped() {
        return;
    }
    let net = Net::new();
    let devices = devices(2);
    for device in &devices {
        device.come(&net.link);
    }
    std::fs::remove_file(devices[0].scratch.0.path("pm_image")).unwrap();
    let twin = Device::new(PORT);
    twin.come(&net.link);
    net.check([(&twin, true), (&devices[1], true)]);
    assert_eq!(folders([&devices[0]]), 0);
}
