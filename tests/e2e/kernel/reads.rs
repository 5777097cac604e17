//! Values that were just written are read from the log in the kernel, even while no other process
//! runs (`docs/spec/reads.md` §9).

use pmnet_lab::resp::{Client, Reply};

use super::CALL_MAX;
use super::world::{Place, Plan, World};

/// Returns the number of READs that the kernel answered with an update.
fn hits(world: &World) -> u64 {
    world.status()["counters"]["read_hits"].as_u64().unwrap()
}

/// Returns a value of this length that no other key has.
fn value(key: &str, bytes: usize) -> Vec<u8> {
    key.bytes().cycle().take(bytes).collect()
}

fn written_and_read(client: &mut Client, key: &str, bytes: usize) {
    let value = value(key, bytes);
    let ok = client.call(&[b"SET", key.as_bytes(), &value]).unwrap();
    assert_eq!(ok, Reply::Status(b"OK".to_vec()));
    let read = client.call(&[b"GET", key.as_bytes()]).unwrap();
    assert_eq!(read, Reply::Bulk(value), "{key}");
}

#[test]
fn what_was_just_written_is_read_from_the_kernel() {
    for place in [Place::Nic, Place::Router] {
        let Some(mut world) = World::start(Plan::new(place)) else {
            return;
        };
        let front = world.start_front();
        let mut client = world.inside("client1", || Client::connect(front, CALL_MAX).unwrap());
        // From here on, the front has its session for READs.
        written_and_read(&mut client, "first", 10);
        world.kill("server");
        let before = hits(&world);
        written_and_read(&mut client, "small", 1);
        written_and_read(&mut client, "usual", 100);
        assert_eq!(hits(&world), before + 2, "{place:?}");
        written_and_read(&mut client, "large", 1_000);
        world.kill("device");
        written_and_read(&mut client, "alone", 100);
        assert_eq!(
            client.call(&[b"GET", &b"small"[..]]).unwrap(),
            Reply::Bulk(value("small", 1))
        );
        world.restart("server");
        world.restart("device");
        written_and_read(&mut client, "again", 100);
    }
}
