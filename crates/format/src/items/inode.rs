//! Inodes: the metadata of a file, without its names.
//!
//! Owns [`InodeItem`], [`InodeFlags`], [`FileKind`] and [`Timespec`]. Sources: `struct
//! btrfs_inode_item` (`include/uapi/linux/btrfs_tree.h`), `check_inode_item` and `check_inode_key`
//! (`fs/btrfs/tree-checker.c`).

use crate::error::Corrupt;
use crate::features::on_disk_flags;
use crate::item_context::ItemContext;
pub use crate::items::file_type::{FileKind, MODE_KIND_MASK};
use crate::key::{ItemType, Key};
use crate::objectid;
use crate::parse::disk_struct;
use crate::units::Generation;

disk_struct! {
    /// A point in time, in seconds and nanoseconds since 1970-01-01 UTC.
    #[derive(Default, PartialOrd, Ord, Hash)]
    pub struct Timespec as TimespecDisk = 12 {
        /// Whole seconds, negative before 1970.
        pub seconds: i64,
        /// Additional nanoseconds, normally below 1,000,000,000 (the kernel does not check it).
        pub nanoseconds: u32,
    }
}

bitflags::bitflags! {
    /// An inode's flags. A reader must know all of the low 32 bits that are set; a writer must also
    /// know the high 32 bits (`ro_flags`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct InodeFlags: u64 {
        /// Data has no checksums.
        const NODATASUM = 1 << 0;
        /// Data is overwritten in place.
        const NODATACOW = 1 << 1;
        /// Read-only (unused by users).
        const READONLY = 1 << 2;
        /// Data is never compressed.
        const NOCOMPRESS = 1 << 3;
        /// The file was preallocated.
        const PREALLOC = 1 << 4;
        /// Writes are synchronous.
        const SYNC = 1 << 5;
        /// The file cannot be changed.
        const IMMUTABLE = 1 << 6;
        /// The file can only be appended to.
        const APPEND = 1 << 7;
        /// `dump` skips the file.
        const NODUMP = 1 << 8;
        /// Reading does not change the access time.
        const NOATIME = 1 << 9;
        /// Changes of the directory are synchronous.
        const DIRSYNC = 1 << 10;
        /// Data is compressed when written.
        const COMPRESS = 1 << 11;
        /// The inode inside a root item has been initialised.
        const ROOT_ITEM_INIT = 1 << 31;
        /// The file has fs-verity data; a `ro_flags` bit.
        const VERITY = 1 << 32;
        const _ = !0;
    }
}
on_disk_flags!(InodeFlags);

impl InodeFlags {
    /// The bits that a reader knows, all among the low 32.
    pub const KNOWN: Self = Self::NODATASUM
        .union(Self::NODATACOW)
        .union(Self::READONLY)
        .union(Self::NOCOMPRESS)
        .union(Self::PREALLOC)
        .union(Self::SYNC)
        .union(Self::IMMUTABLE)
        .union(Self::APPEND)
        .union(Self::NODUMP)
        .union(Self::NOATIME)
        .union(Self::DIRSYNC)
        .union(Self::COMPRESS)
        .union(Self::ROOT_ITEM_INIT);
    /// The bits among the high 32 that a writer knows.
    pub const KNOWN_RO: Self = Self::VERITY;

    /// The bits that no symbolic link has: the kernel refuses `FS_IOC_SETFLAGS` there.
    pub const OF_NO_SYMLINK: Self = Self::IMMUTABLE.union(Self::APPEND);

    /// Returns the unknown low bits; if any is set, the inode cannot be read.
    pub const fn unknown(self) -> u64 {
        self.bits() & 0xffff_ffff & !Self::KNOWN.bits()
    }

    /// Returns the unknown high bits; if any is set, the inode can be read but must not be changed.
    pub const fn unknown_ro(self) -> u64 {
        self.bits() & !0xffff_ffff & !Self::KNOWN_RO.bits()
    }
}

/// The mode bits that `chmod` changes.
pub const MODE_PERMISSION_MASK: u32 = 0o7_777;

disk_struct! {
    /// One inode, under key (inode number, INODE_ITEM, 0).
    pub struct InodeItem as InodeItemDisk = 160 {
        /// The transaction that created the inode.
        pub generation: Generation,
        /// The transaction that last changed the inode.
        pub transid: Generation,
        /// Size of a file in bytes; for a directory, twice the total bytes of its names.
        pub size: u64,
        /// Bytes of disk space that the extents occupy, uncompressed and without holes.
        pub nbytes: u64,
        /// An unused allocation hint; in free-space cache inodes, the block group.
        pub block_group: u64,
        /// Number of the inode's names; a directory has 1.
        pub nlink: u32,
        /// Owner's user id.
        pub uid: u32,
        /// Group id.
        pub gid: u32,
        /// Kind and permissions, as `st_mode`.
        pub mode: u32,
        /// Device number of a device file, packed like the kernel's `dev_t`; see
        /// [`InodeItem::device_number`].
        pub rdev: u64,
        /// Flags.
        pub flags: InodeFlags,
        /// Number of changes (the NFS change attribute).
        pub sequence: u64,
        /// Zero.
        pub reserved: [u64; 4],
        /// Time of the last read.
        pub atime: Timespec,
        /// Time of the last change of the inode.
        pub ctime: Timespec,
        /// Time of the last change of the content.
        pub mtime: Timespec,
        /// Time of creation.
        pub otime: Timespec,
    }
}

impl InodeItem {
    /// Returns the kind of file, or `None` if the mode holds none. That happens only in a root
    /// item's inode, because inodes in leaves were checked.
    pub const fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.mode)
    }

    /// Returns the mode without the kind.
    pub const fn permissions(&self) -> u32 {
        self.mode & MODE_PERMISSION_MASK
    }

    /// Returns major and minor device number: 12 and 20 bits, packed like the kernel's internal
    /// `dev_t`.
    pub const fn device_number(&self) -> (u32, u32) {
        let packed = self.rdev as u32;
        (packed >> 20, packed & 0xf_ffff)
    }

    /// Returns `rdev` for a major (below 4,096) and a minor (below 1,048,576) device number.
    pub const fn pack_device_number(major: u32, minor: u32) -> u64 {
        ((major as u64 & 0xfff) << 20) | (minor as u64 & 0xf_ffff)
    }
}

/// Runs the checks of `check_inode_item`.
pub(crate) fn validate(context: &ItemContext<'_>) -> Result<(), Corrupt> {
    let bad = |field, value, why| Err(Corrupt::field("inode", field, value, why));
    validate_key("inode", &context.key)?;
    let inode = InodeItem::parse(context.data)?;
    context.check_generation("inode", "generation", inode.generation)?;
    context.check_generation("inode", "transid", inode.transid)?;
    if inode.mode & !(MODE_KIND_MASK | MODE_PERMISSION_MASK) != 0 {
        return bad("mode", inode.mode.into(), "unknown bits");
    }
    let Some(kind) = inode.kind() else {
        return bad("mode", inode.mode.into(), "no kind of file");
    };
    // The kernel does not check sizes, because an old bug left wrong ones in directories. A file
    // beyond the largest offset (2^63 - 1) was never possible.
    if kind == FileKind::Regular && i64::try_from(inode.size).is_err() {
        return bad("size", inode.size, "larger than any file");
    }
    if kind == FileKind::Directory && inode.nlink > 1 {
        return bad("nlink", inode.nlink.into(), "a directory can have only one name");
    }
    // Unknown high bits do not forbid reading; a writer has to check them.
    if inode.flags.unknown() != 0 {
        return bad("flags", inode.flags.bits(), "unknown bits");
    }
    Ok(())
}

/// Runs the checks of `check_inode_key` on the key of an inode, or on a key that points to one.
pub(crate) fn validate_key(what: &'static str, key: &Key) -> Result<(), Corrupt> {
    let known = match key.objectid {
        objectid::FIRST_FREE..=objectid::LAST_FREE => true,
        // The root tree's directory, and the inode number cache of kernels before 5.11.
        other => other == objectid::ROOT_TREE_DIR || other == objectid::FREE_INO,
    };
    if !known {
        return Err(Corrupt::field(what, "key.objectid", key.objectid, "not a valid inode number"));
    }
    if key.offset != 0 {
        return Err(Corrupt::field(what, "key.offset", key.offset, "an inode's key must have offset 0"));
    }
    Ok(())
}

/// Runs the check of `check_prev_ino`: in a subvolume, an item that belongs to an inode must follow
/// another item of the same inode, unless it is the first in its leaf.
pub(crate) fn validate_follows_inode(context: &ItemContext<'_>) -> Result<(), Corrupt> {
    // Log trees hold incomplete inodes.
    if !objectid::is_subvolume(context.owner) {
        return Ok(());
    }
    match context.previous {
        Some((previous, _)) if previous.objectid != context.key.objectid => {
            Err(Corrupt::field("inode", "key.objectid", context.key.objectid, "an item without its inode"))
        }
        _ => Ok(()),
    }
}

/// Returns the key of an inode's item.
pub const fn inode_key(inode: crate::units::InodeNumber) -> Key {
    Key::new(inode.0, ItemType::INODE_ITEM, 0)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::tree_check::test_support::{check, check_in, fault};
    use crate::units::InodeNumber;

    /// A regular file's inode without content.
    pub(crate) fn sample() -> InodeItem {
        InodeItem {
            generation: Generation(9),
            transid: Generation(10),
            nlink: 1,
            mode: 0o100_644,
            ..InodeItem::parse(&[0; InodeItem::SIZE]).unwrap()
        }
    }

    fn check_sample(inode: InodeItem) -> Result<(), Corrupt> {
        check(inode_key(InodeNumber(257)), &inode.to_bytes())
    }

    #[test]
    fn structures_round_trip() {
        crate::parse::assert_round_trip::<Timespec>();
        crate::parse::assert_round_trip::<InodeItem>();
    }

    #[test]
    fn each_check_detects_its_fault() {
        assert_eq!(check_sample(sample()), Ok(()));
        assert_eq!(fault(check(inode_key(InodeNumber(257)), &[0; 159])), "size");
        assert_eq!(fault(check(inode_key(InodeNumber(255)), &sample().to_bytes())), "key.objectid");
        assert_eq!(check(inode_key(InodeNumber(6)), &sample().to_bytes()), Ok(()));
        assert_eq!(fault(check(Key::new(257, ItemType::INODE_ITEM, 1), &sample().to_bytes())), "key.offset");
        // A log tree may be one generation ahead of the last commit.
        assert_eq!(check_sample(InodeItem { generation: Generation(101), ..sample() }), Ok(()));
        assert_eq!(fault(check_sample(InodeItem { generation: Generation(102), ..sample() })), "generation");
        assert_eq!(fault(check_sample(InodeItem { transid: Generation(102), ..sample() })), "transid");
        assert_eq!(fault(check_sample(InodeItem { mode: 0o1_100_644, ..sample() })), "mode");
        assert_eq!(fault(check_sample(InodeItem { mode: 0o644, ..sample() })), "mode");
        assert_eq!(fault(check_sample(InodeItem { mode: 0o110_644, ..sample() })), "mode");
        assert_eq!(fault(check_sample(InodeItem { size: 1 << 63, ..sample() })), "size");
        let directory = InodeItem { mode: 0o040_755, size: u64::MAX, ..sample() };
        assert_eq!(check_sample(directory), Ok(()));
        assert_eq!(fault(check_sample(InodeItem { nlink: 2, ..directory })), "nlink");
        let flags = InodeFlags::from_bits_retain(1 << 12);
        assert_eq!(fault(check_sample(InodeItem { flags, ..sample() })), "flags");
        let flags = InodeFlags::from_bits_retain(1 << 40);
        assert_eq!(check_sample(InodeItem { flags, ..sample() }), Ok(()));
        assert_eq!(flags.unknown_ro(), 1 << 40);
        assert_eq!(InodeFlags::VERITY.unknown_ro(), 0);
    }

    #[test]
    fn items_must_follow_their_inode() {
        let data = crate::items::inode_ref::InodeRef { index: 2, name: b"a" }.to_bytes();
        let key = Key::new(258, ItemType::INODE_REF, 256);
        let other = (inode_key(InodeNumber(257)), &[][..]);
        let own = (inode_key(InodeNumber(258)), &[][..]);
        assert_eq!(fault(check_in(objectid::FS_TREE, Some(other), key, &data)), "key.objectid");
        assert_eq!(check_in(objectid::FS_TREE, Some(own), key, &data), Ok(()));
        assert_eq!(check_in(objectid::TREE_LOG, Some(other), key, &data), Ok(()));
    }

    #[test]
    fn modes_and_device_numbers_round_trip() {
        for kind in FileKind::ALL {
            assert_eq!(FileKind::from_mode(kind.mode_bits() | 0o4755), Some(kind));
            assert_eq!(kind.file_type().kind(), Some(kind));
        }
        assert_eq!(FileKind::from_mode(0o755), None);
        let rdev = InodeItem::pack_device_number(259, 70_000);
        assert_eq!(InodeItem { rdev, ..sample() }.device_number(), (259, 70_000));
    }
}
