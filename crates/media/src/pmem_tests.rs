//! Tests that need no persistent memory. They run the flush instructions on a mapping of the page cache, and check that
//! unsuitable files are refused.

use std::fs;
use std::os::unix::fs::symlink;

use super::*;

const BYTES: usize = 64 * 1024;

fn every_method() -> Vec<Method> {
    let Some(best) = Instruction::of_this_processor() else {
        return Vec::new();
    };
    // A processor that has an instruction also has the ones after it.
    let all = [
        Instruction::Clwb,
        Instruction::ClflushOpt,
        Instruction::Clflush,
    ];
    let from = all.iter().position(|one| *one == best).unwrap();
    let flushes = all[from..].iter().map(|one| Method::Flush(*one));
    flushes.chain([Method::Fence]).collect()
}

/// Runs every instruction, on the first and the last line too. Afterwards the memory has the stored bytes.
#[test]
fn stores_and_persists_by_every_instruction_of_this_processor() {
    assert!(!every_method().is_empty() || !cfg!(target_arch = "x86_64"));
    for method in every_method() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = directory.path().join("log");
        fs::write(&path, vec![0; BYTES]).unwrap();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let mut media = PmemMedia {
            memory: Memory::new(Mapping::of_page_cache(&file, BYTES).unwrap()),
            method,
            domain: Domain::Memory,
            warnings: Vec::new(),
            _file: file,
        };
        media.store(0, b"first");
        media.store(BYTES - 4, b"last");
        media.store(130, b"between");
        let ranges = [0..5, 100..200, BYTES - 64..BYTES];
        media.persist_start(&ranges).unwrap();
        assert!(media.persist_poll(true).unwrap());
        assert_eq!((media.name(), media.survives()), ("pmem", "power loss"));
        assert_eq!(
            media.wakeup_fd(),
            None,
            "a persist is complete when it returns"
        );
        drop(media);
        let seen = fs::read(&path).unwrap();
        assert!(
            seen.starts_with(b"first") && seen.ends_with(b"last"),
            "{method:?}"
        );
        assert_eq!(&seen[130..137], b"between");
    }
}

#[test]
fn caches_that_are_saved_need_no_flush_and_everything_else_does() {
    let Some(best) = Instruction::of_this_processor() else {
        assert_eq!(Method::for_domain(Domain::CpuCache), None);
        return;
    };
    assert_eq!(Method::for_domain(Domain::CpuCache), Some(Method::Fence));
    for domain in [Domain::Memory, Domain::Unsaid, Domain::NotPersistent] {
        assert_eq!(Method::for_domain(domain), Some(Method::Flush(best)));
    }
}

#[test]
fn what_goes_through_the_page_cache_is_refused_and_left_as_it_is() {
    for folder in [std::env::temp_dir(), "/dev/shm".into()] {
        let directory = tempfile::tempdir_in(folder).unwrap();
        let path = directory.path().join("log");
        let error = create(&path, BYTES).unwrap_err();
        assert!(matches!(error, OpenError::NotDirect { .. }), "{error}");
        assert!(error.to_string().contains("--media file"), "{error}");
        assert_eq!(
            fs::read_dir(directory.path()).unwrap().count(),
            0,
            "nothing is left"
        );
        fs::write(&path, vec![7; BYTES]).unwrap();
        let error = PmemMedia::open(&path).unwrap_err();
        assert!(matches!(error, OpenError::NotDirect { .. }), "{error}");
        assert!(fs::read(&path).unwrap() == vec![7; BYTES]);
    }
}

#[test]
fn a_character_device_that_is_no_memory_is_refused() {
    let null = Path::new("/dev/null");
    assert!(matches!(
        PmemMedia::open(null),
        Err(OpenError::NotAFile { .. })
    ));
    assert!(matches!(
        create(null, BYTES),
        Err(OpenError::NotAFile { .. })
    ));
    let error = is_unused_device(null, Kind::Pmem).unwrap_err();
    assert!(error.to_string().contains("devdax"), "{error}");
    assert!(
        !is_unused_device(null, Kind::Dram).unwrap(),
        "not asked of other media"
    );
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("log");
    symlink("absent", &link).unwrap();
    assert!(!is_unused_device(&link, Kind::Pmem).unwrap());
}

#[test]
fn bad_blocks_are_refused_and_what_is_not_known_is_said() {
    let path = Path::new("/dev/dax0.0");
    let memory = |domain, bad_bytes, unknown: &[&str]| Backing {
        domain,
        bad_bytes,
        unknown: unknown.iter().map(ToString::to_string).collect(),
    };
    let good = memory(Domain::Memory, 0, &[]);
    refuse_bad(&good, path).unwrap();
    assert!(warnings(&good, path).is_empty());
    assert!(warnings(&memory(Domain::CpuCache, 0, &[]), path).is_empty());
    let error = refuse_bad(&memory(Domain::Memory, 512, &[]), path).unwrap_err();
    assert!(error.to_string().contains("512 bytes"), "{error}");
    let unsaid = warnings(
        &memory(Domain::Unsaid, 0, &["whether it has bad blocks"]),
        path,
    );
    assert!(unsaid[0].contains("cannot find out whether"), "{unsaid:?}");
    assert!(unsaid[1].contains("does not say"), "{unsaid:?}");
    let volatile = warnings(&memory(Domain::NotPersistent, 0, &[]), path);
    assert!(volatile[0].contains("counts as lost"), "{volatile:?}");
}
