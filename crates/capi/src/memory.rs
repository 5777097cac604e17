//! Memory at the C interface: the arguments of a program, and bytes that the program keeps.

use crate::fault::entry;
use pmnet_bindings::Fault;
use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::ptr;

/// Bytes that the caller owns. {NULL, 0} means no bytes.
#[repr(C)]
#[derive(Debug)]
pub struct pmnet_bytes {
    /// The bytes; NULL if there are none.
    pub data: *mut u8,
    /// Number of bytes.
    pub len: usize,
}

impl pmnet_bytes {
    pub(crate) const NONE: pmnet_bytes = pmnet_bytes {
        data: ptr::null_mut(),
        len: 0,
    };

    /// Makes a copy that the program will own.
    pub(crate) fn copied(bytes: &[u8]) -> pmnet_bytes {
        if bytes.is_empty() {
            return pmnet_bytes::NONE;
        }
        let own: Box<[u8]> = bytes.into();
        let len = own.len();
        pmnet_bytes {
            data: Box::into_raw(own).cast(),
            len,
        }
    }
}

/// Frees bytes that a function of the library has filled in, and sets the struct to {NULL, 0}. So a second call has no
/// effect. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pmnet_bytes_free(bytes: *mut pmnet_bytes) {
    entry(|| {
        // SAFETY: the caller passes NULL, or a struct of its own that no other thread uses now.
        let Some(bytes) = (unsafe { bytes.as_mut() }) else {
            return Ok(0);
        };
        let pmnet_bytes { data, len } = std::mem::replace(bytes, pmnet_bytes::NONE);
        if !data.is_null() {
            // SAFETY: pointer and length are those of the boxed slice that `copied` gave to the program. The struct no
            // longer holds this pointer and length.
            drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(data, len)) });
        }
        Ok(0)
    });
}

/// Returns the bytes of a program's argument.
///
/// # Safety
/// `data` is NULL, or points to `len` bytes that can be read as long as the result lives.
pub(crate) unsafe fn bytes<'a>(data: *const c_void, len: usize) -> Result<&'a [u8], Fault> {
    if len == 0 {
        return Ok(&[]);
    }
    if data.is_null() {
        return Err(Fault::argument("the pointer to the bytes is NULL"));
    }
    if isize::try_from(len).is_err() {
        return Err(Fault::argument("no memory is so long"));
    }
    // SAFETY: by this function's contract, and because the pointer is not NULL.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), len) })
}

/// Returns the text of a program's argument.
///
/// # Safety
/// `text` is NULL, or it ends with a zero byte and does not change as long as the result lives.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, Fault> {
    if text.is_null() {
        return Err(Fault::argument(format!("{what} is NULL")));
    }
    // SAFETY: by this function's contract, and because the pointer is not NULL.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str()
        .map_err(|_| Fault::argument(format!("{what} is not UTF-8")))
}

/// Returns the path in a program's argument; `None` for NULL.
///
/// # Safety
/// As for [`text`].
pub(crate) unsafe fn path(path: *const c_char, what: &str) -> Result<Option<PathBuf>, Fault> {
    if path.is_null() {
        return Ok(None);
    }
    // SAFETY: by this function's contract.
    unsafe { text(path, what) }.map(|path| Some(path.into()))
}

/// A struct of options. Later versions may add fields at its end. Zero is a valid value for each field.
///
/// # Safety
/// The type is `repr(C)`. The first field of the type is its size as `u32`. A value of all zero bytes is valid.
pub(crate) unsafe trait Options: Copy {}

/// Returns the options of a program, which may have been compiled with another version of the header.
///
/// # Safety
/// `options` is NULL, or points to as many readable bytes as its first field states.
pub(crate) unsafe fn options<T: Options>(options: *const T) -> Result<T, Fault> {
    if options.is_null() {
        return Err(Fault::argument("the options are NULL"));
    }
    // SAFETY: the pointer is not NULL, and by the trait's contract the struct begins with its size.
    let size = unsafe { options.cast::<u32>().read() } as usize;
    let own = size_of::<T>();
    if size < size_of::<u32>() || size > 4096 {
        return Err(Fault::argument(format!(
            "the field size of the options is {size}: set it to sizeof of the struct, which is {own}"
        )));
    }
    // SAFETY: by this function's contract, `size` bytes can be read.
    let more = unsafe { bytes(options.cast(), size)? };
    if more.iter().skip(own).any(|byte| *byte != 0) {
        return Err(Fault::argument(
            "the options have a field that this version of the library does not know",
        ));
    }
    let mut copy = MaybeUninit::<T>::zeroed();
    // SAFETY: both places have at least this length, and they do not overlap.
    unsafe { ptr::copy_nonoverlapping(more.as_ptr(), copy.as_mut_ptr().cast(), size.min(own)) };
    // SAFETY: zeros are valid by the trait's contract, and the other bytes come from a program's value of this type.
    Ok(unsafe { copy.assume_init() })
}

/// Writes a result to the program's memory.
///
/// # Safety
/// `place` is NULL, or points to memory of the program that can be written.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) -> Result<(), Fault> {
    if place.is_null() {
        return Err(no_place());
    }
    // SAFETY: the pointer is not NULL, and by this function's contract it can be written. The old value has
    // no destructor.
    unsafe { place.write(value) };
    Ok(())
}

/// Returns the error for a result pointer that is NULL.
pub(crate) fn no_place() -> Fault {
    Fault::argument("the pointer to the result is NULL")
}
