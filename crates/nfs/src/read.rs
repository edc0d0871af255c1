//! The calls that only read.

use crate::arguments::{Arguments, Garbage};
use crate::errors::status;
use crate::export::Session;
use crate::handle::Id;
use nfs3_types::nfs3::{
    ACCESS3_DELETE, ACCESS3_EXECUTE, ACCESS3_EXTEND, ACCESS3_LOOKUP, ACCESS3_MODIFY, ACCESS3_READ,
    ACCESS3res, ACCESS3resfail, ACCESS3resok, FSF3_CANSETTIME, FSF3_HOMOGENEOUS, FSF3_LINK, FSF3_SYMLINK,
    FSINFO3res, FSINFO3resfail, FSINFO3resok, FSSTAT3res, FSSTAT3resfail, FSSTAT3resok, GETATTR3res,
    GETATTR3resok, LOOKUP3res, LOOKUP3resfail, LOOKUP3resok, NFS3_FHSIZE, Nfs3Option, Nfs3Result,
    PATHCONF3res, PATHCONF3resfail, PATHCONF3resok, READ3res, READ3resfail, READ3resok, READLINK3res,
    READLINK3resfail, READLINK3resok, nfsstat3, nfstime3,
};
use nfs3_types::xdr_codec::{Opaque, Void};
use papilio::{FileKind, Inode, InodeFlags, Permissions};

/// The most bytes of one read or write.
pub(crate) const MOST: u32 = 1 << 20;
/// The longest name. A longer one is refused by the file system, or here if it is far too long.
pub(crate) const NAME_MOST: usize = 4096;
/// The number of inodes that clients see: the file system has no fixed one.
const MANY_FILES: u64 = 1 << 40;

/// Returns the results of a call, or the status with the results of a failed one.
pub(crate) fn outcome<T, E>(done: Result<T, nfsstat3>, failed: impl FnOnce() -> E) -> Nfs3Result<T, E> {
    match done {
        Ok(results) => Nfs3Result::Ok(results),
        Err(status) => Nfs3Result::Err((status, failed())),
    }
}

impl Session<'_> {
    pub(crate) fn getattr(&self, mut arguments: Arguments<'_>) -> Result<GETATTR3res, Garbage> {
        let handle = arguments.opaque(NFS3_FHSIZE)?;
        let done = self
            .open_handle(handle)
            .and_then(|id| Ok(GETATTR3resok { obj_attributes: self.attributes(&self.inode(id)?) }));
        Ok(outcome(done, || Void))
    }

    pub(crate) fn lookup(&self, mut arguments: Arguments<'_>) -> Result<LOOKUP3res, Garbage> {
        let (handle, name) = (arguments.opaque(NFS3_FHSIZE)?, arguments.opaque(NAME_MOST)?);
        let look_up = || {
            let found = self.find(&self.directory(self.open_handle(handle)?)?, name)?;
            Ok(LOOKUP3resok {
                object: self.handle_of(Id::of(&found)),
                obj_attributes: Nfs3Option::Some(self.attributes(&found)),
                dir_attributes: self.attributes_of(handle),
            })
        };
        Ok(outcome(look_up(), || LOOKUP3resfail { dir_attributes: self.attributes_of(handle) }))
    }

    pub(crate) fn access(&self, mut arguments: Arguments<'_>) -> Result<ACCESS3res, Garbage> {
        let (handle, wanted) = (arguments.opaque(NFS3_FHSIZE)?, arguments.u32()?);
        let answer = || {
            let inode = self.inode(self.open_handle(handle)?)?;
            let access = self.granted(&inode, wanted)?;
            Ok(ACCESS3resok { obj_attributes: Nfs3Option::Some(self.attributes(&inode)), access })
        };
        Ok(outcome(answer(), || ACCESS3resfail { obj_attributes: self.attributes_of(handle) }))
    }

    /// Returns the kinds of access, of the `wanted` ones, that the caller has. Kernel counterpart:
    /// `nfsd_access` (`fs/nfsd/vfs.c`).
    fn granted(&self, inode: &Inode, wanted: u32) -> Result<u32, nfsstat3> {
        const READ: Permissions = Permissions::READ;
        const WRITE: Permissions = Permissions::WRITE;
        const EXECUTE: Permissions = Permissions::EXECUTE;
        let kinds: &[(u32, Permissions)] = match inode.file_type() {
            FileKind::Directory => &[
                (ACCESS3_READ, READ),
                (ACCESS3_LOOKUP, EXECUTE),
                (ACCESS3_MODIFY, WRITE.union(EXECUTE)),
                (ACCESS3_EXTEND, WRITE.union(EXECUTE)),
                (ACCESS3_DELETE, WRITE.union(EXECUTE)),
            ],
            _ => &[
                (ACCESS3_READ, READ),
                (ACCESS3_EXECUTE, EXECUTE),
                (ACCESS3_MODIFY, WRITE),
                (ACCESS3_EXTEND, WRITE),
            ],
        };
        let is_writable = !self.export.read_only && !self.is_in_read_only_subvolume(inode)?;
        let appends = inode.metadata().flags().contains(InodeFlags::APPEND);
        let mut granted = 0;
        for &(kind, permissions) in kinds.iter().filter(|(kind, _)| wanted & kind != 0) {
            let writes = permissions.contains(WRITE);
            let truncates = kind == ACCESS3_MODIFY || kind == ACCESS3_DELETE;
            if writes && (!is_writable || truncates && appends) {
                continue;
            }
            match self.must_have(inode, permissions) {
                Ok(()) => granted |= kind,
                Err(nfsstat3::NFS3ERR_ACCES | nfsstat3::NFS3ERR_PERM) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(granted)
    }

    fn is_in_read_only_subvolume(&self, inode: &Inode) -> Result<bool, nfsstat3> {
        let subvolume = self.export.fs.subvolume_state(inode.tree()).map_err(|error| status(&error))?;
        Ok(subvolume.is_read_only)
    }

    pub(crate) fn readlink(&self, mut arguments: Arguments<'_>) -> Result<READLINK3res<'static>, Garbage> {
        let handle = arguments.opaque(NFS3_FHSIZE)?;
        let read = || {
            let inode = self.inode(self.open_handle(handle)?)?;
            if inode.file_type() != FileKind::Symlink {
                return Err(nfsstat3::NFS3ERR_INVAL);
            }
            let target = inode.read_link().map_err(|error| status(&error))?;
            let symlink_attributes = Nfs3Option::Some(self.attributes(&inode));
            Ok(READLINK3resok { symlink_attributes, data: target.into() })
        };
        let failed = || READLINK3resfail { symlink_attributes: self.attributes_of(handle) };
        Ok(outcome(read(), failed))
    }

    pub(crate) fn read(&self, mut arguments: Arguments<'_>) -> Result<READ3res<'static>, Garbage> {
        let handle = arguments.opaque(NFS3_FHSIZE)?;
        let (offset, count) = (arguments.u64()?, arguments.u32()?);
        let read = || {
            let inode = self.regular(self.open_handle(handle)?)?;
            self.must_reach_data(&inode, Permissions::READ)?;
            let file = inode.open().map_err(|error| status(&error))?;
            let size = file.size().map_err(|error| status(&error))?;
            let wanted = size.saturating_sub(offset).min(count.min(MOST).into());
            let mut bytes = vec![0; wanted as usize];
            let read = file.read_at(&mut bytes, offset).map_err(|error| status(&error))?;
            bytes.truncate(read);
            Ok(READ3resok {
                file_attributes: self.attributes_at(Id::of(&inode)),
                count: read as u32,
                eof: offset.saturating_add(read as u64) >= size,
                data: Opaque::owned(bytes),
            })
        };
        Ok(outcome(read(), || READ3resfail { file_attributes: self.attributes_of(handle) }))
    }

    pub(crate) fn fsstat(&self, mut arguments: Arguments<'_>) -> Result<FSSTAT3res, Garbage> {
        let handle = arguments.opaque(NFS3_FHSIZE)?;
        let measure = || {
            let id = self.open_handle(handle)?;
            let sizes = self.export.fs.usage().map_err(|error| status(&error))?.statfs();
            Ok(FSSTAT3resok {
                obj_attributes: self.attributes_at(id),
                tbytes: sizes.total,
                fbytes: sizes.free,
                abytes: sizes.available,
                tfiles: MANY_FILES,
                ffiles: MANY_FILES,
                afiles: MANY_FILES,
                invarsec: 0,
            })
        };
        Ok(outcome(measure(), || FSSTAT3resfail { obj_attributes: self.attributes_of(handle) }))
    }

    pub(crate) fn fsinfo(&self, mut arguments: Arguments<'_>) -> Result<FSINFO3res, Garbage> {
        let handle = arguments.opaque(NFS3_FHSIZE)?;
        let done = self.open_handle(handle).map(|id| FSINFO3resok {
            obj_attributes: self.attributes_at(id),
            rtmax: MOST,
            rtpref: MOST,
            rtmult: 4096,
            wtmax: MOST,
            wtpref: MOST,
            wtmult: 4096,
            dtpref: 64 << 10,
            maxfilesize: i64::MAX as u64,
            time_delta: nfstime3 { seconds: 0, nseconds: 1 },
            properties: FSF3_LINK | FSF3_SYMLINK | FSF3_HOMOGENEOUS | FSF3_CANSETTIME,
        });
        Ok(outcome(done, || FSINFO3resfail { obj_attributes: Nfs3Option::None }))
    }

    pub(crate) fn pathconf(&self, mut arguments: Arguments<'_>) -> Result<PATHCONF3res, Garbage> {
        let handle = arguments.opaque(NFS3_FHSIZE)?;
        let done = self.open_handle(handle).map(|id| PATHCONF3resok {
            obj_attributes: self.attributes_at(id),
            linkmax: 65535,
            name_max: 255,
            no_trunc: true,
            chown_restricted: true,
            case_insensitive: false,
            case_preserving: true,
        });
        Ok(outcome(done, || PATHCONF3resfail { obj_attributes: Nfs3Option::None }))
    }
}
