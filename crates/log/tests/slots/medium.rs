//! A medium that loses stores in a crash. If a line was stored to and is not durable, a crash leaves its old words, its
//! new words, or a mixture.

use std::ops::Range;
use std::os::fd::RawFd;

use pmnet_log::{Media, MediaError};

pub const LINE: usize = 64;

#[derive(Clone, Debug)]
pub struct Medium {
    seen: Vec<u8>,
    durable: Vec<u8>,
    flight: Option<Vec<(usize, Vec<u8>)>>,
    /// Number of persists that still succeed; `None`: all.
    pub budget: Option<u32>,
}

impl Medium {
    pub fn holding(image: Vec<u8>) -> Medium {
        Medium {
            durable: image.clone(),
            seen: image,
            flight: None,
            budget: None,
        }
    }

    /// Makes the visible contents of these bytes durable.
    pub fn drain(&mut self, range: Range<usize>) {
        self.durable[range.clone()].copy_from_slice(&self.seen[range]);
    }

    fn dirty(&self) -> Vec<usize> {
        let lines = self.seen.chunks(LINE).zip(self.durable.chunks(LINE));
        lines
            .enumerate()
            .filter(|(_, (seen, durable))| seen != durable)
            .map(|(line, _)| line * LINE)
            .collect()
    }

    /// Returns the images that a crash may leave: all combinations of lines with old and new content; and each line
    /// torn in its middle, once with all other lines old, and once with all other lines new.
    pub fn images(&self) -> Vec<Vec<u8>> {
        let dirty = self.dirty();
        assert!(dirty.len() <= 10, "a test with few open messages");
        let mut images = Vec::new();
        for choice in 0..1_usize << dirty.len() {
            let mut image = self.durable.clone();
            for (bit, at) in dirty.iter().enumerate() {
                if choice & 1 << bit != 0 {
                    image[*at..at + LINE].copy_from_slice(&self.seen[*at..at + LINE]);
                }
            }
            images.push(image);
        }
        for at in &dirty {
            for others in [&self.durable, &self.seen] {
                for half in [0..LINE / 2, LINE / 2..LINE] {
                    let mut image = others.clone();
                    image[*at..at + LINE].copy_from_slice(&self.durable[*at..at + LINE]);
                    let new = at + half.start..at + half.end;
                    image[new.clone()].copy_from_slice(&self.seen[new]);
                    images.push(image);
                }
            }
        }
        images
    }

    pub fn into_image(self) -> Vec<u8> {
        self.seen
    }
}

impl Media for Medium {
    fn bytes(&self) -> &[u8] {
        &self.seen
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) {
        self.seen[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn persist_start(&mut self, ranges: &[Range<usize>]) -> Result<(), MediaError> {
        assert!(self.flight.is_none(), "one persist at a time");
        if let Some(left) = &mut self.budget {
            *left = left.checked_sub(1).ok_or(MediaError::Failed)?;
        }
        for range in ranges {
            assert!(range.start.is_multiple_of(LINE) && range.end.is_multiple_of(LINE));
        }
        let contents = |range: &Range<usize>| (range.start, self.seen[range.clone()].to_vec());
        self.flight = Some(ranges.iter().map(contents).collect());
        Ok(())
    }

    fn persist_poll(&mut self, wait: bool) -> Result<bool, MediaError> {
        if wait {
            for (at, bytes) in self.flight.take().unwrap_or_default() {
                self.durable[at..at + bytes.len()].copy_from_slice(&bytes);
            }
        }
        Ok(self.flight.is_none())
    }

    fn wakeup_fd(&self) -> Option<RawFd> {
        None
    }

    fn survives(&self) -> &'static str {
        "what the test lets it survive"
    }

    fn name(&self) -> &'static str {
        "test"
    }
}
