//! Making, naming, renaming and removing files: on directories, and by path.
//!
//! Owns the half of [`Inode`] and [`FileSystem`] that changes names and attributes. Paths end in a name
//! that is looked up in the directory before it; a symbolic link there is not followed.

use crate::btree::TreeEditor;
use crate::errors::{Error, ErrorKind, PathError, Result};
use crate::file::change::NAME_ITEMS;
use crate::file::fsync::LOG_ITEMS;
use crate::fs::file::File;
use crate::fs::inode::Inode;
use crate::fsync_log::log_inode::forget_inode;
use crate::items::dir;
use crate::items::inode_ref_edit::Name;
use crate::items::numbers::SubvolumeNumbers;
use crate::items::xattr_edit::XattrSet;
use crate::namespace::Place;
use crate::namespace::create::{self, NewInode, NewKind};
use crate::namespace::rename::{self, RenameMode};
use crate::namespace::setattr::{self, SetAttributes};
use crate::namespace::{attributes, link};
use crate::subvolume::{self, Entry};
use crate::transaction::Handle;
use papilio_format::items::file_extent::Compression;
use papilio_format::items::inode::{FileKind, InodeFlags, Timespec};
use papilio_format::{InodeNumber, TreeId};

impl Inode {
    /// Makes an inode named `name` in this directory. Flags, group and default access control list are
    /// inherited as the kernel does.
    ///
    /// # Errors
    /// POSIX's reasons as [`PathError`]; [`Error::NoSpace`]; a read-only subvolume or file system.
    pub fn create(&self, name: &[u8], new: &NewInode<'_>) -> Result<Inode> {
        self.must_be(FileKind::Directory, PathError::NotADirectory)?;
        let new = &self.with_mount_flags(new);
        let created = self.file_system().info.change_handle(self.tree(), NAME_ITEMS, |handle, numbers| {
            self.add_name(handle, name, |editor| {
                create::create(editor, numbers, handle.now(), self.number(), name, new)
            })
        })?;
        self.file_system().reload(Place { tree: self.tree(), inode: created.inode })
    }

    /// Makes a regular file without a name, which is gone when it is closed unless [`Inode::link`] names it
    /// (`O_TMPFILE`).
    ///
    /// # Errors
    /// As [`Inode::create`].
    pub fn create_unnamed(&self, new: &NewInode<'_>) -> Result<File> {
        self.must_be(FileKind::Directory, PathError::NotADirectory)?;
        let new = &self.with_mount_flags(new);
        let created =
            self.file_system().info.change_tree(self.tree(), NAME_ITEMS, |editor, numbers, now| {
                create::create_unnamed(editor, numbers, now, self.number(), new)
            })?;
        let place = Place { tree: self.tree(), inode: created.inode };
        let file = self.file_system().reload(place)?.open()?;
        file.set_unnamed();
        Ok(file)
    }

    /// What is to be made, with the flags that the options give regular files.
    fn with_mount_flags<'a>(&self, new: &NewInode<'a>) -> NewInode<'a> {
        NewInode { file_flags: new.file_flags | self.file_system().info.file_flags, ..*new }
    }

    /// Names `target` once more, as `name` in this directory.
    ///
    /// # Errors
    /// [`PathError::CrossDevice`] where it lies in another subvolume, [`PathError::TooManyLinks`], else as
    /// [`Inode::create`].
    pub fn link(&self, target: &Inode, name: &[u8]) -> Result<()> {
        self.must_be(FileKind::Directory, PathError::NotADirectory)?;
        if target.tree() != self.tree() {
            return Err(Error::path(name, PathError::CrossDevice));
        }
        // Kept open meanwhile: without a name it would go with the last who has it open.
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

    /// Takes the name `name` of what is no directory away. The file goes with its last name, once nobody has
    /// it open.
    ///
    /// # Errors
    /// As [`Inode::create`]; [`PathError::IsADirectory`].
    pub fn unlink(&self, name: &[u8]) -> Result<()> {
        self.must_be(FileKind::Directory, PathError::NotADirectory)?;
        let removed = self.remove(name, link::unlink)?;
        self.removed_from(self.tree(), removed);
        Ok(())
    }

    /// Removes the empty directory `name`.
    ///
    /// # Errors
    /// As [`Inode::create`]; [`PathError::NotEmpty`], [`PathError::NotADirectory`].
    pub fn rmdir(&self, name: &[u8]) -> Result<()> {
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

    /// Takes a name away. It may use the space that is kept back, so that a full file system can be emptied.
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
            // Directories come back as the log has them: others may lie in them there.
            if removed.is_last() && removed.item.kind() != Some(FileKind::Directory) {
                match forget_inode(handle, &live, removed.inode) {
                    // What is done is not undone for that: the log is not used any more.
                    Err(error) if error.kind() == ErrorKind::NoSpace => handle.transactions().break_log(),
                    forgotten => forgotten?,
                }
            }
            self.forget_name(handle, removed, Some((self.number(), name)));
            Ok(removed)
        })
    }

    /// Adds a name that is free.
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

    /// A name went, whose slot is `empty` now or something else's.
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
    /// [`PathError::CrossDevice`] between subvolumes, [`PathError::IntoItself`], [`PathError::NotEmpty`] and
    /// POSIX's other reasons; as [`Inode::create`].
    pub fn rename(&self, name: &[u8], directory: &Inode, new_name: &[u8], mode: RenameMode) -> Result<()> {
        self.must_be(FileKind::Directory, PathError::NotADirectory)?;
        directory.must_be(FileKind::Directory, PathError::NotADirectory)?;
        if self.tree() != directory.tree() {
            return self.rename_subvolume(name, directory, new_name, mode);
        }
        self.rename_here(name, directory, new_name, mode, None)
    }

    /// Renames as [`Inode::rename`], and leaves a whiteout with the old name in the same change: a character
    /// device 0:0, by which overlays know that a name is gone (`RENAME_WHITEOUT`).
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
            return Err(Error::Invalid("an exchange leaves no name for a whiteout".to_owned()));
        }
        if self.tree() != directory.tree() {
            return Err(Error::path(name, PathError::CrossDevice));
        }
        let whiteout = NewInode::new(NewKind::CharacterDevice { major: 0, minor: 0 }, 0).owner(uid, gid);
        self.rename_here(name, directory, new_name, mode, Some(&whiteout))
    }

    /// Renames in one subvolume.
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
            // A target that is not to be replaced is refused as such, whatever it is.
            let names = if mode == RenameMode::NoReplace { &[from][..] } else { &[from, to] };
            for name in names {
                let entry = Entry { tree: self.tree(), directory: name.parent, name: name.name };
                let moves =
                    from.parent != to.parent && (name.parent == from.parent || mode == RenameMode::Exchange);
                subvolume::check_movable(handle, &editor, entry, moves)?;
            }
            self.note_rename(&editor, numbers, from, to)?;
            let renamed = rename::rename(&mut editor, numbers, handle.now(), from, to, mode)?;
            if let Some(removed) = renamed.replaced {
                self.forget_name(handle, removed, None);
            }
            // Two names of one inode stay, and then there is no place for a whiteout.
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
                    subvolume::entry_moved(handle, self.tree(), moved.id, directory, name, moved.new_index)?;
                }
            }
            Ok(renamed)
        })?;
        if let Some(removed) = renamed.replaced {
            self.removed_from(self.tree(), removed);
        }
        Ok(())
    }

    /// What has either name may get the other.
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

    /// Changes mode, owner and times, as `chmod`, `chown` and `utimensat` do.
    ///
    /// # Errors
    /// [`PathError::NotPermitted`] for an immutable inode; as [`Inode::create`].
    pub fn set_attributes(&self, set: &SetAttributes) -> Result<()> {
        // Times that are set now are newer than those of writes before.
        self.file_system().info.flush_place(self.place())?;
        self.file_system()
            .info
            .change_tree(self.tree(), NAME_ITEMS, |editor, _, now| {
                setattr::set_attributes(editor, now, self.number(), set)
            })
            .map(drop)
    }

    /// Notes that this inode was read at `time`; nothing else of it changes. Whether that is wanted (`noatime`,
    /// `relatime`) is the caller's question.
    ///
    /// # Errors
    /// As [`Inode::create`].
    pub fn set_access_time(&self, time: Timespec) -> Result<()> {
        self.file_system().info.change_tree(self.tree(), NAME_ITEMS, |editor, _, _| {
            setattr::set_access_time(editor, self.number(), time)
        })
    }

    /// Refuses what any change of this inode would be refused for: a file system or subvolume that is
    /// read-only, or a subvolume that is gone.
    ///
    /// # Errors
    /// [`Error::ReadOnlyFileSystem`], [`PathError::ReadOnly`], [`PathError::NoSubvolume`].
    pub fn check_changeable(&self) -> Result<()> {
        self.file_system().info.transactions()?.check_running()?;
        self.file_system().info.check_changeable(self.tree())
    }

    /// Sets the flags that `chattr` and the compression property set.
    ///
    /// # Errors
    /// [`PathError::NotSupported`] for other flags; [`Error::Invalid`] for those that exclude one another.
    pub fn set_flags(&self, flags: InodeFlags) -> Result<()> {
        let choice = self.file_system().info.write_options.compression;
        let algorithm = choice.map_or(Compression::Zlib, |choice| choice.algorithm());
        // Whether it is empty is for all that was written to say.
        self.file_system().info.flush_place(self.place())?;
        self.file_system()
            .info
            .change_tree(self.tree(), NAME_ITEMS, |editor, _, now| {
                setattr::set_flags(editor, now, self.number(), flags, algorithm)
            })
            .map(drop)
    }

    /// Sets an extended attribute; access control lists are checked and change the mode as they do in the
    /// kernel.
    ///
    /// # Errors
    /// [`PathError::Exists`] or [`PathError::NoAttribute`] where `how` asks for the opposite; a value that is
    /// too large or senseless; as [`Inode::create`].
    pub fn set_xattr(&self, name: &[u8], value: &[u8], how: XattrSet) -> Result<()> {
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
