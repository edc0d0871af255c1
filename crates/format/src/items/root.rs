//! Tree roots: the items of the root tree, one per tree.
//!
//! Owns [`RootItem`] and [`RootFlags`]. Sources: `struct btrfs_root_item`
//! (`include/uapi/linux/btrfs_tree.h`), `btrfs_read_root_item` (`fs/btrfs/root-tree.c`),
//! `check_root_item` and `check_root_key` (`fs/btrfs/tree-checker.c`).

use crate::error::Corrupt;
use crate::features::on_disk_flags;
use crate::geometry::MAX_LEVEL;
use crate::item_context::ItemContext;
use crate::items::inode::{InodeItem, Timespec};
use crate::key::{ItemType, Key};
use crate::objectid;
use crate::parse::disk_struct;
use crate::units::{Generation, InodeNumber, LogicalAddress, TreeId};
use uuid::Uuid;

bitflags::bitflags! {
    /// Flags of a subvolume.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct RootFlags: u64 {
        /// Read-only.
        const RDONLY = 1 << 0;
        /// Deleted; the remains are being cleaned up.
        const DEAD = 1 << 48;
        const _ = !0;
    }
}
on_disk_flags!(RootFlags);

disk_struct! {
    /// All fields of a root item, before the rule that decides whether the later ones are valid.
    pub struct RawRootItem as RawRootItemDisk = 439 {
        /// A historical inode of which only the flags are used.
        pub inode: InodeItem,
        /// The transaction that last wrote the root block.
        pub generation: Generation,
        /// Inode number of the tree's root directory: 256 in a subvolume, otherwise 0.
        pub root_dirid: InodeNumber,
        /// Logical address of the root block.
        pub address: LogicalAddress,
        /// Unused.
        pub byte_limit: u64,
        /// Bytes of the tree's blocks.
        pub bytes_used: u64,
        /// The transaction of the last snapshot of this tree.
        pub last_snapshot: Generation,
        /// Flags.
        pub flags: RootFlags,
        /// 1; 0 once deleted.
        pub refs: u32,
        /// Progress of the deletion, as a key.
        pub drop_progress: Key,
        /// Tree level of `drop_progress`.
        pub drop_level: u8,
        /// Level of the root block.
        pub level: u8,
        /// Equals `generation` if this and all later fields are valid.
        pub generation_v2: Generation,
        /// The subvolume's UUID.
        pub uuid: Uuid,
        /// UUID of the snapshot's source subvolume, or nil.
        pub parent_uuid: Uuid,
        /// UUID of the sent subvolume that this one was received from, or nil.
        pub received_uuid: Uuid,
        /// The transaction of the last change.
        pub ctransid: Generation,
        /// The transaction of the creation.
        pub otransid: Generation,
        /// The sender's transaction, if received.
        pub stransid: Generation,
        /// The transaction that received the subvolume.
        pub rtransid: Generation,
        /// Time of the last change.
        pub ctime: Timespec,
        /// Time of creation.
        pub otime: Timespec,
        /// The sender's time, if received.
        pub stime: Timespec,
        /// Time of reception.
        pub rtime: Timespec,
        /// Zero.
        pub reserved: [u64; 8],
    }
}

/// Size in bytes of a root item from before Linux 3.6, which ends before `generation_v2`.
pub const LEGACY_SIZE: usize = 239;

/// One tree's root, under key (tree, ROOT_ITEM, 0). A snapshot's key offset is the transaction that
/// created it.
///
/// The fields from `generation_v2` on are zero if the item has the old, shorter form or was last
/// written by a kernel that did not know them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootItem(RawRootItem);

impl std::ops::Deref for RootItem {
    type Target = RawRootItem;

    fn deref(&self) -> &RawRootItem {
        &self.0
    }
}

impl RootItem {
    /// Creates a root item with these fields, marking those from `generation_v2` on as valid.
    pub fn new(mut raw: RawRootItem) -> Self {
        raw.generation_v2 = raw.generation;
        Self(raw)
    }

    /// Decodes an item of either size.
    ///
    /// # Errors
    /// [`Corrupt::WrongSize`] for any other size.
    pub fn parse(bytes: &[u8]) -> Result<Self, Corrupt> {
        let mut padded = [0; RawRootItem::SIZE];
        match bytes.len() {
            RawRootItem::SIZE | LEGACY_SIZE => padded[..bytes.len()].copy_from_slice(bytes),
            found => {
                return Err(Corrupt::WrongSize { what: "root item", expected: RawRootItem::SIZE, found });
            }
        }
        let raw = RawRootItem::parse(&padded)?;
        if raw.generation_v2 == raw.generation {
            return Ok(Self(raw));
        }
        // An old kernel has written the item since. It did not update the later fields, so they are
        // stale.
        padded[LEGACY_SIZE..].fill(0);
        Ok(Self(RawRootItem::parse(&padded)?))
    }

    /// Encodes the item in its current form, with the later fields marked as valid.
    pub fn to_bytes(&self) -> [u8; RawRootItem::SIZE] {
        Self::new(self.0).0.to_bytes()
    }

    /// Returns the fields for modification.
    pub const fn into_raw(self) -> RawRootItem {
        self.0
    }

    /// Returns whether the subvolume is read-only.
    pub const fn is_read_only(&self) -> bool {
        self.0.flags.contains(RootFlags::RDONLY)
    }

    /// Returns whether the subvolume is deleted and awaits cleaning.
    pub const fn is_dead(&self) -> bool {
        self.0.refs == 0 || self.0.flags.contains(RootFlags::DEAD)
    }
}

const WHAT: &str = "root item";

/// Runs the checks of `check_root_item`.
pub(crate) fn validate(context: &ItemContext<'_>) -> Result<(), Corrupt> {
    let bad = |field, value, why| Err(Corrupt::field(WHAT, field, value, why));
    validate_key(&context.key)?;
    let root = RootItem::parse(context.data)?;
    context.check_generation(WHAT, "generation", root.generation)?;
    // `parse` discards a later generation_v2 as stale, so check the raw bytes.
    if let Ok(raw) = RawRootItem::parse(context.data) {
        context.check_generation(WHAT, "generation_v2", raw.generation_v2)?;
    }
    context.check_generation(WHAT, "last_snapshot", root.last_snapshot)?;
    context.check_sector_aligned(WHAT, "address", root.address.0)?;
    if root.level >= MAX_LEVEL {
        return bad("level", root.level.into(), "not below 8");
    }
    if root.drop_level >= MAX_LEVEL {
        return bad("drop_level", root.drop_level.into(), "not below 8");
    }
    // Deletion keeps its position in an internal node.
    if root.drop_progress.objectid != 0 && root.drop_level == 0 {
        return bad("drop_level", 0, "must be above 0 during a deletion");
    }
    let known = RootFlags::RDONLY.union(RootFlags::DEAD);
    if root.flags.bits() & !known.bits() != 0 {
        return bad("flags", root.flags.bits(), "unknown bits");
    }
    Ok(())
}

/// Runs the checks of `check_root_key` on a root item's own key.
fn validate_key(key: &Key) -> Result<(), Corrupt> {
    if key.objectid == 0 {
        return Err(Corrupt::field(WHAT, "key.objectid", 0, "no such tree"));
    }
    let tree = TreeId(key.offset);
    // The tree of relocated data has a relocation tree of its own while its metadata moves.
    let moves = objectid::is_subvolume(tree) || tree == objectid::DATA_RELOC_TREE;
    if key.objectid == objectid::TREE_RELOC.0 && !moves {
        return Err(Corrupt::field(WHAT, "key.offset", key.offset, "this tree has no relocation tree"));
    }
    Ok(())
}

/// Runs the checks of `check_root_key` on a key in a directory entry.
pub(crate) fn validate_location(key: &Key) -> Result<(), Corrupt> {
    if !objectid::is_subvolume(TreeId(key.objectid)) {
        return Err(Corrupt::field(
            "directory entry",
            "location.objectid",
            key.objectid,
            "not a subvolume id",
        ));
    }
    Ok(())
}

/// Returns the smallest key of a tree's root item. A snapshot's key offset is the transaction that
/// created it.
pub const fn root_key(tree: TreeId) -> Key {
    Key::new(tree.0, ItemType::ROOT_ITEM, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree_check::test_support::{check, fault};

    fn sample() -> RawRootItem {
        RawRootItem {
            generation: Generation(90),
            generation_v2: Generation(90),
            address: LogicalAddress(1 << 20),
            refs: 1,
            uuid: Uuid::from_u128(5),
            ..RawRootItem::parse(&[0; RawRootItem::SIZE]).unwrap()
        }
    }

    fn check_sample(raw: RawRootItem) -> Result<(), Corrupt> {
        check(root_key(TreeId(256)), &raw.to_bytes())
    }

    #[test]
    fn fields_round_trip() {
        crate::parse::assert_round_trip::<RawRootItem>();
        let item = RootItem::new(sample());
        assert_eq!(RootItem::parse(&item.to_bytes()), Ok(item));
    }

    #[test]
    fn old_items_read_later_fields_as_zero() {
        let bytes = sample().to_bytes();
        let legacy = RootItem::parse(&bytes[..LEGACY_SIZE]).unwrap();
        assert_eq!((legacy.address, legacy.uuid), (sample().address, Uuid::nil()));
        // Written by an old kernel after a new one: the UUID is stale.
        let stale = RawRootItem { generation: Generation(91), ..sample() };
        assert_eq!(RootItem::parse(&stale.to_bytes()).unwrap().uuid, Uuid::nil());
        assert_eq!(RootItem::parse(&bytes).unwrap().uuid, Uuid::from_u128(5));
        // Encoding it again yields the current form.
        let again = RootItem::parse(&legacy.to_bytes()).unwrap();
        assert_eq!(again.generation_v2, again.generation);
    }

    #[test]
    fn each_check_detects_its_fault() {
        let bytes = sample().to_bytes();
        assert_eq!(check_sample(sample()), Ok(()));
        assert_eq!(check(root_key(TreeId(256)), &bytes[..LEGACY_SIZE]), Ok(()));
        assert_eq!(fault(check(root_key(TreeId(256)), &bytes[..LEGACY_SIZE + 1])), "size");
        assert_eq!(fault(check(root_key(TreeId(0)), &bytes)), "key.objectid");
        let reloc = |tree| Key::new(objectid::TREE_RELOC.0, ItemType::ROOT_ITEM, tree);
        assert_eq!(check(reloc(256), &bytes), Ok(()));
        assert_eq!(check(reloc(objectid::DATA_RELOC_TREE.0), &bytes), Ok(()));
        assert_eq!(fault(check(reloc(7), &bytes)), "key.offset");
        let late = Generation(102);
        assert_eq!(fault(check_sample(RawRootItem { generation: late, ..sample() })), "generation");
        assert_eq!(fault(check_sample(RawRootItem { generation_v2: late, ..sample() })), "generation_v2");
        assert_eq!(fault(check_sample(RawRootItem { last_snapshot: late, ..sample() })), "last_snapshot");
        assert_eq!(fault(check_sample(RawRootItem { address: LogicalAddress(1), ..sample() })), "address");
        assert_eq!(fault(check_sample(RawRootItem { level: 8, ..sample() })), "level");
        assert_eq!(fault(check_sample(RawRootItem { drop_level: 8, ..sample() })), "drop_level");
        let drop_progress = Key::first_of(257);
        assert_eq!(fault(check_sample(RawRootItem { drop_progress, ..sample() })), "drop_level");
        let dropping = RawRootItem { drop_progress, drop_level: 1, refs: 0, ..sample() };
        assert_eq!(check_sample(dropping), Ok(()));
        assert!(RootItem::new(dropping).is_dead());
        let flags = RootFlags::from_bits_retain(2);
        assert_eq!(fault(check_sample(RawRootItem { flags, ..sample() })), "flags");
        let flags = RootFlags::RDONLY | RootFlags::DEAD;
        assert_eq!(check_sample(RawRootItem { flags, ..sample() }), Ok(()));
    }
}
