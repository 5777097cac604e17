//! `pmnet` for Python: the native part of the package in `python/pmnet`. The module uses the crates `client` and
//! `server` (`docs/use/programs.md`).
//!
//! Purpose: passes values between Python and Rust. Invariants: no panic reaches Python. The interpreter is released
//! while a call waits or copies. A waiting call ends when a signal handler raises an exception. An object that is
//! closed, in use by another thread, or opened before a fork is refused without being touched. Not allowed here:
//! decisions about the protocol, and calls of Python from another thread than the caller's.

mod client;
mod fault;
mod guarded;
mod lent;
mod log;
mod server;
mod wait;

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// The module of the first interpreter that loaded the extension. Each interpreter of a process has a module of its
/// own.
static HOME: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

/// Refuses a second interpreter in the process. Some versions of Python do not refuse it by themselves, and the classes
/// belong to the first interpreter.
fn keep_to_one_interpreter(py: Python<'_>) -> PyResult<()> {
    let here = py.import("builtins")?;
    let home = HOME.get_or_init(py, || here.clone().unbind());
    if home.is(&here) {
        return Ok(());
    }
    Err(PyImportError::new_err(
        "another interpreter of this process has loaded pmnet, and only one can: import it in one interpreter (with mod_wsgi: \
         WSGIApplicationGroup %{GLOBAL})",
    ))
}

#[pymodule]
fn _pmnet(module: &Bound<'_, PyModule>) -> PyResult<()> {
    keep_to_one_interpreter(module.py())?;
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
