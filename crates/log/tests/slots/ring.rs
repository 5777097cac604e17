//! The ring of slots of a running queue, call by call.

use pmnet_log::slots::{Odd, Oldest, Outcome, SlotQueue, SlotScan, SlotsError};

use crate::medium::Medium;
use crate::world::{formatted, message};

const MESSAGE: Outcome = Outcome::Message(128);

fn queue() -> SlotQueue<Medium> {
    SlotScan::open(formatted(), None).unwrap().begin().unwrap()
}

/// Posts all slots that can be posted; returns their numbers.
fn post(queue: &mut SlotQueue<Medium>) -> Vec<u64> {
    std::iter::from_fn(|| queue.post())
        .map(|posting| posting.number)
        .collect()
}

fn oldest(queue: &SlotQueue<Medium>) -> Option<(u64, bool)> {
    queue.oldest().map(|oldest| match oldest {
        Oldest::Message { number, .. } => (number, true),
        Oldest::Hole { number } => (number, false),
    })
}

#[test]
fn nothing_is_handed_on_behind_an_open_slot() {
    let mut queue = queue();
    assert_eq!(post(&mut queue), [4, 5, 6, 7]);
    assert_eq!((queue.credit(), queue.blocked()), (4, None));
    queue.complete(6, 1, MESSAGE).unwrap();
    assert_eq!((oldest(&queue), queue.blocked()), (None, Some(4)));
    queue.complete(4, 2, MESSAGE).unwrap();
    assert_eq!((oldest(&queue), queue.blocked()), (Some((4, true)), None));
    queue.advance();
    assert_eq!((oldest(&queue), queue.blocked()), (None, Some(5)));
    // A slot with an error is a hole, and does not delay later slots.
    queue.complete(5, 2, Outcome::Error).unwrap();
    assert_eq!(oldest(&queue), Some((5, false)));
    queue.advance();
    assert_eq!(oldest(&queue), Some((6, true)));
    assert_eq!(queue.credit(), 1);
}

#[test]
fn a_message_is_where_the_nic_was_told_to_put_it() {
    let mut queue = queue();
    let posting = queue.post().unwrap();
    let bytes = message((7, 1));
    pmnet_log::Media::store(queue.media_mut(), posting.place.start, &bytes);
    queue
        .complete(posting.number, 9, Outcome::Message(100))
        .unwrap();
    let expected = Oldest::Message {
        number: 4,
        from: 9,
        bytes: &bytes[..100],
    };
    assert_eq!(queue.oldest(), Some(expected));
}

#[test]
fn a_slot_is_posted_again_when_the_medium_says_that_it_is_entered() {
    let mut queue = queue();
    post(&mut queue);
    for number in 4..8 {
        queue.complete(number, 1, MESSAGE).unwrap();
        queue.advance();
    }
    assert_eq!((post(&mut queue), queue.credit()), (vec![], 0));
    assert!(queue.keep_start(6).unwrap());
    assert_eq!(post(&mut queue), [0; 0], "the write is in flight");
    assert!(!queue.keep_start(8).unwrap(), "one at a time");
    assert!(!queue.keep_poll(false).unwrap());
    assert!(queue.keep_poll(true).unwrap());
    assert_eq!((post(&mut queue), queue.kept()), (vec![8, 9], 6));
    assert!(!queue.keep_start(6).unwrap(), "it is written");
}

#[test]
fn whoever_finished_a_later_message_is_not_in_the_middle_of_an_earlier_one() {
    let mut queue = queue();
    post(&mut queue);
    queue.complete(5, 1, MESSAGE).unwrap();
    queue.complete(6, 2, Outcome::Error).unwrap();
    assert_eq!(queue.blocked(), Some(4));
    let cleared = [1, 2, 3].map(|connection| queue.is_cleared(connection));
    assert_eq!(cleared, [true, false, false]);
}

#[test]
fn completions_that_cannot_be_are_refused() {
    let mut queue = queue();
    assert_eq!(queue.complete(4, 1, MESSAGE), Err(Odd::NotPosted(4)));
    post(&mut queue);
    assert_eq!(queue.complete(3, 1, MESSAGE), Err(Odd::Twice(3)));
    assert_eq!(
        queue.complete(4, 1, Outcome::Message(129)),
        Err(Odd::TooLong(4))
    );
    queue.complete(4, 1, MESSAGE).unwrap();
    assert_eq!(queue.complete(4, 1, MESSAGE), Err(Odd::Twice(4)));
    queue.advance();
    assert_eq!(queue.complete(4, 1, MESSAGE), Err(Odd::Twice(4)));
    assert_eq!(queue.complete(8, 1, MESSAGE), Err(Odd::NotPosted(8)));
}

#[test]
#[should_panic(expected = "only what was handed on can be entered")]
fn what_was_not_handed_on_is_not_entered() {
    let mut queue = queue();
    post(&mut queue);
    let _ = queue.keep_start(5);
}

#[test]
fn nothing_is_posted_when_the_medium_fails() {
    let mut queue = queue();
    post(&mut queue);
    queue.complete(4, 1, MESSAGE).unwrap();
    queue.advance();
    queue.media_mut().budget = Some(0);
    assert!(matches!(queue.keep_start(5), Err(SlotsError::Media(_))));
    assert_eq!(post(&mut queue), [0; 0]);
}
