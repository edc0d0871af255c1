//! Changing an inode's attributes: mode, owner and times, and the flags that `chattr` changes.
//!
//! The caller checks the user's permissions.
//!
//! Kernel counterparts: `btrfs_setattr` (`fs/btrfs/inode.c`), `setattr_copy` (`fs/attr.c`),
//! `chown_common` (`fs/open.c`), `posix_acl_chmod` (`fs/posix_acl.c`), `btrfs_fileattr_set`
//! (`fs/btrfs/ioctl.c`).

use crate::btree::TreeEditor;
use crate::errors::{Error, PathError, Result};
use crate::items::draft::{Draft, edit};
use crate::items::xattr_edit::XattrSet;
use crate::items::{inode_edit, xattr_edit};
use crate::namespace::acl::{self, Acl};
use crate::namespace::compression::COMPRESSION;
use crate::namespace::names::check_changeable;
use papilio_format::InodeNumber;
use papilio_format::items::file_extent::Compression;
use papilio_format::items::inode::{FileKind, InodeFlags, InodeItem, MODE_PERMISSION_MASK, Timespec};

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o0010;
/// The attribute with a program's capabilities, which a change of owner removes.
const CAPABILITY: &[u8] = b"security.capability";

/// The new value of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetTime {
    /// The time of the change.
    Now,
    /// A given time. Nanoseconds must be below 1,000,000,000.
    At(Timespec),
}

/// Changes of an inode's attributes; `None` leaves a field unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// The twelve low bits of the mode.
    pub mode: Option<u32>,
    /// The owner's user id.
    pub uid: Option<u32>,
    /// The owner's group id.
    pub gid: Option<u32>,
    /// The time of the last read.
    pub atime: Option<SetTime>,
    /// The time of the last change of the content.
    pub mtime: Option<SetTime>,
    /// The time of the last change of the inode. Set by a caller that reports an earlier change,
    /// such as a cache. `None` takes the time of this change.
    pub ctime: Option<Timespec>,
}

/// Changes an inode's attributes and returns its item.
///
/// A change of owner or group removes set-user-id, set-group-id (of a file that its group may
/// execute) and capabilities, unless a mode is set too. Directories keep their bits. A change of
/// mode also updates the access control list.
///
/// # Errors
/// [`PathError::NotFound`]; [`PathError::NotPermitted`] for an immutable or append-only inode;
/// [`PathError::NotSupported`] for the mode of a symbolic link; [`Error::Invalid`] for nanoseconds
/// out of range; errors of reading and changing the tree.
pub(crate) fn set_attributes(
    editor: &mut TreeEditor<'_>,
    now: Timespec,
    inode: InodeNumber,
    set: &SetAttributes,
) -> Result<InodeItem> {
    edit(editor, |draft| {
        let mut item = inode_edit::load(draft, inode)?;
        let place = format!("inode {inode}");
        check_flags(&item, place.as_bytes(), set)?;
        if set.uid.is_some() || set.gid.is_some() {
            chown(draft, inode, &mut item, set)?;
        }
        if let Some(mode) = set.mode {
            if item.kind() == Some(FileKind::Symlink) {
                return Err(Error::path(place.as_bytes(), PathError::NotSupported));
            }
            item.mode = (item.mode & !MODE_PERMISSION_MASK) | (mode & MODE_PERMISSION_MASK);
            chmod_acl(draft, inode, item.mode)?;
        }
        if let Some(time) = set.atime {
            item.atime = resolve_time(time, now)?;
        }
        if let Some(time) = set.mtime {
            item.mtime = resolve_time(time, now)?;
        }
        item.ctime = match set.ctime {
            Some(time) => resolve_time(SetTime::At(time), now)?,
            None => now,
        };
        inode_edit::store(draft, inode, &item);
        Ok(item)
    })
}

/// Clears privileges of a file whose data has changed: gives it the mode `kept`, twelve bits, and
/// removes its capabilities. Unlike [`set_attributes`], also if the inode is immutable: it was open
/// before. Kernel counterpart: `file_remove_privs` (`fs/inode.c`).
///
/// # Errors
/// [`PathError::NotFound`]; errors of reading and changing the tree.
pub(crate) fn kill_privileges(
    editor: &mut TreeEditor<'_>,
    now: Timespec,
    inode: InodeNumber,
    kept: u32,
) -> Result<()> {
    edit(editor, |draft| {
        let mut item = inode_edit::load(draft, inode)?;
        item.mode = (item.mode & !MODE_PERMISSION_MASK) | (kept & MODE_PERMISSION_MASK);
        xattr_edit::remove(draft, inode, CAPABILITY)?;
        item.ctime = now;
        inode_edit::store(draft, inode, &item);
        Ok(())
    })
}

/// Sets an inode's access time, and no other time.
///
/// # Errors
/// [`PathError::NotFound`]; [`Error::Invalid`] for nanoseconds out of range; errors of changing the
/// tree.
pub fn set_access_time(editor: &mut TreeEditor<'_>, inode: InodeNumber, time: Timespec) -> Result<()> {
    edit(editor, |draft| {
        let mut item = inode_edit::load(draft, inode)?;
        item.atime = resolve_time(SetTime::At(time), time)?;
        inode_edit::store(draft, inode, &item);
        Ok(())
    })
}

/// Checks the inode's flags. An append-only inode may have both times set to the present, and
/// nothing else: setting only one counts as a given time (`vfs_utimes`, `fs/utimes.c`). Append-only
/// and immutable inodes take the time of a write, which is that of the last change, too: the
/// kernel of a mount keeps it, and stores it after the write.
fn check_flags(item: &InodeItem, place: &[u8], set: &SetAttributes) -> Result<()> {
    if let SetAttributes { mode: None, uid: None, gid: None, atime: None, mtime: Some(mtime), ctime } = *set
        && ctime.is_some_and(|ctime| mtime == SetTime::At(ctime))
    {
        return Ok(());
    }
    let times = [set.atime, set.mtime];
    let present = times == [Some(SetTime::Now); 2] || times == [None; 2];
    let touch = set.mode.or(set.uid).or(set.gid).is_none() && present;
    if touch && !item.flags.contains(InodeFlags::IMMUTABLE) {
        return Ok(());
    }
    check_changeable(item, place)
}

fn chown(draft: &mut Draft<'_>, inode: InodeNumber, item: &mut InodeItem, set: &SetAttributes) -> Result<()> {
    item.uid = set.uid.unwrap_or(item.uid);
    item.gid = set.gid.unwrap_or(item.gid);
    if item.kind() == Some(FileKind::Directory) {
        return Ok(());
    }
    item.mode &= !SET_USER_ID;
    // Without the group's execute bit, set-group-id means mandatory locking, not privilege.
    if item.mode & GROUP_EXECUTE != 0 {
        item.mode &= !SET_GROUP_ID;
    }
    xattr_edit::remove(draft, inode, CAPABILITY)?;
    Ok(())
}

/// Updates the access control list, if there is one, to match a mode.
fn chmod_acl(draft: &mut Draft<'_>, inode: InodeNumber, mode: u32) -> Result<()> {
    let Some(value) = xattr_edit::get(draft, inode, acl::ACCESS)? else { return Ok(()) };
    let Some(mut list) = Acl::parse(&value)? else { return Ok(()) };
    list.chmod(mode);
    xattr_edit::set(draft, inode, acl::ACCESS, &list.to_bytes(), XattrSet::Replace)
}

fn resolve_time(time: SetTime, now: Timespec) -> Result<Timespec> {
    match time {
        SetTime::Now => Ok(now),
        SetTime::At(time) if time.nanoseconds < 1_000_000_000 => Ok(time),
        SetTime::At(time) => Err(Error::Invalid(format!(
            "time with {} nanoseconds: they must be below 1000000000",
            time.nanoseconds
        ))),
    }
}

/// The flags that users can change.
pub(crate) const USER_FLAGS: InodeFlags = InodeFlags::NODATACOW
    .union(InodeFlags::NOCOMPRESS)
    .union(InodeFlags::COMPRESS)
    .union(InodeFlags::SYNC)
    .union(InodeFlags::IMMUTABLE)
    .union(InodeFlags::APPEND)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::DIRSYNC);

/// Adds NODATACOW and NODATASUM to a directory or an empty file, as `mkfs.btrfs --inode-flags`
/// does. A file with NODATACOW gets NODATASUM as well.
///
/// # Errors
/// [`PathError::NotFound`]; [`PathError::NotSupported`] for other flags, or an inode that is
/// neither an empty file nor a directory; errors of reading and changing the tree.
pub fn add_data_flags(
    editor: &mut TreeEditor<'_>,
    inode: InodeNumber,
    flags: InodeFlags,
) -> Result<InodeItem> {
    edit(editor, |draft| {
        let mut item = inode_edit::load(draft, inode)?;
        let can_have = match item.kind() {
            Some(FileKind::Regular) => item.size == 0,
            kind => kind == Some(FileKind::Directory),
        };
        if !can_have || !DATA_FLAGS.contains(flags) {
            return Err(Error::path(format!("inode {inode}").as_bytes(), PathError::NotSupported));
        }
        item.flags |= flags;
        if flags.contains(InodeFlags::NODATACOW) && item.kind() == Some(FileKind::Regular) {
            item.flags |= InodeFlags::NODATASUM;
        }
        inode_edit::store(draft, inode, &item);
        Ok(item)
    })
}

/// The flags of [`add_data_flags`].
pub(crate) const DATA_FLAGS: InodeFlags = InodeFlags::NODATACOW.union(InodeFlags::NODATASUM);

/// Sets an inode's [`USER_FLAGS`] to exactly `flags` and returns its item.
///
/// NODATACOW changes only on directories, where new files inherit it, and on empty files, together
/// with NODATASUM. Files with data keep both. The compression property follows the flags: COMPRESS
/// sets it to `algorithm`.
///
/// # Errors
/// [`PathError::NotFound`]; [`PathError::NotSupported`] for other flags, or an inode that is
/// neither file nor directory; [`Error::Invalid`] for COMPRESS with NOCOMPRESS or NODATACOW; errors
/// of reading and changing the tree.
pub fn set_flags(
    editor: &mut TreeEditor<'_>,
    now: Timespec,
    inode: InodeNumber,
    flags: InodeFlags,
    algorithm: Compression,
) -> Result<InodeItem> {
    edit(editor, |draft| {
        let mut item = inode_edit::load(draft, inode)?;
        let kind = item.kind();
        if !USER_FLAGS.contains(flags) || !matches!(kind, Some(FileKind::Regular | FileKind::Directory)) {
            return Err(Error::path(format!("inode {inode}").as_bytes(), PathError::NotSupported));
        }
        let exclusive = InodeFlags::NOCOMPRESS | InodeFlags::NODATACOW;
        if flags.contains(InodeFlags::COMPRESS) && flags.intersects(exclusive) {
            return Err(Error::Invalid(
                "conflicting flags: COMPRESS excludes NOCOMPRESS and NODATACOW".into(),
            ));
        }
        let kept = InodeFlags::NODATACOW | InodeFlags::NODATASUM;
        let mut new = (item.flags - USER_FLAGS) | (flags - InodeFlags::NODATACOW);
        new = (new - kept) | (item.flags & kept);
        let wanted = flags.contains(InodeFlags::NODATACOW);
        if wanted != item.flags.contains(InodeFlags::NODATACOW) {
            match kind {
                Some(FileKind::Regular) if item.size == 0 => new.set(kept, wanted),
                Some(FileKind::Directory) => new.set(InodeFlags::NODATACOW, wanted),
                _ => {}
            }
        }
        if new.contains(InodeFlags::COMPRESS) && new.contains(InodeFlags::NODATACOW) {
            return Err(Error::Invalid("conflicting flags: a NODATACOW file cannot be compressed".into()));
        }
        if new.contains(InodeFlags::COMPRESS) {
            let value = algorithm.name().as_bytes();
            xattr_edit::set(draft, inode, COMPRESSION, value, XattrSet::Any)?;
        } else {
            xattr_edit::remove(draft, inode, COMPRESSION)?;
        }
        item.flags = new;
        item.ctime = now;
        inode_edit::store(draft, inode, &item);
        Ok(item)
    })
}
