//! The write that a caller is about to make to the kernel's cache.
//!
//! Owns [`PendingWrite`]. Before the kernel caches a write it may ask for the file's attributes,
//! and the request names the thread, not the write. `/proc/TID/syscall` shows the system call that
//! the thread waits in, where the server may look: as root, or as the caller's user where the
//! system lets a user's processes trace one another. The caller controls what is shown, so it
//! decides only on the caller's own write.
//!
//! Kernel counterpart: `proc_pid_syscall` (`fs/proc/base.c`).

use crate::ioctl::Caller;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// How often a caller that is not asleep yet is looked at, and how long each time waits.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_micros(50);
/// The most bytes that the kernel writes in one call (`MAX_RW_COUNT`).
const MOST: u64 = 0x7fff_f000;
/// The most bytes that a splice hands to a file at once.
const PIPE: u64 = 1 << 20;
/// The most buffers of a `writev` (`UIO_MAXIOV`).
const MOST_BUFFERS: u64 = 1024;

/// The work of a caller that asks for the attributes of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PendingWrite {
    /// A write of so many bytes, at a file offset if that is known.
    Write { offset: Option<u64>, length: u64 },
    /// Something else, such as `fstat`.
    Other,
    /// The server may not look, or the caller writes in another way (io_uring).
    Unknown,
}

/// A system call: its number and its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SystemCall {
    number: i64,
    arguments: [u64; 6],
}

/// A call that writes, as far as its arguments say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WriteCall {
    descriptor: u64,
    /// Of a call that names one.
    offset: Option<u64>,
    /// Whether the offset, if none is named, is that of the open file.
    at_position: bool,
    length: Length,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    Bytes(u64),
    /// The sum of so many buffers, whose descriptions are at this address.
    Buffers(u64, u64),
}

impl PendingWrite {
    /// Returns what the caller does to the file that users see with inode number `number` and
    /// `size` bytes.
    pub(super) fn of(caller: Caller, number: u64, size: u64) -> Self {
        let Some(call) = waiting_call(caller.pid) else { return Self::Unknown };
        let Some(write) = WriteCall::of(&call) else {
            return if call.is_harmless() { Self::Other } else { Self::Unknown };
        };
        let info = fs::read_to_string(format!("/proc/{}/fdinfo/{}", caller.pid, write.descriptor));
        let Ok(info) = info else { return Self::Unknown };
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        if field("ino:").and_then(|text| text.parse().ok()).is_some_and(|found: u64| found != number) {
            return Self::Unknown;
        }
        let flags = field("flags:").and_then(|text| i32::from_str_radix(text, 8).ok()).unwrap_or(0);
        let offset = match write.offset {
            _ if flags & libc::O_APPEND != 0 => Some(size),
            None if write.at_position => field("pos:").and_then(|text| text.parse().ok()),
            named => named,
        };
        let length = match write.length {
            Length::Bytes(bytes) => Some(bytes),
            Length::Buffers(address, count) => buffers(caller.pid, address, count),
        };
        // The thread still waits in the same call, so what was read belongs to it.
        match length.filter(|_| waiting_call(caller.pid) == Some(call)) {
            Some(length) => Self::Write { offset, length: length.min(MOST) },
            None => Self::Unknown,
        }
    }
}

impl SystemCall {
    /// Reads a line of `/proc/TID/syscall`.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let number = words.next()?.parse().ok()?;
        let mut arguments = [0; 6];
        for argument in &mut arguments {
            *argument = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
        }
        Some(Self { number, arguments })
    }

    /// Returns whether the call asks for attributes of an open file and writes nothing.
    fn is_harmless(&self) -> bool {
        let harmless = [
            libc::SYS_fstat,
            libc::SYS_newfstatat,
            libc::SYS_statx,
            libc::SYS_lseek,
            libc::SYS_read,
            libc::SYS_pread64,
            libc::SYS_readv,
            libc::SYS_preadv,
        ];
        harmless.contains(&self.number)
    }
}

impl WriteCall {
    fn of(call: &SystemCall) -> Option<Self> {
        let [first, second, third, fourth, ..] = call.arguments;
        let at = |descriptor, offset, length| Some(Self { descriptor, offset, at_position: true, length });
        match call.number {
            libc::SYS_write => at(first, None, Length::Bytes(third)),
            libc::SYS_pwrite64 => at(first, Some(fourth), Length::Bytes(third)),
            libc::SYS_writev => at(first, None, Length::Buffers(second, third)),
            libc::SYS_pwritev | libc::SYS_pwritev2 => {
                // -1 means the position of the open file.
                let offset = Some(fourth).filter(|offset| *offset != u64::MAX);
                at(first, offset, Length::Buffers(second, third))
            }
            // These write in pieces, and move the position of the open file at their end.
            libc::SYS_sendfile => {
                let length = Length::Bytes(fourth.min(PIPE));
                Some(Self { descriptor: first, offset: None, at_position: false, length })
            }
            libc::SYS_splice | libc::SYS_copy_file_range => {
                let length = Length::Bytes(call.arguments[4].min(PIPE));
                Some(Self { descriptor: third, offset: None, at_position: false, length })
            }
            _ => None,
        }
    }
}

/// Returns the system call that a thread waits in.
fn waiting_call(thread: u32) -> Option<SystemCall> {
    if thread == 0 {
        return None;
    }
    for _ in 0..ATTEMPTS {
        let line = fs::read_to_string(format!("/proc/{thread}/syscall")).ok()?;
        if line.trim() != "running" {
            return SystemCall::parse(&line);
        }
        // It has sent the request and does not sleep yet.
        std::thread::sleep(PAUSE);
    }
    None
}

/// Returns the sum of the lengths of `count` buffers whose descriptions are at `address`.
fn buffers(thread: u32, address: u64, count: u64) -> Option<u64> {
    const EACH: usize = size_of::<libc::iovec>();
    let mut bytes = vec![0; EACH * usize::try_from(count.min(MOST_BUFFERS)).ok()?];
    File::open(format!("/proc/{thread}/mem")).ok()?.read_exact_at(&mut bytes, address).ok()?;
    let lengths = bytes.chunks_exact(EACH).map(|description| {
        let (_, length) = description.split_at(EACH / 2);
        length.try_into().map_or(0, usize::from_ne_bytes) as u64
    });
    Some(lengths.fold(0, u64::saturating_add))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_as_the_kernel_shows_them() {
        let line = |number: i64| format!("{number} 0x3 0x7f10 0x1000 0x2000 0x30 0x0 0x7ffd 0x7f2c\n");
        let write = |number| WriteCall::of(&SystemCall::parse(&line(number)).unwrap());
        let found = write(libc::SYS_write).unwrap();
        assert_eq!((found.descriptor, found.offset, found.length), (3, None, Length::Bytes(0x1000)));
        assert_eq!(write(libc::SYS_pwrite64).unwrap().offset, Some(0x2000));
        assert_eq!(write(libc::SYS_writev).unwrap().length, Length::Buffers(0x7f10, 0x1000));
        assert_eq!(write(libc::SYS_splice).unwrap().descriptor, 0x1000);
        assert_eq!(write(libc::SYS_splice).unwrap().length, Length::Bytes(0x30));
        assert_eq!(write(libc::SYS_fstat), None);
        assert!(SystemCall::parse(&line(libc::SYS_fstat)).unwrap().is_harmless());
        for other in ["running", "-1 0x7ffd 0x7f2c", "", "1 0x3"] {
            assert_eq!(SystemCall::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_thread_that_waits_is_found() {
        use std::io::Read;
        let (mut reader, writer) = std::io::pipe().unwrap();
        let (say, said) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || {
            say.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
            let _ = reader.read(&mut [0; 7]);
        });
        let thread = said.recv().unwrap();
        let begun = std::time::Instant::now();
        let call = loop {
            match waiting_call(thread).filter(|call| call.number == libc::SYS_read) {
                Some(call) => break call,
                None => assert!(begun.elapsed() < Duration::from_secs(60), "it waits in its read"),
            }
        };
        assert_eq!(call.arguments[2], 7);
        assert!(call.is_harmless());
        drop(writer);
        waiting.join().unwrap();
    }
}
