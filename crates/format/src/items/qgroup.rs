//! Quotas: the state of the quota tree, and each qgroup's usage, limits and relations.
//!
//! Owns [`QgroupId`], [`QgroupStatus`], [`QgroupInfo`], [`QgroupLimit`] and the checks of their
//! keys. Sources: `struct btrfs_qgroup_*_item` (`include/uapi/linux/btrfs_tree.h`),
//! `fs/btrfs/qgroup.c`.
//!
//! | item | key |
//! |---|---|
//! | status | (0, QGROUP_STATUS, 0) |
//! | info | (0, QGROUP_INFO, qgroup id) |
//! | limit | (0, QGROUP_LIMIT, qgroup id) |
//! | relation | (one qgroup id, QGROUP_RELATION, the other), in both directions, empty |

use crate::error::Corrupt;
use crate::features::on_disk_flags;
use crate::key::{ItemType, Key};
use crate::parse::{disk_struct, parse_prefix};
use crate::units::Generation;
use std::fmt;

/// The id of a qgroup: its level in the upper 16 bits and a number in the others. At level 0 the
/// number is a subvolume's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QgroupId(pub u64);

impl QgroupId {
    /// Number of bits of the number.
    const NUMBER_BITS: u32 = 48;

    /// Creates an id from its parts; returns `None` if the number has more than 48 bits.
    pub const fn new(level: u16, number: u64) -> Option<Self> {
        if number >> Self::NUMBER_BITS != 0 {
            return None;
        }
        Some(Self((level as u64) << Self::NUMBER_BITS | number))
    }

    /// Returns the level: 0 for a subvolume's qgroup, more for groups of groups.
    pub const fn level(self) -> u16 {
        (self.0 >> Self::NUMBER_BITS) as u16
    }

    /// Returns the number within the level.
    pub const fn number(self) -> u64 {
        self.0 & ((1 << Self::NUMBER_BITS) - 1)
    }
}

impl fmt::Display for QgroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.level(), self.number()))
    }
}

bitflags::bitflags! {
    /// The state of quotas.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct QgroupStatusFlags: u64 {
        /// Quotas are on.
        const ON = 1 << 0;
        /// A rescan is under way.
        const RESCAN = 1 << 1;
        /// The numbers are wrong until a rescan.
        const INCONSISTENT = 1 << 2;
        /// Simple quotas: extents are charged to the subvolume that allocated them.
        const SIMPLE_MODE = 1 << 3;
        const _ = !0;
    }

    /// The limits that are set.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct QgroupLimitFlags: u64 {
        /// `max_referenced` is set.
        const MAX_REFERENCED = 1 << 0;
        /// `max_exclusive` is set.
        const MAX_EXCLUSIVE = 1 << 1;
        /// `reserved_referenced` is set.
        const RESERVED_REFERENCED = 1 << 2;
        /// `reserved_exclusive` is set.
        const RESERVED_EXCLUSIVE = 1 << 3;
        /// The referenced limit counts compressed bytes.
        const REFERENCED_COMPRESSED = 1 << 4;
        /// The exclusive limit counts compressed bytes.
        const EXCLUSIVE_COMPRESSED = 1 << 5;
        const _ = !0;
    }
}
on_disk_flags!(QgroupStatusFlags, QgroupLimitFlags);

disk_struct! {
    /// The part of a status item that every kernel writes.
    pub struct QgroupStatusHeader as QgroupStatusHeaderDisk = 32 {
        /// Always 1.
        pub version: u64,
        /// The last transaction that the numbers include. A difference from the file system's
        /// generation means that something wrote without updating them.
        pub generation: Generation,
        /// State flags.
        pub flags: QgroupStatusFlags,
        /// Progress of a rescan: an object id in the extent tree.
        pub rescan: u64,
    }
}

/// The state of quotas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QgroupStatus {
    /// The part that every kernel writes.
    pub header: QgroupStatusHeader,
    /// With simple quotas, the transaction that enabled them; earlier extents are charged to
    /// nobody. Kernels before 6.7 do not write the field.
    pub enable_generation: Option<Generation>,
}

impl QgroupStatus {
    /// Sizes in bytes without, and with, [`QgroupStatus::enable_generation`].
    pub const SIZES: [usize; 2] = [32, 40];
    /// The only defined version.
    pub const VERSION: u64 = 1;

    /// Decodes the item.
    ///
    /// # Errors
    /// [`Corrupt::WrongSize`] unless it is 32 or 40 bytes long.
    pub fn parse(bytes: &[u8]) -> Result<Self, Corrupt> {
        let (header, rest) = QgroupStatusHeader::parse_prefix(bytes)?;
        let enable_generation = match rest.len() {
            0 => None,
            8 => Some(parse_prefix("qgroup status", rest)?.0),
            _ => {
                let [_, expected] = Self::SIZES;
                return Err(Corrupt::WrongSize { what: "qgroup status", expected, found: bytes.len() });
            }
        };
        Ok(Self { header, enable_generation })
    }

    /// Encodes the item.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.header.to_bytes().to_vec();
        if let Some(generation) = self.enable_generation {
            bytes.extend_from_slice(&generation.0.to_le_bytes());
        }
        bytes
    }

    /// Checks the fields that readers rely on, given the item's key.
    ///
    /// # Errors
    /// The first field that the format forbids.
    pub fn validate(&self, key: &Key) -> Result<(), Corrupt> {
        let bad = |field, value, why| Err(Corrupt::field("qgroup status", field, value, why));
        if (key.objectid, key.offset) != (0, 0) {
            return bad("key", key.objectid | key.offset, "object id and offset must be 0");
        }
        if self.header.version != Self::VERSION {
            return bad("version", self.header.version, "not 1");
        }
        if self.header.flags.contains(QgroupStatusFlags::SIMPLE_MODE) && self.enable_generation.is_none() {
            return bad("flags", self.header.flags.bits(), "simple quotas without an enabling generation");
        }
        Ok(())
    }
}

disk_struct! {
    /// The usage of a qgroup, in bytes.
    pub struct QgroupInfo as QgroupInfoDisk = 40 {
        /// The transaction that last changed this item.
        pub generation: Generation,
        /// Bytes that the qgroup references.
        pub referenced: u64,
        /// The same in compressed bytes (kept equal to `referenced`).
        pub referenced_compressed: u64,
        /// Bytes that only this qgroup references.
        pub exclusive: u64,
        /// The same in compressed bytes (kept equal to `exclusive`).
        pub exclusive_compressed: u64,
    }
}

disk_struct! {
    /// The limits of a qgroup, in bytes.
    pub struct QgroupLimit as QgroupLimitDisk = 40 {
        /// The limits that are set.
        pub flags: QgroupLimitFlags,
        /// Maximum bytes that the qgroup may reference.
        pub max_referenced: u64,
        /// Maximum bytes that only this qgroup may reference.
        pub max_exclusive: u64,
        /// Unused by kernels.
        pub reserved_referenced: u64,
        /// Unused by kernels.
        pub reserved_exclusive: u64,
    }
}

/// Checks the size and key of an info, limit or relation item.
///
/// # Errors
/// A size or a key that is invalid for the kind.
///
/// # Panics
/// If the key has another type.
pub fn check_qgroup_item(key: &Key, bytes: &[u8]) -> Result<(), Corrupt> {
    let (what, expected) = match key.item_type {
        ItemType::QGROUP_INFO => ("qgroup info", QgroupInfo::SIZE),
        ItemType::QGROUP_LIMIT => ("qgroup limit", QgroupLimit::SIZE),
        ItemType::QGROUP_RELATION => ("qgroup relation", 0),
        other => panic!("{other} is not a qgroup item"),
    };
    if bytes.len() != expected {
        return Err(Corrupt::WrongSize { what, expected, found: bytes.len() });
    }
    if key.item_type == ItemType::QGROUP_RELATION {
        if key.objectid == key.offset {
            return Err(Corrupt::field(what, "key", key.offset, "a qgroup's relation to itself"));
        }
    } else if key.objectid != 0 {
        return Err(Corrupt::field(what, "object id", key.objectid, "not 0"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::items::test_support::assert_fault;
    use proptest::prelude::*;

    #[test]
    fn items_round_trip() {
        crate::parse::assert_round_trip::<QgroupStatusHeader>();
        crate::parse::assert_round_trip::<QgroupInfo>();
        crate::parse::assert_round_trip::<QgroupLimit>();
    }

    #[test]
    fn ids_print_like_the_tools_print_them() {
        assert_eq!(QgroupId(257).to_string(), "0/257");
        let id = QgroupId::new(1, 100).unwrap();
        assert_eq!((id.to_string().as_str(), id.level(), id.number()), ("1/100", 1, 100));
        assert_eq!(QgroupId::new(0, 1 << 48), None);
    }

    #[test]
    fn status_faults_are_detected() {
        let key = Key::new(0, ItemType::QGROUP_STATUS, 0);
        let header = QgroupStatusHeader {
            version: 1,
            generation: Generation(5),
            flags: QgroupStatusFlags::ON | QgroupStatusFlags::SIMPLE_MODE,
            rescan: 0,
        };
        let good = QgroupStatus { header, enable_generation: Some(Generation(4)) };
        good.validate(&key).unwrap();
        assert_fault(
            QgroupStatus { enable_generation: None, ..good }.validate(&key),
            "without an enabling generation",
        );
        assert_fault(good.validate(&Key { offset: 1, ..key }), "must be 0");
        let header = QgroupStatusHeader { version: 2, ..header };
        assert_fault(QgroupStatus { header, ..good }.validate(&key), "not 1");
        assert!(matches!(QgroupStatus::parse(&[0; 33]), Err(Corrupt::WrongSize { .. })));
        assert!(matches!(QgroupStatus::parse(&[0; 31]), Err(Corrupt::TooShort { .. })));
    }

    #[test]
    fn other_faults_are_detected() {
        let check = |objectid, item_type, offset, size: usize| {
            check_qgroup_item(&Key::new(objectid, item_type, offset), &vec![0; size])
        };
        let parent = QgroupId::new(1, 0).unwrap().0;
        check(0, ItemType::QGROUP_INFO, 257, 40).unwrap();
        check(0, ItemType::QGROUP_LIMIT, parent, 40).unwrap();
        check(257, ItemType::QGROUP_RELATION, parent, 0).unwrap();
        check(parent, ItemType::QGROUP_RELATION, 257, 0).unwrap();
        assert_fault(check(1, ItemType::QGROUP_INFO, 257, 40), "not 0");
        assert_fault(check(1, ItemType::QGROUP_LIMIT, 257, 40), "not 0");
        assert_fault(check(257, ItemType::QGROUP_RELATION, 257, 0), "to itself");
        for item_type in [ItemType::QGROUP_INFO, ItemType::QGROUP_LIMIT, ItemType::QGROUP_RELATION] {
            assert!(matches!(check(0, item_type, parent, 39), Err(Corrupt::WrongSize { .. })));
        }
    }

    proptest! {
        #[test]
        fn status_round_trips(bytes in prop::collection::vec(any::<u8>(), 40), long in any::<bool>()) {
            let bytes = &bytes[..if long { 40 } else { 32 }];
            prop_assert_eq!(QgroupStatus::parse(bytes).unwrap().to_bytes(), bytes);
        }
    }
}
