//! Output that waits to be written to a client. The output is a list of pieces. A backlog takes only the memory of its
//! pieces. If bytes are taken from its head, no other bytes are moved.

use std::collections::VecDeque;

/// Size of a piece, in bytes.
const PIECE_BYTES: usize = 64 * 1024;
/// An empty backlog keeps memory for at most this many entries of the list of pieces.
const KEPT_PLACES_MAX: usize = 64;

#[derive(Default)]
pub(super) struct Output {
    /// The pieces, oldest first. Only the last piece may have free space. No piece is empty, unless it is the only
    /// piece.
    pieces: VecDeque<Vec<u8>>,
    /// Bytes of the first piece that are already written.
    written: usize,
    /// Bytes that are not written yet.
    len: usize,
}

impl Output {
    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        self.len += bytes.len();
        while !bytes.is_empty() {
            let room = |piece: &Vec<u8>| PIECE_BYTES.saturating_sub(piece.len());
            let rest = if let Some(last) = self.pieces.back_mut().filter(|last| room(last) > 0) {
                let (fits, rest) = bytes.split_at(room(last).min(bytes.len()));
                last.extend_from_slice(fits);
                rest
            } else {
                let (fits, rest) = bytes.split_at(PIECE_BYTES.min(bytes.len()));
                // The first piece grows with its contents. A later piece gets its whole size at once, because more
                // bytes will follow.
                let mut piece = if self.pieces.is_empty() {
                    Vec::new()
                } else {
                    Vec::with_capacity(PIECE_BYTES)
                };
                piece.extend_from_slice(fits);
                self.pieces.push_back(piece);
                rest
            };
            bytes = rest;
        }
    }

    /// Returns the bytes to be written first; empty if there are none.
    pub(super) fn head(&self) -> &[u8] {
        self.pieces
            .front()
            .map(|piece| &piece[self.written..])
            .unwrap_or_default()
    }

    /// Notes that `count` bytes of the head were written.
    pub(super) fn wrote(&mut self, count: usize) {
        let Some(first) = self.pieces.front_mut() else {
            return;
        };
        let count = count.min(first.len() - self.written);
        self.written += count;
        self.len -= count;
        if self.written < first.len() {
            return;
        }
        self.written = 0;
        if self.len > 0 {
            self.pieces.pop_front();
            return;
        }
        first.clear();
        if self.pieces.capacity() > KEPT_PLACES_MAX {
            self.pieces.shrink_to(KEPT_PLACES_MAX);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pushed_comes_out_in_its_order_whatever_the_sizes() {
        let mut output = Output::default();
        let (mut pushed, mut taken) = (Vec::new(), Vec::new());
        let sizes = [0, 1, 100, PIECE_BYTES - 101, 1, 3 * PIECE_BYTES + 7, 5000];
        for (round, size) in sizes.iter().cycle().take(70).enumerate() {
            let bytes: Vec<u8> = (0..*size).map(|at| (at * 7 + round) as u8).collect();
            output.push(&bytes);
            pushed.extend_from_slice(&bytes);
            // Most rounds write a part; every tenth round writes everything.
            let mut budget = if round % 10 == 9 {
                usize::MAX
            } else {
                size / 2
            };
            while budget > 0 && !output.head().is_empty() {
                let head = output.head();
                let count = head.len().min(budget).min(40_000);
                taken.extend_from_slice(&head[..count]);
                output.wrote(count);
                budget -= count;
            }
            assert_eq!(output.len(), pushed.len() - taken.len());
        }
        assert_eq!(output.len(), 0);
        assert_eq!(taken, pushed);
    }

    #[test]
    fn an_empty_output_keeps_little() {
        let mut output = Output::default();
        output.push(&vec![b'x'; 1000 * PIECE_BYTES]);
        while output.len() > 0 {
            let count = output.head().len();
            output.wrote(count);
        }
        assert_eq!(output.pieces.len(), 1);
        assert!(output.pieces[0].capacity() <= PIECE_BYTES);
        assert!(output.pieces.capacity() <= 2 * KEPT_PLACES_MAX);
    }
}
