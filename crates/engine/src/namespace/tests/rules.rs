//! The effects of each operation on times, counts and entries, and its reasons to refuse.

use super::world::{ROOT, World, directory, file, reason};
use crate::errors::{Error, PathError};
use crate::items::dir::{self, EntryTarget};
use crate::items::dir_edit::{self, EntryValue};
use crate::namespace::create::{NewInode, NewKind, create_unnamed};
use crate::namespace::evict::{OrphanState, evict, forget_orphan, next_orphan};
use crate::namespace::link::link;
use crate::namespace::rename::{MovedSubvolume, RenameMode};
use crate::namespace::setattr::{SetAttributes, SetTime, kill_privileges, set_attributes, set_flags};
use crate::namespace::subvolume_entry::{insert_subvolume_entry, remove_subvolume_entry};
use papilio_format::items::file_extent::{Compression, FileExtentContent, FileExtentItem, file_extent_key};
use papilio_format::items::inode::{FileKind, InodeFlags, InodeItem};
use papilio_format::items::orphan::orphan_key;
use papilio_format::{FileOffset, Generation, InodeNumber, TreeId};

#[test]
fn new_file_has_all_its_items() {
    let world = World::new(4096);
    let before = world.item(ROOT);
    let number = world.file(ROOT, b"name");
    assert_eq!(number, InodeNumber(257));
    let now = world.clock();
    let item = world.item(number);
    assert_eq!((item.mode, item.uid, item.gid, item.nlink), (0o100_644, 1000, 100, 1));
    assert_eq!((item.size, item.nbytes, item.sequence), (0, 0, 0));
    assert_eq!((item.generation, item.transid), (Generation(10), Generation(10)));
    for time in [item.atime, item.mtime, item.ctime, item.otime] {
        assert_eq!((time.seconds, time.nanoseconds), (now, 7));
    }
    let root = world.item(ROOT);
    assert_eq!((root.size, root.sequence), (8, before.sequence + 1));
    assert_eq!((root.mtime.seconds, root.ctime.seconds), (now, now));
    assert_eq!((root.atime, root.otime, root.nlink), (before.atime, before.otime, 1));
    let tree = world.tree.tree();
    assert_eq!(dir_edit::index_of(&tree, ROOT, b"name").unwrap(), Some(2));
    drop(tree);
    world.check();
}

#[test]
fn every_kind_can_be_created() {
    let world = World::new(4096);
    let device = InodeItem::pack_device_number(259, 70_000);
    for (name, kind, mode, rdev) in [
        (&b"fifo"[..], NewKind::Fifo, 0o010_644, 0),
        (b"socket", NewKind::Socket, 0o140_644, 0),
        (b"char", NewKind::CharacterDevice { major: 259, minor: 70_000 }, 0o020_644, device),
        (b"block", NewKind::BlockDevice { major: 259, minor: 70_000 }, 0o060_644, device),
        (b"link", NewKind::Symlink(b"../target"), 0o120_777, 0),
        (b"dir", NewKind::Directory, 0o040_644, 0),
    ] {
        let number = world.create(ROOT, name, &NewInode { kind, ..file() }).unwrap();
        let item = world.item(number);
        assert_eq!((item.mode, item.rdev), (mode, rdev));
        let found = dir::look_up(&world.tree.tree(), ROOT, name).unwrap().unwrap();
        assert_eq!(found.file_type, kind.kind().file_type());
        if kind.kind() == FileKind::Symlink {
            assert_eq!((item.size, item.nbytes), (9, 9));
            let extent = world.tree.tree().get(&file_extent_key(number, FileOffset(0))).unwrap().unwrap();
            let extent = FileExtentItem::parse(extent.data()).unwrap();
            assert_eq!(extent.content, FileExtentContent::Inline(b"../target"));
        }
    }
    let bad = NewKind::CharacterDevice { major: 4096, minor: 0 };
    let result = world.create(ROOT, b"bad", &NewInode { kind: bad, ..file() });
    assert!(matches!(result, Err(Error::Invalid(_))));
    world.check();
}

#[test]
fn targets_of_symbolic_links_are_limited() {
    for (node_size, limit) in [(4096, 4096 - 101 - 25 - 21), (16384, 4095)] {
        let world = World::new(node_size);
        let make = |name: &[u8], target: &[u8]| {
            world.create(ROOT, name, &NewInode { kind: NewKind::Symlink(target), ..file() })
        };
        make(b"longest", &vec![b'a'; limit]).unwrap();
        assert_eq!(reason(make(b"longer", &vec![b'a'; limit + 1])), PathError::NameTooLong);
        assert_eq!(reason(make(b"empty", b"")), PathError::NotFound);
        assert_eq!(reason(make(b"nul", b"a\0b")), PathError::InvalidName);
        world.check();
    }
}

#[test]
fn bad_names_are_refused_everywhere() {
    let world = World::new(4096);
    world.file(ROOT, b"there");
    let long = [b'x'; 256];
    let bad: [(&[u8], PathError); 6] = [
        (b"", PathError::InvalidName),
        (b".", PathError::InvalidName),
        (b"..", PathError::InvalidName),
        (b"a/b", PathError::InvalidName),
        (b"a\0b", PathError::InvalidName),
        (&long, PathError::NameTooLong),
    ];
    let there = world.look_up(ROOT, b"there").unwrap();
    for (name, expected) in bad {
        assert_eq!(reason(world.create(ROOT, name, &file())), expected);
        assert_eq!(reason(world.link(there, ROOT, name)), expected);
        assert_eq!(reason(world.unlink(ROOT, name)), expected);
        assert_eq!(reason(world.rmdir(ROOT, name)), expected);
        assert_eq!(reason(world.rename((ROOT, b"there"), (ROOT, name), RenameMode::Replace)), expected);
        assert_eq!(reason(world.rename((ROOT, name), (ROOT, b"there"), RenameMode::Replace)), expected);
    }
    world.file(ROOT, &long[..255]);
    world.check();
}

#[test]
fn only_directories_hold_names() {
    let world = World::new(4096);
    let plain = world.file(ROOT, b"plain");
    assert_eq!(reason(world.create(plain, b"a", &file())), PathError::NotADirectory);
    assert_eq!(reason(world.unlink(plain, b"a")), PathError::NotADirectory);
    assert_eq!(reason(world.create(InodeNumber(999), b"a", &file())), PathError::NotFound);
    let gone = world.mkdir(ROOT, b"gone");
    world.rmdir(ROOT, b"gone").unwrap();
    assert_eq!(reason(world.create(gone, b"a", &file())), PathError::NotFound);
    let to_gone = world.rename((ROOT, b"plain"), (gone, b"plain"), RenameMode::Replace);
    assert_eq!(reason(to_gone), PathError::NotFound);
    world.check();
}

#[test]
fn links_and_unlinks_update_times() {
    let world = World::new(4096);
    let number = world.file(ROOT, b"a");
    let born = world.clock();
    let item = world.link(number, ROOT, b"b").unwrap();
    assert_eq!((item.nlink, item.ctime.seconds), (2, world.clock()));
    let stored = world.item(number);
    assert_eq!((stored.mtime.seconds, stored.sequence), (born, 1));
    let removed = world.unlink(ROOT, b"a").unwrap();
    assert_eq!((removed.item.nlink, removed.is_last(), removed.index), (1, false, 2));
    assert_eq!(world.item(number).ctime.seconds, world.clock());
    assert_eq!(world.item(ROOT).mtime.seconds, world.clock());
    world.check();
    let removed = world.unlink(ROOT, b"b").unwrap();
    assert_eq!((removed.inode, removed.is_last(), removed.index), (number, true, 3));
    assert_eq!(world.item(ROOT).size, 0);
    assert_eq!(reason(world.link(number, ROOT, b"c")), PathError::NotFound);
    let orphan = next_orphan(&world.tree.tree(), InodeNumber(0)).unwrap().unwrap();
    assert_eq!(orphan.inode, number);
    assert!(matches!(orphan.state, OrphanState::Unnamed(item) if item.nlink == 0));
    world.check();
    world.edit(|editor, _, _| evict(editor, number)).unwrap();
    assert_eq!(next_orphan(&world.tree.tree(), InodeNumber(0)).unwrap(), None);
    // A second eviction changes nothing.
    world.edit(|editor, _, _| evict(editor, number)).unwrap();
    world.check();
    // Inode numbers and indexes are not reused.
    assert!(world.file(ROOT, b"d") > number);
    assert_eq!(dir_edit::index_of(&world.tree.tree(), ROOT, b"d").unwrap(), Some(4));
}

#[test]
fn named_inode_is_not_evicted() {
    let world = World::new(4096);
    let number = world.file(ROOT, b"a");
    let result = world.edit(|editor, _, _| evict(editor, number));
    assert!(matches!(result, Err(Error::Item { .. })));
    world.check();
    world.edit(|editor, _, _| editor.put(orphan_key(number.0), &[])).unwrap();
    world.edit(|editor, _, _| editor.put(orphan_key(5000), &[])).unwrap();
    let next = |from| next_orphan(&world.tree.tree(), InodeNumber(from)).unwrap().unwrap();
    assert!(matches!(next(0).state, OrphanState::Named(_)));
    assert_eq!((next(number.0 + 1).inode, next(number.0 + 1).state), (InodeNumber(5000), OrphanState::Gone));
    for orphan in [number, InodeNumber(5000)] {
        assert!(world.edit(|editor, _, _| forget_orphan(editor, orphan)).unwrap());
        assert!(!world.edit(|editor, _, _| forget_orphan(editor, orphan)).unwrap());
    }
    world.check();
}

#[test]
fn unnamed_file_can_be_linked() {
    let world = World::new(4096);
    let make = |new: NewInode<'static>| {
        world.edit(|editor, numbers, now| create_unnamed(editor, numbers, now, ROOT, &new))
    };
    let root = world.item(ROOT);
    let created = make(file()).unwrap();
    assert_eq!(created.item.nlink, 0);
    assert_eq!(world.item(ROOT), root);
    world.check();
    assert_eq!(reason(make(directory())), PathError::IsADirectory);
    let item = world
        .edit(|editor, numbers, now| link(editor, numbers, now, created.inode, true, ROOT, b"named"))
        .unwrap();
    assert_eq!(item.nlink, 1);
    assert_eq!(world.look_up(ROOT, b"named"), Some(created.inode));
    world.check();
}

#[test]
fn rename_updates_times_and_sizes() {
    let world = World::new(4096);
    let (a, b) = (world.mkdir(ROOT, b"a"), world.mkdir(ROOT, b"b"));
    let number = world.file(a, b"file");
    let born = world.clock();
    world.rename((a, b"file"), (b, b"longer-name"), RenameMode::NoReplace).unwrap();
    let now = world.clock();
    assert_eq!((world.item(a).size, world.item(b).size), (0, 22));
    assert_eq!((world.item(number).ctime.seconds, world.item(number).mtime.seconds), (now, born));
    for parent in [a, b] {
        assert_eq!((world.item(parent).mtime.seconds, world.item(parent).ctime.seconds), (now, now));
    }
    assert_ne!(world.item(ROOT).mtime.seconds, now);
    world.check();

    let other = world.file(a, b"other");
    let replaced = world.rename((b, b"longer-name"), (a, b"other"), RenameMode::Replace).unwrap().replaced;
    assert_eq!(replaced.map(|removed| (removed.inode, removed.is_last())), Some((other, true)));
    assert_eq!(world.item(other).ctime.seconds, world.clock());
    assert_eq!((world.item(a).size, world.item(b).size), (10, 0));
    world.check();

    let third = world.mkdir(b, b"third");
    world.rename((a, b"other"), (b, b"third"), RenameMode::Exchange).unwrap();
    assert_eq!((world.look_up(a, b"other"), world.look_up(b, b"third")), (Some(third), Some(number)));
    for inode in [a, b, third, number] {
        assert_eq!(world.item(inode).ctime.seconds, world.clock());
    }
    world.check();
    // Within one directory.
    world.file(b, b"x");
    world.rename((b, b"x"), (b, b"third"), RenameMode::Exchange).unwrap();
    assert_eq!(world.look_up(b, b"x"), Some(number));
    world.rename((b, b"x"), (b, b"y"), RenameMode::Replace).unwrap();
    assert_eq!(world.look_up(b, b"y"), Some(number));
    world.check();
}

#[test]
fn renaming_between_two_names_of_one_inode_changes_nothing() {
    let world = World::new(4096);
    let number = world.file(ROOT, b"a");
    world.link(number, ROOT, b"b").unwrap();
    let before = world.item(ROOT);
    for mode in [RenameMode::Replace, RenameMode::Exchange] {
        world.rename((ROOT, b"a"), (ROOT, b"b"), mode).unwrap();
        world.rename((ROOT, b"a"), (ROOT, b"a"), mode).unwrap();
    }
    assert_eq!(world.item(ROOT), before);
    let refused = world.rename((ROOT, b"a"), (ROOT, b"a"), RenameMode::NoReplace);
    assert_eq!(reason(refused), PathError::Exists);
    assert_eq!(world.item(number).nlink, 2);
    world.check();
}

#[test]
fn flags_forbid_changes() {
    let world = World::new(4096);
    let parent = world.mkdir(ROOT, b"dir");
    let number = world.file(parent, b"a");
    let flag = |inode, flags| {
        world.edit(|editor, _, now| set_flags(editor, now, inode, flags, Compression::Zstd)).unwrap()
    };
    flag(parent, InodeFlags::APPEND);
    world.file(parent, b"b");
    assert_eq!(reason(world.unlink(parent, b"a")), PathError::NotPermitted);
    assert_eq!(
        reason(world.rename((parent, b"a"), (ROOT, b"a"), RenameMode::Replace)),
        PathError::NotPermitted
    );
    world.file(ROOT, b"c");
    let over = world.rename((ROOT, b"c"), (parent, b"a"), RenameMode::Replace);
    assert_eq!(reason(over), PathError::NotPermitted);
    flag(parent, InodeFlags::IMMUTABLE);
    assert_eq!(reason(world.create(parent, b"c", &file())), PathError::NotPermitted);
    flag(parent, InodeFlags::empty());
    for forbidding in [InodeFlags::IMMUTABLE, InodeFlags::APPEND] {
        flag(number, forbidding);
        assert_eq!(reason(world.unlink(parent, b"a")), PathError::NotPermitted);
        assert_eq!(reason(world.link(number, parent, b"z")), PathError::NotPermitted);
        let away = world.rename((parent, b"a"), (ROOT, b"a"), RenameMode::Replace);
        assert_eq!(reason(away), PathError::NotPermitted);
        let mode = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
        let set = |set: &SetAttributes| world.edit(|editor, _, now| set_attributes(editor, now, number, set));
        assert_eq!(reason(set(&mode)), PathError::NotPermitted);
        let now = Some(SetTime::Now);
        let touch = SetAttributes { atime: now, mtime: now, ..SetAttributes::default() };
        assert_eq!(set(&touch).is_ok(), forbidding == InodeFlags::APPEND);
        for one in [SetAttributes { atime: None, ..touch }, SetAttributes { mtime: None, ..touch }] {
            assert_eq!(reason(set(&one)), PathError::NotPermitted);
        }
    }
    // The privileges of an open file go nevertheless.
    flag(number, InodeFlags::empty());
    let special = SetAttributes { mode: Some(0o6755), ..SetAttributes::default() };
    world.edit(|editor, _, now| set_attributes(editor, now, number, &special)).unwrap();
    flag(number, InodeFlags::IMMUTABLE);
    world.edit(|editor, _, now| kill_privileges(editor, now, number, 0o755)).unwrap();
    let item =
        world.edit(|editor, _, now| set_flags(editor, now, number, InodeFlags::empty(), Compression::Zstd));
    assert_eq!(item.unwrap().mode & 0o7777, 0o755);
    world.unlink(parent, b"a").unwrap();
    world.check();
}

#[test]
fn subvolume_entries_follow_the_rules() {
    let world = World::new(4096);
    let id = TreeId(300);
    let insert = |directory, name: &[u8]| {
        world.edit(|editor, numbers, now| {
            insert_subvolume_entry(editor, numbers, now, directory, name, (EntryValue::subvolume(id, 0), 1))
        })
    };
    let remove = |directory, name: &[u8], id, index| {
        world.edit(|editor, _, now| remove_subvolume_entry(editor, now, directory, name, (id, index), 1))
    };
    let parent = world.mkdir(ROOT, b"dir");
    let index = insert(ROOT, b"sub").unwrap();
    assert_eq!(index, 3);
    assert_eq!(reason(insert(ROOT, b"sub")), PathError::Exists);
    let found = dir::look_up(&world.tree.tree(), ROOT, b"sub").unwrap().unwrap();
    assert_eq!(found.target, EntryTarget::Subvolume(id));
    assert_eq!(world.item(ROOT).size, 12);
    world.check();
    assert_eq!(reason(world.unlink(ROOT, b"sub")), PathError::IsADirectory);
    assert_eq!(reason(world.rmdir(ROOT, b"sub")), PathError::IsASubvolume);
    world.file(ROOT, b"file");
    let over = |name: &[u8]| world.rename((ROOT, name), (ROOT, b"sub"), RenameMode::Replace);
    assert_eq!(reason(over(b"file")), PathError::IsADirectory);
    assert_eq!(reason(over(b"dir")), PathError::NotEmpty);
    let renamed = world.rename((ROOT, b"sub"), (parent, b"moved"), RenameMode::Replace).unwrap();
    assert_eq!(renamed.subvolume, Some(MovedSubvolume { id, old_index: 3, new_index: 2 }));
    world.check();
    let renamed = world.rename((ROOT, b"file"), (parent, b"moved"), RenameMode::Exchange).unwrap();
    let moved = renamed.exchanged_subvolume.unwrap();
    assert_eq!((moved.id, moved.old_index), (id, 2));
    world.check();
    assert_eq!(reason(remove(ROOT, b"file", TreeId(301), None)), PathError::NoSubvolume);
    assert_eq!(reason(remove(ROOT, b"no", id, None)), PathError::NotFound);
    assert!(matches!(remove(ROOT, b"file", id, Some(moved.new_index + 1)), Err(Error::MissingItem { .. })));
    assert_eq!(remove(ROOT, b"file", id, None).unwrap(), moved.new_index);
    world.check();
}
