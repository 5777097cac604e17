//! Making and opening logs: locks, sizes, full disks, and old data on the disk.

#[path = "../../../tests/shared/skip.rs"]
mod skip;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pmnet_log::{Media, MediaError};
use pmnet_media::{Kind, OpenError, create, open, open_image_read_only};
use skip::skip;

const BYTES: usize = 1 << 20;
const KINDS: [Kind; 2] = [Kind::File, Kind::Dram];

fn directory(kind: Kind) -> tempfile::TempDir {
    match kind {
        Kind::File => tempfile::tempdir().unwrap(),
        Kind::Dram | Kind::Pmem => tempfile::tempdir_in("/dev/shm").unwrap(),
    }
}

fn names(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect()
}

#[test]
fn made_zero_private_and_kept() {
    use std::os::unix::fs::PermissionsExt;
    for kind in KINDS {
        let directory = directory(kind);
        let path = directory.path().join("log");
        let mut media = create(&path, kind, BYTES).unwrap();
        assert!(media.bytes().len() == BYTES && media.bytes().iter().all(|byte| *byte == 0));
        assert!(media.warnings().is_empty(), "{:?}", media.warnings());
        assert_eq!(
            media.name(),
            if kind == Kind::File { "file" } else { "dram" }
        );
        assert!(media.survives().contains("power loss"));
        assert_eq!(
            names(directory.path()),
            std::slice::from_ref(&path),
            "no temporary file is left"
        );
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        media.store(5000, b"kept");
        media
            .persist_start(std::slice::from_ref(&(5000..5004)))
            .unwrap();
        assert!(media.persist_poll(true).unwrap());
        drop(media);
        assert_eq!(&open(&path, kind).unwrap().bytes()[5000..5004], b"kept");
    }
}

#[test]
fn one_owner_at_a_time() {
    for kind in KINDS {
        let directory = directory(kind);
        let path = directory.path().join("log");
        let media = create(&path, kind, BYTES).unwrap();
        // The calls run in parallel, because each waits for the lock.
        std::thread::scope(|scope| {
            for other in KINDS {
                let path = &path;
                scope.spawn(move || {
                    let error = open(path, other).unwrap_err();
                    assert!(matches!(error, OpenError::Locked { .. }), "{error}");
                    assert!(error.to_string().contains("in use by another process"));
                });
            }
        });
        assert!(open_image_read_only(&path).unwrap().in_use());
        drop(media);
        assert!(!open_image_read_only(&path).unwrap().in_use());
        open(&path, kind).unwrap();
    }
}

#[test]
fn only_one_of_many_makers_wins() {
    let directory = directory(Kind::File);
    let path = directory.path().join("log");
    let results: Vec<_> = std::thread::scope(|scope| {
        let makers: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| create(&path, Kind::File, BYTES)))
            .collect();
        makers
            .into_iter()
            .map(|maker| maker.join().unwrap())
            .collect()
    });
    for result in &results {
        if let Err(error) = result {
            assert!(
                matches!(error, OpenError::Locked { .. } | OpenError::Exists { .. }),
                "{error}"
            );
        }
    }
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    drop(results);
    assert_eq!(names(directory.path()), std::slice::from_ref(&path));
    open(&path, Kind::File).unwrap();
}

#[test]
fn what_was_interrupted_is_made_again_and_what_exists_is_left_alone() {
    for kind in KINDS {
        let directory = directory(kind);
        let path = directory.path().join("log");
        fs::write(
            directory.path().join("log.new"),
            b"half of an earlier attempt",
        )
        .unwrap();
        drop(create(&path, kind, BYTES).unwrap());
        let error = create(&path, kind, 2 * BYTES).unwrap_err();
        assert!(matches!(error, OpenError::Exists { .. }), "{error}");
        assert_eq!(names(directory.path()), std::slice::from_ref(&path));
        assert_eq!(open(&path, kind).unwrap().bytes().len(), BYTES);
    }
}

#[test]
fn truncated_foreign_and_absent_files() {
    for kind in KINDS {
        let directory = directory(kind);
        let path = directory.path().join("log");
        assert!(matches!(open(&path, kind), Err(OpenError::NotFound { .. })));
        assert!(matches!(
            open_image_read_only(&path),
            Err(OpenError::NotFound { .. })
        ));
        let absent = directory.path().join("absent").join("log");
        assert!(matches!(
            create(&absent, kind, BYTES),
            Err(OpenError::NotFound { .. })
        ));
        assert!(matches!(
            create(&path, kind, 5000),
            Err(OpenError::Size { bytes: 5000, .. })
        ));
        for bytes in [0, 100, 4096, BYTES - 1] {
            fs::write(&path, vec![7; bytes]).unwrap();
            let error = open(&path, kind).unwrap_err();
            assert!(matches!(error, OpenError::Size { .. }), "{error}");
            assert_eq!(
                fs::read(&path).unwrap(),
                vec![7; bytes],
                "nothing was changed"
            );
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(open(&path, kind).is_err());
        assert!(matches!(
            open_image_read_only(&path),
            Err(OpenError::NotAFile { .. })
        ));
    }
}

#[test]
fn memory_on_a_disk_says_what_it_is() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let system = Command::new("stat")
        .args(["-f", "-c", "%T"])
        .arg(directory.path())
        .output()
        .unwrap();
    if system.stdout.starts_with(b"tmpfs") {
        skip("the build directory is itself in memory");
        return;
    }
    let path = directory.path().join("log");
    let media = create(&path, Kind::Dram, BYTES).unwrap();
    assert!(
        media.warnings()[0].contains("page cache"),
        "{:?}",
        media.warnings()
    );
    assert_eq!(media.survives(), "death of the process, not power loss");
}

/// Kernels since 6.6 accept `O_DIRECT` on tmpfs, so its success does not prove that there is a disk.
#[test]
fn a_file_in_memory_says_what_it_is() {
    let directory = directory(Kind::Dram);
    let path = directory.path().join("log");
    let media = create(&path, Kind::File, BYTES).unwrap();
    let warnings = media.warnings();
    let said = |what: &str| warnings.iter().any(|warning| warning.contains(what));
    assert!(said("on a file system in memory"), "{warnings:?}");
    assert!(media.survives().contains("not power loss"));
}

#[test]
fn a_copy_for_reading_never_reaches_the_file() {
    let directory = directory(Kind::File);
    let path = directory.path().join("log");
    drop(create(&path, Kind::File, BYTES).unwrap());
    let mut copy = open_image_read_only(&path).unwrap();
    copy.store(0, b"changed");
    assert!(matches!(
        copy.persist_start(std::slice::from_ref(&(0..8))),
        Err(MediaError::ReadOnly)
    ));
    assert!(fs::read(&path).unwrap().iter().all(|byte| *byte == 0));
}

/// A small file system, which is unmounted when the value is dropped.
struct TinyDisk(tempfile::TempDir);

impl TinyDisk {
    fn mount(arguments: &[&str]) -> Option<TinyDisk> {
        let directory = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(arguments)
            .arg(directory.path())
            .output()
            .is_ok_and(|output| output.status.success());
        mounted.then(|| TinyDisk(directory))
    }
}

impl Drop for TinyDisk {
    fn drop(&mut self) {
        let _best_effort = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_is_said_when_the_log_is_made() {
    let Some(disk) = TinyDisk::mount(&["-t", "tmpfs", "-o", "size=1m", "tmpfs"]) else {
        skip("mounting a tiny file system needs root");
        return;
    };
    for kind in KINDS {
        let path = disk.0.path().join("log");
        let error = create(&path, kind, 2 * BYTES).unwrap_err();
        assert!(
            matches!(error, OpenError::NoSpace { bytes, .. } if bytes == 2 * BYTES),
            "{error}"
        );
        assert!(names(disk.0.path()).is_empty(), "nothing is left behind");
        drop(create(&path, kind, BYTES / 2).unwrap());
        fs::remove_file(&path).unwrap();
    }
}

/// A store into a page that does not exist kills the process, so all pages are reserved first.
#[test]
fn huge_pages_that_are_not_there_are_said_when_the_log_is_made_or_opened() {
    let Some(disk) = TinyDisk::mount(&["-t", "hugetlbfs", "-o", "size=2M,pagesize=2M", "none"])
    else {
        skip("mounting huge pages needs root, and a kernel that has them");
        return;
    };
    let path = disk.0.path().join("log");
    let error = create(&path, Kind::Dram, 4 << 20).unwrap_err();
    assert!(matches!(error, OpenError::NoSpace { .. }), "{error}");
    assert!(names(disk.0.path()).is_empty(), "nothing is left behind");
    let holes = fs::File::create(&path).unwrap();
    holes.set_len(4 << 20).unwrap();
    let error = open(&path, Kind::Dram).unwrap_err();
    assert!(matches!(error, OpenError::NoSpace { .. }), "{error}");
}

#[test]
fn a_pipe_is_not_looked_at_and_not_waited_for() {
    let directory = directory(Kind::File);
    let path = directory.path().join("pipe");
    let made = Command::new("mkfifo").arg(&path).status();
    assert!(made.unwrap().success());
    let refused = open_image_read_only(&path).err();
    assert!(
        matches!(refused, Some(OpenError::NotAFile { .. })),
        "{refused:?}"
    );
}
