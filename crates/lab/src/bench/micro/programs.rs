//! Clients that use a client library: [`pmnet_client::Session`], or libpmnet's C interface.
//!
//! Both kinds of clients make the same load: one thread, which never sleeps, keeps one update in flight for each
//! client. A client is a session with a socket of its own, and has the options of an ordinary program. The C client is
//! `client.c`. The C client is compiled with the header of this source tree, and is linked with the shared library of
//! this build.

use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use hdrhistogram::Histogram;
use pmnet_client::{Answer, ClientConfig, Finished, Session};
use pmnet_wire::{Payloads, program};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::generate::{LOOK, NANOS_MAX, Run, Sample};
use super::troubles::Troubles;
use crate::harness::Binaries;

/// Environment variable with the path of the shared library, if the library is not in the folder of `pmnet-lab`.
const LIBRARY: &str = "PMNET_LIBRARY";
/// Longest time of one call.
const CALL_MAX: Duration = Duration::from_secs(5);
/// Interval at which this process checks whether the run was interrupted.
const INTERRUPTED: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};
/// The byte with which payloads are filled.
const FILLING: u8 = b'v';

/// Returns the number of bytes that a program passes to the library, so that the update has the run's length. The
/// library adds its preamble.
fn body_bytes(run: &Run<'_>) -> usize {
    run.payload_bytes.saturating_sub(program::PREAMBLE.len())
}

/// The compiled C client.
#[derive(Debug)]
pub struct InC {
    program: PathBuf,
    lab: PathBuf,
}

impl InC {
    /// Compiles the C client in this folder, with the shared library next to this binary.
    ///
    /// # Errors
    /// The library or a compiler is missing, or the compilation fails.
    pub fn compile(folder: &Path) -> anyhow::Result<InC> {
        let binaries = Binaries::own()?;
        let library = match std::env::var_os(LIBRARY) {
            Some(path) => PathBuf::from(path),
            None => binaries.pmnet.with_file_name("libpmnet.so"),
        };
        let built = library.canonicalize().with_context(|| {
            format!(
                "there is no {}: build it (make lib), or name it in {LIBRARY}",
                library.display()
            )
        })?;
        // The name under which the program searches for the library at its start.
        let linked = folder.join("libpmnet.so.0");
        std::os::unix::fs::symlink(built, &linked).context("no link to the library")?;
        let (source, program) = (folder.join("client.c"), folder.join("client"));
        for (path, text) in [
            (&source, include_str!("client.c")),
            (
                &folder.join("pmnet.h"),
                include_str!("../../../../capi/include/pmnet.h"),
            ),
        ] {
            std::fs::write(path, text).context("cannot write the program in C")?;
        }
        let output = Command::new("cc")
            .args([
                "-std=gnu11",
                "-O2",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-pthread",
            ])
            .arg("-I")
            .arg(folder)
            .arg("-o")
            .arg(&program)
            .args([&source, &linked])
            .arg(format!("-Wl,-rpath,{}", folder.display()))
            .output()
            .context("no C compiler: libpmnet's clients need cc (gcc or clang)")?;
        ensure!(
            output.status.success(),
            "the program in C cannot be compiled: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(InC {
            program,
            lab: binaries.lab,
        })
    }

    /// Makes one run in the calling thread's network namespace, on the cores of that thread.
    ///
    /// # Errors
    /// A call fails, or the run is interrupted.
    pub fn run(&self, run: &Run<'_>, stop: &AtomicBool) -> anyhow::Result<Sample> {
        let mut command = Command::new(&self.lab);
        command
            .args(["guarded", "--parent", &std::process::id().to_string(), "--"])
            .arg(&self.program)
            .arg(run.recipe.target.to_string())
            .args([body_bytes(run), run.clients].map(|number| number.to_string()))
            .args([run.warmup, run.duration].map(|time| time.as_nanos().to_string()))
            .args(run.key_file)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = command.spawn().context("the program in C does not start")?;
        let read = read_all(child.stdout.take(), stop);
        if read.is_err() {
            // The program may have ended already.
            let _ = child.kill();
        }
        let status = child.wait()?;
        let text = read?;
        ensure!(status.success(), "the program in C failed: {status}");
        sample(&text, run)
    }
}

/// Reads the stream to its end. This process sleeps meanwhile, because the program uses the thread's core.
fn read_all(from: Option<impl Read + AsFd>, stop: &AtomicBool) -> anyhow::Result<String> {
    let mut from = from.context("no pipe from the program in C")?;
    let mut text = Vec::new();
    let mut part = [0; 1 << 16];
    loop {
        ensure!(!stop.load(Ordering::Relaxed), "interrupted");
        if poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&INTERRUPTED)) == Ok(0) {
            continue;
        }
        match from.read(&mut part)? {
            0 => return Ok(String::from_utf8(text)?),
            length => text.extend_from_slice(&part[..length]),
        }
    }
}

/// Parses the output of the program.
fn sample(text: &str, run: &Run<'_>) -> anyhow::Result<Sample> {
    let mut lines = text.lines();
    let copies = lines.next().context("the program in C printed nothing")?;
    let mut histogram = histogram()?;
    for line in lines {
        let (value, count) = line.split_once(' ').context("a line has no count")?;
        histogram.saturating_record_n(value.parse()?, count.parse()?);
    }
    Ok(Sample {
        histogram,
        seconds: run.duration.as_secs_f64(),
        troubles: Troubles::default(),
        copies: copies.parse()?,
    })
}

fn histogram() -> anyhow::Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, NANOS_MAX, 3).context("no histogram")
}

/// One client in Rust.
struct Client {
    session: Session,
    /// Start of the update that is under way.
    begun: Option<Instant>,
}

impl Client {
    fn open(run: &Run<'_>, body: &[u8]) -> anyhow::Result<Client> {
        let mut config = ClientConfig::new(run.recipe.target.into());
        config.payloads = Payloads::PROGRAM;
        config.keys = run.key;
        let mut session = Session::start(config, CALL_MAX)?;
        // The first call opens the session, so the session is open afterwards.
        session.update(payload(body), 0)?;
        Ok(Client {
            session,
            begun: None,
        })
    }

    fn begin(&mut self, number: u64, body: &[u8]) -> anyhow::Result<()> {
        self.begun = Some(Instant::now());
        self.session.update_start(payload(body), 0, number)?;
        Ok(())
    }

    /// Returns the number of copies of the update in flight, if it has ended.
    fn ended(&mut self) -> anyhow::Result<Option<u8>> {
        let Some(Finished { result, .. }) = self.session.next(Duration::ZERO)? else {
            return Ok(None);
        };
        match result? {
            Answer::Committed(copies) => Ok(Some(copies)),
            Answer::Reply(_) => bail!("an update was answered with a reply"),
        }
    }
}

/// Returns the payload of an update. The bytes of the payload are copied, because libpmnet copies them too.
fn payload(body: &[u8]) -> Bytes {
    program::payload(body).into()
}

/// Makes one run with clients in Rust, on the calling thread.
///
/// # Errors
/// A call fails, or the run is interrupted.
pub fn in_rust(run: &Run<'_>, stop: &AtomicBool) -> anyhow::Result<Sample> {
    let body = vec![FILLING; body_bytes(run)];
    let clients = (0..run.clients).map(|_| Client::open(run, &body));
    let mut clients = clients.collect::<anyhow::Result<Vec<_>>>()?;
    let mut histogram = histogram()?;
    let measure = Instant::now() + run.warmup;
    let until = measure + run.duration;
    let mut look = measure;
    let mut copies_min = u8::MAX;
    for (number, client) in (0..).zip(&mut clients) {
        client.begin(number, &body)?;
    }
    let mut busy = clients.len();
    while busy > 0 {
        for (number, client) in (0..).zip(&mut clients) {
            let Some(begun) = client.begun else {
                continue;
            };
            let Some(copies) = client.ended()? else {
                continue;
            };
            let at = Instant::now();
            copies_min = copies_min.min(copies);
            if begun >= measure && at < until {
                let nanos = u64::try_from(at.saturating_duration_since(begun).as_nanos());
                histogram.saturating_record(nanos.unwrap_or(u64::MAX));
            }
            client.begun = None;
            if at < until {
                client.begin(number, &body)?;
            } else {
                busy -= 1;
            }
            if at >= look {
                ensure!(!stop.load(Ordering::Relaxed), "interrupted");
                look = at + LOOK;
            }
        }
    }
    // Waits until the server has applied the updates of this run, so that this work does not disturb the next run.
    if let Some(client) = clients.first_mut() {
        client.session.bypass(payload(&body), 0, true)?;
    }
    for client in clients {
        client.session.end()?;
    }
    Ok(Sample {
        histogram,
        seconds: run.duration.as_secs_f64(),
        troubles: Troubles::default(),
        copies: copies_min,
    })
}
