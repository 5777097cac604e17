//! `pmnet doctor --bundle`: collects the files for a support request in one archive.
//!
//! Invariants: nothing is sent from this machine. The size and time of each part are limited. If a part fails, the
//! manifest has the reason, and the other parts are still made. [`Secrets::clean`] cleans each text before it is
//! written. Not allowed here: reading keys and values of a log, and overwriting a file.

mod machine;
mod secrets;

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use flate2::Compression;
use flate2::write::GzEncoder;
use pmnet_cli::{ConfigError, bounded_text, find_program, tell};
use serde::Serialize;
use serde_json::json;
use toml::Table;

use super::DoctorArgs;
use crate::ask::{Processes, get};
use crate::status::COMMIT;
use secrets::Secrets;

/// Maximum size of a part in bytes. A longer part is cut, and marked as cut.
const PART_BYTES_MAX: usize = 4 << 20;
/// Maximum total size of all parts in bytes.
const ALL_BYTES_MAX: usize = 64 << 20;
/// Time after which no further part is begun.
const ALL_MAX: Duration = Duration::from_secs(90);
/// Longest time for reading the journal of one unit.
const JOURNAL_MAX: Duration = Duration::from_secs(10);
/// Default maximum number of lines of a text file or journal.
const LINES: usize = 2000;
/// Maximum size of a configuration file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

const README: &str = "\
A support case of pmnet, made by `pmnet doctor --bundle`.

manifest.json   version, when, each part with its size, and what could not be had and why
doctor.txt      the checks of pmnet doctor
machine/        kernel, processors, memory, limits, settings of the kernel, network interfaces
config/         the configuration, without comments, passwords, keys and tokens; variables PMNET_...
processes/      state and metrics of processes of pmnet
logs/           headers of logs of devices (no keys and values of the store); last lines of text logs and of the journal

Removed: passwords, keys, tokens and private keys, as far as the configuration, the variables, or the files that they name have them, wherever
they stand, also in base64; and what looks like one. Passwords of less than four letters are removed from the configuration only.
Not removed: names of hosts, addresses, paths, names of users, sentences of the logs. Look at it before you send it.
";

/// Options of a support case.
#[derive(Debug, Args)]
pub struct BundleArgs {
    /// Write a support case to this file (.tar.gz), which must not exist (see below).
    #[arg(long, value_name = "FILE")]
    bundle: Option<PathBuf>,
    #[command(flatten)]
    processes: Processes,
    /// With --bundle: text file whose last lines are added, such as the stderr of a role. (--log is for the log of a
    /// device.)
    #[arg(long, value_name = "FILE", requires = "bundle")]
    text_log: Vec<PathBuf>,
    /// With --bundle: systemd unit. The last lines of its journal are added.
    #[arg(long, value_name = "UNIT", requires = "bundle")]
    journal: Vec<String>,
    /// With --bundle: largest number of lines from each text file or journal.
    #[arg(long, value_name = "N", default_value_t = LINES, requires = "bundle")]
    lines: usize,
}

impl BundleArgs {
    /// Returns the path of the archive, if one must be made.
    pub fn path(&self) -> Result<Option<&Path>, ConfigError> {
        if self.bundle.is_none() && self.processes.are_named() {
            let text = "--at and --config belong to --bundle; pmnet status --at shows processes, and pmnet check a file";
            return Err(ConfigError(text.into()));
        }
        Ok(self.bundle.as_deref())
    }
}

/// A part of the archive, or the reason why it is missing.
#[derive(Debug, Serialize)]
struct Part {
    name: String,
    bytes: usize,
    took_ms: u128,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cut: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
    #[serde(skip)]
    text: String,
}

/// The archive while it is being made.
struct Case {
    secrets: Secrets,
    parts: Vec<Part>,
    bytes: usize,
    began: Instant,
}

impl Case {
    /// Adds a part. If the part is too long, only its beginning or its end is kept, as `keep` says.
    fn add(
        &mut self,
        name: &str,
        keep: Keep,
        make: impl FnOnce(&mut Secrets) -> anyhow::Result<String>,
    ) {
        let began = Instant::now();
        let made = if self.began.elapsed() >= ALL_MAX {
            Err(anyhow!("left out: {} s are over", ALL_MAX.as_secs()))
        } else if self.bytes >= ALL_BYTES_MAX {
            Err(anyhow!("left out: {} MiB are full", ALL_BYTES_MAX >> 20))
        } else {
            make(&mut self.secrets)
        };
        let (text, failed) = match made {
            Ok(text) => (text, None),
            Err(error) => (String::new(), Some(format!("{error:#}"))),
        };
        let most = PART_BYTES_MAX.min(ALL_BYTES_MAX - self.bytes);
        let (text, cut) = keep.within(text, most);
        self.bytes += text.len();
        self.parts.push(Part {
            name: name.to_owned(),
            bytes: text.len(),
            took_ms: began.elapsed().as_millis(),
            cut,
            failed,
            text,
        });
    }
}

/// Which part of a text is kept if the text is too long.
#[derive(Clone, Copy)]
enum Keep {
    Begin,
    End,
}

impl Keep {
    fn within(self, text: String, most: usize) -> (String, bool) {
        if text.len() <= most {
            return (text, false);
        }
        let is_whole = |at: &usize| text.is_char_boundary(*at);
        let kept = match self {
            Keep::Begin => &text[..(0..=most).rev().find(is_whole).unwrap_or(0)],
            Keep::End => {
                let from = text.len() - most;
                &text[(from..=text.len()).find(is_whole).unwrap_or(text.len())..]
            }
        };
        (kept.to_owned(), true)
    }
}

/// Makes the archive, and prints its contents.
///
/// # Errors
/// The file exists already or cannot be written, or an address is wrong.
pub fn main(path: &Path, args: &DoctorArgs) -> anyhow::Result<()> {
    let of_case = &args.bundle;
    // The file is opened first, so that an error of this step is reported at once, and not after a minute.
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| ConfigError(format!("--bundle {}: {error}", path.display())))?;
    let case = make(of_case, args)?;
    let folder = format!("pmnet-case-{}", unix_seconds());
    write(file, &folder, &case).with_context(|| format!("--bundle {}", path.display()))?;
    told(path, &case);
    Ok(())
}

fn make(of_case: &BundleArgs, args: &DoctorArgs) -> anyhow::Result<Case> {
    let mut case = Case {
        secrets: Secrets::new()?,
        parts: Vec::new(),
        bytes: 0,
        began: Instant::now(),
    };
    // The parts that contain secrets come first, so that these secrets are known when the other parts are cleaned.
    variables(&mut case);
    if let Some(url) = &args.etcd.etcd {
        case.secrets.of_value("etcd", url);
    }
    for (key, file) in [
        ("etcd-password-file", &args.etcd.etcd_password_file),
        ("etcd-key", &args.etcd.etcd_key),
    ] {
        if let Some(file) = file {
            case.secrets.of_value(key, &file.to_string_lossy());
        }
    }
    if let Some(path) = &of_case.processes.config {
        configuration(&mut case, path);
    }
    case.add("doctor.txt", Keep::Begin, |_| {
        super::findings(args).map(|findings| super::as_text(&findings))
    });
    for (name, make) in machine::PARTS {
        case.add(&format!("machine/{name}"), Keep::Begin, |_| make());
    }
    case.add("machine/kernel-devices.json", Keep::Begin, |_| {
        Ok(serde_json::to_string_pretty(&crate::cli::kernel_devices())?)
    });
    if of_case.processes.are_named() {
        processes(&mut case, &of_case.processes);
    }
    for (number, path) in args.log.iter().enumerate() {
        case.add(
            &format!("logs/header-{}.json", number + 1),
            Keep::Begin,
            |_| {
                let header = crate::cli::log_header(path);
                let header = header.with_context(|| path.display().to_string())?;
                Ok(serde_json::to_string_pretty(
                    &json!({ "path": path, "header": header }),
                )?)
            },
        );
    }
    for (number, path) in of_case.text_log.iter().enumerate() {
        case.add(&format!("logs/text-{}.txt", number + 1), Keep::End, |_| {
            last_lines(path, of_case.lines).with_context(|| path.display().to_string())
        });
    }
    for unit in &of_case.journal {
        case.add(
            &format!("logs/journal-{}.txt", plain(unit)),
            Keep::End,
            |_| journal(unit, of_case.lines),
        );
    }
    Ok(case)
}

/// Returns the text in a form that is a valid file name.
fn plain(name: &str) -> String {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "@._-".contains(char);
    name.chars()
        .map(|char| if is_plain(char) { char } else { '_' })
        .collect()
}

/// Adds the environment variables `PMNET_…` of this process.
fn variables(case: &mut Case) {
    case.add("config/environment.txt", Keep::Begin, |secrets| {
        let mut all = String::new();
        for (name, value) in std::env::vars_os() {
            let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
            if name.starts_with("PMNET_") {
                all += &format!("{name}={}\n", secrets.of_value(&name, &value));
            }
        }
        Ok(all)
    });
}

/// Adds the configuration file, and the map files that it names.
fn configuration(case: &mut Case, path: &Path) {
    let read = |path: &Path| -> anyhow::Result<String> {
        let file = File::open(path).with_context(|| path.display().to_string())?;
        bounded_text(file, FILE_BYTES_MAX).with_context(|| path.display().to_string())
    };
    case.add("config/pmnet.toml", Keep::Begin, |secrets| {
        let text = read(path)?;
        let clean = secrets.of_toml(&text);
        clean.map_err(|why| {
            anyhow!(
                "{}: {why}; left out, since what is secret in it is not known",
                path.display()
            )
        })
    });
    let table: Option<Table> = read(path).ok().and_then(|text| toml::from_str(&text).ok());
    let sections = table.iter().filter_map(|table| table.get("redis"));
    let sections = sections.flat_map(|redis| match redis.as_array() {
        Some(all) => all.iter().collect(),
        None => vec![redis],
    });
    let files = sections.filter_map(|redis| redis.get("shards")?.as_str());
    for (number, file) in files.enumerate() {
        case.add(
            &format!("config/shards-{}.toml", number + 1),
            Keep::Begin,
            |secrets| {
                let text = read(Path::new(file))?;
                let clean = secrets.of_toml(&text);
                clean.map_err(|why| anyhow!("{file}: {why}; left out"))
            },
        );
    }
}

/// Adds the state and the metrics of processes.
fn processes(case: &mut Case, processes: &Processes) {
    let places = match processes.places() {
        Ok(places) => places,
        Err(error) => {
            case.add("processes", Keep::Begin, |_| Err(error.into()));
            return;
        }
    };
    for spot in &places {
        let name = plain(&spot.place.to_string());
        for (end, path) in [
            ("status.json", "/api/v1/status"),
            ("metrics.txt", "/metrics"),
        ] {
            case.add(&format!("processes/{name}-{end}"), Keep::Begin, |_| {
                get(spot, path)
            });
        }
    }
}

/// Returns the last lines of a text file.
fn last_lines(path: &Path, lines: usize) -> anyhow::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let most = u64::try_from(PART_BYTES_MAX).unwrap_or(u64::MAX);
    file.seek(SeekFrom::Start(length.saturating_sub(most)))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(last_of(&String::from_utf8_lossy(&bytes), lines))
}

fn last_of(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    let from = all.len().saturating_sub(lines);
    all[from..].iter().map(|line| format!("{line}\n")).collect()
}

/// Returns the last lines of a unit's journal.
fn journal(unit: &str, lines: usize) -> anyhow::Result<String> {
    let program = find_program("journalctl").context("journalctl is not in PATH")?;
    let mut child = Command::new(program)
        .args([
            "--no-pager",
            "-o",
            "short-iso-precise",
            "-n",
            &lines.to_string(),
        ])
        .arg(format!("--unit={unit}"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let out = child.stdout.take().context("no output")?;
    let reader = std::thread::spawn(move || {
        let (mut text, most) = (
            Vec::new(),
            u64::try_from(PART_BYTES_MAX).unwrap_or(u64::MAX),
        );
        out.take(most).read_to_end(&mut text).map(|_| text)
    });
    let until = Instant::now() + JOURNAL_MAX;
    // The child process ends by itself, or when it writes to the pipe after the pipe was closed.
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= until {
            child.kill()?;
            child.wait()?;
            bail!("journalctl did not end within {} s", JOURNAL_MAX.as_secs());
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let text = reader
        .join()
        .map_err(|_| anyhow!("a thread has panicked"))??;
    if !status.success() && text.is_empty() {
        bail!("journalctl ended with {status}");
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn unix_seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Returns the manifest as JSON.
fn manifest(case: &Case) -> anyhow::Result<String> {
    let manifest = json!({
        "schema": 1,
        "version": env!("CARGO_PKG_VERSION"),
        "commit": COMMIT,
        "unix_seconds": unix_seconds(),
        "took_ms": case.began.elapsed().as_millis(),
        "parts": case.parts,
        "unread_files": case.secrets.unread,
    });
    Ok(serde_json::to_string_pretty(&manifest)?)
}

fn write(file: File, folder: &str, case: &Case) -> anyhow::Result<()> {
    let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    let mut put = |name: &str, text: &str| -> anyhow::Result<()> {
        // Every text passes through this call, so secrets are removed from texts of every origin.
        let text = case.secrets.clean(text);
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o600);
        header.set_mtime(unix_seconds());
        header.set_size(u64::try_from(text.len())?);
        archive.append_data(&mut header, format!("{folder}/{name}"), text.as_bytes())?;
        Ok(())
    };
    put("README.txt", README)?;
    put("manifest.json", &manifest(case)?)?;
    for part in case.parts.iter().filter(|part| part.failed.is_none()) {
        put(&part.name, &part.text)?;
    }
    let mut file = archive.into_inner()?.finish()?;
    file.flush()?;
    file.sync_all()?;
    Ok(())
}

/// Prints the contents of the archive.
fn told(path: &Path, case: &Case) {
    for part in &case.parts {
        let name = &part.name;
        match &part.failed {
            None => {
                let cut = if part.cut { ", cut" } else { "" };
                tell(format_args!("{name:<44} {:>9} bytes{cut}", part.bytes));
            }
            Some(why) => tell(format_args!(
                "{name:<44}   not there: {}",
                case.secrets.clean(why)
            )),
        }
    }
    for unread in &case.secrets.unread {
        tell(format_args!(
            "a file with secrets could not be read, so they could not be looked for in the other parts: {unread}"
        ));
    }
    tell(format_args!(
        "{} is written. Passwords, keys and tokens are removed; names of hosts, addresses, paths and names of users are in it. Look at it before you \
         send it: tar xzf {}",
        path.display(),
        path.display()
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_is_too_long_is_cut_between_letters() {
        let text = "äöü".to_owned();
        let within = |keep: Keep, most| keep.within(text.clone(), most).0;
        assert_eq!(Keep::Begin.within(text.clone(), 6), (text.clone(), false));
        assert_eq!(
            (within(Keep::Begin, 5), within(Keep::End, 5)),
            ("äö".into(), "öü".into())
        );
        assert_eq!(
            (within(Keep::Begin, 0), within(Keep::End, 0)),
            (String::new(), String::new())
        );
    }

    #[test]
    fn the_last_lines_are_the_last() {
        assert_eq!(last_of("a\nb\nc\n", 2), "b\nc\n");
        assert_eq!(last_of("a", 2), "a\n");
        assert_eq!(last_of("", 2), "");
    }

    #[test]
    fn names_of_parts_are_plain() {
        assert_eq!(plain("unix:/run/../a b@1.sock"), "unix__run_.._a_b@1.sock");
    }
}
