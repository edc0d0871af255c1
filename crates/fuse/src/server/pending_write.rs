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
use crate::protocol::init::MAX_WRITE;
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
/// The flag of `pwritev2` that appends (`RWF_APPEND`).
const APPEND: u64 = 0x10;
/// The most buffers of a `writev` (`UIO_MAXIOV`).
const MOST_BUFFERS: u64 = 1024;

/// The work of a caller that asks for the attributes of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PendingWrite {
    /// A write whose length is known.
    Write(KnownWrite),
    /// Something else, such as `fstat`, or a direct write in one request.
    Other,
    /// The server may not look, or the caller writes in another way (io_uring).
    Unknown,
}

/// A write as the system call describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KnownWrite {
    /// The file offset, if that is known.
    pub(super) offset: Option<u64>,
    /// Bytes that it has.
    pub(super) length: u64,
    /// It goes to the end of the file, wherever that will be.
    pub(super) appends: bool,
    /// It passes the kernel's cache, in requests that the kernel sends at once.
    pub(super) direct: bool,
    /// Where the caller has the data, if in its memory.
    source: Option<CallerBytes>,
}

/// Addresses in a caller's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallerBytes {
    Buffer(u64),
    /// So many buffers, whose descriptions are at this address.
    Buffers(u64, u64),
}

/// The data of a write, in the caller's memory.
pub(super) struct CallerData {
    memory: File,
    /// The address and the length of each buffer.
    buffers: Vec<(u64, u64)>,
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
    /// Whether the call itself says that it appends.
    appends: bool,
    length: Length,
    source: Option<CallerBytes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    Bytes(u64),
    /// The sum of the buffers of the source.
    OfBuffers,
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
        let direct = flags & libc::O_DIRECT != 0;
        let appends = write.appends || flags & libc::O_APPEND != 0;
        let offset = match write.offset {
            _ if appends => Some(size),
            None if write.at_position => field("pos:").and_then(|text| text.parse().ok()),
            named => named,
        };
        let length = match (write.length, write.source) {
            (Length::Bytes(bytes), _) => Some(bytes),
            (Length::OfBuffers, Some(source)) => CallerData::of(caller.pid, source).map(|data| data.length()),
            (Length::OfBuffers, None) => None,
        };
        // The thread still waits in the same call, so what was read belongs to it.
        match length.filter(|_| waiting_call(caller.pid) == Some(call)) {
            // The server gets the write itself, as a whole.
            Some(length) if direct && length <= u64::from(MAX_WRITE) => Self::Other,
            Some(length) => {
                let (length, source) = (length.min(MOST), write.source);
                Self::Write(KnownWrite { offset, length, appends, direct, source })
            }
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
        let [first, second, third, fourth, _, sixth] = call.arguments;
        let descriptor = first;
        let (at_position, appends) = (true, false);
        let bytes = |offset| {
            let (length, source) = (Length::Bytes(third), Some(CallerBytes::Buffer(second)));
            Some(Self { descriptor, offset, at_position, appends, length, source })
        };
        let buffers = |offset, appends| {
            let (length, source) = (Length::OfBuffers, Some(CallerBytes::Buffers(second, third)));
            Some(Self { descriptor, offset, at_position, appends, length, source })
        };
        let piped = |descriptor, length: u64| {
            let length = Length::Bytes(length.min(PIPE));
            Some(Self { descriptor, offset: None, at_position: false, appends, length, source: None })
        };
        match call.number {
            libc::SYS_write => bytes(None),
            libc::SYS_pwrite64 => bytes(Some(fourth)),
            libc::SYS_writev => buffers(None, false),
            libc::SYS_pwritev | libc::SYS_pwritev2 => {
                // -1 means the position of the open file.
                let offset = Some(fourth).filter(|offset| *offset != u64::MAX);
                let appends = call.number == libc::SYS_pwritev2 && sixth & APPEND != 0;
                buffers(offset, appends)
            }
            // These write in pieces, and move the position of the open file at their end.
            libc::SYS_sendfile => piped(first, fourth),
            libc::SYS_splice | libc::SYS_copy_file_range => piped(third, call.arguments[4]),
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

impl KnownWrite {
    /// Returns the data of the write of a thread that waits in it, if the server may read it.
    pub(super) fn data(&self, thread: u32) -> Option<CallerData> {
        CallerData::of(thread, self.source?)
    }
}

impl CallerData {
    fn of(thread: u32, source: CallerBytes) -> Option<Self> {
        const EACH: usize = size_of::<libc::iovec>();
        let memory = File::open(format!("/proc/{thread}/mem")).ok()?;
        let (address, count) = match source {
            CallerBytes::Buffer(address) => return Some(Self { memory, buffers: vec![(address, MOST)] }),
            CallerBytes::Buffers(address, count) => (address, count),
        };
        let mut bytes = vec![0; EACH * usize::try_from(count.min(MOST_BUFFERS)).ok()?];
        memory.read_exact_at(&mut bytes, address).ok()?;
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, usize::from_ne_bytes) as u64;
        let buffers = bytes.chunks_exact(EACH).map(|description| {
            let (address, length) = description.split_at(EACH / 2);
            (word(address), word(length))
        });
        Some(Self { memory, buffers: buffers.collect() })
    }

    /// Returns the sum of the lengths of the buffers.
    fn length(&self) -> u64 {
        self.buffers.iter().fold(0, |sum, (_, length)| sum.saturating_add(*length))
    }

    /// Reads the bytes from byte `from` of the data on, as many as there are and `out` takes, and
    /// returns their number; `None` where they cannot be read.
    pub(super) fn read(&self, from: u64, out: &mut [u8]) -> Option<usize> {
        let (mut skip, mut done) = (from, 0);
        for &(address, length) in &self.buffers {
            if skip >= length {
                skip -= length;
                continue;
            }
            let bytes = usize::try_from(length - skip).unwrap_or(usize::MAX).min(out.len() - done);
            let part = &mut out[done..done + bytes];
            self.memory.read_exact_at(part, address.checked_add(skip)?).ok()?;
            (skip, done) = (0, done + bytes);
            if done == out.len() {
                break;
            }
        }
        Some(done).filter(|done| *done > 0)
    }
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
        assert_eq!(found.source, Some(CallerBytes::Buffer(0x7f10)));
        assert_eq!(write(libc::SYS_pwrite64).unwrap().offset, Some(0x2000));
        assert_eq!(write(libc::SYS_writev).unwrap().source, Some(CallerBytes::Buffers(0x7f10, 0x1000)));
        assert!(!write(libc::SYS_pwritev2).unwrap().appends);
        assert_eq!(write(libc::SYS_splice).unwrap().descriptor, 0x1000);
        assert_eq!(write(libc::SYS_splice).unwrap().length, Length::Bytes(0x30));
        assert_eq!(write(libc::SYS_fstat), None);
        assert!(SystemCall::parse(&line(libc::SYS_fstat)).unwrap().is_harmless());
        for other in ["running", "-1 0x7ffd 0x7f2c", "", "1 0x3"] {
            assert_eq!(SystemCall::parse(other), None, "{other}");
        }
    }

    #[test]
    fn data_is_read_from_its_buffers() {
        let (first, second) = (*b"one buffer", *b"another");
        let slices = [std::io::IoSlice::new(&first), std::io::IoSlice::new(&second)];
        let thread = std::process::id();
        let data = CallerData::of(thread, CallerBytes::Buffers(slices.as_ptr() as u64, 2)).unwrap();
        assert_eq!(data.length(), 17);
        let mut out = [0; 9];
        assert_eq!((data.read(4, &mut out), &out), (Some(9), b"bufferano"));
        assert_eq!((data.read(13, &mut out), &out[..4]), (Some(4), &b"ther"[..]));
        assert_eq!(data.read(17, &mut out), None);
        let data = CallerData::of(thread, CallerBytes::Buffer(second.as_ptr() as u64)).unwrap();
        assert_eq!((data.read(1, &mut out[..3]), &out[..3]), (Some(3), &b"not"[..]));
        assert_eq!(CallerData::of(thread, CallerBytes::Buffer(8)).unwrap().read(0, &mut out), None);
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
