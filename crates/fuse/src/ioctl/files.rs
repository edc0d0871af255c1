//! Ioctls on files: flags, attributes, versions, and paths of inodes.
//!
//! Kernel counterparts: `btrfs_fileattr_get`, `btrfs_fileattr_set`, `btrfs_search_path_in_tree`,
//! `btrfs_search_path_in_tree_user` (`fs/btrfs/ioctl.c`), `fileattr_fill_flags` (`fs/file_attr.c`).

use super::access::{EXECUTE, READ};
use super::call::{Changed, IoctlCall, IoctlReply, Result, done};
use crate::numbers::own_number;
use papilio::format::{InodeNumber, TreeId, objectid};
use papilio::{FileKind, Inode, InodeFlags};
use papilio_ioctl::Errno;
use papilio_ioctl::layout::{FileAttributes, InoLookup, InoLookupUser, put_name};

/// Maximum depth of a path; a deeper one is a loop.
const DEPTH_LIMIT: usize = 4096;

/// Our flags, with their bits in `FS_IOC_GETFLAGS` and in `FS_IOC_FSGETXATTR`, or 0.
const FLAGS: [(InodeFlags, u32, u32); 10] = [
    (InodeFlags::SYNC, 0x8, 0x20),
    (InodeFlags::IMMUTABLE, 0x10, 0x8),
    (InodeFlags::APPEND, 0x20, 0x10),
    (InodeFlags::NODUMP, 0x40, 0x80),
    (InodeFlags::NOATIME, 0x80, 0x40),
    (InodeFlags::DIRSYNC, DIRSYNC, 0),
    (InodeFlags::NODATACOW, 0x80_0000, 0),
    (InodeFlags::NOCOMPRESS, 0x400, 0),
    (InodeFlags::COMPRESS, 0x4, 0),
    (InodeFlags::VERITY, 0x10_0000, 0),
];
/// `FS_DIRSYNC_FL`, which regular files do not have.
const DIRSYNC: u32 = 0x1_0000;

/// Flags that do not take the place of `NODATACOW` in one step, nor the other way round
/// (`check_fsflags`, `fs/btrfs/ioctl.c`).
const COMPRESSION: InodeFlags = InodeFlags::COMPRESS.union(InodeFlags::NOCOMPRESS);
/// Flags that only root may change.
const PROTECTED: InodeFlags = InodeFlags::IMMUTABLE.union(InodeFlags::APPEND);

/// Converts flags to those that `lsattr` shows.
fn to_fs_flags(flags: InodeFlags) -> u32 {
    let shown = if flags.contains(InodeFlags::NOCOMPRESS) { flags - InodeFlags::COMPRESS } else { flags };
    FLAGS.iter().filter(|(flag, ..)| shown.contains(*flag)).fold(0, |all, (_, shown, _)| all | shown)
}

fn to_attribute_flags(flags: InodeFlags) -> u32 {
    FLAGS.iter().filter(|(flag, ..)| flags.contains(*flag)).fold(0, |all, (.., shown)| all | shown)
}

/// Converts the flags that a caller sets; EOPNOTSUPP for unknown ones.
fn from_fs_flags(kind: FileKind, mut wanted: u32) -> Result<InodeFlags> {
    if kind == FileKind::Regular {
        wanted &= !DIRSYNC;
    }
    let mut flags = InodeFlags::empty();
    for (flag, shown, _) in FLAGS {
        if wanted & shown != 0 {
            flags |= flag;
            wanted &= !shown;
        }
    }
    // The remaining bits are unknown. The library refuses known flags that cannot be set.
    if wanted == 0 { Ok(flags) } else { Err(Errno(libc::EOPNOTSUPP)) }
}

pub(super) fn get_flags(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.reply(&to_fs_flags(call.inode.metadata().flags()))
}

pub(super) fn set_flags(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let wanted = call.argument::<u32>()?;
    change_flags(call, from_fs_flags(call.inode.file_type(), wanted)?)
}

fn change_flags(call: &IoctlCall<'_>, flags: InodeFlags) -> Result<IoctlReply> {
    // A kernel that allows idmapped mounts has looked at the owner that the mount shows
    // (`vfs_fileattr_set`, `fs/file_attr.c`).
    if call.may_be_mapped.is_none() {
        call.must_own(call.inode)?;
    }
    let before = call.inode.metadata().flags();
    if (before ^ flags).intersects(PROTECTED) && call.caller.uid != 0 {
        return Err(Errno(libc::EPERM));
    }
    if before.intersects(COMPRESSION) && flags.contains(InodeFlags::NODATACOW)
        || before.contains(InodeFlags::NODATACOW) && flags.intersects(COMPRESSION)
    {
        return Err(Errno(libc::EINVAL));
    }
    call.inode.set_flags(flags)?;
    done(vec![Changed::Inode(call.inode.tree(), call.inode.number())])
}

/// Replies with four bytes, for callers that pass an `int`.
pub(super) fn get_version(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.reply(&(call.inode.metadata().generation().0 as u32))
}

pub(super) fn get_attributes(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let flags = to_attribute_flags(call.inode.metadata().flags());
    call.reply(&FileAttributes { flags, ..FileAttributes::default() })
}

pub(super) fn set_attributes(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let wanted = call.argument::<FileAttributes>()?;
    let settable = FLAGS.iter().fold(0, |all, (.., shown)| all | shown);
    let others = wanted.extent_size | wanted.project | wanted.cow_extent_size;
    if wanted.flags & !settable != 0 || others != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    // Flags that this ioctl cannot express stay as they are.
    let mut flags = call.inode.metadata().flags() & setting_keeps();
    for (flag, _, shown) in FLAGS {
        if wanted.flags & shown != 0 {
            flags |= flag;
        }
    }
    change_flags(call, flags)
}

fn setting_keeps() -> InodeFlags {
    InodeFlags::DIRSYNC | InodeFlags::NODATACOW | InodeFlags::NOCOMPRESS | InodeFlags::COMPRESS
}

/// Returns the path of an inode from its subvolume's root, with a slash at the end; empty for the
/// root itself.
pub(super) fn path_of(inode: &Inode, top: InodeNumber) -> Result<Vec<u8>> {
    let fs = inode.file_system();
    let mut names = Vec::new();
    let mut number = inode.number();
    while number != top {
        if number == objectid::FIRST_INODE || names.len() >= DEPTH_LIMIT {
            return Err(Errno(libc::ENOENT));
        }
        let all = fs.inode_at(inode.tree(), number)?.names()?;
        // Of several names, the kernel takes the first one in the last directory.
        let last = all.iter().map(|(parent, _)| *parent).max();
        let found = all.into_iter().find(|(parent, _)| Some(*parent) == last);
        let (parent, name) = found.ok_or(Errno(libc::ENOENT))?;
        names.push(name);
        number = parent;
    }
    let mut path = Vec::new();
    for name in names.iter().rev() {
        path.extend_from_slice(name);
        path.push(b'/');
    }
    Ok(path)
}

pub(super) fn ino_lookup(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let mut lookup = call.argument::<InoLookup>()?;
    // Any user may look up the subvolume of a file.
    if lookup.tree != 0 || lookup.inode != objectid::FIRST_INODE.0 {
        call.must_be_administrator()?;
    }
    if lookup.tree == 0 {
        lookup.tree = call.inode.tree().0;
    }
    lookup.name.fill(0);
    // A caller may know the inode by the number that the mount shows.
    let number = own_number(TreeId(lookup.tree), lookup.inode).unwrap_or(lookup.inode);
    if number != objectid::FIRST_INODE.0 {
        let inode = call.fs.inode_at(TreeId(lookup.tree), InodeNumber(number))?;
        let path = path_of(&inode, objectid::FIRST_INODE)?;
        if !put_name(&mut lookup.name, &path) {
            return Err(Errno(libc::ENAMETOOLONG));
        }
    }
    call.reply(&lookup)
}

pub(super) fn ino_lookup_user(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let mut lookup = call.argument::<InoLookupUser>()?;
    let subvolume = call.fs.subvolume(TreeId(lookup.tree))?;
    if subvolume.parent != Some(call.inode.tree())
        || subvolume.directory != Some(InodeNumber(lookup.directory))
    {
        return Err(Errno(libc::ENOENT));
    }
    let directory = call.fs.inode_at(call.inode.tree(), InodeNumber(lookup.directory))?;
    let path = path_of(&directory, call.inode.number()).map_err(|_| Errno(libc::EACCES))?;
    let mut on_the_way = call.inode.clone();
    call.must_have(&on_the_way, READ | EXECUTE)?;
    for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
        on_the_way = on_the_way.lookup(name)?.ok_or(Errno(libc::ENOENT))?;
        call.must_have(&on_the_way, READ | EXECUTE)?;
    }
    if !put_name(&mut lookup.name, &subvolume.name) || !put_name(&mut lookup.path, &path) {
        return Err(Errno(libc::ENAMETOOLONG));
    }
    call.reply(&lookup)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_round_trip() {
        let flags = InodeFlags::NODATACOW | InodeFlags::NODATASUM | InodeFlags::IMMUTABLE;
        assert_eq!(to_fs_flags(flags), 0x80_0010);
        assert_eq!(to_fs_flags(InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS), 0x400);
        assert_eq!(to_attribute_flags(flags), 0x8);
        for (flag, shown, _) in FLAGS {
            assert_eq!(from_fs_flags(FileKind::Directory, shown), Ok(flag));
        }
        assert_eq!(from_fs_flags(FileKind::Regular, DIRSYNC | 0x10), Ok(InodeFlags::IMMUTABLE));
        // FS_JOURNAL_DATA_FL.
        assert_eq!(from_fs_flags(FileKind::Regular, 0x4000), Err(Errno(libc::EOPNOTSUPP)));
    }
}
