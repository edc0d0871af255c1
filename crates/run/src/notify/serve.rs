//! Serves a started program until it ends.
//!
//! Owns [`serve`]. Processes that outlive the program, such as servers, still need answers. A copy
//! of this process goes on for them.

use super::{Started, Supervisor};
use crate::system::checked;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::process::ExitStatus;

/// Answers calls until the program ends, and returns its status. Signals of a terminal reach the
/// program itself; those that ask this process to end are passed on.
///
/// # Errors
/// The system's. The program may still run.
pub fn serve(started: Started) -> io::Result<ExitStatus> {
    let Started { mut child, supervisor } = started;
    let process = child.id() as libc::pid_t;
    // SAFETY: the call takes numbers only.
    let handle = checked(unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) })?;
    // SAFETY: the call has just opened the descriptor.
    let handle = unsafe { OwnedFd::from_raw_fd(handle as RawFd) };
    let signals = take_signals()?;
    loop {
        let ready = wait([handle.as_raw_fd(), signals.as_raw_fd(), supervisor.as_fd().as_raw_fd()])?;
        if ready[2] & libc::POLLIN != 0 {
            supervisor.answer_one()?;
            continue;
        }
        if ready[1] & libc::POLLIN != 0 {
            let signal = next_signal(&signals)?;
            // SAFETY: the call takes numbers only. The child was not waited for, so the id is its.
            unsafe { libc::kill(process, signal) };
            continue;
        }
        if ready[0] & libc::POLLIN != 0 {
            let status = child.wait()?;
            if ready[2] & libc::POLLHUP == 0 {
                leave_for_others(&supervisor)?;
            }
            return Ok(status);
        }
    }
}

/// Returns a descriptor from which signals are read that ask this process to end, and ignores those
/// that a terminal sends to the program, too.
fn take_signals() -> io::Result<OwnedFd> {
    let mut set = std::mem::MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initializes the set, which the other calls read and extend. The numbers
    // are valid.
    let fd = unsafe {
        libc::signal(libc::SIGINT, libc::SIG_IGN);
        libc::signal(libc::SIGQUIT, libc::SIG_IGN);
        libc::sigemptyset(set.as_mut_ptr());
        for signal in [libc::SIGTERM, libc::SIGHUP] {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
        libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC)
    };
    checked(fd.into())?;
    // SAFETY: the call has just opened the descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn next_signal(signals: &OwnedFd) -> io::Result<libc::c_int> {
    // SAFETY: every field may be zero.
    let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
    let (place, size) = (&raw mut info, size_of::<libc::signalfd_siginfo>());
    // SAFETY: the buffer has the size that is given.
    checked(unsafe { libc::read(signals.as_raw_fd(), place.cast(), size) } as libc::c_long)?;
    Ok(info.ssi_signo as libc::c_int)
}

/// Waits until one of the descriptors is ready, and returns what each is ready for.
fn wait<const COUNT: usize>(descriptors: [RawFd; COUNT]) -> io::Result<[i16; COUNT]> {
    let mut polled = descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    loop {
        // SAFETY: the list has the length that is given.
        match checked(unsafe { libc::poll(polled.as_mut_ptr(), COUNT as libc::nfds_t, -1) }.into()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(_) => return Ok(polled.map(|one| one.revents)),
        }
    }
}

/// Goes on with answers in a copy of this process, until no process needs any.
fn leave_for_others(supervisor: &Supervisor) -> io::Result<()> {
    let listener = supervisor.as_fd().as_raw_fd();
    // SAFETY: the copy calls the kernel and allocates, which glibc allows after a fork. It takes no
    // lock of this program.
    match unsafe { libc::fork() } {
        0 => {}
        forked => return checked(forked.into()).map(drop),
    }
    // SAFETY: the calls take numbers and a string.
    unsafe {
        libc::setsid();
        // A reader of this program's output waits until all copies of the descriptor are closed.
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for descriptor in 0..3 {
            libc::dup2(null, descriptor);
        }
    }
    while let Ok([ready]) = wait([listener]) {
        if ready & libc::POLLIN == 0 || supervisor.answer_one().is_err() {
            break;
        }
    }
    // SAFETY: the call has no conditions.
    unsafe { libc::_exit(0) }
}
