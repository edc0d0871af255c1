//! Live trees, compared with a map.

use super::testing::TestForest;
use super::{Change, LiveTree, Tree};
use crate::errors::Error;
use papilio_format::{ItemType, Key, TreeId};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// A random number generator (xorshift): reproducible, and good enough to shuffle.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

type Model = BTreeMap<Key, Vec<u8>>;

/// Returns keys whose items the tree checker does not examine.
fn key(number: u64) -> Key {
    Key::new(number / 64, ItemType::STRING_ITEM, number % 64)
}

fn content(tree: &Tree) -> Model {
    tree.items().map(|item| item.map(|item| (item.key, item.data().to_vec())).unwrap()).collect()
}

fn random_change(random: &mut Random, keys: u64, sizes: u64) -> Change {
    let key = key(random.below(keys));
    match random.below(3) {
        0 => Change::Remove { key },
        _ => {
            let size = if random.below(40) == 0 { random.below(sizes) } else { random.below(90) };
            Change::Put { key, data: vec![random.below(256) as u8; size as usize] }
        }
    }
}

fn change_model(model: &mut Model, change: &Change) {
    match change {
        Change::Put { key, data } => drop(model.insert(*key, data.clone())),
        Change::Remove { key } => drop(model.remove(key)),
    }
}

/// Counts the blocks of the tree by walking it.
fn blocks(tree: &Tree) -> usize {
    fn below(tree: &Tree, block: &super::TreeBlock) -> usize {
        let mut count = 1;
        if block.level() > 0 {
            for slot in 0..block.len() {
                let child = match block.link(slot) {
                    Some(child) => std::sync::Arc::clone(child),
                    None => {
                        let expected = papilio_format::NodeExpectation::at(block.view().child(slot).address);
                        tree.forest().block(tree.id(), &expected).unwrap()
                    }
                };
                assert_eq!(child.first_key(), block.view().key(slot));
                count += below(tree, &child);
            }
        }
        count
    }
    below(tree, &tree.root_block().unwrap())
}

fn run(node_size: u32, seed: u64, rounds: usize) {
    let test = TestForest::new(node_size);
    let live = test.live_tree(TreeId(300));
    let mut random = Random(seed);
    let mut model = Model::new();
    for round in 0..rounds {
        // Alternate phases that grow and that empty the tree.
        let keys = if round % 7 == 6 { 300 } else { 6000 };
        let mut batch: Vec<_> = (0..random.below(200) + 1)
            .map(|_| random_change(&mut random, keys, u64::from(node_size) / 3))
            .collect();
        if round % 9 == 8 {
            batch = model.keys().take(model.len() * 9 / 10).map(|&key| Change::Remove { key }).collect();
        }
        batch.sort_by_key(Change::key);
        batch.dedup_by_key(|change| change.key());
        let before = live.tree();
        let held = model.clone();
        {
            let mut editor = live.edit(&test.allocator);
            if round % 2 == 0 {
                editor.apply(&batch).unwrap();
            } else {
                for change in &batch {
                    match change {
                        Change::Put { key, data } => editor.put(*key, data).unwrap(),
                        Change::Remove { key } => {
                            assert_eq!(editor.remove(*key).unwrap(), model.contains_key(key));
                        }
                    }
                }
            }
        }
        batch.iter().for_each(|change| change_model(&mut model, change));
        assert!(content(&before) == held, "round {round}: a reader sees the tree of its start");
        drop(before);
        assert!(content(&live.tree()) == model, "round {round}");
        assert_eq!(blocks(&live.tree()), test.allocator.blocks.lock().len(), "round {round}");
        if round % 5 == 0 {
            test.write_out(&live);
        }
        if round % 13 == 0 {
            test.forest.drop_cache();
        }
    }
}

#[test]
fn random_changes_match_a_map() {
    for (node_size, seed) in [(4096, 1), (4096, 2), (16384, 3), (65536, 4)] {
        run(node_size, 0x9e37_79b9_7f4a_7c15 ^ seed, 60);
    }
}

#[test]
fn sequential_insertion_fills_leaves_and_removal_frees_all() {
    let test = TestForest::new(4096);
    let live = test.live_tree(TreeId(300));
    for number in 0..20_000 {
        live.edit(&test.allocator).insert(key(number), &[7; 50]).unwrap();
    }
    let used = test.allocator.blocks.lock().len();
    assert!(used < 20_000 * 75 / 3900, "{used} blocks");
    let removed = live.edit(&test.allocator).remove_range(Key::MIN..=Key::MAX).unwrap();
    assert_eq!(removed, 20_000);
    assert_eq!(test.allocator.blocks.lock().len(), 1);
    assert!(live.tree().items().next().is_none());
}

#[test]
fn leaves_are_well_filled_for_any_insertion_order() {
    let items = 20_000;
    let fullest = items * 75 / (4096 - 101) + 1;
    // Ascending below existing larger keys, and in random order.
    for (name, multiplier) in [("ascending", 1), ("random", 7919)] {
        let test = TestForest::new(4096);
        let live = test.live_tree(TreeId(300));
        live.edit(&test.allocator).insert(Key::new(u64::MAX, ItemType::STRING_ITEM, 0), &[1; 50]).unwrap();
        for number in 0..items as u64 {
            live.edit(&test.allocator).insert(key(number * multiplier % items as u64), &[7; 50]).unwrap();
        }
        let used = test.allocator.blocks.lock().len();
        assert!(used * 3 < fullest * 4, "{name}: {used} blocks where {fullest} suffice");
    }
}

#[test]
fn insert_and_replace_report_existing_and_missing_items() {
    let test = TestForest::new(4096);
    let live = test.live_tree(TreeId(300));
    let mut editor = live.edit(&test.allocator);
    editor.insert(key(1), b"one").unwrap();
    assert!(matches!(editor.insert(key(1), b"two"), Err(Error::ItemExists { .. })));
    assert!(matches!(editor.replace(key(2), b"two"), Err(Error::MissingItem { .. })));
    editor.replace(key(1), b"a longer one").unwrap();
    assert_eq!(editor.get(&key(1)).unwrap().unwrap().data(), b"a longer one");
    assert!(editor.remove(key(1)).unwrap());
    assert!(!editor.remove(key(1)).unwrap());
}

#[test]
fn tree_stays_well_formed_when_space_runs_out() {
    let test = TestForest::new(4096);
    let live: LiveTree = test.live_tree(TreeId(300));
    let mut random = Random(77);
    let mut failed = 0;
    for round in 0..400 {
        let left = if round % 2 == 0 { random.below(3) } else { u64::MAX };
        test.allocator.left.store(left, Ordering::Relaxed);
        let mut batch: Vec<_> = (0..30).map(|_| random_change(&mut random, 4000, 1000)).collect();
        batch.sort_by_key(Change::key);
        batch.dedup_by_key(|change| change.key());
        failed += usize::from(live.edit(&test.allocator).apply(&batch).is_err());
        if round % 3 == 0 {
            test.freeze(&live);
        }
        let keys: Vec<_> = live.tree().items().map(|item| item.unwrap().key).collect();
        assert!(keys.is_sorted());
    }
    assert!(failed > 10, "{failed} batches ran out of space");
}

#[test]
fn concurrent_readers_see_whole_batches() {
    let test = TestForest::new(4096);
    let live = test.live_tree(TreeId(300));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 0..300u64 {
                let batch: Vec<_> = (0..100)
                    .map(|n| Change::Put { key: key(n * 7), data: round.to_le_bytes().to_vec() })
                    .collect();
                live.edit(&test.allocator).apply(&batch).unwrap();
                if round % 10 == 0 {
                    test.write_out(&live);
                }
            }
        });
        while !writer.is_finished() {
            let values: Vec<_> = live.tree().items().map(|item| item.unwrap().data().to_vec()).collect();
            assert!(values.windows(2).all(|pair| pair[0] == pair[1]), "a batch is seen whole or not at all");
        }
    });
}
