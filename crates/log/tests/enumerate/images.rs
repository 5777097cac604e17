//! The images that a crash can leave at one moment.

use crate::medium::{LINE, Line, State};
use crate::support::Random;

/// If there are at most this number of dirty lines, every combination of their contents is tried, without a limit.
pub const LINES_EXHAUSTIVE: usize = 4;

/// The lines of an image that differ from the image of all oldest contents.
pub type Lines = Vec<(usize, Line)>;
/// A function that is called with each image.
pub type Visit<'a> = dyn FnMut(Kind, &[(usize, Line)]) + 'a;

/// How an image was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Every line has the content after one of its stores.
    Whole,
    /// Every line has the content after one of its stores. There are too many such images to try all, so this is a
    /// sample.
    Sample,
    /// One line holds words of different ages.
    Torn,
}

/// Limits of a test run.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Maximum number of images of whole lines at a moment; if there are more, samples are tried.
    pub combinations: usize,
    /// Number of random samples, in addition to the images with only oldest and only newest contents.
    pub samples: usize,
    /// Maximum number of combinations of words of one torn line; if there are more, this many samples are tried.
    pub torn: usize,
    /// Maximum number of lines that are torn at a moment, one at a time; if there are more, this many of them are torn.
    pub torn_lines: usize,
    /// Number of deaths of the process that are tried at each moment. After the first, every store is visible; after
    /// the others, only some.
    pub kills: u32,
    /// One in this number of recoveries is crashed again. The four numbers are for recoveries from a whole image, from
    /// a sample, from a torn image, and from an image of a recovery.
    pub again: [u64; 4],
    /// At each moment one in this number of lines is poisoned.
    pub poison_one_of: u64,
    /// `combinations`, `samples`, `torn` and `torn_lines` at the moments of a recovery.
    pub nested: [usize; 4],
}

impl Effort {
    /// Returns the limits for a level of recoveries. At a moment of a recovery fewer images are tried than at a moment
    /// of a script.
    pub fn at(&self, level: usize) -> Effort {
        let [combinations, samples, torn, torn_lines] = self.nested;
        match level {
            0 => *self,
            _ => Effort {
                combinations,
                samples,
                torn,
                torn_lines,
                kills: self.kills.min(1),
                ..*self
            },
        }
    }

    /// Returns whether the recovery from an image is crashed again.
    pub fn again(&self, level: usize, kind: Kind, key: u64) -> bool {
        let one_of = match (level, kind) {
            (0, Kind::Whole) => self.again[0],
            (0, Kind::Sample) => self.again[1],
            (0, Kind::Torn) => self.again[2],
            (1, _) => self.again[3],
            _ => return false,
        };
        (key >> 11).is_multiple_of(one_of)
    }
}

/// Calls `visit` with the contents of the dirty lines of every image. `torn`: the lines that have got further contents
/// since the last call, and so give new torn images. Returns false if there were too many images to visit all.
pub fn images(
    state: &State,
    torn: &[usize],
    effort: &Effort,
    seed: u64,
    visit: &mut Visit<'_>,
) -> bool {
    let lines: Vec<(usize, Vec<Line>)> = state
        .dirty_lines()
        .into_iter()
        .map(|line| (line, state.possible(line)))
        .collect();
    let mut random = Random(seed);
    let whole = whole_lines(&lines, effort, &mut random, visit);
    let mut all = whole && torn.len() <= effort.torn_lines;
    let first = random.index(torn.len().max(1));
    for line in torn
        .iter()
        .cycle()
        .skip(first)
        .take(effort.torn_lines.min(torn.len()))
    {
        if let Some(at) = lines.iter().position(|(dirty, _)| dirty == line) {
            all &= torn_line(&lines, at, effort, &mut random, visit);
        }
    }
    all
}

fn whole_lines(
    lines: &[(usize, Vec<Line>)],
    effort: &Effort,
    random: &mut Random,
    visit: &mut Visit<'_>,
) -> bool {
    let total = lines
        .iter()
        .try_fold(1usize, |total, (_, possible)| {
            total.checked_mul(possible.len())
        })
        .unwrap_or(usize::MAX);
    let pick = |choose: &mut dyn FnMut(usize, usize) -> usize| -> Lines {
        lines
            .iter()
            .enumerate()
            .map(|(at, (line, possible))| (*line, possible[choose(at, possible.len())]))
            .collect()
    };
    if lines.len() <= LINES_EXHAUSTIVE || total <= effort.combinations {
        for index in 0..total {
            let mut rest = index;
            let image = pick(&mut |_, count| {
                let choice = rest % count;
                rest /= count;
                choice
            });
            visit(Kind::Whole, &image);
        }
        return true;
    }
    visit(Kind::Whole, &pick(&mut |_, _| 0));
    visit(Kind::Whole, &pick(&mut |_, count| count - 1));
    // One line is new and all others are old, or one line is old and all others are new.
    for _ in 0..effort.samples.min(lines.len()) {
        let alone = random.index(lines.len());
        let newest = |at: usize, count: usize| if at == alone { count - 1 } else { 0 };
        visit(Kind::Sample, &pick(&mut |at, count| newest(at, count)));
        visit(
            Kind::Sample,
            &pick(&mut |at, count| count - 1 - newest(at, count)),
        );
    }
    for _ in 0..effort.samples {
        visit(Kind::Sample, &pick(&mut |_, count| random.index(count)));
    }
    false
}

/// Visits images in which the words of one line have different ages. All other lines are old, and then all other lines
/// are new.
fn torn_line(
    lines: &[(usize, Vec<Line>)],
    at: usize,
    effort: &Effort,
    random: &mut Random,
    visit: &mut Visit<'_>,
) -> bool {
    let words: Vec<Vec<[u8; 8]>> = (0..LINE / 8)
        .map(|word| {
            let mut values: Vec<[u8; 8]> = Vec::new();
            for version in &lines[at].1 {
                let value = version.as_chunks::<8>().0[word];
                if !values.contains(&value) {
                    values.push(value);
                }
            }
            values
        })
        .collect();
    let total: usize = words.iter().map(Vec::len).product();
    let exhaustive = total <= effort.torn;
    for index in 0..total.min(effort.torn) {
        let mut rest = if exhaustive {
            index
        } else {
            random.index(total)
        };
        let mut torn = [0; LINE];
        for (values, place) in words.iter().zip(torn.as_chunks_mut::<8>().0) {
            *place = values[rest % values.len()];
            rest /= values.len();
        }
        for newest in [false, true] {
            let image: Lines = lines
                .iter()
                .enumerate()
                .map(|(index, (line, possible))| match index == at {
                    true => (*line, torn),
                    false => (*line, possible[if newest { possible.len() - 1 } else { 0 }]),
                })
                .collect();
            visit(Kind::Torn, &image);
        }
    }
    exhaustive
}
