//! A packet store, or the region of a device, grows. At every moment the old file or the new file is whole.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::support::{arguments, batch, change, read, single};
use bytes::Bytes;
use pmnet_log::NewEntry;
use pmnet_packet_store::Geometry;
use pmnet_server::Store;
use pmnet_store::{GrowError, Grown, RegionAddress, RegionStore, grow_packet_store};

const SMALL: u64 = 1 << 20;
const LARGE: u64 = 4 << 20;
const DEVICE: u32 = 7;

struct Folder {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

impl Folder {
    fn new() -> Folder {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        Folder {
            _directory: directory,
            path,
        }
    }

    fn open(&self) -> Box<dyn Store> {
        let url = format!("packet:{}?size={SMALL}", self.path.display());
        pmnet_store::open(&url, 0).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.path.parent().unwrap())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn set(key: &str, value: &[u8]) -> Bytes {
    arguments(&[b"SET", key.as_bytes(), value])
}

/// Sets new keys until the store is full. Returns the number of keys.
fn fill(store: &mut dyn Store) -> usize {
    (0..)
        .find(|at| change(store, set(&format!("k{at}"), &[b'v'; 5000])) != "+OK\r\n")
        .unwrap()
}

fn grow(path: &Path, size: u64) -> Result<Grown, GrowError> {
    grow_packet_store(path, size, &mut |_, _| Ok(()))
}

/// Grows the store, and stops after this many steps as if the process had ended.
fn killed_after(path: &Path, steps: u32) -> bool {
    let mut left = steps;
    let ended = grow_packet_store(path, LARGE, &mut |_, _| match left.checked_sub(1) {
        Some(less) => {
            left = less;
            Ok(())
        }
        None => Err(GrowError("killed".into())),
    });
    match ended {
        Ok(_) => false,
        Err(error) if error.to_string() == "killed" => true,
        Err(error) => panic!("{error}"),
    }
}

fn bytes_of(geometry: &Geometry) -> u64 {
    u64::try_from(geometry.image_bytes()).unwrap()
}

#[test]
fn a_full_store_grows_and_an_acknowledged_update_that_waited_is_applied() {
    let made = Folder::new();
    let mut store = made.open();
    let kept = fill(&mut *store);
    let effects: Vec<Bytes> = (0..20)
        .map(|n| set(&format!("n{n}"), &[b'w'; 5000]))
        .collect();
    let waits = batch(&effects, 9);
    let text = store.apply(&waits).unwrap_err().to_string();
    assert!(
        text.contains("full") && text.contains("pmnet store grow"),
        "{text}"
    );
    drop(store);
    std::fs::set_permissions(&made.path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let before = std::fs::metadata(&made.path).unwrap();
    let grown = grow(&made.path, LARGE).unwrap();
    assert!(
        grown.to.frames > 3 * grown.from.frames && grown.unapplied.is_none(),
        "{grown:?}"
    );
    let after = std::fs::metadata(&made.path).unwrap();
    assert_eq!((after.mode(), after.uid()), (before.mode(), before.uid()));
    assert!(after.len() == bytes_of(&grown.to) && after.len() <= LARGE);
    assert_eq!(made.names(), ["store"]);
    let mut store = made.open();
    assert_eq!(store.apply(&waits), Ok(0));
    assert_eq!(
        read(&mut *store, single("DBSIZE")),
        format!(":{}\r\n", kept + 20)
    );
    assert!(fill(&mut *store) > 2 * kept);
}

#[test]
fn killed_at_any_step_it_leaves_a_whole_store_and_the_next_attempt_ends() {
    let made = Folder::new();
    let mut store = made.open();
    change(&mut *store, single("INCR starts"));
    let kept = fill(&mut *store) + 1;
    drop(store);
    let mut steps = 0;
    while killed_after(&made.path, steps) {
        assert_eq!(made.names(), ["store", "store.growing"]);
        let mut store = made.open();
        assert_eq!(read(&mut *store, single("DBSIZE")), format!(":{kept}\r\n"));
        // Records of the old store may have changed since the copy was made.
        assert_eq!(
            change(&mut *store, single("INCR starts")),
            format!(":{}\r\n", steps + 2)
        );
        drop(store);
        steps += 1;
    }
    assert!(steps > 3, "{steps}");
    assert_eq!(made.names(), ["store"]);
    let mut store = made.open();
    assert_eq!(
        read(&mut *store, single("DBSIZE")),
        format!(":{}\r\n", kept)
    );
    assert_eq!(
        change(&mut *store, single("INCR starts")),
        format!(":{}\r\n", steps + 2)
    );
}

#[test]
fn what_cannot_grow_says_what_to_do_and_stays_as_it_is() {
    let made = Folder::new();
    let refused = |path: &Path, size| grow(path, size).unwrap_err().to_string();
    assert!(refused(&made.path, LARGE).contains("No such file"));
    let mut store = made.open();
    change(&mut *store, set("key", b"value"));
    let used = refused(&made.path, LARGE);
    assert!(
        used.contains("in use") && used.contains("stop that first"),
        "{used}"
    );
    drop(store);
    let image = std::fs::read(&made.path).unwrap();
    let smaller = refused(&made.path, SMALL);
    assert!(smaller.contains("give a larger size"), "{smaller}");
    let huge = refused(&made.path, 1 << 50);
    assert!(huge.contains("give a smaller size"), "{huge}");
    let other = made.path.with_file_name("store.growing");
    std::fs::write(&other, b"somebody's notes").unwrap();
    let taken = refused(&made.path, LARGE);
    assert!(
        taken.contains("store.growing") && taken.contains("move it away"),
        "{taken}"
    );
    assert_eq!(std::fs::read(&other).unwrap(), b"somebody's notes");
    std::fs::remove_file(&other).unwrap();
    let second = made.path.with_file_name("second");
    std::fs::hard_link(&made.path, &second).unwrap();
    let linked = refused(&made.path, LARGE);
    assert!(linked.contains("2 names"), "{linked}");
    std::fs::remove_file(&second).unwrap();
    assert_eq!(std::fs::read(&made.path).unwrap(), image);
    // A symbolic link still leads to the store.
    std::os::unix::fs::symlink(&made.path, &second).unwrap();
    grow(&second, LARGE).unwrap();
    assert!(second.is_symlink() && !made.path.is_symlink());
    assert_eq!(
        read(&mut *made.open(), single("GET key")),
        "$5\r\nvalue\r\n"
    );
    let mut damaged = std::fs::read(&made.path).unwrap();
    let line = (0..1000)
        .map(|at| 16384 + at * 64)
        .find(|at| damaged[*at] != 0)
        .unwrap();
    damaged[line + 60] ^= 1;
    std::fs::write(&made.path, &damaged).unwrap();
    let bad = refused(&made.path, 2 * LARGE);
    assert!(
        bad.contains("damaged") && bad.contains("pmnet store verify"),
        "{bad}"
    );
    assert_eq!(std::fs::read(&made.path).unwrap(), damaged);
}

/// The log of a region holds updates that were acknowledged and are not applied yet. The larger region holds them, too.
#[test]
fn a_region_grows_with_what_is_in_its_log() {
    for media in ["file", "dram"] {
        let made = Folder::new();
        let url = format!("packet:{}?size=1M&media={media}", made.path.display());
        let address = RegionAddress::parse(&url, DEVICE, 0, 200_000).unwrap();
        let (mut region, new) = address.open().unwrap();
        assert!(new);
        let frames = region.log_frames();
        let payloads: Vec<Bytes> = (0..20u8)
            .map(|n| set(&format!("key {n}"), &[n; 900]))
            .collect();
        for (seq, payload) in (1..).zip(&payloads) {
            let entry = NewEntry {
                session: 1,
                seq,
                kind: 1,
                fragment_index: 0,
                fragment_count: 1,
            };
            let crc = pmnet_wire::crc(payload);
            region.append(&entry, &[9; 88], payload, crc).unwrap();
        }
        region.persist_start().unwrap();
        region.persist_poll(true).unwrap();
        let mut store = RegionStore::new(region, "region".into()).unwrap();
        assert_eq!(store.apply(&batch(&payloads[..5], 5)), Ok(0));
        drop(store);
        let grown = grow(&made.path, LARGE).unwrap();
        assert_eq!(grown.unapplied, Some(15), "{grown:?}");
        let length = std::fs::metadata(&made.path).unwrap().len();
        assert!(length <= LARGE && grown.to.frames >= grown.from.frames * 4);
        let (region, new) = address.open().unwrap();
        assert!(!new && region.log_frames() == frames);
        assert_eq!((region.log().applied(), region.log().last()), (5, 20));
        for order in 6..=20 {
            let at = usize::try_from(order).unwrap() - 1;
            assert!(region.log().frame(order).unwrap().ends_with(&payloads[at]));
        }
        assert_eq!(region.contradiction(), None);
        let mut store = RegionStore::new(region, "region".into()).unwrap();
        assert_eq!(store.apply(&batch(&payloads[5..], 20)), Ok(0));
        assert_eq!(read(&mut store, single("DBSIZE")), ":20\r\n");
    }
}
