//! The warnings of the loops. No call returns warnings. The warnings do not use Python's `logging`, because a loop that
//! waits for the interpreter would delay devices and clients.

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

/// Sets the file to which warnings are appended. None: warnings are dropped. By default they go to stderr.
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
        // A warning that cannot be written is dropped, because it cannot be reported anywhere else. In the child of a
        // fork, the lock may be held for ever.
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

/// Begins to collect the loops' warnings.
pub(crate) fn begin() {
    pmnet_bindings::warnings_to(|| Line);
}
