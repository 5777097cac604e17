//! Clients: one session each (`pmnet_client::Session`).

use crate::fault::{exception, is_own, raised};
use crate::guarded::Guarded;
use crate::{lent, log, wait};
use bytes::Bytes;
use pmnet_bindings::{ClientOptions, Fault};
use pmnet_client::{Answer, Finished, ReadAnswer, Session, SessionError};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use std::iter::from_fn;
use std::os::fd::{AsRawFd, RawFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The exception that a handler of a signal has raised in the middle of a call.
type Raised = Arc<Mutex<Option<PyErr>>>;

/// Runs handlers of signals; returns whether one has raised.
fn is_raised(raised: &Raised) -> bool {
    Python::attach(|py| match py.check_signals() {
        Ok(()) => false,
        Err(error) => {
            *raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            true
        }
    })
}

#[derive(Debug)]
struct Open {
    session: Session,
    raised: Raised,
}

impl Open {
    /// Makes a call that blocks, without the interpreter.
    fn call<T: Send>(
        &mut self,
        py: Python<'_>,
        call: impl FnOnce(&mut Session) -> Result<T, SessionError> + Send,
    ) -> PyResult<T> {
        let session = &mut self.session;
        let done = py.detach(|| call(session));
        done.map_err(|error| of_call(py, &self.raised, error))
    }
}

/// Returns the exception of a call that has ended so: what a handler has raised, if it was given up.
fn of_call(py: Python<'_>, raised: &Raised, error: SessionError) -> PyErr {
    let given_up = matches!(error, SessionError::Interrupted);
    let mut raised = raised.lock().unwrap_or_else(PoisonError::into_inner);
    let raised = raised.take().filter(|_| given_up);
    raised.unwrap_or_else(|| exception(py, error))
}

/// Returns the devices: a text, or several.
fn devices(value: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(text.to_cow()?.into_owned());
    }
    let several: Result<Vec<String>, _> = value.extract();
    several.map(|several| several.join(",")).map_err(|_| {
        PyTypeError::new_err(
            "devices must be a str, \"HOST:PORT,HOST:PORT\", or a sequence of them",
        )
    })
}

// The signature below has numbers, because `help` shows no other defaults.
const _: () = assert!(ClientOptions::COPIES_MIN == 1 && ClientOptions::CALLS_MAX == 4096);
const _: () = assert!(ClientOptions::TIMEOUT.as_secs() == 10);

/// A client: one session of a shard. One thread at a time may use it.
#[pyclass(frozen, module = "pmnet")]
pub(crate) struct Client {
    open: Guarded<Open>,
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (devices, *, shard=0, copies_min=1, timeout=10.0, calls_max=4096, key_file=None))]
    fn new(
        py: Python<'_>,
        devices: &Bound<'_, PyAny>,
        shard: i64,
        copies_min: i64,
        timeout: f64,
        calls_max: i64,
        key_file: Option<PathBuf>,
    ) -> PyResult<Client> {
        log::begin();
        let options = ClientOptions {
            devices: self::devices(devices)?,
            shard: lent::number("shard", shard)?,
            copies_min: lent::number("copies_min", copies_min)?,
            timeout: lent::seconds(py, timeout)?,
            calls_max: lent::number("calls_max", calls_max)?,
            key_file,
        };
        // A name may have to be looked up.
        let opened = py.detach(|| options.open());
        let mut session = opened.map_err(|fault| exception(py, fault))?;
        let raised = Raised::default();
        let of_calls = raised.clone();
        session.give_up_if(move || is_raised(&of_calls));
        let open = Open { session, raised };
        Ok(Client {
            open: Guarded::new("client", open),
        })
    }

    /// Sends an update, and waits until it is durable in the devices: from then on it is neither lost nor applied twice. Returns how many
    /// devices hold it; 0: the server has applied it, because the log was full.
    #[pyo3(signature = (payload, *, key=None))]
    fn update(
        &self,
        py: Python<'_>,
        payload: &Bound<'_, PyAny>,
        key: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u8> {
        let (payload, key) = request(py, payload, key)?;
        self.open
            .with(|open| open.call(py, |session| session.update(payload, key)))
    }

    /// Sends a request to the server, and returns its reply. The server runs it after every update that was acknowledged before, of whatever
    /// client; once, unless it only reads.
    #[pyo3(signature = (payload, *, key=None, read_only=false))]
    fn bypass<'py>(
        &self,
        py: Python<'py>,
        payload: &Bound<'_, PyAny>,
        key: Option<&Bound<'_, PyAny>>,
        read_only: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (payload, key) = request(py, payload, key)?;
        let reply = self
            .open
            .with(|open| open.call(py, |session| session.bypass(payload, key, read_only)))?;
        let reply = pmnet_bindings::reply(&reply).map_err(|fault| exception(py, fault))?;
        Ok(PyBytes::new(py, reply))
    }

    /// Asks the device, without the server, for the newest update of a key, or for the order that a server must have applied to know
    /// it. Only while no call of this client is under way. Other keys may have the same hash: compare.
    #[pyo3(signature = (key=None))]
    fn read(&self, py: Python<'_>, key: Option<&Bound<'_, PyAny>>) -> PyResult<Reading> {
        let key = read_key(key)?;
        let answer = self
            .open
            .with(|open| open.call(py, |session| session.read(key)))?;
        Reading::of(py, &answer)
    }

    /// Starts an update, and does not wait. It ends as an event with this token, and is sent by the next call of next().
    #[pyo3(signature = (token, payload, *, key=None))]
    fn update_start(
        &self,
        py: Python<'_>,
        token: u64,
        payload: &Bound<'_, PyAny>,
        key: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (payload, key) = request(py, payload, key)?;
        self.open.with(|open| {
            let started = open.session.update_start(payload, key, token);
            started.map_err(|error| exception(py, error))
        })
    }

    /// Starts a request, and does not wait. It ends as an event with this token and the reply.
    #[pyo3(signature = (token, payload, *, key=None, read_only=false))]
    fn bypass_start(
        &self,
        py: Python<'_>,
        token: u64,
        payload: &Bound<'_, PyAny>,
        key: Option<&Bound<'_, PyAny>>,
        read_only: bool,
    ) -> PyResult<()> {
        let (payload, key) = request(py, payload, key)?;
        self.open.with(|open| {
            let started = open.session.bypass_start(payload, key, read_only, token);
            started.map_err(|error| exception(py, error))
        })
    }

    /// Sends what was started, and returns the next call that has ended; waits for it this many seconds, for ever if that is None.
    /// Returns None if none has ended within the time.
    #[pyo3(signature = (timeout=None))]
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Event>> {
        let timeout = timeout.map(|timeout| lent::seconds(py, timeout));
        let timeout = timeout.transpose()?;
        let found = self.open.with(|open| {
            let session = &mut open.session;
            wait::until(py, timeout, |wait| session.next(wait))
        })?;
        found.map(|finished| Event::of(py, finished)).transpose()
    }

    /// Returns a descriptor to poll: it is readable while next() has something to do. When it is readable, call next(0) until that
    /// returns None. It is the client's, and closed with it.
    fn fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        self.open.with(|open| {
            let fd = open.session.poll_fd();
            let fd = fd.map_err(|error| exception(py, SessionError::Io(error)))?;
            Ok(fd.as_raw_fd())
        })
    }

    /// Ends the session after everything that was started, and closes the client, also if this fails. Closing it again does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(Open { session, raised }) = self.open.take()? else {
            return Ok(());
        };
        let ended = py.detach(|| session.end());
        ended.map_err(|error| of_call(py, &raised, error))
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

    /// Sends what was started, and returns what has ended; nothing only if there is nothing. For AsyncClient.
    fn _drain(&self, py: Python<'_>) -> PyResult<Vec<Event>> {
        let found = self.open.with(|open| {
            let session = &mut open.session;
            let found = py.detach(|| -> Result<Vec<Finished>, SessionError> {
                let first = session.next(Duration::ZERO)?;
                Ok(first
                    .into_iter()
                    .chain(from_fn(|| session.more()))
                    .collect())
            });
            found.map_err(|error| exception(py, error))
        })?;
        let events = found.into_iter().map(|finished| Event::of(py, finished));
        events.collect()
    }

    /// Starts a read; for AsyncClient.
    #[pyo3(signature = (key=None))]
    fn _read_start(&self, key: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let key = read_key(key)?;
        self.open
            .with(|open| open.session.read_start(key).map_err(raised))
    }

    /// Returns the answer to the read that was started, if it is there; for AsyncClient.
    fn _read_ended(&self, py: Python<'_>) -> PyResult<Option<Reading>> {
        let ended = self
            .open
            .with(|open| open.session.read_ended().map_err(raised))?;
        ended.map(|answer| Reading::of(py, &answer)).transpose()
    }

    /// Begins to end the session; for AsyncClient.
    fn _end_start(&self) -> PyResult<()> {
        self.open
            .with(|open| open.session.end_start().map_err(raised))
    }

    /// Closes the client, whose session is over or may expire; for AsyncClient.
    fn _forget(&self) -> PyResult<()> {
        self.open.take().map(drop)
    }
}

/// Returns the exception of closing, unless the body of the `with` has failed: then the caller gets that error.
pub(crate) fn unless_failed(kind: &Bound<'_, PyAny>, closed: PyResult<()>) -> PyResult<()> {
    match closed {
        Err(error) if !kind.is_none() && is_own(kind.py(), &error)? => Ok(()),
        closed => closed,
    }
}

fn request(
    py: Python<'_>,
    payload: &Bound<'_, PyAny>,
    key: Option<&Bound<'_, PyAny>>,
) -> PyResult<(Bytes, u64)> {
    let key = lent::key_hash(key)?;
    let payload = lent::bytes("payload", payload)?;
    let payload: &[u8] = &payload;
    let payload = py.detach(|| pmnet_bindings::payload(payload));
    Ok((payload.map_err(|fault| exception(py, fault))?, key))
}

/// No key: a read of all.
fn read_key(key: Option<&Bound<'_, PyAny>>) -> PyResult<Option<u64>> {
    key.map(|key| lent::key_hash(Some(key))).transpose()
}

/// A call that was started and has ended.
#[pyclass(frozen, get_all, module = "pmnet")]
pub(crate) struct Event {
    /// The caller's name of it.
    token: u64,
    /// Of an update: how many devices hold it. Of a bypass: the reply. Or the exception that it ended with.
    result: Py<PyAny>,
}

impl Event {
    fn of(py: Python<'_>, finished: Finished) -> PyResult<Event> {
        let reply = |reply: &Bytes| {
            let reply = pmnet_bindings::reply(reply)?;
            Ok(PyBytes::new(py, reply).into_any().unbind())
        };
        let result: Result<Py<PyAny>, Fault> = match finished.result {
            Ok(Answer::Committed(copies)) => Ok(copies.into_py_any(py)?),
            Ok(Answer::Reply(found)) => reply(&found),
            Err(error) => Err(error.into()),
        };
        let error = |fault| exception(py, fault).into_value(py).into_any();
        Ok(Event {
            token: finished.token,
            result: result.unwrap_or_else(error),
        })
    }
}

/// The answer to a read.
#[pyclass(frozen, get_all, module = "pmnet")]
pub(crate) struct Reading {
    /// The newest update of the key; None: the device does not know it.
    payload: Option<Py<PyBytes>>,
    /// The epoch of the chain.
    epoch: u32,
    /// The order of that update, or the one that a server must have applied to know the key.
    order: u64,
}

impl Reading {
    fn of(py: Python<'_>, answer: &ReadAnswer) -> PyResult<Reading> {
        let found = pmnet_bindings::Reading::of(answer);
        let found = found.map_err(|fault| exception(py, fault))?;
        let payload = found
            .payload
            .map(|payload| PyBytes::new(py, payload).unbind());
        Ok(Reading {
            payload,
            epoch: found.epoch,
            order: found.order,
        })
    }
}
