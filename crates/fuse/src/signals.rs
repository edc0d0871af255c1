//! The signals that ask a server to end.
//!
//! Owns [`Signals`]. They are blocked in the whole process and taken one by one, so that no code runs inside a
//! handler. To be made before the first thread is started: threads inherit what is blocked.

use std::io;
use std::mem::MaybeUninit;

/// SIGINT, SIGTERM and SIGHUP, held back for who waits for them.
#[derive(Debug)]
pub struct Signals {
    set: libc::sigset_t,
}

impl Signals {
    /// Blocks them in this thread and all that it starts.
    ///
    /// # Errors
    /// What the system says.
    pub fn block() -> io::Result<Self> {
        let mut set = MaybeUninit::uninit();
        // SAFETY: `sigemptyset` makes a set of the memory, which the other calls then add to and read; the
        // signals' numbers exist; no old mask is asked for.
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

    /// Waits for one, and returns its number.
    ///
    /// # Errors
    /// What the system says.
    pub fn wait(&self) -> io::Result<i32> {
        let mut signal = 0;
        // SAFETY: the set was made by `block`, and the number is written to a variable of its type.
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
    fn a_signal_is_taken_and_ends_nothing() {
        let taken = std::thread::spawn(|| {
            let signals = Signals::block().unwrap();
            // SAFETY: it goes to this thread only, which holds it back.
            assert_eq!(unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGTERM) }, 0);
            signals.wait().unwrap()
        });
        assert_eq!(taken.join().unwrap(), libc::SIGTERM);
    }
}
