//! The loops' warnings, which no call returns. They do not use Python's `logging`, because a loop that waited
//! for the interpreter would delay devices and clients.

use pyo3::prelude::*;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

enum Place {
    Stderr,
    File(File),
    Nowhere,
}

static PLACE: Mutex<Place> = Mutex::new(Place::Stderr);

/// Sets the destination of warnings: they are appended to this file; None: they are dropped. Without this
/// call they go to stderr.
#[pyfunction]
#[pyo3(signature = (path, /))]
pub(crate) fn log_to(path: Option<PathBuf>) -> PyResult<()> {
    let place = match path {
        None => Place::Nowhere,
        Some(path) => {
            let mut options = OpenOptions::new();
            Place::File(options.append(true).create(true).open(path)?)
        }
    };
    *PLACE.lock().unwrap_or_else(PoisonError::into_inner) = place;
    Ok(())
}

struct Line;

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A warning that cannot be written is dropped, because there is no other place for it. In the child
        // of a fork, the lock may be held for ever.
        if let Ok(mut place) = PLACE.try_lock() {
            let _ = match &mut *place {
                Place::Stderr => io::stderr().write_all(bytes),
                Place::File(file) => file.write_all(bytes),
                Place::Nowhere => Ok(()),
            };
        }
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Begins to listen to the loops' warnings.
pub(crate) fn begin() {
    pmnet_bindings::warnings_to(|| Line);
}
