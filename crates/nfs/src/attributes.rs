//! Attributes as the protocol has them.

use crate::handle::Id;
use nfs3_server::nfs3_types::nfs3::{
    Nfs3Option, fattr3, ftype3, nfstime3, sattr3, set_atime, set_mtime, specdata3,
};
use papilio::{FileKind, Metadata, SetAttributes, SetTime, Timespec};

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

fn time(time: Timespec) -> nfstime3 {
    match u32::try_from(time.seconds) {
        Ok(seconds) => nfstime3 { seconds, nseconds: time.nanoseconds },
        Err(_) if time.seconds < 0 => nfstime3 { seconds: 0, nseconds: 0 },
        Err(_) => nfstime3 { seconds: u32::MAX, nseconds: 999_999_999 },
    }
}

fn timespec(time: nfstime3) -> SetTime {
    SetTime::At(Timespec { seconds: time.seconds.into(), nanoseconds: time.nseconds })
}

/// Returns a value that a client may have given.
pub(crate) fn given<T>(value: &Nfs3Option<T>) -> Option<T>
where
    T: Copy + nfs3_server::nfs3_types::xdr_codec::Pack + nfs3_server::nfs3_types::xdr_codec::Unpack,
{
    match value {
        Nfs3Option::Some(value) => Some(*value),
        Nfs3Option::None => None,
    }
}

/// Returns the changes that a client asks for, without the size.
pub(crate) fn changes(set: &sattr3) -> SetAttributes {
    SetAttributes {
        mode: given(&set.mode).map(|mode| mode & 0o7777),
        uid: given(&set.uid),
        gid: given(&set.gid),
        atime: match set.atime {
            set_atime::DONT_CHANGE => None,
            set_atime::SET_TO_SERVER_TIME => Some(SetTime::Now),
            set_atime::SET_TO_CLIENT_TIME(time) => Some(timespec(time)),
        },
        mtime: match set.mtime {
            set_mtime::DONT_CHANGE => None,
            set_mtime::SET_TO_SERVER_TIME => Some(SetTime::Now),
            set_mtime::SET_TO_CLIENT_TIME(time) => Some(timespec(time)),
        },
        ctime: None,
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
