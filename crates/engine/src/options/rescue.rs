//! The options for reading a file system that is damaged.
//!
//! Owns [`Rescue`], a part of the options of opening, [`TreeRootChoice`], and [`FoundTrees`], the
//! parts of a file system that were found by other means than its superblock; [`FoundBlock`]; and
//! [`ItemFault`], the parts that a reader goes without.

use super::older::OlderState;
use papilio_format::items::chunk::ChunkItem;
use papilio_format::items::device::DeviceItem;
use papilio_format::node::NodeHeader;
use papilio_format::objectid::Objectid;
use papilio_format::{Generation, Key, LogicalAddress, PhysicalAddress, Superblock, TreeId};
use papilio_locks::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The root tree to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeRootChoice {
    /// The one whose root block is at this address.
    Address(LogicalAddress),
    /// The one that this transaction wrote.
    Generation(Generation),
}

/// Parses an address in bytes, which is a multiple of 4096 from 65536 on, or else a generation. A
/// generation that looks like an address needs the prefix `gen:`.
impl std::str::FromStr for TreeRootChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |digits: &str| match digits.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => digits.parse(),
        };
        let (digits, generation) = match text.strip_prefix("gen:") {
            Some(digits) => (digits, true),
            None => (text, false),
        };
        let number = number(digits).map_err(|_| "not an address or a generation".to_owned())?;
        if !generation && number >= 65536 && number.is_multiple_of(4096) {
            return Ok(Self::Address(LogicalAddress(number)));
        }
        Ok(Self::Generation(Generation(number)))
    }
}

/// How a damaged file system is read. All of it is for reading only.
#[derive(Clone, Debug, Default)]
pub struct Rescue {
    /// The root of the root tree that the caller chose.
    pub tree_root: Option<TreeRootChoice>,
    pub(crate) chunk_root: Option<LogicalAddress>,
    pub(crate) fs_root: Option<LogicalAddress>,
    /// The backup root with this number in the superblock.
    pub(crate) backup: Option<usize>,
    /// Whether devices are scanned for what the superblock and its trees do not lead to.
    pub scan: bool,
    /// Whether leaves that a scan finds without a parent are read.
    pub orphans: bool,
    pub(crate) ignore_bad_roots: bool,
    pub(crate) ignore_meta_csums: bool,
    /// Whether the sound items of a bad leaf are read.
    pub(crate) sound_items: bool,
    /// Superblock, chunks and blocks that a scan or another superblock copy found.
    pub found: Option<Arc<FoundTrees>>,
    /// Whether `found` has the superblock of a new file system, and all devices are seeds.
    pub sprouting: bool,
}

impl Rescue {
    /// Returns whether roots other than those of the superblock are wanted.
    pub fn chooses_roots(&self) -> bool {
        self.tree_root.is_some() || self.chunk_root.is_some() || self.backup.is_some()
    }

    /// Returns an option that forbids writing, if one is set.
    pub(crate) fn only_for_reading(&self) -> Option<&'static str> {
        let all = [
            (self.tree_root.is_some(), "a chosen root tree"),
            (self.chunk_root.is_some(), "a chosen chunk tree"),
            (self.fs_root.is_some(), "a chosen root of files"),
            (self.backup.is_some(), "a chosen backup root"),
            (self.scan || self.found.is_some() && !self.sprouting, "a file system found by scanning"),
            (self.ignore_bad_roots, "ignorebadroots"),
            (self.ignore_meta_csums, "ignoremetacsums"),
        ];
        all.into_iter().find_map(|(set, name)| set.then_some(name))
    }
}

/// Parts of a file system that take the place of those that its superblock leads to.
#[derive(Clone, Debug)]
pub struct FoundTrees {
    /// The superblock to use.
    pub superblock: Superblock,
    /// The newest generation that a tree block may have.
    pub newest: Generation,
    /// The device item of each device, in the order of the devices, if their superblocks are not
    /// to be read.
    pub members: Option<Vec<DeviceItem>>,
    /// The chunks and devices, if the chunk tree is not to be read.
    pub chunk_tree: Option<FoundChunks>,
    /// The tree blocks of a scan, if leaves without a parent are to be read.
    pub blocks: Option<Arc<Vec<FoundBlock>>>,
    /// Why these parts are those of an older state, if they are.
    pub older: Option<OlderState>,
}

/// How a reader uses an item with a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ItemUse {
    /// It is left out.
    LeftOut,
    /// A field has the value that it must have; the others are as they are.
    FieldSet(&'static str),
    /// Its fields are guesses, as far as they are wrong or lost.
    Guessed,
    /// Its key was found at another place of the leaf than its order says.
    Moved,
    /// Another item that says the same, or says it right, is used.
    Replaced,
    /// A block is lost: of the subvolume only the subvolumes in it are shown.
    RootLost,
    /// As `RootLost`, and nothing that was asked so far was in its root directory: the references
    /// of the root tree led past it.
    RootPassed,
}

/// A part of a tree with a fault, which a reader goes without.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ItemFault {
    /// The tree.
    pub tree: TreeId,
    /// The tree block.
    pub block: LogicalAddress,
    /// The item; `None` for a whole block.
    pub key: Option<Key>,
    /// How it is used.
    pub used: ItemUse,
    /// The fault.
    pub reason: String,
}

impl ItemFault {
    /// Returns whether a reader may miss something. Else a field was set whose value is certain, or
    /// which readers do not need.
    pub fn is_loss(&self) -> bool {
        match self.used {
            ItemUse::FieldSet(field) => !matches!(
                field,
                "flags"
                    | "generation"
                    | "transid"
                    | "generation_v2"
                    | "last_snapshot"
                    | "ram_bytes"
                    | "encryption"
                    | "drop_level"
            ),
            ItemUse::Replaced | ItemUse::RootPassed => false,
            _ => true,
        }
    }
}

impl fmt::Display for ItemFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tree, block, reason) = (Objectid(self.tree.0), self.block, &self.reason);
        write!(f, "tree {tree}, block {block}")?;
        if let Some(key) = self.key {
            write!(f, ", item {key}")?;
        }
        match self.used {
            ItemUse::LeftOut => write!(f, ": left out: {reason}"),
            ItemUse::FieldSet(field) => write!(f, ": used with other {field}: {reason}"),
            ItemUse::Guessed => write!(f, ": owner, mode, times or size are guesses: {reason}"),
            ItemUse::Replaced => write!(f, ": its counterpart is used: {reason}"),
            ItemUse::Moved => write!(f, ": used, but may be a wrong one: {reason}"),
            ItemUse::RootPassed => write!(f, ": {reason}; the root tree names the subvolumes in it"),
            ItemUse::RootLost => write!(
                f,
                ": {reason}; of this subvolume only the subvolumes that the root tree names are shown"
            ),
        }
    }
}

/// The faults that a reader has met so far.
#[derive(Debug, Default)]
pub struct FaultList {
    faults: Mutex<Vec<ItemFault>>,
    announces: AtomicBool,
}

impl FaultList {
    pub(crate) fn add(&self, faults: Vec<ItemFault>) {
        let mut known = self.faults.lock();
        for fault in faults {
            let is_shown = |other: &ItemFault| {
                let same = (other.tree, other.block, other.key) == (fault.tree, fault.block, fault.key);
                same && (other.used, fault.used) == (ItemUse::RootLost, ItemUse::RootPassed)
            };
            if !known.iter().any(|other| *other == fault || is_shown(other)) {
                if self.announces.load(Ordering::Relaxed) {
                    tracing::warn!("{fault}");
                }
                known.push(fault);
            }
        }
    }

    /// Returns all faults up to now.
    pub fn all(&self) -> Vec<ItemFault> {
        self.faults.lock().clone()
    }

    /// Notes that the root directory of a subvolume is shown. It lacks something if its block is
    /// lost. `None` stands for all subvolumes.
    pub fn show_root(&self, tree: Option<TreeId>) {
        for fault in self.faults.lock().iter_mut() {
            if fault.used == ItemUse::RootPassed && tree.is_none_or(|tree| tree == fault.tree) {
                fault.used = ItemUse::RootLost;
            }
        }
    }

    /// Logs the faults so far, and each further one when it is met.
    pub fn announce(&self) {
        self.show_root(None);
        self.announces.store(true, Ordering::Relaxed);
        self.all().iter().for_each(|fault| tracing::warn!("{fault}"));
    }
}

/// A tree block that a scan found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoundBlock {
    /// The logical address that its header names.
    pub address: LogicalAddress,
    /// The transaction that wrote it.
    pub generation: Generation,
    /// The tree that allocated it.
    pub owner: TreeId,
    /// 0 for a leaf.
    pub level: u8,
    /// The first and the last key; `None` of a block without items, or with a fault behind its good
    /// checksum.
    pub keys: Option<(Key, Key)>,
    /// The device, counted from 0 in the order given.
    pub device: usize,
    /// The offset on the device.
    pub offset: PhysicalAddress,
}

impl FoundBlock {
    /// The block with the given header and first and last key, `offset` bytes from the start of the
    /// device with the number `device`.
    #[doc(hidden)]
    pub fn new(
        header: &NodeHeader,
        keys: Option<(Key, Key)>,
        device: usize,
        offset: PhysicalAddress,
    ) -> Self {
        Self {
            address: header.address,
            generation: header.generation,
            owner: header.owner,
            level: header.level,
            keys,
            device,
            offset,
        }
    }
}

/// The content of a chunk tree.
#[derive(Clone, Debug, Default)]
pub struct FoundChunks {
    /// The chunks, by their first logical address.
    pub chunks: Vec<(LogicalAddress, ChunkItem)>,
    /// The device items.
    pub devices: Vec<DeviceItem>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_are_parsed_as_addresses_or_generations() {
        let parse = |text: &str| text.parse::<TreeRootChoice>();
        assert_eq!(parse("30408704"), Ok(TreeRootChoice::Address(LogicalAddress(30408704))));
        assert_eq!(parse("0x1d00000"), Ok(TreeRootChoice::Address(LogicalAddress(0x1d0_0000))));
        assert_eq!(parse("4096"), Ok(TreeRootChoice::Generation(Generation(4096))));
        assert_eq!(parse("65537"), Ok(TreeRootChoice::Generation(Generation(65537))));
        assert_eq!(parse("gen:65536"), Ok(TreeRootChoice::Generation(Generation(65536))));
        assert!(parse("gen:").is_err() && parse("root").is_err() && parse("-1").is_err());
    }
}
