//! `pmnet doctor`: checks whether pmnet will work well on this machine, and gives advice.
//!
//! Purpose: one line for each result, `ok`, `warn` or `fail`, with advice. Invariants: the command changes nothing,
//! needs no privilege, and ends within seconds. The command must not hide a failed check: if a fact cannot be found
//! out, the result is a `warn` that says so.

mod bundle;
mod etcd;
pub(crate) mod interface;
mod log_place;
mod netlink;
mod path;
mod verbs;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;
use pmnet_cli::{find_program, tell, tell_all};
use pmnet_client::owner_of_port;

use crate::cli::EtcdArgs;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use socket2::{Domain, Socket, Type};

use crate::memory_limit::memory_limit;

/// Minimum size of a socket's receive buffer in bytes. With smaller buffers, packets of a burst are lost.
const RMEM_BYTES_MIN: u64 = 4 * 1024 * 1024;
/// Locked memory in bytes that io_uring and pinned buffers need on older kernels.
const MEMLOCK_BYTES_MIN: u64 = 64 * 1024 * 1024;
/// Memory in bytes for a log of the default size and for the rest of the process.
const MEMORY_MIN: u64 = 256 * 1024 * 1024;
/// Number of open files that a front with a thousand clients needs.
const FILES_MIN: u64 = 4096;
/// Magic number of tmpfs in `statfs`.
const TMPFS_MAGIC: i128 = 0x0102_1994;
/// Number of times that the clock is read to measure the cost of one read.
const CLOCK_READS: u32 = 20_000;
/// Longest time of one read of a clock that is read in user space. A read that takes longer is a system call.
const CLOCK_COST_MAX: Duration = Duration::from_nanos(250);

const EXAMPLES: &str = "\
Examples:
  pmnet doctor
  pmnet doctor --log-folder /var/lib/pmnet --port 51000 --port 51500 --json
  pmnet doctor --log /var/lib/pmnet/d.pmlog --dev eth0 --peer 10.0.0.3:51500
  pmnet doctor --etcd http://10.0.0.7:2379,http://10.0.0.8:2379
  pmnet doctor --bundle case.tar.gz --config /etc/pmnet/pmnet.toml \\
      --log /var/lib/pmnet/d.pmlog --journal pmnet

The exit code is 1 if anything is `fail`.

--bundle: FILE becomes a support case. It contains the results of these checks; version, kernel, processors, memory, \
network interfaces; the configuration and the variables PMNET_…; state and metrics of the processes of --at and \
--config; the headers of the logs of --log (no keys and values); and the last lines of the journal or of text files. \
Passwords, keys and tokens are removed. Names of hosts, addresses, paths and names of users are not removed. The \
command prints what the file contains: check the file before you send it. manifest.json names each missing part, \
with the reason.";

/// Options of `pmnet doctor`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// Folder for a log on an ordinary file.
    #[arg(long, default_value = ".", value_name = "PATH")]
    log_folder: PathBuf,
    /// Path of a log, which need not exist, or of a devdax device. The check finds the suitable medium, how a write
    /// becomes durable there, and which failures an acknowledged write survives.
    #[arg(long, value_name = "PATH")]
    log: Vec<PathBuf>,
    /// Network interface for a device in the kernel. The check shows its driver, its queues and its support of XDP.
    #[arg(long, value_name = "IF", value_delimiter = ',')]
    dev: Vec<String>,
    /// Address of another process of a shard. The check finds the longest packet that the path to it carries.
    #[arg(long, value_name = "HOST:PORT")]
    peer: Vec<String>,
    /// An RDMA device and its address, NAME@ADDRESS. The check sends 2000 messages from the device to itself, to find
    /// whether --mode verbs can use it.
    #[arg(long, value_name = "NAME@ADDRESS")]
    verbs: Vec<String>,
    #[command(flatten)]
    etcd: EtcdArgs,
    /// UDP ports that pmnet is to use.
    #[arg(long, value_name = "PORT", default_values_t = [51_000, 51_500])]
    port: Vec<u16>,
    /// TCP port of the front.
    #[arg(long, default_value_t = 6380, value_name = "PORT")]
    front_port: u16,
    /// Print one JSON array on stdout.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    bundle: bundle::BundleArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    Warn,
    Fail,
}

#[derive(Debug, Serialize)]
struct Finding {
    level: Level,
    what: &'static str,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Finding {
    fn ok(what: &'static str, found: impl Into<String>) -> Finding {
        Finding {
            level: Level::Ok,
            what,
            found: found.into(),
            advice: None,
        }
    }

    fn bad(
        level: Level,
        what: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Finding {
        Finding {
            level,
            what,
            found: found.into(),
            advice: Some(advice.into()),
        }
    }
}

/// Runs all checks and prints the results. Returns false if a result is `fail`.
///
/// # Errors
/// The results cannot be printed.
pub fn main(args: &DoctorArgs) -> anyhow::Result<bool> {
    if let Some(path) = args.bundle.path()? {
        return bundle::main(path, args).map(|()| true);
    }
    let findings = findings(args)?;
    if args.json {
        tell(format_args!("{}", serde_json::to_string(&findings)?));
    } else {
        tell_all(format_args!("{}", as_text(&findings)));
    }
    Ok(findings.iter().all(|finding| finding.level != Level::Fail))
}

/// Runs all checks.
fn findings(args: &DoctorArgs) -> anyhow::Result<Vec<Finding>> {
    let mut findings = vec![kernel(), cores(), clock(), memlock(), open_files(), rmem()];
    findings.push(memory());
    findings.push(io_uring());
    findings.push(direct_io(&args.log_folder));
    findings.push(tmpfs());
    findings.extend(args.log.iter().flat_map(|path| log_place::findings(path)));
    findings.extend(args.dev.iter().flat_map(|name| interface::findings(name)));
    findings.extend(args.verbs.iter().map(|name| verbs::finding(name)));
    for peer in &args.peer {
        findings.push(path::finding(pmnet_cli::address("--peer", peer)?));
    }
    findings.extend(etcd::findings(&args.etcd));
    findings.push(redis_server());
    findings.push(drawn_ports());
    findings.extend(args.port.iter().map(|port| udp_port(*port)));
    findings.push(tcp_port(args.front_port));
    Ok(findings)
}

fn as_text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let level = match finding.level {
            Level::Ok => "ok  ",
            Level::Warn => "warn",
            Level::Fail => "FAIL",
        };
        text += &format!("{level}  {:<14} {}\n", finding.what, finding.found);
        if let Some(advice) = &finding.advice {
            text += &format!("      {:<14} {advice}\n", "");
        }
    }
    text
}

fn kernel() -> Finding {
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= (5, 10) {
        Finding::ok("kernel", release)
    } else {
        Finding::bad(
            Level::Fail,
            "kernel",
            release,
            "Linux 5.10 or later is needed (io_uring with eventfd, batched UDP)",
        )
    }
}

fn cores() -> Finding {
    let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let found = format!("{count} usable");
    match count {
        1 => Finding::bad(
            Level::Warn,
            "cores",
            found,
            "everything shares one core: latencies will be those of the scheduler; set --spin-us 0",
        ),
        2..=3 => Finding::bad(
            Level::Warn,
            "cores",
            found,
            "clients, device, server and database share these: throughput figures show the \
             machine's limit; put the roles on machines of their own for real ones",
        ),
        _ => Finding::ok("cores", found),
    }
}

fn clock() -> Finding {
    let source = read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        .unwrap_or_else(|| "unknown".into());
    let start = Instant::now();
    for _ in 0..CLOCK_READS {
        std::hint::black_box(Instant::now());
    }
    let cost = start.elapsed() / CLOCK_READS;
    let found = format!("{source}, {} ns a reading", cost.as_nanos());
    if cost <= CLOCK_COST_MAX {
        Finding::ok("clock", found)
    } else {
        Finding::bad(
            Level::Warn,
            "clock",
            found,
            "each reading is a system call; boot with clocksource=tsc (or kvm-clock) if the \
             hardware has a stable one",
        )
    }
}

fn memlock() -> Finding {
    limit(
        "memlock",
        Resource::Memlock,
        MEMLOCK_BYTES_MIN,
        "raise it (ulimit -l, LimitMEMLOCK= in systemd): pinned packet buffers need it",
    )
}

fn open_files() -> Finding {
    // The hard limit is checked, because every role raises its own limit to the hard limit.
    about_limit(
        "open files",
        getrlimit(Resource::Nofile).maximum,
        FILES_MIN,
        "raise it (ulimit -Hn, LimitNOFILE= in systemd): every client connection needs two",
    )
}

fn limit(what: &'static str, resource: Resource, least: u64, advice: &str) -> Finding {
    about_limit(what, getrlimit(resource).current, least, advice)
}

fn about_limit(what: &'static str, value: Option<u64>, least: u64, advice: &str) -> Finding {
    match value {
        None => Finding::ok(what, "unlimited"),
        Some(value) if value >= least => Finding::ok(what, value.to_string()),
        Some(value) => Finding::bad(Level::Warn, what, value.to_string(), advice),
    }
}

fn rmem() -> Finding {
    let value = read("/proc/sys/net/core/rmem_max").and_then(|text| text.parse::<u64>().ok());
    match value {
        Some(value) if value >= RMEM_BYTES_MIN => Finding::ok("rmem_max", value.to_string()),
        Some(value) => Finding::bad(
            Level::Warn,
            "rmem_max",
            value.to_string(),
            format!(
                "bursts may be dropped and sent again: sysctl -w net.core.rmem_max={RMEM_BYTES_MIN} \
                 net.core.wmem_max={RMEM_BYTES_MIN}"
            ),
        ),
        None => Finding::bad(
            Level::Warn,
            "rmem_max",
            "not readable",
            "look at sysctl net.core.rmem_max",
        ),
    }
}

fn io_uring() -> Finding {
    let Err(error) = pmnet_media::io_uring_works() else {
        return Finding::ok("io_uring", "works");
    };
    // 0: all processes may use io_uring; 1: one group may; 2: no process may. Kernels before 6.6 do not have this
    // switch.
    let advice = match read("/proc/sys/kernel/io_uring_disabled").as_deref() {
        None | Some("0") => {
            "allow io_uring_setup, io_uring_enter and io_uring_register in the seccomp profile of the container".into()
        }
        Some(value) => {
            format!("kernel.io_uring_disabled is {value}: sysctl -w kernel.io_uring_disabled=0")
        }
    };
    Finding::bad(
        Level::Warn,
        "io_uring",
        format!("cannot be used: {error}"),
        format!(
            "--media file works without it, but every write to the disk blocks the device while it lasts: {advice}"
        ),
    )
}

fn memory() -> Finding {
    match memory_limit() {
        None => Finding::ok("memory limit", "none"),
        Some(limit) if limit >= MEMORY_MIN => Finding::ok(
            "memory limit",
            format!("{} MiB (control group)", limit >> 20),
        ),
        Some(limit) => Finding::bad(
            Level::Warn,
            "memory limit",
            format!("{} MiB (control group)", limit >> 20),
            "a device keeps its log in memory, also with --media file, and makes a smaller one here (--log-size chooses); above the \
             limit the kernel kills it",
        ),
    }
}

/// Checks that the kernel does not give pmnet's ports to sockets without a fixed port. Otherwise the kernel could give
/// away the port of a device that is not running at the moment.
fn drawn_ports() -> Finding {
    let range = read("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let reserved = read("/proc/sys/net/ipv4/ip_local_reserved_ports").unwrap_or_default();
    about_drawn_ports(&range, &reserved)
}

fn about_drawn_ports(range: &str, reserved: &str) -> Finding {
    let (first, last) = (pmnet_wire::PORT_FIRST, pmnet_wire::PORT_LAST);
    let mut bounds = range
        .split_whitespace()
        .filter_map(|word| word.parse::<u16>().ok());
    let drawn = bounds.next().unwrap_or(0)..=bounds.next().unwrap_or(0);
    let is_reserved = |port: u16| {
        reserved.split(',').any(|part| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            let bounds = from
                .trim()
                .parse::<u16>()
                .ok()
                .zip(to.trim().parse::<u16>().ok());
            bounds.is_some_and(|(from, to)| (from..=to).contains(&port))
        })
    };
    let open = (first..=last)
        .filter(|port| drawn.contains(port) && !is_reserved(*port))
        .count();
    if open == 0 {
        return Finding::ok("drawn ports", format!("none of {first} to {last}"));
    }
    let keep = if reserved.is_empty() {
        String::new()
    } else {
        format!("{reserved},")
    };
    Finding::bad(
        Level::Warn,
        "drawn ports",
        format!(
            "the kernel gives {open} of the ports {first} to {last} to programs that ask for none"
        ),
        format!(
            "a device that is started again may find its port taken: sysctl -w \
             net.ipv4.ip_local_reserved_ports={keep}{first}-{last} (and in /etc/sysctl.d)"
        ),
    )
}

fn direct_io(folder: &Path) -> Finding {
    let path = folder.join(format!(".pmnet-doctor-{}", std::process::id()));
    let opened = rustix::fs::open(
        &path,
        OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::DIRECT | OFlags::DSYNC,
        Mode::RUSR | Mode::WUSR,
    );
    let _ = std::fs::remove_file(&path);
    let place = folder.display();
    match opened {
        Ok(_) => Finding::ok("O_DIRECT", format!("works in {place}")),
        Err(rustix::io::Errno::INVAL) => Finding::bad(
            Level::Warn,
            "O_DIRECT",
            format!("refused by the file system of {place}"),
            "--media file would be slow there; choose a folder on ext4 or xfs (--log-folder)",
        ),
        Err(error) => Finding::bad(
            Level::Warn,
            "O_DIRECT",
            format!("{place} is not writable: {error}"),
            "choose the folder of the log with --log-folder",
        ),
    }
}

fn tmpfs() -> Finding {
    let path = "/dev/shm";
    match rustix::fs::statfs(path) {
        Ok(stat) if i128::from(stat.f_type) == TMPFS_MAGIC => {
            let block = u64::try_from(stat.f_bsize).unwrap_or(0);
            let free = stat.f_bavail.saturating_mul(block) / (1024 * 1024);
            Finding::ok("tmpfs", format!("{path}, {free} MiB free"))
        }
        Ok(_) => Finding::bad(
            Level::Warn,
            "tmpfs",
            format!("{path} is something else"),
            "--media dram wants its log on a tmpfs or hugetlbfs: mount -t tmpfs none DIR",
        ),
        Err(error) => Finding::bad(
            Level::Warn,
            "tmpfs",
            format!("{path}: {error}"),
            "--media dram wants its log on a tmpfs or hugetlbfs: mount -t tmpfs none DIR",
        ),
    }
}

fn redis_server() -> Finding {
    let advice =
        "apt-get install redis-server, or use --store packet:PATH (the demo does so by itself)";
    let Some(program) = find_program("redis-server") else {
        return Finding::bad(Level::Warn, "redis-server", "not in PATH", advice);
    };
    match Command::new(&program).arg("--version").output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let version = text
                .split_whitespace()
                .find_map(|word| word.strip_prefix("v="))
                .unwrap_or("of unknown version")
                .to_owned();
            Finding::ok("redis-server", format!("{version}, {}", program.display()))
        }
        Err(error) => Finding::bad(
            Level::Warn,
            "redis-server",
            format!("{}: {error}", program.display()),
            advice,
        ),
    }
}

fn udp_port(port: u16) -> Finding {
    let found = UdpSocket::bind(("0.0.0.0", port)).map(drop);
    let known = (pmnet_wire::PORT_FIRST..=pmnet_wire::PORT_LAST).contains(&port);
    match port_finding("UDP port", "udp", port, found) {
        finding if known || finding.level != Level::Ok => finding,
        finding => Finding::bad(
            Level::Warn,
            "UDP port",
            finding.found,
            format!(
                "pmnet's ports are {} to {}; devices in between pass others on unchanged",
                pmnet_wire::PORT_FIRST,
                pmnet_wire::PORT_LAST
            ),
        ),
    }
}

fn tcp_port(port: u16) -> Finding {
    port_finding("TCP port", "tcp", port, bind_without_listening(port))
}

/// Checks whether a port is free. The check does not listen at the port, so that no process takes it for a server.
fn bind_without_listening(port: u16) -> std::io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    // Servers set this option too, so that old connections in TIME_WAIT do not matter.
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into())
}

fn port_finding(
    what: &'static str,
    protocol: &str,
    port: u16,
    found: std::io::Result<()>,
) -> Finding {
    match found {
        Ok(()) => Finding::ok(what, format!("{port} is free")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => Finding::bad(
            Level::Warn,
            what,
            format!(
                "{port} is in use by {}",
                owner_of_port(protocol, port).unwrap_or_else(|| "somebody".into())
            ),
            format!("fine if that is pmnet; else: ss -anptu 'sport = :{port}'"),
        ),
        Err(error) => Finding::bad(
            Level::Fail,
            what,
            format!("{port}: {error}"),
            "choose another port",
        ),
    }
}

fn read(path: &str) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_that_anybody_may_get_are_told_unless_they_are_reserved() {
        for (range, reserved, open) in [
            ("32768\t60999", "", "1000"),
            ("32768\t60999", "8080,51000-51989", "10"),
            ("51990\t60999", "51999", "9"),
        ] {
            let found = about_drawn_ports(range, reserved);
            assert_eq!(found.level, Level::Warn);
            assert!(
                found.found.contains(&format!("gives {open} of")),
                "{}",
                found.found
            );
        }
        let kept = about_drawn_ports("32768 60999", "8080").advice.unwrap();
        assert!(
            kept.contains("ip_local_reserved_ports=8080,51000-51999"),
            "{kept}"
        );
        for (range, reserved) in [
            ("32768\t50999", ""),
            ("32768 60999", "51000-51999"),
            ("", ""),
        ] {
            assert_eq!(about_drawn_ports(range, reserved).level, Level::Ok);
        }
    }
}
