use super::*;

fn frames() -> Frames {
    Frames::new(&Geometry {
        lines: 256,
        frames: 64,
        frame_bytes: 2048,
        log_entries: 0,
    })
}

#[test]
fn records_fill_a_frame_and_an_empty_one_comes_back() {
    let mut all = frames();
    for slot in 0..25 {
        let place = all.place_first(70, 20);
        assert_eq!(
            (place.frame, place.start, place.len),
            (0, index(slot) * 72, 70)
        );
        all.attach(0, slot, 70);
    }
    // The open frame has 248 free bytes. The free bytes are too few for half of the record, so the record begins in a
    // new frame.
    let place = all.place_first(300, 20);
    assert_eq!((place.frame, place.start, place.len), (1, 0, 300));
    all.attach(1, 25, 300);
    assert_eq!(all.room(Room::Packing), 62);
    for slot in (0..25).rev() {
        all.detach(slot);
    }
    assert_eq!((all.room(Room::Packing), all.live_bytes()), (63, 300));
}

#[test]
fn a_record_goes_on_in_the_next_frame_if_much_would_be_unused() {
    let mut all = frames();
    all.place_first(1024, 10);
    all.attach(0, 0, 1024);
    assert_eq!(all.place_first(1100, 10).len, 1024);
    assert_eq!(
        all.place_piece(76),
        Place {
            frame: 1,
            start: 0,
            len: 76
        }
    );
    all.attach(1, 1, 76);
    // If the key fits into one frame, the whole key must be in one frame.
    assert_eq!(
        all.place_first(2048, 2000),
        Place {
            frame: 2,
            start: 0,
            len: 2048
        }
    );
}

#[test]
fn the_reserve_is_kept_and_lent_frames_are_nobody_elses() {
    let mut all = frames();
    let mut lent = Vec::new();
    while let Some(frame) = all.lend() {
        lent.push(frame);
    }
    assert_eq!(
        (lent.len(), all.room(Room::Packing), all.counts()),
        (56, 8, [8, 56, 0])
    );
    all.take_back(lent[0], false);
    all.take_back(lent[1], true);
    all.attach(lent[1], 7, 2000);
    assert_eq!(all.counts(), [9, 54, 1]);
    assert!(!all.is_lent(lent[1]) && all.is_lent(lent[2]));
}

#[test]
fn the_sparsest_frame_is_packed_first_and_large_parts_never() {
    let mut all = frames();
    for (slot, len) in [(0, 1500), (1, 100), (2, 900)] {
        let frame = all.lend().unwrap();
        all.take_back(frame, true);
        all.attach(frame, slot, len);
    }
    assert_eq!(all.sparsest(), None, "it is not worth it");
    for slot in 10..30 {
        let apart = all.place_apart(10);
        all.attach(apart.frame, slot, 10);
    }
    assert_eq!(all.sparsest(), Some(1));
    all.set_apart(1);
    assert_eq!((all.sparsest(), all.live_in(2)), (Some(2), 900));
    all.detach(2);
    assert_eq!(all.sparsest(), Some(0));
    all.attach(0, 5, 300);
    assert_eq!(all.sparsest(), None);
    // When frames are scarce, packing is worth its cost even for a little space, unless the last packing freed nothing.
    let lent: Vec<u32> = std::iter::from_fn(|| all.lend()).collect();
    all.place_apart(10);
    assert_eq!(all.sparsest(), Some(0));
    let before = all.packs();
    all.packed(before);
    assert_eq!(all.sparsest(), None);
    all.take_back(lent[0], true);
    all.attach(lent[0], 6, 1900);
    assert_eq!(all.sparsest(), None, "hardly more is dead");
    all.take_back(lent[1], true);
    all.attach(lent[1], 7, 100);
    assert_eq!(all.sparsest(), Some(lent[1]));
}

#[test]
fn a_frame_that_the_log_has_too_is_used_again_when_both_have_let_go() {
    let mut all = frames();
    let mut lent = || all.lend().unwrap();
    let [released_first, died_first, undone] = [lent(), lent(), lent()];
    for (slot, frame) in [released_first, died_first, undone].into_iter().enumerate() {
        all.take_logged(frame);
        all.attach(frame, u32::try_from(slot).unwrap(), 1000);
    }
    // For each linked frame, another frame is promised to the log.
    assert_eq!((all.room(Room::Packing), all.logged()), (61 - 3, 3));
    all.keep_promises();
    assert_eq!(all.room(Room::Packing), 61);
    // The log releases the frame before its record dies. After the release, only the store has the frame. When the
    // record dies, other records can be copied into the frame. But the frame is not lent before the record's line is
    // erased.
    assert!(all.let_go(released_first));
    all.detach(0);
    assert_eq!((all.room(Room::Packing), all.cold()), (62, 61));
    // The record dies before the log releases its frame. Neither log nor store can use the frame until the line is
    // erased. After the erasure, the log has the frame.
    all.detach(1);
    all.detach(2);
    assert!(all.is_left(died_first) && all.is_logged(died_first) && !all.is_lent(died_first));
    // Before the line is erased, the frame can be linked again.
    all.take_logged(undone);
    all.attach(undone, 2, 1000);
    all.keep_promises();
    all.cool();
    assert_eq!((all.cold(), all.logged()), (62, 1));
    assert!(all.is_lent(died_first) && !all.let_go(died_first));
    // The record dies, and then the log releases the frame. The frame belongs to the store, and is warm.
    all.detach(2);
    assert!(all.let_go(undone));
    assert_eq!((all.cold(), all.room(Room::Packing)), (62, 63));
    all.cool();
    assert_eq!((all.cold(), all.counts()), (63, [63, 1, 0]));
}
