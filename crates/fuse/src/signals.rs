//! The signals that ask a server to end.
//!
//! Owns [`Signals`]. The process blocks them and takes them one at a time, so no code runs in a
//! signal handler. Create it before the first thread: threads inherit the set of blocked signals.

use std::io;
use std::mem::MaybeUninit;

/// The blocked signals SIGINT, SIGTERM and SIGHUP.
#[derive(Debug)]
pub struct Signals {
    set: libc::sigset_t,
}

impl Signals {
    /// Blocks the signals in this thread and in all threads that it starts.
    ///
    /// # Errors
    /// The system's error from `pthread_sigmask`.
    pub fn block() -> io::Result<Self> {
        let mut set = MaybeUninit::uninit();
        // SAFETY: `sigemptyset` initializes the set, which the other calls then read and extend.
        // The signal numbers are valid, and a null old mask is allowed.
        let (set, error) = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            (set.assume_init(), error)
        };
        if error == 0 { Ok(Self { set }) } else { Err(io::Error::from_raw_os_error(error)) }
    }

    /// Waits for one of the signals and returns its number.
    ///
    /// # Errors
    /// The system's error from `sigwait`.
    pub fn wait(&self) -> io::Result<i32> {
        let mut signal = 0;
        // SAFETY: `block` initialized the set, and the number goes to a variable of its type.
        match unsafe { libc::sigwait(&raw const self.set, &raw mut signal) } {
            0 => Ok(signal),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocked_signal_is_returned_by_wait() {
        let taken = std::thread::spawn(|| {
            let signals = Signals::block().unwrap();
            // SAFETY: the signal goes to this thread only, which blocks it.
            assert_eq!(unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGTERM) }, 0);
            signals.wait().unwrap()
        });
        assert_eq!(taken.join().unwrap(), libc::SIGTERM);
    }
}
