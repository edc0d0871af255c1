//! Setting and removing extended attributes by the rules of their namespaces.
//!
//! - `user.`, `trusted.` and `security.` hold any value.
//! - `system.posix_acl_*` are access control lists, which are checked. The access list and the mode
//!   agree.
//! - `btrfs.` holds properties.
//!
//! Kernel counterparts: `btrfs_xattr_handlers` (`fs/btrfs/xattr.c`), `btrfs_set_acl`
//! (`fs/btrfs/acl.c`), `btrfs_set_prop` (`fs/btrfs/props.c`), `xattr_resolve_name`,
//! `xattr_permission` (`fs/xattr.c`).

use crate::btree::TreeEditor;
use crate::errors::{Error, PathError, Result};
use crate::items::draft::{Draft, edit};
use crate::items::xattr_edit::XattrSet;
use crate::items::{inode_edit, xattr_edit};
use crate::namespace::acl::{self, Acl};
use crate::namespace::compression::{self, COMPRESSION};
use crate::namespace::names::check_changeable;
use papilio_format::InodeNumber;
use papilio_format::items::inode::{FileKind, InodeFlags, InodeItem, Timespec};

/// Sets attribute `name` of an inode and returns the inode's item. Does not store an access control
/// list that is empty or equivalent to the mode, nor an empty property.
///
/// # Errors
/// - [`PathError::NotFound`] if there is no such inode;
/// - [`PathError::NotPermitted`] for an immutable or append-only inode, and for `user.` attributes
///   of an inode that is neither file nor directory;
/// - [`PathError::NotSupported`] for an unknown namespace, or a list of a symbolic link;
/// - [`PathError::InvalidName`] for a bare namespace;
/// - [`PathError::AccessDenied`] for a default list of an inode that is not a directory;
/// - [`Error::Invalid`] for an invalid list or property, and for a property of an inode that has
///   none;
/// - errors of [`xattr_edit::set`] and of changing the tree.
pub fn set_xattr(
    editor: &mut TreeEditor<'_>,
    now: Timespec,
    inode: InodeNumber,
    name: &[u8],
    value: &[u8],
    how: XattrSet,
) -> Result<InodeItem> {
    let namespace = Namespace::of(name)?;
    edit(editor, |draft| {
        let mut item = inode_edit::load(draft, inode)?;
        check_changeable(&item, name)?;
        namespace.check_kind(&item, name)?;
        match namespace {
            Namespace::Plain | Namespace::User => xattr_edit::set(draft, inode, name, value, how)?,
            Namespace::AccessAcl => set_access_acl(draft, inode, &mut item, Acl::parse(value)?, how)?,
            Namespace::DefaultAcl => put_acl(draft, inode, acl::DEFAULT, Acl::parse(value)?.as_ref(), how)?,
            Namespace::Compression if value.is_empty() => clear_compression(draft, inode, &mut item)?,
            Namespace::Compression => {
                let property = compression::parse_for(&item, value)?;
                xattr_edit::set(draft, inode, COMPRESSION, value, how)?;
                item.flags = property.apply(item.flags);
            }
        }
        item.ctime = now;
        inode_edit::store(draft, inode, &item);
        Ok(item)
    })
}

/// Removes attribute `name` of an inode and returns the inode's item.
///
/// # Errors
/// [`PathError::NoAttribute`] if it does not exist; else as [`set_xattr`].
pub fn remove_xattr(
    editor: &mut TreeEditor<'_>,
    now: Timespec,
    inode: InodeNumber,
    name: &[u8],
) -> Result<InodeItem> {
    let namespace = Namespace::of(name)?;
    edit(editor, |draft| {
        let mut item = inode_edit::load(draft, inode)?;
        check_changeable(&item, name)?;
        namespace.check_kind(&item, name)?;
        let there = xattr_edit::remove(draft, inode, name)?;
        match namespace {
            // A missing list means the same as the mode, so removing it succeeds.
            Namespace::AccessAcl | Namespace::DefaultAcl => {}
            _ if !there => return Err(Error::path(name, PathError::NoAttribute)),
            Namespace::Compression => {
                item.flags -= InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS;
            }
            Namespace::Plain | Namespace::User => {}
        }
        item.ctime = now;
        inode_edit::store(draft, inode, &item);
        Ok(item)
    })
}

/// The rules that a name's prefix selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Namespace {
    Plain,
    User,
    AccessAcl,
    DefaultAcl,
    Compression,
}

impl Namespace {
    fn of(name: &[u8]) -> Result<Self> {
        match name {
            acl::ACCESS => return Ok(Namespace::AccessAcl),
            acl::DEFAULT => return Ok(Namespace::DefaultAcl),
            COMPRESSION => return Ok(Namespace::Compression),
            _ => {}
        }
        let prefixes = [
            (&b"user."[..], Namespace::User),
            (b"trusted.", Namespace::Plain),
            (b"security.", Namespace::Plain),
        ];
        if name.starts_with(b"btrfs.") {
            return Err(Error::Invalid(format!("{}: unknown property", name.escape_ascii())));
        }
        match prefixes.into_iter().find(|(prefix, _)| name.starts_with(prefix)) {
            None => Err(Error::path(name, PathError::NotSupported)),
            Some((prefix, _)) if prefix == name => Err(Error::path(name, PathError::InvalidName)),
            Some((_, namespace)) => Ok(namespace),
        }
    }

    fn check_kind(self, item: &InodeItem, name: &[u8]) -> Result<()> {
        let kind = item.kind();
        let refuse = |kind| Err(Error::path(name, kind));
        match self {
            Namespace::User if !compression::can_have(kind) => refuse(PathError::NotPermitted),
            Namespace::Compression if !compression::can_have(kind) => Err(Error::Invalid(format!(
                "{}: only files and directories can be compressed",
                name.escape_ascii()
            ))),
            Namespace::AccessAcl | Namespace::DefaultAcl if kind == Some(FileKind::Symlink) => {
                refuse(PathError::NotSupported)
            }
            Namespace::DefaultAcl if kind != Some(FileKind::Directory) => refuse(PathError::AccessDenied),
            _ => Ok(()),
        }
    }
}

fn set_access_acl(
    draft: &mut Draft<'_>,
    inode: InodeNumber,
    item: &mut InodeItem,
    list: Option<Acl>,
    how: XattrSet,
) -> Result<()> {
    if let Some(list) = &list {
        item.mode = list.apply_to_mode(item.mode);
    }
    let kept = list.filter(|list| !list.is_equivalent_to_mode());
    put_acl(draft, inode, acl::ACCESS, kept.as_ref(), how)
}

fn put_acl(
    draft: &mut Draft<'_>,
    inode: InodeNumber,
    name: &[u8],
    list: Option<&Acl>,
    how: XattrSet,
) -> Result<()> {
    match list {
        Some(list) => xattr_edit::set(draft, inode, name, &list.to_bytes(), how),
        None => xattr_edit::remove(draft, inode, name).map(drop),
    }
}

fn clear_compression(draft: &mut Draft<'_>, inode: InodeNumber, item: &mut InodeItem) -> Result<()> {
    xattr_edit::remove(draft, inode, COMPRESSION)?;
    item.flags -= InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS;
    Ok(())
}
