//! The UUID tree: subvolumes by their own UUID, and by the UUID they were received as.
//!
//! Owns [`UuidItem`] and the packing of a UUID into a key. Source: `fs/btrfs/uuid-tree.c`.
//!
//! - Key: (first 8 bytes of the UUID, UUID_SUBVOL or UUID_RECEIVED_SUBVOL, last 8 bytes), both
//!   halves little-endian.
//! - Item: subvolume ids, 8 bytes each.

use crate::error::Corrupt;
use crate::key::{ItemType, Key};
use crate::units::TreeId;
use uuid::Uuid;

/// Returns the key of a UUID's item of the given type.
pub fn uuid_key(uuid: Uuid, item_type: ItemType) -> Key {
    let number = u128::from_le_bytes(*uuid.as_bytes());
    Key::new(number as u64, item_type, (number >> 64) as u64)
}

/// Returns the UUID in a key of the UUID tree.
pub fn uuid_of_key(key: &Key) -> Uuid {
    Uuid::from_bytes((u128::from(key.offset) << 64 | u128::from(key.objectid)).to_le_bytes())
}

/// The subvolumes with one UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UuidItem<'a> {
    bytes: &'a [u8],
}

impl<'a> UuidItem<'a> {
    /// Decodes the item.
    ///
    /// # Errors
    /// An empty item, or a size that is not a multiple of 8.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Corrupt> {
        if bytes.is_empty() || !bytes.len().is_multiple_of(8) {
            let size = bytes.len() as u64;
            return Err(Corrupt::field("uuid item", "size", size, "not a positive multiple of 8"));
        }
        Ok(Self { bytes })
    }

    /// Returns the subvolumes, at least one.
    pub fn subvolumes(&self) -> impl ExactSizeIterator<Item = TreeId> + 'a {
        self.bytes.chunks_exact(8).map(|id| TreeId(u64::from_le_bytes(id.try_into().expect("8 bytes"))))
    }

    /// Encodes an item with those subvolumes.
    pub fn encode(subvolumes: &[TreeId]) -> Vec<u8> {
        subvolumes.iter().flat_map(|id| id.0.to_le_bytes()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::items::test_support::assert_fault;
    use proptest::prelude::*;

    #[test]
    fn keys_hold_the_uuid_bytes_in_order() {
        let uuid = Uuid::from_bytes(std::array::from_fn(|i| i as u8));
        let key = uuid_key(uuid, ItemType::UUID_SUBVOL);
        assert_eq!(key.objectid, u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7]));
        assert_eq!(key.offset, u64::from_le_bytes([8, 9, 10, 11, 12, 13, 14, 15]));
        assert_eq!(uuid_of_key(&key), uuid);
    }

    #[test]
    fn faults_are_detected() {
        assert_fault(UuidItem::parse(&[]), "positive multiple of 8");
        assert_fault(UuidItem::parse(&[0; 9]), "positive multiple of 8");
    }

    proptest! {
        #[test]
        fn items_round_trip(ids in prop::collection::vec(any::<u64>(), 1..9), uuid in any::<[u8; 16]>()) {
            let ids: Vec<_> = ids.into_iter().map(TreeId).collect();
            let bytes = UuidItem::encode(&ids);
            prop_assert_eq!(UuidItem::parse(&bytes).unwrap().subvolumes().collect::<Vec<_>>(), ids);
            let uuid = Uuid::from_bytes(uuid);
            prop_assert_eq!(uuid_of_key(&uuid_key(uuid, ItemType::UUID_SUBVOL)), uuid);
        }
    }
}
