//! `WakeFd`: a descriptor that wakes an event loop.
//!
//! It is an eventfd on Linux and FreeBSD, and a pipe elsewhere. **Locks**: none.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A descriptor that is readable from [`WakeFd::set`] until a read takes what it holds.
#[derive(Debug)]
pub struct WakeFd {
    reader: OwnedFd,
    /// The other end of the pipe. An eventfd has none.
    writer: Option<OwnedFd>,
}

impl WakeFd {
    /// Makes a descriptor that is not readable yet.
    ///
    /// # Errors
    /// The host has no descriptors left.
    pub fn new() -> io::Result<Self> {
        let (reader, writer) = make()?;
        Ok(Self { reader, writer })
    }

    /// Makes the descriptor readable.
    pub fn set(&self) {
        // EAGAIN: the counter is at its maximum, or the pipe is full, so it is readable anyway.
        let _ = rustix::io::write(self.writer.as_ref().unwrap_or(&self.reader), &1_u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable.
    pub fn clear(&self) {
        // Small, because a driver clears its descriptor again and again.
        let mut taken = [0; 64];
        // One read takes the counter of an eventfd. A pipe may hold more.
        while rustix::io::read(&self.reader, &mut taken).is_ok_and(|count| count == taken.len()) {}
    }

    /// Returns another descriptor of the same end, to wait for and to read.
    ///
    /// # Errors
    /// The host has no descriptors left.
    pub fn try_clone(&self) -> io::Result<OwnedFd> {
        self.reader.try_clone()
    }
}

impl AsFd for WakeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

#[cfg(any(target_os = "linux", target_os = "freebsd"))]
fn make() -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    use rustix::event::{EventfdFlags, eventfd};
    Ok((eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?, None))
}

/// Makes a pipe of which neither end blocks.
#[cfg(any(test, not(any(target_os = "linux", target_os = "freebsd"))))]
fn make_pipe() -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    use rustix::io::{FdFlags, fcntl_setfd, ioctl_fionbio};
    // Not every host sets the flags while it makes a pipe.
    let (reader, writer) = rustix::pipe::pipe()?;
    for end in [&reader, &writer] {
        fcntl_setfd(end, FdFlags::CLOEXEC)?;
        ioctl_fionbio(end, true)?;
    }
    Ok((reader, Some(writer)))
}

#[cfg(not(any(target_os = "linux", target_os = "freebsd")))]
use make_pipe as make;

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn is_readable(wake: &WakeFd) -> bool {
        let mut fds = [PollFd::new(wake, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn both_kinds_are_readable_between_set_and_clear() {
        let (reader, writer) = make_pipe().unwrap();
        for wake in [WakeFd::new().unwrap(), WakeFd { reader, writer }] {
            assert!(!is_readable(&wake));
            wake.clear();
            // A pipe is full before the last of these.
            for _ in 0..20_000 {
                wake.set();
            }
            assert!(is_readable(&wake));
            wake.clear();
            assert!(!is_readable(&wake));
            wake.set();
            assert!(is_readable(&wake));
        }
    }
}
