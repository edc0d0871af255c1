//! Changing what `stat` shows: mode, owner, times; and the flags that `chattr` changes.
//!
//! Who may change what is the caller's question. Kernel counterparts: `btrfs_setattr`
//! (`fs/btrfs/inode.c`), `setattr_copy` (`fs/attr.c`), `chown_common` (`fs/open.c`), `posix_acl_chmod`
//! (`fs/posix_acl.c`), `btrfs_fileattr_set` (`fs/btrfs/ioctl.c`).

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
/// The attribute that holds a program's capabilities, which a change of owner revokes.
const CAPABILITY: &[u8] = b"security.capability";

/// The new value of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the change.
    Now,
    /// This one. Nanoseconds must be below 1,000,000,000.
    At(Timespec),
}

/// What is to be changed of an inode; `None` leaves a field as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// The twelve low bits of the mode.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last read.
    pub atime: Option<SetTime>,
    /// Last change of the content.
    pub mtime: Option<SetTime>,
    /// Last change of the inode: for whoever changed it and tells of it later, such as a cache above. `None` is
    /// the time of this change.
    pub ctime: Option<Timespec>,
}

/// Changes an inode and returns its item. A change of owner or group takes set-user-id, set-group-id (of a
/// file that its group may execute) and capabilities away, unless a mode is given along with it; a change
/// of mode changes the access control list too.
///
/// # Errors
/// [`PathError::NotFound`]; [`PathError::NotPermitted`] for an inode that is immutable or only grows;
/// [`PathError::NotSupported`] for the mode of a symbolic link; [`Error::Invalid`] for nanoseconds out of range;
/// or what reading and changing the tree says.
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

/// Notes that an inode was read, which changes nothing else of it.
///
/// # Errors
/// [`PathError::NotFound`], [`Error::Invalid`] for nanoseconds out of range, or what changing the tree says.
pub(crate) fn set_access_time(editor: &mut TreeEditor<'_>, inode: InodeNumber, time: Timespec) -> Result<()> {
    edit(editor, |draft| {
        let mut item = inode_edit::load(draft, inode)?;
        item.atime = resolve_time(SetTime::At(time), time)?;
        inode_edit::store(draft, inode, &item);
        Ok(())
    })
}

/// Setting times to now is all that may be done to a file that only grows.
fn check_flags(item: &InodeItem, place: &[u8], set: &SetAttributes) -> Result<()> {
    let explicit = |time| matches!(time, Some(SetTime::At(_)));
    let touch = set.mode.or(set.uid).or(set.gid).is_none() && !explicit(set.atime) && !explicit(set.mtime);
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
    // Without the group's execute bit it stands for mandatory locking, not for privilege.
    if item.mode & GROUP_EXECUTE != 0 {
        item.mode &= !SET_GROUP_ID;
    }
    xattr_edit::remove(draft, inode, CAPABILITY)?;
    Ok(())
}

/// Brings the access control list, where there is one, into line with a mode.
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
            "a time of {} nanoseconds: must be below 1000000000",
            time.nanoseconds
        ))),
    }
}

/// The flags that a user can change.
pub(crate) const USER_FLAGS: InodeFlags = InodeFlags::NODATACOW
    .union(InodeFlags::NOCOMPRESS)
    .union(InodeFlags::COMPRESS)
    .union(InodeFlags::SYNC)
    .union(InodeFlags::IMMUTABLE)
    .union(InodeFlags::APPEND)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::DIRSYNC);

/// Gives an inode these of [`USER_FLAGS`] and no others, and returns its item. NODATACOW changes only on
/// an empty file, where NODATASUM comes and goes with it, and on directories for what is made in
/// them; on a file with data it stays as it is. `algorithm` is what COMPRESS stands for in the
/// compression property, which follows the flags.
///
/// # Errors
/// [`PathError::NotFound`]; [`PathError::NotSupported`] for other flags, or an inode that is neither file nor
/// directory; [`Error::Invalid`] for COMPRESS beside NOCOMPRESS or NODATACOW; or what reading and changing
/// the tree says.
pub(crate) fn set_flags(
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
                "compressed data is neither uncompressed nor overwritten in place: conflicting flags".into(),
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
            return Err(Error::Invalid("data that is overwritten in place cannot be compressed".into()));
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
