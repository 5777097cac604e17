//! Checks, by the system calls, properties that otherwise only a power failure could show. A new log is on the disk
//! before it has its name. Its name is on the disk before the log is used. Every persist through the page cache is
//! followed by its `fdatasync` (`docs/spec/ordered-log.md` §2).

#[path = "../../../tests/shared/skip.rs"]
mod skip;

use std::fs;
use std::path::Path;
use std::process::Command;

use pmnet_log::Media;
use pmnet_media::{Kind, create, open};
use skip::skip;

const BYTES: usize = 1 << 20;
const CHILD: &str = "PMNET_TEST_CHILD";
const CALLS: &str = "trace=fsync,fdatasync,pwrite64,?rename,?renameat,?renameat2";

/// Not a test, but the process whose system calls are traced.
#[test]
fn child() {
    let Ok(what) = std::env::var(CHILD) else {
        return;
    };
    let (what, path) = what.split_once(':').unwrap();
    if what == "make" {
        drop(create(Path::new(path), Kind::File, BYTES).unwrap());
        return;
    }
    let mut media = open(Path::new(path), Kind::File).unwrap();
    for round in [1, 2] {
        media.store(5000, &[round; 4]);
        media
            .persist_start(std::slice::from_ref(&(5000..5004)))
            .unwrap();
        assert!(media.persist_poll(true).unwrap());
    }
}

/// Returns whether processes can be traced on this machine.
fn can_trace() -> bool {
    let can = Command::new("strace")
        .args(["-o", "/dev/null", "true"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !can {
        skip("system calls are looked at with strace, which is not there or not allowed");
    }
    can
}

/// Returns the system calls of a child that does `what`, in the order in which they began, each with the paths of its
/// files.
fn calls(what: &str, path: &Path, trace: &Path) -> Vec<String> {
    let ran = Command::new("strace")
        .args(["-f", "-y", "-s", "32", "-e", CALLS, "-o"])
        .arg(trace)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, format!("{what}:{}", path.display()))
        .output()
        .unwrap();
    let why = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{why}");
    let trace = fs::read_to_string(trace).unwrap();
    let calls = trace.lines().filter(|line| line.contains('('));
    calls.map(str::to_owned).collect()
}

/// Returns the index of the first call `name` of the file `path` in `calls`, from index `from` on.
#[track_caller]
fn find(calls: &[String], from: usize, name: &str, path: &Path) -> usize {
    let (call_of, file) = (format!(" {name}("), format!("<{}>", path.display()));
    let of_it = |call: &String| call.contains(&call_of) && call.contains(&file);
    let found = calls.iter().skip(from).position(of_it);
    let Some(found) = found else {
        panic!(
            "no {name} of {} behind call {from} of {calls:#?}",
            path.display()
        )
    };
    from + found
}

#[test]
fn a_new_log_is_on_the_disk_before_its_name_and_its_name_before_its_first_use() {
    if !can_trace() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path().canonicalize().unwrap();
    let (path, temporary) = (base.join("log"), base.join("log.new"));
    let other = tempfile::tempdir().unwrap();
    let calls = calls("make", &path, &other.path().join("trace"));
    let renames = |call: &String| call.contains("rename") && call.contains("log.new");
    let named = calls.iter().position(renames);
    let named = named.expect("it gets its name");
    let synced = find(&calls[..named], 0, "fsync", &temporary);
    let written = |call: &String| call.contains("pwrite64(");
    // Reserved blocks read as zeros too, but the first write to them changes the file system.
    let zeros = calls.iter().rposition(written).expect("it is filled");
    assert!(zeros < synced, "all of it is synced: {calls:#?}");
    find(&calls, named, "fsync", &base);
}

/// A file system that refuses `O_DIRECT`.
struct NotDirect(tempfile::TempDir);

impl NotDirect {
    fn mount() -> Option<NotDirect> {
        let directory = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "ramfs", "ramfs"])
            .arg(directory.path())
            .output()
            .is_ok_and(|output| output.status.success());
        mounted.then(|| NotDirect(directory))
    }
}

impl Drop for NotDirect {
    fn drop(&mut self) {
        let _best_effort = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_persist_through_the_page_cache_ends_with_fdatasync() {
    if !can_trace() {
        return;
    }
    let Some(system) = NotDirect::mount() else {
        skip("mounting a file system that refuses O_DIRECT needs root");
        return;
    };
    let path = system.0.path().canonicalize().unwrap().join("log");
    let made = create(&path, Kind::File, BYTES).unwrap();
    let warnings = made.warnings().join("\n");
    assert!(warnings.contains("refuses O_DIRECT"), "{warnings}");
    drop(made);
    let other = tempfile::tempdir().unwrap();
    let calls = calls("write", &path, &other.path().join("trace"));
    let mut at = 0;
    for _persist in 0..2 {
        at = find(&calls, at, "pwrite64", &path) + 1;
        at = find(&calls, at, "fdatasync", &path) + 1;
    }
    assert_eq!(at, calls.len(), "each write has its own: {calls:#?}");
}
