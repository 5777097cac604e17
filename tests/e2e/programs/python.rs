//! `pmnet` for Python: the package from its wheel, the examples, and every error that a program can
//! make.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use pmnet_lab::harness::{Scratch, find_program};

use super::library::{
    asked, client_at, counts_once, durable, kill_while, killed_after, launch, piped, run, source,
    text,
};
use super::{Chain, READY_MAX};
use crate::common::{self, skip};

/// Maximum run time of the tests of misuse.
const MISUSE_MAX: Duration = Duration::from_secs(200);

/// The package in a folder of its own, and programs that use it.
struct Package {
    scratch: Scratch,
    python: PathBuf,
}

impl Package {
    /// Copies the files of the wheel to a folder in which Python finds them. Returns `None` if
    /// Python is not installed.
    fn new(name: &str) -> Option<Package> {
        let Some(python) = find_program("python3") else {
            skip("python3 is not installed");
            return None;
        };
        let scratch = Scratch::new(common::folder(), name).unwrap();
        let extension = common::pmnet().with_file_name("libpmnet_python.so");
        assert!(
            extension.is_file(),
            "there is no {}: cargo build -p pmnet-python, with the profile of this test",
            extension.display()
        );
        let package = scratch.disk().join("pmnet");
        run(Command::new("cp")
            .arg("-r")
            .arg(source().join("crates/python/python/pmnet"))
            .arg(&package));
        std::fs::copy(extension, package.join("_pmnet.abi3.so")).unwrap();
        Some(Package { scratch, python })
    }

    /// Returns a command that runs this file.
    fn command(&self, python: &Path, file: &Path) -> Command {
        let mut command = Command::new(python);
        command
            .env("PYTHONPATH", self.scratch.disk())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .arg(file);
        command
    }

    /// Returns the path of an example that can be run as a program.
    fn example(&self, name: &str) -> PathBuf {
        let program = self.scratch.disk().join(name);
        let text = format!(
            "#!/bin/sh\nPYTHONPATH={} PYTHONDONTWRITEBYTECODE=1 exec {} {} \"$@\"\n",
            self.scratch.disk().display(),
            self.python.display(),
            source().join("examples/python").join(name).display(),
        );
        std::fs::write(&program, text).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        program
    }
}

#[test]
fn every_misuse_in_python_gets_its_exception() {
    let Some(package) = Package::new("py-misuse") else {
        return;
    };
    let chain = Chain::launch("py-misuse");
    let file = source().join("crates/python/tests/misuse.py");
    let mut command = package.command(&package.python, &file);
    command
        .args([chain.server.to_string(), chain.via.to_string()])
        .arg(source().join("crates/capi/include/pmnet.h"));
    let output = killed_after(MISUSE_MAX, &mut command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{said}", output.status);
    println!("{said}");
}

/// One build of the extension must work with all versions of Python from 3.9 on.
#[test]
fn it_is_loaded_by_every_python_that_is_here() {
    let Some(package) = Package::new("py-versions") else {
        return;
    };
    let file = package.scratch.disk().join("loads.py");
    let words = "import pmnet, sys\n\
                 pmnet.Server('127.0.0.1:0', watermark=bytes(8)).close()\n\
                 print('loaded', pmnet.__version__, sys.version_info[:2])\n";
    std::fs::write(&file, words).unwrap();
    let mut loaded = 0;
    let names = (9..=20).map(|minor| format!("python3.{minor}"));
    for name in names.chain(["python3".to_owned()]) {
        let Some(python) = find_program(&name) else {
            continue;
        };
        let version = Command::new(&python).arg("--version").output().unwrap();
        if !version.status.success() {
            // A program with this name exists, but it is not Python.
            continue;
        }
        let said = text(run(&mut package.command(&python, &file)));
        let wanted = format!("loaded {}", env!("CARGO_PKG_VERSION"));
        assert!(said.starts_with(&wanted), "{name}: {said}");
        print!("{said}");
        loaded += 1;
    }
    assert!(loaded > 0);
}

#[test]
fn a_counter_in_python_counts_once_whatever_is_killed() {
    let Some(package) = Package::new("py-counter") else {
        return;
    };
    let (counter, call) = (package.example("counter.py"), package.example("client.py"));
    counts_once("py-counter", &counter, &call);
}

#[test]
fn sqlite_keeps_what_was_acknowledged_whatever_is_killed() {
    const TIMES: u64 = 1500;
    let Some(package) = Package::new("py-sqlite") else {
        return;
    };
    let (store, call) = (
        package.example("sqlite_store.py"),
        package.example("client.py"),
    );
    let mut chain = Chain::launch("py-sqlite");
    let file = chain.scratch.disk().join("store.sqlite");
    let mut server = launch(&chain, "sqlite", &store, &file);
    let (via, times) = (chain.via, TIMES.to_string());
    for round in 0..3 {
        let (key, value) = (format!("key{round}"), format!("a value of round {round}"));
        let updated = kill_while(&mut chain, &mut server, &mut || {
            client_at(&call, via, &["update", &format!("{key} {value}"), &times])
        });
        durable(updated, TIMES);
        assert_eq!(asked(&call, &chain, &["read", &key]), value);
    }
    // A request must remove a value exactly once, even if the program dies meanwhile.
    let taking = piped(&mut client_at(&call, via, &["ask", "key0"]));
    server.relaunch().unwrap();
    server.wait_ready(READY_MAX).unwrap();
    assert_eq!(
        text(taking.wait_with_output().unwrap()),
        "a value of round 0\n"
    );
    assert_eq!(asked(&call, &chain, &["ask", "key0"]), "");
    assert_eq!(asked(&call, &chain, &["read", "none"]), "");
    assert!(server.stop().unwrap(), "{}", server.stderr());
}
