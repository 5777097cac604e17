//! Servers for Python, whose store is the program (`pmnet_server::program`).

use crate::client::unless_failed;
use crate::fault::{base, exception};
use crate::guarded::Guarded;
use crate::{lent, log, wait};
use bytes::Bytes;
use pmnet_bindings::{ServerOptions, Stored};
use pmnet_server::program::{self, Program, ProgramError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::Duration;

/// A row that the program must store: the key, and the value. `None`: the row must be deleted.
type Row<'py> = (Bound<'py, PyBytes>, Option<Bound<'py, PyBytes>>);

/// Copies the rows or the watermark that the program has stored.
fn stored(
    py: Python<'_>,
    rows: Option<&Bound<'_, PyAny>>,
    watermark: Option<&Bound<'_, PyAny>>,
) -> PyResult<Stored> {
    if let Some(watermark) = watermark {
        if rows.is_some() {
            return Err(exception(py, Stored::twice()));
        }
        let watermark = lent::bytes("watermark", watermark)?;
        return Ok(Stored::Watermark(Bytes::copy_from_slice(&watermark)));
    }
    let mut given = Vec::new();
    if let Some(rows) = rows {
        for row in rows.try_iter()? {
            let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = row?.extract()?;
            let key = lent::bytes("the key of a row", &key)?.to_vec();
            let value = lent::bytes("the value of a row", &value)?;
            given.push((key, Bytes::copy_from_slice(&value)));
        }
    }
    Ok(Stored::Rows(given))
}

/// Runs the body while all signals are blocked. A thread that the body starts inherits this mask, so signal handlers
/// run only in the program's own threads.
fn with_signals_blocked<'py, T>(
    py: Python<'py>,
    body: impl FnOnce() -> PyResult<T>,
) -> PyResult<T> {
    let signal = py.import("signal")?;
    let all = signal.call_method0("valid_signals")?;
    let mask = |how: &str, set: &Bound<'py, PyAny>| {
        signal.call_method1("pthread_sigmask", (signal.getattr(how)?, set))
    };
    let before = mask("SIG_BLOCK", &all)?;
    let result = body();
    // A signal may have arrived meanwhile, and its handler may raise an exception.
    mask("SIG_SETMASK", &before)?;
    result
}

#[derive(Debug)]
struct Open {
    program: Program,
    /// Number of the unconfirmed batch.
    present: Option<u64>,
}

impl Open {
    /// Calls the program's server for a batch. Meanwhile the interpreter is released.
    fn of<'a, T: Send>(
        &'a mut self,
        py: Python<'_>,
        batch: u64,
        call: impl FnOnce(&'a mut Program) -> Result<T, ProgramError> + Send,
    ) -> PyResult<T> {
        if self.present != Some(batch) {
            return Err(exception(py, ProgramError::Twice(batch)));
        }
        let program = &mut self.program;
        let called = py.detach(|| call(program));
        called.map_err(|error| exception(py, error))
    }

    /// Ends the batch by a confirmation or by giving it back.
    fn end(
        &mut self,
        py: Python<'_>,
        batch: u64,
        call: impl FnOnce(&mut Program) -> Result<(), ProgramError> + Send,
    ) -> PyResult<()> {
        let ended = self.of(py, batch, |program| Ok(call(program)))?;
        // If the server has stopped, it has no batch any more either.
        if matches!(ended, Ok(()) | Err(ProgramError::Stopped(_))) {
            self.present = None;
        }
        ended.map_err(|error| exception(py, error))
    }
}

// The signature contains these numbers as literals, because `help` shows only literal defaults.
const _: () = assert!(ServerOptions::BATCH_ENTRIES_MAX == 1024);
const _: () = assert!(ServerOptions::BATCH_BYTES_MAX == 4_194_304);

/// A server of one shard whose store is the calling program. Iterating over the server gives batches. Only one thread
/// at a time may use a server.
#[pyclass(frozen, module = "pmnet")]
pub(crate) struct Server {
    open: Guarded<Open>,
    port: u16,
}

#[pymethods]
impl Server {
    #[new]
    #[allow(
        clippy::too_many_arguments,
        reason = "each is an option that Python names"
    )]
    #[pyo3(signature = (listen, *, shard=0, rows=None, watermark=None, batch_entries_max=1024, batch_bytes_max=4_194_304, key_file=None))]
    fn new(
        py: Python<'_>,
        listen: String,
        shard: i64,
        rows: Option<&Bound<'_, PyAny>>,
        watermark: Option<&Bound<'_, PyAny>>,
        batch_entries_max: i64,
        batch_bytes_max: i64,
        key_file: Option<PathBuf>,
    ) -> PyResult<Server> {
        log::begin();
        let options = ServerOptions {
            listen,
            shard: lent::number("shard", shard)?,
            batch_entries_max: lent::number("batch_entries_max", batch_entries_max)?,
            batch_bytes_max: lent::number("batch_bytes_max", batch_bytes_max)?,
            key_file,
        };
        let stored = stored(py, rows, watermark)?;
        let program = with_signals_blocked(py, || {
            let opened = py.detach(|| stored.open(options.config()?));
            opened.map_err(|fault| exception(py, fault))
        })?;
        Ok(Server {
            port: program.address().port(),
            open: Guarded::new(
                "server",
                Open {
                    program,
                    present: None,
                },
            ),
        })
    }

    /// The UDP port of the server. If the server was opened with port 0, the system has chosen the port.
    #[getter]
    fn port(&self) -> u16 {
        self.port
    }

    /// Takes the next batch. Waits at most this many seconds; None: without limit. Returns None if no batch has arrived
    /// within this time.
    #[pyo3(signature = (timeout=None))]
    fn next<'py>(
        this: &Bound<'py, Self>,
        py: Python<'py>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Batch>> {
        let timeout = timeout.map(|timeout| lent::seconds(py, timeout));
        Server::take(this, timeout.transpose()?)
    }

    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__(this: &Bound<'_, Self>) -> PyResult<Option<Batch>> {
        Server::take(this, None)
    }

    /// Returns a descriptor that can be polled. The descriptor is readable while next() has a result. The descriptor
    /// belongs to the server, and is closed with it.
    fn fileno(&self) -> PyResult<RawFd> {
        self.open.with(|open| Ok(open.program.raw_fd()))
    }

    /// Closes the server. If a batch is not confirmed and its rows are not stored, the next server gets the batch
    /// again. A second call has no effect. In a child of the process that opened the server, the call has no effect
    /// either.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let open = self.open.take()?;
        py.detach(|| drop(open));
        Ok(())
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (kind, error, traceback, /))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        error: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _ = (error, traceback);
        unless_failed(kind, self.close(py))
    }
}

impl Server {
    fn take(this: &Bound<'_, Self>, timeout: Option<Duration>) -> PyResult<Option<Batch>> {
        let py = this.py();
        let found = this.get().open.with(|open| {
            let program = &mut open.program;
            let found = wait::until(py, timeout, |wait| program.next(wait))?;
            if let Some(found) = &found {
                open.present = Some(found.number);
            }
            Ok(found)
        })?;
        let Some(program::Batch { number, items }) = found else {
            return Ok(None);
        };
        let kinds = kinds(py)?;
        let items = items.iter().map(|item| Item::of(py, &kinds, item));
        let items = items.collect::<PyResult<Vec<Item>>>()?;
        Ok(Some(Batch {
            server: this.clone().unbind(),
            number,
            items: PyTuple::new(py, items)?.unbind(),
        }))
    }
}

/// The program's next work, which it must store in one transaction: updates or bypasses, in the order in which they
/// take effect. If there are no items, the program must only store rows.
#[pyclass(frozen, module = "pmnet")]
pub(crate) struct Batch {
    server: Py<Server>,
    number: u64,
    items: Py<PyTuple>,
}

#[pymethods]
impl Batch {
    /// Number of the batch, counted from 1 for each server.
    #[getter]
    fn number(&self) -> u64 {
        self.number
    }

    /// The items of the batch.
    #[getter]
    fn items(&self, py: Python<'_>) -> Py<PyTuple> {
        self.items.clone_ref(py)
    }

    /// Sets the reply to a bypass. item is the index of the bypass among the items, counted from 0. The reply may have
    /// up to 16 MiB of any bytes. Every bypass needs a reply before the rows are requested. An update has no reply.
    fn reply(&self, py: Python<'_>, item: usize, reply: &Bound<'_, PyAny>) -> PyResult<()> {
        let reply = lent::bytes("reply", reply)?;
        let reply: &[u8] = &reply;
        self.with(py, |open| {
            open.of(py, self.number, |program| program.reply(item, reply))
        })
    }

    /// Returns the rows that the program must store in the same transaction as the batch. A row with a value replaces
    /// the row with this key. If the value of a row is None, the row must be deleted. If the batch only reads, there
    /// are no rows.
    fn rows<'py>(&self, py: Python<'py>) -> PyResult<Vec<Row<'py>>> {
        self.with(py, |open| {
            let rows = open.of(py, self.number, Program::rows)?;
            let bytes = |bytes: &[u8]| PyBytes::new(py, bytes);
            Ok(rows
                .iter()
                .map(|(key, value)| (bytes(key), value.as_deref().map(bytes)))
                .collect())
        })
    }

    /// Returns all rows, as they are after this batch, in one blob. The blob is for a program that stores a single
    /// value. The blob takes time and space for all sessions at each batch.
    fn watermark<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let watermark = self.with(py, |open| open.of(py, self.number, Program::blob))?;
        Ok(PyBytes::new(py, &watermark))
    }

    /// Confirms the batch: the program has stored it durably, together with its rows or its watermark. The devices may
    /// then drop its entries, and clients get their replies.
    fn done(&self, py: Python<'_>) -> PyResult<()> {
        let number = self.number;
        self.with(py, |open| {
            open.end(py, number, |program| program.done(number))
        })
    }

    /// Gives the batch back. The program must have executed no part of the batch, and must not execute it later. The
    /// batch is offered again after a pause, perhaps with more items. If a program does not know whether its
    /// transaction took place, it must instead close the server, and open it with the rows that it finds stored.
    fn undone(&self, py: Python<'_>) -> PyResult<()> {
        let number = self.number;
        self.with(py, |open| {
            open.end(py, number, |program| program.undone(number))
        })
    }
}

impl Batch {
    fn with<T>(&self, py: Python<'_>, body: impl FnOnce(&mut Open) -> PyResult<T>) -> PyResult<T> {
        self.server.bind(py).get().open.with(body)
    }
}

/// One update or bypass.
#[pyclass(frozen, get_all, module = "pmnet")]
pub(crate) struct Item {
    /// Kind.UPDATE, Kind.BYPASS or Kind.READ.
    kind: Py<PyAny>,
    /// The client's session.
    session: u64,
    /// For an update: its number in the session. For a bypass: the request's id. Both numbers rise within a session.
    number: u64,
    /// For an update: its order in the log. For a bypass, and for an update for which the log was full: the order up to
    /// which the log was applied before it.
    order: u64,
    /// The client's bytes.
    payload: Py<PyBytes>,
}

/// Returns the members of pmnet.Kind, in the order of [`program::Kind`].
fn kinds(py: Python<'_>) -> PyResult<[Py<PyAny>; 3]> {
    let class = base(py)?.getattr("Kind")?;
    let member = |name: &str| PyResult::Ok(class.getattr(name)?.unbind());
    Ok([member("UPDATE")?, member("BYPASS")?, member("READ")?])
}

impl Item {
    fn of(py: Python<'_>, kinds: &[Py<PyAny>; 3], item: &program::Item) -> PyResult<Item> {
        Ok(Item {
            kind: kinds[item.kind as usize].clone_ref(py),
            session: item.source.session,
            number: item.source.number,
            order: item.source.order,
            payload: PyBytes::new(py, &item.payload).unbind(),
        })
    }
}
