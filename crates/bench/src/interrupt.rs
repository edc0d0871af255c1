//! Ctrl-C and its like: remembered, so that mounts, loop devices and files go away before the end.
//!
//! The only unsafe code of this crate. A second one ends the process at once; what it leaves, the next run
//! takes away.

use anyhow::bail;
use std::sync::atomic::{AtomicBool, Ordering};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn remember(_signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From now on SIGINT, SIGTERM and SIGHUP are remembered, once each.
pub fn watch() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: all zeroes are a valid sigaction.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = remember as extern "C" fn(libc::c_int) as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART | libc::SA_RESETHAND;
        // SAFETY: the handler only stores to an atomic, which is allowed in a signal; `action` outlives the
        // call, and no old action is asked for.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
}

/// An error once a signal was remembered.
///
/// # Errors
/// The user wants the end.
pub fn check() -> anyhow::Result<()> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    Ok(())
}

/// Whether a signal was remembered.
pub fn seen() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
