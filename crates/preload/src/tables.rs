//! `open` and `fopen` of tables of mounts.
//!
//! A program that opens a table gets a file in memory with the changed content.

use crate::next::Next;
use crate::{is_active, keeping_errno};
use libc::{FILE, c_char, c_int, mode_t};
use papilio_run::{mount_table, system};
use std::ffi::CStr;
use std::os::fd::IntoRawFd;

type Open = unsafe extern "C" fn(*const c_char, c_int, ...) -> c_int;
type OpenAt = unsafe extern "C" fn(c_int, *const c_char, c_int, ...) -> c_int;
type Checked = unsafe extern "C" fn(*const c_char, c_int) -> c_int;
type CheckedAt = unsafe extern "C" fn(c_int, *const c_char, c_int) -> c_int;
type OpenStream = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut FILE;

/// Opens a changed table; `None` if the path is none, or it is opened for writing.
///
/// # Safety
/// The path is a string or null.
unsafe fn open_table(path: *const c_char, flags: c_int) -> Option<c_int> {
    if path.is_null() || flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_PATH != 0 {
        return None;
    }
    // SAFETY: the caller promises a string.
    let path = unsafe { CStr::from_ptr(path) };
    if !mount_table::is_table(path) || !is_active() {
        return None;
    }
    keeping_errno(|| {
        let table = system::open_at(libc::AT_FDCWD, path, libc::O_RDONLY).ok()?;
        let content = mount_table::rewritten(path, &system::read_all(&table).ok()?);
        let file = system::file_in_memory(&content, flags & libc::O_CLOEXEC != 0).ok()?;
        Some(file.into_raw_fd())
    })
}

/// Defines functions that open a path, with the mode of a new file as a variable argument, which is
/// in the same register as any other.
macro_rules! open_by_path {
    ($($name:ident = $symbol:literal;)*) => {
        $(
            /// As the function of the C library.
            ///
            /// # Safety
            /// As the function of the C library.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
                static NEXT: Next = Next::new($symbol);
                // SAFETY: the caller passes a path.
                if let Some(table) = unsafe { open_table(path, flags) } {
                    return table;
                }
                // SAFETY: the C library's function has this type.
                let next: Open = unsafe { std::mem::transmute(NEXT.address()) };
                // SAFETY: the caller passes the arguments of the function.
                unsafe { next(path, flags, mode) }
            }
        )*
    };
}

open_by_path! {
    open = c"open";
    open64 = c"open64";
}

/// Defines the functions that glibc calls for a program that was built with checks
/// (`_FORTIFY_SOURCE`): no mode, since no file is made.
macro_rules! open_checked {
    ($($name:ident($($directory:ident)?) = $symbol:literal as $function:ty;)*) => {
        $(
            /// As the function of the C library.
            ///
            /// # Safety
            /// As the function of the C library.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                $($directory: c_int,)?
                path: *const c_char,
                flags: c_int,
            ) -> c_int {
                static NEXT: Next = Next::new($symbol);
                // SAFETY: the caller passes a path.
                if let Some(table) = unsafe { open_table(path, flags) } {
                    return table;
                }
                // SAFETY: the C library's function has this type.
                let next: $function = unsafe { std::mem::transmute(NEXT.address()) };
                // SAFETY: the caller passes the arguments of the function.
                unsafe { next($($directory,)? path, flags) }
            }
        )*
    };
}

open_checked! {
    __open_2() = c"__open_2" as Checked;
    __open64_2() = c"__open64_2" as Checked;
    __openat_2(directory) = c"__openat_2" as CheckedAt;
    __openat64_2(directory) = c"__openat64_2" as CheckedAt;
}

/// Defines functions that open a path from a directory.
macro_rules! open_at {
    ($($name:ident = $symbol:literal;)*) => {
        $(
            /// As the function of the C library.
            ///
            /// # Safety
            /// As the function of the C library.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                directory: c_int,
                path: *const c_char,
                flags: c_int,
                mode: mode_t,
            ) -> c_int {
                static NEXT: Next = Next::new($symbol);
                // SAFETY: the caller passes a path.
                if let Some(table) = unsafe { open_table(path, flags) } {
                    return table;
                }
                // SAFETY: the C library's function has this type.
                let next: OpenAt = unsafe { std::mem::transmute(NEXT.address()) };
                // SAFETY: the caller passes the arguments of the function.
                unsafe { next(directory, path, flags, mode) }
            }
        )*
    };
}

open_at! {
    openat = c"openat";
    openat64 = c"openat64";
}

/// Defines functions that open a stream. They do not call the functions above: the C library calls
/// its own.
macro_rules! open_stream {
    ($($name:ident = $symbol:literal;)*) => {
        $(
            /// As the function of the C library.
            ///
            /// # Safety
            /// As the function of the C library.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(path: *const c_char, mode: *const c_char) -> *mut FILE {
                static NEXT: Next = Next::new($symbol);
                // SAFETY: the caller passes a path and a mode, which are strings.
                if let Some(stream) = unsafe { stream_of_table(path, mode) } {
                    return stream;
                }
                // SAFETY: the C library's function has this type.
                let next: OpenStream = unsafe { std::mem::transmute(NEXT.address()) };
                // SAFETY: the caller passes the arguments of the function.
                unsafe { next(path, mode) }
            }
        )*
    };
}

open_stream! {
    fopen = c"fopen";
    fopen64 = c"fopen64";
    setmntent = c"setmntent";
}

/// Opens a changed table as a stream.
///
/// # Safety
/// Path and mode are strings or null.
unsafe fn stream_of_table(path: *const c_char, mode: *const c_char) -> Option<*mut FILE> {
    if mode.is_null() {
        return None;
    }
    // SAFETY: the caller promises a string.
    let letters = unsafe { CStr::from_ptr(mode) }.to_bytes();
    if !letters.starts_with(b"r") || letters.contains(&b'+') {
        return None;
    }
    let flags = if letters.contains(&b'e') { libc::O_CLOEXEC } else { 0 };
    // SAFETY: the caller promises a string.
    let table = unsafe { open_table(path, flags) }?;
    // SAFETY: the descriptor was just opened, and the stream owns it from here on.
    Some(unsafe { libc::fdopen(table, c"r".as_ptr()) })
}
