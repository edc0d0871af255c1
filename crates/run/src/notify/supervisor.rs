//! The supervisor: hears of calls, and answers them.
//!
//! Owns [`Supervisor`]. It answers one call after the other, so its program waits for one answer at
//! a time. Any failure of its own leaves the call to the kernel.

use super::answers::{self, Answer};
use super::told::Told;
use crate::caller::Caller;
use crate::system;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// `SECCOMP_IOCTL_NOTIF_*` (`include/uapi/linux/seccomp.h`).
const RECEIVE: u32 = 0xc050_2100;
const SEND: u32 = 0xc018_2101;
const IS_VALID: u32 = 0x4008_2102;
const ADD_DESCRIPTOR: u32 = 0x4018_2103;

/// `SECCOMP_ADDFD_FLAG_SEND`: the new descriptor is the result of the call (Linux 5.14).
const ADD_AND_SEND: u32 = 1 << 1;
/// `SECCOMP_USER_NOTIF_FLAG_CONTINUE`.
const CONTINUE: u32 = 1;

/// `struct seccomp_notif_resp`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Response {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

/// `struct seccomp_notif_addfd`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct AddDescriptor {
    id: u64,
    flags: u32,
    source: u32,
    new: u32,
    new_flags: u32,
}

/// Answers the calls of a program and of its children.
#[derive(Debug)]
pub struct Supervisor {
    listener: OwnedFd,
}

impl AsFd for Supervisor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Supervisor {
    pub(super) fn new(listener: OwnedFd) -> Self {
        Self { listener }
    }

    /// Waits for a call and answers it. The descriptor of the supervisor is readable when a call
    /// waits, and hangs up when no process is left.
    ///
    /// # Errors
    /// The kernel tells of no calls.
    pub fn answer_one(&self) -> io::Result<()> {
        let mut told = Told::default();
        // SAFETY: the structure is the request's.
        match unsafe { system::ioctl(self.listener.as_raw_fd(), RECEIVE, &mut told) } {
            Ok(_) => {}
            // The process was killed meanwhile.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => return Ok(()),
            Err(error) => return Err(error),
        }
        let caller = Caller::of_thread(told.thread as libc::pid_t);
        let answer = match &caller {
            Ok(caller) => answers::answer(caller, &told, || self.is_valid(told.id)),
            Err(_) => Answer::Continue,
        };
        self.send(&told, answer);
        Ok(())
    }

    /// Returns whether the call still waits. Its thread's id may belong to another one otherwise.
    fn is_valid(&self, mut id: u64) -> bool {
        // SAFETY: the request reads 64 bits.
        unsafe { system::ioctl(self.listener.as_raw_fd(), IS_VALID, &mut id) }.is_ok()
    }

    /// Sends an answer. It fails if the process was killed meanwhile, which is no error here.
    fn send(&self, told: &Told, answer: Answer) {
        let listener = self.listener.as_raw_fd();
        let mut response = Response { id: told.id, ..Response::default() };
        match answer {
            Answer::Continue => response.flags = CONTINUE,
            Answer::Result(Ok(value)) => response.value = value.into(),
            Answer::Result(Err(error)) => response.error = -error.raw_os_error().unwrap_or(libc::EIO),
            Answer::Descriptor { file, close_on_exec } => {
                let mut add = AddDescriptor {
                    id: told.id,
                    flags: ADD_AND_SEND,
                    source: file.as_raw_fd() as u32,
                    new: 0,
                    new_flags: if close_on_exec { libc::O_CLOEXEC as u32 } else { 0 },
                };
                // SAFETY: the structure is the request's.
                match unsafe { system::ioctl(listener, ADD_DESCRIPTOR, &mut add) } {
                    Ok(_) => return,
                    Err(_) => response.flags = CONTINUE,
                }
            }
        }
        // SAFETY: the structure is the request's.
        let _ = unsafe { system::ioctl(listener, SEND, &mut response) };
    }
}
