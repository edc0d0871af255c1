//! Setting modes, owners, times, flags and attributes.

use super::world::{ROOT, World, file, reason};
use crate::errors::{Error, PathError, Result};
use crate::items::xattr;
use crate::items::xattr_edit::XattrSet;
use crate::namespace::acl;
use crate::namespace::attributes::{remove_xattr, set_xattr};
use crate::namespace::create::{NewInode, NewKind};
use crate::namespace::setattr::{SetAttributes, SetTime, set_attributes, set_flags};
use papilio_format::InodeNumber;
use papilio_format::items::dir_item::xattr_key;
use papilio_format::items::file_extent::Compression;
use papilio_format::items::inode::{InodeFlags, InodeItem, Timespec};
use papilio_oracle::populate::names::colliding_names;

impl World {
    fn set(&self, inode: InodeNumber, set: SetAttributes) -> Result<InodeItem> {
        self.edit(|editor, _, now| set_attributes(editor, now, inode, &set))
    }

    fn set_xattr(&self, inode: InodeNumber, name: &[u8], value: &[u8], how: XattrSet) -> Result<InodeItem> {
        self.edit(|editor, _, now| set_xattr(editor, now, inode, name, value, how))
    }

    fn remove_xattr(&self, inode: InodeNumber, name: &[u8]) -> Result<InodeItem> {
        self.edit(|editor, _, now| remove_xattr(editor, now, inode, name))
    }

    fn xattr(&self, inode: InodeNumber, name: &[u8]) -> Option<Vec<u8>> {
        xattr::get(&self.tree.tree(), inode, name).unwrap()
    }

    fn set_flags(&self, inode: InodeNumber, flags: InodeFlags) -> Result<InodeItem> {
        self.edit(|editor, _, now| set_flags(editor, now, inode, flags, Compression::Zlib))
    }
}

fn nothing() -> SetAttributes {
    SetAttributes::default()
}

#[test]
fn modes_and_owners_are_set() {
    let world = World::new(4096);
    let inode = world.file(ROOT, b"a");
    let item = world.set(inode, SetAttributes { mode: Some(0o170_000 | 0o6755), ..nothing() }).unwrap();
    assert_eq!(item.mode, 0o106_755);
    assert_eq!((item.ctime.seconds, item.mtime.seconds), (world.clock(), world.clock() - 1));
    world.set_xattr(inode, b"security.capability", b"caps", XattrSet::Any).unwrap();
    // A change of owner removes privileges; a mode set with it prevails.
    let item = world.set(inode, SetAttributes { uid: Some(1), ..nothing() }).unwrap();
    assert_eq!((item.mode, item.uid, item.gid), (0o100_755, 1, 100));
    assert_eq!(world.xattr(inode, b"security.capability"), None);
    let set = SetAttributes { mode: Some(0o4711), uid: Some(2), gid: Some(3), ..nothing() };
    assert_eq!(world.set(inode, set).unwrap().mode, 0o104_711);
    // Set-group-id without the group's execute bit means mandatory locking, and stays.
    world.set(inode, SetAttributes { mode: Some(0o2644), ..nothing() }).unwrap();
    assert_eq!(world.set(inode, SetAttributes { gid: Some(4), ..nothing() }).unwrap().mode, 0o102_644);
    let directory = world.mkdir(ROOT, b"d");
    world.set(directory, SetAttributes { mode: Some(0o6755), ..nothing() }).unwrap();
    assert_eq!(world.set(directory, SetAttributes { uid: Some(4), ..nothing() }).unwrap().mode, 0o046_755);
    let link = world.create(ROOT, b"l", &NewInode { kind: NewKind::Symlink(b"x"), ..file() }).unwrap();
    assert_eq!(
        reason(world.set(link, SetAttributes { mode: Some(0), ..nothing() })),
        PathError::NotSupported
    );
    assert_eq!(world.set(link, SetAttributes { uid: Some(9), ..nothing() }).unwrap().uid, 9);
    assert_eq!(reason(world.set(InodeNumber(4000), nothing())), PathError::NotFound);
    world.check();
}

#[test]
fn times_are_set() {
    let world = World::new(4096);
    let inode = world.file(ROOT, b"a");
    let early = Timespec { seconds: -5, nanoseconds: 999_999_999 };
    let set = SetAttributes { atime: Some(SetTime::At(early)), mtime: Some(SetTime::Now), ..nothing() };
    let item = world.set(inode, set).unwrap();
    assert_eq!((item.atime, item.mtime, item.ctime), (early, item.ctime, item.ctime));
    assert_eq!(item.ctime.seconds, world.clock());
    let stored = world.item(inode);
    assert_eq!((stored.sequence, stored.otime.seconds), (1, world.clock() - 1));
    let bad = Timespec { seconds: 0, nanoseconds: 1_000_000_000 };
    let result = world.set(inode, SetAttributes { atime: Some(SetTime::At(bad)), ..nothing() });
    assert!(matches!(result, Err(Error::Invalid(_))));
    assert_eq!(world.item(inode), stored);
}

#[test]
fn flags_are_set() {
    let world = World::new(4096);
    let inode = world.file(ROOT, b"a");
    let flags = InodeFlags::NODATACOW | InodeFlags::NODUMP;
    assert_eq!(world.set_flags(inode, flags).unwrap().flags, flags | InodeFlags::NODATASUM);
    assert_eq!(world.set_flags(inode, InodeFlags::empty()).unwrap().flags, InodeFlags::empty());
    world.set_flags(inode, InodeFlags::COMPRESS).unwrap();
    assert_eq!(world.xattr(inode, b"btrfs.compression").as_deref(), Some(&b"zlib"[..]));
    world.set_flags(inode, InodeFlags::NOCOMPRESS).unwrap();
    assert_eq!(world.xattr(inode, b"btrfs.compression"), None);
    for bad in [InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS, InodeFlags::COMPRESS | InodeFlags::NODATACOW] {
        assert!(matches!(world.set_flags(inode, bad), Err(Error::Invalid(_))));
    }
    for bad in [InodeFlags::NODATASUM, InodeFlags::VERITY, InodeFlags::PREALLOC] {
        assert_eq!(reason(world.set_flags(inode, bad)), PathError::NotSupported);
    }
    // A file with data keeps NODATACOW and NODATASUM as they are.
    let key = papilio_format::items::inode::inode_key(inode);
    let item = InodeItem { size: 5, ..world.item(inode) };
    world.edit(|editor, _, _| editor.put(key, &item.to_bytes())).unwrap();
    assert_eq!(world.set_flags(inode, InodeFlags::NODATACOW).unwrap().flags, InodeFlags::empty());
    let fifo = world.create(ROOT, b"f", &NewInode { kind: NewKind::Fifo, ..file() }).unwrap();
    assert_eq!(reason(world.set_flags(fifo, InodeFlags::NODUMP)), PathError::NotSupported);
}

#[test]
fn attributes_are_set_and_removed() {
    let world = World::new(4096);
    let inode = world.file(ROOT, b"a");
    let name = b"user.a";
    assert_eq!(reason(world.set_xattr(inode, name, b"1", XattrSet::Replace)), PathError::NoAttribute);
    let item = world.set_xattr(inode, name, b"1", XattrSet::Create).unwrap();
    assert_eq!((item.ctime.seconds, item.mtime.seconds), (world.clock(), world.clock() - 2));
    assert_eq!(reason(world.set_xattr(inode, name, b"2", XattrSet::Create)), PathError::Exists);
    world.set_xattr(inode, name, b"22", XattrSet::Replace).unwrap();
    world.set_xattr(inode, name, b"", XattrSet::Any).unwrap();
    assert_eq!(world.xattr(inode, name), Some(Vec::new()));
    world.remove_xattr(inode, name).unwrap();
    assert_eq!(world.xattr(inode, name), None);
    assert_eq!(reason(world.remove_xattr(inode, name)), PathError::NoAttribute);
    for (name, expected) in [
        (&b"user."[..], PathError::InvalidName),
        (b"none", PathError::NotSupported),
        (b"system.other", PathError::NotSupported),
        (b"user.a\0b", PathError::InvalidName),
        (&[b"user.", &[b'x'; 251][..]].concat(), PathError::AttributeNameTooLong),
    ] {
        assert_eq!(reason(world.set_xattr(inode, name, b"1", XattrSet::Any)), expected);
    }
    let fifo = world.create(ROOT, b"f", &NewInode { kind: NewKind::Fifo, ..file() }).unwrap();
    assert_eq!(reason(world.set_xattr(fifo, name, b"1", XattrSet::Any)), PathError::NotPermitted);
    world.set_xattr(fifo, b"trusted.a", b"1", XattrSet::Any).unwrap();
    for (name, value) in [(&b"btrfs.other"[..], &b"1"[..]), (b"btrfs.compression", b"gzip")] {
        let result = world.set_xattr(inode, name, value, XattrSet::Any);
        assert!(matches!(result, Err(Error::Invalid(_))));
    }
    world.check();
}

#[test]
fn values_may_fill_a_leaf() {
    let world = World::new(4096);
    let inode = world.file(ROOT, b"a");
    let name = b"user.a";
    let most = 4096 - 101 - 25 - 30 - name.len();
    world.set_xattr(inode, name, &vec![1; most], XattrSet::Any).unwrap();
    // The old value does not count against the limit.
    world.set_xattr(inode, name, &vec![2; most], XattrSet::Any).unwrap();
    assert_eq!(world.xattr(inode, name), Some(vec![2; most]));
    let set = |name: &[u8], size: usize| world.set_xattr(inode, name, &vec![3; size], XattrSet::Any);
    assert!(matches!(set(name, most + 1), Err(Error::XattrExceedsNode { .. })));
    assert_eq!(reason(set(name, 65537)), PathError::AttributeTooLarge);
    assert_eq!(world.xattr(inode, name), Some(vec![2; most]));
    world.check();

    let names = colliding_names("user.c", 99, 3);
    let set =
        |at: usize, size: usize| world.set_xattr(inode, &names[at], &vec![at as u8; size], XattrSet::Any);
    set(0, 1500).unwrap();
    set(1, 1500).unwrap();
    assert!(matches!(set(2, 1500), Err(Error::XattrExceedsNode { .. })));
    set(2, 100).unwrap();
    let item = world.tree.tree().get(&xattr_key(inode, &names[0])).unwrap().unwrap();
    assert!(item.data().len() > 3100);
    drop(item);
    world.remove_xattr(inode, &names[1]).unwrap();
    assert_eq!(world.xattr(inode, &names[0]), Some(vec![0; 1500]));
    assert_eq!(world.xattr(inode, &names[1]), None);
    assert_eq!(world.xattr(inode, &names[2]), Some(vec![2; 100]));
    world.check();
}

fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

#[test]
fn access_lists_and_modes_agree() {
    let world = World::new(4096);
    let inode = world.file(ROOT, b"a");
    const NONE: u32 = u32::MAX;
    let full = list(&[(1, 7, NONE), (2, 4, 1000), (4, 5, NONE), (0x10, 6, NONE), (0x20, 1, NONE)]);
    let item = world.set_xattr(inode, acl::ACCESS, &full, XattrSet::Any).unwrap();
    assert_eq!(item.mode, 0o100_761);
    assert_eq!(world.xattr(inode, acl::ACCESS), Some(full.clone()));
    world.set(inode, SetAttributes { mode: Some(0o640), ..nothing() }).unwrap();
    let changed = list(&[(1, 6, NONE), (2, 4, 1000), (4, 5, NONE), (0x10, 4, NONE), (0x20, 0, NONE)]);
    assert_eq!(world.xattr(inode, acl::ACCESS), Some(changed));
    // A list that is equivalent to the mode is not stored.
    let minimal = list(&[(1, 7, NONE), (4, 5, NONE), (0x20, 0, NONE)]);
    assert_eq!(world.set_xattr(inode, acl::ACCESS, &minimal, XattrSet::Any).unwrap().mode, 0o100_750);
    assert_eq!(world.xattr(inode, acl::ACCESS), None);
    world.set_xattr(inode, acl::ACCESS, &full, XattrSet::Any).unwrap();
    world.remove_xattr(inode, acl::ACCESS).unwrap();
    world.remove_xattr(inode, acl::ACCESS).unwrap();
    assert_eq!((world.xattr(inode, acl::ACCESS), world.item(inode).mode), (None, 0o100_761));
    let bad = world.set_xattr(inode, acl::ACCESS, &full[..20], XattrSet::Any);
    assert!(matches!(bad, Err(Error::Invalid(_))));
    assert_eq!(reason(world.set_xattr(inode, acl::DEFAULT, &full, XattrSet::Any)), PathError::AccessDenied);
    let directory = world.mkdir(ROOT, b"d");
    world.set_xattr(directory, acl::DEFAULT, &full, XattrSet::Any).unwrap();
    world.set_xattr(directory, acl::DEFAULT, &list(&[]), XattrSet::Any).unwrap();
    assert_eq!(world.xattr(directory, acl::DEFAULT), None);
    let link = world.create(ROOT, b"l", &NewInode { kind: NewKind::Symlink(b"x"), ..file() }).unwrap();
    assert_eq!(reason(world.set_xattr(link, acl::ACCESS, &full, XattrSet::Any)), PathError::NotSupported);
    world.check();
}
