//! `pmnet run`: all roles of one machine in one process.
//!
//! Each role has a thread and a [`Part`] of the process. The process ends its parts in a fixed order, fronts first, so
//! that each part can still finish its outstanding work.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use pmnet_cli::{ConfigError, call_on_signals, on_signals, warn_of_password};
use serde::{Deserialize, Serialize};

use super::common::STATUS_HELP;
use super::config::{self, FileConfig};
use super::device::{self, DeviceArgs, MediaArg};
use super::memcached::{self, MemcachedArgs};
use super::process::{Ending, Part, Process};
use super::ready::Line;
use super::redis::{self, RedisArgs};
use super::reload;
use super::server::{self, ServerArgs};

const EXAMPLES: &str = "\
Examples:
  pmnet run --store redis://127.0.0.1:6379
  pmnet run --store redis://127.0.0.1:6379 \\
      --log /dev/shm/pmnet.pmlog --media dram
  pmnet run /etc/pmnet/pmnet.toml

With --store, the process runs a server for this store, a device with its log, and a front for Redis clients. The \
server listens at 127.0.0.1:51500, the device at 127.0.0.1:51000.

With FILE, the process runs one role for each section of the configuration file: [server], [device], [redis], \
[memcached]. Several sections of one role are written as [[device]] [[device]]. To run a role on another machine, \
copy its section there: `pmnet device --config FILE` reads the same section.

All roles of the process share one status port: --status, or status = … in section [run]. The key status of another \
section counts only where its role runs alone. One line on stdout says that all roles serve. If one role ends with \
an error, all roles end.";

/// Addresses at which the roles of --store listen.
const SERVER: &str = "127.0.0.1:51500";
const DEVICE: &str = "127.0.0.1:51000";
/// Time that the parts of one group have to end. After this time the next group is asked to end.
const GROUP_MAX: Duration = Duration::from_secs(5);

/// Settings of the process; section `[run]` of the configuration file.
#[derive(Clone, Debug, Default, Args, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct RunArgs {
    /// Address of the status port of the process.
    #[arg(long, value_name = "HOST:PORT", help = STATUS_HELP)]
    pub status: Option<String>,
}

/// The command line of `pmnet run`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RunCommand {
    /// The configuration file.
    #[arg(value_name = "FILE", conflicts_with_all = ["store", "listen", "log", "media"], required_unless_present = "store")]
    file: Option<PathBuf>,
    /// Address of the store, as for pmnet server: redis://HOST:PORT, packet:PATH, …
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// With --store: TCP address for Redis clients.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:6380")]
    listen: String,
    /// With --store: file of the device's log.
    #[arg(long, value_name = "PATH", default_value = "pmnet.pmlog")]
    log: PathBuf,
    /// With --store: medium of the device's log.
    #[arg(long, value_enum, default_value = "file")]
    media: MediaArg,
    #[command(flatten)]
    args: RunArgs,
    /// Print the ready line on stdout as JSON.
    #[arg(long)]
    json: bool,
}

impl RunCommand {
    /// Returns the configuration of the roles to start.
    fn config(&self) -> Result<FileConfig, ConfigError> {
        let Some(store) = &self.store else {
            return config::read(self.file.as_deref());
        };
        let instead = "give it in the environment (PMNET_RUN_STORE), or put the URL into a configuration file";
        if std::env::args().any(|arg| arg.contains(store.as_str())) {
            warn_of_password("--store", store, instead);
        }
        let text = |value: &str| toml::Value::from(value).to_string();
        let media = self.media.to_possible_value();
        // The server tells fronts the address of its store, and not how to log in there.
        let needs_more =
            store.starts_with("rediss://") || store.starts_with("redis://") && store.contains('@');
        let direct = if needs_more {
            format!("direct = {}\n", text(store))
        } else {
            String::new()
        };
        let file = format!(
            "[server]\nlisten = \"{SERVER}\"\nstore = {}\n[device]\nlisten = \"{DEVICE}\"\nnext = \"{SERVER}\"\nlog = {}\n\
             media = {}\n[redis]\nlisten = {}\nvia = \"{DEVICE}\"\n{direct}",
            text(store),
            text(&self.log.to_string_lossy()),
            text(media.as_ref().map_or("file", PossibleValue::get_name)),
            text(&self.listen),
        );
        config::parse(&file).map_err(|error| ConfigError(error.to_string()))
    }
}

/// A role of the process, with the settings of the role.
enum Role {
    Server(ServerArgs),
    Device(Box<DeviceArgs>),
    Redis(Box<RedisArgs>),
    Memcached(MemcachedArgs),
}

/// The order in which parts end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    Fronts,
    Devices,
    Servers,
}

impl Role {
    const fn group(&self) -> Group {
        match self {
            Role::Redis(_) | Role::Memcached(_) => Group::Fronts,
            Role::Device(_) => Group::Devices,
            Role::Server(_) => Group::Servers,
        }
    }

    /// Returns the number of loops of the role that will report that they serve.
    fn loops(&self) -> usize {
        match self {
            Role::Device(args) => usize::from(args.shards.unwrap_or(1)),
            Role::Server(_) | Role::Redis(_) | Role::Memcached(_) => 1,
        }
    }

    /// Serves until `part` is asked to end.
    fn run(self, name: String, part: &Part<'_>) -> anyhow::Result<bool> {
        match self {
            Role::Server(args) => server::run(args, reload::named(name), part),
            Role::Device(args) => device::run(*args, reload::named(name), part),
            Role::Redis(args) => redis::run(*args, reload::named(name), part),
            Role::Memcached(args) => memcached::run(args, reload::named(name), part),
        }
    }
}

/// Returns the roles of a file, each with the name of its section, in the order in which they start.
fn roles(file: FileConfig) -> Result<Vec<(String, Role)>, ConfigError> {
    let FileConfig {
        log_filter: _,
        run: _,
        server,
        device,
        redis,
        memcached,
    } = file;
    let servers = server.named("server");
    let servers = servers.map(|(name, args)| (name, Role::Server(args)));
    let devices = device.named("device");
    let devices = devices.map(|(name, args)| (name, Role::Device(Box::new(args))));
    let fronts = redis.named("redis");
    let fronts = fronts.map(|(name, args)| (name, Role::Redis(Box::new(args))));
    let others = memcached.named("memcached");
    let others = others.map(|(name, args)| (name, Role::Memcached(args)));
    let all: Vec<_> = servers.chain(devices).chain(fronts).chain(others).collect();
    if all.is_empty() {
        return Err(ConfigError(config::NO_ROLE.into()));
    }
    Ok(all)
}

/// An event that the main thread waits for.
enum Event {
    /// The process got a signal to end.
    Asked,
    /// A part has ended. The fields are its index and its result.
    Ended(usize, anyhow::Result<bool>),
}

/// Serves until the process is asked to end.
pub fn main(command: &RunCommand) -> anyhow::Result<bool> {
    let file = command.config()?;
    let status = command.args.status.clone().or(file.run.status.clone());
    let began_with = (config::names(&file), status.clone());
    let roles = roles(file)?;
    let loops = roles.iter().map(|(_, role)| role.loops()).sum();
    let line = Line::together(command.json, loops);
    let process = Process::open("run", status.as_deref(), line, command.file.as_deref())?;
    if let Some(file) = process.file() {
        let flag = command.args.status.clone();
        file.add(move |text| {
            let now = config::parse_text(text)?;
            crate::status::at(now.run.status.as_deref())?;
            let names = config::names(&now);
            let now = (names, flag.clone().or(now.run.status));
            let sentences = other_process(&began_with, &now);
            Ok(Box::new(move || {
                sentences
                    .iter()
                    .for_each(|(section, keys)| reload::need_restart(section, keys));
            }))
        });
    }
    let (say, hear) = channel();
    let asked = say.clone();
    // After all parts have ended, no thread receives the event, so a failure to send is ignored.
    call_on_signals(move || drop(asked.send(Event::Asked)))?;
    std::thread::scope(|scope| {
        let mut parts = Parts::default();
        for (name, role) in roles {
            let part = process.part(Some(name.clone()));
            parts.0.push(Running {
                name: name.clone(),
                group: role.group(),
                ending: part.ending(),
                ended: false,
            });
            let (place, say) = (parts.0.len() - 1, say.clone());
            let started = std::thread::Builder::new()
                .name(name.clone())
                .spawn_scoped(scope, move || serve(role, name, &part, place, &say));
            if let Err(error) = started {
                parts.end(&hear)?;
                return Err(error).context("cannot start the thread of a role");
            }
        }
        parts.attend(&hear)
    })
}

/// The names of all sections, and the address of the process's status port.
type Outline = (Vec<String>, Option<String>);

/// Returns the settings of the process that have changed in the file and take effect only after a restart, as sections
/// with their keys.
fn other_process(before: &Outline, now: &Outline) -> Vec<(String, Vec<String>)> {
    let mut all = Vec::new();
    if before.1 != now.1 {
        all.push(("[run]".to_owned(), vec!["status".to_owned()]));
    }
    for (names, others, what) in [
        (&before.0, &now.0, "the section is gone"),
        (&now.0, &before.0, "the section is new"),
    ] {
        let only_here = names.iter().filter(|name| !others.contains(name));
        all.extend(only_here.map(|name| (format!("[{name}]"), vec![what.to_owned()])));
    }
    all
}

/// Runs a role, and sends its result to the main thread.
fn serve(role: Role, name: String, part: &Part<'_>, place: usize, say: &Sender<Event>) {
    let end = catch_unwind(AssertUnwindSafe(|| role.run(name, part)));
    let end = end.unwrap_or_else(|_| Err(anyhow!("PM6040 this role has panicked")));
    // The main thread receives events until all parts have ended, so this does not fail.
    let _ = say.send(Event::Ended(place, end));
}

/// A part of the process that was started.
struct Running {
    name: String,
    group: Group,
    ending: Arc<Ending>,
    ended: bool,
}

/// All parts of the process that were started.
#[derive(Default)]
struct Parts(Vec<Running>);

impl Parts {
    /// Waits until the process is asked to end, or until a part fails. Then ends all parts. If a part has failed,
    /// returns false or the part's error.
    fn attend(&mut self, hear: &Receiver<Event>) -> anyhow::Result<bool> {
        loop {
            match hear.recv().context("no part is left")? {
                Event::Asked => return self.end(hear),
                Event::Ended(place, Ok(true)) => {
                    self.0[place].ended = true;
                    if self.0.iter().all(|part| part.ended) {
                        return Ok(true);
                    }
                    tracing::info!("[{}] has ended; the other roles go on", self.0[place].name);
                }
                Event::Ended(place, failed) => {
                    self.0[place].ended = true;
                    let name = &self.0[place].name;
                    tracing::error!("PM6041 [{name}] has failed: all roles of this process end");
                    let failed = failed.with_context(|| format!("[{name}]"));
                    let others = self.end(hear)?;
                    return failed.map(|well| well && others);
                }
            }
        }
    }

    /// Ends all parts, one group after the other. Returns whether all parts ended without an error.
    fn end(&mut self, hear: &Receiver<Event>) -> anyhow::Result<bool> {
        // This flag also ends parts that still wait for a name or for etcd.
        on_signals()?.store(true, Ordering::Release);
        let mut well = true;
        for group in [Group::Fronts, Group::Devices, Group::Servers] {
            let of_group = |part: &&Running| part.group == group;
            self.0
                .iter()
                .filter(of_group)
                .for_each(|part| part.ending.end());
            let deadline = Instant::now() + GROUP_MAX;
            while self.0.iter().filter(of_group).any(|part| !part.ended) {
                match hear.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                    Ok(Event::Asked) => {}
                    Ok(Event::Ended(place, end)) => {
                        self.0[place].ended = true;
                        let name = &self.0[place].name;
                        well &= end.unwrap_or_else(|error| {
                            tracing::error!(
                                "PM6042 [{name}] has failed while the process ended: {error:#}"
                            );
                            false
                        });
                    }
                    // A part that needs longer is awaited after all groups have been asked to end.
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => return Ok(well),
                }
            }
        }
        Ok(well)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        command: RunCommand,
    }

    fn names(line: &[&str]) -> Result<Vec<String>, String> {
        let line = Line::try_parse_from(line).map_err(|error| error.to_string())?;
        let roles = line.command.config().and_then(roles);
        let roles = roles.map_err(|error| error.to_string())?;
        Ok(roles.into_iter().map(|(name, _)| name).collect())
    }

    #[test]
    fn a_store_or_a_file_says_which_roles_there_are() {
        let of_store = [
            "run",
            "--store",
            "packet:/a \"b\"",
            "--log",
            "/dev/shm/l",
            "--media",
            "dram",
        ];
        assert_eq!(names(&of_store).unwrap(), ["server", "device", "redis"]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.toml");
        std::fs::write(&path, "[[device]]\n[[device]]\n[memcached]\n").unwrap();
        let path = path.to_str().unwrap();
        assert_eq!(
            names(&["run", path]).unwrap(),
            ["device.1", "device.2", "memcached"]
        );
        assert!(names(&["run"]).unwrap_err().contains("FILE"));
        // A front that cannot log in at the store can serve no client.
        let direct = |store| {
            let line = Line::try_parse_from(["run", "--store", store]).unwrap();
            let roles = line.command.config().and_then(roles).unwrap();
            roles.into_iter().find_map(|(_, role)| match role {
                Role::Redis(args) => args.direct,
                _ => None,
            })
        };
        for store in ["redis://:secret@127.0.0.1:6379", "rediss://r:1?ca=/ca.pem"] {
            assert_eq!(direct(store).as_deref(), Some(store));
        }
        assert_eq!(direct("redis://127.0.0.1:6379"), None);
        for both in [["run", path, "--store=null:"], ["run", path, "--log=/l"]] {
            assert!(
                names(&both).unwrap_err().contains("cannot be used with"),
                "{both:?}"
            );
        }
    }
}
