//! Conversions between fuser's types and ours.

use crate::device_number;
use crate::errno::Errno;
use crate::ioctl::Caller;
use crate::transport::Attributes;
use fuser::{FileAttr, FileType, INodeNo, Request, TimeOrNow};
use papilio::{FileKind, SetTime, Timespec};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(super) fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), pid: request.pid() }
}

pub(super) fn errno(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.code())
}

pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::CharacterDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
    }
}

/// Converts the attributes of a node; the reply shows `number` as its inode number.
pub(super) fn attributes(attributes: &Attributes, number: u64) -> FileAttr {
    FileAttr {
        ino: INodeNo(number),
        size: attributes.size,
        blocks: attributes.blocks,
        atime: system_time(attributes.atime),
        mtime: system_time(attributes.mtime),
        ctime: system_time(attributes.ctime),
        crtime: UNIX_EPOCH,
        kind: file_type(attributes.kind),
        perm: (attributes.permissions & 0o7777) as u16,
        nlink: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: device_number::pack(attributes.device),
        blksize: attributes.block_size,
        flags: 0,
    }
}

/// Returns the attributes that make the kernel cache the absence of a name.
pub(super) fn nothing() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// Converts a time for fuser, which writes times before 1970 correctly.
fn system_time(time: Timespec) -> SystemTime {
    let part = Duration::from_nanos(time.nanoseconds.into());
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = match time.seconds {
        0.. => UNIX_EPOCH.checked_add(seconds),
        _ => UNIX_EPOCH.checked_sub(seconds),
    };
    whole.and_then(|whole| whole.checked_add(part)).unwrap_or(UNIX_EPOCH)
}

/// Converts a time from fuser. fuser 0.18 (`system_time_from_time`) subtracts the nanoseconds of
/// times before 1970 instead of adding them; this undoes it.
pub(super) fn time(time: SystemTime) -> Timespec {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => {
            let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
            Timespec { seconds, nanoseconds: since.subsec_nanos() }
        }
        Err(before) => {
            let before = before.duration();
            let seconds = i64::try_from(before.as_secs()).map_or(i64::MIN, |seconds| -seconds);
            Timespec { seconds, nanoseconds: before.subsec_nanos() }
        }
    }
}

pub(super) fn set_time(set: TimeOrNow) -> SetTime {
    match set {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(at) => SetTime::At(time(at)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_round_trip() {
        let before = system_time(Timespec { seconds: -2, nanoseconds: 250_000_000 });
        assert_eq!(before, UNIX_EPOCH - Duration::from_millis(1750));
        // fuser delivers -1.75 s, encoded as -2 s and 0.25 s, as 2.25 s before 1970.
        let read = time(UNIX_EPOCH - Duration::from_millis(2250));
        assert_eq!(read, Timespec { seconds: -2, nanoseconds: 250_000_000 });
        assert_eq!(system_time(Timespec { seconds: i64::MAX, nanoseconds: u32::MAX }), UNIX_EPOCH);
    }
}
