//! Conditions of a persist: the file is opened with the right flags, all of the range was written, and the memory
//! exists (`docs/spec/ordered-log.md` §2).

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use pmnet_log::Media;
use pmnet_media::{Kind, create, open};

const BYTES: usize = 1 << 20;
const CHILD: &str = "PMNET_TEST_CHILD";
/// The largest size of a file in the child, in bytes. The child's only write goes beyond this limit.
const LIMIT: usize = 32 * 1024;
/// Length of the child's write, in bytes.
const WRITE: usize = 64 * 1024;

/// Returns the flags with which this process has `path` open.
fn open_flags(path: &Path) -> i32 {
    let path = path.canonicalize().unwrap();
    let open = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| {
        // Other tests may close their descriptors during this loop.
        let name = entry.ok()?.file_name();
        let target = fs::read_link(Path::new("/proc/self/fd").join(&name)).ok()?;
        (target == path).then_some(name)
    });
    let open: Vec<_> = open.collect();
    assert_eq!(open.len(), 1, "the medium keeps one descriptor");
    let info = fs::read_to_string(Path::new("/proc/self/fdinfo").join(&open[0])).unwrap();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    i32::from_str_radix(flags.expect("flags").trim(), 8).unwrap()
}

/// With `O_DSYNC`, a complete write is durable, and with `O_DIRECT` it bypasses the page cache. On a file system that
/// refuses these flags, `fdatasync` follows each write, and a warning says so.
#[test]
fn writes_are_direct_and_durable_when_they_are_complete_or_the_warning_says_how_else() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let made = create(&path, Kind::File, BYTES).unwrap();
    let refused = |warnings: &[String]| warnings.iter().any(|w| w.contains("refuses O_DIRECT"));
    let both = libc::O_DIRECT | libc::O_DSYNC;
    let expected = |warnings: &[String]| if refused(warnings) { 0 } else { both };
    assert_eq!(open_flags(&path) & both, expected(made.warnings()));
    drop(made);
    let opened = open(&path, Kind::File).unwrap();
    assert_eq!(open_flags(&path) & both, expected(opened.warnings()));
}

/// A store into memory that does not exist kills the process. So the memory is reserved before the first store, even
/// for a file that another program made.
#[test]
fn memory_is_reserved_before_it_is_stored_into() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("log");
    let bytes = u64::try_from(BYTES).unwrap();
    File::create(&path).unwrap().set_len(bytes).unwrap();
    let held = || fs::metadata(&path).unwrap().blocks() * 512;
    assert_eq!(held(), 0, "a file of holes");
    let media = open(&path, Kind::Dram).unwrap();
    assert_eq!(media.bytes().len(), BYTES);
    assert!(held() >= bytes, "{} of {bytes} bytes are reserved", held());
}

/// Not a test, but the process whose writes are cut short. It prints the result of its persist.
#[test]
fn child() {
    let Ok(path) = std::env::var(CHILD) else {
        return;
    };
    let limits = fs::read_to_string("/proc/self/limits").unwrap();
    let limit = limits.lines().find(|l| l.starts_with("Max file size"));
    let limit = limit.and_then(|line| line.split_whitespace().nth(3));
    assert_eq!(limit, Some(&*LIMIT.to_string()), "{limits}");
    let mut media = open(Path::new(&path), Kind::File).unwrap();
    media.store(0, &[7; WRITE]);
    let persisted = media
        .persist_start(std::slice::from_ref(&(0..WRITE)))
        .and_then(|()| media.persist_poll(true));
    println!("persisted: {persisted:?}");
    let again = media.persist_start(std::slice::from_ref(&(0..8)));
    println!("again: {again:?}");
}

/// A full disk or a limit makes the kernel write only a part of a range. Such a range is not durable.
#[test]
fn a_write_that_was_cut_short_is_not_taken_for_whole() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    drop(create(&path, Kind::File, BYTES).unwrap());
    // POSIX counts this limit in units of 512 bytes. Without the trap, the signal XFSZ would end the child.
    let limited = format!("trap '' XFSZ; ulimit -f {}; exec \"$@\"", LIMIT / 512);
    let ran = Command::new("sh")
        .args(["-c", &limited, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, &path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    let why = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}{why}");
    assert!(said.contains("persisted: Err("), "{said}");
    assert!(said.contains("a write failed"), "says what to do: {said}");
    assert!(said.contains("again: Err(Failed)"), "and stays so: {said}");
    let written = fs::read(&path).unwrap();
    assert!(written[..LIMIT] == [7; LIMIT], "it was cut short there");
    assert!(written[LIMIT..].iter().all(|byte| *byte == 0));
}
