//! A real redis-server with a port and a directory of its own. Tests include this source file by its path.
//!
//! The server is running when it answers at the Unix socket in its directory, which no other process uses. Then the
//! server also listens at its port: Redis opens the port before the socket, and ends if it cannot.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::claims::Port;
use super::skip::skip;

/// Time within which a server must answer after its start.
const START: Duration = Duration::from_secs(20);
/// Longest wait for the reply to one PING.
const PING: Duration = Duration::from_secs(1);
/// Interval at which a condition is checked.
const LOOK: Duration = Duration::from_millis(5);

/// A redis-server. When this value is dropped, the server is killed, and its directory is removed.
pub struct RedisServer {
    port: Port,
    directory: tempfile::TempDir,
    program: String,
    options: Vec<String>,
    child: Option<Child>,
}

impl RedisServer {
    /// Starts a server with these options, and waits until it serves. Returns `None` if redis-server (or the program in
    /// `PMNET_TEST_REDIS`) is not installed. The test then counts as skipped.
    pub fn start(options: &[&str]) -> Option<RedisServer> {
        let program = std::env::var("PMNET_TEST_REDIS").unwrap_or_else(|_| "redis-server".into());
        RedisServer::start_program(program, options)
    }

    #[allow(dead_code)] // Not every test that includes this file uses it.
    /// Starts a server of `tests/compat/servers.py`. `make setup` downloads these servers.
    pub fn start_named(name: &str, options: &[&str]) -> Option<RedisServer> {
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"),
            PathBuf::from,
        );
        let program = target.join("servers").join(name).join("bin/redis-server");
        if !program.exists() {
            skip(&format!(
                "{name} is not there: tests/compat/servers.py fetch {name}"
            ));
            return None;
        }
        RedisServer::start_program(program.to_string_lossy().into_owned(), options)
    }

    fn start_program(program: String, options: &[&str]) -> Option<RedisServer> {
        let version = Command::new(&program)
            .arg("--version")
            .stdout(Stdio::null())
            .status();
        if version.is_err() {
            skip(&format!("{program} is not installed"));
            return None;
        }
        let mut redis = RedisServer {
            port: Port::claim().expect("a port"),
            directory: tempfile::tempdir().expect("a directory"),
            program,
            options: Vec::new(),
            child: None,
        };
        redis.set_options(options);
        redis.run();
        redis.wait_ready();
        Some(redis)
    }

    /// Sets the options for the next start.
    pub fn set_options(&mut self, options: &[&str]) {
        self.options = options.iter().map(|&option| option.to_owned()).collect();
    }

    /// Starts the process for the first time or again. Does not wait until the server answers.
    pub fn run(&mut self) {
        let directory = self.directory();
        let child = Command::new(&self.program)
            .args(["--bind", "127.0.0.1", "--save", "", "--port"])
            .arg(self.port.number().to_string())
            .arg("--unixsocket")
            .arg(self.socket())
            .arg("--dir")
            .arg(directory)
            .args(&self.options)
            .stdout(Stdio::null())
            .spawn();
        self.child = Some(child.expect("redis-server can be started"));
    }

    /// Waits until the server answers. A request for a password counts as an answer.
    ///
    /// # Panics
    /// The server has ended, or does not answer in time.
    pub fn wait_ready(&mut self) {
        let ready = self.is_ready();
        assert!(ready, "redis-server {:?} ended", self.options);
    }

    /// Waits until the server answers. Returns false if the server has ended.
    ///
    /// # Panics
    /// The server does not answer in time.
    pub fn is_ready(&mut self) -> bool {
        let until = Instant::now() + START;
        while !self.answers() {
            let child = self.child.as_mut().expect("it was started");
            if child.try_wait().is_ok_and(|status| status.is_some()) {
                return false;
            }
            assert!(
                Instant::now() < until,
                "redis-server {:?} does not answer",
                self.options
            );
            std::thread::sleep(LOOK);
        }
        true
    }

    fn answers(&self) -> bool {
        let answer = || {
            let mut stream = UnixStream::connect(self.socket())?;
            stream.set_read_timeout(Some(PING))?;
            stream.write_all(b"PING\r\n")?;
            let mut reply = [0; 64];
            let read = stream.read(&mut reply)?;
            Ok::<_, std::io::Error>(reply[..read].to_vec())
        };
        answer().is_ok_and(|reply| !reply.is_empty() && !reply.starts_with(b"-LOADING"))
    }

    /// Returns the directory with the server's files.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    fn socket(&self) -> PathBuf {
        self.directory().join("socket")
    }

    /// Returns the TCP port.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Kills the server (`kill -9`).
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().ok();
            child.wait().expect("the kernel knows it");
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}
