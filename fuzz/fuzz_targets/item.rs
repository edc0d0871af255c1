//! Single items: any key, any tree, any bytes, in an otherwise perfect leaf, so that every input
//! reaches the check of its item type. The decoder for inspectors, which runs on unchecked items
//! too, gets the same; and what the check accepts, it must be able to show.
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

/// Visits all that an item holds; no iterator may give more than the bytes can hold. One of a
/// bitmap gives at most a run for each bit.
fn walk(item: &AnyItem<'_>, size: usize) {
    black_box(format!("{item:?}"));
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
        AnyItem::Csum(sums) => {
            black_box(sums.sum_at(sums.start()));
            sums.sectors()
        }
        _ => 0,
    };
    // A keyed reference to a tree block says all in its key.
    assert!(entries <= size + 1, "{entries} entries in {size} bytes");
}
