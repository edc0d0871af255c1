//! The caller's memory and descriptors, for ioctls whose arguments refer to them.
//!
//! FUSE passes the bytes that a command number encodes, and the address they came from. Owns
//! [`BlockedCaller`], which reaches what lies behind that address, through /proc.
//!
//! **Invariants**
//! - Only a thread that waits in this very ioctl is read or written: /proc shows its system call
//!   with the command and the address that the request names. A thread that has the same id by
//!   chance, because the caller was killed, does not match.
//! - The descriptors of /proc/PID belong to one process. They are opened before the system call is
//!   compared, so nothing reaches a process that gets the id later.
//! - Memory that the caller may not write itself is not written, although /proc/PID/mem would.
//! - Where the server may not look (another user, Yama, another PID namespace, a 32-bit caller),
//!   the ioctl fails with ENOTTY.
//!
//! Kernel counterparts: `copy_from_user`, `copy_to_user`, `fget`; `proc_pid_syscall`
//! (`fs/proc/base.c`).

use super::call::{IoctlCall, Result};
use papilio_ioctl::Errno;
use rustix::fs::{Mode, OFlags, open, openat};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// How often a caller that is not asleep yet is looked at, and how long each time waits.
const ATTEMPTS: u32 = 200;
const PAUSE: Duration = Duration::from_micros(100);

const NOT_REACHABLE: Errno = Errno(libc::ENOTTY);
const FAULT: Errno = Errno(libc::EFAULT);

/// A caller that waits in the ioctl.
#[derive(Debug)]
pub(super) struct BlockedCaller {
    process: OwnedFd,
    command: u32,
    address: u64,
}

impl BlockedCaller {
    /// Finds the thread that waits for this call.
    ///
    /// # Errors
    /// ENOTTY if the server may not look at it.
    pub(super) fn of(call: &IoctlCall<'_>) -> Result<Self> {
        if call.caller.pid == 0 || call.address == 0 {
            return Err(NOT_REACHABLE);
        }
        let path = format!("/proc/{}", call.caller.pid);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let process = open(path, flags, Mode::empty()).map_err(|_| NOT_REACHABLE)?;
        let found = Self { process, command: call.command, address: call.address };
        found.must_wait()?;
        Ok(found)
    }

    /// Refuses a thread that is not in this ioctl.
    fn must_wait(&self) -> Result<()> {
        for _ in 0..ATTEMPTS {
            let text = self.text("syscall")?;
            if text.trim() == "running" {
                // It has sent the request and does not sleep yet.
                std::thread::sleep(PAUSE);
                continue;
            }
            return if is_call(&text, self.command, self.address) { Ok(()) } else { Err(NOT_REACHABLE) };
        }
        Err(NOT_REACHABLE)
    }

    fn open(&self, name: &str, flags: OFlags) -> Result<File> {
        let file = openat(&self.process, name, flags | OFlags::CLOEXEC, Mode::empty());
        file.map(File::from).map_err(|_| NOT_REACHABLE)
    }

    fn text(&self, name: &str) -> Result<String> {
        let mut text = String::new();
        self.open(name, OFlags::RDONLY)?.read_to_string(&mut text).map_err(|_| NOT_REACHABLE)?;
        Ok(text)
    }

    /// Returns the flags (`O_*`) of the open file that the ioctl was issued on.
    ///
    /// # Errors
    /// ENOTTY if the server may not look at it, or the caller is gone.
    pub(super) fn file_flags(&self) -> Result<i32> {
        let call = self.text("syscall")?;
        if !is_call(&call, self.command, self.address) {
            return Err(NOT_REACHABLE);
        }
        let descriptor = call.split_ascii_whitespace().nth(1).and_then(|word| word.strip_prefix("0x"));
        let descriptor = descriptor.and_then(|word| u64::from_str_radix(word, 16).ok());
        let descriptor = descriptor.ok_or(NOT_REACHABLE)? as u32;
        let info = self.text(&format!("fdinfo/{descriptor}"))?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
        self.must_wait()?;
        flags.ok_or(NOT_REACHABLE)
    }

    /// Returns whether the caller is gone, or will end as soon as the ioctl does.
    pub(super) fn is_killed(&self) -> bool {
        const KILL: u64 = 1 << (libc::SIGKILL - 1);
        let Ok(status) = self.text("status") else { return true };
        let pending = status.lines().filter_map(|line| {
            let mask = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
            u64::from_str_radix(mask.trim(), 16).ok()
        });
        pending.fold(0, |all, mask| all | mask) & KILL != 0
    }

    /// Opens the caller's memory.
    ///
    /// # Errors
    /// ENOTTY if the server may not, or the caller is gone.
    pub(super) fn memory(&self) -> Result<CallerMemory<'_>> {
        let file = self.open("mem", OFlags::RDWR)?;
        // The descriptor belongs to the process that waits now, and stays with it.
        self.must_wait()?;
        Ok(CallerMemory { caller: self, file })
    }

    /// Returns a copy of one of the caller's descriptors, which shares its file offset.
    ///
    /// # Errors
    /// EBADF if it is not open, ENOTTY if the server may not have it.
    pub(super) fn descriptor(&self, fd: i64) -> Result<OwnedFd> {
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or(Errno(libc::EBADF))?;
        let status = self.text("status")?;
        let group = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse::<i32>().ok());
        let group = group.and_then(Pid::from_raw).ok_or(NOT_REACHABLE)?;
        let process = pidfd_open(group, PidfdFlags::empty()).map_err(|_| NOT_REACHABLE)?;
        // The thread still waits, so its process had this id when it was opened.
        self.must_wait()?;
        pidfd_getfd(&process, fd, PidfdGetfdFlags::empty()).map_err(|error| match error {
            rustix::io::Errno::BADF => Errno(libc::EBADF),
            _ => NOT_REACHABLE,
        })
    }
}

/// The memory of a caller.
#[derive(Debug)]
pub(super) struct CallerMemory<'a> {
    caller: &'a BlockedCaller,
    file: File,
}

impl CallerMemory<'_> {
    /// Reads bytes.
    ///
    /// # Errors
    /// EFAULT if the caller has no memory there.
    pub(super) fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(bytes, address).map_err(|_| FAULT)
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// EFAULT if the caller may not write there.
    pub(super) fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        let end = address.checked_add(bytes.len() as u64).ok_or(FAULT)?;
        if bytes.is_empty() {
            return Ok(());
        }
        if !is_writable(&self.caller.text("maps")?, address, end) {
            return Err(FAULT);
        }
        self.file.write_all_at(bytes, address).map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied => NOT_REACHABLE,
            _ => FAULT,
        })
    }
}

/// Returns whether a line of /proc/PID/syscall shows an ioctl with this command and address.
fn is_call(text: &str, command: u32, address: u64) -> bool {
    let mut words = text.split_ascii_whitespace();
    let number = words.next().and_then(|word| word.parse::<i64>().ok());
    let mut arguments = words.map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
    let (_descriptor, second, third) = (arguments.next(), arguments.next(), arguments.next());
    // A C library may pass the command with its sign extended.
    number == Some(libc::SYS_ioctl)
        && second.flatten().is_some_and(|second| second as u32 == command)
        && third.flatten() == Some(address)
}

/// Returns whether the mappings cover a range with memory that the process may write.
fn is_writable(maps: &str, mut address: u64, end: u64) -> bool {
    for line in maps.lines() {
        let Some((range, rest)) = line.split_once(' ') else { continue };
        let Some((from, to)) = range.split_once('-') else { continue };
        let (Ok(from), Ok(to)) = (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16)) else {
            continue;
        };
        if to <= address {
            continue;
        }
        if from > address || rest.as_bytes().get(1) != Some(&b'w') {
            return false;
        }
        address = to;
        if address >= end {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_call_matches() {
        let line = |command: &str, address: &str| {
            format!("{} 0x3 {command} {address} 0x0 0x0 0x0 0x7ffd 0x7f2c\n", libc::SYS_ioctl)
        };
        assert!(is_call(&line("0xc0709411", "0x7ffd10"), 0xc070_9411, 0x7f_fd10));
        assert!(is_call(&line("0xffffffffc0709411", "0x7ffd10"), 0xc070_9411, 0x7f_fd10));
        assert!(!is_call(&line("0xc0709412", "0x7ffd10"), 0xc070_9411, 0x7f_fd10));
        assert!(!is_call(&line("0xc0709411", "0x7ffd18"), 0xc070_9411, 0x7f_fd10));
        assert!(!is_call("0 0x3 0xc0709411 0x7ffd10 0x0 0x0 0x0 0x0 0x0", 0xc070_9411, 0x7f_fd10));
        for other in ["running", "-1 0x7ffd 0x7f2c", "", "16", "16 0x3"] {
            assert!(!is_call(other, 0xc070_9411, 0x7f_fd10), "{other}");
        }
    }

    #[test]
    fn ranges_must_be_writable_throughout() {
        let maps = "1000-3000 rw-p 0 00:00 0\n3000-4000 rw-p 0 00:00 0 [heap]\n4000-5000 r--p 0 00:00 0\n\
                    6000-7000 rw-s 0 00:00 0\n";
        assert!(is_writable(maps, 0x1000, 0x4000) && is_writable(maps, 0x2fff, 0x3001));
        assert!(!is_writable(maps, 0x3fff, 0x4001), "read-only");
        assert!(!is_writable(maps, 0xfff, 0x1001) && !is_writable(maps, 0x5000, 0x5001), "not mapped");
        assert!(is_writable(maps, 0x6fff, 0x7000) && !is_writable(maps, 0x6fff, 0x7001));
    }
}
