//! The error codes and their texts, and the boundary of the C functions, which no panic crosses.

use pmnet_bindings::{Fault, Kind};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Success.
pub const PMNET_OK: c_int = 0;
/// No result is available yet: the time has passed, or a signal arrived. This is not an error; call again.
pub const PMNET_AGAIN: c_int = 1;
/// An argument is NULL or invalid.
pub const PMNET_E_ARGUMENT: c_int = -1;
/// The handle is invalid: its object was closed, was never opened, or is of the other kind.
pub const PMNET_E_HANDLE: c_int = -2;
/// Another thread is using the object at this moment.
pub const PMNET_E_THREAD: c_int = -3;
/// The object was opened in another process, before a fork.
pub const PMNET_E_FORK: c_int = -4;
/// The operating system refused a socket, memory or a thread.
pub const PMNET_E_SYSTEM: c_int = -5;
/// Too many calls are in flight: take the results of some first.
pub const PMNET_E_FULL: c_int = -6;
/// A payload or a reply is longer than 16 MiB, or all rows together are too long for one blob.
pub const PMNET_E_LENGTH: c_int = -7;
/// The session is closed, because the device no longer knows it. Open another client.
pub const PMNET_E_CLOSED: c_int = -8;
/// Acknowledged updates are lost. The error text says which.
pub const PMNET_E_DATA_LOSS: c_int = -9;
/// Fewer devices hold the updates than copies_min requires.
pub const PMNET_E_COPIES: c_int = -10;
/// The call has no effect, and will never have one.
pub const PMNET_E_FAILED: c_int = -11;
/// The outcome is unknown: the call takes effect once or not at all.
pub const PMNET_E_UNKNOWN: c_int = -12;
/// The server refused the request, or does not accept payloads of programs. The error text has the reason.
pub const PMNET_E_REFUSED: c_int = -13;
/// A read was requested while other calls of the session were in flight.
pub const PMNET_E_PENDING: c_int = -14;
/// No device answered a read in time. Ask the server with a bypass.
pub const PMNET_E_NO_ANSWER: c_int = -15;
/// The stored rows are damaged, or come from different moments.
pub const PMNET_E_ROWS: c_int = -16;
/// The stored rows belong to another shard.
pub const PMNET_E_SHARD: c_int = -17;
/// The batch was confirmed before, or is not the present batch.
pub const PMNET_E_ORDER: c_int = -18;
/// A reply is missing, was given twice, or was given for an update.
pub const PMNET_E_REPLY: c_int = -19;
/// The server has ended. The error text has the reason and advice.
pub const PMNET_E_STOPPED: c_int = -20;
/// The library has a bug. Please report it.
pub const PMNET_E_BUG: c_int = -21;

/// Returns the error code for a kind.
const fn code(kind: Kind) -> c_int {
    match kind {
        Kind::Argument => PMNET_E_ARGUMENT,
        Kind::Handle => PMNET_E_HANDLE,
        Kind::Thread => PMNET_E_THREAD,
        Kind::Fork => PMNET_E_FORK,
        Kind::System => PMNET_E_SYSTEM,
        Kind::Full => PMNET_E_FULL,
        Kind::Length => PMNET_E_LENGTH,
        Kind::Closed => PMNET_E_CLOSED,
        Kind::DataLoss => PMNET_E_DATA_LOSS,
        Kind::Copies => PMNET_E_COPIES,
        Kind::Failed => PMNET_E_FAILED,
        Kind::Unknown => PMNET_E_UNKNOWN,
        Kind::Refused => PMNET_E_REFUSED,
        Kind::Pending => PMNET_E_PENDING,
        Kind::NoAnswer => PMNET_E_NO_ANSWER,
        Kind::Rows => PMNET_E_ROWS,
        Kind::Shard => PMNET_E_SHARD,
        Kind::Order => PMNET_E_ORDER,
        Kind::Reply => PMNET_E_REPLY,
        Kind::Stopped => PMNET_E_STOPPED,
        Kind::Bug => PMNET_E_BUG,
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Keeps the text of an error for [`pmnet_last_error`]. Returns the error's code.
pub(crate) fn note(fault: &Fault) -> c_int {
    let text = fault.text.replace('\0', "?");
    // If the thread is ending, it may already have dropped its copy of `LAST`.
    let _ = LAST.try_with(|last| last.replace(CString::new(text).unwrap_or_default()));
    code(fault.kind)
}

/// Runs the body of a C function. No panic leaves this function.
pub(crate) fn entry(body: impl FnOnce() -> Result<c_int, Fault>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(code)) => code,
        Ok(Err(fault)) => note(&fault),
        Err(_) => note(&Fault::new(
            Kind::Bug,
            "a fault of the library, which stderr has the text of",
        )),
    }
}

const fn text_of(code: c_int) -> &'static CStr {
    match code {
        PMNET_OK => c"success",
        PMNET_AGAIN => c"nothing has come within the time, or a signal came",
        PMNET_E_ARGUMENT => c"an argument is NULL or makes no sense",
        PMNET_E_HANDLE => c"the object is closed, was never opened, or is of the other kind",
        PMNET_E_THREAD => c"another thread is using the object",
        PMNET_E_FORK => c"the object was opened before a fork, in another process",
        PMNET_E_SYSTEM => c"the system refused a socket, memory or a thread",
        PMNET_E_FULL => c"too many calls are under way",
        PMNET_E_LENGTH => c"longer than 16 MiB, or all rows are too long for one blob",
        PMNET_E_CLOSED => c"the session is closed",
        PMNET_E_DATA_LOSS => c"acknowledged updates are lost",
        PMNET_E_COPIES => c"fewer devices hold the updates than were asked for",
        PMNET_E_FAILED => c"the call has no effect, and never will",
        PMNET_E_UNKNOWN => c"the outcome is unknown: the call takes effect at most once",
        PMNET_E_REFUSED => c"the server refused the request",
        PMNET_E_PENDING => c"calls of the session are under way: read after them",
        PMNET_E_NO_ANSWER => c"no device has answered the read: ask by a bypass",
        PMNET_E_ROWS => c"the stored rows are damaged, or do not belong together",
        PMNET_E_SHARD => c"the stored rows are those of another shard",
        PMNET_E_ORDER => c"the batch is not the present one",
        PMNET_E_REPLY => c"a reply is missing, was given twice, or is for an update",
        PMNET_E_STOPPED => c"the server has ended",
        PMNET_E_BUG => c"a fault of the library",
        _ => c"this is no code of pmnet",
    }
}

/// Returns a text for a code. The text is constant, and must not be freed.
#[unsafe(no_mangle)]
pub extern "C" fn pmnet_error_text(code: c_int) -> *const c_char {
    text_of(code).as_ptr()
}

/// Returns a text about the last failure in this thread; an empty text if there was none. The text belongs to the
/// library, and is valid until the next failure in this thread.
#[unsafe(no_mangle)]
pub extern "C" fn pmnet_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

/// Returns the version of the library, as in "0.1.0". The text is constant, and must not be freed.
#[unsafe(no_mangle)]
pub extern "C" fn pmnet_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
