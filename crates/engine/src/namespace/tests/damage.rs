//! Trees whose items contradict one another: an error names the item, nothing changes, nothing
//! hangs.

use super::world::{ROOT, World, reason};
use crate::btree::Change;
use crate::errors::{Error, PathError, Result};
use crate::items::dir_edit::dir_index_key;
use crate::items::inode_ref_edit::inode_ref_key;
use crate::namespace::rename::RenameMode;
use papilio_format::items::dir_item::dir_item_key;
use papilio_format::items::inode::{InodeFlags, InodeItem, inode_key};
use papilio_format::items::inode_ref::InodeRef;
use papilio_format::{Key, TreeId};

type Items = Vec<(Key, Vec<u8>)>;

fn items(world: &World) -> Items {
    let tree = world.tree.tree();
    tree.items().map(|item| item.map(|item| (item.key, item.data().to_vec())).unwrap()).collect()
}

fn damage(world: &World, change: Change) {
    world.edit(|editor, _, _| editor.apply(std::slice::from_ref(&change))).unwrap();
}

#[track_caller]
fn fails_at<T: std::fmt::Debug>(result: Result<T>, wanted: Key) {
    match result {
        Err(
            Error::MissingItem { tree: TreeId(256), key, .. } | Error::Item { tree: TreeId(256), key, .. },
        ) => {
            assert_eq!(key, wanted);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn half_missing_entries_are_reported() {
    let world = World::new(4096);
    let inode = world.file(ROOT, b"a");
    for gone in [dir_index_key(ROOT, 2), inode_ref_key(inode, ROOT)] {
        let data = world.tree.tree().get(&gone).unwrap().unwrap().data().to_vec();
        damage(&world, Change::Remove { key: gone });
        let before = items(&world);
        fails_at(world.unlink(ROOT, b"a"), gone);
        fails_at(world.rename((ROOT, b"a"), (ROOT, b"b"), RenameMode::Replace), gone);
        assert_eq!(items(&world), before);
        damage(&world, Change::Put { key: gone, data });
    }
    world.file(ROOT, b"b");
    let data = world.tree.tree().get(&dir_index_key(ROOT, 3)).unwrap().unwrap().data().to_vec();
    damage(&world, Change::Put { key: dir_index_key(ROOT, 2), data });
    fails_at(world.unlink(ROOT, b"a"), dir_index_key(ROOT, 2));
    damage(&world, Change::Put { key: dir_item_key(ROOT, b"a"), data: vec![1, 2, 3] });
    fails_at(world.unlink(ROOT, b"a"), dir_item_key(ROOT, b"a"));
    damage(&world, Change::Remove { key: inode_key(inode) });
    damage(&world, Change::Remove { key: dir_item_key(ROOT, b"a") });
    assert_eq!(reason(world.unlink(ROOT, b"a")), PathError::NotFound);
}

#[test]
fn dangling_entries_and_zero_link_counts_are_reported() {
    let world = World::new(4096);
    let inode = world.file(ROOT, b"a");
    let item = world.item(inode);
    damage(
        &world,
        Change::Put { key: inode_key(inode), data: InodeItem { nlink: 0, ..item }.to_bytes().to_vec() },
    );
    fails_at(world.unlink(ROOT, b"a"), inode_key(inode));
    // Flags that only a newer kernel knows.
    let flags = InodeFlags::from_bits_retain(1 << 40);
    damage(
        &world,
        Change::Put { key: inode_key(inode), data: InodeItem { flags, ..item }.to_bytes().to_vec() },
    );
    fails_at(world.unlink(ROOT, b"a"), inode_key(inode));
    damage(&world, Change::Remove { key: inode_key(inode) });
    assert_eq!(reason(world.unlink(ROOT, b"a")), PathError::NotFound);
}

#[test]
fn cyclic_directories_do_not_hang() {
    let world = World::new(4096);
    let mut circle = vec![world.mkdir(ROOT, b"d")];
    for _ in 0..6 {
        circle.push(world.mkdir(*circle.last().unwrap(), b"d"));
    }
    let moved = world.mkdir(ROOT, b"moved");
    world.mkdir(moved, b"sub");
    // Make the last directory the first one's parent.
    let (first, last) = (circle[0], *circle.last().unwrap());
    damage(&world, Change::Remove { key: inode_ref_key(first, ROOT) });
    let data = InodeRef { index: 2, name: b"d" }.to_bytes();
    damage(&world, Change::Put { key: inode_ref_key(first, last), data });
    let before = items(&world);
    for inside in circle {
        let result = world.rename((moved, b"sub"), (inside, b"x"), RenameMode::Replace);
        assert!(matches!(result, Err(Error::Item { .. })), "{result:?}");
    }
    assert_eq!(items(&world), before);
}
