//! Random histories of a queue with several restarts, with a crash at every moment.

use crate::world::{World, formatted};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

fn run(seeds: u64, steps: u64) {
    let (mut images, mut overtaken, mut holes, mut laps, mut longest) = (0, 0, 0, 0, 0);
    for seed in 0..seeds {
        let mut random = Random(seed);
        let mut world = World::begin(formatted(), Vec::new(), None);
        for _life in 0..3 {
            let began = world.queue.processed();
            for _ in 0..steps {
                world.step(random.next());
                images += world.crash(0).0;
            }
            laps += (world.queue.processed() - began) / 4;
            let (_, medium, log) = world.crash(random.next());
            longest = longest.max(log.len());
            world = World::begin(medium, log, Some(world));
        }
        overtaken += world.overtaken;
        holes += world.holes;
    }
    println!(
        "images {images}, laps {laps}, longest log {longest}, completions that overtook an earlier slot {overtaken}, holes {holes}"
    );
    assert!(images > 10_000 && laps > 10 && overtaken > 10 && holes > 10 && longest > 10);
}

#[test]
fn crash_at_every_moment() {
    run(40, 150);
}

#[test]
#[ignore = "minutes: cargo test --release -p pmnet-log --test slots -- --ignored --nocapture"]
fn crash_at_every_moment_of_many_lives() {
    run(2000, 400);
}
