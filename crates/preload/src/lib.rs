//! `libpapilio_preload.so`: functions of the C library that show mounts of Papilio as the kernel's
//! Btrfs shows its own.
//!
//! `papilio run` preloads it. Each function calls the kernel as the C library's does, and changes
//! the answer for files in mounts of Papilio. For other files it costs a look at the device number.
//!
//! The library leaves Papilio's own programs alone, which know their mounts. glibc and 64-bit
//! processors only.
//!
//! - [`status`]: `stat` and its kin.
//! - [`file_systems`]: `statfs` and its kin, `ioctl`.
//! - [`tables`]: `open` and `fopen` of tables of mounts.
//! - [`directories`] has `readdir`.

#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

mod directories;
mod file_systems;
mod next;
mod status;
mod tables;

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this program is one of Papilio's.
static IS_PAPILIO: AtomicBool = AtomicBool::new(false);

/// Called by the loader before the program's `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;

extern "C" fn at_start() {
    let mut path = [0_u8; 4096];
    let (link, place) = (c"/proc/self/exe".as_ptr(), path.as_mut_ptr());
    // SAFETY: the link is a string, and the buffer has the room that is given.
    let length = unsafe { libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, link, place, path.len()) };
    let path = &path[..usize::try_from(length).unwrap_or(0)];
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    IS_PAPILIO.store(name == b"papilio" || name.starts_with(b"papilio-"), Ordering::Relaxed);
}

/// Returns whether answers are changed in this program.
fn is_active() -> bool {
    !IS_PAPILIO.load(Ordering::Relaxed)
}

/// Returns whether a file is in a mount of Papilio, and answers about it are changed.
fn is_changed(device: libc::dev_t) -> bool {
    // The device first: it decides for nearly all files.
    libc::major(device) == 0 && is_active() && keeping_errno(|| papilio_run::own_mounts::is_own(device))
}

/// Runs `work` and leaves `errno` as it was: a call that succeeds does not change it.
fn keeping_errno<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the C library returns the place of this thread's number.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the place is this thread's.
    let before = unsafe { *place };
    let result = work();
    // SAFETY: the place is this thread's.
    unsafe { *place = before };
    result
}

/// Sets `errno` and returns -1.
fn failed(error: &std::io::Error) -> libc::c_int {
    // SAFETY: the place is this thread's.
    unsafe { *libc::__errno_location() = error.raw_os_error().unwrap_or(libc::EIO) };
    -1
}
