//! Faults beyond a crash: a line that reads as garbage, or an old superblock.
//!
//! Such a fault may make the log unusable, but it must be noticed. Either the image is refused and left unchanged, or
//! all orders that a witness still states as durable are present, exactly as they were appended
//! (`docs/spec/recovery.md` §1, §4).

use pmnet_log::{BLOCK_BYTES, Decision, Finding, LogError, Scan};

use crate::explore::Counts;
use crate::images::Effort;
use crate::medium::{LINE, Line, Recorder, State, line_of};
use crate::promise::{METADATA_LINE, Made, Promise, frame_lines, slot_line};
use crate::support::{EXPECTED, Random};

/// For each of the two copies, the superblocks that have been durable on the medium so far.
pub struct History([Vec<Vec<u8>>; 2]);

impl History {
    pub fn new(state: &State) -> History {
        let mut history = History([Vec::new(), Vec::new()]);
        history.note(state);
        history
    }

    /// Notes superblocks that have become durable.
    pub fn note(&mut self, state: &State) {
        let dirty = state.dirty_lines();
        for (copy, known) in self.0.iter_mut().enumerate() {
            let lines = copy * METADATA_LINE / 2..(copy + 1) * METADATA_LINE / 2;
            if dirty.iter().any(|line| lines.contains(line)) {
                continue;
            }
            let newest = known.last().map_or(&[][..], |block| &block[..2 * LINE]);
            let start = [state.seen(lines.start), state.seen(lines.start + 1)].concat();
            if newest != start {
                known.push(state.image(&[])[lines.start * LINE..lines.end * LINE].to_vec());
            }
        }
    }
}

/// Tries the faults on three images: all lines have their oldest content, all have their newest content, or each has a
/// random one.
pub fn visit(
    state: &State,
    promise: &Promise,
    history: &History,
    effort: &Effort,
    counts: &mut Counts,
) -> Result<(), String> {
    if promise.facts.made != Made::Yes {
        return Ok(());
    }
    let mut random = Random(state.full_hash() ^ promise.key());
    let some: Vec<(usize, Line)> = state
        .dirty_lines()
        .into_iter()
        .map(|line| {
            let possible = state.possible(line);
            (line, possible[random.index(possible.len())])
        })
        .collect();
    let mut images = vec![state.image(&[])];
    if !some.is_empty() {
        images.extend([state.visible(), state.image(&some)]);
    }
    for image in images {
        for line in 0..image.len() / LINE {
            if random.below(effort.poison_one_of) == 0 {
                poison(&image, line, promise, &mut random, counts)
                    .map_err(|why| format!("line {line} poisoned: {why}"))?;
            }
        }
        set_back(&image, promise, history, effort, &mut random, counts)?;
    }
    Ok(())
}

fn poison(
    image: &[u8],
    line: usize,
    promise: &Promise,
    random: &mut Random,
    counts: &mut Counts,
) -> Result<(), String> {
    let before = line_of(image, line);
    let free = before == [0; LINE] && line >= METADATA_LINE;
    let mut flipped = before;
    flipped[random.index(LINE)] ^= 1 << random.below(8);
    let garbage: Line = random.bytes(LINE).try_into().expect("a line");
    for bytes in [garbage, flipped, [0; LINE]] {
        if bytes == before {
            continue;
        }
        let mut bad = image.to_vec();
        bad[line * LINE..][..LINE].copy_from_slice(&bytes);
        let mut weaker = promise.clone();
        if !free {
            weaker.facts.promised = witnessed(image, line, promise);
        }
        counts.poisoned += 1;
        match recovered(bad, &weaker)? {
            None => {}
            Some(error) if free => return Err(format!("free space, and refused: {error}")),
            Some(_) => counts.poisoned_refused += 1,
        }
    }
    Ok(())
}

/// Returns the highest order that is proven to be durable without `line`: by an entry that has no byte in `line`, or by
/// both superblocks.
fn witnessed(image: &[u8], line: usize, promise: &Promise) -> u64 {
    let facts = &promise.facts;
    let entries = crate::drive::ENTRIES;
    promise
        .contents
        .range(facts.applied + 1..facts.promised.saturating_add(1).max(facts.applied + 1))
        .filter(|(order, _)| {
            slot_line(entries, **order) != line
                && !frame_lines(image, entries, **order).contains(&line)
        })
        .map(|(_, content)| content.durable)
        .fold(facts.stated, u64::max)
}

/// Recovers the image. Returns `None` if the promise is kept, or `Some` if the image was refused and nothing changed.
pub fn recovered(image: Vec<u8>, promise: &Promise) -> Result<Option<LogError>, String> {
    let mut medium = Recorder::new(image, None);
    let repaired = Scan::open(&mut medium, Some(EXPECTED)).and_then(|scan| {
        let decision = scan.decide();
        scan.repair(decision)
    });
    let checked = repaired.map(|log| promise.check(&log));
    match checked {
        Ok(kept) => kept.map(|()| None),
        Err(error) if medium.stores == 0 => Ok(Some(error)),
        Err(error) => Err(format!("refused after it had changed something: {error}")),
    }
}

/// Replaces superblocks by old superblocks: first each copy alone, then both copies.
fn set_back(
    image: &[u8],
    promise: &Promise,
    history: &History,
    effort: &Effort,
    random: &mut Random,
    counts: &mut Counts,
) -> Result<(), String> {
    let number =
        |block: &[u8], at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap());
    let counter = |block: &[u8]| number(block, 16);
    let present = |copy: usize| &image[copy * BLOCK_BYTES..][..BLOCK_BYTES];
    let mut weaker = promise.clone();
    // The replaced copy may have been the only proof that the newest burst was durable.
    weaker.facts.promised = witnessed(image, usize::MAX, promise);
    // If one copy was being written when the crash came, it cannot reveal that the other copy is old.
    let both_valid = Scan::open(Recorder::new(image.to_vec(), None), None).is_ok_and(|scan| {
        let findings = &scan.report().findings;
        !findings
            .iter()
            .any(|finding| matches!(finding, Finding::Superblock { .. }))
    });
    if !both_valid {
        return Ok(());
    }
    for copy in 0..2 {
        for old in &history.0[copy] {
            let other = present(1 - copy);
            if old == present(copy)
                || old[..8] != other[..8]
                || random.below(effort.poison_one_of) != 0
            {
                continue;
            }
            let mut bad = image.to_vec();
            bad[copy * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(old);
            counts.set_back += 1;
            match recovered(bad, &weaker).map_err(|why| format!("copy {copy} set back: {why}"))? {
                None if counter(old).abs_diff(counter(other)) != 1 => {
                    return Err(format!("copy {copy} set back, and not noticed"));
                }
                None => {}
                Some(_) => counts.set_back_refused += 1,
            }
        }
    }
    // Two old copies must be noticed if a live entry of the same era has a later epoch or incarnation.
    for (first, second) in history.0[0].iter().zip(&history.0[1]) {
        let newer = if counter(first) > counter(second) {
            first
        } else {
            second
        };
        let field = |at: usize| u32::from_le_bytes(newer[at..at + 4].try_into().unwrap());
        let later = promise
            .contents
            .range(promise.facts.applied + 1..)
            .take_while(|(order, _)| **order <= promise.facts.promised)
            .any(|(_, content)| content.epoch > field(64) || content.incarnation > field(68));
        if !later || field(72) != promise.facts.era || promise.facts.resetting.is_some() {
            continue;
        }
        let mut bad = image.to_vec();
        bad[..BLOCK_BYTES].copy_from_slice(first);
        bad[BLOCK_BYTES..2 * BLOCK_BYTES].copy_from_slice(second);
        counts.set_back += 1;
        let Ok(scan) = Scan::open(Recorder::new(bad, None), Some(EXPECTED)) else {
            counts.set_back_refused += 1;
            continue;
        };
        match scan.decide() {
            Decision::Keep { .. } => {
                return Err("both superblocks set back, and not noticed".into());
            }
            _ => counts.set_back_refused += 1,
        }
    }
    Ok(())
}
