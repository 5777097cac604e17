//! Examines paths that every machine has.

use super::*;

#[test]
fn a_folder_a_new_file_and_a_log_that_is_there() {
    for folder in [std::env::temp_dir(), "/dev/shm".into()] {
        let directory = tempfile::tempdir_in(&folder).unwrap();
        let path = directory.path().join("log");
        let of_folder = look(directory.path()).unwrap();
        let of_nothing = look(&path).unwrap();
        assert_eq!(
            fs::read_dir(directory.path()).unwrap().count(),
            0,
            "nothing stays"
        );
        fs::write(&path, b"a log").unwrap();
        let of_file = look(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"a log");
        for place in [of_nothing, of_file] {
            assert_eq!(place.class, of_folder.class);
            assert_eq!(place.kind, of_folder.kind);
        }
        if folder == Path::new("/dev/shm") {
            assert_eq!(
                (of_folder.class, of_folder.kind),
                (Class::Memory, Kind::Dram)
            );
            assert!(of_folder.survives.contains("not power loss"));
            assert!(of_folder.advice[0].contains("--media file"));
        }
        if of_folder.class == Class::Disk {
            assert_eq!(of_folder.kind, Kind::File);
            assert!(of_folder.survives.starts_with("power loss, if"));
        }
    }
}

#[test]
fn what_cannot_hold_a_log() {
    assert!(matches!(
        look(Path::new("/dev/null")),
        Err(OpenError::NotAFile { .. })
    ));
    let absent = look(Path::new("/absent/folder/log"));
    assert!(matches!(absent, Err(OpenError::NotFound { .. })));
}

#[test]
fn what_is_said_about_memory_and_disks() {
    let memory = |domain, bad_bytes| Backing {
        domain,
        bad_bytes,
        unknown: vec!["something".into()],
    };
    let place = persistent(Class::DevDax, &memory(Domain::CpuCache, 0));
    assert_eq!((place.kind, place.survives), (Kind::Pmem, "power loss"));
    assert_eq!(place.advice, ["cannot find out something"]);
    if cfg!(target_arch = "x86_64") {
        assert!(place.persist.contains("none"), "{}", place.persist);
        let flushed = persistent(Class::FsDax, &memory(Domain::Memory, 0)).persist;
        assert!(flushed.starts_with("flush: cl"), "{flushed}");
    }
    let bad = persistent(Class::FsDax, &memory(Domain::Unsaid, 512));
    assert!(bad.advice[1].contains("does not say") && bad.advice[2].contains("512 bytes"));
    let volatile = persistent(Class::DevDax, &memory(Domain::NotPersistent, 0));
    assert!(volatile.advice[1].contains("nothing says"));
    assert_eq!(in_memory(true).class, Class::HugePages);
    assert!(on_disk(false, true).advice.is_empty());
    assert!(on_disk(true, true).advice[0].contains("-o dax"));
    let slow = on_disk(false, false);
    assert!(slow.persist.contains("fdatasync") && slow.advice[0].contains("O_DIRECT"));
}
