//! Listing a directory.
//!
//! Owns [`Entries`]. The cookie of an entry is one more than its index in the directory, so that a
//! listing goes on where it ended also if entries were added or removed meanwhile. `.` and `..`
//! have the cookies 1 and 2; the indexes of entries start at 2.

use crate::errors::status;
use crate::export::Export;
use crate::handle::Id;
use nfs3_server::nfs3_types::nfs3::nfsstat3;
use nfs3_server::vfs::{DirEntryPlus, NextResult, ReadDirPlusIterator};
use papilio::{DirEntry, Inode};
use std::collections::VecDeque;
use tokio::task::block_in_place;

const DOT: u64 = 1;
const DOT_DOT: u64 = 2;
/// Entries that are read at once.
const BATCH: usize = 128;

/// The entries of a directory behind a cookie.
pub(crate) struct Entries {
    export: Export,
    directory: Inode,
    /// The cookie of the last entry that was read.
    cookie: u64,
    batch: VecDeque<DirEntryPlus<Id>>,
    is_at_end: bool,
}

impl Entries {
    pub(crate) fn new(export: &Export, directory: Inode, cookie: u64) -> Result<Self, nfsstat3> {
        let batch = VecDeque::new();
        let mut entries = Self { export: export.clone(), directory, cookie, batch, is_at_end: false };
        entries.fill()?;
        Ok(entries)
    }

    fn entry(&self, name: &[u8], cookie: u64, inode: &Inode) -> DirEntryPlus<Id> {
        let id = Id::of(inode);
        DirEntryPlus {
            fileid: id.file_id(),
            name: name.to_vec().into(),
            cookie,
            name_attributes: Some(self.export.attributes(inode)),
            name_handle: Some(id),
        }
    }

    fn fill(&mut self) -> Result<(), nfsstat3> {
        if self.cookie < DOT {
            self.batch.push_back(self.entry(b".", DOT, &self.directory));
        }
        if self.cookie < DOT_DOT {
            let parent = self.export.parent(&self.directory)?;
            self.batch.push_back(self.entry(b"..", DOT_DOT, &parent));
        }
        self.cookie = self.cookie.max(DOT_DOT);
        let found = self.directory.read_dir().map_err(|error| status(&error))?;
        self.is_at_end = true;
        for entry in found.starting_at(self.cookie).with_inodes() {
            let entry = entry.map_err(|error| status(&error))?;
            if self.batch.len() >= BATCH {
                self.is_at_end = false;
                break;
            }
            self.cookie = entry.index() + 1;
            if let Some(found) = self.found(&entry) {
                self.batch.push_back(found);
            }
        }
        Ok(())
    }

    /// Returns an entry. One that was removed meanwhile is left out.
    fn found(&self, entry: &DirEntry) -> Option<DirEntryPlus<Id>> {
        let inode = entry.inode().ok()?;
        Some(self.entry(entry.file_name(), entry.index() + 1, &inode))
    }
}

impl ReadDirPlusIterator<Id> for Entries {
    async fn next(&mut self) -> NextResult<DirEntryPlus<Id>> {
        while self.batch.is_empty() && !self.is_at_end {
            if let Err(status) = block_in_place(|| self.fill()) {
                return NextResult::Err(status);
            }
        }
        self.batch.pop_front().map_or(NextResult::Eof, NextResult::Ok)
    }
}
