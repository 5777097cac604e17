//! The model, in the configurations that are searched quickly.

mod counterexamples;
mod paths;
mod quick;
