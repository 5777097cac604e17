//! Errors as exceptions: each kind has its class, in Python.

use pmnet_bindings::{Fault, Kind};
use pyo3::prelude::*;

/// Returns the class of the package as it is imported now: one that is imported anew has other classes.
fn class<'py>(py: Python<'py>, kind: Kind) -> PyResult<Bound<'py, PyAny>> {
    let base = py.import("pmnet._base")?;
    base.getattr("ERRORS")?.get_item(kind as i32)
}

/// Returns the exception for an error.
pub(crate) fn exception(py: Python<'_>, fault: impl Into<Fault>) -> PyErr {
    let Fault { kind, text } = fault.into();
    let made = class(py, kind).and_then(|class| class.call1((text,)));
    made.map_or_else(|error| error, PyErr::from_value)
}

/// Returns the exception for an error, for a caller without a token of the interpreter.
pub(crate) fn raised(fault: impl Into<Fault>) -> PyErr {
    let fault = fault.into();
    Python::attach(|py| exception(py, fault))
}
