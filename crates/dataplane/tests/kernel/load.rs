//! Loading: the pipeline acknowledges updates by itself, and maps of other versions are refused.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering::SeqCst;

use pmnet_wire::{Header, Kind, Packet, raw};

use crate::world::{SHARD, World, skipped};

/// The token is even, because an odd token would open a mark.
pub const TOKEN: u64 = 0xfeed_0000_0000_0002;

/// Returns a header of a session that was opened with [`TOKEN`].
pub fn of_client(kind: Kind, session: u64) -> Header {
    Header {
        shard: SHARD,
        epoch: 1,
        session,
        tag: TOKEN,
        ..Header::new(kind)
    }
}

pub fn addresses() -> [(SocketAddr, SocketAddr); 2] {
    [
        (
            SocketAddr::from((Ipv4Addr::new(10, 0, 0, 7), 51_000)),
            SocketAddr::from((Ipv4Addr::new(10, 0, 0, 1), 40_001)),
        ),
        (
            SocketAddr::from((Ipv6Addr::new(0xfd51, 0, 0, 0, 0, 0, 0, 7), 51_000)),
            SocketAddr::from((Ipv6Addr::new(0xfd51, 0, 0, 0, 0, 0, 0, 1), 40_001)),
        ),
    ]
}

pub fn open(world: &mut World, client: SocketAddr, token: u64) -> u64 {
    let mut open = Vec::new();
    Header {
        shard: SHARD,
        tag: token,
        ..Header::new(Kind::Open)
    }
    .write(&token.to_be_bytes(), &mut open);
    let said = world.receive(client, &open);
    let reply = said
        .iter()
        .find(|packet| packet.to == client)
        .expect("an open-reply");
    let reply = Packet::parse(&reply.bytes).unwrap().header;
    assert_eq!(reply.kind, Kind::OpenReply);
    reply.session
}

#[test]
fn an_update_is_acknowledged_by_the_kernel_alone() {
    if skipped() {
        return;
    }
    for (device, client) in addresses() {
        let mut world = World::new(device, |_| ());
        let session = open(&mut world, client, TOKEN);
        for (seq, payload) in [(1, &b"payload"[..]), (2, b""), (3, &[7; 1344])] {
            let mut update = Vec::new();
            Header {
                shard: SHARD,
                epoch: 1,
                session,
                seq,
                key_hash: raw(0x1234_5678_9abc_def0 * (seq - 1)),
                tag: TOKEN,
                ..Header::new(Kind::Update)
            }
            .write(payload, &mut update);
            let said = world.receive(client, &update);
            let ack = said.iter().find(|packet| packet.to == client).unwrap();
            let ack = Packet::parse(&ack.bytes).unwrap().header;
            assert_eq!((ack.kind, ack.seq, ack.copies.raw()), (Kind::Ack, seq, 1));
            assert_eq!(world.answered, seq, "by the kernel");
        }
        world.compare_logs();
    }
}

#[test]
fn what_it_costs_to_verify_is_told() {
    if skipped() {
        return;
    }
    let (device, _) = addresses()[0];
    let world = World::new(device, |_| ());
    let instructions = world.kernel.0.lock().unwrap().verified_instructions();
    println!("verified instructions: {instructions:?}");
    assert!(instructions.is_none_or(|count| count < 1_000_000));
    let world = World::new(device, |device| {
        device.keys = Some(crate::keyed::keys((0, 0), false));
    });
    let instructions = world.kernel.0.lock().unwrap().verified_instructions();
    println!("with keys: {instructions:?}");
    assert!(instructions.is_none_or(|count| count < 1_000_000));
}

#[test]
fn what_another_version_left_is_not_misread() {
    if skipped() {
        return;
    }
    let scratch = crate::world::Scratch::new();
    let (array, key_bytes, value_bytes) = (2, 4, 8);
    let counts = aya_obj::Map::new_from_params(array, key_bytes, value_bytes, 1, 0);
    let counts = aya::maps::MapData::create(counts, "pm_counts", None).unwrap();
    counts.pin(scratch.0.path("pm_counts")).unwrap();
    let (address, _) = addresses()[0];
    let config = crate::world::config(address);
    let Err(error) = pmnet_dataplane::xdp::Kernel::load(&config, scratch.0.clone()) else {
        panic!("loaded over the maps of another version");
    };
    assert!(error.to_string().contains("another version"), "{error}");
}

#[test]
fn fields_of_another_version_in_maps_of_the_same_size_are_not_misread() {
    if skipped() {
        return;
    }
    let scratch = crate::world::Scratch::new();
    let (address, _) = addresses()[0];
    let config = crate::world::config(address);
    let load = || pmnet_dataplane::xdp::Kernel::load(&config, scratch.0.clone());
    load().map(drop).expect("new maps");
    load().map(drop).expect("maps of this version");
    let words = crate::world::Words::of(&scratch.0);
    let (layout, last) = (&words.shard().layout, &words.shard().last);
    let ours = layout.load(SeqCst);
    let refused = || {
        let error = load().map(drop).expect_err("maps of another version");
        assert!(error.to_string().contains("another version"), "{error}");
    };
    layout.store(ours + 1, SeqCst);
    refused();
    // The maps are those of a version without a layout number, and their log is in use.
    layout.store(0, SeqCst);
    last.store(7, SeqCst);
    refused();
    // Here the process that made the maps died before it wrote the number.
    last.store(0, SeqCst);
    load().map(drop).expect("maps that nobody has used");
    assert_eq!(layout.load(SeqCst), ours);
}
