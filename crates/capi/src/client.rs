//! Clients of the C interface. Each has one session (`pmnet_client::Session`).

use crate::fault::*;
use crate::memory::{self, Options, bytes, pmnet_bytes, put, text};
use crate::table::{self, Kind};
use ::pmnet_client::{Answer, Finished, Session};
use pmnet_bindings::{ClientOptions, Fault, Reading};
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Flag of a bypass that only reads: the server may execute it at any time, and more than once.
pub const PMNET_READ_ONLY: u32 = 1;
/// The read was answered with the newest update of the key.
pub const PMNET_HIT: u32 = 1;
/// The read was answered with the order up to which a server must have applied the log to know the key.
pub const PMNET_MISS: u32 = 2;

/// A client, which is one session of a shard. The handle {0} is invalid.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pmnet_client {
    /// Number of the client's object.
    pub id: u64,
}

/// Options of a client. Set all bytes to zero first; a field that is 0 or NULL has its default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pmnet_client_options {
    /// sizeof(struct pmnet_client_options).
    pub size: u32,
    /// Number of the shard.
    pub shard: u32,
    /// Addresses of the chain's devices, head first: "HOST:PORT", with commas between them. No default.
    pub devices: *const c_char,
    /// Minimum number of devices that must hold an update. If an acknowledgement states fewer devices, the session is
    /// closed with PMNET_E_COPIES. Default: 1.
    pub copies_min: u32,
    /// Time limit of each call, in milliseconds. Default: 10,000.
    pub timeout_ms: u32,
    /// Maximum number of calls in flight. Default: 4,096.
    pub calls_max: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Path of the program's key file (pmnet key front). Default: no key; then the devices must have no keys either.
    pub key_file: *const c_char,
}

// SAFETY: the struct is repr(C), its first field is `size`, and zeros are valid.
unsafe impl Options for pmnet_client_options {}

/// A call that was started and has ended.
#[repr(C)]
#[derive(Debug)]
pub struct pmnet_event {
    /// The token by which the caller knows the call.
    pub token: u64,
    /// For an update: the number of devices that hold it; 0: the log was full, and the server has applied the update.
    /// For a bypass: 0. For a failed call: a code PMNET_E_.
    pub result: c_int,
    /// Always 0.
    pub reserved: u32,
    /// The reply to a bypass. The caller owns the reply, and must free it with pmnet_bytes_free().
    pub reply: pmnet_bytes,
}

/// The answer to a read.
#[repr(C)]
#[derive(Debug)]
pub struct pmnet_reading {
    /// PMNET_HIT or PMNET_MISS.
    pub kind: u32,
    /// The epoch of the device's chain.
    pub epoch: u32,
    /// For PMNET_HIT: the order of the update. For PMNET_MISS: the order up to which a server must have applied the
    /// log.
    pub order: u64,
    /// For PMNET_HIT: the payload of the update. The caller owns the payload, and must free it with pmnet_bytes_free().
    pub payload: pmnet_bytes,
}

/// The session that belongs to a handle.
pub(crate) struct ClientObject(Session);

impl Kind for ClientObject {
    const NAME: &'static str = "client";
}

/// Converts a wait in milliseconds. A negative value means a wait without limit.
pub(crate) fn wait(milliseconds: c_int) -> Duration {
    // Longer than the life of any process, and short enough to be added to any clock.
    const FOR_EVER: Duration = Duration::from_secs(1 << 32);
    u64::try_from(milliseconds).map_or(FOR_EVER, Duration::from_millis)
}

/// Returns `default` if the value is 0.
pub(crate) fn or(value: u32, default: u32) -> u32 {
    if value == 0 { default } else { value }
}

fn copies(count: u8) -> c_int {
    c_int::from(count)
}

/// Opens a client. Does not wait for a device: only the first call shows whether a device can be reached.
///
/// Fills in *client, which the caller must close with pmnet_client_close(). The options, and the texts to which they
/// point, are copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pmnet_client_open(
    options: *const pmnet_client_options,
    client: *mut pmnet_client,
) -> c_int {
    entry(|| {
        crate::log::begin();
        if client.is_null() {
            return Err(memory::no_place());
        }
        // SAFETY: the caller passes NULL, or options that state their size.
        let options = unsafe { memory::options(options)? };
        // SAFETY: the caller passes NULL or a text, which lives during this call.
        let devices = unsafe { text(options.devices, "devices")? };
        let timeout = match options.timeout_ms {
            0 => ClientOptions::TIMEOUT,
            milliseconds => Duration::from_millis(milliseconds.into()),
        };
        let wanted = ClientOptions {
            devices: devices.to_owned(),
            shard: options.shard,
            copies_min: or(options.copies_min, ClientOptions::COPIES_MIN),
            timeout,
            calls_max: or(options.calls_max, ClientOptions::CALLS_MAX),
            // SAFETY: as above.
            key_file: unsafe { memory::path(options.key_file, "key_file")? },
        };
        let session = wanted.open()?;
        let id = table::insert(ClientObject(session))?;
        // SAFETY: the pointer is not NULL, and the caller owns the memory.
        unsafe { put(client, pmnet_client { id })? };
        Ok(PMNET_OK)
    })
}

/// Ends the session after all started calls, and closes the client. Afterwards the handle is invalid, even if the
/// function fails.
///
/// Waits for the devices at most for the time limit of one call. The results of calls in flight are lost.
/// PMNET_E_DATA_LOSS and PMNET_E_COPIES: the session has ended with this error.
#[unsafe(no_mangle)]
pub extern "C" fn pmnet_client_close(client: pmnet_client) -> c_int {
    entry(|| {
        let ClientObject(session) = table::remove(client.id)?;
        session.end()?;
        Ok(PMNET_OK)
    })
}

/// Returns the hash of a key, for the argument key_hash of other functions.
///
/// A key of NULL with len 0 is the empty key. If key is NULL and len is not 0, the result is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pmnet_key_hash(key: *const c_void, len: usize) -> u64 {
    let mut hash = 0;
    entry(|| {
        // SAFETY: the caller passes a key of this length.
        hash = pmnet_bindings::key_hash(Some(unsafe { bytes(key, len)? }));
        Ok(PMNET_OK)
    });
    hash
}

/// Sends an update, and waits until it is durable in the devices. After a success the update is not lost and not
/// applied twice.
///
/// Returns the number of devices that hold the update; 0: the log was full, and the server has applied the update.
/// key_hash is the hash of the key that the update changes; 0 if it changes several keys. The payload is copied. The
/// payload may have up to 16 MiB of any bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pmnet_update(
    client: pmnet_client,
    key_hash: u64,
    payload: *const c_void,
    len: usize,
) -> c_int {
    entry(|| {
        // SAFETY: the caller passes a payload of this length.
        let payload = pmnet_bindings::payload(unsafe { bytes(payload, len)? })?;
        table::with(client.id, |ClientObject(session)| {
            Ok(copies(session.update(payload, key_hash)?))
        })
    })
}

/// Starts an update, as pmnet_update() does, and does not wait. The next call of pmnet_client_next() sends the update,
/// together with all other started calls. When the update has ended, pmnet_client_next() returns an event with this
/// token.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pmnet_update_start(
    client: pmnet_client,
    token: u64,
    key_hash: u64,
    payload: *const c_void,
    len: usize,
) -> c_int {
    entry(|| {
        // SAFETY: the caller passes a payload of this length.
        let payload = pmnet_bindings::payload(unsafe { bytes(payload, len)? })?;
        table::with(client.id, |ClientObject(session)| {
            session.update_start(payload, key_hash, token)?;
            Ok(PMNET_OK)
        })
    })
}

fn read_only(flags: u32) -> Result<bool, Fault> {
    if flags & !PMNET_READ_ONLY != 0 {
        return Err(Fault::argument(format!("there are no flags {flags:#x}")));
    }
    Ok(flags & PMNET_READ_ONLY != 0)
}

/// Sends a request to the server, and waits for its reply. The server first applies every update that was acknowledged
/// before, of any client. The server executes the request once; with PMNET_READ_ONLY in flags, the server may execute
/// the request more than once.
///
/// Fills in *reply. The caller owns the reply, and must free it with pmnet_bytes_free(). The payload is copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pmnet_bypass(
    client: pmnet_client,
    key_hash: u64,
    flags: u32,
    payload: *const c_void,
    len: usize,
    reply: *mut pmnet_bytes,
) -> c_int {
    entry(|| {
        if reply.is_null() {
            return Err(memory::no_place());
        }
        // SAFETY: the caller passes a payload of this length.
        let payload = pmnet_bindings::payload(unsafe { bytes(payload, len)? })?;
        let read_only = read_only(flags)?;
        let found = table::with(client.id, |ClientObject(session)| {
            Ok(session.bypass(payload, key_hash, read_only)?)
        })?;
        let found = pmnet_bytes::copied(pmnet_bindings::reply(&found)?);
        // SAFETY: the pointer is not NULL, and the caller owns the memory.
        unsafe { put(reply, found)? };
        Ok(PMNET_OK)
    })
}

/// Starts a request, as pmnet_bypass() does, and does not wait. When the request has ended, pmnet_client_next() returns
/// an event with this token and the reply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pmnet_bypass_start(
    client: pmnet_client,
    token: u64,
    key_hash: u64,
    flags: u32,
    payload: *const c_void,
    len: usize,
) -> c_int {
    entry(|| {
        // SAFETY: the caller passes a payload of this length.
        let payload = pmnet_bindings::payload(unsafe { bytes(payload, len)? })?;
        let read_only = read_only(flags)?;
        table::with(client.id, |ClientObject(session)| {
            session.bypass_start(payload, key_hash, read_only, token)?;
            Ok(PMNET_OK)
        })
    })
}

/// Returns a descriptor for poll(). The descriptor is readable while pmnet_client_next() has work, for example started
/// calls to send. When the descriptor is readable, call pmnet_client_next() until this function returns PMNET_AGAIN.
/// The descriptor belongs to the library. The descriptor stays the same, and is closed with the client.
#[unsafe(no_mangle)]
pub extern "C" fn pmnet_client_fd(client: pmnet_client) -> c_int {
    entry(|| {
        table::with(client.id, |ClientObject(session)| {
            let fd = session
                .poll_fd()
                .map_err(|error| Fault::new(pmnet_bindings::Kind::System, error))?;
            Ok(fd.as_raw_fd())
        })
    })
}

fn event(finished: Finished) -> pmnet_event {
    let outcome = finished.result.map_err(Fault::from).and_then(|answer| {
        Ok(match answer {
            Answer::Committed(count) => (copies(count), pmnet_bytes::NONE),
            Answer::Reply(found) => (
                PMNET_OK,
                pmnet_bytes::copied(pmnet_bindings::reply(&found)?),
            ),
        })
    });
    // The text of the error is kept for pmnet_last_error(), as after a call that blocks.
    let (result, reply) = outcome.unwrap_or_else(|fault| (note(&fault), pmnet_bytes::NONE));
    pmnet_event {
        token: finished.token,
        result,
        reserved: 0,
        reply,
    }
}

/// Sends all started calls, and returns the next call that has ended. Waits at most wait_ms milliseconds; if wait_ms is
/// negative, without limit.
///
/// Returns PMNET_OK and fills in *event, whose reply the caller owns. Returns PMNET_AGAIN if no call has ended within
/// wait_ms, or if a signal arrived. An error means that the session has ended. Before the error, each started call has
/// had its event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pmnet_client_next(
    client: pmnet_client,
    wait_ms: c_int,
    event: *mut pmnet_event,
) -> c_int {
    entry(|| {
        if event.is_null() {
            return Err(memory::no_place());
        }
        let finished = table::with(client.id, |ClientObject(session)| {
            Ok(session.next(wait(wait_ms))?)
        })?;
        let Some(finished) = finished else {
            return Ok(PMNET_AGAIN);
        };
        // SAFETY: the pointer is not NULL, and the caller owns the memory.
        unsafe { put(event, self::event(finished))? };
        Ok(PMNET_OK)
    })
}

/// Asks the head device, not the server, about the key with this hash. The answer is either the newest update of the
/// key (PMNET_HIT), or the order up to which a server must have applied the log to know the key (PMNET_MISS).
/// PMNET_MISS is always possible. Another key may have the same hash, so the program must compare the key.
///
/// Allowed only while no call of this client is in flight. Fills in *reading. The caller owns the payload of the
/// reading, and must free it with pmnet_bytes_free().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pmnet_read(
    client: pmnet_client,
    key_hash: u64,
    reading: *mut pmnet_reading,
) -> c_int {
    entry(|| {
        if reading.is_null() {
            return Err(memory::no_place());
        }
        let key_hash = Some(key_hash).filter(|hash| *hash != 0);
        let answer = table::with(client.id, |ClientObject(session)| {
            Ok(session.read(key_hash)?)
        })?;
        let answer = Reading::of(&answer)?;
        let kind = match answer.payload {
            Some(_) => PMNET_HIT,
            None => PMNET_MISS,
        };
        let found = pmnet_reading {
            kind,
            epoch: answer.epoch,
            order: answer.order,
            payload: answer
                .payload
                .map_or(pmnet_bytes::NONE, pmnet_bytes::copied),
        };
        // SAFETY: the pointer is not NULL, and the caller owns the memory.
        unsafe { put(reading, found)? };
        Ok(PMNET_OK)
    })
}
