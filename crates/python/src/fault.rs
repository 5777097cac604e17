//! Converts errors to exceptions. Each kind of error has a class, which is defined in Python.

use pmnet_bindings::Fault;
use pyo3::prelude::*;

/// Returns the Python part of the package, as it is imported now. If the package was imported again, its classes are
/// new objects.
pub(crate) fn base(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import("pmnet._base")
}

/// Returns the exception for an error.
pub(crate) fn exception(py: Python<'_>, fault: impl Into<Fault>) -> PyErr {
    let Fault { kind, text } = fault.into();
    let class = base(py).and_then(|base| base.getattr("ERRORS")?.get_item(kind as i32));
    let made = class.and_then(|class| class.call1((text,)));
    made.map_or_else(|error| error, PyErr::from_value)
}

/// Returns whether an exception is one of pmnet's.
pub(crate) fn is_own(py: Python<'_>, error: &PyErr) -> PyResult<bool> {
    Ok(error.matches(py, base(py)?.getattr("Error")?)?)
}

/// Returns the exception for an error. The caller need not hold the interpreter.
pub(crate) fn raised(fault: impl Into<Fault>) -> PyErr {
    let fault = fault.into();
    Python::attach(|py| exception(py, fault))
}
