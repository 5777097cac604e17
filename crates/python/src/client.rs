//! Clients for Python. Each has one session (`pmnet_client::Session`).

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

/// The exception that a signal handler has raised during a call.
type Raised = Arc<Mutex<Option<PyErr>>>;

/// Runs signal handlers. Returns whether a handler has raised an exception.
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
    /// Makes a call that blocks. Meanwhile the interpreter is released.
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

/// Returns the exception for a failed call. If a signal handler ended the call, returns the exception of this handler.
fn of_call(py: Python<'_>, raised: &Raised, error: SessionError) -> PyErr {
    let given_up = matches!(error, SessionError::Interrupted);
    let mut raised = raised.lock().unwrap_or_else(PoisonError::into_inner);
    let raised = raised.take().filter(|_| given_up);
    raised.unwrap_or_else(|| exception(py, error))
}

/// Converts the argument for the devices, which is one text or several texts.
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

// The signature contains these numbers as literals, because `help` shows only literal defaults.
const _: () = assert!(ClientOptions::COPIES_MIN == 1 && ClientOptions::CALLS_MAX == 4096);
const _: () = assert!(ClientOptions::TIMEOUT.as_secs() == 10);

/// A client, which is one session of a shard. Only one thread at a time may use a client.
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
        // The interpreter is released, because the names of the devices may have to be resolved.
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

    /// Sends an update, and waits until it is durable in the devices. After a success the update is not lost and not
    /// applied twice. Returns the number of devices that hold the update; 0: the log was full, and the server has
    /// applied the update.
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

    /// Sends a request to the server, and returns its reply. The server first applies every update that was
    /// acknowledged before, of any client. The server executes the request once; if the request only reads, the server
    /// may execute the request more than once.
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

    /// Asks the head device, not the server, for the newest update of a key. If the head has none, the answer is the
    /// order up to which a server must have applied the log to know the key. Allowed only while no call of this client
    /// is in flight. Another key may have the same hash, so the program must compare the key.
    #[pyo3(signature = (key=None))]
    fn read(&self, py: Python<'_>, key: Option<&Bound<'_, PyAny>>) -> PyResult<Reading> {
        let key = read_key(key)?;
        let answer = self
            .open
            .with(|open| open.call(py, |session| session.read(key)))?;
        Reading::of(py, &answer)
    }

    /// Starts an update, and does not wait. The next call of next() sends the update. When the update has ended, next()
    /// returns an event with this token.
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

    /// Starts a request, and does not wait. When the request has ended, next() returns an event with this token and the
    /// reply.
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

    /// Sends all started calls, and returns the next call that has ended. Waits at most this many seconds; None:
    /// without limit. Returns None if no call has ended within this time.
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

    /// Returns a descriptor that can be polled. The descriptor is readable while next() has work. When the descriptor
    /// is readable, call next(0) until next() returns None. The descriptor belongs to the client, and is closed with
    /// it.
    fn fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        self.open.with(|open| {
            let fd = open.session.poll_fd();
            let fd = fd.map_err(|error| exception(py, SessionError::Io(error)))?;
            Ok(fd.as_raw_fd())
        })
    }

    /// Ends the session after all started calls, and closes the client, even if this fails. A second call has no
    /// effect. In a child of the process that opened the client, the call has no effect either.
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

    /// Sends all started calls, and returns the calls that have ended. The list is empty only if no work is left. For
    /// AsyncClient.
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

    /// Returns the answer to the started read, if it has arrived; for AsyncClient.
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

    /// Returns whether this process is a child of the process that opened the client; for AsyncClient.
    fn _is_foreign(&self) -> bool {
        self.open.is_foreign()
    }

    /// Closes the client without waiting, because its session is over or will expire; for AsyncClient.
    fn _forget(&self) -> PyResult<()> {
        self.open.take().map(drop)
    }
}

/// Returns the exception of closing. If the body of the `with` has failed, returns none, so that the caller gets the
/// error of the body.
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

/// Returns the hash of a key. Without a key (a read about all keys), returns none.
fn read_key(key: Option<&Bound<'_, PyAny>>) -> PyResult<Option<u64>> {
    key.map(|key| lent::key_hash(Some(key))).transpose()
}

/// A call that was started and has ended.
#[pyclass(frozen, get_all, module = "pmnet")]
pub(crate) struct Event {
    /// The token by which the caller knows the call.
    token: u64,
    /// For an update: the number of devices that hold it. For a bypass: the reply. For a failed call: the exception.
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
    /// The newest update of the key; None: the device does not have it.
    payload: Option<Py<PyBytes>>,
    /// The epoch of the device's chain.
    epoch: u32,
    /// The order of the newest update. If there is none: the order up to which a server must have applied the log to
    /// know the key.
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
