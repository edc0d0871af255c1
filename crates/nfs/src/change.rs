//! The calls that change an export.
//!
//! A new inode belongs to the owner that the client names, else to that of its directory.

use crate::attributes::{changes, given};
use crate::errors::status;
use crate::export::Export;
use crate::handle::Id;
use nfs3_server::nfs3_types::nfs3::{createverf3, fattr3, filename3, nfspath3, nfsstat3, sattr3, stable_how};
use nfs3_server::vfs::{NfsFileSystem, VFSCapabilities};
use papilio::{FileKind, Inode, NewInode, NewKind, RenameMode, SetAttributes, SetTime, Timespec};
use tokio::task::block_in_place;

impl Export {
    fn new_inode(
        &self,
        directory: Id,
        name: &[u8],
        kind: NewKind<'_>,
        set: &sattr3,
    ) -> Result<Inode, nfsstat3> {
        check_name(name)?;
        let directory = self.directory(directory)?;
        let mode = match kind {
            NewKind::Directory => 0o755,
            _ => 0o644,
        };
        let mode = given(&set.mode).unwrap_or(mode) & 0o7777;
        let uid = given(&set.uid).unwrap_or_else(|| directory.metadata().uid());
        let gid = given(&set.gid).unwrap_or_else(|| directory.metadata().gid());
        let new = NewInode::new(kind, mode).owner(uid, gid);
        let made = directory.create(name, &new).map_err(|error| status(&error))?;
        let times = SetAttributes { mode: None, uid: None, gid: None, ..changes(set) };
        if times != SetAttributes::default() {
            made.set_attributes(&times).map_err(|error| status(&error))?;
        }
        self.inode(Id::of(&made))
    }

    fn set(&self, id: Id, set: &sattr3) -> Result<fattr3, nfsstat3> {
        let failed = |error: papilio::Error| status(&error);
        if let Some(size) = given(&set.size) {
            self.regular(id)?.open().and_then(|file| file.set_len(size)).map_err(failed)?;
        }
        let changes = changes(set);
        if changes != SetAttributes::default() {
            self.inode(id)?.set_attributes(&changes).map_err(failed)?;
        }
        Ok(self.attributes(&self.inode(id)?))
    }

    fn write_file(
        &self,
        id: Id,
        offset: u64,
        data: &[u8],
        stable: stable_how,
    ) -> papilio::Result<stable_how> {
        let inode = self.fs.inode_at(id.tree(), id.number())?;
        let file = inode.open()?;
        file.write_all_at(data, offset)?;
        match stable {
            stable_how::UNSTABLE => Ok(stable_how::UNSTABLE),
            stable_how::DATA_SYNC | stable_how::FILE_SYNC => file.sync_all().map(|()| stable_how::FILE_SYNC),
        }
    }

    /// Creates a file, or opens the one that is there.
    fn create_file(&self, directory: Id, name: &[u8], set: &sattr3) -> Result<Inode, nfsstat3> {
        check_name(name)?;
        let found = self.directory(directory)?.lookup(name).map_err(|error| status(&error))?;
        let Some(found) = found else {
            return self.new_inode(directory, name, NewKind::Regular, set);
        };
        if found.file_type() != FileKind::Regular {
            return Err(nfsstat3::NFS3ERR_EXIST);
        }
        self.set(Id::of(&found), set)?;
        self.inode(Id::of(&found))
    }

    /// Creates a file that only this client's request makes. Its times hold the request's verifier,
    /// by which a repeated request knows its own file. The client then sets the times.
    fn create_once(&self, directory: Id, name: &[u8], verifier: createverf3) -> Result<Id, nfsstat3> {
        check_name(name)?;
        let [first, second] = [0, 4].map(|at| {
            let bytes = verifier.0[at..at + 4].try_into().expect("a verifier has 8 bytes");
            Timespec { seconds: u32::from_le_bytes(bytes).into(), nanoseconds: 0 }
        });
        let parent = self.directory(directory)?;
        if let Some(found) = parent.lookup(name).map_err(|error| status(&error))? {
            let times = (found.metadata().atime(), found.metadata().mtime());
            let is_own = found.file_type() == FileKind::Regular && times == (first, second);
            return if is_own { Ok(Id::of(&found)) } else { Err(nfsstat3::NFS3ERR_EXIST) };
        }
        let made = self.new_inode(directory, name, NewKind::Regular, &sattr3::default())?;
        let (atime, mtime) = (Some(SetTime::At(first)), Some(SetTime::At(second)));
        let times = SetAttributes { atime, mtime, ..SetAttributes::default() };
        made.set_attributes(&times).map_err(|error| status(&error))?;
        Ok(Id::of(&made))
    }

    fn remove_name(&self, directory: Id, name: &[u8]) -> Result<(), nfsstat3> {
        check_name(name)?;
        let directory = self.directory(directory)?;
        let found = directory.lookup(name).map_err(|error| status(&error))?;
        let removed = match found.ok_or(nfsstat3::NFS3ERR_NOENT)?.file_type() {
            FileKind::Directory => directory.remove_dir(name),
            _ => directory.remove_file(name),
        };
        removed.map_err(|error| status(&error))
    }
}

/// Refuses names that are no entries.
fn check_name(name: &[u8]) -> Result<(), nfsstat3> {
    match name {
        b"" | b"." | b".." => Err(nfsstat3::NFS3ERR_INVAL),
        name if name.contains(&b'/') || name.contains(&0) => Err(nfsstat3::NFS3ERR_INVAL),
        _ => Ok(()),
    }
}

impl NfsFileSystem for Export {
    fn capabilities(&self) -> VFSCapabilities {
        if self.read_only { VFSCapabilities::ReadOnly } else { VFSCapabilities::ReadWrite }
    }

    async fn setattr(&self, id: &Id, set: sattr3) -> Result<fattr3, nfsstat3> {
        block_in_place(|| self.set(*id, &set))
    }

    async fn write(
        &self,
        id: &Id,
        offset: u64,
        data: &[u8],
        stable: stable_how,
    ) -> Result<(fattr3, stable_how), nfsstat3> {
        block_in_place(|| {
            self.regular(*id)?;
            let reached = self.write_file(*id, offset, data, stable).map_err(|error| status(&error))?;
            Ok((self.attributes(&self.inode(*id)?), reached))
        })
    }

    async fn create(
        &self,
        directory: &Id,
        name: &filename3<'_>,
        set: sattr3,
    ) -> Result<(Id, fattr3), nfsstat3> {
        block_in_place(|| {
            let made = self.create_file(*directory, name.as_ref(), &set)?;
            Ok((Id::of(&made), self.attributes(&made)))
        })
    }

    async fn create_exclusive(
        &self,
        directory: &Id,
        name: &filename3<'_>,
        verifier: createverf3,
    ) -> Result<Id, nfsstat3> {
        block_in_place(|| self.create_once(*directory, name.as_ref(), verifier))
    }

    async fn mkdir(&self, directory: &Id, name: &filename3<'_>) -> Result<(Id, fattr3), nfsstat3> {
        block_in_place(|| {
            let made = self.new_inode(*directory, name.as_ref(), NewKind::Directory, &sattr3::default())?;
            Ok((Id::of(&made), self.attributes(&made)))
        })
    }

    async fn remove(&self, directory: &Id, name: &filename3<'_>) -> Result<(), nfsstat3> {
        block_in_place(|| self.remove_name(*directory, name.as_ref()))
    }

    async fn rename<'a>(
        &self,
        from: &Id,
        from_name: &filename3<'a>,
        to: &Id,
        to_name: &filename3<'a>,
    ) -> Result<(), nfsstat3> {
        block_in_place(|| {
            let (old, new): (&[u8], &[u8]) = (from_name.as_ref(), to_name.as_ref());
            check_name(old)?;
            check_name(new)?;
            let (from, to) = (self.directory(*from)?, self.directory(*to)?);
            from.rename(old, &to, new, RenameMode::Replace).map_err(|error| status(&error))
        })
    }

    async fn symlink<'a>(
        &self,
        directory: &Id,
        name: &filename3<'a>,
        target: &nfspath3<'a>,
        set: &sattr3,
    ) -> Result<(Id, fattr3), nfsstat3> {
        block_in_place(|| {
            let target: &[u8] = target.as_ref();
            let made = self.new_inode(*directory, name.as_ref(), NewKind::Symlink(target), set)?;
            Ok((Id::of(&made), self.attributes(&made)))
        })
    }

    async fn commit(&self, id: &Id, _: u64, _: u32) -> Result<(), nfsstat3> {
        block_in_place(|| {
            let file = self.regular(*id)?.open().map_err(|error| status(&error))?;
            file.sync_all().map_err(|error| status(&error))
        })
    }
}
