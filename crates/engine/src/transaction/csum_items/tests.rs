//! Removing checksums from items: every way in which ranges and items can overlap.

use super::*;
use crate::btree::LiveTree;
use crate::btree::testing::TestForest;
use papilio_format::objectid;

const SECTOR: u64 = 4096;
const BASE: u64 = 1 << 30;

/// Ranges of sectors: the first one, and the one after the last.
type Ranges = [(u64, u64)];

/// Checksums that encode the number of their sector.
fn sums(from: u64, to: u64) -> Vec<u8> {
    (from..to).flat_map(|sector| (sector as u32 + 1).to_le_bytes()).collect()
}

fn at(sector: u64) -> LogicalAddress {
    LogicalAddress(BASE + sector * SECTOR)
}

/// Creates a checksum tree with items for these ranges of sectors.
fn tree(forest: &TestForest, items: &Ranges) -> LiveTree {
    let tree = forest.live_tree(objectid::CSUM_TREE);
    let mut editor = tree.edit(&forest.allocator);
    for &(from, to) in items {
        editor.insert(CsumItem::key(at(from)), &sums(from, to)).unwrap();
    }
    drop(editor);
    tree
}

/// The ranges of sectors that the tree's items cover. Checks that each checksum is its sector's.
fn ranges(tree: &LiveTree) -> Vec<(u64, u64)> {
    tree.tree()
        .items()
        .map(|item| {
            let item = item.unwrap();
            let from = (item.key.offset - BASE) / SECTOR;
            let to = from + item.data().len() as u64 / 4;
            assert_eq!(item.data(), sums(from, to), "item at {from}");
            (from, to)
        })
        .collect()
}

#[test]
fn ranges_cut_fronts_backs_and_middles_of_items() {
    let items = [(10, 20), (20, 30), (40, 50)];
    let cases: [(&Ranges, &Ranges); 10] = [
        (&[(0, 10)], &[(10, 20), (20, 30), (40, 50)]),
        (&[(10, 20)], &[(20, 30), (40, 50)]),
        (&[(5, 12)], &[(12, 20), (20, 30), (40, 50)]),
        (&[(18, 20)], &[(10, 18), (20, 30), (40, 50)]),
        (&[(12, 13)], &[(10, 12), (13, 20), (20, 30), (40, 50)]),
        (&[(15, 45)], &[(10, 15), (45, 50)]),
        (&[(0, 100)], &[]),
        (
            &[(11, 12), (14, 16), (19, 22), (41, 42)],
            &[(10, 11), (12, 14), (16, 19), (22, 30), (40, 41), (42, 50)],
        ),
        (&[(10, 11), (11, 12), (12, 13)], &[(13, 20), (20, 30), (40, 50)]),
        (&[(30, 40), (50, 60), (60, 70)], &[(10, 20), (20, 30), (40, 50)]),
    ];
    for (removed, left) in cases {
        let forest = TestForest::new(4096);
        let tree = tree(&forest, &items);
        let removed: Vec<_> = removed.iter().map(|&(from, to)| (at(from), (to - from) * SECTOR)).collect();
        remove_sums(&mut tree.edit(&forest.allocator), &removed).unwrap();
        assert_eq!(ranges(&tree), left, "without {removed:?}");
    }
}

#[test]
fn range_spans_many_leaves() {
    let forest = TestForest::new(4096);
    let items: Vec<_> = (0..200).map(|n| (n * 800, n * 800 + 700)).collect();
    let tree = tree(&forest, &items);
    assert!(tree.tree().root().level > 0);
    remove_sums(&mut tree.edit(&forest.allocator), &[(at(1_000), 100_000 * SECTOR)]).unwrap();
    let left = ranges(&tree);
    assert_eq!(left[..2], [(0, 700), (800, 1_000)]);
    assert_eq!(left[2], (101_000, 101_500));
    assert_eq!(left.len(), 2 + 200 - 126);
    remove_sums(&mut tree.edit(&forest.allocator), &[(LogicalAddress(0), u64::MAX)]).unwrap();
    assert_eq!(ranges(&tree), []);
}

#[test]
fn items_of_the_largest_size_fit_a_leaf() {
    for node_size in [4096, 16384, 65536] {
        let forest = TestForest::new(node_size);
        let most = max_sums(&forest.volume.geometry()) as u64;
        assert!(most <= 4096);
        let tree = tree(&forest, &[(0, most), (most, 2 * most)]);
        assert_eq!(ranges(&tree), [(0, most), (most, 2 * most)]);
    }
}

/// `MAX_CSUM_ITEMS` of the kernel, by hand.
#[test]
fn items_hold_as_many_checksums_as_the_kernels() {
    use papilio_format::checksum::ChecksumType;
    for (node_size, checksum_type, most) in [
        (4096, ChecksumType::Crc32c, 985),
        (16384, ChecksumType::Crc32c, 4057),
        (16384, ChecksumType::XxHash64, 2028),
        (16384, ChecksumType::Sha256, 506),
        (65536, ChecksumType::Crc32c, 4096),
        (65536, ChecksumType::Sha256, 2042),
    ] {
        let geometry = TestForest::new(4096).volume.geometry();
        let geometry = Geometry { node_size, checksum_type, ..geometry };
        assert_eq!(max_sums(&geometry), most, "{node_size}, {checksum_type:?}");
    }
}
