//! `pmnet doctor --bundle`: the contents of the archive, and the secrets that it must not contain.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pmnet_lab::harness::{Medium, Role, Scratch, StoreKind, Topology};

use crate::common;
use crate::status::{place, shown};
use crate::support::{front, ok};

/// Each secret is in another place. No secret is a part of any other text.
const SECRETS: [&str; 12] = [
    "inConfigRequirepass77",
    "inStoreUrl/88+x",
    "inSentinelOption99",
    "inPasswordFile11",
    "inEtcdFile22",
    "inEnvironmentUrl33",
    "inEnvironmentPassword44",
    "inEtcdUrl55",
    "inLogUrl66",
    "inLogNamed12",
    "inShardsFile13",
    "inComment14",
];
/// Part of a private key.
const PEM: &str = "MHcCAQEEIFn0tAr3alK3yJustLettersAndNumbers123456789";
/// The key of a cluster.
const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

fn base64(text: &[u8]) -> String {
    let mut child = Command::new("base64")
        .args(["-w", "0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}

/// Writes the files of an operator. Each place that can contain a secret has a secret.
fn files(folder: &Path) -> [String; 2] {
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let write = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).unwrap();
        path(name)
    };
    let [_, store, sentinel, ..] = SECRETS;
    let pem = format!("-----BEGIN EC PRIVATE KEY-----\n{PEM}\n-----END EC PRIVATE KEY-----\n");
    let key = write(
        "cluster.key",
        &format!("kind = \"cluster\"\nkey = \"{KEY}\"\n"),
    );
    let tls_key = write("tls.pem", &pem);
    let password = write("password", &format!("{}\n", SECRETS[3]));
    let etcd = write("etcd", SECRETS[4]);
    let shards = write(
        "shards.toml",
        &format!(
            "[[shard]]\nslots = \"0\"\nvia = \"127.0.0.1:51000\"\nrequirepass = \"{}\"\n",
            SECRETS[10]
        ),
    );
    let encoded: String = store.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let config = format!(
        "# {comment}\n[server]\nlisten = \"127.0.0.1:51500\"\nstore = \
         \"redis+sentinel://me:{encoded}@10.0.0.7:26379/m?sentinel_user=s&sentinel_password={sentinel}\"\nstore-password-file = \
         \"{password}\"\nkey = \"{key}\"\netcd = \"https://root:{url}@10.0.0.9:2379\"\netcd-user = \"root\"\netcd-password-file = \
         \"{etcd}\"\netcd-key = \"{tls_key}\"\n[redis]\nshards = \"{shards}\"\nrequirepass = \"{own}\"\ndeadline-ms = 4321\n",
        comment = SECRETS[11],
        url = SECRETS[7],
        own = SECRETS[0],
    );
    // The log has four lines, and the archive gets the last three. The third line has values of the
    // configuration in other forms.
    let log = format!(
        "PM2302 the first line\nPM2301 redis://me:{}@10.0.0.7:6379 is away, password={} was refused\nagain {} {} {} {PEM} {KEY}\nlast words\n",
        SECRETS[8],
        SECRETS[9],
        SECRETS[3],
        base64(SECRETS[0].as_bytes()),
        base64(format!("user:{store}").as_bytes()),
    );
    [write("pmnet.toml", &config), write("stderr.txt", &log)]
}

/// Returns all files of the archive as one text, and their names.
fn unpacked(case: &Path, to: &Path) -> (Vec<u8>, Vec<String>) {
    std::fs::create_dir_all(to).unwrap();
    let status = Command::new("tar")
        .arg("xzf")
        .arg(case)
        .arg("-C")
        .arg(to)
        .status();
    assert!(status.unwrap().success());
    let (mut all, mut names, mut folders) = (Vec::new(), Vec::new(), vec![to.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            all.extend(std::fs::read(&path).unwrap());
            let name = path.strip_prefix(to).unwrap().components().skip(1);
            names.push(name.collect::<std::path::PathBuf>().display().to_string());
        }
    }
    (all, names)
}

#[test]
fn no_secret_is_in_a_case_and_all_that_helps_is() {
    let topology = shown(Topology::new(StoreKind::Packet, 1, Medium::File));
    let mut cluster = common::start("bundle", topology).unwrap();
    assert_eq!(
        front(&cluster)
            .call(&["SET", "keyOfTheStore", "valueOfTheStore"])
            .unwrap(),
        ok()
    );
    let scratch = Scratch::new(common::folder(), "bundle-case").unwrap();
    let [config, log] = files(scratch.disk());
    let roles = [Role::Front, Role::Device(0), Role::Server];
    let places = roles.map(|role| place(cluster.process(role).unwrap()).to_string());
    let case = scratch.disk().join("case.tar.gz");
    let began = Instant::now();
    let make = || {
        Command::new(common::pmnet())
            .args([
                "doctor",
                "--bundle",
                case.to_str().unwrap(),
                "--config",
                &config,
            ])
            .args(["--at", &format!("{},127.0.0.1:1", places.join(","))])
            .args(["--log", cluster.device_log(0).to_str().unwrap()])
            .args(["--log", "/none/such", "--text-log", &log, "--lines", "3"])
            .args(["--journal", "pmnet-none-such"])
            .env(
                "PMNET_SERVER_STORE",
                format!("redis://me:{}@10.0.0.7:6379", SECRETS[5]),
            )
            .env("PMNET_X_PASSWORD", SECRETS[6])
            .output()
            .unwrap()
    };
    let output = make();
    let said = String::from_utf8(output.stdout).unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    println!("{said}");
    assert!(output.status.success(), "{err}");
    assert!(began.elapsed() < Duration::from_secs(60), "{said}");
    let (all, names) = unpacked(&case, &scratch.disk().join("unpacked"));
    let text = String::from_utf8_lossy(&all).into_owned();
    for secret in SECRETS.iter().chain(&[PEM, KEY]) {
        assert!(!said.contains(secret) && !err.contains(secret), "{secret}");
        // The base64 characters of "user:SECRET" that do not depend on "user:".
        let with_user = base64(format!("user:{secret}").as_bytes());
        let with_user = with_user.trim_end_matches('=');
        for form in [
            (*secret).to_owned(),
            base64(secret.as_bytes()).trim_end_matches('=').to_owned(),
            with_user[8..with_user.len() - 1].to_owned(),
        ] {
            assert!(form.len() >= 8, "{form}");
            assert!(!text.contains(&form), "{secret} as {form}");
        }
    }
    // The archive must not have data of the store either.
    assert!(!text.contains("OfTheStore"));
    for name in [
        "README.txt",
        "manifest.json",
        "doctor.txt",
        "machine/system.txt",
        "machine/processors.txt",
        "machine/memory.txt",
        "machine/interfaces.json",
        "config/pmnet.toml",
        "config/shards-1.toml",
        "config/environment.txt",
        "logs/header-1.json",
        "logs/text-1.txt",
    ] {
        assert!(names.iter().any(|found| found == name), "{name}: {names:?}");
    }
    for part in [
        "deadline-ms = 4321",
        "10.0.0.7:26379",
        "PMNET_SERVER_STORE=redis://(removed)@10.0.0.7:6379",
        "pmnet_device_log_entries_used",
        "\"role\":\"server\"",
        "\"usable\": true",
        "last words",
        "rmem_max",
        // In place of a part that could not be collected, the archive has the reason.
        "/none/such: ",
        "it cannot be reached",
    ] {
        assert!(text.contains(part), "{part}");
    }
    // Of four lines, the first is not among the last three.
    assert!(
        text.contains("PM2301") && !text.contains("PM2302"),
        "{text}"
    );
    assert!(said.contains("Look at it before you send it"), "{said}");
    let length = std::fs::metadata(&case).unwrap().len();
    assert!(length < 1 << 20, "{length}");
    // The command must not overwrite a file.
    let again = make();
    assert_eq!(again.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&again.stderr).contains("exists"));
    assert_eq!(std::fs::metadata(&case).unwrap().len(), length);
}
