//! A persistent log server over UDP. Every datagram is kept in the buffer into which it was received, made durable, and
//! answered with its position in the log. The example needs root.
//!
//! ```sh
//! cargo run --release -p pmnet-packets --example udp_log -- /dev/shm/udp.log eth0 10.0.0.2:7000
//! ```

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use pmnet_packets::{Medium, Options, Region, Transport};

fn main() -> anyhow::Result<()> {
    let mut words = std::env::args().skip(1);
    let mut word = || {
        words
            .next()
            .context("usage: udp_log PATH INTERFACE ADDRESS:PORT")
    };
    let options = Options {
        path: PathBuf::from(word()?),
        medium: Medium::Memory,
        bytes: 64 << 20,
        interfaces: vec![word()?],
        listen: word()?.parse().context("ADDRESS:PORT")?,
        transport: Transport::Udp,
    };
    let mut region = Region::open(&options)?;
    println!("{} datagrams from before", region.kept().count());
    println!("what is answered survives {}", region.survives());
    let mut burst = Vec::new();
    loop {
        region.receive(Duration::from_secs(60), &mut burst)?;
        let mut answers = Vec::new();
        for packet in burst.drain(..) {
            let from = packet.from();
            match region.keep(packet, 0) {
                Ok(order) => answers.push((from, order)),
                Err((_full, packet)) => region.release(packet),
            }
        }
        // One fence makes all datagrams durable. The answers are sent after the fence.
        region.persist()?;
        for (from, order) in answers {
            region.send(from, order.to_string().as_bytes())?;
        }
        region.flush()?;
    }
}
