//! The row of each session in the map of sessions.
//!
//! Invariants: a session's preferred row is the number in the lowest bits of its id; the pipeline searches this row
//! first. If the preferred row is taken, the session gets any other row, which the pipeline finds through the index. A
//! row belongs to one session at a time. Spec: `docs/spec/pipeline.md` §3. This module must not touch the map.

use std::collections::HashMap;

/// The rows of one map.
#[derive(Debug)]
pub struct Rows {
    of: HashMap<u64, u32, rustc_hash::FxBuildHasher>,
    /// The state of each row.
    state: Vec<State>,
    /// Rows that may be free. The last row of the list is given out next. Some of these rows are already taken, as the
    /// preferred rows of sessions.
    stack: Vec<u32>,
    /// Mask of the bits of a session's id that are its preferred row.
    mask: u32,
    rows_max: u32,
}

#[derive(Clone, Copy, Debug)]
struct State {
    taken: bool,
    /// The row is in the stack. Such a row is not pushed again, so the stack has each row at most once.
    stacked: bool,
}

/// Returns the mask of the bits of a session's id that are its preferred row, for a map of `rows_max` rows.
pub fn preferred_mask(rows_max: u32) -> u32 {
    (1 << rows_max.max(1).ilog2()) - 1
}

impl Rows {
    /// Returns `rows_max` rows, all of them free. `mask`: the mask with which the pipeline was loaded.
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
            rows_max,
        }
    }

    /// Returns the number of rows of the map.
    pub fn rows_max(&self) -> u32 {
        self.rows_max
    }

    /// Returns whether all rows are taken.
    pub fn is_full(&self) -> bool {
        self.of.len() == self.state.len()
    }

    /// Frees all rows.
    pub fn clear(&mut self) {
        *self = Rows::new(self.rows_max, self.mask);
    }

    /// Returns the row of a session, if it has one.
    pub fn get(&self, id: u64) -> Option<u32> {
        self.of.get(&id).copied()
    }

    /// Gives a row to a session that has none. `None`: all rows are taken.
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

    /// Frees the row of a session. Returns the row.
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
            assert_eq!(preferred_mask(rows), expected, "{rows}");
        }
    }

    #[test]
    fn a_session_is_where_its_id_says_or_anywhere() {
        let mut rows = Rows::new(5, preferred_mask(5));
        assert_eq!(rows.take(7), Some(3));
        assert_eq!(rows.take(11), Some(0), "3 is taken: the first that is free");
        assert_eq!(rows.take(2), Some(2));
        assert_eq!(rows.take(15), Some(1), "2 is in the stack, and passed over");
        assert!(!rows.is_full());
        assert_eq!(rows.take(19), Some(4), "beyond the mask");
        assert!(rows.is_full());
        assert_eq!(rows.take(23), None);
        assert_eq!((rows.get(15), rows.get(23)), (Some(1), None));
        assert_eq!((rows.give_back(23), rows.give_back(7)), (None, Some(3)));
        assert_eq!(rows.take(23), Some(3));
    }

    #[test]
    fn rows_are_given_out_once_however_often_they_come_back() {
        let mut rows = Rows::new(4, preferred_mask(4));
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
