//! One device with its fast path in the kernel. Before every call of its process to the fast path, a hook may kill the
//! process, or run frames through the pipeline as other CPUs would.

use std::any::Any;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};

use pmnet_dataplane::xdp::{
    Kernel, KernelConfig, MapMedia, OpenConfig, Pins, XDP_DROP, XDP_PASS, XDP_TX, open,
};
use pmnet_device::{DeviceConfig, DeviceError, DeviceNode, FastPath, Hold};
use pmnet_log::{Identity, Tail};
use pmnet_proto::device::{Bucket, ChainState, HopWork, ReadState, SessionState};
use pmnet_proto::keys::ClusterKeys;
use pmnet_proto::{Peer, Random, Time};
use pmnet_wire::packet::Stamp;

use crate::world::{SHARD, Scratch, config, frame};

/// The kernel's part of a device, shared by the process and the test.
pub type Part = Arc<Mutex<Kernel>>;
/// Called just before each call of the process to its fast path, with the name of the call.
pub type Hook = Arc<dyn Fn(&Part, &'static str) + Send + Sync>;

/// The panic by which a hook kills the process.
pub struct Killed;

/// Kills the process that calls.
pub fn kill() -> ! {
    resume_unwind(Box::new(Killed))
}

/// The pipeline's action for a frame.
#[derive(Debug)]
pub enum Passed {
    /// The pipeline sent this datagram to this receiver.
    Out(Peer, Vec<u8>),
    /// The pipeline passed the packet to the process.
    Up,
    /// The pipeline dropped the packet.
    Gone,
}

/// Runs a datagram through the pipeline.
pub fn run(kernel: &Part, from: Peer, to: SocketAddr, datagram: &[u8]) -> Passed {
    let before = frame(from, to, datagram);
    let mut out = [0; 4096];
    let mut kernel = kernel.lock().unwrap();
    let (verdict, after) = kernel.run(&before, &mut out).unwrap();
    match verdict {
        XDP_TX => {
            let octets: [u8; 4] = after[30..34].try_into().unwrap();
            let port = u16::from_be_bytes([after[36], after[37]]);
            Passed::Out(SocketAddr::from((octets, port)), after[42..].to_vec())
        }
        XDP_PASS => Passed::Up,
        XDP_DROP => Passed::Gone,
        other => panic!("verdict {other}"),
    }
}

struct Racing {
    kernel: Part,
    hook: Hook,
}

impl Racing {
    fn at(&self, call: &'static str) -> std::sync::MutexGuard<'_, Kernel> {
        (self.hook)(&self.kernel, call);
        self.kernel.lock().unwrap()
    }
}

impl FastPath for Racing {
    fn admits(&self) -> bool {
        self.at("admits").admits()
    }
    fn last(&self) -> u64 {
        self.at("last").last()
    }
    fn tail(&self) -> Tail {
        self.at("tail").tail()
    }
    fn hold(&mut self) -> io::Result<Box<dyn Hold + '_>> {
        // A request for the guard makes no call while the guard is held.
        if self.kernel.lock().unwrap().admits() {
            self.at("hold").hold().map(drop)?;
        }
        Ok(Box::new(RacingHold(self)))
    }
    fn look(&mut self) -> HopWork {
        self.at("look").look()
    }
    fn applied(&mut self, applied: u64) {
        self.at("applied").applied(applied);
    }
    fn refresh_session(&mut self, id: u64, state: Option<SessionState>) -> io::Result<()> {
        self.at("session").refresh_session(id, state)
    }
    fn sleep(&mut self) -> io::Result<()> {
        self.at("sleep").sleep()
    }
    fn wakeup_fd(&self) -> Option<RawFd> {
        None
    }
    fn answers_until(&mut self, deadline: Option<Time>) {
        self.at("answers_until").answers_until(deadline);
    }
    fn heard(&mut self, id: u64) -> bool {
        self.at("heard").heard(id)
    }
    fn hand_reads_up(&mut self) {
        self.at("hand_reads_up").hand_reads_up();
    }
    fn tell_reads(&mut self, state: &ReadState, changed: &[(usize, Bucket)]) {
        self.at("tell_reads").tell_reads(state, changed);
    }
}

struct RacingHold<'a>(&'a Racing);

impl Hold for RacingHold<'_> {
    fn describe(&mut self, stamp: &Stamp, chain: &ChainState) -> bool {
        let mut kernel = self.0.at("describe");
        let mut hold = kernel.hold().expect("it is held");
        hold.describe(stamp, chain)
    }
    fn set_session(&mut self, id: u64, state: Option<SessionState>) -> io::Result<()> {
        self.0.at("session").hold()?.set_session(id, state)
    }
    fn forget_sessions(&mut self) -> io::Result<()> {
        self.0.at("forget_sessions").hold()?.forget_sessions()
    }
    fn forget_log(&mut self) -> io::Result<()> {
        self.0.at("forget_log").hold()?.forget_log()?;
        drop(self.0.at("log_forgotten"));
        Ok(())
    }
    fn tell_reads(&mut self, state: &ReadState, changed: &[(usize, Bucket)]) {
        let mut kernel = self.0.at("tell_reads_held");
        let mut hold = kernel.hold().expect("it is held");
        hold.tell_reads(state, changed);
    }
    fn answers_for_ever(&mut self) {
        let mut kernel = self.0.at("answers_for_ever");
        let mut hold = kernel.hold().expect("it is held");
        hold.answers_for_ever();
    }
    fn release(self: Box<Self>, tail: &Tail) -> io::Result<()> {
        self.0.at("release").hold()?.release(tail)
    }
}

struct Process {
    device: DeviceNode<MapMedia>,
    _lock: File,
}

/// A device: its pins, and its process, if that is alive.
pub struct Node {
    pub address: SocketAddr,
    /// The pipeline, which runs frames even while the process is dead.
    pub kernel: Part,
    config: DeviceConfig,
    hook: Hook,
    process: Option<Process>,
    starts: u64,
    /// The next process that takes over lets the device begin with an empty log.
    pub anew: bool,
    scratch: Scratch,
}

impl Node {
    pub fn new(address: SocketAddr, config: DeviceConfig, hook: Hook, now: Time) -> Node {
        let scratch = Scratch::new();
        let (kernel, process) =
            start(&scratch.0, address, &config, &hook, (now, 0), false).unwrap();
        Node {
            address,
            kernel,
            config,
            hook,
            process: Some(process),
            starts: 1,
            anew: false,
            scratch,
        }
    }

    pub fn lives(&self) -> bool {
        self.process.is_some()
    }

    pub fn device(&self) -> Option<&DeviceNode<MapMedia>> {
        self.process.as_ref().map(|process| &process.device)
    }

    /// The lease store has granted a lease of this length, which was requested at this moment.
    pub fn renewed(&mut self, sent_at: Time, length: u64) {
        let process = self.process.as_mut().expect("it lives");
        process.device.renewed(1, sent_at, length);
    }

    /// Kills the device's process.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Changes the settings with which the next process takes over.
    pub fn reconfigure(&mut self, change: impl Fn(&mut DeviceConfig)) {
        change(&mut self.config);
    }

    /// Returns the device's pins.
    pub fn pins(&self) -> &Pins {
        &self.scratch.0
    }

    /// Lets a new process take over. The error states why it cannot.
    pub fn restart(&mut self, now: Time) -> Result<(), String> {
        self.process = None;
        let (pins, starts) = (self.scratch.0.clone(), self.starts);
        self.starts += 1;
        let at = (now, starts);
        // This process too may be killed while it starts.
        let started =
            survives(|| start(&pins, self.address, &self.config, &self.hook, at, self.anew));
        if let Some(started) = started {
            let (kernel, process) = started?;
            self.kernel = kernel;
            self.process = Some(process);
        }
        Ok(())
    }

    /// Gives the process the new keys of the cluster.
    pub fn rekey(&mut self, now: Time, keys: ClusterKeys) -> Result<(), DeviceError> {
        let process = self.process.as_mut().expect("it lives");
        process.device.rekey(now, keys)
    }

    /// Returns whether the device's process has heard of the next hop since the last call.
    pub fn heard_next(&mut self) -> bool {
        let process = self.process.as_mut().expect("it lives");
        process.device.heard_next()
    }

    /// Takes the steps of the process before a wait. Returns the time until which the process may wait.
    pub fn rest(&mut self, now: Time) -> Option<Time> {
        let process = self.process.as_mut().expect("it lives");
        process
            .device
            .rest(now)
            .expect("the fast path can be asked")
    }

    /// Runs one turn of the process. Returns the packets that the process sends; none if the process was killed.
    pub fn turn(
        &mut self,
        now: Time,
        burst: &[(Peer, Vec<u8>)],
    ) -> Result<Vec<(Peer, Vec<u8>)>, DeviceError> {
        let Some(process) = &mut self.process else {
            return Ok(Vec::new());
        };
        let device = &mut process.device;
        let done = survives(|| {
            for (from, datagram) in burst {
                device.receive(now, *from, datagram)?;
            }
            device.finish(now)
        });
        match done {
            Some(done) => {
                done?;
                let sent = device
                    .out()
                    .iter()
                    .map(|(to, bytes)| (to, bytes.to_vec()))
                    .collect();
                device.sent();
                Ok(sent)
            }
            None => {
                self.process = None;
                Ok(Vec::new())
            }
        }
    }
}

/// Returns the result of `work`, or `None` if the process was killed meanwhile. Other panics are passed on.
fn survives<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).map_or_else(
        |panic: Box<dyn Any + Send>| {
            if panic.is::<Killed>() {
                None
            } else {
                resume_unwind(panic)
            }
        },
        Some,
    )
}

fn start(
    pins: &Pins,
    address: SocketAddr,
    settings: &DeviceConfig,
    hook: &Hook,
    (now, starts): (Time, u64),
    anew: bool,
) -> Result<(Part, Process), String> {
    let wanted = OpenConfig {
        kernel: KernelConfig {
            keys: settings.keys.as_ref().map(|keys| keys.cluster.print()),
            ..config(address)
        },
        identity: Identity {
            log_uuid: 1 << 100 | u128::from(settings.id),
            device: settings.id,
            shard: SHARD,
        },
        exactly: false,
        spill: None,
        anew,
    };
    let opened = open(&wanted, pins).map_err(|error| error.to_string())?;
    let kernel = Arc::new(Mutex::new(opened.kernel));
    let path = Racing {
        kernel: kernel.clone(),
        hook: hook.clone(),
    };
    let random = Random::new(u64::from(settings.id) << 32 | starts);
    let device =
        DeviceNode::new(settings.clone(), opened.log, random, now).with_fast_path(Box::new(path));
    let process = Process {
        device,
        _lock: opened.lock,
    };
    Ok((kernel, process))
}
