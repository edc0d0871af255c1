//! Fuzzes single items: any key, tree and bytes in an otherwise valid leaf, so that every input
//! reaches the check of its item type. The decoder for inspection, which also runs on unchecked
//! items, must decode every item that the check accepts.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use papilio_format::items::any::AnyItem;
use papilio_format::{Key, Node, NodeExpectation, TreeId};
use papilio_fuzz::{ADDRESS, AnyGeometry, AnyKey, leaf, owner, repair};
use std::hint::black_box;

#[derive(Debug)]
struct Item<'a> {
    geometry: AnyGeometry,
    owner: TreeId,
    key: Key,
    data: &'a [u8],
}

impl<'a> Arbitrary<'a> for Item<'a> {
    fn arbitrary(input: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let geometry = input.arbitrary()?;
        let owner = owner(input)?;
        let AnyKey(key) = input.arbitrary()?;
        Ok(Self { geometry, owner, key, data: input.bytes(input.len())? })
    }
}

fuzz_target!(|item: Item| {
    let geometry = item.geometry.0;
    let decoded = AnyItem::parse(&item.key, item.owner, item.data, &geometry);
    if let Ok(decoded) = &decoded {
        walk(decoded, item.data.len());
    }

    let mut bytes = leaf(&geometry, item.owner, &[(item.key, item.data)]);
    repair(geometry.checksum_type, &mut bytes);
    let Ok(node) = Node::check(&bytes, &NodeExpectation::at(ADDRESS), &geometry) else { return };
    if !node.is_empty() {
        assert_eq!(node.item(0), item.data);
        decoded.expect("an item that the check accepts can be decoded");
    }
});

/// Iterates over the contents of an item. No iterator may return more entries than `size` bytes can
/// hold; a bitmap has at most one run for each bit.
fn walk(item: &AnyItem<'_>, size: usize) {
    papilio_fuzz::format_nowhere(item);
    let entries = match item {
        AnyItem::InodeRefs(refs) => refs.clone().count(),
        AnyItem::InodeExtrefs(refs) => refs.clone().count(),
        AnyItem::DirEntries(entries) | AnyItem::Xattrs(entries) => entries.clone().count(),
        AnyItem::Extent(extent) => extent.inline_refs().count(),
        AnyItem::BackRefs(refs) => refs.clone().count(),
        AnyItem::RaidStripe(stripe) => stripe.strides().count(),
        AnyItem::Uuid(_, subvolumes) => subvolumes.subvolumes().count(),
        AnyItem::DeviceStats(stats) => stats.values().count(),
        AnyItem::FreeSpaceBitmap(bitmap) => bitmap.free_runs().count().div_ceil(8),
        AnyItem::Csum(checksums) => {
            black_box(checksums.sum_at(checksums.start()));
            checksums.sectors()
        }
        _ => 0,
    };
    // A keyed reference to a tree block has all its content in the key, and no bytes.
    assert!(entries <= size + 1, "{entries} entries in {size} bytes");
}
