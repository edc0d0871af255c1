//! Creating inodes: files, directories, symbolic links and device files, with a name or without.
//!
//! **Invariant**: the inode, its reference, both entries, inherited attributes and the directory's
//! new size are added together.
//!
//! Kernel counterparts: `btrfs_create_new_inode`, `btrfs_add_link`, `btrfs_symlink`,
//! `btrfs_tmpfile` (`fs/btrfs/inode.c`).

use crate::btree::TreeEditor;
use crate::errors::{Error, PathError, Result};
use crate::items::dir_edit::EntryValue;
use crate::items::draft::{Draft, edit};
use crate::items::inode_ref_edit::Name;
use crate::items::numbers::SubvolumeNumbers;
use crate::items::{dir_edit, inode_edit, inode_ref_edit, orphan};
use crate::namespace::inherit::{self, Inherited};
use crate::namespace::names::{Directory, check_name};
use papilio_format::items::file_extent::{Compression, FileExtentContent, FileExtentItem, file_extent_key};
use papilio_format::items::inode::{FileKind, InodeFlags, InodeItem, MODE_PERMISSION_MASK, Timespec};
use papilio_format::{FileOffset, InodeNumber, objectid};

/// The kind of inode to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NewKind<'a> {
    /// An empty file.
    Regular,
    /// An empty directory.
    Directory,
    /// A named pipe.
    Fifo,
    /// A Unix socket.
    Socket,
    /// A character device: major below 4,096, minor below 1,048,576.
    CharacterDevice {
        /// The major number, which selects the driver.
        major: u32,
        /// The minor number, which selects the unit.
        minor: u32,
    },
    /// A block device, with the same limits.
    BlockDevice {
        /// The major number, which selects the driver.
        major: u32,
        /// The minor number, which selects the unit.
        minor: u32,
    },
    /// A symbolic link to this path, which is not empty.
    Symlink(&'a [u8]),
}

impl NewKind<'_> {
    /// The kind of file.
    pub fn kind(&self) -> FileKind {
        match self {
            NewKind::Regular => FileKind::Regular,
            NewKind::Directory => FileKind::Directory,
            NewKind::Fifo => FileKind::Fifo,
            NewKind::Socket => FileKind::Socket,
            NewKind::CharacterDevice { .. } => FileKind::CharacterDevice,
            NewKind::BlockDevice { .. } => FileKind::BlockDevice,
            NewKind::Symlink(_) => FileKind::Symlink,
        }
    }

    fn device(&self) -> Result<u64> {
        let (NewKind::CharacterDevice { major, minor } | NewKind::BlockDevice { major, minor }) = *self
        else {
            return Ok(0);
        };
        if major >= 1 << 12 || minor >= 1 << 20 {
            return Err(Error::Invalid(format!(
                "device number {major}:{minor}: the major must be below 4096, the minor below 1048576"
            )));
        }
        Ok(InodeItem::pack_device_number(major, minor))
    }
}

/// The parameters of a new inode.
#[derive(Clone, Copy, Debug)]
pub struct NewInode<'a> {
    /// The kind of inode.
    pub kind: NewKind<'a>,
    /// The twelve low bits of its mode. Symbolic links always get 0777.
    pub mode: u32,
    /// Permission bits to clear, unless the directory has a default access control list.
    pub umask: u32,
    /// The owner's user id.
    pub uid: u32,
    /// The owner's group id. Ignored if the directory has the set-group-id bit.
    pub gid: u32,
    /// Flags that the mount options give each regular file: NODATASUM, NODATACOW.
    pub file_flags: InodeFlags,
}

impl<'a> NewInode<'a> {
    /// An inode owned by root with these mode bits and an empty umask.
    pub fn new(kind: NewKind<'a>, mode: u32) -> Self {
        Self { kind, mode, umask: 0, uid: 0, gid: 0, file_flags: InodeFlags::empty() }
    }

    /// Sets the owner.
    pub fn owner(mut self, uid: u32, gid: u32) -> Self {
        (self.uid, self.gid) = (uid, gid);
        self
    }

    /// Sets the permission bits to clear.
    pub fn umask(mut self, umask: u32) -> Self {
        self.umask = umask;
        self
    }
}

/// An inode that was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Created {
    /// Its number.
    pub inode: InodeNumber,
    /// Its item.
    pub(crate) item: InodeItem,
}

/// Creates an inode with a name.
///
/// # Errors
/// - [`PathError::InvalidName`], [`PathError::NameTooLong`], [`PathError::Exists`];
/// - errors of [`Directory::to_add`] for the directory;
/// - for the target of a symbolic link: [`PathError::NameTooLong`] if it does not fit a leaf or a
///   sector, [`PathError::NotFound`] if it is empty, [`PathError::InvalidName`] if it contains a
///   NUL;
/// - [`Error::Invalid`] for a device number out of range;
/// - [`PathError::HashOverflow`]; [`Error::NoSpace`] if inode numbers run out;
/// - errors of reading and changing the tree.
pub fn create(
    editor: &mut TreeEditor<'_>,
    numbers: &SubvolumeNumbers,
    now: Timespec,
    directory: InodeNumber,
    name: &[u8],
    new: &NewInode<'_>,
) -> Result<Created> {
    check_name(name)?;
    edit(editor, |draft| {
        check_symlink(draft, name, new)?;
        let mut parent = Directory::to_add(draft, directory, name)?;
        let inherited = Inherited::of(draft, directory)?;
        let index = numbers.index(draft.tree(), directory)?;
        let inode = numbers.inode(draft.tree())?;
        let value = EntryValue::inode(inode, new.kind.kind().file_type());
        dir_edit::insert(draft, directory, index, name, &value)?;
        let created = add_inode(draft, now, &parent.item, inherited, inode, 1, new)?;
        inode_ref_edit::insert_first(draft, inode, &Name { parent: directory, name }, index);
        parent.grow(name);
        parent.store(draft, now);
        Ok(created)
    })
}

/// Creates an inode without a name (`O_TMPFILE`). It inherits from `directory`, has no links, and
/// is listed as an orphan until [`super::link`] names it.
///
/// # Errors
/// [`PathError::IsADirectory`] for a directory; else as [`create`], apart from errors of the name.
pub fn create_unnamed(
    editor: &mut TreeEditor<'_>,
    numbers: &SubvolumeNumbers,
    now: Timespec,
    directory: InodeNumber,
    new: &NewInode<'_>,
) -> Result<Created> {
    edit(editor, |draft| {
        if new.kind.kind() == FileKind::Directory {
            return Err(Error::path(b"", PathError::IsADirectory));
        }
        check_symlink(draft, b"", new)?;
        let parent = Directory::to_add(draft, directory, b"")?;
        let inherited = Inherited::of(draft, directory)?;
        let inode = numbers.inode(draft.tree())?;
        let created = add_inode(draft, now, &parent.item, inherited, inode, 0, new)?;
        orphan::insert(draft, inode)?;
        Ok(created)
    })
}

/// The attributes that a new subvolume's root directory inherits.
#[derive(Debug, Default)]
pub(crate) struct RootInheritance(Inherited);

/// Reads what a subvolume created in `directory` inherits. As in the kernel, that is the
/// compression property of the root of the subvolume that `directory` is in, and nothing else: no
/// flags, no access control list and no group.
///
/// # Errors
/// Errors of [`Directory::to_add`] for the directory.
pub(crate) fn root_inheritance(editor: &TreeEditor<'_>, directory: InodeNumber) -> Result<RootInheritance> {
    let tree = editor.tree();
    let mut draft = Draft::new(editor, &tree);
    Directory::to_add(&mut draft, directory, b"")?;
    Ok(RootInheritance(Inherited::of(&mut draft, objectid::FIRST_INODE)?.without_acl()))
}

/// Creates the root directory of the empty subvolume that `editor` changes.
///
/// # Errors
/// Errors of changing the tree.
pub(crate) fn create_root(
    editor: &mut TreeEditor<'_>,
    now: Timespec,
    inheritance: RootInheritance,
    new: &NewInode<'_>,
) -> Result<Created> {
    let inode = objectid::FIRST_INODE;
    edit(editor, |draft| {
        let mut item = new_item(draft, now, new)?;
        let attributes = inheritance.0.complete(&mut item, new.umask);
        inode_edit::insert(draft, inode, &item);
        inode_ref_edit::insert_first(draft, inode, &Name { parent: inode, name: b".." }, 0);
        attributes.insert(draft, inode);
        Ok(Created { inode, item })
    })
}

/// The longest target of a symbolic link, in bytes. It fits one leaf and is shorter than a sector.
fn symlink_limit(draft: &Draft<'_>) -> usize {
    let inline = draft.max_item_size() - FileExtentItem::INLINE_DATA_START;
    inline.min(draft.geometry().sector_size as usize - 1)
}

fn check_symlink(draft: &Draft<'_>, name: &[u8], new: &NewInode<'_>) -> Result<()> {
    let NewKind::Symlink(target) = new.kind else { return Ok(()) };
    let refuse = |kind| Err(Error::path(name, kind));
    if target.is_empty() {
        return refuse(PathError::NotFound);
    }
    if target.contains(&0) {
        return refuse(PathError::InvalidName);
    }
    if target.len() > symlink_limit(draft) {
        return refuse(PathError::NameTooLong);
    }
    Ok(())
}

/// A new inode's item before it inherits anything.
fn new_item(draft: &Draft<'_>, now: Timespec, new: &NewInode<'_>) -> Result<InodeItem> {
    let kind = new.kind.kind();
    let size = if let NewKind::Symlink(target) = new.kind { target.len() as u64 } else { 0 };
    let permissions = if kind == FileKind::Symlink { 0o777 } else { new.mode & MODE_PERMISSION_MASK };
    Ok(InodeItem {
        generation: draft.generation(),
        transid: draft.generation(),
        size,
        nbytes: size,
        block_group: 0,
        nlink: 1,
        uid: new.uid,
        gid: new.gid,
        mode: kind.mode_bits() | permissions,
        rdev: new.kind.device()?,
        flags: InodeFlags::empty(),
        sequence: 0,
        reserved: [0; 4],
        atime: now,
        ctime: now,
        mtime: now,
        otime: now,
    })
}

/// Adds the inode item, its attributes, and a symbolic link's target.
fn add_inode(
    draft: &mut Draft<'_>,
    now: Timespec,
    parent: &InodeItem,
    inherited: Inherited,
    inode: InodeNumber,
    nlink: u32,
    new: &NewInode<'_>,
) -> Result<Created> {
    let kind = new.kind.kind();
    let mut item = new_item(draft, now, new)?;
    item.nlink = nlink;
    (item.gid, item.mode) = inherit::group_and_mode(parent, kind, item.gid, item.mode);
    item.flags = inherit::flags(parent.flags, kind);
    if kind == FileKind::Regular {
        item.flags |= new.file_flags;
        if item.flags.contains(InodeFlags::NODATACOW) {
            item.flags |= InodeFlags::NODATASUM;
        }
    }
    let attributes = inherited.complete(&mut item, new.umask);
    inode_edit::insert(draft, inode, &item);
    attributes.insert(draft, inode);
    if let NewKind::Symlink(target) = new.kind {
        let extent = FileExtentItem {
            generation: draft.generation(),
            ram_bytes: target.len() as u64,
            compression: Compression::None,
            other_encoding: 0,
            content: FileExtentContent::Inline(target),
        };
        draft.insert(file_extent_key(inode, FileOffset(0)), extent.to_bytes());
    }
    Ok(Created { inode, item })
}
