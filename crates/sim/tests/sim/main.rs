//! The simulator: its worlds, its checkers, and the worlds that once found something.

mod checker;
mod regressions;
mod rules;
mod second_opinion;
mod seeds;
mod slots;
mod store;
