//! Something that its owner has, or has handed over for the moment.

use std::ops::{Deref, DerefMut};

/// A place of which what is in it can be handed over, to come back later.
///
/// # Panics
/// Looking at it panics while it is elsewhere: whoever hands it over brings it back first.
#[derive(Debug)]
pub struct Held<T>(Option<T>);

impl<T> Held<T> {
    /// It is here.
    pub const fn new(what: T) -> Held<T> {
        Held(Some(what))
    }

    /// Hands it over.
    ///
    /// # Panics
    /// It is not here.
    pub fn hand_over(&mut self) -> T {
        self.0.take().expect("it is here")
    }

    /// It is here again.
    ///
    /// # Panics
    /// It is here already.
    pub fn take_back(&mut self, what: T) {
        assert!(self.0.is_none(), "there is one");
        self.0 = Some(what);
    }

    /// It, for good.
    ///
    /// # Panics
    /// It is not here.
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
