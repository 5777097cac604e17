//! Records the lines that a persist flushes.

use std::collections::BTreeSet;
use std::ops::Range;

use pmnet_media::flush::{Flush, LINE, persist};

#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Line(usize),
    Fence,
}

#[derive(Default)]
struct Tape(Vec<Asked>);

impl Flush for Tape {
    fn line(&mut self, offset: usize) {
        self.0.push(Asked::Line(offset));
    }

    fn fence(&mut self) {
        self.0.push(Asked::Fence);
    }
}

fn asked(ranges: &[Range<usize>]) -> Vec<Asked> {
    let mut tape = Tape::default();
    persist(ranges, &mut tape);
    tape.0
}

#[test]
fn every_line_that_a_range_touches_and_then_one_fence() {
    for (ranges, expected) in [
        (&[][..], &[][..]),
        (&[(64, 64)], &[]),
        (&[(0, 1)], &[0]),
        (&[(0, 64)], &[0]),
        (&[(63, 65)], &[0, 64]),
        (&[(64, 192), (4096, 4097)], &[64, 128, 4096]),
        // Neighbouring ranges share a line.
        (&[(0, 70), (100, 128), (128, 130)], &[0, 64, 128]),
    ] {
        let ranges: Vec<Range<usize>> = ranges.iter().map(|(start, end)| *start..*end).collect();
        let lines = expected.iter().map(|offset| Asked::Line(*offset));
        let expected: Vec<Asked> = lines.chain([Asked::Fence]).collect();
        assert_eq!(asked(&ranges), expected, "{ranges:?}");
    }
}

/// For generated ranges, exactly their lines are flushed, and one fence follows.
#[test]
fn no_line_is_left_out_and_none_is_added() {
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(state >> 33).unwrap() % below
    };
    for _ in 0..20_000 {
        let ranges: Vec<Range<usize>> = (0..random(6))
            .map(|_| {
                let start = random(10_000);
                start..start + random(1000)
            })
            .collect();
        let expected: BTreeSet<usize> = ranges
            .iter()
            .flat_map(|range| range.clone().map(|at| at / LINE * LINE))
            .collect();
        let mut asked = asked(&ranges);
        assert_eq!(asked.pop(), Some(Asked::Fence));
        let flushed: BTreeSet<usize> = asked
            .iter()
            .map(|one| match one {
                Asked::Line(offset) => *offset,
                Asked::Fence => panic!("a fence before the last line: {ranges:?}"),
            })
            .collect();
        assert_eq!(flushed, expected, "{ranges:?}");
    }
}
