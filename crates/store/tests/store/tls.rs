//! Redis over TLS.

#[path = "../../../../tests/shared/certificates.rs"]
mod certificates;

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use certificates::Files;
use pmnet_store::{Passwords, Progress, Promotion, Secret};

use crate::support::{Redis, batch, claims::Port, read, single};
use pmnet_server::StoreError;

fn secret(text: &str) -> Secret {
    Secret::new(text.as_bytes())
}

#[test]
fn a_store_over_tls_is_a_store() {
    let files = certificates::files();
    let port = Port::claim().expect("a port");
    let tls_port = port.number().to_string();
    let (certificate, key) = files.pair("server");
    let [certificate, key, ca] =
        [certificate, key, files.path("ca.pem")].map(|path| path.to_str().unwrap().to_owned());
    // Clients need a certificate, because Redis requires client certificates by default.
    let options = [
        ["--tls-port", &tls_port],
        ["--tls-cert-file", &certificate],
        ["--tls-key-file", &key],
        ["--tls-ca-cert-file", &ca],
        ["--requirepass", "s3cret"],
    ]
    .concat();
    let Some(redis) = Redis::start(&options) else {
        return;
    };
    let (client, client_key) = files.pair("client");
    let identity = format!("cert={}&key={}", client.display(), client_key.display());
    let open = |query: &str, password: Option<&str>| {
        let url = format!("rediss://localhost:{tls_port}?{query}");
        let passwords = Passwords {
            store: password.map(secret),
            sentinel: None,
        };
        pmnet_store::open_with(&url, &passwords, None, 0).unwrap()
    };
    let good = format!("ca={ca}&{identity}");
    let mut store = open(&good, Some("s3cret"));
    assert_eq!(store.load(), Ok(vec![]));
    let large = "x".repeat(5_000_000);
    let updates = [single(&format!("SET large {large}")), single("SET k v")];
    assert_eq!(store.apply(&batch(&updates, 1)), Ok(0));
    let reply = read(&mut *store, single("GET large"));
    assert!(
        reply == format!("$5000000\r\n{large}\r\n"),
        "{}",
        reply.len()
    );
    assert_eq!(redis.call_as("s3cret", &["GET", "k"]), "+OK\r\n$1\r\nv\r\n");
    let refused = |query: &str, said: &str| {
        let error = open(query, Some("s3cret")).load().unwrap_err();
        let StoreError::Retry(text) = error else {
            panic!("{error:?}");
        };
        assert!(text.contains(said) && !text.contains("s3cret"), "{text}");
    };
    let other = files.path("other.pem");
    refused(
        &format!("ca={}&{identity}", other.display()),
        "TLS: invalid peer certificate",
    );
    refused(&format!("ca={ca}"), "Redis at localhost");
    let error = open(&good, Some("wr0ng")).load().unwrap_err();
    assert!(
        matches!(&error, StoreError::Fatal(text) if text.contains("password")),
        "{error:?}"
    );
}

/// Returns the options of a server that listens with TLS on this port.
fn tls_options(files: &Files, port: &str) -> Vec<String> {
    let (certificate, key) = files.pair("server");
    [
        ("tls-port", port.to_owned()),
        ("tls-cert-file", certificate.to_str().unwrap().to_owned()),
        ("tls-key-file", key.to_str().unwrap().to_owned()),
        (
            "tls-ca-cert-file",
            files.path("ca.pem").to_str().unwrap().to_owned(),
        ),
        ("tls-replication", "yes".into()),
    ]
    .into_iter()
    .flat_map(|(name, value)| [format!("--{name}"), value])
    .collect()
}

fn start(files: &Files, port: &str, more: &[&str]) -> Option<Redis> {
    let options = tls_options(files, port);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let secret = ["--requirepass", "s3cret", "--masterauth", "s3cret"];
    Redis::start(&[&options, &secret[..], more].concat())
}

/// Returns the part of a URL that names the certificates.
fn identity(files: &Files) -> String {
    let (cert, key) = files.pair("client");
    let ca = files.path("ca.pem");
    format!(
        "ca={}&cert={}&key={}",
        ca.display(),
        cert.display(),
        key.display()
    )
}

/// A Sentinel process, which ends when this value is dropped.
struct Sentinel(Child);

impl Sentinel {
    /// Starts a Sentinel that watches the master `m`. The Sentinel has the user `watcher`, and a password for clients
    /// that name no user.
    fn start(files: &Files, port: &str, master: &str) -> Sentinel {
        let mut config = String::from("port 0\nbind 127.0.0.1\nlogfile /dev/null\n");
        for pair in tls_options(files, port).chunks(2) {
            config += &format!("{} {}\n", &pair[0][2..], pair[1]);
        }
        config += "requirepass w4tch\nuser watcher on >eye ~* &* +@all\n";
        config += &format!("dir {}\n", files.path("").display());
        config +=
            &format!("sentinel monitor m 127.0.0.1 {master} 1\nsentinel auth-pass m s3cret\n");
        config += "sentinel down-after-milliseconds m 1000\nsentinel failover-timeout m 2000\n";
        let path = files.path("sentinel.conf");
        std::fs::write(&path, config).unwrap();
        let program = std::env::var("PMNET_TEST_REDIS").unwrap_or_else(|_| "redis-server".into());
        let child = Command::new(program).arg(path).arg("--sentinel").spawn();
        Sentinel(child.unwrap())
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _gone = self.0.wait();
    }
}

/// Tries until `look` succeeds.
fn eventually<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        match look() {
            Ok(value) => return value,
            Err(why) => assert!(Instant::now() < until, "{what}: {why}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn sentinels_and_their_master_have_tls_and_passwords() {
    let files = certificates::files();
    let ports = [(); 3].map(|()| Port::claim().expect("a port"));
    let [first, second, watcher] = ports.each_ref().map(|port| port.number().to_string());
    let Some(_master) = start(&files, &first, &[]) else {
        return;
    };
    let Some(_replica) = start(&files, &second, &["--replicaof", "127.0.0.1", &first]) else {
        return;
    };
    let _sentinel = Sentinel::start(&files, &watcher, &first);
    let identity = identity(&files);
    // The Sentinel names the master by an address, which the master's certificate does not contain.
    let good = format!("rediss+sentinel://localhost:{watcher}/m?{identity}&name=localhost");
    let kept = format!("{good}&wait_replicas=1");
    let passwords = |store, sentinel: Option<&str>| Passwords {
        store: Some(secret(store)),
        sentinel: sentinel.map(secret),
    };
    let right = passwords("s3cret", Some("w4tch"));
    let open =
        |url: &str, passwords: &Passwords| pmnet_store::open_with(url, passwords, None, 0).unwrap();
    let mut store = open(&kept, &right);
    eventually("the store is there", || {
        store.load().map_err(|error| format!("{error:?}"))
    });
    // The write counts as durable when the replica has it.
    eventually("the write is kept", || {
        let applied = store.apply(&batch(&[single("SET k v")], 1));
        if applied.is_err() {
            let _again = store.load();
        }
        applied.map_err(|error| format!("{error:?}"))
    });

    let other = files.path("other.pem");
    let stranger = format!(
        "rediss+sentinel://localhost:{watcher}/m?ca={}",
        other.display()
    );
    let plain = format!("redis+sentinel://localhost:{watcher}/m");
    let unnamed = format!("rediss+sentinel://localhost:{watcher}/m?{identity}");
    let as_user = format!("{good}&sentinel_user=watcher");
    for (url, passwords, says) in [
        (&good, passwords("s3cret", None), "--sentinel-password-file"),
        (
            &good,
            passwords("s3cret", Some("s3cret")),
            "--sentinel-password-file",
        ),
        (&as_user, right.clone(), "sentinel_user=NAME"),
        (&stranger, right.clone(), "ca=FILE"),
        (&plain, right.clone(), "no majority"),
        (&unnamed, right, "is for another name"),
        (&good, passwords("wr0ng", Some("w4tch")), "password"),
    ] {
        let error = open(url, &passwords).load().unwrap_err().into_text();
        assert!(error.contains(says), "{says}: {error}");
        for secret in ["s3cret", "w4tch", "wr0ng"] {
            assert!(!error.contains(secret), "{error}");
        }
    }
    // With the same URL, an operator makes the Sentinel choose another master.
    let as_watcher = passwords("s3cret", Some("eye"));
    let promotion = eventually("the Sentinel knows the replica", || {
        let plan = Promotion::plan(&as_user, &as_watcher, 0, &[], false)?;
        plan.begin().map(|()| plan)
    });
    let at = eventually("the store goes on there", || {
        let loaded = store.load().map_err(|error| format!("{error:?}"));
        match (loaded, promotion.look()?) {
            (Ok(_), Progress::Served(at)) => Ok(at),
            (loaded, _) => Err(format!("{loaded:?}")),
        }
    });
    assert!(at.ends_with(&second), "{at}");
    assert_eq!(read(&mut *store, single("GET k")), "$1\r\nv\r\n");
}

#[test]
fn a_master_of_a_cluster_has_tls_and_a_password() {
    let files = certificates::files();
    let port = Port::claim().expect("a port");
    let number = port.number().to_string();
    let cluster = ["--cluster-enabled", "yes", "--tls-cluster", "yes"];
    let Some(redis) = start(&files, &number, &cluster) else {
        return;
    };
    let slots: Vec<String> = (0..16_384).map(|slot| slot.to_string()).collect();
    let slots: Vec<&str> = slots.iter().map(String::as_str).collect();
    let command = [&["CLUSTER", "ADDSLOTS"], &slots[..]].concat();
    assert_eq!(redis.call_as("s3cret", &command), "+OK\r\n+OK\r\n");
    let open = |query: &str, password| {
        let url = format!("rediss+cluster://localhost:{number}/0-16383?{query}");
        let passwords = Passwords {
            store: Some(secret(password)),
            sentinel: None,
        };
        pmnet_store::open_with(&url, &passwords, None, 0).unwrap()
    };
    let identity = identity(&files);
    let mut store = open(&format!("{identity}&name=localhost"), "s3cret");
    eventually("the store is there", || {
        store.load().map_err(|error| format!("{error:?}"))
    });
    assert_eq!(store.apply(&batch(&[single("SET k v")], 1)), Ok(0));
    assert_eq!(redis.call_as("s3cret", &["GET", "k"]), "+OK\r\n$1\r\nv\r\n");
    let other = files.path("other.pem");
    let other = format!("ca={}", other.display());
    for (query, password, says) in [
        (other.as_str(), "s3cret", "ca=FILE"),
        (&identity, "wr0ng", "WRONGPASS"),
    ] {
        let error = open(query, password).load().unwrap_err();
        let StoreError::Retry(text) = error else {
            panic!("{error:?}");
        };
        assert!(text.contains(says) && !text.contains("wr0ng"), "{text}");
    }
}
