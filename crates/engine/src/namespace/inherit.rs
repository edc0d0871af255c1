//! The properties that a new inode inherits from its directory: group, flags, compression, and the
//! access control list.
//!
//! Kernel counterparts: `inode_init_owner` (`fs/inode.c`), `btrfs_inherit_iflags`,
//! `btrfs_inode_inherit_props` (`fs/btrfs/props.c`), `posix_acl_create` (`fs/posix_acl.c`).

use crate::errors::Result;
use crate::items::draft::Draft;
use crate::items::xattr_edit;
use crate::namespace::acl::{self, Acl};
use crate::namespace::compression::{self, COMPRESSION, CompressionProperty};
use papilio_format::items::inode::{FileKind, InodeFlags, InodeItem};
use papilio_format::{InodeNumber, ItemType, Key};

/// The set-group-id bit of a mode.
pub(crate) const SET_GROUP_ID: u32 = 0o2000;

/// A directory's attributes that its new entries inherit.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    compression: Option<&'static [u8]>,
    default_acl: Option<Acl>,
}

/// The attributes of a new inode.
#[derive(Debug, Default)]
pub(crate) struct NewAttributes {
    compression: Option<&'static [u8]>,
    access_acl: Option<Acl>,
    default_acl: Option<Acl>,
}

impl Inherited {
    /// Reads the inheritable attributes of `directory`. A directory without attributes costs no
    /// extra search.
    ///
    /// # Errors
    /// A tree block that cannot be read, or an access control list that is invalid.
    pub(crate) fn of(draft: &mut Draft<'_>, directory: InodeNumber) -> Result<Self> {
        let first = draft.next_key(&Key::new(directory.0, ItemType::XATTR_ITEM, 0))?;
        let any = |key: &Key| (key.objectid, key.item_type) == (directory.0, ItemType::XATTR_ITEM);
        if !first.as_ref().is_some_and(any) {
            return Ok(Self::default());
        }
        let compression = xattr_edit::get(draft, directory, COMPRESSION)?;
        // An invalid value is not inherited.
        let compression = compression.and_then(|value| CompressionProperty::parse(&value)?.inherited());
        let default_acl = match xattr_edit::get(draft, directory, acl::DEFAULT)? {
            Some(value) => Acl::parse(&value)?,
            None => None,
        };
        Ok(Self { compression, default_acl })
    }

    /// Drops the access control list, which a new subvolume does not inherit.
    pub(crate) fn without_acl(self) -> Self {
        Self { default_acl: None, ..self }
    }

    /// Completes a new inode's mode and flags, and returns the attributes that it gets. `item.mode`
    /// is the requested mode. `umask` applies only if the directory has no default list.
    pub(crate) fn complete(self, item: &mut InodeItem, umask: u32) -> NewAttributes {
        let kind = item.kind();
        let mut new = NewAttributes::default();
        match self.default_acl {
            _ if kind == Some(FileKind::Symlink) => {}
            None => item.mode &= !(umask & 0o777),
            Some(default) => {
                let (access, mode) = default.clone().inherit(item.mode);
                item.mode = mode;
                new.access_acl = Some(access).filter(|access| !access.is_equivalent_to_mode());
                new.default_acl = Some(default).filter(|_| kind == Some(FileKind::Directory));
            }
        }
        if let Some(value) = self.compression
            && compression::can_have(kind)
            && compression::can_compress(item.flags)
            && let Some(property) = CompressionProperty::parse(value)
        {
            item.flags = property.apply(item.flags);
            new.compression = Some(value);
        }
        new
    }
}

impl NewAttributes {
    /// Adds the attributes to a new inode.
    pub(crate) fn insert(&self, draft: &mut Draft<'_>, inode: InodeNumber) {
        let mut insert = |name: &[u8], value: &[u8]| xattr_edit::insert_first(draft, inode, name, value);
        if let Some(value) = self.compression {
            insert(COMPRESSION, value);
        }
        if let Some(list) = &self.access_acl {
            insert(acl::ACCESS, &list.to_bytes());
        }
        if let Some(list) = &self.default_acl {
            insert(acl::DEFAULT, &list.to_bytes());
        }
    }
}

/// The flags that a new inode of this kind inherits from its directory. A file whose data is
/// overwritten in place has no checksums either.
pub(crate) fn flags(parent: InodeFlags, kind: FileKind) -> InodeFlags {
    let mut flags = InodeFlags::empty();
    if parent.contains(InodeFlags::NOCOMPRESS) {
        flags |= InodeFlags::NOCOMPRESS;
    } else if parent.contains(InodeFlags::COMPRESS) {
        flags |= InodeFlags::COMPRESS;
    }
    if parent.contains(InodeFlags::NODATACOW) {
        flags |= InodeFlags::NODATACOW;
        if kind == FileKind::Regular {
            flags |= InodeFlags::NODATASUM;
        }
    }
    flags
}

/// The group and mode of a new inode. A directory with the set-group-id bit passes on its group,
/// and to directories the bit too.
pub(crate) fn group_and_mode(parent: &InodeItem, kind: FileKind, gid: u32, mode: u32) -> (u32, u32) {
    if parent.mode & SET_GROUP_ID == 0 {
        return (gid, mode);
    }
    (parent.gid, if kind == FileKind::Directory { mode | SET_GROUP_ID } else { mode })
}
