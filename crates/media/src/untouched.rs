//! Blocks of a file that were never written: their space is reserved, and they are durably zero.
//!
//! The first write to such a block changes metadata of the file system, and is therefore slow. So before that, the
//! whole piece around the block is filled with zeros, once. A block that was never written needs no write as long as it
//! is zero in the image.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use memmap2::MmapMut;

use crate::image::{BLOCK, PIECE, offset};

/// Keeps track of the untouched blocks of one file.
#[derive(Debug)]
pub(crate) struct Untouched {
    /// For each block, whether it is untouched.
    blocks: Vec<bool>,
    left: usize,
    /// Zeros that begin at a page. No code writes to them, so they take no memory.
    zeros: MmapMut,
}

impl Untouched {
    /// Returns the untouched blocks of an image of `bytes` bytes: those that lie outside of all parts in `written`.
    pub fn new(bytes: usize, written: &[Range<usize>]) -> io::Result<Untouched> {
        let mut blocks = vec![true; bytes / BLOCK];
        for part in written {
            let end = part.end.div_ceil(BLOCK).min(blocks.len());
            blocks[part.start / BLOCK..end].fill(false);
        }
        let left = blocks.iter().filter(|untouched| **untouched).count();
        let zeros = MmapMut::map_anon(PIECE)?;
        Ok(Untouched {
            blocks,
            left,
            zeros,
        })
    }

    /// Removes from `ranges` (whole blocks) all blocks that were never written and are zero. Prepares the other blocks
    /// for a write.
    pub fn settle(
        &mut self,
        file: &File,
        ranges: &mut Vec<Range<usize>>,
        is_zero: impl Fn(Range<usize>) -> bool,
    ) -> io::Result<()> {
        let touches = |range: &Range<usize>| {
            self.blocks[range.start / BLOCK..range.end / BLOCK].contains(&true)
        };
        if self.left == 0 || !ranges.iter().any(touches) {
            return Ok(());
        }
        for range in std::mem::take(ranges) {
            for at in range.step_by(BLOCK) {
                let block = at..at + BLOCK;
                if self.blocks[at / BLOCK] {
                    if is_zero(block.clone()) {
                        continue;
                    }
                    self.fill(file, at)?;
                }
                match ranges.last_mut() {
                    Some(last) if last.end == at => last.end = block.end,
                    _ => ranges.push(block),
                }
            }
        }
        Ok(())
    }

    /// Writes zeros to the untouched blocks of the piece around offset `at`.
    fn fill(&mut self, file: &File, at: usize) -> io::Result<()> {
        let piece = at / PIECE * PIECE / BLOCK;
        let end = (piece + PIECE / BLOCK).min(self.blocks.len());
        let mut first = piece;
        while first < end {
            if !self.blocks[first] {
                first += 1;
                continue;
            }
            let run = self.blocks[first..end].iter().take_while(|is| **is).count();
            let len = run * BLOCK;
            file.write_all_at(&self.zeros[..len], offset(first * BLOCK))?;
            self.blocks[first..first + run].fill(false);
            self.left -= run;
            first += run;
        }
        Ok(())
    }
}
