//! The writers of a file (io_uring, and blocking writes with and without `O_DIRECT`): each leaves the same bytes.

#[path = "../../../tests/shared/skip.rs"]
mod skip;

use skip::skip;

use super::*;

const BYTES: usize = 4 << 20;

fn new_file() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    image::create(&path, crate::Kind::File, BYTES).unwrap();
    (directory, path)
}

fn persist(media: &mut FileMedia, ranges: &[Range<usize>]) {
    media.persist_start(ranges).unwrap();
    assert!(media.persist_poll(true).unwrap());
}

#[test]
fn blocks_cover_ranges_once() {
    let mut blocks = Vec::new();
    cover(
        &[8192..8200, 4095..4097, 0..1, 20_000..20_000, 40_000..50_000],
        &mut blocks,
    );
    assert_eq!(blocks, [0..12_288, 36_864..53_248]);
    cover(&[], &mut blocks);
    assert!(blocks.is_empty());
}

#[test]
fn every_writer_writes_the_ranges_and_nothing_else() {
    for (direct, ring, warnings) in [(true, true, 0), (true, false, 1), (false, false, 1)] {
        let (_directory, path) = new_file();
        let mut media = FileMedia::open_with(&path, direct, ring).unwrap();
        assert_eq!(media.warnings().len(), warnings, "{:?}", media.warnings());
        assert_eq!(media.wakeup_fd().is_some(), ring);
        media.store(100, b"first");
        media.store(9000, b"not asked for");
        media.store(BYTES - 3, b"end");
        persist(&mut media, &[100..105, BYTES - 3..BYTES]);
        drop(media);
        let seen = FileMedia::open(&path).unwrap();
        assert_eq!(&seen.bytes()[100..105], b"first");
        assert_eq!(seen.bytes()[9000..9013], [0; 13]);
        assert_eq!(&seen.bytes()[BYTES - 3..], b"end");
    }
}

/// Another program truncates the file. A write after the new end then leaves a hole before the write.
#[test]
fn a_file_that_is_truncated_is_noticed_before_and_while_it_is_written() {
    let (early, late) = (100..105, BYTES - 3..BYTES);
    let (early, late) = (std::slice::from_ref(&early), std::slice::from_ref(&late));
    for (direct, ring) in [(true, true), (true, false), (false, false)] {
        let (_directory, path) = new_file();
        let mut media = FileMedia::open_with(&path, direct, ring).unwrap();
        media.store(100, b"first");
        persist(&mut media, early);
        let cut = || media_len(&path, 0);
        if ring {
            media.persist_start(early).unwrap();
            cut();
            let error = media.persist_poll(true).unwrap_err().to_string();
            assert!(
                error.contains("another program has truncated it"),
                "{error}"
            );
        } else {
            cut();
            // The write of the last block gives the file its old length again.
            let error = media.persist_start(late).unwrap_err().to_string();
            assert!(error.contains("0 bytes and not the 4194304"), "{error}");
            assert_eq!(
                std::fs::metadata(&path).unwrap().len(),
                0,
                "nothing is written any more"
            );
        }
        assert!(matches!(
            media.persist_start(early),
            Err(MediaError::Failed)
        ));
    }
    let (_directory, path) = new_file();
    let mut media = FileMedia::open(&path).unwrap();
    media_len(&path, 0);
    assert!(media.persist_start(late).is_err());
}

fn media_len(path: &Path, bytes: u64) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(bytes).unwrap();
}

/// The persist is larger than the staging slots, and the image is changed during the persist.
#[test]
fn a_persist_larger_than_the_queue() {
    let (_directory, path) = new_file();
    let mut media = FileMedia::open(&path).unwrap();
    let pattern: Vec<u8> = (0..BYTES).map(|at| (at / 7).to_le_bytes()[0]).collect();
    media.store(0, &pattern);
    media
        .persist_start(std::slice::from_ref(&(0..BYTES)))
        .unwrap();
    while !media.persist_poll(false).unwrap() {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        assert!(crate::sys::wait_readable(media.wakeup_fd().unwrap(), deadline).unwrap());
        media.store(BYTES - 8, b"newer...");
    }
    drop(media);
    let seen = FileMedia::open(&path).unwrap();
    assert!(seen.bytes()[..BYTES - 8] == pattern[..BYTES - 8]);
}

#[test]
fn the_wake_up_is_readable_exactly_while_there_is_something_to_take_in() {
    use std::time::{Duration, Instant};
    let (_directory, path) = new_file();
    let mut media = FileMedia::open(&path).unwrap();
    let fd = media.wakeup_fd().unwrap();
    for round in 0..200u64 {
        media.store(0, &round.to_le_bytes());
        assert!(
            !crate::sys::wait_readable(fd, Instant::now()).unwrap(),
            "nothing is in flight"
        );
        media.persist_start(&[0..8, 100_000..100_001]).unwrap();
        while !media.persist_poll(false).unwrap() {
            assert!(
                crate::sys::wait_readable(fd, Instant::now() + Duration::from_secs(10)).unwrap()
            );
        }
    }
}

#[test]
fn a_medium_dropped_with_a_persist_in_flight_waits_for_its_buffers() {
    let (_directory, path) = new_file();
    for _ in 0..20 {
        let mut media = FileMedia::open(&path).unwrap();
        media
            .persist_start(std::slice::from_ref(&(0..BYTES)))
            .unwrap();
    }
}

/// A write error is reported once, and every later persist is refused.
#[test]
fn after_a_failed_write_nothing_is_accepted() {
    for ring in [true, false] {
        let (_directory, path) = new_file();
        let mut media = FileMedia::open_with(&path, true, ring).unwrap();
        // A descriptor that is open only for reading stands for a failing disk.
        media.file = File::open(&path).unwrap();
        if ring {
            media.writer = Writer::Ring(Box::new(RingWriter::new(&media.file).unwrap()));
        }
        let result = media
            .persist_start(std::slice::from_ref(&(0..8)))
            .and_then(|()| media.persist_poll(true));
        let error = result.unwrap_err().to_string();
        assert!(
            error.contains("log") && error.contains("start the process again"),
            "{error}"
        );
        assert!(matches!(
            media.persist_start(std::slice::from_ref(&(0..8))),
            Err(MediaError::Failed)
        ));
        assert!(matches!(media.persist_poll(false), Err(MediaError::Failed)));
    }
}

/// Environment variable that makes a second process of this test run [`limited`]. Its value is the folder to use.
const LIMITED: &str = "PMNET_TEST_LIMITED";

/// The kernel creates a thread for a write to a file, and cancels the write if the limit of threads is reached. The limit
/// does not bind root, so the test runs once more as another user, in a process of its own.
#[test]
fn a_write_for_which_the_kernel_gets_no_thread_is_repeated() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    use std::process::Command;
    if let Some(folder) = std::env::var_os(LIMITED) {
        return limited(Path::new(&folder));
    }
    let directory = tempfile::tempdir().unwrap();
    let open_to_all = || std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(directory.path(), open_to_all()).unwrap();
    let own = std::env::current_exe().unwrap();
    let mut command = if rustix::process::geteuid().is_root() {
        // The other user may be unable to reach the program at its own place.
        let copy = directory.path().join("program");
        std::fs::copy(&own, &copy).unwrap();
        std::fs::set_permissions(&copy, open_to_all()).unwrap();
        let mut command = Command::new(copy);
        command.uid(65_534).gid(65_534);
        command
    } else {
        Command::new(own)
    };
    let name = "file::tests::a_write_for_which_the_kernel_gets_no_thread_is_repeated";
    command.args([name, "--exact", "--nocapture"]);
    let done = command
        .env(LIMITED, directory.path())
        .current_dir(directory.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    let why = String::from_utf8_lossy(&done.stderr);
    assert!(
        done.status.success() && said.contains("1 passed"),
        "{said}{why}"
    );
}

fn limited(folder: &Path) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::time::{Duration, Instant};
    let maximum = getrlimit(Resource::Nproc).maximum;
    let limit = |current| setrlimit(Resource::Nproc, Rlimit { current, maximum }).unwrap();
    let open = |name: &str| {
        let path = folder.join(name);
        image::create(&path, crate::Kind::File, BYTES).unwrap();
        let mut media = FileMedia::open(&path).unwrap();
        media.store(100, b"first");
        media
    };
    let ranges = std::slice::from_ref(&(100..105));

    // The limit stays: the error names it, and nothing counts as durable.
    let mut media = open("stays");
    limit(Some(1));
    assert!(std::thread::Builder::new().spawn(|| ()).is_err());
    media.persist_start(ranges).unwrap();
    let error = media.persist_poll(true).unwrap_err().to_string();
    assert!(
        error.contains("check the disk")
            && error.contains("TasksMax=")
            && error.contains("(os error 125)"),
        "{error}"
    );
    assert!(matches!(media.persist_poll(true), Err(MediaError::Failed)));

    // The limit is raised after four completions: refused writes, and the ends of pauses. The one write has more than
    // one completion only if it was refused.
    let mut media = {
        limit(maximum);
        let media = open("raised");
        limit(Some(1));
        media
    };
    let fd = media.wakeup_fd().unwrap();
    media.persist_start(ranges).unwrap();
    let mut turns = 0;
    while !media.persist_poll(false).unwrap() {
        let until = Instant::now() + Duration::from_secs(10);
        assert!(crate::sys::wait_readable(fd, until).unwrap());
        turns += 1;
        if turns == 4 {
            limit(maximum);
        }
    }
    assert!(turns > 4, "{turns}");
    drop(media);
    let seen = FileMedia::open(&folder.join("raised")).unwrap();
    assert_eq!(&seen.bytes()[100..105], b"first");
}

#[test]
fn a_file_in_memory_does_not_claim_to_survive_power_loss() {
    let on_tmpfs = Path::new("/dev/shm");
    if !on_tmpfs.is_dir() {
        skip("there is no /dev/shm here");
        return;
    }
    let directory = tempfile::tempdir_in(on_tmpfs).unwrap();
    let path = directory.path().join("log");
    let media = crate::create(&path, crate::Kind::File, 1 << 20).unwrap();
    assert!(
        media.survives().contains("not power loss"),
        "{}",
        media.survives()
    );
    assert!(!media.warnings().is_empty());
}

/// The space of a large file is only reserved at first. When a block is written, the piece around it is filled with
/// zeros. A block that is zero and was never written is not written.
#[test]
fn of_a_large_file_only_what_is_used_is_written() {
    const LARGE: usize = 192 << 20;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    image::create(&path, crate::Kind::File, LARGE).unwrap();
    let written = || crate::sys::written(&File::open(&path).unwrap(), LARGE);
    if written().first() == Some(&(0..LARGE)) {
        skip("this file system does not say what was written");
        return;
    }
    assert_eq!(written(), []);
    for (direct, ring) in [(true, true), (true, false), (false, false)] {
        let mut media = FileMedia::open_with(&path, direct, ring).unwrap();
        let at = if direct { 10 << 20 } else { 100 << 20 };
        // Recovery persists a whole table of which no part was used.
        persist(&mut media, &[0..8 << 20, LARGE - 8192..LARGE]);
        media.store(at + 5000, b"used");
        persist(&mut media, std::slice::from_ref(&(at + 5000..at + 5004)));
        // A used block that becomes zero again is written, so that it is zero durably.
        media.store(at + 9000, b"gone");
        persist(&mut media, std::slice::from_ref(&(at + 9000..at + 9004)));
        media.store(at + 9000, &[0; 4]);
        persist(&mut media, std::slice::from_ref(&(at + 8192..at + 12_288)));
        drop(media);
        let seen = FileMedia::open(&path).unwrap();
        assert_eq!(&seen.bytes()[at + 5000..at + 5004], b"used");
        assert_eq!(seen.bytes()[at + 9000..at + 9004], [0; 4]);
        assert!(image::is_zero(&seen.bytes()[..8 << 20]));
    }
    let pieces = [10 << 20..11 << 20, 100 << 20..101 << 20];
    assert_eq!(written(), pieces);
}
