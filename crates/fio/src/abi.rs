//! Where fields lie in fio's structures, and typed access to them.
//!
//! Owns [`ThreadData`], [`FioFile`] and [`IoUnit`], pointers that fio handed over, and [`OpsLayout`], the
//! table of functions that fio is handed. Offsets are in bytes, on 64-bit Linux; those that differ between
//! versions of fio are a shift of a whole group, which [`crate::discover`] determines.
//!
//! | structure | field | offset |
//! |---|---|---|
//! | `thread_data` | options | 24 |
//! | `io_u` | issue_time, file, ddir | 16, 32, 44 |
//! | `io_u` | buflen, offset, buf, xfer_buf, xfer_buflen, resid, error | 64, 72, 88, 104, 112, 136, 144, all shifted by -8 in 3.28 and 3.29, by 8 from 3.41 on |
//! | `fio_file` | filetype, fd, fileno, file_name, real_file_size, file_offset, io_size | 16, 20, 36, 40, 48, 56, 64 |
//! | `ioengine_ops` | name, version, flags, dlhandle, setup to errdetails | 16, 24, 28, 32, 40 to 104 |
//! | `ioengine_ops` | cleanup to io_u_free | 120 to 208, 8 less from 3.41 on |

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

/// Value of `queue`: the I/O is over.
pub const COMPLETED: c_int = 0;
/// Value of `queue`: the I/O will be over later.
pub const QUEUED: c_int = 1;
/// Value of `queue`: not now, commit what is queued first.
pub const BUSY: c_int = 2;

/// Engine flags: the file is none of the host's.
pub const DISKLESS_IO: c_int = 1 << 2;
/// Engine flag: no statistics of a disk.
pub const NO_DISK_UTIL: c_int = 1 << 4;
/// Engine flag: `io_submit_mode=offload` does not go with it.
pub const NO_OFFLOAD: c_int = 1 << 15;
/// Engine flag: the engine writes `issue_time` (from 3.31 on).
pub const SETS_ISSUE_TIME: c_int = 1 << 16;

/// `FIO_TYPE_FILE`: a regular file.
pub const TYPE_FILE: c_int = 1;

/// First word of a job's options.
pub const OPTIONS_MAGIC: u32 = 0x4f50_544e;
/// Offset of a job's options in its `thread_data`.
pub const OPTIONS_OFFSET: usize = 24;

/// What an `io_u` asks for (`enum fio_ddir`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Trim: a hole.
    Trim,
    /// fsync; syncfs too.
    Sync,
    /// fdatasync; sync_file_range too.
    DataSync,
}

impl Direction {
    /// Of fio's number.
    pub fn new(number: c_int) -> Option<Self> {
        Some(match number {
            0 => Self::Read,
            1 => Self::Write,
            2 => Self::Trim,
            // 6 is `DDIR_WAIT` before 3.42, which no engine ever sees.
            3 | 6 => Self::Sync,
            4 | 5 => Self::DataSync,
            _ => return None,
        })
    }
}

/// A job: fio's `thread_data`.
#[derive(Clone, Copy, Debug)]
pub struct ThreadData(*mut u8);

impl ThreadData {
    /// # Safety
    /// `pointer` is a `thread_data` that fio handed to a function of the engine, and is used no longer than
    /// that function runs, or than its job lives.
    pub unsafe fn new(pointer: *mut c_void) -> Self {
        Self(pointer.cast())
    }

    /// As fio knows it.
    pub fn pointer(self) -> *mut c_void {
        self.0.cast()
    }

    /// An integer option, by its offset in the options.
    pub fn option(self, offset: usize) -> c_uint {
        // SAFETY: `new`'s contract; the offset is of fio's own option table.
        unsafe { self.0.add(OPTIONS_OFFSET + offset).cast::<c_uint>().read_unaligned() }
    }

    /// Sets an integer option.
    pub fn set_option(self, offset: usize, value: c_uint) {
        // SAFETY: as for `option`; fio reads it later in the same thread, or in threads it starts later.
        unsafe { self.0.add(OPTIONS_OFFSET + offset).cast::<c_uint>().write_unaligned(value) }
    }

    /// A text option; empty where not given.
    pub fn text_option(self, offset: usize) -> String {
        // SAFETY: as for `option`; fio stores NULL or a NUL-terminated string that stays as long as the job.
        unsafe {
            let text = self.0.add(OPTIONS_OFFSET + offset).cast::<*const c_char>().read_unaligned();
            owned_text(text).unwrap_or_default()
        }
    }

    /// The pointer at an offset of the structure itself.
    pub fn word(self, offset: usize) -> usize {
        // SAFETY: `new`'s contract; the offset was found inside the structure.
        unsafe { self.0.add(offset).cast::<usize>().read_unaligned() }
    }
}

/// A copy of a C string; `None` for NULL.
///
/// # Safety
/// `text` is NULL or a NUL-terminated string.
pub unsafe fn owned_text(text: *const c_char) -> Option<String> {
    // SAFETY: this function's own contract.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// A file of a job: fio's `fio_file`.
#[derive(Clone, Copy, Debug)]
pub struct FioFile(*mut u8);

impl FioFile {
    /// # Safety
    /// `pointer` is a `fio_file` that fio handed to a function of the engine, and is used no longer than that
    /// function runs.
    pub unsafe fn new(pointer: *mut c_void) -> Self {
        Self(pointer.cast())
    }

    fn get<T: Copy>(self, offset: usize) -> T {
        // SAFETY: `new`'s contract; the callers name fields by their offset and type.
        unsafe { self.0.add(offset).cast::<T>().read_unaligned() }
    }

    fn set<T: Copy>(self, offset: usize, value: T) {
        // SAFETY: as for `get`; fio lets engines change these fields.
        unsafe { self.0.add(offset).cast::<T>().write_unaligned(value) }
    }

    /// Its number in the job.
    pub fn number(self) -> usize {
        self.get::<c_int>(36).max(0) as usize
    }

    /// Its name, as the job has it.
    pub fn name(self) -> String {
        // SAFETY: fio stores a NUL-terminated name.
        unsafe { owned_text(self.get(40)).unwrap_or_default() }
    }

    /// Says that it is a regular file, whatever the host has under that name.
    pub fn set_regular(self) {
        self.set::<c_int>(16, TYPE_FILE);
    }

    /// Its size in bytes; `u64::MAX` where nobody knows.
    pub fn size(self) -> u64 {
        self.get(48)
    }

    /// Sets it.
    pub fn set_size(self, size: u64) {
        self.set(48, size);
    }

    /// Where the job's part of it starts.
    pub fn offset(self) -> u64 {
        self.get(56)
    }

    /// Bytes of the job's part; `u64::MAX` where nobody knows.
    pub fn io_size(self) -> u64 {
        self.get(64)
    }
}

/// One I/O: fio's `io_u`.
#[derive(Clone, Copy, Debug)]
pub struct IoUnit {
    pointer: *mut u8,
    shift: isize,
}

impl IoUnit {
    /// # Safety
    /// `pointer` is an `io_u` that fio handed to `queue` and that is not completed yet; `shift` is its
    /// version's.
    pub unsafe fn new(pointer: *mut c_void, shift: isize) -> Self {
        Self { pointer: pointer.cast(), shift }
    }

    /// As fio knows it.
    pub fn pointer(self) -> *mut c_void {
        self.pointer.cast()
    }

    fn get<T: Copy>(self, offset: isize) -> T {
        // SAFETY: `new`'s contract; the callers name fields by their offset and type.
        unsafe { self.pointer.offset(offset).cast::<T>().read_unaligned() }
    }

    fn set<T: Copy>(self, offset: isize, value: T) {
        // SAFETY: as for `get`; these fields are the engine's to write while the I/O is its own.
        unsafe { self.pointer.offset(offset).cast::<T>().write_unaligned(value) }
    }

    /// Where the time of issue belongs; valid for writing as long as the I/O is the engine's.
    pub fn issue_time_place(self) -> *mut libc::timespec {
        self.pointer.wrapping_add(16).cast()
    }

    /// The time of issue.
    pub fn issue_time(self) -> libc::timespec {
        self.get(16)
    }

    /// Sets it.
    pub fn set_issue_time(self, time: libc::timespec) {
        self.set(16, time);
    }

    /// The file.
    pub fn file(self) -> FioFile {
        FioFile(self.get(32))
    }

    /// What it asks for.
    pub fn direction(self) -> Option<Direction> {
        Direction::new(self.get(44))
    }

    /// File offset in bytes.
    pub fn offset(self) -> u64 {
        self.get(72 + self.shift)
    }

    /// The buffer of this transfer.
    pub fn buffer(self) -> *mut u8 {
        self.get(104 + self.shift)
    }

    /// Bytes of this transfer.
    pub fn length(self) -> usize {
        self.get(112 + self.shift)
    }

    /// Whether the fields are where they are looked for. Says nothing wrong of any read or write in a known
    /// layout: a transfer lies inside the I/O's own buffer.
    pub fn is_plausible(self) -> bool {
        let (whole, buffer): (usize, usize) = (self.get(64 + self.shift), self.get(88 + self.shift));
        let (start, length) = (self.buffer() as usize, self.length());
        // A transfer that continues one that came short starts behind the buffer's start.
        length > 0 && buffer > 4096 && length <= whole && start >= buffer && start - buffer <= whole - length
    }

    /// Says how it ended: bytes that are missing, and an errno or 0.
    pub fn finish(self, missing: usize, errno: c_int) {
        self.set::<u64>(136 + self.shift, missing as u64);
        self.set::<c_uint>(144 + self.shift, errno.unsigned_abs());
    }
}

/// The words of an `ioengine_ops`, more than any version has.
pub const OPS_WORDS: usize = 48;

/// What differs between versions in the table of functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpsLayout {
    /// The number that fio compares.
    pub version: c_int,
    /// Offset of `open_file`: 128, or 120 from 3.41 on.
    pub open_file: usize,
    /// Offset of `option_struct_size`; `options` follows it.
    pub options: usize,
}

/// Function of a job.
pub type JobFn = extern "C" fn(*mut c_void) -> c_int;
/// Function of a job and a file.
pub type FileFn = extern "C" fn(*mut c_void, *mut c_void) -> c_int;

/// The engine's functions.
#[derive(Clone, Copy)]
pub struct Functions {
    /// A job's thread starts.
    pub init: JobFn,
    /// It ends.
    pub cleanup: extern "C" fn(*mut c_void),
    /// An I/O.
    pub queue: FileFn,
    /// Issue what is queued.
    pub commit: JobFn,
    /// Wait for I/O.
    pub getevents: extern "C" fn(*mut c_void, c_uint, c_uint, *const libc::timespec) -> c_int,
    /// One of those waited for.
    pub event: extern "C" fn(*mut c_void, c_int) -> *mut c_void,
    /// Opens a file.
    pub open_file: FileFn,
    /// Closes it.
    pub close_file: FileFn,
    /// Forgets what is cached of it.
    pub invalidate: FileFn,
    /// Removes it.
    pub unlink_file: FileFn,
    /// Looks up its size.
    pub get_file_size: FileFn,
    /// Lays it out.
    pub prepopulate_file: FileFn,
}

/// Makes the table of functions, which lives as long as the process: fio writes into it.
pub fn make_ops(
    layout: OpsLayout,
    name: &'static CStr,
    functions: Functions,
    option_bytes: usize,
    options: *mut c_void,
) -> *mut c_void {
    let mut ops = [0_usize; OPS_WORDS];
    let flags = DISKLESS_IO | NO_DISK_UTIL | NO_OFFLOAD | SETS_ISSUE_TIME;
    let mut put = |offset: usize, word: usize| ops[offset / 8] = word;
    put(16, name.as_ptr() as usize);
    put(24, layout.version as usize | (flags as usize) << 32);
    put(48, functions.init as usize);
    put(72, functions.queue as usize);
    put(80, functions.commit as usize);
    put(88, functions.getevents as usize);
    put(96, functions.event as usize);
    put(layout.open_file - 8, functions.cleanup as usize);
    put(layout.open_file, functions.open_file as usize);
    put(layout.open_file + 8, functions.close_file as usize);
    put(layout.open_file + 16, functions.invalidate as usize);
    put(layout.open_file + 24, functions.unlink_file as usize);
    put(layout.open_file + 32, functions.get_file_size as usize);
    put(layout.open_file + 40, functions.prepopulate_file as usize);
    put(layout.options, option_bytes);
    put(layout.options + 8, options as usize);
    let table = Box::leak(Box::new(ops));
    ptr::from_mut(table).cast()
}
