//! A client that keeps to no rule, for `tests/verbs`: `rude RDMA-DEVICE OWN-ADDRESS DEVICE:PORT TIMES`.
//!
//! It asks a device for connections as `pmnet redis --rdma` does. On some it sends a message that is longer than a slot; on others it dies in the middle
//! of a message, and leaves its TCP connection open. At its end it says how many of each.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use pmnet_verbs::{Completions, MESSAGE_BYTES, Message, Nic, QueuePair, SendBuffers, Whereto};

type Failed = Box<dyn std::error::Error>;

/// Longer than a slot, and more than one packet.
const LONG: usize = 4000;
/// As long as a slot: several packets with the path of an Ethernet of 1500 bytes.
const WHOLE: usize = 2048;

fn main() -> Result<(), Failed> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [rdma, own, device, times] = args.as_slice() else {
        return Err("rude RDMA-DEVICE OWN-ADDRESS DEVICE:PORT TIMES".into());
    };
    let nic = Nic::open(rdma, own.parse::<IpAddr>()?)?;
    let device: SocketAddr = device.parse()?;
    let mut garbage = TcpStream::connect(device)?;
    garbage.write_all(&[7; MESSAGE_BYTES])?;
    let mut silent = Vec::new();
    let times: u32 = times.parse()?;
    let (mut long, mut cut) = (0, 0);
    let mut left = Vec::new();
    for number in 0..times {
        silent.push(TcpStream::connect(device)?);
        let completions = Completions::new(&nic, 64)?;
        let pair = QueuePair::new(&nic, &completions, None, 8, number)?;
        let (line, partner, mtu) = connect(&pair, device, nic.mtu())?;
        pair.connect(&partner, mtu)?;
        let mut buffers = SendBuffers::new(&nic, 4, LONG)?;
        if number % 2 == 0 {
            buffers.send(&pair, 0, &[1; LONG])?;
            long += 1;
            std::thread::sleep(Duration::from_millis(100));
        } else {
            for buffer in 0..4 {
                buffers.send(&pair, buffer, &[2; WHOLE])?;
            }
            cut += 1;
        }
        // The QP is gone, and the TCP connection stays.
        drop(pair);
        left.push(line);
        if left.len() > 8 {
            left.clear();
            silent.clear();
        }
    }
    println!("rude: {long} messages longer than a slot, {cut} connections cut off while they sent");
    // The device's deadlines end the connections that are left.
    std::thread::sleep(Duration::from_secs(4));
    Ok(())
}

/// Asks until the device lets it in.
fn connect(
    pair: &QueuePair,
    device: SocketAddr,
    mtu: u32,
) -> Result<(TcpStream, Whereto, u32), Failed> {
    let mut epoch = 0;
    for _ in 0..100 {
        let mut line = TcpStream::connect(device)?;
        line.set_read_timeout(Some(Duration::from_secs(5)))?;
        let hello = Message::Hello {
            shard: 0,
            epoch,
            port: 9,
            mtu,
            client: pair.whereto(),
        };
        line.write_all(&hello.write())?;
        let mut answer = [0; MESSAGE_BYTES];
        match line
            .read_exact(&mut answer)
            .map(|()| Message::read(&answer))
        {
            Ok(Some(Message::Welcome { device, mtu, .. })) => return Ok((line, device, mtu)),
            Ok(Some(Message::Refused { epoch: other, .. })) => epoch = other,
            _ => {}
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Err("the device lets nobody in".into())
}
