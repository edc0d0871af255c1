//! Creating, linking, renaming and removing files in a directory, and changing attributes.
//!
//! Owns the methods of [`Inode`] that do this; [`names_by_path`](super::names_by_path) has those
//! that take paths.
//!
//! **Invariant:** each change of a name is noted in `FsInfo::name_changes` before it reaches the
//! tree, so that a later fsync can log it.

use crate::file::File;
use crate::inode::Inode;
use papilio_engine::btree::TreeEditor;
use papilio_engine::errors::{Error, ErrorKind, PathError, Result};
use papilio_engine::file::change::NAME_ITEMS;
use papilio_engine::file::fsync::LOG_ITEMS;
use papilio_engine::fsync_log::log_inode::forget_inode;
use papilio_engine::items::dir;
use papilio_engine::items::inode_ref_edit::Name;
use papilio_engine::items::numbers::SubvolumeNumbers;
use papilio_engine::items::xattr_edit::XattrSet;
use papilio_engine::namespace::Place;
use papilio_engine::namespace::create::{self, NewInode, NewKind};
use papilio_engine::namespace::rename::{self, RenameMode};
use papilio_engine::namespace::setattr::{self, SetAttributes, SetTime};
use papilio_engine::namespace::{attributes, link};
use papilio_engine::subvolume::{self, DirName};
use papilio_engine::transaction::Handle;
use papilio_format::items::file_extent::Compression;
use papilio_format::items::inode::{FileKind, InodeFlags, Timespec};
use papilio_format::{InodeNumber, TreeId};

impl Inode {
    /// Creates an inode named `name` in this directory. It inherits flags, group and default access
    /// control list as in the kernel.
    ///
    /// # Errors
    /// The POSIX reasons as [`PathError`]; [`Error::NoSpace`]; a read-only subvolume or file
    /// system.
    pub fn create(&self, name: &[u8], new: &NewInode<'_>) -> Result<Inode> {
        self.must_be(FileKind::Directory, PathError::NotADirectory)?;
        let new = &self.with_mount_flags(new);
        self.file_system().info.charge(self.tree(), 0, NAME_ITEMS)?;
        let created = self.file_system().info.change_handle(self.tree(), NAME_ITEMS, |handle, numbers| {
            self.add_name(handle, name, |editor| {
                create::create(editor, numbers, handle.now(), self.number(), name, new)
            })
        })?;
        self.file_system().reload(Place { tree: self.tree(), inode: created.inode })
    }

    /// Creates a regular file without a name (`O_TMPFILE`). Its last handle deletes it, unless
    /// [`Inode::hard_link`] gave it a name.
    ///
    /// # Errors
    /// As [`Inode::create`].
    pub fn create_unnamed(&self, new: &NewInode<'_>) -> Result<File> {
        self.must_be(FileKind::Directory, PathError::NotADirectory)?;
        let new = &self.with_mount_flags(new);
        self.file_system().info.charge(self.tree(), 0, NAME_ITEMS)?;
        let created =
            self.file_system().info.change_tree(self.tree(), NAME_ITEMS, |editor, numbers, now| {
                create::create_unnamed(editor, numbers, now, self.number(), new)
            })?;
        let place = Place { tree: self.tree(), inode: created.inode };
        let file = self.file_system().reload(place)?.open()?;
        file.set_unnamed();
        Ok(file)
    }

    /// Adds the flags that the mount options give each regular file.
    fn with_mount_flags<'a>(&self, new: &NewInode<'a>) -> NewInode<'a> {
        NewInode { file_flags: new.file_flags | self.file_system().info.file_flags, ..*new }
    }

    /// Gives `target` the further name `name` in this directory.
    ///
    /// # Errors
    /// [`PathError::CrossDevice`] if it is in another subvolume, [`PathError::TooManyLinks`]; as
    /// [`Inode::create`].
    pub fn hard_link(&self, target: &Inode, name: &[u8]) -> Result<()> {
        self.must_be(FileKind::Directory, PathError::NotADirectory)?;
        let fault = match target.file_type() {
            _ if target.tree() != self.tree() => Some(PathError::CrossDevice),
            FileKind::Directory => Some(PathError::NotPermitted),
            _ => None,
        };
        if let Some(fault) = fault {
            // As in the kernel, a name that exists comes before faults of the target.
            let exists = self.lookup(name)?.is_some();
            return Err(Error::path(name, if exists { PathError::Exists } else { fault }));
        }
        self.file_system().info.charge(self.tree(), 0, NAME_ITEMS)?;
        // Keeps the inode open: if it has no name, its last handle deletes it.
        let open = self.file_system().info.open_inodes.get(target.place());
        let linkable = open.as_ref().and_then(|open| open.linkable());
        let unnamed = linkable.is_some();
        self.file_system().info.change_handle(self.tree(), NAME_ITEMS, |handle, numbers| {
            let names = &self.file_system().info.name_changes;
            let _changing = names.changing();
            let live = handle.live_tree(self.tree())?;
            let mut editor = live.edit(handle);
            let generation = handle.generation();
            names.note(generation, &editor.tree(), self.number(), name, Some(target.number()))?;
            link::link(&mut editor, numbers, handle.now(), target.number(), unnamed, self.number(), name)
        })?;
        if let (Some(open), Some(linkable)) = (&open, linkable) {
            open.named(linkable);
        }
        Ok(())
    }

    /// Removes the name `name`; refuses directories. A file without names is deleted when its last
    /// handle is dropped.
    ///
    /// # Errors
    /// As [`Inode::create`]; [`PathError::IsADirectory`].
    pub fn remove_file(&self, name: &[u8]) -> Result<()> {
        self.must_be(FileKind::Directory, PathError::NotADirectory)?;
        let removed = self.remove(name, link::unlink)?;
        self.removed_from(self.tree(), removed);
        Ok(())
    }

    /// Removes the empty directory `name`.
    ///
    /// # Errors
    /// As [`Inode::create`]; [`PathError::NotEmpty`], [`PathError::NotADirectory`].
    pub fn remove_dir(&self, name: &[u8]) -> Result<()> {
        self.must_be(FileKind::Directory, PathError::NotADirectory)?;
        match self.remove(name, link::rmdir) {
            Ok(removed) => self.removed_from(self.tree(), removed),
            Err(error) if error.kind() == ErrorKind::Path(PathError::IsASubvolume) => {
                self.remove_empty_subvolume(name)?;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Removes a name. The change may use the space kept back for removals, so that files can be
    /// removed from a full file system.
    fn remove(
        &self,
        name: &[u8],
        remove: impl Fn(&mut TreeEditor<'_>, Timespec, InodeNumber, &[u8]) -> Result<link::Removed>,
    ) -> Result<link::Removed> {
        let names = &self.file_system().info.name_changes;
        self.file_system().info.change_to_free(self.tree(), NAME_ITEMS + LOG_ITEMS, |handle, numbers| {
            let _changing = names.changing();
            let live = handle.live_tree(self.tree())?;
            let removed = {
                let mut editor = live.edit(handle);
                numbers.keep_index(&editor.tree(), self.number())?;
                names.note(handle.generation(), &editor.tree(), self.number(), name, None)?;
                remove(&mut editor, handle.now(), self.number(), name)?
            };
            // The replay may still need a logged directory for its logged entries.
            if removed.is_last() && removed.item.kind() != Some(FileKind::Directory) {
                match forget_inode(handle, &live, removed.inode) {
                    // The removal stays; the log is given up instead.
                    Err(error) if error.kind() == ErrorKind::NoSpace => handle.transactions().break_log(),
                    forgotten => forgotten?,
                }
            }
            self.forget_name(handle, removed, Some((self.number(), name)));
            Ok(removed)
        })
    }

    /// Adds a name; fails if it is taken.
    fn add_name<R>(
        &self,
        handle: &Handle<'_>,
        name: &[u8],
        add: impl FnOnce(&mut TreeEditor<'_>) -> Result<R>,
    ) -> Result<R> {
        let names = &self.file_system().info.name_changes;
        let _changing = names.changing();
        let live = handle.live_tree(self.tree())?;
        let mut editor = live.edit(handle);
        let first = names.note_free(handle.generation(), self.tree(), self.number(), name);
        let result = add(&mut editor);
        if first && result.is_err() {
            names.take_back(handle.generation(), self.tree(), self.number(), name);
        }
        result
    }

    /// Drops the notes about a removed inode that was created in this transaction and never logged.
    /// `empty` is the removed name, unless another inode has it now.
    fn forget_name(&self, handle: &Handle<'_>, removed: link::Removed, empty: Option<(InodeNumber, &[u8])>) {
        let generation = handle.generation();
        if removed.is_last()
            && removed.item.generation == generation
            && !handle.transactions().is_logged(self.tree(), removed.inode)
        {
            let names = &self.file_system().info.name_changes;
            names.forget(generation, self.tree(), removed.inode, empty);
        }
    }

    /// Deletes a removed inode if that was its last name and it is not open.
    pub(super) fn removed_from(&self, tree: TreeId, removed: link::Removed) {
        if removed.is_last() {
            let place = Place { tree, inode: removed.inode };
            let fs = self.file_system();
            fs.info.unlinked(place);
        }
    }

    /// Renames `name` in this directory to `new_name` in `directory`.
    ///
    /// # Errors
    /// [`PathError::CrossDevice`] between subvolumes, [`PathError::IntoItself`],
    /// [`PathError::NotEmpty`] and the other POSIX reasons; as [`Inode::create`].
    pub fn rename(&self, name: &[u8], directory: &Inode, new_name: &[u8], mode: RenameMode) -> Result<()> {
        self.must_be(FileKind::Directory, PathError::NotADirectory)?;
        directory.must_be(FileKind::Directory, PathError::NotADirectory)?;
        if self.tree() != directory.tree() {
            return self.rename_subvolume(name, directory, new_name, mode);
        }
        self.rename_here(name, directory, new_name, mode, None)
    }

    /// Renames as [`Inode::rename`], and in the same change creates a whiteout with the old name
    /// (`RENAME_WHITEOUT`): a character device 0:0, which hides the name in an overlay. The last
    /// argument is the whiteout's owner and group.
    ///
    /// # Errors
    /// As [`Inode::rename`]; [`Error::Invalid`] for an exchange.
    pub fn rename_leaving_whiteout(
        &self,
        name: &[u8],
        directory: &Inode,
        new_name: &[u8],
        mode: RenameMode,
        (uid, gid): (u32, u32),
    ) -> Result<()> {
        self.must_be(FileKind::Directory, PathError::NotADirectory)?;
        directory.must_be(FileKind::Directory, PathError::NotADirectory)?;
        if mode == RenameMode::Exchange {
            return Err(Error::Invalid("rename: an exchange leaves no name for a whiteout".to_owned()));
        }
        if self.tree() != directory.tree() {
            return Err(Error::path(name, PathError::CrossDevice));
        }
        let whiteout = NewInode::new(NewKind::CharacterDevice { major: 0, minor: 0 }, 0).owner(uid, gid);
        self.rename_here(name, directory, new_name, mode, Some(&whiteout))
    }

    /// Renames within one subvolume.
    fn rename_here(
        &self,
        name: &[u8],
        directory: &Inode,
        new_name: &[u8],
        mode: RenameMode,
        whiteout: Option<&NewInode<'_>>,
    ) -> Result<()> {
        let (from, to) =
            (Name { parent: self.number(), name }, Name { parent: directory.number(), name: new_name });
        let fs = self.file_system();
        let items = if whiteout.is_some() { 3 * NAME_ITEMS } else { 2 * NAME_ITEMS };
        let renamed = fs.info.change_handle(self.tree(), items, |handle, numbers| {
            let _changing = fs.info.name_changes.changing();
            let live = handle.live_tree(self.tree())?;
            let mut editor = live.edit(handle);
            // With `NoReplace` any existing target is refused below, with `PathError::Exists`.
            let names = if mode == RenameMode::NoReplace { &[from][..] } else { &[from, to] };
            for name in names {
                let entry = DirName { tree: self.tree(), directory: name.parent, name: name.name };
                let moves =
                    from.parent != to.parent && (name.parent == from.parent || mode == RenameMode::Exchange);
                subvolume::check_movable(handle, &editor, entry, moves)?;
            }
            self.note_rename(&editor, numbers, from, to)?;
            let renamed = rename::rename(&mut editor, numbers, handle.now(), from, to, mode)?;
            if let Some(removed) = renamed.replaced {
                self.forget_name(handle, removed, None);
            }
            // Renaming between two names of one inode changes nothing, so the old name is taken.
            if let Some(whiteout) = whiteout
                && dir::look_up(&editor.tree(), from.parent, from.name)?.is_none()
            {
                create::create(&mut editor, numbers, handle.now(), from.parent, from.name, whiteout)?;
            }
            for (moved, directory, name) in [
                (renamed.subvolume, to.parent, to.name),
                (renamed.exchanged_subvolume, from.parent, from.name),
            ] {
                if let Some(moved) = moved {
                    let at = DirName { tree: self.tree(), directory, name };
                    subvolume::entry_moved(handle, &mut editor, at, moved.id, moved.new_index)?;
                }
            }
            Ok(renamed)
        })?;
        if let Some(removed) = renamed.replaced {
            self.removed_from(self.tree(), removed);
        }
        Ok(())
    }

    /// Notes both names before a rename: each may get the other's inode.
    fn note_rename(
        &self,
        editor: &TreeEditor<'_>,
        numbers: &SubvolumeNumbers,
        from: Name<'_>,
        to: Name<'_>,
    ) -> Result<()> {
        let names = &self.file_system().info.name_changes;
        let (tree, generation) = (editor.tree(), editor.generation());
        let mut subvolume = false;
        for (name, other) in [(from, to), (to, from)] {
            let next = match dir::look_up(&tree, other.parent, other.name)?.map(|found| found.target) {
                Some(dir::EntryTarget::Inode(inode)) => Some(inode),
                Some(dir::EntryTarget::Subvolume(_)) => {
                    subvolume = true;
                    None
                }
                None => None,
            };
            numbers.keep_index(&tree, name.parent)?;
            names.note(generation, &tree, name.parent, name.name, next)?;
        }
        if subvolume {
            for name in [from, to] {
                names.note_subvolume(generation, tree.id(), name.parent, name.name);
            }
        }
        Ok(())
    }

    /// Changes mode, owner and times, as `chmod`, `chown` and `utimensat` do. A time that is set
    /// stays until a later write, also where earlier writes are flushed after this call.
    ///
    /// # Errors
    /// [`PathError::NotPermitted`] for an immutable inode; as [`Inode::create`].
    pub fn set_attributes(&self, set: &SetAttributes) -> Result<()> {
        self.file_system().info.set_attributes(self.place(), set)
    }

    /// Sets the times of writes that a client has cached: mtime and ctime, also in a subvolume that
    /// has become read-only since the client opened the file for writing.
    ///
    /// # Errors
    /// As [`Inode::create`], without [`PathError::ReadOnly`].
    pub fn store_write_times(&self, mtime: Timespec, ctime: Timespec) -> Result<()> {
        let set =
            SetAttributes { mtime: Some(SetTime::At(mtime)), ctime: Some(ctime), ..SetAttributes::default() };
        self.file_system().info.store_attributes(self.place(), &set)
    }

    /// Clears the privileges of a file whose data a caller has changed, as the kernel does on its
    /// own: gives it the permission bits `kept`, and removes its capabilities. Works also if the
    /// inode has become immutable since it was opened.
    ///
    /// # Errors
    /// As [`Inode::create`].
    pub fn kill_privileges(&self, kept: u32) -> Result<()> {
        self.file_system().info.kill_privileges(self.place(), kept)
    }

    /// Sets the access time, and nothing else. The caller decides whether to update it (`noatime`,
    /// `relatime`).
    ///
    /// # Errors
    /// As [`Inode::create`].
    pub fn set_access_time(&self, time: Timespec) -> Result<()> {
        self.file_system().info.change_tree(self.tree(), NAME_ITEMS, |editor, _, _| {
            setattr::set_access_time(editor, self.number(), time)
        })
    }

    /// Checks that this inode can be changed: neither the file system nor the subvolume is
    /// read-only, and the subvolume exists.
    ///
    /// # Errors
    /// [`Error::ReadOnlyFileSystem`], [`PathError::ReadOnly`], [`PathError::NoSubvolume`].
    pub fn check_changeable(&self) -> Result<()> {
        self.file_system().info.transactions()?.check_running()?;
        self.file_system().info.check_changeable(self.tree())
    }

    /// Sets the inode flags that `chattr` and the compression property control.
    ///
    /// # Errors
    /// [`PathError::NotSupported`] for other flags; [`Error::Invalid`] for flags that exclude one
    /// another.
    pub fn set_flags(&self, flags: InodeFlags) -> Result<()> {
        let choice = self.file_system().info.write_options.compression;
        let algorithm = choice.map_or(Compression::Zlib, |choice| choice.algorithm());
        // Some flags require an empty file, so dirty pages must count.
        self.file_system().info.flush_place(self.place())?;
        self.file_system()
            .info
            .change_tree(self.tree(), NAME_ITEMS, |editor, _, now| {
                setattr::set_flags(editor, now, self.number(), flags, algorithm)
            })
            .map(drop)
    }

    /// Adds NODATACOW and NODATASUM to a directory, or to a file that is empty and has not been
    /// opened. New files in a directory inherit NODATACOW.
    ///
    /// # Errors
    /// [`PathError::NotSupported`] for other flags and inodes; as [`Inode::create`].
    #[doc(hidden)]
    pub fn add_data_flags(&self, flags: InodeFlags) -> Result<()> {
        self.file_system()
            .info
            .change_tree(self.tree(), NAME_ITEMS, |editor, _, _| {
                setattr::add_data_flags(editor, self.number(), flags)
            })
            .map(drop)
    }

    /// Sets an extended attribute. Access control lists are checked, and change the mode as in the
    /// kernel.
    ///
    /// # Errors
    /// [`PathError::Exists`] or [`PathError::NoAttribute`] as `how` requires; a value that is too
    /// large or invalid; as [`Inode::create`].
    pub fn set_xattr(&self, name: &[u8], value: &[u8], how: XattrSet) -> Result<()> {
        self.file_system().info.charge(self.tree(), 0, NAME_ITEMS)?;
        self.file_system()
            .info
            .change_tree(self.tree(), NAME_ITEMS, |editor, _, now| {
                attributes::set_xattr(editor, now, self.number(), name, value, how)
            })
            .map(drop)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`PathError::NoAttribute`]; as [`Inode::create`].
    pub fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        self.file_system()
            .info
            .change_tree(self.tree(), NAME_ITEMS, |editor, _, now| {
                attributes::remove_xattr(editor, now, self.number(), name)
            })
            .map(drop)
    }
}
