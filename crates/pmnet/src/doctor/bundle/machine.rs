//! Facts about the machine, which the kernel shows in files.

use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;

use pmnet_cli::bounded_text;
use serde_json::json;

/// Maximum size of such a file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of interfaces that are listed.
const INTERFACES_MAX: usize = 256;

type Make = fn() -> anyhow::Result<String>;

/// Names of the parts, each with the function that makes the part.
pub const PARTS: [(&str, Make); 6] = [
    ("system.txt", system),
    ("processors.txt", processors),
    ("memory.txt", memory),
    ("limits.txt", limits),
    ("sysctl.txt", sysctl),
    ("interfaces.json", interfaces),
];

/// Settings of the kernel that affect pmnet.
const SETTINGS: [&str; 18] = [
    "kernel/io_uring_disabled",
    "kernel/numa_balancing",
    "kernel/sched_rt_runtime_us",
    "kernel/unprivileged_bpf_disabled",
    "net/core/bpf_jit_enable",
    "net/core/busy_poll",
    "net/core/netdev_budget",
    "net/core/netdev_max_backlog",
    "net/core/rmem_default",
    "net/core/rmem_max",
    "net/core/somaxconn",
    "net/core/wmem_default",
    "net/core/wmem_max",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/ip_local_reserved_ports",
    "vm/dirty_background_ratio",
    "vm/overcommit_memory",
    "vm/swappiness",
];

fn read(path: impl AsRef<Path>) -> std::io::Result<String> {
    bounded_text(File::open(path)?, FILE_BYTES_MAX)
}

/// Returns the contents of these files, each with its path.
fn files(paths: &[&str]) -> String {
    let mut text = String::new();
    for path in paths {
        let content = read(path).unwrap_or_else(|error| format!("{error}\n"));
        let _ = writeln!(text, "== {path}\n{}", content.trim_end());
    }
    text
}

fn system() -> anyhow::Result<String> {
    let name = rustix::system::uname();
    let mut text = format!(
        "{} {} {} {}\n",
        name.sysname().to_string_lossy(),
        name.release().to_string_lossy(),
        name.version().to_string_lossy(),
        name.machine().to_string_lossy()
    );
    text += &files(&[
        "/etc/os-release",
        "/proc/uptime",
        "/proc/loadavg",
        "/sys/devices/system/clocksource/clocksource0/current_clocksource",
    ]);
    Ok(text)
}

/// Returns the facts about the first processor, and the number of processors. All processors are assumed to be equal.
fn processors() -> anyhow::Result<String> {
    let all = read("/proc/cpuinfo")?;
    let count = all
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    let first = all.split("\n\n").next().unwrap_or_default();
    Ok(format!(
        "{count} processors; the first:\n{first}\n{}",
        files(&[
            "/sys/devices/system/cpu/online",
            "/sys/devices/system/node/online"
        ])
    ))
}

fn memory() -> anyhow::Result<String> {
    let limit = crate::memory_limit::memory_limit();
    let limit = limit.map_or_else(|| "none".into(), |bytes| bytes.to_string());
    Ok(format!(
        "limit of the control group, in bytes: {limit}\n{}",
        files(&[
            "/proc/meminfo",
            "/proc/pressure/memory",
            "/proc/pressure/io",
            "/proc/pressure/cpu"
        ])
    ))
}

fn limits() -> anyhow::Result<String> {
    Ok(files(&["/proc/self/limits", "/proc/self/cgroup"]))
}

fn sysctl() -> anyhow::Result<String> {
    let mut text = String::new();
    for setting in SETTINGS {
        let value = read(Path::new("/proc/sys").join(setting));
        let value = value.unwrap_or_else(|error| error.to_string());
        let _ = writeln!(text, "{} = {}", setting.replace('/', "."), value.trim());
    }
    Ok(text)
}

/// Returns the interfaces with MTU, state, speed and driver. Hardware addresses are left out.
fn interfaces() -> anyhow::Result<String> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/sys/class/net")?.take(INTERFACES_MAX) {
        let folder = entry?.path();
        let of = |name: &str| {
            read(folder.join(name))
                .ok()
                .map(|text| text.trim().to_owned())
        };
        let driver = std::fs::read_link(folder.join("device/driver")).ok();
        let driver = driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
        let count = |name: &str| of(&format!("statistics/{name}"));
        all.push(json!({
            "name": folder.file_name().map(|name| name.to_string_lossy()),
            "mtu": of("mtu"),
            "state": of("operstate"),
            "mbit": of("speed"),
            "node": of("device/numa_node"),
            "driver": driver,
            "queues": std::fs::read_dir(folder.join("queues")).map_or(0, Iterator::count),
            "received": count("rx_packets"),
            "received_dropped": count("rx_dropped"),
            "received_missed": count("rx_missed_errors"),
            "sent": count("tx_packets"),
            "sent_dropped": count("tx_dropped"),
        }));
    }
    Ok(serde_json::to_string_pretty(&all)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_says_something() {
        for (name, make) in PARTS {
            let text = make().unwrap();
            assert!(text.len() > 20, "{name}: {text}");
        }
        let interfaces: serde_json::Value = serde_json::from_str(&interfaces().unwrap()).unwrap();
        let lo = interfaces
            .as_array()
            .unwrap()
            .iter()
            .find(|one| one["name"] == "lo");
        assert_eq!(lo.unwrap()["mtu"], "65536");
    }
}
