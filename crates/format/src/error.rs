//! What can be wrong with bytes, as types that say what was found where.
//!
//! Owns [`Corrupt`] (the bytes break the format) and [`Incompatible`] (the bytes may be fine, but
//! use something this code does not know). Neither names a path or a device: the layers that do I/O
//! add those.

use crate::checksum::Checksum;
use crate::key::Key;

/// Bytes that break the format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Corrupt {
    /// Fewer bytes than the structure needs.
    #[error("{what} needs {need} bytes, {have} are there")]
    TooShort {
        /// The structure.
        what: &'static str,
        /// Bytes it needs.
        need: usize,
        /// Bytes there are.
        have: usize,
    },
    /// A fixed-size structure of another size.
    #[error("{what} has {found} bytes, expected {expected}")]
    WrongSize {
        /// The structure.
        what: &'static str,
        /// Bytes it should have.
        expected: usize,
        /// Bytes it has.
        found: usize,
    },
    /// A field whose value the format forbids.
    #[error("{what}: {field} is {value} ({value:#x}), {why}")]
    Field {
        /// The structure.
        what: &'static str,
        /// The field.
        field: &'static str,
        /// What it holds.
        value: u64,
        /// What it should be, or why this cannot be.
        why: &'static str,
    },
    /// The checksum stored with a block differs from that of its bytes.
    #[error("{what}: checksum stored {stored}, computed {computed}")]
    Checksum {
        /// The structure.
        what: &'static str,
        /// As stored.
        stored: Checksum,
        /// As computed.
        computed: Checksum,
    },
    /// The superblock's magic is absent.
    #[error("no Btrfs magic (found {found:#018x})")]
    Magic {
        /// The eight bytes at the magic's place.
        found: u64,
    },
    /// A tree block that is not the one asked for.
    #[error("tree block {field} is {found}, expected {expected}")]
    NodeIdentity {
        /// Which part of its identity is wrong: `address`, `level`, `generation`, `owner`.
        field: &'static str,
        /// As expected.
        expected: u64,
        /// As found.
        found: u64,
    },
    /// A tree block of another file system.
    #[error("tree block belongs to file system {found}, expected {expected}")]
    NodeFsid {
        /// As expected.
        expected: uuid::Uuid,
        /// As found.
        found: uuid::Uuid,
    },
    /// The first key of a tree block is not the one its parent names.
    #[error("tree block starts with key {found}, its parent says {expected}")]
    FirstKey {
        /// As the parent says.
        expected: Key,
        /// As found.
        found: Key,
    },
    /// Keys that do not ascend.
    #[error("slot {slot}: key {key} does not follow {previous}")]
    KeyOrder {
        /// The slot of `key`.
        slot: usize,
        /// The key before it.
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
        /// Where the data should end, from the end of the header, in bytes.
        expected_end: u32,
    },
    /// An item whose content is wrong.
    #[error("slot {slot}, key {key}: {reason}")]
    Item {
        /// The slot.
        slot: usize,
        /// The item's key.
        key: Key,
        /// What is wrong with it.
        reason: Box<Corrupt>,
    },
}

impl Corrupt {
    /// Wraps the fault of one item with its place.
    pub fn in_item(self, slot: usize, key: Key) -> Self {
        Corrupt::Item { slot, key, reason: Box::new(self) }
    }

    /// A field with a forbidden value; the shorthand of the validators.
    pub fn field(what: &'static str, field: &'static str, value: u64, why: &'static str) -> Self {
        Corrupt::Field { what, field, value, why }
    }
}

/// A file system that uses what this code does not know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Incompatible {
    /// Incompat feature bits that forbid reading.
    #[error("unknown incompat feature bits {0:#x}")]
    IncompatBits(u64),
    /// Read-only compatible feature bits that forbid writing.
    #[error("unknown compat_ro feature bits {0:#x}: the file system can only be read")]
    CompatRoBits(u64),
    /// A checksum algorithm with no known meaning.
    #[error("unknown checksum type {0}")]
    ChecksumType(u16),
    /// A compression algorithm with no known meaning.
    #[error("unknown compression type {0}")]
    Compression(u8),
}
