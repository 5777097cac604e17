//! One child process. The process can be started, awaited, killed and restarted, and it always ends with its handle.

use std::ffi::OsString;
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::binaries::Binaries;
use crate::resp::{Client, Reply};

/// Interval at which a wait checks its condition.
const LOOK: Duration = Duration::from_millis(3);
/// Time after SIGTERM at which the process is killed.
const STOP_MAX: Duration = Duration::from_secs(5);
/// Number of bytes at the end of a process's output that an error shows.
const TAIL_BYTES: usize = 2_000;
/// Roles that may have keys, by their names in environment variables.
const ROLES: [&str; 4] = ["DEVICE", "SERVER", "REDIS", "MEMCACHED"];
/// Deadline of one question to a Redis that is being started.
const ASK_MAX: Duration = Duration::from_millis(500);

/// How a process shows that it serves.
#[derive(Clone, Debug)]
pub enum Ready {
    /// The process prints a line with the word `ready` to stdout.
    Line,
    /// The started Redis process answers at this address, and has loaded all its data. An answer of another process
    /// does not count.
    Redis(SocketAddr),
}

/// A process to start.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The name in messages and in the names of output files.
    pub name: String,
    /// The product, and `pmnet-lab`, which starts every program.
    pub binaries: Binaries,
    /// The program; `None`: the product.
    pub program: Option<PathBuf>,
    /// The arguments of the program.
    pub args: Vec<OsString>,
    /// How the process shows that it serves.
    pub ready: Ready,
}

/// A started process; it is killed when this value is dropped.
#[derive(Debug)]
pub struct Process {
    spec: Spec,
    folder: PathBuf,
    starts: u32,
    child: Option<Child>,
}

impl Process {
    /// Starts the process, and waits until it serves.
    ///
    /// # Errors
    /// Fails if the process cannot be started, if it ends, or if it does not serve within `wait`. The error has the end
    /// of its output.
    pub fn start(spec: Spec, folder: &Path, wait: Duration) -> anyhow::Result<Process> {
        let mut process = Process::launch(spec, folder)?;
        process.wait_ready(wait)?;
        Ok(process)
    }

    /// Starts the process without waiting.
    ///
    /// # Errors
    /// Fails if the process cannot be started.
    pub fn launch(spec: Spec, folder: &Path) -> anyhow::Result<Process> {
        let mut process = Process {
            spec,
            folder: folder.to_owned(),
            starts: 0,
            child: None,
        };
        process.spawn()?;
        Ok(process)
    }

    fn output(&self, kind: &str) -> PathBuf {
        self.folder
            .join(format!("{}.{}.{kind}", self.spec.name, self.starts))
    }

    fn spawn(&mut self) -> anyhow::Result<()> {
        self.starts += 1;
        let make = |path: PathBuf| {
            File::create(&path).with_context(|| format!("cannot write {}", path.display()))
        };
        let program = self
            .spec
            .program
            .as_ref()
            .unwrap_or(&self.spec.binaries.pmnet);
        // The networks of pmnet-lab have no other users, so a process may run without a key.
        let says_key = |arg: &OsString| arg.to_string_lossy().contains("--key");
        let keyed = self.spec.args.iter().any(says_key);
        let mut command = Command::new(&self.spec.binaries.lab);
        for role in ROLES {
            let insecure = format!("PMNET_{role}_INSECURE");
            // The variable may be set in this process's own environment, so it is set or removed explicitly.
            match keyed {
                true => command.env_remove(insecure),
                false => command.env(insecure, "true"),
            };
        }
        let child = command
            .arg("guarded")
            .arg("--parent")
            .arg(std::process::id().to_string())
            .arg("--")
            .arg(program)
            .args(&self.spec.args)
            .stdin(Stdio::null())
            .stdout(make(self.output("out"))?)
            .stderr(make(self.output("err"))?)
            // The process has a process group of its own. So Ctrl-C reaches only the harness, which then ends the
            // processes in order.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", self.spec.binaries.lab.display()))?;
        self.child = Some(child);
        Ok(())
    }

    /// Waits until the process serves.
    ///
    /// # Errors
    /// Fails if the process has ended, or does not serve within `wait`. The error has the end of its output.
    pub fn wait_ready(&mut self, wait: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + wait;
        loop {
            if self.is_ready() {
                return Ok(());
            }
            if let Some(status) = self.exited()? {
                bail!("{} ended ({status}){}", self.spec.name, self.tail());
            }
            if Instant::now() >= deadline {
                bail!(
                    "{} does not serve after {:.1} s{}",
                    self.spec.name,
                    wait.as_secs_f64(),
                    self.tail()
                );
            }
            std::thread::sleep(LOOK);
        }
    }

    fn is_ready(&self) -> bool {
        match self.spec.ready {
            Ready::Line => std::fs::read_to_string(self.output("out"))
                .is_ok_and(|text| text.lines().any(|line| line.contains("ready"))),
            Ready::Redis(address) => Client::connect(address, ASK_MAX)
                .and_then(|mut client| client.call(&["INFO"]))
                .is_ok_and(|reply| self.is_own_redis(&reply)),
        }
    }

    /// Returns whether a reply to INFO comes from this process, and says that its data is loaded.
    fn is_own_redis(&self, info: &Reply) -> bool {
        // The programs that start this program replace themselves by it (exec), so the process id does not change.
        let (Some(id), Reply::Bulk(info)) = (self.id(), info) else {
            return false;
        };
        let info = String::from_utf8_lossy(info);
        let says = |wanted: &str| info.lines().any(|line| line == wanted);
        says(&format!("process_id:{id}")) && says("loading:0")
    }

    /// Returns the exit status, if the process has ended.
    ///
    /// # Errors
    /// Fails if the kernel cannot report the status.
    pub fn exited(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        match &mut self.child {
            Some(child) => child.try_wait().context("cannot wait for a process"),
            None => Ok(None),
        }
    }

    /// Waits until the process ends by itself. Sends no signal.
    ///
    /// # Errors
    /// Fails if the process does not end within `wait`, or if it was not running.
    pub fn wait_exit(&mut self, wait: Duration) -> anyhow::Result<ExitStatus> {
        let deadline = Instant::now() + wait;
        while Instant::now() < deadline {
            if let Some(status) = self.exited()? {
                self.child = None;
                return Ok(status);
            }
            std::thread::sleep(LOOK);
        }
        bail!("{} is still there{}", self.spec.name, self.tail());
    }

    /// Kills the process (`kill -9`), and waits for its end.
    ///
    /// # Errors
    /// Fails if the kernel refuses the operation.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill().context("cannot kill a process")?;
            child.wait().context("cannot wait for a process")?;
        }
        Ok(())
    }

    /// Asks the process to end (SIGTERM), and kills it if it still runs after five seconds. Returns true if the process
    /// ended by itself with exit code 0.
    ///
    /// # Errors
    /// Fails if the kernel refuses the operation.
    pub fn stop(&mut self) -> anyhow::Result<bool> {
        let Some(mut child) = self.child.take() else {
            return Ok(true);
        };
        let deadline = Instant::now() + STOP_MAX;
        if let Some(pid) = pid(&child) {
            kill_process(pid, Signal::TERM).context("cannot signal a process")?;
        }
        while Instant::now() < deadline {
            if let Some(status) = child.try_wait().context("cannot wait for a process")? {
                return Ok(status.success());
            }
            std::thread::sleep(LOOK);
        }
        child.kill().context("cannot kill a process")?;
        child.wait().context("cannot wait for a process")?;
        Ok(false)
    }

    /// Starts the process again with the same arguments. Does not wait until the process serves.
    ///
    /// # Errors
    /// Fails if the process cannot be started.
    pub fn relaunch(&mut self) -> anyhow::Result<()> {
        self.kill()?;
        self.spawn()
    }

    /// Sends SIGSTOP or SIGCONT.
    ///
    /// # Errors
    /// Fails if the process is not running, or the kernel refuses the operation.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = self
            .child
            .as_ref()
            .and_then(pid)
            .with_context(|| format!("{} is not running", self.spec.name))?;
        kill_process(pid, signal).context("cannot signal a process")
    }

    /// From its next start on, the process uses this build of the product.
    pub fn set_product(&mut self, pmnet: &Path) {
        pmnet.clone_into(&mut self.spec.binaries.pmnet);
    }

    /// Sets or adds a flag, which counts from the next start on.
    pub fn set_flag(&mut self, flag: &str, value: Option<&str>) {
        let args = &mut self.spec.args;
        if let Some(at) = args.iter().position(|arg| arg == flag) {
            args.drain(at..(at + 1 + usize::from(value.is_some())).min(args.len()));
        }
        args.push(flag.into());
        args.extend(value.map(OsString::from));
    }

    /// Returns the process id; `None` if the process is not running.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Returns the CPU time of all threads in nanoseconds; 0 if the process is not running.
    #[must_use]
    pub fn cpu_ns(&self) -> u64 {
        self.id().map_or(0, cpu_ns)
    }

    /// Returns the output to stdout since the last start.
    #[must_use]
    pub fn stdout(&self) -> String {
        std::fs::read_to_string(self.output("out")).unwrap_or_default()
    }

    /// Returns the output to stderr since the last start.
    #[must_use]
    pub fn stderr(&self) -> String {
        std::fs::read_to_string(self.output("err")).unwrap_or_default()
    }

    fn tail(&self) -> String {
        let mut text = self.stderr() + &self.stdout();
        let mut cut = text.len().saturating_sub(TAIL_BYTES);
        while !text.is_char_boundary(cut) {
            cut += 1;
        }
        text.drain(..cut);
        let folder = self.folder.display();
        if text.trim().is_empty() {
            format!("; it printed nothing (see {folder})")
        } else {
            format!(", it said (more in {folder}):\n{}", text.trim())
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

fn pid(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// Returns the CPU time of all threads of a process in nanoseconds. The source is the scheduler's figure; if the kernel
/// does not have it, clock ticks.
pub fn cpu_ns(pid: u32) -> u64 {
    let mut sum = 0;
    if let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) {
        for task in tasks.flatten() {
            let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            sum += text
                .split_whitespace()
                .next()
                .and_then(|field| field.parse::<u64>().ok())
                .unwrap_or(0);
        }
    }
    if sum > 0 { sum } else { cpu_ns_of_stat(pid) }
}

fn cpu_ns_of_stat(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The process name is in parentheses, and may contain any character. utime and stime are fields 14 and 15.
    let ticks: u64 = stat
        .rsplit_once(')')
        .map(|(_, rest)| rest)
        .unwrap_or_default()
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    ticks.saturating_mul(1_000_000_000 / rustix::param::clock_ticks_per_second().max(1))
}
