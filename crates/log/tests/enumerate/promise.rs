//! The promises on which the users of a log rely, and the check of a recovered log against them.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use pmnet_log::{Entry, Log, LogError, Media, NewEntry};

use crate::medium::{LINE, State};
use crate::support::IDENTITY;

/// First line of the metadata ring.
pub const METADATA_LINE: usize = 128;

/// One frame as it was appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    pub new: NewEntry,
    pub frame: Vec<u8>,
    pub header_len: usize,
    pub epoch: u32,
    pub incarnation: u32,
    /// Durable order of the log when the frame was appended, as its entry states.
    pub durable: u64,
    /// Highest reclaimed order when the frame was appended, as its entry states.
    pub applied: u64,
}

/// Whether a log exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Made {
    No,
    Begun,
    Yes,
}

/// The numbers of a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Facts {
    pub made: Made,
    /// Number of changes of [`Promise::contents`] so far. So two promises with equal facts have equal contents.
    pub contents: u64,
    /// All orders up to this order were reported durable.
    pub promised: u64,
    /// The last order that the caller reclaimed, together with all earlier orders.
    pub applied: u64,
    /// All orders up to this order were released: their reclaim is durable.
    pub released: u64,
    /// Highest order whose append was begun.
    pub last: u64,
    /// Epoch that is durable.
    pub epoch: u32,
    /// Epoch that is being set; if none is being set, the durable epoch.
    pub epoch_tried: u32,
    /// Highest incarnation that a log has had.
    pub incarnation: u32,
    /// The incarnation that was marked to serve.
    pub served: u32,
    /// Number of resets that took effect.
    pub era: u32,
    /// Order of a reset that is under way.
    pub resetting: Option<u64>,
    /// Both superblocks state that all orders up to this order were durable.
    pub stated: u64,
}

/// All that a recovered log must keep: the facts, and the contents of its entries.
#[derive(Clone, Debug)]
pub struct Promise {
    pub facts: Facts,
    pub contents: Arc<BTreeMap<u64, Content>>,
}

impl Promise {
    /// Returns the promise before a log was made.
    pub fn none() -> Promise {
        let facts = Facts {
            made: Made::No,
            contents: 0,
            promised: 0,
            applied: 0,
            released: 0,
            last: 0,
            epoch: 0,
            epoch_tried: 0,
            incarnation: 0,
            served: 0,
            era: 0,
            resetting: None,
            stated: 0,
        };
        Promise {
            facts,
            contents: Arc::default(),
        }
    }

    /// Returns the key of a promise. Two promises of one script with the same key are equal.
    pub fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.facts.hash(&mut hasher);
        hasher.finish()
    }

    pub fn insert(&mut self, order: u64, content: Content) {
        Arc::make_mut(&mut self.contents).insert(order, content);
        self.facts.contents += 1;
    }

    /// Notes that a reset to `target` took effect: all entries are gone.
    pub fn reset(&mut self, target: u64) {
        self.contents = Arc::default();
        let facts = &mut self.facts;
        facts.contents += 1;
        facts.era += 1;
        facts.resetting = None;
        (facts.promised, facts.applied, facts.released) = (target, target, target);
        (facts.last, facts.stated) = (target, target);
    }

    /// Notes that a log was opened from an image. From now on the log's entries are promised.
    pub fn adopt<M: Media>(&mut self, log: &Log<M>) {
        if let Some(target) = self.facts.resetting.take()
            && (log.applied(), log.last()) == (target, target)
        {
            self.reset(target);
        }
        Arc::make_mut(&mut self.contents).split_off(&(log.last() + 1));
        let facts = &mut self.facts;
        facts.contents += 1;
        facts.made = Made::Yes;
        (facts.promised, facts.last, facts.stated) = (log.last(), log.last(), log.last());
        facts.released = log.applied();
        (facts.epoch, facts.epoch_tried) = (log.epoch(), log.epoch());
        facts.incarnation = log.incarnation();
    }

    /// Returns whether this error is allowed for an image.
    pub fn may_refuse(&self, error: &LogError) -> bool {
        self.facts.made != Made::Yes
            && matches!(error, LogError::Blank | LogError::InterruptedFormat)
    }

    /// Checks that a repaired log keeps every promise and invents nothing.
    pub fn check<M: Media>(&self, log: &Log<M>) -> Result<(), String> {
        let facts = &self.facts;
        let want = |holds: bool, what: &str| {
            if holds {
                return Ok(());
            }
            Err(format!(
                "{what}: applied {}, last {}, epoch {}, incarnation {} came back, promised was {facts:?}",
                log.applied(),
                log.last(),
                log.epoch(),
                log.incarnation()
            ))
        };
        want(facts.made != Made::No, "a log where none was made")?;
        want(*log.identity() == IDENTITY, "another log's identity")?;
        want(
            log.incarnation() > facts.incarnation,
            "the incarnation was not raised",
        )?;
        want(
            log.served() >= facts.served,
            "the mark to serve was forgotten",
        )?;
        want(
            (facts.epoch..=facts.epoch_tried).contains(&log.epoch()),
            "an epoch that was never in force, or a lower one",
        )?;
        want(log.durable() == log.last(), "kept and not durable")?;
        if facts
            .resetting
            .is_some_and(|to| (log.applied(), log.last()) == (to, to))
        {
            return Ok(());
        }
        want(log.last() >= facts.promised, "a durable order is lost")?;
        want(log.last() <= facts.last, "an order was invented")?;
        want(
            log.applied() <= facts.applied,
            "orders count as reclaimed that were not",
        )?;
        want(
            log.applied() >= facts.released,
            "released orders have come back",
        )?;
        for order in log.applied() + 1..=log.last() {
            let content = self
                .contents
                .get(&order)
                .ok_or_else(|| format!("order {order} was never appended, {facts:?}"))?;
            let entry = log
                .entry(order)
                .ok_or_else(|| format!("order {order} has no entry"))?;
            if log.frame(order) != Some(&content.frame[..]) || !says(&entry, order, content) {
                return Err(format!(
                    "order {order} came back as {entry:?}, appended was {content:?}, {facts:?}"
                ));
            }
        }
        erased(log.medium().bytes(), log)
    }

    /// Checks that a repaired log is settled on the medium: superblocks, metadata ring, kept frames.
    pub fn settled<M: Media>(&self, log: &Log<M>, left: &State) -> Result<(), String> {
        let metadata_end = METADATA_LINE + usize::try_from(log.parameters().entries).unwrap();
        let kept: Vec<_> = (log.applied() + 1..=log.last())
            .map(|order| frame_lines(log.medium().bytes(), log.parameters().entries, order))
            .collect();
        for line in left.dirty_lines() {
            if line < metadata_end || kept.iter().any(|lines| lines.contains(&line)) {
                return Err(format!(
                    "line {line} is not durable after the repair: {:?}",
                    self.facts
                ));
            }
        }
        Ok(())
    }
}

fn says(entry: &Entry, order: u64, content: &Content) -> bool {
    let new = NewEntry {
        session: entry.session,
        seq: entry.seq,
        kind: entry.kind,
        fragment_index: entry.fragment_index,
        fragment_count: entry.fragment_count,
    };
    entry.order == order
        && new == content.new
        && usize::from(entry.header_len) == content.header_len
        && (entry.epoch, entry.incarnation) == (content.epoch, content.incarnation)
        && (entry.durable, entry.applied) == (content.durable, content.applied)
}

/// Returns the lines of the frame of `order`, as its entry in `image` states them (ordered-log.md §5).
pub fn frame_lines(image: &[u8], entries: u64, order: u64) -> std::ops::Range<usize> {
    let slot = slot_line(entries, order) * LINE;
    let field = |at: usize| {
        let bytes = image[slot + at..slot + at + 4].try_into().unwrap();
        usize::try_from(u32::from_le_bytes(bytes)).unwrap()
    };
    let skew = usize::from(image[slot + 59]);
    let first = METADATA_LINE + usize::try_from(entries).unwrap() + field(32);
    first..first + (skew + field(36)).div_ceil(LINE)
}

/// Returns the line of the slot of `order`.
pub fn slot_line(entries: u64, order: u64) -> usize {
    METADATA_LINE + usize::try_from(order % entries).unwrap()
}

/// Checks that every slot that is not kept is zero.
fn erased<M: Media>(image: &[u8], log: &Log<M>) -> Result<(), String> {
    let entries = log.parameters().entries;
    for order in log.last() + 1..=log.applied() + entries {
        let at = slot_line(entries, order) * LINE;
        if image[at..at + LINE] != [0; LINE] {
            return Err(format!("the slot of order {order} is not erased"));
        }
    }
    Ok(())
}
