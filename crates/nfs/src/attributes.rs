//! Attributes as the protocol has them.

use crate::handle::Id;
use nfs3_types::nfs3::{fattr3, ftype3, nfstime3, specdata3, wcc_attr};
use papilio::{FileKind, Metadata, Timespec};

/// Returns the attributes of an inode. Times before 1970 and after 2106 are cut to that range.
pub(crate) fn attributes(metadata: &Metadata, fsid: u64) -> fattr3 {
    let (major, minor) = metadata.rdev();
    fattr3 {
        type_: match metadata.file_type() {
            FileKind::Directory => ftype3::NF3DIR,
            FileKind::BlockDevice => ftype3::NF3BLK,
            FileKind::CharacterDevice => ftype3::NF3CHR,
            FileKind::Symlink => ftype3::NF3LNK,
            FileKind::Socket => ftype3::NF3SOCK,
            FileKind::Fifo => ftype3::NF3FIFO,
            _ => ftype3::NF3REG,
        },
        mode: metadata.permissions(),
        nlink: metadata.nlink(),
        uid: metadata.uid(),
        gid: metadata.gid(),
        size: metadata.size(),
        used: metadata.allocated_bytes(),
        rdev: specdata3 { specdata1: major, specdata2: minor },
        fsid,
        fileid: Id::file_id_of(metadata),
        atime: time(metadata.atime()),
        mtime: time(metadata.mtime()),
        ctime: time(metadata.ctime()),
    }
}

/// Returns the attributes before a change, by which a client knows that only it changed the inode.
pub(crate) fn before(metadata: &Metadata) -> wcc_attr {
    wcc_attr { size: metadata.size(), mtime: time(metadata.mtime()), ctime: time(metadata.ctime()) }
}

/// Returns a time, cut to the protocol's range.
pub(crate) fn time(time: Timespec) -> nfstime3 {
    match u32::try_from(time.seconds) {
        Ok(seconds) => nfstime3 { seconds, nseconds: time.nanoseconds },
        Err(_) if time.seconds < 0 => nfstime3 { seconds: 0, nseconds: 0 },
        Err(_) => nfstime3 { seconds: u32::MAX, nseconds: 999_999_999 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_outside_the_protocols_range_are_cut() {
        let shown = |seconds| time(Timespec { seconds, nanoseconds: 7 }).seconds;
        assert_eq!([shown(-1), shown(0), shown(1 << 31), shown(1 << 40)], [0, 0, 1 << 31, u32::MAX]);
    }
}
