//! The trees of an allocation group.
//!
//! Owns [`TreeKind`] and [`XfsFs::walk_tree`]. It reads one path at a time.
//!
//! Source: "XFS Algorithms & Data Structures", chapters on free space, inodes, reverse mapping and
//! reference counts.

use super::fields::{is_intact, u16_at, u32_at};
use super::group::Root;
use super::reader::XfsFs;
use crate::error::Result;

/// The most levels of a tree.
const LEVELS_MAX: u32 = 12;

/// A kind of tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeKind {
    name: &'static str,
    /// The magic numbers of version 4 and 5.
    magic: [&'static [u8; 4]; 2],
    /// Bytes of a record, and of a key in inner blocks.
    record: usize,
    key: usize,
}

impl TreeKind {
    pub(crate) const BY_PLACE: Self =
        Self { name: "free space by place", magic: [b"ABTB", b"AB3B"], record: 8, key: 8 };
    pub(crate) const BY_SIZE: Self =
        Self { name: "free space by size", magic: [b"ABTC", b"AB3C"], record: 8, key: 8 };
    pub(crate) const INODES: Self = Self { name: "inodes", magic: [b"IABT", b"IAB3"], record: 16, key: 4 };
    pub(crate) const FREE_INODES: Self =
        Self { name: "free inodes", magic: [b"FIBT", b"FIB3"], record: 16, key: 4 };
    pub(crate) const REVERSE_MAP: Self =
        Self { name: "reverse mappings", magic: [b"RMB3", b"RMB3"], record: 24, key: 40 };
    pub(crate) const REFCOUNTS: Self =
        Self { name: "reference counts", magic: [b"R3FC", b"R3FC"], record: 12, key: 4 };
}

/// The walk over one tree.
struct Walk<'a> {
    group: u32,
    kind: TreeKind,
    /// Blocks that may still come: no tree has more than its group.
    left: u32,
    block: &'a mut dyn FnMut(u32) -> Result<()>,
    record: &'a mut dyn FnMut(&[u8]) -> Result<bool>,
}

impl XfsFs {
    /// Calls `block` with the number of each block of a tree in its group, and `record` with its
    /// records in order, until that returns false.
    ///
    /// # Errors
    /// Damage; errors of the callbacks; the device's.
    pub(crate) fn walk_tree(
        &self,
        group: u32,
        kind: TreeKind,
        root: Root,
        block: &mut dyn FnMut(u32) -> Result<()>,
        record: &mut dyn FnMut(&[u8]) -> Result<bool>,
    ) -> Result<()> {
        let mut walk = Walk { group, kind, left: self.superblock.blocks_of(group), block, record };
        if root.levels == 0 || root.levels > LEVELS_MAX {
            return Err(self.tree_fault(&walk, root.block, &format!("it has {} levels", root.levels)));
        }
        self.walk_block(&mut walk, root.block, root.levels - 1)?;
        Ok(())
    }

    fn tree_fault(&self, walk: &Walk<'_>, block: u32, reason: &str) -> crate::error::ConvertError {
        let place = format!("the tree of {} of group {}, block {block}", walk.kind.name, walk.group);
        self.damaged(place, reason)
    }

    fn walk_block(&self, walk: &mut Walk<'_>, number: u32, level: u32) -> Result<bool> {
        let superblock = &self.superblock;
        let bad = |walk: &Walk<'_>, reason: &str| Err(self.tree_fault(walk, number, reason));
        let inside = superblock.header_blocks()..superblock.blocks_of(walk.group);
        if !inside.contains(&number) {
            return bad(walk, "it lies outside of its group");
        }
        let Some(left) = walk.left.checked_sub(1) else { return bad(walk, "the tree repeats itself") };
        walk.left = left;
        (walk.block)(number)?;
        let place = u64::from(walk.group) * u64::from(superblock.group_blocks) + u64::from(number);
        let bytes = self.blocks(place, 1)?;
        let header = if superblock.is_v5 { 56 } else { 16 };
        if !bytes.starts_with(walk.kind.magic[usize::from(superblock.is_v5)])
            || u32::from(u16_at(&bytes, 4)) != level
        {
            return bad(walk, "it does not say that it is one of its level");
        }
        if superblock.is_v5 {
            if !is_intact(&bytes, 52) {
                return bad(walk, "its checksum does not match");
            }
            if u32_at(&bytes, 48) != walk.group || bytes[32..48] != superblock.meta_uuid {
                return bad(walk, "it belongs to another group or file system");
            }
        }
        let count = usize::from(u16_at(&bytes, 6));
        let body = &bytes[header..];
        if level == 0 {
            if count > body.len() / walk.kind.record {
                return bad(walk, "it has too many records");
            }
            for record in body.chunks_exact(walk.kind.record).take(count) {
                if !(walk.record)(record)? {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        let most = body.len() / (walk.kind.key + 4);
        if count > most || count == 0 {
            return bad(walk, "it has too many entries, or none");
        }
        for slot in 0..count {
            let child = u32_at(body, most * walk.kind.key + slot * 4);
            if !self.walk_block(walk, child, level - 1)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
