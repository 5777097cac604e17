//! The simulator: its worlds, its checkers, and the seeds of worlds that once revealed a fault.

mod checker;
mod regressions;
mod rules;
mod second_opinion;
mod seeds;
mod slots;
mod store;
