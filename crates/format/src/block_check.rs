//! The check of a whole tree block: checksum, identity, structure and items.
//!
//! Owns [`Node::check`], which makes a [`Node`] of bytes that were read or are about to be written.
//!
//! Kernel counterpart: `btrfs_validate_extent_buffer` (`fs/btrfs/disk-io.c`).

use crate::checksum::CHECKSUM_SIZE;
use crate::error::Corrupt;
use crate::geometry::{Geometry, MAX_LEVEL};
use crate::node::{Node, NodeExpectation, NodeHeader, owner_allowed};
use crate::tree_check;

impl<'a> Node<'a> {
    /// Checks a whole block (checksum, identity, structure, and each item by [`crate::tree_check`])
    /// and returns the view.
    ///
    /// # Errors
    /// The first fault found.
    ///
    /// # Panics
    /// If `bytes` is not `geometry.node_size` long.
    pub fn check(bytes: &'a [u8], expected: &NodeExpectation, geometry: &Geometry) -> Result<Self, Corrupt> {
        assert_eq!(bytes.len(), geometry.node_size as usize, "a tree block must be one node size long");
        let header = NodeHeader::parse_prefix(bytes)?.0;
        // The cheapest test first. It also recognises a block that was never written.
        check_address(&header, expected)?;
        let sum = geometry.checksum_type;
        let computed = sum.compute(&bytes[CHECKSUM_SIZE..]);
        let stored = sum.stored(bytes);
        if computed != stored {
            return Err(Corrupt::Checksum { what: "tree block", stored, computed });
        }
        Self::check_content(bytes, &header, expected, geometry)
    }

    /// Checks a block as [`Node::check`] does, except for the checksum, which the caller just
    /// computed.
    ///
    /// # Errors
    /// The first fault found.
    ///
    /// # Panics
    /// As [`Node::check`].
    pub fn check_summed(
        bytes: &'a [u8],
        expected: &NodeExpectation,
        geometry: &Geometry,
    ) -> Result<Self, Corrupt> {
        assert_eq!(bytes.len(), geometry.node_size as usize, "a tree block must be one node size long");
        let header = NodeHeader::parse_prefix(bytes)?.0;
        check_address(&header, expected)?;
        Self::check_content(bytes, &header, expected, geometry)
    }

    /// Checks identity, structure and items.
    fn check_content(
        bytes: &'a [u8],
        header: &NodeHeader,
        expected: &NodeExpectation,
        geometry: &Geometry,
    ) -> Result<Self, Corrupt> {
        check_identity(header, expected, geometry)?;
        let node = Self::of_counted(bytes, header)?;
        if let Some(first_key) = expected.first_key
            && !node.is_empty()
            && node.key(0) != first_key
        {
            return Err(Corrupt::FirstKey { expected: first_key, found: node.key(0) });
        }
        if node.is_leaf() {
            tree_check::check_leaf(node, header, geometry)?;
        } else {
            tree_check::check_internal(node, header, geometry)?;
        }
        Ok(node)
    }
}

fn check_address(header: &NodeHeader, expected: &NodeExpectation) -> Result<(), Corrupt> {
    if header.address == expected.address {
        return Ok(());
    }
    let (expected, found) = (expected.address.0, header.address.0);
    Err(Corrupt::NodeIdentity { field: "address", expected, found })
}

/// Checks file system, level, generation and owner.
fn check_identity(
    header: &NodeHeader,
    expected: &NodeExpectation,
    geometry: &Geometry,
) -> Result<(), Corrupt> {
    let wrong = |field, expected, found| Err(Corrupt::NodeIdentity { field, expected, found });
    if header.fsid != geometry.metadata_uuid {
        return Err(Corrupt::NodeFsid { expected: geometry.metadata_uuid, found: header.fsid });
    }
    if header.level >= MAX_LEVEL {
        return Err(Corrupt::field("tree block", "level", header.level.into(), "not below 8"));
    }
    if let Some(level) = expected.level
        && header.level != level
    {
        return wrong("level", level.into(), header.level.into());
    }
    if let Some(generation) = expected.generation
        && header.generation != generation
    {
        return wrong("generation", generation.0, header.generation.0);
    }
    // A log written since the last commit is one generation ahead.
    if header.generation.0 > geometry.generation.0.saturating_add(1) {
        return wrong("generation", geometry.generation.0, header.generation.0);
    }
    if let Some(owner) = expected.owner
        && !owner_allowed(owner, header.owner)
    {
        return wrong("owner", owner.0, header.owner.0);
    }
    Ok(())
}
