//! Hash collisions, link counts, and items that fill a leaf.

use super::world::{ROOT, World, file, reason};
use crate::btree::testing::TestForest;
use crate::errors::PathError;
use crate::items::inode::for_each_name;
use crate::items::xattr_edit::XattrSet;
use crate::namespace::attributes::set_xattr;
use crate::namespace::evict::evict;
use crate::namespace::rename::RenameMode;
use crate::volume::testing::{chunk_item, superblock};
use papilio_format::features::IncompatFeatures;
use papilio_format::items::chunk::RaidProfile;
use papilio_format::items::dir_item::dir_item_key;
use papilio_format::items::inode::InodeItem;
use papilio_format::{InodeNumber, ItemType, Key};
use papilio_oracle::populate::names::colliding_names;

const HASH: u32 = 0x1234_5678;

#[test]
fn colliding_names_share_an_item_until_it_is_full() {
    let world = World::new(4096);
    // Names of 200 bytes each, so that 17 fill their item: 17 * 230 = 3,910 of 3,970 bytes.
    let prefix = "p".repeat(200 - 4 - 3);
    let names: Vec<_> =
        colliding_names(&prefix, HASH, 300).into_iter().filter(|name| name.len() == 200).collect();
    assert!(names.len() > 20);
    for name in &names[..17] {
        world.file(ROOT, name);
    }
    let key = dir_item_key(ROOT, &names[0]);
    assert_eq!(world.tree.tree().get(&key).unwrap().unwrap().data().len(), 17 * 230);
    world.check();
    let before = world.item(ROOT);
    let inode = world.look_up(ROOT, &names[3]).unwrap();
    assert_eq!(reason(world.create(ROOT, &names[17], &file())), PathError::HashOverflow);
    assert_eq!(reason(world.link(inode, ROOT, &names[17])), PathError::HashOverflow);
    assert_eq!(world.item(ROOT), before);
    // A rename within the item frees the space that it needs.
    world.rename((ROOT, &names[3]), (ROOT, &names[17]), RenameMode::Replace).unwrap();
    assert_eq!((world.look_up(ROOT, &names[3]), world.look_up(ROOT, &names[17])), (None, Some(inode)));
    world.rename((ROOT, &names[4]), (ROOT, &names[17]), RenameMode::Exchange).unwrap();
    assert_eq!(world.look_up(ROOT, &names[4]), Some(inode));
    world.file(ROOT, b"other");
    let over = world.rename((ROOT, b"other"), (ROOT, &names[18]), RenameMode::Replace);
    assert_eq!(reason(over), PathError::HashOverflow);
    world.check();
    for name in &names[..18] {
        if world.look_up(ROOT, name).is_some() {
            world.unlink(ROOT, name).unwrap();
        }
    }
    assert!(world.tree.tree().get(&key).unwrap().is_none());
    world.check();
}

fn names_of(world: &World, inode: InodeNumber) -> usize {
    let mut count = 0;
    for_each_name(&world.tree.tree(), inode, |_| {
        count += 1;
        true
    })
    .unwrap();
    count
}

fn count_of(world: &World, inode: InodeNumber, item_type: ItemType) -> usize {
    let key = |offset| Key::new(inode.0, item_type, offset);
    world.tree.tree().range(key(0)..=key(u64::MAX)).count()
}

#[test]
fn one_inode_has_thousands_of_names() {
    let world = World::new(4096);
    let (a, b) = (world.mkdir(ROOT, b"a"), world.mkdir(ROOT, b"b"));
    let inode = world.file(a, b"first");
    let name = |number: usize| format!("name-{number:05}").into_bytes();
    for number in 0..4000 {
        world.link(inode, if number % 2 == 0 { a } else { b }, &name(number)).unwrap();
    }
    assert_eq!(names_of(&world, inode), 4001);
    assert_eq!(count_of(&world, inode, ItemType::INODE_REF), 2);
    assert!(count_of(&world, inode, ItemType::INODE_EXTREF) > 3000);
    world.check();
    // Rename a name in the reference item and one in an extended item, and exchange another.
    world.rename((a, &name(0)), (b, b"renamed"), RenameMode::Replace).unwrap();
    world.rename((b, &name(3999)), (a, b"renamed"), RenameMode::NoReplace).unwrap();
    world.file(a, b"other");
    world.rename((a, b"other"), (b, &name(3001)), RenameMode::Exchange).unwrap();
    assert_eq!((world.look_up(a, b"other"), world.item(inode).nlink), (Some(inode), 4001));
    world.check();
    for number in (1..3999).filter(|number| *number != 3001) {
        world.unlink(if number % 2 == 0 { a } else { b }, &name(number)).unwrap();
    }
    world.check();
    assert_eq!(names_of(&world, inode), 4001 - 3997);
}

#[test]
fn colliding_extended_references_share_an_item() {
    let world = World::new(4096);
    let inode = world.file(ROOT, b"first");
    let mut number = 0;
    // Fill the reference item.
    while count_of(&world, inode, ItemType::INODE_EXTREF) == 0 {
        world.link(inode, ROOT, &[vec![b'f'; 200], number.to_string().into_bytes()].concat()).unwrap();
        number += 1;
    }
    let extended = count_of(&world, inode, ItemType::INODE_EXTREF);
    // Names of equal length whose hashes are equal for any seed: they differ by a multiple of the
    // polynomial.
    let prefix = "p".repeat(200 - 4 - 3);
    let names: Vec<_> =
        colliding_names(&prefix, HASH, 300).into_iter().filter(|name| name.len() == 200).collect();
    for name in &names[..10] {
        world.link(inode, ROOT, name).unwrap();
    }
    assert_eq!(count_of(&world, inode, ItemType::INODE_EXTREF), extended + 1);
    world.check();
    world.rename((ROOT, &names[2]), (ROOT, &names[12]), RenameMode::Replace).unwrap();
    for name in names[..10].iter().filter(|name| **name != names[2]) {
        world.unlink(ROOT, name).unwrap();
    }
    world.check();
    world.unlink(ROOT, &names[12]).unwrap();
    assert_eq!(count_of(&world, inode, ItemType::INODE_EXTREF), extended);
    world.check();
}

#[test]
fn link_limit_without_extended_references_is_one_item() {
    let chunk = chunk_item(RaidProfile::Single, 1, 64 << 20);
    let mut raw = superblock(1, 1, &chunk);
    raw.node_size = 4096;
    raw.leaf_size = 4096;
    raw.total_bytes = 128 << 20;
    raw.dev_item.total_bytes = raw.total_bytes;
    raw.incompat_flags =
        IncompatFeatures::MIXED_BACKREF | IncompatFeatures::SKINNY_METADATA | IncompatFeatures::NO_HOLES;
    let world = World::over(TestForest::of(raw));
    let inode = world.file(ROOT, &[b'0'; 240]);
    let name = |number: usize| format!("{number:0>240}").into_bytes();
    // References of 250 bytes each; 3,970 bytes fit.
    for number in 1..15 {
        world.link(inode, ROOT, &name(number)).unwrap();
    }
    assert_eq!(reason(world.link(inode, ROOT, &name(15))), PathError::TooManyLinks);
    // A short name still fits.
    world.link(inode, ROOT, b"short").unwrap();
    let other = world.mkdir(ROOT, b"other");
    world.link(inode, other, &name(15)).unwrap();
    let back = world.rename((other, &name(15)), (ROOT, &name(15)), RenameMode::Replace);
    assert_eq!(reason(back), PathError::TooManyLinks);
    world.check();
}

#[test]
fn link_count_is_limited() {
    let world = World::new(4096);
    let inode = world.file(ROOT, b"a");
    let item = InodeItem { nlink: 65534, ..world.item(inode) };
    let key = papilio_format::items::inode::inode_key(inode);
    world.edit(|editor, _, _| editor.put(key, &item.to_bytes())).unwrap();
    assert_eq!(world.link(inode, ROOT, b"b").unwrap().nlink, 65535);
    assert_eq!(reason(world.link(inode, ROOT, b"c")), PathError::TooManyLinks);
    assert_eq!(world.look_up(ROOT, b"c"), None);
}

#[test]
fn inode_numbers_run_out() {
    let world = World::new(4096);
    let last = papilio_format::objectid::LAST_FREE - 1;
    let key = Key::new(last, ItemType::INODE_ITEM, 0);
    world.edit(|editor, _, _| editor.put(key, &[])).unwrap();
    world.numbers.forget();
    let result = world.create(ROOT, b"a", &file());
    assert!(matches!(result, Err(crate::errors::Error::NoSpace { .. })));
    assert_eq!(world.look_up(ROOT, b"a"), None);
}

#[test]
fn inode_with_many_items_is_evicted() {
    let world = World::new(4096);
    let inode = world.file(ROOT, b"a");
    for number in 0..400 {
        let name = format!("user.{number}").into_bytes();
        world.edit(|editor, _, now| set_xattr(editor, now, inode, &name, b"1", XattrSet::Create)).unwrap();
    }
    world.unlink(ROOT, b"a").unwrap();
    world.check();
    world.edit(|editor, _, _| evict(editor, inode)).unwrap();
    let left = world.tree.tree().range(Key::first_of(inode.0)..=Key::last_of(u64::MAX)).count();
    assert_eq!(left, 0);
    world.check();
}

#[test]
fn directories_cannot_move_below_themselves() {
    let world = World::new(4096);
    let a = world.mkdir(ROOT, b"a");
    let b = world.mkdir(a, b"b");
    let c = world.mkdir(b, b"c");
    for mode in [RenameMode::Replace, RenameMode::NoReplace] {
        for below in [a, b, c] {
            assert_eq!(reason(world.rename((ROOT, b"a"), (below, b"x"), mode)), PathError::IntoItself);
        }
    }
    let up = |mode| reason(world.rename((b, b"c"), (ROOT, b"a"), mode));
    assert_eq!(up(RenameMode::Replace), PathError::NotEmpty);
    assert_eq!(up(RenameMode::Exchange), PathError::IntoItself);
    world.rename((b, b"c"), (ROOT, b"c"), RenameMode::Replace).unwrap();
    world.rename((ROOT, b"a"), (c, b"a"), RenameMode::Replace).unwrap();
    assert_eq!(reason(world.rename((ROOT, b"c"), (b, b"x"), RenameMode::Replace)), PathError::IntoItself);
    world.check();
}
