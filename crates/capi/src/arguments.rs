//! Arguments: pointers of a program become references, and results go where they point.
//!
//! Owns the checks that a border can make: for NULL, and for sizes. The caller of each exported
//! function answers for the rest, as the function's documentation says.

use crate::failure::{Failure, Result};
use libc::{c_char, c_void, size_t};
use std::ffi::{CStr, OsStr};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns the bytes of a text, without its NUL.
///
/// # Safety
/// `text` is NULL or points to a NUL-terminated text that lives, unchanged, as long as `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a [u8]> {
    if text.is_null() {
        return Err(Failure::invalid(format!("{name} is NULL")));
    }
    // SAFETY: the caller passes a NUL-terminated text, which is not NULL.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// Returns a text as UTF-8.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn utf8<'a>(pointer: *const c_char, name: &str) -> Result<&'a str> {
    // SAFETY: the caller's promise is the same.
    let bytes = unsafe { text(pointer, name) }?;
    std::str::from_utf8(bytes).map_err(|_| Failure::invalid(format!("{name} is not UTF-8")))
}

/// Returns a path of the host.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn host_path<'a>(pointer: *const c_char, name: &str) -> Result<&'a Path> {
    // Every function that opens a device takes its path from here.
    #[cfg(feature = "store")]
    papilio_store::install();
    // SAFETY: the caller's promise is the same.
    let bytes = unsafe { text(pointer, name) }?;
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

/// Returns the elements of an array.
///
/// # Safety
/// `first` points to `count` elements that live, unchanged, as long as `'a`. It may be NULL if
/// `count` is 0.
pub(crate) unsafe fn array<'a, T>(first: *const T, count: size_t, name: &str) -> Result<&'a [T]> {
    check_array(first, count, name)?;
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: the pointer is aligned, not NULL, and the caller answers for the elements.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// Returns the bytes of a buffer that the call fills. None is read before it is written.
///
/// # Safety `first` points to `count` bytes that nothing else uses as long as `'a`. It may be NULL
/// if `count` is 0.
pub(crate) unsafe fn buffer<'a>(first: *mut c_void, count: size_t, name: &str) -> Result<&'a mut [u8]> {
    let first = first.cast::<u8>();
    check_array(first.cast_const(), count, name)?;
    if count == 0 {
        return Ok(&mut []);
    }
    // SAFETY: the pointer is not NULL, and the caller answers for the bytes. The readers of the
    // library only store to them. C gives no promise that they have a value before; memory of
    // another program or device has one as far as the compiler can know.
    Ok(unsafe { std::slice::from_raw_parts_mut(first, count) })
}

/// Checks a pointer to `count` elements.
pub(crate) fn check_array<T>(first: *const T, count: size_t, name: &str) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    if first.is_null() {
        return Err(Failure::invalid(format!("{name} is NULL, but its length is {count}")));
    }
    if !first.is_aligned() {
        return Err(Failure::invalid(format!("{name} is not aligned for its elements")));
    }
    if count.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(Failure::invalid(format!("{name} is longer than memory: {count} elements")));
    }
    Ok(())
}

/// Checks that a result has a place to go to, before the work is done.
pub(crate) fn check_result<T>(result: *mut T, name: &str) -> Result<()> {
    if result.is_null() {
        return Err(Failure::invalid(format!("{name}, where the result goes, is NULL")));
    }
    if !result.is_aligned() {
        return Err(Failure::invalid(format!("{name}, where the result goes, is not aligned")));
    }
    Ok(())
}

/// Stores a result.
///
/// # Safety
/// `result` passed [`check_result`] and points to memory for a `T`.
pub(crate) unsafe fn store<T>(result: *mut T, value: T) {
    // SAFETY: the pointer is aligned, not NULL, and the caller answers for the memory.
    unsafe { result.write(value) };
}

/// A structure of the interface, which later versions may extend at its end.
///
/// # Safety
/// The type is `repr(C)`, without padding, and every bit pattern of it is valid.
pub(crate) unsafe trait Extensible: Copy {
    /// The bytes of its first version, which every caller has.
    const FIRST_SIZE: usize;
}

/// Checks a structure that a call fills: `size` is the caller's `sizeof`.
pub(crate) fn check_structure<T: Extensible>(result: *mut T, size: size_t, name: &str) -> Result<()> {
    check_result(result, name)?;
    if size < T::FIRST_SIZE {
        let least = T::FIRST_SIZE;
        return Err(Failure::invalid(format!(
            "{name}: the size is {size}, but has to be its sizeof, {least}"
        )));
    }
    Ok(())
}

/// Fills a structure of the caller's version: fields that the caller does not know are left out,
/// and those that this version does not know become zero.
///
/// # Safety
/// `result` passed [`check_structure`] and points to `size` bytes.
pub(crate) unsafe fn store_structure<T: Extensible>(result: *mut T, size: size_t, value: &T) {
    let known = size.min(size_of::<T>());
    let bytes = result.cast::<u8>();
    // SAFETY: the caller answers for `size` bytes; the value has at least `known`.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), bytes, known);
        bytes.add(known).write_bytes(0, size - known);
    }
}

/// Copies a text to the caller's buffer as `getxattr` does, and returns its length. With `size` 0
/// it only returns the length.
///
/// # Errors `ERANGE` if the buffer is too small; `EINVAL` if it is NULL.
///
/// # Safety As [`buffer`].
pub(crate) unsafe fn copy_out(value: &[u8], to: *mut c_void, size: size_t) -> Result<i64> {
    if size > 0 {
        // SAFETY: the caller's promise is the same.
        let to = unsafe { buffer(to, size, "buffer") }?;
        let length = value.len();
        let Some(to) = to.get_mut(..length) else {
            let message = format!("the buffer has {size} bytes, but the value has {length}");
            return Err(Failure::new(libc::ERANGE, message));
        };
        to.copy_from_slice(value);
    }
    Ok(value.len() as i64)
}

/// Returns a descriptor of the program.
///
/// # Errors
/// `EBADF` if it is not open.
pub(crate) fn descriptor<'a>(fd: libc::c_int) -> Result<BorrowedFd<'a>> {
    // SAFETY: fcntl with F_GETFD takes any number.
    if fd < 0 || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(Failure::new(libc::EBADF, format!("descriptor {fd} is not open")));
    }
    // SAFETY: it is open, and the program promises not to close it during the call.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Refuses flags other than the known ones.
pub(crate) fn check_flags(flags: u32, known: u32) -> Result<()> {
    match flags & !known {
        0 => Ok(()),
        unknown => Err(Failure::invalid(format!("unknown flags {unknown:#x}"))),
    }
}

/// Memory for a value of the interface's structures, whose bytes are all zero.
pub(crate) fn zeroed<T: Extensible>() -> T {
    // SAFETY: every bit pattern of an extensible structure is valid.
    unsafe { MaybeUninit::zeroed().assume_init() }
}
