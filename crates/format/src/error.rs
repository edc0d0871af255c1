//! The faults that bytes can have, as types that name the fault and its location.
//!
//! Owns [`Corrupt`]. It names neither a path nor a device; the layers that do I/O add those.

use crate::checksum::Checksum;
use crate::key::Key;

/// Bytes that violate the format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Corrupt {
    /// Fewer bytes than the structure needs.
    #[error("{what} needs {need} bytes, found {have}")]
    TooShort {
        /// The structure.
        what: &'static str,
        /// Bytes the structure needs.
        need: usize,
        /// Bytes found.
        have: usize,
    },
    /// A fixed-size structure with the wrong size.
    #[error("{what} has {found} bytes, expected {expected}")]
    WrongSize {
        /// The structure.
        what: &'static str,
        /// Expected size in bytes.
        expected: usize,
        /// Size found, in bytes.
        found: usize,
    },
    /// A field whose value the format forbids.
    #[error("{what}: {field} is {value} ({value:#x}), {why}")]
    Field {
        /// The structure.
        what: &'static str,
        /// The field.
        field: &'static str,
        /// The value found.
        value: u64,
        /// The expected value, or the reason it is forbidden.
        why: &'static str,
    },
    /// The stored checksum differs from the computed one.
    #[error("{what}: checksum stored {stored}, computed {computed}")]
    Checksum {
        /// The structure.
        what: &'static str,
        /// The stored checksum.
        stored: Checksum,
        /// The checksum of the bytes read.
        computed: Checksum,
    },
    /// The superblock's magic is absent.
    #[error("no Btrfs magic (found {found:#018x})")]
    Magic {
        /// The eight bytes at the magic's offset.
        found: u64,
    },
    /// The superblock has the magic of a file system that is being made.
    #[error("the making of the file system was not finished")]
    UnfinishedMkfs,
    /// A tree block that is not the requested one.
    #[error("tree block {field} is {found}, expected {expected}")]
    NodeIdentity {
        /// The field that differs: `address`, `level`, `generation` or `owner`.
        field: &'static str,
        /// The expected value.
        expected: u64,
        /// The value found.
        found: u64,
    },
    /// A tree block of another file system.
    #[error("tree block belongs to file system {found}, expected {expected}")]
    NodeFsid {
        /// The expected UUID.
        expected: uuid::Uuid,
        /// The UUID found.
        found: uuid::Uuid,
    },
    /// The first key of a tree block is not the one in its parent.
    #[error("tree block starts with key {found}, its parent says {expected}")]
    FirstKey {
        /// The key in the parent.
        expected: Key,
        /// The first key in the block.
        found: Key,
    },
    /// Keys that do not ascend.
    #[error("slot {slot}: key {key} does not follow {previous}")]
    KeyOrder {
        /// The slot of `key`.
        slot: usize,
        /// The preceding key.
        previous: Key,
        /// The key out of order.
        key: Key,
    },
    /// An item's data lies outside its leaf or overlaps its neighbour.
    #[error("slot {slot}: item data at {offset}+{size}, expected it to end at {expected_end}")]
    ItemBounds {
        /// The slot.
        slot: usize,
        /// Data offset from the end of the header, in bytes.
        offset: u32,
        /// Data size in bytes.
        size: u32,
        /// Expected end of the data, from the end of the header, in bytes.
        expected_end: u32,
    },
    /// An item with invalid content.
    #[error("slot {slot}, key {key}: {reason}")]
    Item {
        /// The slot.
        slot: usize,
        /// The item's key.
        key: Key,
        /// The fault in the item.
        reason: Box<Corrupt>,
    },
}

impl Corrupt {
    /// Wraps the fault of one item with its slot and key.
    pub fn in_item(self, slot: usize, key: Key) -> Self {
        Corrupt::Item { slot, key, reason: Box::new(self) }
    }

    /// Creates a [`Corrupt::Field`], as the validators do.
    pub fn field(what: &'static str, field: &'static str, value: u64, why: &'static str) -> Self {
        Corrupt::Field { what, field, value, why }
    }
}
