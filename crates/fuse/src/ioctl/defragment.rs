//! Defragmentation of a file.
//!
//! A directory names no file: the kernel would defragment the subvolume's tree, which is left alone
//! here, as every commit writes whole new blocks.
//!
//! Kernel counterpart: `btrfs_ioctl_defrag` (`fs/btrfs/ioctl.c`).

use super::access::WRITE;
use super::call::{IoctlCall, IoctlReply, Result, done};
use super::caller;
use papilio::format::items::file_extent::Compression;
use papilio::{CompressionChoice, DefragmentOptions, FileKind};
use papilio_ioctl::Errno;
use papilio_ioctl::layout::{
    DEFRAGMENT_COMPRESS, DEFRAGMENT_FLUSH, DEFRAGMENT_LEVEL, DEFRAGMENT_PLAIN, DefragmentRange,
};
use papilio_ioctl::number::Command;

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
    let file = call.inode.open()?;
    let end = wanted.start.saturating_add(wanted.length);
    let goes_on = |_| !caller::has_signal(&call.caller);
    file.defragment(wanted.start..end, &options, goes_on)?;
    if wanted.flags & DEFRAGMENT_FLUSH != 0 {
        file.sync_data()?;
    }
    if caller::has_signal(&call.caller) {
        return Err(Errno(libc::EAGAIN));
    }
    done(Vec::new())
}

fn options(wanted: &DefragmentRange) -> Result<DefragmentOptions> {
    let known = DEFRAGMENT_COMPRESS | DEFRAGMENT_FLUSH | DEFRAGMENT_LEVEL | DEFRAGMENT_PLAIN;
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
