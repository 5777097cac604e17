//! Tests of the model, in the configurations that can be searched quickly.

mod counterexamples;
mod paths;
mod quick;
