//! Servers of the C interface, whose store is the program (`pmnet_server::program`).

use crate::client::{or, wait};
use crate::fault::*;
use crate::memory::{self, Options, bytes, path, put, text};
use crate::table::{self, Kind};
use ::pmnet_server::program::{Batch, Item, Kind as Asked, Program, ProgramError};
use bytes::Bytes;
use pmnet_bindings::{Fault, ServerOptions, Stored};
use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr;

/// An update. The client that sent the update already knows that the update is durable, and gets no reply.
pub const PMNET_UPDATE: u32 = 1;
/// A bypass that may change the program's data. The client that sent the bypass gets a reply, which is stored with the
/// rows.
pub const PMNET_BYPASS: u32 = 2;
/// A bypass that must not change anything. The client that sent the bypass gets a reply.
pub const PMNET_READ: u32 = 3;

/// A server. The handle {0} is invalid.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pmnet_server {
    /// Number of the server's object.
    pub id: u64,
}

/// A row that the program stores for the library. The row has a key of at most 32 bytes, and a value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pmnet_row {
    /// The key. The key may contain any bytes.
    pub key: *const c_void,
    /// Length of the key in bytes.
    pub key_len: usize,
    /// The value; NULL: the row must be deleted.
    pub value: *const c_void,
    /// Length of the value in bytes.
    pub value_len: usize,
}

/// Options of a server. Set all bytes to zero first; a field that is 0 or NULL has its default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pmnet_server_options {
    /// sizeof(struct pmnet_server_options).
    pub size: u32,
    /// Number of the shard.
    pub shard: u32,
    /// UDP address "HOST:PORT" of the server. The last device of the chain sends to this address. No default.
    pub listen: *const c_char,
    /// Maximum number of log entries in one batch. Default: 1,024.
    pub batch_entries_max: u32,
    /// Maximum number of bytes of payloads in one batch. A batch with a single entry may exceed this size. Default: 4
    /// MiB.
    pub batch_bytes_max: u32,
    /// All rows that the program has stored. NULL if the program has never stored rows, or passes a watermark.
    pub rows: *const pmnet_row,
    /// Number of rows.
    pub rows_count: usize,
    /// The result of pmnet_server_watermark() for the last stored batch. NULL or zeros if no batch was stored. NULL if
    /// the program passes rows.
    pub watermark: *const c_void,
    /// Length of the memory at watermark in bytes. Bytes after the watermark itself are ignored.
    pub watermark_len: usize,
    /// Path of the cluster's key file (pmnet key new). Default: no key; then the devices must have no keys either.
    pub key_file: *const c_char,
}

// SAFETY: the struct is repr(C), its first field is `size`, and zeros are valid.
unsafe impl Options for pmnet_server_options {}

/// One update or bypass.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pmnet_item {
    /// PMNET_UPDATE, PMNET_BYPASS or PMNET_READ.
    pub kind: u32,
    /// Always 0.
    pub reserved: u32,
    /// Number of the client's session.
    pub session: u64,
    /// For an update: its number in the session. For a bypass: the request's id. Both numbers rise within a session.
    pub number: u64,
    /// For an update: its order in the log. For a bypass, and for an update for which the log was full: the order up to
    /// which the log was applied before it.
    pub order: u64,
    /// The client's bytes. The bytes belong to the library, and are valid until the batch is confirmed or given back.
    pub payload: *const c_void,
    /// Length of the payload in bytes.
    pub len: usize,
}

/// The program's next work, which it must store in one transaction. The items are either updates or bypasses, in the
/// order in which they take effect.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pmnet_batch {
    /// Number of the batch. pmnet_server_done() needs it.
    pub number: u64,
    /// The items. The items belong to the library, and are valid until the batch is confirmed or given back.
    pub items: *const pmnet_item,
    /// Number of items. If the number is 0, the program must only store rows.
    pub count: usize,
}

/// The server that belongs to a handle, and the memory of the present batch, which the program may read.
pub(crate) struct ServerObject {
    program: Program,
    /// The batch, which owns the payloads.
    batch: Option<Batch>,
    items: Vec<pmnet_item>,
    rows: Vec<pmnet_row>,
    watermark: Vec<u8>,
}

// SAFETY: the pointers in `items` and `rows` point into `batch` and `program` of the same object. If the
// object moves, `batch` and `program` move too, but their data on the heap stays in place.
unsafe impl Send for ServerObject {}

impl ServerObject {
    /// Ends the program's access to the memory of the batch.
    fn clear(&mut self) {
        self.items.clear();
        self.rows.clear();
        self.watermark = Vec::new();
        self.batch = None;
    }
}

impl Kind for ServerObject {
    const NAME: &'static str = "server";
}

/// While this value exists, all signals are blocked in this thread. A thread that the library starts meanwhile inherits
/// the signal mask, so it also has all signals blocked.
struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    fn begin() -> SignalsBlocked {
        let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
        let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: both sets can be written, and the first set is filled before it is read. Signals for faults of this
        // thread itself are delivered even if they are blocked.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            SignalsBlocked(before.assume_init())
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the set was filled in by the kernel.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

fn open(options: &pmnet_server_options) -> Result<Program, Fault> {
    let wanted = ServerOptions {
        // SAFETY: the caller passes NULL or a text, which lives during this call.
        listen: unsafe { text(options.listen, "listen")? }.to_owned(),
        shard: options.shard,
        batch_entries_max: or(options.batch_entries_max, ServerOptions::BATCH_ENTRIES_MAX),
        batch_bytes_max: or(options.batch_bytes_max, ServerOptions::BATCH_BYTES_MAX),
        // SAFETY: as above.
        key_file: unsafe { path(options.key_file, "key_file")? },
    };
    let config = wanted.config()?;
    let stored = stored(options)?;
    let _blocked = SignalsBlocked::begin();
    stored.open(config)
}

/// Copies the rows or the watermark that the program has stored.
fn stored(options: &pmnet_server_options) -> Result<Stored, Fault> {
    // SAFETY: the caller passes a watermark of this length.
    let watermark = unsafe { bytes(options.watermark, options.watermark_len)? };
    if options.rows_count > 0 && options.rows.is_null() {
        return Err(Fault::argument("rows is NULL, and rows_count is not 0"));
    }
    if !watermark.is_empty() {
        if options.rows_count > 0 {
            return Err(Stored::twice());
        }
        return Ok(Stored::Watermark(Bytes::copy_from_slice(watermark)));
    }
    let mut rows = Vec::with_capacity(options.rows_count.min(1 << 20));
    for at in 0..options.rows_count {
        // SAFETY: the caller passes this many rows.
        let row = unsafe { options.rows.add(at).read() };
        // SAFETY: the caller passes rows whose keys and values have these lengths.
        let (key, value) = unsafe {
            (
                bytes(row.key, row.key_len)?,
                bytes(row.value, row.value_len)?,
            )
        };
        rows.push((key.to_vec(), Bytes::copy_from_slice(value)));
    }
    Ok(Stored::Rows(rows))
}

/// Opens a server with the rows that the program has stored. Starts a thread of the library, in which all signals are
/// blocked.
///
/// Refuses rows that are damaged, incomplete or of another shard; in this case nothing has changed. Fills in *server,
/// which the caller must close with pmnet_server_close(). The options, and the data to which they point, are copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pmnet_server_open(
    options: *const pmnet_server_options,
    server: *mut pmnet_server,
) -> c_int {
    entry(|| {
        crate::log::begin();
        if server.is_null() {
            return Err(memory::no_place());
        }
        // SAFETY: the caller passes NULL, or options that state their size.
        let options = unsafe { memory::options(options)? };
        let id = table::insert(ServerObject {
            program: open(&options)?,
            batch: None,
            items: Vec::new(),
            rows: Vec::new(),
            watermark: Vec::new(),
        })?;
        // SAFETY: the pointer is not NULL, and the caller owns the memory.
        unsafe { put(server, pmnet_server { id })? };
        Ok(PMNET_OK)
    })
}

/// Closes the server. If a batch is not confirmed and its rows are not stored, the next server gets the batch again.
#[unsafe(no_mangle)]
pub extern "C" fn pmnet_server_close(server: pmnet_server) -> c_int {
    entry(|| {
        drop(table::remove::<ServerObject>(server.id)?);
        Ok(PMNET_OK)
    })
}

/// Returns the UDP port of the server. If the server was opened with port 0, the system has chosen the port.
#[unsafe(no_mangle)]
pub extern "C" fn pmnet_server_port(server: pmnet_server) -> c_int {
    entry(|| {
        table::with(server.id, |server: &mut ServerObject| {
            Ok(c_int::from(server.program.address().port()))
        })
    })
}

/// Returns a descriptor for poll(). The descriptor is readable while pmnet_server_next() has a result. The descriptor
/// belongs to the library, and is closed with the server.
#[unsafe(no_mangle)]
pub extern "C" fn pmnet_server_fd(server: pmnet_server) -> c_int {
    entry(|| {
        table::with(server.id, |server: &mut ServerObject| {
            let fd: RawFd = server.program.raw_fd();
            Ok(fd)
        })
    })
}

fn item(item: &Item) -> pmnet_item {
    pmnet_item {
        kind: match item.kind {
            Asked::Update => PMNET_UPDATE,
            Asked::Bypass => PMNET_BYPASS,
            Asked::Read => PMNET_READ,
        },
        reserved: 0,
        session: item.source.session,
        number: item.source.number,
        order: item.source.order,
        payload: item.payload.as_ptr().cast(),
        len: item.payload.len(),
    }
}

/// Takes the next batch. Waits at most wait_ms milliseconds; if wait_ms is negative, without limit.
///
/// Returns PMNET_OK and fills in *batch. The items of the batch belong to the library until the batch is confirmed or
/// given back. Returns PMNET_AGAIN if no batch has arrived within wait_ms, or if a signal arrived. Fails with
/// PMNET_E_ORDER if the batch before is not confirmed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pmnet_server_next(
    server: pmnet_server,
    wait_ms: c_int,
    batch: *mut pmnet_batch,
) -> c_int {
    entry(|| {
        if batch.is_null() {
            return Err(memory::no_place());
        }
        table::with(server.id, |server: &mut ServerObject| {
            let Some(found) = server.program.next(wait(wait_ms))? else {
                return Ok(PMNET_AGAIN);
            };
            server.items = found.items.iter().map(item).collect();
            let lent = pmnet_batch {
                number: found.number,
                items: server.items.as_ptr(),
                count: server.items.len(),
            };
            server.batch = Some(found);
            // SAFETY: the pointer is not NULL, and the caller owns the memory.
            unsafe { put(batch, lent)? };
            Ok(PMNET_OK)
        })
    })
}

/// Sets the reply to a bypass of the present batch. item is the index of the bypass in the batch, counted from 0. The
/// reply is copied. The reply may have up to 16 MiB of any bytes. Set the replies of all bypasses of the batch before you
/// ask for its rows. An update has no reply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pmnet_server_reply(
    server: pmnet_server,
    item: usize,
    reply: *const c_void,
    len: usize,
) -> c_int {
    entry(|| {
        // SAFETY: the caller passes a reply of this length.
        let reply = unsafe { bytes(reply, len)? };
        table::with(server.id, |server: &mut ServerObject| {
            server.program.reply(item, reply)?;
            Ok(PMNET_OK)
        })
    })
}

/// Fills in the rows that the program must store in the same transaction as the batch. A row with a value replaces the
/// row with this key. If the value of a row is NULL, the row must be deleted. Each key occurs once. If the batch only
/// reads, there are no rows.
///
/// The rows, and the bytes to which they point, belong to the library. Rows and bytes are valid until the batch is
/// confirmed or given back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pmnet_server_rows(
    server: pmnet_server,
    rows: *mut *const pmnet_row,
    count: *mut usize,
) -> c_int {
    entry(|| {
        if rows.is_null() || count.is_null() {
            return Err(memory::no_place());
        }
        table::with(server.id, |server: &mut ServerObject| {
            let found = server.program.rows()?;
            if server.rows.is_empty() {
                server.rows = found
                    .iter()
                    .map(|(key, value)| pmnet_row {
                        key: key.as_ptr().cast(),
                        key_len: key.len(),
                        value: value
                            .as_ref()
                            .map_or(ptr::null(), |value| value.as_ptr().cast()),
                        value_len: value.as_ref().map_or(0, |value| value.len()),
                    })
                    .collect();
            }
            // SAFETY: no pointer is NULL, and the caller owns the memory.
            unsafe {
                put(rows, server.rows.as_ptr())?;
                put(count, server.rows.len())?;
            }
            Ok(PMNET_OK)
        })
    })
}

/// Fills in all rows, as they are after the present batch, in one blob (the watermark). The watermark is for a program
/// that stores a single value: the new value replaces the old value in the same transaction as the batch. The watermark
/// takes time and space for all sessions at each batch: about 100 bytes for each session, and its last reply. If the
/// watermark is longer than 64 MiB, the result is PMNET_E_LENGTH, and the program must store rows.
///
/// The bytes belong to the library. The bytes are valid until the batch is confirmed or given back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pmnet_server_watermark(
    server: pmnet_server,
    watermark: *mut *const c_void,
    len: *mut usize,
) -> c_int {
    entry(|| {
        if watermark.is_null() || len.is_null() {
            return Err(memory::no_place());
        }
        table::with(server.id, |server: &mut ServerObject| {
            if server.watermark.is_empty() {
                server.watermark = server.program.blob()?;
            }
            // SAFETY: no pointer is NULL, and the caller owns the memory.
            unsafe {
                put(watermark, server.watermark.as_ptr().cast())?;
                put(len, server.watermark.len())?;
            }
            Ok(PMNET_OK)
        })
    })
}

/// Confirms the present batch: the program has stored it durably, together with its rows or its watermark. The devices
/// may then drop its entries, and clients get their replies.
///
/// Fails with PMNET_E_ORDER if the batch was confirmed before, if it is not the present batch, or if its rows were not
/// requested. Fails with PMNET_E_REPLY if a bypass has no reply.
#[unsafe(no_mangle)]
pub extern "C" fn pmnet_server_done(server: pmnet_server, batch: u64) -> c_int {
    entry(|| {
        table::with(server.id, |server: &mut ServerObject| {
            let done = server.program.done(batch);
            if matches!(done, Ok(()) | Err(ProgramError::Stopped(_))) {
                server.clear();
            }
            done?;
            Ok(PMNET_OK)
        })
    })
}

/// Gives the present batch back. The program must have executed no part of the batch, and must not execute it later.
/// The batch is offered again after a pause, perhaps with more items. If a program does not know whether its
/// transaction took place, it must not call this function. Instead, the program must close the server, and open it with
/// the rows that it finds stored.
#[unsafe(no_mangle)]
pub extern "C" fn pmnet_server_undone(server: pmnet_server, batch: u64) -> c_int {
    entry(|| {
        table::with(server.id, |server: &mut ServerObject| {
            let undone = server.program.undone(batch);
            if matches!(undone, Ok(()) | Err(ProgramError::Stopped(_))) {
                server.clear();
            }
            undone?;
            Ok(PMNET_OK)
        })
    })
}
