//! A server that keeps the bodies of HTTP PUTs in the packet buffers in which they arrived, as PASTE's HTTP server
//! does. After a restart the server finds the bodies again. The example needs root.
//!
//! ```sh
//! cargo run --release -p pmnet-packets --example http_put -- /dev/shm/http.log eth0 10.0.0.2:8000
//! curl -T photo.jpeg http://10.0.0.2:8000/photo     # from another machine
//! curl http://10.0.0.2:8000/photo
//! ```

mod segments;
mod server;

use anyhow::Context;
use pmnet_packets::{Medium, Options, Transport};

fn main() -> anyhow::Result<()> {
    let mut words = std::env::args().skip(1);
    let mut word = || {
        words
            .next()
            .context("usage: http_put PATH INTERFACE ADDRESS:PORT")
    };
    let options = Options {
        path: word()?.into(),
        medium: Medium::Memory,
        bytes: 64 << 20,
        interfaces: vec![word()?],
        listen: word()?.parse().context("ADDRESS:PORT")?,
        transport: Transport::Tcp,
    };
    server::serve(&options)
}
