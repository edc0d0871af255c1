//! The calls that only read.
//!
//! The library's calls wait for devices. Each runs in `block_in_place`, so that other requests go
//! on, and so that a device may use a runtime of its own.

use crate::entries::Entries;
use crate::errors::status;
use crate::export::Export;
use crate::handle::Id;
use nfs3_server::nfs3_types::nfs3::{
    FSF3_CANSETTIME, FSF3_HOMOGENEOUS, FSF3_SYMLINK, FSINFO3resok, fattr3, filename3, nfspath3, nfsstat3,
    nfstime3, post_op_attr,
};
use nfs3_server::vfs::{NfsReadFileSystem, ReadDirPlusIterator};
use papilio::FileKind;
use tokio::task::block_in_place;

/// The most bytes of one read or write.
const MOST: u32 = 1 << 20;

impl Export {
    fn find(&self, directory: Id, name: &[u8]) -> Result<Id, nfsstat3> {
        let directory = self.directory(directory)?;
        let found = match name {
            b"." => directory,
            b".." => self.parent(&directory)?,
            name => {
                let found = directory.lookup(name).map_err(|error| status(&error))?;
                found.ok_or(nfsstat3::NFS3ERR_NOENT)?
            }
        };
        Ok(Id::of(&found))
    }
}

impl NfsReadFileSystem for Export {
    type Handle = Id;

    fn root_dir(&self) -> Id {
        self.root
    }

    async fn lookup(&self, directory: &Id, name: &filename3<'_>) -> Result<Id, nfsstat3> {
        block_in_place(|| self.find(*directory, name.as_ref()))
    }

    async fn getattr(&self, id: &Id) -> Result<fattr3, nfsstat3> {
        block_in_place(|| Ok(self.attributes(&self.inode(*id)?)))
    }

    async fn read(&self, id: &Id, offset: u64, count: u32) -> Result<(Vec<u8>, bool), nfsstat3> {
        block_in_place(|| {
            let file = self.regular(*id)?.open().map_err(|error| status(&error))?;
            let size = file.size().map_err(|error| status(&error))?;
            let wanted = size.saturating_sub(offset).min(count.min(MOST).into());
            let mut bytes = vec![0; wanted as usize];
            let read = file.read_at(&mut bytes, offset).map_err(|error| status(&error))?;
            bytes.truncate(read);
            Ok((bytes, offset.saturating_add(read as u64) >= size))
        })
    }

    async fn readdirplus(
        &self,
        directory: &Id,
        cookie: u64,
    ) -> Result<impl ReadDirPlusIterator<Id>, nfsstat3> {
        block_in_place(|| Entries::new(self, self.directory(*directory)?, cookie))
    }

    async fn readlink(&self, id: &Id) -> Result<nfspath3<'_>, nfsstat3> {
        block_in_place(|| {
            let inode = self.inode(*id)?;
            if inode.file_type() != FileKind::Symlink {
                return Err(nfsstat3::NFS3ERR_INVAL);
            }
            inode.read_link().map(nfspath3::from).map_err(|error| status(&error))
        })
    }

    async fn fsinfo(&self, root: &Id) -> Result<FSINFO3resok, nfsstat3> {
        let attributes = block_in_place(|| Ok(self.attributes(&self.inode(*root)?)))?;
        Ok(FSINFO3resok {
            obj_attributes: post_op_attr::Some(attributes),
            rtmax: MOST,
            rtpref: MOST,
            rtmult: 4096,
            wtmax: MOST,
            wtpref: MOST,
            wtmult: 4096,
            dtpref: 64 << 10,
            maxfilesize: i64::MAX as u64,
            time_delta: nfstime3 { seconds: 0, nseconds: 1 },
            properties: FSF3_SYMLINK | FSF3_HOMOGENEOUS | FSF3_CANSETTIME,
        })
    }
}
