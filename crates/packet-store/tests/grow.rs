//! A copy of a store in a larger image: its contents, and the image that a crash in any of the copy's persists leaves.

mod support;

use std::ops::Range;
use std::os::fd::RawFd;

use pmnet_log::{Media, MediaError};
use pmnet_packet_store::{Geometry, Meta, OpenError, PacketStore, Room, Scan};
use support::{Content, IDENTITY, Plain, Random, content, made, opened};

const SMALL: Geometry = Geometry {
    lines: 192,
    frames: 40,
    frame_bytes: 2048,
    log_entries: 0,
};

/// A medium on which a crash leaves each word old or new at random, unless a completed persist covers the word.
struct Forgetful {
    image: Vec<u8>,
    durable: Vec<u8>,
    left: u64,
    random: Random,
}

impl Media for Forgetful {
    fn bytes(&self) -> &[u8] {
        &self.image
    }
    fn store(&mut self, offset: usize, bytes: &[u8]) {
        self.image[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
    fn persist_start(&mut self, ranges: &[Range<usize>]) -> Result<(), MediaError> {
        let Some(left) = self.left.checked_sub(1) else {
            let words = self.durable.chunks_mut(8).zip(self.image.chunks(8));
            for (old, new) in words.filter(|(old, new)| old != new) {
                if self.random.one_in(2) {
                    old.copy_from_slice(new);
                }
            }
            return Err(MediaError::Failed);
        };
        self.left = left;
        for range in ranges {
            self.durable[range.clone()].copy_from_slice(&self.image[range.clone()]);
        }
        Ok(())
    }
    fn persist_poll(&mut self, _: bool) -> Result<bool, MediaError> {
        Ok(true)
    }
    fn wakeup_fd(&self) -> Option<RawFd> {
        None
    }
    fn survives(&self) -> &'static str {
        "a crash, as far as it was persisted"
    }
    fn name(&self) -> &'static str {
        "forgetful"
    }
}

/// Returns a full store with records of all lengths; some records were overwritten and some deleted.
fn filled() -> (Vec<u8>, Content) {
    let mut store = opened(made(&SMALL));
    let mut random = Random(5);
    loop {
        let key = random.bytes(1 + random.clone().index(20));
        let value = random.bytes([3, 300, 2500, 5000][random.clone().index(4)]);
        let mut transaction = store.transaction();
        if random.one_in(5) {
            let _there = transaction.remove(&key[..1]).unwrap();
        }
        if transaction
            .put(&key, &value, Meta::default(), Room::Ordinary)
            .is_err()
        {
            break;
        }
        transaction.commit().unwrap();
    }
    let content = content(&store);
    assert!(content.len() > 15, "{}", content.len());
    (store.into_media().image, content)
}

fn scanned(image: Vec<u8>) -> Scan<Plain> {
    Scan::open(Plain::new(image), Some(IDENTITY.shard)).unwrap()
}

fn go_on(_: u64, _: u64) -> Result<(), OpenError> {
    Ok(())
}

fn fill_up(store: &mut PacketStore<Plain>) -> usize {
    let mut count = 0usize;
    loop {
        let mut transaction = store.transaction();
        let key = format!("more {count}");
        let put = transaction.put(key.as_bytes(), &[7; 1000], Meta::default(), Room::Ordinary);
        if put.is_err() {
            return count;
        }
        transaction.commit().unwrap();
        count += 1;
    }
}

#[test]
fn a_full_store_has_room_in_a_larger_image_and_holds_what_it_held() {
    let (image, wanted) = filled();
    let to = SMALL.grown(1 << 20).unwrap();
    let mut target = Plain::new(vec![0; to.image_bytes()]);
    let mut seen = Vec::new();
    let mut note = |done, all| {
        seen.push((done, all));
        Ok::<(), OpenError>(())
    };
    scanned(image.clone())
        .copy_to(&mut target, &to, &mut note)
        .unwrap();
    assert!(
        seen.is_sorted() && seen.last().is_some_and(|(done, all)| done == all),
        "{seen:?}"
    );
    let mut store = opened(target.image);
    assert_eq!(*store.geometry(), to);
    assert_eq!(content(&store), wanted);
    let more = fill_up(&mut store);
    assert!(more > 300, "{more}");
    let mut old = opened(image);
    assert!(fill_up(&mut old) < 3, "it was full");
    let again = opened(store.into_media().image);
    assert_eq!(content(&again).len(), wanted.len() + more);
}

#[test]
fn a_crash_in_any_persist_leaves_no_store_or_the_whole_copy() {
    let (image, wanted) = filled();
    let to = SMALL.grown(300_000).unwrap();
    let (mut none, mut whole) = (0, 0);
    for left in 0.. {
        for seed in 0..8 {
            let mut target = Forgetful {
                image: vec![0; to.image_bytes()],
                durable: vec![0; to.image_bytes()],
                left,
                random: Random(seed),
            };
            let copied = scanned(image.clone()).copy_to(&mut target, &to, &mut go_on);
            if copied.is_ok() {
                assert!(
                    left > 4 && none >= 30 && whole >= 8,
                    "{left} {none} {whole}"
                );
                return;
            }
            match Scan::open(Plain::new(target.durable), Some(IDENTITY.shard)) {
                Err(error) => {
                    none += 1;
                    assert!(!matches!(error, OpenError::Damaged(_)), "{error}");
                }
                Ok(scan) => {
                    whole += 1;
                    assert_eq!(scan.loss(), None, "persist {left}, seed {seed}");
                    assert_eq!(content(&scan.repair().unwrap()), wanted);
                }
            }
        }
    }
}

#[test]
fn what_is_damaged_or_too_small_or_taken_is_refused() {
    let (image, _) = filled();
    let to = SMALL.grown(1 << 20).unwrap();
    let refused = |image: Vec<u8>, mut target: Vec<u8>, bytes: usize| {
        target.resize(bytes, 0);
        let mut target = Plain::new(target);
        let refused = scanned(image)
            .copy_to(&mut target, &to, &mut go_on)
            .unwrap_err();
        assert_eq!(target.persists, 0, "nothing was written");
        refused
    };
    let needed = to.image_bytes();
    let short = refused(image.clone(), vec![], needed - 4096);
    assert!(matches!(short, OpenError::Truncated { .. }), "{short}");
    let taken = refused(image.clone(), vec![1], needed);
    assert!(matches!(taken, OpenError::NotBlank), "{taken}");
    let mut damaged = image;
    // The first line that is in use loses its checksum.
    let start = 16384;
    let line = (0..192)
        .map(|at| start + at * 64)
        .find(|at| damaged[*at] != 0)
        .unwrap();
    damaged[line + 60] ^= 1;
    let damaged = refused(damaged, vec![], needed);
    assert!(matches!(damaged, OpenError::Damaged(_)), "{damaged}");
}

#[test]
fn whoever_watches_can_end_it() {
    let (image, _) = filled();
    let to = SMALL.grown(1 << 20).unwrap();
    let mut target = Plain::new(vec![0; to.image_bytes()]);
    let stop = |_, _| Err(OpenError::Foreign);
    let ended = scanned(image).copy_to(&mut target, &to, &mut { stop });
    assert!(matches!(ended, Err(OpenError::Foreign)));
    assert!(
        Scan::open(target, None).is_err(),
        "nothing says that it is a store"
    );
}
