//! The simulator: its worlds, its checkers, and seeds of worlds that once showed a fault.

mod checker;
mod regressions;
mod rules;
mod second_opinion;
mod seeds;
mod slots;
mod store;
