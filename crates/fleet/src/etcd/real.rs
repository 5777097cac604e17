//! Tests with a real etcd that has TLS and users. The tests make requests fail in every possible way.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use super::certificates::{Files, files};
use super::*;

const CALL_MAX: Duration = Duration::from_secs(5);
const READY_MAX: Duration = Duration::from_secs(20);

struct Server {
    child: Child,
    files: Files,
    ports: [u16; 2],
    extra: Vec<String>,
}

fn free_port() -> u16 {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap().port()
}

fn launch(files: &Files, ports: [u16; 2], extra: &[String]) -> Option<Child> {
    let (cert, key) = files.pair("server");
    let client = format!("https://localhost:{}", ports[0]);
    let peer = format!("http://127.0.0.1:{}", ports[1]);
    let started = Command::new("etcd")
        .args(["--name", "m", "--log-level", "error", "--data-dir"])
        .arg(files.path("data"))
        .args(["--listen-client-urls", &client])
        .args(["--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer])
        .args(["--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("m={peer}")])
        .arg("--cert-file")
        .arg(cert)
        .arg("--key-file")
        .arg(key)
        .args(extra)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    started.ok()
}

impl Server {
    /// Starts an etcd that requires certificates of its clients; `None`: etcd is not installed.
    fn start() -> Option<Server> {
        let files = files();
        let ca = files.path("ca.pem").to_str().unwrap().to_owned();
        let extra = ["--client-cert-auth", "--trusted-ca-file", &ca].map(str::to_owned);
        let ports = [free_port(), free_port()];
        let Some(child) = launch(&files, ports, &extra) else {
            println!("SKIPPED: etcd is not installed");
            return None;
        };
        let server = Server {
            child,
            files,
            ports,
            extra: extra.to_vec(),
        };
        server.answers();
        Some(server)
    }

    fn answers(&self) {
        let deadline = Instant::now() + READY_MAX;
        while let Err(error) = self.ask(self.access("ca.pem", Some("nameless"))).storage() {
            assert!(Instant::now() < deadline, "{error}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = launch(&self.files, self.ports, &self.extra).unwrap();
        self.answers();
    }

    fn access(&self, ca: &str, identity: Option<&str>) -> Access {
        Access {
            ca: Some(self.files.path(ca)),
            identity: identity.map(|name| self.files.pair(name)),
            login: None,
        }
    }

    fn as_user(&self, user: &str, password: &str) -> Access {
        let password_file = self.files.path(&format!("password-{user}"));
        std::fs::write(&password_file, password).unwrap();
        let login = Login {
            user: user.to_owned(),
            password_file,
            read: |path| std::fs::read_to_string(path).map_err(|error| error.to_string()),
        };
        Access {
            login: Some(login),
            ..self.access("ca.pem", Some("nameless"))
        }
    }

    fn url(&self) -> String {
        format!("https://localhost:{}", self.ports[0])
    }

    fn ask(&self, access: Access) -> Etcd {
        Etcd::new(Members::new(&self.url(), access).unwrap(), CALL_MAX)
    }

    /// Adds the users `root` and `pmnet`, and enables authentication. `pmnet` may only use keys below
    /// `/pmnet/`.
    fn enable_users(&self) {
        let mut etcd = self.ask(self.access("ca.pem", Some("client")));
        let key = STANDARD.encode("/pmnet/");
        let end = STANDARD.encode("/pmnet0");
        let perm = json!({ "permType": "READWRITE", "key": key, "range_end": end });
        for (path, question) in [
            ("user/add", json!({ "name": "root", "password": "top" })),
            ("role/add", json!({ "name": "root" })),
            ("user/grant", json!({ "user": "root", "role": "root" })),
            ("user/add", json!({ "name": "pmnet", "password": "secret" })),
            ("role/add", json!({ "name": "pmnet" })),
            ("role/grant", json!({ "name": "pmnet", "perm": perm })),
            ("user/grant", json!({ "user": "pmnet", "role": "pmnet" })),
            ("enable", json!({})),
        ] {
            etcd.call(&format!("auth/{path}"), &question).unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _gone = self.child.wait();
    }
}

fn put(key: &str) -> Put {
    Put {
        key: key.into(),
        value: b"v".to_vec(),
        lease: 0,
    }
}

/// Makes all requests that a device, a server, a controller and `pmnet ctl` make.
fn does_all(etcd: &mut Etcd, key: &str) {
    let lease = etcd.grant(3).unwrap();
    let put = Put { lease, ..put(key) };
    assert!(etcd.put_if(&[(key.to_owned(), 0)], &[put]).unwrap());
    let found = etcd.range("/pmnet/").unwrap();
    assert!(found.iter().any(|entry| entry.key == key));
    assert!(etcd.keep_alive(lease).unwrap());
    assert!(etcd.seconds_left(lease).unwrap().is_some());
    assert!(etcd.keeps(found[0].revision).unwrap());
    etcd.storage().unwrap();
    etcd.revoke(lease).unwrap();
    assert!(etcd.range(key).unwrap().is_empty());
}

fn refused(mut etcd: Etcd, says: &str) {
    let error = etcd.range("/pmnet/").unwrap_err().to_string();
    assert!(error.contains(says), "{says}: {error}");
}

#[test]
fn certificates_decide_who_asks_and_who_answers() {
    let Some(server) = Server::start() else {
        return;
    };
    let ca = "ca.pem";
    does_all(
        &mut server.ask(server.access(ca, Some("client"))),
        "/pmnet/a",
    );
    for (access, says) in [
        (server.access("other.pem", Some("client")), "with --etcd-ca"),
        (server.access(ca, None), "with --etcd-cert and --etcd-key"),
        (
            server.access(ca, Some("stranger")),
            "with --etcd-cert and --etcd-key",
        ),
        (server.access(ca, Some("old")), "of --etcd-cert"),
    ] {
        let error = server.ask(access).range("/pmnet/").unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, EtcdError::Distrusted(..)), "{text}");
        assert!(text.contains("--etcd-c"), "{says}: {text}");
        println!("{text}");
    }
    // etcd's certificate does not have this address.
    let url = server.url().replace("localhost", "127.0.0.1");
    let members = Members::new(&url, server.access(ca, Some("client"))).unwrap();
    refused(Etcd::new(members, CALL_MAX), "is for another name");
    // A client without TLS is refused.
    let members = Members::new(&server.url().replace("https", "http"), Access::default());
    refused(Etcd::new(members.unwrap(), CALL_MAX), "write https://");
    let peers = format!("https://localhost:{}", server.ports[1]);
    let members = Members::new(&peers, server.access(ca, None)).unwrap();
    refused(Etcd::new(members, CALL_MAX), "it speaks no TLS");
}

#[test]
fn an_expired_certificate_is_renewed_without_a_restart() {
    let Some(server) = Server::start() else {
        return;
    };
    let copy = |from: &str, ending: &str| {
        let to = server.files.path(&format!("mine.{ending}"));
        std::fs::copy(server.files.path(&format!("{from}.{ending}")), to).unwrap();
    };
    copy("old", "pem");
    copy("old", "key");
    let mut etcd = server.ask(server.access("ca.pem", Some("mine")));
    assert!(etcd.range("/pmnet/").is_err());
    copy("client", "key");
    // Only the key file was replaced, so certificate and key do not match. The client keeps the earlier files until
    // certificate and key are both new.
    assert!(etcd.range("/pmnet/").is_err());
    copy("client", "pem");
    etcd.range("/pmnet/").unwrap();
    // The two files on disk do not match. The client still uses its existing connection.
    copy("old", "key");
    etcd.range("/pmnet/").unwrap();
}

#[test]
fn users_are_logged_in_again_and_those_that_are_none_get_a_sentence() {
    let Some(mut server) = Server::start() else {
        return;
    };
    // The client has a user, but etcd has no users: the client reports this, and its requests succeed.
    let mut early = server.ask(server.as_user("pmnet", "secret"));
    early.range("/pmnet/").unwrap();
    server.enable_users();
    does_all(&mut early, "/pmnet/b");
    does_all(
        &mut server.ask(server.as_user("pmnet", "secret")),
        "/pmnet/c",
    );

    refused(
        server.ask(server.access("ca.pem", Some("nameless"))),
        "--etcd-user",
    );
    refused(
        server.ask(server.access("ca.pem", Some("client"))),
        "without CN",
    );
    refused(
        server.ask(server.as_user("nobody", "x")),
        "--etcd-password-file",
    );
    let wrong = server.as_user("pmnet", "wrong");
    let mut etcd = server.ask(wrong.clone());
    let error = etcd.range("/pmnet/").unwrap_err().to_string();
    assert!(error.contains("user pmnet"), "{error}");
    // The password file gets the right password.
    server.as_user("pmnet", "secret");
    etcd.range("/pmnet/").unwrap();
    let error = etcd.put_if(&[], &[put("/other/a")]).unwrap_err();
    assert!(matches!(error, EtcdError::Forbidden(_)), "{error}");

    // A restarted etcd has forgotten its tokens.
    server.restart();
    does_all(&mut etcd, "/pmnet/d");
    // etcd gets another role. So the tokens belong to an earlier state of the users, and etcd refuses them.
    let mut root = server.ask(server.as_user("root", "top"));
    let role = json!({ "name": "more" });
    root.call("auth/role/add", &role).unwrap();
    does_all(&mut etcd, "/pmnet/e");
    // etcd gets a new password, and the password file has it before etcd's token expires.
    let question = json!({ "name": "pmnet", "password": "new" });
    root.call("auth/user/changepw", &question).unwrap();
    server.as_user("pmnet", "new");
    does_all(&mut etcd, "/pmnet/f");
    let compacted = etcd.compact(etcd.revision());
    compacted.unwrap();
}

#[test]
fn all_of_it_fits_into_the_time_of_one_call() {
    let Some(server) = Server::start() else {
        return;
    };
    server.enable_users();
    let members = Members::new(&server.url(), server.as_user("pmnet", "secret")).unwrap();
    let most = Duration::from_secs(1);
    let mut etcd = Etcd::new(members, most);
    // etcd is suspended while it handles requests.
    let process = server.child.id().to_string();
    let signal = |name: &str| {
        Command::new("kill")
            .args([name, &process])
            .status()
            .unwrap()
    };
    signal("-STOP");
    let begun = Instant::now();
    let result = etcd.range("/pmnet/");
    let took = begun.elapsed();
    signal("-CONT");
    assert!(matches!(result, Err(EtcdError::Unreachable(..))));
    assert!(took < most * 2, "{took:?}");
}
