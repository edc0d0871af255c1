//! The options for reading a file system that is damaged.
//!
//! Owns [`Rescue`], a part of the options of opening, [`TreeRootChoice`], and [`Found`], the parts
//! of a file system that were found by other means than its superblock; [`FoundBlock`].

use super::older::OlderState;
use papilio_format::items::chunk::ChunkItem;
use papilio_format::items::device::DeviceItem;
use papilio_format::{Generation, Key, LogicalAddress, PhysicalAddress, Superblock, TreeId};
use std::sync::Arc;

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
pub(crate) struct Rescue {
    pub(crate) tree_root: Option<TreeRootChoice>,
    pub(crate) chunk_root: Option<LogicalAddress>,
    pub(crate) fs_root: Option<LogicalAddress>,
    /// The backup root with this number in the superblock.
    pub(crate) backup: Option<usize>,
    /// Whether devices are scanned for what the superblock and its trees do not lead to.
    pub(crate) scan: bool,
    /// Whether leaves that a scan finds without a parent are read.
    pub(crate) orphans: bool,
    pub(crate) ignore_bad_roots: bool,
    pub(crate) ignore_meta_csums: bool,
    pub(crate) found: Option<Arc<Found>>,
    /// Whether `found` has the superblock of a new file system, and all devices are seeds.
    pub(crate) sprouting: bool,
}

impl Rescue {
    /// Returns whether roots other than those of the superblock are wanted.
    pub(crate) fn chooses_roots(&self) -> bool {
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
pub(crate) struct Found {
    /// The superblock to use.
    pub(crate) superblock: Superblock,
    /// The newest generation that a tree block may have.
    pub(crate) newest: Generation,
    /// The device item of each device, in the order of the devices, if their superblocks are not
    /// to be read.
    pub(crate) members: Option<Vec<DeviceItem>>,
    /// The chunks and devices, if the chunk tree is not to be read.
    pub(crate) chunk_tree: Option<FoundChunks>,
    /// The tree blocks of a scan, if leaves without a parent are to be read.
    pub(crate) blocks: Option<Arc<Vec<FoundBlock>>>,
    /// Why these parts are those of an older state, if they are.
    pub(crate) older: Option<OlderState>,
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

/// The content of a chunk tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct FoundChunks {
    pub(crate) chunks: Vec<(LogicalAddress, ChunkItem)>,
    pub(crate) devices: Vec<DeviceItem>,
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
