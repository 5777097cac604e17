//! Errors as exceptions: each kind has its class, in Python.

use pmnet_bindings::{Fault, Kind};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// The classes by the numbers of their kinds.
static CLASSES: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

fn class<'py>(py: Python<'py>, kind: Kind) -> PyResult<Bound<'py, PyAny>> {
    let classes = CLASSES.get_or_try_init(py, || {
        let base = py.import("pmnet._base")?;
        PyResult::Ok(base.getattr("ERRORS")?.unbind())
    })?;
    classes.bind(py).get_item(kind as i32)
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
