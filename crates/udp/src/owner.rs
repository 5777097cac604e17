//! Finds the process that has a port of this machine open.

use std::fs::read_link;
use std::io::{BufRead, BufReader};

/// Returns a text that names a process that has this port open, for example `process 17 (dig)`. If this process may not
/// read the files of that process, the text states only what is known. `protocol` is `udp` or `tcp`. `None`: the port
/// is free.
#[must_use]
pub fn owner_of_port(protocol: &str, port: u16) -> Option<String> {
    owner(|| inodes(protocol, port), process_with)
}

/// Returns the inodes of the sockets at this port.
fn inodes(protocol: &str, port: u16) -> Vec<String> {
    ["", "6"]
        .iter()
        .filter_map(|family| std::fs::File::open(format!("/proc/net/{protocol}{family}")).ok())
        .flat_map(|table| BufReader::new(table).lines().map_while(Result::ok))
        .filter_map(|line| inode(&line, port))
        // Inode 0 belongs to connections whose process has ended.
        .filter(|inode| inode != "0")
        .collect()
}

/// Finds an owner. `sockets` returns the inodes of the sockets that are at the port at this moment; `process_with`
/// returns the name of a process that has one of them.
fn owner(
    sockets: impl Fn() -> Vec<String>,
    process_with: impl Fn(&[String]) -> Option<String>,
) -> Option<String> {
    let before = sockets();
    if before.is_empty() {
        return None;
    }
    process_with(&before).or_else(|| {
        // The process may have ended while it was searched for.
        let now = sockets();
        let stays = before.iter().any(|inode| now.contains(inode));
        stays.then(|| "a process of another user or container".into())
    })
}

/// Returns a text that names a process with one of these sockets.
fn process_with(inodes: &[String]) -> Option<String> {
    let wanted: Vec<String> = inodes
        .iter()
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    let has = |pid: &str| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten();
        let mut targets = files
            .flatten()
            .filter_map(|file| read_link(file.path()).ok());
        targets.any(|target| {
            wanted
                .iter()
                .any(|wanted| target.as_os_str() == wanted.as_str())
        })
    };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut ids = processes
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let pid = ids.find(|pid| has(pid))?;
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = name.trim().replace(|c: char| c.is_control(), " ");
    Some(format!("process {pid} ({name})"))
}

/// Returns the inode of the socket in this line of the kernel's table, if it is at this port.
fn inode(line: &str, port: u16) -> Option<String> {
    let mut fields = line.split_whitespace();
    let (_, local) = fields.nth(1)?.rsplit_once(':')?;
    let own = u16::from_str_radix(local, 16).ok()?;
    // Fields after the local address: remote address, state, queues, timers, retransmits, user, timeout.
    (own == port).then(|| fields.nth(7).map(str::to_owned))?
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a process that had just ended was reported as the process of another user.
    #[test]
    fn a_process_that_ends_while_it_is_looked_for_is_nobody() {
        let nobody = |_: &[String]| None;
        let calls = std::cell::Cell::new(0);
        let ends = || {
            calls.set(calls.get() + 1);
            if calls.get() == 1 {
                vec!["7".to_owned()]
            } else {
                vec!["8".to_owned()]
            }
        };
        assert_eq!(owner(ends, nobody), None);
        assert_eq!(calls.get(), 2);
        let stays = || vec!["7".to_owned()];
        let other = owner(stays, nobody).unwrap();
        assert!(other.contains("another user or container"), "{other}");
        assert_eq!(owner(stays, |of| Some(of.concat())), Some("7".into()));
    }

    #[test]
    fn the_owner_of_a_port_is_found_and_nobody_where_it_is_free() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let owner = owner_of_port("udp", port).unwrap();
        assert!(
            owner.starts_with(&format!("process {} (", std::process::id())),
            "{owner}"
        );
        let listener = std::net::TcpListener::bind("[::1]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(owner_of_port("tcp", port).unwrap().starts_with("process "));
        drop(listener);
        assert_eq!(owner_of_port("udp", 1), None);
    }

    #[test]
    fn the_kernels_table_is_understood() {
        let line = " 2052: 0100007F:C738 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 24957 2 0 0";
        assert_eq!(inode(line, 51_000).as_deref(), Some("24957"));
        assert_eq!(inode(line, 51_001), None);
        for bad in [
            "",
            "  sl  local_address rem_address   st",
            "1: x",
            "1: a:zz b",
        ] {
            assert_eq!(inode(bad, 51_000), None, "{bad}");
        }
    }
}
