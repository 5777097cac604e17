//! The native part of an object. Until the object is closed, one thread at a time can use it, in the process that
//! opened it.

use crate::fault::raised;
use pmnet_bindings::{Fault, Kind};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Number of forks between this process and the process that loaded the module.
static FORKS: AtomicU32 = AtomicU32::new(0);

#[pyfunction]
fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Registers a handler with which Python reports forks. The process id alone is not enough: in a PID namespace of its
/// own, a child can have the id of its parent.
pub(crate) fn count_forks(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let words = PyDict::new(py);
    words.set_item("after_in_child", wrap_pyfunction!(forked, module)?)?;
    let os = py.import("os")?;
    os.call_method("register_at_fork", (), Some(&words))?;
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    number: u32,
    forks: u32,
}

impl Process {
    fn this() -> Process {
        Process {
            number: std::process::id(),
            forks: FORKS.load(Ordering::Relaxed),
        }
    }
}

/// An open object, which one thread at a time can use.
#[derive(Debug)]
pub(crate) struct Guarded<T> {
    name: &'static str,
    process: Process,
    open: Mutex<Option<T>>,
}

impl<T> Guarded<T> {
    /// Makes the guard of an object. `name`: the object's name in error texts.
    pub(crate) fn new(name: &'static str, open: T) -> Guarded<T> {
        Guarded {
            name,
            process: Process::this(),
            open: Mutex::new(Some(open)),
        }
    }

    fn fault(&self, kind: Kind) -> PyErr {
        let name = self.name;
        raised(Fault::new(
            kind,
            match kind {
                Kind::Handle => format!("this {name} is closed"),
                Kind::Fork => {
                    format!("this {name} was opened in another process, before a fork")
                }
                Kind::Thread => format!(
                    "another thread is using this {name}, or a signal came in the middle of a call"
                ),
                _ => "a fault of the library, which stderr has the text of".to_owned(),
            },
        ))
    }

    /// Returns whether this process is a child of the process that opened the object.
    pub(crate) fn is_foreign(&self) -> bool {
        self.process != Process::this()
    }

    fn lock(&self) -> PyResult<MutexGuard<'_, Option<T>>> {
        if self.is_foreign() {
            return Err(self.fault(Kind::Fork));
        }
        self.open.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => self.fault(Kind::Thread),
            TryLockError::Poisoned(_) => self.fault(Kind::Bug),
        })
    }

    /// Gives this thread access to the object. After a panic, the object can only be closed.
    pub(crate) fn with<R>(&self, body: impl FnOnce(&mut T) -> PyResult<R>) -> PyResult<R> {
        let used = catch_unwind(AssertUnwindSafe(|| {
            let mut open = self.lock()?;
            body(open.as_mut().ok_or_else(|| self.fault(Kind::Handle))?)
        }));
        used.unwrap_or_else(|_| Err(self.fault(Kind::Bug)))
    }

    /// Takes the object out, so that it is closed. `None`: the object was closed before, or belongs to the parent
    /// process. In a child there is nothing to close. This is not an error, because functions that run at the child's
    /// exit, such as those of `atexit`, must not fail.
    pub(crate) fn take(&self) -> PyResult<Option<T>> {
        if self.is_foreign() {
            return Ok(None);
        }
        // After a panic, an object can still be closed.
        self.open.clear_poison();
        Ok(self.lock()?.take())
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        if self.is_foreign() {
            // The object belongs to the parent process, whose threads do not exist in this process. A drop would wait
            // for one of them, and would end the object for the parent.
            let open = self.open.get_mut();
            let open = open.unwrap_or_else(PoisonError::into_inner);
            let _never_dropped = ManuallyDrop::new(open.take());
        }
    }
}
