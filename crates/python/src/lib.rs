//! `pmnet` for Python: the native half of the package in `python/pmnet`, over the crates `client` and `server` (`docs/use/programs.md`).
//!
//! Purpose: hand values across the border to Python and back. Invariants: nothing panics into Python; the interpreter is let go while a call
//! waits or copies, and a call that waits ends when a handler of a signal raises; an object that is closed, in use by another thread, or opened
//! before a fork is refused and never touched. May not: decide anything about the protocol, call Python from another thread than the caller's.

mod client;
mod fault;
mod guarded;
mod lent;
mod log;
mod server;
mod wait;

use pyo3::prelude::*;

#[pymodule]
fn _pmnet(module: &Bound<'_, PyModule>) -> PyResult<()> {
    guarded::count_forks(module)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<client::Client>()?;
    module.add_class::<client::Event>()?;
    module.add_class::<client::Reading>()?;
    module.add_class::<server::Server>()?;
    module.add_class::<server::Batch>()?;
    module.add_class::<server::Item>()?;
    module.add_function(wrap_pyfunction!(log::log_to, module)?)
}
