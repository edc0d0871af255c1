//! The client's side of ioctls that lead from addresses to files, from inodes to paths, and from
//! one file's bytes to another's.
//!
//! On the kernel's Btrfs, the search of trees (for administrators) also lists the subvolumes, which
//! a mount of Papilio answers with an ioctl of its own.

use super::{MountedPath, garbled};
use crate::host;
use crate::layout::{DedupeRange, DevInfo, FileCloneRange, InoLookup, LogicalIno, OwnDedupeRange, until_nul};
use crate::number::Command;
use papilio_engine::jobs::extent_owners::ExtentOwner;
use papilio_engine::subvolume::Subvolume;
use papilio_format::items::dir_item::DirEntries;
use papilio_format::items::inode_ref::{InodeExtrefs, InodeRefs};
use papilio_format::items::root::RootItem;
use papilio_format::items::root_ref::RootRef;
use papilio_format::{DeviceId, InodeNumber, ItemType, Key, LogicalAddress, TreeId, objectid};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Size of the counters before the values of a container, in 64-bit words.
const COUNTERS: usize = 2;
/// `BTRFS_LOGICAL_INO_ARGS_IGNORE_OFFSET`.
const IGNORE_OFFSET: u64 = 1;
/// `FILE_DEDUPE_RANGE_DIFFERS`.
const DIFFERS: i32 = 1;
/// Most subvolumes in one another, as a limit for damaged trees.
const DEPTH_LIMIT: usize = 1 << 10;
/// The name of the default subvolume in the directory of the root tree.
const DEFAULT_ENTRY: &[u8] = b"default";

impl MountedPath {
    /// Returns the files that contain the byte at `address`, or with `whole` any byte of its
    /// extent, and the number of files that did not fit into `size` bytes.
    ///
    /// # Errors
    /// ENOENT if nothing is there; EINVAL for a tree block; EPERM without `CAP_SYS_ADMIN`.
    pub fn extent_owners(
        &self,
        address: LogicalAddress,
        whole: bool,
        size: usize,
    ) -> io::Result<(Vec<ExtentOwner>, u32)> {
        let mut container = vec![0_u64; size.div_ceil(size_of::<u64>()).max(COUNTERS)];
        let second = whole || size > 64 << 10;
        let mut arguments = LogicalIno {
            logical: address.0,
            size: size_of_val(&container[..]) as u64,
            flags: if whole { IGNORE_OFFSET } else { 0 },
            inodes: container.as_mut_ptr() as u64,
            ..LogicalIno::default()
        };
        let command = if second { Command::LOGICAL_INO_V2 } else { Command::LOGICAL_INO };
        // SAFETY: the command has a `LogicalIno` as its argument, which names a buffer of `size`
        // bytes. Both outlive the call, nothing else refers to them, and any bytes are valid.
        unsafe { host::ioctl(self.as_fd(), command, &raw mut arguments)? };
        let [count, missed] = [container[1] as u32, (container[1] >> 32) as u32];
        let [count, missed] = if cfg!(target_endian = "little") { [count, missed] } else { [missed, count] };
        let values = container[COUNTERS..].get(..count as usize).ok_or_else(garbled)?;
        let owner = |part: &[u64]| ExtentOwner {
            tree: TreeId(part[2]),
            inode: InodeNumber(part[0]),
            offset: part[1],
        };
        Ok((values.chunks_exact(3).map(owner).collect(), missed / 3))
    }

    /// Returns the devices' ids and paths; a missing device has none.
    ///
    /// # Errors
    /// ENOTTY if it is not in a Btrfs.
    pub fn device_paths(&self) -> io::Result<Vec<(DeviceId, Option<Vec<u8>>)>> {
        let mut found = Vec::new();
        for devid in 0..=self.fs_info()?.max_id {
            let mut info = DevInfo { devid, ..DevInfo::default() };
            match self.call(Command::DEV_INFO, &mut info) {
                Ok(()) => {
                    let path = until_nul(&info.path).unwrap_or_default();
                    // The kernel's words for a device that it does not have.
                    let is_there = !path.is_empty() && path != b"<missing disk>";
                    found.push((DeviceId(devid), is_there.then(|| path.to_vec())));
                }
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Returns the bytes of a device that the file system uses.
    ///
    /// # Errors
    /// ENODEV for an unknown device.
    pub fn device_size(&self, devid: DeviceId) -> io::Result<u64> {
        Ok(self.device_info(devid)?.total_bytes)
    }

    pub(super) fn device_info(&self, devid: DeviceId) -> io::Result<DevInfo> {
        let mut info = DevInfo { devid: devid.0, ..DevInfo::default() };
        self.call(Command::DEV_INFO, &mut info)?;
        Ok(info)
    }

    /// Returns the path of a directory from the root of its subvolume, empty or with a slash at the
    /// end. Tree 0 means the file's own subvolume.
    ///
    /// # Errors
    /// ENOENT if there is no such inode; EPERM without `CAP_SYS_ADMIN`.
    pub fn directory_path(&self, tree: TreeId, directory: InodeNumber) -> io::Result<Vec<u8>> {
        let mut lookup = InoLookup { tree: tree.0, inode: directory.0, ..InoLookup::default() };
        self.call(Command::INO_LOOKUP, &mut lookup)?;
        Ok(until_nul(&lookup.name).unwrap_or(&lookup.name).to_vec())
    }

    /// Returns the paths of an inode from the root of its subvolume, without a slash in front.
    ///
    /// # Errors
    /// ENOENT if there is no such inode; EPERM without `CAP_SYS_ADMIN`.
    pub fn inode_paths(&self, tree: TreeId, inode: InodeNumber) -> io::Result<Vec<Vec<u8>>> {
        if inode == objectid::FIRST_INODE {
            return Ok(vec![Vec::new()]);
        }
        let mut names = Vec::new();
        let keys =
            Key::new(inode.0, ItemType::INODE_REF, 0)..=Key::new(inode.0, ItemType::INODE_EXTREF, u64::MAX);
        self.search_tree(tree, keys, 0, |_, key, item| {
            if key.item_type == ItemType::INODE_REF {
                for name in InodeRefs::parse(item).map_err(|_| garbled())? {
                    names.push((InodeNumber(key.offset), name.name.to_vec()));
                }
            } else if key.item_type == ItemType::INODE_EXTREF {
                for name in InodeExtrefs::parse(item).map_err(|_| garbled())? {
                    names.push((name.parent, name.name.to_vec()));
                }
            }
            Ok(())
        })?;
        if names.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        }
        let path =
            |(parent, name): (InodeNumber, Vec<u8>)| Ok([self.directory_path(tree, parent)?, name].concat());
        names.into_iter().map(path).collect()
    }

    /// Shares `length` bytes of this file from `from` on with `target` from `to` on, if they are
    /// the same (`FIDEDUPERANGE`). Returns the shared bytes, or `None` if they differ.
    ///
    /// # Errors
    /// EOPNOTSUPP or ENOTTY where the file system cannot; those of the kernel otherwise.
    pub fn dedupe_range(&self, from: u64, length: u64, target: &Self, to: u64) -> io::Result<Option<u64>> {
        match self.own_dedupe_range(from, length, target, to) {
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {}
            result => return result,
        }
        let mut arguments = DedupeRange {
            source: from,
            length,
            count: 1,
            target: target.as_fd().as_raw_fd().into(),
            target_offset: to,
            ..DedupeRange::default()
        };
        self.call(Command::DEDUPE_RANGE, &mut arguments)?;
        match arguments.status {
            0 => Ok(Some(arguments.deduped)),
            DIFFERS => Ok(None),
            error => Err(io::Error::from_raw_os_error(error.saturating_neg())),
        }
    }

    /// As [`MountedPath::dedupe_range`], by the ioctl of our own mounts.
    fn own_dedupe_range(&self, from: u64, length: u64, target: &Self, to: u64) -> io::Result<Option<u64>> {
        let range = FileCloneRange { source: self.as_fd().as_raw_fd().into(), from, length, to };
        let mut arguments = OwnDedupeRange { range, ..OwnDedupeRange::default() };
        // The server compares what it has, and the kernel may have written nothing back yet.
        host::write_back_data(self.as_fd())?;
        target.call(Command::OWN_DEDUPE_RANGE, &mut arguments)?;
        Ok((arguments.differs == 0).then_some(arguments.deduped))
    }

    /// Lists the subvolumes by searching the root tree.
    /// Reads the entry of the root tree that names the default subvolume. Without one it is the top
    /// level.
    pub(super) fn searched_default(&self) -> io::Result<TreeId> {
        let key = |offset| Key::new(objectid::ROOT_TREE_DIR, ItemType::DIR_ITEM, offset);
        let mut found = objectid::FS_TREE;
        self.search_tree(objectid::ROOT_TREE, key(0)..=key(u64::MAX), 0, |_, _, item| {
            for entry in DirEntries::parse(item).map_err(|_| garbled())? {
                if entry.name == DEFAULT_ENTRY {
                    found = TreeId(entry.location.objectid);
                }
            }
            Ok(())
        })?;
        Ok(found)
    }

    pub(super) fn searched_subvolumes(&self) -> io::Result<Vec<Subvolume>> {
        let mut items: Vec<(TreeId, RootItem)> = Vec::new();
        let mut parents = HashMap::new();
        let keys = Key::first_of(objectid::FS_TREE.0)..=Key::last_of(objectid::LAST_FREE);
        self.search_tree(objectid::ROOT_TREE, keys, 0, |_, key, item| {
            let id = TreeId(key.objectid);
            if !objectid::is_subvolume(id) {
                return Ok(());
            }
            if key.item_type == ItemType::ROOT_ITEM && items.last().is_none_or(|(last, _)| *last != id) {
                items.push((id, RootItem::parse(item).map_err(|_| garbled())?));
            } else if key.item_type == ItemType::ROOT_BACKREF {
                let reference = RootRef::parse(item).map_err(|_| garbled())?;
                let parent = (TreeId(key.offset), reference.directory, reference.name.to_vec());
                parents.insert(id, parent);
            }
            Ok(())
        })?;
        items.into_iter().map(|(id, item)| self.described(id, &item, &parents)).collect()
    }

    fn described(
        &self,
        id: TreeId,
        item: &RootItem,
        parents: &HashMap<TreeId, (TreeId, InodeNumber, Vec<u8>)>,
    ) -> io::Result<Subvolume> {
        let parent = parents.get(&id);
        let mut path = Some(Vec::new());
        let mut current = id;
        for _ in 0..DEPTH_LIMIT {
            if current == objectid::FS_TREE {
                break;
            }
            let Some((above, directory, name)) = parents.get(&current) else {
                path = None;
                break;
            };
            let below = path.take().unwrap_or_default();
            let slash: &[u8] = if below.is_empty() { b"" } else { b"/" };
            path = Some([&self.directory_path(*above, *directory)?[..], name, slash, &below].concat());
            current = *above;
        }
        Ok(Subvolume {
            id,
            parent: parent.map(|(parent, ..)| *parent),
            directory: parent.map(|(_, directory, _)| *directory),
            name: parent.map(|(.., name)| name.clone()).unwrap_or_default(),
            path,
            uuid: item.uuid,
            parent_uuid: item.parent_uuid,
            received_uuid: item.received_uuid,
            generation: item.generation,
            created: item.otransid,
            changed: item.ctransid,
            sent: item.stransid,
            received: item.rtransid,
            creation_time: item.otime,
            change_time: item.ctime,
            send_time: item.stime,
            receive_time: item.rtime,
            flags: item.flags,
            refs: item.refs,
        })
    }
}
