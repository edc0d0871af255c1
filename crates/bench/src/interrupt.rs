//! Handling of SIGINT, SIGTERM and SIGHUP: the first is recorded, so that the run removes its
//! mounts, loop devices and files before it exits.
//!
//! A second signal kills the process; the next run removes what it leaves behind. This file has the
//! only unsafe code of the crate.

use anyhow::bail;
use std::sync::atomic::{AtomicBool, Ordering};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn record(_signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Installs handlers that record the first SIGINT, SIGTERM and SIGHUP.
pub fn watch() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: all zeroes are a valid sigaction.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = record as extern "C" fn(libc::c_int) as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART | libc::SA_RESETHAND;
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe. `action`
        // outlives the call, and the old action is not requested.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
}

/// Fails once a signal has arrived.
///
/// # Errors
/// A signal has arrived.
pub fn check() -> anyhow::Result<()> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    Ok(())
}

/// Returns whether a signal has arrived.
pub fn seen() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
