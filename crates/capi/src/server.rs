//! Servers that a program pulls from (`pmnet_server::program`).

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

/// An update: its client knows that it is durable, and waits for no reply.
pub const PMNET_UPDATE: u32 = 1;
/// A bypass that may change the program's data. It wants a reply, which is stored with the rows.
pub const PMNET_BYPASS: u32 = 2;
/// A bypass that must not change anything. It wants a reply.
pub const PMNET_READ: u32 = 3;

/// A server. {0} is none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pmnet_server {
    /// Its number.
    pub id: u64,
}

/// A row that the program stores for the library: a key of at most 32 bytes, and a value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pmnet_row {
    /// The key, of any bytes.
    pub key: *const c_void,
    /// Its length in bytes.
    pub key_len: usize,
    /// The value; NULL: the row is to be deleted.
    pub value: *const c_void,
    /// Its length in bytes.
    pub value_len: usize,
}

/// How a server is opened. Begin with all zeros; a field that is 0 or NULL has its default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pmnet_server_options {
    /// sizeof(struct pmnet_server_options).
    pub size: u32,
    /// Number of the shard.
    pub shard: u32,
    /// "HOST:PORT", UDP: where the last device of the chain sends to. No default.
    pub listen: *const c_char,
    /// Entries of the log in one batch, at most. Default: 1,024.
    pub batch_entries_max: u32,
    /// Bytes of payloads in one batch, at most; a batch of one entry may have more. Default: 4 MiB.
    pub batch_bytes_max: u32,
    /// All rows that the program has stored; NULL if it has never stored one, or hands over a watermark.
    pub rows: *const pmnet_row,
    /// How many.
    pub rows_count: usize,
    /// The result of pmnet_server_watermark() for the last batch that was stored; NULL, or zeros, if there was none. NULL if the program
    /// hands over rows.
    pub watermark: *const c_void,
    /// Its length in bytes, or more: the rest does not count.
    pub watermark_len: usize,
    /// File of the cluster's key (pmnet key new). Default: none; the devices must have none either then.
    pub key_file: *const c_char,
}

// SAFETY: it is repr(C), its first field is `size`, and zeros are valid.
unsafe impl Options for pmnet_server_options {}

/// One update or bypass.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pmnet_item {
    /// PMNET_UPDATE, PMNET_BYPASS or PMNET_READ.
    pub kind: u32,
    /// 0.
    pub reserved: u32,
    /// The client's session.
    pub session: u64,
    /// Of an update its number in the session, of a bypass the request's id. Each rises within a session.
    pub number: u64,
    /// The place in the log. Of a bypass, and of an update that found the log full: how far the log was applied before it.
    pub order: u64,
    /// The client's bytes; the library's, and valid until the batch is confirmed or given back.
    pub payload: *const c_void,
    /// How many.
    pub len: usize,
}

/// The program's next work, in one transaction: either updates or bypasses, in the order in which they take effect.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pmnet_batch {
    /// Its number, for pmnet_server_done().
    pub number: u64,
    /// The items; the library's, and valid until the batch is confirmed or given back.
    pub items: *const pmnet_item,
    /// How many. There may be none: then there are only rows to store.
    pub count: usize,
}

/// The server that a handle stands for, and the memory lent to the program for the present batch.
pub(crate) struct ServerObject {
    program: Program,
    /// Keeps the payloads.
    batch: Option<Batch>,
    items: Vec<pmnet_item>,
    rows: Vec<pmnet_row>,
    watermark: Vec<u8>,
}

// SAFETY: the pointers in `items` and `rows` lead into `batch` and `program` of the same object, which move with it and do not
// move what they point at.
unsafe impl Send for ServerObject {}

impl ServerObject {
    /// Takes back what was lent.
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

/// Keeps the signals of the program away from the library's thread as long as it lives: a thread begins with its parent's mask.
struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    fn begin() -> SignalsBlocked {
        let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
        let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: both sets can be written; the first is filled before it is read. Faults of this very thread cannot be blocked, and
        // are delivered all the same.
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

/// Copies what the program has stored.
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

/// Opens a server, with what the program has stored of it. A thread of the library begins, which gets no signals.
///
/// Refuses rows that are damaged, incomplete or another shard's: then nothing was begun. Fills in *server, which is to be closed with
/// pmnet_server_close(). The options, and what they point at, are copied.
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
        // SAFETY: the caller passes NULL or options that say their size.
        let options = unsafe { memory::options(options)? };
        let id = table::insert(ServerObject {
            program: open(&options)?,
            batch: None,
            items: Vec::new(),
            rows: Vec::new(),
            watermark: Vec::new(),
        })?;
        // SAFETY: it is not NULL, and the caller owns it.
        unsafe { put(server, pmnet_server { id })? };
        Ok(PMNET_OK)
    })
}

/// Closes the server. A batch that is not confirmed comes again after the next start, unless the program has stored it with its rows.
#[unsafe(no_mangle)]
pub extern "C" fn pmnet_server_close(server: pmnet_server) -> c_int {
    entry(|| {
        drop(table::remove::<ServerObject>(server.id)?);
        Ok(PMNET_OK)
    })
}

/// Returns the UDP port at which the server listens, for one that was opened with port 0.
#[unsafe(no_mangle)]
pub extern "C" fn pmnet_server_port(server: pmnet_server) -> c_int {
    entry(|| {
        table::with(server.id, |server: &mut ServerObject| {
            Ok(c_int::from(server.program.address().port()))
        })
    })
}

/// Returns a descriptor for poll(): it is readable while pmnet_server_next() has something to return. It is the library's, and is
/// closed with the server.
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

/// Takes the next batch; waits up to wait_ms milliseconds for it, for ever if that is negative.
///
/// Returns PMNET_OK and fills in *batch, whose items are the library's until the batch is confirmed; or PMNET_AGAIN: none has come within
/// the time, or a signal came. While a batch is not confirmed there is no next one: PMNET_E_ORDER.
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
            // SAFETY: it is not NULL, and the caller owns it.
            unsafe { put(batch, lent)? };
            Ok(PMNET_OK)
        })
    })
}

/// Gives the reply to a bypass of the present batch: item is its place in the batch, from 0. The reply is copied: up to 16 MiB, of any
/// kind. Every bypass wants one, before the rows are asked for; an update wants none.
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

/// Fills in the rows that the program is to store in the same transaction as the batch: put each under its key, in place of what is
/// there, or delete it if its value is NULL. A key occurs once. There are none if the batch only reads.
///
/// The rows, and what they point at, are the library's, and valid until the batch is confirmed or given back.
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
            // SAFETY: neither is NULL, and the caller owns both.
            unsafe {
                put(rows, server.rows.as_ptr())?;
                put(count, server.rows.len())?;
            }
            Ok(PMNET_OK)
        })
    })
}

/// Fills in all rows in one piece, as they are with the present batch, for a program that stores one value only, in place of the
/// one before, in the same transaction as the batch. That takes time and room for all sessions at each batch: some 100 bytes for each
/// session, and its last reply. 64 MiB at most; beyond it PMNET_E_LENGTH: store rows.
///
/// The bytes are the library's, and valid until the batch is confirmed or given back.
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
            // SAFETY: neither is NULL, and the caller owns both.
            unsafe {
                put(watermark, server.watermark.as_ptr().cast())?;
                put(len, server.watermark.len())?;
            }
            Ok(PMNET_OK)
        })
    })
}

/// Confirms the present batch: it is durable at the program's, together with its rows or its watermark. Devices may forget it, and
/// clients get their replies.
///
/// Refuses, with PMNET_E_ORDER, a batch that was confirmed before, that is not the present one, or whose rows were not asked for; with
/// PMNET_E_REPLY one with a bypass that has no reply.
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

/// Gives the present batch back: the program has done nothing of it, and will not. It comes again after a pause, perhaps with more. A
/// program that does not know whether its transaction took place must not call this: it closes the server, and opens it with
/// what it finds stored.
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
