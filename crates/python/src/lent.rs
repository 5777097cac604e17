//! Arguments of calls: numbers, times, and bytes that Python lends for the duration of a call.

use crate::fault::{exception, raised};
use pmnet_bindings::Fault;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView};
use std::ops::Deref;
use std::time::Duration;

/// Longest time that may be added to a clock.
const TIME_MAX: Duration = Duration::from_secs(1 << 32);

/// Bytes that belong to Python. The bytes of a `bytes` object are not copied.
pub(crate) enum Lent<'a, 'py> {
    Here(&'a [u8]),
    Held(Bound<'py, PyBytes>),
    Copied(Vec<u8>),
}

impl Deref for Lent<'_, '_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Lent::Here(bytes) => bytes,
            Lent::Held(bytes) => bytes.as_bytes(),
            Lent::Copied(bytes) => bytes,
        }
    }
}

/// Returns the bytes of an argument. Arguments of other types are refused, because a number could be taken for a
/// length, and a text has several encodings.
pub(crate) fn bytes<'a, 'py>(what: &str, value: &'a Bound<'py, PyAny>) -> PyResult<Lent<'a, 'py>> {
    if let Ok(value) = value.cast::<PyBytes>() {
        return Ok(Lent::Here(value.as_bytes()));
    }
    if let Ok(value) = value.cast::<PyByteArray>() {
        return Ok(Lent::Copied(value.to_vec()));
    }
    if value.is_instance_of::<PyMemoryView>() {
        let bytes = value.call_method0("tobytes")?;
        return Ok(Lent::Held(bytes.cast_into::<PyBytes>()?));
    }
    let found = value.get_type().name()?;
    Err(PyTypeError::new_err(format!(
        "{what} must be bytes, bytearray or memoryview, not {found}"
    )))
}

/// Returns the hash of a key; 0 without a key.
pub(crate) fn key_hash(key: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
    let key = key.map(|key| bytes("key", key)).transpose()?;
    Ok(pmnet_bindings::key_hash(key.as_deref()))
}

/// Converts a number to 32 bits. Fails if the number is out of range.
pub(crate) fn number(what: &str, value: i64) -> PyResult<u32> {
    u32::try_from(value).map_err(|_| {
        let text = format!("{what} is {value}: 0 to {}", u32::MAX);
        raised(Fault::argument(text))
    })
}

/// Converts a time in seconds.
pub(crate) fn seconds(py: Python<'_>, value: f64) -> PyResult<Duration> {
    let time = Duration::try_from_secs_f64(value).ok();
    time.filter(|time| *time <= TIME_MAX).ok_or_else(|| {
        let text = format!("the timeout is {value}: a number of seconds, from 0 on");
        exception(py, Fault::argument(text))
    })
}
