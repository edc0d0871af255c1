//! Creating, renaming and deleting subvolumes and snapshots: in a directory, by path, and by id.
//!
//! Owns the methods of [`Inode`] and [`FileSystem`] that do this. Deletion removes the entry at
//! once; a background thread or [`FileSystem::clean_subvolumes`] frees the space later. Open files
//! of a deleted subvolume, and kept inodes, stay usable; its space is freed after the last of them.
//! A file that was opened for writing stays writable when its subvolume becomes read-only.
//!
//! **Locks**, in order of acquisition: `FsInfo::sharing` (exclusive, for snapshots and for making a
//! subvolume read-only), then those of a transaction handle.

use crate::as_path::AsPath;
use crate::file_system::FileSystem;
use crate::inode::Inode;
use crate::paths::name_path;
use papilio_engine::errors::{Error, PathError, Result};
use papilio_engine::file::change::NAME_ITEMS;
use papilio_engine::items::numbers::SubvolumeNumbers;
use papilio_engine::namespace::create::{NewInode, NewKind};
use papilio_engine::namespace::rename::RenameMode;
use papilio_engine::subvolume::{self, DirName, Numbers, Received};
use papilio_engine::transaction::Handle;
use papilio_engine::transaction::Start;
use papilio_engine::transaction::quota::Inherit;
use papilio_format::items::inode::FileKind;
use papilio_format::items::qgroup::QgroupId;
use papilio_format::{Generation, TreeId, objectid};
use std::sync::Arc;

/// Tree items that a new subvolume changes: entry, references, root item, UUID, the new tree.
const SUBVOLUME_ITEMS: u64 = NAME_ITEMS + 8;

impl Inode {
    /// Creates an empty subvolume named `name` in this directory. `new` describes its root
    /// directory, which inherits flags and the compression property. The next commit makes it
    /// durable ([`FileSystem::commit`]), so that many can be created in one transaction.
    ///
    /// # Errors
    /// [`PathError::NotADirectory`] if `new` is of another kind; as [`Inode::create`].
    pub fn create_subvolume(&self, name: &[u8], new: &NewInode<'_>) -> Result<Inode> {
        self.create_subvolume_in(name, new, &[])
    }

    /// Creates an empty subvolume like [`Inode::create_subvolume`], and makes it a member of
    /// qgroups. Without quotas these are ignored.
    ///
    /// # Errors
    /// [`QuotaError::NoQgroup`](papilio_engine::QuotaError::NoQgroup); as
    /// [`Inode::create_subvolume`].
    pub fn create_subvolume_in(
        &self,
        name: &[u8],
        new: &NewInode<'_>,
        qgroups: &[QgroupId],
    ) -> Result<Inode> {
        let inherit = Inherit { groups: qgroups.to_vec(), limits: None };
        self.must_be(FileKind::Directory, PathError::NotADirectory)?;
        if !matches!(new.kind, NewKind::Directory) {
            return Err(Error::path(name, PathError::NotADirectory));
        }
        let fs = self.file_system();
        fs.info.charge(self.tree(), 0, NAME_ITEMS)?;
        let ids = fs.subvolume_ids();
        let id = fs.info.change(self.tree(), SUBVOLUME_ITEMS, |handle, numbers| {
            self.note_subvolume(handle, numbers, name)?;
            let numbers = Numbers { subvolumes: &ids, parent: numbers };
            subvolume::create(handle, numbers, self.entry_named(name), new, &inherit)
        })?;
        fs.subvolume_root(id)
    }

    /// Creates a snapshot of subvolume `source`, named `name`, in this directory, without a copy of
    /// its content. Subvolumes nested in the source appear as empty directories.
    ///
    /// As in the kernel, the snapshot is the last change of its transaction, and durable when the
    /// call returns. So is every change of names, attributes and written files before it. Later
    /// changes of the source have a higher generation than the snapshot.
    ///
    /// # Errors
    /// [`PathError::NoSubvolume`] if there is no source; as [`Inode::create`] and
    /// [`FileSystem::commit`].
    pub fn create_snapshot(&self, source: TreeId, name: &[u8], read_only: bool) -> Result<Inode> {
        self.create_snapshot_in(source, name, read_only, &[])
    }

    /// Creates a snapshot like [`Inode::create_snapshot`], and makes it a member of qgroups.
    /// Without quotas these are ignored; with them, it commits twice.
    ///
    /// # Errors
    /// [`QuotaError::NoQgroup`](papilio_engine::QuotaError::NoQgroup); as
    /// [`Inode::create_snapshot`].
    pub fn create_snapshot_in(
        &self,
        source: TreeId,
        name: &[u8],
        read_only: bool,
        qgroups: &[QgroupId],
    ) -> Result<Inode> {
        let inherit = Inherit { groups: qgroups.to_vec(), limits: None };
        self.must_be(FileKind::Directory, PathError::NotADirectory)?;
        let fs = self.file_system();
        // Refuses other trees.
        fs.info.trees.subvolume(source)?;
        let root = fs.subvolume_root(source)?;
        fs.info.charge(self.tree(), 0, NAME_ITEMS)?;
        let ids = fs.subvolume_ids();
        fs.info.flush_tree_beside(source)?;
        // Stops in-place writes until the snapshot shares the extents, and flushes earlier writes
        // into it.
        let mut sharing = fs.info.sharing.write();
        *sharing += 1;
        fs.info.flush_tree(source, *sharing)?;
        let id = fs.info.change(self.tree(), Start::items(SUBVOLUME_ITEMS).last(), |handle, numbers| {
            self.note_subvolume(handle, numbers, name)?;
            let numbers = Numbers { subvolumes: &ids, parent: numbers };
            subvolume::snapshot(handle, numbers, source, self.entry_named(name), read_only, &inherit)
        })?;
        drop(sharing);
        // Deletes the copies of the source's open files without a name: no handle refers to them.
        if let Err(error) = fs.info.numbers(id) {
            tracing::warn!("snapshot {id}: the next mount has to delete unlinked files: {error}");
        }
        // The snapshot is durable: a device that fails now does not undo it.
        Ok(fs.subvolume_root(id).unwrap_or_else(|_| root.in_snapshot(id)))
    }

    /// Deletes the subvolume named `name` in this directory, with its content.
    ///
    /// # Errors
    /// [`PathError::NoSubvolume`] if `name` is not a subvolume, also for a nested subvolume's entry
    /// in a snapshot; [`PathError::NotPermitted`] for the default subvolume;
    /// [`PathError::NotEmpty`] if it contains other subvolumes; [`PathError::Busy`] for the
    /// subvolume that paths start from; as [`Inode::remove_file`].
    pub fn delete_subvolume(&self, name: &[u8]) -> Result<()> {
        self.must_be(FileKind::Directory, PathError::NotADirectory)?;
        self.delete_subvolume_if(name, false)
    }

    /// Removes an empty subvolume, or the empty directory that stands for a nested one in a
    /// snapshot (`rmdir`).
    pub(super) fn remove_empty_subvolume(&self, name: &[u8]) -> Result<()> {
        if self.lookup(name)?.is_some_and(|inode| inode.is_subvolume_stub()) {
            let fs = self.file_system();
            return fs.info.change(self.tree(), Start::items(NAME_ITEMS).steal(), |handle, numbers| {
                self.note_subvolume(handle, numbers, name)?;
                subvolume::forget_entry(handle, self.entry_named(name))
            });
        }
        self.delete_subvolume_if(name, true)
    }

    fn delete_subvolume_if(&self, name: &[u8], only_empty: bool) -> Result<()> {
        let fs = self.file_system();
        let id = fs.info.change(self.tree(), Start::items(NAME_ITEMS).steal(), |handle, numbers| {
            let in_use = fs.info.root.tree;
            self.note_subvolume(handle, numbers, name)?;
            subvolume::delete(handle, self.entry_named(name), only_empty, in_use)
        })?;
        fs.info.subvolume_was_deleted(id);
        if !fs.info.is_in_use(id) {
            fs.info.subvolumes.lock().remove(&id);
        }
        fs.info.background.clean();
        Ok(())
    }

    /// Renames a subvolume into another subvolume.
    pub(super) fn rename_subvolume(
        &self,
        name: &[u8],
        directory: &Inode,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        let fs = self.file_system();
        fs.info.check_changeable(directory.tree())?;
        let new_numbers = fs.info.numbers(directory.tree())?;
        let removed = fs.info.change(self.tree(), 2 * SUBVOLUME_ITEMS, |handle, numbers| {
            let (from, to) = (self.entry_named(name), directory.entry_named(new_name));
            self.note_subvolume(handle, numbers, name)?;
            directory.note_subvolume(handle, &new_numbers, new_name)?;
            subvolume::rename_across(handle, [numbers, &new_numbers], from, to, mode)
        })?;
        if let Some(removed) = removed {
            self.removed_from(directory.tree(), removed);
        }
        Ok(())
    }

    /// Notes that `name` gains or loses a subvolume. A log cannot express that, so the next fsync
    /// of the directory commits.
    fn note_subvolume(&self, handle: &Handle<'_>, numbers: &SubvolumeNumbers, name: &[u8]) -> Result<()> {
        let names = &self.file_system().info.name_changes;
        names.note_subvolume(handle.generation(), self.tree(), self.number(), name);
        numbers.keep_index(&handle.live_tree(self.tree())?.tree(), self.number())
    }

    fn entry_named<'a>(&self, name: &'a [u8]) -> DirName<'a> {
        DirName { tree: self.tree(), directory: self.number(), name }
    }
}

impl FileSystem {
    /// Creates an empty subvolume at `path`, owned by root, with mode 0755. The next commit makes
    /// it durable.
    ///
    /// # Errors
    /// As [`Inode::create_subvolume`].
    pub fn create_subvolume(&self, path: impl AsPath) -> Result<Inode> {
        let path = path.as_path_bytes();
        let (parent, name) = self.parent(path)?;
        let new = NewInode::new(NewKind::Directory, 0o755);
        parent.create_subvolume(name, &new).map_err(|error| name_path(error, path))
    }

    /// Creates a snapshot of the subvolume at `source`, at `path`, and commits.
    ///
    /// # Errors
    /// [`PathError::NoSubvolume`] if `source` is not a subvolume's root; as
    /// [`Inode::create_snapshot`].
    pub fn snapshot(&self, source: impl AsPath, path: impl AsPath, read_only: bool) -> Result<Inode> {
        let source = self.subvolume_at(source.as_path_bytes())?;
        let path = path.as_path_bytes();
        let (parent, name) = self.parent(path)?;
        parent.create_snapshot(source, name, read_only).map_err(|error| name_path(error, path))
    }

    /// Deletes the subvolume at `path`, with its content.
    ///
    /// # Errors
    /// As [`Inode::delete_subvolume`].
    pub fn delete_subvolume(&self, path: impl AsPath) -> Result<()> {
        let path = path.as_path_bytes();
        let (parent, name) = self.parent(path)?;
        parent.delete_subvolume(name).map_err(|error| name_path(error, path))
    }

    /// Deletes the subvolume with an id.
    ///
    /// # Errors
    /// [`PathError::NotPermitted`] for the top level; as [`Inode::delete_subvolume`].
    pub fn delete_subvolume_by_id(&self, id: TreeId) -> Result<()> {
        if id == objectid::FS_TREE {
            return Err(Error::path(format!("subvolume {id}").as_bytes(), PathError::NotPermitted));
        }
        self.info.trees.subvolume(id)?;
        let root_tree = self.info.trees.root_tree();
        let (tree, inode, name) = subvolume::entry_of(&root_tree, id)?;
        drop(root_tree);
        self.inode_at(tree, inode)?.delete_subvolume(&name)
    }

    /// Makes `id` the subvolume that a mount without options shows.
    ///
    /// # Errors
    /// [`PathError::NoSubvolume`]; as [`FileSystem::sync`].
    pub fn set_default_subvolume(&self, id: TreeId) -> Result<()> {
        self.info.trees.subvolume(id)?;
        self.info.transactions()?.change(NAME_ITEMS, |handle| subvolume::set_default(handle, id))
    }

    /// Makes the subvolume at `path` read-only or writable.
    ///
    /// # Errors
    /// [`PathError::NoSubvolume`] if `path` is not a subvolume's root; as [`FileSystem::sync`].
    pub fn set_subvolume_read_only(&self, path: impl AsPath, read_only: bool) -> Result<()> {
        let id = self.subvolume_at(path.as_path_bytes())?;
        self.set_subvolume_read_only_by_id(id, read_only)
    }

    /// Makes the subvolume with an id read-only or writable.
    ///
    /// # Errors
    /// [`PathError::NoSubvolume`] if there is none; as [`FileSystem::sync`].
    pub fn set_subvolume_read_only_by_id(&self, id: TreeId, read_only: bool) -> Result<()> {
        self.info.trees.subvolume(id)?;
        // Flushes earlier changes while the subvolume is still writable.
        let sharing = self.info.sharing.write();
        self.info.flush_tree(id, *sharing)?;
        self.info.transactions()?.change(NAME_ITEMS, |handle| subvolume::set_read_only(handle, id, read_only))
    }

    /// Marks the subvolume at `path` as received, and returns the generation of the change. Call it
    /// before making the subvolume read-only.
    ///
    /// # Errors
    /// [`PathError::NoSubvolume`] if `path` is not a subvolume's root; [`PathError::ReadOnly`]; as
    /// [`FileSystem::sync`].
    pub fn set_received(&self, path: impl AsPath, received: &Received) -> Result<Generation> {
        self.set_received_by_id(self.subvolume_at(path.as_path_bytes())?, received)
    }

    /// Marks the subvolume `id` as received, as [`FileSystem::set_received`] does.
    ///
    /// # Errors
    /// As [`FileSystem::set_received`].
    pub fn set_received_by_id(&self, id: TreeId, received: &Received) -> Result<Generation> {
        self.info.transactions()?.change(NAME_ITEMS, |handle| subvolume::set_received(handle, id, received))
    }

    /// Returns the subvolume whose root directory is at `path`.
    fn subvolume_at(&self, path: &[u8]) -> Result<TreeId> {
        let inode = self.inode(path)?;
        if !inode.is_subvolume_root() {
            return Err(Error::path(path, PathError::NoSubvolume));
        }
        Ok(inode.tree())
    }

    /// Returns the allocator of subvolume ids: the root tree's inode numbers.
    fn subvolume_ids(&self) -> Arc<SubvolumeNumbers> {
        Arc::clone(self.info.subvolumes.lock().entry(objectid::ROOT_TREE).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CheckOptions, MkfsOptions, OpenOptions, check_devices, mkfs_device};
    use papilio_device::{Device, MemoryDevice};
    use papilio_format::items::root::root_key;

    #[test]
    fn missing_uuid_tree_is_rebuilt_from_all_subvolumes() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20));
        mkfs_device(&device, &MkfsOptions::new()).unwrap();
        let options = OpenOptions::new().write(true).commit_interval(None);
        let fs = FileSystem::from_devices(vec![Arc::clone(&device)], &options).unwrap();
        fs.create_subvolume("/before").unwrap();
        fs.sync().unwrap();
        // Kernels before 3.12 have no UUID tree.
        let live = fs.info.transactions().unwrap().live();
        fs.info
            .transactions()
            .unwrap()
            .change(NAME_ITEMS, |handle| {
                let root = handle.live_tree(objectid::UUID_TREE)?.tree().root_block()?;
                handle.drop_block_ref(root.address(), root.level(), objectid::UUID_TREE, None, true);
                live.root_tree().edit(handle).remove(root_key(objectid::UUID_TREE))?;
                live.remove(objectid::UUID_TREE);
                Ok(())
            })
            .unwrap();
        fs.sync().unwrap();
        assert!(live.find(objectid::UUID_TREE).unwrap().is_none());
        fs.create_subvolume("/after").unwrap();
        fs.close().unwrap();
        let check = CheckOptions::new();
        let report = check_devices(vec![device], &OpenOptions::new(), &check).unwrap();
        assert!(report.is_clean(), "{:#?}", report.findings);
    }
}
