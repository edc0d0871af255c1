//! Calls of Linux.
//!
//! Kernel counterparts: block/fops.c, mm/filemap.c, fs/open.c, fs/remap_range.c, fs/locks.c.

use crate::backing::Backing;
use crate::device::Advice;
use rustix::fs::{AtFlags, FallocateFlags, OFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::File;
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

/// The alignment for direct I/O if the host reports none: it suits a page and a 4Kn sector.
const FALLBACK_ALIGNMENT: usize = 4096;

/// The flag that opens a file for direct I/O, where the host has one.
pub(crate) const DIRECT: Option<OFlags> = Some(OFlags::DIRECT);

/// Keeps reads of an open file from changing its access time. Only the file's owner may ask for it,
/// and it only saves work, so a failure is ignored. `flags` are those that the file keeps.
pub(crate) fn leave_access_time(file: &File, flags: OFlags) {
    let _ = rustix::fs::fcntl_setfl(file, flags | OFlags::NOATIME);
}

/// Returns whether an open block device takes no writes (`blockdev --setro`). Linux opens it for
/// writing nevertheless.
pub(crate) fn is_read_only_device(file: &File) -> bool {
    let device = rustix::fs::fstat(file).map_or(0, |found| found.st_rdev);
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let read_only = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro"));
    device != 0 && read_only.is_ok_and(|text| text.trim() == "1")
}

/// Returns whether the file at `path` is on tmpfs or ramfs. The node of a block device is often on
/// tmpfs, too, but not its bytes.
pub(crate) fn is_in_memory(path: &Path) -> bool {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    const RAMFS_MAGIC: u64 = 0x8584_58f6;
    std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file())
        && rustix::fs::statfs(path)
            .is_ok_and(|stat| [TMPFS_MAGIC, RAMFS_MAGIC].contains(&(stat.f_type as u64 & 0xffff_ffff)))
}

/// Returns one alignment that satisfies direct I/O on `file` for offsets, lengths and memory.
pub(crate) fn direct_alignment(file: &File, backing: Backing) -> usize {
    // STATX_DIOALIGN reports both since Linux 6.1, but not on every file system.
    let told = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        .ok()
        .filter(|stat| stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0)
        .map(|stat| stat.stx_dio_offset_align.max(stat.stx_dio_mem_align));
    let sector = || match backing {
        Backing::BlockDevice => rustix::fs::ioctl_blksszget(file).ok(),
        Backing::RegularFile => None,
    };
    told.filter(|alignment| *alignment > 0)
        .or_else(sector)
        .map(|alignment| alignment as usize)
        .filter(|alignment| alignment.is_power_of_two() && *alignment <= 1 << 20)
        .map_or(FALLBACK_ALIGNMENT, |alignment| alignment.max(512))
}

/// Writes durably with `RWF_DSYNC`; returns `Ok(false)` if the host does not support it.
pub(crate) fn write_dsync(file: &File, buffer: &[u8], offset: u64) -> io::Result<bool> {
    let mut done = 0;
    while done < buffer.len() {
        let rest = [IoSlice::new(&buffer[done..])];
        match rustix::io::pwritev2(file, &rest, offset + done as u64, ReadWriteFlags::DSYNC) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(true)
}

/// Makes a range of a file read as zeros, and gives its space back or keeps it allocated.
///
/// # Errors
/// `OPNOTSUPP` where the file's file system has no holes.
pub(crate) fn zero_range(file: &File, offset: u64, length: u64, keep_space: bool) -> rustix::io::Result<()> {
    let how = match keep_space {
        true => FallocateFlags::ZERO_RANGE,
        false => FallocateFlags::PUNCH_HOLE,
    };
    rustix::fs::fallocate(file, how | FallocateFlags::KEEP_SIZE, offset, length)
}

/// Discards the whole sectors of a block device within a range of bytes.
pub(crate) fn discard_sectors(file: &File, offset: u64, length: u64) -> rustix::io::Result<()> {
    let sector = u64::from(rustix::fs::ioctl_blksszget(file)?.max(512));
    let (start, end) = (offset.next_multiple_of(sector), offset + length);
    let end = end - end % sector;
    if start < end { block_discard(file, start, end - start) } else { Ok(()) }
}

/// Issues ioctl BLKDISCARD (include/uapi/linux/fs.h) on whole sectors.
fn block_discard(file: &File, start: u64, length: u64) -> rustix::io::Result<()> {
    const BLKDISCARD: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(0x12, 119);
    // SAFETY: BLKDISCARD reads two u64 (start and length) through its argument, and the setter
    // passes exactly that. It writes nothing to our memory. `file` is an open block device.
    unsafe {
        let request = rustix::ioctl::Setter::<BLKDISCARD, [u64; 2]>::new([start, length]);
        rustix::ioctl::ioctl(file, request)
    }
}

/// `struct file_clone_range` (include/uapi/linux/fs.h).
#[repr(C)]
struct CloneRange {
    source: i64,
    source_offset: u64,
    source_length: u64,
    target_offset: u64,
}

/// Issues ioctl FICLONERANGE (include/uapi/linux/fs.h).
pub(crate) fn clone_range(
    file: &File,
    source: BorrowedFd<'_>,
    from: u64,
    length: u64,
    to: u64,
) -> rustix::io::Result<()> {
    const FICLONERANGE: rustix::ioctl::Opcode = rustix::ioctl::opcode::write::<CloneRange>(0x94, 13);
    let range = CloneRange {
        source: i64::from(source.as_raw_fd()),
        source_offset: from,
        source_length: length,
        target_offset: to,
    };
    // SAFETY: FICLONERANGE reads one `struct file_clone_range` through its argument, and the setter
    // passes exactly that. It writes nothing to our memory. Both files are open.
    unsafe {
        let request = rustix::ioctl::Setter::<FICLONERANGE, CloneRange>::new(range);
        rustix::ioctl::ioctl(file, request)
    }
}

/// A request about a lock of one byte, for `fcntl`.
fn byte_lock(kind: libc::c_int, byte: u64) -> libc::flock {
    // SAFETY: `struct flock` holds integers only, for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    // The type and the origin are small numbers.
    (lock.l_type, lock.l_whence) = (kind as libc::c_short, libc::SEEK_SET as libc::c_short);
    (lock.l_start, lock.l_len) = (byte as libc::off_t, 1);
    lock
}

/// Acquires a shared lock of one byte for the open file description, which needs read access.
///
/// # Errors
/// `WOULDBLOCK` if another one has it exclusively; the host's error where it has no such locks.
pub(crate) fn share_byte(file: BorrowedFd<'_>, byte: u64) -> rustix::io::Result<()> {
    let lock = byte_lock(libc::F_RDLCK, byte);
    // SAFETY: F_OFD_SETLK reads one `struct flock` (fcntl(2)), and `lock` is one.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Releases the locks of bytes that the open file description has.
///
/// # Errors
/// The host's error where it has no such locks.
pub(crate) fn unlock_bytes(file: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let mut lock = byte_lock(libc::F_UNLCK, 0);
    // To the end of the file and beyond (fcntl(2)).
    lock.l_len = 0;
    // SAFETY: F_OFD_SETLK reads one `struct flock` (fcntl(2)), and `lock` is one.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Returns whether another open file description has a lock of the byte.
///
/// # Errors
/// The host's error where it has no such locks.
pub(crate) fn is_byte_locked(file: BorrowedFd<'_>, byte: u64) -> rustix::io::Result<bool> {
    let mut lock = byte_lock(libc::F_WRLCK, byte);
    // SAFETY: F_OFD_GETLK reads and writes one `struct flock` (fcntl(2)), and `lock` is one.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } {
        0 => Ok(libc::c_int::from(lock.l_type) != libc::F_UNLCK),
        _ => Err(last_errno()),
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Opens an open file once more, for direct reads. `None` where it has none.
pub(crate) fn reopen_for_direct_reads(file: &File) -> Option<File> {
    let again = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NOCTTY;
    let opened = File::from(rustix::fs::open(again, flags, rustix::fs::Mode::empty()).ok()?);
    leave_access_time(&opened, OFlags::DIRECT);
    Some(opened)
}

/// `struct cachestat_range` and `struct cachestat` (include/uapi/linux/mman.h).
#[repr(C)]
struct CachestatRange {
    offset: u64,
    length: u64,
}

#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Returns the number of pages of a range that the host has in its page cache. `None` before Linux
/// 6.5 and where the file has none.
pub(crate) fn cached_pages(file: &File, offset: u64, length: u64) -> Option<u64> {
    let range = CachestatRange { offset, length };
    let mut found = Cachestat::default();
    // SAFETY: cachestat(2) reads one `struct cachestat_range` and writes one `struct cachestat`.
    // Both are ours, and of that layout. The file is open.
    let result = unsafe {
        libc::syscall(CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut found, 0 as libc::c_uint)
    };
    (result == 0).then_some(found.cached)
}

/// The number of cachestat(2), the same on all architectures that Linux added it to at once.
const CACHESTAT: libc::c_long = 451;

/// Reads what the host has in its page cache, without waiting. Returns whether that was all.
pub(crate) fn read_cached(file: &File, buffer: &mut [u8], offset: u64) -> bool {
    let length = buffer.len();
    let mut whole = [io::IoSliceMut::new(buffer)];
    rustix::io::preadv2(file, &mut whole, offset, ReadWriteFlags::NOWAIT) == Ok(length)
}

/// Tells the host how a range will be used. A failed hint changes nothing.
pub(crate) fn advise(file: &File, offset: u64, length: NonZeroU64, advice: Advice) {
    let advice = match advice {
        Advice::Sequential => rustix::fs::Advice::Sequential,
        Advice::Random => rustix::fs::Advice::Random,
        Advice::WillNeed => rustix::fs::Advice::WillNeed,
        Advice::DontNeed => rustix::fs::Advice::DontNeed,
    };
    let _ = rustix::fs::fadvise(file, offset, Some(length), advice);
}
