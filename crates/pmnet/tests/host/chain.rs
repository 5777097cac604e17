//! The processes that the tests start: server, device and front.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::claims::Port;

/// Longest wait of a test for a condition.
pub const WAIT: Duration = Duration::from_secs(20);
/// Interval at which a condition is checked.
pub const LOOK: Duration = Duration::from_millis(20);

/// Returns the path of the product, or of the binary that `PMNET_BINARY` names.
pub fn pmnet() -> PathBuf {
    std::env::var_os("PMNET_BINARY")
        .map_or_else(|| env!("CARGO_BIN_EXE_pmnet").into(), PathBuf::from)
}

/// Returns a command of the product that may run without keys, because no other host is in the
/// network.
pub fn product() -> Command {
    let mut command = Command::new(pmnet());
    for role in ["DEVICE", "SERVER", "REDIS"] {
        command.env(format!("PMNET_{role}_INSECURE"), "true");
    }
    command
}

/// Waits until the condition holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT;
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(LOOK);
    }
}

/// A process of a test. The process ends when this value is dropped.
pub struct Running {
    child: Child,
    err: Option<PathBuf>,
}

impl Running {
    pub fn start(mut command: Command) -> Running {
        let child = command.stdin(Stdio::null()).spawn().expect("it starts");
        Running { child, err: None }
    }

    /// Starts the command. The log of the process goes to this file, and its stdout is discarded.
    pub fn logged(mut command: Command, log: &Path) -> Running {
        command
            .stdout(Stdio::null())
            .stderr(File::create(log).unwrap());
        let mut running = Running::start(command);
        running.err = Some(log.to_owned());
        running
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.id()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    pub fn log(&self) -> String {
        let path = self.err.as_ref().expect("it has a log");
        std::fs::read_to_string(path).unwrap()
    }

    /// Waits until the process's log contains this text.
    pub fn says(&mut self, text: &str) {
        eventually(text, || {
            let log = self.log();
            let says = log.contains(text);
            assert!(says || self.exited().is_none(), "it ended: {log}");
            says
        });
    }

    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + WAIT;
        loop {
            if let Some(status) = self.exited() {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(LOOK);
        }
    }

    /// Asks the process to end, as a service manager does, and waits for its end.
    pub fn stop(mut self) {
        self.signal(Signal::TERM);
        let status = self.wait();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The addresses and the files of the processes of one shard.
pub struct Places {
    pub folder: tempfile::TempDir,
    ports: [Port; 3],
}

impl Places {
    pub fn new() -> Places {
        Places {
            folder: tempfile::tempdir().unwrap(),
            ports: [(); 3].map(|()| Port::claim().unwrap()),
        }
    }

    fn at(&self, port: usize) -> String {
        format!("127.0.0.1:{}", self.ports[port].number())
    }

    /// Returns the address of a small packet store.
    pub fn store(&self) -> String {
        format!("packet:{}?size=16M", self.path("store").display())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn server_at(&self) -> String {
        self.at(0)
    }

    pub fn device_at(&self) -> String {
        self.at(1)
    }

    pub fn front_at(&self) -> SocketAddr {
        self.at(2).parse().unwrap()
    }

    pub fn server(&self, store: &str) -> Command {
        self.server_on(&self.server_at(), store)
    }

    pub fn server_on(&self, listen: &str, store: &str) -> Command {
        let mut command = product();
        command.args(["server", "--listen", listen, "--store", store]);
        command
    }

    pub fn device(&self, next: &str) -> Command {
        self.device_on(&self.device_at(), next)
    }

    pub fn device_on(&self, listen: &str, next: &str) -> Command {
        self.device_with(listen, next, "dram")
    }

    pub fn device_with(&self, listen: &str, next: &str, media: &str) -> Command {
        let mut command = self.device_without_log(listen, next, media);
        command.arg("--log").arg(self.path("device.pmlog"));
        command
    }

    /// Returns the command of a device, without the path of its log.
    pub fn device_without_log(&self, listen: &str, next: &str, media: &str) -> Command {
        let mut command = product();
        command
            .args(["device", "--listen", listen, "--next", next])
            .args(["--media", media, "--log-size", "1M"]);
        command
    }

    /// Returns the command of a device with this log. The device chooses the size of the log.
    pub fn device_of_any_size(&self, log: &str, media: &str) -> Command {
        let mut command = product();
        command
            .args(["device", "--listen", &self.device_at()])
            .args(["--next", &self.server_at(), "--media", media, "--log"])
            .arg(self.path(log));
        command
    }

    pub fn front(&self, via: &str) -> Command {
        self.front_on(&self.front_at().to_string(), via)
    }

    pub fn front_on(&self, listen: &str, via: &str) -> Command {
        let mut command = product();
        command.args(["redis", "--listen", listen, "--via", via]);
        command
    }

    /// Returns the commands of server, device and front, with the usual arguments.
    pub fn all(&self, store: &str) -> [Command; 3] {
        [
            self.server(store),
            self.device(&self.server_at()),
            self.front(&self.device_at()),
        ]
    }

    /// Starts server, device and front, and returns them.
    pub fn start_all(&self, store: &str) -> [Running; 3] {
        let names = ["server.err", "device.err", "front.err"];
        let mut names = names.into_iter();
        self.all(store)
            .map(|command| Running::logged(command, &self.path(names.next().unwrap())))
    }
}

/// A client of a front.
pub struct Client(BufReader<TcpStream>);

impl Client {
    pub fn connect(at: SocketAddr) -> std::io::Result<Client> {
        let stream = TcpStream::connect_timeout(&at, WAIT)?;
        stream.set_read_timeout(Some(WAIT))?;
        Ok(Client(BufReader::new(stream)))
    }

    /// Sends a command. Returns the first line of the reply, without the end of the line.
    pub fn call(&mut self, line: &str) -> std::io::Result<String> {
        self.0
            .get_mut()
            .write_all(format!("{line}\r\n").as_bytes())?;
        self.line()
    }

    pub fn line(&mut self) -> std::io::Result<String> {
        let mut reply = String::new();
        self.0.read_line(&mut reply)?;
        Ok(reply.trim_end().to_owned())
    }
}

/// Waits until the front at this address acknowledges a write, and the store has answered a
/// command.
pub fn serves(at: SocketAddr) {
    eventually("a SET is acknowledged", || {
        let set = || Client::connect(at)?.call("SET hostile world");
        set().is_ok_and(|reply| reply == "+OK")
    });
}
