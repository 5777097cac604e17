//! Several devices at one interface: each gets its packets from the dispatcher, and processes them as a device in user
//! space does. A packet that is for none of the devices passes unchanged.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use fastrand::Rng;
use pmnet_dataplane::xdp::{DEVICES_MAX, Dispatcher, XDP_PASS};
use pmnet_device::FastPath;

use crate::differential::{PACKETS, PACKETS_ALL, Run, number};
use crate::load::{TOKEN, addresses, open};
use crate::world::{World, frame, skipped};

/// Port of the first device; the other devices have the following ports.
const PORT: u16 = 51_000;

fn dispatcher<'a>(worlds: impl Iterator<Item = &'a mut World>) -> Arc<Mutex<Dispatcher>> {
    let worlds: Vec<&mut World> = worlds.collect();
    let mut kernels: Vec<_> = worlds
        .iter()
        .map(|world| (world.address.port(), world.kernel.0.lock().unwrap()))
        .collect();
    let devices: Vec<_> = kernels
        .iter_mut()
        .map(|(port, kernel)| (*port, kernel.pipeline().unwrap()))
        .collect();
    let front = Arc::new(Mutex::new(Dispatcher::load(&devices).unwrap()));
    drop(devices);
    drop(kernels);
    for world in worlds {
        world.front = Some(front.clone());
    }
    front
}

/// Returns a run at the port with this number. The seed determines whether it uses IPv4 or IPv6.
fn run(seed: u64, number: u16) -> Run<World> {
    Run::new(seed, |address, settings| {
        World::new(SocketAddr::new(address.ip(), PORT + number), settings)
    })
}

#[test]
fn each_of_several_answers_as_user_space_does() {
    if skipped() {
        return;
    }
    let packets = number("PMNET_PACKETS", PACKETS_ALL) / 4;
    let first = number("PMNET_SEED", 1);
    let mut answered = 0;
    for seed in first..first + packets.div_ceil(PACKETS) {
        let count = if seed % 2 == 0 { 2 } else { 4 };
        let mut random = Rng::with_seed(seed);
        let told = std::panic::catch_unwind(move || {
            let mut runs: Vec<Run<World>> = (0..count)
                .map(|number| run(seed * 16 + u64::from(number), number))
                .collect();
            let front = dispatcher(runs.iter_mut().map(|run| &mut run.world));
            for _ in 0..PACKETS {
                let at = random.usize(..runs.len());
                runs[at].step();
            }
            for run in &runs {
                run.world.compare_logs();
                assert!(run.world.answered > 0, "{}", run.world.address);
            }
            drop(front);
            runs.iter().map(|run| run.world.answered).sum::<u64>()
        });
        answered += told.unwrap_or_else(|panic| {
            println!("PMNET_SEED={seed} shows it again");
            std::panic::resume_unwind(panic);
        });
    }
    println!("{packets} packets, {answered} answered by the kernel");
    assert!(answered * 10 > packets, "{answered} of {packets}");
}

#[test]
fn what_is_nobodys_passes_as_it_came() {
    if skipped() {
        return;
    }
    for (device, client) in addresses() {
        let at = |number| SocketAddr::new(device.ip(), PORT + number);
        let mut worlds = [0, 1].map(|number| World::new(at(number), |_| ()));
        let front = dispatcher(worlds.iter_mut());
        let session = open(&mut worlds[0], client, TOKEN);
        let update = crate::races::update(session, 1);
        let mut out = [0; 4096];
        let mut passes = |frame: &[u8]| {
            let mut front = front.lock().unwrap();
            let (verdict, after) = front.run(frame, &mut out).unwrap();
            assert_eq!((verdict, after), (XDP_PASS, frame));
        };
        for port in [0, PORT - 1, PORT + 2, u16::MAX] {
            passes(&frame(client, SocketAddr::new(device.ip(), port), &update));
        }
        // Frames to a device's port, cut to every length that the kernel can run.
        let whole = frame(client, at(1), b"");
        for length in 14..whole.len() {
            passes(&whole[..length]);
        }
        // TCP, ARP, and an unknown protocol.
        for (place, value) in [(23, 6), (13, 6), (12, 0)] {
            let mut other = frame(client, at(1), b"some more bytes");
            other[place] = value;
            passes(&other);
        }
        for world in &worlds {
            assert_eq!(
                world.kernel.0.lock().unwrap().tail().last,
                world.device.log().last()
            );
        }
    }
}

#[test]
fn no_more_than_an_interface_can_have() {
    if skipped() {
        return;
    }
    let (device, _) = addresses()[0];
    let world = World::new(device, |_| ());
    let mut kernel = world.kernel.0.lock().unwrap();
    let pipeline = kernel.pipeline().unwrap();
    let devices =
        |count: usize| -> Vec<_> { (1..).map(|port| (port, pipeline)).take(count).collect() };
    Dispatcher::load(&devices(DEVICES_MAX)).map(drop).unwrap();
    let error = Dispatcher::load(&devices(DEVICES_MAX + 1)).map(drop);
    assert!(error.unwrap_err().to_string().contains("at most 16"));
}
