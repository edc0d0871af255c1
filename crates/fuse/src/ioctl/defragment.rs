//! Defragmentation of a file.
//!
//! Extents that are shared move for all files and snapshots that have them, unless the caller asks
//! for copies (`DEFRAGMENT_UNSHARE`). The kernel always copies. An ioctl of our own does the same
//! with limits, and reports.
//!
//! A directory names no file: the kernel would defragment the subvolume's tree, which is left alone
//! here, as every commit writes whole new blocks.
//!
//! Kernel counterpart: `btrfs_ioctl_defrag` (`fs/btrfs/ioctl.c`).

use super::access::WRITE;
use super::call::{IoctlCall, IoctlReply, Result, done};
use super::caller;
use papilio::format::items::file_extent::Compression;
use papilio::{CompressionChoice, DefragmentOptions, FileKind, SharedDefragmentOptions};
use papilio_ioctl::Errno;
use papilio_ioctl::layout::{
    DEFRAGMENT_COMPRESS, DEFRAGMENT_FLUSH, DEFRAGMENT_LEVEL, DEFRAGMENT_PLAIN, DEFRAGMENT_UNSHARE,
    DefragmentRange, OwnDefragment,
};
use papilio_ioctl::number::Command;
use std::time::Duration;

/// The kernel's threshold where the caller gives none.
const THRESHOLD: u64 = 256 << 10;

/// Answers `BTRFS_IOC_DEFRAG` and `BTRFS_IOC_DEFRAG_RANGE`.
pub(super) fn handle(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let wanted = if Command(call.command) == Command::DEFRAG_RANGE {
        call.argument::<DefragmentRange>()?
    } else {
        DefragmentRange { length: u64::MAX, ..DefragmentRange::default() }
    };
    let options = options(&wanted)?;
    match call.inode.file_type() {
        FileKind::Regular => {}
        FileKind::Directory if call.is_administrator() => return done(Vec::new()),
        FileKind::Directory => return Err(Errno(libc::EPERM)),
        _ => return Err(Errno(libc::EINVAL)),
    }
    if !call.is_administrator() {
        call.must_have(call.inode, WRITE)?;
    }
    let goes_on = || !caller::has_signal(&call.caller);
    let end = wanted.start.saturating_add(wanted.length);
    let unshares = wanted.flags & DEFRAGMENT_UNSHARE != 0;
    if !unshares && call.inode.shares_data(&mut call.fs.shared_extents()?)? {
        let DefragmentOptions { threshold, compression } = options;
        let options =
            SharedDefragmentOptions { threshold, compression, ..SharedDefragmentOptions::default() };
        // Batches are durable, so that nothing is left to flush.
        let range = wanted.start..end;
        call.fs.defragment_shared([call.inode], range, &options, |_| goes_on())?;
        return if goes_on() { done(Vec::new()) } else { Err(Errno(libc::EAGAIN)) };
    }
    let file = call.inode.open()?;
    file.defragment(wanted.start..end, &options, |_| goes_on())?;
    if wanted.flags & DEFRAGMENT_FLUSH != 0 {
        file.sync_data()?;
    }
    if goes_on() { done(Vec::new()) } else { Err(Errno(libc::EAGAIN)) }
}

/// Answers our own ioctl.
pub(super) fn handle_shared(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let mut wanted = call.argument::<OwnDefragment>()?;
    let compression = u32::try_from(wanted.compression).map_err(|_| Errno(libc::EINVAL))?;
    let known = DEFRAGMENT_COMPRESS | DEFRAGMENT_LEVEL | DEFRAGMENT_PLAIN;
    if wanted.flags & !known != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let choice =
        options(&DefragmentRange { flags: wanted.flags, compression, ..DefragmentRange::default() })?;
    match call.inode.file_type() {
        FileKind::Regular => {}
        FileKind::Directory => return Err(Errno(libc::EISDIR)),
        _ => return Err(Errno(libc::EINVAL)),
    }
    if !call.is_administrator() {
        call.must_have(call.inode, WRITE)?;
    }
    let limit = |most: u64| (most != u64::MAX).then_some(most);
    let options = SharedDefragmentOptions {
        threshold: wanted.threshold,
        max_bytes: limit(wanted.max_bytes),
        max_extents: limit(wanted.max_extents),
        max_time: limit(wanted.max_time).map(Duration::from_millis),
        compression: choice.compression,
    };
    let goes_on = || !caller::has_signal(&call.caller);
    let range = wanted.start..wanted.start.saturating_add(wanted.length);
    let report = call.fs.defragment_shared([call.inode], range, &options, |_| goes_on())?;
    if !goes_on() {
        return Err(Errno(libc::EAGAIN));
    }
    wanted.set_report(&report);
    call.reply(&wanted)
}

fn options(wanted: &DefragmentRange) -> Result<DefragmentOptions> {
    let known =
        DEFRAGMENT_COMPRESS | DEFRAGMENT_FLUSH | DEFRAGMENT_LEVEL | DEFRAGMENT_PLAIN | DEFRAGMENT_UNSHARE;
    let both = wanted.flags & DEFRAGMENT_COMPRESS != 0 && wanted.flags & DEFRAGMENT_PLAIN != 0;
    if wanted.flags & !known != 0 || both {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let compression = if wanted.flags & DEFRAGMENT_PLAIN != 0 {
        Some(CompressionChoice::NONE)
    } else if wanted.flags & DEFRAGMENT_COMPRESS != 0 {
        let algorithm = match wanted.compression as u8 {
            0 => Compression::Zlib,
            number => Compression::from_raw(number).map_err(|_| Errno(libc::EINVAL))?,
        };
        let level = i32::from((wanted.compression >> 8) as u8 as i8);
        Some(match wanted.flags & DEFRAGMENT_LEVEL != 0 && level != 0 {
            true => CompressionChoice::with_level(algorithm, level)?,
            false => CompressionChoice::new(algorithm),
        })
    } else {
        None
    };
    let threshold = if wanted.threshold == 0 { THRESHOLD } else { wanted.threshold.into() };
    Ok(DefragmentOptions { threshold, compression })
}
