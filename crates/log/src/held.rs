//! A value that its owner either has, or has given to another owner.

use std::ops::{Deref, DerefMut};

/// Holds a value that can be given away and taken back.
///
/// # Panics
/// Any access panics while the value is given away: the owner must take it back first.
#[derive(Debug)]
pub struct Held<T>(Option<T>);

impl<T> Held<T> {
    /// Returns a holder that has `what`.
    pub const fn new(what: T) -> Held<T> {
        Held(Some(what))
    }

    /// Gives the value away.
    ///
    /// # Panics
    /// If the value is already given away.
    pub fn hand_over(&mut self) -> T {
        self.0.take().expect("it is here")
    }

    /// Takes the value back.
    ///
    /// # Panics
    /// If the value was not given away.
    pub fn take_back(&mut self, what: T) {
        assert!(self.0.is_none(), "there is one");
        self.0 = Some(what);
    }

    /// Returns the value, and ends this holder.
    ///
    /// # Panics
    /// If the value is given away.
    pub fn into_inner(self) -> T {
        self.0.expect("it is here")
    }
}

impl<T> Deref for Held<T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is here")
    }
}

impl<T> DerefMut for Held<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("it is here")
    }
}
