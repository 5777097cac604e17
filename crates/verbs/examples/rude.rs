//! A client that breaks the rules, for `tests/verbs`: `rude RDMA-DEVICE OWN-ADDRESS DEVICE:PORT TIMES [KEYFILE]`.
//!
//! Like `pmnet redis --rdma`, it asks a device for connections. Each of its clients does one of three things: it sends
//! a message longer than a slot; it begins a message that never ends, and stays; or it begins such a message, and
//! closes the TCP connection. It also opens a TCP connection that sends garbage, and all the time others that send
//! nothing: more than the device has places for. With the key of a front, one more client sends a message without a
//! MAC, and another one asks for a connection without the key. At the end it waits until the device has disconnected
//! the clients that stayed, and prints the number of clients of each kind.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pmnet_keys::Front;
use pmnet_verbs::{
    CONNECTIONS_MAX, Caller, Completions, MESSAGE_BYTES, Message, Nic, QueuePair, Refusal,
    SendBuffers, Told, Whereto,
};
use pmnet_wire::FrontKey;

type Failed = Box<dyn std::error::Error>;

/// Length of a message that is longer than a slot and takes more than one packet.
const LONG: usize = 4000;
/// Length of a message that fits into a slot, but is not a packet.
const SHORT: usize = 200;
/// Length of a slot, and of the message that never ends. Such a message takes at least two RDMA packets.
const WHOLE: usize = 2048;
const MTU: u32 = 1024;
/// Longest wait for the NIC to report that it cannot continue, and for the device to end a connection.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(100);

/// A connection. Its fields are dropped in their order.
struct Client {
    pair: QueuePair,
    buffers: SendBuffers,
    completions: Completions,
    line: TcpStream,
}

fn main() -> Result<(), Failed> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [rdma, own, device, times, key @ ..] = args.as_slice() else {
        return Err("rude RDMA-DEVICE OWN-ADDRESS DEVICE:PORT TIMES [KEYFILE]".into());
    };
    let key = key.first().map(|path| Front::read(Path::new(path)));
    let key = key.transpose()?.map(|front| front.key);
    let nic = Nic::open(rdma, own.parse::<IpAddr>()?)?;
    let device: SocketAddr = device.parse()?;
    let times: u32 = times.parse()?;
    let mut garbage = TcpStream::connect(device)?;
    garbage.write_all(&[7; MESSAGE_BYTES])?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let crowd = scope.spawn(|| crowd(device, &over));
        // The crowd has all places that no front has.
        std::thread::sleep(10 * PAUSE);
        let done = all(&nic, device, times, key);
        over.store(true, Ordering::Relaxed);
        let silent = crowd.join().expect("it does not panic");
        println!("{}; {silent} connections that send nothing", done?);
        Ok(())
    })
}

/// Opens connections that send nothing, and keeps as many of them as a device has places. Returns their number.
fn crowd(device: SocketAddr, over: &AtomicBool) -> usize {
    let mut silent = VecDeque::new();
    let mut number = 0;
    while !over.load(Ordering::Relaxed) {
        silent.extend(TcpStream::connect(device));
        number += 1;
        if silent.len() > CONNECTIONS_MAX {
            silent.pop_front();
            std::thread::sleep(PAUSE / 5);
        }
    }
    number
}

/// Does everything else. Returns a line with the number of each kind.
fn all(nic: &Nic, device: SocketAddr, times: u32, key: Option<FrontKey>) -> Result<String, Failed> {
    let (mut long, mut cut, mut gone) = (0, 0, 0);
    let mut left = Vec::new();
    for number in 0..times {
        let mut client = Client::new(nic, device, number, key)?;
        match number % 3 {
            0 => {
                client.buffers.send(&client.pair, 0, &[1; LONG])?;
                long += 1;
                std::thread::sleep(PAUSE);
            }
            1 => {
                client.cut_off()?;
                cut += 1;
                left.push(client);
            }
            _ => {
                client.cut_off()?;
                gone += 1;
            }
        }
    }
    let ended = left.iter().filter(|client| client.is_ended()).count();
    drop(left);
    let (mut forged, mut found, mut keyless, mut refused) = (0, 0, 0, 0);
    if key.is_some() {
        let mut client = Client::new(nic, device, times, key)?;
        client.buffers.send(&client.pair, 0, &[1; SHORT])?;
        (forged, found) = (1, u32::from(client.is_ended()));
        let pair = QueuePair::new(nic, &client.completions, None, 8, 0)?;
        let told = ask(&pair, device, 0, None)?.1;
        (keyless, refused) = (1, u32::from(told == Told::Refused(Refusal::NeedsKey)));
    }
    Ok(format!(
        "{long} messages longer than a slot; {cut} cut off in the middle of a message, {ended} of them disconnected; {gone} cut off and gone; \
         {forged} without a MAC, {found} of them disconnected; {keyless} without a key, {refused} of them refused"
    ))
}

impl Client {
    fn new(
        nic: &Nic,
        device: SocketAddr,
        number: u32,
        key: Option<FrontKey>,
    ) -> Result<Client, Failed> {
        let completions = Completions::new(nic, 64)?;
        let pair = QueuePair::new(nic, &completions, None, 8, number)?;
        let (line, partner, mtu) = connect(&pair, device, key)?;
        pair.connect(&partner, mtu)?;
        Ok(Client {
            pair,
            buffers: SendBuffers::new(nic, 4, LONG)?,
            completions,
            line,
        })
    }

    /// Begins a message that never ends. The NIC has sent the first packet of the message when this returns.
    fn cut_off(&mut self) -> Result<(), Failed> {
        let first = usize::try_from(MTU)?;
        self.buffers.begin(&self.pair, first, WHOLE)?;
        let begun = Instant::now();
        let mut polled = Vec::new();
        while polled.is_empty() && begun.elapsed() < PATIENCE {
            self.completions.poll(&mut polled)?;
            std::thread::sleep(PAUSE / 100);
        }
        match polled.first() {
            Some(completion) if completion.outcome.is_err() => Ok(()),
            _ => Err("the NIC does not say that it cannot go on".into()),
        }
    }

    /// Waits up to [`PATIENCE`]. Returns whether the device has ended the connection.
    fn is_ended(&self) -> bool {
        let limited = self.line.set_read_timeout(Some(PATIENCE));
        let read = limited.and_then(|()| (&self.line).read(&mut [0]));
        match read {
            Ok(bytes) => bytes == 0,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

/// Asks for a connection again and again, until the device accepts.
fn connect(
    pair: &QueuePair,
    device: SocketAddr,
    key: Option<FrontKey>,
) -> Result<(TcpStream, Whereto, u32), Failed> {
    let mut epoch = 0;
    for _ in 0..100 {
        match ask(pair, device, epoch, key)? {
            (line, Told::Message(Message::Welcome { device, mtu, .. })) => {
                return Ok((line, device, mtu));
            }
            (_, Told::Message(Message::Refused { epoch: other, .. })) => epoch = other,
            _ => {}
        }
        std::thread::sleep(PAUSE);
    }
    Err("the device lets nobody in".into())
}

/// Asks for a connection once. Returns the device's last answer.
fn ask(
    pair: &QueuePair,
    device: SocketAddr,
    epoch: u32,
    key: Option<FrontKey>,
) -> Result<(TcpStream, Told), Failed> {
    let mut line = TcpStream::connect(device)?;
    line.set_read_timeout(Some(Duration::from_secs(5)))?;
    let hello = Message::Hello {
        shard: 0,
        epoch,
        port: 9,
        mtu: MTU,
        client: pair.whereto(),
    };
    let nonce = [getrandom::u64()?, getrandom::u64()?];
    let (mut caller, first) = Caller::begin(key, nonce, hello);
    line.write_all(&first)?;
    loop {
        let mut answer = [0; MESSAGE_BYTES];
        let told = match line.read_exact(&mut answer) {
            Ok(()) => caller.hear(&answer),
            Err(_) => Told::Garbage,
        };
        match told {
            Told::Answer(bytes) => line.write_all(&bytes)?,
            told => return Ok((line, told)),
        }
    }
}
