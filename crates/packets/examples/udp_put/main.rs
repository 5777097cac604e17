//! A durable store of keys and values over UDP, in which the buffer with a received request becomes the record. The
//! example needs root.
//!
//! ```sh
//! cargo run --release -p pmnet-packets --example udp_put -- /dev/shm/records eth0 10.0.0.2:7000
//! ```

mod server;

use anyhow::Context;
use pmnet_packets::{Medium, Options, RecordsOptions, Transport};

fn main() -> anyhow::Result<()> {
    let mut words = std::env::args().skip(1);
    let mut word = || {
        words
            .next()
            .context("usage: udp_put PATH INTERFACE ADDRESS:PORT")
    };
    let region = Options {
        path: word()?.into(),
        medium: Medium::Memory,
        bytes: 256 << 20,
        interfaces: vec![word()?],
        listen: word()?.parse().context("ADDRESS:PORT")?,
        transport: Transport::Udp,
    };
    server::serve(&RecordsOptions {
        region,
        log_buffers: 4096,
    })
}
