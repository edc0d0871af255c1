//! `ioctl` calls that FUSE does not pass on, carried out by ioctls of our own.
//!
//! Owns [`answer`]. The errors are those of the kernel's Btrfs: `vfs_clone_file_range` and
//! `vfs_dedupe_file_range` (`fs/remap_range.c`), `ioctl_fiemap` (`fs/ioctl.c`).

use crate::caller::Caller;
use crate::own_mounts::is_own;
use crate::system;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// `FICLONE` (`include/uapi/linux/fs.h`): the argument is the source's descriptor.
pub const FICLONE: u32 = 0x4004_9409;
/// `FICLONERANGE`.
pub const FICLONERANGE: u32 = 0x4020_940d;
/// `FIDEDUPERANGE`.
pub const FIDEDUPERANGE: u32 = 0xc018_9436;
/// `FS_IOC_FIEMAP`.
pub const FIEMAP: u32 = 0xc020_660b;

/// Our own, as `papilio-ioctl` has them.
const OWN_CLONE_RANGE: u32 = 0x4020_bd0f;
const OWN_DEDUPE_RANGE: u32 = 0xc030_bd10;
const OWN_FIEMAP: u32 = 0xcfe0_bd11;

/// `FILE_DEDUPE_RANGE_DIFFERS`.
const DIFFERS: i32 = 1;
/// Most targets of a deduplication: the argument fits a page (`ioctl_file_dedupe_range`).
const MOST_TARGETS: u16 = 127;
/// Most bytes of one deduplication (`MAX_DEDUPE_LEN`, `fs/remap_range.c` has it as 16 MiB).
const MOST_SHARED: u64 = 16 << 20;
/// `FIEMAP_EXTENT_LAST`.
const LAST: u32 = 1;
/// `FIEMAP_FLAG_SYNC`.
const FIEMAP_SYNC: u32 = 1;

/// `struct file_clone_range`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct CloneRange {
    source: i64,
    from: u64,
    length: u64,
    to: u64,
}

/// Our own: a clone where the bytes are equal.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct OwnDedupe {
    range: CloneRange,
    deduped: u64,
    differs: u32,
    unused: u32,
}

/// `struct file_dedupe_range`, without its targets.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct DedupeHeader {
    from: u64,
    length: u64,
    count: u16,
    reserved: u16,
    also_reserved: u32,
}

/// `struct file_dedupe_range_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct DedupeTarget {
    target: i64,
    to: u64,
    deduped: u64,
    status: i32,
    reserved: u32,
}

/// `struct fiemap`, without its extents.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct FiemapHeader {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
}

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct FiemapRecord {
    start: u64,
    address: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    unused: [u32; 3],
}

/// The extents of one call of ours.
const RECORDS: usize = 72;

#[repr(C)]
struct OwnFiemap {
    header: FiemapHeader,
    records: [FiemapRecord; RECORDS],
}

/// Returns whether `request` is one that this module answers.
pub fn is_answered(request: u32) -> bool {
    matches!(request, FICLONE | FICLONERANGE | FIDEDUPERANGE | FIEMAP)
}

/// Answers an `ioctl` of a caller on its descriptor `file`. `None` if the kernel must answer:
/// another request, or a file that is not in a mount of Papilio.
///
/// # Errors
/// The error that the call returns.
pub fn answer(caller: &Caller, file: i64, request: u32, argument: u64) -> Option<io::Result<i32>> {
    if !is_answered(request) {
        return None;
    }
    let file = caller.descriptor(file).ok()?;
    let file = file.as_raw_fd();
    if !system::status(file).is_ok_and(|status| is_own(status.st_dev)) {
        return None;
    }
    Some(match request {
        FICLONE => {
            // The kernel takes the lower half of the argument.
            let source = i64::from(argument as i32);
            clone_range(caller, file, CloneRange { source, from: 0, length: 0, to: 0 })
        }
        FICLONERANGE => {
            // SAFETY: the structure has numbers only.
            let range = unsafe { caller.read_plain::<CloneRange>(argument) };
            range.and_then(|range| clone_range(caller, file, range))
        }
        FIDEDUPERANGE => dedupe(caller, file, argument),
        _ => fiemap(caller, file, argument),
    })
}

fn error<T>(number: i32) -> io::Result<T> {
    Err(io::Error::from_raw_os_error(number))
}

/// Returns the flags with which a descriptor was opened.
fn flags_of(file: RawFd) -> io::Result<libc::c_int> {
    // SAFETY: the call takes numbers only.
    let flags = unsafe { libc::fcntl(file, libc::F_GETFL) };
    if flags < 0 { Err(io::Error::last_os_error()) } else { Ok(flags) }
}

/// Passes data of a file that only the kernel has to the server.
fn write_back(file: RawFd) -> io::Result<()> {
    let flags =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the call takes numbers only.
    if unsafe { libc::sync_file_range(file, 0, 0, flags) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn clone_range(caller: &Caller, file: RawFd, range: CloneRange) -> io::Result<i32> {
    let source = caller.descriptor(range.source).or_else(|_| error(libc::EBADF))?;
    let source = source.as_raw_fd();
    let (from, to) = (flags_of(source)?, flags_of(file)?);
    if (from | to) & libc::O_PATH != 0
        || from & libc::O_ACCMODE == libc::O_WRONLY
        || to & libc::O_ACCMODE == libc::O_RDONLY
        || to & libc::O_APPEND != 0
    {
        return error(libc::EBADF);
    }
    let (read, written) = (system::status(source)?, system::status(file)?);
    if read.st_dev != written.st_dev {
        return error(libc::EXDEV);
    }
    must_be_files(&[&read, &written])?;
    write_back(source)?;
    let mut range = CloneRange { source: source.into(), ..range };
    // SAFETY: the structure is the request's.
    unsafe { system::ioctl(file, OWN_CLONE_RANGE, &mut range) }?;
    Ok(0)
}

fn must_be_files(files: &[&libc::stat]) -> io::Result<()> {
    let kind = |file: &libc::stat| file.st_mode & libc::S_IFMT;
    if files.iter().any(|file| kind(file) == libc::S_IFDIR) {
        return error(libc::EISDIR);
    }
    if files.iter().any(|file| kind(file) != libc::S_IFREG) { error(libc::EINVAL) } else { Ok(()) }
}

fn dedupe(caller: &Caller, file: RawFd, argument: u64) -> io::Result<i32> {
    // SAFETY: the structure has numbers only.
    let header = unsafe { caller.read_plain::<DedupeHeader>(argument) }?;
    if header.count > MOST_TARGETS {
        return error(libc::ENOMEM);
    }
    let source = system::status(file)?;
    let flags = flags_of(file)?;
    if flags & libc::O_PATH != 0 {
        return error(libc::EBADF);
    }
    if flags & libc::O_ACCMODE == libc::O_WRONLY || header.reserved != 0 || header.also_reserved != 0 {
        return error(libc::EINVAL);
    }
    must_be_files(&[&source])?;
    if header.from.checked_add(header.length).is_none_or(|end| end > source.st_size as u64) {
        return error(libc::EINVAL);
    }
    write_back(file)?;
    let first = argument + size_of::<DedupeHeader>() as u64;
    for index in 0..u64::from(header.count) {
        let address = first + index * size_of::<DedupeTarget>() as u64;
        // SAFETY: the structure has numbers only.
        let mut target = unsafe { caller.read_plain::<DedupeTarget>(address) }?;
        (target.deduped, target.status) = match dedupe_one(caller, file, &source, &header, &target) {
            Ok(answer) if answer.differs != 0 => (0, DIFFERS),
            // The kernel reports what was asked for, also where only whole sectors are shared.
            Ok(_) => (header.length.min(MOST_SHARED), 0),
            Err(error) => (0, -error.raw_os_error().unwrap_or(libc::EIO)),
        };
        caller.write_plain(address, &target)?;
    }
    Ok(0)
}

/// Shares the source's range with one target.
fn dedupe_one(
    caller: &Caller,
    file: RawFd,
    source: &libc::stat,
    header: &DedupeHeader,
    target: &DedupeTarget,
) -> io::Result<OwnDedupe> {
    if target.reserved != 0 {
        return error(libc::EINVAL);
    }
    let descriptor = caller.descriptor(target.target).or_else(|_| error(libc::EBADF))?;
    let other = system::status(descriptor.as_raw_fd())?;
    if other.st_dev != source.st_dev {
        return error(libc::EXDEV);
    }
    must_be_files(&[&other])?;
    let range = CloneRange { source: file.into(), from: header.from, length: header.length, to: target.to };
    let mut answer = OwnDedupe { range, deduped: 0, differs: 0, unused: 0 };
    if header.length > 0 {
        // SAFETY: the structure is the request's.
        unsafe { system::ioctl(descriptor.as_raw_fd(), OWN_DEDUPE_RANGE, &mut answer) }?;
    }
    Ok(answer)
}

fn fiemap(caller: &Caller, file: RawFd, argument: u64) -> io::Result<i32> {
    // SAFETY: the structure has numbers only.
    let mut header = unsafe { caller.read_plain::<FiemapHeader>(argument) }?;
    if header.flags & !FIEMAP_SYNC != 0 {
        // The kernel says which flags it does not know (`fiemap_prep`).
        header.flags &= !FIEMAP_SYNC;
        caller.write_plain(argument, &header)?;
        return error(libc::EBADR);
    }
    if header.length == 0 {
        return error(libc::EINVAL);
    }
    must_be_files(&[&system::status(file)?])?;
    let end = header.start.saturating_add(header.length);
    let first = argument + size_of::<FiemapHeader>() as u64;
    let (mut start, mut mapped) = (header.start, 0_u32);
    // Without room for extents the caller asks how many there are.
    let room = if header.count == 0 { u32::MAX } else { header.count };
    while mapped < room && start < end {
        let most = (room - mapped).min(RECORDS as u32);
        let own = FiemapHeader { start, length: end - start, count: most, mapped: 0, ..header };
        let mut page = OwnFiemap { header: own, records: [FiemapRecord::default(); RECORDS] };
        // SAFETY: the structure is the request's.
        unsafe { system::ioctl(file, OWN_FIEMAP, &mut page) }?;
        let found = &page.records[..(page.header.mapped as usize).min(RECORDS)];
        for record in found {
            if header.count > 0 {
                let place = first + u64::from(mapped) * size_of::<FiemapRecord>() as u64;
                caller.write_plain(place, record)?;
            }
            mapped += 1;
            start = record.start.saturating_add(record.length);
        }
        if found.len() < most as usize || found.last().is_some_and(|last| last.flags & LAST != 0) {
            break;
        }
    }
    header.mapped = mapped;
    caller.write_plain(argument, &header)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_ioctl::layout;
    use papilio_ioctl::number::Command;

    #[test]
    fn requests_and_structures_are_those_of_the_mount() {
        assert_eq!(OWN_CLONE_RANGE, Command::OWN_CLONE_RANGE.0);
        assert_eq!(OWN_DEDUPE_RANGE, Command::OWN_DEDUPE_RANGE.0);
        assert_eq!(OWN_FIEMAP, Command::OWN_FIEMAP.0);
        assert_eq!(FIEMAP, Command::FIEMAP.0);
        assert_eq!(FIDEDUPERANGE, Command::DEDUPE_RANGE.0);
        assert_eq!(size_of::<CloneRange>(), size_of::<layout::FileCloneRange>());
        assert_eq!(size_of::<OwnDedupe>(), size_of::<layout::OwnDedupeRange>());
        assert_eq!(size_of::<OwnFiemap>(), size_of::<layout::Fiemap>());
    }

    #[test]
    fn other_files_and_requests_are_left_to_the_kernel() {
        let file = tempfile::tempfile().unwrap();
        let own = Caller::own();
        let fd = i64::from(file.as_raw_fd());
        assert!(answer(&own, fd, 0x5401, 0).is_none());
        for request in [FICLONE, FICLONERANGE, FIDEDUPERANGE, FIEMAP] {
            assert!(answer(&own, fd, request, 0).is_none());
            assert!(answer(&own, -1, request, 0).is_none());
        }
    }
}
