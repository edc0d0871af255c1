//! `readdir`: the inode numbers of entries.

use crate::next::Next;
use crate::{is_changed, keeping_errno};
use libc::{DIR, dirent};
use papilio_run::{identity, system};

static NEXT: Next = Next::new(c"readdir64");

/// Reads the next entry, and changes its inode number.
///
/// # Safety
/// The directory is open.
unsafe fn read(directory: *mut DIR) -> *mut dirent {
    // SAFETY: the C library's function has this type; both structures are the same on 64-bit
    // processors.
    let next: unsafe extern "C" fn(*mut DIR) -> *mut dirent = unsafe { std::mem::transmute(NEXT.address()) };
    // SAFETY: the caller promises an open directory.
    let entry = unsafe { next(directory) };
    // SAFETY: the C library returns an entry or null.
    let Some(found) = (unsafe { entry.as_mut() }) else { return entry };
    if identity::is_of_subvolume(found.d_ino) {
        // SAFETY: the directory is open.
        let device = || system::status(unsafe { libc::dirfd(directory) }).map(|status| status.st_dev);
        // A supervisor may have changed the device already.
        let is_own = |device| is_changed(device) || identity::is_of_device(device);
        if keeping_errno(device).is_ok_and(is_own) {
            found.d_ino = identity::number_in_directory(found.d_ino);
        }
    }
    entry
}

/// As the function of the C library.
///
/// # Safety
/// As the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readdir(directory: *mut DIR) -> *mut dirent {
    // SAFETY: the caller passes an open directory.
    unsafe { read(directory) }
}

/// As the function of the C library.
///
/// # Safety
/// As the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readdir64(directory: *mut DIR) -> *mut dirent {
    // SAFETY: the caller passes an open directory.
    unsafe { read(directory) }
}
