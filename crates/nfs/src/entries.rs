//! Listing a directory.
//!
//! The cookie of an entry is one more than its index in the directory, so that a listing goes on
//! where it ended also if entries were added or removed meanwhile. `.` and `..` have the cookies 1
//! and 2; the indexes of entries start at 2.
//!
//! A caller that may list a directory but not search it gets names without attributes and handles.

use crate::arguments::{Arguments, Garbage};
use crate::errors::status;
use crate::export::Session;
use crate::handle::Id;
use crate::read::{MOST, outcome};
use nfs3_types::nfs3::{
    NFS3_FHSIZE, Nfs3Option, READDIR3res, READDIR3resfail, READDIR3resok, READDIRPLUS3res,
    READDIRPLUS3resfail, READDIRPLUS3resok, cookieverf3, dirlist3, dirlistplus3, entry3, entryplus3,
    nfsstat3,
};
use nfs3_types::xdr_codec::{BoundedList, List, Pack};
use papilio::{Inode, Permissions};

const DOT: u64 = 1;
const DOT_DOT: u64 = 2;
/// Bytes of a reply besides the attributes of the directory and its entries: verifier and end.
const AROUND: usize = 32;

/// An entry that a listing shows.
struct Shown<'a> {
    name: &'a [u8],
    cookie: u64,
    inode: &'a Inode,
}

impl Session<'_> {
    pub(crate) fn readdir(&self, mut arguments: Arguments<'_>) -> Result<READDIR3res<'static>, Garbage> {
        let (handle, cookie) = (arguments.opaque(NFS3_FHSIZE)?, arguments.u64()?);
        let (_verifier, count) = (arguments.u64()?, arguments.u32()?);
        let list = || {
            let directory = self.listed(handle)?;
            let (entries, eof) = self.fill(&directory, cookie, count, |shown| entry3 {
                fileid: Id::of(shown.inode).file_id(),
                name: shown.name.to_vec().into(),
                cookie: shown.cookie,
            })?;
            let dir_attributes = self.attributes_of(handle);
            let reply = dirlist3 { entries, eof };
            Ok(READDIR3resok { dir_attributes, cookieverf: cookieverf3::default(), reply })
        };
        Ok(outcome(list(), || READDIR3resfail { dir_attributes: self.attributes_of(handle) }))
    }

    pub(crate) fn readdirplus(
        &self,
        mut arguments: Arguments<'_>,
    ) -> Result<READDIRPLUS3res<'static>, Garbage> {
        let (handle, cookie) = (arguments.opaque(NFS3_FHSIZE)?, arguments.u64()?);
        let (_verifier, _count, most) = (arguments.u64()?, arguments.u32()?, arguments.u32()?);
        let list = || {
            let directory = self.listed(handle)?;
            let searches = directory.grants(&self.caller, Permissions::EXECUTE);
            let searches = searches.map_err(|error| status(&error))?;
            let (entries, eof) = self.fill(&directory, cookie, most, |shown| {
                let (mut name_attributes, mut name_handle) = (Nfs3Option::None, Nfs3Option::None);
                if searches {
                    name_attributes = Nfs3Option::Some(self.attributes(shown.inode));
                    name_handle = Nfs3Option::Some(self.handle_of(Id::of(shown.inode)));
                }
                let (fileid, name) = (Id::of(shown.inode).file_id(), shown.name.to_vec().into());
                entryplus3 { fileid, name, cookie: shown.cookie, name_attributes, name_handle }
            })?;
            let dir_attributes = self.attributes_of(handle);
            let reply = dirlistplus3 { entries, eof };
            Ok(READDIRPLUS3resok { dir_attributes, cookieverf: cookieverf3::default(), reply })
        };
        Ok(outcome(list(), || READDIRPLUS3resfail { dir_attributes: self.attributes_of(handle) }))
    }

    /// Returns a directory that the caller may list.
    fn listed(&self, handle: &[u8]) -> Result<Inode, nfsstat3> {
        let directory = self.directory(self.open_handle(handle)?)?;
        self.must_have(&directory, Permissions::READ)?;
        Ok(directory)
    }

    /// Returns the entries behind a cookie that a reply of `most` bytes can have, and whether they
    /// are the last.
    fn fill<T: Pack>(
        &self,
        directory: &Inode,
        cookie: u64,
        most: u32,
        encode: impl Fn(&Shown<'_>) -> T,
    ) -> Result<(List<T>, bool), nfsstat3> {
        let attributes = self.attributes(directory).packed_size() + 4;
        let room = (most.min(MOST) as usize).checked_sub(attributes + AROUND);
        let mut list = BoundedList::new(room.ok_or(nfsstat3::NFS3ERR_TOOSMALL)?);
        let mut is_empty = true;
        let mut add = |name: &[u8], cookie, inode: &Inode| {
            let is_added = list.try_push(encode(&Shown { name, cookie, inode })).is_ok();
            is_empty &= !is_added;
            is_added
        };
        let fits = (cookie >= DOT || add(b".", DOT, directory))
            && (cookie >= DOT_DOT || add(b"..", DOT_DOT, &self.parent(directory)?));
        let mut is_at_end = fits;
        let found = directory.read_dir().map_err(|error| status(&error))?;
        for entry in found.starting_at(cookie.max(DOT_DOT)).with_inodes().take_while(|_| fits) {
            let entry = entry.map_err(|error| status(&error))?;
            // One that was removed meanwhile is left out.
            let Ok(inode) = entry.inode() else { continue };
            if !add(entry.file_name(), entry.index() + 1, &inode) {
                is_at_end = false;
                break;
            }
        }
        if is_empty && !is_at_end {
            return Err(nfsstat3::NFS3ERR_TOOSMALL);
        }
        Ok((list.into_inner(), is_at_end))
    }
}
