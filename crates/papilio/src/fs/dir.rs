//! Directory entries in the public API.
//!
//! Owns [`DirEntry`], and [`Entries`], which reads a directory in batches.

use crate::btree::{Cursor, Tree};
use crate::errors::{PathError, Result};
use crate::fs::inode::Inode;
use crate::items::dir::{EntryTarget, index_first_key};
use crate::items::item_error;
use papilio_format::items::dir_item::{DirEntries, FileType};
use papilio_format::items::inode::FileKind;
use std::collections::VecDeque;

/// Limit of entries to decode ahead.
const BATCH: usize = 256;

/// An entry of a directory.
#[derive(Clone, Debug)]
pub struct DirEntry {
    directory: Inode,
    name: Vec<u8>,
    index: u64,
    file_type: FileType,
    target: EntryTarget,
}

impl DirEntry {
    /// Returns the name: 1 to 255 bytes, without a slash.
    pub fn file_name(&self) -> &[u8] {
        &self.name
    }

    /// Returns the entry's index in its directory. Later entries have larger ones;
    /// [`Entries::starting_at`] resumes at one.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Returns the kind of file that the entry records for its inode.
    pub fn file_type(&self) -> FileKind {
        // The tree checker refuses the attribute type here; a subvolume is a directory.
        self.file_type.kind().unwrap_or(FileKind::Directory)
    }

    /// Returns the target: an inode of the same subvolume, or a subvolume.
    pub fn target(&self) -> EntryTarget {
        self.target
    }

    /// Returns the inode of the entry.
    ///
    /// # Errors
    /// An entry without an inode, or a tree block that cannot be read.
    pub fn inode(&self) -> Result<Inode> {
        self.directory.entry_inode(self)
    }

    /// Returns the directory that contains the entry.
    pub fn directory(&self) -> &Inode {
        &self.directory
    }
}

/// An iterator over the entries of a directory, by index. It ends after its first error.
#[derive(Debug)]
pub struct Entries {
    directory: Inode,
    batch: VecDeque<DirEntry>,
    /// Where the next batch starts; `None` at the end.
    next: Option<u64>,
    /// The last index to return.
    last: u64,
}

impl Entries {
    pub(super) fn new(directory: Inode) -> Self {
        let next = (!directory.is_subvolume_stub()).then_some(0);
        Self { directory, batch: VecDeque::new(), next, last: u64::MAX }
    }

    /// Skips the entries whose index is below `index`.
    pub fn starting_at(mut self, index: u64) -> Self {
        self.batch.clear();
        self.next = self.next.map(|_| index);
        self
    }

    /// Leaves out the entries whose index is above `index`, such as those created after
    /// [`Inode::last_entry_index`] returned it.
    pub fn up_to(mut self, index: u64) -> Self {
        self.last = index;
        self
    }

    fn fill(&mut self, first: u64) -> Result<()> {
        let handle = self.directory.handle()?;
        let tree = handle.tree();
        let last_key = index_first_key(handle.number, self.last);
        let mut cursor = tree.seek(&index_first_key(handle.number, first))?;
        while let Some(key) = cursor.key().filter(|key| *key <= last_key) {
            if self.batch.len() >= BATCH {
                self.next = Some(key.offset);
                return Ok(());
            }
            self.decode(tree, &cursor, key.offset)?;
            cursor.step()?;
        }
        Ok(())
    }

    fn decode(&mut self, tree: &Tree, cursor: &Cursor<'_>, index: u64) -> Result<()> {
        let Some(item) = cursor.item() else { return Ok(()) };
        let entries = DirEntries::parse(item.data()).map_err(|reason| item_error(tree, &item, reason))?;
        self.batch.extend(entries.map(|entry| DirEntry {
            directory: self.directory.clone(),
            name: entry.name.to_vec(),
            index,
            file_type: entry.file_type,
            target: EntryTarget::of(&entry.location),
        }));
        Ok(())
    }
}

impl Iterator for Entries {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Result<DirEntry>> {
        if self.batch.is_empty()
            && let Some(first) = self.next.take()
            && let Err(error) = self.fill(first)
        {
            self.next = None;
            return Some(Err(error));
        }
        self.batch.pop_front().map(Ok)
    }
}

impl Inode {
    /// Returns the entries of this directory, in the order of their creation, without `.` and `..`.
    ///
    /// # Errors
    /// [`PathError::NotADirectory`].
    pub fn read_dir(&self) -> Result<Entries> {
        self.must_be(FileKind::Directory, PathError::NotADirectory)?;
        Ok(Entries::new(self.clone()))
    }

    /// Returns the inode of an entry of this directory.
    pub(super) fn entry_inode(&self, entry: &DirEntry) -> Result<Inode> {
        let trees = &self.file_system().info.trees;
        let handle = self.handle()?.target(trees, entry.file_name(), entry.target())?;
        Ok(self.file_system().wrap(handle))
    }
}
