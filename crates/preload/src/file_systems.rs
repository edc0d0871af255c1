//! `statfs` and its kin, and `ioctl`.

use crate::{failed, is_active, is_changed, keeping_errno};
use libc::{c_char, c_int, c_long, c_ulong, c_void};
use papilio_run::caller::Caller;
use papilio_run::{calls, identity, system};
use std::ffi::CStr;

/// Shows a file system as Btrfs if it is a mount of Papilio. `device` returns its device number.
///
/// # Safety
/// If `result` is 0, the kernel has filled the structure.
unsafe fn shown(
    result: c_long,
    found: *mut libc::statfs,
    device: impl FnOnce() -> Option<libc::dev_t>,
) -> c_int {
    if result == 0 {
        // SAFETY: the caller promises it.
        let found = unsafe { &mut *found };
        let is_own = || keeping_errno(device).is_some_and(is_changed);
        if found.f_type as u32 == identity::FUSE_MAGIC && is_own() {
            found.f_type = identity::BTRFS_MAGIC as _;
        }
    }
    result as c_int
}

/// Defines functions with a path.
macro_rules! by_path {
    ($($name:ident)*) => {
        $(
            /// As the function of the C library.
            ///
            /// # Safety
            /// As the function of the C library.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(path: *const c_char, found: *mut libc::statfs) -> c_int {
                // SAFETY: the caller passes the arguments of the function.
                let result = unsafe { libc::syscall(libc::SYS_statfs, path, found) };
                // SAFETY: a call that succeeded was given a string.
                let status = || system::status_at(libc::AT_FDCWD, unsafe { CStr::from_ptr(path) }, 0);
                // SAFETY: the kernel has filled the structure if the result is 0.
                unsafe { shown(result, found, || status().ok().map(|status| status.st_dev)) }
            }
        )*
    };
}

/// Defines functions with a descriptor.
macro_rules! by_descriptor {
    ($($name:ident)*) => {
        $(
            /// As the function of the C library.
            ///
            /// # Safety
            /// As the function of the C library.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(file: c_int, found: *mut libc::statfs) -> c_int {
                // SAFETY: the caller passes the arguments of the function.
                let result = unsafe { libc::syscall(libc::SYS_fstatfs, file, found) };
                // SAFETY: the kernel has filled the structure if the result is 0.
                unsafe { shown(result, found, || system::status(file).ok().map(|status| status.st_dev)) }
            }
        )*
    };
}

by_path! { statfs statfs64 }
by_descriptor! { fstatfs fstatfs64 }

/// As the function of the C library. Its third argument is in the same register, whether or not a
/// declaration has it as variable.
///
/// # Safety
/// As the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(file: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if calls::is_answered(request as u32) && is_active() {
        let answer = calls::answer(&Caller::own(), file.into(), request as u32, argument as u64);
        match answer {
            Some(Ok(value)) => return value,
            Some(Err(error)) => return failed(&error),
            None => {}
        }
    }
    // SAFETY: the caller passes the arguments of the function.
    unsafe { libc::syscall(libc::SYS_ioctl, file, request, argument) as c_int }
}
