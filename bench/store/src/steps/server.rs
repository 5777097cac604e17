//! Measures round trips of puts over TCP on the loopback interface. Client and server are equal for
//! all ways; only the store differs.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use anyhow::ensure;
use pmnet_resp::Status;

use super::{REQUEST_BYTES_MAX, Way, parser};

const ANSWER: &[u8] = b"+OK\r\n";

/// Sends each request after the answer to the previous request. Returns the round-trip times in µs.
/// The server runs on this thread.
pub fn round_trips(way: &mut dyn Way, requests: &[Vec<u8>]) -> anyhow::Result<Vec<f64>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::scope(|scope| {
        let client = scope.spawn(move || client(TcpStream::connect(address)?, requests));
        let (stream, _) = listener.accept()?;
        let served = serve(stream, way);
        let trips = client.join().expect("the client does not panic")?;
        served?;
        Ok(trips)
    })
}

fn client(mut stream: TcpStream, requests: &[Vec<u8>]) -> anyhow::Result<Vec<f64>> {
    stream.set_nodelay(true)?;
    let mut trips = Vec::with_capacity(requests.len());
    for request in requests {
        let started = Instant::now();
        stream.write_all(request)?;
        let mut answer = [0; ANSWER.len()];
        stream.read_exact(&mut answer)?;
        trips.push(started.elapsed().as_secs_f64() * 1e6);
        ensure!(answer == ANSWER, "a wrong answer");
    }
    Ok(trips)
}

fn serve(mut stream: TcpStream, way: &mut dyn Way) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 2 * REQUEST_BYTES_MAX];
    let mut filled = 0;
    let mut parser = parser();
    loop {
        let read = stream.read(&mut buffer[filled..])?;
        if read == 0 {
            return Ok(());
        }
        filled += read;
        if parser.poll(&buffer[..filled])? == Status::Complete {
            let request = parser.consume();
            way.arrive(&buffer[..request])?;
            way.put()?;
            stream.write_all(ANSWER)?;
            filled = 0;
        }
    }
}
