//! Starts a program under the filter.
//!
//! The new process installs the filter on itself before it runs the program, and sends the
//! descriptor by which the kernel tells of calls over a socket.

use super::Supervisor;
use super::filter;
use crate::system::checked;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV` (Linux 5.19): a signal does not end a call that the
/// supervisor has begun to answer. Go sends itself signals all the time.
const WAIT_KILLABLE: libc::c_ulong = 1 << 5;

/// A program that runs, and its supervisor.
#[derive(Debug)]
pub struct Started {
    /// The process.
    pub child: Child,
    /// Answers its calls and those of its children.
    pub supervisor: Supervisor,
}

/// Starts a program under the filter.
///
/// # Errors
/// The program cannot be run, or the kernel has no such filters (Linux 5.5).
pub fn start(mut command: Command) -> io::Result<Started> {
    let (ours, theirs) = UnixStream::pair()?;
    let theirs = OwnedFd::from(theirs);
    let socket = theirs.as_raw_fd();
    let steps = filter::program();
    // SAFETY: the closure calls the kernel only, and does not allocate.
    unsafe { command.pre_exec(move || install(&steps, socket)) };
    let child = command.spawn();
    drop(theirs);
    let mut child = child?;
    match receive(&ours) {
        Ok(listener) => Ok(Started { child, supervisor: Supervisor::new(listener) }),
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(error)
        }
    }
}

/// Installs the filter on this process and sends the listener to the parent.
fn install(steps: &[libc::sock_filter], socket: RawFd) -> io::Result<()> {
    let program = libc::sock_fprog { len: steps.len() as libc::c_ushort, filter: steps.as_ptr().cast_mut() };
    let set = |flags: libc::c_ulong| {
        let (mode, program) = (libc::SECCOMP_SET_MODE_FILTER, &raw const program);
        // SAFETY: the program describes `steps`, which outlive the call.
        checked(unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, program) })
    };
    let listen = || {
        let listener = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        match set(listener | WAIT_KILLABLE) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => set(listener),
            result => result,
        }
    };
    let listener = match listen() {
        // A user without rights may do so after giving up set-user-id programs.
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
            // SAFETY: the call takes numbers only.
            checked(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into())?;
            listen()?
        }
        result => result?,
    };
    send(socket, listener as RawFd)?;
    // SAFETY: the descriptor is this process's, and nothing uses it from here on.
    unsafe { libc::close(listener as RawFd) };
    Ok(())
}

/// Bytes of a control message with one descriptor, in words, which are aligned as its header.
const CONTROL: usize = 4;

fn send(socket: RawFd, descriptor: RawFd) -> io::Result<()> {
    let mut byte = [0_u8; 1];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut control = [0_u64; CONTROL];
    // SAFETY: every field may be zero.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: the macros compute with numbers; the control buffer has room for one descriptor.
    unsafe {
        message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
        std::ptr::write_unaligned(libc::CMSG_DATA(header).cast::<RawFd>(), descriptor);
    }
    // SAFETY: the message points to live buffers of the given sizes.
    checked(unsafe { libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL) } as libc::c_long)?;
    Ok(())
}

fn receive(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0_u8; 1];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut control = [0_u64; CONTROL];
    // SAFETY: every field may be zero.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let (socket, flags) = (socket.as_raw_fd(), libc::MSG_CMSG_CLOEXEC);
    // SAFETY: the message points to live buffers of the given sizes.
    checked(unsafe { libc::recvmsg(socket, &raw mut message, flags) } as libc::c_long)?;
    // SAFETY: the kernel filled the control buffer and stored its length in the message.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    if header.is_null() {
        return Err(io::Error::other("the new process sent no descriptor"));
    }
    // SAFETY: a rights message holds a descriptor, possibly unaligned, which is now this process's.
    Ok(unsafe { OwnedFd::from_raw_fd(std::ptr::read_unaligned(libc::CMSG_DATA(header).cast::<RawFd>())) })
}
