//! The calls that change the data of files, and make it durable.
//!
//! A client's user may have opened a file before it lost permission, which the protocol does not
//! tell. So the owner may always write, as in the kernel's server.

use crate::arguments::{Arguments, Garbage};
use crate::errors::status;
use crate::export::Session;
use crate::handle::Id;
use crate::read::{MOST, outcome};
use nfs3_types::nfs3::{
    COMMIT3res, COMMIT3resfail, COMMIT3resok, NFS3_FHSIZE, WRITE3res, WRITE3resfail, WRITE3resok, nfsstat3,
    stable_how, writeverf3,
};
use papilio::{Inode, Permissions};

const UNSTABLE: u32 = 0;
const FILE_SYNC: u32 = 2;

impl Session<'_> {
    pub(crate) fn write(&self, mut arguments: Arguments<'_>) -> Result<WRITE3res, Garbage> {
        let handle = arguments.opaque(NFS3_FHSIZE)?;
        let (offset, count) = (arguments.u64()?, arguments.u32()?);
        let stable = arguments.u32()?;
        let data = arguments.opaque(MOST as usize)?;
        if stable > FILE_SYNC {
            return Err(Garbage);
        }
        let data = &data[..data.len().min(count as usize)];
        let change = || {
            let inode = self.written(handle)?;
            let write = || {
                let file = inode.open()?;
                let stored = file.write_at(data, offset)?;
                inode.drop_privileges(&self.caller)?;
                if stable != UNSTABLE {
                    file.sync_all()?;
                }
                Ok(stored)
            };
            write().map_err(|error: papilio::Error| status(&error))
        };
        // A client writes the rest again, and meets the reason why it is not stored.
        let done = change().map(|stored| WRITE3resok {
            file_wcc: self.change(handle, None),
            count: stored as u32,
            committed: if stable == UNSTABLE { stable_how::UNSTABLE } else { stable_how::FILE_SYNC },
            verf: self.verifier(),
        });
        Ok(outcome(done, || WRITE3resfail { file_wcc: self.change(handle, None) }))
    }

    pub(crate) fn commit(&self, mut arguments: Arguments<'_>) -> Result<COMMIT3res, Garbage> {
        let handle = arguments.opaque(NFS3_FHSIZE)?;
        let sync = || {
            // Not `written`: data that was accepted is stored, also where the file or its subvolume
            // takes no more since.
            self.must_be_writable()?;
            let inode = self.regular(self.open_handle(handle)?)?;
            if self.caller.uid() != inode.metadata().uid() {
                self.must_have(&inode, Permissions::WRITE)?;
            }
            inode.open().and_then(|file| file.sync_all()).map_err(|error| status(&error))
        };
        let done =
            sync().map(|()| COMMIT3resok { file_wcc: self.change(handle, None), verf: self.verifier() });
        Ok(outcome(done, || COMMIT3resfail { file_wcc: self.change(handle, None) }))
    }

    /// Returns a file that the caller may write.
    fn written(&self, handle: &[u8]) -> Result<Inode, nfsstat3> {
        self.must_be_writable()?;
        let inode = self.regular(self.open_handle(handle)?)?;
        self.must_reach_data(&inode, Permissions::WRITE)?;
        self.inode(Id::of(&inode))
    }

    fn verifier(&self) -> writeverf3 {
        writeverf3(self.export.verifier)
    }
}
