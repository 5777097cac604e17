//! Which session is in which row of the map of sessions.
//!
//! A session is put into the row that has the lowest bits of its id for a number, where the pipeline looks
//! first, and into any other if that one is taken; then the pipeline looks for its number.

use std::collections::HashMap;

/// The rows of one map.
#[derive(Debug)]
pub struct Rows {
    of: HashMap<u64, u32, rustc_hash::FxBuildHasher>,
    /// By row.
    state: Vec<State>,
    /// Rows to be given out, the next one last; those that were taken by their number are still in it.
    stack: Vec<u32>,
    mask: u32,
}

#[derive(Clone, Copy, Debug)]
struct State {
    taken: bool,
    /// In the stack: once, so that it has a bound.
    stacked: bool,
}

/// Lowest bits of an id that say where its session's row should be, for a map of so many rows.
pub fn mask(rows_max: u32) -> u32 {
    (1 << rows_max.max(1).ilog2()) - 1
}

impl Rows {
    /// All of `rows_max` rows are free; `mask` is the pipeline's.
    pub fn new(rows_max: u32, mask: u32) -> Rows {
        let free = State {
            taken: false,
            stacked: true,
        };
        Rows {
            of: HashMap::default(),
            state: (0..rows_max).map(|_| free).collect(),
            stack: (0..rows_max).rev().collect(),
            mask,
        }
    }

    /// The session's row.
    pub fn get(&self, id: u64) -> Option<u32> {
        self.of.get(&id).copied()
    }

    /// A row for a session that has none; `None`: all are taken.
    pub fn take(&mut self, id: u64) -> Option<u32> {
        let low = u32::try_from(id & u64::from(self.mask)).expect("a mask of 32 bits");
        let row = if self.at(low).is_some_and(|state| !state.taken) {
            low
        } else {
            self.pop()?
        };
        self.at(row)?.taken = true;
        self.of.insert(id, row);
        Some(row)
    }

    fn pop(&mut self) -> Option<u32> {
        while let Some(row) = self.stack.pop() {
            let state = self.at(row)?;
            state.stacked = false;
            if !state.taken {
                return Some(row);
            }
        }
        None
    }

    fn at(&mut self, row: u32) -> Option<&mut State> {
        self.state.get_mut(usize::try_from(row).ok()?)
    }

    /// The session is gone: the row that it had.
    pub fn give_back(&mut self, id: u64) -> Option<u32> {
        let row = self.of.remove(&id)?;
        let state = self.at(row)?;
        state.taken = false;
        if !state.stacked {
            state.stacked = true;
            self.stack.push(row);
        }
        Some(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_fits_the_map() {
        for (rows, expected) in [(1, 0), (2, 1), (3, 1), (64, 63), (65, 63), (65_536, 65_535)] {
            assert_eq!(mask(rows), expected, "{rows}");
        }
    }

    #[test]
    fn a_session_is_where_its_id_says_or_anywhere() {
        let mut rows = Rows::new(5, mask(5));
        assert_eq!(rows.take(7), Some(3));
        assert_eq!(rows.take(11), Some(0), "3 is taken: the first that is free");
        assert_eq!(rows.take(2), Some(2));
        assert_eq!(rows.take(15), Some(1), "2 is in the stack, and passed over");
        assert_eq!(rows.take(19), Some(4), "beyond the mask");
        assert_eq!(rows.take(23), None);
        assert_eq!((rows.get(15), rows.get(23)), (Some(1), None));
        assert_eq!((rows.give_back(23), rows.give_back(7)), (None, Some(3)));
        assert_eq!(rows.take(23), Some(3));
    }

    #[test]
    fn rows_are_given_out_once_however_often_they_come_back() {
        let mut rows = Rows::new(4, mask(4));
        for id in 0..1000 {
            assert!(rows.take(id).is_some());
            if id >= 3 {
                assert!(rows.give_back(id - 3 + id % 3).is_some() || id % 3 > 0);
            }
            let mut taken: Vec<u32> = rows.of.values().copied().collect();
            taken.sort_unstable();
            taken.dedup();
            assert_eq!(taken.len(), rows.of.len());
            assert!(rows.stack.len() <= 4);
            if rows.of.len() == 4 {
                assert_eq!(rows.take(u64::MAX), None);
                let first = *rows.of.keys().min().unwrap();
                rows.give_back(first);
            }
        }
    }
}
