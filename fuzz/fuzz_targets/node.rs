//! Fuzzes tree blocks of every geometry: leaves and internal nodes, overwritten anywhere, with a
//! valid checksum. The accessors of an accepted block must keep their promises.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use papilio_format::node::KeyPointer;
use papilio_format::{Generation, Geometry, LogicalAddress, Node, NodeExpectation, TreeId};
use papilio_fuzz::{ADDRESS, AnyGeometry, AnyKey, Patches, internal, leaf, number, owner, repair};

#[derive(Debug)]
struct Block {
    geometry: Geometry,
    owner: TreeId,
    bytes: Vec<u8>,
    broken: bool,
}

impl<'a> Arbitrary<'a> for Block {
    fn arbitrary(input: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let AnyGeometry(geometry) = input.arbitrary()?;
        let owner = owner(input)?;
        let level = input.int_in_range(0..=8_u8)?;
        let sorted = input.ratio(7, 8)?;
        let patches: Patches = input.arbitrary()?;
        let mut bytes = if level == 0 {
            let mut items: Vec<(AnyKey, &[u8])> = input.arbitrary()?;
            if sorted {
                items.sort_by_key(|item| item.0.0);
                items.dedup_by_key(|item| item.0.0);
            }
            let items: Vec<_> = items.into_iter().map(|(key, data)| (key.0, data)).collect();
            leaf(&geometry, owner, &items)
        } else {
            let mut children = Vec::new();
            while !input.is_empty() {
                let AnyKey(key) = input.arbitrary()?;
                let address = LogicalAddress(number(input)?);
                children.push(KeyPointer { key, address, generation: Generation(number(input)?) });
            }
            if sorted {
                children.sort_by_key(|child| child.key);
                children.dedup_by_key(|child| child.key);
            }
            internal(&geometry, owner, level, &children)
        };
        patches.apply(&mut bytes);
        Ok(Self { geometry, owner, bytes, broken: !patches.is_empty() })
    }
}

fuzz_target!(|block: Block| {
    let Block { geometry, owner, mut bytes, broken } = block;
    repair(geometry.checksum_type, &mut bytes);
    let at = NodeExpectation::at(ADDRESS);
    let Ok(node) = Node::check(&bytes, &at, &geometry) else { return };
    check_accessors(&node);
    assert_eq!(Node::of_checked(&bytes).len(), node.len());
    let exact = NodeExpectation {
        level: Some(node.level()),
        generation: Some(node.header().generation),
        owner: Some(node.header().owner),
        first_key: (!node.is_empty()).then(|| node.key(0)),
        ..at
    };
    Node::check(&bytes, &exact, &geometry).expect("a block meets the expectation made from its own header");
    assert!(broken || node.header().owner == owner);

    // The checksum detects any single flipped bit.
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    assert!(Node::check(&bytes, &at, &geometry).is_err());
});

fn check_accessors(node: &Node<'_>) {
    for slot in 0..node.len() {
        let key = node.key(slot);
        assert_eq!(node.search(&key), Ok(slot));
        assert!(slot == 0 || node.key(slot - 1) < key);
        if node.is_leaf() {
            assert_eq!(node.item(slot).len(), node.item_header(slot).size as usize);
        } else {
            assert_eq!(node.child(slot).key, key);
        }
    }
    let _ = node.free_space();
}
