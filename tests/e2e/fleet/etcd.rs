//! A real etcd of one or more members.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pmnet_lab::harness::{Process, Ready, Spec, find_program, free_port};
use rustix::process::Signal;

use crate::common;
use crate::support::eventually;

/// Time within which an etcd must answer.
const READY_MAX: Duration = Duration::from_secs(20);
/// Creates a user that may read and write below `/pmnet/`. The password of this user is `secret`.
const USERS: [(&str, &str); 8] = [
    ("user/add", r#"{"name":"root","password":"top"}"#),
    ("role/add", r#"{"name":"root"}"#),
    ("user/grant", r#"{"user":"root","role":"root"}"#),
    ("user/add", r#"{"name":"pmnet","password":"secret"}"#),
    ("role/add", r#"{"name":"pmnet"}"#),
    (
        "role/grant",
        r#"{"name":"pmnet","perm":{"permType":"READWRITE","key":"L3BtbmV0Lw==","range_end":"L3BtbmV0MA=="}}"#,
    ),
    ("user/grant", r#"{"user":"pmnet","role":"pmnet"}"#),
    ("enable", "{}"),
];
/// Deadline of one question.
const ASK_MAX: Duration = Duration::from_millis(500);

/// A running etcd. Each member is a process.
pub struct Etcds {
    name: String,
    members: Vec<(Process, SocketAddr)>,
    folder: PathBuf,
    /// Flags for access to etcd, besides its addresses. If there are any, the addresses are
    /// `https://localhost`.
    access: Vec<String>,
}

impl Drop for Etcds {
    fn drop(&mut self) {
        for (process, _) in &mut self.members {
            // An error does not matter, because the kernel kills the member when this process ends.
            let _ended = process.kill();
        }
        if !std::thread::panicking() {
            let _gone = std::fs::remove_dir_all(&self.folder);
        }
    }
}

impl Etcds {
    /// Starts this number of members. Returns `None` if etcd is not installed.
    pub fn start(name: &str, members: usize) -> Option<Etcds> {
        let here = |program, args| (program, args);
        Etcds::start_at(name, members, common::folder(), Ipv4Addr::LOCALHOST, here)
    }

    /// Starts the members on the machine with this address, with files below this folder. `inside` returns the program
    /// and the arguments with which a program is started on that machine.
    pub fn start_at(
        name: &str,
        members: usize,
        folder: &Path,
        machine: Ipv4Addr,
        inside: impl Fn(PathBuf, Vec<OsString>) -> (PathBuf, Vec<OsString>),
    ) -> Option<Etcds> {
        let Some(program) = find_program("etcd") else {
            common::skip("etcd is not installed");
            return None;
        };
        let address = || SocketAddr::from((machine, free_port().unwrap()));
        let places: Vec<(SocketAddr, SocketAddr)> =
            (0..members).map(|_| (address(), address())).collect();
        let all = |at: usize| format!("m{at}=http://{}", places[at].1);
        let all: Vec<String> = (0..members).map(all).collect();
        let folder = folder.join(format!("etcd-{name}-{}", std::process::id()));
        let _old = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let start = |(at, (client, peer)): (usize, &(SocketAddr, SocketAddr))| {
            let (client_url, peer_url) = (format!("http://{client}"), format!("http://{peer}"));
            let data = folder.join(format!("data-{at}"));
            let args = [
                ("--name", format!("m{at}")),
                ("--data-dir", data.to_str().unwrap().to_owned()),
                ("--listen-client-urls", client_url.clone()),
                ("--advertise-client-urls", client_url),
                ("--listen-peer-urls", peer_url.clone()),
                ("--initial-advertise-peer-urls", peer_url),
                ("--initial-cluster", all.join(",")),
                ("--log-level", "error".to_owned()),
            ];
            let args = args
                .into_iter()
                .flat_map(|(flag, value)| [flag.into(), value.into()])
                .collect();
            let (program, args) = inside(program.clone(), args);
            let spec = Spec {
                name: format!("etcd-{at}"),
                binaries: common::binaries().clone(),
                program: Some(program),
                args,
                ready: Ready::Line,
            };
            (Process::launch(spec, &folder).unwrap(), *client)
        };
        let etcds = Etcds {
            name: name.to_owned(),
            members: places.iter().enumerate().map(start).collect(),
            folder: folder.clone(),
            access: Vec::new(),
        };
        for (_, address) in &etcds.members {
            answers(*address);
        }
        Some(etcds)
    }

    /// Returns the index of the leader, according to a majority of the members.
    pub fn leader(&self) -> usize {
        let mut leads = None;
        eventually("etcd has a leader", READY_MAX, || {
            let says: Vec<_> = self
                .members
                .iter()
                .map(|(_, at)| status(*at).ok())
                .collect();
            let answers = says.iter().flatten();
            let leaders: Vec<&String> = answers.map(|(_, leader)| leader).collect();
            let most = leaders.iter().find(|one| {
                let same = leaders.iter().filter(|other| other == one);
                same.count() * 2 > self.members.len()
            });
            leads = most.and_then(|leader| {
                let is_it = |says: &Option<(String, String)>| {
                    says.as_ref().is_some_and(|(member, _)| member == *leader)
                };
                says.iter().position(is_it)
            });
            leads.is_some()
        });
        leads.unwrap()
    }

    /// Returns the flags with which a device or a server finds this etcd.
    pub fn flags(&self) -> Vec<String> {
        let urls: Vec<String> = self.members.iter().map(|(_, at)| self.url(*at)).collect();
        let mut flags = vec![
            "--fleet".into(),
            self.name.clone(),
            "--etcd".into(),
            urls.join(","),
        ];
        flags.extend(self.access.iter().cloned());
        flags
    }

    fn url(&self, at: SocketAddr) -> String {
        match self.access.is_empty() {
            true => format!("http://{at}"),
            false => format!("https://localhost:{}", at.port()),
        }
    }

    /// Restarts etcd with users and TLS. The files are its certificate, its key, and the authority of clients'
    /// certificates. `access`: the flags that clients need. There must be only one member.
    pub fn secure(&mut self, [cert, key, ca]: [&Path; 3], access: Vec<String>) {
        let address = self.members[0].1;
        for (path, question) in USERS {
            post(address, &format!("auth/{path}"), question).unwrap();
        }
        self.access = access;
        let url = self.url(address);
        let process = &mut self.members[0].0;
        process.kill().unwrap();
        for (flag, value) in [
            ("--listen-client-urls", url.as_str()),
            ("--advertise-client-urls", &url),
            ("--cert-file", cert.to_str().unwrap()),
            ("--key-file", key.to_str().unwrap()),
            ("--trusted-ca-file", ca.to_str().unwrap()),
            ("--client-cert-auth=true", ""),
        ] {
            process.set_flag(flag, Some(value).filter(|value| !value.is_empty()));
        }
        process.relaunch().unwrap();
    }

    /// Returns the address of this member for clients.
    pub fn address(&self, at: usize) -> SocketAddr {
        self.members[at].1
    }

    pub fn signal(&self, at: usize, signal: Signal) {
        self.members[at].0.signal(signal).unwrap();
    }

    pub fn kill(&mut self, at: usize) {
        self.members[at].0.kill().unwrap();
    }

    /// Starts a member again. Does not wait until the member answers.
    pub fn relaunch(&mut self, at: usize) {
        self.members[at].0.relaunch().unwrap();
    }

    /// Returns whether all members answer.
    pub fn are_there(&self) -> bool {
        self.members.iter().all(|(_, at)| status(*at).is_ok())
    }

    /// Starts a member again with its data.
    pub fn restart(&mut self, at: usize) {
        let (process, address) = &mut self.members[at];
        process.relaunch().unwrap();
        answers(*address);
    }
}

fn answers(address: SocketAddr) {
    let healthy = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect_timeout(&address, ASK_MAX)?;
        stream.set_read_timeout(Some(ASK_MAX))?;
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text.contains("\"true\""))
    };
    eventually("etcd answers", READY_MAX, || healthy().unwrap_or(false));
}

/// Returns the id of a member, and the id of the member that it names as leader.
fn status(address: SocketAddr) -> std::io::Result<(String, String)> {
    let (member, leader) = ("member_id", "leader");
    Ok((field(address, member)?, field(address, leader)?))
}

/// Returns etcd's revision, which is the number of writes so far.
pub fn revision(address: SocketAddr) -> u64 {
    let mut revision = None;
    eventually("etcd says its revision", READY_MAX, || {
        revision = field(address, "revision").ok();
        revision.is_some()
    });
    revision.unwrap().parse().unwrap()
}

/// Returns a field of a member's status.
fn field(address: SocketAddr, name: &str) -> std::io::Result<String> {
    let text = post(address, "maintenance/status", "{}")?;
    let after = text.split_once(&format!("\"{name}\":\""));
    let value = after.and_then(|(_, rest)| rest.split_once('"'));
    let value = value.map(|(value, _)| value.to_owned());
    value.ok_or_else(|| std::io::Error::other("no status"))
}

/// Sends a request to a member that has neither TLS nor users.
fn post(address: SocketAddr, path: &str, question: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, ASK_MAX)?;
    stream.set_read_timeout(Some(ASK_MAX))?;
    let length = question.len();
    let whole = format!(
        "POST /v3/{path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{question}"
    );
    stream.write_all(whole.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
