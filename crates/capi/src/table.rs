//! The table of objects. A program refers to an object by its number, and never has a pointer to it.
//!
//! The upper half of a number identifies the process, and each number is used only once. So for any number that a
//! program passes, the library touches only an open, unused object of this process and of the right kind.

use pmnet_bindings::{Fault, Kind as FaultKind};
use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Once, TryLockError};
use std::time::Duration;

/// A kind of object in the table.
pub(crate) trait Kind: Any + Send {
    /// Name of the kind, for error texts.
    const NAME: &'static str;
}

type Object = Box<dyn Any + Send>;

/// The place of an object in the table. The place is empty after the object was closed.
type Place = Mutex<Option<Object>>;

#[derive(Default)]
struct Table {
    last: u32,
    objects: HashMap<u64, Arc<Place>>,
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

/// Maximum number of attempts to lock the table. In the child of a fork, the lock may be held by a thread that exists
/// only in the parent.
const TRIES: u32 = 1000;
const PAUSE: Duration = Duration::from_millis(1);

fn table() -> Result<MutexGuard<'static, Table>, Fault> {
    for _ in 0..TRIES {
        match TABLE.try_lock() {
            Ok(table) => return Ok(table),
            // A poisoned lock does not matter, because no panic can leave the table in an inconsistent state.
            Err(TryLockError::Poisoned(table)) => return Ok(table.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
        }
    }
    Err(Fault::new(
        FaultKind::Fork,
        "the process was forked in the middle of a call of another thread: this child cannot use pmnet",
    ))
}

/// Number of forks between this process and the process that loaded the library.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Whether the counting of forks has begun.
static COUNTS_FORKS: Once = Once::new();
/// Number of bits of a process id on Linux (PID_MAX_LIMIT).
const PID_BITS: u32 = 22;

extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Returns a number that distinguishes this process from all others that have a copy of its table. The process id alone
/// is not enough: in a PID namespace of its own, a child can have the id of its parent.
fn counted_part() -> u64 {
    COUNTS_FORKS.call_once(|| {
        // SAFETY: `forked` lives as long as the library, which is never unloaded while it has threads or handlers. The
        // handler only changes an atomic, which is allowed in the child of a process with threads. If there is no
        // memory for the handler, only the process id counts.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    });
    let process = std::process::id().wrapping_add(FORKS.load(Ordering::Relaxed) << PID_BITS);
    u64::from(process) << 32
}

/// The result of [`counted_part`], in memory that the kernel sets to zero in the child of a fork. `None`: the kernel
/// cannot do this (before Linux 4.14).
static KEPT_PART: LazyLock<Option<&'static AtomicU64>> = LazyLock::new(zeroed_by_forks);

fn zeroed_by_forks() -> Option<&'static AtomicU64> {
    let readable = libc::PROT_READ | libc::PROT_WRITE;
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let len = size_of::<AtomicU64>();
    // SAFETY: the kernel chooses the address of the new mapping of one page, so no other memory changes.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), len, readable, private, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the page was just mapped, and nothing refers to it yet.
    let wiped = unsafe { libc::madvise(page, len, libc::MADV_WIPEONFORK) } == 0;
    // Some emulators of system calls accept any `madvise` without any effect. So a call with an invalid advice must
    // fail. SAFETY: the page was just mapped, and an invalid advice changes nothing.
    let is_checked = unsafe { libc::madvise(page, len, -1) } != 0;
    if !(wiped && is_checked) {
        // SAFETY: as above.
        unsafe { libc::munmap(page, len) };
        return None;
    }
    // SAFETY: the page is aligned, zero is a valid number, the page is never unmapped, and only atomic operations
    // access it.
    Some(unsafe { &*page.cast() })
}

/// The loader calls this function before any function of the library can be called. So a child of a fork never inherits
/// an initialization that another thread had begun.
#[used]
// SAFETY: functions of this section have this signature. This function calls only code that needs nothing more than
// libc.
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    process_part();
}

/// Returns the result of [`counted_part`]. This function makes a system call only once in each process, because each
/// call of the library calls this function.
fn process_part() -> u64 {
    let Some(kept) = *KEPT_PART else {
        return counted_part();
    };
    match kept.load(Ordering::Relaxed) {
        0 => {
            let part = counted_part();
            // Another thread may store the same number at the same time.
            kept.store(part, Ordering::Relaxed);
            part
        }
        part => part,
    }
}

/// Adds an object. Returns its number.
pub(crate) fn insert<K: Kind>(object: K) -> Result<u64, Fault> {
    let mut table = table()?;
    table.last = table.last.checked_add(1).ok_or_else(|| {
        Fault::new(
            FaultKind::System,
            "this process has opened four billion objects",
        )
    })?;
    let id = process_part() | u64::from(table.last);
    let object: Object = Box::new(object);
    let place = Arc::new(Mutex::new(Some(object)));
    table.objects.insert(id, place);
    Ok(id)
}

fn none<K: Kind>() -> Fault {
    let name = K::NAME;
    Fault::new(FaultKind::Handle, format!("this is no {name} that is open"))
}

thread_local! {
    /// The object that this thread used last, because most threads use only one object. If the object was closed, its
    /// place is empty.
    static LAST: RefCell<Option<(u64, Arc<Place>)>> = const { RefCell::new(None) };
}

/// Returns the place of an object, if [`LAST`] has it.
fn last_place(id: u64) -> Option<Arc<Place>> {
    let same = |last: &RefCell<Option<(u64, Arc<Place>)>>| {
        let last = last.borrow();
        let (_, place) = last.as_ref().filter(|(known, _)| *known == id)?;
        Some(Arc::clone(place))
    };
    // If the thread is ending, it may already have dropped its copy of `LAST`.
    LAST.try_with(same).ok().flatten()
}

fn place<K: Kind>(id: u64) -> Result<Arc<Place>, Fault> {
    if id != 0 && id & !u64::from(u32::MAX) != process_part() {
        let text = format!(
            "this {} was opened in another process, before a fork",
            K::NAME
        );
        return Err(Fault::new(FaultKind::Fork, text));
    }
    if let Some(place) = last_place(id) {
        return Ok(place);
    }
    let place = table()?.objects.get(&id).cloned().ok_or_else(none::<K>)?;
    let used = Some((id, Arc::clone(&place)));
    // As in `last_place`, an ending thread may have no `LAST` any more.
    let _ = LAST.try_with(|last| last.replace(used));
    Ok(place)
}

fn lock<K: Kind>(place: &Place) -> Result<MutexGuard<'_, Option<Object>>, Fault> {
    place.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => {
            let text = format!("another thread is using this {}", K::NAME);
            Fault::new(FaultKind::Thread, text)
        }
        TryLockError::Poisoned(_) => Fault::new(
            FaultKind::Bug,
            "an earlier call failed inside of the library: close the object",
        ),
    })
}

/// Gives a single thread access to an object.
pub(crate) fn with<K: Kind, T>(
    id: u64,
    body: impl FnOnce(&mut K) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let place = place::<K>(id)?;
    let mut guard = lock::<K>(&place)?;
    let object = guard.as_mut().and_then(|object| object.downcast_mut::<K>());
    body(object.ok_or_else(none::<K>)?)
}

/// Removes an object from the table. The number of the object becomes invalid.
pub(crate) fn remove<K: Kind>(id: u64) -> Result<K, Fault> {
    let place = place::<K>(id)?;
    let mut guard = match lock::<K>(&place) {
        // After a panic, an object can still be closed.
        Err(fault) if fault.kind == FaultKind::Bug => {
            place.clear_poison();
            lock::<K>(&place)?
        }
        locked => locked?,
    };
    let found = guard.take_if(|object| object.is::<K>());
    let object = found.and_then(|object| object.downcast::<K>().ok());
    let object = object.ok_or_else(none::<K>)?;
    table()?.objects.remove(&id);
    Ok(*object)
}
