//! The calls that change an export.
//!
//! Each checks that the caller may, and changes, under the lock of names. A new inode belongs to
//! the caller; only root chooses another owner. Kernel counterparts: `nfsd_setattr`,
//! `nfsd_create_setattr`, `nfsd3_create_file` (`fs/nfsd/vfs.c`, `nfs3proc.c`).

use crate::arguments::{Arguments, ClientSet, Garbage};
use crate::attributes::{before, time};
use crate::errors::status;
use crate::export::Session;
use crate::handle::Id;
use crate::read::{NAME_MOST, outcome};
use nfs3_types::nfs3::{
    CREATE3res, CREATE3resfail, CREATE3resok, LINK3res, LINK3resfail, LINK3resok, NFS3_FHSIZE, Nfs3Option,
    Nfs3Result, RENAME3res, RENAME3resfail, RENAME3resok, SETATTR3res, SETATTR3resfail, SETATTR3resok,
    nfsstat3, wcc_attr, wcc_data,
};
use papilio::{FileKind, Inode, NewKind, Permissions, RenameMode, SetAttributes, SetTime, Timespec};

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o0010;

/// The results of a call that only reports the state of a directory.
pub(crate) type DirectoryResult = Nfs3Result<wcc_data, wcc_data>;

/// The way a CREATE treats a name that exists.
enum How {
    Unchecked(ClientSet),
    Guarded(ClientSet),
    /// The times of the new file are the request's verifier, by which a repeated request knows its
    /// own file. The client then sets the times.
    Exclusive([Timespec; 2]),
}

/// The inode of a call that creates one.
enum Made {
    /// It is new or was changed.
    New(Inode),
    /// It was there.
    Before(Inode),
}

impl How {
    fn parse(arguments: &mut Arguments<'_>) -> Result<Self, Garbage> {
        Ok(match arguments.u32()? {
            0 => Self::Unchecked(arguments.set()?),
            1 => Self::Guarded(arguments.set()?),
            2 => Self::Exclusive(
                [arguments.u32()?, arguments.u32()?]
                    .map(|half| Timespec { seconds: half.into(), nanoseconds: 0 }),
            ),
            _ => return Err(Garbage),
        })
    }
}

impl Session<'_> {
    pub(crate) fn setattr(&self, mut arguments: Arguments<'_>) -> Result<SETATTR3res, Garbage> {
        let (handle, set) = (arguments.opaque(NFS3_FHSIZE)?, arguments.set()?);
        let guard = arguments.guard()?;
        let mut old = None;
        let mut change = || {
            let _names = self.export.names.lock();
            let inode = self.inode(self.open_handle(handle)?)?;
            old = Some(before(inode.metadata()));
            if guard.is_some_and(|guard| time(guard) != time(inode.metadata().ctime())) {
                return Err(nfsstat3::NFS3ERR_NOT_SYNC);
            }
            self.set(&inode, &set).map(|()| inode)
        };
        // Others change names while this waits for the device.
        let done = change().and_then(|inode| self.keep([&inode]));
        let done = done.map(|()| SETATTR3resok { obj_wcc: self.change(handle, old) });
        Ok(outcome(done, || SETATTR3resfail { obj_wcc: self.change(handle, None) }))
    }

    /// Sets attributes and size, as far as the caller may.
    fn set(&self, inode: &Inode, set: &ClientSet) -> Result<(), nfsstat3> {
        self.must_be_writable()?;
        let mut attributes = set.attributes;
        match inode.file_type() {
            // Symbolic links have no mode.
            FileKind::Symlink => attributes.mode = None,
            FileKind::Directory => {}
            _ if attributes.uid.is_some() || attributes.gid.is_some() => {
                attributes.mode = attributes.mode.map(without_privileges);
            }
            _ => {}
        }
        let checked = inode.check_set_attributes(&self.caller, &attributes);
        let attributes = checked.map_err(|error| status(&error))?;
        if let Some(size) = set.size {
            let file = self.regular(Id::of(inode))?;
            self.must_reach_data(&file, Permissions::WRITE)?;
            let cut = file.open().and_then(|file| file.set_len(size));
            let cut = cut.and_then(|()| file.drop_privileges(&self.caller));
            cut.map_err(|error| status(&error))?;
        }
        if attributes != SetAttributes::default() {
            inode.set_attributes(&attributes).map_err(|error| status(&error))?;
        }
        Ok(())
    }

    pub(crate) fn create(&self, mut arguments: Arguments<'_>) -> Result<CREATE3res, Garbage> {
        let (handle, name) = (arguments.opaque(NFS3_FHSIZE)?, arguments.opaque(NAME_MOST)?);
        let how = How::parse(&mut arguments)?;
        Ok(self.made(handle, |directory| {
            check_name(name)?;
            match self.find(directory, name) {
                Ok(found) => self.existing(found, &how),
                Err(nfsstat3::NFS3ERR_NOENT) => match &how {
                    How::Unchecked(set) | How::Guarded(set) => {
                        self.new_inode(directory, name, NewKind::Regular, set).map(Made::New)
                    }
                    How::Exclusive([first, second]) => {
                        let mut set = ClientSet::default();
                        set.attributes.atime = Some(SetTime::At(*first));
                        set.attributes.mtime = Some(SetTime::At(*second));
                        self.new_inode(directory, name, NewKind::Regular, &set).map(Made::New)
                    }
                },
                Err(other) => Err(other),
            }
        }))
    }

    /// Opens a file that a CREATE found.
    fn existing(&self, found: Inode, how: &How) -> Result<Made, nfsstat3> {
        let is_regular = found.file_type() == FileKind::Regular;
        match how {
            How::Unchecked(set) if is_regular => {
                if set.size.is_none() {
                    return Ok(Made::Before(found));
                }
                let size = ClientSet { size: set.size, ..ClientSet::default() };
                self.set(&found, &size)?;
                self.inode(Id::of(&found)).map(Made::New)
            }
            How::Exclusive(times)
                if is_regular && [found.metadata().atime(), found.metadata().mtime()] == *times =>
            {
                // The reply to the first request may be lost because it was not durable yet.
                Ok(Made::New(found))
            }
            _ => Err(nfsstat3::NFS3ERR_EXIST),
        }
    }

    pub(crate) fn mkdir(&self, mut arguments: Arguments<'_>) -> Result<CREATE3res, Garbage> {
        let (handle, name) = (arguments.opaque(NFS3_FHSIZE)?, arguments.opaque(NAME_MOST)?);
        let set = arguments.set()?;
        Ok(self.made(handle, |directory| {
            self.new_inode(directory, name, NewKind::Directory, &set).map(Made::New)
        }))
    }

    pub(crate) fn symlink(&self, mut arguments: Arguments<'_>) -> Result<CREATE3res, Garbage> {
        let (handle, name) = (arguments.opaque(NFS3_FHSIZE)?, arguments.opaque(NAME_MOST)?);
        let set = arguments.set()?;
        let target = arguments.opaque(2 * NAME_MOST)?;
        Ok(self.made(handle, |directory| {
            self.new_inode(directory, name, NewKind::Symlink(target), &set).map(Made::New)
        }))
    }

    pub(crate) fn mknod(&self, mut arguments: Arguments<'_>) -> Result<CREATE3res, Garbage> {
        let (handle, name) = (arguments.opaque(NFS3_FHSIZE)?, arguments.opaque(NAME_MOST)?);
        let (kind, set) = match arguments.u32()? {
            kind @ (3 | 4) => {
                let set = arguments.set()?;
                let (major, minor) = (arguments.u32()?, arguments.u32()?);
                let block = NewKind::BlockDevice { major, minor };
                (if kind == 3 { block } else { NewKind::CharacterDevice { major, minor } }, set)
            }
            6 => (NewKind::Socket, arguments.set()?),
            7 => (NewKind::Fifo, arguments.set()?),
            _ => {
                let failed = || CREATE3resfail { dir_wcc: self.change(handle, None) };
                return Ok(outcome(Err(nfsstat3::NFS3ERR_BADTYPE), failed));
            }
        };
        Ok(self.made(handle, |directory| self.new_inode(directory, name, kind, &set).map(Made::New)))
    }

    /// Creates an entry of the directory with this handle.
    fn made(&self, handle: &[u8], make: impl FnOnce(&Inode) -> Result<Made, nfsstat3>) -> CREATE3res {
        let mut old = None;
        let create = || {
            let _names = self.export.names.lock();
            let directory = self.directory(self.open_handle(handle)?)?;
            old = Some(before(directory.metadata()));
            make(&directory).map(|made| (made, directory))
        };
        let done = create().and_then(|(made, directory)| match made {
            // Also the time of the directory, which the reply tells.
            Made::New(inode) => self.keep([&inode, &directory]).map(|()| inode),
            Made::Before(inode) => Ok(inode),
        });
        let done = done.map(|made| CREATE3resok {
            obj: Nfs3Option::Some(self.handle_of(Id::of(&made))),
            obj_attributes: Nfs3Option::Some(self.attributes(&made)),
            dir_wcc: self.change(handle, old),
        });
        outcome(done, || CREATE3resfail { dir_wcc: self.change(handle, None) })
    }

    fn new_inode(
        &self,
        directory: &Inode,
        name: &[u8],
        kind: NewKind<'_>,
        set: &ClientSet,
    ) -> Result<Inode, nfsstat3> {
        check_name(name)?;
        self.must_be_writable()?;
        let failed = |error: papilio::Error| status(&error);
        let default = if kind == NewKind::Directory { 0o755 } else { 0o644 };
        let mode = set.attributes.mode.unwrap_or(default);
        // A name that exists is the error, also for a caller that may not add one.
        self.must_have(directory, Permissions::EXECUTE)?;
        if directory.lookup(name).map_err(failed)?.is_some() {
            return Err(nfsstat3::NFS3ERR_EXIST);
        }
        let new = directory.check_create(&self.caller, kind, mode).map_err(failed)?;
        let made = directory.create(name, &new).map_err(failed)?;
        let mut rest = SetAttributes { mode: None, ..set.attributes };
        if !self.caller.is_root() {
            // Some clients send the owner that they expect, and the server knows better.
            (rest.uid, rest.gid) = (None, None);
        }
        if rest != SetAttributes::default() {
            made.set_attributes(&rest).map_err(failed)?;
        }
        if let (NewKind::Regular, Some(size @ 1..)) = (kind, set.size) {
            made.open().and_then(|file| file.set_len(size)).map_err(failed)?;
        }
        self.inode(Id::of(&made))
    }

    pub(crate) fn remove(&self, arguments: Arguments<'_>) -> Result<DirectoryResult, Garbage> {
        self.removed(arguments, |directory, name| directory.remove_file(name))
    }

    pub(crate) fn rmdir(&self, arguments: Arguments<'_>) -> Result<DirectoryResult, Garbage> {
        self.removed(arguments, |directory, name| directory.remove_dir(name))
    }

    fn removed(
        &self,
        mut arguments: Arguments<'_>,
        remove: impl FnOnce(&Inode, &[u8]) -> papilio::Result<()>,
    ) -> Result<DirectoryResult, Garbage> {
        let (handle, name) = (arguments.opaque(NFS3_FHSIZE)?, arguments.opaque(NAME_MOST)?);
        let mut old = None;
        let change = || {
            self.must_be_writable()?;
            check_name(name)?;
            let _names = self.export.names.lock();
            let directory = self.directory(self.open_handle(handle)?)?;
            old = Some(before(directory.metadata()));
            let victim = self.find(&directory, name)?;
            directory.check_remove(&self.caller, &victim).map_err(|error| status(&error))?;
            remove(&directory, name).map_err(|error| status(&error))?;
            Ok(directory)
        };
        let done = change().and_then(|directory| self.keep([&directory]));
        let old: Option<wcc_attr> = old.filter(|_| done.is_ok());
        Ok(outcome(done.map(|()| self.change(handle, old)), || self.change(handle, None)))
    }

    pub(crate) fn rename(&self, mut arguments: Arguments<'_>) -> Result<RENAME3res, Garbage> {
        let (from, old_name) = (arguments.opaque(NFS3_FHSIZE)?, arguments.opaque(NAME_MOST)?);
        let (to, new_name) = (arguments.opaque(NFS3_FHSIZE)?, arguments.opaque(NAME_MOST)?);
        let move_it = || {
            self.must_be_writable()?;
            check_name(old_name)?;
            check_name(new_name)?;
            let failed = |error: papilio::Error| status(&error);
            let _names = self.export.names.lock();
            let source = self.directory(self.open_handle(from)?)?;
            let target = self.directory(self.open_handle(to)?)?;
            let victim = self.find(&source, old_name)?;
            self.must_have(&target, Permissions::EXECUTE)?;
            let existing = target.lookup(new_name).map_err(failed)?;
            source.check_rename(&self.caller, &victim, &target, existing.as_ref()).map_err(failed)?;
            source.rename(old_name, &target, new_name, RenameMode::Replace).map_err(failed)?;
            // The new name is durable before the old one is gone.
            Ok([victim, target, source])
        };
        let done = move_it().and_then(|changed| self.keep(&changed));
        let (fromdir_wcc, todir_wcc) = (self.change(from, None), self.change(to, None));
        Ok(match done {
            Ok(()) => Nfs3Result::Ok(RENAME3resok { fromdir_wcc, todir_wcc }),
            Err(status) => Nfs3Result::Err((status, RENAME3resfail { fromdir_wcc, todir_wcc })),
        })
    }

    pub(crate) fn link(&self, mut arguments: Arguments<'_>) -> Result<LINK3res, Garbage> {
        let file = arguments.opaque(NFS3_FHSIZE)?;
        let (handle, name) = (arguments.opaque(NFS3_FHSIZE)?, arguments.opaque(NAME_MOST)?);
        let add = || {
            self.must_be_writable()?;
            check_name(name)?;
            let _names = self.export.names.lock();
            let directory = self.directory(self.open_handle(handle)?)?;
            let inode = self.inode(self.open_handle(file)?)?;
            if inode.file_type() == FileKind::Directory {
                return Err(nfsstat3::NFS3ERR_ISDIR);
            }
            self.must_have(&directory, Permissions::WRITE | Permissions::EXECUTE)?;
            directory.hard_link(&inode, name).map_err(|error| status(&error))?;
            Ok([inode, directory])
        };
        let done = add().and_then(|changed| self.keep(&changed));
        let (file_attributes, linkdir_wcc) = (self.attributes_of(file), self.change(handle, None));
        Ok(match done {
            Ok(()) => Nfs3Result::Ok(LINK3resok { file_attributes, linkdir_wcc }),
            Err(status) => Nfs3Result::Err((status, LINK3resfail { file_attributes, linkdir_wcc })),
        })
    }
}

/// Returns a mode that a change of owner leaves: without set-user-id, and without set-group-id if
/// the group may execute the file.
fn without_privileges(mode: u32) -> u32 {
    let mode = mode & !SET_USER_ID;
    if mode & GROUP_EXECUTE != 0 { mode & !SET_GROUP_ID } else { mode }
}

/// Refuses names that are no entries.
fn check_name(name: &[u8]) -> Result<(), nfsstat3> {
    match name {
        b"" | b"." | b".." => Err(nfsstat3::NFS3ERR_INVAL),
        name if name.contains(&b'/') || name.contains(&0) => Err(nfsstat3::NFS3ERR_INVAL),
        _ => Ok(()),
    }
}
