//! `stat` and its kin.
//!
//! On 64-bit processors the C library passes its structures to the kernel unchanged, so each of
//! these is a system call. Older programs call the functions whose names begin with two
//! underscores.

use crate::{is_changed, keeping_errno};
use libc::{c_char, c_int, c_uint};
use papilio_run::identity;

/// Calls `fstatat` in the kernel, and changes its answer.
///
/// # Safety
/// The arguments are those of `fstatat`.
unsafe fn status_at(directory: c_int, path: *const c_char, status: *mut libc::stat, flags: c_int) -> c_int {
    // SAFETY: the caller promises valid arguments.
    let result = unsafe { libc::syscall(libc::SYS_newfstatat, directory, path, status, flags) } as c_int;
    if result == 0 {
        // SAFETY: the kernel has filled the structure.
        changed(unsafe { &mut *status });
    }
    result
}

fn changed(status: &mut libc::stat) {
    if is_changed(status.st_dev) {
        identity::rewrite(status);
    }
}

/// Defines functions that are `fstatat` with other arguments.
macro_rules! as_fstatat {
    ($($name:ident($($argument:ident: $kind:ty),*) = $directory:expr, $path:expr, $flags:expr;)*) => {
        $(
            /// As the function of the C library.
            ///
            /// # Safety
            /// As the function of the C library.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $kind,)* status: *mut libc::stat) -> c_int {
                // SAFETY: the caller passes the arguments of the function.
                unsafe { status_at($directory, $path, status, $flags) }
            }
        )*
    };
}

const HERE: c_int = libc::AT_FDCWD;
const LINK: c_int = libc::AT_SYMLINK_NOFOLLOW;
const ITSELF: c_int = libc::AT_EMPTY_PATH;

as_fstatat! {
    stat(path: *const c_char) = HERE, path, 0;
    stat64(path: *const c_char) = HERE, path, 0;
    lstat(path: *const c_char) = HERE, path, LINK;
    lstat64(path: *const c_char) = HERE, path, LINK;
    __xstat(_version: c_int, path: *const c_char) = HERE, path, 0;
    __xstat64(_version: c_int, path: *const c_char) = HERE, path, 0;
    __lxstat(_version: c_int, path: *const c_char) = HERE, path, LINK;
    __lxstat64(_version: c_int, path: *const c_char) = HERE, path, LINK;
    fstat(file: c_int) = file, c"".as_ptr(), ITSELF;
    fstat64(file: c_int) = file, c"".as_ptr(), ITSELF;
    __fxstat(_version: c_int, file: c_int) = file, c"".as_ptr(), ITSELF;
    __fxstat64(_version: c_int, file: c_int) = file, c"".as_ptr(), ITSELF;
}

/// Defines functions whose structure comes before the flags.
macro_rules! with_flags {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {
        $(
            /// As the function of the C library.
            ///
            /// # Safety
            /// As the function of the C library.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                $($argument: $kind,)*
                directory: c_int,
                path: *const c_char,
                status: *mut libc::stat,
                flags: c_int,
            ) -> c_int {
                // SAFETY: the caller passes the arguments of the function.
                unsafe { status_at(directory, path, status, flags) }
            }
        )*
    };
}

with_flags! {
    fstatat();
    fstatat64();
    __fxstatat(_version: c_int);
    __fxstatat64(_version: c_int);
}

/// As the function of the C library.
///
/// # Safety
/// As the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn statx(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    status: *mut libc::statx,
) -> c_int {
    // SAFETY: the caller passes the arguments of the function.
    let result = unsafe { libc::syscall(libc::SYS_statx, directory, path, flags, mask, status) } as c_int;
    if result == 0 {
        // SAFETY: the kernel has filled the structure.
        let status = unsafe { &mut *status };
        let device = libc::makedev(status.stx_dev_major, status.stx_dev_minor);
        if is_changed(device) {
            keeping_errno(|| identity::rewrite_extended(status));
        }
    }
    result
}
