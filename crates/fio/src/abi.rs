//! Offsets of fields in fio's structures, and typed access to them.
//!
//! Owns [`ThreadData`], [`FioFile`] and [`IoUnit`], which wrap pointers from fio, and [`make_ops`],
//! which builds the function table for fio. Offsets are in bytes, on 64-bit Linux. Where versions
//! of fio differ, whole groups of fields shift together; `discover.rs` determines by how much.
//!
//! | structure | field | offset |
//! |---|---|---|
//! | `thread_data` | options | 24 |
//! | `io_u` | issue_time, file, ddir | 16, 32, 44 |
//! | `io_u` (shifted) | buflen, offset, buf | 64, 72, 88 |
//! | `io_u` (shifted) | xfer_buf, xfer_buflen, resid, error | 104, 112, 136, 144 |
//! | `fio_file` | filetype, fd, fileno, file_name | 16, 20, 36, 40 |
//! | `fio_file` | real_file_size, file_offset, io_size | 48, 56, 64 |
//! | `ioengine_ops` | name, version, flags, dlhandle | 16, 24, 28, 32 |
//! | `ioengine_ops` | setup to errdetails | 40 to 104 |
//! | `ioengine_ops` (shifted) | cleanup to io_u_free | 120 to 208 |
//!
//! The shift of `io_u` is -8 in 3.28 and 3.29, and 8 from 3.41 on; that of `ioengine_ops` is -8
//! from 3.41 on.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

/// Result of `queue`: the I/O is complete.
pub const COMPLETED: c_int = 0;
/// Result of `queue`: the I/O will complete later.
pub const QUEUED: c_int = 1;
/// Result of `queue`: the queue is full; fio must commit first.
pub const BUSY: c_int = 2;

/// Engine flag: files do not exist on the host.
pub const DISKLESS_IO: c_int = 1 << 2;
/// Engine flag: fio collects no disk statistics.
pub const NO_DISK_UTIL: c_int = 1 << 4;
/// Engine flag: the engine does not support `io_submit_mode=offload`.
pub const NO_OFFLOAD: c_int = 1 << 15;
/// Engine flag: the engine sets `issue_time` (from 3.31 on).
pub const SETS_ISSUE_TIME: c_int = 1 << 16;

/// `FIO_TYPE_FILE`: a regular file.
pub const TYPE_FILE: c_int = 1;

/// First word of a job's options.
pub const OPTIONS_MAGIC: u32 = 0x4f50_544e;
/// Offset of a job's options in its `thread_data`, in bytes.
pub const OPTIONS_OFFSET: usize = 24;

/// The operation of an `io_u` (`enum fio_ddir`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Trim, which punches a hole.
    Trim,
    /// fsync or syncfs.
    Sync,
    /// fdatasync or sync_file_range.
    DataSync,
}

impl Direction {
    /// Converts fio's number.
    pub fn new(number: c_int) -> Option<Self> {
        Some(match number {
            0 => Self::Read,
            1 => Self::Write,
            2 => Self::Trim,
            // 6 is `DDIR_WAIT` before 3.42, which engines never see.
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
    /// `pointer` is a `thread_data` that fio passed to a function of the engine. The value is used
    /// only until that function returns or, in the job's own thread, until the job ends.
    pub unsafe fn new(pointer: *mut c_void) -> Self {
        Self(pointer.cast())
    }

    /// Returns fio's pointer.
    pub fn pointer(self) -> *mut c_void {
        self.0.cast()
    }

    /// Returns an integer option by its offset in the options.
    pub fn option(self, offset: usize) -> c_uint {
        // SAFETY: `new`'s contract; the offset comes from fio's own option table.
        unsafe { self.0.add(OPTIONS_OFFSET + offset).cast::<c_uint>().read_unaligned() }
    }

    /// Sets an integer option.
    pub fn set_option(self, offset: usize, value: c_uint) {
        // SAFETY: as for `option`; fio reads the value later in this thread, or in threads it
        // starts later.
        unsafe { self.0.add(OPTIONS_OFFSET + offset).cast::<c_uint>().write_unaligned(value) }
    }

    /// Returns a string option; empty if the job does not give it.
    pub fn text_option(self, offset: usize) -> String {
        // SAFETY: as for `option`; fio stores NULL or a NUL-terminated string that lives as long as
        // the job.
        unsafe {
            let text = self.0.add(OPTIONS_OFFSET + offset).cast::<*const c_char>().read_unaligned();
            owned_text(text).unwrap_or_default()
        }
    }

    /// Returns the word at an offset of the structure itself.
    pub fn word(self, offset: usize) -> usize {
        // SAFETY: `new`'s contract; the offset was found inside the structure.
        unsafe { self.0.add(offset).cast::<usize>().read_unaligned() }
    }
}

/// Copies a C string; returns `None` for NULL.
///
/// # Safety
/// `text` is NULL or a NUL-terminated string.
pub unsafe fn owned_text(text: *const c_char) -> Option<String> {
    // SAFETY: the caller upholds this function's contract.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// A file of a job: fio's `fio_file`.
#[derive(Clone, Copy, Debug)]
pub struct FioFile(*mut u8);

impl FioFile {
    /// # Safety
    /// `pointer` is a `fio_file` that fio passed to a function of the engine. The value is used
    /// only until that function returns.
    pub unsafe fn new(pointer: *mut c_void) -> Self {
        Self(pointer.cast())
    }

    fn get<T: Copy>(self, offset: usize) -> T {
        // SAFETY: `new`'s contract; callers pass a field's offset and type.
        unsafe { self.0.add(offset).cast::<T>().read_unaligned() }
    }

    fn set<T: Copy>(self, offset: usize, value: T) {
        // SAFETY: as for `get`; fio lets engines change these fields.
        unsafe { self.0.add(offset).cast::<T>().write_unaligned(value) }
    }

    /// Returns the file's number in the job.
    pub fn number(self) -> usize {
        self.get::<c_int>(36).max(0) as usize
    }

    /// Returns the file's name as the job gives it.
    pub fn name(self) -> String {
        // SAFETY: fio stores a NUL-terminated name.
        unsafe { owned_text(self.get(40)).unwrap_or_default() }
    }

    /// Marks the file as regular, whatever the host has under its name.
    pub fn set_regular(self) {
        self.set::<c_int>(16, TYPE_FILE);
    }

    /// Returns the file's size in bytes; `u64::MAX` if unknown.
    pub fn size(self) -> u64 {
        self.get(48)
    }

    /// Sets the file's size in bytes.
    pub fn set_size(self, size: u64) {
        self.set(48, size);
    }

    /// Returns the offset in bytes at which the job's part of the file starts.
    pub fn offset(self) -> u64 {
        self.get(56)
    }

    /// Returns the size of the job's part in bytes; `u64::MAX` if unknown.
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
    /// `pointer` is an `io_u` that fio passed to `queue` and that is not completed; `shift` fits
    /// fio's version.
    pub unsafe fn new(pointer: *mut c_void, shift: isize) -> Self {
        Self { pointer: pointer.cast(), shift }
    }

    /// Returns fio's pointer.
    pub fn pointer(self) -> *mut c_void {
        self.pointer.cast()
    }

    fn get<T: Copy>(self, offset: isize) -> T {
        // SAFETY: `new`'s contract; callers pass a field's offset and type.
        unsafe { self.pointer.offset(offset).cast::<T>().read_unaligned() }
    }

    fn set<T: Copy>(self, offset: isize, value: T) {
        // SAFETY: as for `get`; the engine may write these fields until it completes the I/O.
        unsafe { self.pointer.offset(offset).cast::<T>().write_unaligned(value) }
    }

    /// Returns a pointer to the issue time. It is valid for writes until the engine completes the
    /// I/O.
    pub fn issue_time_place(self) -> *mut libc::timespec {
        self.pointer.wrapping_add(16).cast()
    }

    /// Returns the issue time.
    pub fn issue_time(self) -> libc::timespec {
        self.get(16)
    }

    /// Sets the issue time.
    pub fn set_issue_time(self, time: libc::timespec) {
        self.set(16, time);
    }

    /// Returns the file of the I/O.
    pub fn file(self) -> FioFile {
        FioFile(self.get(32))
    }

    /// Returns the operation; `None` if its number is unknown.
    pub fn direction(self) -> Option<Direction> {
        Direction::new(self.get(44))
    }

    /// Returns the file offset in bytes.
    pub fn offset(self) -> u64 {
        self.get(72 + self.shift)
    }

    /// Returns the start of the transfer's buffer.
    pub fn buffer(self) -> *mut u8 {
        self.get(104 + self.shift)
    }

    /// Returns the length of the transfer in bytes.
    pub fn length(self) -> usize {
        self.get(112 + self.shift)
    }

    /// Returns whether the fields are consistent with the known layout. Any read or write passes in
    /// a known layout, because a transfer lies inside the buffer of its I/O.
    pub fn is_plausible(self) -> bool {
        let (whole, buffer): (usize, usize) = (self.get(64 + self.shift), self.get(88 + self.shift));
        let (start, length) = (self.buffer() as usize, self.length());
        // A transfer that continues a short one starts past the start of the buffer.
        length > 0 && buffer > 4096 && length <= whole && start >= buffer && start - buffer <= whole - length
    }

    /// Stores the result: the number of bytes not transferred, and an errno or 0.
    pub fn finish(self, missing: usize, errno: c_int) {
        self.set::<u64>(136 + self.shift, missing as u64);
        self.set::<c_uint>(144 + self.shift, errno.unsigned_abs());
    }
}

/// Number of words in an `ioengine_ops`, more than any version has.
pub const OPS_WORDS: usize = 48;

/// The parts of the function table's layout that differ between versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpsLayout {
    /// The interface number that fio compares.
    pub version: c_int,
    /// Offset of `open_file` in bytes: 128, or 120 from 3.41 on.
    pub open_file: usize,
    /// Offset of `option_struct_size` in bytes; `options` follows it.
    pub options: usize,
}

/// A function on a job.
pub type JobFn = extern "C" fn(*mut c_void) -> c_int;
/// A function on a job and one of its files or I/Os.
pub type FileFn = extern "C" fn(*mut c_void, *mut c_void) -> c_int;

/// The engine's functions.
#[derive(Clone, Copy)]
pub struct Functions {
    /// Starts a job in its thread.
    pub init: JobFn,
    /// Ends the job.
    pub cleanup: extern "C" fn(*mut c_void),
    /// Queues an I/O.
    pub queue: FileFn,
    /// Issues queued I/O.
    pub commit: JobFn,
    /// Waits for completions.
    pub getevents: extern "C" fn(*mut c_void, c_uint, c_uint, *const libc::timespec) -> c_int,
    /// Returns one of the completions that `getevents` counted.
    pub event: extern "C" fn(*mut c_void, c_int) -> *mut c_void,
    /// Opens a file.
    pub open_file: FileFn,
    /// Closes a file.
    pub close_file: FileFn,
    /// Drops a file's pages from the cache.
    pub invalidate: FileFn,
    /// Removes a file.
    pub unlink_file: FileFn,
    /// Looks up a file's size.
    pub get_file_size: FileFn,
    /// Lays a file out.
    pub prepopulate_file: FileFn,
}

/// Builds the function table. It is never freed: fio writes into it.
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
