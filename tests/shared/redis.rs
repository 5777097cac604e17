//! A real redis-server on a port and in a directory of its own. Included by its path.
//!
//! It is up when it answers at the Unix socket in that directory, where nobody else can answer. It listens at its
//! port by then: Redis opens that one first, and ends if it cannot.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::claims::Port;
use super::skip::skip;

/// Longest wait for a server to come up.
const START: Duration = Duration::from_secs(20);
/// Longest wait for its answer to one PING.
const PING: Duration = Duration::from_secs(1);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(5);

/// A redis-server; killed, and its directory removed, when dropped.
pub struct RedisServer {
    port: Port,
    directory: tempfile::TempDir,
    program: String,
    options: Vec<String>,
    child: Option<Child>,
}

impl RedisServer {
    /// Starts one with these options and waits until it serves. `None` if redis-server (or what
    /// `PMNET_TEST_REDIS` names) is not installed: then the test is counted as skipped.
    pub fn start(options: &[&str]) -> Option<RedisServer> {
        let program = std::env::var("PMNET_TEST_REDIS").unwrap_or_else(|_| "redis-server".into());
        RedisServer::start_program(program, options)
    }

    #[allow(dead_code)] // Not all tests need one.
    /// The same with one of `tests/compat/servers.py`, which `make setup` fetches.
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

    /// Other options from the next start on.
    pub fn set_options(&mut self, options: &[&str]) {
        self.options = options.iter().map(|&option| option.to_owned()).collect();
    }

    /// Starts the process (again), without waiting until it answers.
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

    /// Waits until it serves (a password that it wants is an answer, too).
    ///
    /// # Panics
    /// It ends, or does not serve in time.
    pub fn wait_ready(&mut self) {
        let ready = self.is_ready();
        assert!(ready, "redis-server {:?} ended", self.options);
    }

    /// Waits until it serves; false if it ends.
    ///
    /// # Panics
    /// It does not serve in time.
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

    /// Its directory, and the place of its files.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    fn socket(&self) -> PathBuf {
        self.directory().join("socket")
    }

    /// Its TCP port.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// kill -9.
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
