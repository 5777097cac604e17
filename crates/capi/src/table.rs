//! Objects by number: a program never holds a pointer to one.
//!
//! A number has the process in its upper half, and is given once. So whatever number a program passes, only a
//! living, unused object of this process and of the right kind is touched.

use pmnet_bindings::{Fault, Kind as FaultKind};
use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Once, TryLockError};
use std::time::Duration;

/// A kind of object.
pub(crate) trait Kind: Any + Send {
    /// Name of the kind in error texts.
    const NAME: &'static str;
}

type Object = Box<dyn Any + Send>;

#[derive(Default)]
struct Table {
    last: u32,
    objects: HashMap<u64, Arc<Mutex<Option<Object>>>>,
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

/// Most tries to lock the table. In the child of a fork, it may be locked by a thread that only the parent
/// has.
const TRIES: u32 = 1000;
const PAUSE: Duration = Duration::from_millis(1);

fn table() -> Result<MutexGuard<'static, Table>, Fault> {
    for _ in 0..TRIES {
        match TABLE.try_lock() {
            Ok(table) => return Ok(table),
            // The table is never left in an incomplete state.
            Err(TryLockError::Poisoned(table)) => return Ok(table.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
        }
    }
    Err(Fault::new(
        FaultKind::Fork,
        "the process was forked in the middle of a call of another thread: this child cannot use pmnet",
    ))
}

/// The number of forks between the process that loaded the library and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Whether forks are counted.
static COUNTS_FORKS: Once = Once::new();
/// Bits of a process number on Linux (PID_MAX_LIMIT).
const PID_BITS: u32 = 22;

extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Returns a number that tells this process from all others that have inherited its table. The process number
/// alone is not enough: in a namespace of its own, a child can have its parent's number.
fn process_part() -> u64 {
    COUNTS_FORKS.call_once(|| {
        // SAFETY: `forked` lives as long as the library, which is never unloaded while it has threads or
        // handlers. It only changes an atomic, which is allowed in the child of a process with threads. If
        // there is no memory for the handler, the process number alone counts.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    });
    let process = std::process::id().wrapping_add(FORKS.load(Ordering::Relaxed) << PID_BITS);
    u64::from(process) << 32
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

fn place<K: Kind>(id: u64) -> Result<Arc<Mutex<Option<Object>>>, Fault> {
    if id != 0 && id & !u64::from(u32::MAX) != process_part() {
        let text = format!(
            "this {} was opened in another process, before a fork",
            K::NAME
        );
        return Err(Fault::new(FaultKind::Fork, text));
    }
    table()?.objects.get(&id).cloned().ok_or_else(none::<K>)
}

fn lock<K: Kind>(place: &Mutex<Option<Object>>) -> Result<MutexGuard<'_, Option<Object>>, Fault> {
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

/// Gives one thread access to an object.
pub(crate) fn with<K: Kind, T>(
    id: u64,
    body: impl FnOnce(&mut K) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let place = place::<K>(id)?;
    let mut guard = lock::<K>(&place)?;
    let object = guard.as_mut().and_then(|object| object.downcast_mut::<K>());
    body(object.ok_or_else(none::<K>)?)
}

/// Takes an object out of the table. Its number becomes invalid.
pub(crate) fn remove<K: Kind>(id: u64) -> Result<K, Fault> {
    let place = place::<K>(id)?;
    let mut guard = match lock::<K>(&place) {
        // An object that has failed can still be closed.
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
