//! Remedies: the changes that mend findings, as the comparisons that found the faults propose them.
//!
//! Owns [`Remedy`]. A check only collects them; [`crate::repair`] applies them.
//!
//! **Invariant**: a remedy can be applied twice with the same result.

use super::one_byte::Correction;
use papilio_format::items::extent::ExtentFlags;
use papilio_format::objectid::Objectid;
use papilio_format::{Generation, Key, LogicalAddress, TreeId, objectid};
use std::fmt;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// Writes the good copy of a tree block over the others.
    Mirror(LogicalAddress),
    /// Changes the one byte of a copy that makes its checksum right, and writes all copies.
    Byte { block: LogicalAddress, copy: usize, change: Correction },
    /// Sets generation and key of the pointer in block `parent` to those of the block it points to.
    Pointer { parent: LogicalAddress, child: LogicalAddress, generation: Generation, first_key: Key },
    /// Writes a block to another place, where it lies in one stripe.
    MoveBlock { tree: TreeId, parent: Option<LogicalAddress>, block: LogicalAddress },
    /// Removes free-space items that mkfs left: they go with faults, and are none by themselves.
    DropLeftSpace { first: Key, last: Key },
    /// Removes an item of a type that is unknown.
    DropUnknown { tree: TreeId, key: Key },
    /// Sets the generation in the root item at a key.
    RootGeneration { item: Key, generation: Generation },
    /// Sets the owner in the header of a block.
    Owner { block: LogicalAddress, owner: TreeId },
    /// Replaces all items of a tree from `first` to `last` by others.
    Replace { tree: TreeId, first: Key, last: Key, items: Vec<(Key, Vec<u8>)> },
    /// Computes and adds the checksums of a range of data.
    AddCsums { start: u64, end: u64 },
    /// Removes the checksums of a range.
    DropCsums { start: u64, end: u64 },
    /// Changes a field of an inode item.
    Inode { tree: TreeId, inode: u64, field: InodeField },
    /// Adds the entry by name for the index entry at a key.
    AddEntryByName { tree: TreeId, index: Key },
    /// Adds the entry by index for an entry by name of a directory, which leads to `target`.
    AddEntryByIndex { tree: TreeId, item: Key, target: u64 },
    /// Adds the reference of an inode for the index entry at a key.
    AddInodeRef { tree: TreeId, index: Key },
    /// Adds both entries for an inode's reference.
    AddEntries { tree: TreeId, inode: u64, directory: u64, index: u64 },
    /// Removes the index entry at a key, and the entry by name that belongs to it.
    DropEntries { tree: TreeId, index: Key, target: u64 },
    /// Writes an empty inode for the index entry at a key, whose own is lost.
    BlankInode { tree: TreeId, index: Key },
    /// Sets the type of both entries to that of the inode.
    EntryType { tree: TreeId, index: Key },
    /// Adds a subvolume's reference to its parent, or the parent's to it, as the other one says.
    RootRef { from: Key, to: Key },
    /// Sets the count of references in a root item.
    RootCount { item: Key, refs: u32 },
    /// Makes the top level the default subvolume.
    DefaultSubvolume,
    /// Changes a field of the superblock.
    Superblock(SuperblockField),
    /// Sets the flags of a tree block's extent item.
    ExtentFlags { extent: u64, flags: ExtentFlags },
    /// Writes the inode item of an inode that has other items.
    RebuildInode { tree: TreeId, inode: u64 },
    /// Gives an inode that no path leads to a name in the directory `lost+found`.
    LostAndFound { tree: TreeId, inode: u64 },
    /// Removes an inode's reference to a directory that does not exist.
    DropInodeRef { tree: TreeId, inode: u64, directory: u64, index: u64 },
    /// Makes the file extent at a key a part of its extent on disk.
    FileExtent { tree: TreeId, key: Key },
    /// Sets the size of a file that ends before its data does.
    SizeOfData { tree: TreeId, inode: u64, end: u64 },
    /// Adds the directory entries that a parent's reference to a subvolume names. Where they do not
    /// fit, the subvolume gets a name in `lost+found`: its number.
    HangSubvolume { parent: TreeId, child: TreeId },
    /// Adds the hole extents that a file lacks, up to its size.
    FillHoles { tree: TreeId, inode: u64 },
    /// Writes a required tree that does not exist.
    AddTree(TreeId),
    /// Removes a tree that nothing uses from the root tree.
    DropTree(TreeId),
}

/// A field of an inode item, and its right value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InodeField {
    Links(u32),
    Size(u64),
    Bytes(u64),
    /// The inode has checksums: without the flag NODATASUM.
    HasCsums,
    /// A symbolic link has none of [`InodeFlags::OF_NO_SYMLINK`].
    ///
    /// [`InodeFlags::OF_NO_SYMLINK`]: papilio_format::items::inode::InodeFlags::OF_NO_SYMLINK
    NoSymlinkFlags,
    /// The file is without fs-verity.
    NoVerity,
}

/// A field of the superblock, and its right value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SuperblockField {
    /// All copies are written anew.
    Copies,
    BytesUsed(u64),
    TotalBytes(u64),
    Devices(u64),
    /// The flag of a conversion to a block-group tree that has not begun.
    ConversionNotBegun,
    /// The flag of a conversion to a block-group tree that has moved all block groups.
    ConversionDone,
}

impl Remedy {
    /// Inserts or replaces one item.
    pub(crate) fn put(tree: TreeId, key: Key, data: impl Into<Vec<u8>>) -> Self {
        Self::Replace { tree, first: key, last: key, items: vec![(key, data.into())] }
    }

    /// Removes one item.
    pub(crate) fn remove(tree: TreeId, key: Key) -> Self {
        Self::Replace { tree, first: key, last: key, items: Vec::new() }
    }

    /// Whether the remedy can be applied while parts of trees cannot be read: it changes one block,
    /// or a superblock, and does not depend on anything else.
    pub(crate) fn is_local(&self) -> bool {
        matches!(
            self,
            Self::Mirror(_)
                | Self::Byte { .. }
                | Self::Pointer { .. }
                | Self::Owner { .. }
                | Self::RootGeneration { .. }
                | Self::Superblock(SuperblockField::Copies)
        )
    }

    /// Returns the place in the order of a round: remedies that others need first, then those that
    /// only remove, to make room and to let others replace.
    pub(crate) fn rank(&self) -> u8 {
        match self {
            // Those that read back references come before those that write them.
            Self::FileExtent { .. } | Self::ExtentFlags { .. } => 0,
            remedy if remedy.is_local() => 0,
            remedy if remedy.only_removes() => 1,
            // The other remedies decide where the holes of a file are, and which blocks there are.
            Self::FillHoles { .. } | Self::MoveBlock { .. } => 3,
            _ => 2,
        }
    }

    /// Whether data that no extent item had may have one afterwards. Until then its checksums seem
    /// to belong to nothing.
    pub(crate) fn gives_data_an_extent(&self) -> bool {
        match self {
            Self::Replace { tree, items, .. } => *tree == objectid::EXTENT_TREE && !items.is_empty(),
            Self::AddTree(tree) => *tree == objectid::EXTENT_TREE,
            Self::FileExtent { .. } => true,
            _ => false,
        }
    }

    /// Returns the subvolume whose files the remedy concerns.
    pub(crate) fn file_tree(&self) -> Option<TreeId> {
        match self {
            Self::Inode { tree, .. }
            | Self::AddEntryByName { tree, .. }
            | Self::AddEntryByIndex { tree, .. }
            | Self::AddInodeRef { tree, .. }
            | Self::AddEntries { tree, .. }
            | Self::DropEntries { tree, .. }
            | Self::BlankInode { tree, .. }
            | Self::EntryType { tree, .. }
            | Self::RebuildInode { tree, .. }
            | Self::LostAndFound { tree, .. }
            | Self::DropInodeRef { tree, .. }
            | Self::FileExtent { tree, .. }
            | Self::SizeOfData { tree, .. }
            | Self::FillHoles { tree, .. } => Some(*tree),
            _ => None,
        }
    }

    /// Returns the tree whose items the remedy changes because of other items of that tree. Another
    /// tree that shares the changed leaf may be sound.
    pub(crate) fn edited_tree(&self) -> Option<TreeId> {
        match self {
            Self::DropUnknown { tree, .. } | Self::Replace { tree, .. } => Some(*tree),
            Self::HangSubvolume { parent, .. } => Some(*parent),
            other => other.file_tree(),
        }
    }

    /// Returns the number of the object that a remedy of [`Remedy::edited_tree`] changes, to find
    /// others like it.
    pub(crate) fn place(&self) -> u64 {
        match self {
            Self::DropUnknown { key, .. } | Self::FileExtent { key, .. } => key.objectid,
            Self::Replace { first, .. } => first.objectid,
            Self::HangSubvolume { child, .. } => child.0,
            Self::Inode { inode, .. }
            | Self::AddEntries { inode, .. }
            | Self::RebuildInode { inode, .. }
            | Self::LostAndFound { inode, .. }
            | Self::DropInodeRef { inode, .. }
            | Self::SizeOfData { inode, .. }
            | Self::FillHoles { inode, .. } => *inode,
            Self::AddEntryByIndex { item, .. } => item.objectid,
            Self::AddEntryByName { index, .. }
            | Self::AddInodeRef { index, .. }
            | Self::DropEntries { index, .. }
            | Self::BlankInode { index, .. }
            | Self::EntryType { index, .. } => index.objectid,
            _ => 0,
        }
    }

    /// Whether the remedies make the same change, each in a tree of its own.
    pub(crate) fn is_same_elsewhere(&self, other: &Self) -> bool {
        let (Some(own), Some(tree)) = (self.edited_tree(), other.edited_tree()) else { return false };
        if own == tree {
            return false;
        }
        let mut moved = self.clone();
        match &mut moved {
            Self::HangSubvolume { parent, .. } => *parent = tree,
            Self::DropUnknown { tree: named, .. }
            | Self::Replace { tree: named, .. }
            | Self::Inode { tree: named, .. }
            | Self::AddEntryByName { tree: named, .. }
            | Self::AddEntryByIndex { tree: named, .. }
            | Self::AddInodeRef { tree: named, .. }
            | Self::AddEntries { tree: named, .. }
            | Self::DropEntries { tree: named, .. }
            | Self::BlankInode { tree: named, .. }
            | Self::EntryType { tree: named, .. }
            | Self::RebuildInode { tree: named, .. }
            | Self::LostAndFound { tree: named, .. }
            | Self::DropInodeRef { tree: named, .. }
            | Self::FileExtent { tree: named, .. }
            | Self::SizeOfData { tree: named, .. }
            | Self::FillHoles { tree: named, .. } => *named = tree,
            _ => return false,
        }
        moved == *other
    }

    /// Returns what the remedy guesses about the content of a file. No checksum proves a guess, so
    /// it counts as a loss.
    pub(crate) fn guess(&self) -> Option<String> {
        let name = |tree: &TreeId| Objectid(tree.0);
        match self {
            Self::RebuildInode { tree, inode } => {
                Some(format!("tree {}, inode {inode}: owner, mode, times and size are guesses", name(tree)))
            }
            Self::FileExtent { tree, key } => Some(format!(
                "tree {}, inode {}: the place and length of the data at {} are guesses",
                name(tree),
                key.objectid,
                key.offset
            )),
            Self::SizeOfData { tree, inode, .. } => {
                Some(format!("tree {}, inode {inode}: the size is a guess, the end of the data", name(tree)))
            }
            Self::BlankInode { tree, index } => {
                let tree = name(tree);
                Some(format!("tree {tree}, entry {index}: the content, owner, mode and times of its inode"))
            }
            Self::DropUnknown { tree, key } => Some(format!("tree {}: item {key}", name(tree))),
            _ => None,
        }
    }

    fn only_removes(&self) -> bool {
        match self {
            Self::Replace { items, .. } => items.is_empty(),
            Self::DropCsums { .. } | Self::DropEntries { .. } | Self::DropUnknown { .. } => true,
            _ => false,
        }
    }
}

/// Says how an inode without a name gets one.
fn new_name(inode: u64) -> String {
    match inode {
        papilio_format::objectid::FIRST_FREE => "write the root directory's reference to itself".to_owned(),
        _ => format!("put inode {inode} into lost+found"),
    }
}

/// Says how a subvolume gets its directory entries.
fn hung(child: TreeId) -> String {
    format!("add the directory entries of subvolume {child}")
}

/// Says how an inode gets the file extents of its holes.
fn filled(inode: u64) -> String {
    format!("add the missing file extents of the holes of inode {inode}")
}

impl Remedy {
    /// Writes the remedies that concern items and blocks as a whole.
    fn write_items(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |tree: &TreeId| Objectid(tree.0);
        match self {
            Self::MoveBlock { tree, block, .. } => {
                write!(f, "tree {}: write block {block} to a place in one stripe", name(tree))
            }
            Self::DropLeftSpace { first, .. } => {
                write!(f, "remove the free space {first} of a temporary block group of mkfs")
            }
            Self::DropUnknown { tree, key } => {
                write!(f, "tree {}: remove item {key}, whose type is unknown", name(tree))
            }
            Self::Replace { tree, first, last, items } if items.is_empty() && first == last => {
                write!(f, "tree {}: remove item {first}", name(tree))
            }
            Self::Replace { tree, first, last, items } if items.is_empty() => {
                write!(f, "tree {}: remove the items from {first} to {last}", name(tree))
            }
            Self::Replace { tree, first, last, items } if first == last => {
                write!(f, "tree {}: write item {first} ({} bytes)", name(tree), items[0].1.len())
            }
            Self::Replace { tree, first, last, items } => {
                let count = items.len();
                write!(f, "tree {}: write the items from {first} to {last} anew: {count}", name(tree))
            }
            Self::BlankInode { tree, index } => {
                write!(f, "tree {}: write an empty inode for {index}, whose own is lost", name(tree))
            }
            _ => unreachable!("the caller writes the others"),
        }
    }
}

impl fmt::Display for InodeField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Links(links) => write!(f, "set the number of links to {links}"),
            Self::Size(size) => write!(f, "set the size to {size} bytes"),
            Self::Bytes(bytes) => write!(f, "set the count of bytes to {bytes}"),
            Self::HasCsums => f.write_str("clear the flag NODATASUM, as there are checksums"),
            Self::NoSymlinkFlags => f.write_str("clear the flags that a symbolic link must not have"),
            Self::NoVerity => f.write_str("clear the flag VERITY"),
        }
    }
}

impl fmt::Display for SuperblockField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Copies => f.write_str("write all copies of the superblock"),
            Self::BytesUsed(bytes) => write!(f, "set the used bytes in the superblock to {bytes}"),
            Self::TotalBytes(bytes) => write!(f, "set the size in the superblock to {bytes} bytes"),
            Self::Devices(devices) => {
                write!(f, "set the number of devices in the superblock to {devices}")
            }
            Self::ConversionNotBegun | Self::ConversionDone => {
                f.write_str("clear the superblock's flag of a conversion to a block-group tree")
            }
        }
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |tree: &TreeId| Objectid(tree.0);
        match self {
            Self::Mirror(address) => write!(f, "write the good copy of block {address} over the bad ones"),
            Self::Byte { block, change, .. } => {
                let Correction { offset, flip } = change;
                write!(f, "change byte {offset} of block {block} by {flip:#04x}: its checksum is right then")
            }
            Self::Pointer { parent, child, .. } => {
                write!(f, "mend the pointer in block {parent} to block {child}")
            }
            Self::RootGeneration { item, generation } => {
                write!(f, "set the generation in root item {item} to {generation}")
            }
            Self::Owner { block, owner } => write!(f, "set the owner of block {block} to {}", name(owner)),
            Self::AddCsums { start, end } => {
                write!(f, "compute the checksums of {} bytes at {start} from the data as it is", end - start)
            }
            Self::DropCsums { start, end } => {
                write!(f, "remove the checksums of {} bytes at {start}", end - start)
            }
            Self::Inode { tree, inode, field } => {
                write!(f, "tree {}, inode {inode}: {field}", name(tree))
            }
            Self::AddEntryByName { tree, index } => {
                write!(f, "tree {}: add the entry by name for {index}", name(tree))
            }
            Self::AddEntryByIndex { tree, item, .. } => {
                write!(f, "tree {}: add the entry by index for {item}", name(tree))
            }
            Self::AddInodeRef { tree, index } => {
                write!(f, "tree {}: add the inode's reference for {index}", name(tree))
            }
            Self::AddEntries { tree, inode, directory, .. } => {
                write!(f, "tree {}: add the entries of inode {inode} in directory {directory}", name(tree))
            }
            Self::DropEntries { tree, index, .. } => {
                write!(f, "tree {}: remove the entries of {index}, which lead to nothing", name(tree))
            }
            Self::EntryType { tree, index } => {
                write!(f, "tree {}: set the file type of the entries of {index}", name(tree))
            }
            Self::RootRef { from, to } => write!(f, "write reference {to} as {from} says"),
            Self::RootCount { item, refs } => write!(f, "set the references of root item {item} to {refs}"),
            Self::DefaultSubvolume => f.write_str("make the top level the default subvolume"),
            Self::Superblock(field) => field.fmt(f),
            Self::ExtentFlags { extent, flags } => {
                write!(f, "set the flags of the extent item of block {extent} to {:#x}", flags.bits())
            }
            Self::RebuildInode { tree, inode } => {
                write!(f, "tree {}: write the item of inode {inode} as its other items say", name(tree))
            }
            Self::LostAndFound { tree, inode } => write!(f, "tree {}: {}", name(tree), new_name(*inode)),
            Self::DropInodeRef { tree, inode, directory, .. } => {
                let tree = name(tree);
                write!(f, "tree {tree}: remove the reference of inode {inode} to directory {directory}")
            }
            Self::FileExtent { tree, key } => {
                write!(f, "tree {}: make file extent {key} a part of its extent", name(tree))
            }
            Self::SizeOfData { tree, inode, .. } => {
                write!(f, "tree {}: set the size of inode {inode} to the end of its data", name(tree))
            }
            Self::HangSubvolume { parent, child } => write!(f, "tree {}: {}", name(parent), hung(*child)),
            Self::FillHoles { tree, inode } => write!(f, "tree {}: {}", name(tree), filled(*inode)),
            Self::AddTree(tree) => write!(f, "tree {}: write it, as others say", name(tree)),
            Self::DropTree(tree) => write!(f, "tree {}: remove it, as nothing uses it", name(tree)),
            Self::Replace { .. }
            | Self::MoveBlock { .. }
            | Self::DropLeftSpace { .. }
            | Self::DropUnknown { .. }
            | Self::BlankInode { .. } => self.write_items(f),
        }
    }
}
