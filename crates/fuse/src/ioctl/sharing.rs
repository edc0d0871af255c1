//! Ioctls that show and make shared extents of files.
//!
//! FUSE passes neither `FICLONERANGE` nor `FIDEDUPERANGE` nor `FS_IOC_FIEMAP`: the kernel answers
//! them with EOPNOTSUPP before it asks a file system. These are ioctls of our own with the same
//! meaning. The source is a descriptor of the caller, which /proc shows to the server.
//!
//! Kernel counterparts: `vfs_clone_file_range`, `vfs_dedupe_file_range_one` (`fs/remap_range.c`),
//! `ioctl_fiemap` (`fs/ioctl.c`).

use super::access::WRITE;
use super::call::{IoctlCall, IoctlReply, Result, done};
use super::caller;
use super::encoded::changed_data;
use papilio::{FiemapExtent, FileKind, Inode, InodeFlags};
use papilio_ioctl::Errno;
use papilio_ioctl::layout::{Fiemap, FiemapRecord, FileCloneRange, OwnDedupeRange};

/// `FIEMAP_FLAG_SYNC`, which asks for the extents of data that is only in memory.
const SYNC: u32 = 1;
/// Most bytes that one deduplication compares (`BTRFS_MAX_DEDUPE_LEN`).
const MOST_COMPARED: u64 = 16 << 20;

/// Answers `FICLONERANGE`.
pub(super) fn clone_range(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let range = call.argument::<FileCloneRange>()?;
    must_be_changeable(call)?;
    let source = readable_source(call, &range)?;
    let (target, source) = (call.inode.open()?, source.open()?);
    let before = call.inode.metadata().size();
    target.clone_range(&source, range.from, range.length, range.to)?;
    let length = match range.length {
        0 => source.inode().metadata().size().saturating_sub(range.from),
        length => length,
    };
    done(vec![changed_data(call, &target, before, range.to, length)])
}

/// Answers `FIDEDUPERANGE`.
pub(super) fn dedupe_range(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let mut dedupe = call.argument::<OwnDedupeRange>()?;
    let range = dedupe.range;
    must_be_changeable(call)?;
    let source = readable_source(call, &range)?;
    let length = range.length.min(MOST_COMPARED);
    let shared = call.inode.open()?.dedupe_range(&source.open()?, range.from, length, range.to)?;
    dedupe.deduped = shared.unwrap_or(0);
    dedupe.differs = shared.is_none().into();
    call.reply(&dedupe)
}

/// Answers `FS_IOC_FIEMAP`.
pub(super) fn fiemap(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let mut map = call.argument::<Fiemap>()?;
    if map.flags & !SYNC != 0 {
        return Err(Errno(libc::EBADR));
    }
    if map.length == 0 {
        return Err(Errno(libc::EINVAL));
    }
    let end = map.start.saturating_add(map.length);
    let most = (map.count as usize).min(map.extents.len());
    map.extents.fill(FiemapRecord::default());
    map.mapped = 0;
    if call.inode.file_type() == FileKind::Regular && most > 0 {
        let found = call.inode.open()?.fiemap_with_shared(map.start, most)?;
        for (record, extent) in map.extents.iter_mut().zip(&found) {
            if extent.start.0 >= end {
                break;
            }
            *record = record_of(extent);
            map.mapped += 1;
        }
    }
    call.reply(&map)
}

fn record_of(extent: &FiemapExtent) -> FiemapRecord {
    FiemapRecord {
        start: extent.start.0,
        address: extent.address.0,
        length: extent.length,
        flags: extent.flags,
        ..FiemapRecord::default()
    }
}

/// Refuses a target that the caller neither owns nor may write to. An owner may have it open for
/// writing without the right to write; for deduplication that is enough (`allow_file_dedupe`).
fn must_be_changeable(call: &IoctlCall<'_>) -> Result<()> {
    must_be_file(call.inode)?;
    if call.inode.metadata().flags().contains(InodeFlags::IMMUTABLE) {
        return Err(Errno(libc::EPERM));
    }
    call.must_own(call.inode).or_else(|_| call.must_have(call.inode, WRITE))
}

fn must_be_file(inode: &Inode) -> Result<()> {
    match inode.file_type() {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(Errno(libc::EISDIR)),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// Returns the source of a range, if the caller has it open for reading.
fn readable_source(call: &IoctlCall<'_>, range: &FileCloneRange) -> Result<Inode> {
    let source = caller::readable_file_of(call, range.source)?;
    must_be_file(&source)?;
    Ok(source)
}
