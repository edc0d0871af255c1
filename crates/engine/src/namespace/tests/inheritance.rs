//! The attributes that new inodes inherit from their directory.

use super::world::{ROOT, World, directory, file};
use crate::btree::LiveTree;
use crate::items::xattr;
use crate::items::xattr_edit::XattrSet;
use crate::namespace::acl;
use crate::namespace::attributes::set_xattr;
use crate::namespace::create::{NewInode, NewKind, create_root, root_inheritance};
use crate::namespace::setattr::{SetAttributes, set_attributes, set_flags};
use papilio_format::items::file_extent::Compression;
use papilio_format::items::inode::{InodeFlags, Timespec};
use papilio_format::{InodeNumber, TreeId};

/// Owner rwx, user 1000 rw, group r-x, mask rwx, others none.
fn list() -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in
        [(1u16, 7u16, u32::MAX), (2, 6, 1000), (4, 5, u32::MAX), (0x10, 7, u32::MAX), (0x20, 0, u32::MAX)]
    {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn attribute(tree: &LiveTree, inode: InodeNumber, name: &[u8]) -> Option<Vec<u8>> {
    xattr::get(&tree.tree(), inode, name).unwrap()
}

fn set(world: &World, inode: InodeNumber, name: &[u8], value: &[u8]) {
    world.edit(|editor, _, now| set_xattr(editor, now, inode, name, value, XattrSet::Any)).unwrap();
}

#[test]
fn group_and_set_group_id_are_inherited() {
    let world = World::new(4096);
    let parent = world.mkdir(ROOT, b"dir");
    let change = SetAttributes { mode: Some(0o2775), gid: Some(55), ..SetAttributes::default() };
    world.edit(|editor, _, now| set_attributes(editor, now, parent, &change)).unwrap();
    let below = world.item(world.mkdir(parent, b"below"));
    assert_eq!((below.mode, below.gid), (0o042_755, 55));
    let below = world.item(world.file(parent, b"file"));
    assert_eq!((below.mode, below.gid), (0o100_644, 55));
    assert_eq!(world.item(world.file(ROOT, b"file")).gid, 100);
    world.check();
}

#[test]
fn flags_are_inherited() {
    let world = World::new(4096);
    let parent = world.mkdir(ROOT, b"dir");
    let flag = |flags| {
        world.edit(|editor, _, now| set_flags(editor, now, parent, flags, Compression::Zstd)).unwrap()
    };
    flag(InodeFlags::NODATACOW | InodeFlags::NODUMP | InodeFlags::SYNC);
    let item = world.item(world.file(parent, b"a"));
    assert_eq!(item.flags, InodeFlags::NODATACOW | InodeFlags::NODATASUM);
    assert_eq!(world.item(world.mkdir(parent, b"b")).flags, InodeFlags::NODATACOW);
    flag(InodeFlags::NOCOMPRESS);
    assert_eq!(world.item(world.file(parent, b"c")).flags, InodeFlags::NOCOMPRESS);
    flag(InodeFlags::COMPRESS);
    let inode = world.file(parent, b"d");
    assert_eq!(world.item(inode).flags, InodeFlags::COMPRESS);
    assert_eq!(attribute(&world.tree, inode, b"btrfs.compression").as_deref(), Some(&b"zstd"[..]));
    // Flags from mount options are added, and disable inherited compression that they contradict.
    let new = NewInode { file_flags: InodeFlags::NODATASUM, ..file() };
    let inode = world.create(ROOT, b"plain", &new).unwrap();
    assert_eq!(world.item(inode).flags, InodeFlags::NODATASUM);
    let inode = world.create(parent, b"e", &new).unwrap();
    assert_eq!(attribute(&world.tree, inode, b"btrfs.compression"), None);
    world.check();
}

#[test]
fn compression_is_inherited_by_files_and_directories_only() {
    let world = World::new(4096);
    let parent = world.mkdir(ROOT, b"dir");
    set(&world, parent, b"btrfs.compression", b"zlib:9");
    assert_eq!(world.item(parent).flags, InodeFlags::COMPRESS);
    let below = world.mkdir(parent, b"below");
    let inode = world.file(below, b"file");
    for inode in [below, inode] {
        assert_eq!(attribute(&world.tree, inode, b"btrfs.compression").as_deref(), Some(&b"zlib"[..]));
        assert_eq!(world.item(inode).flags, InodeFlags::COMPRESS);
    }
    let fifo = world.create(below, b"fifo", &NewInode { kind: NewKind::Fifo, ..file() }).unwrap();
    assert_eq!(attribute(&world.tree, fifo, b"btrfs.compression"), None);
    set(&world, parent, b"btrfs.compression", b"none");
    let inode = world.file(parent, b"never");
    assert_eq!(world.item(inode).flags, InodeFlags::NOCOMPRESS);
    assert_eq!(attribute(&world.tree, inode, b"btrfs.compression"), None);
    world.check();
}

#[test]
fn default_lists_are_inherited() {
    let world = World::new(4096);
    let parent = world.mkdir(ROOT, b"dir");
    set(&world, parent, acl::DEFAULT, &list());
    assert_eq!(world.item(parent).mode, 0o040_755);
    // With a default list the umask of 022 does not apply.
    let inode = world.file(parent, b"file");
    assert_eq!(world.item(inode).mode, 0o100_660);
    let access = attribute(&world.tree, inode, acl::ACCESS).unwrap();
    // The owner's and the mask's permissions are restricted to the requested mode.
    assert_eq!((access[6], access[14], access[22], access[30]), (6, 6, 5, 6));
    assert_eq!(attribute(&world.tree, inode, acl::DEFAULT), None);
    let below = world.mkdir(parent, b"below");
    assert_eq!(world.item(below).mode, 0o040_770);
    assert_eq!(attribute(&world.tree, below, acl::DEFAULT), Some(list()));
    assert_eq!(attribute(&world.tree, below, acl::ACCESS), Some(list()));
    let link = world.create(parent, b"link", &NewInode { kind: NewKind::Symlink(b"x"), ..file() }).unwrap();
    assert_eq!((world.item(link).mode, attribute(&world.tree, link, acl::ACCESS)), (0o120_777, None));
    // A list that is equivalent to a mode is not stored.
    let minimal = [&list()[..12], &list()[20..28], &list()[36..]].concat();
    set(&world, parent, acl::DEFAULT, &minimal);
    let inode = world.file(parent, b"plain");
    assert_eq!((world.item(inode).mode, attribute(&world.tree, inode, acl::ACCESS)), (0o100_640, None));
    world.check();
}

#[test]
fn subvolumes_inherit_the_compression_of_the_root_only() {
    let world = World::new(4096);
    let parent = world.mkdir(ROOT, b"dir");
    set(&world, parent, acl::DEFAULT, &list());
    // In the kernel, neither flags nor attributes of the directory matter.
    world
        .edit(|editor, _, now| set_flags(editor, now, parent, InodeFlags::NODATACOW, Compression::Zstd))
        .unwrap();
    set(&world, ROOT, b"btrfs.compression", b"lzo");
    let inheritance = world.edit(|editor, _, _| root_inheritance(editor, parent)).unwrap();
    let tree = world.forest.live_tree(TreeId(257));
    let now = Timespec { seconds: 5, nanoseconds: 0 };
    let created =
        create_root(&mut tree.edit(&world.forest.allocator), now, inheritance, &directory()).unwrap();
    assert_eq!((created.inode, created.item.mode), (ROOT, 0o040_755));
    assert_eq!(created.item.flags, InodeFlags::COMPRESS);
    assert_eq!(attribute(&tree, ROOT, b"btrfs.compression").as_deref(), Some(&b"lzo"[..]));
    assert_eq!(attribute(&tree, ROOT, acl::DEFAULT), None);
    super::consistency::check(&tree.tree());
}
